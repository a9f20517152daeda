/* gemm.c: the phases of a matrix product: packing of the shared operand, and tasks that pack their own panels
 * and run tiles. */
#include "codegen/gemm_plan.h"

LLVMTypeRef gemm_elem(Gen *g, const GemmPlan *p) {
  return p->elem == 8 ? LLVMDoubleTypeInContext(g->ctx) : LLVMFloatTypeInContext(g->ctx);
}

LLVMTypeRef gemm_vector(Gen *g, const GemmPlan *p, int lanes) {
  return lanes == 1 ? gemm_elem(g, p) : LLVMVectorType(gemm_elem(g, p), (unsigned)lanes);
}

V gemm_at(Gen *g, const GemmPlan *p, V base, V index) {
  return LLVMBuildGEP2(g->b, gemm_elem(g, p), base, &index, 1, "");
}

/* Offsets in the three matrices. */
typedef struct {
  V a, b, c, d[GEMM_ADDENDS];
} Offset;

typedef struct {
  Gen *g;
  GemmPlan *p;
  const GemmArgs *args;
  int64_t super_k;                  /* first k of this phase's part */
  V outer, outer_n, inner, inner_n; /* the block of k: first indices and counts */
  V k_start, k_n;                   /* in this phase's part; elements */
} Emit;

static V c64(Emit *e, int64_t v) {
  return gemm_i64(e->g, v);
}
static V plus(Emit *e, V a, V b) {
  return gemm_add(e->g, a, b);
}
static V times(Emit *e, V a, int64_t c) {
  return gemm_mul(e->g, a, c);
}
static V mul(Emit *e, V a, V b) {
  return LLVMBuildMul(e->g->b, a, b, "");
}
static V quotient(Emit *e, V a, int64_t c) {
  return LLVMBuildUDiv(e->g->b, a, c64(e, c), "");
}
static V modulo(Emit *e, V a, int64_t c) {
  return LLVMBuildURem(e->g->b, a, c64(e, c), "");
}
static V at(Emit *e, V base, V index) {
  return gemm_at(e->g, e->p, base, index);
}

static V minimum(Emit *e, V a, V b) {
  return LLVMBuildSelect(e->g->b, LLVMBuildICmp(e->g->b, LLVMIntSLT, a, b, ""), a, b, "");
}

static Offset none(Emit *e) {
  Offset o = {c64(e, 0), c64(e, 0), c64(e, 0), {NULL}};
  for (int i = 0; i < GEMM_ADDENDS; i++)
    o.d[i] = c64(e, 0);
  return o;
}

static Offset step(Emit *e, Offset o, V index, GemmDim d) {
  o.a = plus(e, o.a, times(e, index, d.a));
  o.b = plus(e, o.b, times(e, index, d.b));
  o.c = plus(e, o.c, times(e, index, d.c));
  for (int i = 0; i < e->p->spec.addends; i++)
    o.d[i] = plus(e, o.d[i], times(e, index, d.d[i]));
  return o;
}

/* Adds the offsets of a flattened index. */
static Offset offset(Emit *e, Offset o, const GemmDims *d, V index) {
  for (int i = d->n; i-- > 0; index = quotient(e, index, d->dim[i].size))
    o = step(e, o, i ? modulo(e, index, d->dim[i].size) : index, d->dim[i]);
  return o;
}

/* ---- panels ---- */

typedef struct {
  V outer, inner, last; /* outer index, panel within it, i1: the short one; NULL: there is none */
} Panel;

static Panel panel(Emit *e, const GemmSide *s, V index) {
  Panel r = {index, c64(e, 0), NULL};
  if (s->per_outer > 1) {
    r.outer = s->outer_size == 1 ? c64(e, 0) : quotient(e, index, s->per_outer);
    r.inner = s->outer_size == 1 ? index : modulo(e, index, s->per_outer);
  }
  if (s->tail)
    r.last = LLVMBuildICmp(e->g->b, LLVMIntEQ, r.inner, c64(e, s->per_outer - 1), "");
  return r;
}

static Offset panel_offset(Emit *e, const GemmSide *s, Panel q, Offset o) {
  o = offset(e, o, &s->outer, q.outer);
  return step(e, o, times(e, q.inner, s->width), s->inner);
}

