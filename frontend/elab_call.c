/* elab_call.c: calls: primitives by table, then functions and instances. */
#include "frontend/elab.h"

#include <math.h>
#include <string.h>

/* ---- arguments ---- */

/* Evaluates exactly n positional arguments; reports and returns false otherwise. */
static bool args_n(Elab *e, Scope *s, const AstExpr *x, uint32_t n, V *out) {
  const AstArgs *a = &x->call.args;
  if (a->n != n) {
    report(e, x->span, "%s takes %u argument%s, not %u", x->call.f.text, n, n == 1 ? "" : "s", a->n);
    return false;
  }
  bool ok = true;
  for (uint32_t i = 0; i < n; i++) {
    if (a->v[i].name.text || a->v[i].over.text) {
      report(e, a->v[i].span, "%s takes plain arguments", x->call.f.text);
      return false;
    }
    out[i] = eval(e, s, a->v[i].value);
    ok &= out[i].kind != V_POISON;
  }
  return ok;
}

/* `rows` and `cols` in optimizer code: the axes of the parameter that its contraction sums, and the others.
 */
static bool rows_or_cols(Elab *e, const AstName *word, Axis *axis, int64_t *size, uint32_t *n) {
  const uint32_t summed = e->use[e->opt_row].summed;
  if (!summed) {
    uint32_t d = report(e, word->span, "'%s' means nothing for parameter '%s', which no contraction uses",
                        word->text, e->m->param[e->opt_row].name);
    diag_hint(e->diag, d, "give this optimizer line: where matrix");
    return false;
  }
  for (uint32_t k = e->n_opt_repeat; k < e->opt_param->rank; k++) {
    bool is_row = summed >> (k - e->n_opt_repeat) & 1;
    if (is_row == !strcmp(word->text, "rows")) {
      axis[*n] = e->opt_param->dim[k].axis;
      size[(*n)++] = e->opt_param->dim[k].size;
    }
  }
  return true;
}

/* The axes in the call's brackets; each once. */
static bool axes_of(Elab *e, Scope *s, const AstExpr *x, Axis *axis, int64_t *size, uint32_t *n) {
  const AstBracket *b = &x->call.axes;
  *n = 0;
  if (b->kind != BRACKET_AXES || b->axes.n > IR_MAX_RANK) {
    report(e, x->span, "%s needs the names of axes in brackets: %s[axis](...)", x->call.f.text,
           x->call.f.text);
    return false;
  }
  if (e->in_optimizer && b->axes.n == 1 && !b->axes.v[0].qual) {
    const char *word = b->axes.v[0].text;
    if (!strcmp(word, "rows") || !strcmp(word, "cols")) {
      return rows_or_cols(e, &b->axes.v[0], axis, size, n);
    }
  }
  for (uint32_t i = 0; i < b->axes.n; i++) {
    AxisBinding a;
    if (!find_axis(e, s, &b->axes.v[i], &a)) {
      return false;
    }
    for (uint32_t k = 0; k < i; k++) {
      if (axis[k] == a.axis) {
        report(e, b->axes.v[i].span, "%s names the axis '%s' twice", x->call.f.text, b->axes.v[i].text);
        return false;
      }
    }
    axis[i] = a.axis;
    size[i] = a.size;
    *n = i + 1;
  }
  return true;
}

/* ---- reductions ---- */

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

static const struct {
  const char *name;
  OpCode code;
} reductions[] = {{"sum", OP_SUM},   {"mean", OP_SUM},       {"max", OP_REDUCE_MAX}, {"min", OP_REDUCE_MIN},
                  {"prod", OP_PROD}, {"any", OP_REDUCE_MAX}, {"all", OP_REDUCE_MIN}, {"argmax", OP_ARGMAX}};

