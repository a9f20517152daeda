/* elab_model.c: the functions of a model, and front_model, which puts the parts in order. */
#include "frontend/elab.h"
#include "frontend/override.h"

#include <stdlib.h>
#include <string.h>

void begin_function(Elab *e, const char *name) {
  e->func = ir_func_new(e->m, name);
  e->root = ARENA_NEW(e->arena, Ctx);
  e->root->axis = NONE;
  e->root->b = (Builder){e->func, e->func->body, {.file = NONE}, &e->err};
  e->n_slots = e->n_products = e->n_links = 0;
  e->in_optimizer = false;
  e->draws = 0;
  for (int i = 0; i < 3; i++) {
    e->scalar_arg[i] = NONE;
  }
}

/* ---- what the loss depends on ---- */

typedef struct {
  const Func *f;
  bool *need;
  OpId *loop_of; /* body param -> its loop */
  Val *stack;
  uint32_t n;
} Reach;

static void reach(Reach *r, Val v) {
  if (!r->need[v]) {
    r->need[v] = true;
    r->stack[r->n++] = v;
  }
}

static void map_params(Reach *r, const Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &r->f->op[b->op[i]];
    if (op->body) {
      for (uint32_t k = 0; k < op->body->n_params; k++) {
        r->loop_of[op->body->param[k]] = b->op[i];
      }
      map_params(r, op->body);
    }
  }
}

static void reach_operands(Reach *r, Val v) {
  const Value *value = &r->f->val[v];
  if (value->def == NONE) {
    if (r->loop_of[v] == NONE || value->index == 0) {
      return;
    }
    const Op *op = &r->f->op[r->loop_of[v]];
    reach(r, op->arg[value->index - 1]);
    if (op->code == OP_LOOP && value->index - 1 < (uint32_t)op->attr.num[1]) {
      reach(r, op->body->ret[value->index - 1]);
    }
    return;
  }
  const Op *op = &r->f->op[value->def];
  if (op->code == OP_LOOP) {
    reach(r, op->body->ret[value->index]);
    return;
  }
  for (uint32_t i = 0; i < op->n_args; i++) {
    reach(r, op->arg[i]);
  }
}

static void warn_unreached(Elab *e, Val loss) {
  Reach r = {.f = e->func};
  r.need = ARENA_ARRAY(e->arena, bool, e->func->n_vals);
  r.loop_of = ARENA_ARRAY(e->arena, OpId, e->func->n_vals);
  r.stack = ARENA_ARRAY(e->arena, Val, e->func->n_vals);
  memset(r.loop_of, 0xff, e->func->n_vals * sizeof *r.loop_of);
  map_params(&r, e->func->body);
  reach(&r, loss);
  while (r.n) {
    reach_operands(&r, r.stack[--r.n]);
  }
  for (uint32_t i = 0; i < e->n_slots; i++) {
    if (e->slot[i].is_state || r.need[e->slot[i].arg]) {
      continue;
    }
    const IrParam *p = &e->m->param[e->slot[i].row];
    diag_warning(e->diag, span_of(e, p->loc), "the loss does not depend on parameter '%s'", p->name);
  }
}

/* ---- train and eval ---- */

static bool input_type(Elab *e, Scope *s, const AstInput *in, Type *out) {
  if (!in->type) {
    report(e, in->span, "input '%s' of a model needs a type: %s: float[batch, ...]", in->name.text,
           in->name.text);
    return false;
  }
  DType d = e->m->real;
  const char *t = in->type->dtype.text;
  if (strcmp(t, "float") && !dtype_parse(t, strlen(t), &d)) {
    report(e, in->type->span, "there is no type '%s'", t);
    return false;
  }
  if (d != DT_I32 && d != DT_I64 && d != DT_U8 && d != DT_BOOL && d != DT_F32 && d != DT_F64) {
    report(e, in->type->span, "inputs of type %s are not built yet", t);
    return false;
  }
  *out = type_scalar(dtype_is_float(d) ? e->m->real : d);
  for (uint32_t i = 0; i < in->type->axes.n; i++) {
    AxisBinding a;
    if (!find_axis(e, s, &in->type->axes.v[i], &a)) {
      return false;
    }
    if (!type_push(out, a.axis, a.size)) {
      report(e, in->type->axes.v[i].span, "axis '%s' twice in one type", a.name);
      return false;
    }
  }
  return out->rank > 0 || (report(e, in->span, "an input needs at least the sample axis"), false);
}

