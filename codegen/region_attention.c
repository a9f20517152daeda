/* region_attention.c: ATTENTION and ATTENTION_GRAD ops as one kernel: dims sorted into roles, the score
 * function evaluated like any region body, one vector of keys at a time. Its derivative by the raw score is
 * carried along (dual numbers). */
#include "codegen/attention.h"
#include "codegen/region.h"

#include <math.h>
#include <string.h>

enum { ARG_Q, ARG_K, ARG_V, ARG_O, ARG_LSE, ARG_DO };

/* ---- dims ---- */

typedef struct {
  AttentionSpec spec;
  Axis outer[IR_MAX_RANK], share[IR_MAX_RANK], row, key; /* row: NONE when there is none */
} Roles;

static int64_t stride_of(const Type *t, Axis a) {
  int64_t s = 1;
  for (int i = t->rank; i-- > 0; s *= t->dim[i].size)
    if (t->dim[i].axis == a)
      return s;
  return 0;
}

typedef struct {
  const Type *q, *k, *v, *o, *l, *d_o; /* d_o: NULL in the forward */
} Types;

static AttentionDim dim_of(const Types *t, Axis a, int64_t size) {
  return (AttentionDim){size,
                        stride_of(t->q, a),
                        stride_of(t->k, a),
                        stride_of(t->v, a),
                        stride_of(t->o, a),
                        t->l ? stride_of(t->l, a) : 0,
                        t->d_o ? stride_of(t->d_o, a) : 0};
}

/* Adds a dim inside of `d` when the two are one run in all tensors. */
static bool join(AttentionDim *d, AttentionDim in) {
  if (in.size == 1)
    return true;
  if (d->size == 1) {
    *d = in;
    return true;
  }
  if (d->q != in.q * in.size || d->k != in.k * in.size || d->v != in.v * in.size || d->o != in.o * in.size ||
      d->d_o != in.d_o * in.size)
    return false;
  in.size *= d->size;
  *d = in;
  return true;
}

static bool among(const Axis *axis, uint32_t n, Axis a) {
  for (uint32_t i = 0; i < n; i++)
    if (axis[i] == a)
      return true;
  return false;
}

static bool roles_of(const Types *t, const Axis *axis, uint32_t n, bool grad, Roles *r) {
  AttentionSpec *s = &r->spec;
  *r = (Roles){.row = NONE, .key = axis[n - 1]};
  s->dtype = t->q->dtype;
  s->head = s->value = s->row = (AttentionDim){.size = 1};
  s->key = dim_of(t, r->key, t->k->dim[type_find(t->k, r->key)].size);
  if (s->key.size < 2 || !type_has(t->v, r->key) || type_has(t->q, r->key))
    return false;
  int widest = -1;
  for (int i = 0; i < t->q->rank; i++) {
    Dim d = t->q->dim[i];
    if (!type_has(t->k, d.axis) && !type_has(t->v, d.axis) && !among(axis, n, d.axis) &&
        (widest < 0 || d.size > t->q->dim[widest].size))
      widest = i;
  }
  for (int i = 0; i < t->q->rank; i++) {
    Dim d = t->q->dim[i];
    AttentionDim x = dim_of(t, d.axis, d.size);
    bool in_k = type_has(t->k, d.axis), in_v = type_has(t->v, d.axis);
    if (among(axis, n, d.axis)) {
      x.v = x.o = x.d_o = 0; /* the columns of v may have the same axis */
      if (!in_k || !join(&s->head, x))
        return false;
    } else if (i == widest) {
      s->row = x;
      r->row = d.axis;
    } else if (in_k || in_v) {
      if (grad && !(in_k && in_v))
        return false;
      r->outer[s->outer.n] = d.axis;
      s->outer.dim[s->outer.n++] = x;
    } else {
      r->share[s->share.n] = d.axis;
      s->share.dim[s->share.n++] = x;
    }
  }
  for (int i = 0; i < t->k->rank; i++) {
    Dim d = t->k->dim[i];
    if (type_has(t->q, d.axis) || d.axis == r->key)
      continue;
    if (grad || s->outer.n == IR_MAX_RANK)
      return false;
    r->outer[s->outer.n] = d.axis;
    s->outer.dim[s->outer.n++] = dim_of(t, d.axis, d.size);
  }
  for (int i = 0; i < t->v->rank; i++) {
    Dim d = t->v->dim[i];
    bool column = among(axis, n - 1, d.axis) || (!type_has(t->q, d.axis) && !type_has(t->k, d.axis));
    AttentionDim x = dim_of(t, d.axis, d.size);
    x.q = x.k = 0;
    if (column && !join(&s->value, x))
      return false;
  }
  return attention_thread_scratch(s, grad) >= 0;
}

