/* region_reduce.c: reductions on demand. With a uniform map the lanes run along the last reduced axis (16
 * accumulators and a fixed tree); with a map that varies by lane each lane reduces its own element, in order.
 */
#include "codegen/region.h"

#include <math.h>
#include <string.h>

#define ROW_LANES 16
#define MAX_GROUP 16

typedef struct {
  const BodyOp *op;
  LLVMValueRef acc, index; /* slots; index for ARGMAX only */
} Member;

typedef struct {
  Emit *e;
  Member member[MAX_GROUP];
  int n;
  Type full; /* dims of the map, then the reduced ones */
  Idx idx[IR_MAX_RANK];
  int lane; /* position in full of the lane axis, -1: none */
  Scope *scope;
  bool vector; /* accumulators are vectors */
  uint32_t pass;
  bool *later; /* values worth keeping for a later pass over the row; NULL: none */
} Group;

static DType operand_dtype(Emit *e, const BodyOp *op) {
  return e->body->val[op->arg[0]].type.dtype;
}

static bool reduces(const BodyOp *op, Axis a) {
  for (uint32_t i = 0; i < op->attr.n_axis; i++)
    if (op->attr.axis[i] == a)
      return true;
  return false;
}

bool reduce_same_axes(const BodyOp *a, const BodyOp *b) {
  bool same = a->attr.n_axis == b->attr.n_axis;
  for (uint32_t i = 0; same && i < a->attr.n_axis; i++)
    same = reduces(b, a->attr.axis[i]);
  return same;
}

int reduce_lane_dim(const Emit *e, const BodyOp *op) {
  const Body *b = e->body;
  const Type *xt = &b->val[op->arg[0]].type;
  int lane = -1;
  for (int i = 0; i < xt->rank; i++)
    if (reduces(op, xt->dim[i].axis))
      lane = i;
  for (uint32_t r = 0; lane >= 0 && r < b->n_reds; r++)
    if ((b->reads[op->arg[0]] >> r & 1) && !e->split[r].on &&
        type_has(&b->val[b->op[b->red[r]].result].type, xt->dim[lane].axis))
      return -1; /* an inner reduction per lane would walk its rows side by side */
  return lane;
}

int64_t reduce_outer_count(const Emit *e, const BodyOp *op, bool row) {
  const Type *xt = &e->body->val[op->arg[0]].type;
  int lane = row ? reduce_lane_dim(e, op) : -1;
  int64_t n = 1;
  for (int i = 0; i < xt->rank; i++)
    if (i != lane && reduces(op, xt->dim[i].axis))
      n *= xt->dim[i].size;
  return n;
}

static double identity(OpCode c, DType d) {
  bool low = c == OP_REDUCE_MAX || c == OP_ARGMAX;
  if (c == OP_SUM)
    return 0;
  if (c == OP_PROD)
    return 1;
  switch (d) {
  case DT_I32: return low ? INT32_MIN : INT32_MAX;
  case DT_U8: return low ? 0 : UINT8_MAX;
  case DT_BOOL: return low ? 0 : 1;
  default: return low ? -INFINITY : INFINITY;
  }
}

static LLVMValueRef identity_of(Group *g, const BodyOp *op) {
  Emit *e = g->e;
  DType d = operand_dtype(e, op);
  LLVMValueRef c = const_elem(e, d == DT_I64 ? DT_F64 : d, identity(op->code, d));
  if (d == DT_I64) {
    int64_t v = op->code == OP_SUM          ? 0
                : op->code == OP_PROD       ? 1
                : op->code == OP_REDUCE_MIN ? INT64_MAX
                                            : INT64_MIN;
    c = i64c(e, v);
  }
  LLVMValueRef lane[64];
  for (int i = 0; i < e->lanes; i++)
    lane[i] = c;
  return g->vector ? LLVMConstVector(lane, (unsigned)e->lanes) : c;
}

static LLVMValueRef combine(Emit *e, OpCode c, DType d, LLVMValueRef x, LLVMValueRef y, bool vector) {
  OpCode op = c == OP_SUM ? OP_ADD : c == OP_PROD ? OP_MUL : c == OP_REDUCE_MAX ? OP_MAX : OP_MIN;
  return pointwise(e, op, (LLVMValueRef[]){x, y}, d, d, vector);
}

