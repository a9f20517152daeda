/* parser.h: what the grammar (parse.y), its driver (parser.c), the node builders (build.c) and the error
 * texts (syntax.c) share. */
#ifndef DLC_PARSER_H
#define DLC_PARSER_H

#include "frontend/ast.h"
#include "frontend/lex.h"

/* ---- lists as they grow in the grammar ---- */

#define VEC_OF(T)                                                                                            \
  struct {                                                                                                   \
    T *v;                                                                                                    \
    uint32_t n, cap;                                                                                         \
  }
typedef VEC_OF(AstName) NameVec;
typedef VEC_OF(AstArg) ArgVec;
typedef VEC_OF(AstIndex) IndexVec;
typedef VEC_OF(AstCase) CaseVec;
typedef VEC_OF(AstDecl) DeclVec;
typedef VEC_OF(AstUse) UseVec;
typedef VEC_OF(AstInput) InputVec;
typedef VEC_OF(AstBind) BindVec;
typedef VEC_OF(AstStage) StageVec;
typedef VEC_OF(AstStmt *) StmtVec;
typedef VEC_OF(AstItem *) ItemVec;
typedef VEC_OF(AstPlanItem *) PlanVec;

/* `~ e` or `= e` or nothing. */
typedef struct {
  AstInitKind kind;
  AstExpr *value;
} Init;

/* A string token. */
typedef struct {
  const char *text;
  Span span;
} Text;

/* ---- the parser ---- */

/* A bracket that is open, for "'(' opened here". */
typedef struct {
  char c;
  Span span;
} OpenBracket;

/* How a token came to be, for error texts. */
typedef struct {
  int token; /* grammar token */
  RawToken raw;
  bool starts_line;      /* nothing but blanks before it on its line */
  bool starts_statement; /* the first token of a statement */
} Token;

typedef struct parser {
  Sources *sources;
  Arena *arena;
  Diag *diag;
  const Source *src;
  uint32_t file;
  /* raw tokens, comments left out; `at` is the next to read */
  RawToken *raw;
  uint32_t n_raw, at;
  /* the token being pushed and the one before it */
  Token cur, prev;
  /* open ( and [ of this statement; blocks are in `block` */
  OpenBracket *open, *block;
  uint32_t n_open, cap_open, n_block, cap_block;
  bool recovering;   /* after a syntax error, until the next statement end */
  bool block_header; /* the current statement began with a word that takes a block */
  AstFile *out;
  /* every token that stands in the text, in order: what the formatter needs to know about words */
  VEC_OF(Token) trace;
} Parser;

/* ---- build.c: nodes ---- */

Span span_here(const Parser *p, uint32_t begin, uint32_t end);
AstNames names_of(NameVec v);
AstArgs args_of(ArgVec v);
AstNames one_name(Parser *p, AstName name);
AstExpr *build_number(Parser *p, RawToken t);
AstExpr *build_string(Parser *p, Text t);
AstExpr *build_name(Parser *p, AstName name);
AstExpr *build_unary(Parser *p, AstUnaryOp op, AstExpr *x, Span at);
AstExpr *build_binary(Parser *p, AstBinaryOp op, AstExpr *a, AstExpr *b, Span op_span);
/* f must be a name or name[axes]; anything else is reported. */
AstExpr *build_call(Parser *p, AstExpr *f, ArgVec args, Span at);
AstExpr *build_bracket(Parser *p, AstExpr *x, AstBracket b, Span at);
/* Reports `x[a, b]` that no ( follows. */
AstExpr *build_choice(Parser *p, CaseVec cases, Span at);
AstExpr *build_like(Parser *p, AstExpr *x, Text pattern, Span at);
AstExpr *build_has(Parser *p, AstName axis, Span at);
AstStmt *build_stmt(Parser *p, AstStmtKind kind, Span at);
/* Gives each name without an initialiser the next one of the list; reports names that have none. */
AstStmt *build_decl(Parser *p, AstStmtKind kind, DeclVec v, Span at);
/* orelse: the statements after `else`, or the one `if` statement of an `else if`. */
AstStmt *build_if(Parser *p, AstExpr *test, AstBlock then, AstBlock orelse, Span at);
/* Gives each input without a type the next one of the list. */
InputVec build_inputs(InputVec v);
AstItem *build_item(Parser *p, AstItemKind kind, Span at);
AstItem *build_def(Parser *p, AstItemKind kind, AstName name, NameVec axes, InputVec inputs, AstBlock body,
                   Span at);
AstPlanItem *build_plan_item(Parser *p, AstPlanItemKind kind, Span word, Span at);

/* ---- parser.c ---- */

/* Runs the whole parse of p->file; the tree is p->out. False when an error was reported. */
bool parser_run(Parser *p, Sources *sources, Arena *arena, uint32_t file, Diag *diag);
/* Can an operand end with this token? Then a `-` after it is binary and a word after it no operand. */
bool ends_operand(int token);

/* The word `text` as a keyword of statement starts (grammar token), 0 when it is none. */
int keyword_at_start(const char *text, size_t n);
/* The text of a keyword's grammar token, NULL when the token is no keyword. */
const char *keyword_text(int token);

/* ---- syntax.c: what a syntax error says; expected holds n grammar tokens that would have been accepted ----
 */
void report_syntax_error(Parser *p, Span at, const int *expected, int n);
/* The parser's stack is full. */
void report_too_deep(Parser *p, Span at, const char *what, uint32_t limit);

#endif
