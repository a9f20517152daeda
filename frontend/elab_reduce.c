/* elab_reduce.c: reductions, and what their operands tell about parameters (which are matrices). */
#include "frontend/elab.h"

#include <string.h>

static const struct {
  const char *name;
  OpCode code;
} reductions[] = {{"sum", OP_SUM},   {"mean", OP_SUM},       {"max", OP_REDUCE_MAX}, {"min", OP_REDUCE_MIN},
                  {"prod", OP_PROD}, {"any", OP_REDUCE_MAX}, {"all", OP_REDUCE_MIN}, {"argmax", OP_ARGMAX}};

const char *reduction_name(uint32_t i) {
  return i < sizeof reductions / sizeof *reductions ? reductions[i].name : NULL;
}

bool reduction_code(const char *name, OpCode *out) {
  for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++) {
    if (!strcmp(reductions[i].name, name)) {
      *out = reductions[i].code;
      return true;
    }
  }
  return false;
}

/* The axes of a parameter that its first use as a matrix sums or indexes: its rows. */
void note_summed(Elab *e, const V *v, const Axis *axis, uint32_t n) {
  const IrParam *p = &e->m->param[v->param];
  const Type *t = vtype(e, v);
  if (e->use[v->param].summed || t->rank + p->n_repeat != p->type.rank) {
    return; /* a part of it, or split axes: no position to speak of */
  }
  for (uint32_t i = 0; i < n; i++) {
    int at = type_find(t, axis[i]);
    e->use[v->param].summed |= at < 0 ? 0 : 1u << at;
  }
}

static void note_contraction(Elab *e, const V *factor, uint32_t n, const Axis *axis, uint32_t n_axes) {
  for (uint32_t i = 0; i < n; i++) {
    if (factor[i].kind != V_TENSOR || factor[i].param == NONE) {
      continue;
    }
    bool shared = false;
    int64_t in = 1;
    for (uint32_t a = 0; a < n_axes; a++) {
      int at = type_find(vtype(e, &factor[i]), axis[a]);
      in *= at < 0 ? 1 : vtype(e, &factor[i])->dim[at].size;
      for (uint32_t k = 0; at >= 0 && k < n; k++) {
        shared |= k != i && factor[k].kind == V_TENSOR && factor[k].param != factor[i].param &&
                  type_has(vtype(e, &factor[k]), axis[a]);
      }
    }
    if (shared) {
      e->m->param[factor[i].param].matrix = true;
      e->use[factor[i].param].fan_in = (uint32_t)in;
      note_summed(e, &factor[i], axis, n_axes);
    }
  }
}

enum { MAX_FACTORS = 16 };

/* Evaluates a product and keeps its factors; a plain expression is its only factor. */
static V eval_product(Elab *e, Scope *s, const AstExpr *x, V *factor, uint32_t *n) {
  if (x && x->kind == EXPR_BINARY && x->binary.op == BINARY_MUL && x->height < 64) {
    V a = eval_product(e, s, x->binary.a, factor, n);
    V b = eval_product(e, s, x->binary.b, factor, n);
    return binary(e, s->ctx, BINARY_MUL, a, b, x->span);
  }
  V v = eval(e, s, x);
  if (*n < MAX_FACTORS) {
    factor[(*n)++] = v;
  }
  return v;
}

static V mean_of(Elab *e, Ctx *c, V x, const Axis *axis, uint32_t n, Span at) {
  x = to_float(e, c, x, at);
  if (x.kind == V_POISON) {
    return x;
  }
  double count = 1;
  for (uint32_t i = 0; i < n; i++) {
    count *= (double)vtype(e, &x)->dim[type_find(vtype(e, &x), axis[i])].size;
  }
  Val sum = ir_reduce(&c->b, OP_SUM, x.val, axis, n);
  Val den = ir_const(&c->b, vtype(e, &x)->dtype, count);
  V out = built(e, c, ir_binary(&c->b, OP_DIV, sum, den), at);
  if (out.kind == V_TENSOR && vtype(e, &out)->rank == 0) {
    out.term = ARENA_NEW(e->arena, Term);
    out.term[0] = (Term){sum, den, 1};
    out.n_terms = 1;
  }
  return out;
}

/* How a message calls the operand of a call. */
static const char *operand_name(Elab *e, const AstExpr *x) {
  const AstExpr *a = x->call.args.n ? x->call.args.v[0].value : NULL;
  if (a && a->kind == EXPR_CALL && a->call.f.text && !strcmp(a->call.f.text, "where") &&
      a->call.args.n == 3) {
    a = a->call.args.v[1].value;
  }
  return a && a->kind == EXPR_NAME ? arena_printf(e->arena, "'%s'", a->name.text) : "its operand";
}

