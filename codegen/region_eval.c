/* region_eval.c: the value of any body op at an index map, memoised; movement ops rewrite the map. */
#include "codegen/region.h"

#include <string.h>

struct Memo {
  Memo *next;
  Idx *map;
  LLVMValueRef mask, pred;
  int lanes;
  Ev r;
};

void eval_fail(Emit *e, const char *what) {
  e->failed = true;
  error_set(e->err, ERR_INPUT, "no host kernel for this region: %s", what);
}

static Ev poison(Emit *e, Val v) {
  return ev(LLVMGetUndef(elem_type(e, e->body->val[v].type.dtype)), true, e->root);
}

static bool all_uniform(const Idx *map, int rank) {
  for (int i = 0; i < rank; i++)
    if (!idx_uniform(&map[i]))
      return false;
  return true;
}

bool memo_get(Emit *e, Val v, const Idx *map, Ev *r) {
  int rank = e->body->val[v].type.rank;
  bool uniform = all_uniform(map, rank);
  for (const Memo *m = e->memo[v]; m; m = m->next) {
    bool same = uniform ? m->r.uniform : m->mask == e->mask && m->pred == e->pred && m->lanes == e->lanes;
    for (int i = 0; same && i < rank; i++)
      same = idx_same(&m->map[i], &map[i]);
    if (same) {
      *r = m->r;
      return true;
    }
  }
  return false;
}

void memo_put(Emit *e, Val v, const Idx *map, Ev r) {
  int rank = e->body->val[v].type.rank;
  Memo *m = ARENA_NEW(e->arena, Memo);
  *m = (Memo){.next = e->memo[v], .mask = e->mask, .pred = e->pred, .lanes = e->lanes, .r = r};
  m->map = ARENA_ARRAY(e->arena, Idx, (size_t)rank + 1);
  memcpy(m->map, map, (size_t)rank * sizeof *map);
  e->memo[v] = m;
}

void operand_map(const Type *from, const Idx *map, const Type *to, Idx *out) {
  for (int i = 0; i < to->rank; i++) {
    int p = type_find(from, to->dim[i].axis);
    if (p >= 0)
      out[i] = map[p];
  }
}

static const Type *type_of(Emit *e, Val v) {
  return &e->body->val[v].type;
}

/* ---- ints as indices ---- */

static Idx as_index(Emit *e, Ev v, DType d) {
  if (v.affine)
    return v.idx;
  LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx);
  at(e, v.scope);
  LLVMTypeRef t = v.uniform ? i64 : lanes_type(e, i64);
  LLVMValueRef x = d == DT_I64                  ? v.v
                   : d == DT_U8 || d == DT_BOOL ? LLVMBuildZExt(e->b, v.v, t, "")
                                                : LLVMBuildSExt(e->b, v.v, t, "");
  return v.uniform ? idx_var(e, x, 0, 1, v.scope) : (Idx){.vec = x, .mult = 1, .scope = v.scope};
}

/* Sums and multiples of indices stay indices: windows and shifts are then contiguous loads. */
static void keep_affine(Emit *e, const BodyOp *op, const Ev *arg, DType d, Ev *r) {
  if (r->uniform || (d != DT_I32 && d != DT_I64) || op->n_args != 2 ||
      (op->code != OP_ADD && op->code != OP_SUB && op->code != OP_MUL))
    return;
  for (int k = 0; k < 2; k++)
    if (!arg[k].affine && !arg[k].uniform)
      return;
  Idx x = as_index(e, arg[0], d), y = as_index(e, arg[1], d);
  int64_t c;
  if (op->code == OP_ADD)
    r->idx = idx_sum(e, x, y);
  else if (op->code == OP_SUB)
    r->idx = idx_sum(e, x, idx_scale(e, y, -1));
  else if (arg[0].uniform && const_i64(x.base, &c))
    r->idx = idx_scale(e, y, c);
  else if (arg[1].uniform && const_i64(y.base, &c))
    r->idx = idx_scale(e, x, c);
  else
    return;
  r->affine = !r->idx.vec;
}