static LLVMValueRef int_like(Emit *e, LLVMValueRef like, int32_t v) {
  LLVMTypeRef t = LLVMTypeOf(like);
  LLVMValueRef c = LLVMConstInt(LLVMInt32TypeInContext(e->ctx), (unsigned long long)v, true), lane[64];
  if (LLVMGetTypeKind(t) != LLVMVectorTypeKind)
    return c;
  unsigned n = LLVMGetVectorSize(t);
  for (unsigned i = 0; i < n; i++)
    lane[i] = c;
  return LLVMConstVector(lane, n);
}

void pick_step(Emit *e, DType d, bool largest, LLVMValueRef x, LLVMValueRef i, LLVMValueRef *best,
               LLVMValueRef *pos) {
  LLVMBuilderRef b = e->b;
  LLVMValueRef more, same, none = int_like(e, i, INT32_MAX);
  if (dtype_is_float(d)) {
    LLVMValueRef nx = LLVMBuildFCmp(b, LLVMRealUNO, x, x, ""),
                 nb = LLVMBuildFCmp(b, LLVMRealUNO, *best, *best, "");
    LLVMValueRef order = LLVMBuildFCmp(b, largest ? LLVMRealOGT : LLVMRealOLT, x, *best, "");
    LLVMValueRef nan = largest ? LLVMBuildAnd(b, nx, LLVMBuildNot(b, nb, ""), "")
                               : LLVMBuildAnd(b, nb, LLVMBuildNot(b, nx, ""), "");
    more = LLVMBuildOr(b, order, nan, "");
    same = LLVMBuildOr(b, LLVMBuildFCmp(b, LLVMRealOEQ, x, *best, ""), LLVMBuildAnd(b, nx, nb, ""), "");
  } else {
    bool u = d == DT_U8 || d == DT_BOOL;
    LLVMIntPredicate gt = u ? LLVMIntUGT : LLVMIntSGT, lt = u ? LLVMIntULT : LLVMIntSLT;
    more = LLVMBuildICmp(b, largest ? gt : lt, x, *best, "");
    same = LLVMBuildICmp(b, LLVMIntEQ, x, *best, "");
  }
  LLVMValueRef before = LLVMBuildICmp(b, LLVMIntSLT, i, *pos, "");
  LLVMValueRef better = LLVMBuildOr(b, more, LLVMBuildAnd(b, same, before, ""), "");
  better = LLVMBuildOr(b, better, LLVMBuildICmp(b, LLVMIntEQ, *pos, none, ""), "");
  LLVMValueRef take = LLVMBuildAnd(b, better, LLVMBuildICmp(b, LLVMIntNE, i, none, ""), "");
  *best = LLVMBuildSelect(b, take, x, *best, "");
  *pos = LLVMBuildSelect(b, take, i, *pos, "");
}

/* The position along the reduced axis, as i32 lanes or scalar, at the builder's scope s. */
static LLVMValueRef argmax_index(Group *g, const BodyOp *op, Scope *s) {
  Emit *e = g->e;
  Idx i = g->idx[type_find(&g->full, op->attr.axis[0])];
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef v = g->vector ? idx_vector(e, i) : i.base;
  at(e, s);
  return LLVMBuildTrunc(e->b, v, g->vector ? lanes_type(e, i32) : i32, "");
}

