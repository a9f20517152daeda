/* outline_contract.c: a sum over a product tree becomes a contraction.
 *
 * The factors under the sum are a set. The tree is opened no further than it must be: first its two sides are
 * tried as they stand, then the largest product among the factors is opened, and so on. Factors without any
 * summed axis leave the sum. The others go into two groups, one for each operand, so that each group has a
 * kept axis the other lacks; where no such grouping exists the sum stays a reduction of a pointwise product.
 * Inside a group the tree of the program is kept. */
#include "passes/internal.h"

enum { MAX_FACTORS = 32 };

typedef struct {
  Builder *b;
  const Axis *axis; /* summed */
  uint32_t n_axis;
  Val factor[MAX_FACTORS];
  int group[MAX_FACTORS]; /* 0, 1; -1: outside the sum */
  Val open[MAX_FACTORS];  /* nodes of the tree above the factors */
  uint32_t n, n_open;
} Product;

static bool is_float(const Func *f, Val v) {
  return dtype_is_float(ir_type(f, v)->dtype);
}

static bool has_summed(const Product *p, Val v) {
  const Type *t = ir_type(p->b->f, v);
  for (uint32_t i = 0; i < p->n_axis; i++)
    if (type_has(t, p->axis[i]))
      return true;
  return false;
}

/* What may be looked through: products, negations, divisions by something outside the sum, broadcasts. */
static bool is_node(const Product *p, const Op *op) {
  return op && (op->code == OP_MUL || op->code == OP_NEG || op->code == OP_BROADCAST ||
                (op->code == OP_DIV && !has_summed(p, op->arg[1])));
}

/* Replaces factor i by what it is made of; the rest of a division, a sign, are found again by `part`. */
static bool open_factor(Product *p, uint32_t i) {
  const Op *op = def_op(p->b->f, p->factor[i]);
  if (!is_node(p, op) || p->n_open == MAX_FACTORS || (op->code == OP_MUL && p->n == MAX_FACTORS))
    return false;
  p->open[p->n_open++] = p->factor[i];
  p->factor[i] = op->arg[0];
  if (op->code == OP_MUL)
    p->factor[p->n++] = op->arg[1];
  return true;
}

/* Opens the largest factor that can be. */
static bool open_largest(Product *p) {
  const Func *f = p->b->f;
  int best = -1;
  for (uint32_t i = 0; i < p->n; i++) {
    int64_t size = type_count(ir_type(f, p->factor[i]));
    if (is_node(p, def_op(f, p->factor[i])) && (best < 0 || size > type_count(ir_type(f, p->factor[best]))))
      best = (int)i;
  }
  return best >= 0 && open_factor(p, (uint32_t)best);
}

static bool is_open(const Product *p, Val v) {
  for (uint32_t i = 0; i < p->n_open; i++)
    if (p->open[i] == v)
      return true;
  return false;
}

/* A product larger than both its operands: what a contraction is there to avoid. */
static bool is_outer(const Product *p, Val v) {
  const Func *f = p->b->f;
  const Op *op = def_op(f, v);
  if (!is_node(p, op))
    return false;
  if (op->code != OP_MUL)
    return is_outer(p, op->arg[0]);
  int64_t n = type_count(ir_type(f, v));
  return n > type_count(ir_type(f, op->arg[0])) && n > type_count(ir_type(f, op->arg[1]));
}

static int group_of(const Product *p, Val v) {
  for (uint32_t i = 0; i < p->n; i++)
    if (p->factor[i] == v)
      return p->group[i];
  return -1;
}

/* The part of the tree whose factors are in the group; NONE when there are none. Signs and divisors belong
 * outside. */
static Val part(Product *p, Val v, int group) {
  if (!is_open(p, v))
    return group_of(p, v) == group ? v : NONE;
  const Op op = *def_op(p->b->f, v);
  Val x = part(p, op.arg[0], group);
  if (op.code == OP_MUL) {
    Val y = part(p, op.arg[1], group);
    if (x == op.arg[0] && y == op.arg[1])
      return v;
    return x == NONE ? y : y == NONE ? x : ir_binary(p->b, OP_MUL, x, y);
  }
  if (op.code == OP_BROADCAST || group != -1)
    return x;
  Val one = x == NONE ? ir_const(p->b, ir_type(p->b->f, v)->dtype, 1) : x;
  return op.code == OP_NEG ? ir_unary(p->b, OP_NEG, one) : ir_binary(p->b, OP_DIV, one, op.arg[1]);
}

static uint32_t shared_axes(const Type *a, const Type *b) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < a->rank; i++)
    n += type_has(b, a->dim[i].axis);
  return n;
}

/* Has a kept axis that the other lacks. */
static bool own_axis(const Product *p, const Type *a, const Type *b) {
  for (uint32_t i = 0; i < a->rank; i++) {
    bool summed = false;
    for (uint32_t k = 0; k < p->n_axis; k++)
      summed |= p->axis[k] == a->dim[i].axis;
    if (!summed && !type_has(b, a->dim[i].axis))
      return true;
  }
  return false;
}