/* Position along the side, as packed; times k elements. */
static V packed_position(Emit *e, const GemmSide *s, Panel q) {
  return plus(e, times(e, q.outer, s->padded), times(e, q.inner, s->width));
}

/* Runs `then` or `otherwise`: calls of fn[0] or fn[1] with the same arguments. */
static void call_either(Emit *e, V cond, LLVMTypeRef type, V no, V yes, V *arg, unsigned n) {
  LLVMBuilderRef b = e->g->b;
  if (!cond) {
    LLVMBuildCall2(b, type, no, arg, n, "");
    return;
  }
  LLVMBasicBlockRef y = gen_block(e->g, "last"), f = gen_block(e->g, "full"), after = gen_block(e->g, "join");
  LLVMBuildCondBr(b, cond, y, f);
  LLVMPositionBuilderAtEnd(b, y);
  LLVMBuildCall2(b, type, yes, arg, n, "");
  LLVMBuildBr(b, after);
  LLVMPositionBuilderAtEnd(b, f);
  LLVMBuildCall2(b, type, no, arg, n, "");
  LLVMBuildBr(b, after);
  LLVMPositionBuilderAtEnd(b, after);
}

/* Packs a panel of this block of k to `to`. */
static void pack(Emit *e, const GemmSide *s, Panel q, Offset batch, V to) {
  GemmPlan *p = e->p;
  bool is_a = s == &p->a;
  V base = is_a ? e->args->a : e->args->b;
  Offset o = panel_offset(e, s, q, batch);
  GenLoop l;
  gen_loop_begin(e->g, c64(e, 0), e->outer_n, 1, &l);
  o = offset(e, o, &p->k_outer, plus(e, e->outer, l.i));
  o = step(e, o, e->inner, p->k_inner);
  V width = c64(e, s->width);
  if (q.last)
    width = LLVMBuildSelect(e->g->b, q.last, c64(e, s->tail_padded), width, "");
  V dest = at(e, to, mul(e, mul(e, l.i, e->inner_n), width));
  call_either(e, q.last, p->pack_type, s->pack[0], s->pack[1],
              (V[]){dest, at(e, base, is_a ? o.a : o.b), e->inner_n}, 3);
  gen_loop_end(e->g, &l);
}

/* ---- blocks of k ---- */

static void block(Emit *e, V index) {
  const GemmPlan *p = e->p;
  e->outer = times(e, p->blocks_per_outer == 1 ? index : quotient(e, index, p->blocks_per_outer),
                   p->outer_per_block);
  e->inner = p->blocks_per_outer == 1 ? c64(e, 0)
                                      : times(e, modulo(e, index, p->blocks_per_outer), p->inner_per_block);
  V outer_left = LLVMBuildSub(e->g->b, c64(e, p->k_outer_size), e->outer, "");
  V inner_left = LLVMBuildSub(e->g->b, c64(e, p->k_inner.size), e->inner, "");
  e->outer_n = minimum(e, outer_left, c64(e, p->outer_per_block));
  e->inner_n = minimum(e, inner_left, c64(e, p->inner_per_block));
  e->k_n = mul(e, e->outer_n, e->inner_n);
  e->k_start = plus(e, plus(e, times(e, e->outer, p->k_inner.size), e->inner), c64(e, -e->super_k));
}

static int64_t first_k(const GemmPlan *p, int64_t blocks) {
  return blocks / p->blocks_per_outer * p->outer_per_block * p->k_inner.size +
         blocks % p->blocks_per_outer * p->inner_per_block;
}

/* Where a panel of the shared operand is: blocks of k one after another, in each all panels. */
static V shared_at(Emit *e, const GemmSide *s, V batch, Panel q) {
  const GemmPlan *p = e->p;
  int64_t k = p->k_size < p->blocks_per_super * p->block_k ? p->k_size : p->blocks_per_super * p->block_k;
  int64_t side = s->outer_size * s->padded;
  V o = times(e, batch, side * k);
  o = plus(e, o, times(e, e->k_start, side));
  return at(e, e->args->scratch, plus(e, o, mul(e, packed_position(e, s, q), e->k_n)));
}