static void return_loss(Elab *e, Scope *s, const AstItem *model) {
  Binding *b = scope_find(s, "loss");
  if (!b) {
    report(e, model->def.name.span, "model '%s' assigns no loss", model->def.name.text);
    return;
  }
  V v = b->v;
  if (v.kind == V_POISON) {
    return;
  }
  if (v.kind == V_NUM || v.ctx != e->root || vtype(e, &v)->rank) {
    const char *is = v.kind == V_NUM ? "a constant" : type_text(e, vtype(e, &v));
    for (int i = 0; v.kind == V_TENSOR && i < vtype(e, &v)->rank; i++) {
      if (report_missing_sum(e, v, vtype(e, &v)->dim[i].axis, b->span,
                             arena_printf(e->arena, "so the loss is %s here; it must be one number", is))) {
        return;
      }
    }
    uint32_t d = report(e, b->span, "the loss must be one number; it is %s", is);
    Str left = {0};
    for (int i = 0; v.kind == V_TENSOR && i < vtype(e, &v)->rank; i++) {
      str_printf(&left, "%s%s", i ? ", " : "", ir_axis_name(e->m, vtype(e, &v)->dim[i].axis));
    }
    if (left.s) {
      const char *text = source_text(e, (Span){b->span.file, b->span.begin, b->span.end});
      diag_hint(e->diag, d, "write %s = mean[%s](...)", text, left.s);
    }
    str_free(&left);
    return;
  }
  locate(e, e->root, b->span);
  V loss = to_float(e, e->root, v, b->span);
  ir_func_ret(e->func, (FuncRes){.kind = RES_LOSS, .name = "loss", .coef = 1}, loss.val);
  Term whole = {loss.val, NONE, 1};
  uint32_t n = v.n_terms ? v.n_terms : 1;
  for (uint32_t i = 0; i < n; i++) {
    Term t = v.n_terms ? v.term[i] : whole;
    if (t.den == NONE) {
      t.den = ir_const(&e->root->b, vtype(e, &loss)->dtype, 1);
    }
    ir_func_ret(e->func, (FuncRes){.kind = RES_LOSS_NUM, .index = i, .name = "loss", .coef = t.coef}, t.num);
    ir_func_ret(e->func, (FuncRes){.kind = RES_LOSS_DEN, .index = i, .name = "loss", .coef = t.coef}, t.den);
  }
  if (e->training) {
    warn_unreached(e, loss.val);
  }
}

/* "h.*.attn.p" is called "h.attn.p" among outputs. */
static const char *without_stars(Elab *e, const char *path) {
  Str s = {0};
  for (const char *p = path; *p; p++) {
    if (p[0] == '*' && p[1] == '.') {
      p++;
      continue;
    }
    str_putc(&s, *p);
  }
  const char *out = arena_strdup(e->arena, s.s ? s.s : "");
  str_free(&s);
  return out;
}

