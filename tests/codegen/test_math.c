/* The inline elementary functions against libm in higher precision: ranges, special values, scalars and
 * vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/llvm.h"

enum { N = 1 << 12, LANES = 16 };

typedef LLVMValueRef (*UnaryFn)(Gen *g, LLVMValueRef x);
typedef struct {
  const char *name;
  UnaryFn fn;
  long double (*ref)(long double);
  double lo, hi;       /* the range tested, beside special values */
  double tol32, tol64; /* in units of the last place of the right value */
  double least;        /* smaller sizes of the right value count as this (absolute error near its zeros) */
} Case;

static long double sigmoid_ref(long double x) {
  return 1 / (1 + expl(-x));
}
static long double rsqrt_ref(long double x) {
  return 1 / sqrtl(x);
}

static const Case cases[] = {
    {"exp", gen_exp, expl, -110, 95, 2, 2, 0},
    {"exp_wide", gen_exp, expl, -760, 720, 2, 2, 0},
    {"log", gen_log, logl, 1e-3, 20, 2, 2, 0},
    {"log_wide", gen_log, logl, 0, 1e38, 2, 2, 0},
    {"log1p", gen_log1p, log1pl, -0.999, 10, 3, 3, 0},
    {"log1p_near", gen_log1p, log1pl, -1e-3, 1e-3, 3, 3, 0},
    {"tanh", gen_tanh, tanhl, -12, 12, 3, 3, 0},
    {"tanh_near", gen_tanh, tanhl, -1e-3, 1e-3, 2, 2, 0},
    {"sigmoid", gen_sigmoid, sigmoid_ref, -95, 40, 4, 4, 0},
    {"erf", gen_erf, erfl, -5, 5, 3, 3, 0},
    {"erf_near", gen_erf, erfl, -1e-3, 1e-3, 2, 2, 0},
    {"erf_wide", gen_erf, erfl, -50, 50, 3, 3, 0},
    {"sin", gen_sin, sinl, -8, 8, 3, 3, 1e-3},
    {"sin_wide", gen_sin, sinl, -1e5, 1e5, 3, 3, 1e-2},
    {"cos", gen_cos, cosl, -8, 8, 3, 3, 1e-3},
    {"cos_wide", gen_cos, cosl, -1e5, 1e5, 3, 3, 1e-2},
    {"sqrt", gen_sqrt, sqrtl, 0, 1e6, 0.5, 0.5, 0},
    {"rsqrt", gen_rsqrt, rsqrt_ref, 0, 1e6, 1.5, 1.5, 0},
    {"floor", gen_floor, floorl, -1e4, 1e4, 0, 0, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static const double specials[] = {0.0,    -0.0,   INFINITY, -INFINITY, NAN,    1,     -1,    0.5,
                                  -0.5,   2,      -2,       1e-40,     -1e-40, 1e-45, 1e-30, 88.7,
                                  89,     -87.4,  -104,     -103.2,    1e30,   -1e30, 709.7, -745.1,
                                  1e-310, 1e-300, 0.625,    0.84375,   1.25,   3};
enum { N_SPECIALS = sizeof specials / sizeof *specials };

/* ---- compiling ---- */

typedef struct {
  Gen *g;
  LLVMTypeRef scalar, type;
  LLVMValueRef fn, i;
  LLVMBasicBlockRef loop;
  LLVMValueRef args;
} Loop;

static LLVMValueRef element_ptr(Loop *l, unsigned arg) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(l->g->ctx, 0), i64 = LLVMInt64TypeInContext(l->g->ctx);
  LLVMValueRef k = LLVMConstInt(i64, arg, false);
  LLVMValueRef base = LLVMBuildLoad2(l->g->b, ptr, LLVMBuildGEP2(l->g->b, ptr, l->args, &k, 1, ""), "");
  return LLVMBuildGEP2(l->g->b, l->scalar, base, &l->i, 1, "");
}

static LLVMValueRef load(Loop *l, unsigned arg) {
  LLVMValueRef v = LLVMBuildLoad2(l->g->b, l->type, element_ptr(l, arg), "");
  LLVMSetAlignment(v, 4);
  return v;
}

/* for (i = lo; i < hi; i += lanes) */
static void loop_begin(Loop *l, Gen *g, const char *name, bool f64, unsigned lanes) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0), i64 = LLVMInt64TypeInContext(g->ctx);
  l->g = g;
  l->scalar = f64 ? LLVMDoubleTypeInContext(g->ctx) : LLVMFloatTypeInContext(g->ctx);
  l->type = lanes > 1 ? LLVMVectorType(l->scalar, lanes) : l->scalar;
  LLVMTypeRef sig =
      LLVMFunctionType(LLVMVoidTypeInContext(g->ctx), (LLVMTypeRef[]){ptr, i64, i64, ptr}, 4, false);
  l->fn = LLVMAddFunction(g->mod, name, sig);
  gen_function_attributes(g, l->fn);
  gen_noalias(g, l->fn, 0);
  l->args = LLVMGetParam(l->fn, 0);
  LLVMBasicBlockRef entry = LLVMAppendBasicBlockInContext(g->ctx, l->fn, "entry");
  l->loop = LLVMAppendBasicBlockInContext(g->ctx, l->fn, "loop");
  LLVMPositionBuilderAtEnd(g->b, entry);
  LLVMBuildBr(g->b, l->loop);
  LLVMPositionBuilderAtEnd(g->b, l->loop);
  l->i = LLVMBuildPhi(g->b, i64, "i");
  LLVMAddIncoming(l->i, (LLVMValueRef[]){LLVMGetParam(l->fn, 1)}, &entry, 1);
}