/* ---- pointwise ---- */

static Ev eval_pointwise(Emit *e, const BodyOp *op, const Idx *map) {
  const Type *t = type_of(e, op->result);
  Ev arg[3];
  Ev r = {.uniform = true, .scope = e->root};
  for (uint32_t k = 0; k < op->n_args; k++) {
    Idx m[IR_MAX_RANK];
    operand_map(t, map, type_of(e, op->arg[k]), m);
    arg[k] = region_eval(e, op->arg[k], m);
    r.uniform &= arg[k].uniform;
    r.scope = deeper(r.scope, arg[k].scope);
  }
  if (e->failed)
    return poison(e, op->result);
  at(e, r.scope);
  LLVMValueRef v[3];
  for (uint32_t k = 0; k < op->n_args; k++)
    v[k] = r.uniform ? arg[k].v : as_lanes(e, arg[k]);
  r.v = pointwise(e, op->code, v, type_of(e, op->arg[0])->dtype, t->dtype, !r.uniform);
  keep_affine(e, op, arg, t->dtype, &r);
  return r;
}

/* ---- movement ---- */

typedef struct {
  LLVMValueRef v; /* NULL: always */
  bool uniform;
  Scope *scope;
} Cond;

static Cond in_range(Emit *e, Idx a, int64_t size) {
  return (Cond){idx_in_range(e, a, size), idx_uniform(&a), a.scope};
}

/* c ? x : y */
static Ev choose(Emit *e, Cond c, Ev x, Ev y) {
  if (!c.v)
    return x;
  Ev r = {.uniform = c.uniform && x.uniform && y.uniform, .scope = deeper(c.scope, deeper(x.scope, y.scope))};
  at(e, r.scope);
  LLVMValueRef vx = r.uniform ? x.v : as_lanes(e, x), vy = r.uniform ? y.v : as_lanes(e, y);
  r.v = LLVMBuildSelect(e->b, c.v, vx, vy, "");
  return r;
}

static Ev zero_of(Emit *e, DType d) {
  return ev(const_elem(e, d, 0), true, e->root);
}

typedef struct {
  LLVMValueRef pred;
  Scope *scope;
} Pred;

/* From here on lanes outside of c are not read; returns what held before. */
static Pred push_pred(Emit *e, Cond c) {
  Pred old = {e->pred, e->pred_scope};
  e->pred_scope = old.pred ? deeper(old.scope, c.scope) : c.scope;
  at(e, e->pred_scope);
  e->pred = old.pred ? LLVMBuildAnd(e->b, old.pred, c.v, "") : c.v;
  return old;
}

static void pop_pred(Emit *e, Pred old) {
  e->pred = old.pred;
  e->pred_scope = old.scope;
}

/* The value of x at map, whose dim k is the index a that may be out of range: never loads out there. */
static Ev eval_guarded(Emit *e, Val x, Idx *map, int k, Idx a, Cond c) {
  if (!c.v || c.uniform || a.vec) {
    map[k] = idx_clamp(e, a, c.v);
    return region_eval(e, x, map);
  }
  Pred old = push_pred(e, c);
  map[k] = a;
  Ev r = region_eval(e, x, map);
  pop_pred(e, old);
  return r;
}

static Ev eval_pad(Emit *e, const BodyOp *op, const Idx *map) {
  const Type *t = type_of(e, op->result), *xt = type_of(e, op->arg[0]);
  Idx m[IR_MAX_RANK];
  memcpy(m, map, (size_t)t->rank * sizeof *m); /* same positions */
  int k = type_find(t, op->attr.axis[1]);
  Idx a = idx_add(e, map[k], -op->attr.num[0]);
  Cond c = in_range(e, a, xt->dim[k].size);
  return choose(e, c, eval_guarded(e, op->arg[0], m, k, a, c), zero_of(e, t->dtype));
}

