/* elab_update.c: the plan's optimizers and schedules: code run once a parameter, once a group. */
#include "frontend/elab.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- settings ---- */

/* The value of a setting for one parameter: `a where c1 else b where c2`; *given = false when no case holds.
 */
static bool setting_for(Elab *e, const AstExpr *x, uint32_t param, double *out, bool *given) {
  bool whole;
  Scope s = {.file = e->main, .ctx = e->root};
  *given = true;
  if (x->kind != EXPR_CHOICE) {
    return eval_number(e, &s, x, out, &whole, "a setting");
  }
  for (uint32_t i = 0; i < x->choice.n; i++) {
    double holds = 1;
    if (x->choice.v[i].where && !eval_condition(e, x->choice.v[i].where, param, &holds)) {
      return false;
    }
    if (holds != 0) {
      return eval_number(e, &s, x->choice.v[i].value, out, &whole, "a setting");
    }
  }
  *given = false;
  return true;
}

static bool sane_setting(Elab *e, const char *name, double v, Span at) {
  bool beta = !strncmp(name, "beta", 4);
  if ((beta && !(v >= 0 && v < 1)) || (!strcmp(name, "lr") && !(v >= 0)) || !isfinite(v)) {
    report(e, at, "'%s' is %g; it must be %s", name, v,
           beta ? "at least 0 and under 1" : "finite and not negative");
    return false;
  }
  return true;
}

/* Fills value[i] for every input of the optimizer. */
static bool optimizer_settings(Elab *e, const AstItem *def, const AstStage *st, uint32_t param,
                               double *value) {
  const char *names[32];
  uint32_t n = def->def.n_inputs < 32 ? def->def.n_inputs : 32;
  bool ok = true, set[32] = {0};
  for (uint32_t i = 0; i < n; i++) {
    names[i] = def->def.inputs[i].name.text;
  }
  for (uint32_t i = 0; i < st->args.n; i++) {
    const AstArg *a = &st->args.v[i];
    uint32_t k = 0;
    while (k < n && a->name.text && strcmp(names[k], a->name.text)) {
      k++;
    }
    k = a->name.text ? k : i;
    if (k >= n) {
      uint32_t d = report(e, a->span, "optimizer %s has no setting '%s'", st->name.text,
                          a->name.text ? a->name.text : "(positional)");
      if (a->name.text) {
        diag_did_you_mean(e->diag, d, a->name.text, names, n);
      }
      ok = false;
      continue;
    }
    if (set[k] && a->value) {
      report(e, a->span, "'%s' is given twice", names[k]);
      return false;
    }
    bool given;
    if (!a->value || !setting_for(e, a->value, param, &value[k], &given)) {
      return false;
    }
    set[k] = given;
    ok &= !given || sane_setting(e, names[k], value[k], a->span);
  }
  for (uint32_t i = 0; i < n; i++) {
    Scope s = {.file = e->main, .ctx = e->root};
    bool whole;
    if (!set[i] && !def->def.inputs[i].value && ok) {
      report(e, st->span, "optimizer %s needs '%s'", st->name.text, names[i]);
      ok = false;
    } else if (!set[i] && ok) {
      ok &= eval_number(e, &s, def->def.inputs[i].value, &value[i], &whole, "a setting");
    }
  }
  return ok;
}

/* ---- update functions ---- */

static bool declare_opt_state(Elab *e, Scope *s, const AstDecl *d, uint32_t param) {
  Module *m = e->m;
  IrState r = {.name = arena_printf(&m->arena, "%s.%s", m->param[param].name, d->name.text),
               .type = m->param[param].type,
               .param = param,
               .n_repeat = m->param[param].n_repeat};
  bool whole;
  if (d->axes.n) {
    report(e, d->span, "a state of an optimizer has the axes of its parameter; write it without brackets");
    return false;
  }
  r.from_param = d->init && d->init->kind == EXPR_NAME && !strcmp(d->init->name.text, "param");
  if (!r.from_param && !eval_number(e, s, d->init, &r.fill, &whole, "the start of a state")) {
    return false;
  }
  VEC_PUSH(&m->arena, m->opt, m->n_opt, m->cap_opt, r);
  Val v = ir_func_arg(e->func, ARG_OPT, m->n_opt - 1, r.type, d->name.text);
  scope_set(e, s, d->name.text, tensor(e->root, v), d->name.span);
  return true;
}

