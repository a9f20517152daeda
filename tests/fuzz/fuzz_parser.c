/* Fuzzing the frontend's text side: lexer, grammar, recovery, diagnostics, formatter. What parses must
 * format, and the formatted text must parse and format to itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/ast.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The formatted text, NULL when the text does not parse. */
static char *format_text(const char *text, size_t n) {
  Arena arena = {0};
  Sources sources = {.arena = &arena};
  Diag diag = {.sources = &sources};
  Str out = {0}, report = {0};
  uint32_t file = source_add(&sources, "fuzz.dl", text, n);
  if (ast_format(&sources, file, &out, &diag))
    str_puts(&out, "");
  diag_print(&diag, &report);
  diag_print_json(&diag, &report);
  str_free(&report);
  arena_free(&arena);
  return out.s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  char *once = format_text((const char *)data, n);
  if (!once)
    return 0;
  char *twice = format_text(once, strlen(once));
  if (!twice || strcmp(once, twice))
    abort();
  free(once);
  free(twice);
  return 0;
}