/* ---- the score ---- */

typedef struct {
  const Roles *roles;
  Emit s; /* of the score's body */
  Body body;
  LLVMValueRef *tangent; /* by value; NULL: zero or not known yet */
  bool *depends;         /* by value: on raw */
  const AttentionPoint *at;
  Scope *row, *in;
} Score;

static Idx index_of(Score *c, Axis a) {
  const AttentionSpec *s = &c->roles->spec;
  if (a == c->roles->key)
    return idx_var(&c->s, c->at->key, 1, ATTENTION_LANES, c->in);
  if (a == c->roles->row)
    return idx_var(&c->s, c->at->row, 0, 1, c->row);
  for (int i = 0; i < s->outer.n; i++)
    if (c->roles->outer[i] == a)
      return idx_var(&c->s, c->at->outer[i], 0, 1, c->row);
  for (int i = 0; i < s->share.n; i++)
    if (c->roles->share[i] == a)
      return idx_var(&c->s, c->at->share[i], 0, 1, c->row);
  eval_fail(&c->s, "a score with an axis of its own");
  return idx_const(&c->s, 0);
}

static void map_of(Score *c, const Type *t, Idx *map) {
  for (int i = 0; i < t->rank; i++)
    map[i] = t->dim[i].size == 1 ? idx_const(&c->s, 0) : index_of(c, t->dim[i].axis);
}

static LLVMValueRef lanes_at(Score *c, Val v) {
  Idx map[IR_MAX_RANK];
  map_of(c, &c->body.val[v].type, map);
  Ev r = region_eval(&c->s, v, map);
  at(&c->s, c->in);
  return as_lanes(&c->s, r);
}

/* ---- derivative ---- */

static LLVMValueRef wide_const(Score *c, const BodyOp *op, double v) {
  return splat(&c->s, const_elem(&c->s, c->body.val[op->result].type.dtype, v));
}

static LLVMValueRef times(Score *c, LLVMValueRef a, LLVMValueRef b) {
  return LLVMBuildFMul(c->s.b, a, b, "");
}

static LLVMValueRef chosen(Score *c, LLVMValueRef cond, LLVMValueRef a, LLVMValueRef b) {
  return LLVMBuildSelect(c->s.b, cond, a, b, "");
}

static LLVMValueRef real_compare(Score *c, LLVMRealPredicate p, LLVMValueRef a, LLVMValueRef b) {
  return LLVMBuildFCmp(c->s.b, p, a, b, "");
}

/* d result / d x of a function of one argument, y = f(x); NULL: it has none. */
static LLVMValueRef slope1(Score *c, const BodyOp *op, LLVMValueRef x, LLVMValueRef y) {
  LLVMBuilderRef b = c->s.b;
  Gen *g = c->s.g;
  LLVMValueRef one = wide_const(c, op, 1), zero = wide_const(c, op, 0);
  switch (op->code) {
  case OP_NEG: return wide_const(c, op, -1);
  case OP_EXP: return y;
  case OP_LOG: return LLVMBuildFDiv(b, one, x, "");
  case OP_LOG1P: return LLVMBuildFDiv(b, one, LLVMBuildFAdd(b, one, x, ""), "");
  case OP_SQRT: return LLVMBuildFDiv(b, wide_const(c, op, 0.5), y, "");
  case OP_RSQRT: return LLVMBuildFDiv(b, times(c, wide_const(c, op, -0.5), y), x, "");
  case OP_TANH: return LLVMBuildFSub(b, one, times(c, y, y), "");
  case OP_SIGMOID: return times(c, y, LLVMBuildFSub(b, one, y, ""));
  case OP_ERF:
    return times(c, wide_const(c, op, 1.1283791670955126), gen_exp(g, LLVMBuildFNeg(b, times(c, x, x), "")));
  case OP_SIN: return gen_cos(g, x);
  case OP_COS: return LLVMBuildFNeg(b, gen_sin(g, x), "");
  case OP_ABS:
    return chosen(c, real_compare(c, LLVMRealOGT, x, zero), one,
                  chosen(c, real_compare(c, LLVMRealOLT, x, zero), wide_const(c, op, -1), zero));
  default: return NULL;
  }
}