static void loop_end(Loop *l, unsigned out, unsigned lanes, LLVMValueRef v) {
  Gen *g = l->g;
  LLVMSetAlignment(LLVMBuildStore(g->b, v, element_ptr(l, out)), 4);
  LLVMTypeRef i64 = LLVMInt64TypeInContext(g->ctx);
  LLVMValueRef next = LLVMBuildAdd(g->b, l->i, LLVMConstInt(i64, lanes, false), "");
  LLVMAddIncoming(l->i, &next, &l->loop, 1);
  LLVMBasicBlockRef done = LLVMAppendBasicBlockInContext(g->ctx, l->fn, "done");
  LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, next, LLVMGetParam(l->fn, 2), ""), l->loop, done);
  LLVMPositionBuilderAtEnd(g->b, done);
  LLVMBuildRetVoid(g->b);
}

static void symbol_of(char *out, size_t n, const char *name, bool f64, unsigned lanes) {
  snprintf(out, n, "%s_%s_%u", name, f64 ? "f64" : "f32", lanes);
}

static void emit_all(Gen *g, bool f64, unsigned lanes) {
  char name[64];
  Loop l;
  for (unsigned c = 0; c < N_CASES; c++) {
    symbol_of(name, sizeof name, cases[c].name, f64, lanes);
    loop_begin(&l, g, name, f64, lanes);
    loop_end(&l, 1, lanes, cases[c].fn(g, load(&l, 0)));
  }
  symbol_of(name, sizeof name, "pow", f64, lanes);
  loop_begin(&l, g, name, f64, lanes);
  LLVMValueRef x = load(&l, 0);
  loop_end(&l, 2, lanes, gen_pow(g, x, load(&l, 1)));
}

typedef struct {
  Arena arena;
  CodeImage *image;
} Compiled;