/* Adds the element at g->idx to every accumulator, in scope s. */
static void accumulate(Group *g, Scope *s) {
  Emit *e = g->e;
  Ev x[MAX_GROUP];
  for (int k = 0; k < g->n; k++) {
    Idx m[IR_MAX_RANK];
    operand_map(&g->full, g->idx, &e->body->val[g->member[k].op->arg[0]].type, m);
    x[k] = region_eval(e, g->member[k].op->arg[0], m);
  }
  if (e->failed)
    return;
  if (g->later)
    rows_save(e, &g->full, g->idx, g->lane, s, g->scope, g->pass, g->later);
  for (int k = 0; k < g->n; k++) {
    Member *m = &g->member[k];
    DType d = operand_dtype(e, m->op);
    LLVMValueRef index = m->index ? argmax_index(g, m->op, s) : NULL;
    at(e, s);
    LLVMTypeRef t = elem_type(e, d), i32 = LLVMInt32TypeInContext(e->ctx);
    LLVMValueRef v = g->vector ? as_lanes(e, x[k]) : x[k].v;
    if (g->lane >= 0 && e->mask) {
      v = LLVMBuildSelect(e->b, e->mask, v, identity_of(g, m->op), "");
      if (index)
        index = LLVMBuildSelect(e->b, e->mask, index, int_like(e, index, INT32_MAX), "");
    }
    LLVMValueRef acc = LLVMBuildLoad2(e->b, g->vector ? lanes_type(e, t) : t, m->acc, "");
    if (m->index) {
      LLVMValueRef pos = LLVMBuildLoad2(e->b, g->vector ? lanes_type(e, i32) : i32, m->index, "");
      pick_step(e, d, true, v, index, &acc, &pos);
      LLVMBuildStore(e->b, pos, m->index);
    } else {
      acc = combine(e, m->op->code, d, acc, v, g->vector);
    }
    LLVMBuildStore(e->b, acc, m->acc);
  }
}

static void lane_body(void *ctx, Scope *s, Idx i) {
  Group *g = ctx;
  g->idx[g->lane] = i;
  accumulate(g, s);
}

static void run_lanes(Group *g, Scope *s, const Range *range) {
  if (g->lane < 0)
    accumulate(g, s);
  else
    lane_loop(g->e, s, g->full.dim[g->lane].size, range ? range->lane_lo : NULL,
              range ? range->lane_hi : NULL, lane_body, g);
}

/* Loops over the reduced axes other than the lane axis, dim k of full and on. */
static void outer_loops(Group *g, Scope *s, int k) {
  Emit *e = g->e;
  while (k < g->full.rank && k == g->lane)
    k++;
  if (k >= g->full.rank) {
    run_lanes(g, s, NULL);
    return;
  }
  Loop l;
  loop_begin(e, s, i64c(e, 0), i64c(e, g->full.dim[k].size), 1, &l);
  g->idx[k] = idx_var(e, l.i, 0, 1, l.scope);
  outer_loops(g, l.scope, k + 1);
  loop_end(e, &l);
}

/* One loop over a part of the flattened axes. */
static void ranged_loops(Group *g, Scope *s, const Range *range, int first) {
  Emit *e = g->e;
  Loop l;
  loop_begin(e, s, range->lo, range->hi, 1, &l);
  int64_t size = 1;
  for (int k = first; k < g->full.rank; k++)
    size *= k == g->lane ? 1 : g->full.dim[k].size;
  Idx rest = idx_var(e, l.i, 0, 1, l.scope);
  for (int k = g->full.rank; k-- > first;)
    if (k != g->lane) {
      idx_divmod(e, rest, g->full.dim[k].size, size, &rest, &g->idx[k]);
      size /= g->full.dim[k].size;
    }
  run_lanes(g, l.scope, range);
  loop_end(e, &l);
}

/* Half of the lanes of v, from lane `first` on. */
static LLVMValueRef half_of(Emit *e, LLVMValueRef v, unsigned first, unsigned half) {
  LLVMValueRef lane[64];
  for (unsigned i = 0; i < half; i++)
    lane[i] = LLVMConstInt(LLVMInt32TypeInContext(e->ctx), first + i, false);
  return LLVMBuildShuffleVector(e->b, v, LLVMGetUndef(LLVMTypeOf(v)), LLVMConstVector(lane, half), "");
}

static LLVMValueRef first_lane(Emit *e, LLVMValueRef v) {
  return LLVMBuildExtractElement(e->b, v, LLVMConstInt(LLVMInt32TypeInContext(e->ctx), 0, false), "");
}

void pick_tree(Emit *e, DType d, bool largest, LLVMValueRef *best, LLVMValueRef *pos) {
  for (unsigned half = (unsigned)e->lanes / 2; half; half /= 2) {
    LLVMValueRef x = half_of(e, *best, half, half), i = half_of(e, *pos, half, half);
    *best = half_of(e, *best, 0, half);
    *pos = half_of(e, *pos, 0, half);
    pick_step(e, d, largest, x, i, best, pos);
  }
  *best = first_lane(e, *best);
  *pos = first_lane(e, *pos);
}

