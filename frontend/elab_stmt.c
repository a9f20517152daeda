/* elab_stmt.c: statements, and the calls that run them: functions, modules, models. */
#include "frontend/elab.h"

#include <string.h>

/* ---- types written in the program ---- */

static bool written_dtype(Elab *e, const AstName *name, DType *out) {
  if (!strcmp(name->text, "float")) {
    *out = e->m->real;
    return true;
  }
  if (!dtype_parse(name->text, strlen(name->text), out)) {
    report(e, name->span,
           "there is no type '%s'; types are float, f32, f64, f16, bf16, int, i64, u8 and bool", name->text);
    return false;
  }
  if (*out == DT_F32 && e->m->real == DT_F64) {
    *out = DT_F64;
  }
  return true;
}

/* Checks `x: float[batch, time] = v`: the same axes as a set, the same dtype. */
static V assert_type(Elab *e, Scope *s, const AstType *t, V v, const char *name) {
  DType d;
  if (v.kind == V_POISON || !written_dtype(e, &t->dtype, &d)) {
    return poison();
  }
  if (v.kind == V_NUM) {
    v = as_tensor(e, s->ctx, v, d);
  }
  const Type *have = vtype(e, &v);
  Type want = type_scalar(d);
  for (uint32_t i = 0; i < t->axes.n; i++) {
    AxisBinding a;
    if (!find_axis(e, s, &t->axes.v[i], &a)) {
      return poison();
    }
    if (!type_push(&want, a.axis, a.size)) {
      report(e, t->axes.v[i].span,
             "axis '%s' twice in one type; declare a second name of the same size: axis %s_2 = %s", a.name,
             a.name, a.name);
      return poison();
    }
  }
  if (type_same_dims(&want, have) && have->dtype == d) {
    return v;
  }
  const char *is =
      arena_printf(e->arena, "so '%s' is %s here, not %s", name, type_text(e, have), type_text(e, &want));
  for (int i = 0; i < have->rank; i++) {
    if (!type_has(&want, have->dim[i].axis) && report_missing_sum(e, v, have->dim[i].axis, t->span, is)) {
      return poison();
    }
  }
  Str extra = {0};
  for (int i = 0; i < have->rank; i++) {
    if (!type_has(&want, have->dim[i].axis)) {
      str_printf(&extra, "; '%s' is not in the written type (a missing sum[%s]?)",
                 ir_axis_name(e->m, have->dim[i].axis), ir_axis_name(e->m, have->dim[i].axis));
    }
  }
  for (int i = 0; i < want.rank; i++) {
    if (!type_has(have, want.dim[i].axis)) {
      str_printf(&extra, "; '%s' is missing", ir_axis_name(e->m, want.dim[i].axis));
    }
  }
  report(e, t->span, "'%s' is %s, not %s%s", name, type_text(e, have), type_text(e, &want),
         extra.s ? extra.s : "");
  str_free(&extra);
  return poison();
}

/* ---- use ---- */

static const char *sub_path(Elab *e, const char *path, const char *name) {
  return path[0] ? arena_printf(e->arena, "%s.%s", path, name) : name;
}

static const AstItem *used_def(Elab *e, Scope *s, const AstName *name, FileScope **home) {
  FileScope *f = s->file;
  if (name->qual) {
    f = used_file(e, s->file, name);
    if (!f) {
      return NULL;
    }
  }
  const AstItem *def = find_def(f, ITEM_MODULE, name->text, home);
  def = def ? def : find_def(f, ITEM_MODEL, name->text, home);
  if (!def) {
    uint32_t d = report(e, name->span, "there is no module '%s'", name->text);
    const char **list = NULL;
    uint32_t n = 0, cap = 0;
    for (uint32_t i = 0; i < f->n_files; i++) {
      for (uint32_t k = 0; k < f->file[i]->n; k++) {
        if (f->file[i]->v[k]->kind == ITEM_MODULE) {
          VEC_PUSH(e->arena, list, n, cap, f->file[i]->v[k]->def.name.text);
        }
      }
    }
    diag_did_you_mean(e->diag, d, name->text, list, n);
  }
  return def;
}

/* Binds the axis parameters of a definition to the axes in brackets. */
static bool bind_axes(Elab *e, Scope *s, const AstItem *def, const AstBracket *b, Span at,
                      AxisBinding **out) {
  uint32_t n = def->def.axes.n, given = b->kind == BRACKET_AXES ? b->axes.n : 0;
  if (b->kind == BRACKET_AS || given != n) {
    report(e, at, "'%s' takes %u axis parameter%s, not %u", def->def.name.text, n, n == 1 ? "" : "s", given);
    return false;
  }
  *out = ARENA_ARRAY(e->arena, AxisBinding, n);
  for (uint32_t i = 0; i < n; i++) {
    if (!find_axis(e, s, &b->axes.v[i], &(*out)[i])) {
      return false;
    }
    (*out)[i].name = def->def.axes.v[i].text;
  }
  return true;
}