static Ev eval_concat(Emit *e, const BodyOp *op, const Idx *map) {
  const Type *t = type_of(e, op->result);
  int k = type_find(t, op->attr.axis[0]);
  int64_t end = t->dim[k].size;
  Ev r = zero_of(e, t->dtype);
  for (uint32_t i = op->n_args; i-- > 0;) {
    const Type *xt = type_of(e, op->arg[i]);
    Idx m[IR_MAX_RANK];
    operand_map(t, map, xt,
                m); /* operands may differ in dim order; the concatenated axis may have another name */
    int kx = type_find(xt, op->attr.axis[1 + i]);
    end -= xt->dim[kx].size;
    Idx a = idx_add(e, map[k], -end);
    Cond c = in_range(e, a, xt->dim[kx].size);
    r = choose(e, c, eval_guarded(e, op->arg[i], m, kx, a, c), r);
  }
  return r;
}

static Cond both(Emit *e, Cond a, Cond b) {
  if (!a.v || !b.v)
    return a.v ? a : b;
  Cond r = {.uniform = a.uniform && b.uniform, .scope = deeper(a.scope, b.scope)};
  at(e, r.scope);
  LLVMValueRef va = a.uniform && !r.uniform ? splat(e, a.v) : a.v;
  LLVMValueRef vb = b.uniform && !r.uniform ? splat(e, b.v) : b.v;
  r.v = LLVMBuildAnd(e->b, va, vb, "");
  return r;
}

static Ev eval_gather(Emit *e, const BodyOp *op, const Idx *map) {
  const Type *t = type_of(e, op->result), *xt = type_of(e, op->arg[0]);
  Idx m[IR_MAX_RANK];
  operand_map(t, map, xt, m);
  Cond all = {0}, lanes = {0}; /* lanes: of indices that are read in place under a predicate */
  for (uint32_t k = 0; k < op->attr.n_axis; k++) {
    Val iv = op->arg[1 + k];
    Idx im[IR_MAX_RANK];
    operand_map(t, map, type_of(e, iv), im);
    Ev i = region_eval(e, iv, im);
    if (e->failed)
      return poison(e, op->result);
    int p = type_find(xt, op->attr.axis[k]);
    Idx a = as_index(e, i, type_of(e, iv)->dtype);
    Cond c = in_range(e, a, xt->dim[p].size);
    all = both(e, all, c);
    if (c.v && !c.uniform && !a.vec) {
      lanes = both(e, lanes, c);
      m[p] = a;
    } else {
      m[p] = idx_clamp(e, a, c.v);
    }
  }
  Pred old = {e->pred, e->pred_scope};
  if (lanes.v)
    push_pred(e, lanes);
  Ev x = region_eval(e, op->arg[0], m);
  pop_pred(e, old);
  return choose(e, all, x, zero_of(e, t->dtype));
}

static Ev eval_split(Emit *e, const BodyOp *op, const Idx *map) {
  const Type *t = type_of(e, op->result), *xt = type_of(e, op->arg[0]);
  Idx m[IR_MAX_RANK], a = idx_const(e, 0);
  operand_map(t, map, xt, m);
  for (uint32_t k = 1; k < op->attr.n_axis; k++) {
    int p = type_find(t, op->attr.axis[k]);
    a = idx_sum(e, idx_scale(e, a, t->dim[p].size), map[p]);
  }
  m[type_find(xt, op->attr.axis[0])] = a;
  return region_eval(e, op->arg[0], m);
}

