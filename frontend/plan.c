/* plan.c: the items of a plan into struct Plan; what is not built yet is refused by name. */
#include "frontend/elab.h"
#include "frontend/override.h"

#include <math.h>
#include <string.h>

typedef struct {
  Elab *e;
  Scope s;
  Plan *p;
  const char *folder;
  Arena *mem;
  bool ok, in_layout;
} Items;

static bool not_built(Items *x, Span at, const char *what) {
  uint32_t d = report(x->e, at, "%s is not built yet", what);
  diag_hint(x->e->diag, d, x->in_layout ? "take it out, or choose another layout" : "take it out");
  x->ok = false;
  return false;
}

static double number(Items *x, const AstExpr *v, double lo, const char *what) {
  double out = lo;
  bool whole;
  if (!v || !eval_number(x->e, &x->s, v, &out, &whole, what)) {
    x->ok = false;
    return lo;
  }
  if (!(out >= lo) || !isfinite(out)) {
    report(x->e, v->span, "%s is %g; it must be at least %g", what, out, lo);
    x->ok = false;
  }
  return out;
}

static int64_t count(Items *x, const AstExpr *v, int64_t lo, const char *what) {
  double out = number(x, v, (double)lo, what);
  if (out != floor(out) || out > 9e15) {
    report(x->e, v->span, "%s is %g; it must be a whole number", what, out);
    x->ok = false;
  }
  return (int64_t)out;
}

static const char *resolved(Items *x, const AstExpr *v, const char *what) {
  const char *t = override_value_text(v);
  if (!t) {
    if (v && v->kind == EXPR_CALL && v->call.args.n && v->call.args.v[0].value->kind == EXPR_STRING) {
      report(x->e, v->span, "the environment variable '%s' is not set; %s comes from it",
             v->call.args.v[0].value->string.text, what);
    } else {
      report(x->e, v ? v->span : x->e->main->file[0]->v[0]->span,
             "%s is a file name in quotes, or env(\"NAME\")", what);
    }
    x->ok = false;
    return NULL;
  }
  bool from_env = v->kind == EXPR_CALL;
  return t[0] == '/' || from_env ? arena_strdup(x->mem, t) : arena_printf(x->mem, "%s/%s", x->folder, t);
}

/* Reports arguments that an item does not know. */
static void known_args(Items *x, const AstArgs *a, const char *item, const char *const *names, uint32_t n) {
  for (uint32_t i = 0; i < a->n; i++) {
    bool known = false;
    for (uint32_t k = 0; k < n && a->v[i].name.text; k++) {
      known |= !strcmp(names[k], a->v[i].name.text);
    }
    for (uint32_t k = 0; k < i && known; k++) {
      if (a->v[k].name.text && !strcmp(a->v[k].name.text, a->v[i].name.text)) {
        report(x->e, a->v[i].span, "'%s' is given twice", a->v[i].name.text);
        x->ok = false;
      }
    }
    if (!known) {
      uint32_t d = report(x->e, a->v[i].span, "'%s' has no setting '%s'", item,
                          a->v[i].name.text ? a->v[i].name.text : "(positional)");
      if (a->v[i].name.text) {
        diag_did_you_mean(x->e->diag, d, a->v[i].name.text, names, n);
      }
      x->ok = false;
    }
  }
}

static const AstExpr *arg(const AstArgs *a, const char *name) {
  for (uint32_t i = 0; i < a->n; i++) {
    if (a->v[i].name.text && !strcmp(a->v[i].name.text, name)) {
      return a->v[i].value;
    }
  }
  return NULL;
}

/* ---- items ---- */