bool elab_function(Elab *e, const AstItem *model, const char *name, bool training) {
  uint32_t errors = e->diag->n_errors;
  begin_function(e, name);
  e->training = training;
  Scope s = {.file = e->main, .ctx = e->root, .path = "", .in_module = true, .result = poison()};
  for (uint32_t i = 0; i < model->def.n_inputs; i++) {
    const AstInput *in = &model->def.inputs[i];
    Type t;
    if (axis_known(&s, in->name.text)) {
      report(e, in->name.span, "'%s' is an axis; an input needs another name", in->name.text);
    }
    if (!input_type(e, &s, in, &t)) {
      return false;
    }
    if (training) {
      IrInput row = {.name = arena_strdup(&e->m->arena, in->name.text), .type = t};
      row.loc.file = in->span.file;
      source_line_col(&e->sources->v[in->span.file], in->span.begin, &row.loc.line, &row.loc.col);
      VEC_PUSH(&e->m->arena, e->m->input, e->m->n_inputs, e->m->cap_inputs, row);
    }
    scope_set(e, &s, in->name.text, tensor(e->root, ir_func_arg(e->func, ARG_INPUT, i, t, in->name.text)),
              in->name.span);
    s.v[s.n - 1].is_input = true;
  }
  e->call[0] = (Call){.def = model};
  e->depth = 1;
  run_block(e, &s, &model->def.body);
  e->depth = 0;
  if (e->diag->n_errors != errors) {
    return false;
  }
  return_loss(e, &s, model);
  for (uint32_t i = 0; training && i < s.n; i++) {
    if (!s.v[i].used && !s.v[i].is_input && strcmp(s.v[i].name, "loss")) {
      diag_warning(e->diag, s.v[i].span, "'%s' is never used", s.v[i].name);
    }
  }
  const Type *order = named_orders(e);
  for (uint32_t i = 0; i < e->root->n_escapes; i++) {
    const Escape *x = &e->root->escape[i];
    FuncRes r = x->res;
    r.name = without_stars(e, r.name);
    ir_func_ret(e->func, r, x->annotated ? x->v.val : ir_reorder(&e->root->b, x->v.val, &order[x->v.val]));
  }
  for (uint32_t i = 0; training && i < e->root->n_next; i++) {
    uint32_t row = e->root->next[i].state;
    Val v = ir_reorder(&e->root->b, e->root->next[i].v.val, &e->m->state[row].type);
    ir_func_ret(e->func, (FuncRes){.kind = RES_STATE, .index = row, .name = e->m->state[row].name, .coef = 1},
                v);
  }
  if (training) {
    warn_outer_products(e);
  }
  return e->diag->n_errors == errors;
}

/* ---- the whole ---- */

static const AstItem *find_model(Elab *e, const AstFile *f, const AstItem *plan) {
  const AstItem *found = NULL;
  for (uint32_t i = 0; i < f->n; i++) {
    if (f->v[i]->kind == ITEM_MODEL && (!plan || !strcmp(f->v[i]->def.name.text, plan->plan.model.text))) {
      found = f->v[i];
    }
  }
  if (!found && plan) {
    FileScope *home;
    found = find_def(e->main, ITEM_MODEL, plan->plan.model.text, &home);
  }
  if (!found) {
    report(e, plan ? plan->plan.model.span : (Span){f->file, 0, 0}, "there is no model%s%s%s",
           plan ? " '" : "", plan ? plan->plan.model.text : "", plan ? "'" : " in this file");
  }
  return found;
}

/* The library, which the file or one it uses asks for. */
static void find_library(const AstFile *file, FileScope *std) {
  for (uint32_t i = 0; i < file->n && !std->n_files; i++) {
    const AstItem *item = file->v[i];
    if (item->kind == ITEM_USE && !item->use.path) {
      std->file = item->use.files;
      std->n_files = item->use.n_files;
    } else if (item->kind == ITEM_USE && item->use.n_files) {
      find_library(item->use.files[0], std);
    }
  }
}

static void make_scopes(Elab *e, AstFile *file) {
  e->std = ARENA_NEW(e->arena, FileScope);
  e->std->alias = "std";
  find_library(file, e->std);
  e->main = file_scope(e, file, "", NULL, NULL);
}

/* The plan's `set`s: axes and settings of the main file. */
static bool apply_sets(Elab *e, const AstItem *plan) {
  bool ok = true;
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    const AstPlanItem *p = plan->plan.v[i];
    for (uint32_t k = 0; p->kind == PLAN_SET && k < p->args.n; k++) {
      const AstArg *a = &p->args.v[k];
      FileScope *f = a->name.qual ? file_used_as(e->main, a->name.qual) : e->main;
      AxisDef *axis = a->name.text && f ? file_axis(f, a->name.text) : NULL;
      SettingDef *st = a->name.text && f ? file_setting(f, a->name.text) : NULL;
      if (!axis && !st) {
        Scope s = {.file = e->main};
        uint32_t d =
            report(e, a->span, "set: there is no axis or setting '%s'", a->name.text ? a->name.text : "");
        suggest(e, d, &s, a->name.text ? a->name.text : "");
        ok = false;
      } else if (axis ? axis->given : st->given) {
        report(e, a->span, "'%s' is set twice", a->name.text);
        ok = false;
      } else if (axis) {
        axis->given = true;
        axis->formula = a->value;
        axis->file = e->main;
        axis->span = a->span;
      } else {
        st->given = true;
        st->value = a->value;
        st->file = e->main;
      }
    }
  }
  return ok;
}

