/* elab.c: errors, places, names, files and axes of the elaborator. */
#include "frontend/elab.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

V poison(void) {
  return (V){.kind = V_POISON, .val = NONE, .param = NONE};
}

V num(double v) {
  return (V){.kind = V_NUM,
             .num = v,
             .is_int = isfinite(v) && v == floor(v) && fabs(v) < 9007199254740992.0,
             .val = NONE,
             .param = NONE};
}

V tensor(Ctx *c, Val v) {
  return v == NONE ? poison() : (V){.kind = V_TENSOR, .ctx = c, .val = v, .param = NONE};
}

uint32_t report(Elab *e, Span at, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  /* What goes wrong inside the library is shown where the program calls it. */
  uint32_t k = e->depth;
  while (k > 0 && e->call[k - 1].library) {
    k--;
  }
  bool inside = k < e->depth && at.file != e->call[k].at.file;
  uint32_t d = diag_error(e->diag, inside ? e->call[k].at : at, "%s", text);
  if (inside) {
    diag_note(e->diag, d, at, "in the library's '%s'", e->call[e->depth - 1].def->def.name.text);
  } else if (k > 0 && k == e->depth && e->call[k - 1].x && e->call[k - 1].def->kind == ITEM_FN) {
    diag_note(e->diag, d, e->call[k - 1].at, "in this call of '%s'", e->call[k - 1].def->def.name.text);
  }
  return d;
}

void locate(Elab *e, Ctx *c, Span at) {
  c->b.loc.file = at.file;
  if (at.file < e->sources->n) {
    source_line_col(&e->sources->v[at.file], at.begin, &c->b.loc.line, &c->b.loc.col);
  }
}

Span span_of(Elab *e, Loc loc) {
  if (loc.file >= e->sources->n || !loc.line) {
    return (Span){SPAN_NO_FILE, 0, 0};
  }
  uint32_t begin = e->sources->v[loc.file].line[loc.line - 1] + loc.col - 1;
  return (Span){loc.file, begin, begin + 1};
}

V built(Elab *e, Ctx *c, Val v, Span at) {
  if (v != NONE) {
    return tensor(c, v);
  }
  if (e->err.cls != ERR_NONE) {
    report(e, at, "%s", e->err.msg);
    e->err = (Error){0};
  }
  return poison();
}

const char *type_text(Elab *e, const Type *t) {
  Str s = {0};
  type_print(e->m, t, &s);
  const char *text = arena_strdup(e->arena, s.s);
  str_free(&s);
  return text;
}

const Type *vtype(Elab *e, const V *v) {
  return ir_type(e->func, v->val);
}

/* ---- places ---- */

Val import_value(Elab *e, Ctx *c, Ctx *from, Val v, bool sliced) {
  if (c == from) {
    return v;
  }
  Val outer = import_value(e, c->up, from, v, false);
  for (uint32_t i = 0; i < c->n_imports; i++) {
    if (c->import[i].outer == outer && c->import[i].sliced == sliced) {
      return c->import[i].inner;
    }
  }
  Type t = *ir_type(e->func, outer);
  const char *name = e->func->val[outer].name;
  if (sliced) {
    t = type_without(&t, &c->axis, 1);
  }
  Val inner = ir_param(e->func, c->b.b, t, name);
  VEC_PUSH(e->arena, c->import, c->n_imports, c->cap_imports, (Import){outer, inner, sliced});
  note_link(e, inner, outer);
  return inner;
}

V bring(Elab *e, Ctx *c, V v) {
  if (v.kind != V_TENSOR || v.ctx == c) {
    return v;
  }
  V out = v;
  out.val = import_value(e, c, v.ctx, v.val, false);
  out.ctx = c;
  out.index_of = v.index_of;
  out.term = NULL;
  out.n_terms = 0;
  return out;
}

/* ---- names ---- */

