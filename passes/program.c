/* program.c: a fused function -> launches and buffers.
 *
 * Loops are run here: each iteration adds its launches, with buffers of its own, so that what an iteration
 * saved is freed as soon as it was used. A value has a Place: a range of a buffer. Views are other names of
 * their operand's place. Values that must lie somewhere (results of the function, stacked results of loops)
 * have a place wanted before they are computed, and their kernel writes there. */
#include "passes/fuse.h"
#include "passes/program.h"

#include <string.h>

/* Where a value lies: densely at `offset` of a buffer, or, when `piece` is set, one place an index of its
 * leading axis. */
typedef struct Place Place;
struct Place {
  uint32_t buffer;
  int64_t offset;
  const Place *piece;
};

typedef struct {
  Making make;
  Place *place;         /* by value: where it lies now */
  Place *want;          /* by value: where it has to lie; buffer NONE: anywhere */
  unsigned char *apart; /* by value: 0 unknown, 1 no, 2 yes */
  uint32_t index;       /* buffer of 0, 1, 2, ...: loop indices */
} Lower;

static const Place nowhere = {.buffer = NONE};

/* ---- buffers ---- */

bool buffer_persistent(const Buffer *b) {
  return b->kind == BUF_PARAM || b->kind == BUF_OPT || b->kind == BUF_STATE;
}

int64_t buffer_room(const Buffer *b) {
  return (b->bytes + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
}

uint32_t make_buffer(Making *x, BufferKind kind, const Type *t, const char *name) {
  Buffer b = {.name = name, .kind = kind, .dtype = t->dtype, .rank = t->rank};
  Program *p = x->p;
  if (!b.name)
    b.name = arena_printf(x->arena, "t%u", p->n_buffers);
  for (int i = 0; i < t->rank; i++) {
    b.axis[i] = ir_axis_name(x->f->module, t->dim[i].axis);
    b.size[i] = t->dim[i].size;
  }
  if (!type_bytes(t, &b.bytes) || b.bytes > INT64_MAX / 4) {
    error_set(x->err, ERR_INPUT, "'%s' needs more bytes than can be addressed", b.name);
    b.bytes = 0;
  }
  VEC_PUSH(x->arena, p->buffer, p->n_buffers, x->cap_buffers, b);
  return p->n_buffers - 1;
}

static Place new_place(Lower *x, BufferKind kind, Val v) {
  const Func *f = x->make.f;
  return (Place){.buffer = make_buffer(&x->make, kind, ir_type(f, v), f->val[v].name)};
}

static bool broken(Lower *x, const char *what, Val v) {
  const char *name = x->make.f->val[v].name;
  return error_set(x->make.err, ERR_INPUT, "step program %s: value %%%u%s%s %s", x->make.p->name, v,
                   name ? " " : "", name ? name : "", what);
}

/* ---- wanted places ---- */

static bool is_whole_view(OpCode c) {
  return c == OP_RENAME || c == OP_SPLIT || c == OP_MERGE;
}

/* v has to be written at `at` by whoever computes it. */
static bool want_at(Lower *x, Val v, Place at) {
  const Func *f = x->make.f;
  const Op *op = def_op(f, v);
  while (op && is_whole_view(op->code)) {
    v = op->arg[0];
    op = def_op(f, v);
  }
  if (!op || (op->code != OP_REGION && op->code != OP_LOOP))
    return broken(x, "needs a copy", v);
  if (x->want[v].buffer != NONE)
    return broken(x, "is wanted in two places", v);
  x->want[v] = at;
  return true;
}

/* ---- uses ---- */

static bool sliced_by_op(const Func *f, const Block *b, const Op *op, uint32_t k) {
  Val v = op->arg[k];
  if (op->code == OP_LOOP) {
    uint32_t first = (uint32_t)op->attr.num[1], n = (uint32_t)op->attr.num[2];
    return k >= first && k < first + n;
  }
  Axis lead = ir_type(f, v)->dim[0].axis;
  if (op->code == OP_SLICE || !is_view(f, op))
    return false;
  uint32_t n = op->code == OP_MERGE ? op->attr.n_axis - 1 : op->code == OP_SPLIT ? 1 : 0;
  for (uint32_t i = 0; i < n; i++)
    if (op->attr.axis[i] == lead)
      return false;
  return stacked_apart(f, b, op->result);
}

bool stacked_apart(const Func *f, const Block *b, Val v) {
  for (uint32_t i = 0; i < b->n_ret; i++)
    if (b->ret[i] == v)
      return false;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      if (op->arg[k] == v && !sliced_by_op(f, b, op, k))
        return false;
  }
  return true;
}

