/* syntax.c: what a syntax error says. Known mistakes get words of their own; the rest is "unexpected X,
 * expected A or B". */
#include "frontend/parser.h"

#include <stdio.h>
#include <string.h>

#include "parse.h"

enum { MAX_LISTED = 4 };

static const char *punctuation_text(int token) {
  switch (token) {
#define X(name, text)                                                                                        \
  case TOK_##name: return text;
    RAW_PUNCTUATION(X)
#undef X
  default: return NULL;
  }
}

/* The token as a person would name it, for "expected ...". */
static void put_expected(Str *s, int token) {
  const char *text = keyword_text(token);
  if (!text)
    text = punctuation_text(token);
  if (text)
    str_printf(s, "'%s'", text);
  else if (token == TOK_NAME)
    str_puts(s, "a name");
  else if (token == TOK_NUMBER)
    str_puts(s, "a number");
  else if (token == TOK_STRING)
    str_puts(s, "a string");
  else if (token == TOK_END_STMT)
    str_puts(s, "the end of the line");
  else if (token == TOK_FILL)
    str_puts(s, "'*'");
  else
    str_puts(s, "the end of the file");
}

static void put_found(Str *s, const Parser *p) {
  RawToken t = p->cur.raw;
  if (p->cur.token == TOK_YYEOF || t.kind == RAW_END)
    str_puts(s, "end of file");
  else if (t.kind == RAW_LINE)
    str_puts(s, "end of line");
  else if (t.kind == RAW_STRING)
    str_puts(s, "string");
  else {
    uint32_t n = t.end - t.begin;
    const char *what = t.kind == RAW_NUMBER ? "number " : "";
    str_printf(s, "%s'%.*s'", what, n > 60 ? 60 : (int)n, p->src->text + t.begin);
  }
}

static bool is_in(int token, const int *set, int n) {
  for (int i = 0; i < n; i++)
    if (set[i] == token)
      return true;
  return false;
}

/* An expression could begin here: then operands are one item, "an expression". */
static bool wants_expression(const int *expected, int n) {
  return is_in(TOK_LPAREN, expected, n) && is_in(TOK_MINUS, expected, n) && is_in(TOK_NUMBER, expected, n);
}

static bool begins_expression(int token) {
  return token == TOK_LPAREN || token == TOK_MINUS || token == TOK_NUMBER || token == TOK_STRING ||
         token == TOK_NAME || token == TOK_NOT || token == TOK_HAS;
}

/* The operators that could go on after an operand say nothing. */
static bool is_operator(int token) {
  return (token >= TOK_EQ && token <= TOK_CARET) || token == TOK_AND || token == TOK_OR ||
         token == TOK_LIKE || token == TOK_WHERE;
}

static void list_expected(Str *s, const int *expected, int n) {
  int keep[MAX_LISTED + 1], k = 0;
  bool expression = wants_expression(expected, n);
  bool operand_before = is_in(TOK_PLUS, expected, n) && !expression;
  for (int i = 0; i < n && k <= MAX_LISTED; i++) {
    if (expected[i] == TOK_DOT && n > 1)
      continue;
    if (expression && begins_expression(expected[i]))
      continue;
    if (operand_before && (is_operator(expected[i]) || expected[i] == TOK_LPAREN ||
                           expected[i] == TOK_LBRACKET || expected[i] == TOK_DOT))
      continue;
    keep[k++] = expected[i];
  }
  int total = k + expression;
  if (total == 0 || k > MAX_LISTED)
    return;
  str_puts(s, ", expected ");
  if (expression)
    str_puts(s, "an expression");
  for (int i = 0; i < k; i++) {
    int at = i + expression;
    if (at > 0)
      str_puts(s, at == total - 1 ? " or " : ", ");
    put_expected(s, keep[i]);
  }
}

/* ---- known mistakes: each returns true after reporting ---- */

