/* llvm.h: the layer between emitters and the LLVM C API (inside codegen). Owned by the gemm side; what the region emitter calls: */
#ifndef DLC_CODEGEN_LLVM_H
#define DLC_CODEGEN_LLVM_H

#include <llvm-c/Core.h>

typedef struct Gen Gen;

/* Math on vectors of f32 or f64 of any width, emitted at the builder; the same formula wherever it is used. */
LLVMValueRef gen_exp(Gen *g, LLVMValueRef x);
LLVMValueRef gen_log(Gen *g, LLVMValueRef x);
LLVMValueRef gen_log1p(Gen *g, LLVMValueRef x);
LLVMValueRef gen_tanh(Gen *g, LLVMValueRef x);
LLVMValueRef gen_sigmoid(Gen *g, LLVMValueRef x);
LLVMValueRef gen_erf(Gen *g, LLVMValueRef x);
LLVMValueRef gen_sin(Gen *g, LLVMValueRef x);
LLVMValueRef gen_cos(Gen *g, LLVMValueRef x);
LLVMValueRef gen_rsqrt(Gen *g, LLVMValueRef x);
LLVMValueRef gen_pow(Gen *g, LLVMValueRef x, LLVMValueRef y);

void gen_function_attributes(Gen *g, LLVMValueRef fn); /* target-cpu, target-features, vector width, nounwind */

#endif
