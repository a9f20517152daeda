/* llvm.h: the layer between emitters and the LLVM C API (inside codegen).
 *
 * A Target says what to compile for and is shared by all threads; a Gen is one module being built, with its
 * own context and target machine, used by one thread. */
#ifndef DLC_CODEGEN_LLVM_H
#define DLC_CODEGEN_LLVM_H

#include <llvm-c/Core.h>
#include <llvm-c/Error.h>
#include <llvm-c/TargetMachine.h>

#include "codegen/codegen.h"

void llvm_init(void); /* registers this machine's target with LLVM, once */

typedef struct Target Target;

/* NULL cpu, features: DLC_CPU and DLC_CPU_FEATURES from the environment, else this machine's. */
Target *target_new(const char *cpu, const char *features, Error *err);
void target_free(Target *t);
const char *
target_text(const Target *t); /* triple, cpu, features and LLVM version: part of every cache key */

typedef struct {
  const Target *target;
  LLVMContextRef ctx;
  LLVMModuleRef mod;
  LLVMBuilderRef b;
  LLVMTargetMachineRef machine;
  int lanes; /* f32 lanes of the widest vector register: 16, 8 or 4 */
} Gen;

Gen *gen_new(const Target *target, const char *name, Error *err);
void gen_free(Gen *g);

void gen_function_attributes(Gen *g,
                             LLVMValueRef fn); /* target-cpu, target-features, vector width, nounwind */
void gen_noalias(Gen *g, LLVMValueRef fn, unsigned param);
/* Calls an intrinsic overloaded by types[n_types]. */
LLVMValueRef gen_intrinsic(Gen *g, const char *name, LLVMTypeRef *types, unsigned n_types, LLVMValueRef *args,
                           unsigned n);

/* for (i = lo; i < hi; i += step) { ... }: the builder is in the body after begin and behind the loop after
 * end. */
typedef struct {
  LLVMValueRef i; /* i64 */
  LLVMBasicBlockRef head, after;
  int64_t step;
} GenLoop;
void gen_loop_begin(Gen *g, LLVMValueRef lo, LLVMValueRef hi, int64_t step, GenLoop *l);
void gen_loop_end(Gen *g, GenLoop *l);
LLVMBasicBlockRef gen_block(Gen *g, const char *name); /* appended to the function the builder is in */

bool gen_optimize(Gen *g, const char *passes, Error *err);
bool gen_object(Gen *g, Arena *arena, Object *out, Error *err); /* a relocatable object, bytes in the arena */
bool llvm_ok(LLVMErrorRef e, const char *what, Error *err);     /* takes e; true when it is none */

/* Math on scalars or vectors of f32 or f64 of any width, emitted at the builder; the same formula wherever it
 * is used. */
LLVMValueRef gen_exp(Gen *g, LLVMValueRef x);
LLVMValueRef gen_log(Gen *g, LLVMValueRef x);
LLVMValueRef gen_log1p(Gen *g, LLVMValueRef x);
LLVMValueRef gen_tanh(Gen *g, LLVMValueRef x);
LLVMValueRef gen_sigmoid(Gen *g, LLVMValueRef x);
LLVMValueRef gen_erf(Gen *g, LLVMValueRef x);
LLVMValueRef gen_sin(Gen *g, LLVMValueRef x);
LLVMValueRef gen_cos(Gen *g, LLVMValueRef x);
LLVMValueRef gen_sqrt(Gen *g, LLVMValueRef x);
LLVMValueRef gen_rsqrt(Gen *g, LLVMValueRef x);
LLVMValueRef gen_floor(Gen *g, LLVMValueRef x);
LLVMValueRef gen_pow(Gen *g, LLVMValueRef x, LLVMValueRef y);

#endif
