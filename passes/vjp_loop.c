/* vjp_loop.c: the rule of `loop`.
 *
 * The backward is one loop that runs the other way. It carries the cotangents of the carried values and the
 * sums of the cotangents of the invariants; it reads, slice by slice, the cotangents of the stacked results
 * and what the forward saved; it stacks the cotangents of the sliced operands. A primal value that a rule
 * asks for is found, in this order: index, slice or invariant of the forward (passed again); saved by the
 * forward as one more stacked result (carried values, results of contractions, reductions, gathers,
 * composites and inner loops, direct operands of contractions and attention); recomputed from those by
 * copying its op. Random numbers depend on their op id alone, so recomputing gives the same draw. */
#include "passes/internal.h"

#include <string.h>

typedef enum { IN_SAVED, IN_SLICE, IN_COTANGENT } SliceKind;

typedef struct {
  SliceKind kind;
  uint32_t index; /* IN_SAVED: into saved; IN_SLICE: operand of the forward loop */
  Val value;      /* IN_COTANGENT: in the enclosing backward */
  Val param;      /* in the backward body */
} SliceIn;

typedef struct {
  uint32_t index; /* operand of the forward loop */
  Val param;
} InvariantIn;

/* A contraction in the backward body that is a term of the cotangent of an invariant. */
typedef struct {
  uint32_t operand; /* of the forward loop */
  Val side[2];      /* in the backward body */
  uint32_t at[2];   /* among the backward loop's operands (slices) or results */
} Product;

struct AdLoop {
  Ad *outer;
  OpId id;
  LoopShape s;
  Val *map;      /* forward value -> backward value */
  bool *operand; /* forward value -> operand of a contraction or an attention */
  uint32_t n_map;
  Val *saved;
  uint32_t *at; /* saved value -> index among the forward's results */
  SliceIn *slice;
  InvariantIn *inv;
  Product *product;
  uint32_t n_saved, cap_saved, n_slice, cap_slice, n_inv, cap_inv, n_product, cap_product;
};

static Arena *arena_of(const Ad *a) {
  return &a->b.f->module->arena;
}

static void map_room(Ad *a, Val v) {
  struct AdLoop *l = a->loop;
  if (v < l->n_map)
    return;
  uint32_t n = v + 1 + v / 2;
  Val *map = ARENA_ARRAY(arena_of(a), Val, n);
  bool *operand = ARENA_ARRAY(arena_of(a), bool, n);
  memset(map, 0xff, n * sizeof *map);
  if (l->n_map) {
    memcpy(map, l->map, l->n_map * sizeof *map);
    memcpy(operand, l->operand, l->n_map * sizeof *operand);
  }
  l->map = map;
  l->operand = operand;
  l->n_map = n;
}

/* ---- primal values ---- */

static Val new_slice(Ad *a, SliceKind kind, uint32_t index, Val value, const Type *t, const char *name) {
  struct AdLoop *l = a->loop;
  Val param = ir_param(a->b.f, a->b.b, *t, name);
  VEC_PUSH(arena_of(a), l->slice, l->n_slice, l->cap_slice, (SliceIn){kind, index, value, param});
  return param;
}

static Val save(Ad *a, Val v) {
  struct AdLoop *l = a->loop;
  const Value value = a->b.f->val[v];
  VEC_PUSH(arena_of(a), l->saved, l->n_saved, l->cap_saved, v);
  return new_slice(a, IN_SAVED, l->n_saved - 1, NONE, &value.type, value.name);
}

static Val bring_param(Ad *a, Val v, uint32_t index) {
  struct AdLoop *l = a->loop;
  uint32_t operand = index - 1; /* parameter 0 is the loop index */
  if (operand < l->s.n_carry)
    return save(a, v);
  const Value value = a->b.f->val[v];
  if (operand < l->s.n_carry + l->s.n_xs)
    return new_slice(a, IN_SLICE, operand, NONE, &value.type, value.name);
  Val param = ir_param(a->b.f, a->b.b, value.type, value.name);
  VEC_PUSH(arena_of(a), l->inv, l->n_inv, l->cap_inv, (InvariantIn){operand, param});
  return param;
}

static bool must_save(const Ad *a, Val v, const Op *op) {
  switch (ir_op_info[op->code].cls) {
  case CLASS_REDUCE:
  case CLASS_CONTRACT:
  case CLASS_INDEX:
  case CLASS_COMPOSITE:
  case CLASS_STRUCT: return true;
  case CLASS_SOURCE:
  case CLASS_RANDOM: return false;
  default: return a->loop->operand[v] && !(ir_op_info[op->code].flags & F_VIEW);
  }
}

