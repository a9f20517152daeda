/* region_scatter.c: result[i.., rest] += g. Tasks own disjoint parts of the kept axes, so every element is
 * summed by one task, in the row-major order of the positions. */
#include "codegen/region.h"

typedef struct {
  Emit *e;
  const BodyOp *op;
  const Type *result;
  uint32_t n_index;
  Type kept, summed, indexed; /* indexed: the result's dims read through indices */
  int lane;                   /* position in kept, -1: none */
  LLVMValueRef lane_lo, lane_hi, out;
  Val start; /* param the sum starts from, NONE: zero */
  Idx kept_idx[IR_MAX_RANK], sum_idx[IR_MAX_RANK], at_idx[IR_MAX_RANK];
} Scatter;

static const Type *val_type(const Scatter *sc, Val v) {
  return &sc->e->body->val[v].type;
}

static bool is_indexed(const Scatter *sc, Axis a) {
  for (uint32_t k = 0; k < sc->n_index; k++)
    if (sc->op->attr.axis[k] == a)
      return true;
  return false;
}

/* The result is the scatter itself or its sum with a param of the same type. */
static bool scatter_root(Scatter *sc) {
  const Body *b = sc->e->body;
  uint32_t op;
  if (!body_single(b, OP_SCATTER_ADD, &op) || op == NONE || b->n_rets != 1)
    return false;
  sc->op = &b->op[op];
  sc->start = NONE;
  if (b->ret[0] == sc->op->result)
    return true;
  const BodyOp *add = body_def(b, b->ret[0]);
  if (!add || add->code != OP_ADD)
    return false;
  Val other = add->arg[0] == sc->op->result ? add->arg[1] : add->arg[0];
  if (add->arg[0] != sc->op->result && add->arg[1] != sc->op->result)
    return false;
  sc->start = other;
  return !body_def(b, other) && type_equal(&b->val[other].type, &b->val[sc->op->result].type) &&
         type_equal(&b->val[b->ret[0]].type, &b->val[sc->op->result].type);
}

static void scatter_shape(Scatter *sc) {
  const BodyOp *op = sc->op;
  sc->result = val_type(sc, op->result);
  sc->n_index = op->n_args - 1;
  for (int i = 0; i < sc->result->rank; i++) {
    Dim d = sc->result->dim[i];
    type_push(is_indexed(sc, d.axis) ? &sc->indexed : &sc->kept, d.axis, d.size);
  }
  for (uint32_t k = 0; k < op->n_args; k++) { /* join of the operands, in order */
    const Type *t = val_type(sc, op->arg[k]);
    for (int i = 0; i < t->rank; i++)
      if (!type_has(&sc->kept, t->dim[i].axis) && !type_has(&sc->summed, t->dim[i].axis))
        type_push(&sc->summed, t->dim[i].axis, t->dim[i].size);
  }
  sc->lane = sc->kept.rank - 1;
  Axis last = sc->result->dim[sc->result->rank - 1].axis;
  if (sc->lane < 0 || sc->kept.dim[sc->lane].axis != last || sc->kept.dim[sc->lane].size == 1)
    sc->lane = -1;
  for (uint32_t k = 1; k < op->n_args; k++) /* lanes must go to neighbours */
    if (sc->lane >= 0 && type_has(val_type(sc, op->arg[k]), last))
      sc->lane = -1;
}

static void gather_map(const Scatter *sc, const Type *t, Idx *m) {
  operand_map(&sc->kept, sc->kept_idx, t, m);
  operand_map(&sc->summed, sc->sum_idx, t, m);
}

static Idx result_index(Scatter *sc) {
  Idx m[IR_MAX_RANK];
  operand_map(&sc->kept, sc->kept_idx, sc->result, m);
  operand_map(&sc->indexed, sc->at_idx, sc->result, m);
  return idx_linear(sc->e, sc->result, m);
}

static void start_lanes(void *ctx, Scope *s, Idx lane) {
  Scatter *sc = ctx;
  Emit *e = sc->e;
  if (sc->lane >= 0)
    sc->kept_idx[sc->lane] = lane;
  Idx lin = result_index(sc);
  Ev v = ev(const_elem(e, sc->result->dtype, 0), true, e->root);
  if (sc->start != NONE) {
    lin.scope = deeper(lin.scope, s);
    v = load_at(e, e->in[e->body->val[sc->start].index], sc->result->dtype, lin);
  }
  store_at(e, sc->out, sc->result->dtype, lin, v, s);
}

static void add_lanes(void *ctx, Scope *s, Idx lane) {
  Scatter *sc = ctx;
  Emit *e = sc->e;
  DType d = sc->result->dtype;
  Idx m[IR_MAX_RANK];
  if (sc->lane >= 0)
    sc->kept_idx[sc->lane] = lane;
  gather_map(sc, val_type(sc, sc->op->arg[0]), m);
  Ev g = region_eval(e, sc->op->arg[0], m);
  if (e->failed)
    return;
  Idx lin = result_index(sc);
  lin.scope = deeper(lin.scope, s); /* memory written before: not to be hoisted */
  Ev old = load_at(e, sc->out, d, lin);
  at(e, s);
  bool vector = sc->lane >= 0;
  LLVMValueRef v[] = {old.v, vector ? as_lanes(e, g) : g.v};
  store_at(e, sc->out, d, lin, ev(pointwise(e, OP_ADD, v, d, d, vector), !vector, s), s);
}

