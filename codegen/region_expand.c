/* region_expand.c: composites of a region's body as primitives: softmax, small contractions, attention and
 * its gradient. */
#include "codegen/region.h"

#include <math.h>

static const Type *type_of(const Body *b, Val v) {
  return &b->val[v].type;
}

/* Pointwise ops; the result has the joined dims. */
static Val op1(Body *b, OpCode c, Val x) {
  Type t = *type_of(b, x);
  return body_add(b, c, &x, 1, NULL, &t, 1);
}

static Type joined(const Body *b, Val x, Val y, DType d) {
  Type t;
  Axis clash;
  bool swap = type_of(b, y)->rank > type_of(b, x)->rank;
  type_join(type_of(b, swap ? y : x), type_of(b, swap ? x : y), &t, &clash);
  t.dtype = d;
  return t;
}

static Val op2(Body *b, OpCode c, Val x, Val y) {
  bool compare = ir_op_info[c].cls == CLASS_COMPARE;
  Type t = joined(b, x, y, compare ? DT_BOOL : type_of(b, x)->dtype);
  return body_add(b, c, (Val[]){x, y}, 2, NULL, &t, 1);
}

static Val constant(Body *b, DType d, double v) {
  Attr a = {.f = v, .dtype = d};
  Type t = type_scalar(d);
  return body_add(b, OP_CONST, NULL, 0, &a, &t, 1);
}

static Val like(Body *b, Val x, double v) {
  return constant(b, type_of(b, x)->dtype, v);
}

static Val choose(Body *b, Val c, Val x, Val y) {
  Type t = joined(b, x, y, type_of(b, x)->dtype), all;
  Axis clash;
  type_join(&t, type_of(b, c), &all, &clash);
  all.dtype = t.dtype;
  return body_add(b, OP_SELECT, (Val[]){c, x, y}, 3, NULL, &all, 1);
}

static Val reduce(Body *b, OpCode c, Val x, const Axis *axis, uint32_t n) {
  Attr a = {.axis = axis, .n_axis = n};
  Type t = type_without(type_of(b, x), axis, n);
  return n ? body_add(b, c, &x, 1, &a, &t, 1) : x;
}

/* ---- contractions ---- */

static Val contract_as(Body *b, Val x, Val y, const Axis *axis, uint32_t n, const Type *t) {
  Attr a = {.axis = axis, .n_axis = n};
  if (contract_is_large(type_of(b, x), type_of(b, y), &a))
    return body_add(b, OP_CONTRACT, (Val[]){x, y}, 2, &a, t, 1);
  return reduce(b, OP_SUM, op2(b, OP_MUL, x, y), axis, n);
}

/* Dims: shared kept axes, x's own, y's own. */
static Val contract(Body *b, Val x, Val y, const Axis *axis, uint32_t n) {
  const Type *tx = type_of(b, x), *ty = type_of(b, y);
  Type kx = type_without(tx, axis, n), ky = type_without(ty, axis, n), t = type_scalar(tx->dtype);
  for (int i = 0; i < kx.rank; i++)
    if (type_has(&ky, kx.dim[i].axis))
      type_push(&t, kx.dim[i].axis, kx.dim[i].size);
  for (int i = 0; i < kx.rank; i++)
    if (!type_has(&t, kx.dim[i].axis))
      type_push(&t, kx.dim[i].axis, kx.dim[i].size);
  for (int i = 0; i < ky.rank; i++)
    if (!type_has(&t, ky.dim[i].axis))
      type_push(&t, ky.dim[i].axis, ky.dim[i].size);
  return contract_as(b, x, y, axis, n, &t);
}

/* x * y summed over what t lacks: first over the axes both have, then over the rest. */
static Val contract_onto(Body *b, Val x, Val y, const Type *t) {
  Axis axis[IR_MAX_RANK];
  uint32_t n = 0;
  const Type *tx = type_of(b, x);
  for (int i = 0; i < tx->rank; i++)
    if (!type_has(t, tx->dim[i].axis) && type_has(type_of(b, y), tx->dim[i].axis))
      axis[n++] = tx->dim[i].axis;
  Val v = contract(b, x, y, axis, n);
  n = 0;
  for (int i = 0; i < type_of(b, v)->rank; i++)
    if (!type_has(t, type_of(b, v)->dim[i].axis))
      axis[n++] = type_of(b, v)->dim[i].axis;
  return reduce(b, OP_SUM, v, axis, n);
}

static Val in_order(Body *b, Val v, const Type *t) {
  return type_equal(type_of(b, v), t) ? v : body_add(b, OP_REORDER, &v, 1, NULL, t, 1);
}

/* ---- softmax ---- */

typedef struct {
  Val max, empty, e, sum; /* max: 0 for rows that are -inf everywhere (empty) */
} RowSums;

