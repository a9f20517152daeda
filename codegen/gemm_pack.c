/* gemm_pack.c: copies one panel of an operand to the order the micro-kernel reads: for each k, the panel's
 * elements side by side. The source may lie along the panel (copied), along k (transposed in registers) or
 * any other way. */
#include "codegen/gemm_plan.h"

enum { MAX_BLOCK = 16, LINE = 64, ROWS_AHEAD = 16, BYTES_AHEAD = 512 };

typedef struct {
  Gen *g;
  const GemmPlan *p;
  V to, from, n;        /* the function's parameters */
  int64_t count, width; /* elements of the panel that exist; as packed */
  int64_t unit, step;   /* strides of the source along the panel and k */
} Pack;

static V at(Pack *k, V base, V index, int64_t scale, int64_t plus) {
  V i = gemm_add(k->g, gemm_mul(k->g, index, scale), gemm_i64(k->g, plus));
  return gemm_at(k->g, k->p, base, i);
}

static V load(Pack *k, int64_t lanes, V ptr) {
  V r = LLVMBuildLoad2(k->g->b, gemm_vector(k->g, k->p, (int)lanes), ptr, "");
  LLVMSetAlignment(r, (unsigned)k->p->elem);
  return r;
}

static void store(Pack *k, V value, V ptr) {
  LLVMSetAlignment(LLVMBuildStore(k->g->b, value, ptr), (unsigned)k->p->elem);
}

/* The largest power of two of lanes that fits into `rest`. */
static int64_t part(const Pack *k, int64_t rest) {
  int64_t q = k->p->lanes;
  while (q > rest)
    q /= 2;
  return q;
}

/* Rows far apart are more than the processor foresees. */
static void prefetch(Pack *k, V ptr) {
  LLVMTypeRef type = LLVMTypeOf(ptr), i32 = LLVMInt32TypeInContext(k->g->ctx);
  V read = LLVMConstInt(i32, 0, false), keep = LLVMConstInt(i32, 3, false),
    data = LLVMConstInt(i32, 1, false);
  gen_intrinsic(k->g, "llvm.prefetch", &type, 1, (V[]){ptr, read, keep, data}, 4);
}

static void zeros(Pack *k, V row) {
  for (int64_t j = k->count, q; j < k->width; j += q) {
    q = part(k, k->width - j);
    store(k, LLVMConstNull(gemm_vector(k->g, k->p, (int)q)), at(k, k->to, row, k->width, j));
  }
}

/* Source contiguous along the panel. */
static void copy_rows(Pack *k) {
  GenLoop l;
  gen_loop_begin(k->g, gemm_i64(k->g, 0), k->n, 1, &l);
  for (int64_t j = 0, q; j < k->count; j += q) {
    q = part(k, k->count - j);
    store(k, load(k, q, at(k, k->from, l.i, k->step, j)), at(k, k->to, l.i, k->width, j));
    if (q * k->p->elem >= LINE || j == 0)
      prefetch(k, at(k, k->from, l.i, k->step, j + ROWS_AHEAD * k->step));
  }
  zeros(k, l.i);
  gen_loop_end(k->g, &l);
}

/* Elements j .. j + q of the panel, one k after another. */
static void copy_elements(Pack *k, V lo, V hi, int64_t j, int64_t q) {
  GenLoop l;
  gen_loop_begin(k->g, lo, hi, 1, &l);
  for (int64_t i = j; i < j + q; i++)
    store(k, load(k, 1, at(k, k->from, l.i, k->step, i * k->unit)), at(k, k->to, l.i, k->width, i));
  gen_loop_end(k->g, &l);
}

/* row[i][j] <-> row[j][i] in log2(q) rounds that swap blocks of d x d off the diagonal. */
static void transpose(Pack *k, V *row, int q) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(k->g->ctx);
  for (int d = 1; d < q; d *= 2)
    for (int i = 0; i < q; i++) {
      if (i & d)
        continue;
      V low[MAX_BLOCK], high[MAX_BLOCK], x = row[i], y = row[i + d];
      for (int j = 0; j < q; j++) {
        low[j] = LLVMConstInt(i32, (unsigned long long)(j & d ? q + j - d : j), false);
        high[j] = LLVMConstInt(i32, (unsigned long long)(j & d ? q + j : j + d), false);
      }
      row[i] = LLVMBuildShuffleVector(k->g->b, x, y, LLVMConstVector(low, (unsigned)q), "");
      row[i + d] = LLVMBuildShuffleVector(k->g->b, x, y, LLVMConstVector(high, (unsigned)q), "");
    }
}

