/* attention_tile.c: tiles of attention: copies into thread scratch, small products, vectors of scores. */
#include "codegen/attention_tile.h"

#include <math.h>

enum { TILE = 64 };

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
static int64_t padded(int64_t n) {
  return ceil_div(n, ATTENTION_LANES) * ATTENTION_LANES;
}

AttentionTiles attention_tiles(const AttentionSpec *s) {
  AttentionTiles t = {.row_tiles = ceil_div(s->row.size, TILE), .key_tiles = ceil_div(s->key.size, TILE)};
  t.rows = ceil_div(s->row.size, t.row_tiles);
  t.keys = padded(ceil_div(s->key.size, t.key_tiles));
  t.row_tiles = ceil_div(s->row.size, t.rows);
  t.key_tiles = ceil_div(s->key.size, t.keys);
  t.head = padded(s->head.size);
  t.value = padded(s->value.size);
  t.elem = (int64_t)dtype_bytes(s->dtype);
  return t;
}

Attention attention_begin(Gen *g, const AttentionSpec *s, const AttentionScore *score,
                          const AttentionArgs *args, Arena *arena, Error *err) {
  Attention x = {.g = g, .s = s, .score = score, .args = args, .arena = arena, .err = err};
  x.t = attention_tiles(s);
  x.et = s->dtype == DT_F64 ? LLVMDoubleTypeInContext(g->ctx) : LLVMFloatTypeInContext(g->ctx);
  x.vt = LLVMVectorType(x.et, ATTENTION_LANES);
  return x;
}

/* ---- values ---- */

V at_i64(Attention *x, int64_t v) {
  return LLVMConstInt(LLVMInt64TypeInContext(x->g->ctx), (unsigned long long)v, true);
}

V at_add(Attention *x, V a, V b) {
  return LLVMBuildAdd(x->g->b, a, b, "");
}
V at_mul(Attention *x, V a, int64_t c) {
  return LLVMBuildMul(x->g->b, a, at_i64(x, c), "");
}

V at_min(Attention *x, V a, int64_t limit) {
  V l = at_i64(x, limit);
  return LLVMBuildSelect(x->g->b, LLVMBuildICmp(x->g->b, LLVMIntSLT, a, l, ""), a, l, "");
}

V at_ptr(Attention *x, V base, V index) {
  return LLVMBuildGEP2(x->g->b, x->et, base, &index, 1, "");
}

V at_splat(Attention *x, V scalar) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(x->g->ctx),
              t = LLVMVectorType(LLVMTypeOf(scalar), ATTENTION_LANES);
  V undef = LLVMGetUndef(t),
    one = LLVMBuildInsertElement(x->g->b, undef, scalar, LLVMConstInt(i32, 0, false), "");
  return LLVMBuildShuffleVector(x->g->b, one, undef, LLVMConstNull(LLVMVectorType(i32, ATTENTION_LANES)), "");
}

V at_real(Attention *x, double v) {
  return LLVMConstReal(x->et, v);
}

V at_const(Attention *x, double v) {
  V lane[ATTENTION_LANES];
  for (int i = 0; i < ATTENTION_LANES; i++)
    lane[i] = at_real(x, v);
  return LLVMConstVector(lane, ATTENTION_LANES);
}

V at_load(Attention *x, V ptr) {
  V r = LLVMBuildLoad2(x->g->b, x->vt, ptr, "");
  LLVMSetAlignment(r, (unsigned)x->t.elem);
  return r;
}

void at_store(Attention *x, V value, V ptr) {
  LLVMSetAlignment(LLVMBuildStore(x->g->b, value, ptr), (unsigned)x->t.elem);
}

V at_get(Attention *x, V ptr) {
  return LLVMBuildLoad2(x->g->b, x->et, ptr, "");
}

