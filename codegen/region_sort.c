/* region_sort.c: the best k of each row, in order, by k scans over keys kept in thread scratch: right for
 * top-k and short rows. */
#include "codegen/region.h"

typedef struct {
  Emit *e;
  const BodyOp *op;
  Type loops; /* the operand's dims without the sorted one, then it */
  DType d;
  bool largest;
  Idx idx[IR_MAX_RANK];
  LLVMValueRef keys, used; /* thread scratch: the row, and flags of elements already taken */
  LLVMValueRef best, pos;  /* slots, lanes */
} Sort;

static void load_keys(void *ctx, Scope *s, Idx i) {
  Sort *so = ctx;
  Emit *e = so->e;
  int last = so->loops.rank - 1;
  Idx m[IR_MAX_RANK];
  so->idx[last] = so->loops.dim[last].size == 1 ? idx_const(e, 0) : i;
  operand_map(&so->loops, so->idx, &e->body->val[so->op->arg[0]].type, m);
  Ev x = region_eval(e, so->op->arg[0], m);
  if (e->failed)
    return;
  store_at(e, so->keys, so->d, i, x, s);
  store_at(e, so->used, DT_BOOL, i, ev(LLVMConstNull(LLVMInt1TypeInContext(e->ctx)), true, e->root), s);
}

static void scan_keys(void *ctx, Scope *s, Idx i) {
  Sort *so = ctx;
  Emit *e = so->e;
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx), lanes = lanes_type(e, i32);
  LLVMValueRef none = LLVMConstInt(i32, INT32_MAX, false);
  i.scope = s; /* the keys change from scan to scan */
  Ev x = load_at(e, so->keys, so->d, i), used = load_at(e, so->used, DT_BOOL, i);
  LLVMValueRef v = idx_vector(e, i);
  at(e, s);
  LLVMValueRef nones = splat(e, none);
  LLVMValueRef p = LLVMBuildSelect(e->b, used.v, nones, LLVMBuildTrunc(e->b, v, lanes, ""), "");
  if (e->mask)
    p = LLVMBuildSelect(e->b, e->mask, p, nones, "");
  LLVMTypeRef vt = lanes_type(e, elem_type(e, so->d));
  LLVMValueRef best = LLVMBuildLoad2(e->b, vt, so->best, ""), pos = LLVMBuildLoad2(e->b, lanes, so->pos, "");
  pick_step(e, so->d, so->largest, x.v, p, &best, &pos);
  LLVMBuildStore(e->b, best, so->best);
  LLVMBuildStore(e->b, pos, so->pos);
}

/* Position j of the results: the best element not taken yet. */
static void pick(Sort *so, Scope *s, Idx j) {
  Emit *e = so->e;
  const Body *b = e->body;
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx), vt = lanes_type(e, elem_type(e, so->d));
  int last = so->loops.rank - 1;
  at(e, s);
  LLVMBuildStore(e->b, LLVMConstNull(vt), so->best);
  LLVMBuildStore(e->b, splat(e, LLVMConstInt(i32, INT32_MAX, false)), so->pos);
  lane_loop(e, s, so->loops.dim[last].size, NULL, NULL, scan_keys, so);
  at(e, s);
  LLVMValueRef best = LLVMBuildLoad2(e->b, vt, so->best, "");
  LLVMValueRef pos = LLVMBuildLoad2(e->b, lanes_type(e, i32), so->pos, "");
  pick_tree(e, so->d, so->largest, &best, &pos);
  LLVMValueRef at_pos = LLVMBuildZExt(e->b, pos, LLVMInt64TypeInContext(e->ctx), "");
  Ev one = ev(LLVMConstInt(LLVMInt1TypeInContext(e->ctx), 1, false), true, e->root);
  store_at(e, so->used, DT_BOOL, idx_var(e, at_pos, 0, 1, s), one, s);
  for (uint32_t r = 0; r < b->n_rets; r++) {
    const Type *t = &b->val[b->ret[r]].type;
    bool index = b->val[b->ret[r]].index == 1;
    Idx m[IR_MAX_RANK];
    for (int k = 0; k < t->rank; k++) {
      int p = type_find(&so->loops, t->dim[k].axis);
      m[k] = t->dim[k].axis == so->op->attr.axis[1] ? j : so->idx[p];
    }
    store_at(e, e->out[r], index ? DT_I32 : so->d, idx_linear(e, t, m), ev(index ? pos : best, true, s), s);
  }
}

static bool sort_shape(Sort *so) {
  Emit *e = so->e;
  const Body *b = e->body;
  uint32_t op;
  if (!body_single(b, OP_SORT, &op) || op == NONE)
    return error_set(e->err, ERR_INPUT, "no host kernel for this region: several sorts");
  so->op = &b->op[op];
  for (uint32_t r = 0; r < b->n_rets; r++)
    if (b->val[b->ret[r]].def != op)
      return error_set(e->err, ERR_INPUT, "no host kernel for this region: results beside those of the sort");
  const Type *t = &b->val[so->op->arg[0]].type;
  so->d = t->dtype;
  so->largest = so->op->attr.num[1] != 0;
  so->loops = type_without(t, so->op->attr.axis, 1);
  return type_push(&so->loops, so->op->attr.axis[0], t->dim[type_find(t, so->op->attr.axis[0])].size);
}

bool region_emit_sort(Emit *e, RegionPlan *plan) {
  Sort so = {.e = e};
  LLVMValueRef lo, hi;
  e->split = ARENA_ARRAY(e->arena, Split, 64);
  if (!sort_shape(&so))
    return false;
  int last = so.loops.rank - 1;
  int64_t n = so.loops.dim[last].size, rows = type_count(&so.loops) / n, k = so.op->attr.num[0];
  phase_begin(e, plan, &lo, &hi);
  int64_t key_bytes = (n * (int64_t)dtype_bytes(so.d) + 63) / 64 * 64;
  plan->thread_scratch_bytes = key_bytes + (n + 63) / 64 * 64;
  so.keys = phase_thread_scratch(e);
  so.used = byte_offset(e, so.keys, key_bytes);
  so.best = slot(e, lanes_type(e, elem_type(e, so.d)));
  so.pos = slot(e, lanes_type(e, LLVMInt32TypeInContext(e->ctx)));
  int64_t target = task_target(type_count(&so.loops) * k), per = (rows + target - 1) / target, size = rows;
  Loop l, pos;
  at(e, e->root);
  LLVMValueRef first = LLVMBuildMul(e->b, lo, i64c(e, per), "");
  loop_begin(e, e->root, first, min_i64(e, LLVMBuildMul(e->b, hi, i64c(e, per), ""), rows), 1, &l);
  Idx rest = idx_var(e, l.i, 0, 1, l.scope);
  for (int d = last; d-- > 0;) {
    idx_divmod(e, rest, so.loops.dim[d].size, size, &rest, &so.idx[d]);
    size /= so.loops.dim[d].size;
  }
  lane_loop(e, l.scope, n, NULL, NULL, load_keys, &so);
  loop_begin(e, l.scope, i64c(e, 0), i64c(e, k), 1, &pos);
  pick(&so, pos.scope, idx_var(e, pos.i, 0, 1, pos.scope));
  loop_end(e, &pos);
  loop_end(e, &l);
  phase_end(e, plan, (rows + per - 1) / per);
  return !e->failed;
}
