/* diag.c: collecting, sorting and printing diagnostics. */
#include "frontend/diag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEPT = 2000, MAX_NAME = 64, LINE_WIDTH = 120 };

static const char *const level_text[] = {"error", "warning", "note"};

static uint32_t add(Diag *d, DiagLevel level, Span at, uint32_t of, const char *fmt, va_list ap) {
  char text[2048];
  vsnprintf(text, sizeof text, fmt, ap);
  for (uint32_t i = 0; i < d->n; i++) {
    const Diagnostic *o = &d->v[i];
    if (o->level == level && o->span.file == at.file && o->span.begin == at.begin && !strcmp(o->msg, text) &&
        (level != DIAG_NOTE || o->of == of))
      return i;
  }
  d->n_errors += level == DIAG_ERROR;
  d->n_warnings += level == DIAG_WARNING;
  if (d->n >= MAX_KEPT)
    return UINT32_MAX; /* counted, not kept; hints and notes on it are dropped */
  Diagnostic x = {.level = level, .span = at, .of = of, .order = d->n};
  x.msg = arena_strdup(d->sources->arena, text);
  VEC_PUSH(d->sources->arena, d->v, d->n, d->cap, x);
  return d->n - 1;
}

uint32_t diag_error(Diag *d, Span at, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  uint32_t i = add(d, DIAG_ERROR, at, 0, fmt, ap);
  va_end(ap);
  return i;
}

uint32_t diag_warning(Diag *d, Span at, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  uint32_t i = add(d, DIAG_WARNING, at, 0, fmt, ap);
  va_end(ap);
  return i;
}

void diag_hint(Diag *d, uint32_t of, const char *fmt, ...) {
  if (of >= d->n || d->v[of].hint)
    return;
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  d->v[of].hint = arena_strdup(d->sources->arena, text);
}

void diag_note(Diag *d, uint32_t of, Span at, const char *fmt, ...) {
  if (of >= d->n)
    return;
  va_list ap;
  va_start(ap, fmt);
  add(d, DIAG_NOTE, at, of, fmt, ap);
  va_end(ap);
}

/* Edits that turn a into b: insert, delete, change, swap of neighbours. */
static uint32_t edit_distance(const char *a, size_t na, const char *b, size_t nb) {
  uint32_t row[3][MAX_NAME + 1];
  for (size_t j = 0; j <= nb; j++)
    row[0][j] = (uint32_t)j;
  for (size_t i = 1; i <= na; i++) {
    uint32_t *cur = row[i % 3], *prev = row[(i + 2) % 3], *prev2 = row[(i + 1) % 3];
    cur[0] = (uint32_t)i;
    for (size_t j = 1; j <= nb; j++) {
      uint32_t best = prev[j - 1] + (a[i - 1] != b[j - 1]);
      if (prev[j] + 1 < best)
        best = prev[j] + 1;
      if (cur[j - 1] + 1 < best)
        best = cur[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && prev2[j - 2] + 1 < best)
        best = prev2[j - 2] + 1;
      cur[j] = best;
    }
  }
  return row[na % 3][nb];
}

const char *diag_nearest(const char *name, const char *const *names, uint32_t n) {
  size_t len = strlen(name);
  if (len > MAX_NAME)
    return NULL;
  uint32_t limit = len / 3 > 1 ? (uint32_t)(len / 3) : 1, best = limit + 1;
  const char *found = NULL;
  for (uint32_t i = 0; i < n; i++) {
    size_t m = strlen(names[i]);
    if (m > MAX_NAME || !strcmp(name, names[i]))
      continue;
    uint32_t dist = edit_distance(name, len, names[i], m);
    if (dist < best && dist < (len > m ? len : m))
      best = dist, found = names[i];
  }
  return found;
}

void diag_did_you_mean(Diag *d, uint32_t of, const char *name, const char *const *names, uint32_t n) {
  const char *near = diag_nearest(name, names, n);
  if (near)
    diag_hint(d, of, "did you mean '%s'?", near);
}

/* ---- printing ---- */

/* One printed source line: the bytes [from, to) of the file, `col` characters of it before the caret. */
typedef struct {
  uint32_t from, to;
  bool cut_left, cut_right;
} Window;

/* The line of `at`, cut to LINE_WIDTH bytes around the caret when it is longer. */
static Window line_window(const Source *f, uint32_t line, uint32_t at) {
  Window w = {.from = f->line[line - 1]};
  uint32_t end = line < f->n_lines ? f->line[line] : f->len;
  while (end > w.from && (f->text[end - 1] == '\n' || f->text[end - 1] == '\r'))
    end--;
  w.to = end;
  if (end - w.from <= LINE_WIDTH)
    return w;
  if (at - w.from > LINE_WIDTH * 2 / 3)
    w.from = at - LINE_WIDTH / 2, w.cut_left = true;
  if (end - w.from > LINE_WIDTH)
    w.to = w.from + LINE_WIDTH, w.cut_right = true;
  while (w.from < at && ((unsigned char)f->text[w.from] & 0xC0) == 0x80)
    w.from++;
  while (w.to > at && w.to < end && ((unsigned char)f->text[w.to] & 0xC0) == 0x80)
    w.to--;
  return w;
}

