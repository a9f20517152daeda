/* attention_backward.c: gradients of attention. One task does all queries of one head of keys and values, in
 * order, so that nothing is added from two sides and scores are made anew only once: D[r] = do[r] . o[r]    p
 * = exp(s - lse)    draw = p (do v - D) ds/draw    dv += p' do    dk += draw' q    dq = draw k */
#include "codegen/attention_tile.h"

#include <math.h>

typedef struct {
  Attention x;
  V buffer[B_COUNT], row_lo, rows;
  Fn copy_q, copy_o, copy_do, copy_k, scores, products, add_dv, add_dk, add_dq;
  KeyCopier copy_kt, copy_vt;
} Backward;

static V line(Attention *x, V base, V row, int64_t width) {
  return at_ptr(x, base, at_mul(x, row, width));
}

/* Row `row` of a tensor in memory. */
static V memory(Attention *x, V base, V offset, V row, int64_t stride) {
  return at_ptr(x, base, at_add(x, offset, at_mul(x, row, stride)));
}

/* Keys and values of this head, both ways round; sums of dk and dv start at zero. */
static void load_keys(Backward *f) {
  Attention *x = &f->x;
  const AttentionSpec *s = x->s;
  V zero = at_i64(x, 0), keys = at_i64(x, s->key.size), all = at_i64(x, x->t.key_tiles * x->t.keys);
  GenLoop l;
  gen_loop_begin(x->g, zero, at_i64(x, x->t.key_tiles), 1, &l);
  V lo = at_mul(x, l.i, x->t.keys);
  at_copy_keys(x, &f->copy_kt, l.i, line(x, f->buffer[B_KT], lo, s->head.size),
               memory(x, x->args->k, x->k, lo, s->key.k), s->head.size);
  at_copy_keys(x, &f->copy_vt, l.i, line(x, f->buffer[B_V], lo, s->value.size),
               memory(x, x->args->v, x->v, lo, s->key.v), s->value.size);
  gen_loop_end(x->g, &l);
  at_copy(x, f->copy_k, f->buffer[B_K], at_ptr(x, x->args->k, x->k), keys);
  at_zero(x, f->buffer[B_K], keys, all, x->t.head);
  at_zero(x, f->buffer[B_DK], zero, all, x->t.head);
  at_zero(x, f->buffer[B_DV], zero, all, x->t.value);
}

/* D and lse of the rows; a row without scores gets lse = inf, so that its p are 0. */
static void row_sums(Backward *f) {
  Attention *x = &f->x;
  LLVMBuilderRef b = x->g->b;
  GenLoop l;
  gen_loop_begin(x->g, at_i64(x, 0), f->rows, 1, &l);
  V sum = at_const(x, 0), d_o = line(x, f->buffer[B_DO], l.i, x->t.value),
    o = line(x, f->buffer[B_O], l.i, x->t.value);
  for (int64_t i = 0; i < x->t.value; i += ATTENTION_LANES) {
    V a = at_load(x, at_ptr(x, d_o, at_i64(x, i))), c = at_load(x, at_ptr(x, o, at_i64(x, i)));
    sum = gen_intrinsic(x->g, "llvm.fma", &x->vt, 1, (V[]){a, c, sum}, 3);
  }
  LLVMBuildStore(b, at_sum(x, sum), at_ptr(x, f->buffer[B_SUM], l.i));
  V lse = at_get(x, memory(x, x->args->lse, x->l, at_add(x, f->row_lo, l.i), x->s->row.l));
  LLVMBuildStore(b, at_finite(x, lse, INFINITY), at_ptr(x, f->buffer[B_MAX], l.i));
  gen_loop_end(x->g, &l);
}

