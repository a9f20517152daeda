/* random_program.h: random functions: pointwise ops, movement, reductions, loops. */
#ifndef DLC_TESTS_PASSES_RANDOM_PROGRAM_H
#define DLC_TESTS_PASSES_RANDOM_PROGRAM_H

#include "util.h"

#include <stdlib.h>

typedef struct {
  Fix x;
  uint64_t state;
  Val pool[64];
  uint32_t n;
} Gen;

static inline uint32_t below(Gen *g, uint32_t n) {
  g->state = g->state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(g->state >> 33) % n;
}

static inline Val pick(Gen *g) {
  return g->pool[below(g, g->n)];
}

static inline Val bounded(Gen *g, Val v) {
  return ir_unary(&g->x.b, below(g, 2) ? OP_TANH : OP_SIN, v);
}

static inline Val pointwise(Gen *g) {
  static const OpCode unary[] = {OP_NEG, OP_EXP, OP_TANH, OP_SIGMOID, OP_ERF, OP_SIN, OP_COS, OP_ABS};
  static const OpCode binary[] = {OP_ADD, OP_SUB, OP_MUL, OP_MUL, OP_MUL};
  Builder *b = &g->x.b;
  uint32_t k = below(g, 4);
  if (k == 0)
    return ir_unary(b, unary[below(g, 8)], bounded(g, pick(g)));
  if (k == 1)
    return ir_select(b, ir_binary(b, OP_LT, pick(g), num(&g->x, 0.1)), pick(g), pick(g));
  if (k == 2)
    return ir_binary(b, OP_POW,
                     ir_binary(b, OP_ADD, ir_binary(b, OP_MUL, pick(g), num(&g->x, 0.1)), num(&g->x, 2)),
                     num(&g->x, (double)below(g, 9) * 0.5 - 2));
  return ir_binary(b, binary[below(g, 5)], pick(g), pick(g));
}

static inline Axis some_axis(Gen *g, Val v) {
  const Type *t = ir_type(g->x.f, v);
  return t->dim[below(g, t->rank)].axis;
}

static inline Val moved(Gen *g) {
  Builder *b = &g->x.b;
  Val v = pick(g);
  Type t = *ir_type(g->x.f, v);
  if (t.rank == 0)
    return v;
  Axis a = some_axis(g, v), z = ax(&g->x, "z");
  int64_t size = t.dim[type_find(&t, a)].size;
  switch (below(g, 5)) {
  case 0: {
    Dim d = t.dim[0];
    t.dim[0] = t.dim[t.rank - 1];
    t.dim[t.rank - 1] = d;
    return ir_reorder(b, v, &t);
  }
  case 1: { /* pad, then cut elsewhere: a shift */
    Attr pad = {.axis = (Axis[]){a, a}, .n_axis = 2, .num = (int64_t[]){1, 0}, .n_num = 2};
    Attr cut = {.axis = &a, .n_axis = 1, .num = (int64_t[]){0, size}, .n_num = 2};
    v = ir_op(b, OP_PAD, &v, 1, &pad, NULL);
    return ir_op(b, OP_SLICE, &v, 1, &cut, NULL);
  }
  case 2: { /* a reversal or a shift by index */
    Val i = ir_iota(b, a, size);
    i = below(g, 2) ? ir_binary(b, OP_SUB, ir_const(b, DT_I32, (double)(size - 1)), i)
                    : ir_binary(b, OP_ADD, i, ir_const(b, DT_I32, 1));
    return ir_gather(b, v, &a, &i, 1);
  }
  case 3: { /* there and back under another name */
    Val r = bounded(g, ir_rename(b, v, &a, &z, 1));
    return ir_rename(b, r, &z, &a, 1);
  }
  default:
    return ir_op(b, OP_CUMSUM, &v, 1,
                 &(Attr){.axis = &a, .n_axis = 1, .num = (int64_t[]){below(g, 2)}, .n_num = 1}, NULL);
  }
}