static Compiled *compile(const char *features) {
  Compiled *c = calloc(1, sizeof *c);
  Error err = {0};
  Object obj;
  Target *t = target_new(features ? "x86-64" : NULL, features, &err);
  assert_non_null(t);
  Gen *g = gen_new(t, "math", &err);
  assert_non_null(g);
  for (int f64 = 0; f64 < 2; f64++) {
    emit_all(g, f64, 1);
    emit_all(g, f64, LANES);
  }
  bool ok =
      gen_optimize(g, "function(mem2reg,instcombine<no-verify-fixpoint>,early-cse<memssa>,simplifycfg,dce)",
                   &err) &&
      gen_object(g, &c->arena, &obj, &err) && (c->image = codegen_load(&obj, 1, &err));
  if (!ok)
    fail_msg("%s", err.msg);
  gen_free(g);
  target_free(t);
  return c;
}

static void compiled_free(Compiled *c) {
  codegen_unload(c->image);
  arena_free(&c->arena);
  free(c);
}

static KernelFn function(const Compiled *c, const char *name, bool f64, unsigned lanes) {
  char symbol[64];
  symbol_of(symbol, sizeof symbol, name, f64, lanes);
  KernelFn fn = codegen_lookup(c->image, symbol);
  if (!fn)
    fail_msg("no symbol %s", symbol);
  return fn;
}

/* ---- comparing ---- */

static double get(const void *p, bool f64, int i) {
  return f64 ? ((const double *)p)[i] : ((const float *)p)[i];
}

static void put(void *p, bool f64, int i, double v) {
  if (f64)
    ((double *)p)[i] = v;
  else
    ((float *)p)[i] = (float)v;
}

/* |got - want| in units of the last place of want. */
static double ulps(double got, long double want, bool f64, double least) {
  double rounded = f64 ? (double)want : (double)(float)want;
  if (isnan(rounded) || isnan(got))
    return isnan(rounded) && isnan(got) ? 0 : INFINITY;
  if (isinf(rounded) || isinf(got) || rounded == 0)
    return rounded == got && signbit(rounded) == signbit(got)                                     ? 0
           : isinf(rounded) && !isinf(got) && fabs(got) >= (f64 ? DBL_MAX : FLT_MAX) * (1 - 1e-7) ? 0.5
           : rounded == 0 && fabs(got) < least                                                    ? 0
                                                                                                  : INFINITY;
  long double size = fabsl(want) < least ? least : fabsl(want);
  int e;
  frexpl(size, &e);
  int lowest = f64 ? -1074 : -149, unit = e - (f64 ? 53 : 24);
  return (double)(fabsl(got - want) / ldexpl(1, unit < lowest ? lowest : unit));
}

static double uniform(uint64_t *s) {
  *s = *s * 6364136223846793005u + 1442695040888963407u;
  return (double)(*s >> 11) * 0x1p-53;
}

static void fill(void *x, bool f64, double lo, double hi, uint64_t seed) {
  for (int i = 0; i < N; i++)
    put(x, f64, i, i < N_SPECIALS ? specials[i] : lo + (hi - lo) * uniform(&seed));
}

/* Beyond 1e5 sin and cos promise no more than a bounded result. */
static bool skipped(const Case *c, double x) {
  return (c->fn == gen_sin || c->fn == gen_cos) && isfinite(x) && fabs(x) > 1e5;
}

static double check(const Case *c, const void *x, const void *y, bool f64, double *at) {
  double worst = 0;
  for (int i = 0; i < N; i++) {
    double v = get(x, f64, i), got = get(y, f64, i);
    if (skipped(c, v)) {
      assert_true(fabs(got) <= 1);
      continue;
    }
    double u = ulps(got, c->ref(v), f64, c->least);
    if (u > worst) {
      worst = u;
      *at = v;
    }
  }
  return worst;
}