/* 16 lanes -> 8 -> 4 -> 2 -> 1, low half with high half. */
static LLVMValueRef tree(Emit *e, OpCode c, DType d, LLVMValueRef v) {
  for (unsigned half = (unsigned)e->lanes / 2; half; half /= 2)
    v = combine(e, c, d, half_of(e, v, 0, half), half_of(e, v, half, half), true);
  return first_lane(e, v);
}

static void map_to_full(Emit *e, Group *g, const BodyOp *op, const Idx *map) {
  const Type *t = &e->body->val[op->result].type, *xt = &e->body->val[op->arg[0]].type;
  g->full = *t;
  memcpy(g->idx, map, (size_t)t->rank * sizeof *map);
  int lane = reduce_lane_dim(e, op);
  g->lane = -1;
  for (int i = 0; i < xt->rank; i++)
    if (reduces(op, xt->dim[i].axis)) {
      if (i == lane && !g->vector)
        g->lane = g->full.rank;
      type_push(&g->full, xt->dim[i].axis, xt->dim[i].size);
    }
}

static bool memo_at(Emit *e, const Group *g, const BodyOp *op) {
  Ev r;
  Idx m[IR_MAX_RANK];
  operand_map(&g->full, g->idx, &e->body->val[op->result].type, m);
  return memo_get(e, op->result, m, &r);
}

/* Reductions over the same elements that are needed here too and wait for nothing that is not known yet. */
static void add_siblings(Emit *e, Group *g, uint32_t first) {
  const Body *b = e->body;
  const BodyOp *op = g->member[0].op;
  for (uint32_t r = 0; r < b->n_reds && g->n < MAX_GROUP; r++) {
    const BodyOp *o = &b->op[b->red[r]];
    if (r == first || !(e->want >> r & 1) || e->split[r].on || !reduce_same_axes(o, op) ||
        !type_same_dims(&b->val[o->result].type, &b->val[op->result].type) || reduce_lane_dim(e, o) < 0 ||
        memo_at(e, g, o))
      continue;
    uint64_t needs = b->reads[o->arg[0]] & ~b->reads[op->arg[0]];
    bool ready = true;
    for (uint32_t q = 0; q < b->n_reds; q++)
      if (needs >> q & 1)
        ready &= e->split[q].on ||
                 (type_same_dims(&b->val[b->op[b->red[q]].result].type, &b->val[op->result].type) &&
                  memo_at(e, g, &b->op[b->red[q]]));
    if (ready)
      g->member[g->n++].op = o;
  }
}

static void init_slots(Group *g) {
  Emit *e = g->e;
  for (int k = 0; k < g->n; k++) {
    Member *m = &g->member[k];
    LLVMTypeRef t = elem_type(e, operand_dtype(e, m->op)), i32 = LLVMInt32TypeInContext(e->ctx);
    m->acc = slot(e, g->vector ? lanes_type(e, t) : t);
    if (m->op->code == OP_ARGMAX)
      m->index = slot(e, g->vector ? lanes_type(e, i32) : i32);
    at(e, g->scope);
    LLVMBuildStore(e->b, identity_of(g, m->op), m->acc);
    if (m->index)
      LLVMBuildStore(e->b, int_like(e, identity_of(g, m->op), INT32_MAX), m->index);
  }
}

static void finish(Group *g, bool uniform) {
  Emit *e = g->e;
  for (int k = 0; k < g->n; k++) {
    Member *m = &g->member[k];
    DType d = operand_dtype(e, m->op);
    LLVMTypeRef t = elem_type(e, d), i32 = LLVMInt32TypeInContext(e->ctx);
    at(e, g->scope);
    LLVMValueRef v = LLVMBuildLoad2(e->b, g->vector ? lanes_type(e, t) : t, m->acc, "");
    LLVMValueRef pos =
        m->index ? LLVMBuildLoad2(e->b, g->vector ? lanes_type(e, i32) : i32, m->index, "") : NULL;
    if (uniform && g->vector && m->index)
      pick_tree(e, d, true, &v, &pos);
    else if (uniform && g->vector)
      v = tree(e, m->op->code, d, v);
    m->acc = m->index ? pos : v;
  }
}

