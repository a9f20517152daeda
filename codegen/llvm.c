/* llvm.c: target description, modules, passes, object files. */
#include "codegen/llvm.h"

#include <llvm-c/Target.h>
#include <llvm-c/Transforms/PassBuilder.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Target {
  LLVMTargetRef ref;
  Arena arena;
  const char *triple, *cpu, *features, *text;
  int lanes;
};

bool llvm_ok(LLVMErrorRef e, const char *what, Error *err) {
  if (!e)
    return true;
  char *msg = LLVMGetErrorMessage(e);
  error_set(err, ERR_RUN, "%s: %s", what, msg);
  LLVMDisposeErrorMessage(msg);
  return false;
}

/* ---- target ---- */

static void init_native(void) {
  LLVMInitializeNativeTarget();
  LLVMInitializeNativeAsmPrinter();
}

void llvm_init(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT; /* LLVM's own table of targets is global */
  pthread_once(&once, init_native);
}

static const char *pick(Arena *a, const char *given, const char *env, char *(*host)(void)) {
  const char *s = given ? given : getenv(env);
  if (s && *s)
    return arena_strdup(a, s);
  char *h = host();
  const char *r = arena_strdup(a, h);
  LLVMDisposeMessage(h);
  return r;
}

/* "+name" is in the comma-separated list, and no later "-name". */
static bool has_feature(const char *features, const char *name) {
  size_t n = strlen(name);
  bool on = false;
  for (const char *p = features; *p;) {
    size_t len = strcspn(p, ",");
    if (len == n + 1 && !memcmp(p + 1, name, n))
      on = *p == '+';
    p += len;
    p += *p == ',';
  }
  return on;
}

static void describe(Target *t) {
  unsigned major, minor, patch;
  LLVMGetVersion(&major, &minor, &patch);
  t->lanes = has_feature(t->features, "avx512f") ? 16 : has_feature(t->features, "avx2") ? 8 : 4;
  t->text =
      arena_printf(&t->arena, "%s %s %s llvm %u.%u.%u", t->triple, t->cpu, t->features, major, minor, patch);
}

Target *target_new(const char *cpu, const char *features, Error *err) {
  llvm_init();
  Target *t = calloc(1, sizeof *t);
  if (!t) {
    error_set(err, ERR_RUN, "out of memory");
    return NULL;
  }
  char *msg = NULL, *triple = LLVMGetDefaultTargetTriple();
  t->triple = arena_strdup(&t->arena, triple);
  LLVMDisposeMessage(triple);
  t->cpu = pick(&t->arena, cpu, "DLC_CPU", LLVMGetHostCPUName);
  t->features = pick(&t->arena, features, "DLC_CPU_FEATURES", LLVMGetHostCPUFeatures);
  describe(t);
  if (LLVMGetTargetFromTriple(t->triple, &t->ref, &msg)) {
    error_set(err, ERR_RUN, "LLVM has no code generator for %s: %s", t->triple, msg);
    LLVMDisposeMessage(msg);
    target_free(t);
    return NULL;
  }
  return t;
}

void target_free(Target *t) {
  if (!t)
    return;
  arena_free(&t->arena);
  free(t);
}

const char *target_text(const Target *t) {
  return t->text;
}

/* ---- module ---- */

Gen *gen_new(const Target *t, const char *name, Error *err) {
  Gen *g = calloc(1, sizeof *g);
  if (!g) {
    error_set(err, ERR_RUN, "out of memory");
    return NULL;
  }
  g->target = t;
  g->lanes = t->lanes;
  g->machine = LLVMCreateTargetMachine(t->ref, t->triple, t->cpu, t->features, LLVMCodeGenLevelDefault,
                                       LLVMRelocPIC, LLVMCodeModelDefault);
  if (!g->machine) {
    error_set(err, ERR_RUN, "LLVM cannot generate code for %s", t->text);
    free(g);
    return NULL;
  }
  g->ctx = LLVMContextCreate();
  g->mod = LLVMModuleCreateWithNameInContext(name, g->ctx);
  g->b = LLVMCreateBuilderInContext(g->ctx);
  LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(g->machine);
  LLVMSetModuleDataLayout(g->mod, layout);
  LLVMDisposeTargetData(layout);
  LLVMSetTarget(g->mod, t->triple);
  return g;
}

void gen_free(Gen *g) {
  if (!g)
    return;
  LLVMDisposeBuilder(g->b);
  LLVMDisposeModule(g->mod);
  LLVMContextDispose(g->ctx);
  LLVMDisposeTargetMachine(g->machine);
  free(g);
}

