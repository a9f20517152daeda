/* region_pointwise.c: scalar code of every pointwise op, for scalars and vectors alike: one table row per row
 * of ops.def. */
#include "codegen/region.h"

typedef struct {
  Emit *e;
  LLVMBuilderRef b;
  OpCode code;
  LLVMValueRef x, y, z;
  DType in, out;
  bool vector;
  LLVMTypeRef t; /* of x */
} Pw;
typedef LLVMValueRef (*PwFn)(Pw *p);

static bool is_float(const Pw *p) {
  return dtype_is_float(p->in);
}
static bool is_unsigned(const Pw *p) {
  return p->in == DT_U8 || p->in == DT_BOOL;
}

static LLVMValueRef constant(Pw *p, double v) {
  LLVMValueRef c = const_elem(p->e, p->in, v);
  if (!p->vector)
    return c;
  LLVMValueRef lane[64];
  for (int i = 0; i < p->e->lanes; i++)
    lane[i] = c;
  return LLVMConstVector(lane, (unsigned)p->e->lanes);
}

static LLVMTypeRef result_type(Pw *p) {
  LLVMTypeRef t = elem_type(p->e, p->out);
  return p->vector ? lanes_type(p->e, t) : t;
}

static LLVMValueRef call1(Pw *p, const char *name, LLVMValueRef x) {
  return intrinsic(p->e, name, (LLVMTypeRef[]){p->t}, 1, &x, 1);
}

static LLVMValueRef select3(Pw *p, LLVMValueRef c, LLVMValueRef x, LLVMValueRef y) {
  return LLVMBuildSelect(p->b, c, x, y, "");
}

/* ---- functions of the math library: always computed as vectors, so that bits do not depend on the place
 * ---- */

static LLVMValueRef math_op(Pw *p) {
  LLVMValueRef v = p->vector ? p->x : splat(p->e, p->x), r = NULL;
  switch (p->code) {
  case OP_EXP: r = gen_exp(p->e->g, v); break;
  case OP_LOG: r = gen_log(p->e->g, v); break;
  case OP_LOG1P: r = gen_log1p(p->e->g, v); break;
  case OP_TANH: r = gen_tanh(p->e->g, v); break;
  case OP_SIGMOID: r = gen_sigmoid(p->e->g, v); break;
  case OP_ERF: r = gen_erf(p->e->g, v); break;
  case OP_SIN: r = gen_sin(p->e->g, v); break;
  case OP_COS: r = gen_cos(p->e->g, v); break;
  case OP_RSQRT: r = gen_rsqrt(p->e->g, v); break;
  default: r = gen_pow(p->e->g, v, p->vector ? p->y : splat(p->e, p->y)); break;
  }
  return p->vector ? r
                   : LLVMBuildExtractElement(p->b, r, LLVMConstNull(LLVMInt32TypeInContext(p->e->ctx)), "");
}

/* ---- one operand ---- */

static LLVMValueRef neg(Pw *p) {
  return is_float(p) ? LLVMBuildFNeg(p->b, p->x, "") : LLVMBuildNeg(p->b, p->x, "");
}

static LLVMValueRef square_root(Pw *p) {
  return call1(p, "llvm.sqrt", p->x);
}

static LLVMValueRef floor1(Pw *p) {
  return call1(p, "llvm.floor", p->x);
}

static LLVMValueRef absolute(Pw *p) {
  if (is_float(p))
    return call1(p, "llvm.fabs", p->x);
  if (is_unsigned(p))
    return p->x;
  return select3(p, LLVMBuildICmp(p->b, LLVMIntSLT, p->x, constant(p, 0), ""), LLVMBuildNeg(p->b, p->x, ""),
                 p->x);
}

static LLVMValueRef sign(Pw *p) {
  LLVMValueRef zero = constant(p, 0), one = constant(p, 1);
  if (is_unsigned(p))
    return select3(p, LLVMBuildICmp(p->b, LLVMIntNE, p->x, zero, ""), one, zero);
  if (!is_float(p)) {
    LLVMValueRef low = select3(p, LLVMBuildICmp(p->b, LLVMIntSLT, p->x, zero, ""), constant(p, -1), zero);
    return select3(p, LLVMBuildICmp(p->b, LLVMIntSGT, p->x, zero, ""), one, low);
  }
  LLVMValueRef low = select3(p, LLVMBuildFCmp(p->b, LLVMRealOLT, p->x, zero, ""), constant(p, -1), p->x);
  return select3(p, LLVMBuildFCmp(p->b, LLVMRealOGT, p->x, zero, ""), one, low); /* zeros and NaN stay */
}

static LLVMValueRef logical_not(Pw *p) {
  return LLVMBuildNot(p->b, p->x, "");
}

