/* format.c: `dlc fmt`. Works on tokens, so that comments stay where they are. Line breaks are the author's,
 * with these exceptions: a block that holds a line end is broken after its { and before its }, nothing but
 * `else` follows a } on its line, and blank lines come one at a time and never next to a brace or the ends of
 * the file. */
#include "frontend/parser.h"

#include <string.h>

#include "parse.h"

typedef struct {
  Str code, comment;
  uint32_t indent;
  bool blank_before;
} Line;

typedef struct {
  Parser *p;
  Arena *arena;
  RawTokens raw;
  uint8_t *broken; /* per raw token: a { or } of a block with a line end inside */
  Line *v;
  uint32_t n, cap;
  uint32_t depth, parens;          /* open { and open ( or [ */
  uint32_t trace;                  /* the next token of p->trace */
  int last, before_last;           /* grammar tokens already written */
  uint32_t last_raw;               /* raw token of `last` */
  bool unary;                      /* `last` is a unary minus */
  bool line, blank, semi;          /* a line end, a blank line, a `;` since `last` */
  bool statement_over;             /* `last` ended a statement */
  bool opened;                     /* the line written last ends with { */
  uint32_t last_line;              /* the line `last` is on */
  bool one_line[AST_MAX_NEST + 2]; /* per open block: stays on its line */
} Formatter;

/* ---- which blocks are broken over lines ---- */

static void find_broken_blocks(Formatter *f) {
  f->broken = arena_alloc(f->arena, f->raw.n);
  uint32_t *open = ARENA_ARRAY(f->arena, uint32_t, f->raw.n), n = 0;
  for (uint32_t i = 0; i < f->raw.n; i++) {
    switch (f->raw.v[i].kind) {
    case RAW_LBRACE: open[n++] = i; break;
    case RAW_RBRACE:
      n--;
      f->broken[i] = f->broken[open[n]];
      if (n && f->broken[i])
        f->broken[open[n - 1]] = 1;
      break;
    case RAW_LINE:
      if (n)
        f->broken[open[n - 1]] = 1;
      break;
    default: break;
    }
  }
}

/* ---- spaces ---- */

static bool is_binary_operator(int t) {
  return (t >= TOK_EQ && t <= TOK_CARET) || t == TOK_ASSIGN || t == TOK_TILDE;
}

static bool space_between(const Formatter *f, int t) {
  int a = f->last;
  if (a == TOK_LPAREN || a == TOK_LBRACKET || a == TOK_DOT || a == TOK_DOTDOT || f->unary)
    return false;
  switch (t) {
  case TOK_RPAREN:
  case TOK_RBRACKET:
  case TOK_COMMA:
  case TOK_COLON:
  case TOK_DOT:
  case TOK_DOTDOT: return false;
  case TOK_LBRACKET: return !ends_operand(a);
  case TOK_LPAREN: return !ends_operand(a) || f->before_last == TOK_AS; /* use "x.dl" as t (...) */
  default: return true;
  }
}

/* ---- lines ---- */

static Line *current(Formatter *f) {
  return &f->v[f->n - 1];
}

static void new_line(Formatter *f, uint32_t indent) {
  Line l = {.indent = indent, .blank_before = f->blank && f->n > 0 && !f->opened};
  VEC_PUSH(f->arena, f->v, f->n, f->cap, l);
  f->line = f->blank = f->semi = f->opened = false;
}

/* Indentation of a line that begins with token t (0: a comment). */
static uint32_t indent_of(const Formatter *f, int t) {
  uint32_t base = 2 * f->depth;
  if (t == TOK_RBRACE)
    return base - 2;
  if (t == TOK_RPAREN || t == TOK_RBRACKET)
    return f->parens > 1 ? base + 4 : base;
  return f->statement_over ? base : base + 4;
}

/* Must the token begin a line although the text does not say so? */
static bool forces_line(const Formatter *f, uint32_t i, int t) {
  if (f->last == TOK_LBRACE && f->broken[f->last_raw])
    return true;
  if (t == TOK_RBRACE && f->broken[i])
    return true;
  return f->last == TOK_RBRACE && t != TOK_RBRACE && t != TOK_ELSE && !f->one_line[f->depth];
}

static void separate(Formatter *f, uint32_t i, int t) {
  bool joins_else =
      t == TOK_ELSE && f->last == TOK_RBRACE && f->last_line == f->n - 1 && !current(f)->comment.len;
  if (f->n == 0 || forces_line(f, i, t) || (f->line && !joins_else)) {
    if (t == TOK_RBRACE)
      f->blank = false;
    new_line(f, indent_of(f, t));
    return;
  }
  Str *s = &current(f)->code;
  bool next_statement = f->semi || (f->last == TOK_RBRACE && t != TOK_ELSE);
  if (next_statement && t != TOK_RBRACE && f->last != TOK_LBRACE)
    str_puts(s, "; ");
  else if (s->len && space_between(f, t))
    str_putc(s, ' ');
  f->line = f->blank = f->semi = false;
}