Binding *scope_find(Scope *s, const char *name) {
  for (; s; s = s->up) {
    for (uint32_t i = s->n; i-- > 0;) {
      if (!strcmp(s->v[i].name, name)) {
        return &s->v[i];
      }
    }
  }
  return NULL;
}

void scope_set(Elab *e, Scope *s, const char *name, V v, Span at) {
  for (uint32_t i = 0; i < s->n; i++) {
    if (!strcmp(s->v[i].name, name)) {
      s->v[i].v = v;
      s->v[i].span = at;
      return;
    }
  }
  VEC_PUSH(e->arena, s->v, s->n, s->cap, (Binding){.name = name, .v = v, .span = at});
}

static void push_name(Elab *e, const char ***list, uint32_t *n, uint32_t *cap, const char *name) {
  VEC_PUSH(e->arena, *list, *n, *cap, name);
}

void suggest(Elab *e, uint32_t diag, Scope *s, const char *name) {
  const char **list = NULL;
  uint32_t n = 0, cap = 0;
  FileScope *file = s->file;
  for (Scope *p = s; p; p = p->up) {
    for (uint32_t i = 0; i < p->n; i++) {
      push_name(e, &list, &n, &cap, p->v[i].name);
    }
    for (uint32_t i = 0; i < p->n_axes; i++) {
      push_name(e, &list, &n, &cap, p->axis[i].name);
    }
    for (uint32_t i = 0; i < p->n_instances; i++) {
      push_name(e, &list, &n, &cap, p->instance[i]->name);
    }
  }
  for (uint32_t i = 0; i < file->n_axes; i++) {
    push_name(e, &list, &n, &cap, file->axis[i].name);
  }
  for (uint32_t i = 0; i < file->n_settings; i++) {
    push_name(e, &list, &n, &cap, file->setting[i].name);
  }
  diag_did_you_mean(e->diag, diag, name, list, n);
}

/* ---- files ---- */

AxisDef *file_axis(FileScope *f, const char *name) {
  for (uint32_t i = 0; i < f->n_axes; i++) {
    if (!strcmp(f->axis[i].name, name)) {
      return &f->axis[i];
    }
  }
  return NULL;
}

SettingDef *file_setting(FileScope *f, const char *name) {
  for (uint32_t i = 0; i < f->n_settings; i++) {
    if (!strcmp(f->setting[i].name, name)) {
      return &f->setting[i];
    }
  }
  return NULL;
}

const AstItem *find_def(FileScope *f, AstItemKind kind, const char *name, FileScope **home) {
  for (uint32_t i = 0; i < f->n_files; i++) {
    for (uint32_t k = 0; k < f->file[i]->n; k++) {
      const AstItem *item = f->file[i]->v[k];
      if (item->kind == kind && item->def.name.text && !strcmp(item->def.name.text, name)) {
        *home = f;
        return item;
      }
    }
  }
  for (uint32_t i = 0; i < f->n_uses; i++) {
    const AstItem *item = f->use_name[i][0] ? NULL : find_def(f->use[i], kind, name, home);
    if (item) {
      return item;
    }
  }
  return f->std ? find_def(f->std, kind, name, home) : NULL;
}

static bool is_primitive_name(const char *name) {
  static const char *const primitives[] = {
      "where", "sum",   "mean", "max",     "min",     "prod",      "any",    "all",        "argmax", "cumsum",
      "join",  "shift", "roll", "pad",     "top_k",   "top_index", "sort",   "sort_index", "full",   "int",
      "float", "index", "grad", "stop",    "dropout", "uniform",   "normal", "exp",        "log",    "log1p",
      "sqrt",  "rsqrt", "tanh", "sigmoid", "erf",     "sin",       "cos",    "abs",        "sign",   "floor"};
  for (size_t i = 0; i < sizeof primitives / sizeof *primitives; i++) {
    if (!strcmp(primitives[i], name)) {
      return true;
    }
  }
  return false;
}

