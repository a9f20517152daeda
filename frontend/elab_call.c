/* elab_call.c: calls: primitives by table, then functions and instances. */
#include "frontend/elab.h"

#include <math.h>
#include <string.h>

/* ---- arguments ---- */

/* Evaluates exactly n positional arguments; reports and returns false otherwise. */
bool args_n(Elab *e, Scope *s, const AstExpr *x, uint32_t n, V *out) {
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
bool axes_of(Elab *e, Scope *s, const AstExpr *x, Axis *axis, int64_t *size, uint32_t *n) {
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
  OpCode code;
  DType d;
  if (reduction_code(f, &code)) {
    if (!bracket && (!strcmp(f, "max") || !strcmp(f, "min"))) {
      return call_extreme(e, s, x, !strcmp(f, "max") ? OP_MAX : OP_MIN);
    }
    if (!bracket && e->in_optimizer && !strcmp(f, "sum")) {
      return args_n(e, s, x, 1, &v) ? sum_of_parameter(e, s->ctx, v, x->span) : poison();
    }
    return call_reduction(e, s, x, f, code);
  }
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
  for (uint32_t i = 0; reduction_name(i); i++) {
    VEC_PUSH(e->arena, list, n, cap, reduction_name(i));
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
