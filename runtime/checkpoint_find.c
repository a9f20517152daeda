/* checkpoint_find.c: which checkpoint a path means. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/checkpoint.h"

char *checkpoint_folder(Arena *a, const char *run, int64_t step) {
  return arena_printf(a, "%s/step-%06lld", run, (long long)step);
}

int64_t checkpoint_step(const char *path) {
  const char *name = strrchr(path, '/');
  name = name ? name + 1 : path;
  char *end;
  if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') {
    return -1;
  }
  int64_t step = strtoll(name + 5, &end, 10);
  return *end ? -1 : step;
}

static int newest_first(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

uint32_t checkpoint_list(const char *run, Arena *a, int64_t **steps) {
  uint32_t n = 0, cap = 0;
  *steps = NULL;
  DIR *dir = opendir(run);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    int64_t step = checkpoint_step(e->d_name);
    if (step >= 0) {
      VEC_PUSH(a, *steps, n, cap, step);
    }
  }
  if (dir) {
    closedir(dir);
  }
  if (n) {
    qsort(*steps, n, sizeof **steps, newest_first);
  }
  return n;
}

bool checkpoint_latest(const char *run, Arena *a, CheckpointPath *out, bool *found, char **skipped,
                       Error *err) {
  int64_t *steps;
  uint32_t n = checkpoint_list(run, a, &steps);
  Str lines = {0};
  *found = false;
  *skipped = NULL;
  for (uint32_t i = 0; i < n && !*found; i++) {
    Error why = {0};
    const char *dir = checkpoint_folder(a, run, steps[i]);
    *found = checkpoint_verify(dir, &why);
    if (*found) {
      *out =
          (CheckpointPath){dir, arena_printf(a, "%s/model.safetensors", dir), arena_strdup(a, run), steps[i]};
    } else {
      str_printf(&lines, "%s%s", lines.len ? "\n" : "", why.msg);
    }
  }
  if (lines.s) {
    *skipped = arena_strdup(a, lines.s);
    str_free(&lines);
  }
  return *found || !n ||
         error_set(err, ERR_INPUT, "%s holds no checkpoint that is whole:\n%s", run, *skipped);
}

/* Everything before the last slash; "." when there is none. */
static const char *parent(Arena *a, const char *path) {
  const char *slash = strrchr(path, '/');
  return slash == path ? "/" : slash ? arena_strndup(a, path, (size_t)(slash - path)) : ".";
}

static const char *without_slashes(Arena *a, const char *path) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') {
    n--;
  }
  return arena_strndup(a, path, n);
}

bool checkpoint_find(const char *from, Arena *a, CheckpointPath *out, char **skipped, Error *err) {
  struct stat st;
  *skipped = NULL;
  from = without_slashes(a, from);
  if (stat(from, &st)) {
    return error_set(err, ERR_INPUT, "there is no %s", from);
  }
  const char *above = parent(a, from);
  if (!S_ISDIR(st.st_mode)) {
    int64_t step = checkpoint_step(above);
    *out = (CheckpointPath){NULL, from, step >= 0 ? parent(a, above) : NULL, step};
    return true;
  }
  char *real = realpath(from, NULL); /* `latest` is a link to a step's folder */
  if (real && checkpoint_step(real) >= 0) {
    const char *dir = arena_strdup(a, real);
    free(real);
    *out = (CheckpointPath){dir, arena_printf(a, "%s/model.safetensors", dir), parent(a, dir),
                            checkpoint_step(dir)};
    return checkpoint_verify(dir, err);
  }
  free(real);
  bool found;
  if (!checkpoint_latest(from, a, out, &found, skipped, err)) {
    return false;
  }
  return found || error_set(err, ERR_INPUT, "%s holds no checkpoint", from);
}
