/* gemm_rig.h: one matrix product compiled and run by itself: for its tests and its benchmark. */
#ifndef GEMM_RIG_H
#define GEMM_RIG_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/gemm.h"

enum { RIG_PHASES = 128 };

typedef struct {
  Arena arena;
  CodeImage *image;
  KernelFn fn[RIG_PHASES];
  int64_t tasks[RIG_PHASES], scratch, thread_scratch;
  int phases;
} GemmRig;

static inline LLVMValueRef rig_argument(Gen *g, LLVMValueRef fn, int i) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0);
  LLVMValueRef index = LLVMConstInt(LLVMInt64TypeInContext(g->ctx), (unsigned long long)i, false);
  LLVMValueRef at = LLVMBuildGEP2(g->b, ptr, LLVMGetParam(fn, 0), &index, 1, "");
  return LLVMBuildLoad2(g->b, ptr, at, "");
}

/* args: a, b, c, d0, d1, thread scratch */
static inline void rig_phase(Gen *g, GemmPlan *p, int phase) {
  char name[32];
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0), i64 = LLVMInt64TypeInContext(g->ctx);
  LLVMTypeRef type =
      LLVMFunctionType(LLVMVoidTypeInContext(g->ctx), (LLVMTypeRef[]){ptr, i64, i64, ptr}, 4, 0);
  snprintf(name, sizeof name, "gemm_p%d", phase);
  LLVMValueRef fn = LLVMAddFunction(g->mod, name, type);
  gen_function_attributes(g, fn);
  LLVMPositionBuilderAtEnd(g->b, LLVMAppendBasicBlockInContext(g->ctx, fn, "entry"));
  GemmArgs args = {.a = rig_argument(g, fn, 0),
                   .b = rig_argument(g, fn, 1),
                   .c = rig_argument(g, fn, 2),
                   .d = {rig_argument(g, fn, 3), rig_argument(g, fn, 4)},
                   .thread_scratch = rig_argument(g, fn, 5),
                   .lo = LLVMGetParam(fn, 1),
                   .hi = LLVMGetParam(fn, 2),
                   .scratch = LLVMGetParam(fn, 3)};
  gemm_emit(g, p, phase, &args);
  LLVMBuildRetVoid(g->b);
}

static inline bool rig_compile(GemmRig *r, const GemmSpec *spec, const Target *target, Error *err) {
  *r = (GemmRig){0};
  Object object;
  Gen *g = gen_new(target, "gemm", err);
  if (!g)
    return false;
  GemmPlan *p = gemm_plan(spec, g->lanes, &r->arena, err);
  r->phases = p ? gemm_phases(p) : 0;
  for (int i = 0; i < r->phases; i++) {
    rig_phase(g, p, i);
    r->tasks[i] = gemm_tasks(p, i);
  }
  bool ok =
      p &&
      gen_optimize(g, "verify,function(mem2reg,instcombine<no-verify-fixpoint>,early-cse,simplifycfg,dce)",
                   err) &&
      gen_object(g, &r->arena, &object, err);
  if (ok) {
    r->scratch = gemm_scratch(p);
    r->thread_scratch = gemm_thread_scratch(p);
    r->image = codegen_load(&object, 1, err);
  }
  gen_free(g);
  for (int i = 0; r->image && i < r->phases; i++) {
    char name[32];
    snprintf(name, sizeof name, "gemm_p%d", i);
    r->fn[i] = codegen_lookup(r->image, name);
  }
  return r->image != NULL;
}

static inline void rig_free(GemmRig *r) {
  codegen_unload(r->image);
  arena_free(&r->arena);
}

typedef struct {
  const GemmRig *r;
  void *arg[6], *scratch;
  int threads, times;
  atomic_long *next;    /* per phase: the next task of all times together */
  atomic_long *arrived; /* threads at barriers so far */
} RigThread;

/* The n-th barrier: spins, so that benchmarks see no sleep. */
static inline void rig_barrier(RigThread *t, long n) {
  atomic_fetch_add(t->arrived, 1);
  while (atomic_load(t->arrived) < n * t->threads)
    sched_yield();
}

static inline void *rig_work(void *ctx) {
  RigThread *t = ctx;
  for (int time = 0; time < t->times; time++)
    for (int i = 0; i < t->r->phases; i++) {
      long task, first = time * (t->r->tasks[i] + t->threads);
      while ((task = atomic_fetch_add(&t->next[i], 1) - first) < t->r->tasks[i])
        t->r->fn[i](t->arg, task, task + 1, t->scratch);
      rig_barrier(t, (long)time * t->r->phases + i + 1);
    }
  return NULL;
}

/* Runs it `times` times; scratch: r->scratch bytes, thread: r->thread_scratch bytes for each thread. */
static inline void rig_run(const GemmRig *r, void *const matrix[5], void *scratch, void *const *thread,
                           int threads, int times) {
  pthread_t id[8];
  RigThread t[8];
  atomic_long next[RIG_PHASES], arrived;
  atomic_init(&arrived, 0);
  for (int i = 0; i < r->phases; i++)
    atomic_init(&next[i], 0);
  for (int i = 0; i < threads; i++) {
    t[i] = (RigThread){r,       {matrix[0], matrix[1], matrix[2], matrix[3], matrix[4], thread[i]},
                       scratch, threads,
                       times,   next,
                       &arrived};
    if (i)
      pthread_create(&id[i], NULL, rig_work, &t[i]);
  }
  rig_work(&t[0]);
  for (int i = 1; i < threads; i++)
    pthread_join(id[i], NULL);
}

#endif