static bool return_as(Elab *e, Scope *s, const char *name, ResKind kind, uint32_t index, const Type *t,
                      Span at) {
  V v = scope_find(s, name)->v;
  if (v.kind == V_POISON) {
    return false;
  }
  v = as_tensor(e, e->root, v, t->dtype);
  const Type *have = vtype(e, &v);
  for (int i = 0; i < have->rank; i++) {
    if (!type_has(t, have->dim[i].axis)) {
      report(e, at, "'%s' gains the axis '%s' in this optimizer", name,
             ir_axis_name(e->m, have->dim[i].axis));
      return false;
    }
  }
  Builder *b = &e->root->b;
  Val out = type_same_dims(have, t) ? ir_reorder(b, v.val, t) : ir_broadcast(b, v.val, t);
  ir_func_ret(e->func, (FuncRes){.kind = kind, .index = index, .name = name, .coef = 1}, out);
  return true;
}

static bool elab_update(Elab *e, const AstPlanItem *item, const AstItem *def, FileScope *home, uint32_t param,
                        Model *out) {
  double value[32];
  Module *m = e->m;
  if (!optimizer_settings(e, def, &item->stage, param, value)) {
    return false;
  }
  char name[32];
  snprintf(name, sizeof name, "update.%u", param);
  begin_function(e, name);
  const Type type = m->param[param].type;
  e->in_optimizer = true;
  e->opt_param = &type;
  e->n_opt_repeat = m->param[param].n_repeat;
  e->opt_row = param;
  Scope s = {.file = home, .ctx = e->root, .path = "", .result = poison()};
  scope_set(e, &s, "param", tensor(e->root, ir_func_arg(e->func, ARG_PARAM, param, type, "param")),
            def->span);
  scope_set(e, &s, "grad", tensor(e->root, ir_func_arg(e->func, ARG_GRAD, param, type, "grad")), def->span);
  Val factor = ir_func_arg(e->func, ARG_FACTOR, m->param[param].group, type_scalar(DT_F64), "factor");
  V step = tensor(e->root, scalar_arg(e, 0));
  step.scalar = true;
  scope_set(e, &s, "step", step, def->span);
  for (uint32_t i = 0; i < def->def.n_inputs && i < 32; i++) {
    const char *setting = def->def.inputs[i].name.text;
    V v = num(value[i]);
    if (!strcmp(setting, "lr")) {
      v = tensor(e->root, ir_binary(&e->root->b, OP_MUL, factor, ir_const(&e->root->b, DT_F64, value[i])));
      v.scalar = true;
      out->setting[param].lr = value[i];
    } else if (!strcmp(setting, "decay")) {
      out->setting[param].decay = value[i];
    }
    scope_set(e, &s, setting, v, def->def.inputs[i].span);
  }
  uint32_t first = m->n_opt, errors = e->diag->n_errors;
  for (uint32_t i = 0; i < def->def.body.n; i++) {
    AstStmt *st = def->def.body.v[i];
    if (st->kind == STMT_STATE) {
      for (uint32_t k = 0; k < st->decl.n; k++) {
        if (!declare_opt_state(e, &s, &st->decl.v[k], param)) {
          return false;
        }
      }
    } else if (st->kind == STMT_ASSIGN || st->kind == STMT_IF) {
      AstBlock one = {.v = &def->def.body.v[i], .n = 1, .span = st->span};
      run_block(e, &s, &one);
    } else {
      report(e, st->span, "an optimizer holds states, assignments and if");
    }
  }
  bool ok = e->diag->n_errors == errors && return_as(e, &s, "param", RES_PARAM, param, &type, def->span);
  for (uint32_t i = first; ok && i < m->n_opt; i++) {
    ok = return_as(e, &s, strrchr(m->opt[i].name, '.') + 1, RES_OPT, i, &type, def->span);
  }
  e->in_optimizer = false;
  return ok;
}

