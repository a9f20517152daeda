/* attention.c: the forward of attention: for each tile of rows, running maximum, sum and output over the
 * tiles of keys (Dao, "FlashAttention-2", 2023). */
#include "codegen/attention_tile.h"

#include <math.h>

typedef struct {
  Attention x;
  V buffer[B_COUNT], row_lo, rows;
  Fn copy_q, copy_v, scores, output;
  KeyCopier copy_k;
} Forward;

static V scalar_exp(Attention *x, V v) {
  V r = gen_exp(x->g, at_splat(x, v));
  return LLVMBuildExtractElement(x->g->b, r, LLVMConstInt(LLVMInt32TypeInContext(x->g->ctx), 0, false), "");
}

static V scalar_log(Attention *x, V v) {
  V r = gen_log(x->g, at_splat(x, v));
  return LLVMBuildExtractElement(x->g->b, r, LLVMConstInt(LLVMInt32TypeInContext(x->g->ctx), 0, false), "");
}

static V line(Attention *x, V base, V row, int64_t width) {
  return at_ptr(x, base, at_mul(x, row, width));
}

static void scale_line(Attention *x, V ptr, V factor, int64_t width) {
  V wide = at_splat(x, factor);
  for (int64_t i = 0; i < width; i += ATTENTION_LANES) {
    V p = at_ptr(x, ptr, at_i64(x, i));
    at_store(x, LLVMBuildFMul(x->g->b, at_load(x, p), wide, ""), p);
  }
}

static void clear(Forward *f) {
  Attention *x = &f->x;
  V zero = at_i64(x, 0), rows = at_i64(x, x->t.rows);
  at_zero(x, f->buffer[B_ACC], zero, rows, x->t.value);
  GenLoop l;
  gen_loop_begin(x->g, zero, rows, 1, &l);
  LLVMBuildStore(x->g->b, at_real(x, -INFINITY), at_ptr(x, f->buffer[B_MAX], l.i));
  LLVMBuildStore(x->g->b, at_real(x, 0), at_ptr(x, f->buffer[B_SUM], l.i));
  gen_loop_end(x->g, &l);
}

/* Scores of one row in place of raw ones; returns their maximum. */
static V score_row(Attention *x, V s, V key_lo, V count) {
  LLVMBuilderRef b = x->g->b;
  V slot = at_slot(x, x->vt);
  GenLoop l;
  LLVMBuildStore(b, at_const(x, -INFINITY), slot);
  gen_loop_begin(x->g, at_i64(x, 0), count, ATTENTION_LANES, &l);
  x->at.key = at_add(x, key_lo, l.i);
  x->at.mask = at_key_mask(x, x->at.key);
  V p = at_ptr(x, s, l.i), v;
  x->score->score(x->score->ctx, &x->at, at_load(x, p), &v, NULL);
  if (x->at.mask)
    v = LLVMBuildSelect(b, x->at.mask, v, at_const(x, -INFINITY), "");
  at_store(x, v, p);
  V most = LLVMBuildLoad2(b, x->vt, slot, "");
  LLVMBuildStore(b, LLVMBuildSelect(b, LLVMBuildFCmp(b, LLVMRealOGT, most, v, ""), most, v, ""), slot);
  gen_loop_end(x->g, &l);
  return at_max(x, LLVMBuildLoad2(b, x->vt, slot, ""));
}

/* exp(s - shift) in place, zeros behind the last key; returns the sum. */
static V exp_row(Attention *x, V s, V shift, V count) {
  LLVMBuilderRef b = x->g->b;
  V slot = at_slot(x, x->vt), wide = at_splat(x, shift);
  V whole =
      LLVMBuildAnd(b, at_add(x, count, at_i64(x, ATTENTION_LANES - 1)), at_i64(x, -ATTENTION_LANES), "");
  GenLoop l;
  LLVMBuildStore(b, at_const(x, 0), slot);
  gen_loop_begin(x->g, at_i64(x, 0), count, ATTENTION_LANES, &l);
  V p = at_ptr(x, s, l.i), e = gen_exp(x->g, LLVMBuildFSub(b, at_load(x, p), wide, ""));
  at_store(x, e, p);
  LLVMBuildStore(b, LLVMBuildFAdd(b, LLVMBuildLoad2(b, x->vt, slot, ""), e, ""), slot);
  gen_loop_end(x->g, &l);
  at_zero(x, s, whole, at_i64(x, x->t.keys), 1);
  return at_sum(x, LLVMBuildLoad2(b, x->vt, slot, ""));
}

