/* The cache of compiled kernels: round trips, every kind of damage is a miss, several processes at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/cache.h"
#include "codegen/codegen.h"

typedef struct {
  char root[64], dir[96], path[256];
  char key[65], other[65];
} Fixture;

static int setup(void **state) {
  Fixture *f = calloc(1, sizeof *f);
  strcpy(f->root, "/tmp/dlc-cache-XXXXXX");
  assert_non_null(mkdtemp(f->root));
  snprintf(f->dir, sizeof f->dir, "%s/a/b", f->root); /* made when first written to */
  sha256_hex("one", 3, f->key);
  sha256_hex("two", 3, f->other);
  snprintf(f->path, sizeof f->path, "%s/%s.o", f->dir, f->key);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  Fixture *f = *state;
  char cmd[128];
  snprintf(cmd, sizeof cmd, "rm -rf %s", f->root);
  int rc = system(cmd);
  free(f);
  return rc;
}

static bool holds(const Fixture *f, const char *key, const void *want, size_t n) {
  Arena a = {0};
  const void *bytes;
  size_t got;
  bool ok = cache_get(f->dir, key, &a, &bytes, &got) && got == n && !memcmp(bytes, want, n);
  arena_free(&a);
  return ok;
}

static size_t read_file(const char *path, char *buf, size_t cap) {
  FILE *in = fopen(path, "rb");
  assert_non_null(in);
  size_t n = fread(buf, 1, cap, in);
  fclose(in);
  return n;
}

static void write_file(const char *path, const char *buf, size_t n) {
  FILE *out = fopen(path, "wb");
  assert_non_null(out);
  assert_int_equal(fwrite(buf, 1, n, out), n);
  fclose(out);
}

static const char body[] = "not really an object file, but the cache does not look inside";

static void test_round_trip(void **state) {
  Fixture *f = *state;
  assert_false(holds(f, f->key, body, sizeof body));
  cache_put(f->dir, f->key, body, sizeof body);
  assert_true(holds(f, f->key, body, sizeof body));
  assert_false(holds(f, f->other, body, sizeof body));
  cache_put(f->dir, f->key, body, 5);
  assert_true(holds(f, f->key, body, 5));
  cache_put(f->dir, f->other, body, 0);
  assert_true(holds(f, f->other, body, 0));
}

static void test_damage(void **state) {
  Fixture *f = *state;
  char file[1024];
  cache_put(f->dir, f->key, body, sizeof body);
  size_t n = read_file(f->path, file, sizeof file);
  for (size_t i = 0; i < n; i++) { /* any flipped byte */
    file[i] ^= 0x10;
    write_file(f->path, file, n);
    assert_false(holds(f, f->key, body, sizeof body));
    file[i] ^= 0x10;
  }
  for (size_t i = 0; i < n; i++) { /* any shorter file */
    write_file(f->path, file, i);
    assert_false(holds(f, f->key, body, sizeof body));
  }
  file[n] = 0;
  write_file(f->path, file, n + 1);
  assert_false(holds(f, f->key, body, sizeof body));
  cache_put(f->dir, f->key, body, sizeof body); /* is replaced by a good one */
  assert_true(holds(f, f->key, body, sizeof body));
}

static void test_other_key(void **state) {
  Fixture *f = *state;
  char moved[256];
  cache_put(f->dir, f->key, body, sizeof body);
  snprintf(moved, sizeof moved, "%s/%s.o", f->dir, f->other);
  assert_int_equal(rename(f->path, moved), 0);
  assert_false(holds(f, f->other, body, sizeof body));
}

static void test_no_directory(void **state) {
  Fixture *f = *state;
  char file[96];
  snprintf(file, sizeof file, "%s/file", f->root);
  write_file(file, "x", 1);
  cache_put(file, f->key, body, sizeof body); /* a file in place of the directory */
  snprintf(f->dir, sizeof f->dir, "%s/file/deeper", f->root);
  cache_put(f->dir, f->key, body, sizeof body);
  assert_false(holds(f, f->key, body, sizeof body));
  cache_put("/proc/nowhere", f->key, body, sizeof body);
  cache_put(f->root, "../bad", body, sizeof body); /* not a key */
  assert_false(holds(f, "../bad", body, sizeof body));
}

static void test_entry_is_directory(void **state) {
  Fixture *f = *state;
  cache_put(f->dir, f->other, body, sizeof body);
  assert_int_equal(mkdir(f->path, 0777), 0);
  cache_put(f->dir, f->key, body, sizeof body);
  assert_false(holds(f, f->key, body, sizeof body));
}

enum { PROCESSES = 8, ROUNDS = 200, BIG = 20000 };

/* Every process writes its own bytes under one key; a reader must see the whole of one of them, or nothing.
 */
static int hammer(const Fixture *f, int id) {
  static char mine[BIG];
  memset(mine, 'a' + id, sizeof mine);
  for (int i = 0; i < ROUNDS; i++) {
    Arena a = {0};
    const void *bytes;
    size_t n;
    cache_put(f->dir, f->key, mine, BIG - (size_t)id);
    bool ok = cache_get(f->dir, f->key, &a, &bytes, &n);
    const char *c = bytes;
    for (size_t k = 0; ok && k < n; k++)
      ok = c[k] == c[0];
    ok = ok && n == BIG - (size_t)(c[0] - 'a');
    arena_free(&a);
    if (!ok)
      return 1;
  }
  return 0;
}

static int files_in(const char *dir) {
  DIR *d = opendir(dir);
  int n = 0;
  assert_non_null(d);
  while (readdir(d))
    n++;
  closedir(d);
  return n - 2; /* . and .. */
}

static void test_processes(void **state) {
  Fixture *f = *state;
  pid_t pid[PROCESSES];
  for (int i = 0; i < PROCESSES; i++) {
    pid[i] = fork();
    if (pid[i] == 0)
      _exit(hammer(f, i));
    assert_true(pid[i] > 0);
  }
  for (int i = 0; i < PROCESSES; i++) {
    int status;
    assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
    assert_int_equal(status, 0);
  }
  assert_int_equal(files_in(f->dir), 1); /* no temporary file is left */
}

static void expect_dir(const char *want) {
  char *dir = cache_default_dir();
  if (want)
    assert_string_equal(dir, want);
  else
    assert_null(dir);
  free(dir);
}

static void test_default_dir(void **state) {
  (void)state;
  setenv("DLC_CACHE", "/x/y", 1);
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  setenv("HOME", "/home/me", 1);
  expect_dir("/x/y");
  setenv("DLC_CACHE", "", 1);
  expect_dir(NULL);
  unsetenv("DLC_CACHE");
  expect_dir("/xdg/dlc");
  unsetenv("XDG_CACHE_HOME");
  expect_dir("/home/me/.cache/dlc");
  unsetenv("HOME");
  expect_dir(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
      cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
      cmocka_unit_test_setup_teardown(test_other_key, setup, teardown),
      cmocka_unit_test_setup_teardown(test_no_directory, setup, teardown),
      cmocka_unit_test_setup_teardown(test_entry_is_directory, setup, teardown),
      cmocka_unit_test_setup_teardown(test_processes, setup, teardown),
      cmocka_unit_test(test_default_dir),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
