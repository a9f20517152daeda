/* parser.c: drives the push parser. It decides where lines end and which words are keywords:
 *
 * - A line end is END unless ( or [ is open or the token before it cannot end a statement. END is put before
 * `}` and the end of the file too, so that every statement is followed by one.
 * - Only `and or not as` are reserved. A word of the table below is a keyword where no name could stand:
 *     START   first in a statement and not followed by `=` or `:`
 *     INFIX   after a name, number, string, `)` or `]`
 *     AFTER   right after one of the words that take it (`eval every`, `freeze where`, `frozen param`, `else
 * if`), or `has` before a name at the start of a condition Everywhere else it is a name. */
#include "frontend/parser.h"

#include <string.h>

#include "parse.h"

enum { START = 1, INFIX = 2, AFTER = 4 };

typedef struct {
  const char *text;
  int token;
  int where;
} Word;

/* ORDER TOKENS: the order of the %token lines of parse.y; keyword_text indexes by it. */
static const Word words[] = {
    {"use", TOK_USE, START},
    {"axis", TOK_AXIS, START},
    {"setting", TOK_SETTING, START},
    {"fn", TOK_FN, START},
    {"module", TOK_MODULE, START},
    {"model", TOK_MODEL, START},
    {"plan", TOK_PLAN, START},
    {"optimizer", TOK_OPTIMIZER, START},
    {"schedule", TOK_SCHEDULE, START},
    {"hardware", TOK_HARDWARE, START},
    {"param", TOK_PARAM, START | AFTER},
    {"frozen", TOK_FROZEN, START},
    {"state", TOK_STATE, START},
    {"repeat", TOK_REPEAT, START},
    {"scan", TOK_SCAN, START},
    {"if", TOK_IF, START | AFTER},
    {"else", TOK_ELSE, START | INFIX},
    {"return", TOK_RETURN, START},
    {"metric", TOK_METRIC, START},
    {"output", TOK_OUTPUT, START},
    {"set", TOK_SET, START},
    {"data", TOK_DATA, START},
    {"init", TOK_INIT, START},
    {"steps", TOK_STEPS, START},
    {"epochs", TOK_EPOCHS, START},
    {"tokens", TOK_TOKENS, START},
    {"clip", TOK_CLIP, START},
    {"precision", TOK_PRECISION, START},
    {"seed", TOK_SEED, START},
    {"eval", TOK_EVAL, START},
    {"save", TOK_SAVE, START},
    {"sample", TOK_SAMPLE, START},
    {"freeze", TOK_FREEZE, START},
    {"keep", TOK_KEEP, START},
    {"average", TOK_AVERAGE, START},
    {"budget", TOK_BUDGET, START},
    {"capacity", TOK_CAPACITY, START},
    {"layout", TOK_LAYOUT, START},
    {"mesh", TOK_MESH, START},
    {"shard", TOK_SHARD, START},
    {"gather", TOK_GATHER, START},
    {"micro", TOK_MICRO, START},
    {"zero", TOK_ZERO, START},
    {"recompute", TOK_RECOMPUTE, START},
    {"offload", TOK_OFFLOAD, START},
    {"overlap", TOK_OVERLAP, START},
    {"over", TOK_OVER, INFIX},
    {"where", TOK_WHERE, INFIX | AFTER},
    {"then", TOK_THEN, INFIX},
    {"on", TOK_ON, INFIX},
    {"from", TOK_FROM, INFIX},
    {"for", TOK_FOR, INFIX},
    {"every", TOK_EVERY, INFIX | AFTER},
    {"like", TOK_LIKE, INFIX},
    {"has", TOK_HAS, 0},
    {"trainable", TOK_TRAINABLE, AFTER},
    {"as", TOK_AS, START | INFIX | AFTER},
    {"and", TOK_AND, START | INFIX | AFTER},
    {"or", TOK_OR, START | INFIX | AFTER},
    {"not", TOK_NOT, START | INFIX | AFTER},
};
enum { N_WORDS = sizeof words / sizeof words[0] };
_Static_assert(TOK_NOT - TOK_USE + 1 == N_WORDS, "words[] follows the %token lines");