static void softmax_rows(Forward *f, V key_lo, V count) {
  Attention *x = &f->x;
  LLVMBuilderRef b = x->g->b;
  GenLoop l;
  gen_loop_begin(x->g, at_i64(x, 0), f->rows, 1, &l);
  x->at.row_block = LLVMGetInsertBlock(b);
  x->at.row = at_add(x, f->row_lo, l.i);
  V s = line(x, f->buffer[B_S], l.i, x->t.keys), pm = at_ptr(x, f->buffer[B_MAX], l.i);
  V pl = at_ptr(x, f->buffer[B_SUM], l.i), old = at_get(x, pm);
  V most = score_row(x, s, key_lo, count);
  most = LLVMBuildSelect(b, LLVMBuildFCmp(b, LLVMRealOGT, old, most, ""), old, most, "");
  V shift = at_finite(x, most, 0);
  V sum = exp_row(x, s, shift, count), keep = scalar_exp(x, LLVMBuildFSub(b, old, shift, ""));
  LLVMBuildStore(b, most, pm);
  LLVMBuildStore(b, LLVMBuildFAdd(b, LLVMBuildFMul(b, at_get(x, pl), keep, ""), sum, ""), pl);
  scale_line(x, line(x, f->buffer[B_ACC], l.i, x->t.value), keep, x->t.value);
  gen_loop_end(x->g, &l);
}

static void key_tile(Forward *f, V tile) {
  Attention *x = &f->x;
  const AttentionArgs *a = x->args;
  V key_lo = at_mul(x, tile, x->t.keys), count = at_key_count(x, key_lo);
  at_copy_keys(x, &f->copy_k, tile, f->buffer[B_KT],
               at_ptr(x, a->k, at_add(x, x->k, at_mul(x, key_lo, x->s->key.k))), x->s->head.size);
  at_copy(x, f->copy_v, f->buffer[B_V], at_ptr(x, a->v, at_add(x, x->v, at_mul(x, key_lo, x->s->key.v))),
          count);
  at_zero(x, f->buffer[B_V], count, at_i64(x, x->t.keys), x->t.value);
  at_multiply(x, f->scores, f->buffer[B_Q], f->buffer[B_KT], f->buffer[B_S], false);
  softmax_rows(f, key_lo, count);
  at_multiply(x, f->output, f->buffer[B_S], f->buffer[B_V], f->buffer[B_ACC], true);
}

static void finish_rows(Forward *f) {
  Attention *x = &f->x;
  LLVMBuilderRef b = x->g->b;
  GenLoop l;
  gen_loop_begin(x->g, at_i64(x, 0), f->rows, 1, &l);
  V sum = at_get(x, at_ptr(x, f->buffer[B_SUM], l.i)), most = at_get(x, at_ptr(x, f->buffer[B_MAX], l.i));
  V none = LLVMBuildFCmp(b, LLVMRealOEQ, sum, at_real(x, 0), "");
  V inverse = LLVMBuildSelect(b, none, at_real(x, 0), LLVMBuildFDiv(b, at_real(x, 1), sum, ""), "");
  scale_line(x, line(x, f->buffer[B_ACC], l.i, x->t.value), inverse, x->t.value);
  if (x->args->lse) {
    V lse = LLVMBuildFAdd(b, at_finite(x, most, 0), scalar_log(x, sum), "");
    lse = LLVMBuildSelect(b, none, at_real(x, -INFINITY), lse, "");
    V row = at_add(x, f->row_lo, l.i);
    LLVMBuildStore(b, lse, at_ptr(x, x->args->lse, at_add(x, x->l, at_mul(x, row, x->s->row.l))));
  }
  gen_loop_end(x->g, &l);
  V to = at_ptr(x, x->args->o, at_add(x, x->o, at_mul(x, f->row_lo, x->s->row.o)));
  at_write(x, to, f->buffer[B_ACC], f->rows, x->t.value, x->s->value.size, x->s->value.o, x->s->row.o);
}