/* The call and the axis that the program wrote, when it is an axis parameter of a library function. */
static const AstName *axis_as_written(Elab *e, const AstExpr **x, uint32_t i) {
  const AstName *name = &(*x)->call.axes.axes.v[i];
  for (uint32_t k = e->depth; k > 0 && e->call[k - 1].library && e->call[k - 1].x; k--) {
    const AstItem *def = e->call[k - 1].def;
    const AstExpr *caller = e->call[k - 1].x;
    uint32_t at = 0;
    while (at < def->def.axes.n && strcmp(def->def.axes.v[at].text, name->text)) {
      at++;
    }
    if (at >= caller->call.axes.axes.n) {
      break;
    }
    name = &caller->call.axes.axes.v[at];
    *x = caller;
  }
  return name;
}

static bool has_axes(Elab *e, const AstExpr *x, const V *v, const Axis *axis, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    const Type *t = vtype(e, v);
    if (type_has(t, axis[i])) {
      continue;
    }
    Str axes = {0};
    const char *names[IR_MAX_RANK];
    for (int k = 0; k < t->rank; k++) {
      names[k] = ir_axis_name(e->m, t->dim[k].axis);
      str_printf(&axes, "%s%s", k ? ", " : "", names[k]);
    }
    const AstName *missing = axis_as_written(e, &x, i < x->call.axes.axes.n ? i : 0);
    uint32_t d =
        report(e, missing->span, "%s has axes {%s}; %s[%s] reduces '%s', which it does not have",
               operand_name(e, x), axes.s ? axes.s : "", x->call.f.text, missing->text, missing->text);
    diag_did_you_mean(e->diag, d, missing->text, names, t->rank);
    str_free(&axes);
    return false;
  }
  return true;
}

V call_reduction(Elab *e, Scope *s, const AstExpr *x, const char *name, OpCode code) {
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  uint32_t n, n_factors = 0;
  V factor[MAX_FACTORS];
  if (!axes_of(e, s, x, axis, size, &n)) {
    return poison();
  }
  if (x->call.args.n != 1) {
    report(e, x->span, "%s takes one argument", name);
    return poison();
  }
  V v = eval_product(e, s, x->call.args.v[0].value, factor, &n_factors);
  if (v.kind == V_POISON) {
    return v;
  }
  locate(e, s->ctx, x->span);
  if (v.kind == V_NUM) {
    report(e, x->span, "%s[...] of a number: the operand has no axes", name);
    return poison();
  }
  v = bring(e, s->ctx, v);
  if (!has_axes(e, x, &v, axis, n)) {
    return poison();
  }
  if (code == OP_SUM && !strcmp(name, "sum")) {
    note_contraction(e, factor, n_factors, axis, n);
  }
  if (!strcmp(name, "mean")) {
    return mean_of(e, s->ctx, v, axis, n, x->span);
  }
  bool want_bool = !strcmp(name, "any") || !strcmp(name, "all");
  DType d = vtype(e, &v)->dtype;
  if (want_bool && d != DT_BOOL) {
    report(e, x->span, "%s takes a condition, this is %s", name, type_text(e, vtype(e, &v)));
    return poison();
  }
  if (!want_bool && d == DT_BOOL) {
    v = as_tensor(e, s->ctx, v, DT_I32);
  }
  V out = built(e, s->ctx, ir_reduce(&s->ctx->b, code, v.val, axis, n), x->span);
  out.scalar = false;
  return out;
}

V call_cumsum(Elab *e, Scope *s, const AstExpr *x) {
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  uint32_t n;
  V v;
  if (!axes_of(e, s, x, axis, size, &n) || !args_n(e, s, x, 1, &v) ||
      !unify(e, s->ctx, &v, 1, false, x->span)) {
    return poison();
  }
  if (n != 1 || !has_axes(e, x, &v, axis, n)) {
    return poison();
  }
  int64_t forward = 0;
  locate(e, s->ctx, x->span);
  return built(e, s->ctx,
               ir_op(&s->ctx->b, OP_CUMSUM, &v.val, 1,
                     &(Attr){.axis = axis, .n_axis = 1, .num = &forward, .n_num = 1}, NULL),
               x->span);
}

/* sum(x) in optimizer code: over every axis of the parameter, each layer of a repeat on its own. */
V sum_of_parameter(Elab *e, Ctx *c, V v, Span at) {
  v = to_float(e, c, v, at);
  if (v.kind == V_POISON) {
    return v;
  }
  const Type *t = vtype(e, &v);
  Axis all[IR_MAX_RANK];
  uint32_t n = 0;
  for (int k = 0; k < t->rank; k++) {
    int own = type_find(e->opt_param, t->dim[k].axis);
    if (own < 0 || own >= (int)e->n_opt_repeat) {
      all[n++] = t->dim[k].axis;
    }
  }
  return built(e, c, ir_reduce(&c->b, OP_SUM, v.val, all, n), at);
}
