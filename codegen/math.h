/* math.h: arithmetic of math.c and math_power.c: scalars and vectors of f32 or f64 alike (inside codegen). */
#ifndef DLC_CODEGEN_MATH_H
#define DLC_CODEGEN_MATH_H

#include "codegen/llvm.h"

typedef LLVMValueRef V;

typedef struct {
  Gen *g;
  LLVMBuilderRef b;
  LLVMTypeRef t, it; /* the type of the values, and integers of the same shape */
  bool f64;
} Math;

Math math_of(Gen *g, V x);
V math_const(Math *m, double v);
V math_int(Math *m, uint64_t v);
V math_call(Math *m, const char *name, V *args, unsigned n);
V math_fma(Math *m, V a, V b, V c);
V math_poly(Math *m, V x, const double *c, unsigned n); /* c[0] x^(n-1) + ... + c[n-1] */
V math_copysign(Math *m, V size, V sign);
V math_abs(Math *m, V x);

#define POLY(m, x, ...)                                                                                      \
  math_poly(m, x, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

static inline V add(Math *m, V a, V b) {
  return LLVMBuildFAdd(m->b, a, b, "");
}
static inline V sub(Math *m, V a, V b) {
  return LLVMBuildFSub(m->b, a, b, "");
}
static inline V mul(Math *m, V a, V b) {
  return LLVMBuildFMul(m->b, a, b, "");
}
static inline V quot(Math *m, V a, V b) {
  return LLVMBuildFDiv(m->b, a, b, "");
}
static inline V neg(Math *m, V a) {
  return LLVMBuildFNeg(m->b, a, "");
}
static inline V pick(Math *m, V cond, V a, V b) {
  return LLVMBuildSelect(m->b, cond, a, b, "");
}
static inline V less(Math *m, V a, V b) {
  return LLVMBuildFCmp(m->b, LLVMRealOLT, a, b, "");
}
static inline V same(Math *m, V a, V b) {
  return LLVMBuildFCmp(m->b, LLVMRealOEQ, a, b, "");
}

/* x between lo and hi; NaN stays. */
static inline V clamp(Math *m, V x, double lo, double hi) {
  V l = math_const(m, lo), h = math_const(m, hi);
  x = pick(m, less(m, x, l), l, x);
  return pick(m, less(m, h, x), h, x);
}

/* exp(x + low), |low| tiny. */
V math_exp(Math *m, V x, V low);
/* Positive x = 2^*e * m, m in [sqrt(1/2), sqrt(2)): returns m. */
V math_split(Math *m, V x, V *e);

#endif