static void pack_phase(Emit *e, int64_t first_block, int64_t blocks) {
  const GemmPlan *p = e->p;
  const GemmSide *s = p->a.shared ? &p->a : &p->b;
  V units = c64(e, p->batches * s->panels * blocks);
  GenLoop l;
  gen_loop_begin(e->g, times(e, e->args->lo, p->units_per_pack),
                 minimum(e, times(e, e->args->hi, p->units_per_pack), units), 1, &l);
  V rest = quotient(e, l.i, s->panels);
  Panel q = panel(e, s, modulo(e, l.i, s->panels));
  V batch = quotient(e, rest, blocks);
  block(e, plus(e, modulo(e, rest, blocks), c64(e, first_block)));
  pack(e, s, q, offset(e, none(e), &p->spec.batch, batch), shared_at(e, s, batch, q));
  gen_loop_end(e->g, &l);
}

/* ---- tasks ---- */

typedef struct {
  V batch, lo[2], hi[2], from[2]; /* panels of a and b; where own packed panels are */
  Offset offset;
} Unit;

static Unit unit(Emit *e, V index) {
  const GemmPlan *p = e->p;
  Unit u = {0};
  V rest = quotient(e, index, p->a.chunks);
  u.lo[0] = times(e, modulo(e, index, p->a.chunks), p->a.chunk);
  u.lo[1] = times(e, modulo(e, rest, p->b.chunks), p->b.chunk);
  u.batch = quotient(e, rest, p->b.chunks);
  u.hi[0] = minimum(e, plus(e, u.lo[0], c64(e, p->a.chunk)), c64(e, p->a.panels));
  u.hi[1] = minimum(e, plus(e, u.lo[1], c64(e, p->b.chunk)), c64(e, p->b.panels));
  u.from[0] = e->args->thread_scratch;
  u.from[1] = e->args->thread_scratch;
  if (p->thread_b)
    u.from[1] = at(e, u.from[1], c64(e, p->thread_b / p->elem));
  u.offset = offset(e, none(e), &p->spec.batch, u.batch);
  return u;
}

/* Own panels are packed at full width each. */
static V own_at(Emit *e, const GemmSide *s, const Unit *u, int which, V index) {
  V n = LLVMBuildSub(e->g->b, index, u->lo[which], "");
  return at(e, u->from[which], mul(e, times(e, n, s->width), e->k_n));
}

static void pack_own(Emit *e, const GemmSide *s, const Unit *u, int which) {
  GenLoop l;
  if (s->direct || s->shared)
    return;
  gen_loop_begin(e->g, u->lo[which], u->hi[which], 1, &l);
  pack(e, s, panel(e, s, l.i), u->offset, own_at(e, s, u, which, l.i));
  gen_loop_end(e->g, &l);
}

static V operand(Emit *e, const GemmSide *s, const Unit *u, int which, V index, Panel q, Offset o) {
  if (s->shared)
    return shared_at(e, s, u->batch, q);
  if (!s->direct)
    return own_at(e, s, u, which, index);
  o = step(e, o, e->inner, e->p->k_inner);
  return at(e, which ? e->args->b : e->args->a, which ? o.b : o.a);
}

/* Panels of b outside: one stays near while those of a pass. */
static void tiles(Emit *e, const Unit *u, V add, V finish) {
  GemmPlan *p = e->p;
  GenLoop lb, la;
  gen_loop_begin(e->g, u->lo[1], u->hi[1], 1, &lb);
  Panel qb = panel(e, &p->b, lb.i);
  Offset ob = panel_offset(e, &p->b, qb, u->offset);
  V b = operand(e, &p->b, u, 1, lb.i, qb, ob);
  gen_loop_begin(e->g, u->lo[0], u->hi[0], 1, &la);
  Panel qa = panel(e, &p->a, la.i);
  Offset o = panel_offset(e, &p->a, qa, ob);
  V arg[] = {
      operand(e, &p->a, u, 0, la.i, qa, o), b, at(e, e->args->c, o.c), e->k_n, add, finish, NULL, NULL};
  for (int i = 0; i < p->spec.addends; i++)
    arg[MICRO_ARGS + i] = at(e, e->args->d[i], o.d[i]);
  V full = p->micro[0][0], last = p->micro[1][0];
  if (qb.last) {
    LLVMBuilderRef bd = e->g->b;
    full = LLVMBuildSelect(bd, qb.last, p->micro[0][1], full, "");
    last = qa.last ? LLVMBuildSelect(bd, qb.last, p->micro[1][1], last, "") : NULL;
  }
  call_either(e, qa.last, p->micro_type, full, last, arg, MICRO_ARGS + (unsigned)p->spec.addends);
  gen_loop_end(e->g, &la);
  gen_loop_end(e->g, &lb);
}