static const Word *find_word(const char *text, size_t n) {
  for (size_t i = 0; i < N_WORDS; i++)
    if (strlen(words[i].text) == n && !memcmp(words[i].text, text, n))
      return &words[i];
  return NULL;
}

int keyword_at_start(const char *text, size_t n) {
  const Word *w = find_word(text, n);
  return w && (w->where & START) ? w->token : 0;
}

const char *keyword_text(int token) {
  return token >= TOK_USE && token <= TOK_NOT ? words[token - TOK_USE].text : NULL;
}

static bool is_reserved(const Word *w) {
  return w->token >= TOK_AS;
}

/* ---- words ---- */

bool ends_operand(int token) {
  return token == TOK_NAME || token == TOK_NUMBER || token == TOK_STRING || token == TOK_RPAREN ||
         token == TOK_RBRACKET || token == TOK_FILL;
}

/* Can the word `w` be a keyword right after the token `prev`? */
static bool follows(int prev, int w) {
  switch (w) {
  case TOK_PARAM: return prev == TOK_FROZEN;
  case TOK_IF: return prev == TOK_ELSE;
  case TOK_WHERE: return prev == TOK_FREEZE || prev == TOK_KEEP;
  case TOK_TRAINABLE: return prev == TOK_SAVE;
  case TOK_EVERY: return prev == TOK_EVAL || prev == TOK_SAVE || prev == TOK_TRAINABLE;
  default: return false;
  }
}

/* `has` opens a condition: after where, and, or, not or ( and before a name. */
static bool opens_condition(int prev) {
  return prev == TOK_WHERE || prev == TOK_AND || prev == TOK_OR || prev == TOK_NOT || prev == TOK_LPAREN;
}

static bool next_is_name(const Parser *p) {
  RawToken t = p->raw[p->at];
  if (t.kind != RAW_WORD)
    return false;
  const Word *w = find_word(p->src->text + t.begin, t.end - t.begin);
  return !w || !is_reserved(w);
}

/* p->at is already past the word. */
static int classify_word(const Parser *p, RawToken t, bool at_start) {
  const Word *w = find_word(p->src->text + t.begin, t.end - t.begin);
  if (!w)
    return TOK_NAME;
  if (is_reserved(w))
    return w->token;
  RawKind next = (RawKind)p->raw[p->at].kind;
  if (at_start)
    return (w->where & START) && next != RAW_ASSIGN && next != RAW_COLON ? w->token : TOK_NAME;
  if (ends_operand(p->cur.token))
    return w->where & INFIX ? w->token : TOK_NAME;
  if (w->token == TOK_HAS)
    return opens_condition(p->cur.token) && next_is_name(p) ? TOK_HAS : TOK_NAME;
  return follows(p->cur.token, w->token) ? w->token : TOK_NAME;
}

/* ---- lines ---- */

static bool continues(int token) {
  switch (token) {
  case TOK_COMMA:
  case TOK_ASSIGN:
  case TOK_TILDE:
  case TOK_COLON:
  case TOK_DOTDOT:
  case TOK_EQ:
  case TOK_NE:
  case TOK_LT:
  case TOK_LE:
  case TOK_GT:
  case TOK_GE:
  case TOK_PLUS:
  case TOK_MINUS:
  case TOK_STAR:
  case TOK_SLASH:
  case TOK_SLASHSLASH:
  case TOK_PERCENT:
  case TOK_CARET:
  case TOK_AND:
  case TOK_OR:
  case TOK_NOT:
  case TOK_AS:
  case TOK_OVER:
  case TOK_WHERE:
  case TOK_THEN:
  case TOK_ON:
  case TOK_FROM:
  case TOK_FOR:
  case TOK_EVERY:
  case TOK_LIKE:
  case TOK_ELSE: return true;
  default: return false;
  }
}

