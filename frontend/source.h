/* source.h: the text of every file of a program, and the spans that point into it. */
#ifndef DLC_SOURCE_H
#define DLC_SOURCE_H

#include "runtime/base.h"

/* Bytes [begin, end) of file number `file` of a Sources table. */
typedef struct Span {
  uint32_t file, begin, end;
} Span;

/* The file of a span that has no place in a text (a missing file): its diagnostic is printed without one. */
#define SPAN_NO_FILE UINT32_MAX

typedef struct Source {
  const char *path; /* as a person would write it: the argument, or the path a `use` names, joined to its
                       file's folder */
  const char *text; /* NUL-terminated; contains no other NUL once source_load accepted it */
  uint32_t len;
  uint32_t *line; /* line[i] = offset of the first byte of line i (from 0) */
  uint32_t n_lines;
} Source;

/* All storage is in `arena`. Zero-initialise, then set `arena`. */
typedef struct Sources {
  Arena *arena;
  Source *v;
  uint32_t n, cap;
} Sources;

enum { SOURCE_MAX_BYTES = 16 << 20 };

/* Reads a file into the table; *out is its number. False with err set (ERR_INPUT) when it is missing, a
 * folder, unreadable, over SOURCE_MAX_BYTES. Bytes are kept as they are: the lexer reports NUL and bytes that
 * are not UTF-8 with their place. */
bool source_load(Sources *s, const char *path, uint32_t *out, Error *err);
/* The same for text in memory; it is copied. */
uint32_t source_add(Sources *s, const char *path, const char *text, size_t len);
/* 1-based line and column (in characters, not bytes) of a byte offset. */
void source_line_col(const Source *f, uint32_t offset, uint32_t *line, uint32_t *col);

/* Length of the UTF-8 character at p, 0 when the bytes before limit are no character. */
uint32_t utf8_length(const char *p, const char *limit);

/* The smallest span holding both (same file). */
Span span_join(Span a, Span b);

#endif