/* The same of two arguments, by argument i. */
static LLVMValueRef slope2(Score *c, const BodyOp *op, int i, const LLVMValueRef *x, LLVMValueRef y) {
  LLVMBuilderRef b = c->s.b;
  Gen *g = c->s.g;
  LLVMValueRef one = wide_const(c, op, 1), zero = wide_const(c, op, 0);
  switch (op->code) {
  case OP_ADD: return one;
  case OP_SUB: return i ? wide_const(c, op, -1) : one;
  case OP_MUL: return x[!i];
  case OP_DIV:
    return i ? LLVMBuildFNeg(b, LLVMBuildFDiv(b, y, x[1], ""), "") : LLVMBuildFDiv(b, one, x[1], "");
  case OP_MOD: return i ? LLVMBuildFNeg(b, gen_floor(g, LLVMBuildFDiv(b, x[0], x[1], "")), "") : one;
  case OP_MAX:
  case OP_MIN: {
    LLVMRealPredicate p = op->code == OP_MAX ? LLVMRealOGE : LLVMRealOLE;
    LLVMValueRef first = real_compare(c, p, x[0], x[1]);
    return i ? chosen(c, first, zero, one) : chosen(c, first, one, zero);
  }
  case OP_POW:
    if (i)
      return chosen(c, real_compare(c, LLVMRealOGT, x[0], zero), times(c, y, gen_log(g, x[0])), zero);
    return chosen(c, real_compare(c, LLVMRealOEQ, x[1], zero), zero,
                  times(c, x[1], gen_pow(g, x[0], LLVMBuildFSub(b, x[1], one, ""))));
  default: return NULL;
  }
}

/* slope * t, 0 where t is 0 whatever the slope. */
static LLVMValueRef chained(Score *c, const BodyOp *op, LLVMValueRef slope, LLVMValueRef t) {
  LLVMValueRef r = times(c, slope, t);
  if (LLVMIsConstant(slope))
    return r;
  LLVMValueRef zero = wide_const(c, op, 0);
  return chosen(c, real_compare(c, LLVMRealOEQ, t, zero), zero, r);
}

static LLVMValueRef tangent(Score *c, Val v);

static LLVMValueRef tangent_of_select(Score *c, const BodyOp *op) {
  LLVMValueRef cond = lanes_at(c, op->arg[0]), zero = wide_const(c, op, 0);
  LLVMValueRef yes = c->depends[op->arg[1]] ? tangent(c, op->arg[1]) : zero;
  LLVMValueRef no = c->depends[op->arg[2]] ? tangent(c, op->arg[2]) : zero;
  return chosen(c, cond, yes, no);
}

static LLVMValueRef tangent_of(Score *c, const BodyOp *op) {
  if (op->code == OP_BROADCAST || op->code == OP_REORDER)
    return tangent(c, op->arg[0]);
  if (op->code == OP_SELECT)
    return tangent_of_select(c, op);
  if (op->code == OP_CAST)
    return tangent(c, op->arg[0]);
  LLVMValueRef x[2] = {NULL, NULL}, y = lanes_at(c, op->result), sum = NULL;
  for (uint32_t i = 0; i < op->n_args; i++)
    x[i] = lanes_at(c, op->arg[i]);
  for (uint32_t i = 0; i < op->n_args; i++) {
    if (!c->depends[op->arg[i]])
      continue;
    LLVMValueRef slope = op->n_args == 1 ? slope1(c, op, x[0], y) : slope2(c, op, (int)i, x, y);
    if (!slope)
      continue;
    LLVMValueRef term = chained(c, op, slope, tangent(c, op->arg[i]));
    sum = sum ? LLVMBuildFAdd(c->s.b, sum, term, "") : term;
  }
  return sum ? sum : wide_const(c, op, 0);
}

static LLVMValueRef tangent(Score *c, Val v) {
  if (!c->tangent[v])
    c->tangent[v] = tangent_of(c, body_def(&c->body, v));
  return c->tangent[v];
}

