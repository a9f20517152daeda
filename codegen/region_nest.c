/* region_nest.c: emits the nests of a region, one phase each. */
#include "codegen/region.h"

typedef struct {
  Emit *e;
  const Nest *n;
  Idx idx[IR_MAX_RANK];
  LLVMValueRef lane_lo, lane_hi; /* NULL: the whole lane loop */
  Range range;                   /* chunks > 1 */
  Idx chunk;
} NestEmit;

static const Type *val_type(Emit *e, Val v) {
  return &e->body->val[v].type;
}

/* Element visits of one pass over the nest, rows reduced inside counted. */
static int64_t nest_work(Emit *e, const Nest *n) {
  int64_t work = type_count(&n->loops);
  for (uint32_t i = 0; i < n->n_outs; i++)
    for (uint32_t r = 0; r < e->body->n_reds; r++)
      if (e->body->reads[n->out[i].v] >> r & 1) {
        int64_t c = type_count(val_type(e, e->body->op[e->body->red[r]].arg[0]));
        work = c > work && (!e->split[r].on || n->group >> r & 1) ? c : work;
      }
  return work;
}

/* ---- outputs ---- */

static LLVMValueRef out_pointer(NestEmit *ne, const NestOut *o) {
  Emit *e = ne->e;
  if (o->result != NONE)
    return e->out[o->result];
  at(e, e->root);
  return byte_offset(e, e->scratch, o->offset);
}

/* Computes, then stores, every output whose dims are the first `rank` loops: in this order results may
 * overwrite operands. */
static void store_level(NestEmit *ne, Scope *s, int rank) {
  Emit *e = ne->e;
  const Nest *n = ne->n;
  Type level = n->loops;
  level.rank = (uint8_t)rank;
  Ev *v = ARENA_ARRAY(e->arena, Ev, n->n_outs + 1);
  Idx map[IR_MAX_RANK];
  for (uint32_t i = 0; i < n->n_outs; i++) {
    const Type *t = val_type(e, n->out[i].v);
    if (!type_same_dims(t, &level))
      continue;
    operand_map(&level, ne->idx, t, map);
    if (!n->group) {
      v[i] = region_eval(e, n->out[i].v, map);
      continue;
    }
    for (int k = 0; k < t->rank; k++) /* as region_eval does */
      map[k] = t->dim[k].size == 1 ? idx_const(e, 0) : map[k];
    if (!memo_get(e, n->out[i].v, map, &v[i])) {
      reduce_group(e, n->out[i].red, map, n->chunks > 1 ? &ne->range : NULL, n->group);
      if (!e->failed)
        memo_get(e, n->out[i].v, map, &v[i]);
    }
  }
  for (uint32_t i = 0; i < n->n_outs && !e->failed; i++) {
    const Type *t = val_type(e, n->out[i].v);
    if (!type_same_dims(t, &level))
      continue;
    operand_map(&level, ne->idx, t, map);
    Idx lin = idx_linear(e, t, map);
    if (n->chunks > 1)
      lin = idx_sum(e, idx_scale(e, ne->chunk, type_count(t)), lin);
    store_at(e, out_pointer(ne, &n->out[i]), t->dtype, lin, v[i], s);
  }
}

/* The reductions of a row come before the loop that uses them, so that they can leave costly values for it.
 */
static void reduce_rows(NestEmit *ne) {
  Emit *e = ne->e;
  Type head = ne->n->loops;
  head.rank = (uint8_t)ne->n->n_p;
  for (uint32_t r = 0; r < e->body->n_reds && !ne->n->group; r++) {
    Val v = e->body->op[e->body->red[r]].result;
    Idx map[IR_MAX_RANK];
    if (!(e->want >> r & 1) || e->split[r].on || !type_same_dims(val_type(e, v), &head))
      continue;
    operand_map(&head, ne->idx, val_type(e, v), map);
    region_eval(e, v, map);
  }
}

/* ---- loops ---- */

static void levels(NestEmit *ne, Scope *s, int k);

static void lane_body(void *ctx, Scope *s, Idx i) {
  NestEmit *ne = ctx;
  ne->idx[ne->n->lane] = i;
  levels(ne, s, ne->n->lane + 1);
}

static void levels(NestEmit *ne, Scope *s, int k) {
  Emit *e = ne->e;
  const Nest *n = ne->n;
  if (k == n->n_p && n->n_p < n->loops.rank) {
    reduce_rows(ne);
    store_level(ne, s, k);
  }
  if (k == n->loops.rank) {
    store_level(ne, s, k);
  } else if (k == n->lane) {
    e->lanes = n->width;
    lane_loop(e, s, n->loops.dim[k].size, ne->lane_lo, ne->lane_hi, lane_body, ne);
    e->lanes = 16;
  } else if (k < n->n_p && n->chunks == 1) {
    levels(ne, s, k + 1); /* set by the task */
  } else {
    Loop l;
    loop_begin(e, s, i64c(e, 0), i64c(e, n->loops.dim[k].size), 1, &l);
    ne->idx[k] = idx_var(e, l.i, 0, 1, l.scope);
    levels(ne, l.scope, k + 1);
    loop_end(e, &l);
  }
}