static void check_def(Elab *e, FileScope *f, const AstItem *item) {
  FileScope *home;
  if (item->kind == ITEM_FN && is_primitive_name(item->def.name.text)) {
    report(e, item->def.name.span, "'%s' is a primitive and cannot be defined again; choose another name",
           item->def.name.text);
  }
  const AstItem *first = find_def(f, item->kind, item->def.name.text, &home);
  if (first && first != item && home == f) {
    uint32_t d = report(e, item->def.name.span, "'%s' is defined twice", item->def.name.text);
    diag_note(e->diag, d, first->def.name.span, "first defined here");
  }
}

static void add_axis(Elab *e, FileScope *f, const AstBind *b) {
  if (file_axis(f, b->name.text)) {
    uint32_t d = report(e, b->name.span, "axis '%s' is declared twice", b->name.text);
    diag_note(e->diag, d, file_axis(f, b->name.text)->span, "first declared here");
    return;
  }
  const char *full = f->alias[0] ? arena_printf(e->arena, "%s.%s", f->alias, b->name.text) : b->name.text;
  AxisDef d = {.name = b->name.text,
               .formula = b->value,
               .axis = ir_axis(e->m, full),
               .size = -1,
               .span = b->name.span,
               .file = f};
  VEC_PUSH(e->arena, f->axis, f->n_axes, f->cap_axes, d);
}

static void bind_use_args(Elab *e, FileScope *f, const AstArgs *args, FileScope *user) {
  for (uint32_t i = 0; args && i < args->n; i++) {
    const AstArg *a = &args->v[i];
    AxisDef *d = a->name.text ? file_axis(f, a->name.text) : NULL;
    SettingDef *st = a->name.text ? file_setting(f, a->name.text) : NULL;
    if (!d && !st) {
      report(e, a->span, "'%s' is neither an axis nor a setting of that file",
             a->name.text ? a->name.text : "a positional value");
      continue;
    }
    AxisDef *other =
        d && a->value && a->value->kind == EXPR_NAME ? file_axis(user, a->value->name.text) : NULL;
    if (other) { /* an axis given an axis is that axis */
      d->axis = other->axis;
    }
    if (d) {
      d->formula = a->value;
      d->file = user;
    } else {
      st->value = a->value;
      st->file = user;
    }
  }
}

FileScope *file_scope(Elab *e, AstFile *file, const char *alias, const AstArgs *args, FileScope *user) {
  FileScope *f = ARENA_NEW(e->arena, FileScope);
  f->file = ARENA_NEW(e->arena, AstFile *);
  f->file[0] = file;
  f->n_files = 1;
  f->alias = alias;
  f->std = e->std;
  for (uint32_t i = 0; i < file->n; i++) {
    const AstItem *item = file->v[i];
    if (item->kind == ITEM_AXIS || item->kind == ITEM_SETTING) {
      for (uint32_t k = 0; k < item->binds.n; k++) {
        if (item->kind == ITEM_AXIS) {
          add_axis(e, f, &item->binds.v[k]);
        } else {
          SettingDef d = {.name = item->binds.v[k].name.text, .value = item->binds.v[k].value, .file = f};
          VEC_PUSH(e->arena, f->setting, f->n_settings, f->cap_settings, d);
        }
      }
    } else if (item->kind == ITEM_FN || item->kind == ITEM_MODULE || item->kind == ITEM_MODEL) {
      check_def(e, f, item);
    }
  }
  bind_use_args(e, f, args, user ? user : f);
  for (uint32_t i = 0; i < file->n; i++) {
    const AstItem *item = file->v[i];
    if (item->kind != ITEM_USE || !item->use.path || !item->use.n_files) {
      continue;
    }
    const char *name = item->use.alias.text ? item->use.alias.text : "";
    const char *full = f->alias[0] && name[0] ? arena_printf(e->arena, "%s.%s", f->alias, name) : name;
    FileScope *u = file_scope(e, item->use.files[0], full, &item->use.args, f);
    uint32_t n = f->n_uses, cap = f->cap_uses;
    VEC_PUSH(e->arena, f->use, n, cap, u);
    VEC_PUSH(e->arena, f->use_name, f->n_uses, f->cap_uses, name);
  }
  return f;
}