static void load_rows(Backward *f) {
  Attention *x = &f->x;
  const AttentionSpec *s = x->s;
  V all = at_i64(x, x->t.rows), zero = at_i64(x, 0);
  at_copy(x, f->copy_q, f->buffer[B_Q], memory(x, x->args->q, x->q, f->row_lo, s->row.q), f->rows);
  at_copy(x, f->copy_do, f->buffer[B_DO], memory(x, x->args->d_o, x->d_o, f->row_lo, s->row.d_o), f->rows);
  at_copy(x, f->copy_o, f->buffer[B_O], memory(x, x->args->o, x->o, f->row_lo, s->row.o), f->rows);
  at_zero(x, f->buffer[B_Q], f->rows, all, x->t.head);
  at_zero(x, f->buffer[B_DO], f->rows, all, x->t.value);
  at_zero(x, f->buffer[B_DQ], zero, all, x->t.head);
  row_sums(f);
}

/* p in place of raw, draw in place of do . v: one vector. */
static void pair(Attention *x, V ps, V pd, V lse, V d) {
  LLVMBuilderRef b = x->g->b;
  V zero = at_const(x, 0), s, slope = NULL;
  x->score->score(x->score->ctx, &x->at, at_load(x, ps), &s, &slope);
  V p = gen_exp(x->g, LLVMBuildFSub(b, s, lse, ""));
  if (x->at.mask)
    p = LLVMBuildSelect(b, x->at.mask, p, zero, "");
  V t = LLVMBuildFMul(b, p, LLVMBuildFSub(b, at_load(x, pd), d, ""), "");
  V off = LLVMBuildFCmp(b, LLVMRealOEQ, p, zero, "");
  at_store(x, LLVMBuildSelect(b, off, zero, LLVMBuildFMul(b, t, slope, ""), ""), pd);
  at_store(x, p, ps);
}

static void pair_rows(Backward *f, V key_lo, V count) {
  Attention *x = &f->x;
  LLVMBuilderRef b = x->g->b;
  GenLoop l, c;
  V all = at_i64(x, x->t.rows), keys = at_i64(x, x->t.keys), zero = at_i64(x, 0);
  V whole =
      LLVMBuildAnd(b, at_add(x, count, at_i64(x, ATTENTION_LANES - 1)), at_i64(x, -ATTENTION_LANES), "");
  gen_loop_begin(x->g, zero, f->rows, 1, &l);
  x->at.row_block = LLVMGetInsertBlock(b);
  x->at.row = at_add(x, f->row_lo, l.i);
  V s = line(x, f->buffer[B_S], l.i, x->t.keys), d = line(x, f->buffer[B_DS], l.i, x->t.keys);
  V lse = at_splat(x, at_get(x, at_ptr(x, f->buffer[B_MAX], l.i)));
  V sum = at_splat(x, at_get(x, at_ptr(x, f->buffer[B_SUM], l.i)));
  gen_loop_begin(x->g, zero, count, ATTENTION_LANES, &c);
  x->at.key = at_add(x, key_lo, c.i);
  x->at.mask = at_key_mask(x, x->at.key);
  pair(x, at_ptr(x, s, c.i), at_ptr(x, d, c.i), lse, sum);
  gen_loop_end(x->g, &c);
  at_zero(x, s, whole, keys, 1);
  at_zero(x, d, whole, keys, 1);
  gen_loop_end(x->g, &l);
  at_zero(x, f->buffer[B_S], f->rows, all, x->t.keys);
  at_zero(x, f->buffer[B_DS], f->rows, all, x->t.keys);
}

static void key_tile(Backward *f, V tile) {
  Attention *x = &f->x;
  V *u = f->buffer, lo = at_mul(x, tile, x->t.keys), count = at_key_count(x, lo);
  at_multiply(x, f->scores, u[B_Q], line(x, u[B_KT], lo, x->s->head.size), u[B_S], false);
  at_multiply(x, f->products, u[B_DO], line(x, u[B_V], lo, x->s->value.size), u[B_DS], false);
  pair_rows(f, lo, count);
  at_multiply(x, f->add_dv, u[B_S], u[B_DO], line(x, u[B_DV], lo, x->t.value), true);
  at_multiply(x, f->add_dk, u[B_DS], u[B_Q], line(x, u[B_DK], lo, x->t.head), true);
  at_multiply(x, f->add_dq, u[B_DS], line(x, u[B_K], lo, x->t.head), u[B_DQ], true);
}