static bool lies_apart(Lower *x, const Block *b, Val v) {
  if (!x->apart[v])
    x->apart[v] = stacked_apart(x->make.f, b, v) ? 2 : 1;
  return x->apart[v] == 2;
}

/* ---- ops ---- */

static bool lower_block(Lower *x, const Block *b);

static bool lower_region(Lower *x, OpId id) {
  const Func *f = x->make.f;
  const Op *op = &f->op[id];
  Making *m = &x->make;
  Launch l = {
      .kernel = make_kernel(m, id), .n_args = op->n_args + op->n_results, .scratch = {.buffer = UINT32_MAX}};
  l.arg = ARENA_ARRAY(m->arena, Operand, l.n_args);
  for (uint32_t k = 0; k < op->n_args; k++) {
    const Place *at = &x->place[op->arg[k]];
    if (at->piece || at->buffer == NONE)
      return broken(x, "is read as a whole but does not lie so", op->arg[k]);
    l.arg[k] = (Operand){at->buffer, at->offset};
  }
  for (uint32_t k = 0; k < op->n_results; k++) {
    Val v = op->result + k;
    x->place[v] = x->want[v].buffer != NONE ? x->want[v] : new_place(x, BUF_TEMP, v);
    l.arg[op->n_args + k] = (Operand){x->place[v].buffer, x->place[v].offset};
  }
  VEC_PUSH(m->arena, m->p->launch, m->p->n_launches, m->cap_launches, l);
  return true;
}

/* Elements from one index of dim d to the next. */
static int64_t dim_stride(const Type *t, int d) {
  int64_t s = 1;
  for (int i = d + 1; i < t->rank; i++)
    s *= t->dim[i].size;
  return s;
}

static bool lower_view(Lower *x, const Op *op) {
  const Type *t = ir_type(x->make.f, op->arg[0]);
  Place at = x->place[op->arg[0]];
  if (op->code == OP_SLICE) {
    if (at.piece)
      return broken(x, "is read as a whole but does not lie so", op->arg[0]);
    at.offset +=
        op->attr.num[0] * dim_stride(t, type_find(t, op->attr.axis[0])) * (int64_t)dtype_bytes(t->dtype);
  } else if (!is_whole_view(op->code)) {
    return broken(x, "is computed outside of regions", op->result);
  }
  x->place[op->result] = at;
  return true;
}

static Place slice_at(const Place *whole, const Type *slice, int64_t i) {
  if (whole->piece)
    return whole->piece[i];
  return (Place){.buffer = whole->buffer,
                 .offset = whole->offset + i * type_count(slice) * (int64_t)dtype_bytes(slice->dtype)};
}

/* One loop while it is unrolled. */
typedef struct {
  const Op *op;
  LoopShape s;
  Place *carry, *next, *stack; /* stack: by stacked result: the whole */
  Place **piece;               /* or its slices */
} Unroll;