static void score(void *ctx, const AttentionPoint *point, LLVMValueRef raw, LLVMValueRef *s,
                  LLVMValueRef *slope) {
  Score *c = ctx;
  Emit *e = &c->s;
  Val p = c->body.param[0], ret = c->body.ret[0];
  const Type *t = &c->body.val[p].type;
  Idx map[IR_MAX_RANK];
  c->at = point;
  c->row = scope_child(e, e->root, point->row_block);
  c->in = scope_child(e, c->row, LLVMGetInsertBlock(e->b));
  e->mask = point->mask;
  map_of(c, t, map);
  memo_put(e, p, map, ev(raw, false, c->in));
  *s = lanes_at(c, ret);
  if (slope) {
    memset(c->tangent, 0, c->body.n_vals * sizeof *c->tangent);
    c->tangent[p] = splat(e, const_elem(e, t->dtype, 1));
    *slope = c->depends[ret] ? tangent(c, ret) : splat(e, const_elem(e, t->dtype, 0));
  }
  LLVMPositionBuilderAtEnd(e->b, c->in->block);
}

/* ---- which tiles matter: intervals of the indices a mask compares ---- */

typedef struct {
  const Score *c;
  const LLVMValueRef *row, *key;
  LLVMBuilderRef b;
} Tile;

typedef struct {
  LLVMValueRef lo, hi; /* i64; NULL: not known */
} Interval;

/* i1: surely true, surely false, for the whole tile. */
typedef struct {
  LLVMValueRef yes, no;
} Verdict;

static LLVMValueRef flag(const Tile *t, bool v) {
  return LLVMConstInt(LLVMInt1TypeInContext(t->c->s.ctx), v, false);
}

static LLVMValueRef number(const Tile *t, int64_t v) {
  return LLVMConstInt(LLVMInt64TypeInContext(t->c->s.ctx), (unsigned long long)v, true);
}

static Interval interval(const Tile *t, Val v) {
  const Body *body = &t->c->body;
  const BodyOp *op = body_def(body, v);
  const Type *type = &body->val[v].type;
  if (!op || dtype_is_float(type->dtype))
    return (Interval){0};
  const BodyOp *inner = op->code == OP_RENAME ? body_def(body, op->arg[0]) : op;
  if (inner && inner->code == OP_IOTA) {
    Axis a = type->dim[0].axis;
    if (a == t->c->roles->row)
      return (Interval){t->row[0], t->row[1]};
    if (a == t->c->roles->key)
      return (Interval){t->key[0], t->key[1]};
    return (Interval){number(t, 0), number(t, type->dim[0].size - 1)};
  }
  if (op->code == OP_CONST)
    return (Interval){number(t, (int64_t)op->attr.f), number(t, (int64_t)op->attr.f)};
  if (op->code != OP_ADD && op->code != OP_SUB && op->code != OP_NEG && op->code != OP_BROADCAST &&
      op->code != OP_REORDER)
    return (Interval){0};
  Interval a = interval(t, op->arg[0]), b = op->n_args > 1 ? interval(t, op->arg[1]) : a;
  if (!a.lo || !b.lo)
    return (Interval){0};
  switch (op->code) {
  case OP_ADD: return (Interval){LLVMBuildAdd(t->b, a.lo, b.lo, ""), LLVMBuildAdd(t->b, a.hi, b.hi, "")};
  case OP_SUB: return (Interval){LLVMBuildSub(t->b, a.lo, b.hi, ""), LLVMBuildSub(t->b, a.hi, b.lo, "")};
  case OP_NEG: return (Interval){LLVMBuildNeg(t->b, a.hi, ""), LLVMBuildNeg(t->b, a.lo, "")};
  default: return a;
  }
}

static LLVMValueRef int_compare(const Tile *t, LLVMIntPredicate p, LLVMValueRef a, LLVMValueRef b) {
  return LLVMBuildICmp(t->b, p, a, b, "");
}