static void item_data(Items *x, const AstPlanItem *p) {
  static const char *const names[] = {"hold_out", "order", "eval", "pack"};
  static const char *const kinds[] = {"text", "tokens", "arrays"};
  Plan *plan = x->p;
  PlanData d = {.tokenizer = "bytes"};
  known_args(x, &p->args, "data", names, 4);
  int kind = -1;
  for (int i = 0; i < 3; i++) {
    kind = !strcmp(p->stage.name.text, kinds[i]) ? i : kind;
  }
  if (kind < 0) {
    uint32_t id = report(x->e, p->stage.name.span, "there is no data source '%s'", p->stage.name.text);
    diag_did_you_mean(x->e->diag, id, p->stage.name.text, kinds, 3);
    x->ok = false;
    return;
  }
  d.kind = kind == 0 ? DATA_TEXT : kind == 1 ? DATA_TOKENS : DATA_ARRAYS;
  for (uint32_t i = 0; i < p->stage.args.n; i++) {
    const AstArg *a = &p->stage.args.v[i];
    if (!a->name.text) {
      d.path = resolved(x, a->value, "the data");
    } else if (!strcmp(a->name.text, "tokenizer") && d.kind == DATA_TEXT) {
      d.tokenizer = a->value->kind == EXPR_NAME ? arena_strdup(x->mem, a->value->name.text) : NULL;
      if (!d.tokenizer || (strcmp(d.tokenizer, "bytes") && strcmp(d.tokenizer, "chars"))) {
        report(x->e, a->span, "tokenizers are bytes and chars; tokenizer files are not built yet");
        x->ok = false;
      }
    } else {
      report(x->e, a->span, "%s(...) has no setting '%s'", p->stage.name.text, a->name.text);
      x->ok = false;
    }
  }
  if (!d.path && x->ok) {
    report(x->e, p->stage.span, "%s needs a file name", p->stage.name.text);
    x->ok = false;
  }
  if (arg(&p->args, "pack")) {
    not_built(x, p->span, "pack");
  }
  const AstExpr *v = arg(&p->args, "hold_out");
  d.hold_out = v ? number(x, v, 0, "hold_out") : 0;
  if (d.hold_out >= 1) {
    report(x->e, v->span, "hold_out is a share of the data, under 1");
    x->ok = false;
  }
  if ((v = arg(&p->args, "order"))) {
    d.sequential = v->kind == EXPR_NAME && !strcmp(v->name.text, "sequential");
    if (!d.sequential && (v->kind != EXPR_NAME || strcmp(v->name.text, "shuffled"))) {
      report(x->e, v->span, "order is sequential or shuffled");
      x->ok = false;
    }
  }
  if ((v = arg(&p->args, "eval"))) {
    d.eval_path = resolved(x, v, "eval");
  }
  d.n_inputs = p->names.n;
  d.input = ARENA_ARRAY(x->mem, const char *, d.n_inputs);
  for (uint32_t i = 0; i < d.n_inputs; i++) {
    d.input[i] = arena_strdup(x->mem, p->names.v[i].text);
  }
  d.loc.file = p->span.file;
  source_line_col(&x->e->sources->v[p->span.file], p->span.begin, &d.loc.line, &d.loc.col);
  uint32_t cap = plan->n_data; /* few: each push makes room anew */
  VEC_PUSH(x->mem, plan->data, plan->n_data, cap, d);
}

static void item_init(Items *x, const AstPlanItem *p) {
  static const char *const names[] = {"missing"};
  known_args(x, &p->args, "init", names, 1);
  PlanInit d = {.path = resolved(x, p->value, "init"),
                .pattern = p->pattern ? arena_strdup(x->mem, p->pattern) : NULL};
  const AstExpr *v = arg(&p->args, "missing");
  d.missing_draw = v && v->kind == EXPR_NAME && !strcmp(v->name.text, "draw");
  if (v && !d.missing_draw) {
    report(x->e, v->span, "missing = draw is the only choice beside leaving it out");
    x->ok = false;
  }
  d.loc.file = p->span.file;
  source_line_col(&x->e->sources->v[p->span.file], p->span.begin, &d.loc.line, &d.loc.col);
  uint32_t cap = x->p->n_init;
  VEC_PUSH(x->mem, x->p->init, x->p->n_init, cap, d);
}