/* Halves folded onto each other: lanes i and i + 8, then i + 4, ... */
static V fold(Attention *x, V v, bool max) {
  LLVMBuilderRef b = x->g->b;
  LLVMTypeRef i32 = LLVMInt32TypeInContext(x->g->ctx);
  for (int n = ATTENTION_LANES / 2; n > 0; n /= 2) {
    V low[ATTENTION_LANES], high[ATTENTION_LANES];
    for (int i = 0; i < n; i++) {
      low[i] = LLVMConstInt(i32, (unsigned long long)i, false);
      high[i] = LLVMConstInt(i32, (unsigned long long)(i + n), false);
    }
    V a = LLVMBuildShuffleVector(b, v, v, LLVMConstVector(low, (unsigned)n), "");
    V c = LLVMBuildShuffleVector(b, v, v, LLVMConstVector(high, (unsigned)n), "");
    v = max ? LLVMBuildSelect(b, LLVMBuildFCmp(b, LLVMRealOGT, a, c, ""), a, c, "")
            : LLVMBuildFAdd(b, a, c, "");
  }
  return LLVMBuildExtractElement(b, v, LLVMConstInt(i32, 0, false), "");
}

V at_sum(Attention *x, V vector) {
  return fold(x, vector, false);
}
V at_max(Attention *x, V vector) {
  return fold(x, vector, true);
}

int64_t attention_count(const AttentionDims *d) {
  int64_t n = 1;
  for (int i = 0; i < d->n; i++)
    n *= d->dim[i].size;
  return n;
}

int64_t attention_units_per_task(double flops, int64_t units) {
  const double least = 1e6;
  int64_t per = flops >= least ? 1 : (int64_t)(least / flops), most = ceil_div(units, 8);
  return per < most ? per : most;
}

bool attention_buffers(const AttentionSpec *s, bool backward, int64_t size[B_COUNT]) {
  AttentionTiles t = attention_tiles(s);
  int64_t tiles = backward ? t.key_tiles : 1;
  const double limit = 1 << 28; /* elements */
  if ((double)tiles * (double)t.keys * (double)(t.head + t.value) > limit)
    return false;
  int64_t sizes[B_COUNT] = {[B_Q] = t.rows * t.head,
                            [B_S] = t.rows * t.keys,
                            [B_MAX] = t.rows,
                            [B_SUM] = t.rows,
                            [B_KT] = tiles * s->head.size * t.keys,
                            [B_V] = backward ? tiles * s->value.size * t.keys : t.keys * t.value,
                            [B_ACC] = t.rows * t.value,
                            [B_DO] = t.rows * t.value,
                            [B_O] = t.rows * t.value,
                            [B_DS] = t.rows * t.keys,
                            [B_DQ] = t.rows * t.head,
                            [B_K] = tiles * t.keys * t.head,
                            [B_DK] = tiles * t.keys * t.head,
                            [B_DV] = tiles * t.keys * t.value};
  for (int i = 0; i < B_COUNT; i++)
    size[i] = i < B_FORWARD || backward ? padded(sizes[i]) : 0;
  return true;
}

int64_t attention_thread_scratch(const AttentionSpec *s, bool backward) {
  int64_t size[B_COUNT], n = 0;
  if (!attention_buffers(s, backward, size))
    return -1;
  for (int i = 0; i < B_COUNT; i++)
    n += size[i];
  return n * (int64_t)dtype_bytes(s->dtype);
}

void at_buffers(Attention *x, bool backward, V buffer[B_COUNT]) {
  int64_t size[B_COUNT], n = 0;
  attention_buffers(x->s, backward, size);
  for (int i = 0; i < B_COUNT; n += size[i++])
    buffer[i] = at_ptr(x, x->args->thread_scratch, at_i64(x, n));
}

V at_slot(Attention *x, LLVMTypeRef t) {
  LLVMBasicBlockRef here = LLVMGetInsertBlock(x->g->b);
  LLVMBasicBlockRef entry = LLVMGetEntryBasicBlock(LLVMGetBasicBlockParent(here));
  V first = LLVMGetFirstInstruction(entry);
  if (first)
    LLVMPositionBuilderBefore(x->g->b, first);
  else
    LLVMPositionBuilderAtEnd(x->g->b, entry);
  V r = LLVMBuildAlloca(x->g->b, t, "");
  LLVMPositionBuilderAtEnd(x->g->b, here);
  return r;
}

