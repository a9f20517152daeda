/* Checkpoints: exact round trips, and nothing lost to kills, flipped bits, full disks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "folder.h"
#include "runtime/runtime.h"

enum { N = 600 };

typedef struct {
  float w[2 * N], m[2 * N];
  double g;
  HostTensor t[3];
} Model;

static Model *model_new(float value) {
  Model *x = calloc(1, sizeof *x);
  for (int i = 0; i < 2 * N; i++) {
    x->w[i] = value + (float)i;
    x->m[i] = -value;
  }
  x->g = (double)value;
  x->t[0] = (HostTensor){
      .name = "h.*.w", .rank = 2, .n_repeat = 1, .size = {2, N}, .axis = {"layer", "x"}, .data = x->w};
  x->t[1] = (HostTensor){.name = "g", .dtype = DT_F64, .data = &x->g};
  x->t[2] = (HostTensor){.name = "h.*.w.m",
                         .rank = 2,
                         .n_repeat = 1,
                         .size = {2, N},
                         .axis = {"layer", "x"},
                         .data = x->m,
                         .in_optimizer = true};
  return x;
}

static bool save(const char *run, int64_t step, int64_t keep, Error *err) {
  Model *x = model_new((float)step);
  TrainState s = {
      .step = step, .sample = step * 4, .seed = UINT64_MAX - 1, .loss_scale = 1, .plan_hash = "abc"};
  bool ok = checkpoint_save(run, &s, x->t, 3, keep, err);
  free(x);
  return ok;
}

/* The newest whole checkpoint; checks that everything in it is of one step. 0: none. */
static int64_t load_newest(const char *run) {
  Arena a = {0};
  Error err = {0};
  CheckpointPath p;
  bool found;
  char *skipped;
  assert_true(checkpoint_latest(run, &a, &p, &found, &skipped, &err));
  int64_t step = 0;
  if (found) {
    Model *x = model_new(0);
    TrainState s;
    assert_true(checkpoint_load(p.dir, x->t, 3, &a, &s, &err));
    step = s.step;
    assert_int_equal(p.step, step);
    assert_int_equal(s.sample, 4 * step);
    assert_true(s.seed == UINT64_MAX - 1 && !strcmp(s.plan_hash, "abc"));
    assert_true(x->w[2 * N - 1] == (float)(step + 2 * N - 1) && x->m[N] == -(float)step &&
                x->g == (double)step);
    free(x);
  }
  arena_free(&a);
  return step;
}

static const char *new_run(const char *name) {
  const char *run = in_folder(name);
  assert_int_equal(mkdir(run, 0777), 0);
  return run;
}

static void test_round_trip_and_keep(void **state) {
  (void)state;
  const char *run = new_run("keep");
  Error err = {0};
  assert_int_equal(load_newest(run), 0);
  for (int64_t step = 1; step <= 5; step++) {
    assert_true(save(run, step, 2, &err));
    assert_int_equal(load_newest(run), step);
  }
  assert_true(save(run, 5, 2, &err)); /* the same step again */
  assert_false(file_exists(in_folder("keep/step-000003")) || file_exists(in_folder("keep/.saving")));
  assert_true(file_exists(in_folder("keep/step-000004")) && file_exists(in_folder("keep/latest/MANIFEST")));
  char link[64] = {0};
  assert_true(readlink(in_folder("keep/latest"), link, sizeof link - 1) > 0);
  assert_string_equal(link, "step-000005");
  TensorFile *f = tensorfile_open(in_folder("keep/latest/model.safetensors"), &err);
  assert_non_null(f);
  assert_string_equal(tensorfile_find(f, "h.1.w")->axes, "x");
  tensorfile_close(f);
  char command[512]; /* the MANIFEST is what sha256sum reads */
  snprintf(command, sizeof command, "cd %s && sha256sum -c --quiet MANIFEST", in_folder("keep/latest"));
  assert_int_equal(system(command), 0);
}

static void test_find(void **state) {
  (void)state;
  const char *run = new_run("find");
  Error err = {0};
  Arena a = {0};
  CheckpointPath p;
  char *skipped;
  assert_true(save(run, 7, 0, &err));
  static const char *const paths[] = {"find", "find/", "find/step-000007", "find/latest",
                                      "find/step-000007/model.safetensors"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    assert_true(checkpoint_find(in_folder(paths[i]), &a, &p, &skipped, &err));
    assert_int_equal(p.step, 7);
    assert_true(file_exists(p.model) && !strcmp(strrchr(p.run, '/'), "/find"));
  }
  assert_false(checkpoint_find(in_folder("nowhere"), &a, &p, &skipped, &err));
  err = (Error){0};
  new_run("bare");
  assert_false(checkpoint_find(in_folder("bare"), &a, &p, &skipped, &err));
  assert_non_null(strstr(err.msg, "holds no checkpoint"));
  arena_free(&a);
}

