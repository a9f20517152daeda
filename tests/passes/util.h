/* util.h: what the tests of the passes share: building small functions, running them, central differences. */
#ifndef DLC_TESTS_PASSES_UTIL_H
#define DLC_TESTS_PASSES_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/internal.h"

typedef struct {
  Module *m;
  Func *f;
  Builder b;
  Error err;
} Fix;

static inline void fix_init(Fix *x) {
  memset(x, 0, sizeof *x);
  x->m = ir_module_new();
  x->m->real = DT_F64;
  x->f = ir_func_new(x->m, "train");
  x->b = (Builder){.f = x->f, .b = x->f->body, .loc = {NONE, 0, 0}, .err = &x->err};
}

static inline void no_error(const Fix *x) {
  if (x->err.cls != ERR_NONE)
    fail_msg("%s", x->err.msg);
}

/* "a=3,b=5" */
static inline Type parse_type(Module *m, DType d, const char *text) {
  Type t = type_scalar(d);
  char name[32];
  int size, used;
  while (sscanf(text, " %31[a-z_0-9]=%d%n", name, &size, &used) == 2) {
    assert_true(type_push(&t, ir_axis(m, name), size));
    text += used;
    text += *text == ',';
  }
  return t;
}

static inline Val fix_param(Fix *x, const char *name, const char *dims) {
  Module *m = x->m;
  IrParam p = {.name = name, .type = parse_type(m, DT_F64, dims), .group = 0, .loc = {NONE, 0, 0}};
  VEC_PUSH(&m->arena, m->param, m->n_params, m->cap_params, p);
  return ir_func_arg(x->f, ARG_PARAM, m->n_params - 1, p.type, name);
}

static inline Val fix_input(Fix *x, const char *name, DType d, const char *dims) {
  Module *m = x->m;
  IrInput p = {.name = name, .type = parse_type(m, d, dims), .loc = {NONE, 0, 0}};
  VEC_PUSH(&m->arena, m->input, m->n_inputs, m->cap_inputs, p);
  return ir_func_arg(x->f, ARG_INPUT, m->n_inputs - 1, p.type, name);
}

static inline Axis ax(Fix *x, const char *name) {
  return ir_axis(x->m, name);
}

static inline Val num(Fix *x, double v) {
  return ir_const(&x->b, DT_F64, v);
}

/* sum(v * w) with fixed uneven weights w, so that no element's gradient can hide. */
static inline Val weigh(Fix *x, Val v) {
  Builder *b = &x->b;
  if (v == NONE)
    return NONE;
  const Type t = *ir_type(x->f, v);
  Val angle = num(x, 0.4);
  Axis axis[IR_MAX_RANK];
  for (uint32_t i = 0; i < t.rank; i++) {
    Val iota = ir_cast(b, ir_iota(b, t.dim[i].axis, t.dim[i].size), DT_F64);
    angle = ir_binary(b, OP_ADD, angle, ir_binary(b, OP_MUL, iota, num(x, 1.1 + 0.7 * i)));
    axis[i] = t.dim[i].axis;
  }
  return ir_reduce(b, OP_SUM, ir_binary(b, OP_MUL, v, ir_unary(b, OP_SIN, angle)), axis, t.rank);
}

static inline void fix_loss(Fix *x, Val loss) {
  no_error(x);
  ir_func_ret(x->f, (FuncRes){.kind = RES_LOSS, .name = "loss"}, loss);
}

/* ---- running ---- */

typedef struct {
  Arena arena;
  Tensor *in;
  uint32_t n;
} Data;

/* Values spread over [lo, hi] without pattern; ints cycle through 0 .. hi. */
static inline Data make_data(const Func *f, double lo, double hi) {
  Data d = {.n = f->body->n_params};
  d.in = ARENA_ARRAY(&d.arena, Tensor, d.n);
  uint64_t state = 88172645463325252u;
  for (uint32_t i = 0; i < d.n; i++) {
    Tensor *t = &d.in[i];
    t->type = *ir_type(f, f->body->param[i]);
    int64_t count = type_count(&t->type);
    t->data = ARENA_ARRAY(&d.arena, double, (size_t)count);
    for (int64_t k = 0; k < count; k++) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      double u = (double)(state >> 11) / 9007199254740992.0;
      t->data[k] = dtype_is_float(t->type.dtype) ? lo + (hi - lo) * u : floor(u * 3);
    }
  }
  return d;
}

static inline Tensor *run(const Func *f, const Data *d, Arena *arena) {
  Error err = {0};
  Tensor *out = ARENA_ARRAY(arena, Tensor, f->body->n_ret);
  if (!ir_verify_func(f, &err) || !ir_interp(f, d->in, out, arena, false, &err)) {
    Str s = {0};
    ir_print_func(f, &s);
    fail_msg("%s\n%s", err.msg, s.s);
  }
  return out;
}

static inline double loss_at(const Func *f, const Data *d) {
  Arena arena = {0};
  double v = run(f, d, &arena)[0].data[0];
  arena_free(&arena);
  return v;
}

static inline void close_to(const char *what, double got, double want, double tol) {
  if (!(fabs(got - want) <= tol * (1 + fabs(want))))
    fail_msg("%s: %.12g, expected %.12g", what, got, want);
}

/* Every RES_GRAD of g against central differences of the loss of f. */
static inline void check_against_differences(const char *what, const Func *f, const Func *g, Data *d,
                                             double tol) {
  Arena arena = {0};
  Tensor *out = run(g, d, &arena);
  for (uint32_t r = 0; r < g->body->n_ret; r++) {
    if (g->res[r].kind != RES_GRAD)
      continue;
    uint32_t p = 0;
    while (f->arg[p].kind != ARG_PARAM || f->arg[p].index != g->res[r].index)
      p++;
    assert_true(type_equal(&out[r].type, &d->in[p].type));
    for (int64_t k = 0; k < type_count(&out[r].type); k++) {
      double x = d->in[p].data[k], h = 1e-5 * (1 + fabs(x));
      d->in[p].data[k] = x + h;
      double up = loss_at(f, d);
      d->in[p].data[k] = x - h;
      double down = loss_at(f, d);
      d->in[p].data[k] = x;
      char name[200];
      snprintf(name, sizeof name, "%s: gradient of parameter %u, element %lld", what, g->res[r].index,
               (long long)k);
      close_to(name, out[r].data[k], (up - down) / (2 * h), tol);
    }
  }
  arena_free(&arena);
}

static inline uint32_t count_in(const Func *f, const Block *b, OpCode c) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    n += op->code == c;
    if (op->body)
      n += count_in(f, op->body, c);
  }
  return n;
}

static inline uint32_t count_ops(const Func *f, OpCode c) {
  return count_in(f, f->body, c);
}

#endif