V at_finite(Attention *x, V scalar, double instead) {
  V none = LLVMBuildFCmp(x->g->b, LLVMRealOEQ, scalar, at_real(x, -INFINITY), "");
  return LLVMBuildSelect(x->g->b, none, at_real(x, instead), scalar, "");
}

/* ---- products and copies ---- */

Fn at_product(Attention *x, int64_t rows, int64_t columns, int64_t k, int64_t a_row, int64_t a_k) {
  GemmSpec spec = {.dtype = x->s->dtype};
  spec.m = (GemmDims){{{rows, a_row, 0, columns, {0}}}, 1};
  spec.n = (GemmDims){{{columns, 0, 1, 1, {0}}}, 1};
  spec.k = (GemmDims){{{k, a_k, columns, 0, {0}}}, 1};
  return gemm_tile(x->g, &spec, x->arena, x->err);
}

void at_multiply(Attention *x, Fn f, V a, V b, V c, bool add) {
  V flag = LLVMConstInt(LLVMInt1TypeInContext(x->g->ctx), add, false);
  LLVMBuildCall2(x->g->b, gemm_tile_type(x->g), f, (V[]){a, b, c, flag}, 4, "");
}

Fn at_copier(Attention *x, int64_t count, int64_t width, int64_t unit, int64_t step) {
  return gemm_copy(x->g, &(GemmCopy){x->s->dtype, count, width, count == 1 ? 1 : unit, step});
}

void at_copy(Attention *x, Fn f, V to, V from, V n) {
  LLVMBuildCall2(x->g->b, gemm_copy_type(x->g), f, (V[]){to, from, n}, 3, "");
}

void at_zero(Attention *x, V ptr, V from_line, V to_line, int64_t width) {
  GenLoop l;
  gen_loop_begin(x->g, at_mul(x, from_line, width), at_mul(x, to_line, width), ATTENTION_LANES, &l);
  at_store(x, at_const(x, 0), at_ptr(x, ptr, l.i));
  gen_loop_end(x->g, &l);
}

KeyCopier at_key_copier(Attention *x, int64_t head_stride, int64_t key_stride) {
  int64_t last = x->s->key.size % x->t.keys;
  KeyCopier c = {at_copier(x, x->t.keys, x->t.keys, key_stride, head_stride), NULL};
  if (last)
    c.last = at_copier(x, last, x->t.keys, key_stride, head_stride);
  return c;
}

void at_copy_keys(Attention *x, const KeyCopier *c, V tile, V to, V from, int64_t head) {
  V fn = c->full;
  if (c->last) {
    V is_last = LLVMBuildICmp(x->g->b, LLVMIntEQ, tile, at_i64(x, x->t.key_tiles - 1), "");
    fn = LLVMBuildSelect(x->g->b, is_last, c->last, c->full, "");
  }
  at_copy(x, fn, to, from, at_i64(x, head));
}

static V first_lanes(Attention *x, int64_t n) {
  V bit[ATTENTION_LANES];
  for (int i = 0; i < ATTENTION_LANES; i++)
    bit[i] = LLVMConstInt(LLVMInt1TypeInContext(x->g->ctx), i < n, false);
  return LLVMConstVector(bit, ATTENTION_LANES);
}

static void write_vector(Attention *x, V value, V ptr, int64_t lanes) {
  if (lanes >= ATTENTION_LANES) {
    at_store(x, value, ptr);
    return;
  }
  V align = LLVMConstInt(LLVMInt32TypeInContext(x->g->ctx), (unsigned long long)x->t.elem, false);
  gen_intrinsic(x->g, "llvm.masked.store", (LLVMTypeRef[]){x->vt, LLVMPointerTypeInContext(x->g->ctx, 0)}, 2,
                (V[]){value, ptr, align, first_lanes(x, lanes)}, 4);
}

