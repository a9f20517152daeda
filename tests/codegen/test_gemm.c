/* Matrix products of generated code against sums in long double: every order of the operands' dims, odd
 * sizes, several dims a side, batches, accumulation; guard zones stay untouched; the same bits with any
 * number of threads and any vector width. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "tests/codegen/gemm_rig.h"

enum { GUARD = 64, MATRICES = 5, AVX512, AVX2, BASE, WIDTHS = 3 };
static const uint32_t CANARY = 0x7fc0dead; /* a NaN */

typedef struct {
  GemmSpec spec;
  int64_t size[MATRICES]; /* elements of a, b, c and what is added */
  void *mem[MATRICES];    /* with guard zones */
  bool own[GEMM_ADDENDS]; /* it is C itself */
} Problem;

/* ---- memory ---- */

static size_t elem(const Problem *p) {
  return dtype_bytes(p->spec.dtype);
}

static void *body(const Problem *p, int i) {
  return (char *)p->mem[i] + GUARD * sizeof(uint32_t);
}

static double get(const Problem *p, int i, int64_t at) {
  return elem(p) == 4 ? (double)((float *)body(p, i))[at] : ((double *)body(p, i))[at];
}

static void put(Problem *p, int i, int64_t at, double v) {
  if (elem(p) == 4)
    ((float *)body(p, i))[at] = (float)v;
  else
    ((double *)body(p, i))[at] = v;
}

static void guard(uint32_t *w) {
  for (int i = 0; i < GUARD; i++)
    w[i] = CANARY;
}

static uint32_t *after(const Problem *p, int i) {
  return (uint32_t *)((char *)body(p, i) + (size_t)p->size[i] * elem(p));
}

static void allocate(Problem *p, unsigned seed) {
  for (int i = 0; i < MATRICES; i++) {
    p->mem[i] = malloc((size_t)p->size[i] * elem(p) + 2 * GUARD * sizeof(uint32_t));
    guard(p->mem[i]);
    guard(after(p, i));
    for (int64_t j = 0; j < p->size[i]; j++) {
      seed = seed * 1664525u + 1013904223u;
      put(p, i, j, (double)(seed >> 8) / (1 << 23) - 1);
    }
  }
}

static void release(Problem *p) {
  for (int i = 0; i < MATRICES; i++)
    free(p->mem[i]);
}

static void check_guards(const Problem *p) {
  for (int i = 0; i < MATRICES; i++)
    for (int j = 0; j < GUARD; j++) {
      assert_int_equal(((uint32_t *)p->mem[i])[j], CANARY);
      assert_int_equal(after(p, i)[j], CANARY);
    }
}

/* ---- reference ---- */

static int64_t count(const GemmDims *d) {
  int64_t n = 1;
  for (int i = 0; i < d->n; i++)
    n *= d->dim[i].size;
  return n;
}

static void offsets(const GemmDims *d, int64_t index, int64_t o[MATRICES]) {
  for (int i = d->n; i-- > 0; index /= d->dim[i].size) {
    int64_t j = index % d->dim[i].size;
    o[0] += j * d->dim[i].a;
    o[1] += j * d->dim[i].b;
    o[2] += j * d->dim[i].c;
    for (int a = 0; a < GEMM_ADDENDS; a++)
      o[3 + a] += j * d->dim[i].d[a];
  }
}

static void check_values(const Problem *p, const double *before, const char *what) {
  const GemmSpec *s = &p->spec;
  double eps = elem(p) == 4 ? 0x1p-23 : 0x1p-52, k_n = (double)count(&s->k);
  for (int64_t b = 0; b < count(&s->batch); b++)
    for (int64_t m = 0; m < count(&s->m); m++)
      for (int64_t n = 0; n < count(&s->n); n++) {
        int64_t o[MATRICES] = {0};
        offsets(&s->batch, b, o);
        offsets(&s->m, m, o);
        offsets(&s->n, n, o);
        double sum = s->accumulate ? before[o[2]] : 0, size = fabs(sum);
        for (int64_t k = 0; k < count(&s->k); k++) {
          int64_t q[MATRICES] = {o[0], o[1]};
          offsets(&s->k, k, q);
          double term = get(p, 0, q[0]) * get(p, 1, q[1]);
          sum += term;
          size += fabs(term);
        }
        for (int a = 0; a < s->addends; a++) {
          double more = p->own[a] ? before[o[2]] : get(p, 3 + a, o[3 + a]);
          sum += more;
          size += fabs(more);
        }
        double got = get(p, 2, o[2]);
        if (!(fabs(got - sum) <= eps * size * (2 + sqrt(k_n))))
          fail_msg("%s: batch %ld row %ld column %ld: %.17g, should be %.17g", what, (long)b, (long)m,
                   (long)n, got, sum);
      }
}

/* ---- running ---- */

