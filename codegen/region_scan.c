/* region_scan.c: running sums along one axis: rows in parallel, the axis in order; lanes along a kept axis
 * when the scanned one is not the innermost. */
#include "codegen/region.h"

typedef struct {
  Emit *e;
  Type loops; /* kept dims in the outputs' order, then the scanned one */
  int lane;   /* -1: none */
  bool reverse;
  Idx idx[IR_MAX_RANK];
} Scan;

static bool scan_shape(Scan *sc) {
  Emit *e = sc->e;
  const Body *b = e->body;
  const BodyOp *first = NULL;
  for (uint32_t i = 0; i < b->n_ops; i++)
    if (b->op[i].code == OP_CUMSUM) {
      const BodyOp *op = &b->op[i];
      if (first && (op->attr.axis[0] != first->attr.axis[0] || op->attr.num[0] != first->attr.num[0] ||
                    !type_same_dims(&b->val[op->result].type, &b->val[first->result].type)))
        return error_set(e->err, ERR_INPUT,
                         "no host kernel for this region: running sums of different shapes");
      first = first ? first : op;
    }
  const Type *t = &b->val[first->result].type;
  Axis axis = first->attr.axis[0];
  for (uint32_t i = 0; i < b->n_rets; i++)
    if (!type_same_dims(&b->val[b->ret[i]].type, t))
      return error_set(e->err, ERR_INPUT, "no host kernel for this region: results without the scanned axis");
  sc->reverse = first->attr.num[0] != 0;
  sc->loops = type_without(t, &axis, 1);
  int p = type_find(t, axis);
  sc->lane = p == t->rank - 1 ? -1 : sc->loops.rank - 1;
  return type_push(&sc->loops, axis, t->dim[p].size);
}

/* One element of every running sum, then the results that use them. */
static void scan_step(Scan *sc, Scope *s, LLVMValueRef *acc, bool vector) {
  Emit *e = sc->e;
  const Body *b = e->body;
  Idx m[IR_MAX_RANK];
  for (uint32_t i = 0; i < b->n_ops && !e->failed; i++) {
    const BodyOp *op = &b->op[i];
    if (op->code != OP_CUMSUM)
      continue;
    const Type *t = &b->val[op->result].type;
    operand_map(&sc->loops, sc->idx, &b->val[op->arg[0]].type, m);
    Ev x = region_eval(e, op->arg[0], m);
    if (e->failed)
      return;
    at(e, s);
    LLVMTypeRef et = elem_type(e, t->dtype);
    LLVMValueRef sum = LLVMBuildLoad2(e->b, vector ? lanes_type(e, et) : et, acc[i], "");
    LLVMValueRef v[] = {sum, vector ? as_lanes(e, x) : x.v};
    sum = pointwise(e, OP_ADD, v, t->dtype, t->dtype, vector);
    LLVMBuildStore(e->b, sum, acc[i]);
    operand_map(&sc->loops, sc->idx, t, m);
    for (int k = 0; k < t->rank; k++) /* as region_eval does */
      m[k] = t->dim[k].size == 1 ? idx_const(e, 0) : m[k];
    memo_put(e, op->result, m, ev(sum, !vector, s));
  }
  Ev *v = ARENA_ARRAY(e->arena, Ev, b->n_rets + 1);
  for (uint32_t i = 0; i < b->n_rets; i++) {
    operand_map(&sc->loops, sc->idx, &b->val[b->ret[i]].type, m);
    v[i] = region_eval(e, b->ret[i], m);
  }
  for (uint32_t i = 0; i < b->n_rets && !e->failed; i++) {
    const Type *t = &b->val[b->ret[i]].type;
    operand_map(&sc->loops, sc->idx, t, m);
    store_at(e, e->out[i], t->dtype, idx_linear(e, t, m), v[i], s);
  }
}

static void scan_rows(void *ctx, Scope *s, Idx lane) {
  Scan *sc = ctx;
  Emit *e = sc->e;
  const Body *b = e->body;
  bool vector = sc->lane >= 0;
  if (vector)
    sc->idx[sc->lane] = lane;
  LLVMValueRef *acc = ARENA_ARRAY(e->arena, LLVMValueRef, b->n_ops + 1);
  for (uint32_t i = 0; i < b->n_ops; i++)
    if (b->op[i].code == OP_CUMSUM) {
      LLVMTypeRef t = elem_type(e, b->val[b->op[i].result].type.dtype);
      t = vector ? lanes_type(e, t) : t;
      acc[i] = slot(e, t);
      at(e, s);
      LLVMBuildStore(e->b, LLVMConstNull(t), acc[i]);
    }
  int last = sc->loops.rank - 1;
  int64_t n = sc->loops.dim[last].size;
  Loop l;
  loop_begin(e, s, i64c(e, 0), i64c(e, n), 1, &l);
  at(e, l.scope);
  LLVMValueRef i = sc->reverse ? LLVMBuildSub(e->b, i64c(e, n - 1), l.i, "") : l.i;
  sc->idx[last] = idx_var(e, i, 0, 1, l.scope);
  scan_step(sc, l.scope, acc, vector);
  loop_end(e, &l);
}

bool region_emit_scan(Emit *e, RegionPlan *plan) {
  Scan sc = {.e = e};
  LLVMValueRef lo, hi;
  e->split = ARENA_ARRAY(e->arena, Split, 64);
  if (!scan_shape(&sc))
    return false;
  phase_begin(e, plan, &lo, &hi);
  int64_t rows = 1, target = task_target(type_count(&sc.loops) * 4);
  for (int k = 0; k + 1 < sc.loops.rank; k++)
    rows *= k == sc.lane ? 1 : sc.loops.dim[k].size;
  if (sc.lane >= 0 && sc.loops.dim[sc.lane].size == 1)
    sc.idx[sc.lane] = idx_const(e, 0), sc.lane = -1;
  int64_t per = (rows + target - 1) / target, size = rows;
  Loop l;
  at(e, e->root);
  LLVMValueRef first = LLVMBuildMul(e->b, lo, i64c(e, per), "");
  loop_begin(e, e->root, first, min_i64(e, LLVMBuildMul(e->b, hi, i64c(e, per), ""), rows), 1, &l);
  Idx rest = idx_var(e, l.i, 0, 1, l.scope);
  for (int k = sc.loops.rank - 1; k-- > 0;)
    if (k != sc.lane && sc.loops.dim[k].size > 1) {
      idx_divmod(e, rest, sc.loops.dim[k].size, size, &rest, &sc.idx[k]);
      size /= sc.loops.dim[k].size;
    } else if (k != sc.lane) {
      sc.idx[k] = idx_const(e, 0);
    }
  if (sc.lane >= 0)
    lane_loop(e, l.scope, sc.loops.dim[sc.lane].size, NULL, NULL, scan_rows, &sc);
  else
    scan_rows(&sc, l.scope, idx_const(e, 0));
  loop_end(e, &l);
  phase_end(e, plan, (rows + per - 1) / per);
  return !e->failed;
}
