/* math_power.c: x^y = exp(y log x), the logarithm kept in two parts so that a large y does not multiply its
 * error. f32 is computed in f64. Special cases are those of C's pow. */
#include "codegen/math.h"

#include <math.h>

/* *low + result = log(x), x positive and finite */
static V log_parts(Math *m, V x, V *low) {
  V e, two = math_const(m, 2), f = sub(m, math_split(m, x, &e), math_const(m, 1));
  /* s = f / (2 + f) in two parts: log(1 + f) = 2 s + s R(s^2) */
  V d = add(m, f, two), d_low = sub(m, f, sub(m, d, two)), s = quot(m, f, d);
  V s_low = quot(m, math_fma(m, neg(m, s), d_low, math_fma(m, neg(m, s), d, f)), d);
  V z = mul(m, s, s);
  V r = POLY(m, z, 1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
             2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
             6.666666666666735130e-01);
  /* e * ln2 (its high part has zeros at the end: exact) and 2 s, added without loss: |e ln2| > |2 s| or e = 0
   */
  V a = mul(m, e, math_const(m, 6.93147180369123816490e-01)), b = mul(m, two, s), h = add(m, a, b);
  V lost = sub(m, b, sub(m, h, a));
  V l = math_fma(m, e, math_const(m, 1.90821492927058770002e-10), mul(m, mul(m, s, z), r));
  l = add(m, lost, math_fma(m, two, s_low, l));
  V sum = add(m, h, l);
  *low = sub(m, l, sub(m, sum, h));
  return sum;
}

/* |x|^y but for y = 0 */
static V power_size(Math *m, V x, V y) {
  V low, inf = math_const(m, INFINITY), zero = math_const(m, 0), a = math_abs(m, x);
  V h = log_parts(m, a, &low);
  V regular = LLVMBuildAnd(m->b, less(m, zero, a), less(m, a, inf), "");
  V edge = pick(m, same(m, a, zero), math_const(m, -INFINITY), a); /* log of 0, inf and NaN */
  h = pick(m, regular, h, edge);
  V p = mul(m, y, h);
  V unit = same(m, a, math_const(m, 1)); /* gives 1, also for infinite y */
  p = pick(m, unit, zero, p);
  V tail = math_fma(m, y, low, math_fma(m, y, h, neg(m, p)));
  V plain = LLVMBuildAnd(m->b, regular, less(m, math_abs(m, p), math_const(m, 750)), "");
  plain = LLVMBuildAnd(m->b, plain, LLVMBuildNot(m->b, unit, ""), "");
  return math_exp(m, p, pick(m, plain, tail, zero));
}

static V floor_of(Math *m, V x) {
  return math_call(m, "llvm.floor", &x, 1);
}

static V pow_f64(Math *m, V x, V y) {
  V zero = math_const(m, 0), one = math_const(m, 1), half = mul(m, y, math_const(m, 0.5));
  V whole = same(m, floor_of(m, y), y);
  V even = LLVMBuildOr(m->b, LLVMBuildNot(m->b, whole, ""), same(m, floor_of(m, half), half), "");
  V r = power_size(m, x, y);
  r = pick(m, even, r, math_copysign(m, r, x));
  V negative = LLVMBuildAnd(m->b, less(m, x, zero), less(m, math_const(m, -INFINITY), x), "");
  V bad = LLVMBuildAnd(m->b, negative, LLVMBuildNot(m->b, whole, ""), "");
  r = pick(m, bad, math_const(m, NAN), r);
  V trivial = LLVMBuildOr(m->b, same(m, y, zero), same(m, x, one), "");
  return pick(m, trivial, one, r);
}

LLVMValueRef gen_pow(Gen *g, LLVMValueRef x, LLVMValueRef y) {
  Math m = math_of(g, x);
  if (m.f64)
    return pow_f64(&m, x, y);
  LLVMTypeRef wide = LLVMDoubleTypeInContext(g->ctx), narrow = m.t;
  if (LLVMGetTypeKind(narrow) == LLVMVectorTypeKind)
    wide = LLVMVectorType(wide, LLVMGetVectorSize(narrow));
  x = LLVMBuildFPExt(g->b, x, wide, "");
  y = LLVMBuildFPExt(g->b, y, wide, "");
  m = math_of(g, x);
  return LLVMBuildFPTrunc(g->b, pow_f64(&m, x, y), narrow, "");
}
