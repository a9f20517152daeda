/* simplify.c: folding (fold.c), common subexpressions within a block, dead code (prune.c). */
#include "passes/internal.h"

#include <string.h>

typedef struct {
  Func *f;
  Error *err;
  bool drop_stop;
  Val *repl; /* value -> what stands for it now; NONE: itself */
  uint32_t n;
} Simplify;

static Val now(const Simplify *s, Val v) {
  return v < s->n && s->repl[v] != NONE ? s->repl[v] : v;
}

static void replace_with(Simplify *s, Val v, Val by) {
  if (v >= s->n) {
    uint32_t n = v + 1 + v / 2;
    Val *repl = ARENA_ARRAY(&s->f->module->arena, Val, n);
    memset(repl, 0xff, n * sizeof *repl);
    if (s->n)
      memcpy(repl, s->repl, s->n * sizeof *repl);
    s->repl = repl;
    s->n = n;
  }
  s->repl[v] = by;
}

/* ---- common subexpressions ---- */

typedef struct {
  OpId *slot; /* open addressing */
  uint32_t mask;
} Table;

static bool may_merge(const Op *op) {
  return op->code != OP_RANDOM && !op->body && op->n_results > 0;
}

static uint64_t mix(uint64_t h, const void *p, size_t n) {
  return n ? hash_bytes(p, n, h) : h;
}

static uint64_t op_hash(const Op *op) {
  uint64_t h = hash_bytes(&op->code, sizeof op->code, 0);
  Val pair[2];
  const Val *arg = op->arg;
  if ((ir_op_info[op->code].flags & F_COMM) && op->n_args == 2) {
    pair[0] = arg[0] < arg[1] ? arg[0] : arg[1];
    pair[1] = arg[0] < arg[1] ? arg[1] : arg[0];
    arg = pair;
  }
  h = mix(h, arg, op->n_args * sizeof *arg);
  h = mix(h, op->attr.axis, op->attr.n_axis * sizeof *op->attr.axis);
  h = mix(h, op->attr.num, op->attr.n_num * sizeof *op->attr.num);
  h = mix(h, &op->attr.f, sizeof op->attr.f);
  return mix(h, &op->attr.dtype, sizeof op->attr.dtype);
}

static bool same_args(const Op *a, const Op *b) {
  if (a->n_args != b->n_args)
    return false;
  if (memcmp(a->arg, b->arg, a->n_args * sizeof *a->arg) == 0)
    return true;
  return (ir_op_info[a->code].flags & F_COMM) && a->n_args == 2 && a->arg[0] == b->arg[1] &&
         a->arg[1] == b->arg[0];
}

static bool same_op(const Func *f, const Op *a, const Op *b) {
  const Attr *x = &a->attr, *y = &b->attr;
  return a->code == b->code && same_args(a, b) && x->n_axis == y->n_axis && x->n_num == y->n_num &&
         memcmp(&x->f, &y->f, sizeof x->f) == 0 && x->dtype == y->dtype &&
         (!x->n_axis || memcmp(x->axis, y->axis, x->n_axis * sizeof *x->axis) == 0) &&
         (!x->n_num || memcmp(x->num, y->num, x->n_num * sizeof *x->num) == 0) &&
         type_equal(&f->val[a->result].type, &f->val[b->result].type);
}

/* The op seen before that computes the same, or NONE after entering this one. */
static OpId find_or_enter(const Func *f, Table *t, OpId id) {
  for (uint32_t i = (uint32_t)op_hash(&f->op[id]) & t->mask;; i = (i + 1) & t->mask) {
    if (t->slot[i] == NONE) {
      t->slot[i] = id;
      return NONE;
    }
    if (t->slot[i] != id && same_op(f, &f->op[t->slot[i]], &f->op[id]))
      return t->slot[i];
  }
}