static int input_named(const AstItem *def, const char *name) {
  for (uint32_t i = 0; i < def->def.n_inputs; i++) {
    if (!strcmp(def->def.inputs[i].name.text, name)) {
      return (int)i;
    }
  }
  return -1;
}

static void run_use(Elab *e, Scope *s, const AstUse *u) {
  FileScope *home;
  const AstItem *def = used_def(e, s, &u->module, &home);
  if (!s->in_module) {
    report(e, u->span, "'use' belongs in a module or model: a function holds no parameters");
    return;
  }
  Instance *in = ARENA_NEW(e->arena, Instance);
  in->name = u->inst.text;
  in->path = sub_path(e, s->path, u->inst.text);
  if (!def || !bind_axes(e, s, def, &u->axes, u->span, &in->axis)) {
    VEC_PUSH(e->arena, s->instance, s->n_instances, s->cap_instances,
             in); /* calls of it are not reported again */
    return;
  }
  in->def = def;
  in->file = home;
  in->n_axes = def->def.axes.n;
  in->setting = ARENA_ARRAY(e->arena, V, def->def.n_inputs);
  for (uint32_t i = 0; i < def->def.n_inputs; i++) {
    in->setting[i] = poison();
  }
  for (uint32_t i = 0; i < u->args.n; i++) {
    const AstArg *a = &u->args.v[i];
    int k = a->name.text ? input_named(def, a->name.text) : -1;
    if (k < 0 || !def->def.inputs[k].value) {
      report(e, a->span, "'%s' has no setting '%s'", def->def.name.text,
             a->name.text ? a->name.text : "(positional)");
      continue;
    }
    in->setting[k] = eval(e, s, a->value);
  }
  for (uint32_t i = 0; i < s->n_instances; i++) {
    if (!strcmp(s->instance[i]->name, in->name)) {
      report(e, u->span, "'%s' is used twice in this body; give the second another name", in->name);
      return;
    }
  }
  VEC_PUSH(e->arena, s->instance, s->n_instances, s->cap_instances, in);
}

/* ---- calls ---- */

static bool enter(Elab *e, const AstItem *def, const FileScope *file, const AstExpr *x, Span at) {
  for (uint32_t i = 0; i < e->depth; i++) {
    if (e->call[i].def == def) {
      Str cycle = {0};
      for (uint32_t k = i; k < e->depth; k++) {
        str_printf(&cycle, "'%s' -> ", e->call[k].def->def.name.text);
      }
      report(e, at, "'%s' contains itself: %s'%s'", def->def.name.text, cycle.s, def->def.name.text);
      str_free(&cycle);
      return false;
    }
  }
  if (e->depth == sizeof e->call / sizeof *e->call) {
    report(e, at, "calls are nested more than %u deep", e->depth);
    return false;
  }
  e->call[e->depth++] = (Call){def, x, at, file == e->std};
  return true;
}

static void warn_unused(Elab *e, Scope *s) {
  for (uint32_t i = 0; i < s->n; i++) {
    const Binding *b = &s->v[i];
    if (!b->used && !b->is_input && b->v.kind == V_TENSOR && strcmp(b->name, "loss") &&
        b->span.end > b->span.begin) {
      diag_warning(e->diag, b->span, "'%s' is never used", b->name);
    }
  }
}

V call_values(Elab *e, Ctx *c, const AstItem *def, FileScope *file, Instance *inst, const AxisBinding *axis,
              uint32_t n_axes, const V *arg, const AstExpr *x, Span at) {
  if (!enter(e, def, file, x, at)) {
    return poison();
  }
  Scope s = {.file = file,
             .axis = ARENA_ARRAY(e->arena, AxisBinding, n_axes),
             .n_axes = n_axes,
             .ctx = c,
             .self = inst,
             .path = inst ? inst->path : "",
             .in_module = def->kind != ITEM_FN,
             .result = poison()};
  for (uint32_t i = 0; i < n_axes; i++) {
    s.axis[i] = axis[i];
  }
  bool ok = true;
  for (uint32_t i = 0; i < def->def.n_inputs; i++) {
    const AstInput *in = &def->def.inputs[i];
    if (axis_known(&s, in->name.text)) {
      report(e, in->name.span, "'%s' is an axis; an input needs another name", in->name.text);
      ok = false;
    }
    V v = in->type ? assert_type(e, &s, in->type, arg[i], in->name.text) : arg[i];
    ok &= v.kind != V_POISON;
    scope_set(e, &s, in->name.text, v, in->name.span);
    s.v[s.n - 1].is_input = true;
  }
  bool library = file->n_files && file->file[0]->is_std;
  if (ok ||
      !library) { /* the user's own body is read even so: its other mistakes are reported in the same run */
    run_block(e, &s, &def->def.body);
    if (ok && e->training && !library) {
      warn_unused(e, &s);
    }
  }
  e->depth--;
  if (ok && def->kind == ITEM_MODEL && !s.returned && s.result.kind == V_POISON) {
    report(e, at, "model '%s' used as a module yields its first output, and it has none", def->def.name.text);
  } else if (ok && def->kind != ITEM_MODEL && !s.returned) {
    report(e, def->def.name.span, "'%s' has no return", def->def.name.text);
  }
  return s.result;
}