static RowSums softmax_rows(Body *b, Val x, const Axis *axis, uint32_t n) {
  RowSums r;
  Val m = reduce(b, OP_REDUCE_MAX, x, axis, n);
  r.empty = op2(b, OP_EQ, m, like(b, x, -INFINITY));
  r.max = choose(b, r.empty, like(b, x, 0), m);
  r.e = op1(b, OP_EXP, op2(b, OP_SUB, x, r.max));
  r.sum = reduce(b, OP_SUM, r.e, axis, n);
  return r;
}

static Val softmax_of(Body *b, const RowSums *r) {
  Val one = like(b, r->sum, 1);
  return op2(b, OP_MUL, r->e, op2(b, OP_DIV, one, choose(b, r->empty, one, r->sum)));
}

/* ---- attention ---- */

/* The score function on raw. */
static Val score(Body *b, const Func *f, const Block *body, const Val *args) {
  Val *map = ARENA_ARRAY(b->arena, Val, f->n_vals + 1);
  for (uint32_t i = 0; i < body->n_params; i++)
    map[body->param[i]] = args[i];
  for (uint32_t i = 0; i < body->n_ops; i++) {
    const Op *op = &f->op[body->op[i]];
    Val in[8];
    for (uint32_t k = 0; k < op->n_args && k < 8; k++)
      in[k] = map[op->arg[k]];
    map[op->result] =
        body_add(b, op->code, in, op->n_args < 8 ? op->n_args : 8, &op->attr, &f->val[op->result].type, 1);
  }
  return map[body->ret[0]];
}

static void expand_attention(Body *b, const Func *f, const Op *op, const Val *args, Val *out) {
  uint32_t n = op->attr.n_axis;
  const Axis *key = &op->attr.axis[n - 1];
  Val *in = ARENA_ARRAY(b->arena, Val, op->n_args);
  in[0] = contract(b, args[0], args[1], op->attr.axis, n - 1);
  for (uint32_t i = 3; i < op->n_args; i++)
    in[i - 2] = args[i];
  RowSums r = softmax_rows(b, score(b, f, op->body, in), key, 1);
  out[0] = in_order(b, contract(b, softmax_of(b, &r), args[2], key, 1), &f->val[op->result].type);
  Val lse = op2(b, OP_ADD, op1(b, OP_LOG, r.sum), r.max);
  out[1] = in_order(b, lse, &f->val[op->result + 1].type);
}

/* ---- derivative of the score function: tangents of pointwise ops; NONE: zero ---- */

static Val sum_of(Body *b, Val x, Val y) {
  return x == NONE ? y : y == NONE ? x : op2(b, OP_ADD, x, y);
}
static Val product(Body *b, Val x, Val y) {
  return x == NONE || y == NONE ? NONE : op2(b, OP_MUL, x, y);
}

static Val tangent1(Body *b, const BodyOp *op, Val t) {
  Val x = op->arg[0], y = op->result, one = like(b, x, 1);
  Type to = *type_of(b, y);
  switch (op->code) {
  case OP_NEG: return op1(b, OP_NEG, t);
  case OP_EXP: return product(b, t, y);
  case OP_LOG: return op2(b, OP_DIV, t, x);
  case OP_LOG1P: return op2(b, OP_DIV, t, op2(b, OP_ADD, x, one));
  case OP_SQRT: return op2(b, OP_DIV, t, op2(b, OP_ADD, y, y));
  case OP_RSQRT:
    return product(b, op2(b, OP_MUL, t, like(b, x, -0.5)), op2(b, OP_MUL, y, op2(b, OP_MUL, y, y)));
  case OP_TANH: return product(b, t, op2(b, OP_SUB, one, op2(b, OP_MUL, y, y)));
  case OP_SIGMOID: return product(b, t, op2(b, OP_MUL, y, op2(b, OP_SUB, one, y)));
  case OP_ERF:
    return product(b, op2(b, OP_MUL, t, like(b, x, 1.1283791670955126)),
                   op1(b, OP_EXP, op1(b, OP_NEG, op2(b, OP_MUL, x, x))));
  case OP_SIN: return product(b, t, op1(b, OP_COS, x));
  case OP_COS: return product(b, t, op1(b, OP_NEG, op1(b, OP_SIN, x)));
  case OP_ABS: return product(b, t, op1(b, OP_SIGN, x));
  case OP_CAST: return dtype_is_float(to.dtype) ? body_add(b, OP_CAST, &t, 1, &op->attr, &to, 1) : NONE;
  case OP_BROADCAST: return t; /* pointwise ops join by name */
  default: return NONE;        /* without gradient */
  }
}