static void compute_phase(Emit *e, int64_t first_block, int64_t blocks) {
  GemmPlan *p = e->p;
  GenLoop l, kb;
  gen_loop_begin(e->g, times(e, e->args->lo, p->task_units),
                 minimum(e, times(e, e->args->hi, p->task_units), c64(e, p->units)), 1, &l);
  Unit u = unit(e, l.i);
  gen_loop_begin(e->g, c64(e, first_block), c64(e, first_block + blocks), 1, &kb);
  block(e, kb.i);
  pack_own(e, &p->a, &u, 0);
  pack_own(e, &p->b, &u, 1);
  V add = p->spec.accumulate ? LLVMConstInt(LLVMInt1TypeInContext(e->g->ctx), 1, false)
                             : LLVMBuildICmp(e->g->b, LLVMIntNE, kb.i, c64(e, 0), "");
  tiles(e, &u, add, LLVMBuildICmp(e->g->b, LLVMIntEQ, kb.i, c64(e, p->blocks - 1), ""));
  gen_loop_end(e->g, &kb);
  gen_loop_end(e->g, &l);
}

void gemm_emit(Gen *g, GemmPlan *p, int phase, const GemmArgs *args) {
  bool shared = p->a.shared || p->b.shared;
  int64_t super = shared ? phase / 2 : phase, first = super * p->blocks_per_super;
  int64_t blocks = p->blocks - first < p->blocks_per_super ? p->blocks - first : p->blocks_per_super;
  Emit e = {.g = g, .p = p, .args = args, .super_k = first_k(p, first)};
  if (phase == 0) {
    gemm_pack_functions(g, p);
    gemm_micro_functions(g, p);
  }
  if (shared && phase % 2 == 0)
    pack_phase(&e, first, blocks);
  else
    compute_phase(&e, first, blocks);
}

/* ---- small products ---- */

LLVMTypeRef gemm_tile_type(Gen *g) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0),
              arg[] = {ptr, ptr, ptr, LLVMInt1TypeInContext(g->ctx)};
  return LLVMFunctionType(LLVMVoidTypeInContext(g->ctx), arg, 4, false);
}

LLVMValueRef gemm_tile(Gen *g, const GemmSpec *spec, Arena *arena, Error *err) {
  GemmPlan *p = gemm_plan_tile(spec, g->lanes, arena, err);
  if (!p)
    return NULL;
  LLVMBasicBlockRef here = LLVMGetInsertBlock(g->b);
  V fn = LLVMAddFunction(g->mod, "tile", gemm_tile_type(g));
  LLVMSetLinkage(fn, LLVMInternalLinkage);
  gen_function_attributes(g, fn);
  gemm_micro_functions(g, p);
  LLVMPositionBuilderAtEnd(g->b, LLVMAppendBasicBlockInContext(g->ctx, fn, "entry"));
  GemmArgs args = {.a = LLVMGetParam(fn, 0), .b = LLVMGetParam(fn, 1), .c = LLVMGetParam(fn, 2)};
  Emit e = {.g = g, .p = p, .args = &args};
  block(&e, c64(&e, 0));
  Unit u = {.batch = c64(&e, 0), .offset = none(&e)};
  u.lo[0] = u.lo[1] = c64(&e, 0);
  u.hi[0] = c64(&e, p->a.panels);
  u.hi[1] = c64(&e, p->b.panels);
  tiles(&e, &u, LLVMGetParam(fn, 3), LLVMConstInt(LLVMInt1TypeInContext(g->ctx), 1, false));
  LLVMBuildRetVoid(g->b);
  LLVMPositionBuilderAtEnd(g->b, here);
  return fn;
}
