/* autodiff.c: reverse mode, source to source. The rules of the ops are in vjp_*.c, one each; this file
 * decides which values need a cotangent, keeps the cotangents and walks the ops backwards. */
#include "passes/internal.h"

#include <string.h>

const Vjp vjp_table[OP_COUNT] = {
#define OP(name, text, cls, n_args, n_results, flags, flops)                                                 \
  [OP_##name] = ((flags)&F_NODIFF) ? NULL : vjp_##name,
#include "ir/ops.def"
#undef OP
};

/* ---- which values matter ---- */

static bool any_active(const Op *op, const bool *act) {
  for (uint32_t i = 0; i < op->n_args; i++)
    if (act[op->arg[i]])
      return true;
  return false;
}

static bool differentiable(const Op *op) {
  return !(ir_op_info[op->code].flags & F_NODIFF);
}

static void activity(const Func *f, const OpId *ops, uint32_t n_ops, bool *act);

/* A carried value is active from the start or becomes so by what an iteration hands on: a fixed point. */
static void loop_activity(const Func *f, OpId id, bool *act) {
  const Op *op = &f->op[id];
  const Block *body = op->body;
  LoopShape s = loop_shape(f, id);
  for (uint32_t i = 0; i < op->n_args; i++)
    act[body->param[1 + i]] = act[op->arg[i]];
  for (bool changed = true; changed;) {
    changed = false;
    activity(f, body->op, body->n_ops, act);
    for (uint32_t i = 0; i < s.n_carry; i++)
      if (act[body->ret[i]] && !act[body->param[1 + i]])
        changed = act[body->param[1 + i]] = true;
  }
  for (uint32_t i = 0; i < op->n_results; i++)
    act[op->result + i] = act[body->ret[i]] || (i < s.n_carry && act[body->param[1 + i]]);
}

static void activity(const Func *f, const OpId *ops, uint32_t n_ops, bool *act) {
  for (uint32_t i = 0; i < n_ops; i++) {
    const Op *op = &f->op[ops[i]];
    if (op->code == OP_LOOP) {
      loop_activity(f, ops[i], act);
    } else if (differentiable(op) && any_active(op, act)) {
      for (uint32_t k = 0; k < op->n_results; k++)
        act[op->result + k] = dtype_is_float(f->val[op->result + k].type.dtype) || act[op->result + k];
    }
  }
}

static void mark_use(Ad *a, Val v) {
  a->use[v] = a->act[v];
}

static void block_use(Ad *a, const OpId *ops, uint32_t n_ops);

static uint32_t used_carries(const Ad *a, const Block *body, uint32_t n) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; i++)
    count += a->use[body->param[1 + i]];
  return count;
}

static void loop_use(Ad *a, const Op *op, const LoopShape *s) {
  const Block *body = op->body;
  for (uint32_t i = s->n_carry; i < op->n_results; i++)
    if (a->use[op->result + i])
      mark_use(a, body->ret[i]);
  uint32_t before;
  do {
    before = used_carries(a, body, s->n_carry);
    for (uint32_t i = 0; i < s->n_carry; i++)
      if (a->use[op->result + i] || a->use[body->param[1 + i]])
        mark_use(a, body->ret[i]);
    block_use(a, body->op, body->n_ops);
  } while (used_carries(a, body, s->n_carry) != before);
  for (uint32_t i = 0; i < op->n_args; i++)
    if (a->use[body->param[1 + i]])
      mark_use(a, op->arg[i]);
}

static void block_use(Ad *a, const OpId *ops, uint32_t n_ops) {
  Func *f = a->b.f;
  for (uint32_t i = n_ops; i-- > 0;) {
    const Op *op = &f->op[ops[i]];
    if (op->code == OP_LOOP) {
      LoopShape s = loop_shape(f, ops[i]);
      loop_use(a, op, &s);
      continue;
    }
    bool used = false;
    for (uint32_t k = 0; k < op->n_results; k++)
      used |= a->use[op->result + k];
    for (uint32_t k = 0; used && k < op->n_args; k++)
      mark_use(a, op->arg[k]);
  }
}

void ad_relevance(Ad *a, const Block *b, Val target, const Val *wrt, uint32_t n) {
  Func *f = a->b.f;
  a->n = f->n_vals;
  a->act = ARENA_ARRAY(&f->module->arena, bool, a->n);
  a->use = ARENA_ARRAY(&f->module->arena, bool, a->n);
  for (uint32_t i = 0; i < n; i++)
    a->act[wrt[i]] = true;
  activity(f, b->op, b->n_ops, a->act);
  if (target == NONE)
    return;
  mark_use(a, target);
  block_use(a, b->op, b->n_ops);
}

/* ---- cotangents ---- */

bool ad_wants(const Ad *a, Val v) {
  return v < a->n && a->use[v];
}