static int choose_plan(Elab *e, const FrontOptions *opt, AstFile *file, const AstItem **plan) {
  uint32_t n;
  *plan = override_plan(file, opt->plan, &n);
  if (opt->plan && !*plan) {
    diag_error(e->diag, (Span){SPAN_NO_FILE, 0, 0}, "%s has no plan '%s'", opt->path, opt->plan);
    return ERR_USAGE;
  }
  if (!opt->plan && n > 1) {
    Str list = {0};
    for (uint32_t i = 0; i < file->n; i++) {
      if (file->v[i]->kind == ITEM_PLAN) {
        str_printf(&list, "%s%s", list.s ? ", " : "", file->v[i]->plan.name.text);
      }
    }
    diag_error(e->diag, (Span){SPAN_NO_FILE, 0, 0}, "%s has several plans; choose one with --plan: %s",
               opt->path, list.s);
    str_free(&list);
    return ERR_USAGE;
  }
  return 0;
}

/* mesh product of a layout: ranks it wants (0: `*`, any). */
static int64_t layout_ranks(Elab *e, const AstPlanItem *layout) {
  int64_t product = 1;
  Scope s = {.file = e->main, .ctx = e->root};
  for (uint32_t i = 0; i < layout->n_items; i++) {
    for (uint32_t k = 0; layout->items[i]->kind == LAYOUT_MESH && k < layout->items[i]->args.n; k++) {
      double v;
      bool whole;
      if (!layout->items[i]->args.v[k].value) {
        return 0;
      }
      if (!eval_number(e, &s, layout->items[i]->args.v[k].value, &v, &whole, "a mesh size")) {
        return -1;
      }
      product *= (int64_t)v;
    }
  }
  return product;
}

static int choose_layout(Elab *e, const FrontOptions *opt, const AstItem *plan, const AstPlanItem **out) {
  *out = NULL;
  Str list = {0};
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    const AstPlanItem *p = plan->plan.v[i];
    if (p->kind != PLAN_LAYOUT) {
      continue;
    }
    str_printf(&list, "%s%s", list.s ? ", " : "", p->names.v[0].text);
    if (opt->layout ? !strcmp(p->names.v[0].text, opt->layout) : !*out && layout_ranks(e, p) == opt->ranks) {
      *out = p;
    }
  }
  bool missing = opt->layout && !*out;
  if (missing) {
    diag_error(e->diag, (Span){SPAN_NO_FILE, 0, 0}, "plan '%s' has no layout '%s'; it has: %s",
               plan->plan.name.text, opt->layout, list.s ? list.s : "none");
  }
  str_free(&list);
  return missing ? ERR_USAGE : 0;
}

static const char *folder_of(Arena *a, const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? arena_strndup(a, path, (size_t)(slash - path)) : ".";
}

/* The file's text with every override folded in; NULL after an error. */
static const char *overridden_text(Elab *e, const FrontOptions *opt) {
  uint32_t file;
  Error err = {0};
  Sources own = {.arena = e->arena};
  if (!source_load(&own, opt->path, &file, &err)) {
    diag_error(e->diag, (Span){SPAN_NO_FILE, 0, 0}, "%s", err.msg);
    return NULL;
  }
  const char *text = override_inline(e->arena, opt->path, own.v[file].text, opt->plan, opt->layout, &err);
  for (uint32_t i = 0; i < opt->n_set && text; i++) {
    text = override_apply(e->arena, opt->path, text, opt->plan, opt->layout, opt->set[i], &err);
  }
  if (!text) {
    diag_error(e->diag, (Span){SPAN_NO_FILE, 0, 0}, "%s", err.msg);
  }
  return text;
}

/* plan.dl in the form `dlc fmt` writes. */
static char *canonical(Elab *e, const char *text) {
  Sources sources = {.arena = e->arena};
  Diag diag = {.sources = &sources};
  Str out = {0};
  bool ok = ast_format(&sources, source_add(&sources, "plan.dl", text, strlen(text)), &out, &diag);
  char *copy = arena_strdup(&e->m->arena, ok && out.s ? out.s : text);
  str_free(&out);
  return copy;
}

