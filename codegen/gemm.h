/* gemm.h: matrix products C[b, m, n] (+)= sum_k A[b, m, k] B[b, k, n] as LLVM code (inside codegen).
 *
 * Every element of C is one chain of fused multiply-adds in the order of k (all of k's dims flattened, the
 * last fastest), whatever the tiles, the blocks, the CPU's vector width or the number of threads: results are
 * equal bit for bit. Design: docs/kernels-gemm.md. */
#ifndef DLC_CODEGEN_GEMM_H
#define DLC_CODEGEN_GEMM_H

#include "codegen/llvm.h"
#include "ir/ir.h"

enum { GEMM_ADDENDS = 2 };

/* One dim with its strides, in elements, in the matrices and in what is added (0 where one lacks it). */
typedef struct {
  int64_t size, a, b, c, d[GEMM_ADDENDS];
} GemmDim;

typedef struct {
  GemmDim dim[IR_MAX_RANK]; /* outermost first; none: size 1 */
  int n;
} GemmDims;

typedef struct {
  DType dtype;             /* F32, F64 */
  GemmDims batch, m, n, k; /* fast when a dim of n has stride 1 in C */
  bool accumulate;         /* C += */
  int addends; /* C = (sum + D0) + D1: biases, residuals; along the columns their stride is 0 or 1 */
} GemmSpec;

/* How a product is cut up; fixed by the spec and the target's vector width alone. */
typedef struct GemmPlan GemmPlan;

/* NULL with *err set when the sizes overflow. */
GemmPlan *gemm_plan(const GemmSpec *spec, int f32_lanes, Arena *arena, Error *err);

/* Phases run in order with a barrier between; tasks of one phase in any order. */
int gemm_phases(const GemmPlan *p);
/* A product over no more of k reads what is added where it writes C: C may be D0 or D1. */
int64_t gemm_in_place_k(DType d);
int64_t gemm_tasks(const GemmPlan *p, int phase);
int64_t gemm_scratch(const GemmPlan *p);        /* bytes, 64-byte aligned, shared by the phases of a launch */
int64_t gemm_thread_scratch(const GemmPlan *p); /* bytes, 64-byte aligned, of each thread */

/* Pointers and i64 values of the phase function being built. */
typedef struct {
  LLVMValueRef a, b, c, d[GEMM_ADDENDS], scratch, thread_scratch, lo, hi;
} GemmArgs;

/* Emits tasks lo <= t < hi of a phase at the builder, which is left at the end of a new block of the same
 * function. Functions called from there are added to the module. */
void gemm_emit(Gen *g, GemmPlan *p, int phase, const GemmArgs *args);

/* ---- parts for other kernels ---- */

/* void f(ptr a, ptr b, ptr c, i1 add): a product without batch whose operands are small and near: nothing is
 * packed. k is one dim; the columns have stride 1 in B and C. */
LLVMValueRef gemm_tile(Gen *g, const GemmSpec *spec, Arena *arena, Error *err);
LLVMTypeRef gemm_tile_type(Gen *g);

/* void f(ptr to, ptr from, i64 n): to[i][j] = from[i * step + j * unit] for i < n, j < count, and 0 for count
 * <= j < width. */
typedef struct {
  DType dtype;
  int64_t count, width, unit, step;
} GemmCopy;
LLVMValueRef gemm_copy(Gen *g, const GemmCopy *c);
LLVMTypeRef gemm_copy_type(Gen *g);

#endif