/* g with exactly the dims of t. */
static Val fit(Builder *b, Val g, const Type *t) {
  if (g == NONE)
    return g;
  const Type *gt = ir_type(b->f, g);
  Axis extra[IR_MAX_RANK];
  uint32_t n = 0;
  for (uint32_t i = 0; i < gt->rank; i++)
    if (!type_has(t, gt->dim[i].axis))
      extra[n++] = gt->dim[i].axis;
  if (n)
    g = ir_reduce(b, OP_SUM, g, extra, n);
  if (g != NONE && !type_same_dims(ir_type(b->f, g), t))
    g = ir_broadcast(b, g, t);
  return g;
}

void ad_add(Ad *a, Val v, Val g) {
  if (!ad_wants(a, v) || g == NONE)
    return;
  Type t = *ir_type(a->b.f, v);
  g = fit(&a->b, g, &t);
  a->cot[v] = a->cot[v] == NONE ? g : ir_binary(&a->b, OP_ADD, a->cot[v], g);
}

Val ad_arg(const Ad *a, OpId id, uint32_t k) {
  return a->b.f->op[id].arg[k];
}

Val ad_x(Ad *a, OpId id, uint32_t k) {
  return ad_primal(a, ad_arg(a, id, k));
}

Val ad_y(Ad *a, OpId id) {
  return ad_primal(a, a->b.f->op[id].result);
}

Val ad_const(Ad *a, Val like, double v) {
  return like == NONE ? NONE : ir_const(&a->b, ir_type(a->b.f, like)->dtype, v);
}

void ad_sweep(Ad *a, const OpId *ops, uint32_t n_ops) {
  Func *f = a->b.f;
  for (uint32_t i = n_ops; i-- > 0;) {
    const Op *op = &f->op[ops[i]];
    if (!differentiable(op) || op->n_results == 0)
      continue;
    Val *dy = ARENA_ARRAY(&f->module->arena, Val, op->n_results);
    bool any = false;
    for (uint32_t k = 0; k < op->n_results; k++) {
      dy[k] = a->cot[op->result + k];
      any |= dy[k] != NONE;
    }
    if (!any)
      continue;
    a->b.loc = op->loc;
    vjp_table[op->code](a, ops[i], dy);
  }
}

bool ad_pull(Func *f, Block *b, Val target, Val seed, const Val *wrt, uint32_t n, Val *out, Error *err) {
  OpId *ops = b->op;
  uint32_t n_ops = b->n_ops;
  Ad a = {.b = {.f = f, .b = b, .loc = {NONE, 0, 0}, .err = err}, .fwd = b};
  ad_relevance(&a, b, target, wrt, n);
  a.cot = ARENA_ARRAY(&f->module->arena, Val, a.n);
  memset(a.cot, 0xff, a.n * sizeof *a.cot);
  if (a.use[target]) {
    Type t = *ir_type(f, target);
    a.cot[target] = seed != NONE ? seed : ir_broadcast(&a.b, ir_const(&a.b, t.dtype, 1), &t);
    ad_sweep(&a, ops, n_ops);
  }
  for (uint32_t i = 0; i < n; i++)
    out[i] = a.cot[wrt[i]];
  return err->cls == ERR_NONE;
}

/* ---- the pass ---- */

Val loss_of(const Func *f) {
  for (uint32_t i = 0; i < f->body->n_ret; i++)
    if (f->res[i].kind == RES_LOSS)
      return f->body->ret[i];
  return NONE;
}

uint32_t trained_params(const Func *f, Val *out) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < f->body->n_params; i++)
    if (f->arg[i].kind == ARG_PARAM && !f->module->param[f->arg[i].index].frozen)
      out[n++] = f->body->param[i];
  return n;
}

static Val gradient_of(const Func *g, uint32_t param, const Val *wrt, const Val *grad, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (g->arg[g->val[wrt[i]].index].index == param)
      return grad[i];
  return NONE;
}

Func *pass_autodiff(Func *f, const char *name, Error *err) {
  Module *m = f->module;
  Func *g = func_copy(f, name, NULL, NULL);
  Val loss = loss_of(g);
  if (loss == NONE) {
    error_set(err, ERR_INPUT, "%s has no loss to differentiate", f->name);
    return NULL;
  }
  Val *wrt = ARENA_ARRAY(&m->arena, Val, g->body->n_params),
      *grad = ARENA_ARRAY(&m->arena, Val, g->body->n_params);
  uint32_t n = trained_params(g, wrt);
  if (!ad_pull(g, g->body, loss, NONE, wrt, n, grad, err))
    return NULL;
  Builder b = {.f = g, .b = g->body, .loc = {NONE, 0, 0}, .err = err};
  for (uint32_t p = 0; p < m->n_params; p++) {
    if (m->param[p].frozen)
      continue;
    Val v = gradient_of(g, p, wrt, grad, n);
    const Type *t = &m->param[p].type;
    v = v == NONE ? build_zeros(&b, t) : ir_reorder(&b, v, t);
    ir_func_ret(g, (FuncRes){.kind = RES_GRAD, .index = p, .name = m->param[p].name}, v);
  }
  if (err->cls != ERR_NONE)
    return NULL;
  prune(g, g->body);
  return g;
}