static void bad_argument(Elab *e, const AstArg *a, const AstItem *def, int k) {
  const char *f = def->def.name.text;
  if (k >= 0) {
    report(e, a->span, "'%s' is given its input '%s' twice", f, def->def.inputs[k].name.text);
    return;
  }
  const char **names = ARENA_ARRAY(e->arena, const char *, def->def.n_inputs);
  Str list = {0};
  for (uint32_t i = 0; i < def->def.n_inputs; i++) {
    names[i] = def->def.inputs[i].name.text;
    str_printf(&list, "%s%s", i ? ", " : "", names[i]);
  }
  if (a->name.text) {
    uint32_t d = report(e, a->span, "'%s' has no input '%s'; its inputs are (%s)", f, a->name.text,
                        list.s ? list.s : "");
    diag_did_you_mean(e->diag, d, a->name.text, names, def->def.n_inputs);
  } else {
    report(e, a->span, "'%s' takes no further input; its inputs are (%s)", f, list.s ? list.s : "");
  }
  str_free(&list);
}

V call_def(Elab *e, Scope *s, const AstExpr *x, const AstItem *def, FileScope *file, Instance *inst) {
  const AstArgs *a = &x->call.args;
  AxisBinding *axis = inst ? inst->axis : NULL;
  if (inst && x->call.axes.kind != BRACKET_NONE) {
    report(e, x->call.axes.span, "the axes of '%s' were given where it was used", inst->name);
    return poison();
  }
  if (!inst && !bind_axes(e, s, def, &x->call.axes, x->span, &axis)) {
    return poison();
  }
  uint32_t n = def->def.n_inputs, next = 0;
  V *arg = ARENA_ARRAY(e->arena, V, n);
  bool *given = ARENA_ARRAY(e->arena, bool, n), ok = true;
  for (uint32_t i = 0; i < n; i++) {
    arg[i] = poison();
    if (inst && def->def.inputs[i].value) { /* a setting: from `use`, else its default */
      arg[i] = inst->setting[i];
      given[i] = arg[i].kind != V_POISON;
    }
  }
  for (uint32_t i = 0; i < a->n; i++) {
    int k;
    if (a->v[i].name.text) {
      k = input_named(def, a->v[i].name.text);
    } else {
      while (next < n && inst && def->def.inputs[next].value) {
        next++;
      }
      k = next < n ? (int)next++ : -1;
    }
    if (k < 0 || (given[k] && !inst)) {
      bad_argument(e, &a->v[i], def, k);
      return poison();
    }
    arg[k] = eval(e, s, a->v[i].value);
    given[k] = true;
  }
  Scope defaults = {.file = file, .ctx = s->ctx, .axis = axis, .n_axes = def->def.axes.n};
  for (uint32_t i = 0; ok && i < n; i++) {
    if (!given[i] && def->def.inputs[i].value) {
      arg[i] = eval(e, &defaults, def->def.inputs[i].value);
      given[i] = true;
    }
    if (!given[i]) {
      report(e, x->span, "'%s' lacks its input '%s'", x->call.f.text, def->def.inputs[i].name.text);
      ok = false;
    }
  }
  if (!ok) {
    return poison();
  }
  for (uint32_t i = 0; i < n; i++) {
    arg[i] = bring(e, s->ctx, arg[i]);
  }
  return call_values(e, s->ctx, def, file, inst, axis, def->def.axes.n, arg, x, x->span);
}

/* ---- statements ---- */

static void run_assign(Elab *e, Scope *s, const AstStmt *st) {
  const char *name = st->bind.name.text;
  V v = eval(e, s, st->bind.value);
  if (!name) {
    return;
  }
  if (st->bind.type) {
    v = assert_type(e, s, st->bind.type, v, name);
  }
  if (axis_known(s, name)) {
    report(e, st->bind.name.span, "'%s' is an axis; a value needs another name", name);
    scope_set(e, s, name, poison(), st->bind.name.span);
    return;
  }
  if (!strcmp(name, "loss") && s->in_module && !s->self && scope_find(s, name)) {
    uint32_t d = report(e, st->bind.name.span, "loss is assigned once");
    diag_hint(e->diag, d, "collect its terms under other names");
    return;
  }
  if (v.kind == V_TENSOR && e->func->val[v.val].name == NULL) {
    e->func->val[v.val].name = name;
  }
  if (!assign_state(e, s, name, v, st->span)) {
    scope_set(e, s, name, v, st->bind.name.span);
  }
}