static int elaborate(Elab *e, const FrontOptions *opt, AstFile *file, const char *text, Model *out) {
  const AstItem *plan = NULL, *model;
  const AstPlanItem *layout = NULL;
  int code = choose_plan(e, opt, file, &plan);
  if (code) {
    return code;
  }
  begin_function(e, "constants"); /* a place for compile-time expressions */
  e->m->n_funcs = 0;
  make_scopes(e, file);
  if (e->diag->n_errors || !(model = find_model(e, file, plan))) {
    return ERR_INPUT;
  }
  bool sets = !plan || apply_sets(e, plan);
  if (plan && (code = choose_layout(e, opt, plan, &layout))) {
    return code;
  }
  const char *folder = folder_of(e->arena, opt->path);
  out->has_plan = plan != NULL;
  if ((plan && !elab_plan(e, plan, opt->inference ? NULL : layout, folder, &out->plan)) || !sets) {
    return ERR_INPUT;
  }
  if (opt->f64) {
    e->m->real = DT_F64;
  }
  bool ok = elab_function(e, model, "train", true);
  ok = ok && elab_function(e, model, "eval", false);
  if (ok && plan) {
    ok = elab_updates(e, plan, out) && elab_schedules(e, plan, out);
  }
  if (!ok || e->diag->n_errors) {
    return ERR_INPUT;
  }
  out->folded = canonical(e, override_folded(e->arena, folder, text, file, plan, layout));
  return 0;
}

static void find_token_axes(const Module *m, Plan *p) {
  p->time_axis = p->vocab_axis = NONE;
  if (!m->n_inputs) {
    return;
  }
  const Type *t = &m->input[0].type;
  p->sample_axis = t->dim[0].axis;
  p->batch = t->dim[0].size;
  if (t->rank == 2 && !dtype_is_float(t->dtype)) {
    p->time_axis = t->dim[1].axis;
  }
  for (uint32_t i = 0; i < m->n_funcs; i++) {
    const Func *f = m->func[i];
    for (uint32_t k = 0; k < f->body->n_ret; k++) {
      const Type *r = &f->val[f->body->ret[k]].type;
      if (f->res[k].kind == RES_OUTPUT && !strcmp(f->res[k].name, "logits") && r->rank == t->rank + 1) {
        for (int d = 0; d < r->rank; d++) {
          p->vocab_axis = type_has(t, r->dim[d].axis) ? p->vocab_axis : r->dim[d].axis;
        }
      }
    }
  }
}

static int build_model(const FrontOptions *opt, Sources *src, Diag *diag, Model **out) {
  Arena *arena = src->arena;
  Module *m = ir_module_new();
  Model *model = ARENA_NEW(&m->arena, Model);
  model->module = m;
  Elab *e = ARENA_NEW(arena, Elab);
  *e = (Elab){.arena = arena, .sources = src, .diag = diag, .m = m};
  *out = NULL;
  AstFile *file = NULL;
  const char *text = overridden_text(e, opt);
  int code = text                                                              ? 0
             : opt->n_set && diag->n_errors && strstr(diag->v[0].msg, "--set") ? ERR_USAGE
                                                                               : ERR_INPUT;
  if (!code && !ast_parse_program(src, arena, opt->path, text, &file, diag)) {
    code = ERR_INPUT;
  }
  for (uint32_t i = 0; i < src->n; i++) {
    VEC_PUSH(&m->arena, m->file, m->n_files, m->cap_files, arena_strdup(&m->arena, src->v[i].path));
  }
  code = code ? code : elaborate(e, opt, file, text, model);
  if (code) {
    ir_module_free(m);
    return code;
  }
  find_token_axes(m, &model->plan);
  model->n_warnings = diag->n_warnings;
  *out = model;
  return 0;
}

/* Is the program right without the overrides? Then the command line is what is wrong. */
static bool right_as_written(const FrontOptions *opt) {
  FrontOptions plain = *opt;
  plain.n_set = 0;
  Arena arena = {0};
  Sources src = {.arena = &arena};
  Diag diag = {.sources = &src};
  Model *m = NULL;
  bool right = build_model(&plain, &src, &diag, &m) == 0;
  front_free(m);
  arena_free(&arena);
  return right;
}

int front_model(const FrontOptions *opt, Sources *src, Diag *diag, Model **out) {
  int code = build_model(opt, src, diag, out);
  return code == ERR_INPUT && opt->n_set && right_as_written(opt) ? ERR_USAGE : code;
}

void front_free(Model *m) {
  if (m) {
    ir_module_free(m->module);
  }
}
