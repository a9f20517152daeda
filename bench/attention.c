/* attention.c: speed of generated attention, causal and not, forward and backward; one thread.
 * Usage: bench_attention [seconds a shape, default 0.2] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codegen/attention.h"

typedef struct {
  Gen *g;
  bool causal;
} Causal;

static LLVMValueRef wide(Gen *g, LLVMValueRef v) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(g->ctx), t = LLVMVectorType(LLVMTypeOf(v), ATTENTION_LANES);
  LLVMValueRef one = LLVMBuildInsertElement(g->b, LLVMGetUndef(t), v, LLVMConstInt(i32, 0, 0), "");
  return LLVMBuildShuffleVector(g->b, one, LLVMGetUndef(t),
                                LLVMConstNull(LLVMVectorType(i32, ATTENTION_LANES)), "");
}

/* raw / 8 where key <= row. */
static void score(void *ctx, const AttentionPoint *at, LLVMValueRef raw, LLVMValueRef *s,
                  LLVMValueRef *slope) {
  Causal *c = ctx;
  Gen *g = c->g;
  LLVMTypeRef f32 = LLVMFloatTypeInContext(g->ctx), i64 = LLVMInt64TypeInContext(g->ctx);
  LLVMValueRef scale = wide(g, LLVMConstReal(f32, 0.125)), lane[ATTENTION_LANES];
  *s = LLVMBuildFMul(g->b, raw, scale, "");
  if (slope)
    *slope = scale;
  if (!c->causal)
    return;
  for (int i = 0; i < ATTENTION_LANES; i++)
    lane[i] = LLVMConstInt(i64, (unsigned long long)i, false);
  LLVMValueRef key = LLVMBuildAdd(g->b, wide(g, at->key), LLVMConstVector(lane, ATTENTION_LANES), "");
  LLVMValueRef seen = LLVMBuildICmp(g->b, LLVMIntSLE, key, wide(g, at->row), "");
  *s = LLVMBuildSelect(g->b, seen, *s, wide(g, LLVMConstReal(f32, -1.0 / 0.0)), "");
  if (slope)
    *slope = LLVMBuildSelect(g->b, seen, *slope, LLVMConstNull(LLVMTypeOf(*slope)), "");
}

static LLVMValueRef live(void *ctx, const LLVMValueRef row[2], const LLVMValueRef key[2]) {
  Causal *c = ctx;
  return c->causal ? LLVMBuildICmp(c->g->b, LLVMIntSLE, key[0], row[1], "") : NULL;
}

static LLVMValueRef pointer(Gen *g, LLVMValueRef fn, int i) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0);
  LLVMValueRef index = LLVMConstInt(LLVMInt64TypeInContext(g->ctx), (unsigned long long)i, false);
  return LLVMBuildLoad2(g->b, ptr, LLVMBuildGEP2(g->b, ptr, LLVMGetParam(fn, 0), &index, 1, ""), "");
}

/* args: q k v o lse do dq dk dv thread-scratch */
static bool emit(Gen *g, const AttentionSpec *s, bool backward, bool causal, Arena *arena, Error *err) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0), i64 = LLVMInt64TypeInContext(g->ctx);
  LLVMTypeRef type =
      LLVMFunctionType(LLVMVoidTypeInContext(g->ctx), (LLVMTypeRef[]){ptr, i64, i64, ptr}, 4, 0);
  LLVMValueRef fn = LLVMAddFunction(g->mod, "attention", type);
  gen_function_attributes(g, fn);
  LLVMPositionBuilderAtEnd(g->b, LLVMAppendBasicBlockInContext(g->ctx, fn, "entry"));
  AttentionArgs a = {pointer(g, fn, 0), pointer(g, fn, 1), pointer(g, fn, 2),   pointer(g, fn, 3),
                     pointer(g, fn, 4), pointer(g, fn, 5), pointer(g, fn, 6),   pointer(g, fn, 7),
                     pointer(g, fn, 8), pointer(g, fn, 9), LLVMGetParam(fn, 1), LLVMGetParam(fn, 2)};
  Causal c = {g, causal};
  AttentionScore call = {&c, score, live};
  bool ok = backward ? attention_backward(g, s, &call, &a, arena, err)
                     : attention_forward(g, s, &call, &a, arena, err);
  LLVMBuildRetVoid(g->b);
  return ok;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(int64_t n) {
  size_t bytes = (size_t)(n / 64 + 1) * 64;
  float *p = aligned_alloc(64, bytes);
  for (size_t i = 0; i < bytes / 4; i++)
    p[i] = (float)(i % 13) / 13 - 0.5f;
  return p;
}

static double measure(const Target *target, int64_t heads, int64_t t, int64_t d, bool backward, bool causal,
                      double seconds, Error *err) {
  Arena arena = {0};
  Object object;
  AttentionSpec s = {.dtype = DT_F32};
  s.outer = (AttentionDims){{{heads, t * d, t * d, t * d, t * d, t, t * d}}, 1};
  s.row = (AttentionDim){t, d, 0, 0, d, 1, d};
  s.key = (AttentionDim){t, 0, d, d, 0, 0, 0};
  s.head = (AttentionDim){d, 1, 1, 0, 0, 0, 0};
  s.value = (AttentionDim){d, 0, 0, 1, 1, 0, 1};
  Gen *g = gen_new(target, "attention", err);
  if (!g || !emit(g, &s, backward, causal, &arena, err) ||
      !gen_optimize(
          g, "verify,function(mem2reg,instcombine<no-verify-fixpoint>,early-cse<memssa>,simplifycfg,dce)",
          err) ||
      !gen_object(g, &arena, &object, err))
    return 0;
  CodeImage *image = codegen_load(&object, 1, err);
  KernelFn fn = codegen_lookup(image, "attention");
  void *arg[10];
  for (int i = 0; i < 9; i++)
    arg[i] = memory(heads * t * d * 4);
  arg[9] = memory(attention_thread_scratch(&s, backward));
  double best = 1e9, begin = now();
  for (int n = 0; n < 3 || now() - begin < seconds; n++) {
    double t0 = now();
    fn(arg, 0, attention_tasks(&s, backward), NULL);
    double dt = now() - t0;
    best = dt < best ? dt : best;
  }
  for (int i = 0; i < 10; i++)
    free(arg[i]);
  codegen_unload(image);
  gen_free(g);
  arena_free(&arena);
  return best;
}

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 0.2;
  static const int64_t shape[][3] = {
      {48, 64, 64}, {12, 256, 64}, {64, 128, 32}, {4, 1024, 64}, {8, 512, 128}};
  Error err = {0};
  Target *target = target_new(NULL, NULL, &err);
  if (!target)
    return 1;
  printf("%-22s %-9s %10s %10s\n", "heads x time x size", "", "ms", "GFLOP/s");
  for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
    for (int mode = 0; mode < 4; mode++) {
      int64_t h = shape[i][0], t = shape[i][1], d = shape[i][2];
      bool backward = mode & 2, causal = mode & 1;
      double dt = measure(target, h, t, d, backward, causal, seconds, &err);
      double flops = (backward ? 10.0 : 4.0) * (double)h * (double)t * (double)t * (double)d;
      char size[64];
      snprintf(size, sizeof size, "%ld x %ld x %ld", (long)h, (long)t, (long)d);
      printf("%-22s %-9s %10.3f %10.1f%s\n", size, backward ? "backward" : "forward", 1e3 * dt,
             1e-9 * flops / dt * (causal ? 0.5 : 1), causal ? " (causal, half the work counted)" : "");
    }
  target_free(target);
  return 0;
}
