/* load.c: a file and everything it uses. A file is parsed once however often it is used; a cycle is an error
 * that shows itself. */
#include "frontend/ast.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_USE_DEPTH = 64 };

typedef struct {
  const char *real; /* path without links, `.` and `..` */
  AstFile *file;
} Loaded;

typedef struct {
  Sources *sources;
  Arena *arena;
  Diag *diag;
  Loaded *v;
  uint32_t n, cap;
  uint32_t stack[MAX_USE_DEPTH]; /* files being read, outermost first: indices into v */
  uint32_t depth;
  AstFile **std;
  uint32_t n_std, cap_std;
  bool std_read;
} Loader;

static AstFile *load(Loader *l, const char *path, Span from, bool is_std);

/* `path` as seen from the folder of `base`. */
static const char *join_path(Arena *a, const char *base, const char *path) {
  const char *slash = strrchr(base, '/');
  if (path[0] == '/' || !slash)
    return path;
  return arena_printf(a, "%.*s/%s", (int)(slash - base), base, path);
}

static void report_cycle(Loader *l, uint32_t again, Span from) {
  Str s = {0};
  uint32_t i = 0;
  while (l->stack[i] != again)
    i++;
  for (; i < l->depth; i++)
    str_printf(&s, "%s -> ", l->v[l->stack[i]].file->path);
  diag_error(l->diag, from, "files use each other in a cycle: %s%s", s.s, l->v[again].file->path);
  str_free(&s);
}

/* ---- the library ---- */

static bool is_folder(const char *path) {
  DIR *d = opendir(path);
  if (d)
    closedir(d);
  return d != NULL;
}

/* The folder std/ of the library, NULL when there is none. */
static const char *std_folder(Arena *a) {
  const char *env = getenv("DLC_MODELS");
  if (env && *env)
    return arena_printf(a, "%s/std", env);
  char exe[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  const char *slash = n > 0 ? memrchr(exe, '/', (size_t)n) : NULL;
  if (slash) {
    const char *beside = arena_printf(a, "%.*s/../models/std", (int)(slash - exe), exe);
    if (is_folder(beside))
      return beside;
  }
#ifdef DLC_MODELS_DIR
  if (is_folder(DLC_MODELS_DIR "/std"))
    return DLC_MODELS_DIR "/std";
#endif
  return NULL;
}

static int dl_file(const struct dirent *e) {
  size_t n = strlen(e->d_name);
  return n > 3 && e->d_name[0] != '.' && !strcmp(e->d_name + n - 3, ".dl");
}

static int by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_std(Loader *l, Span from) {
  l->std_read = true;
  const char *folder = std_folder(l->arena);
  struct dirent **e = NULL;
  int n = folder ? scandir(folder, &e, dl_file, by_name) : -1;
  if (n < 0) {
    uint32_t d = diag_error(l->diag, from, "the standard library is not found%s%s", folder ? " in " : "",
                            folder ? folder : "");
    diag_hint(l->diag, d, "DLC_MODELS names the folder that holds std/");
    return;
  }
  for (int i = 0; i < n; i++) {
    AstFile *f = load(l, arena_printf(l->arena, "%s/%s", folder, e[i]->d_name), from, true);
    if (f)
      VEC_PUSH(l->arena, l->std, l->n_std, l->cap_std, f);
    free(e[i]);
  }
  free(e);
}

/* ---- files ---- */

static void load_uses(Loader *l, AstFile *f) {
  for (uint32_t i = 0; i < f->n; i++) {
    AstItem *x = f->v[i];
    if (x->kind != ITEM_USE)
      continue;
    if (!x->use.path) {
      if (f->is_std)
        continue; /* the library sees itself */
      if (!l->std_read)
        load_std(l, x->use.path_span);
      x->use.files = l->std;
      x->use.n_files = l->n_std;
      continue;
    }
    AstFile *used = load(l, join_path(l->arena, f->path, x->use.path), x->use.path_span, f->is_std);
    if (!used)
      continue;
    x->use.files = ARENA_NEW(l->arena, AstFile *);
    x->use.files[0] = used;
    x->use.n_files = 1;
  }
}

static bool already(Loader *l, const char *real, Span from, AstFile **out) {
  for (uint32_t i = 0; i < l->n; i++) {
    if (strcmp(l->v[i].real, real))
      continue;
    *out = l->v[i].file;
    for (uint32_t k = 0; k < l->depth; k++) {
      if (l->stack[k] != i)
        continue;
      report_cycle(l, i, from);
      *out = NULL;
    }
    return true;
  }
  return false;
}

static AstFile *load_text(Loader *l, const char *path, const char *text, Span from, bool is_std) {
  char *real = realpath(path, NULL);
  AstFile *f = NULL;
  bool known = real && already(l, real, from, &f);
  Loaded entry = {.real = arena_strdup(l->arena, real ? real : path)};
  free(real);
  if (known)
    return f;
  uint32_t file;
  Error err = {0};
  if (l->depth == MAX_USE_DEPTH) {
    diag_error(l->diag, from, "files use files more than %d deep", MAX_USE_DEPTH);
    return NULL;
  }
  if (text) {
    file = source_add(l->sources, path, text, strlen(text));
  } else if (!source_load(l->sources, path, &file, &err)) {
    diag_error(l->diag, from, "%s", err.msg);
    return NULL;
  }
  bool ok = ast_parse_text(l->sources, l->arena, file, &entry.file, l->diag);
  if (ok && entry.file->n == 0)
    diag_error(l->diag, (Span){file, 0, 0}, "this file is empty");
  f = entry.file;
  f->is_std = is_std;
  l->stack[l->depth++] = l->n;
  VEC_PUSH(l->arena, l->v, l->n, l->cap, entry);
  load_uses(l, f);
  l->depth--;
  return f;
}

static AstFile *load(Loader *l, const char *path, Span from, bool is_std) {
  return load_text(l, path, NULL, from, is_std);
}

bool ast_parse_program(Sources *sources, Arena *arena, const char *path, const char *text, AstFile **out, Diag *diag) {
  uint32_t errors = diag->n_errors;
  Loader l = {.sources = sources, .arena = arena, .diag = diag};
  *out = load_text(&l, path, text, (Span){SPAN_NO_FILE, 0, 0}, false);
  return diag->n_errors == errors;
}

bool ast_parse_file(Sources *sources, Arena *arena, const char *path, AstFile **out, Diag *diag) {
  return ast_parse_program(sources, arena, path, NULL, out, diag);
}