static Ev eval_merge(Emit *e, const BodyOp *op, const Idx *map) {
  const Type *t = type_of(e, op->result), *xt = type_of(e, op->arg[0]);
  Idx m[IR_MAX_RANK];
  operand_map(t, map, xt, m);
  uint32_t n = op->attr.n_axis - 1;
  int p = type_find(t, op->attr.axis[n]);
  Idx rest = map[p];
  int64_t size = t->dim[p].size;
  for (uint32_t k = n; k-- > 0;) {
    int px = type_find(xt, op->attr.axis[k]);
    idx_divmod(e, rest, xt->dim[px].size, size, &rest, &m[px]);
    size /= xt->dim[px].size;
  }
  return region_eval(e, op->arg[0], m);
}

static Ev eval_move(Emit *e, const BodyOp *op, const Idx *map) {
  const Type *t = type_of(e, op->result), *xt = type_of(e, op->arg[0]);
  Idx m[IR_MAX_RANK];
  switch (op->code) {
  case OP_RENAME: memcpy(m, map, (size_t)t->rank * sizeof *m); break;
  case OP_SLICE: {
    operand_map(t, map, xt, m);
    int p = type_find(xt, op->attr.axis[0]);
    m[p] = idx_add(e, m[p], op->attr.num[0]);
    break;
  }
  default: operand_map(t, map, xt, m);
  }
  return region_eval(e, op->arg[0], m);
}

/* ---- sources ---- */

static Ev eval_iota(Emit *e, const Idx *map) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  Ev r = {.uniform = idx_uniform(&map[0]), .scope = map[0].scope};
  LLVMValueRef i = r.uniform ? map[0].base : idx_vector(e, map[0]);
  at(e, r.scope);
  r.v = LLVMBuildTrunc(e->b, i, r.uniform ? i32 : lanes_type(e, i32), "");
  r.affine = !map[0].vec;
  r.idx = map[0];
  return r;
}

static Ev eval_param(Emit *e, Val v, const Idx *map) {
  const Type *t = type_of(e, v);
  return load_at(e, e->in[e->body->val[v].index], t->dtype, idx_linear(e, t, map));
}

static Ev dispatch(Emit *e, Val v, const Idx *map) {
  const BodyOp *op = body_def(e->body, v);
  if (!op)
    return eval_param(e, v, map);
  if (op_is_pointwise(op->code))
    return eval_pointwise(e, op, map);
  switch (op->code) {
  case OP_CONST: return ev(const_elem(e, op->attr.dtype, op->attr.f), true, e->root);
  case OP_IOTA: return eval_iota(e, map);
  case OP_RANDOM: return random_eval(e, v, map);
  case OP_PAD: return eval_pad(e, op, map);
  case OP_CONCAT: return eval_concat(e, op, map);
  case OP_SPLIT: return eval_split(e, op, map);
  case OP_MERGE: return eval_merge(e, op, map);
  case OP_BROADCAST:
  case OP_RENAME:
  case OP_REORDER:
  case OP_SLICE: return eval_move(e, op, map);
  case OP_GATHER: return eval_gather(e, op, map);
  case OP_SUM:
  case OP_REDUCE_MAX:
  case OP_REDUCE_MIN:
  case OP_PROD:
  case OP_ARGMAX:
  case OP_CONTRACT: return reduce_eval(e, v, map);
  default: eval_fail(e, ir_op_info[op->code].text); return poison(e, v);
  }
}

Ev region_eval(Emit *e, Val v, const Idx *map_in) {
  const Type *t = type_of(e, v);
  Idx map[IR_MAX_RANK];
  for (int i = 0; i < t->rank; i++)
    map[i] = t->dim[i].size == 1 ? idx_const(e, 0) : map_in[i];
  Ev r;
  if (e->failed)
    return poison(e, v);
  if (memo_get(e, v, map, &r) || rows_load(e, v, map, &r))
    return r;
  LLVMValueRef pred = e->pred;
  if (all_uniform(map, t->rank))
    e->pred = NULL; /* uniform indices are clamped: always in range */
  r = dispatch(e, v, map);
  memo_put(e, v, map, r);
  e->pred = pred;
  return r;
}