static LLVMValueRef identity(Pw *p) {
  return p->x;
}

static unsigned int_bits(DType d) {
  return d == DT_BOOL ? 1 : (unsigned)dtype_bytes(d) * 8;
}

static LLVMValueRef cast(Pw *p) {
  LLVMTypeRef to = result_type(p);
  bool from_float = is_float(p), to_float = dtype_is_float(p->out);
  if (p->in == p->out)
    return p->x;
  if (p->out == DT_BOOL)
    return from_float ? LLVMBuildFCmp(p->b, LLVMRealUNE, p->x, LLVMConstNull(p->t), "")
                      : LLVMBuildICmp(p->b, LLVMIntNE, p->x, LLVMConstNull(p->t), "");
  if (from_float && to_float)
    return p->out == DT_F64 ? LLVMBuildFPExt(p->b, p->x, to, "") : LLVMBuildFPTrunc(p->b, p->x, to, "");
  if (from_float) { /* saturating: out of range and NaN have a defined result */
    const char *name = p->out == DT_U8 ? "llvm.fptoui.sat" : "llvm.fptosi.sat";
    return intrinsic(p->e, name, (LLVMTypeRef[]){to, p->t}, 2, &p->x, 1);
  }
  if (to_float)
    return is_unsigned(p) ? LLVMBuildUIToFP(p->b, p->x, to, "") : LLVMBuildSIToFP(p->b, p->x, to, "");
  if (int_bits(p->out) < int_bits(p->in))
    return LLVMBuildTrunc(p->b, p->x, to, "");
  return is_unsigned(p) ? LLVMBuildZExt(p->b, p->x, to, "") : LLVMBuildSExt(p->b, p->x, to, "");
}

/* ---- two operands ---- */

static LLVMValueRef add(Pw *p) {
  return is_float(p) ? LLVMBuildFAdd(p->b, p->x, p->y, "") : LLVMBuildAdd(p->b, p->x, p->y, "");
}
static LLVMValueRef sub(Pw *p) {
  return is_float(p) ? LLVMBuildFSub(p->b, p->x, p->y, "") : LLVMBuildSub(p->b, p->x, p->y, "");
}
static LLVMValueRef mul(Pw *p) {
  return is_float(p) ? LLVMBuildFMul(p->b, p->x, p->y, "") : LLVMBuildMul(p->b, p->x, p->y, "");
}

/* Integer division rounded down; *rem has the divisor's sign. A divisor of 0 gives 0, 0. */
static LLVMValueRef int_floordiv(Pw *p, LLVMValueRef *rem) {
  LLVMValueRef zero = constant(p, 0), one = constant(p, 1);
  LLVMValueRef by_zero = LLVMBuildICmp(p->b, LLVMIntEQ, p->y, zero, ""), q;
  if (is_unsigned(p)) {
    q = LLVMBuildUDiv(p->b, p->x, select3(p, by_zero, one, p->y), "");
  } else {
    LLVMValueRef minus = LLVMBuildICmp(p->b, LLVMIntEQ, p->y, constant(p, -1), ""); /* min / -1 would trap */
    LLVMValueRef d = select3(p, LLVMBuildOr(p->b, by_zero, minus, ""), one, p->y);
    LLVMValueRef t = LLVMBuildSDiv(p->b, p->x, d, "");
    LLVMValueRef r = LLVMBuildSub(p->b, p->x, LLVMBuildMul(p->b, t, d, ""), "");
    LLVMValueRef differ = LLVMBuildICmp(p->b, LLVMIntSLT, LLVMBuildXor(p->b, r, d, ""), zero, "");
    LLVMValueRef inexact = LLVMBuildICmp(p->b, LLVMIntNE, r, zero, "");
    t = select3(p, LLVMBuildAnd(p->b, inexact, differ, ""), LLVMBuildSub(p->b, t, one, ""), t);
    q = select3(p, minus, LLVMBuildNeg(p->b, p->x, ""), t);
  }
  q = select3(p, by_zero, zero, q);
  *rem = select3(p, by_zero, zero, LLVMBuildSub(p->b, p->x, LLVMBuildMul(p->b, q, p->y, ""), ""));
  return q;
}

static LLVMValueRef divide(Pw *p) {
  return LLVMBuildFDiv(p->b, p->x, p->y, "");
}

static LLVMValueRef floordiv(Pw *p) {
  LLVMValueRef rem;
  return is_float(p) ? call1(p, "llvm.floor", divide(p)) : int_floordiv(p, &rem);
}

/* x - floor(x / y) * y, exact by one multiply-add; the rounding of x / y is mended by one step of y either
 * way. */
