/* fold.c: what one op becomes when its operands are constants or make it trivial. Only rewrites that keep the
 * value's bits (NaN payloads aside), and the fixed reading of powers with small constant exponents as
 * products and roots. */
#include "passes/internal.h"

#include <math.h>

/* ---- constants ---- */

static bool unary_value(OpCode c, double x, double *out) {
  switch (c) {
  case OP_NEG: *out = -x; return true;
  case OP_EXP: *out = exp(x); return true;
  case OP_LOG: *out = log(x); return true;
  case OP_LOG1P: *out = log1p(x); return true;
  case OP_SQRT: *out = sqrt(x); return true;
  case OP_RSQRT: *out = 1 / sqrt(x); return true;
  case OP_TANH: *out = tanh(x); return true;
  case OP_SIGMOID: *out = 1 / (1 + exp(-x)); return true;
  case OP_ERF: *out = erf(x); return true;
  case OP_SIN: *out = sin(x); return true;
  case OP_COS: *out = cos(x); return true;
  case OP_ABS: *out = fabs(x); return true;
  case OP_SIGN: *out = (x > 0) - (x < 0); return !isnan(x);
  case OP_FLOOR: *out = floor(x); return true;
  case OP_NOT: *out = x == 0; return true;
  default: return false;
  }
}

