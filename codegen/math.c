/* math.c: elementary functions as inline code: polynomials after range reduction, rounding only where the
 * formula says so (every fused multiply-add is explicit). f32 is good to about 2 ulp, f64 to about 1e-15.
 * Coefficients: Cephes and fdlibm. */
#include "codegen/math.h"

#include <float.h>
#include <math.h>

enum { MAX_LANES = 64 };

/* ---- building blocks ---- */

static bool is_vector(LLVMTypeRef t) {
  return LLVMGetTypeKind(t) == LLVMVectorTypeKind;
}

static V spread(LLVMTypeRef t, V scalar) {
  V lane[MAX_LANES];
  if (!is_vector(t))
    return scalar;
  unsigned n = LLVMGetVectorSize(t);
  for (unsigned i = 0; i < n; i++)
    lane[i] = scalar;
  return LLVMConstVector(lane, n);
}

static LLVMTypeRef element(LLVMTypeRef t) {
  return is_vector(t) ? LLVMGetElementType(t) : t;
}

Math math_of(Gen *g, V x) {
  Math m = {.g = g, .b = g->b, .t = LLVMTypeOf(x)};
  m.f64 = LLVMGetTypeKind(element(m.t)) == LLVMDoubleTypeKind;
  LLVMTypeRef i = m.f64 ? LLVMInt64TypeInContext(g->ctx) : LLVMInt32TypeInContext(g->ctx);
  m.it = is_vector(m.t) ? LLVMVectorType(i, LLVMGetVectorSize(m.t)) : i;
  return m;
}

V math_const(Math *m, double v) {
  return spread(m->t, LLVMConstReal(element(m->t), v));
}

V math_int(Math *m, uint64_t v) {
  return spread(m->it, LLVMConstInt(element(m->it), v, false));
}

V math_call(Math *m, const char *name, V *args, unsigned n) {
  return gen_intrinsic(m->g, name, &m->t, 1, args, n);
}

V math_fma(Math *m, V a, V b, V c) {
  return math_call(m, "llvm.fma", (V[]){a, b, c}, 3);
}

V math_poly(Math *m, V x, const double *c, unsigned n) {
  V r = math_const(m, c[0]);
  for (unsigned i = 1; i < n; i++)
    r = math_fma(m, r, x, math_const(m, c[i]));
  return r;
}

V math_copysign(Math *m, V size, V sign) {
  return math_call(m, "llvm.copysign", (V[]){size, sign}, 2);
}

V math_abs(Math *m, V x) {
  return math_call(m, "llvm.fabs", &x, 1);
}

static V bits(Math *m, V x) {
  return LLVMBuildBitCast(m->b, x, m->it, "");
}
static V real(Math *m, V i) {
  return LLVMBuildBitCast(m->b, i, m->t, "");
}
static V iadd(Math *m, V a, V b) {
  return LLVMBuildAdd(m->b, a, b, "");
}
static V isub(Math *m, V a, V b) {
  return LLVMBuildSub(m->b, a, b, "");
}

static unsigned mantissa_bits(const Math *m) {
  return m->f64 ? 52 : 23;
}

/* The nearest integer of x * scale, as a real and as an integer: adding 1.5 * 2^mantissa leaves it in the low
 * bits. Unlike a conversion this is defined for NaN and for what does not fit. */
static V nearest(Math *m, V x, double scale, V *integer) {
  V magic = math_const(m, m->f64 ? 0x1.8p52 : 0x1.8p23);
  V t = math_fma(m, x, math_const(m, scale), magic);
  *integer = isub(m, bits(m, t), bits(m, magic));
  return sub(m, t, magic);
}

/* x - n * (hi + mid + lo) */
static V reduce3(Math *m, V x, V n, double hi, double mid, double lo) {
  x = math_fma(m, n, math_const(m, -hi), x);
  x = math_fma(m, n, math_const(m, -mid), x);
  return lo != 0 ? math_fma(m, n, math_const(m, -lo), x) : x;
}

/* ---- exp, sigmoid ---- */