void at_write(Attention *x, V to, V from, V n, int64_t width, int64_t count, int64_t unit, int64_t step) {
  GenLoop l, e;
  gen_loop_begin(x->g, at_i64(x, 0), n, 1, &l);
  V dest = at_ptr(x, to, at_mul(x, l.i, step)), source = at_ptr(x, from, at_mul(x, l.i, width));
  if (unit == 1 || count == 1) {
    for (int64_t i = 0; i < count; i += ATTENTION_LANES)
      write_vector(x, at_load(x, at_ptr(x, source, at_i64(x, i))), at_ptr(x, dest, at_i64(x, i)), count - i);
  } else {
    gen_loop_begin(x->g, at_i64(x, 0), at_i64(x, count), 1, &e);
    LLVMBuildStore(x->g->b, at_get(x, at_ptr(x, source, e.i)), at_ptr(x, dest, at_mul(x, e.i, unit)));
    gen_loop_end(x->g, &e);
  }
  gen_loop_end(x->g, &l);
}

/* ---- where we are ---- */

static void step_offsets(Attention *x, V index, const AttentionDim *d) {
  x->q = at_add(x, x->q, at_mul(x, index, d->q));
  x->k = at_add(x, x->k, at_mul(x, index, d->k));
  x->v = at_add(x, x->v, at_mul(x, index, d->v));
  x->o = at_add(x, x->o, at_mul(x, index, d->o));
  x->l = at_add(x, x->l, at_mul(x, index, d->l));
  x->d_o = at_add(x, x->d_o, at_mul(x, index, d->d_o));
}

static void place(Attention *x, const AttentionDims *d, V *out, V index) {
  for (int i = d->n; i-- > 0;) {
    V size = at_i64(x, d->dim[i].size);
    out[i] = i ? LLVMBuildURem(x->g->b, index, size, "") : index;
    index = LLVMBuildUDiv(x->g->b, index, size, "");
    step_offsets(x, out[i], &d->dim[i]);
  }
}

void at_outer(Attention *x, V index) {
  x->q = x->k = x->v = x->o = x->l = x->d_o = at_i64(x, 0);
  place(x, &x->s->outer, x->at.outer, index);
}

void at_share(Attention *x, V index) {
  place(x, &x->s->share, x->at.share, index);
}

void at_tiles_begin(Attention *x, V row_lo, V n, TileLoop *l) {
  LLVMBuilderRef b = x->g->b;
  gen_loop_begin(x->g, at_i64(x, 0), at_i64(x, x->t.key_tiles), 1, &l->loop);
  l->next = NULL;
  if (!x->score->live)
    return;
  V lo = at_mul(x, l->loop.i, x->t.keys), minus = at_i64(x, -1);
  V row[2] = {row_lo, at_add(x, at_add(x, row_lo, n), minus)};
  V key[2] = {lo, at_min(x, at_add(x, lo, at_i64(x, x->t.keys - 1)), x->s->key.size - 1)};
  V live = x->score->live(x->score->ctx, row, key);
  if (!live)
    return;
  LLVMBasicBlockRef work = gen_block(x->g, "tile");
  l->next = gen_block(x->g, "next");
  LLVMBuildCondBr(b, live, work, l->next);
  LLVMPositionBuilderAtEnd(b, work);
}

void at_tiles_end(Attention *x, TileLoop *l) {
  if (l->next) {
    LLVMBuildBr(x->g->b, l->next);
    LLVMPositionBuilderAtEnd(x->g->b, l->next);
  }
  gen_loop_end(x->g, &l->loop);
}

V at_key_count(Attention *x, V key_lo) {
  return at_min(x, LLVMBuildSub(x->g->b, at_i64(x, x->s->key.size), key_lo, ""), x->t.keys);
}

V at_key_mask(Attention *x, V key) {
  if (x->s->key.size % ATTENTION_LANES == 0)
    return NULL;
  V lane[ATTENTION_LANES];
  for (int i = 0; i < ATTENTION_LANES; i++)
    lane[i] = at_i64(x, i);
  V index = LLVMBuildAdd(x->g->b, at_splat(x, key), LLVMConstVector(lane, ATTENTION_LANES), "");
  return LLVMBuildICmp(x->g->b, LLVMIntSLT, index, at_splat(x, at_i64(x, x->s->key.size)), "");
}
