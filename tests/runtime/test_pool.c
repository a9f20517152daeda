/* The thread pool: every task runs exactly once on any number of threads, idle or oversubscribed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/pool.h"

enum { MOST = 1000 };

typedef struct {
  int32_t threads;
  unsigned char hits[MOST];
  int32_t worker[MOST];
} Tally;

static void count(void *ctx, int32_t worker, int64_t lo, int64_t hi) {
  Tally *t = ctx;
  assert_true(worker >= 0 && worker < t->threads);
  for (int64_t i = lo; i < hi; i++) {
    t->hits[i]++;
    t->worker[i] = worker;
  }
}

static void check_once(Pool *pool, int64_t ntasks) {
  Tally t = {.threads = pool_threads(pool)};
  pool_run(pool, ntasks, count, &t);
  for (int64_t i = 0; i < MOST; i++) {
    assert_int_equal(t.hits[i], i < ntasks);
    assert_true(i == 0 || i >= ntasks || t.worker[i] >= t.worker[i - 1]);
  }
}

static void test_every_task_once(void **state) {
  (void)state;
  static const int32_t threads[] = {1, 2, 3, 8, 33};
  for (size_t k = 0; k < sizeof threads / sizeof *threads; k++) {
    Error err = {0};
    Pool *pool = pool_new(threads[k], k % 2, &err);
    assert_non_null(pool);
    for (int64_t n = 0; n < 70; n++) {
      check_once(pool, n);
    }
    check_once(pool, MOST);
    pool_free(pool);
  }
}

static void test_after_sleep(void **state) {
  (void)state;
  Error err = {0};
  Pool *pool = pool_new(2, true, &err);
  for (int i = 0; i < 20; i++) {
    struct timespec nap = {.tv_nsec = i * 20000};
    nanosleep(&nap, NULL);
    check_once(pool, 100);
  }
  pool_free(pool);
}

static void test_thread_count_from_environment(void **state) {
  (void)state;
  Error err = {0};
  setenv("DLC_THREADS", "3", 1);
  assert_int_equal(pool_default_threads(&err), 3);
  setenv("DLC_THREADS", "many", 1);
  assert_int_equal(pool_default_threads(&err), 0);
  assert_int_equal(err.cls, ERR_USAGE);
  assert_non_null(strstr(err.msg, "DLC_THREADS"));
  unsetenv("DLC_THREADS");
  assert_true(pool_default_threads(&err) >= 1);
  assert_null(pool_new(0, false, &err));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_task_once),
      cmocka_unit_test(test_after_sleep),
      cmocka_unit_test(test_thread_count_from_environment),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