/* Source contiguous along k: q elements of the panel in blocks of q x q through registers. */
static void transpose_rows(Pack *k, int64_t q) {
  V row[MAX_BLOCK], zero = gemm_i64(k->g, 0);
  V whole = LLVMBuildAnd(k->g->b, k->n, gemm_i64(k->g, -q), "");
  GenLoop l;
  gen_loop_begin(k->g, zero, whole, q, &l);
  for (int64_t i = 0; i < q; i++) {
    row[i] = load(k, q, at(k, k->from, l.i, 1, i * k->unit));
    prefetch(k, at(k, k->from, l.i, 1, i * k->unit + BYTES_AHEAD / k->p->elem));
  }
  transpose(k, row, (int)q);
  for (int64_t i = 0; i < q; i++)
    store(k, row[i], at(k, k->to, l.i, k->width, i * k->width));
  gen_loop_end(k->g, &l);
  copy_elements(k, whole, k->n, 0, q);
}

/* Elements j .. j + n of the panel, q at a time: a loop, as the code of one block is long. */
static void transpose_blocks(Pack *k, int64_t j, int64_t n, int64_t q) {
  Pack block = *k;
  GenLoop l;
  gen_loop_begin(k->g, gemm_i64(k->g, j), gemm_i64(k->g, j + n), q, &l);
  block.from = at(k, k->from, l.i, k->unit, 0);
  block.to = at(k, k->to, l.i, 1, 0);
  transpose_rows(&block, q);
  gen_loop_end(k->g, &l);
}

static void pack_body(Pack *k) {
  V zero = gemm_i64(k->g, 0);
  if (k->unit == 1) {
    copy_rows(k);
    return;
  }
  for (int64_t j = 0, n; j < k->count; j += n) {
    int64_t q = part(k, k->count - j);
    n = (k->count - j) / q * q;
    if (k->step == 1 && q > 1)
      transpose_blocks(k, j, n, q);
    else
      copy_elements(k, zero, k->n, j, n);
  }
  if (k->count < k->width) {
    GenLoop l;
    gen_loop_begin(k->g, zero, k->n, 1, &l);
    zeros(k, l.i);
    gen_loop_end(k->g, &l);
  }
}

LLVMTypeRef gemm_copy_type(Gen *g) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0), arg[] = {ptr, ptr, LLVMInt64TypeInContext(g->ctx)};
  return LLVMFunctionType(LLVMVoidTypeInContext(g->ctx), arg, 3, false);
}

LLVMValueRef gemm_copy(Gen *g, const GemmCopy *c) {
  LLVMBasicBlockRef here = LLVMGetInsertBlock(g->b);
  V fn = LLVMAddFunction(g->mod, "pack", gemm_copy_type(g));
  LLVMSetLinkage(fn, LLVMInternalLinkage);
  gen_function_attributes(g, fn);
  gen_noalias(g, fn, 0);
  gen_noalias(g, fn, 1);
  LLVMPositionBuilderAtEnd(g->b, LLVMAppendBasicBlockInContext(g->ctx, fn, "entry"));
  GemmPlan type = {.elem = (int64_t)dtype_bytes(c->dtype),
                   .lanes = c->dtype == DT_F64 ? g->lanes / 2 : g->lanes};
  Pack k = {
      g,       &type,  LLVMGetParam(fn, 0), LLVMGetParam(fn, 1), LLVMGetParam(fn, 2), c->count, c->width,
      c->unit, c->step};
  pack_body(&k);
  LLVMBuildRetVoid(g->b);
  LLVMPositionBuilderAtEnd(g->b, here);
  return fn;
}

void gemm_pack_functions(Gen *g, GemmPlan *p) {
  GemmSide *side[] = {&p->a, &p->b};
  p->pack_type = gemm_copy_type(g);
  for (int i = 0; i < 2; i++) {
    GemmSide *s = side[i];
    GemmCopy full = {p->spec.dtype, s->width, s->width, s->unit_stride, s->k_stride};
    GemmCopy last = {p->spec.dtype, s->tail, s->tail_padded, s->unit_stride, s->k_stride};
    if (!s->direct)
      s->pack[0] = gemm_copy(g, &full);
    if (!s->direct && s->tail)
      s->pack[1] = gemm_copy(g, &last);
  }
}