static bool line_begins_with_operator(Parser *p, Span at) {
  if (!p->cur.starts_line || !is_operator(p->cur.token) || p->n_open > 0)
    return false;
  RawToken t = p->cur.raw;
  uint32_t d = diag_error(p->diag, at, "a line cannot begin with '%.*s'", (int)(t.end - t.begin),
                          p->src->text + t.begin);
  diag_hint(p->diag, d, "end the line before with it");
  return true;
}

static bool chained_comparison(Parser *p, Span at, const int *expected, int n) {
  bool comparison = p->cur.token >= TOK_EQ && p->cur.token <= TOK_GE;
  if (!comparison || !is_in(TOK_AND, expected, n) || is_in(TOK_LT, expected, n))
    return false;
  diag_hint(p->diag, diag_error(p->diag, at, "comparisons do not chain"), "write a < b and b < c");
  return true;
}

static bool equals_in_expression(Parser *p, Span at, const int *expected, int n) {
  if (p->cur.token != TOK_ASSIGN || !is_in(TOK_EQ, expected, n))
    return false;
  diag_hint(p->diag, diag_error(p->diag, at, "unexpected '=' in an expression"), "'==' compares");
  return true;
}

static bool range_in_expression(Parser *p, Span at) {
  if (p->cur.token != TOK_DOTDOT)
    return false;
  diag_hint(p->diag, diag_error(p->diag, at, "a range 'lo..hi' is only an index"), "as in x[axis = lo..hi]");
  return true;
}

static bool reserved_word(Parser *p, Span at, const int *expected, int n) {
  if (p->cur.token < TOK_AS || p->cur.token > TOK_NOT || !is_in(TOK_NAME, expected, n))
    return false;
  diag_error(p->diag, at, "'%s' is a reserved word and cannot be a name", keyword_text(p->cur.token));
  return true;
}

/* Keywords among the expected tokens. */
static uint32_t expected_words(const int *expected, int n, const char **out) {
  uint32_t k = 0;
  for (int i = 0; i < n; i++)
    if (keyword_text(expected[i]) && expected[i] < TOK_AS)
      out[k++] = keyword_text(expected[i]);
  return k;
}

/* Words that begin a statement of a block: not among the expected tokens once a name was taken for an
 * assignment. */
static const char *const statement_words[] = {"param", "frozen", "state",  "use",    "repeat",
                                              "scan",  "if",     "return", "metric", "output"};

static bool unknown_statement(Parser *p, Span at, const int *expected, int n) {
  const char *names[TOK_NOT - TOK_USE + 1];
  char word[65];
  RawToken t = p->cur.starts_statement ? p->cur.raw : p->prev.raw;
  bool named = p->cur.starts_statement && p->cur.token == TOK_NAME && !is_in(TOK_NAME, expected, n);
  bool after = p->prev.starts_statement && p->prev.token == TOK_NAME && is_in(TOK_ASSIGN, expected, n);
  if (!named && !after)
    return false;
  snprintf(word, sizeof word, "%.*s", (int)(t.end - t.begin > 64 ? 64 : t.end - t.begin),
           p->src->text + t.begin);
  if (named) {
    RawKind next = (RawKind)p->raw[p->at].kind;
    bool assigns = next == RAW_ASSIGN && keyword_at_start(word, strlen(word));
    uint32_t d = diag_error(
        p->diag, at, assigns ? "'%s' takes no '=' here" : "'%s' is not a word that begins a line here", word);
    if (assigns)
      diag_hint(p->diag, d, "write '%s ...'", word);
    else
      diag_did_you_mean(p->diag, d, word, names, expected_words(expected, n, names));
    return true;
  }
  uint32_t n_words = sizeof statement_words / sizeof statement_words[0];
  const char *near = diag_nearest(word, statement_words, n_words);
  Span first = span_here(p, t.begin, t.end);
  bool call = p->cur.token == TOK_LPAREN || p->cur.token == TOK_LBRACKET || is_operator(p->cur.token) ||
              p->cur.token == TOK_END_STMT;
  if (!call && near)
    diag_hint(p->diag, diag_error(p->diag, first, "'%s' begins no statement", word), "did you mean '%s'?",
              near);
  else if (call)
    diag_hint(p->diag, diag_error(p->diag, first, "an expression alone is no statement"), "write name = ...");
  else
    return false;
  return true;
}