static bool assign_groups(Elab *e, const AstItem *plan) {
  Module *m = e->m;
  bool ok = true;
  for (uint32_t p = 0; p < m->n_params; p++) {
    uint32_t group = 0;
    for (uint32_t i = 0; i < plan->plan.n; i++) {
      const AstPlanItem *item = plan->plan.v[i];
      double holds = 1;
      if (item->kind == PLAN_FREEZE &&
          (!item->where || (eval_condition(e, item->where, p, &holds) && holds != 0))) {
        m->param[p].frozen = true;
      }
    }
    for (uint32_t i = 0; i < plan->plan.n && !m->param[p].frozen; i++) {
      const AstPlanItem *item = plan->plan.v[i];
      double holds = 1;
      if (item->kind != PLAN_OPTIMIZER) {
        continue;
      }
      if (item->where && !eval_condition(e, item->where, p, &holds)) {
        return false;
      }
      if (holds != 0 && m->param[p].group != NONE) {
        report(e, item->span, "parameter '%s' belongs to two optimizer lines; their conditions overlap",
               m->param[p].name);
        ok = false;
      } else if (holds != 0) {
        m->param[p].group = group;
      }
      group++;
    }
    if (!m->param[p].frozen && m->param[p].group == NONE) {
      report(e, plan->plan.name.span, "parameter '%s' belongs to no optimizer line; add one, or freeze it",
             m->param[p].name);
      ok = false;
    }
  }
  return ok;
}

bool elab_updates(Elab *e, const AstItem *plan, Model *out) {
  Module *m = e->m;
  uint32_t n_groups = 0;
  out->setting = ARENA_ARRAY(&m->arena, ParamSettings, m->n_params);
  for (uint32_t p = 0; p < m->n_params; p++) {
    out->setting[p] = (ParamSettings){NAN, NAN};
  }
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    n_groups += plan->plan.v[i]->kind == PLAN_OPTIMIZER;
  }
  out->plan.group = ARENA_ARRAY(&m->arena, PlanGroup, n_groups);
  out->plan.n_groups = n_groups;
  if (!assign_groups(e, plan)) {
    return false;
  }
  uint32_t group = 0;
  bool ok = true;
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    const AstPlanItem *item = plan->plan.v[i];
    if (item->kind != PLAN_OPTIMIZER) {
      continue;
    }
    FileScope *home;
    const AstItem *def = find_def(e->main, ITEM_OPTIMIZER, item->stage.name.text, &home);
    if (!def) {
      report(e, item->stage.name.span,
             "there is no optimizer '%s'; the library has sgd, momentum, adamw and lion",
             item->stage.name.text);
      return false;
    }
    const Source *src = &e->sources->v[item->stage.span.file];
    out->plan.group[group].optimizer = arena_strdup(&m->arena, item->stage.name.text);
    out->plan.group[group].settings = arena_strndup(&m->arena, src->text + item->stage.span.begin,
                                                    item->stage.span.end - item->stage.span.begin);
    for (uint32_t p = 0; p < m->n_params; p++) {
      if (m->param[p].group == group) {
        if (!elab_update(e, item, def, home, p, out)) {
          ok = false;
          break; /* the other parameters would repeat the message */
        }
        double lr = out->setting[p].lr;
        out->plan.group[group].lr = isnan(lr) ? 0 : lr;
      }
    }
    group++;
  }
  return ok;
}

/* ---- schedules ---- */

/* Calls stage i with the steps since its start; returns its factor. *length = steps it lasts (its first
 * setting). */