static inline Val reduced(Gen *g) {
  Builder *b = &g->x.b;
  Val v = below(g, 2) ? ir_binary(b, OP_MUL, pick(g), pick(g)) : pick(g);
  if (ir_type(g->x.f, v)->rank == 0)
    return v;
  Axis a = some_axis(g, v);
  switch (below(g, 5)) {
  case 0: return ir_reduce(b, OP_REDUCE_MAX, v, &a, 1);
  case 1: {
    Val m = ir_reduce(b, OP_REDUCE_MAX, v, &a, 1), e = ir_unary(b, OP_EXP, ir_binary(b, OP_SUB, v, m));
    return ir_binary(b, OP_DIV, e, ir_reduce(b, OP_SUM, e, &a, 1));
  }
  default: return ir_reduce(b, OP_SUM, v, &a, 1);
  }
}

static inline void grow(Gen *g, uint32_t n) {
  for (uint32_t i = 0; i < n && g->n < 60; i++) {
    uint32_t k = below(g, 6);
    Val v = k < 3 ? pointwise(g) : k == 3 ? moved(g) : reduced(g);
    no_error(&g->x);
    g->pool[g->n++] = v;
  }
}

/* A loop whose body is itself a random program: one carry, one slice, invariants from the pool. */
static inline void random_loop(Gen *g, Val sliced) {
  Fix *x = &g->x;
  Builder outer = x->b;
  Gen in = *g;
  Val args[4] = {pick(g), sliced, pick(g), pick(g)};
  Block *body = ir_block_new(x->f);
  in.x.b.b = body;
  in.n = 0;
  ir_param(x->f, body, type_scalar(DT_I32), "i");
  Axis layer = ax(x, "layer");
  const Type carry = *ir_type(x->f, args[0]);
  for (int i = 0; i < 4; i++) {
    Type t = i == 1 ? type_without(ir_type(x->f, args[1]), &layer, 1) : *ir_type(x->f, args[i]);
    in.pool[in.n++] = ir_param(x->f, body, t, NULL);
  }
  grow(&in, 6);
  Val next = NONE, out = in.pool[in.n - 1];
  for (uint32_t i = in.n; i-- > 0 && next == NONE;)
    if (type_same_dims(ir_type(x->f, in.pool[i]), &carry))
      next = ir_reorder(&in.x.b, bounded(&in, in.pool[i]), &carry);
  ir_block_ret(x->f, body, next);
  ir_block_ret(x->f, body, out);
  x->b = outer;
  Attr a = {.axis = &layer, .n_axis = 1, .num = (int64_t[]){2, 1, 1, below(g, 2)}, .n_num = 4};
  Val r = ir_op(&x->b, OP_LOOP, args, 4, &a, body);
  no_error(x);
  g->pool[g->n++] = r;
  g->pool[g->n++] = ir_reduce(&x->b, OP_SUM, r + 1, &layer, 1);
}

static inline bool all_finite(const Tensor *t) {
  for (int64_t i = 0; i < type_count(&t->type); i++)
    if (!isfinite(t->data[i]) || fabs(t->data[i]) > 1e4)
      return false;
  return true;
}

/* A function of parameters w, p, q; results are left to the caller. */
static inline void random_body(Gen *g, uint64_t seed) {
  *g = (Gen){.state = seed};
  fix_init(&g->x);
  Val w = fix_param(&g->x, "w", "layer=2,a=2,b=3");
  Axis layer = ax(&g->x, "layer");
  g->pool[g->n++] = ir_reduce(&g->x.b, OP_SUM, w, &layer, 1);
  g->pool[g->n++] = fix_param(&g->x, "p", "b=3,c=2");
  g->pool[g->n++] = fix_param(&g->x, "q", "c=2,a=2");
  grow(g, 5);
  random_loop(g, w);
  grow(g, 6);
}

static inline void random_loss(Gen *g) {
  Val loss = num(&g->x, 0);
  for (uint32_t i = g->n - 4; i < g->n; i++)
    loss = ir_binary(&g->x.b, OP_ADD, loss, weigh(&g->x, bounded(g, g->pool[i])));
  fix_loss(&g->x, loss);
}

#endif
