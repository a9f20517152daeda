/* diag.h: diagnostics. Collected while a phase runs, then sorted by place and printed once:
 *
 *   gpt2.dl:24:15: error: 'score' has axes {batch, time}; softmax[vocab] reduces 'vocab', which it does not
 * have 24 |   p = softmax[vocab](score) |               ^~~~~  did you mean 'key'?
 *
 * Message text: lower case, no full stop, names in 'quotes'. Diagnostics with the same place and text are
 * kept once. */
#ifndef DLC_DIAG_H
#define DLC_DIAG_H

#include "frontend/source.h"

typedef enum { DIAG_ERROR, DIAG_WARNING, DIAG_NOTE } DiagLevel;

typedef struct {
  DiagLevel level;
  Span span;
  const char *msg;
  const char *hint; /* text after the caret, or NULL */
  uint32_t of;      /* a note: the diagnostic it belongs to, printed right after it */
  uint32_t order;   /* when it was reported */
} Diagnostic;

typedef struct Diag {
  Sources *sources; /* messages are kept in sources->arena */
  Diagnostic *v;
  uint32_t n, cap;
  uint32_t n_errors, n_warnings;
} Diag;

enum { DIAG_MAX_PRINTED = 20 };

/* Each returns the number of the diagnostic, to hang a hint or a note on. */
uint32_t diag_error(Diag *d, Span at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
uint32_t diag_warning(Diag *d, Span at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Text after the caret of diagnostic `of`; the first hint is kept. */
void diag_hint(Diag *d, uint32_t of, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* "note:" line with a place of its own, printed after diagnostic `of`. */
void diag_note(Diag *d, uint32_t of, Span at, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Nearest of n names to `name` by edit distance (at most 1/3 of its length, at least 1), else NULL. Ties: the
 * first. */
const char *diag_nearest(const char *name, const char *const *names, uint32_t n);
/* Adds the hint "did you mean 'X'?" when there is a nearest name. */
void diag_did_you_mean(Diag *d, uint32_t of, const char *name, const char *const *names, uint32_t n);

/* Appends the report: sorted by file and place, the first DIAG_MAX_PRINTED errors and warnings, then a line
 * that says how many more. */
void diag_print(const Diag *d, Str *out);
/* One JSON object a line:
 * {"level","file","line","column","end_line","end_column","message","hint","notes":[...]}. */
void diag_print_json(const Diag *d, Str *out);

#endif
