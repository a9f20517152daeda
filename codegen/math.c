/* math.c: elementary functions on scalars and vectors of f32 or f64. Polynomials with fused multiply-adds;
 * coefficients from the Cephes library (S. Moshier) and fdlibm (Sun Microsystems). About 1 to 2 units in the
 * last place; infinities, NaN and subnormals as in C. */
#include "codegen/llvm.h"

#include <math.h>

typedef struct {
  Gen *g;
  LLVMBuilderRef b;
  LLVMTypeRef t, it; /* of x; integers of the same width */
  unsigned lanes;    /* 0: a scalar */
  bool wide;         /* f64 */
} M;

static LLVMTypeRef shaped(const M *m, LLVMTypeRef t) {
  return m->lanes ? LLVMVectorType(t, m->lanes) : t;
}

static M of(Gen *g, LLVMValueRef x) {
  M m = {.g = g, .b = g->b, .t = LLVMTypeOf(x)};
  m.lanes = LLVMGetTypeKind(m.t) == LLVMVectorTypeKind ? LLVMGetVectorSize(m.t) : 0;
  m.wide = LLVMGetTypeKind(m.lanes ? LLVMGetElementType(m.t) : m.t) == LLVMDoubleTypeKind;
  m.it = shaped(&m, m.wide ? LLVMInt64TypeInContext(g->ctx) : LLVMInt32TypeInContext(g->ctx));
  return m;
}

static LLVMValueRef all(M *m, LLVMValueRef scalar) {
  LLVMValueRef lane[64];
  for (unsigned i = 0; i < m->lanes; i++)
    lane[i] = scalar;
  return m->lanes ? LLVMConstVector(lane, m->lanes) : scalar;
}

static LLVMValueRef c(M *m, double v) {
  return all(m, LLVMConstReal(m->lanes ? LLVMGetElementType(m->t) : m->t, v));
}

static LLVMValueRef ci(M *m, int64_t v) {
  return all(m, LLVMConstInt(m->lanes ? LLVMGetElementType(m->it) : m->it, (unsigned long long)v, true));
}

static LLVMValueRef add(M *m, LLVMValueRef x, LLVMValueRef y) {
  return LLVMBuildFAdd(m->b, x, y, "");
}
static LLVMValueRef sub(M *m, LLVMValueRef x, LLVMValueRef y) {
  return LLVMBuildFSub(m->b, x, y, "");
}
static LLVMValueRef mul(M *m, LLVMValueRef x, LLVMValueRef y) {
  return LLVMBuildFMul(m->b, x, y, "");
}
static LLVMValueRef quo(M *m, LLVMValueRef x, LLVMValueRef y) {
  return LLVMBuildFDiv(m->b, x, y, "");
}
static LLVMValueRef fma3(M *m, LLVMValueRef x, LLVMValueRef y, LLVMValueRef z) {
  return gen_intrinsic(m->g, "llvm.fma", &m->t, 1, (LLVMValueRef[]){x, y, z}, 3);
}
static LLVMValueRef call1(M *m, const char *name, LLVMValueRef x) {
  return gen_intrinsic(m->g, name, &m->t, 1, &x, 1);
}
static LLVMValueRef sel(M *m, LLVMValueRef k, LLVMValueRef x, LLVMValueRef y) {
  return LLVMBuildSelect(m->b, k, x, y, "");
}
static LLVMValueRef cmp(M *m, LLVMRealPredicate p, LLVMValueRef x, LLVMValueRef y) {
  return LLVMBuildFCmp(m->b, p, x, y, "");
}
static LLVMValueRef bits(M *m, LLVMValueRef x) {
  return LLVMBuildBitCast(m->b, x, m->it, "");
}
static LLVMValueRef real(M *m, LLVMValueRef x) {
  return LLVMBuildBitCast(m->b, x, m->t, "");
}
static LLVMValueRef neg(M *m, LLVMValueRef x) {
  return LLVMBuildFNeg(m->b, x, "");
}