void reduce_group(Emit *e, uint32_t r, const Idx *map, const Range *range, uint64_t group) {
  const Body *b = e->body;
  const BodyOp *op = &b->op[b->red[r]];
  int rank = b->val[op->result].type.rank;
  Group g = {.e = e, .n = 1, .scope = range ? range->scope : e->root};
  g.member[0].op = op;
  bool uniform = true;
  for (int i = 0; i < rank; i++) {
    uniform &= idx_uniform(&map[i]);
    g.scope = deeper(g.scope, map[i].scope);
  }
  if (!uniform && e->pred)
    g.scope = deeper(g.scope, e->pred_scope);
  g.vector = !uniform;
  map_to_full(e, &g, op, map);
  if (!group)
    add_siblings(e, &g, r);
  for (uint32_t q = 0; q < b->n_reds && g.n < MAX_GROUP; q++)
    if (q != r && (group >> q & 1))
      g.member[g.n++].op = &b->op[b->red[q]];
  int lanes = e->lanes;
  LLVMValueRef mask = e->mask, pred = e->pred;
  if (uniform) {
    e->lanes = ROW_LANES;
    e->mask = e->pred = NULL;
    g.vector = g.lane >= 0;
  }
  init_slots(&g);
  if (!range && e->nest && g.lane == rank && g.full.rank == rank + 1) {
    const BodyOp *member[MAX_GROUP];
    for (int k = 0; k < g.n; k++)
      member[k] = g.member[k].op;
    g.later = ARENA_ARRAY(e->arena, bool, b->n_vals + 1);
    g.pass = rows_pass(e, member, g.n, g.later);
  }
  if (range)
    ranged_loops(&g, g.scope, range, rank);
  else
    outer_loops(&g, g.scope, rank);
  finish(&g, uniform);
  if (g.later)
    rows_end(e, g.pass);
  e->lanes = lanes;
  e->mask = mask;
  e->pred = pred;
  for (int k = 0; k < g.n && !e->failed; k++) {
    Idx m[IR_MAX_RANK];
    operand_map(&b->val[op->result].type, map, &b->val[g.member[k].op->result].type, m);
    memo_put(e, g.member[k].op->result, m, ev(g.member[k].acc, uniform, g.scope));
  }
}

/* What an earlier phase left, partial results combined in order. */
static Ev combine_parts(Emit *e, const BodyOp *op, const Split *s, const Idx *map) {
  const Type *t = &e->body->val[op->result].type;
  DType d = t->dtype;
  Idx lin = idx_linear(e, t, map);
  Ev r = {.uniform = idx_uniform(&lin), .scope = lin.scope};
  Group g = {.e = e, .vector = !r.uniform};
  at(e, e->root);
  LLVMValueRef part = s->result != NONE ? e->out[s->result] : byte_offset(e, e->scratch, s->offset);
  if (s->chunks == 1)
    return load_at(e, part, d, lin);
  if (!r.uniform && e->pred)
    r.scope = deeper(r.scope, e->pred_scope);
  LLVMTypeRef et = elem_type(e, d), vt = r.uniform ? et : lanes_type(e, et);
  LLVMValueRef acc = slot(e, vt);
  at(e, r.scope);
  LLVMBuildStore(e->b, identity_of(&g, op), acc);
  Loop l;
  loop_begin(e, r.scope, i64c(e, 0), i64c(e, s->chunks), 1, &l);
  Idx pos = idx_sum(e, idx_scale(e, idx_var(e, l.i, 0, 1, l.scope), s->count), lin);
  Ev x = load_at(e, part, d, pos);
  at(e, l.scope);
  LLVMValueRef v = LLVMBuildLoad2(e->b, vt, acc, "");
  LLVMBuildStore(e->b, combine(e, op->code, d, v, x.v, !r.uniform), acc);
  loop_end(e, &l);
  at(e, r.scope);
  r.v = LLVMBuildLoad2(e->b, vt, acc, "");
  return r;
}

Ev reduce_eval(Emit *e, Val v, const Idx *map) {
  const BodyOp *op = body_def(e->body, v);
  uint32_t r = 0;
  while (&e->body->op[e->body->red[r]] != op)
    r++;
  if (e->split[r].on)
    return combine_parts(e, op, &e->split[r], map);
  reduce_group(e, r, map, NULL, 0);
  Ev out;
  if (!memo_get(e, v, map, &out))
    out = ev(LLVMGetUndef(elem_type(e, e->body->val[v].type.dtype)), true, e->root);
  return out;
}