static void join(const Func *f, Type *t, Val v) {
  const Type *x = ir_type(f, v);
  for (uint32_t i = 0; i < x->rank; i++)
    if (!type_has(t, x->dim[i].axis))
      type_push(t, x->dim[i].axis, x->dim[i].size);
}

/* Seeds the groups with the two factors that have the most elements between them and are a matrix product;
 * the rest joins the group with which it shares more axes, so that no group grows without need. */
static bool assign(Product *p) {
  const Func *f = p->b->f;
  int best[2] = {-1, -1};
  int64_t most = -1;
  for (uint32_t i = 0; i < p->n; i++) {
    p->group[i] = has_summed(p, p->factor[i]) ? 0 : -1;
    for (uint32_t k = 0; k < i; k++) {
      if (p->group[i] < 0 || p->group[k] < 0)
        continue;
      const Type *a = ir_type(f, p->factor[k]), *b = ir_type(f, p->factor[i]);
      int64_t size = type_count(a) + type_count(b);
      if (size > most && own_axis(p, a, b) && own_axis(p, b, a)) {
        most = size;
        best[0] = (int)k;
        best[1] = (int)i;
      }
    }
  }
  if (most < 0)
    return false;
  Type seed[2] = {*ir_type(f, p->factor[best[0]]), *ir_type(f, p->factor[best[1]])};
  Type all[2] = {seed[0], seed[1]};
  for (uint32_t i = 0; i < p->n; i++) {
    if (p->group[i] < 0)
      continue;
    const Type *t = ir_type(f, p->factor[i]);
    uint32_t s0 = shared_axes(t, &seed[0]), s1 = shared_axes(t, &seed[1]);
    p->group[i] = (int)i == best[1] || ((int)i != best[0] && s1 > s0);
    join(f, &all[p->group[i]], p->factor[i]);
  }
  return own_axis(p, &all[0], &all[1]) && own_axis(p, &all[1], &all[0]);
}

/* The operand of a group, summed over the axes that it alone has. */
static Val operand(Product *p, Val tree, int group, const Type *other) {
  Func *f = p->b->f;
  Val v = part(p, tree, group);
  Axis alone[IR_MAX_RANK];
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->n_axis; i++)
    if (type_has(ir_type(f, v), p->axis[i]) && !type_has(other, p->axis[i]))
      alone[n++] = p->axis[i];
  if (n == 0)
    return v;
  Val sum = ir_reduce(p->b, OP_SUM, v, alone, n);
  Val inner = sum == NONE ? NONE : outline_contract(p->b, f->val[sum].def);
  return inner == NONE ? sum : inner;
}

/* Opens the tree until the factors group well. */
static bool group_factors(Product *p, Val tree) {
  p->factor[0] = tree;
  p->n = 1;
  for (;;) {
    bool outer = false;
    for (uint32_t i = 0; i < p->n; i++)
      outer |= is_outer(p, p->factor[i]);
    if (p->n >= 2 && !outer && assign(p))
      return true;
    if (!open_largest(p))
      return false;
  }
}

/* How often the sum repeats: summed axes that only a broadcast brought in. */
static double repeats(const Product *p, const Type *full) {
  double times = 1;
  for (uint32_t i = 0; i < p->n_axis; i++) {
    bool found = false;
    for (uint32_t k = 0; k < p->n; k++)
      found |= type_has(ir_type(p->b->f, p->factor[k]), p->axis[i]);
    if (!found)
      times *= (double)full->dim[type_find(full, p->axis[i])].size;
  }
  return times;
}

Val outline_contract(Builder *b, OpId id) {
  Func *f = b->f;
  const Op op = f->op[id];
  if (op.code != OP_SUM)
    return NONE;
  Val tree = op.arg[0];
  Product p = {.b = b, .axis = op.attr.axis, .n_axis = op.attr.n_axis};
  if (!is_float(f, tree) || !group_factors(&p, tree))
    return NONE;
  Type group[2] = {0};
  for (uint32_t i = 0; i < p.n; i++)
    if (p.group[i] >= 0)
      join(f, &group[p.group[i]], p.factor[i]);
  Val x = operand(&p, tree, 0, &group[1]), y = operand(&p, tree, 1, &group[0]);
  Axis axis[IR_MAX_RANK];
  uint32_t n = 0;
  for (uint32_t i = 0; i < p.n_axis; i++)
    if (type_has(&group[0], p.axis[i]) && type_has(&group[1], p.axis[i]))
      axis[n++] = p.axis[i];
  const Type full = *ir_type(f, tree), want = *ir_type(f, op.result);
  double times = repeats(&p, &full);
  Val r = n ? ir_contract(b, x, y, axis, n) : ir_binary(b, OP_MUL, x, y);
  Val outside = part(&p, tree, -1);
  if (outside != NONE)
    r = ir_binary(b, OP_MUL, r, outside);
  if (times != 1)
    r = ir_binary(b, OP_MUL, r, ir_const(b, want.dtype, times));
  return build_as(b, r, &want);
}