/* k[0] x^(n-1) + ... + k[n-1] */
static LLVMValueRef poly(M *m, LLVMValueRef x, const double *k, int n) {
  LLVMValueRef p = c(m, k[0]);
  for (int i = 1; i < n; i++)
    p = fma3(m, p, x, c(m, k[i]));
  return p;
}
#define POLY(m, x, k) poly(m, x, k, (int)(sizeof(k) / sizeof *(k)))

/* Nearest integer of x, |x| < 2^22 (2^51), as a float and in *i as an integer, without a conversion that NaN
 * would break. */
static LLVMValueRef nearest(M *m, LLVMValueRef x, LLVMValueRef *i) {
  double magic = m->wide ? 0x1.8p52 : 0x1.8p23;
  LLVMValueRef t = add(m, x, c(m, magic));
  *i = LLVMBuildSub(m->b, bits(m, t), bits(m, c(m, magic)), "");
  return sub(m, t, c(m, magic));
}

static LLVMValueRef power_of_two(M *m, LLVMValueRef i) {
  LLVMValueRef biased = LLVMBuildAdd(m->b, i, ci(m, m->wide ? 1023 : 127), "");
  return real(m, LLVMBuildShl(m->b, biased, ci(m, m->wide ? 52 : 23), ""));
}

LLVMValueRef gen_exp(Gen *g, LLVMValueRef x) {
  static const double k32[] = {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                               4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1};
  static const double k64[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                               1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                               1.0 / 120,        1.0 / 24,        1.0 / 6,        0.5};
  M m = of(g, x);
  double limit = m.wide ? 800 : 150; /* NaN passes through both selects */
  x = sel(&m, cmp(&m, LLVMRealOGT, x, c(&m, limit)), c(&m, limit), x);
  x = sel(&m, cmp(&m, LLVMRealOLT, x, c(&m, -limit)), c(&m, -limit), x);
  LLVMValueRef i, n = nearest(&m, mul(&m, x, c(&m, 1.4426950408889634)), &i), nn = neg(&m, n);
  LLVMValueRef r = fma3(&m, nn, c(&m, m.wide ? 6.93147180369123816490e-01 : 0.693359375), x);
  r = fma3(&m, nn, c(&m, m.wide ? 1.90821492927058770002e-10 : -2.12194440e-4), r);
  LLVMValueRef p = m.wide ? POLY(&m, r, k64) : POLY(&m, r, k32);
  p = add(&m, fma3(&m, mul(&m, r, r), p, r), c(&m, 1));
  /* two steps, so that results near the ends of the range are rounded once */
  LLVMValueRef half = LLVMBuildAShr(m.b, i, ci(&m, 1), ""), rest = LLVMBuildSub(m.b, i, half, "");
  return mul(&m, mul(&m, p, power_of_two(&m, half)), power_of_two(&m, rest));
}

LLVMValueRef gen_log(Gen *g, LLVMValueRef x) {
  static const double k32[] = {0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693};
  static const double k64[] = {1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                               2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                               6.666666666666735130e-01};
  M m = of(g, x);
  int shift = m.wide ? 52 : 23;
  LLVMValueRef zero = c(&m, 0);
  LLVMValueRef tiny =
      cmp(&m, LLVMRealOLT, x, c(&m, m.wide ? 0x1p-1022 : 0x1p-126)); /* subnormals are scaled up */
  LLVMValueRef y = sel(&m, tiny, mul(&m, x, c(&m, m.wide ? 0x1p52 : 0x1p23)), x);
  LLVMValueRef root = ci(&m, m.wide ? 0x3fe6a09e667f3bcd : 0x3f3504f3); /* sqrt(1/2) */
  LLVMValueRef d = LLVMBuildSub(m.b, bits(&m, y), root, "");
  LLVMValueRef e = LLVMBuildSIToFP(m.b, LLVMBuildAShr(m.b, d, ci(&m, shift), ""), m.t, "");
  e = sub(&m, e, sel(&m, tiny, c(&m, shift), zero));
  LLVMValueRef low = LLVMBuildAnd(m.b, d, ci(&m, ((int64_t)1 << shift) - 1), "");
  LLVMValueRef f = sub(&m, real(&m, LLVMBuildAdd(m.b, low, root, "")), c(&m, 1));
  LLVMValueRef s = quo(&m, f, add(&m, f, c(&m, 2))), z = mul(&m, s, s);
  LLVMValueRef r = mul(&m, z, m.wide ? POLY(&m, z, k64) : POLY(&m, z, k32));
  LLVMValueRef half = mul(&m, mul(&m, c(&m, 0.5), f), f);
  LLVMValueRef lo = fma3(&m, e, c(&m, m.wide ? 1.90821492927058770002e-10 : 9.0580006145e-06),
                         mul(&m, s, add(&m, half, r)));
  LLVMValueRef out = fma3(&m, e, c(&m, m.wide ? 6.93147180369123816490e-01 : 6.9313812256e-01),
                          sub(&m, f, sub(&m, half, lo)));
  out = sel(&m, cmp(&m, LLVMRealOEQ, x, c(&m, INFINITY)), x, out);
  out = sel(&m, cmp(&m, LLVMRealOEQ, x, zero), c(&m, -INFINITY), out);
  return sel(&m, cmp(&m, LLVMRealULT, x, zero), c(&m, NAN), out);
}