/* A word that begins statements, in a place of another kind. */
static bool misplaced_word(Parser *p, Span at) {
  int t = p->cur.token;
  if (!p->cur.starts_statement || t < TOK_USE || t > TOK_OVERLAP || t == TOK_ELSE)
    return false;
  const char *place = t <= TOK_HARDWARE ? "at the top level of a file"
                      : t <= TOK_OUTPUT ? "in the body of a fn, module or model"
                      : t <= TOK_LAYOUT ? "in a plan"
                                        : "in a layout";
  uint32_t d = diag_error(p->diag, at, "'%s' belongs %s", keyword_text(t), place);
  if (t <= TOK_HARDWARE && p->n_block)
    diag_note(p->diag, d, p->block[p->n_block - 1].span, "is this '{' closed?");
  return true;
}

/* The rest. */
static void unexpected(Parser *p, Span at, const int *expected, int n) {
  Str s = {0};
  str_puts(&s, "unexpected ");
  put_found(&s, p);
  list_expected(&s, expected, n);
  uint32_t d = diag_error(p->diag, at, "%s", s.s);
  str_free(&s);
  if (p->cur.raw.kind == RAW_WORD) {
    const char *names[TOK_NOT - TOK_USE + 1];
    char *word = arena_strndup(p->arena, p->src->text + p->cur.raw.begin, p->cur.raw.end - p->cur.raw.begin);
    diag_did_you_mean(p->diag, d, word, names, expected_words(expected, n, names));
  }
  bool own = p->cur.token == TOK_LPAREN || p->cur.token == TOK_LBRACKET; /* just booked by the driver */
  uint32_t n_open = p->n_open - (own && p->n_open > 0);
  const OpenBracket *open = n_open ? &p->open[n_open - 1] : NULL;
  bool inside =
      open ? open->c == '[' && p->n_block : p->cur.token == TOK_RBRACKET && !is_in(TOK_END_STMT, expected, n);
  if (open && (p->cur.starts_line || p->cur.token == TOK_END_STMT || p->cur.token == TOK_LBRACE))
    diag_note(p->diag, d, open->span, "this '%c' is not closed", open->c);
  else if (p->n_block && p->cur.token == TOK_YYEOF)
    diag_note(p->diag, d, p->block[p->n_block - 1].span, "this '{' is not closed");
  else if (inside)
    diag_hint(p->diag, d, "[ ] holds axis names, one 'names as names', or 'axis = index'");
}

void report_syntax_error(Parser *p, Span at, const int *expected, int n) {
  bool known = p->cur.token == TOK_BAD || line_begins_with_operator(p, at) ||
               chained_comparison(p, at, expected, n) || equals_in_expression(p, at, expected, n) ||
               range_in_expression(p, at) || misplaced_word(p, at) || unknown_statement(p, at, expected, n) ||
               reserved_word(p, at, expected, n);
  if (!known)
    unexpected(p, at, expected, n);
  /* A block after a word that is out of place is skipped, unless the word shows that a `}` is missing above
   * it: then the `}` of its block closes the open one. */
  bool file_word = p->cur.token >= TOK_AXIS && p->cur.token <= TOK_HARDWARE && p->n_block > 0;
  if (p->cur.starts_statement && !file_word)
    p->block_header = false;
  p->recovering = true;
  p->n_open = 0;
}

void report_too_deep(Parser *p, Span at, const char *what, uint32_t limit) {
  uint32_t d = diag_error(p->diag, at, "%s more than %u deep", what, limit);
  diag_hint(p->diag, d, "give parts of it names");
}