static void item_precision(Items *x, const AstPlanItem *p) {
  static const char *const all[] = {"f32", "f64", "bf16", "f16", "tf32"};
  const char *name = p->names.v[0].text;
  if (!strcmp(name, "f32") || !strcmp(name, "f64")) {
    x->e->m->real = strcmp(name, "f64") ? DT_F32 : DT_F64;
    return;
  }
  for (int i = 2; i < 5; i++) {
    if (!strcmp(name, all[i])) {
      not_built(x, p->names.v[0].span, arena_printf(x->mem, "precision %s", name));
      return;
    }
  }
  uint32_t d = report(x->e, p->names.v[0].span, "there is no precision '%s'; choose f32 or f64", name);
  diag_did_you_mean(x->e->diag, d, name, all, 5);
  x->ok = false;
}

static void item_sample(Items *x, const AstPlanItem *p) {
  static const char *const names[] = {"temperature", "top_k"};
  known_args(x, &p->args, "sample", names, 2);
  x->p->sample_prompt = p->text ? arena_strdup(x->mem, p->text) : "";
  x->p->sample_tokens = p->value ? count(x, p->value, 1, "the length of a sample") : 200;
  x->p->sample_every = p->every ? count(x, p->every, 1, "sample every") : 0;
  const AstExpr *v = arg(&p->args, "temperature");
  x->p->sample_temperature = v ? number(x, v, 0, "temperature") : 1;
  v = arg(&p->args, "top_k");
  x->p->sample_top_k = v ? count(x, v, 1, "top_k") : 0;
}

static void one_item(Items *x, const AstPlanItem *p) {
  static const char *const eval_names[] = {"batches"}, *const save_names[] = {"keep"};
  Plan *plan = x->p;
  const AstExpr *v;
  switch (p->kind) {
  case PLAN_DATA: item_data(x, p); break;
  case PLAN_INIT: item_init(x, p); break;
  case PLAN_STEPS: plan->steps = count(x, p->value, 1, "steps"); break;
  case PLAN_EPOCHS: not_built(x, p->word, "epochs"); break;
  case PLAN_TOKENS: plan->tokens = number(x, p->value, 1, "tokens"); break;
  case PLAN_CLIP: plan->clip = number(x, p->value, 0, "clip"); break;
  case PLAN_PRECISION: item_precision(x, p); break;
  case PLAN_SEED: plan->seed = (uint64_t)count(x, p->value, 0, "seed"); break;
  case PLAN_EVAL:
    known_args(x, &p->args, "eval", eval_names, 1);
    plan->eval_every = p->every ? count(x, p->every, 1, "eval every") : 0;
    v = arg(&p->args, "batches");
    plan->eval_batches = v ? count(x, v, 1, "batches") : 0;
    break;
  case PLAN_SAVE:
    known_args(x, &p->args, "save", save_names, 1);
    plan->save_trainable |= p->trainable;
    plan->save_every = p->every ? count(x, p->every, 1, "save every") : plan->save_every;
    v = arg(&p->args, "keep");
    plan->save_keep = v ? count(x, v, 1, "keep") : plan->save_keep;
    break;
  case PLAN_SAMPLE: item_sample(x, p); break;
  case PLAN_KEEP: break; /* every op is in f32 or f64 already */
  case PLAN_AVERAGE: not_built(x, p->word, "average"); break;
  case PLAN_BUDGET: not_built(x, p->word, "budget"); break;
  case PLAN_CAPACITY: not_built(x, p->word, "capacity"); break;
  default: break;
  }
}

/* Kinds that may stand once in a plan. */
static bool once(AstPlanItemKind k) {
  return k == PLAN_STEPS || k == PLAN_EPOCHS || k == PLAN_TOKENS || k == PLAN_SCHEDULE || k == PLAN_CLIP ||
         k == PLAN_PRECISION || k == PLAN_SEED || k == PLAN_EVAL || k == PLAN_SAMPLE || k == PLAN_AVERAGE ||
         k == PLAN_BUDGET || k == PLAN_CAPACITY;
}