static Val recompute(Ad *a, OpId id) {
  Op op = a->b.f->op[id];
  Val *args = ARENA_ARRAY(arena_of(a), Val, op.n_args);
  for (uint32_t i = 0; i < op.n_args; i++)
    args[i] = ad_primal(a, op.arg[i]);
  Loc at = a->b.loc;
  a->b.loc = op.loc;
  Val r = ir_op(&a->b, op.code, args, op.n_args, &op.attr, NULL);
  a->b.loc = at;
  return r;
}

Val ad_primal(Ad *a, Val v) {
  if (!a->loop)
    return v;
  v = val_renew(a->b.f, v);
  map_room(a, v);
  if (a->loop->map[v] != NONE)
    return a->loop->map[v];
  const Value *value = &a->b.f->val[v];
  Val r;
  if (value->def == NONE)
    r = bring_param(a, v, value->index);
  else if (must_save(a, v, &a->b.f->op[value->def]))
    r = save(a, v);
  else
    r = recompute(a, value->def);
  return a->loop->map[v] = r;
}

/* Operands of contractions and attention, seen through views. */
static void mark_operands(Ad *a, const Block *body) {
  Func *f = a->b.f;
  map_room(a, f->n_vals - 1);
  bool *operand = a->loop->operand;
  for (uint32_t i = body->n_ops; i-- > 0;) {
    const Op *op = &f->op[body->op[i]];
    bool takes = op->code == OP_CONTRACT || op->code == OP_ATTENTION || op->code == OP_LINEAR_XENT;
    bool view = (ir_op_info[op->code].flags & F_VIEW) && operand[op->result];
    for (uint32_t k = 0; k < op->n_args; k++)
      operand[op->arg[k]] |= takes || view;
  }
}

/* ---- the forward gains results ---- */

static Type stacked(const Func *f, Val v, const LoopShape *s) {
  const Type src = f->val[v].type;
  Type t = {.dtype = src.dtype};
  type_push(&t, s->axis, s->size);
  for (uint32_t k = 0; k < src.rank; k++)
    type_push(&t, src.dim[k].axis, src.dim[k].size);
  return t;
}

/* Where v is stacked already among the returns from `first` on, or n_ret. */
static uint32_t find_stacked(const Block *body, uint32_t first, Val v) {
  uint32_t k = first;
  while (k < body->n_ret && body->ret[k] != v)
    k++;
  return k;
}

/* Adds the saved values to the body's returns, those not stacked already; l->at says where each one is. */
static uint32_t add_returns(Func *f, struct AdLoop *l, Block *body) {
  uint32_t n = 0;
  l->at = ARENA_ARRAY(&f->module->arena, uint32_t, l->n_saved);
  for (uint32_t i = 0; i < l->n_saved; i++) {
    Val v = val_renew(f, l->saved[i]);
    l->at[i] = find_stacked(body, l->s.n_carry, v);
    if (l->at[i] < body->n_ret)
      continue;
    ir_block_ret(f, body, v);
    n++;
  }
  return n;
}

/* The loop's results must be consecutive, so all get new values; every mention of the old ones is renewed. */
static void extend_forward(Ad *outer, struct AdLoop *l) {
  Func *f = outer->b.f;
  Block *body = f->op[l->id].body;
  uint32_t n_old = f->op[l->id].n_results, n = n_old + add_returns(f, l, body);
  Val old = f->op[l->id].result, first = f->n_vals;
  if (n == n_old)
    return;
  for (uint32_t i = 0; i < n; i++) {
    Value v = {.def = l->id, .index = i};
    if (i < n_old) {
      v = f->val[old + i];
    } else {
      v.name = f->val[body->ret[i]].name;
      v.type = stacked(f, body->ret[i], &l->s);
    }
    VEC_PUSH(&f->module->arena, f->val, f->n_vals, f->cap_vals, v);
  }
  f->op[l->id].result = first;
  f->op[l->id].n_results = n;
  block_renew(f, outer->fwd);
  for (uint32_t i = 0; i < n_old && outer->loop; i++) {
    map_room(outer, first + i);
    outer->loop->map[first + i] = outer->loop->map[old + i];
  }
}

/* ---- the backward loop ---- */

typedef struct {
  uint32_t operand; /* of the forward loop: whose cotangent this is */
  Val param, init, next;
} Carry;