static void merge_equal(Simplify *s, Block *b) {
  Func *f = s->f;
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  Table t = {.mask = 15};
  while (t.mask < 2 * n)
    t.mask = t.mask * 2 + 1;
  t.slot = ARENA_ARRAY(&f->module->arena, OpId, t.mask + 1);
  memset(t.slot, 0xff, (t.mask + 1) * sizeof *t.slot);
  for (uint32_t i = 0; i < n; i++) {
    Op *op = &f->op[ops[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      op->arg[k] = now(s, op->arg[k]);
    OpId same = may_merge(op) ? find_or_enter(f, &t, ops[i]) : NONE;
    if (same == NONE) {
      block_push(f, b, ops[i]);
      continue;
    }
    for (uint32_t k = 0; k < op->n_results; k++)
      replace_with(s, op->result + k, f->op[same].result + k);
  }
  for (uint32_t i = 0; i < b->n_ret; i++)
    b->ret[i] = now(s, b->ret[i]);
}

/* ---- loops ---- */

/* Slices are taken along the slowest axis, so that each is one piece of memory. */
static void slices_first(Builder *b, OpId id) {
  Func *f = b->f;
  LoopShape s = loop_shape(f, id);
  for (uint32_t i = s.n_carry; i < s.n_carry + s.n_xs; i++) {
    Val v = axis_first(b, f->op[id].arg[i], s.axis);
    f->op[id].arg[i] = v;
  }
}

/* A constant that comes in as an invariant is made anew inside; operands that come in twice are read once.
 * What this leaves unused goes with dead code. */
static void simplify_inputs(Simplify *s, OpId id) {
  Func *f = s->f;
  Op op = f->op[id];
  LoopShape shape = loop_shape(f, id);
  OpId *ops;
  uint32_t n = block_take(op.body, &ops);
  Builder b = {.f = f, .b = op.body, .loc = op.loc, .err = s->err};
  for (uint32_t i = shape.n_carry; i < op.n_args; i++) {
    Val param = op.body->param[1 + i];
    bool slice = i < shape.n_carry + shape.n_xs;
    double c;
    if (!slice && is_const(f, op.arg[i], &c)) {
      Type t = *ir_type(f, param);
      replace_with(s, param, ir_broadcast(&b, ir_const(&b, t.dtype, c), &t));
      continue;
    }
    for (uint32_t k = slice ? shape.n_carry : shape.n_carry + shape.n_xs; k < i; k++)
      if (op.arg[k] == op.arg[i]) {
        replace_with(s, param, now(s, op.body->param[1 + k]));
        break;
      }
  }
  for (uint32_t i = 0; i < n; i++)
    block_push(f, op.body, ops[i]);
}

/* ---- orders of storage ---- */

static bool may_sink(OpCode c) {
  return op_is_pointwise(c) || c == OP_SOFTMAX || c == OP_SUM || c == OP_REDUCE_MAX || c == OP_GATHER ||
         c == OP_RENAME || c == OP_ATTENTION;
}

/* Whether operand i, not reordered itself, leaves the order of the result to the others. */
static bool follows(const Op *op, uint32_t i, const Type *arg, const Type *want) {
  if (op->code == OP_GATHER || op->code == OP_ATTENTION)
    return i > 0;
  return op_is_pointwise(op->code) && arg->rank < want->rank;
}

/* Axes join by name, so an operand's order matters only for the order of the result. Operands lose their
 * reorders where the result stays as it is; pointwise ops, reductions, gathers and attention also where the
 * operands that decide are reordered: the results are reordered instead, until the reorder meets a
 * contraction that does not mind. True when the op is replaced. */
static bool sink_orders(Simplify *s, Builder *b, OpId id) {
  Func *f = b->f;
  Op op = f->op[id];
  if (op.code == OP_LOOP || op.code == OP_REGION || op.n_results == 0 || op.n_args == 0)
    return false;
  Arena *arena = &f->module->arena;
  Val *bare = ARENA_ARRAY(arena, Val, op.n_args);
  Type *arg = ARENA_ARRAY(arena, Type, op.n_args), *result = ARENA_ARRAY(arena, Type, op.n_results);
  const Type want = *ir_type(f, op.result);
  bool any = false, sink = may_sink(op.code), same = true;
  for (uint32_t i = 0; i < op.n_args; i++) {
    const Op *in = def_op(f, op.arg[i]);
    bool reorder = in && in->code == OP_REORDER;
    bare[i] = reorder ? in->arg[0] : op.arg[i];
    arg[i] = *ir_type(f, bare[i]);
    any |= reorder;
    sink &= reorder || follows(&op, i, &arg[i], &want);
  }
  Error quiet = {0};
  if (!any || !ir_infer(f->module, op.code, arg, op.n_args, &op.attr, result, &quiet))
    return false;
  for (uint32_t i = 0; i < op.n_results; i++)
    same &= type_equal(&result[i], ir_type(f, op.result + i));
  if (same)
    memcpy(op.arg, bare, op.n_args * sizeof *bare);
  if (same || !sink)
    return false;
  Val r = ir_op(b, op.code, bare, op.n_args, &op.attr, op.body);
  for (uint32_t i = 0; i < op.n_results && r != NONE; i++) {
    const Type t = *ir_type(f, op.result + i);
    replace_with(s, op.result + i, ir_reorder(b, r + i, &t));
  }
  return true;
}

/* ---- blocks ---- */

static void simplify_block(Simplify *s, Block *b) {
  Func *f = s->f;
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  Builder e = {.f = f, .b = b, .err = s->err};
  for (uint32_t i = 0; i < n; i++) {
    OpId id = ops[i];
    for (uint32_t k = 0; k < f->op[id].n_args; k++)
      f->op[id].arg[k] = now(s, f->op[id].arg[k]);
    e.loc = f->op[id].loc;
    if (f->op[id].code == OP_LOOP) {
      slices_first(&e, id);
      simplify_inputs(s, id);
    }
    if (f->op[id].body)
      simplify_block(s, f->op[id].body);
    Val r = fold_op(&e, id, s->drop_stop);
    if (r == NONE && sink_orders(s, &e, id))
      continue;
    if (r == NONE) {
      block_push(f, b, id);
      continue;
    }
    if (!f->val[r].name)
      f->val[r].name = f->val[f->op[id].result].name;
    replace_with(s, f->op[id].result, r);
  }
  for (uint32_t i = 0; i < b->n_ret; i++)
    b->ret[i] = now(s, b->ret[i]);
  merge_equal(s, b);
}

bool simplify_body(Func *f, Block *b, bool drop_stop, Error *err) {
  Simplify s = {.f = f, .err = err, .drop_stop = drop_stop};
  simplify_block(&s, b);
  prune(f, b);
  return err->cls == ERR_NONE;
}

bool simplify(Func *f, bool drop_stop, Error *err) {
  return simplify_body(f, f->body, drop_stop, err);
}

bool pass_simplify(Func *f, Error *err) {
  return simplify(f, false, err);
}