static bool begin_iteration(Lower *x, Unroll *u, int64_t i, bool last) {
  const Func *f = x->make.f;
  const Block *b = u->op->body;
  const LoopShape *s = &u->s;
  x->place[b->param[0]] = (Place){.buffer = x->index, .offset = i * (int64_t)dtype_bytes(DT_I32)};
  for (uint32_t k = 0; k < u->op->n_args; k++) {
    const Place *at = &x->place[u->op->arg[k]];
    Val to = b->param[k + 1];
    x->place[to] = k < s->n_carry             ? u->carry[k]
                   : k < s->n_carry + s->n_xs ? slice_at(at, ir_type(f, to), i)
                                              : *at;
  }
  for (uint32_t k = 0; k < b->n_ops; k++)
    for (uint32_t r = 0; r < f->op[b->op[k]].n_results; r++)
      x->want[f->op[b->op[k]].result + r] = nowhere;
  for (uint32_t k = 0; k < s->n_ys; k++) {
    Val v = b->ret[s->n_carry + k];
    if (u->stack[k].buffer != NONE && !want_at(x, v, slice_at(&u->stack[k], ir_type(f, v), i)))
      return false;
  }
  for (uint32_t k = 0; k < s->n_carry && last; k++)
    if (x->want[u->op->result + k].buffer != NONE && !want_at(x, b->ret[k], x->want[u->op->result + k]))
      return false;
  return true;
}

static void end_iteration(Lower *x, Unroll *u, int64_t i) {
  const Block *b = u->op->body;
  for (uint32_t k = 0; k < u->s.n_carry; k++)
    u->next[k] = x->place[b->ret[k]];
  for (uint32_t k = 0; k < u->s.n_ys; k++)
    if (u->piece[k])
      u->piece[k][i] = x->place[b->ret[u->s.n_carry + k]];
  Place *t = u->carry;
  u->carry = u->next;
  u->next = t;
}

/* Whether every slice of the loop's operands is contiguous. */
static bool slices_lead(Lower *x, const Unroll *u) {
  for (uint32_t k = u->s.n_carry; k < u->s.n_carry + u->s.n_xs; k++) {
    const Type *t = ir_type(x->make.f, u->op->arg[k]);
    if (t->dim[0].axis != u->s.axis)
      return broken(x, "is read in slices that are not contiguous", u->op->arg[k]);
  }
  return true;
}

static bool lower_loop(Lower *x, const Block *outer, OpId id) {
  const Op *op = &x->make.f->op[id];
  Arena *mem = &x->make.mem;
  Unroll u = {.op = op, .s = loop_shape(x->make.f, id)};
  u.carry = ARENA_ARRAY(mem, Place, u.s.n_carry);
  u.next = ARENA_ARRAY(mem, Place, u.s.n_carry);
  u.stack = ARENA_ARRAY(mem, Place, u.s.n_ys);
  u.piece = ARENA_ARRAY(mem, Place *, u.s.n_ys);
  if (!slices_lead(x, &u))
    return false;
  for (uint32_t k = 0; k < u.s.n_carry; k++)
    u.carry[k] = x->place[op->arg[k]];
  for (uint32_t k = 0; k < u.s.n_ys; k++) {
    Val v = op->result + u.s.n_carry + k;
    u.stack[k] = x->want[v];
    if (u.stack[k].buffer == NONE && lies_apart(x, outer, v))
      u.piece[k] = ARENA_ARRAY(mem, Place, (size_t)u.s.size);
    else if (u.stack[k].buffer == NONE)
      u.stack[k] = new_place(x, BUF_TEMP, v);
  }
  for (int64_t n = 0; n < u.s.size; n++) {
    int64_t i = u.s.reverse ? u.s.size - 1 - n : n;
    if (!begin_iteration(x, &u, i, n == u.s.size - 1) || !lower_block(x, op->body))
      return false;
    end_iteration(x, &u, i);
  }
  for (uint32_t k = 0; k < u.s.n_carry; k++)
    x->place[op->result + k] = u.carry[k];
  for (uint32_t k = 0; k < u.s.n_ys; k++)
    x->place[op->result + u.s.n_carry + k] =
        u.piece[k] ? (Place){.buffer = NONE, .piece = u.piece[k]} : u.stack[k];
  return true;
}

static bool lower_block(Lower *x, const Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &x->make.f->op[b->op[i]];
    bool ok = op->code == OP_REGION ? lower_region(x, b->op[i])
              : op->code == OP_LOOP ? lower_loop(x, b, b->op[i])
                                    : lower_view(x, op);
    if (!ok || x->make.err->cls != ERR_NONE)
      return false;
  }
  return true;
}

/* ---- the function's arguments and results ---- */