/* ---- tasks ---- */

static LLVMValueRef times(Emit *e, LLVMValueRef a, int64_t c) {
  return LLVMBuildMul(e->b, a, i64c(e, c), "");
}

/* A task is a part of the reduced range; it leaves its partial results at chunk * count. */
static int64_t chunk_tasks(NestEmit *ne, LLVMValueRef lo, LLVMValueRef hi) {
  Emit *e = ne->e;
  const BodyOp *op = &e->body->op[e->body->red[ne->n->out[0].red]];
  int64_t outer = reduce_outer_count(e, op, ne->n->lane < 0), chunks = ne->n->chunks;
  Loop l;
  loop_begin(e, e->root, lo, hi, 1, &l);
  ne->chunk = idx_var(e, l.i, 0, 1, l.scope);
  int lane = reduce_lane_dim(e, op);
  int64_t size = lane < 0 || ne->n->lane >= 0 ? 1 : val_type(e, op->arg[0])->dim[lane].size;
  at(e, l.scope);
  LLVMValueRef next = LLVMBuildAdd(e->b, l.i, i64c(e, 1), "");
  ne->range = (Range){.lane_lo = i64c(e, 0), .lane_hi = i64c(e, size), .scope = l.scope};
  if (chunks <= outer) {
    int64_t per = (outer + chunks - 1) / chunks;
    ne->range.lo = times(e, l.i, per);
    ne->range.hi = min_i64(e, times(e, next, per), outer);
  } else {
    int64_t blocks = chunks / outer, block = ((size + blocks - 1) / blocks + 255) / 256 * 256;
    LLVMValueRef f = LLVMBuildUDiv(e->b, l.i, i64c(e, blocks), "");
    LLVMValueRef c = LLVMBuildSub(e->b, l.i, times(e, f, blocks), "");
    ne->range.lo = f;
    ne->range.hi = LLVMBuildAdd(e->b, f, i64c(e, 1), "");
    ne->range.lane_lo = times(e, c, block);
    ne->range.lane_hi = min_i64(e, LLVMBuildAdd(e->b, ne->range.lane_lo, i64c(e, block), ""), size);
  }
  levels(ne, l.scope, 0);
  loop_end(e, &l);
  return chunks;
}

/* A task is a run of the flattened parallel loops, the lane loop cut into blocks when the others are too few.
 */
static int64_t loop_tasks(NestEmit *ne, LLVMValueRef lo, LLVMValueRef hi) {
  Emit *e = ne->e;
  const Nest *n = ne->n;
  int64_t rows = 1, target = task_target(nest_work(e, n)), blocks = 1, block = 0;
  for (int k = 0; k < n->n_p; k++)
    rows *= k == n->lane ? 1 : n->loops.dim[k].size;
  if (n->lane >= 0 && n->lane < n->n_p && rows < target) {
    int64_t size = n->loops.dim[n->lane].size, unit = n->width > 64 ? n->width : 64;
    int64_t want = (target + rows - 1) / rows;
    block = ((size + want - 1) / want + unit - 1) / unit * unit;
    blocks = (size + block - 1) / block;
  }
  int64_t total = rows * blocks, per = (total + target - 1) / target;
  Loop l;
  at(e, e->root);
  LLVMValueRef first = times(e, lo, per), last = min_i64(e, times(e, hi, per), total);
  loop_begin(e, e->root, first, last, 1, &l);
  Idx rest = idx_var(e, l.i, 0, 1, l.scope), c;
  if (blocks > 1) {
    idx_divmod(e, rest, blocks, total, &rest, &c);
    at(e, l.scope);
    ne->lane_lo = times(e, c.base, block);
    ne->lane_hi = min_i64(e, LLVMBuildAdd(e->b, ne->lane_lo, i64c(e, block), ""), n->loops.dim[n->lane].size);
  }
  int64_t size = rows;
  for (int k = n->n_p; k-- > 0;)
    if (k != n->lane) {
      idx_divmod(e, rest, n->loops.dim[k].size, size, &rest, &ne->idx[k]);
      size /= n->loops.dim[k].size;
    }
  levels(ne, l.scope, 0);
  loop_end(e, &l);
  return (total + per - 1) / per;
}

static void emit_nest(Emit *e, RegionPlan *plan, const Nest *n) {
  LLVMValueRef lo, hi;
  NestEmit ne = {.e = e, .n = n};
  phase_begin(e, plan, &lo, &hi);
  e->want = 0;
  e->nest = n;
  for (uint32_t i = 0; i < n->n_outs; i++)
    e->want |= e->body->reads[n->out[i].v];
  e->want &= ~n->group;
  phase_end(e, plan, n->chunks > 1 ? chunk_tasks(&ne, lo, hi) : loop_tasks(&ne, lo, hi));
}

bool region_emit_nests(Emit *e, RegionPlan *plan) {
  Nest *nest;
  uint32_t n;
  if (!region_plan_nests(e, plan, &nest, &n))
    return false;
  for (uint32_t i = 0; i < n && !e->failed; i++)
    if (nest[i].contract != NONE)
      contract_emit(e, plan, &nest[i]);
    else
      emit_nest(e, plan, &nest[i]);
  return !e->failed;
}