static void run_lanes(Scatter *sc, Scope *s, LaneFn fn) {
  if (sc->lane >= 0)
    lane_loop(sc->e, s, sc->kept.dim[sc->lane].size, sc->lane_lo, sc->lane_hi, fn, sc);
  else
    fn(sc, s, idx_const(sc->e, 0));
}

static void start_loops(Scatter *sc, Scope *s, int k) {
  Emit *e = sc->e;
  if (k == sc->indexed.rank) {
    run_lanes(sc, s, start_lanes);
    return;
  }
  Loop l;
  loop_begin(e, s, i64c(e, 0), i64c(e, sc->indexed.dim[k].size), 1, &l);
  sc->at_idx[k] = idx_var(e, l.i, 0, 1, l.scope);
  start_loops(sc, l.scope, k + 1);
  loop_end(e, &l);
}

/* One position: reads the indices; adds when all are inside. */
static void add_position(Scatter *sc, Scope *s) {
  Emit *e = sc->e;
  LLVMValueRef all = NULL;
  for (uint32_t k = 0; k < sc->n_index; k++) {
    Val iv = sc->op->arg[1 + k];
    Idx m[IR_MAX_RANK];
    gather_map(sc, val_type(sc, iv), m);
    Ev i = region_eval(e, iv, m);
    if (e->failed)
      return;
    DType d = val_type(sc, iv)->dtype;
    LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx);
    int p = type_find(&sc->indexed, sc->op->attr.axis[k]);
    at(e, s);
    LLVMValueRef x = d == DT_U8 || d == DT_BOOL ? LLVMBuildZExt(e->b, i.v, i64, "")
                                                : LLVMBuildSExtOrBitCast(e->b, i.v, i64, "");
    LLVMValueRef c = LLVMBuildICmp(e->b, LLVMIntULT, x, i64c(e, sc->indexed.dim[p].size), "");
    all = all ? LLVMBuildAnd(e->b, all, c, "") : c;
    sc->at_idx[p] = idx_var(e, x, 0, 1, s);
  }
  Loop l = {.scope = s};
  if (all)
    if_begin(e, s, all, &l);
  run_lanes(sc, l.scope, add_lanes);
  if (all)
    if_end(e, &l);
}

static void add_loops(Scatter *sc, Scope *s, int k) {
  Emit *e = sc->e;
  if (k == sc->summed.rank) {
    add_position(sc, s);
    return;
  }
  Loop l;
  loop_begin(e, s, i64c(e, 0), i64c(e, sc->summed.dim[k].size), 1, &l);
  sc->sum_idx[k] = idx_var(e, l.i, 0, 1, l.scope);
  add_loops(sc, l.scope, k + 1);
  loop_end(e, &l);
}

bool region_emit_scatter(Emit *e, RegionPlan *plan) {
  Scatter sc = {.e = e};
  LLVMValueRef lo, hi;
  e->split = ARENA_ARRAY(e->arena, Split, 64);
  if (!scatter_root(&sc))
    return error_set(e->err, ERR_INPUT, "no host kernel for this region: scatter_add beside other results");
  scatter_shape(&sc);
  phase_begin(e, plan, &lo, &hi);
  sc.out = e->out[0];
  int64_t rows = 1, blocks = 1, block = 0, target = task_target(type_count(sc.result));
  for (int k = 0; k < sc.kept.rank; k++)
    rows *= k == sc.lane ? 1 : sc.kept.dim[k].size;
  if (sc.lane >= 0 && rows < target) {
    int64_t size = sc.kept.dim[sc.lane].size, want = (target + rows - 1) / rows;
    block = ((size + want - 1) / want + 63) / 64 * 64;
    blocks = (size + block - 1) / block;
  }
  int64_t total = rows * blocks, per = (total + target - 1) / target, size = rows;
  Loop l;
  at(e, e->root);
  LLVMValueRef first = LLVMBuildMul(e->b, lo, i64c(e, per), "");
  loop_begin(e, e->root, first, min_i64(e, LLVMBuildMul(e->b, hi, i64c(e, per), ""), total), 1, &l);
  Idx rest = idx_var(e, l.i, 0, 1, l.scope), c;
  if (blocks > 1) {
    idx_divmod(e, rest, blocks, total, &rest, &c);
    at(e, l.scope);
    sc.lane_lo = LLVMBuildMul(e->b, c.base, i64c(e, block), "");
    sc.lane_hi = min_i64(e, LLVMBuildAdd(e->b, sc.lane_lo, i64c(e, block), ""), sc.kept.dim[sc.lane].size);
  }
  for (int k = sc.kept.rank; k-- > 0;)
    if (k != sc.lane) {
      idx_divmod(e, rest, sc.kept.dim[k].size, size, &rest, &sc.kept_idx[k]);
      size /= sc.kept.dim[k].size;
    }
  start_loops(&sc, l.scope, 0);
  add_loops(&sc, l.scope, 0);
  loop_end(e, &l);
  phase_end(e, plan, (total + per - 1) / per);
  return !e->failed;
}