static V run_stage(Elab *e, const AstStage *st, V step, double start, bool last, double horizon,
                   double *length) {
  FileScope *home;
  const AstItem *def = find_def(e->main, ITEM_SCHEDULE, st->name.text, &home);
  if (!def || def->def.n_inputs < 2) {
    report(e, st->name.span,
           "there is no schedule '%s'; the library has warmup, constant, linear, cosine and wsd",
           st->name.text);
    return poison();
  }
  V *arg = ARENA_ARRAY(e->arena, V, def->def.n_inputs);
  Scope s = {.file = e->main, .ctx = e->root};
  bool *given = ARENA_ARRAY(e->arena, bool, def->def.n_inputs);
  for (uint32_t i = 0, next = 2; i < st->args.n; i++) {
    const AstArg *a = &st->args.v[i];
    uint32_t k = next;
    if (a->name.text) {
      for (k = 2; k < def->def.n_inputs && strcmp(def->def.inputs[k].name.text, a->name.text); k++) {
      }
    } else {
      next++;
    }
    if (k >= def->def.n_inputs) {
      report(e, a->span, "schedule %s has no setting '%s'", st->name.text,
             a->name.text ? a->name.text : "(positional)");
      return poison();
    }
    double v;
    bool whole;
    if (!a->value || !eval_number(e, &s, a->value, &v, &whole, "a setting")) {
      return poison();
    }
    arg[k] = num(v);
    given[k] = true;
  }
  Scope defaults = {.file = home, .ctx = e->root};
  for (uint32_t k = 2; k < def->def.n_inputs; k++) {
    if (!given[k] && !def->def.inputs[k].value) {
      report(e, st->span, "schedule %s needs '%s'", st->name.text, def->def.inputs[k].name.text);
      return poison();
    }
    arg[k] = given[k] ? arg[k] : eval(e, &defaults, def->def.inputs[k].value);
  }
  *length = def->def.n_inputs > 2 ? arg[2].num : 0;
  if (!last && !(*length > 0)) {
    report(e, st->span,
           "a stage before 'then' lasts as many steps as its first setting says; give it one above 0");
    return poison();
  }
  arg[0] = start > 0 ? binary(e, e->root, BINARY_SUB, step, num(start), st->span) : step;
  arg[1] = num(last ? horizon - start : *length);
  return call_values(e, e->root, def, home, NULL, NULL, 0, arg, NULL, st->span);
}

bool elab_schedules(Elab *e, const AstItem *plan, Model *out) {
  const AstPlanItem *item = NULL;
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    item = plan->plan.v[i]->kind == PLAN_SCHEDULE ? plan->plan.v[i] : item;
  }
  for (uint32_t g = 0; g < out->plan.n_groups; g++) {
    char name[32];
    snprintf(name, sizeof name, "schedule.%u", g);
    begin_function(e, name);
    V step = tensor(e->root, scalar_arg(e, 0));
    step.scalar = true;
    V *f = ARENA_ARRAY(e->arena, V, item ? item->n_stages : 0);
    double *end = ARENA_ARRAY(e->arena, double, item ? item->n_stages : 0), start = 0;
    uint32_t n = item ? item->n_stages : 0;
    for (uint32_t i = 0; i < n; i++) {
      double length = 0;
      f[i] = run_stage(e, &item->stages[i], step, start, i + 1 == n, (double)out->plan.steps, &length);
      if (f[i].kind == V_POISON) {
        return false;
      }
      start += length;
      end[i] = start;
    }
    V factor = n ? f[n - 1] : num(1);
    for (uint32_t i = n; i-- > 1;) {
      V before = binary(e, e->root, BINARY_LE, step, num(end[i - 1]), item->span);
      V a = as_tensor(e, e->root, f[i - 1], DT_F64), b = as_tensor(e, e->root, factor, DT_F64);
      factor = built(e, e->root, ir_select(&e->root->b, before.val, a.val, b.val), item->span);
    }
    factor = as_tensor(e, e->root, factor, DT_F64);
    Val lr = ir_binary(&e->root->b, OP_MUL, factor.val, ir_const(&e->root->b, DT_F64, out->plan.group[g].lr));
    ir_func_ret(e->func, (FuncRes){.kind = RES_SCALAR, .name = "factor", .coef = 1}, factor.val);
    ir_func_ret(e->func, (FuncRes){.kind = RES_SCALAR, .name = "lr", .coef = 1}, lr);
  }
  return true;
}