static void check_once(Items *x, const AstItem *plan) {
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    for (uint32_t k = 0; k < i; k++) {
      const AstPlanItem *a = plan->plan.v[k], *b = plan->plan.v[i];
      const Source *src = &x->e->sources->v[b->word.file];
      if (a->kind == b->kind && once(a->kind)) {
        uint32_t d = report(x->e, b->word, "'%.*s' stands twice in this plan",
                            (int)(b->word.end - b->word.begin), src->text + b->word.begin);
        diag_note(x->e->diag, d, a->word, "first here");
        x->ok = false;
      }
    }
  }
}

static void check_layout(Items *x, const AstPlanItem *layout) {
  x->in_layout = true;
  for (uint32_t i = 0; i < layout->n_items; i++) {
    const AstPlanItem *p = layout->items[i];
    switch (p->kind) {
    case LAYOUT_MESH:
      for (uint32_t k = 0; k < p->args.n; k++) {
        if (p->args.v[k].value && count(x, p->args.v[k].value, 1, "a mesh size") > 1) {
          not_built(x, p->word, "a mesh of more than one rank");
          break;
        }
      }
      break;
    case LAYOUT_MICRO: {
      AxisDef *batch = NULL;
      for (uint32_t k = 0; k < x->e->main->n_axes && !batch; k++) {
        batch = x->e->main->axis[k].axis == x->p->sample_axis ? &x->e->main->axis[k] : NULL;
      }
      int64_t micro = count(x, p->value, 1, "micro"), size = 0;
      if (micro > 0 && batch && axis_size(x->e, batch, &size) && micro != size) {
        if (micro > size || size % micro) {
          report(x->e, p->value->span, "micro is %lld; it must divide the batch of %lld", (long long)micro,
                 (long long)size);
          x->ok = false;
        } else {
          not_built(x, p->word, "micro (accumulation over micro-batches)");
        }
      }
      break;
    }
    case LAYOUT_ZERO:
      if (count(x, p->value, 0, "zero") > 0) {
        not_built(x, p->word, "zero");
      }
      break;
    case LAYOUT_RECOMPUTE:
      if (p->names.n && strcmp(p->names.v[0].text, "none")) {
        not_built(x, p->word, "recompute");
      }
      break;
    case LAYOUT_OFFLOAD: not_built(x, p->word, "offload"); break;
    case LAYOUT_SCHEDULE: not_built(x, p->word, "a pipeline schedule"); break;
    default: break;
    }
  }
}

/* Names in every layout of the plan, chosen or not. */
static void check_layout_names(Items *x, const AstPlanItem *layout) {
  const char *mesh[32];
  uint32_t n = 0;
  for (uint32_t i = 0; i < layout->n_items; i++) {
    const AstPlanItem *p = layout->items[i];
    for (uint32_t k = 0; p->kind == LAYOUT_MESH && k < p->args.n && n < 32; k++) {
      if (p->args.v[k].name.text) {
        mesh[n++] = p->args.v[k].name.text;
      }
    }
  }
  for (uint32_t i = 0; i < layout->n_items; i++) {
    const AstPlanItem *p = layout->items[i];
    if (p->kind != LAYOUT_SHARD) {
      continue;
    }
    for (uint32_t k = 0; k < p->names.n; k++) {
      AxisBinding a;
      x->ok &= find_axis(x->e, &x->s, &p->names.v[k], &a);
    }
    bool known = !p->on.text;
    for (uint32_t k = 0; k < n && !known; k++) {
      known = !strcmp(mesh[k], p->on.text);
    }
    if (!known) {
      uint32_t d =
          report(x->e, p->on.span, "layout '%s' has no mesh axis '%s'", layout->names.v[0].text, p->on.text);
      diag_did_you_mean(x->e->diag, d, p->on.text, mesh, n);
      x->ok = false;
    }
  }
}

static Axis sample_axis(Elab *e, const AstItem *plan) {
  FileScope *home;
  const AstItem *model = find_def(e->main, ITEM_MODEL, plan->plan.model.text, &home);
  if (!model || !model->def.n_inputs || !model->def.inputs[0].type || !model->def.inputs[0].type->axes.n) {
    return NONE;
  }
  AxisDef *d = file_axis(e->main, model->def.inputs[0].type->axes.v[0].text);
  return d ? d->axis : NONE;
}

