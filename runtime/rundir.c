/* rundir.c: a run's folder: made, locked, moved aside; run.json. */
#include "runtime/files.h"
#include "runtime/runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct RunDir {
  Arena arena;
  const char *path;
  int lock;
};

static bool make_with_parents(const char *path, Error *err) {
  char part[4096];
  if (strlen(path) >= sizeof part) {
    return error_set(err, ERR_INPUT, "%s: the path is too long", path);
  }
  strcpy(part, path);
  for (char *p = part + 1;; p++) {
    if (*p && *p != '/') {
      continue;
    }
    char c = *p;
    *p = 0;
    if (mkdir(part, 0777) && errno != EEXIST) {
      return error_set(err, ERR_RUN, "%s: cannot make the run's folder: %s", part, strerror(errno));
    }
    *p = c;
    if (!c) {
      return true;
    }
  }
}

static bool holds_run(Arena *a, const char *path) {
  return file_exists(arena_printf(a, "%s/run.json", path));
}

static bool move_aside(Arena *a, const char *path, Error *err) {
  for (int i = 1; i < 10000; i++) {
    const char *to = arena_printf(a, "%s.%d", path, i);
    if (!file_exists(to)) {
      return rename(path, to) == 0 ||
             error_set(err, ERR_RUN, "%s: cannot move it to %s: %s", path, to, strerror(errno));
    }
  }
  return error_set(err, ERR_RUN, "%s: ten thousand older runs stand beside it", path);
}

/* The lock is held by the process, so a killed run leaves none; the file says who holds it. */
static bool lock_folder(RunDir *r, Error *err) {
  const char *path = arena_printf(&r->arena, "%s/lock", r->path);
  r->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (r->lock < 0) {
    return error_set(err, ERR_RUN, "%s: cannot write there: %s", r->path, strerror(errno));
  }
  if (flock(r->lock, LOCK_EX | LOCK_NB)) {
    char holder[64] = {0};
    ssize_t n = read(r->lock, holder, sizeof holder - 1);
    return error_set(err, ERR_USAGE, "%s is in use by another run (process %s)", r->path,
                     n > 0 ? holder : "unknown");
  }
  char self[32];
  int n = snprintf(self, sizeof self, "%d", (int)getpid());
  if (ftruncate(r->lock, 0) || pwrite(r->lock, self, (size_t)n, 0) != n) {
    return error_set(err, ERR_RUN, "%s: cannot write: %s", path, strerror(errno));
  }
  return true;
}

RunDir *rundir_open(const char *path, RunMode mode, Error *err) {
  RunDir *r = calloc(1, sizeof *r);
  if (!r) {
    abort();
  }
  r->lock = -1;
  r->path = arena_strdup(&r->arena, path);
  bool ok = true;
  if (holds_run(&r->arena, path) && mode == RUN_NEW) {
    ok = error_set(err, ERR_USAGE,
                   "%s holds a run already. Go on with it: --resume. Start anew, moving it to %s.1: --fresh",
                   path, path);
  } else if (holds_run(&r->arena, path) && mode == RUN_FRESH) {
    r->path = arena_strdup(&r->arena, path);
    ok = lock_folder(r, err);
    if (r->lock >= 0) {
      close(r->lock);
      r->lock = -1;
    }
    ok = ok && move_aside(&r->arena, path, err);
  }
  if (!ok || !make_with_parents(path, err) || !lock_folder(r, err)) {
    rundir_close(r);
    return NULL;
  }
  return r;
}

void rundir_close(RunDir *r) {
  if (!r) {
    return;
  }
  if (r->lock >= 0) {
    close(r->lock);
  }
  arena_free(&r->arena);
  free(r);
}

const char *rundir_path(const RunDir *r) {
  return r->path;
}

const char *rundir_file(RunDir *r, const char *name) {
  return arena_printf(&r->arena, "%s/%s", r->path, name);
}

/* ---- run.json ---- */

char *machine_describe(Arena *a) {
  char cpu[256] = "unknown processor", line[512];
  FILE *f = fopen("/proc/cpuinfo", "r");
  while (f && fgets(line, sizeof line, f)) {
    char *colon = strchr(line, ':');
    if (!strncmp(line, "model name", 10) && colon) {
      line[strcspn(line, "\n")] = 0;
      snprintf(cpu, sizeof cpu, "%s", colon + 2);
      break;
    }
  }
  if (f) {
    fclose(f);
  }
  double gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1024.0 * 1024 * 1024);
  return arena_printf(a, "%s, %ld CPUs, %.0f GiB", cpu, sysconf(_SC_NPROCESSORS_ONLN), gib);
}

bool run_json_write(const char *path, int argc, const char *const *argv, const char *const *extra,
                    uint32_t n_extra, Error *err) {
  Arena a = {0};
  Str s = {0};
  struct utsname u = {0};
  uname(&u);
  str_puts(&s, "{\n \"arguments\": [");
  for (int i = 0; i < argc; i++) {
    str_puts(&s, i ? ", " : "");
    str_put_json(&s, argv[i]);
  }
  str_puts(&s, "],\n \"machine\": ");
  str_put_json(&s, machine_describe(&a));
  str_puts(&s, ",\n \"system\": ");
  str_put_json(&s, arena_printf(&a, "%s %s %s", u.sysname, u.release, u.machine));
  str_printf(&s, ",\n \"started\": %lld", (long long)time(NULL));
  for (uint32_t i = 0; i < n_extra; i++) {
    str_printf(&s, ",\n \"%s\": %s", extra[2 * i], extra[2 * i + 1]);
  }
  str_puts(&s, "\n}\n");
  bool ok = file_write(path, s.s, s.len, err);
  str_free(&s);
  arena_free(&a);
  return ok;
}
