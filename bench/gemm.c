/* gemm.c: speed of generated matrix products against this machine's multiply-add peak.
 * Usage: bench_gemm [seconds a shape, default 0.2] */
#include <math.h>
#include <time.h>

#include "tests/codegen/gemm_rig.h"

typedef struct {
  const char *name;
  int64_t m, n, k, batch;
  int order; /* bit 0: A is [k][m], bit 1: B is [n][k] */
} BenchShape;

static const BenchShape shapes[] = {
    {"qkv fwd", 256, 2304, 768, 1, 2},  {"qkv dX", 256, 768, 2304, 1, 0},
    {"qkv dW", 2304, 768, 256, 1, 1},   {"fc fwd", 256, 3072, 768, 1, 2},
    {"fc dX", 256, 768, 3072, 1, 0},    {"fc dW", 3072, 768, 256, 1, 1},
    {"proj fwd", 256, 768, 3072, 1, 2}, {"proj dX", 256, 3072, 768, 1, 0},
    {"proj dW", 768, 3072, 256, 1, 1},  {"head fwd", 256, 50257, 768, 1, 2},
    {"head dX", 256, 768, 50257, 1, 0}, {"head dW", 50257, 768, 256, 1, 1},
    {"tiny fwd", 2048, 512, 128, 1, 2}, {"tiny dX", 2048, 128, 512, 1, 0},
    {"tiny dW", 512, 128, 2048, 1, 1},  {"tiny fwd2", 2048, 128, 512, 1, 2},
    {"square", 1024, 1024, 1024, 1, 0}, {"vector NN", 1, 3072, 768, 1, 0},
    {"vector NT", 1, 3072, 768, 1, 2},  {"scores", 64, 64, 16, 256, 2},
    {"values", 64, 16, 64, 256, 0},     {"scores 64", 256, 256, 64, 48, 2},
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(int64_t n) {
  size_t bytes = (size_t)(n / 64 + 1) * 64;
  void *p = aligned_alloc(64, bytes);
  float *f = p;
  for (size_t i = 0; i < bytes / 4; i++)
    f[i] = (float)(i % 7) - 3;
  return p;
}

static double median(double *t, int n) {
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && t[j] < t[j - 1]; j--) {
      double x = t[j];
      t[j] = t[j - 1];
      t[j - 1] = x;
    }
  return t[n / 2];
}

static double measure(const GemmRig *r, const BenchShape *s, void *const mem[6], void *const *own,
                      int threads, double seconds) {
  enum { ROUNDS = 7 };
  double t[ROUNDS], begin = now();
  rig_run(r, mem, mem[5], own, threads, 1);
  begin = now();
  rig_run(r, mem, mem[5], own, threads, 2);
  int times = (int)(2 * seconds / ROUNDS / (now() - begin)) + 1;
  for (int i = 0; i < ROUNDS; i++) {
    begin = now();
    rig_run(r, mem, mem[5], own, threads, times);
    t[i] = (now() - begin) / times;
  }
  return 2e-9 * (double)s->batch * (double)s->m * (double)s->n * (double)s->k / median(t, ROUNDS);
}

static GemmSpec spec_of(const BenchShape *s) {
  GemmSpec g = {.dtype = DT_F32};
  int64_t am = s->order & 1 ? 1 : s->k, ak = s->order & 1 ? s->m : 1, bn = s->order & 2 ? s->k : 1;
  g.batch = (GemmDims){{{s->batch, s->m * s->k, s->k * s->n, s->m * s->n, {0}}}, 1};
  g.m = (GemmDims){{{s->m, am, 0, s->n, {0}}}, 1};
  g.n = (GemmDims){{{s->n, 0, bn, 1, {0}}}, 1};
  g.k = (GemmDims){{{s->k, ak, s->order & 2 ? 1 : s->n, 0, {0}}}, 1};
  return g;
}

/* A tile of 8 x 3 vectors over operands that stay in the first-level cache: what the multiply-add units give
 * here. */
static double peak(const Target *target, double seconds, int threads) {
  BenchShape s = {"peak", 8, 48, 64, 2000, 0};
  GemmRig r;
  Error err = {0};
  GemmSpec g = spec_of(&s);
  g.batch.dim[0] = (GemmDim){s.batch, 0, 0, 0, {0}};
  if (!rig_compile(&r, &g, target, &err))
    return 0;
  void *own[2] = {memory(r.thread_scratch), memory(r.thread_scratch)};
  void *mem[6] = {memory(s.m * s.k * 4), memory(s.k * s.n * 4), memory(s.m * s.n * 4), NULL, NULL,
                  memory(r.scratch)};
  double v = measure(&r, &s, mem, own, threads, seconds);
  rig_free(&r);
  return v;
}

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 0.2, sum = 0;
  Error err = {0};
  Target *target = target_new(NULL, NULL, &err);
  if (!target)
    return 1;
  double top = peak(target, seconds, 1);
  printf("hot tile, 1 thread: %.0f GFLOP/s\n%-10s %-20s %8s %8s  of it, 2 threads\n", top, "", "", "1", "2");
  int n = sizeof shapes / sizeof *shapes;
  for (int i = 0; i < n; i++) {
    const BenchShape *s = &shapes[i];
    GemmSpec g = spec_of(s);
    GemmRig r;
    char size[64];
    if (!rig_compile(&r, &g, target, &err)) {
      fprintf(stderr, "%s\n", err.msg);
      return 1;
    }
    void *own[2] = {memory(r.thread_scratch), memory(r.thread_scratch)};
    void *mem[6] = {memory(s->batch * s->m * s->k * 4),
                    memory(s->batch * s->k * s->n * 4),
                    memory(s->batch * s->m * s->n * 4),
                    NULL,
                    NULL,
                    memory(r.scratch)};
    double one = measure(&r, s, mem, own, 1, seconds), two = measure(&r, s, mem, own, 2, seconds);
    snprintf(size, sizeof size, "%ldx%ldx%ldx%ld", (long)s->batch, (long)s->m, (long)s->n, (long)s->k);
    printf("%-10s %-20s %8.1f %8.1f  %.2f\n", s->name, size, one, two, two / (2 * top));
    sum += log(two / (2 * top));
    for (int j = 0; j < 6; j++)
      free(mem[j]);
    for (int j = 0; j < 2; j++)
      free(own[j]);
    rig_free(&r);
  }
  printf("geometric mean %.2f\n", exp(sum / n));
  target_free(target);
  return 0;
}