/* After `}`: do the next words, lines below, go on with `else`? */
static bool else_follows(const Parser *p) {
  uint32_t i = p->at;
  while (p->raw[i].kind == RAW_LINE)
    i++;
  RawToken t = p->raw[i];
  if (p->cur.token != TOK_RBRACE || t.kind != RAW_WORD || t.end - t.begin != 4)
    return false;
  return !memcmp(p->src->text + t.begin, "else", 4) && p->raw[i + 1].kind != RAW_ASSIGN &&
         p->raw[i + 1].kind != RAW_COLON;
}

static bool line_ends_statement(const Parser *p) {
  if (p->recovering)
    return true;
  return p->n_open == 0 && !continues(p->cur.token) && !else_follows(p);
}

/* ---- tokens ---- */

static int punctuation(RawKind k) {
  switch (k) {
#define X(name, text)                                                                                        \
  case RAW_##name: return TOK_##name;
    RAW_PUNCTUATION(X)
#undef X
  case RAW_SEMICOLON: return TOK_END_STMT;
  case RAW_BAD: return TOK_BAD;
  case RAW_END: return TOK_YYEOF;
  case RAW_WORD:
  case RAW_NUMBER:
  case RAW_STRING:
  case RAW_COMMENT:
  case RAW_LINE: break;
  }
  return TOK_BAD;
}

/* Does an END go before this token? */
static bool needs_end(const Parser *p, RawKind k) {
  return (k == RAW_RBRACE || k == RAW_END) && p->cur.token != TOK_END_STMT;
}

/* The next grammar token becomes p->cur. */
static void advance(Parser *p) {
  bool new_line = p->cur.token == 0;
  while (p->raw[p->at].kind == RAW_LINE && !line_ends_statement(p))
    p->at++, new_line = true;
  RawToken t = p->raw[p->at];
  bool at_start = p->cur.token == 0 || p->cur.token == TOK_END_STMT || p->cur.token == TOK_LBRACE ||
                  p->cur.token == TOK_RBRACE;
  new_line = new_line || (p->at > 0 && p->raw[p->at - 1].kind == RAW_LINE);
  Token next = {.raw = t, .starts_line = new_line, .starts_statement = at_start};
  if (t.kind == RAW_LINE || needs_end(p, (RawKind)t.kind)) {
    next.token = TOK_END_STMT;
    while (p->raw[p->at].kind == RAW_LINE)
      p->at++;
  } else {
    if (t.kind != RAW_END)
      p->at++;
    next.token = t.kind == RAW_WORD     ? classify_word(p, t, at_start)
                 : t.kind == RAW_NUMBER ? TOK_NUMBER
                 : t.kind == RAW_STRING ? TOK_STRING
                                        : punctuation((RawKind)t.kind);
    if (next.token == TOK_STAR && p->cur.token == TOK_ASSIGN)
      next.token = TOK_FILL;
  }
  p->prev = p->cur;
  p->cur = next;
  if (next.token != TOK_END_STMT)
    VEC_PUSH(p->arena, p->trace.v, p->trace.n, p->trace.cap, next);
}

static bool takes_block(const Parser *p) {
  switch (p->cur.token) {
  case TOK_FN:
  case TOK_MODULE:
  case TOK_MODEL:
  case TOK_PLAN:
  case TOK_HARDWARE:
  case TOK_REPEAT:
  case TOK_SCAN:
  case TOK_IF:
  case TOK_ELSE:
  case TOK_LAYOUT: return true;
  case TOK_OPTIMIZER:
  case TOK_SCHEDULE: return p->n_block == 0; /* in a plan they are lines */
  default: return false;
  }
}

/* Books brackets and statement starts before the token is pushed. False when brackets are nested too deeply.
 */
