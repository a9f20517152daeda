/* Philox against the known answers of Random123, and what is drawn from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/runtime.h"

static void test_known_answers(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], out[4];
  } cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t out[4];
    philox4x32(cases[i].counter, cases[i].key, out);
    assert_memory_equal(out, cases[i].out, sizeof out);
  }
}

static void test_uniform(void **state) {
  (void)state;
  double sum = 0, sum2 = 0;
  for (uint64_t i = 0; i < 100000; i++) {
    double u = rng_uniform(DT_F32, 1337, 5, 0, 1, i);
    assert_true(u >= 0 && u < 1 && (double)(float)u == u);
    sum += u;
    sum2 += u * u;
  }
  assert_float_equal(sum / 1e5, 0.5, 0.005);
  assert_float_equal(sum2 / 1e5, 1.0 / 3, 0.005);
  assert_true(rng_uniform(DT_F32, 1, 5, 0, 1, 3) != rng_uniform(DT_F32, 1, 5, 1, 1, 3));
  assert_true(rng_uniform(DT_F32, 1, 5, 0, 1, 3) != rng_uniform(DT_F32, 1, 5, 0, 2, 3));
  int64_t outer[] = {1}, nested[] = {0, 1};
  assert_true(rng_loops(outer, 1) != rng_loops(nested, 2));
}

static void test_initial_values(void **state) {
  (void)state;
  enum { N = 20000 };
  static float w[2 * N], one[N];
  HostTensor all = {.name = "h.*.w", .rank = 2, .n_repeat = 1, .size = {2, N}, .data = w};
  tensor_fill(&all, FILL_NORMAL, 1, 0.02, 7);
  HostTensor single = {.name = "h.1.w", .rank = 1, .size = {N}, .data = one};
  tensor_fill(&single, FILL_NORMAL, 1, 0.02, 7);
  assert_memory_equal(w + N, one, sizeof one); /* a slice has the values of its own name */
  assert_memory_not_equal(w, one, sizeof one);
  double mean = 0, var = 0;
  for (int i = 0; i < N; i++) {
    mean += (double)w[i] / N;
    var += ((double)w[i] - 1) * ((double)w[i] - 1) / N;
  }
  assert_float_equal(mean, 1, 0.0005);
  assert_float_equal(sqrt(var), 0.02, 0.0005);
  tensor_fill(&single, FILL_UNIFORM, -2, 2, 7);
  for (int i = 0; i < N; i++) {
    assert_true(one[i] >= -2 && one[i] <= 2);
  }
  tensor_fill(&single, FILL_VALUE, 0.5, 0, 7);
  assert_true(one[0] == 0.5f && one[N - 1] == 0.5f);
}

static void test_initial_values_of_any_threads(void **state) {
  (void)state;
  enum { BIG = 400000 };
  static float one[BIG], more[BIG];
  HostTensor t = {.name = "w", .rank = 1, .size = {BIG}, .data = one};
  setenv("DLC_THREADS", "1", 1);
  tensor_fill(&t, FILL_NORMAL, 0, 1, 3);
  setenv("DLC_THREADS", "3", 1);
  t.data = more;
  tensor_fill(&t, FILL_NORMAL, 0, 1, 3);
  unsetenv("DLC_THREADS");
  assert_memory_equal(one, more, sizeof one);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_answers),
      cmocka_unit_test(test_uniform),
      cmocka_unit_test(test_initial_values),
      cmocka_unit_test(test_initial_values_of_any_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