/* Parameters, optimizer state, module state: all of the module's, used or not, in the order of its tables, so
 * that every program of the module has them at the same place. */
static bool make_persistent(Making *x) {
  const Module *m = x->f->module;
  Program *p = x->p;
  for (uint32_t i = 0; i < m->n_params; i++)
    make_buffer(x, BUF_PARAM, &m->param[i].type, m->param[i].name);
  for (uint32_t i = 0; i < m->n_opt; i++)
    make_buffer(x, BUF_OPT, &m->opt[i].type, m->opt[i].name);
  for (uint32_t i = 0; i < m->n_states; i++)
    make_buffer(x, BUF_STATE, &m->state[i].type, m->state[i].name);
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    p->buffer[i].offset = p->persistent_bytes;
    if (!size_add(p->persistent_bytes, buffer_room(&p->buffer[i]), &p->persistent_bytes))
      return error_set(x->err, ERR_INPUT, "the parameters need more bytes than can be addressed");
  }
  return x->err->cls == ERR_NONE;
}

static uint32_t persistent_buffer(const Module *m, ArgKind kind, uint32_t index) {
  return index + (kind == ARG_PARAM ? 0 : m->n_params) + (kind == ARG_STATE ? m->n_opt : 0);
}

/* The module's inputs and the scalars of a run, used or not: whoever runs a program looks them up by name.
 * The first of each follow one another. */
static void make_inputs(Making *x, uint32_t *first_input, uint32_t *first_scalar) {
  static const struct {
    const char *name;
    DType dtype;
  } scalar[SCALAR_COUNT] = {
#define X(e, name, dtype) {name, DT_##dtype},
      SCALARS(X)
#undef X
  };
  const Module *m = x->f->module;
  *first_input = x->p->n_buffers;
  for (uint32_t i = 0; i < m->n_inputs; i++)
    make_buffer(x, BUF_INPUT, &m->input[i].type, m->input[i].name);
  *first_scalar = x->p->n_buffers;
  for (uint32_t i = 0; i < SCALAR_COUNT; i++) {
    Type t = type_scalar(scalar[i].dtype);
    make_buffer(x, BUF_SCALAR, &t, scalar[i].name);
  }
}

static bool place_args(Lower *x) {
  const Func *f = x->make.f;
  uint32_t inputs, scalars;
  make_inputs(&x->make, &inputs, &scalars);
  for (uint32_t i = 0; i < f->body->n_params; i++) {
    Val v = f->body->param[i];
    FuncArg a = f->arg[i];
    uint32_t buffer;
    switch (a.kind) {
    case ARG_PARAM:
    case ARG_OPT:
    case ARG_STATE: buffer = persistent_buffer(f->module, a.kind, a.index); break;
    case ARG_INPUT: buffer = inputs + a.index; break;
    case ARG_SCALAR: buffer = scalars + a.index; break;
    default: return broken(x, "is an argument of update code", v);
    }
    x->place[v] = (Place){.buffer = buffer};
  }
  return x->make.err->cls == ERR_NONE;
}

static bool is_persistent_result(ResKind k) {
  return k == RES_PARAM || k == RES_OPT || k == RES_STATE;
}

static bool want_results(Lower *x) {
  const Func *f = x->make.f;
  const Block *b = f->body;
  for (uint32_t i = 0; i < b->n_ret; i++) {
    ResKind k = f->res[i].kind;
    if (!is_persistent_result(k))
      continue;
    uint32_t to = persistent_buffer(f->module,
                                    k == RES_PARAM ? ARG_PARAM
                                    : k == RES_OPT ? ARG_OPT
                                                   : ARG_STATE,
                                    f->res[i].index);
    const Place *at = &x->place[b->ret[i]];
    if (at->buffer != to && !want_at(x, b->ret[i], (Place){.buffer = to}))
      return false;
  }
  for (uint32_t i = 0; i < b->n_ret; i++) {
    Val v = b->ret[i];
    if (is_persistent_result(f->res[i].kind) || x->want[v].buffer != NONE)
      continue;
    uint32_t to = make_buffer(&x->make, BUF_OUTPUT, ir_type(f, v), f->res[i].name);
    if (!want_at(x, v, (Place){.buffer = to}))
      return false;
  }
  return true;
}