/* ---- tokens ---- */

static void put_comment(Formatter *f, RawToken t) {
  const char *text = f->p->src->text + t.begin;
  size_t n = t.end - t.begin;
  while (n > 1 && (text[n - 1] == ' ' || text[n - 1] == '\t'))
    n--;
  if (f->n == 0 || f->line) {
    new_line(f, indent_of(f, 0));
    str_write(&current(f)->code, text, n);
    return;
  }
  str_write(&current(f)->comment, text, n);
}

static void put_token(Formatter *f, uint32_t i) {
  RawToken r = f->raw.v[i];
  int t = f->p->trace.v[f->trace++].token;
  separate(f, i, t);
  if (t == TOK_LBRACE)
    f->one_line[++f->depth] = !f->broken[i];
  if (t == TOK_RBRACE)
    f->depth--;
  if (t == TOK_LPAREN || t == TOK_LBRACKET)
    f->parens++;
  if (t == TOK_RPAREN || t == TOK_RBRACKET)
    f->parens--;
  str_write(&current(f)->code, f->p->src->text + r.begin, r.end - r.begin);
  f->unary = t == TOK_MINUS && !ends_operand(f->last);
  f->before_last = f->last;
  f->last = t;
  f->last_raw = i;
  f->last_line = f->n - 1;
  f->opened = t == TOK_LBRACE;
  f->statement_over = t == TOK_LBRACE || t == TOK_RBRACE;
}

/* A line end in the text: does it end the statement, or go on inside one? */
static void put_line_end(Formatter *f) {
  if (f->line)
    f->blank = true;
  f->line = true;
  bool ends = f->parens == 0 && !is_binary_operator(f->last) && f->last != TOK_COMMA &&
              f->last != TOK_COLON && (f->last < TOK_OVER || f->last > TOK_NOT || f->last == TOK_TRAINABLE) &&
              f->last != TOK_ELSE && f->last != TOK_DOTDOT;
  if (ends || f->last == 0)
    f->statement_over = true;
}

static void put_all(Formatter *f) {
  f->statement_over = true;
  for (uint32_t i = 0; i < f->raw.n; i++) {
    switch (f->raw.v[i].kind) {
    case RAW_LINE: put_line_end(f); break;
    case RAW_COMMENT: put_comment(f, f->raw.v[i]); break;
    case RAW_SEMICOLON: f->semi = f->statement_over = true; break;
    case RAW_END: break;
    default: put_token(f, i); break;
    }
  }
}

/* ---- output ---- */

static size_t width(const Line *l) {
  size_t n = l->indent;
  for (size_t i = 0; i < l->code.len; i++)
    n += ((unsigned char)l->code.s[i] & 0xC0) != 0x80;
  return n;
}

/* Comments after code on neighbouring lines stand in one column. */
static size_t comment_column(const Formatter *f, uint32_t i) {
  uint32_t lo = i, hi = i;
  while (lo > 0 && !f->v[lo].blank_before && f->v[lo - 1].comment.len)
    lo--;
  while (hi + 1 < f->n && !f->v[hi + 1].blank_before && f->v[hi + 1].comment.len)
    hi++;
  size_t column = 0;
  for (uint32_t k = lo; k <= hi; k++)
    if (width(&f->v[k]) > column)
      column = width(&f->v[k]);
  return column + 2;
}

static void print(Formatter *f, Str *out) {
  size_t column = 0;
  for (uint32_t i = 0; i < f->n; i++) {
    Line *l = &f->v[i];
    if (l->blank_before)
      str_putc(out, '\n');
    str_printf(out, "%*s%s", (int)l->indent, "", l->code.s);
    if (l->comment.len) {
      bool first = i == 0 || l->blank_before || !f->v[i - 1].comment.len;
      if (first)
        column = comment_column(f, i);
      str_printf(out, "%*s%s", (int)(column - width(l)), "", l->comment.s);
    }
    str_putc(out, '\n');
  }
}

bool ast_format(Sources *sources, uint32_t file, Str *out, Diag *diag) {
  Arena arena = {0};
  Parser p;
  bool ok = parser_run(&p, sources, &arena, file, diag);
  if (ok) {
    Diag silent = {.sources = sources}; /* the parse has reported everything */
    Formatter f = {.p = &p, .arena = &arena, .raw = lex_file(sources, file, &arena, &silent)};
    find_broken_blocks(&f);
    put_all(&f);
    print(&f, out);
    for (uint32_t i = 0; i < f.n; i++) {
      str_free(&f.v[i].code);
      str_free(&f.v[i].comment);
    }
  }
  arena_free(&arena);
  return ok;
}