static Verdict verdict(const Tile *t, Val v) {
  const BodyOp *op = body_def(&t->c->body, v);
  Verdict none = {flag(t, false), flag(t, false)};
  if (!op)
    return none;
  switch (op->code) {
  case OP_CONST: return (Verdict){flag(t, op->attr.f != 0), flag(t, op->attr.f == 0)};
  case OP_BROADCAST:
  case OP_REORDER: return verdict(t, op->arg[0]);
  case OP_NOT: {
    Verdict a = verdict(t, op->arg[0]);
    return (Verdict){a.no, a.yes};
  }
  case OP_AND: {
    Verdict a = verdict(t, op->arg[0]), b = verdict(t, op->arg[1]);
    return (Verdict){LLVMBuildAnd(t->b, a.yes, b.yes, ""), LLVMBuildOr(t->b, a.no, b.no, "")};
  }
  case OP_OR: {
    Verdict a = verdict(t, op->arg[0]), b = verdict(t, op->arg[1]);
    return (Verdict){LLVMBuildOr(t->b, a.yes, b.yes, ""), LLVMBuildAnd(t->b, a.no, b.no, "")};
  }
  case OP_LT:
  case OP_LE: {
    Interval a = interval(t, op->arg[0]), b = interval(t, op->arg[1]);
    if (!a.lo || !b.lo)
      return none;
    bool less = op->code == OP_LT;
    return (Verdict){int_compare(t, less ? LLVMIntSLT : LLVMIntSLE, a.hi, b.lo),
                     int_compare(t, less ? LLVMIntSGE : LLVMIntSGT, a.lo, b.hi)};
  }
  default: return none;
  }
}

/* i1: v is -inf in the whole tile. */
static LLVMValueRef dead(const Tile *t, Val v) {
  const BodyOp *op = body_def(&t->c->body, v);
  if (!op)
    return flag(t, false);
  switch (op->code) {
  case OP_CONST: return flag(t, op->attr.f == -INFINITY);
  case OP_BROADCAST:
  case OP_REORDER: return dead(t, op->arg[0]);
  case OP_ADD: return LLVMBuildOr(t->b, dead(t, op->arg[0]), dead(t, op->arg[1]), "");
  case OP_SELECT: {
    Verdict c = verdict(t, op->arg[0]);
    LLVMValueRef a = dead(t, op->arg[1]), b = dead(t, op->arg[2]);
    return LLVMBuildOr(t->b, LLVMBuildAnd(t->b, c.yes, a, ""), LLVMBuildAnd(t->b, c.no, b, ""), "");
  }
  default: return flag(t, false);
  }
}

static LLVMValueRef live(void *ctx, const LLVMValueRef row[2], const LLVMValueRef key[2]) {
  Score *c = ctx;
  Tile t = {c, row, key, c->s.b};
  LLVMValueRef d = dead(&t, c->body.ret[0]);
  return LLVMIsAConstantInt(d) ? NULL : LLVMBuildNot(c->s.b, d, "");
}

/* ---- the kernel ---- */

static const Op *attention_op(const Func *f, OpId region) {
  const Block *b = f->op[region].body;
  const Op *op = b->n_ops == 1 ? &f->op[b->op[0]] : NULL;
  return op && (op->code == OP_ATTENTION || op->code == OP_ATTENTION_GRAD) ? op : NULL;
}

static Types types_of(const Func *f, const Op *op) {
  bool grad = op->code == OP_ATTENTION_GRAD;
  const Type *arg[6] = {0};
  for (uint32_t i = 0; i < op->n_args && i < 6; i++)
    arg[i] = &f->val[op->arg[i]].type;
  return (Types){arg[ARG_Q],
                 arg[ARG_K],
                 arg[ARG_V],
                 grad ? arg[ARG_O] : &f->val[op->result].type,
                 grad ? arg[ARG_LSE] : &f->val[op->result + 1].type,
                 grad ? arg[ARG_DO] : NULL};
}

static bool find_depends(const Body *b, bool *depends) {
  depends[b->param[0]] = true;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const BodyOp *op = &b->op[i];
    bool any = false;
    for (uint32_t k = 0; k < op->n_args; k++)
      any |= depends[op->arg[k]];
    if (any && !op_is_pointwise(op->code) && op->code != OP_BROADCAST && op->code != OP_REORDER)
      return false;
    depends[op->result] = any && dtype_is_float(b->val[op->result].type.dtype);
  }
  return true;
}

