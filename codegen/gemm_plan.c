/* gemm_plan.c: how a matrix product is cut into panels, blocks of k and tasks. Only speed depends on these
 * choices, never bits. */
#include "codegen/gemm_plan.h"

static const int64_t BLOCK_K = 384; /* f32 steps of k in a block */
static const int64_t THREAD_LIMIT =
    512 << 10; /* bytes of packed panels of a task: they stay in the second-level cache */
static const int64_t SCRATCH_LIMIT = 4 << 20;  /* bytes of the shared operand */
static const int64_t SMALL_OPERAND = 16 << 10; /* bytes that stay in the first-level cache */
static const int64_t LINE = 256;               /* bytes side by side that a task should read of an operand */
static const int64_t CACHE_LINE = 64;
static const int64_t FAR = 8 << 20; /* a shared operand so large comes from memory again for each task */
static const double TASK_FLOPS = 2e6;
enum { MANY_TASKS = 64, FEW_TASKS = 16, MAX_SUPERS = 40 };

static int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static bool product(const GemmDims *d, int64_t *out) {
  *out = 1;
  for (int i = 0; i < d->n; i++)
    if (!size_mul(*out, d->dim[i].size, out))
      return false;
  return true;
}

static bool one_run(const GemmDim *out, const GemmDim *in) {
  bool ok = out->a == in->a * in->size && out->b == in->b * in->size && out->c == in->c * in->size;
  for (int i = 0; i < GEMM_ADDENDS; i++)
    ok = ok && out->d[i] == in->d[i] * in->size;
  return ok;
}

/* Drops dims of size 1 and joins neighbours that are one run in all matrices. */
static void normalize(GemmDims *d) {
  int n = 0;
  for (int i = 0; i < d->n; i++) {
    GemmDim x = d->dim[i], *up = n ? &d->dim[n - 1] : NULL;
    if (x.size == 1)
      continue;
    if (up && one_run(up, &x)) {
      x.size *= up->size;
      *up = x;
    } else {
      d->dim[n++] = x;
    }
  }
  d->n = n;
}

/* Takes dim `i` out; without any dims, one of size 1. */
static GemmDim take(GemmDims *d, int i) {
  if (!d->n)
    return (GemmDim){.size = 1};
  GemmDim r = d->dim[i];
  d->n--;
  for (; i < d->n; i++)
    d->dim[i] = d->dim[i + 1];
  return r;
}

/* The dim of columns that vectors run along. */
static GemmDim take_columns(GemmDims *d) {
  for (int i = d->n; i-- > 0;)
    if (d->dim[i].c == 1)
      return take(d, i);
  return (GemmDim){.size = 1};
}

static int widest(const GemmDims *d) {
  int w = 0;
  for (int i = 0; i < d->n; i++)
    w = d->dim[i].size > d->dim[w].size ? i : w;
  return w;
}

static void cut_panels(GemmSide *s, int64_t width, int64_t round) {
  s->width = smaller(width, ceil_div(s->inner.size, round) * round);
  s->tail = s->inner.size % s->width;
  s->tail_padded = ceil_div(s->tail, round) * round;
  s->per_outer = ceil_div(s->inner.size, s->width);
  s->padded = s->inner.size / s->width * s->width + s->tail_padded;
  s->panels = s->outer_size * s->per_outer;
}

/* Tile: as many accumulators as registers allow beside a row of B and one broadcast. */
static void choose_tile(GemmPlan *p, int f32_lanes, int64_t few) {
  int64_t vectors = ceil_div(p->b.inner.size, p->lanes), rows;
  if (f32_lanes >= 16) {
    p->vectors = vectors == 1 ? 1 : vectors == 2 || vectors == 4 ? 2 : 3;
    rows = p->vectors == 1 ? 16 : p->vectors == 2 ? 12 : 8;
  } else {
    p->vectors = vectors == 1 ? 1 : 2;
    rows = p->vectors == 1 ? 8 : 6;
  }
  int64_t m = p->a.inner.size;
  if (ceil_div(m, rows) <= few) /* few tiles: of equal height */
    rows = ceil_div(m, ceil_div(m, rows));
  cut_panels(&p->b, (int64_t)p->vectors * p->lanes, p->lanes);
  cut_panels(&p->a, rows, 1);
}

int64_t gemm_in_place_k(DType d) {
  return dtype_bytes(d) == 4 ? BLOCK_K : BLOCK_K / 2;
}

