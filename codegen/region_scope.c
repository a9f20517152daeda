/* region_scope.c: where code goes, and loops that can be spliced into an outer scope. */
#include "codegen/region.h"

void at(Emit *e, Scope *s) {
  LLVMValueRef term = LLVMGetBasicBlockTerminator(s->block);
  if (term)
    LLVMPositionBuilderBefore(e->b, term);
  else
    LLVMPositionBuilderAtEnd(e->b, s->block);
}

Scope *deeper(Scope *a, Scope *b) {
  if (!a || !b)
    return a ? a : b;
  return a->depth >= b->depth ? a : b;
}

Scope *scope_child(Emit *e, Scope *up, LLVMBasicBlockRef block) {
  Scope *s = ARENA_NEW(e->arena, Scope);
  *s = (Scope){up, up ? up->depth + 1 : 0, block};
  return s;
}

LLVMValueRef slot(Emit *e, LLVMTypeRef t) {
  LLVMValueRef first = LLVMGetFirstInstruction(e->entry);
  if (first)
    LLVMPositionBuilderBefore(e->b, first);
  else
    LLVMPositionBuilderAtEnd(e->b, e->entry);
  return LLVMBuildAlloca(e->b, t, "");
}

/* Takes the terminator off the outer scope's block; it is put back at the end of the block that follows the
 * new code. */
static void detach(Scope *outer, Loop *l) {
  l->outer = outer;
  l->terminator = LLVMGetBasicBlockTerminator(outer->block);
  if (l->terminator)
    LLVMInstructionRemoveFromParent(l->terminator);
}

static void reattach(Emit *e, Loop *l) {
  l->outer->block = l->after;
  if (l->terminator) {
    LLVMPositionBuilderAtEnd(e->b, l->after);
    LLVMInsertIntoBuilder(e->b, l->terminator);
  }
}

void loop_begin(Emit *e, Scope *outer, LLVMValueRef lo, LLVMValueRef hi, int64_t step, Loop *l) {
  LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx);
  *l = (Loop){.step = step, .var = slot(e, i64)};
  detach(outer, l);
  l->head = LLVMAppendBasicBlockInContext(e->ctx, e->fn, "head");
  LLVMBasicBlockRef body = LLVMAppendBasicBlockInContext(e->ctx, e->fn, "body");
  l->after = LLVMAppendBasicBlockInContext(e->ctx, e->fn, "after");
  LLVMPositionBuilderAtEnd(e->b, outer->block);
  LLVMBuildStore(e->b, lo, l->var);
  LLVMBuildBr(e->b, l->head);
  LLVMPositionBuilderAtEnd(e->b, l->head);
  l->i = LLVMBuildLoad2(e->b, i64, l->var, "i");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, l->i, hi, ""), body, l->after);
  l->scope = scope_child(e, outer, body);
}

void loop_end(Emit *e, Loop *l) {
  at(e, l->scope);
  LLVMValueRef next = LLVMBuildNSWAdd(e->b, l->i, i64c(e, l->step), "");
  LLVMBuildStore(e->b, next, l->var);
  LLVMBuildBr(e->b, l->head);
  reattach(e, l);
}

void if_begin(Emit *e, Scope *outer, LLVMValueRef cond, Loop *l) {
  *l = (Loop){0};
  detach(outer, l);
  LLVMBasicBlockRef body = LLVMAppendBasicBlockInContext(e->ctx, e->fn, "then");
  l->after = LLVMAppendBasicBlockInContext(e->ctx, e->fn, "endif");
  LLVMPositionBuilderAtEnd(e->b, outer->block);
  LLVMBuildCondBr(e->b, cond, body, l->after);
  l->scope = scope_child(e, outer, body);
}

void if_end(Emit *e, Loop *l) {
  at(e, l->scope);
  LLVMBuildBr(e->b, l->after);
  reattach(e, l);
}

LLVMValueRef tail_mask(Emit *e, int64_t used) {
  LLVMTypeRef i1 = LLVMInt1TypeInContext(e->ctx);
  LLVMValueRef lane[64];
  for (int i = 0; i < e->lanes; i++)
    lane[i] = LLVMConstInt(i1, i < used, false);
  return LLVMConstVector(lane, (unsigned)e->lanes);
}

LLVMValueRef min_i64(Emit *e, LLVMValueRef a, int64_t limit) {
  LLVMValueRef c = i64c(e, limit);
  return LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, a, c, ""), a, c, "");
}

void lane_loop(Emit *e, Scope *s, int64_t n, LLVMValueRef lo, LLVMValueRef hi, LaneFn fn, void *ctx) {
  int64_t w = e->lanes, tail = n % w;
  if (!lo && n == w) {
    fn(ctx, s, idx_var(e, i64c(e, 0), 1, 0, e->root));
  } else if (n >= w) {
    Loop l;
    at(e, s);
    LLVMValueRef end = lo ? LLVMBuildSub(e->b, hi, i64c(e, w - 1), "") : i64c(e, n - w + 1);
    loop_begin(e, s, lo ? lo : i64c(e, 0), end, w, &l);
    fn(ctx, l.scope, idx_var(e, l.i, 1, w, l.scope));
    loop_end(e, &l);
  }
  if (!tail)
    return;
  Loop l = {.scope = s};
  if (lo) {
    at(e, s);
    if_begin(e, s, LLVMBuildICmp(e->b, LLVMIntEQ, hi, i64c(e, n), ""), &l);
  }
  e->mask = tail_mask(e, tail);
  fn(ctx, l.scope, idx_var(e, i64c(e, n - tail), 1, 0, e->root));
  e->mask = NULL;
  if (lo)
    if_end(e, &l);
}
