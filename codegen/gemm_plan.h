/* gemm_plan.h: the plan and what its emitters share (inside codegen/gemm*.c). */
#ifndef DLC_CODEGEN_GEMM_PLAN_H
#define DLC_CODEGEN_GEMM_PLAN_H

#include "codegen/gemm.h"

typedef LLVMValueRef V;

/* One operand: the dims of its own side (m or n), cut into panels of `width` along the inner dim. */
typedef struct {
  GemmDims outer;     /* all dims but the inner one */
  int64_t outer_size; /* product of outer */
  GemmDim inner;
  int64_t width, tail;           /* of a panel; of the last panel of each outer index (0: it is full) */
  int64_t tail_padded;           /* tail as packed */
  int64_t per_outer, panels;     /* panels of one outer index; of all */
  int64_t padded;                /* elements along the side of one outer index as packed */
  int64_t chunk, chunks;         /* panels of one task; parts the panels are cut into */
  int64_t unit_stride, k_stride; /* of the operand along inner and the inner k */
  bool direct;                   /* read where it lies */
  bool shared;                   /* packed whole by an earlier phase */
  LLVMValueRef pack[2];          /* functions for full panels and the last one */
} GemmSide;

struct GemmPlan {
  GemmSpec spec;
  int lanes, vectors; /* of one vector; vectors of a full panel of B */
  int64_t elem;       /* bytes */
  int64_t batches;
  GemmDims k_outer; /* all dims of k but the last */
  GemmDim k_inner;
  int64_t k_outer_size, k_size;
  int64_t outer_per_block, inner_per_block, blocks_per_outer,
      blocks;                       /* of k; one of the first two is trivial */
  int64_t block_k;                  /* elements of k in the longest block */
  int64_t supers, blocks_per_super; /* parts of k whose shared operand is in scratch at one time */
  GemmSide a, b;
  int64_t task_units, units, pack_units, units_per_pack; /* units = batches * a.chunks * b.chunks */
  int64_t scratch, thread_scratch, thread_b;             /* bytes; where B's panels are in thread scratch */
  LLVMValueRef micro[2][2];                              /* [last rows][last columns] */
  LLVMTypeRef micro_type, pack_type;
};

/* gemm_plan.c: one block of k, operands read where they lie. */
GemmPlan *gemm_plan_tile(const GemmSpec *spec, int f32_lanes, Arena *arena, Error *err);
/* gemm_pack.c: void pack(ptr to, ptr from, i64 n): n steps of k of one panel, contiguous. */
void gemm_pack_functions(Gen *g, GemmPlan *p);
/* gemm_kernel.c: void micro(ptr a, ptr b, ptr c, i64 k, i1 add, i1 finish, ptr d...): one tile; finish: the d
 * are added. */
enum { MICRO_ARGS = 6 };
void gemm_micro_functions(Gen *g, GemmPlan *p);

LLVMTypeRef gemm_elem(Gen *g, const GemmPlan *p);
LLVMTypeRef gemm_vector(Gen *g, const GemmPlan *p, int lanes);
V gemm_at(Gen *g, const GemmPlan *p, V base, V index); /* pointer of an element */

static inline V gemm_i64(Gen *g, int64_t v) {
  return LLVMConstInt(LLVMInt64TypeInContext(g->ctx), (unsigned long long)v, true);
}
static inline V gemm_add(Gen *g, V a, V b) {
  return LLVMBuildAdd(g->b, a, b, "");
}
static inline V gemm_mul(Gen *g, V a, int64_t c) {
  return LLVMBuildMul(g->b, a, gemm_i64(g, c), "");
}

#endif