/* 2^n for -127 < n < 128 */
static V power_of_two(Math *m, V n) {
  V biased = iadd(m, n, math_int(m, m->f64 ? 1023 : 127));
  return real(m, LLVMBuildShl(m->b, biased, math_int(m, mantissa_bits(m)), ""));
}

V math_exp(Math *m, V x, V low) {
  V n, r, p, one = math_const(m, 1);
  x = m->f64 ? clamp(m, x, -746, 710) : clamp(m, x, -104, 89);
  V k = nearest(m, x, M_LOG2E, &n);
  if (m->f64)
    r = reduce3(m, x, k, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 0);
  else
    r = reduce3(m, x, k, 0.693359375, -2.12194440e-4, 0);
  if (low)
    r = add(m, r, low);
  if (m->f64)
    p = POLY(m, r, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
             1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5);
  else
    p = POLY(m, r, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
             5.0000001201e-1);
  p = add(m, math_fma(m, p, mul(m, r, r), r), one);
  /* Two factors: 2^n itself may be out of range while the product is not; only the last multiplication
   * rounds. */
  V half = LLVMBuildAShr(m->b, n, math_int(m, 1), "");
  return mul(m, mul(m, p, power_of_two(m, half)), power_of_two(m, isub(m, n, half)));
}

LLVMValueRef gen_exp(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  return math_exp(&m, x, NULL);
}

LLVMValueRef gen_sigmoid(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  V one = math_const(&m, 1), e = math_exp(&m, neg(&m, math_abs(&m, x)), NULL);
  return quot(&m, pick(&m, less(&m, x, math_const(&m, 0)), e, one), add(&m, one, e));
}

/* ---- log, log1p ---- */

V math_split(Math *m, V x, V *e) {
  V tiny = less(m, x, math_const(m, m->f64 ? DBL_MIN : (double)FLT_MIN));
  V shift = math_int(m, mantissa_bits(m)), root = math_int(m, m->f64 ? 0x3fe6a09e667f3bcd : 0x3f3504f3);
  x = pick(m, tiny, mul(m, x, math_const(m, m->f64 ? 0x1p52 : 0x1p23)), x);
  V i = isub(m, bits(m, x), root);
  V n = LLVMBuildAShr(m->b, i, shift, "");
  n = isub(m, n, pick(m, tiny, shift, math_int(m, 0)));
  *e = LLVMBuildSIToFP(m->b, n, m->t, "");
  V mask = math_int(m, m->f64 ? 0xfffffffffffff : 0x7fffff);
  return real(m, iadd(m, LLVMBuildAnd(m->b, i, mask, ""), root));
}

static V log_f32(Math *m, V f, V e) {
  V z = mul(m, f, f);
  V p = POLY(m, f, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
             -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1);
  p = mul(m, mul(m, f, z), p);
  p = math_fma(m, e, math_const(m, -2.12194440e-4), p);
  p = math_fma(m, math_const(m, -0.5), z, p);
  return math_fma(m, e, math_const(m, 0.693359375), add(m, f, p));
}

static V log_f64(Math *m, V f, V e) {
  V s = quot(m, f, add(m, f, math_const(m, 2))), z = mul(m, s, s);
  V r = POLY(m, z, 1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
             2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
             6.666666666666735130e-01);
  V half = mul(m, math_const(m, 0.5), mul(m, f, f));
  V low = mul(m, s, math_fma(m, z, r, half));
  low = math_fma(m, e, math_const(m, 1.90821492927058770002e-10), low);
  V high = mul(m, e, math_const(m, 6.93147180369123816490e-01));
  return sub(m, high, sub(m, sub(m, half, low), f));
}

LLVMValueRef gen_log(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  V e, zero = math_const(&m, 0), inf = math_const(&m, INFINITY);
  V f = sub(&m, math_split(&m, x, &e), math_const(&m, 1));
  V r = m.f64 ? log_f64(&m, f, e) : log_f32(&m, f, e);
  r = pick(&m, same(&m, x, zero), math_const(&m, -INFINITY), r);
  r = pick(&m, LLVMBuildFCmp(m.b, LLVMRealULT, x, zero, ""), math_const(&m, NAN), r);
  return pick(&m, same(&m, x, inf), inf, r);
}