/* Cotangents that go from an iteration to the one before it in the forward. */
static uint32_t open_carries(Ad *in, const Val *dy, const Block *body, Carry *carry) {
  struct AdLoop *l = in->loop;
  Func *f = in->b.f;
  uint32_t n = 0;
  for (uint32_t i = 0; i < l->s.n_carry; i++) {
    Val p = body->param[1 + i];
    if (dy[i] == NONE && !in->use[p])
      continue;
    Type t = *ir_type(f, p);
    Val init = dy[i] == NONE ? build_zeros(&l->outer->b, &t) : ir_reorder(&l->outer->b, dy[i], &t);
    carry[n++] = (Carry){i, ir_param(f, in->b.b, t, NULL), init, NONE};
    ad_add(in, body->ret[i], carry[n - 1].param);
  }
  return n;
}

/* ---- weights of a recurrence ---- */

static bool collect_products(Ad *in, uint32_t operand, Val g, int64_t *elements) {
  const Func *f = in->b.f;
  const Op *op = def_op(f, g);
  if (op && op->code == OP_ADD)
    return collect_products(in, operand, op->arg[0], elements) &&
           collect_products(in, operand, op->arg[1], elements);
  if (!op || op->code != OP_CONTRACT)
    return false;
  for (int i = 0; i < 2; i++)
    *elements += type_count(ir_type(f, op->arg[i]));
  Product p = {.operand = operand, .side = {op->arg[0], op->arg[1]}};
  VEC_PUSH(arena_of(in), in->loop->product, in->loop->n_product, in->loop->cap_product, p);
  return true;
}

/* The cotangent of an invariant that is a sum of contractions need not be summed step by step: their operands
 * are stacked, and one contraction after the loop sums over the loop axis as well. Worth it when the operands
 * are smaller than the sum. */
static bool defer(Ad *in, uint32_t operand, Val g) {
  uint32_t n = in->loop->n_product;
  int64_t elements = 0;
  if (collect_products(in, operand, g, &elements) && elements < 2 * type_count(ir_type(in->b.f, g)))
    return true;
  in->loop->n_product = n;
  return false;
}

static int slice_of(const struct AdLoop *l, Val param) {
  for (uint32_t i = 0; i < l->n_slice; i++)
    if (l->slice[i].param == param)
      return (int)i;
  return -1;
}

/* Stacks the sides of the products that are not slices or stacked already. */
static void stack_products(Ad *in, uint32_t n_carry) {
  struct AdLoop *l = in->loop;
  Block *bwd = in->b.b;
  for (uint32_t i = 0; i < l->n_product; i++)
    for (int k = 0; k < 2; k++) {
      Product *p = &l->product[i];
      if (slice_of(l, p->side[k]) >= 0)
        continue;
      p->at[k] = find_stacked(bwd, n_carry, p->side[k]);
      if (p->at[k] == bwd->n_ret)
        ir_block_ret(in->b.f, bwd, p->side[k]);
    }
}

/* The contractions after the backward loop: slices are its operands from `slices` on, results start at r. */
static void emit_products(Ad *a, const struct AdLoop *l, const Val *slices, Val r) {
  Func *f = a->b.f;
  for (uint32_t i = 0; i < l->n_product; i++) {
    const Product *p = &l->product[i];
    Val side[2], of = f->op[l->id].arg[p->operand];
    for (int k = 0; k < 2; k++) {
      int slice = slice_of(l, p->side[k]);
      side[k] = slice >= 0 ? slices[slice] : r + p->at[k];
    }
    const Type t = *ir_type(f, of);
    ad_add(a, of, contract_onto(&a->b, side[0], side[1], &t));
  }
}

static uint32_t close_carries(Ad *in, const Block *body, Carry *carry, uint32_t n) {
  struct AdLoop *l = in->loop;
  Func *f = in->b.f;
  for (uint32_t i = 0; i < n; i++) {
    Type t = *ir_type(f, carry[i].param);
    Val g = in->cot[body->param[1 + carry[i].operand]];
    carry[i].next = g == NONE ? build_zeros(&in->b, &t) : ir_reorder(&in->b, g, &t);
  }
  for (uint32_t i = l->s.n_carry + l->s.n_xs; i + 1 < body->n_params; i++) {
    Val g = in->cot[body->param[1 + i]];
    if (g == NONE || defer(in, i, g))
      continue;
    Type t = *ir_type(f, g);
    Val param = ir_param(f, in->b.b, t, NULL);
    Val sum = ir_binary(&in->b, OP_ADD, param, g);
    carry[n++] = (Carry){i, param, build_zeros(&l->outer->b, &t), sum};
  }
  return n;
}