/* log(1 + x) = log(u) + (x - (u - 1)) / u with u = 1 + x rounded. */
LLVMValueRef gen_log1p(Gen *g, LLVMValueRef x) {
  M m = of(g, x);
  LLVMValueRef u = add(&m, x, c(&m, 1));
  LLVMValueRef fix = quo(&m, sub(&m, x, sub(&m, u, c(&m, 1))), u);
  LLVMValueRef finite =
      cmp(&m, LLVMRealONE, fix, c(&m, INFINITY)); /* also false for NaN: u is 0 or infinite */
  return add(&m, gen_log(g, u), sel(&m, finite, fix, c(&m, 0)));
}

static LLVMValueRef with_sign(M *m, LLVMValueRef size, LLVMValueRef sign) {
  return gen_intrinsic(m->g, "llvm.copysign", &m->t, 1, (LLVMValueRef[]){size, sign}, 2);
}

LLVMValueRef gen_tanh(Gen *g, LLVMValueRef x) {
  static const double k32[] = {-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
                               -3.33332819422e-1};
  static const double p64[] = {-9.64399179425052238628e-1, -9.92877231001918586564e1,
                               -1.61468768441708447952e3};
  static const double q64[] = {1, 1.12811678491632931402e2, 2.23548839060100448583e3,
                               4.84406305325125486048e3};
  M m = of(g, x);
  LLVMValueRef a = call1(&m, "llvm.fabs", x), z = mul(&m, x, x);
  LLVMValueRef p = m.wide ? quo(&m, POLY(&m, z, p64), POLY(&m, z, q64)) : POLY(&m, z, k32);
  LLVMValueRef small = fma3(&m, mul(&m, x, z), p, x);
  LLVMValueRef e = gen_exp(g, add(&m, a, a));
  LLVMValueRef large = sub(&m, c(&m, 1), quo(&m, c(&m, 2), add(&m, e, c(&m, 1))));
  return sel(&m, cmp(&m, LLVMRealOLT, a, c(&m, 0.625)), small, with_sign(&m, large, x));
}

/* e = exp(-|x|): 1 / (1 + e) or e / (1 + e); no overflow, small results keep their relative precision. */
LLVMValueRef gen_sigmoid(Gen *g, LLVMValueRef x) {
  M m = of(g, x);
  LLVMValueRef e = gen_exp(g, neg(&m, call1(&m, "llvm.fabs", x)));
  LLVMValueRef top = sel(&m, cmp(&m, LLVMRealOLT, x, c(&m, 0)), e, c(&m, 1));
  return quo(&m, top, add(&m, c(&m, 1), e));
}

