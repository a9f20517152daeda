/* override.c: `--set PATH=VALUE` as an edit of the program's text.
 *
 * Each override is spliced into the text of the plan, and the result is what gets parsed: so the text saved
 * with a run (plan.dl) is the program that ran, by construction. */
#include "frontend/override.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  uint32_t begin, end;
  const char *text;
} Edit;

typedef struct {
  Arena *arena;
  const AstFile *file;
  const AstItem *plan;
  const AstPlanItem *layout;
  const char *text, *value;
  const char *known[256]; /* every path there is, for "did you mean" */
  uint32_t n_known;
} Target;

static void know(Target *t, const char *path) {
  if (t->n_known < sizeof t->known / sizeof *t->known) {
    t->known[t->n_known++] = path;
  }
}

const AstItem *override_plan(const AstFile *f, const char *name, uint32_t *n_plans) {
  const AstItem *found = NULL;
  *n_plans = 0;
  for (uint32_t i = 0; i < f->n; i++) {
    if (f->v[i]->kind == ITEM_PLAN) {
      ++*n_plans;
      if (!name || (f->v[i]->plan.name.text && !strcmp(f->v[i]->plan.name.text, name))) {
        found = f->v[i];
      }
    }
  }
  return found;
}

static Edit insert_before_brace(Target *t, Span block, const char *line) {
  uint32_t at = block.end;
  while (at > block.begin && t->text[at - 1] != '}') {
    at--;
  }
  at = at > block.begin ? at - 1 : block.end;
  return (Edit){at, at, arena_printf(t->arena, "; %s ", line)};
}

static bool is_called(const AstName *name, const char *path) {
  const char *dot = strchr(path, '.');
  if (!name->text || (name->qual != NULL) != (dot != NULL)) {
    return false;
  }
  size_t n = dot ? (size_t)(dot - path) : 0;
  return !strcmp(name->text, dot ? dot + 1 : path) &&
         (!dot || (strlen(name->qual) == n && !strncmp(name->qual, path, n)));
}

static bool replace_arg(Target *t, const AstArgs *args, const char *key, Edit *out) {
  for (uint32_t i = 0; i < args->n; i++) {
    if (is_called(&args->v[i].name, key) && args->v[i].value) {
      *out = (Edit){args->v[i].value->span.begin, args->v[i].value->span.end, t->value};
      return true;
    }
  }
  return false;
}

/* ---- items with one value ---- */

static const struct {
  const char *word;
  AstPlanItemKind kind;
} plain_items[] = {{"steps", PLAN_STEPS},   {"epochs", PLAN_EPOCHS},    {"tokens", PLAN_TOKENS},
                   {"clip", PLAN_CLIP},     {"seed", PLAN_SEED},        {"average", PLAN_AVERAGE},
                   {"budget", PLAN_BUDGET}, {"capacity", PLAN_CAPACITY}};

static bool is_length(AstPlanItemKind k) {
  return k == PLAN_STEPS || k == PLAN_EPOCHS || k == PLAN_TOKENS;
}

static bool edit_plain(Target *t, const char *path, Edit *out) {
  for (size_t i = 0; i < sizeof plain_items / sizeof *plain_items; i++) {
    know(t, plain_items[i].word);
    if (strcmp(path, plain_items[i].word)) {
      continue;
    }
    const char *line = arena_printf(t->arena, "%s %s", path, t->value);
    for (uint32_t k = 0; k < t->plan->plan.n; k++) {
      const AstPlanItem *p = t->plan->plan.v[k];
      if (p->kind == plain_items[i].kind || (is_length(p->kind) && is_length(plain_items[i].kind))) {
        *out = (Edit){p->span.begin, p->span.end, line};
        return true;
      }
    }
    *out = insert_before_brace(t, t->plan->span, line);
    return true;
  }
  know(t, "precision");
  if (strcmp(path, "precision")) {
    return false;
  }
  for (uint32_t k = 0; k < t->plan->plan.n; k++) {
    const AstPlanItem *p = t->plan->plan.v[k];
    if (p->kind == PLAN_PRECISION && p->names.n) {
      *out = (Edit){p->names.v[0].span.begin, p->names.v[0].span.end, t->value};
      return true;
    }
  }
  *out = insert_before_brace(t, t->plan->span, arena_printf(t->arena, "precision %s", t->value));
  return true;
}

/* ---- items with settings ---- */

static bool edit_stage(Target *t, const AstStage *st, const char *key, bool append, Edit *out) {
  if (replace_arg(t, &st->args, key, out)) {
    return true;
  }
  if (!append) {
    return false;
  }
  uint32_t at = st->span.end;
  bool paren = at > st->span.begin && t->text[at - 1] == ')';
  *out = paren ? (Edit){at - 1, at - 1,
                        arena_printf(t->arena, "%s%s = %s", st->args.n ? ", " : "", key, t->value)}
               : (Edit){at, at, arena_printf(t->arena, "(%s = %s)", key, t->value)};
  return true;
}

