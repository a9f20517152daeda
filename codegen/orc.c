/* orc.c: loads compiled objects into the process. */
#include "codegen/llvm.h"

#include <llvm-c/LLJIT.h>
#include <llvm-c/Orc.h>

#include <stdlib.h>
#include <string.h>

struct CodeImage {
  LLVMOrcLLJITRef jit;
};

static void *fail(CodeImage *image) {
  codegen_unload(image);
  return NULL;
}

/* LLVM may call memcpy, memset, fmaf and the like. */
static bool add_process_symbols(LLVMOrcLLJITRef jit, Error *err) {
  LLVMOrcDefinitionGeneratorRef process = NULL;
  LLVMErrorRef e = LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(
      &process, LLVMOrcLLJITGetGlobalPrefix(jit), NULL, NULL);
  if (!llvm_ok(e, "symbols of this process", err))
    return false;
  LLVMOrcJITDylibAddGenerator(LLVMOrcLLJITGetMainJITDylib(jit), process);
  return true;
}

/* Equal regions give equal objects, which may be loaded once only: their symbols are the same. */
static bool seen_before(const Object *object, uint32_t i) {
  for (uint32_t k = 0; k < i; k++)
    if (object[k].n == object[i].n && !memcmp(object[k].bytes, object[i].bytes, object[i].n))
      return true;
  return false;
}

CodeImage *codegen_load(const Object *object, uint32_t n, Error *err) {
  llvm_init();
  CodeImage *image = calloc(1, sizeof *image);
  if (!image) {
    error_set(err, ERR_RUN, "out of memory");
    return NULL;
  }
  if (!llvm_ok(LLVMOrcCreateLLJIT(&image->jit, NULL), "loader of compiled code", err) ||
      !add_process_symbols(image->jit, err))
    return fail(image);
  for (uint32_t i = 0; i < n; i++) {
    if (seen_before(object, i))
      continue;
    LLVMMemoryBufferRef buf =
        LLVMCreateMemoryBufferWithMemoryRangeCopy(object[i].bytes, object[i].n, "kernel");
    LLVMErrorRef e = LLVMOrcLLJITAddObjectFile(image->jit, LLVMOrcLLJITGetMainJITDylib(image->jit), buf);
    if (!llvm_ok(e, "compiled object", err))
      return fail(image);
  }
  return image;
}

KernelFn codegen_lookup(CodeImage *image, const char *symbol) {
  LLVMOrcExecutorAddress address = 0;
  LLVMErrorRef e = LLVMOrcLLJITLookup(image->jit, &address, symbol);
  if (e) {
    LLVMConsumeError(e);
    return NULL;
  }
  KernelFn fn;
  uintptr_t word = (uintptr_t)address;
  memcpy(&fn, &word, sizeof fn);
  return fn;
}

void codegen_unload(CodeImage *image) {
  if (!image)
    return;
  if (image->jit) {
    LLVMErrorRef e = LLVMOrcDisposeLLJIT(image->jit);
    if (e)
      LLVMConsumeError(e);
  }
  free(image);
}
