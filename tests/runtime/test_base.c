/* The base layer: shortest numbers, sums, arenas, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/base.h"

static void test_sha256(void **state) {
  (void)state;
  char whole[65], pieces[65];
  sha256_hex("abc", 3, whole);
  assert_string_equal(whole, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  sha256_hex("", 0, whole);
  assert_string_equal(whole, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  unsigned char text[300];
  for (int i = 0; i < 300; i++) {
    text[i] = (unsigned char)(i * 7);
  }
  for (size_t n = 0; n < sizeof text; n++) {
    sha256_hex(text, n, whole);
    for (size_t cut = 0; cut <= n; cut += 13) {
      Sha256 s;
      sha256_start(&s);
      s.fast = s.fast && cut % 2; /* both ways must agree */
      sha256_add(&s, text, cut);
      sha256_add(&s, text + cut, n - cut);
      sha256_end(&s, pieces);
      assert_string_equal(whole, pieces);
    }
  }
}

static void test_shortest_numbers(void **state) {
  (void)state;
  static const struct {
    double v;
    const char *text;
  } cases[] = {{0.1, "0.1"},       {1e-8, "1e-08"},         {-0.0, "-0"}, {1.0 / 3, "0.3333333333333333"},
               {5e-324, "5e-324"}, {123456789, "123456789"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Str s = {0};
    str_put_double(&s, cases[i].v);
    assert_string_equal(s.s, cases[i].text);
    str_free(&s);
  }
}

static void test_first_error_stays(void **state) {
  (void)state;
  Error err = {0};
  assert_false(error_set(&err, ERR_INPUT, "first %d", 1));
  assert_false(error_set(&err, ERR_RUN, "second"));
  assert_string_equal(err.msg, "first 1");
  assert_int_equal(err.cls, ERR_INPUT);
}

static void test_arena(void **state) {
  (void)state;
  Arena a = {0};
  for (size_t n = 0; n < 200000; n = n * 3 + 1) {
    unsigned char *p = arena_alloc(&a, n);
    assert_int_equal((uintptr_t)p % 16, 0);
    for (size_t i = 0; i < n; i++) {
      assert_int_equal(p[i], 0);
      p[i] = 1;
    }
  }
  int *v = NULL;
  uint32_t n = 0, cap = 0;
  for (int i = 0; i < 1000; i++) {
    VEC_PUSH(&a, v, n, cap, i);
  }
  assert_int_equal(v[999], 999);
  int64_t out;
  assert_false(size_mul(INT64_MAX, 2, &out) || size_mul(-1, 2, &out) || size_add(INT64_MAX, 1, &out));
  arena_free(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sha256),
      cmocka_unit_test(test_shortest_numbers),
      cmocka_unit_test(test_first_error_stays),
      cmocka_unit_test(test_arena),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