static LLVMValueRef erf32(M *m, LLVMValueRef x) {
  static const double near0[] = {7.853861353153693e-5,  -8.010193625184903e-4, 5.188327685732524e-3,
                                 -2.685381193529856e-2, 1.128358514861418e-1,  -3.761262582423300e-1,
                                 1.128379165726710e+0};
  static const double mid[] = {2.326819970068386e-2,  -1.387039388740657e-1, 3.687424674597105e-1,
                               -5.824733027278666e-1, 6.210004621745983e-1,  -4.944515323274145e-1,
                               3.404879937665872e-1,  -2.741127028184656e-1, 5.638259427386472e-1};
  static const double far[] = {-1.047766399936249e+1, 1.297719955372516e+1,  -7.495518717768503e+0,
                               2.921019019210786e+0,  -1.015265279202700e+0, 4.218463358204948e-1,
                               -2.820767439740514e-1, 5.641895067754075e-1};
  LLVMValueRef a = call1(m, "llvm.fabs", x), z = mul(m, x, x);
  LLVMValueRef small = mul(m, x, POLY(m, z, near0));
  LLVMValueRef q = quo(m, c(m, 1), a), y = mul(m, q, q);
  LLVMValueRef p = sel(m, cmp(m, LLVMRealOLT, a, c(m, 2)), POLY(m, y, mid), POLY(m, y, far));
  LLVMValueRef large = sub(m, c(m, 1), mul(m, mul(m, gen_exp(m->g, neg(m, z)), q), p));
  return sel(m, cmp(m, LLVMRealOLT, a, c(m, 1)), small, with_sign(m, large, x));
}

static LLVMValueRef erf64(M *m, LLVMValueRef x) {
  static const double t[] = {9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3,
                             7.00332514112805075473e3, 5.55923013010394962768e4};
  static const double u[] = {1,
                             3.35617141647503099647e1,
                             5.21357949780152679795e2,
                             4.59432382970980127987e3,
                             2.26290000613890934246e4,
                             4.92673942608635921086e4};
  static const double p[] = {2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
                             4.86371970985681366614e1,   1.96520832956077098242e2,  5.26445194995477358631e2,
                             9.34528527171957607540e2,   1.02755188689515710272e3,  5.57535335369399327526e2};
  static const double q[] = {1,
                             1.32281951154744992508e1,
                             8.67072140885989742329e1,
                             3.54937778887819891062e2,
                             9.75708501743205489753e2,
                             1.82390916687909736289e3,
                             2.24633760818710981792e3,
                             1.65666309194161350182e3,
                             5.57535340817727675546e2};
  LLVMValueRef a = call1(m, "llvm.fabs", x), z = mul(m, x, x);
  LLVMValueRef small = mul(m, x, quo(m, POLY(m, z, t), POLY(m, z, u)));
  LLVMValueRef bound =
      sel(m, cmp(m, LLVMRealOGT, a, c(m, 8)), c(m, 8), a); /* erfc(8) is below half a unit of 1 */
  LLVMValueRef tail =
      mul(m, gen_exp(m->g, neg(m, mul(m, bound, bound))), quo(m, POLY(m, bound, p), POLY(m, bound, q)));
  return sel(m, cmp(m, LLVMRealOLT, a, c(m, 1)), small, with_sign(m, sub(m, c(m, 1), tail), x));
}

LLVMValueRef gen_erf(Gen *g, LLVMValueRef x) {
  M m = of(g, x);
  return m.wide ? erf64(&m, x) : erf32(&m, x);
}

/* x less the nearest multiple of pi/2, computed in f64; *quadrant its number. Good to |x| about 1e6. */
static LLVMValueRef reduce_angle(M *w, LLVMValueRef x, LLVMValueRef *quadrant) {
  LLVMValueRef n = neg(w, nearest(w, mul(w, x, c(w, 0.6366197723675814)), quadrant));
  LLVMValueRef r = fma3(w, n, c(w, 1.57079632673412561417e+00), x);
  r = fma3(w, n, c(w, 6.07710050630396597660e-11), r);
  return fma3(w, n, c(w, 2.02226624879595063154e-21), r);
}