static void check_case(const Compiled *k, const Case *c, bool f64) {
  static double x[N], y[N], z[N];
  double at = 0, tol = f64 ? c->tol64 : c->tol32;
  size_t bytes = f64 ? sizeof y : sizeof y / 2;
  fill(x, f64, c->lo, c->hi, 7);
  function(k, c->name, f64, LANES)((void *[]){x, y}, 0, N, NULL);
  function(k, c->name, f64, 1)((void *[]){x, z}, 0, N, NULL);
  double worst = check(c, x, y, f64, &at);
  printf("  %-10s %s %8.3f ulp at %.9g\n", c->name, f64 ? "f64" : "f32", worst, at);
  if (worst > tol)
    fail_msg("%s %s: %g ulp at %.17g", c->name, f64 ? "f64" : "f32", worst, at);
  for (int i = 0; i < N; i++) /* one formula: the same bits, but for the sign of a NaN */
    if (!isnan(get(y, f64, i)) || !isnan(get(z, f64, i)))
      assert_memory_equal((char *)y + (size_t)i * (bytes / N), (char *)z + (size_t)i * (bytes / N),
                          bytes / N);
}

/* ---- tests ---- */

static void test_unary(void **state) {
  for (unsigned c = 0; c < N_CASES; c++)
    for (int f64 = 0; f64 < 2; f64++)
      check_case(*state, &cases[c], f64);
}

static void check_pow(const Compiled *k, bool f64, double xlo, double xhi, double ylo, double yhi,
                      bool edge) {
  static double x[N], y[N], z[N];
  uint64_t s = 11;
  for (int i = 0; i < N; i++) {
    put(x, f64, i, edge ? specials[i % N_SPECIALS] : xlo + (xhi - xlo) * uniform(&s));
    put(y, f64, i, edge ? specials[i / N_SPECIALS % N_SPECIALS] : ylo + (yhi - ylo) * uniform(&s));
  }
  double worst = 0, ax = 0, ay = 0;
  for (unsigned lanes = 1; lanes <= LANES; lanes += LANES - 1) {
    function(k, "pow", f64, lanes)((void *[]){x, y, z}, 0, N, NULL);
    for (int i = 0; i < N; i++) {
      double u = ulps(get(z, f64, i), powl(get(x, f64, i), get(y, f64, i)), f64, 0);
      if (u > worst) {
        worst = u;
        ax = get(x, f64, i);
        ay = get(y, f64, i);
      }
    }
  }
  printf("  pow        %s %8.3f ulp at %.9g, %.9g\n", f64 ? "f64" : "f32", worst, ax, ay);
  if (worst > 3)
    fail_msg("pow %s: %g ulp at %.17g, %.17g", f64 ? "f64" : "f32", worst, ax, ay);
}

static void test_pow(void **state) {
  for (int f64 = 0; f64 < 2; f64++) {
    check_pow(*state, f64, 0, 10, -10, 10, false);
    check_pow(*state, f64, 0.9, 1.1, -900, 900, false);
    check_pow(*state, f64, 0, 1e5, -64, 64, false);
    check_pow(*state, f64, 0, 0, 0, 0, true);
  }
}

/* A target with 4 lanes gives the same bits: every multiply-add is explicit and rounded once. */
static void test_narrow_target(void **state) {
  static float x[N], wide[N], narrow[N];
  Compiled *k = compile("+sse2");
  for (unsigned c = 0; c < N_CASES; c++) {
    fill(x, false, cases[c].lo, cases[c].hi, 3);
    function(*state, cases[c].name, false, LANES)((void *[]){x, wide}, 0, N, NULL);
    function(k, cases[c].name, false, LANES)((void *[]){x, narrow}, 0, N, NULL);
    for (int i = 0; i < N; i++)
      if (!isnan(wide[i]) || !isnan(narrow[i]))
        assert_memory_equal(&wide[i], &narrow[i], sizeof(float));
  }
  compiled_free(k);
}

static int setup(void **state) {
  *state = compile(NULL);
  return 0;
}

static int teardown(void **state) {
  compiled_free(*state);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unary),
      cmocka_unit_test(test_pow),
      cmocka_unit_test(test_narrow_target),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