static const struct {
  const char *word;
  AstPlanItemKind kind;
  const char *keys[5];
} keyed_items[] = {{"eval", PLAN_EVAL, {"batches"}},
                   {"save", PLAN_SAVE, {"keep"}},
                   {"sample", PLAN_SAMPLE, {"temperature", "top_k"}},
                   {"data", PLAN_DATA, {"hold_out", "order", "eval"}}};

static bool edit_keyed(Target *t, const char *head, const char *key, Edit *out) {
  for (size_t i = 0; i < sizeof keyed_items / sizeof *keyed_items; i++) {
    bool has_every = keyed_items[i].kind != PLAN_DATA, known = has_every && !strcmp(key, "every");
    if (has_every) {
      know(t, arena_printf(t->arena, "%s.every", keyed_items[i].word));
    }
    for (const char *const *k = keyed_items[i].keys; *k; k++) {
      know(t, arena_printf(t->arena, "%s.%s", keyed_items[i].word, *k));
      known |= !strcmp(*k, key);
    }
    if (strcmp(head, keyed_items[i].word) || !known) {
      continue;
    }
    for (uint32_t k = 0; k < t->plan->plan.n; k++) {
      const AstPlanItem *p = t->plan->plan.v[k];
      if (p->kind != keyed_items[i].kind) {
        continue;
      }
      if (!strcmp(key, "every") && p->every) {
        *out = (Edit){p->every->span.begin, p->every->span.end, t->value};
      } else if (!strcmp(key, "every")) {
        *out = (Edit){p->span.end, p->span.end, arena_printf(t->arena, " every %s", t->value)};
      } else if (!replace_arg(t, &p->args, key, out)) {
        *out = (Edit){p->span.end, p->span.end, arena_printf(t->arena, ", %s = %s", key, t->value)};
      }
      return true;
    }
    if (!strcmp(key, "every") && keyed_items[i].kind != PLAN_SAMPLE) {
      *out = insert_before_brace(t, t->plan->span, arena_printf(t->arena, "%s every %s", head, t->value));
      return true;
    }
  }
  return false;
}

static bool edit_optimizer(Target *t, const char *head, const char *key, Edit *out) {
  for (uint32_t k = 0; k < t->plan->plan.n; k++) {
    const AstPlanItem *p = t->plan->plan.v[k];
    for (uint32_t i = 0; p->kind == PLAN_OPTIMIZER && i < p->stage.args.n; i++) {
      if (p->stage.args.v[i].name.text) {
        know(t, arena_printf(t->arena, "optimizer.%s", p->stage.args.v[i].name.text));
      }
    }
    if (p->kind == PLAN_OPTIMIZER && !strcmp(head, "optimizer")) {
      return edit_stage(t, &p->stage, key, true, out);
    }
    for (uint32_t i = 0; p->kind == PLAN_SCHEDULE && i < p->n_stages; i++) {
      if (!strcmp(head, "schedule") && edit_stage(t, &p->stages[i], key, p->n_stages == 1, out)) {
        return true;
      }
    }
  }
  return false;
}

static bool edit_layout(Target *t, const char *head, const char *key, Edit *out) {
  static const struct {
    const char *word;
    AstPlanItemKind kind;
  } items[] = {{"micro", LAYOUT_MICRO}, {"zero", LAYOUT_ZERO}, {"recompute", LAYOUT_RECOMPUTE}};
  for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
    know(t, arena_printf(t->arena, "layout.%s", items[i].word));
    if (strcmp(head, "layout") || strcmp(key, items[i].word)) {
      continue;
    }
    const char *line = arena_printf(t->arena, "%s %s", key, t->value);
    if (!t->layout) {
      *out = insert_before_brace(t, t->plan->span, arena_printf(t->arena, "layout one { %s }", line));
      return true;
    }
    for (uint32_t k = 0; k < t->layout->n_items; k++) {
      if (t->layout->items[k]->kind == items[i].kind) {
        *out = (Edit){t->layout->items[k]->span.begin, t->layout->items[k]->span.end, line};
        return true;
      }
    }
    *out = insert_before_brace(t, t->layout->span, line);
    return true;
  }
  return false;
}

static bool is_alias(const AstFile *f, const char *name) {
  for (uint32_t i = 0; i < f->n; i++) {
    const AstItem *item = f->v[i];
    if (item->kind == ITEM_USE && item->use.alias.text && !strcmp(item->use.alias.text, name)) {
      return true;
    }
  }
  return false;
}

/* ---- axes and settings ---- */

