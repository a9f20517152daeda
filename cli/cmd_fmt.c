/* cmd_fmt.c: `dlc fmt`: canonical formatting. Writes beside the file, then renames: a crash leaves the old
 * text. */
#include "cli/cli.h"
#include "frontend/ast.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool replace_file(Arena *arena, const char *path, const Str *text, Error *err) {
  struct stat st;
  char *aside = arena_printf(arena, "%s.fmt-%d", path, (int)getpid());
  FILE *f = fopen(aside, "wb");
  if (!f) {
    return error_set(err, ERR_RUN, "%s: cannot write: %s", aside, strerror(errno));
  }
  bool ok = fwrite(text->s, 1, text->len, f) == text->len;
  ok = fflush(f) == 0 && ok;
  ok = fsync(fileno(f)) == 0 && ok;
  ok = fclose(f) == 0 && ok;
  if (ok && stat(path, &st) == 0) {
    ok = chmod(aside, st.st_mode & 07777) == 0;
  }
  if (!ok || rename(aside, path)) {
    int e = errno;
    unlink(aside);
    return error_set(err, ERR_RUN, "%s: cannot write: %s", path, strerror(e));
  }
  return true;
}

int cmd_fmt(const Args *a) {
  if (!a->file) {
    return cli_usage(a, "which file?");
  }
  Arena arena = {0};
  Sources sources = {.arena = &arena};
  Diag diag = {.sources = &sources};
  Error err = {0};
  Str text = {0};
  uint32_t file;
  int code = 0;
  if (!source_load(&sources, a->file, &file, &err)) {
    code = cli_fail(&err);
  } else if (!ast_format(&sources, file, &text, &diag)) {
    diag_print(&diag, &text);
    fputs(text.s ? text.s : "", stderr);
    code = ERR_INPUT;
  } else {
    const Source *s = &sources.v[file];
    bool same = text.len == s->len && !memcmp(text.s ? text.s : "", s->text, s->len);
    if (!same && a->check) {
      fprintf(stderr, "dlc: %s is not in canonical form; `dlc fmt %s` writes it\n", a->file, a->file);
      code = ERR_INPUT;
    } else if (!same && !replace_file(&arena, a->file, &text, &err)) {
      code = cli_fail(&err);
    }
  }
  str_free(&text);
  arena_free(&arena);
  return code;
}
