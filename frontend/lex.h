/* lex.h: text -> raw tokens, comments and line ends included. No context here: every word is RAW_WORD
 * (parser.c decides which words are keywords where), every line end is RAW_LINE. The formatter reads the same
 * array. */
#ifndef DLC_LEX_H
#define DLC_LEX_H

#include "frontend/diag.h"

#define RAW_PUNCTUATION(X) /* name, text, grammar token */                                                   \
  X(LPAREN, "(")                                                                                             \
  X(RPAREN, ")")                                                                                             \
  X(LBRACKET, "[")                                                                                           \
  X(RBRACKET, "]")                                                                                           \
  X(LBRACE, "{")                                                                                             \
  X(RBRACE, "}")                                                                                             \
  X(COMMA, ",")                                                                                              \
  X(COLON, ":")                                                                                              \
  X(ASSIGN, "=")                                                                                             \
  X(TILDE, "~")                                                                                              \
  X(DOT, ".")                                                                                                \
  X(DOTDOT, "..")                                                                                            \
  X(EQ, "==")                                                                                                \
  X(NE, "!=")                                                                                                \
  X(LT, "<")                                                                                                 \
  X(LE, "<=")                                                                                                \
  X(GT, ">")                                                                                                 \
  X(GE, ">=")                                                                                                \
  X(PLUS, "+")                                                                                               \
  X(MINUS, "-")                                                                                              \
  X(STAR, "*")                                                                                               \
  X(SLASH, "/")                                                                                              \
  X(SLASHSLASH, "//")                                                                                        \
  X(PERCENT, "%")                                                                                            \
  X(CARET, "^")

typedef enum {
#define X(name, text) RAW_##name,
  RAW_PUNCTUATION(X)
#undef X
      RAW_SEMICOLON,
  RAW_WORD,
  RAW_NUMBER,
  RAW_STRING,
  RAW_COMMENT, /* from # up to the line end, which is not part of it */
  RAW_LINE,    /* one line end */
  RAW_BAD,     /* already reported */
  RAW_END,     /* the end of the file: always the last token */
} RawKind;

typedef struct {
  uint8_t kind; /* RawKind */
  uint32_t begin, end;
} RawToken;

typedef struct {
  RawToken *v;
  uint32_t n, cap;
} RawTokens;

/* All tokens of file number `file`; what is no token is reported and becomes RAW_BAD. */
RawTokens lex_file(const Sources *s, uint32_t file, Arena *arena, Diag *diag);
/* Resolves the escapes of a RAW_STRING's text (quotes included in [begin, end)). */
const char *lex_string(const Source *f, RawToken t, Arena *arena);

#endif