static LLVMValueRef modulo(Pw *p) {
  LLVMValueRef rem;
  if (!is_float(p)) {
    int_floordiv(p, &rem);
    return rem;
  }
  LLVMValueRef zero = constant(p, 0), q = call1(p, "llvm.floor", divide(p));
  LLVMValueRef args[] = {LLVMBuildFNeg(p->b, q, ""), p->y, p->x};
  LLVMValueRef r = intrinsic(p->e, "llvm.fma", (LLVMTypeRef[]){p->t}, 1, args, 3);
  LLVMValueRef ay = call1(p, "llvm.fabs", p->y), ar = call1(p, "llvm.fabs", r);
  LLVMValueRef wrong = LLVMBuildFCmp(p->b, LLVMRealOLT, LLVMBuildFMul(p->b, r, p->y, ""), zero, "");
  LLVMValueRef large = LLVMBuildFCmp(p->b, LLVMRealOGE, ar, ay, "");
  LLVMValueRef less = LLVMBuildFSub(p->b, r, p->y, "");
  return select3(p, wrong, LLVMBuildFAdd(p->b, r, p->y, ""), select3(p, large, less, r));
}

static LLVMValueRef extremum(Pw *p) {
  bool max = p->code == OP_MAX;
  if (!is_float(p)) {
    LLVMIntPredicate s = max ? LLVMIntSGT : LLVMIntSLT, u = max ? LLVMIntUGT : LLVMIntULT;
    return select3(p, LLVMBuildICmp(p->b, is_unsigned(p) ? u : s, p->x, p->y, ""), p->x, p->y);
  }
  LLVMValueRef r =
      select3(p, LLVMBuildFCmp(p->b, max ? LLVMRealOGT : LLVMRealOLT, p->x, p->y, ""), p->x, p->y);
  return select3(p, LLVMBuildFCmp(p->b, LLVMRealUNO, p->x, p->x, ""), p->x,
                 r); /* y's NaN fell through already */
}

static LLVMValueRef compare(Pw *p) {
  static const struct {
    LLVMRealPredicate f;
    LLVMIntPredicate s, u;
  } pred[] = {{LLVMRealOEQ, LLVMIntEQ, LLVMIntEQ},
              {LLVMRealUNE, LLVMIntNE, LLVMIntNE},
              {LLVMRealOLT, LLVMIntSLT, LLVMIntULT},
              {LLVMRealOLE, LLVMIntSLE, LLVMIntULE}};
  int k = p->code == OP_EQ ? 0 : p->code == OP_NE ? 1 : p->code == OP_LT ? 2 : 3;
  if (is_float(p))
    return LLVMBuildFCmp(p->b, pred[k].f, p->x, p->y, "");
  return LLVMBuildICmp(p->b, is_unsigned(p) ? pred[k].u : pred[k].s, p->x, p->y, "");
}

static LLVMValueRef logical_and(Pw *p) {
  return LLVMBuildAnd(p->b, p->x, p->y, "");
}
static LLVMValueRef logical_or(Pw *p) {
  return LLVMBuildOr(p->b, p->x, p->y, "");
}
static LLVMValueRef choose(Pw *p) {
  return select3(p, p->x, p->y, p->z);
}

static const PwFn table[OP_COUNT] = {
    [OP_NEG] = neg,          [OP_EXP] = math_op,       [OP_LOG] = math_op,     [OP_LOG1P] = math_op,
    [OP_SQRT] = square_root, [OP_RSQRT] = math_op,     [OP_TANH] = math_op,    [OP_SIGMOID] = math_op,
    [OP_ERF] = math_op,      [OP_SIN] = math_op,       [OP_COS] = math_op,     [OP_ABS] = absolute,
    [OP_SIGN] = sign,        [OP_FLOOR] = floor1,      [OP_NOT] = logical_not, [OP_CAST] = cast,
    [OP_STOP] = identity,    [OP_ADD] = add,           [OP_SUB] = sub,         [OP_MUL] = mul,
    [OP_DIV] = divide,       [OP_FLOORDIV] = floordiv, [OP_MOD] = modulo,      [OP_POW] = math_op,
    [OP_MAX] = extremum,     [OP_MIN] = extremum,      [OP_EQ] = compare,      [OP_NE] = compare,
    [OP_LT] = compare,       [OP_LE] = compare,        [OP_AND] = logical_and, [OP_OR] = logical_or,
    [OP_SELECT] = choose,
};

bool pointwise_has(OpCode c) {
  return c < OP_COUNT && table[c];
}

LLVMValueRef pointwise(Emit *e, OpCode c, LLVMValueRef *arg, DType in, DType out, bool vector) {
  int n = ir_op_info[c].n_args;
  Pw p = {
      e, e->b, c, arg[0], n > 1 ? arg[1] : NULL, n > 2 ? arg[2] : NULL, in, out, vector, LLVMTypeOf(arg[0])};
  return table[c](&p);
}