/* ---- axes ---- */

bool axis_size(Elab *e, AxisDef *d, int64_t *out) {
  if (d->size >= 0) {
    *out = d->size;
    return true;
  }
  if (d->size == -2) {
    report(e, d->span, "the size of axis '%s' depends on itself", d->name);
    d->size = 1;
    return false;
  }
  double v;
  bool whole = true;
  if (!d->formula) {
    report(e, d->span,
           "axis '%s' has no size; give it one here (axis %s = ...) or in the plan (set %s = ...)", d->name,
           d->name, d->name);
    d->size = 1;
    return false;
  } else {
    d->size = -2;
    Scope s = {.file = d->file, .ctx = e->root};
    if (!eval_number(e, &s, d->formula, &v, &whole, "an axis size")) {
      d->size = 1;
      return false;
    }
  }
  if (!whole || v < 1 || v >= 9.2e18 || v != floor(v)) {
    report(e, d->span, "axis '%s' has the size %g; a size is a whole number of at least 1", d->name, v);
    d->size = 1;
    return false;
  }
  d->size = (int64_t)v;
  *out = d->size;
  return true;
}

FileScope *file_used_as(FileScope *f, const char *alias) {
  for (uint32_t i = 0; i < f->n_uses; i++) {
    if (!strcmp(f->use_name[i], alias)) {
      return f->use[i];
    }
  }
  return NULL;
}

FileScope *used_file(Elab *e, FileScope *f, const AstName *name) {
  FileScope *used = file_used_as(f, name->qual);
  if (!used) {
    report(e, name->span, "no used file is called '%s'; write: use \"file.dl\" as %s", name->qual,
           name->qual);
  }
  return used;
}

static AxisDef *lookup_axis(Scope *s, const AstName *name) {
  FileScope *f = s->file;
  if (name->qual) {
    f = file_used_as(f, name->qual);
    return f ? file_axis(f, name->text) : NULL;
  }
  AxisDef *d = file_axis(f, name->text);
  for (uint32_t i = 0; !d && i < f->n_uses; i++) {
    d = f->use_name[i][0] ? NULL : file_axis(f->use[i], name->text);
  }
  return d;
}

bool axis_known(Scope *s, const char *name) {
  for (Scope *p = s; p; p = p->up) {
    for (uint32_t i = 0; i < p->n_axes; i++) {
      if (!strcmp(p->axis[i].name, name)) {
        return true;
      }
    }
  }
  return lookup_axis(s, &(AstName){.text = name}) != NULL;
}

bool find_axis(Elab *e, Scope *s, const AstName *name, AxisBinding *out) {
  for (Scope *p = s; p && !name->qual; p = p->up) {
    for (uint32_t i = 0; i < p->n_axes; i++) {
      if (!strcmp(p->axis[i].name, name->text)) {
        *out = p->axis[i];
        return true;
      }
    }
  }
  if (name->qual && !used_file(e, s->file, name)) {
    return false;
  }
  AxisDef *d = lookup_axis(s, name);
  if (!d) {
    uint32_t id = report(e, name->span, "there is no axis '%s'", name->text);
    const char **list = NULL;
    uint32_t n = 0, cap = 0;
    for (uint32_t i = 0; i < s->file->n_axes; i++) {
      push_name(e, &list, &n, &cap, s->file->axis[i].name);
    }
    diag_did_you_mean(e->diag, id, name->text, list, n);
    if (!diag_nearest(name->text, list, n)) {
      diag_hint(e->diag, id, "declare it: axis %s = SIZE", name->text);
    }
    return false;
  }
  int64_t size;
  if (!axis_size(e, d, &size)) {
    return false;
  }
  *out = (AxisBinding){d->name, d->axis, size};
  return true;
}