static LLVMValueRef sine(Gen *g, LLVMValueRef x, int64_t turn) {
  static const double s32[] = {-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1};
  static const double c32[] = {2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2};
  static const double s64[] = {1.58969099521155010221e-10, -2.50507602534068634195e-08,
                               2.75573137070700676789e-06, -1.98412698298579493134e-04,
                               8.33333333332248946124e-03, -1.66666666666666324348e-01};
  static const double c64[] = {-1.13596475577881948265e-11, 2.08757232129817482790e-09,
                               -2.75573143513906633035e-07, 2.48015872894767294178e-05,
                               -1.38888888888741095749e-03, 4.16666666666666019037e-02};
  M m = of(g, x);
  LLVMTypeRef wide = shaped(&m, LLVMDoubleTypeInContext(g->ctx));
  LLVMValueRef xw = m.wide ? x : LLVMBuildFPExt(g->b, x, wide, ""), k;
  M w = of(g, xw);
  LLVMValueRef r = reduce_angle(&w, xw, &k);
  k = LLVMBuildAdd(g->b, k, ci(&w, turn), "");
  if (!m.wide)
    r = LLVMBuildFPTrunc(g->b, r, m.t, "");
  LLVMValueRef z = mul(&m, r, r);
  LLVMValueRef s = fma3(&m, mul(&m, r, z), m.wide ? POLY(&m, z, s64) : POLY(&m, z, s32), r);
  LLVMValueRef co = fma3(&m, mul(&m, z, z), m.wide ? POLY(&m, z, c64) : POLY(&m, z, c32),
                         fma3(&m, z, c(&m, -0.5), c(&m, 1)));
  LLVMValueRef zero = ci(&w, 0);
  LLVMValueRef odd = LLVMBuildICmp(g->b, LLVMIntNE, LLVMBuildAnd(g->b, k, ci(&w, 1), ""), zero, "");
  LLVMValueRef minus = LLVMBuildICmp(g->b, LLVMIntNE, LLVMBuildAnd(g->b, k, ci(&w, 2), ""), zero, "");
  LLVMValueRef v = sel(&m, odd, co, s);
  return sel(&m, minus, neg(&m, v), v);
}

LLVMValueRef gen_sin(Gen *g, LLVMValueRef x) {
  return sine(g, x, 0);
}
LLVMValueRef gen_cos(Gen *g, LLVMValueRef x) {
  return sine(g, x, 1);
}

LLVMValueRef gen_sqrt(Gen *g, LLVMValueRef x) {
  M m = of(g, x);
  return call1(&m, "llvm.sqrt", x);
}

LLVMValueRef gen_floor(Gen *g, LLVMValueRef x) {
  M m = of(g, x);
  return call1(&m, "llvm.floor", x);
}

LLVMValueRef gen_rsqrt(Gen *g, LLVMValueRef x) {
  M m = of(g, x);
  return quo(&m, c(&m, 1), call1(&m, "llvm.sqrt", x));
}

/* exp(y log |x|) in f64; a negative x needs an integer y, whose parity is the sign. */
LLVMValueRef gen_pow(Gen *g, LLVMValueRef x, LLVMValueRef y) {
  M m = of(g, x);
  if (!m.wide) {
    LLVMTypeRef wide = shaped(&m, LLVMDoubleTypeInContext(g->ctx));
    LLVMValueRef r = gen_pow(g, LLVMBuildFPExt(g->b, x, wide, ""), LLVMBuildFPExt(g->b, y, wide, ""));
    return LLVMBuildFPTrunc(g->b, r, m.t, "");
  }
  LLVMValueRef zero = c(&m, 0), one = c(&m, 1);
  LLVMValueRef r = gen_exp(g, mul(&m, y, gen_log(g, call1(&m, "llvm.fabs", x))));
  LLVMValueRef half = mul(&m, y, c(&m, 0.5));
  LLVMValueRef whole = cmp(&m, LLVMRealOEQ, call1(&m, "llvm.floor", y), y);
  LLVMValueRef odd = LLVMBuildAnd(g->b, whole, cmp(&m, LLVMRealUNE, call1(&m, "llvm.floor", half), half), "");
  LLVMValueRef negative = cmp(&m, LLVMRealOLT, x, zero);
  LLVMValueRef signed_r = sel(&m, odd, neg(&m, r), sel(&m, whole, r, c(&m, NAN)));
  r = sel(&m, negative, signed_r, r);
  LLVMValueRef is_one = LLVMBuildOr(g->b, cmp(&m, LLVMRealOEQ, y, zero), cmp(&m, LLVMRealOEQ, x, one), "");
  return sel(&m, is_one, one, r);
}
