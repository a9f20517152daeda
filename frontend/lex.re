/* lex.re: the tokens of .dl, by re2c. Bytes outside comments and strings are ASCII. */
#include "frontend/lex.h"

#include <string.h>

typedef struct {
  const char *start, *cursor, *marker, *limit;
  uint32_t file;
  Diag *diag;
} Lexer;

static Span span_of(const Lexer *l, const char *from) {
  return (Span){l->file, (uint32_t)(from - l->start), (uint32_t)(l->cursor - l->start)};
}

/* Reports the first byte of [from, cursor) that is NUL or not UTF-8. */
static bool check_text(Lexer *l, const char *from) {
  for (const char *p = from; p < l->cursor;) {
    uint32_t n = *p ? utf8_length(p, l->limit) : 0;
    if (n == 0) {
      uint32_t at = (uint32_t)(p - l->start);
      Span here = {l->file, at, at + 1};
      if (*p) diag_error(l->diag, here, "the byte 0x%02x is not UTF-8 text", (unsigned char)*p);
      else diag_error(l->diag, here, "a NUL byte in the text");
      return false;
    }
    p += n;
  }
  return true;
}

static RawKind bad_character(Lexer *l, const char *from) {
  uint32_t n = utf8_length(from, l->limit);
  if (*from == 0 || n == 0) {
    l->cursor = from + 1;
    check_text(l, from);
    return RAW_BAD;
  }
  l->cursor = from + n;
  uint32_t e = (unsigned char)*from < 32 || *from == 127
                   ? diag_error(l->diag, span_of(l, from), "unexpected control character 0x%02x", *from)
                   : diag_error(l->diag, span_of(l, from), "unexpected character '%.*s'", (int)n, from);
  if (*from == '\'') diag_hint(l->diag, e, "strings are written \"...\"");
  if (*from == '@') diag_hint(l->diag, e, "a matrix product is sum[axis](a * b)");
  if (*from == '!') diag_hint(l->diag, e, "write 'not'");
  return RAW_BAD;
}

/* A mistake with one known cure. */
static RawKind bad(Lexer *l, const char *from, const char *msg, const char *hint) {
  diag_hint(l->diag, diag_error(l->diag, span_of(l, from), "%s", msg), "%s", hint);
  return RAW_BAD;
}

static RawKind text_token(Lexer *l, const char *from, RawKind kind) {
  return check_text(l, from) ? kind : RAW_BAD;
}

static RawKind next(Lexer *l, const char **from) {
start:
  *from = l->cursor;
  /*!re2c
    re2c:api:style = free-form;
    re2c:define:YYCTYPE = "unsigned char";
    re2c:define:YYCURSOR = l->cursor;
    re2c:define:YYMARKER = l->marker;
    re2c:define:YYLIMIT = l->limit;
    re2c:yyfill:enable = 0;
    re2c:eof = 0;

    digits = [0-9] ([0-9_]* [0-9])?;
    number = digits ("." digits)? ([eE] [+-]? [0-9]+)?;
    word = [A-Za-z_][A-Za-z0-9_]*;
    line_end = "\r"? "\n";
    in_string = [^"\\\n\r\x00] | "\\" [ntr"\\];

    $          { return RAW_END; }
    *          { return bad_character(l, *from); }
    [ \t]+     { goto start; }
    line_end   { return RAW_LINE; }
    "#" [^\n\r\x00]* { return text_token(l, *from, RAW_COMMENT); }
    word       { return RAW_WORD; }
    number     { return RAW_NUMBER; }
    number word {
      return bad(l, *from, "a number runs into a name", "put an operator or a space between them");
    }
    "." [0-9]+ { return bad(l, *from, "a number cannot begin with '.'", "write 0 before it"); }
    digits "." / [^.0-9] { return bad(l, *from, "a number cannot end with '.'", "write 0 after it"); }
    ["] in_string* ["] { return text_token(l, *from, RAW_STRING); }
    ["] ([^"\\\n\r\x00] | "\\" [^\n\r\x00])* ["] {
      return bad(l, *from, "unknown escape in a string", "escapes are \\n \\t \\r \\\" \\\\");
    }
    ["] in_string* { return bad(l, *from, "this string is not closed", "a string ends on its line"); }
    "**"       { return bad(l, *from, "there is no operator '**'", "write '^'"); }
    "&&" | "&" { return bad(l, *from, "there is no operator '&'", "write 'and'"); }
    "||" | "|" { return bad(l, *from, "there is no operator '|'", "write 'or'"); }
    "->"       { return bad(l, *from, "there is no '->'", "types follow ':' after the name"); }
    "+=" | "-=" | "*=" | "/=" { return bad(l, *from, "nothing is mutated", "write x = x + ..."); }
    "(" { return RAW_LPAREN; }      ")" { return RAW_RPAREN; }
    "[" { return RAW_LBRACKET; }    "]" { return RAW_RBRACKET; }
    "{" { return RAW_LBRACE; }      "}" { return RAW_RBRACE; }
    "," { return RAW_COMMA; }       ":" { return RAW_COLON; }
    ";" { return RAW_SEMICOLON; }   "=" { return RAW_ASSIGN; }
    "~" { return RAW_TILDE; }       "." { return RAW_DOT; }
    ".." { return RAW_DOTDOT; }     "==" { return RAW_EQ; }
    "!=" { return RAW_NE; }         "<" { return RAW_LT; }
    "<=" { return RAW_LE; }         ">" { return RAW_GT; }
    ">=" { return RAW_GE; }         "+" { return RAW_PLUS; }
    "-" { return RAW_MINUS; }       "*" { return RAW_STAR; }
    "/" { return RAW_SLASH; }       "//" { return RAW_SLASHSLASH; }
    "%" { return RAW_PERCENT; }     "^" { return RAW_CARET; }
  */
}

RawTokens lex_file(const Sources *s, uint32_t file, Arena *arena, Diag *diag) {
  const Source *f = &s->v[file];
  Lexer l = {.start = f->text, .cursor = f->text, .limit = f->text + f->len, .file = file, .diag = diag};
  if (f->len >= 3 && !memcmp(f->text, "\xEF\xBB\xBF", 3)) l.cursor += 3; /* byte order mark */
  RawTokens out = {0};
  RawKind kind;
  do {
    const char *from;
    kind = next(&l, &from);
    RawToken t = {.kind = (uint8_t)kind};
    t.begin = (uint32_t)(from - l.start);
    t.end = (uint32_t)(l.cursor - l.start);
    VEC_PUSH(arena, out.v, out.n, out.cap, t);
  } while (kind != RAW_END);
  return out;
}

const char *lex_string(const Source *f, RawToken t, Arena *arena) {
  char *out = arena_alloc(arena, t.end - t.begin);
  char *q = out;
  for (uint32_t i = t.begin + 1; i + 1 < t.end; i++) {
    char c = f->text[i];
    if (c == '\\') {
      c = f->text[++i];
      c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
    }
    *q++ = c;
  }
  return out;
}