/* log(u) for u = 1 + x rounded, plus what the rounding lost. */
LLVMValueRef gen_log1p(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  V one = math_const(&m, 1), zero = math_const(&m, 0), u = add(&m, one, x);
  V lost = pick(&m, less(&m, x, one), sub(&m, x, sub(&m, u, one)), sub(&m, one, sub(&m, u, x)));
  V finite = LLVMBuildAnd(m.b, less(&m, zero, u), less(&m, u, math_const(&m, INFINITY)), "");
  V r = gen_log(g, u);
  r = pick(&m, finite, add(&m, r, quot(&m, lost, u)), r);
  return pick(&m, same(&m, x, zero), x, r); /* the sign of zero */
}

/* ---- tanh, erf ---- */

static V tanh_small(Math *m, V x) {
  V z = mul(m, x, x), p;
  if (m->f64) {
    p = POLY(m, z, -9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3);
    V q = POLY(m, z, 1, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3);
    p = quot(m, p, q);
  } else {
    p = POLY(m, z, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
             -3.33332819422e-1);
  }
  return math_fma(m, mul(m, p, z), x, x);
}

LLVMValueRef gen_tanh(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  V one = math_const(&m, 1), a = math_abs(&m, x), small = less(&m, a, math_const(&m, 0.625));
  V e = math_exp(&m, add(&m, a, a), NULL);
  V large = sub(&m, one, quot(&m, math_const(&m, 2), add(&m, e, one)));
  return math_copysign(&m, pick(&m, small, tanh_small(&m, x), large), x);
}

/* Polynomials by N. Juffa. */
static V erf_f32(Math *m, V x) {
  V a = math_abs(m, x), s = mul(m, x, x), t = clamp(m, a, 0, 4);
  V p = POLY(m, t, -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1,
             -6.34846687e-1, -1.28717512e-1);
  V large = sub(m, math_const(m, 1), math_exp(m, math_fma(m, p, t, neg(m, t)), NULL));
  V q =
      POLY(m, s, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1);
  V in = less(m, a, math_const(m, 0.927734375));
  return pick(m, in, math_fma(m, q, x, x), math_copysign(m, large, x));
}

/* R(1/x^2) of erfc(x) = exp(-x^2 - 0.5625 + R) / x, 1.25 <= x. */
static V erf_tail(Math *m, V x) {
  V s = quot(m, math_const(m, 1), mul(m, x, x));
  V ra = POLY(m, s, -9.81432934416914548592, -8.12874355063065934246e+01, -1.84605092906711035994e+02,
              -1.62396669462573470355e+02, -6.23753324503260060396e+01, -1.05586262253232909814e+01,
              -6.93858572707181764372e-01, -9.86494403484714822705e-03);
  V sa = POLY(m, s, -6.04244152148580987438e-02, 6.57024977031928170135, 1.08635005541779435134e+02,
              4.29008140027567833386e+02, 6.45387271733267880336e+02, 4.34565877475229228821e+02,
              1.37657754143519042600e+02, 1.96512716674392571292e+01, 1);
  V rb = POLY(m, s, -4.83519191608651397019e+02, -1.02509513161107724954e+03, -6.37566443368389627722e+02,
              -1.60636384855821916062e+02, -1.77579549177547519889e+01, -7.99283237680523006574e-01,
              -9.86494292470009928597e-03);
  V sb = POLY(m, s, -2.24409524465858183362e+01, 4.74528541206955367215e+02, 2.55305040643316442583e+03,
              3.19985821950859553908e+03, 1.53672958608443695994e+03, 3.25792512996573918826e+02,
              3.03380607434824582924e+01, 1);
  V near = less(m, x, math_const(m, 1 / 0.35));
  return quot(m, pick(m, near, ra, rb), pick(m, near, sa, sb));
}