static void row_tile(Backward *f, V tile) {
  Attention *x = &f->x;
  TileLoop l;
  f->row_lo = at_mul(x, tile, x->t.rows);
  f->rows = at_min(x, LLVMBuildSub(x->g->b, at_i64(x, x->s->row.size), f->row_lo, ""), x->t.rows);
  load_rows(f);
  at_tiles_begin(x, f->row_lo, f->rows, &l);
  key_tile(f, l.loop.i);
  at_tiles_end(x, &l);
  at_write(x, memory(x, x->args->dq, x->q, f->row_lo, x->s->row.q), f->buffer[B_DQ], f->rows, x->t.head,
           x->s->head.size, x->s->head.q, x->s->row.q);
}

static void head(Backward *f, V index) {
  Attention *x = &f->x;
  const AttentionSpec *s = x->s;
  GenLoop share, rows;
  at_outer(x, index);
  load_keys(f);
  Attention here = *x;
  gen_loop_begin(x->g, at_i64(x, 0), at_i64(x, attention_count(&s->share)), 1, &share);
  at_share(x, share.i);
  gen_loop_begin(x->g, at_i64(x, 0), at_i64(x, x->t.row_tiles), 1, &rows);
  row_tile(f, rows.i);
  gen_loop_end(x->g, &rows);
  gen_loop_end(x->g, &share);
  *x = here;
  V keys = at_i64(x, s->key.size);
  at_write(x, at_ptr(x, x->args->dk, x->k), f->buffer[B_DK], keys, x->t.head, s->head.size, s->head.k,
           s->key.k);
  at_write(x, at_ptr(x, x->args->dv, x->v), f->buffer[B_DV], keys, x->t.value, s->value.size, s->value.v,
           s->key.v);
}

static bool functions(Backward *f) {
  Attention *x = &f->x;
  const AttentionSpec *s = x->s;
  const AttentionTiles *t = &x->t;
  f->copy_q = at_copier(x, s->head.size, t->head, s->head.q, s->row.q);
  f->copy_o = at_copier(x, s->value.size, t->value, s->value.o, s->row.o);
  f->copy_do = at_copier(x, s->value.size, t->value, s->value.d_o, s->row.d_o);
  f->copy_k = at_copier(x, s->head.size, t->head, s->head.k, s->key.k);
  f->copy_kt = at_key_copier(x, s->head.k, s->key.k);
  f->copy_vt = at_key_copier(x, s->value.v, s->key.v);
  f->scores = at_product(x, t->rows, t->keys, s->head.size, t->head, 1);
  f->products = at_product(x, t->rows, t->keys, s->value.size, t->value, 1);
  f->add_dv = at_product(x, t->keys, t->value, t->rows, 1, t->keys);
  f->add_dk = at_product(x, t->keys, t->head, t->rows, 1, t->keys);
  f->add_dq = at_product(x, t->rows, t->head, t->keys, t->keys, 1);
  return f->scores && f->products && f->add_dv && f->add_dk && f->add_dq;
}

bool attention_backward(Gen *g, const AttentionSpec *s, const AttentionScore *score,
                        const AttentionArgs *args, Arena *arena, Error *err) {
  Backward f = {.x = attention_begin(g, s, score, args, arena, err)};
  Attention *x = &f.x;
  int64_t total, per = attention_task_size(s, true, &total);
  at_buffers(x, true, f.buffer);
  if (!functions(&f))
    return false;
  GenLoop l;
  gen_loop_begin(g, at_mul(x, args->lo, per), at_min(x, at_mul(x, args->hi, per), total), 1, &l);
  head(&f, l.i);
  gen_loop_end(g, &l);
  return true;
}
