/* elab_product.c: which product lacks its sum.
 *
 * A forgotten sum is noticed where its axis does harm: at a written type, at the loss. Every product is noted
 * when it is built, with what body params stand for (links), so that the search can go back from there to the
 * product whose factors both have the axis, and print the line to write. */
#include "frontend/elab.h"

#include <string.h>

void note_product(Elab *e, Val out, Val a, Val b, Span at) {
  VEC_PUSH(e->arena, e->product, e->n_products, e->cap_products, (NotedProduct){out, a, b, at});
}

void note_link(Elab *e, Val param, Val from) {
  VEC_PUSH(e->arena, e->link, e->n_links, e->cap_links, (Link){param, from});
}

const NotedProduct *noted_product(const Elab *e, Val out) {
  for (uint32_t i = 0; i < e->n_products; i++) {
    if (e->product[i].out == out) {
      return &e->product[i];
    }
  }
  return NULL;
}

const char *source_text(Elab *e, Span at) {
  enum { LONGEST = 100 };
  const Source *src = &e->sources->v[at.file];
  Str s = {0};
  for (uint32_t i = at.begin; i < at.end && s.len < LONGEST; i++) {
    char c = src->text[i];
    bool space = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!space) {
      str_putc(&s, c);
    } else if (s.len && s.s[s.len - 1] != ' ') {
      str_putc(&s, ' ');
    }
  }
  const char *text = arena_printf(e->arena, "%s%s", s.s ? s.s : "", s.len < LONGEST ? "" : " ...");
  str_free(&s);
  return text;
}

bool in_library(const Elab *e, uint32_t file) {
  for (uint32_t i = 0; e->std && i < e->std->n_files; i++) {
    if (e->std->file[i]->file == file) {
      return true;
    }
  }
  return false;
}

/* ---- the search ---- */

typedef struct {
  Elab *e;
  bool *seen;
  const NotedProduct *matrix,
      *scaled;                   /* each factor has axes of its own; one factor's axes are all in the other */
  Axis matrix_axis, scaled_axis; /* what the axis is called there */
} Search;

static bool has_own(const Type *a, const Type *b) {
  for (int i = 0; i < a->rank; i++) {
    if (!type_has(b, a->dim[i].axis)) {
      return true;
    }
  }
  return false;
}

static void consider(Search *s, const NotedProduct *p, Axis axis) {
  const Type *a = ir_type(s->e->func, p->a), *b = ir_type(s->e->func, p->b);
  if (!type_has(a, axis) || !type_has(b, axis) || in_library(s->e, p->at.file)) {
    return;
  }
  bool own_a = has_own(a, b), own_b = has_own(b, a);
  if (own_a && own_b && (!s->matrix || p->out < s->matrix->out)) {
    s->matrix = p;
    s->matrix_axis = axis;
  } else if (own_a != own_b && (!s->scaled || p->out < s->scaled->out)) {
    s->scaled = p;
    s->scaled_axis = axis;
  }
}

/* What the axis of an op's result is called in its operand. */
static Axis before(const Op *op, Axis axis) {
  for (uint32_t i = 0; op->code == OP_RENAME && i + 1 < op->attr.n_axis; i += 2) {
    if (op->attr.axis[i + 1] == axis) {
      return op->attr.axis[i];
    }
  }
  return axis;
}

static void search(Search *s, Val v, Axis axis) {
  const Func *f = s->e->func;
  if (v == NONE || s->seen[v] || !type_has(ir_type(f, v), axis)) {
    return;
  }
  s->seen[v] = true;
  if (f->val[v].def == NONE) {
    for (uint32_t i = 0; i < s->e->n_links; i++) {
      if (s->e->link[i].param == v) {
        search(s, s->e->link[i].from, axis);
      }
    }
    return;
  }
  const Op *op = &f->op[f->val[v].def];
  if (op->code == OP_LOOP) {
    search(s, op->body->ret[f->val[v].index], axis);
    return;
  }
  const NotedProduct *p = noted_product(s->e, v);
  if (p) {
    consider(s, p, axis);
  }
  for (uint32_t i = 0; i < op->n_args; i++) {
    search(s, op->arg[i], before(op, axis));
  }
}

bool report_missing_sum(Elab *e, V v, Axis axis, Span at, const char *why) {
  Search s = {.e = e, .seen = ARENA_ARRAY(e->arena, bool, e->func->n_vals)};
  search(&s, v.val, axis);
  const NotedProduct *p = s.matrix ? s.matrix : s.scaled;
  if (!p) {
    return false;
  }
  const char *name = ir_axis_name(e->m, s.matrix ? s.matrix_axis : s.scaled_axis),
             *text = source_text(e, p->at);
  uint32_t d = report(e, p->at, "'%s' keeps the axis '%s' that both factors have%s", text, name,
                      s.matrix ? "; a matrix product sums it away" : "");
  diag_hint(e->diag, d, s.matrix ? "write sum[%s](%s)" : "for a product with a vector write sum[%s](%s)",
            name, text);
  diag_note(e->diag, d, at, "%s", why);
  return true;
}