static bool edit_set(Target *t, const char *path, Edit *out) {
  bool known = false;
  for (uint32_t i = 0; i < t->file->n; i++) {
    const AstItem *item = t->file->v[i];
    for (uint32_t k = 0; (item->kind == ITEM_AXIS || item->kind == ITEM_SETTING) && k < item->binds.n; k++) {
      if (item->binds.v[k].name.text) {
        know(t, item->binds.v[k].name.text);
        known |= !strcmp(item->binds.v[k].name.text, path);
      }
    }
  }
  const char *dot = strchr(path, '.');
  known |= dot && is_alias(t->file, arena_strndup(t->arena, path, (size_t)(dot - path)));
  if (!known) {
    return false;
  }
  for (uint32_t k = 0; k < t->plan->plan.n; k++) {
    const AstPlanItem *p = t->plan->plan.v[k];
    if (p->kind == PLAN_SET && replace_arg(t, &p->args, path, out)) {
      return true;
    }
  }
  *out = insert_before_brace(t, t->plan->span, arena_printf(t->arena, "set %s = %s", path, t->value));
  return true;
}

static const char *splice(Arena *a, const char *text, Edit e) {
  return arena_printf(a, "%.*s%s%s", (int)e.begin, text, e.text, text + e.end);
}

const AstPlanItem *override_layout(const AstItem *plan, const char *name) {
  for (uint32_t i = 0; plan && i < plan->plan.n; i++) {
    const AstPlanItem *p = plan->plan.v[i];
    if (p->kind == PLAN_LAYOUT && p->names.n && (!name || !strcmp(p->names.v[0].text, name))) {
      return p;
    }
  }
  return NULL;
}