static Target *target(int width) {
  static const char *features[] = {NULL, "+avx2,+fma,+avx", "+sse2,+fma"};
  Error err = {0};
  Target *t =
      width == AVX512 ? target_new(NULL, NULL, &err) : target_new("x86-64", features[width - AVX512], &err);
  assert_non_null(t);
  return t;
}

static void *aligned(int64_t n) {
  void *p = aligned_alloc(64, (size_t)(n / 64 + 1) * 64);
  memset(p, 0xff, (size_t)(n / 64 + 1) * 64);
  return p;
}

static void run(Problem *p, int width, int threads, const double *before) {
  GemmRig r;
  Error err = {0};
  Target *t = target(width);
  if (!rig_compile(&r, &p->spec, t, &err))
    fail_msg("%s", err.msg);
  void *scratch = aligned(r.scratch), *own[3];
  for (int i = 0; i < 3; i++)
    own[i] = aligned(r.thread_scratch);
  for (int64_t i = 0; i < p->size[2]; i++)
    put(p, 2, i, before[i]);
  void *matrix[MATRICES];
  for (int i = 0; i < MATRICES; i++)
    matrix[i] = body(p, i > 2 && p->own[i - 3] ? 2 : i);
  rig_run(&r, matrix, scratch, own, threads, 1);
  check_guards(p);
  for (int i = 0; i < 3; i++)
    free(own[i]);
  free(scratch);
  rig_free(&r);
  target_free(t);
}

static void check(Problem *p, const char *what, bool all_widths) {
  static unsigned seed = 1;
  allocate(p, seed++);
  size_t bytes = (size_t)p->size[2] * elem(p);
  double *before = malloc((size_t)p->size[2] * sizeof *before);
  void *first = malloc(bytes);
  for (int64_t i = 0; i < p->size[2]; i++)
    before[i] = get(p, 2, i);
  run(p, AVX512, 1, before);
  check_values(p, before, what);
  memcpy(first, body(p, 2), bytes);
  run(p, AVX512, 3, before);
  if (memcmp(first, body(p, 2), bytes))
    fail_msg("%s: other bits with 3 threads", what);
  for (int w = AVX2; all_widths && w <= BASE; w++) {
    run(p, w, 1, before);
    if (memcmp(first, body(p, 2), bytes))
      fail_msg("%s: other bits with shorter vectors", what);
  }
  free(first);
  free(before);
  release(p);
}

/* ---- problems ---- */

/* order: bit 0: A is [k][m], bit 1: B is [n][k] */
static Problem plain(DType d, int64_t m, int64_t n, int64_t k, int order, int64_t batch) {
  Problem p = {.spec = {.dtype = d}, .size = {batch * m * k, batch * k * n, batch * m * n}};
  int64_t am = order & 1 ? 1 : k, ak = order & 1 ? m : 1, bn = order & 2 ? k : 1, bk = order & 2 ? 1 : n;
  p.spec.batch = (GemmDims){{{batch, m * k, k * n, m * n, {0}}}, 1};
  p.spec.m = (GemmDims){{{m, am, 0, n, {0}}}, 1};
  p.spec.n = (GemmDims){{{n, 0, bn, 1, {0}}}, 1};
  p.spec.k = (GemmDims){{{k, ak, bk, 0, {0}}}, 1};
  return p;
}

static void orders_and_sizes(void **state) {
  (void)state;
  static const int sizes[][3] = {{1, 1, 1},     {1, 33, 17},   {3, 1, 65},    {17, 3, 33},
                                 {65, 17, 3},   {33, 65, 80},  {80, 48, 64},  {64, 80, 400},
                                 {9, 130, 769}, {300, 49, 31}, {257, 97, 385}};
  char what[96];
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int order = 0; order < 4; order++)
      for (int f64 = 0; f64 < 2; f64++) {
        const int *s = sizes[i];
        Problem p = plain(f64 ? DT_F64 : DT_F32, s[0], s[1], s[2], order, 1);
        snprintf(what, sizeof what, "%dx%dx%d order %d %s", s[0], s[1], s[2], order, f64 ? "f64" : "f32");
        check(&p, what, order == (int)i % 4);
      }
}

static void batches(void **state) {
  (void)state;
  static const int sizes[][4] = {{5, 17, 33, 9}, {40, 16, 16, 16}, {3, 130, 150, 70}, {2, 300, 200, 410}};
  char what[96];
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int order = 0; order < 4; order++) {
      const int *s = sizes[i];
      Problem p = plain(DT_F32, s[1], s[2], s[3], order, s[0]);
      p.spec.accumulate = order & 1;
      snprintf(what, sizeof what, "batch %d, %dx%dx%d order %d", s[0], s[1], s[2], s[3], order);
      check(&p, what, false);
    }
}