static void flip(const char *path, long at) {
  FILE *f = fopen(path, "r+b");
  assert_non_null(f);
  fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
  int c = fgetc(f);
  fseek(f, -1, SEEK_CUR);
  fputc(c ^ 4, f);
  fclose(f);
}

static void test_damage_falls_back(void **state) {
  (void)state;
  static const struct {
    const char *file, *words;
  } cases[] = {{"model.safetensors", "model.safetensors: damaged"},
               {"optimizer.safetensors", "optimizer.safetensors: damaged"},
               {"state.json", "state.json: damaged"},
               {"MANIFEST", "step-000002"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int how = 0; how < 3; how++) {
      char name[64], path[256];
      snprintf(name, sizeof name, "damage-%zu-%d", i, how);
      const char *run = new_run(name);
      Error err = {0};
      assert_true(save(run, 1, 0, &err) && save(run, 2, 0, &err));
      snprintf(path, sizeof path, "%s/step-000002/%s", run, cases[i].file);
      if (how == 0) {
        flip(path, -9);
      } else if (how == 1) {
        assert_int_equal(truncate(path, 30), 0);
      } else {
        assert_int_equal(unlink(path), 0);
      }
      Arena a = {0};
      CheckpointPath p;
      char *skipped;
      assert_true(checkpoint_find(run, &a, &p, &skipped, &err));
      assert_int_equal(p.step, 1);
      assert_non_null(strstr(skipped, how == 2 ? "step-000002" : cases[i].words));
      assert_int_equal(load_newest(run), 1);
      snprintf(path, sizeof path, "%s/step-000001/state.json", run);
      flip(path, 3);
      assert_false(checkpoint_find(run, &a, &p, &skipped, &err));
      assert_int_equal(err.cls, ERR_INPUT);
      arena_free(&a);
    }
  }
}

static void test_killed_while_saving(void **state) {
  (void)state;
  const char *run = new_run("killed");
  int64_t last = 0;
  for (int i = 0; i < 25; i++) {
    pid_t child = fork();
    if (child == 0) {
      for (int64_t step = last + 1;; step++) {
        Error err = {0};
        save(run, step, 2, &err);
      }
    }
    struct timespec nap = {.tv_nsec = 300000 + 700000 * i};
    nanosleep(&nap, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    int64_t now = load_newest(run);
    assert_true(now >= last);
    last = now;
  }
  Error err = {0};
  assert_true(save(run, last + 1, 1, &err)); /* what the killed ones left is cleared away */
  assert_false(file_exists(in_folder("killed/.saving")));
  assert_int_equal(load_newest(run), last + 1);
}

static void test_no_room(void **state) {
  (void)state;
  const char *run = new_run("full");
  Error err = {0};
  assert_true(save(run, 1, 0, &err));
  pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit least = {3000, 3000};
    setrlimit(RLIMIT_FSIZE, &least);
    bool ok = !save(run, 2, 1, &err) && err.cls == ERR_RUN && strstr(err.msg, "model.safetensors") &&
              strstr(err.msg, strerror(EFBIG));
    _exit(ok ? 0 : 1);
  }
  int status;
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  assert_false(file_exists(in_folder("full/.saving")) || file_exists(in_folder("full/step-000002")));
  assert_int_equal(load_newest(run), 1);
  assert_false(save(in_folder("absent"), 1, 0, &err));
  assert_int_equal(err.cls, ERR_RUN);
}

static void test_full_disk(void **state) {
  (void)state;
  const char *run = new_run("disk");
  char command[512];
  snprintf(command, sizeof command, "mount -t tmpfs -o size=64k none %s 2>/dev/null", run);
  if (geteuid() != 0 || system(command) != 0) {
    skip(); /* not allowed to mount here; test_no_room covers the same path */
  }
  Error err = {0};
  bool first = save(run, 1, 0, &err), second = false;
  for (int64_t step = 2; first && step < 20; step++) { /* each takes about 25 kB */
    second = save(run, step, 0, &err);
    if (!second) {
      break;
    }
  }
  int64_t newest = load_newest(run);
  bool clean = !file_exists(in_folder("disk/.saving"));
  snprintf(command, sizeof command, "umount %s", run);
  assert_int_equal(system(command), 0);
  assert_true(first && !second && newest >= 1 && clean);
  assert_non_null(strstr(err.msg, strerror(ENOSPC)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip_and_keep),
      cmocka_unit_test(test_find),
      cmocka_unit_test(test_damage_falls_back),
      cmocka_unit_test(test_killed_while_saving),
      cmocka_unit_test(test_no_room),
      cmocka_unit_test(test_full_disk),
  };
  return cmocka_run_group_tests(tests, make_test_folder, drop_test_folder);
}