static double floor_mod(double x, double y) {
  double r = fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static bool binary_value(OpCode c, bool is_float, double x, double y, double *out) {
  switch (c) {
  case OP_ADD: *out = x + y; return true;
  case OP_SUB: *out = x - y; return true;
  case OP_MUL: *out = x * y; return true;
  case OP_DIV: *out = x / y; return true;
  case OP_FLOORDIV: *out = !is_float && y == 0 ? 0 : floor(x / y); return true;
  case OP_MOD: *out = !is_float && y == 0 ? 0 : floor_mod(x, y); return true;
  case OP_POW: *out = pow(x, y); return true;
  case OP_MAX: *out = isnan(x) || x >= y ? x : y; return true;
  case OP_MIN: *out = isnan(x) || x <= y ? x : y; return true;
  case OP_EQ: *out = x == y; return true;
  case OP_NE: *out = x != y; return true;
  case OP_LT: *out = x < y; return true;
  case OP_LE: *out = x <= y; return true;
  case OP_AND: *out = x != 0 && y != 0; return true;
  case OP_OR: *out = x != 0 || y != 0; return true;
  default: return false;
  }
}

/* v as a value of d; false where it has none that a double holds exactly. */
static bool round_to(DType d, double v, double *out) {
  switch (d) {
  case DT_F32: *out = (float)v; return true;
  case DT_F64:
  case DT_BOOL: *out = v; return true;
  case DT_I32: *out = v; return v == floor(v) && fabs(v) < 0x1p31;
  case DT_I64: *out = v; return v == floor(v) && fabs(v) < 0x1p53;
  case DT_U8: *out = v; return v == floor(v) && v >= 0 && v < 256;
  default: return false;
  }
}

static Val constant(Builder *b, const Type *t, double v) {
  return ir_broadcast(b, ir_const(b, t->dtype, v), t);
}

static Val fold_constants(Builder *b, const Op *op, const Type *t) {
  double x, y, v;
  OpClass cls = ir_op_info[op->code].cls;
  if (op->code == OP_CONST || op->code == OP_BROADCAST || !is_const(b->f, op->arg[0], &x))
    return NONE;
  bool is_float = dtype_is_float(ir_type(b->f, op->arg[0])->dtype);
  if (op->code == OP_CAST) {
    v = t->dtype == DT_BOOL ? x != 0 : dtype_is_float(t->dtype) ? x : trunc(x);
  } else if (cls == CLASS_UNARY) {
    if (!unary_value(op->code, x, &v))
      return NONE;
  } else if (cls == CLASS_BINARY || cls == CLASS_COMPARE || cls == CLASS_LOGIC) {
    if (!is_const(b->f, op->arg[1], &y) || !binary_value(op->code, is_float, x, y, &v))
      return NONE;
  } else if (cls == CLASS_MOVE && op->code != OP_PAD && op->code != OP_CONCAT) {
    v = x;
  } else if (op->code == OP_SUM && is_float) {
    v = x * ((double)type_count(ir_type(b->f, op->arg[0])) / (double)type_count(t));
  } else if (op->code == OP_REDUCE_MAX || op->code == OP_REDUCE_MIN) {
    v = x;
  } else {
    return NONE;
  }
  return round_to(t->dtype, v, &v) ? constant(b, t, v) : NONE;
}

/* ---- pointwise ---- */

static Val square(Builder *b, Val x) {
  return ir_binary(b, OP_MUL, x, x);
}

static Val fold_pow(Builder *b, Val x, double e) {
  Val one = ir_const(b, ir_type(b->f, x)->dtype, 1);
  if (e == 0)
    return one;
  if (e == 1)
    return x;
  if (e == 2)
    return square(b, x);
  if (e == 3)
    return ir_binary(b, OP_MUL, square(b, x), x);
  if (e == 4)
    return square(b, square(b, x));
  if (e == 0.5)
    return ir_unary(b, OP_SQRT, x);
  if (e == 1.5)
    return ir_binary(b, OP_MUL, x, ir_unary(b, OP_SQRT, x));
  if (e == -0.5)
    return ir_unary(b, OP_RSQRT, x);
  if (e == -1)
    return ir_binary(b, OP_DIV, one, x);
  if (e == -2)
    return ir_binary(b, OP_DIV, one, square(b, x));
  return NONE;
}

static Val fold_binary(Builder *b, const Op *op) {
  const Func *f = b->f;
  Val x = op->arg[0], y = op->arg[1];
  double cx = NAN, cy = NAN;
  bool kx = is_const(f, x, &cx), ky = is_const(f, y, &cy);
  bool is_float = dtype_is_float(ir_type(f, x)->dtype);
  switch (op->code) {
  case OP_MUL:
    if (ky && cy == 1)
      return x;
    if (kx && cx == 1)
      return y;
    if (is_float && ky && cy == -1)
      return ir_unary(b, OP_NEG, x);
    if (is_float && kx && cx == -1)
      return ir_unary(b, OP_NEG, y);
    return NONE;
  case OP_DIV: return ky && cy == 1 ? x : NONE;
  case OP_ADD: /* -0 + 0 is 0: adding 0 changes floats, adding -0 does not */
    if (ky && cy == 0 && (!is_float || signbit(cy)))
      return x;
    if (kx && cx == 0 && (!is_float || signbit(cx)))
      return y;
    return NONE;
  case OP_SUB: return ky && cy == 0 && (!is_float || !signbit(cy)) ? x : NONE;
  case OP_POW: return ky ? fold_pow(b, x, cy) : NONE;
  case OP_AND: return ky ? (cy != 0 ? x : y) : kx ? (cx != 0 ? y : x) : NONE;
  case OP_OR: return ky ? (cy != 0 ? y : x) : kx ? (cx != 0 ? x : y) : NONE;
  case OP_MAX:
  case OP_MIN: return x == y ? x : NONE;
  default: return NONE;
  }
}

static Val fold_unary(Builder *b, const Op *op, bool drop_stop) {
  Val x = op->arg[0];
  const Op *in = def_op(b->f, x);
  DType d = ir_type(b->f, x)->dtype;
  switch (op->code) {
  case OP_STOP: return drop_stop ? x : NONE;
  case OP_CAST:
    if (op->attr.dtype == d)
      return x;
    /* there and back by a dtype that holds every value */
    if (in && in->code == OP_CAST && d == DT_F64 && ir_type(b->f, in->arg[0])->dtype == op->attr.dtype &&
        op->attr.dtype == DT_F32)
      return in->arg[0];
    return NONE;
  case OP_NEG:
  case OP_NOT: return in && in->code == op->code ? in->arg[0] : NONE;
  default: return NONE;
  }
}

/* ---- movement ---- */

static Val fold_rename(Builder *b, const Op *op, const Type *t) {
  const Op *in = def_op(b->f, op->arg[0]);
  Val x = in && in->code == OP_RENAME ? in->arg[0] : op->arg[0];
  const Type *tx = ir_type(b->f, x);
  Axis from[IR_MAX_RANK], to[IR_MAX_RANK];
  uint32_t n = 0;
  if (in && in->code == OP_IOTA)
    return ir_iota(b, t->dim[0].axis, t->dim[0].size);
  for (uint32_t i = 0; i < t->rank; i++)
    if (tx->dim[i].axis != t->dim[i].axis) {
      from[n] = tx->dim[i].axis;
      to[n++] = t->dim[i].axis;
    }
  if (n == 0)
    return x;
  return x == op->arg[0] ? NONE : ir_rename(b, x, from, to, n);
}

static Val fold_move(Builder *b, const Op *op, const Type *t) {
  const Op *in = def_op(b->f, op->arg[0]);
  const Type *tx = ir_type(b->f, op->arg[0]);
  switch (op->code) {
  case OP_RENAME: return fold_rename(b, op, t);
  case OP_BROADCAST:
    if (type_equal(tx, t))
      return op->arg[0];
    return in && in->code == OP_BROADCAST ? ir_broadcast(b, in->arg[0], t) : NONE;
  case OP_REORDER:
    if (type_equal(tx, t))
      return op->arg[0];
    if (in && in->code == OP_REORDER)
      return ir_reorder(b, in->arg[0], t);
    return in && in->code == OP_BROADCAST ? ir_broadcast(b, in->arg[0], t) : NONE;
  case OP_SLICE: return type_equal(tx, t) ? op->arg[0] : NONE;
  case OP_PAD: return op->attr.num[0] == 0 && op->attr.num[1] == 0 && type_equal(tx, t) ? op->arg[0] : NONE;
  default: return NONE;
  }
}

/* ---- reductions and indexing ---- */

/* The sum over axes along which the operand is a broadcast is a multiple. */
static Val fold_sum(Builder *b, const Op *op) {
  const Op *in = def_op(b->f, op->arg[0]);
  if (!in || in->code != OP_BROADCAST || !dtype_is_float(ir_type(b->f, op->arg[0])->dtype))
    return NONE;
  Val x = in->arg[0];
  const Type tx = *ir_type(b->f, x), full = *ir_type(b->f, op->arg[0]);
  Axis rest[IR_MAX_RANK];
  uint32_t n = 0;
  double times = 1;
  for (uint32_t i = 0; i < op->attr.n_axis; i++) {
    Axis a = op->attr.axis[i];
    if (type_has(&tx, a))
      rest[n++] = a;
    else
      times *= (double)full.dim[type_find(&full, a)].size;
  }
  if (n == op->attr.n_axis)
    return NONE;
  x = ir_binary(b, OP_MUL, x, ir_const(b, tx.dtype, times));
  return ir_reduce(b, OP_SUM, x, rest, n);
}

/* i = axis index + lo along one axis that x lacks otherwise: a slice. A constant: a slice of one, its axis
 * summed away. */
static Val fold_gather(Builder *b, const Op *op) {
  const Func *f = b->f;
  if (op->n_args != 2)
    return NONE;
  Val x = op->arg[0], i = op->arg[1];
  const Type tx = *ir_type(f, x), ti = *ir_type(f, i);
  Axis axis = op->attr.axis[0];
  int64_t size = tx.dim[type_find(&tx, axis)].size;
  double lo = 0;
  const Op *def = def_op(f, i);
  if (ti.rank == 0) {
    if (!is_const(f, i, &lo) || lo < 0 || lo >= (double)size)
      return NONE;
  } else {
    if (def && def->code == OP_ADD && is_const(f, def->arg[1], &lo))
      def = def_op(f, def->arg[0]);
    if (!def || def->code != OP_IOTA || ti.rank != 1)
      return NONE;
    Axis own = ti.dim[0].axis;
    if (lo < 0 || lo + (double)ti.dim[0].size > (double)size || (own != axis && type_has(&tx, own)))
      return NONE;
  }
  int64_t n = ti.rank ? ti.dim[0].size : 1;
  Attr cut = {.axis = &axis, .n_axis = 1, .num = (const int64_t[]){(int64_t)lo, (int64_t)lo + n}, .n_num = 2};
  Val part = n == size ? x : ir_op(b, OP_SLICE, &x, 1, &cut, NULL);
  if (ti.rank == 0)
    return ir_reduce(b, OP_SUM, part, &axis, 1);
  return ti.dim[0].axis == axis ? part : ir_rename(b, part, &axis, &ti.dim[0].axis, 1);
}

Val fold_op(Builder *b, OpId id, bool drop_stop) {
  const Op op = b->f->op[id];
  const Type t = b->f->val[op.result].type;
  Val r = NONE;
  double c;
  if (op.n_args == 0)
    return NONE;
  r = fold_constants(b, &op, &t);
  if (r == NONE)
    switch (ir_op_info[op.code].cls) {
    case CLASS_UNARY: r = fold_unary(b, &op, drop_stop); break;
    case CLASS_BINARY:
    case CLASS_LOGIC: r = fold_binary(b, &op); break;
    case CLASS_SELECT:
      if (is_const(b->f, op.arg[0], &c))
        r = op.arg[c != 0 ? 1 : 2];
      else if (op.arg[1] == op.arg[2])
        r = op.arg[1];
      break;
    case CLASS_MOVE: r = fold_move(b, &op, &t); break;
    case CLASS_REDUCE: r = op.code == OP_SUM ? fold_sum(b, &op) : NONE; break;
    case CLASS_INDEX: r = op.code == OP_GATHER ? fold_gather(b, &op) : NONE; break;
    default: break;
    }
  return build_as(b, r, &t);
}