/* [b t c] x [c (h d)] -> [b h t d]: two dims of rows and two of columns. */
static void heads(void **state) {
  (void)state;
  enum { B = 3, T = 37, C = 70, H = 4, D = 24 };
  Problem p = {.spec = {.dtype = DT_F32}, .size = {B * T * C, C * H * D, B * H * T * D}};
  p.spec.m = (GemmDims){{{B, T * C, 0, H * T * D, {0}}, {T, C, 0, D, {0}}}, 2};
  p.spec.n = (GemmDims){{{H, 0, D, T * D, {0}}, {D, 0, 1, 1, {0}}}, 2};
  p.spec.k = (GemmDims){{{C, 1, H * D, 0, {0}}}, 1};
  check(&p, "heads", true);
}

/* [b h t d] x [h d c] -> [b t c]: two dims of k, of which the outer one is apart in A. */
static void joined_heads(void **state) {
  (void)state;
  enum { B = 2, T = 65, C = 100, H = 5, D = 100 };
  Problem p = {.spec = {.dtype = DT_F64}, .size = {B * H * T * D, H * D * C, B * T * C}};
  p.spec.m = (GemmDims){{{B, H * T * D, 0, T * C, {0}}, {T, D, 0, C, {0}}}, 2};
  p.spec.n = (GemmDims){{{C, 0, 1, 1, {0}}}, 1};
  p.spec.k = (GemmDims){{{H, T * D, D * C, 0, {0}}, {D, 1, C, 0, {0}}}, 2};
  check(&p, "joined heads", true);
}

/* Three dims of k in another order in each operand: dW of a transposed activation. */
static void scattered_k(void **state) {
  (void)state;
  enum { X = 3, Y = 7, Z = 30, M = 50, N = 70 };
  Problem p = {.spec = {.dtype = DT_F32, .accumulate = true}, .size = {X * Y * Z * M, X * Y * Z * N, M * N}};
  p.spec.m = (GemmDims){{{M, Y, 0, N, {0}}}, 1};
  p.spec.n = (GemmDims){{{N, 0, 1, 1, {0}}}, 1};
  p.spec.k = (GemmDims){{{X, Z * M * Y, N, 0, {0}}, {Y, 1, Z * X * N, 0, {0}}, {Z, M * Y, X * N, 0, {0}}}, 3};
  check(&p, "scattered k", true);
}

/* Neither operand is contiguous in any direction. */
static void strided(void **state) {
  (void)state;
  enum { M = 41, N = 53, K = 67 };
  Problem p = {.spec = {.dtype = DT_F32}, .size = {M * K * 6, N * K * 6, M * N * 2}};
  p.spec.m = (GemmDims){{{M, 2, 0, 2 * N, {0}}}, 1};
  p.spec.n = (GemmDims){{{N, 0, 3 * 2 * K, 1, {0}}}, 1};
  p.spec.k = (GemmDims){{{K, M * 6, 2, 0, {0}}}, 1};
  check(&p, "strided", false);
}

/* The result's innermost dim is in both operands: no dim of columns has stride 1. */
static void inner_batch(void **state) {
  (void)state;
  enum { B = 6, M = 13, N = 10, K = 40 };
  Problem p = {.spec = {.dtype = DT_F32}, .size = {B * M * K, B * K * N, M * N * B}};
  p.spec.batch = (GemmDims){{{B, 1, 1, 1, {0}}}, 1};
  p.spec.m = (GemmDims){{{M, K * B, 0, N * B, {0}}}, 1};
  p.spec.n = (GemmDims){{{N, 0, B, B, {0}}}, 1};
  p.spec.k = (GemmDims){{{K, B, N * B, 0, {0}}}, 1};
  check(&p, "inner batch", false);
}

/* A bias and a residual, which may be the result itself when k is short; columns and rows to spare. */
static void addends(void **state) {
  (void)state;
  static const int sizes[][3] = {{70, 100, 40}, {300, 65, 800}, {5, 20, 3}, {260, 200, 384}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int own = 0; own < 2; own++)
      for (int rows = 0; rows < 2; rows++) {
        int64_t m = sizes[i][0], n = sizes[i][1];
        Problem p = plain(i == 1 ? DT_F64 : DT_F32, m, n, sizes[i][2], (int)i, 1);
        p.spec.addends = 2;
        p.spec.m.dim[0].d[0] = rows; /* by row or by column */
        p.spec.n.dim[0].d[0] = !rows;
        p.size[3] = rows ? m : n;
        p.spec.m.dim[0].d[1] = n;
        p.spec.n.dim[0].d[1] = 1;
        p.size[4] = m * n;
        p.own[1] = own && sizes[i][2] <= gemm_in_place_k(p.spec.dtype);
        check(&p, "addends", true);
      }
}

/* So long a k that the shared operand is packed in parts. */
static void long_k(void **state) {
  (void)state;
  Problem p = plain(DT_F32, 18, 16, 70001, 2, 1);
  check(&p, "long k", false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(orders_and_sizes), cmocka_unit_test(batches),     cmocka_unit_test(heads),
      cmocka_unit_test(joined_heads),     cmocka_unit_test(scattered_k), cmocka_unit_test(strided),
      cmocka_unit_test(long_k),           cmocka_unit_test(inner_batch), cmocka_unit_test(addends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