static V call_reduction(Elab *e, Scope *s, const AstExpr *x, const char *name, OpCode code) {
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

/* ---- random numbers ---- */

static V random_tensor(Elab *e, Ctx *c, const Type *dims, Span at) {
  Val args[IR_MAX_RANK + 2];
  uint32_t n = 0, loops = 0;
  Ctx *chain[IR_MAX_RANK];
  args[n++] = import_value(e, c, e->root, scalar_arg(e, 2), false);
  args[n++] = import_value(e, c, e->root, scalar_arg(e, 1), false);
  for (Ctx *p = c; p->up; p = p->up) {
    if (loops == IR_MAX_RANK) {
      report(e, at, "random numbers inside more than %d loops", IR_MAX_RANK);
      return poison();
    }
    chain[loops++] = p;
  }
  while (loops-- > 0) {
    args[n++] = import_value(e, c, chain[loops], chain[loops]->index, false);
  }
  Axis axis[IR_MAX_RANK];
  int64_t number[IR_MAX_RANK + 1];
  for (int i = 0; i < dims->rank; i++) {
    axis[i] = dims->dim[i].axis;
    number[i] = dims->dim[i].size;
  }
  uint32_t key = e->draws++;
  uint64_t h = hash_bytes(&key, sizeof key, 0);
  number[dims->rank] = (int64_t)((h ^ h >> 32) & 0x7fffffff);
  Attr attr = {
      .axis = axis, .n_axis = dims->rank, .num = number, .n_num = dims->rank + 1u, .dtype = e->m->real};
  return built(e, c, ir_op(&c->b, OP_RANDOM, args, n, &attr, NULL), at);
}

static V call_dropout(Elab *e, Scope *s, const AstExpr *x) {
  V v[2];
  if (!args_n(e, s, x, 2, v)) {
    return poison();
  }
  if (v[1].kind != V_NUM || !(v[1].num >= 0 && v[1].num < 1)) {
    report(e, x->call.args.v[1].span,
           "the rate of dropout is a compile-time number of at least 0 and under 1");
    return poison();
  }
  if (!e->training || v[1].num == 0) {
    return v[0];
  }
  V t = to_float(e, s->ctx, v[0], x->span);
  if (t.kind == V_POISON) {
    return t;
  }
  Builder *b = &s->ctx->b;
  V u = random_tensor(e, s->ctx, vtype(e, &t), x->span);
  u = as_tensor(e, s->ctx, u, vtype(e, &t)->dtype);
  DType d = vtype(e, &t)->dtype;
  Val keep = ir_binary(b, OP_LE, ir_const(b, d, v[1].num), u.val);
  Val scaled = ir_binary(b, OP_MUL, t.val, ir_const(b, d, 1 / (1 - v[1].num)));
  return built(e, s->ctx, ir_select(b, keep, scaled, ir_const(b, d, 0)), x->span);
}

static V call_draw(Elab *e, Scope *s, const AstExpr *x, bool is_normal) {
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  uint32_t n;
  V v[2] = {num(0), num(1)};
  if (!axes_of(e, s, x, axis, size, &n) || (x->call.args.n && !args_n(e, s, x, 2, v))) {
    return poison();
  }
  Type t = type_scalar(e->m->real);
  for (uint32_t i = 0; i < n; i++) {
    type_push(&t, axis[i], size[i]);
  }
  Ctx *c = s->ctx;
  V u = random_tensor(e, c, &t, x->span);
  if (is_normal && u.kind == V_TENSOR) {
    Builder *b = &c->b;
    V w = random_tensor(e, c, &t, x->span);
    DType d = e->m->real;
    Val log_u = ir_unary(b, OP_LOG1P, ir_unary(b, OP_NEG, u.val));
    Val radius = ir_unary(b, OP_SQRT, ir_binary(b, OP_MUL, ir_const(b, d, -2), log_u));
    Val turn = ir_unary(b, OP_COS, ir_binary(b, OP_MUL, ir_const(b, d, 6.283185307179586), w.val));
    u = built(e, c, ir_binary(b, OP_MUL, radius, turn), x->span);
    return binary(e, c, BINARY_ADD, binary(e, c, BINARY_MUL, u, v[1], x->span), v[0], x->span);
  }
  return x->call.args.n
             ? binary(e, c, BINARY_ADD,
                      binary(e, c, BINARY_MUL, u, binary(e, c, BINARY_SUB, v[1], v[0], x->span), x->span),
                      v[0], x->span)
             : u;
}

/* ---- the others ---- */

static V call_where(Elab *e, Scope *s, const AstExpr *x) {
  V v[3];
  if (!args_n(e, s, x, 3, v)) {
    return poison();
  }
  if (v[0].kind == V_NUM) {
    return v[0].num != 0 ? v[1] : v[2];
  }
  if (vtype(e, &v[0])->dtype != DT_BOOL) {
    report(e, x->call.args.v[0].span, "the first argument of where is a condition, this is %s",
           type_text(e, vtype(e, &v[0])));
    return poison();
  }
  V c = bring(e, s->ctx, v[0]), branch[2] = {bring(e, s->ctx, v[1]), bring(e, s->ctx, v[2])};
  bool scalar = c.scalar && (v[1].kind == V_NUM || v[1].scalar) && (v[2].kind == V_NUM || v[2].scalar);
  bool both_fixed = scalar && v[1].kind == V_NUM && v[2].kind == V_NUM;
  if (both_fixed) {
    branch[0] = as_tensor(e, s->ctx, branch[0], DT_F64);
    branch[0].scalar = true;
  }
  if (!unify(e, s->ctx, branch, 2, false, x->span) || !joins(e, &c, &branch[0], x->span) ||
      !joins(e, &c, &branch[1], x->span) || !joins(e, &branch[0], &branch[1], x->span)) {
    return poison();
  }
  locate(e, s->ctx, x->span);
  V out = built(e, s->ctx, ir_select(&s->ctx->b, c.val, branch[0].val, branch[1].val), x->span);
  out.scalar = scalar;
  return out;
}

static V call_extreme(Elab *e, Scope *s, const AstExpr *x, OpCode code) {
  V v[2];
  if (!args_n(e, s, x, 2, v)) {
    return poison();
  }
  if (v[0].kind == V_NUM && v[1].kind == V_NUM) {
    return num(code == OP_MAX ? fmax(v[0].num, v[1].num) : fmin(v[0].num, v[1].num));
  }
  bool scalar = (v[0].kind == V_NUM || v[0].scalar) && (v[1].kind == V_NUM || v[1].scalar);
  locate(e, s->ctx, x->span);
  if (!unify(e, s->ctx, v, 2, false, x->span) || !joins(e, &v[0], &v[1], x->span)) {
    return poison();
  }
  V out = built(e, s->ctx, ir_binary(&s->ctx->b, code, v[0].val, v[1].val), x->span);
  out.scalar = scalar;
  return out;
}

static V call_index(Elab *e, Scope *s, const AstExpr *x) {
  const AstArgs *a = &x->call.args;
  AxisBinding axis;
  if (a->n != 1 || !a->v[0].value || a->v[0].value->kind != EXPR_NAME) {
    report(e, x->span, "index takes the name of an axis");
    return poison();
  }
  if (!find_axis(e, s, &a->v[0].value->name, &axis)) {
    return poison();
  }
  locate(e, s->ctx, x->span);
  return built(e, s->ctx, ir_iota(&s->ctx->b, axis.axis, axis.size), x->span);
}

static V call_full(Elab *e, Scope *s, const AstExpr *x) {
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  uint32_t n;
  V v;
  if (!axes_of(e, s, x, axis, size, &n) || !args_n(e, s, x, 1, &v) ||
      !unify(e, s->ctx, &v, 1, false, x->span)) {
    return poison();
  }
  Type t = *vtype(e, &v);
  for (uint32_t i = 0; i < n; i++) {
    if (!type_has(&t, axis[i])) {
      type_push(&t, axis[i], size[i]);
    }
  }
  locate(e, s->ctx, x->span);
  return built(e, s->ctx, ir_broadcast(&s->ctx->b, v.val, &t), x->span);
}

static V call_cast(Elab *e, Scope *s, const AstExpr *x, DType d) {
  V v;
  if (!args_n(e, s, x, 1, &v)) {
    return poison();
  }
  if (d != DT_F32 && d != DT_F64 && d != DT_I32 && d != DT_I64 && d != DT_U8 && d != DT_BOOL) {
    report(e, x->span, "the type %s is not built yet", dtype_name(d));
    return poison();
  }
  if (d == DT_F32 && e->m->real == DT_F64) {
    d = DT_F64; /* under precision f64 every float is f64 */
  }
  if (v.kind == V_NUM) {
    return dtype_is_float(d) ? as_tensor(e, s->ctx, v, d) : num(trunc(v.num));
  }
  locate(e, s->ctx, x->span);
  return as_tensor(e, s->ctx, v, d);
}

static V call_grad(Elab *e, Scope *s, const AstExpr *x) {
  const AstArgs *a = &x->call.args;
  V v[2];
  if (!args_n(e, s, x, 2, v)) {
    return poison();
  }
  for (int i = 0; i < 2; i++) {
    if (v[i].kind != V_TENSOR || v[i].ctx != s->ctx || !dtype_is_float(vtype(e, &v[i])->dtype)) {
      report(e, a->v[i].span, "grad takes two float tensors of the same body");
      return poison();
    }
  }
  locate(e, s->ctx, x->span);
  return built(e, s->ctx, ir_op(&s->ctx->b, OP_GRAD, (Val[]){v[0].val, v[1].val}, 2, NULL, NULL), x->span);
}

static V call_cumsum(Elab *e, Scope *s, const AstExpr *x) {
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
static V sum_of_parameter(Elab *e, Ctx *c, V v, Span at) {
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

static V call_special(Elab *e, Scope *s, const AstExpr *x, const char *f, bool *known) {
  *known = true;
  if (!strcmp(f, "where"))
    return call_where(e, s, x);
  if (!strcmp(f, "index"))
    return call_index(e, s, x);
  if (!strcmp(f, "full"))
    return call_full(e, s, x);
  if (!strcmp(f, "grad"))
    return call_grad(e, s, x);
  if (!strcmp(f, "dropout"))
    return call_dropout(e, s, x);
  if (!strcmp(f, "uniform"))
    return call_draw(e, s, x, false);
  if (!strcmp(f, "normal"))
    return call_draw(e, s, x, true);
  if (!strcmp(f, "cumsum"))
    return call_cumsum(e, s, x);
  if (!strcmp(f, "join"))
    return call_join(e, s, x);
  if (!strcmp(f, "shift"))
    return call_shift(e, s, x, false);
  if (!strcmp(f, "roll"))
    return call_shift(e, s, x, true);
  if (!strcmp(f, "pad"))
    return call_pad(e, s, x);
  if (!strcmp(f, "top_k"))
    return call_sort(e, s, x, true, 0);
  if (!strcmp(f, "top_index"))
    return call_sort(e, s, x, true, 1);
  if (!strcmp(f, "sort"))
    return call_sort(e, s, x, false, 0);
  if (!strcmp(f, "sort_index"))
    return call_sort(e, s, x, false, 1);
  *known = false;
  return poison();
}

static bool unary_code(const char *f, OpCode *out) {
  static const OpCode codes[] = {OP_EXP, OP_LOG, OP_LOG1P, OP_SQRT, OP_RSQRT, OP_TANH,  OP_SIGMOID,
                                 OP_ERF, OP_SIN, OP_COS,   OP_ABS,  OP_SIGN,  OP_FLOOR, OP_STOP};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    if (!strcmp(ir_op_info[codes[i]].text, f)) {
      *out = codes[i];
      return true;
    }
  }
  return false;
}

static V call_primitive(Elab *e, Scope *s, const AstExpr *x, const char *f, bool *known) {
  V v = call_special(e, s, x, f, known);
  if (*known) {
    return v;
  }
  *known = true;
  bool bracket = x->call.axes.kind != BRACKET_NONE;
  for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++) {
    if (strcmp(reductions[i].name, f)) {
      continue;
    }
    if (!bracket && (!strcmp(f, "max") || !strcmp(f, "min"))) {
      return call_extreme(e, s, x, !strcmp(f, "max") ? OP_MAX : OP_MIN);
    }
    if (!bracket && e->in_optimizer && !strcmp(f, "sum")) {
      return args_n(e, s, x, 1, &v) ? sum_of_parameter(e, s->ctx, v, x->span) : poison();
    }
    return call_reduction(e, s, x, f, reductions[i].code);
  }
  OpCode code;
  DType d;
  if (!strcmp(f, "float")) {
    return call_cast(e, s, x, e->m->real);
  }
  if (dtype_parse(f, strlen(f), &d)) {
    return call_cast(e, s, x, d);
  }
  if (unary_code(f, &code)) {
    if (bracket) {
      report(e, x->call.axes.span, "%s takes no axes", f);
      return poison();
    }
    return args_n(e, s, x, 1, &v) ? unary_op(e, s->ctx, code, v, x->span) : poison();
  }
  *known = false;
  return poison();
}

static Instance *find_instance(Scope *s, const char *name) {
  for (; s; s = s->up) {
    for (uint32_t i = s->n_instances; i-- > 0;) {
      if (!strcmp(s->instance[i]->name, name)) {
        return s->instance[i];
      }
    }
  }
  return NULL;
}

V eval_call(Elab *e, Scope *s, const AstExpr *x) {
  const char *f = x->call.f.text;
  if (!f) {
    return poison();
  }
  Instance *inst = x->call.f.qual ? NULL : find_instance(s, f);
  if (inst) {
    return inst->def ? call_def(e, s, x, inst->def, inst->file, inst) : poison();
  }
  bool known;
  V v = call_primitive(e, s, x, f, &known);
  if (known) {
    return v;
  }
  FileScope *home = NULL, *where = s->file;
  if (x->call.f.qual) {
    where = used_file(e, s->file, &x->call.f);
    if (!where) {
      return poison();
    }
  }
  const AstItem *def = find_def(where, ITEM_FN, f, &home);
  if (def) {
    return call_def(e, s, x, def, home, NULL);
  }
  uint32_t d = report(e, x->call.f.span, "there is no function or used module '%s'", f);
  if (find_def(s->file, ITEM_MODULE, f, &home)) {
    diag_hint(e->diag, d, "a module is used first: use name: %s", f);
    return poison();
  }
  const char **list = NULL;
  uint32_t n = 0, cap = 0;
  for (FileScope *p = s->file; p; p = p->std) {
    for (uint32_t i = 0; i < p->n_files; i++) {
      for (uint32_t k = 0; k < p->file[i]->n; k++) {
        if (p->file[i]->v[k]->kind == ITEM_FN) {
          VEC_PUSH(e->arena, list, n, cap, p->file[i]->v[k]->def.name.text);
        }
      }
    }
  }
  for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++) {
    VEC_PUSH(e->arena, list, n, cap, reductions[i].name);
  }
  for (int i = 0; i < OP_COUNT; i++) {
    OpCode code;
    if (unary_code(ir_op_info[i].text, &code)) {
      VEC_PUSH(e->arena, list, n, cap, ir_op_info[i].text);
    }
  }
  diag_did_you_mean(e->diag, d, f, list, n);
  return poison();
}