static V erf_f64(Math *m, V x) {
  V one = math_const(m, 1), a = math_abs(m, x), z = mul(m, x, x);
  V p = POLY(m, z, -2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02,
             -3.25042107247001499370e-01, 1.28379167095512558561e-01);
  V q = POLY(m, z, -3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03,
             6.50222499887672944485e-02, 3.97917223959155352819e-01, 1);
  V small = math_fma(m, x, quot(m, p, q), x), s = sub(m, a, one);
  p = POLY(m, s, -2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01,
           3.18346619901161753674e-01, -3.72207876035701323847e-01, 4.14856118683748331666e-01,
           -2.36211856075265944077e-03);
  q = POLY(m, s, 1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01,
           7.18286544141962662868e-02, 5.40397917702171048937e-01, 1.06420880400844228286e-01, 1);
  V middle = add(m, math_const(m, 8.45062911510467529297e-01), quot(m, p, q));
  V t = clamp(m, a, 1, 6), r = sub(m, erf_tail(m, t), math_const(m, 0.5625));
  V large = sub(m, one, quot(m, math_exp(m, math_fma(m, neg(m, t), t, r), NULL), t));
  large = pick(m, less(m, a, math_const(m, 1.25)), middle, large);
  return pick(m, less(m, a, math_const(m, 0.84375)), small, math_copysign(m, large, x));
}

LLVMValueRef gen_erf(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  return m.f64 ? erf_f64(&m, x) : erf_f32(&m, x);
}

/* ---- sin, cos ---- */

static V sin_core(Math *m, V r, V z) {
  V p = m->f64
            ? POLY(m, z, 1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
                   -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01)
            : POLY(m, z, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1);
  return math_copysign(m, math_fma(m, mul(m, p, z), r, r), r); /* the fma loses the sign of zero */
}

static V cos_core(Math *m, V z) {
  V p = m->f64
            ? POLY(m, z, -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
                   2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02)
            : POLY(m, z, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2);
  return math_fma(m, mul(m, z, z), p, math_fma(m, math_const(m, -0.5), z, math_const(m, 1)));
}

/* sin(x + quarter * pi/2), right for |x| <= 1e5; beyond, the result loses precision but stays within [-1, 1].
 */
static V sin_shifted(Gen *g, V x, unsigned quarter) {
  Math m = math_of(g, x);
  V n, r, k = nearest(&m, x, M_2_PI, &n);
  if (m.f64)
    r = reduce3(&m, x, k, 0x1.921fb54442d18p0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110);
  else
    r = reduce3(&m, x, k, 0x1.921fb6p0, -0x1.777a5cp-25, -0x1.ee59dap-50);
  r = clamp(&m, r, -0.8, 0.8);
  n = iadd(&m, n, math_int(&m, quarter));
  V z = mul(&m, r, r), one = math_int(&m, 1), zero = math_int(&m, 0);
  V odd = LLVMBuildICmp(m.b, LLVMIntNE, LLVMBuildAnd(m.b, n, one, ""), zero, "");
  V v = pick(&m, odd, cos_core(&m, z), sin_core(&m, r, z));
  V flip = LLVMBuildICmp(m.b, LLVMIntNE, LLVMBuildAnd(m.b, n, math_int(&m, 2), ""), zero, "");
  return pick(&m, flip, neg(&m, v), v);
}

LLVMValueRef gen_sin(Gen *g, LLVMValueRef x) {
  return sin_shifted(g, x, 0);
}

LLVMValueRef gen_cos(Gen *g, LLVMValueRef x) {
  return sin_shifted(g, x, 1);
}

/* ---- roots, rounding ---- */

LLVMValueRef gen_sqrt(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  return math_call(&m, "llvm.sqrt", &x, 1);
}

LLVMValueRef gen_rsqrt(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  return quot(&m, math_const(&m, 1), math_call(&m, "llvm.sqrt", &x, 1));
}

LLVMValueRef gen_floor(Gen *g, LLVMValueRef x) {
  Math m = math_of(g, x);
  return math_call(&m, "llvm.floor", &x, 1);
}