static void cut_k(GemmPlan *p) {
  int64_t limit = gemm_in_place_k(p->spec.dtype), inner = p->k_inner.size;
  p->outer_per_block = 1;
  p->inner_per_block = inner;
  if (inner > limit) {
    p->inner_per_block = ceil_div(ceil_div(inner, ceil_div(inner, limit)), 16) * 16;
    p->blocks_per_outer = ceil_div(inner, p->inner_per_block);
    p->blocks = p->k_outer_size * p->blocks_per_outer;
  } else {
    p->outer_per_block = smaller(limit / inner, p->k_outer_size);
    p->blocks_per_outer = 1;
    p->blocks = ceil_div(p->k_outer_size, p->outer_per_block);
  }
  p->block_k = p->outer_per_block * p->inner_per_block;
}

static int64_t side_bytes(const GemmPlan *p, const GemmSide *s) {
  return s->outer_size * s->padded * p->k_size * p->elem;
}

/* Packing pays when panels are read often or from bad places. */
static void choose_direct(GemmPlan *p) {
  bool plain = p->k_outer_size == 1;
  bool a_small = side_bytes(p, &p->a) <= SMALL_OPERAND, b_small = side_bytes(p, &p->b) <= SMALL_OPERAND;
  p->a.direct = plain && (a_small || (p->b.panels <= 3 && p->a.k_stride == 1));
  p->b.direct = plain && p->b.unit_stride == 1 && (b_small || p->a.panels <= 2);
}

static void cut_chunks(const GemmPlan *p, GemmSide *s, int64_t wanted) {
  int64_t bytes = s->width * p->block_k * p->elem, limit = larger(1, THREAD_LIMIT / bytes);
  int64_t least = 1, whole = 1; /* panels that make up LINE, and one line of the cache */
  if (s->unit_stride == 1) {
    least = ceil_div(LINE, s->width * p->elem);
    whole = ceil_div(CACHE_LINE, s->width * p->elem);
  }
  int64_t chunk =
      larger(ceil_div(s->panels, larger(wanted, 1)), larger(whole, smaller(least, s->panels / FEW_TASKS)));
  s->chunk = larger(1, smaller(chunk, limit));
  s->chunks = ceil_div(s->panels, s->chunk);
}

/* The longer side (of two about as long, the one with more panels) is cut into tasks; the other one is packed
 * once for all of them, or by each task where there are many products. */
static void cut_tasks(GemmPlan *p) {
  int64_t m = p->a.outer_size * p->a.inner.size, n = p->b.outer_size * p->b.inner.size;
  double flops = 2.0 * (double)m * (double)n * (double)p->k_size;
  bool rows = m > n || (p->b.panels < FEW_TASKS && p->a.panels > p->b.panels && 4 * m > n);
  GemmSide *own = rows ? &p->a : &p->b, *other = rows ? &p->b : &p->a;
  double tasks = flops * (double)p->batches / TASK_FLOPS;
  int64_t wanted = tasks > MANY_TASKS ? MANY_TASKS : (int64_t)tasks;
  if (p->batches * side_bytes(p, other) > FAR)
    wanted = smaller(wanted, FEW_TASKS / 2);
  int64_t each = ceil_div(wanted, p->batches), few = ceil_div(smaller(wanted, FEW_TASKS), p->batches);
  cut_chunks(p, own, each);
  other->chunk = other->panels;
  other->chunks = 1;
  other->shared = !other->direct && own->chunks > 1 && p->batches < FEW_TASKS;
  if (!other->shared && !other->direct)
    cut_chunks(p, other, 1);
  if (own->chunks * other->chunks < few) {
    int64_t parts = smaller(ceil_div(few, own->chunks), other->panels);
    other->chunk = smaller(other->chunk, ceil_div(other->panels, parts));
    other->chunks = ceil_div(other->panels, other->chunk);
  }
  p->units = p->batches * own->chunks * other->chunks;
  double unit = flops / (double)(own->chunks * other->chunks);
  int64_t per = unit >= TASK_FLOPS ? 1 : (int64_t)(TASK_FLOPS / unit);
  p->task_units = larger(1, smaller(per, ceil_div(p->units, 8)));
}

static int64_t align(int64_t n) {
  return ceil_div(n, 64) * 64;
}