/* Bytes that are no text are shown as `?`, one each. */
static void put_source(Str *out, const char *p, const char *limit) {
  while (p < limit) {
    uint32_t n = utf8_length(p, limit);
    unsigned char u = (unsigned char)*p;
    bool control = (u < 32 && u != '\t') || u == 127;
    if (n == 0 || control)
      str_putc(out, '?');
    else
      str_write(out, p, n);
    p += n ? n : 1;
  }
}

/* A blank for each character, a tab for a tab. */
static void put_blanks(Str *out, const char *p, const char *limit) {
  while (p < limit) {
    uint32_t n = utf8_length(p, limit);
    str_putc(out, *p == '\t' ? '\t' : ' ');
    p += n ? n : 1;
  }
}

static void print_caret(const Source *f, const Diagnostic *x, uint32_t line, Str *out) {
  uint32_t at = x->span.begin < f->len ? x->span.begin : f->len;
  Window w = line_window(f, line, at);
  char number[16];
  int digits = snprintf(number, sizeof number, "%u", line);
  str_printf(out, "%s | %s", number, w.cut_left ? "..." : "");
  put_source(out, f->text + w.from, f->text + w.to);
  str_printf(out, "%s\n%*s | %s", w.cut_right ? "..." : "", digits, "", w.cut_left ? "   " : "");
  put_blanks(out, f->text + w.from, f->text + (at < w.to ? at : w.to));
  str_putc(out, '^');
  uint32_t end = x->span.end < w.to ? x->span.end : w.to;
  for (uint32_t i = at + 1; i < end; i++)
    if (((unsigned char)f->text[i] & 0xC0) != 0x80)
      str_putc(out, '~');
  if (x->hint)
    str_printf(out, "  %s", x->hint);
  str_putc(out, '\n');
}

static void print_one(const Diag *d, const Diagnostic *x, Str *out) {
  if (x->span.file >= d->sources->n) {
    str_printf(out, "%s: %s%s%s\n", level_text[x->level], x->msg, x->hint ? "; " : "",
               x->hint ? x->hint : "");
    return;
  }
  const Source *f = &d->sources->v[x->span.file];
  uint32_t line, col;
  source_line_col(f, x->span.begin, &line, &col);
  str_printf(out, "%s:%u:%u: %s: %s\n", f->path, line, col, level_text[x->level], x->msg);
  print_caret(f, x, line, out);
}

static int by_place(const void *pa, const void *pb) {
  const Diagnostic *a = *(const Diagnostic *const *)pa, *b = *(const Diagnostic *const *)pb;
  if (a->span.file != b->span.file)
    return a->span.file < b->span.file ? -1 : 1;
  if (a->span.begin != b->span.begin)
    return a->span.begin < b->span.begin ? -1 : 1;
  return a->order < b->order ? -1 : a->order > b->order;
}

/* Errors and warnings without the notes, sorted; heap, caller frees. */
static const Diagnostic **sorted(const Diag *d, uint32_t *n) {
  const Diagnostic **v = malloc((d->n ? d->n : 1) * sizeof *v);
  *n = 0;
  if (!v)
    return NULL;
  for (uint32_t i = 0; i < d->n; i++)
    if (d->v[i].level != DIAG_NOTE)
      v[(*n)++] = &d->v[i];
  qsort(v, *n, sizeof *v, by_place);
  return v;
}

void diag_print(const Diag *d, Str *out) {
  uint32_t n, total = d->n_errors + d->n_warnings;
  const Diagnostic **v = sorted(d, &n);
  if (!v)
    return;
  uint32_t shown = n < DIAG_MAX_PRINTED ? n : DIAG_MAX_PRINTED;
  for (uint32_t i = 0; i < shown; i++) {
    print_one(d, v[i], out);
    for (uint32_t k = 0; k < d->n; k++)
      if (d->v[k].level == DIAG_NOTE && d->v[k].of == v[i]->order)
        print_one(d, &d->v[k], out);
  }
  if (total > shown)
    str_printf(out, "%u more not shown\n", total - shown);
  free(v);
}

static void json_place(const Diag *d, const Diagnostic *x, Str *out) {
  str_printf(out, "{\"level\":\"%s\"", level_text[x->level]);
  if (x->span.file < d->sources->n) {
    const Source *f = &d->sources->v[x->span.file];
    uint32_t line, col, end_line, end_col;
    source_line_col(f, x->span.begin, &line, &col);
    source_line_col(f, x->span.end, &end_line, &end_col);
    str_puts(out, ",\"file\":");
    str_put_json(out, f->path);
    str_printf(out, ",\"line\":%u,\"column\":%u,\"end_line\":%u,\"end_column\":%u", line, col, end_line,
               end_col);
  }
  str_puts(out, ",\"message\":");
  str_put_json(out, x->msg);
  if (x->hint) {
    str_puts(out, ",\"hint\":");
    str_put_json(out, x->hint);
  }
}

void diag_print_json(const Diag *d, Str *out) {
  uint32_t n;
  const Diagnostic **v = sorted(d, &n);
  if (!v)
    return;
  for (uint32_t i = 0; i < n; i++) {
    json_place(d, v[i], out);
    bool first = true;
    for (uint32_t k = 0; k < d->n; k++) {
      if (d->v[k].level != DIAG_NOTE || d->v[k].of != v[i]->order)
        continue;
      str_puts(out, first ? ",\"notes\":[" : ",");
      first = false;
      json_place(d, &d->v[k], out);
      str_putc(out, '}');
    }
    str_puts(out, first ? "}\n" : "]}\n");
  }
  free(v);
}
