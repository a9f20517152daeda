/* attention.h: softmax attention as LLVM code without a matrix of scores in memory (inside codegen).
 *
 *   s[r, c] = score(q[r] . k[c])      p = exp(s - lse[r]) with lse[r] = log sum_c exp(s[r, c])      o[r] =
 * sum_c p[r, c] v[c]
 *
 * A row whose scores are all -inf gives o = 0, lse = -inf and no gradients. Tiles of rows and keys have sizes
 * fixed by the shape, and one task computes a result alone, in a fixed order: bits depend on the shape only.
 * Maths and design: docs/kernels-attention.md. */
#ifndef DLC_CODEGEN_ATTENTION_H
#define DLC_CODEGEN_ATTENTION_H

#include "codegen/llvm.h"
#include "ir/ir.h"

/* Strides in elements, 0 where a tensor lacks the dim. dq, dk, dv, do are laid out as q, k, v, o. */
typedef struct {
  int64_t size, q, k, v, o, l, d_o; /* l: of lse; d_o: of the cotangent of o */
} AttentionDim;

typedef struct {
  AttentionDim dim[IR_MAX_RANK];
  int n;
} AttentionDims;

typedef struct {
  DType dtype;
  AttentionDims outer, share; /* batch dims; those that keys and values do not have (grouped queries) */
  AttentionDim row, key, head, value; /* head: contracted by q k; value: the columns of v and o */
} AttentionSpec;

/* Where a vector of scores is. All are i64; mask: the lanes that exist, NULL: all. */
typedef struct {
  LLVMValueRef outer[IR_MAX_RANK], share[IR_MAX_RANK], row, key;
  LLVMValueRef mask;
  LLVMBasicBlockRef row_block; /* code that does not depend on key may go to its end */
} AttentionPoint;

typedef struct {
  void *ctx;
  /* At the builder: *s = score of the vector raw (neighbouring keys), and, if slope is set, its derivative.
   */
  void (*score)(void *ctx, const AttentionPoint *at, LLVMValueRef raw, LLVMValueRef *s, LLVMValueRef *slope);
  /* i1: some score of rows lo..hi and keys lo..hi (inclusive) may be more than -inf; NULL: always. */
  LLVMValueRef (*live)(void *ctx, const LLVMValueRef row[2], const LLVMValueRef key[2]);
} AttentionScore;

enum { ATTENTION_LANES = 16 }; /* keys in a vector, whatever the CPU */

/* Pointers and i64 of the phase being built. lse may be NULL in the forward. */
typedef struct {
  LLVMValueRef q, k, v, o, lse, d_o, dq, dk, dv, thread_scratch, lo, hi;
} AttentionArgs;

int64_t attention_tasks(const AttentionSpec *s, bool backward);
int64_t attention_thread_scratch(const AttentionSpec *s,
                                 bool backward); /* bytes, 64-byte aligned; -1: too large */

/* Emit tasks lo <= t < hi of the only phase at the builder. */
bool attention_forward(Gen *g, const AttentionSpec *s, const AttentionScore *score, const AttentionArgs *args,
                       Arena *arena, Error *err);
bool attention_backward(Gen *g, const AttentionSpec *s, const AttentionScore *score,
                        const AttentionArgs *args, Arena *arena, Error *err);

#endif