static void string_attribute(Gen *g, LLVMValueRef fn, const char *key, const char *value) {
  LLVMAddAttributeAtIndex(
      fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
      LLVMCreateStringAttribute(g->ctx, key, (unsigned)strlen(key), value, (unsigned)strlen(value)));
}

static void flag_attribute(Gen *g, LLVMValueRef fn, LLVMAttributeIndex index, const char *name) {
  unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
  LLVMAddAttributeAtIndex(fn, index, LLVMCreateEnumAttribute(g->ctx, kind, 0));
}

void gen_function_attributes(Gen *g, LLVMValueRef fn) {
  char width[16];
  snprintf(width, sizeof width, "%d", g->lanes * 32);
  string_attribute(g, fn, "target-cpu", g->target->cpu);
  string_attribute(g, fn, "target-features", g->target->features);
  /* Without these some CPU models split 512-bit vectors. */
  string_attribute(g, fn, "min-legal-vector-width", width);
  string_attribute(g, fn, "prefer-vector-width", width);
  flag_attribute(g, fn, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, "nounwind");
}

void gen_noalias(Gen *g, LLVMValueRef fn, unsigned param) {
  flag_attribute(g, fn, (LLVMAttributeIndex)param + 1, "noalias");
}

LLVMValueRef gen_intrinsic(Gen *g, const char *name, LLVMTypeRef *types, unsigned n_types, LLVMValueRef *args,
                           unsigned n) {
  unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
  LLVMValueRef fn = LLVMGetIntrinsicDeclaration(g->mod, id, types, n_types);
  return LLVMBuildCall2(g->b, LLVMIntrinsicGetType(g->ctx, id, types, n_types), fn, args, n, "");
}

/* ---- control flow ---- */

LLVMBasicBlockRef gen_block(Gen *g, const char *name) {
  return LLVMAppendBasicBlockInContext(g->ctx, LLVMGetBasicBlockParent(LLVMGetInsertBlock(g->b)), name);
}

void gen_loop_begin(Gen *g, LLVMValueRef lo, LLVMValueRef hi, int64_t step, GenLoop *l) {
  LLVMBasicBlockRef before = LLVMGetInsertBlock(g->b), body = gen_block(g, "body");
  *l = (GenLoop){.head = gen_block(g, "head"), .after = gen_block(g, "after"), .step = step};
  LLVMBuildBr(g->b, l->head);
  LLVMPositionBuilderAtEnd(g->b, l->head);
  l->i = LLVMBuildPhi(g->b, LLVMInt64TypeInContext(g->ctx), "i");
  LLVMAddIncoming(l->i, &lo, &before, 1);
  LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, l->i, hi, ""), body, l->after);
  LLVMPositionBuilderAtEnd(g->b, body);
}

void gen_loop_end(Gen *g, GenLoop *l) {
  LLVMValueRef step = LLVMConstInt(LLVMInt64TypeInContext(g->ctx), (unsigned long long)l->step, true);
  LLVMValueRef next = LLVMBuildAdd(g->b, l->i, step, "");
  LLVMBasicBlockRef latch = LLVMGetInsertBlock(g->b);
  LLVMAddIncoming(l->i, &next, &latch, 1);
  LLVMBuildBr(g->b, l->head);
  LLVMPositionBuilderAtEnd(g->b, l->after);
}

/* ---- output ---- */

bool gen_optimize(Gen *g, const char *passes, Error *err) {
  LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
  LLVMErrorRef e = LLVMRunPasses(g->mod, passes, g->machine, options);
  LLVMDisposePassBuilderOptions(options);
  return llvm_ok(e, "LLVM passes", err);
}

bool gen_object(Gen *g, Arena *arena, Object *out, Error *err) {
  LLVMMemoryBufferRef buf = NULL;
  char *msg = NULL;
  if (LLVMTargetMachineEmitToMemoryBuffer(g->machine, g->mod, LLVMObjectFile, &msg, &buf)) {
    error_set(err, ERR_RUN, "code generation: %s", msg);
    LLVMDisposeMessage(msg);
    return false;
  }
  size_t n = LLVMGetBufferSize(buf);
  void *bytes = arena_alloc(arena, n);
  memcpy(bytes, LLVMGetBufferStart(buf), n);
  *out = (Object){bytes, n};
  LLVMDisposeMemoryBuffer(buf);
  return true;
}