static bool track(Parser *p) {
  OpenBracket b = {p->src->text[p->cur.raw.begin], span_here(p, p->cur.raw.begin, p->cur.raw.end)};
  switch (p->cur.token) {
  case TOK_LPAREN:
  case TOK_LBRACKET: VEC_PUSH(p->arena, p->open, p->n_open, p->cap_open, b); break;
  case TOK_RPAREN:
  case TOK_RBRACKET: p->n_open -= p->n_open > 0; break;
  case TOK_LBRACE: VEC_PUSH(p->arena, p->block, p->n_block, p->cap_block, b); break;
  case TOK_RBRACE: p->n_block -= p->n_block > 0; break;
  default:
    if (p->cur.starts_statement)
      p->block_header = takes_block(p);
    break;
  }
  if (p->n_open > AST_MAX_NEST)
    report_too_deep(p, b.span, "brackets are nested", AST_MAX_NEST);
  else if (p->n_block > AST_MAX_NEST)
    report_too_deep(p, b.span, "blocks are nested", AST_MAX_NEST);
  else
    return true;
  return false;
}

/* Recovery at a `{`: a header's block is parsed, any other { } is skipped. */
static void recover_brace(Parser *p) {
  if (p->block_header) {
    p->recovering = p->block_header = false;
    return;
  }
  uint32_t depth = 1;
  while (depth > 0 && p->raw[p->at].kind != RAW_END) {
    RawKind k = (RawKind)p->raw[p->at++].kind;
    depth += (k == RAW_LBRACE) - (k == RAW_RBRACE);
  }
  p->n_block -= p->n_block > 0;
}

static Span token_span(const Parser *p) {
  RawToken t = p->cur.raw;
  if (p->cur.token == TOK_END_STMT && t.kind != RAW_SEMICOLON)
    return span_here(p, t.begin, t.begin);
  return span_here(p, t.begin, t.end);
}

static int push(Parser *p, dlpstate *state) {
  DLSTYPE value = {0};
  Span at = token_span(p);
  const char *text = p->src->text + p->cur.raw.begin;
  switch (p->cur.token) {
  case TOK_NAME:
    value.TOK_NAME = (AstName){.text = arena_strndup(p->arena, text, at.end - at.begin), .span = at};
    break;
  case TOK_NUMBER: value.TOK_NUMBER = build_number(p, p->cur.raw); break;
  case TOK_STRING: value.TOK_STRING = (Text){lex_string(p->src, p->cur.raw, p->arena), at}; break;
  default: break;
  }
  return dlpush_parse(state, p->cur.token, &value, &at, p);
}

static void parse(Parser *p, dlpstate *state) {
  int status = YYPUSH_MORE;
  while (status == YYPUSH_MORE) {
    advance(p);
    if (!track(p))
      return;
    status = push(p, state);
    if (p->cur.token == TOK_END_STMT)
      p->recovering = p->block_header = false;
    if (p->recovering && p->cur.token == TOK_LBRACE)
      recover_brace(p);
  }
  if (status == 2)
    report_too_deep(p, token_span(p), "this is nested", AST_MAX_NEST);
}

/* Raw tokens without comments. */
static void drop_comments(Parser *p, RawTokens t) {
  p->raw = ARENA_ARRAY(p->arena, RawToken, t.n);
  for (uint32_t i = 0; i < t.n; i++)
    if (t.v[i].kind != RAW_COMMENT)
      p->raw[p->n_raw++] = t.v[i];
}

bool parser_run(Parser *p, Sources *sources, Arena *arena, uint32_t file, Diag *diag) {
  uint32_t errors = diag->n_errors;
  *p = (Parser){.sources = sources, .arena = arena, .diag = diag, .src = &sources->v[file], .file = file};
  p->out = ARENA_NEW(arena, AstFile);
  p->out->file = file;
  p->out->path = p->src->path;
  drop_comments(p, lex_file(sources, file, arena, diag));
  dlpstate *state = dlpstate_new();
  if (!state) {
    diag_error(diag, span_here(p, 0, 0), "out of memory");
    return false;
  }
  parse(p, state);
  dlpstate_delete(state);
  return diag->n_errors == errors;
}

bool ast_parse_text(Sources *sources, Arena *arena, uint32_t file, AstFile **out, Diag *diag) {
  Parser p;
  bool ok = parser_run(&p, sources, arena, file, diag);
  *out = p.out;
  return ok;
}