const char *override_apply(Arena *arena, const char *path, const char *text, const char *plan,
                           const char *layout, const char *set, Error *err) {
  Sources sources = {.arena = arena};
  Diag diag = {.sources = &sources};
  Target t = {.arena = arena, .text = text};
  AstFile *file;
  const char *eq = strchr(set, '=');
  if (!eq) {
    error_set(err, ERR_USAGE, "--set takes NAME=VALUE, not '%s'", set);
    return NULL;
  }
  uint32_t n;
  if (!ast_parse_text(&sources, arena, source_add(&sources, path, text, strlen(text)), &file, &diag)) {
    return text; /* its errors are reported when the whole is parsed */
  }
  t.file = file;
  t.plan = override_plan(file, plan, &n);
  if (!t.plan) {
    error_set(err, ERR_USAGE, "--set %s: the file has no plan to set it in", set);
    return NULL;
  }
  t.layout = override_layout(t.plan, layout);
  t.value = eq + 1;
  const char *name = arena_strndup(arena, set, (size_t)(eq - set)), *dot = strchr(name, '.');
  const char *head = dot ? arena_strndup(arena, name, (size_t)(dot - name)) : name, *key = dot ? dot + 1 : "";
  Edit edit;
  bool ok = dot ? edit_keyed(&t, head, key, &edit) || edit_optimizer(&t, head, key, &edit) ||
                      edit_layout(&t, head, key, &edit) || edit_set(&t, name, &edit)
                : edit_set(&t, name, &edit) || edit_plain(&t, name, &edit);
  if (!ok) {
    if (dot) {
      edit_set(&t, name, &edit), edit_plain(&t, "", &edit);
    } else {
      edit_keyed(&t, "", "", &edit), edit_optimizer(&t, "", "", &edit), edit_layout(&t, "", "", &edit);
    }
    const char *near = diag_nearest(name, t.known, t.n_known);
    error_set(err, ERR_USAGE, "--set %s: there is no '%s' in this program and its plan%s%s%s", set, name,
              near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return NULL;
  }
  return splice(arena, text, edit);
}

/* ---- `set optimizer.lr = 1e-3` in the plan itself ---- */

/* The edit that takes argument k out of its line. */
static Edit cut_arg(const AstPlanItem *p, uint32_t k) {
  if (p->args.n == 1) {
    return (Edit){p->span.begin, p->span.end, ""};
  }
  bool last = k + 1 == p->args.n;
  return (Edit){last ? p->args.v[k - 1].span.end : p->args.v[k].span.begin,
                last ? p->args.v[k].span.end : p->args.v[k + 1].span.begin, ""};
}

const char *override_inline(Arena *arena, const char *path, const char *text, const char *plan,
                            const char *layout, Error *err) {
  Sources sources = {.arena = arena};
  Diag diag = {.sources = &sources};
  AstFile *file;
  uint32_t n;
  if (!ast_parse_text(&sources, arena, source_add(&sources, path, text, strlen(text)), &file, &diag)) {
    return text;
  }
  const AstItem *item = override_plan(file, plan, &n);
  for (uint32_t i = 0; item && i < item->plan.n; i++) {
    const AstPlanItem *p = item->plan.v[i];
    for (uint32_t k = 0; p->kind == PLAN_SET && k < p->args.n; k++) {
      const AstArg *a = &p->args.v[k];
      if (!a->name.qual || !a->name.text || !a->value || is_alias(file, a->name.qual)) {
        continue;
      }
      const char *set =
          arena_printf(arena, "%s.%s=%.*s", a->name.qual, a->name.text,
                       (int)(a->value->span.end - a->value->span.begin), text + a->value->span.begin);
      text = override_apply(arena, path, splice(arena, text, cut_arg(p, k)), plan, layout, set, err);
      if (!text) {
        memmove(err->msg, err->msg + 2, strlen(err->msg + 2) + 1); /* "set", not "--set" */
        return NULL;
      }
      return override_inline(arena, path, text, plan, layout, err);
    }
  }
  return text;
}

/* ---- the program of a run ---- */

typedef struct {
  Edit v[128];
  uint32_t n;
} Edits;

static void add_path(Arena *a, Edits *e, const char *folder, const char *text, Span span) {
  if (!text || e->n == sizeof e->v / sizeof *e->v) {
    return;
  }
  char *joined = text[0] == '/' ? arena_strdup(a, text) : arena_printf(a, "%s/%s", folder, text);
  char *real = realpath(joined, NULL);
  Str quoted = {0};
  str_putc(&quoted, '"');
  for (const char *p = real ? real : joined; *p; p++) {
    if (*p == '"' || *p == '\\') {
      str_putc(&quoted, '\\');
    }
    str_putc(&quoted, *p);
  }
  str_putc(&quoted, '"');
  e->v[e->n++] = (Edit){span.begin, span.end, arena_strdup(a, quoted.s)};
  str_free(&quoted);
  free(real);
}

const char *override_value_text(const AstExpr *x) {
  if (x && x->kind == EXPR_STRING) {
    return x->string.text;
  }
  if (x && x->kind == EXPR_CALL && x->call.f.text && !strcmp(x->call.f.text, "env") && x->call.args.n >= 1 &&
      x->call.args.v[0].value && x->call.args.v[0].value->kind == EXPR_STRING) {
    const char *v = getenv(x->call.args.v[0].value->string.text);
    if (v) {
      return v;
    }
    return x->call.args.n > 1 ? override_value_text(x->call.args.v[1].value) : NULL;
  }
  return NULL;
}

static void add_value_path(Arena *a, Edits *e, const char *folder, const AstExpr *x) {
  bool from_env = x && x->kind == EXPR_CALL &&
                  getenv(x->call.args.n && x->call.args.v[0].value->kind == EXPR_STRING
                             ? x->call.args.v[0].value->string.text
                             : "");
  if (x && override_value_text(x)) {
    add_path(a, e, from_env ? "." : folder, override_value_text(x), x->span);
  }
}

static int by_place(const void *a, const void *b) {
  const Edit *x = a, *y = b;
  return x->begin < y->begin ? 1 : x->begin > y->begin ? -1 : 0;
}

const char *override_folded(Arena *arena, const char *folder, const char *text, const AstFile *file,
                            const AstItem *plan, const AstPlanItem *layout) {
  Edits *e = ARENA_NEW(arena, Edits);
  for (uint32_t i = 0; i < file->n; i++) {
    const AstItem *item = file->v[i];
    if (item->kind == ITEM_USE && item->use.path) {
      add_path(arena, e, folder, item->use.path, item->use.path_span);
    } else if (item->kind == ITEM_PLAN && item != plan && e->n < 128) {
      e->v[e->n++] = (Edit){item->span.begin, item->span.end, ""};
    }
  }
  for (uint32_t i = 0; plan && i < plan->plan.n; i++) {
    const AstPlanItem *p = plan->plan.v[i];
    if (p->kind == PLAN_LAYOUT && layout && p != layout && e->n < 128) {
      e->v[e->n++] = (Edit){p->span.begin, p->span.end, ""};
    } else if (p->kind == PLAN_DATA) {
      for (uint32_t k = 0; k < p->stage.args.n; k++) {
        if (!p->stage.args.v[k].name.text) {
          add_value_path(arena, e, folder, p->stage.args.v[k].value);
        }
      }
      for (uint32_t k = 0; k < p->args.n; k++) {
        if (p->args.v[k].name.text && !strcmp(p->args.v[k].name.text, "eval")) {
          add_value_path(arena, e, folder, p->args.v[k].value);
        }
      }
    } else if (p->kind == PLAN_INIT) {
      add_value_path(arena, e, folder, p->value);
    }
  }
  qsort(e->v, e->n, sizeof *e->v, by_place);
  for (uint32_t i = 0; i < e->n; i++) {
    text = splice(arena, text, e->v[i]);
  }
  return text;
}