static Val tangent2(Body *b, const BodyOp *op, Val tx, Val ty) {
  Val x = op->arg[0], y = op->arg[1], z = op->result;
  switch (op->code) {
  case OP_ADD: return sum_of(b, tx, ty);
  case OP_SUB: return sum_of(b, tx, ty == NONE ? NONE : op1(b, OP_NEG, ty));
  case OP_MUL: return sum_of(b, product(b, tx, y), product(b, x, ty));
  case OP_DIV: {
    Val minus = ty == NONE ? NONE : op1(b, OP_NEG, op2(b, OP_MUL, z, ty)), top = sum_of(b, tx, minus);
    return top == NONE ? NONE : op2(b, OP_DIV, top, y);
  }
  case OP_POW: {
    Val one = like(b, x, 1),
        dx = product(b, tx, op2(b, OP_MUL, y, op2(b, OP_POW, x, op2(b, OP_SUB, y, one))));
    return sum_of(b, dx, product(b, ty, op2(b, OP_MUL, z, op1(b, OP_LOG, x))));
  }
  case OP_MAX:
  case OP_MIN: {
    Val zero = like(b, x, 0), first = op->code == OP_MAX ? op2(b, OP_LE, y, x) : op2(b, OP_LE, x, y);
    return tx == NONE && ty == NONE ? NONE : choose(b, first, tx == NONE ? zero : tx, ty == NONE ? zero : ty);
  }
  case OP_MOD: return tx;
  default: return NONE;
  }
}

/* d s / d raw for the ops from first on. */
static Val derivative(Body *b, uint32_t first, Val raw, Val s) {
  uint32_t last = b->n_ops, n_vals = b->n_vals;
  Val *t = ARENA_ARRAY(b->arena, Val, n_vals + 1);
  for (uint32_t v = 0; v <= n_vals; v++)
    t[v] = NONE;
  t[raw] = like(b, raw, 1);
  for (uint32_t i = first; i < last; i++) {
    BodyOp op = b->op[i]; /* a copy: new ops move the array */
    Val tx = op.n_args > 0 ? t[op.arg[0]] : NONE, ty = op.n_args > 1 ? t[op.arg[1]] : NONE;
    if (op.code == OP_SELECT) {
      Val tz = t[op.arg[2]], zero = like(b, op.result, 0);
      if (ty != NONE || tz != NONE)
        t[op.result] = choose(b, op.arg[0], ty == NONE ? zero : ty, tz == NONE ? zero : tz);
    } else if (op.n_args == 2) {
      t[op.result] = tangent2(b, &op, tx, ty);
    } else if (tx != NONE) {
      t[op.result] = tangent1(b, &op, tx);
    }
  }
  return t[s];
}

/* p = exp(s - lse), ds = p * (dp - sum(do * o)), draw = ds * ds/draw. */
static void expand_attention_grad(Body *b, const Func *f, const Op *op, const Val *args, Val *out) {
  Val q = args[0], k = args[1], v = args[2], o = args[3], lse = args[4], d_o = args[5];
  Val *in = ARENA_ARRAY(b->arena, Val, op->n_args), raw;
  in[0] = raw = contract(b, q, k, op->attr.axis, op->attr.n_axis - 1);
  for (uint32_t i = 6; i < op->n_args; i++)
    in[i - 5] = args[i];
  uint32_t first = b->n_ops;
  Val s = score(b, f, op->body, in), slope = derivative(b, first, raw, s);
  Type ts = *type_of(b, s);
  Val base = choose(b, op2(b, OP_EQ, lse, like(b, lse, -INFINITY)), like(b, lse, 0), lse);
  Val p = op1(b, OP_EXP, op2(b, OP_SUB, s, base));
  Val dp = contract_onto(b, d_o, v, &ts), delta = op2(b, OP_MUL, d_o, o);
  Axis own[IR_MAX_RANK];
  uint32_t n = 0;
  for (int i = 0; i < type_of(b, delta)->rank; i++)
    if (!type_has(&ts, type_of(b, delta)->dim[i].axis))
      own[n++] = type_of(b, delta)->dim[i].axis;
  Val ds = op2(b, OP_MUL, p, op2(b, OP_SUB, dp, reduce(b, OP_SUM, delta, own, n)));
  Val draw = op2(b, OP_MUL, ds, slope == NONE ? like(b, ds, 0) : slope);
  const Type *tq = &f->val[op->result].type, *tk = &f->val[op->result + 1].type,
             *tv = &f->val[op->result + 2].type;
  out[0] = in_order(b, contract_onto(b, draw, k, tq), tq);
  out[1] = in_order(b, contract_onto(b, draw, q, tk), tk);
  out[2] = in_order(b, contract_onto(b, p, d_o, tv), tv);
}

bool body_expand(Body *b, const Func *f, const Op *op, const Val *args, Val *out) {
  switch (op->code) {
  case OP_SOFTMAX: {
    RowSums r = softmax_rows(b, args[0], op->attr.axis, op->attr.n_axis);
    out[0] = in_order(b, softmax_of(b, &r), &f->val[op->result].type);
    return true;
  }
  case OP_CONTRACT:
    out[0] = contract_as(b, args[0], args[1], op->attr.axis, op->attr.n_axis, &f->val[op->result].type);
    out[0] = in_order(b, out[0], &f->val[op->result].type);
    return true;
  case OP_ATTENTION: expand_attention(b, f, op, args, out); return true;
  case OP_ATTENTION_GRAD: expand_attention_grad(b, f, op, args, out); return true;
  default: return false;
  }
}