/* Inputs that a text source fills by their role. */
static bool has_role(const char *name) {
  return !strcmp(name, "weight") || !strcmp(name, "doc") || !strcmp(name, "pos");
}

/* Every name of a data line is an input, and every input is filled once. */
static bool check_inputs(Items *x, const AstItem *plan) {
  FileScope *home;
  const AstItem *model = find_def(x->e->main, ITEM_MODEL, plan->plan.model.text, &home);
  if (!model || !x->p->n_data) {
    return x->ok;
  }
  uint32_t n = model->def.n_inputs;
  const char **names = ARENA_ARRAY(x->e->arena, const char *, n);
  uint32_t *filled = ARENA_ARRAY(x->e->arena, uint32_t, n);
  for (uint32_t k = 0; k < n; k++) {
    names[k] = model->def.inputs[k].name.text;
  }
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    const AstPlanItem *p = plan->plan.v[i];
    for (uint32_t k = 0; p->kind == PLAN_DATA && k < p->names.n; k++) {
      uint32_t at = 0;
      while (at < n && strcmp(names[at], p->names.v[k].text)) {
        at++;
      }
      if (at == n) {
        uint32_t id = report(x->e, p->names.v[k].span, "model '%s' has no input '%s'", plan->plan.model.text,
                             p->names.v[k].text);
        diag_did_you_mean(x->e->diag, id, p->names.v[k].text, names, n);
        x->ok = false;
      } else if (filled[at]++) {
        report(x->e, p->names.v[k].span, "input '%s' is filled twice", names[at]);
        x->ok = false;
      }
    }
  }
  for (uint32_t k = 0; k < n; k++) {
    if (!filled[k] && !has_role(names[k])) {
      uint32_t id = report(x->e, plan->plan.name.span, "no data line fills the input '%s'", names[k]);
      diag_hint(x->e->diag, id, "data %s from ...", names[k]);
      x->ok = false;
    }
  }
  return x->ok;
}

bool elab_plan(Elab *e, const AstItem *plan, const AstPlanItem *layout, const char *folder, Plan *out) {
  Items x = {.e = e, .p = out, .folder = folder, .mem = &e->m->arena, .ok = true};
  x.s = (Scope){.file = e->main, .ctx = e->root, .path = ""};
  out->name = arena_strdup(x.mem, plan->plan.name.text);
  out->model = arena_strdup(x.mem, plan->plan.model.text);
  out->layout = layout ? arena_strdup(x.mem, layout->names.v[0].text) : NULL;
  out->sample_temperature = 1;
  out->sample_axis = sample_axis(e, plan);
  check_once(&x, plan);
  bool optimizer = false;
  for (uint32_t i = 0; i < plan->plan.n; i++) {
    one_item(&x, plan->plan.v[i]);
    if (plan->plan.v[i]->kind == PLAN_LAYOUT) {
      check_layout_names(&x, plan->plan.v[i]);
    }
    optimizer |= plan->plan.v[i]->kind == PLAN_OPTIMIZER;
  }
  if (layout) {
    check_layout(&x, layout);
  }
  if (!optimizer) {
    report(e, plan->plan.name.span, "plan '%s' has no optimizer", out->name);
    x.ok = false;
  }
  if (out->tokens > 0 && !out->steps && x.ok) {
    FileScope *home;
    const AstItem *model = find_def(e->main, ITEM_MODEL, plan->plan.model.text, &home);
    double per_step = 1;
    for (uint32_t i = 0; model && model->def.inputs[0].type && i < model->def.inputs[0].type->axes.n && i < 2;
         i++) {
      AxisBinding a;
      per_step *= find_axis(e, &x.s, &model->def.inputs[0].type->axes.v[i], &a) ? (double)a.size : 1;
    }
    out->steps = (int64_t)ceil(out->tokens / per_step);
  }
  if (!out->steps && x.ok) {
    report(e, plan->plan.name.span, "plan '%s' does not say how long: steps N or tokens N", out->name);
    x.ok = false;
  }
  return check_inputs(&x, plan) && x.ok;
}