static void set_params(Func *f, Block *bwd, const Carry *carry, uint32_t n_carry, const struct AdLoop *l) {
  Val *param = bwd->param;
  uint32_t n = 1;
  for (uint32_t i = 0; i < n_carry; i++)
    param[n++] = carry[i].param;
  for (uint32_t i = 0; i < l->n_slice; i++)
    param[n++] = l->slice[i].param;
  for (uint32_t i = 0; i < l->n_inv; i++)
    param[n++] = l->inv[i].param;
  for (uint32_t i = 0; i < n; i++)
    f->val[param[i]].index = i;
}

/* Emits the backward loop in the enclosing backward and hands its results to the operands of the forward
 * loop. */
static void emit_backward(Ad *a, Ad *in, const Carry *carry, uint32_t n_carry, const uint32_t *ys,
                          uint32_t n_ys) {
  struct AdLoop *l = in->loop;
  Func *f = a->b.f;
  const Val *fwd_arg = f->op[l->id].arg, result = f->op[l->id].result;
  uint32_t n = n_carry + l->n_slice + l->n_inv, k = 0;
  Val *args = ARENA_ARRAY(arena_of(a), Val, n);
  for (uint32_t i = 0; i < n_carry; i++)
    args[k++] = carry[i].init;
  for (uint32_t i = 0; i < l->n_slice; i++) {
    SliceIn s = l->slice[i];
    Val v = s.value;
    if (s.kind != IN_COTANGENT)
      v = ad_primal(a, s.kind == IN_SAVED ? result + l->at[s.index] : fwd_arg[s.index]);
    args[k++] = axis_first(&a->b, v, l->s.axis);
  }
  for (uint32_t i = 0; i < l->n_inv; i++)
    args[k++] = ad_primal(a, fwd_arg[l->inv[i].index]);
  Attr attr = {.axis = &l->s.axis, .n_axis = 1, .n_num = 4};
  attr.num = (const int64_t[]){l->s.size, n_carry, l->n_slice, !l->s.reverse};
  Val r = ir_op(&a->b, OP_LOOP, args, n, &attr, in->b.b);
  if (r == NONE)
    return;
  for (uint32_t i = 0; i < n_carry; i++)
    ad_add(a, fwd_arg[carry[i].operand], r + i);
  for (uint32_t i = 0; i < n_ys; i++)
    ad_add(a, fwd_arg[ys[i]], r + n_carry + i);
  emit_products(a, l, args + n_carry, r);
}

void vjp_LOOP(Ad *a, OpId id, const Val *dy) {
  Func *f = a->b.f;
  Block *body = f->op[id].body, *bwd = ir_block_new(f);
  struct AdLoop l = {.outer = a, .id = id, .s = loop_shape(f, id)};
  Ad in = *a;
  in.loop = &l;
  in.fwd = body;
  in.b.b = bwd;
  mark_operands(&in, body);
  const Value index = f->val[body->param[0]];
  l.map[body->param[0]] = ir_param(f, bwd, index.type, index.name);

  Carry *carry = ARENA_ARRAY(arena_of(a), Carry, f->op[id].n_args);
  uint32_t n_carry = open_carries(&in, dy, body, carry);
  for (uint32_t i = l.s.n_carry; i < l.s.n_carry + l.s.n_ys; i++)
    if (dy[i] != NONE) {
      Type t = type_without(ir_type(f, dy[i]), &l.s.axis, 1);
      ad_add(&in, body->ret[i], new_slice(&in, IN_COTANGENT, 0, dy[i], &t, NULL));
    }
  ad_sweep(&in, body->op, body->n_ops);
  n_carry = close_carries(&in, body, carry, n_carry);

  uint32_t *ys = ARENA_ARRAY(arena_of(a), uint32_t, l.s.n_xs), n_ys = 0;
  for (uint32_t i = 0; i < n_carry; i++)
    ir_block_ret(f, bwd, carry[i].next);
  for (uint32_t i = l.s.n_carry; i < l.s.n_carry + l.s.n_xs; i++)
    if (in.cot[body->param[1 + i]] != NONE) {
      ir_block_ret(f, bwd, in.cot[body->param[1 + i]]);
      ys[n_ys++] = i;
    }
  stack_products(&in, n_carry);
  a->b.loc = f->op[id].loc;
  if (a->b.err->cls != ERR_NONE)
    return;
  set_params(f, bwd, carry, n_carry, &l);
  extend_forward(a, &l);
  emit_backward(a, &in, carry, n_carry, ys, n_ys);
}