static void run_output(Elab *e, Scope *s, const AstStmt *st) {
  const char *name = st->bind.name.text;
  AstExpr as_name = {.kind = EXPR_NAME, .span = st->bind.name.span, .name = st->bind.name};
  V v = eval(e, s, st->bind.value ? st->bind.value : &as_name);
  if (v.kind == V_NUM) {
    v = as_tensor(e, s->ctx, v, e->m->real);
  }
  if (st->bind.type) {
    v = assert_type(e, s, st->bind.type, v, name);
  }
  if (v.kind != V_TENSOR) {
    return;
  }
  v = bring(e, s->ctx, v);
  if (st->bind.type) { /* an annotated output has its annotated order */
    Type t = type_scalar(vtype(e, &v)->dtype);
    for (uint32_t i = 0; i < st->bind.type->axes.n; i++) {
      AxisBinding a;
      if (find_axis(e, s, &st->bind.type->axes.v[i], &a)) {
        type_push(&t, a.axis, a.size);
      }
    }
    locate(e, s->ctx, st->span);
    v = built(e, s->ctx, ir_reorder(&s->ctx->b, v.val, &t), st->span);
  }
  scope_set(e, s, name, v, st->bind.name.span);
  scope_find(s, name)->used = true;
  if (s->in_module && s->result.kind == V_POISON && !s->returned && s->self &&
      s->self->def->kind == ITEM_MODEL) {
    s->result = v;
  }
  FuncRes r = {.kind = RES_OUTPUT, .name = sub_path(e, s->path, name), .coef = 1};
  VEC_PUSH(e->arena, s->ctx->escape, s->ctx->n_escapes, s->ctx->cap_escapes,
           (Escape){r, v, st->bind.type != NULL});
}

static void run_metric(Elab *e, Scope *s, const AstStmt *st) {
  V v = eval(e, s, st->bind.value);
  if (v.kind == V_POISON) {
    return;
  }
  if (v.kind == V_NUM || vtype(e, &v)->rank || s->ctx->up) {
    report(e, st->span, "a metric is one number: a mean over every axis, outside of loops");
    return;
  }
  Term t = v.n_terms == 1 ? v.term[0] : (Term){v.val, ir_const(&s->ctx->b, vtype(e, &v)->dtype, 1), 1};
  const char *name = sub_path(e, s->path, st->bind.name.text);
  for (int den = 0; den < 2; den++) {
    FuncRes r = {.kind = den ? RES_METRIC_DEN : RES_METRIC_NUM, .name = name, .coef = t.coef};
    VEC_PUSH(e->arena, s->ctx->escape, s->ctx->n_escapes, s->ctx->cap_escapes,
             (Escape){r, tensor(s->ctx, den ? t.den : t.num), true});
  }
}

static void run_if(Elab *e, Scope *s, const AstStmt *st) {
  double v;
  bool whole;
  if (eval_number(e, s, st->cond.test, &v, &whole, "the condition of 'if'")) {
    run_block(e, s, v != 0 ? &st->cond.then : &st->cond.orelse);
  }
}

static void run_return(Elab *e, Scope *s, const AstStmt *st) {
  Scope *top = s;
  while (top->up) {
    top = top->up;
  }
  if (s != top) {
    report(e, st->span, "return inside a loop; assign to a name known outside and return it after the loop");
    return;
  }
  top->result = eval(e, s, st->ret.value);
  top->returned = true;
}

void run_block(Elab *e, Scope *s, const AstBlock *b) {
  for (uint32_t i = 0; i < b->n; i++) {
    const AstStmt *st = b->v[i];
    if (s->returned) { /* after an `if` the rest is the other branch */
      if (i && b->v[i - 1]->kind == STMT_RETURN) {
        diag_warning(e->diag, st->span, "this is never reached: the body has returned");
      }
      return;
    }
    switch (st->kind) {
    case STMT_PARAM:
    case STMT_FROZEN: declare_params(e, s, st); break;
    case STMT_STATE: declare_states(e, s, st); break;
    case STMT_USE:
      for (uint32_t k = 0; k < st->use.n; k++) {
        run_use(e, s, &st->use.v[k]);
      }
      break;
    case STMT_ASSIGN: run_assign(e, s, st); break;
    case STMT_METRIC: run_metric(e, s, st); break;
    case STMT_OUTPUT: run_output(e, s, st); break;
    case STMT_REPEAT:
    case STMT_SCAN: run_loop(e, s, st); break;
    case STMT_IF: run_if(e, s, st); break;
    case STMT_RETURN: run_return(e, s, st); break;
    }
  }
}
