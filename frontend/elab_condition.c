/* elab_condition.c: conditions on parameters (`where`, `freeze`, `keep`): name like "h.*", rank >= 2, has
 * embed.
 *
 * The parameters of a repeat are stored as one and share their optimizer line, so a condition must say the
 * same of every iteration; one that tells them apart (name like "h.0.*", depth < 6) is refused by name. */
#include "frontend/elab.h"

#include <fnmatch.h>
#include <string.h>

enum { MAX_ITERATIONS = 4096 }; /* beyond, only the first ones are looked at */

/* One parameter, in one iteration of the repeats around it. */
typedef struct {
  uint32_t param;
  int64_t index[IR_MAX_RANK]; /* outermost repeat first */
  bool by_iteration;          /* the condition looked at the iteration */
} Subject;

static bool condition(Elab *e, const AstExpr *x, Subject *s, double *out);

static const char *path_of(Elab *e, const Subject *s) {
  const char *name = e->m->param[s->param].name;
  Str path = {0};
  uint32_t k = 0;
  for (const char *p = name; *p; p++) {
    if (*p == '*' && k < IR_MAX_RANK) {
      str_printf(&path, "%lld", (long long)s->index[k++]);
    } else {
      str_putc(&path, *p);
    }
  }
  const char *out = arena_strdup(e->arena, path.s ? path.s : "");
  str_free(&path);
  return out;
}

static bool condition_word(Elab *e, const AstName *w, Subject *s, double *out) {
  const IrParam *p = &e->m->param[s->param];
  double size = 1;
  for (uint32_t i = p->n_repeat; i < p->type.rank; i++) {
    size *= (double)p->type.dim[i].size;
  }
  double in = e->use[s->param].fan_in ? e->use[s->param].fan_in : size;
  const struct {
    const char *word;
    double v;
  } words[] = {{"rank", (double)p->type.rank - p->n_repeat},
               {"size", size},
               {"matrix", p->matrix},
               {"fan_in", in},
               {"fan_out", size / in},
               {"depth", p->n_repeat ? (double)s->index[0] : -1}};
  const char *names[8];
  uint32_t n = 0;
  for (; n < sizeof words / sizeof *words; n++) {
    names[n] = words[n].word;
    if (!strcmp(words[n].word, w->text)) {
      s->by_iteration |= !strcmp(w->text, "depth");
      *out = words[n].v;
      return true;
    }
  }
  Scope file = {.file = e->main, .ctx = e->root};
  if (!w->qual && (file_setting(e->main, w->text) || axis_known(&file, w->text))) {
    AstExpr x = {.kind = EXPR_NAME, .span = w->span, .name = *w};
    bool whole;
    return eval_number(e, &file, &x, out, &whole, "a condition");
  }
  uint32_t d = report(
      e, w->span, "a condition knows name, rank, size, matrix, depth, fan_in, fan_out and has AXIS, not '%s'",
      w->text);
  diag_did_you_mean(e->diag, d, w->text, names, n);
  return false;
}

static bool condition_like(Elab *e, const AstExpr *x, Subject *s, double *out) {
  if (x->like.x->kind != EXPR_NAME || !x->like.x->name.text || strcmp(x->like.x->name.text, "name")) {
    report(e, x->span, "write: name like \"pattern\"");
    return false;
  }
  s->by_iteration = true;
  *out = fnmatch(x->like.pattern, path_of(e, s), 0) == 0;
  return true;
}

static bool condition_binary(Elab *e, const AstExpr *x, Subject *s, double *out) {
  double a, b;
  if (!condition(e, x->binary.a, s, &a) || !condition(e, x->binary.b, s, &b)) {
    return false;
  }
  V v = binary(e, e->root, x->binary.op, num(a), num(b), x->span);
  *out = v.num;
  return v.kind == V_NUM;
}

static bool condition(Elab *e, const AstExpr *x, Subject *s, double *out) {
  if (!x) {
    return false;
  }
  switch (x->kind) {
  case EXPR_NUMBER: *out = x->number.value; return true;
  case EXPR_NAME: return condition_word(e, &x->name, s, out);
  case EXPR_LIKE: return condition_like(e, x, s, out);
  case EXPR_BINARY: return condition_binary(e, x, s, out);
  case EXPR_HAS: {
    AxisBinding axis;
    Scope file = {.file = e->main, .ctx = e->root};
    if (!find_axis(e, &file, &x->has.axis, &axis)) {
      return false;
    }
    *out = type_has(&e->m->param[s->param].type, axis.axis);
    return true;
  }
  case EXPR_UNARY: {
    double a;
    if (!condition(e, x->unary.x, s, &a)) {
      return false;
    }
    *out = x->unary.op == UNARY_NEG ? -a : a == 0;
    return true;
  }
  case EXPR_STRING:
  case EXPR_CALL:
  case EXPR_BRACKET:
  case EXPR_CHOICE: break;
  }
  report(e, x->span, "this is no condition on parameters");
  return false;
}

/* The next iteration; false after the last. */
static bool next_iteration(const IrParam *p, Subject *s) {
  for (uint32_t k = p->n_repeat; k-- > 0;) {
    if (++s->index[k] < p->type.dim[k].size) {
      return true;
    }
    s->index[k] = 0;
  }
  return false;
}

bool eval_condition(Elab *e, const AstExpr *x, uint32_t param, double *out) {
  const IrParam *p = &e->m->param[param];
  Subject s = {.param = param};
  if (!condition(e, x, &s, out)) {
    return false;
  }
  const char *first = path_of(e, &s);
  for (int i = 0; s.by_iteration && i < MAX_ITERATIONS && next_iteration(p, &s); i++) {
    double other;
    if (!condition(e, x, &s, &other)) {
      return false;
    }
    if ((other != 0) != (*out != 0)) {
      report(e, x->span, "this tells '%s' from '%s', iterations of one repeat; that is not built yet", first,
             path_of(e, &s));
      return false;
    }
  }
  return true;
}
