/* region_phase.c: one phase = one function with the kernel ABI. */
#include "codegen/region.h"

#include <stdio.h>

static LLVMValueRef arg_pointer(Emit *e, LLVMValueRef args, int64_t i) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(e->ctx, 0);
  LLVMValueRef at_i = i64c(e, i);
  return LLVMBuildLoad2(e->b, ptr, LLVMBuildGEP2(e->b, ptr, args, &at_i, 1, ""), "");
}

void phase_begin(Emit *e, RegionPlan *plan, LLVMValueRef *lo, LLVMValueRef *hi) {
  char name[128];
  snprintf(name, sizeof name, "%s_p%u", plan->symbol, plan->n_phases);
  LLVMTypeRef ptr = LLVMPointerTypeInContext(e->ctx, 0), i64 = LLVMInt64TypeInContext(e->ctx);
  LLVMTypeRef type =
      LLVMFunctionType(LLVMVoidTypeInContext(e->ctx), (LLVMTypeRef[]){ptr, i64, i64, ptr}, 4, false);
  e->fn = LLVMAddFunction(e->mod, name, type);
  gen_function_attributes(e->g, e->fn);
  e->entry = LLVMAppendBasicBlockInContext(e->ctx, e->fn, "entry");
  LLVMBasicBlockRef start = LLVMAppendBasicBlockInContext(e->ctx, e->fn, "start");
  e->root = scope_child(e, NULL, start);
  e->lanes = 16;
  e->mask = e->pred = NULL;
  e->memo = ARENA_ARRAY(e->arena, Memo *, e->body->n_vals + 1);
  rows_reset(e);
  LLVMPositionBuilderAtEnd(e->b, start);
  uint32_t n_in = e->body->n_params, n_out = e->body->n_rets;
  LLVMValueRef args = LLVMGetParam(e->fn, 0);
  for (uint32_t i = 0; i < n_in; i++)
    e->in[i] = arg_pointer(e, args, i);
  for (uint32_t i = 0; i < n_out; i++)
    e->out[i] = arg_pointer(e, args, n_in + i);
  e->scratch = LLVMGetParam(e->fn, 3);
  *lo = LLVMGetParam(e->fn, 1);
  *hi = LLVMGetParam(e->fn, 2);
}

LLVMValueRef phase_thread_scratch(Emit *e) {
  at(e, e->root);
  return arg_pointer(e, LLVMGetParam(e->fn, 0), (int64_t)e->body->n_params + e->body->n_rets);
}

void phase_end(Emit *e, RegionPlan *plan, int64_t ntasks) {
  int64_t own = rows_bytes(e);
  plan->thread_scratch_bytes = own > plan->thread_scratch_bytes ? own : plan->thread_scratch_bytes;
  at(e, e->root);
  LLVMBuildRetVoid(e->b);
  LLVMPositionBuilderAtEnd(e->b, e->entry);
  LLVMBuildBr(e->b, LLVMGetNextBasicBlock(e->entry));
  plan->ntasks[plan->n_phases++] = ntasks;
}