/* The result of `kind` that goes with result i: the denominator of a mean. */
static uint32_t partner(const Lower *x, uint32_t i, ResKind kind) {
  const Func *f = x->make.f;
  for (uint32_t k = 0; k < f->body->n_ret; k++) {
    const FuncRes *r = &f->res[k];
    bool same = kind == RES_LOSS_DEN ? r->index == f->res[i].index
                                     : r->name && f->res[i].name && strcmp(r->name, f->res[i].name) == 0;
    if (r->kind == kind && same)
      return x->place[f->body->ret[k]].buffer;
  }
  return UINT32_MAX;
}

static void list_results(Lower *x) {
  const Func *f = x->make.f;
  Making *m = &x->make;
  for (uint32_t i = 0; i < f->body->n_ret; i++) {
    const FuncRes *r = &f->res[i];
    Result out = {.name = r->name, .num = x->place[f->body->ret[i]].buffer, .den = UINT32_MAX};
    switch (r->kind) {
    case RES_LOSS:
      out.name = "loss";
      out.kind = 1;
      break;
    case RES_LOSS_NUM:
      out.name = arena_printf(m->arena, "loss_term.%u", r->index);
      out.den = partner(x, i, RES_LOSS_DEN);
      break;
    case RES_METRIC_NUM: out.den = partner(x, i, RES_METRIC_DEN); break;
    case RES_SCALAR: out.kind = 1; break;
    case RES_OUTPUT: out.kind = 2; break;
    case RES_GRAD:
      out.name = f->module->param[r->index].name;
      out.kind = 3;
      break;
    default: continue;
    }
    VEC_PUSH(m->arena, m->p->result, m->p->n_results, m->cap_results, out);
  }
}

/* 0, 1, 2, ... up to the longest loop. */
static void make_indices(Lower *x) {
  const Func *f = x->make.f;
  int64_t most = 0;
  for (uint32_t i = 0; i < f->n_ops; i++)
    if (f->op[i].code == OP_LOOP && f->op[i].attr.num[0] > most)
      most = f->op[i].attr.num[0];
  if (!most)
    return;
  Type t = type_scalar(DT_I32);
  Program *p = x->make.p;
  x->index = make_buffer(&x->make, BUF_CONST, &t, "$index");
  int32_t *init = ARENA_ARRAY(x->make.arena, int32_t, (size_t)most);
  for (int64_t i = 0; i < most; i++)
    init[i] = (int32_t)i;
  p->buffer[x->index].bytes = most * (int64_t)sizeof *init;
  p->buffer[x->index].init = init;
}

static bool lower_func(Lower *x) {
  if (!make_persistent(&x->make) || !place_args(x) || !want_results(x))
    return false;
  make_indices(x);
  if (!lower_block(x, x->make.f->body))
    return false;
  list_results(x);
  return true;
}

bool program_lower(const Func *fused, const char *name, Arena *arena, Draft *out, Error *err) {
  *out = (Draft){.func = fused};
  out->program.name = arena_strdup(arena, name);
  Lower x = {.make = {.f = fused, .arena = arena, .err = err, .p = &out->program}, .index = NONE};
  Arena *mem = &x.make.mem;
  x.place = ARENA_ARRAY(mem, Place, fused->n_vals);
  x.want = ARENA_ARRAY(mem, Place, fused->n_vals);
  x.apart = ARENA_ARRAY(mem, unsigned char, fused->n_vals);
  for (uint32_t i = 0; i < fused->n_vals; i++)
    x.place[i] = x.want[i] = nowhere;
  x.make.kernel_of = ARENA_ARRAY(arena, uint32_t, fused->n_ops);
  memset(x.make.kernel_of, 0xff, fused->n_ops * sizeof *x.make.kernel_of);
  bool ok = lower_func(&x);
  out->region = x.make.region;
  out->kernel_of = x.make.kernel_of;
  arena_free(&x.make.mem);
  return ok;
}
