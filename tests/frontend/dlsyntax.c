/* dlsyntax: parses or formats files for the golden tests. Usage: dlsyntax parse|json|format FILE. Exit 0, 1
 * on errors, 2 on misuse. */
#include "frontend/ast.h"

#include <stdio.h>
#include <string.h>

static bool format_file(Sources *s, const char *path, Str *out, Diag *diag) {
  uint32_t file;
  Error err = {0};
  if (source_load(s, path, &file, &err))
    return ast_format(s, file, out, diag);
  diag_error(diag, (Span){SPAN_NO_FILE, 0, 0}, "%s", err.msg);
  return false;
}

int main(int argc, char **argv) {
  if (argc != 3)
    return 2;
  Arena arena = {0};
  Sources sources = {.arena = &arena};
  Diag diag = {.sources = &sources};
  Str out = {0}, report = {0};
  AstFile *file;
  bool ok = strcmp(argv[1], "format") ? ast_parse_file(&sources, &arena, argv[2], &file, &diag)
                                      : format_file(&sources, argv[2], &out, &diag);
  if (!strcmp(argv[1], "json"))
    diag_print_json(&diag, &report);
  else
    diag_print(&diag, &report);
  if (out.len)
    fwrite(out.s, 1, out.len, stdout);
  if (report.len)
    fwrite(report.s, 1, report.len, stderr);
  str_free(&out);
  str_free(&report);
  arena_free(&arena);
  return ok ? 0 : 1;
}