static void lay_out(GemmPlan *p) {
  int64_t bytes[2] = {0, 0};
  GemmSide *side[2] = {&p->a, &p->b};
  p->supers = 1;
  for (int i = 0; i < 2; i++) {
    GemmSide *s = side[i];
    if (s->shared) {
      int64_t all = p->batches * side_bytes(p, s);
      p->supers = smaller(smaller(ceil_div(all, SCRATCH_LIMIT), MAX_SUPERS), p->blocks);
      p->blocks_per_super = ceil_div(p->blocks, p->supers);
      p->supers = ceil_div(p->blocks, p->blocks_per_super);
      int64_t k = smaller(p->blocks_per_super * p->block_k, p->k_size);
      p->scratch = align(p->batches * s->outer_size * s->padded * k * p->elem);
      p->pack_units = p->batches * s->panels * p->blocks_per_super;
      p->units_per_pack = larger(1, p->pack_units / MANY_TASKS);
    } else if (!s->direct) {
      bytes[i] = align(s->chunk * larger(s->width, s->tail_padded) * p->block_k * p->elem);
    }
  }
  if (p->supers == 1)
    p->blocks_per_super = p->blocks;
  p->thread_b = bytes[0];
  p->thread_scratch = bytes[0] + bytes[1];
}

static bool sizes_ok(const GemmSpec *s) {
  int64_t b, m, n, k, x;
  return product(&s->batch, &b) && product(&s->m, &m) && product(&s->n, &n) && product(&s->k, &k) && b > 0 &&
         m > 0 && n > 0 && k > 0 && size_mul(b, 64, &b) && size_mul(m, 64, &m) && size_mul(n, 64, &n) &&
         size_mul(b, m, &x) && size_mul(x, k, &x) && size_mul(b, n, &x) && size_mul(x, k, &x) &&
         size_mul(b, m, &x) && size_mul(x, n, &x);
}

static GemmPlan *describe(const GemmSpec *spec, int f32_lanes, Arena *arena, Error *err) {
  if (!sizes_ok(spec)) {
    error_set(err, ERR_INPUT, "a matrix product of this size does not fit into memory");
    return NULL;
  }
  GemmPlan *p = ARENA_NEW(arena, GemmPlan);
  p->spec = *spec;
  p->elem = (int64_t)dtype_bytes(spec->dtype);
  p->lanes = spec->dtype == DT_F64 ? f32_lanes / 2 : f32_lanes;
  normalize(&p->spec.batch);
  normalize(&p->spec.m);
  normalize(&p->spec.n);
  normalize(&p->spec.k);
  p->k_outer = p->spec.k;
  p->k_inner = take(&p->k_outer, p->k_outer.n - 1);
  p->a.outer = p->spec.m;
  p->a.inner = take(&p->a.outer, widest(&p->a.outer));
  p->b.outer = p->spec.n;
  p->b.inner = take_columns(&p->b.outer);
  product(&p->spec.batch, &p->batches);
  product(&p->k_outer, &p->k_outer_size);
  product(&p->a.outer, &p->a.outer_size);
  product(&p->b.outer, &p->b.outer_size);
  p->k_size = p->k_outer_size * p->k_inner.size;
  p->a.unit_stride = p->a.inner.a;
  p->a.k_stride = p->k_inner.a;
  p->b.unit_stride = p->b.inner.size == 1 ? 1 : p->b.inner.b;
  p->b.k_stride = p->k_inner.b;
  return p;
}

GemmPlan *gemm_plan(const GemmSpec *spec, int f32_lanes, Arena *arena, Error *err) {
  GemmPlan *p = describe(spec, f32_lanes, arena, err);
  if (!p)
    return NULL;
  choose_tile(p, f32_lanes, 4);
  cut_k(p);
  choose_direct(p);
  cut_tasks(p);
  lay_out(p);
  return p;
}

GemmPlan *gemm_plan_tile(const GemmSpec *spec, int f32_lanes, Arena *arena, Error *err) {
  GemmPlan *p = describe(spec, f32_lanes, arena, err);
  if (!p)
    return NULL;
  choose_tile(p, f32_lanes, INT64_MAX);
  p->block_k = p->inner_per_block = p->k_inner.size;
  p->outer_per_block = p->blocks_per_outer = p->blocks = 1;
  p->a.direct = p->b.direct = true;
  return p;
}

int gemm_phases(const GemmPlan *p) {
  return (int)(p->supers * (p->a.shared || p->b.shared ? 2 : 1));
}

int64_t gemm_tasks(const GemmPlan *p, int phase) {
  if ((p->a.shared || p->b.shared) && phase % 2 == 0)
    return ceil_div(p->pack_units, p->units_per_pack);
  return ceil_div(p->units, p->task_units);
}

int64_t gemm_scratch(const GemmPlan *p) {
  return p->scratch;
}
int64_t gemm_thread_scratch(const GemmPlan *p) {
  return p->thread_scratch;
}