bool attention_region_ok(const Func *f, OpId region) {
  const Block *b = f->op[region].body;
  const Op *op = attention_op(f, region);
  if (!op)
    return false;
  bool grad = op->code == OP_ATTENTION_GRAD, used[3] = {false, false, false};
  for (uint32_t i = 0; i < op->n_args; i++)
    if (f->val[op->arg[i]].def != NONE)
      return false;
  for (uint32_t i = 0; i < b->n_ret; i++) {
    Val r = b->ret[i] - op->result;
    if (r >= op->n_results || used[r])
      return false;
    used[r] = true;
  }
  Types t = types_of(f, op);
  Roles roles;
  if (!used[0] || (grad && !(used[1] && used[2])) || !dtype_is_float(t.q->dtype) ||
      !roles_of(&t, op->attr.axis, op->attr.n_axis, grad, &roles))
    return false;
  Arena arena = {0};
  Error err = {0};
  Body body;
  bool ok = body_init_block(&body, f, op->body, &arena, &err) && body.n_reds == 0 &&
            find_depends(&body, ARENA_ARRAY(&arena, bool, body.n_vals + 1));
  arena_free(&arena);
  return ok;
}

static LLVMValueRef argument(const Emit *e, const Block *region, const Op *op, int i) {
  uint32_t k = 0;
  while (region->param[k] != op->arg[i])
    k++;
  return e->in[k];
}

/* The buffer of result i, NULL when the region does not return it. */
static LLVMValueRef result(const Emit *e, const Block *region, const Op *op, uint32_t i) {
  for (uint32_t k = 0; k < region->n_ret; k++)
    if (region->ret[k] == op->result + i)
      return e->out[k];
  return NULL;
}

static bool score_begin(Score *c, Emit *e, const Func *f, OpId region, const Roles *roles, int first_extra) {
  const Op *op = attention_op(f, region);
  c->roles = roles;
  if (!body_init_block(&c->body, f, op->body, e->arena, e->err))
    return false;
  c->s = *e;
  c->s.body = &c->body;
  c->s.memo = ARENA_ARRAY(e->arena, Memo *, c->body.n_vals + 1);
  c->s.in = ARENA_ARRAY(e->arena, LLVMValueRef, c->body.n_params + 1);
  for (uint32_t i = 1; i < c->body.n_params; i++)
    c->s.in[i] = argument(e, f->op[region].body, op, first_extra + (int)i - 1);
  c->tangent = ARENA_ARRAY(e->arena, LLVMValueRef, c->body.n_vals + 1);
  c->depends = ARENA_ARRAY(e->arena, bool, c->body.n_vals + 1);
  return find_depends(&c->body, c->depends);
}

static AttentionArgs arguments(const Emit *e, const Block *b, const Op *op) {
  AttentionArgs a = {
      .q = argument(e, b, op, ARG_Q), .k = argument(e, b, op, ARG_K), .v = argument(e, b, op, ARG_V)};
  if (op->code == OP_ATTENTION) {
    a.o = result(e, b, op, 0);
    a.lse = result(e, b, op, 1);
  } else {
    a.o = argument(e, b, op, ARG_O);
    a.lse = argument(e, b, op, ARG_LSE);
    a.d_o = argument(e, b, op, ARG_DO);
    a.dq = result(e, b, op, 0);
    a.dk = result(e, b, op, 1);
    a.dv = result(e, b, op, 2);
  }
  return a;
}

bool region_emit_attention(Emit *e, RegionPlan *plan, const Func *f, OpId region) {
  const Op *op = attention_op(f, region);
  const Block *block = f->op[region].body;
  bool grad = op->code == OP_ATTENTION_GRAD;
  Body body = {.arena = e->arena, .func = f, .n_params = block->n_params, .n_rets = block->n_ret};
  Types types = types_of(f, op);
  Roles roles;
  Score c = {0};
  LLVMValueRef lo, hi;
  roles_of(&types, op->attr.axis, op->attr.n_axis, grad, &roles);
  e->body = &body;
  phase_begin(e, plan, &lo, &hi);
  AttentionArgs args = arguments(e, block, op);
  args.thread_scratch = phase_thread_scratch(e);
  args.lo = lo;
  args.hi = hi;
  if (!score_begin(&c, e, f, region, &roles, grad ? ARG_DO + 1 : ARG_V + 1))
    return error_set(e->err, ERR_INPUT, "the score of attention is not pointwise");
  AttentionScore call = {&c, score, live};
  at(e, e->root);
  bool ok = grad ? attention_backward(e->g, &roles.spec, &call, &args, e->arena, e->err)
                 : attention_forward(e->g, &roles.spec, &call, &args, e->arena, e->err);
  e->root->block = LLVMGetInsertBlock(e->b);
  plan->thread_scratch_bytes = attention_thread_scratch(&roles.spec, grad);
  phase_end(e, plan, attention_tasks(&roles.spec, grad));
  return ok && !c.s.failed;
}