static void row_tile(Forward *f, V unit) {
  Attention *x = &f->x;
  LLVMBuilderRef b = x->g->b;
  TileLoop l;
  V tile = LLVMBuildURem(b, unit, at_i64(x, x->t.row_tiles), "");
  V rest = LLVMBuildUDiv(b, unit, at_i64(x, x->t.row_tiles), "");
  V share = at_i64(x, attention_count(&x->s->share));
  at_outer(x, LLVMBuildUDiv(b, rest, share, ""));
  at_share(x, LLVMBuildURem(b, rest, share, ""));
  f->row_lo = at_mul(x, tile, x->t.rows);
  f->rows = at_min(x, LLVMBuildSub(b, at_i64(x, x->s->row.size), f->row_lo, ""), x->t.rows);
  V q = at_ptr(x, x->args->q, at_add(x, x->q, at_mul(x, f->row_lo, x->s->row.q)));
  at_copy(x, f->copy_q, f->buffer[B_Q], q, f->rows);
  at_zero(x, f->buffer[B_Q], f->rows, at_i64(x, x->t.rows), x->t.head);
  clear(f);
  at_tiles_begin(x, f->row_lo, f->rows, &l);
  key_tile(f, l.loop.i);
  at_tiles_end(x, &l);
  finish_rows(f);
}

static int64_t units(const AttentionSpec *s, const AttentionTiles *t, bool backward, double *flops) {
  *flops = (backward ? 10.0 : 4.0) * (double)s->key.size * (double)(t->head + t->value) / 2;
  *flops *= backward ? (double)s->row.size * (double)attention_count(&s->share) : (double)t->rows;
  return attention_count(&s->outer) * (backward ? 1 : attention_count(&s->share) * t->row_tiles);
}

int64_t attention_task_size(const AttentionSpec *s, bool backward, int64_t *total) {
  AttentionTiles t = attention_tiles(s);
  double flops;
  *total = units(s, &t, backward, &flops);
  return attention_units_per_task(flops, *total);
}

int64_t attention_tasks(const AttentionSpec *s, bool backward) {
  int64_t total, per = attention_task_size(s, backward, &total);
  return (total + per - 1) / per;
}

bool attention_forward(Gen *g, const AttentionSpec *s, const AttentionScore *score, const AttentionArgs *args,
                       Arena *arena, Error *err) {
  Forward f = {.x = attention_begin(g, s, score, args, arena, err)};
  Attention *x = &f.x;
  int64_t total, per = attention_task_size(s, false, &total);
  at_buffers(x, false, f.buffer);
  f.copy_q = at_copier(x, s->head.size, x->t.head, s->head.q, s->row.q);
  f.copy_v = at_copier(x, s->value.size, x->t.value, s->value.v, s->key.v);
  f.copy_k = at_key_copier(x, s->head.k, s->key.k);
  f.scores = at_product(x, x->t.rows, x->t.keys, s->head.size, x->t.head, 1);
  f.output = at_product(x, x->t.rows, x->t.value, x->t.keys, x->t.keys, 1);
  if (!f.scores || !f.output)
    return false;
  GenLoop l;
  gen_loop_begin(g, at_mul(x, args->lo, per), at_min(x, at_mul(x, args->hi, per), total), 1, &l);
  row_tile(&f, l.i);
  gen_loop_end(g, &l);
  return true;
}
