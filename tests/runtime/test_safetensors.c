/* Safetensors: round trips, conversions, repeats, and every lie a header can tell. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <sys/resource.h>

#include "folder.h"
#include "runtime/runtime.h"

/* A file in memory: length prefix, header, data bytes 0, 1, 2, ... */
static size_t image(unsigned char *out, const char *header, uint64_t claimed, size_t data) {
  size_t n = strlen(header);
  for (int i = 0; i < 8; i++) {
    out[i] = (unsigned char)(claimed >> 8 * i);
  }
  memcpy(out + 8, header, n);
  for (size_t i = 0; i < data; i++) {
    out[8 + n + i] = (unsigned char)i;
  }
  return 8 + n + data;
}

static const char good[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[16,40]}}";

static void expect_bad(const char *header, size_t data, const char *why) {
  unsigned char bytes[2048];
  size_t n = image(bytes, header, strlen(header), data);
  Error err = {0};
  TensorFile *f = tensorfile_from_memory(bytes, n, "x.safetensors", &err);
  if (f || !strstr(err.msg, why) || !strstr(err.msg, "x.safetensors") || err.cls != ERR_INPUT) {
    fail_msg("header %s: '%s' lacks '%s'", header, err.msg, why);
  }
}

static void test_cut_at_every_byte(void **state) {
  (void)state;
  unsigned char bytes[2048];
  size_t n = image(bytes, good, strlen(good), 40);
  for (size_t cut = 0; cut < n; cut++) {
    unsigned char *exact = malloc(cut ? cut : 1); /* so that a read past the end is seen by the sanitizer */
    memcpy(exact, bytes, cut);
    Error err = {0};
    assert_null(tensorfile_from_memory(exact, cut, "cut", &err));
    assert_int_equal(err.cls, ERR_INPUT);
    free(exact);
  }
  Error err = {0};
  TensorFile *f = tensorfile_from_memory(bytes, n, "whole", &err);
  assert_non_null(f);
  assert_int_equal(tensorfile_count(f), 2);
  tensorfile_close(f);
}

static void test_length_prefix(void **state) {
  (void)state;
  static const uint64_t claims[] = {
      0, 1, 140, (uint64_t)1 << 31, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7, 100000001, 99999999, 41};
  unsigned char bytes[2048];
  for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
    size_t n = image(bytes, good, claims[i], 40);
    Error err = {0};
    assert_null(tensorfile_from_memory(bytes, n, "prefix", &err));
    assert_non_null(strstr(err.msg, "prefix"));
  }
  struct rusage use;
  getrusage(RUSAGE_SELF, &use);
#ifndef __SANITIZE_ADDRESS__
  assert_true(use.ru_maxrss < 64 * 1024);
#endif
}

#define ROW(name, dtype, shape, lo, hi)                                                                      \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" lo "," hi "]}"

static void test_lies(void **state) {
  (void)state;
  expect_bad("[]", 0, "'{'");
  expect_bad("{ ", 0, "JSON");
  expect_bad("{} x", 0, "JSON");
  expect_bad("{\"a\":3}", 0, "not an object");
  expect_bad("{\"__metadata__\":3}", 0, "__metadata__");
  expect_bad("{\"__metadata__\":{\"k\":3}}", 0, "not a string");
  expect_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "dtype, shape and data_offsets");
  expect_bad("{" ROW("a", "F33", "[1]", "0", "4") "}", 4, "unknown dtype");
  expect_bad("{" ROW("a", "F32", "[-1]", "0", "4") "}", 4, "whole number");
  expect_bad("{" ROW("a", "F32", "[1.5]", "0", "4") "}", 4, "whole number");
  expect_bad("{" ROW("a", "F32", "7", "0", "4") "}", 4, "shape");
  expect_bad("{" ROW("a", "F32", "[3037000500,3037000500]", "0", "4") "}", 4, "2^63");
  expect_bad("{" ROW("a", "F32", "[4611686018427387904]", "0", "4") "}", 4, "2^63");
  expect_bad("{" ROW("a", "F32", "[99999999999999999999]", "0", "4") "}", 4, "JSON");
  expect_bad("{" ROW("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, "12 dimensions");
  expect_bad("{" ROW("a", "F32", "[1]", "4", "0") "}", 4, "not in order");
  expect_bad("{" ROW("a", "F32", "[1]", "0", "8") "}", 8, "need 4 bytes");
  expect_bad("{" ROW("a", "F32", "[2]", "0", "8") "}", 4, "cut short");
  expect_bad("{" ROW("a", "F32", "[1]", "0", "4") "}", 5, "after the last tensor");
  expect_bad("{" ROW("a", "F32", "[1]", "4", "8") "}", 8, "gap");
  expect_bad("{" ROW("a", "F32", "[1]", "0", "4") "," ROW("b", "F32", "[1]", "2", "6") "}", 6, "overlap");
  expect_bad("{" ROW("a", "F32", "[1]", "0", "4") "," ROW("b", "F32", "[1]", "0", "4") "}", 4, "overlap");
  expect_bad("{" ROW("a", "F32", "[1]", "0", "4") "," ROW("a", "F32", "[1]", "4", "8") "}", 8, "duplicate");
  expect_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "only");
  char deep[1500] = "{\"a\":";
  memset(deep + 5, '[', 1400);
  expect_bad(deep, 0, "JSON");
}

static void test_deep_header(void **state) {
  (void)state;
  enum { DEPTH = 1000000 };
  unsigned char *bytes = malloc(DEPTH + 16);
  size_t n = DEPTH;
  memset(bytes, '[', DEPTH + 16);
  for (int i = 0; i < 8; i++) {
    bytes[i] = (unsigned char)((uint64_t)(n - 8) >> 8 * i);
  }
  memcpy(bytes + 8, "{\"a\":", 5);
  Error err = {0};
  assert_null(tensorfile_from_memory(bytes, n, "deep", &err));
  assert_int_equal(err.cls, ERR_INPUT);
  free(bytes);
}

static void test_round_trip_with_repeats(void **state) {
  (void)state;
  float w[24], v[2] = {-0.0f, INFINITY}, s = 3;
  for (int i = 0; i < 24; i++) {
    w[i] = (float)i;
  }
  const HostTensor out[] = {
      {.name = "h.*.m.*.w",
       .rank = 4,
       .n_repeat = 2,
       .size = {2, 3, 2, 2},
       .axis = {"l", "k", "row", "col"},
       .data = w},
      {.name = "v", .rank = 1, .size = {2}, .axis = {"x"}, .data = v},
      {.name = "s", .data = &s},
  };
  const char *meta[] = {"note", "a \"quoted\" value"};
  Error err = {0};
  char sum[65];
  const char *path = in_folder("round.safetensors");
  assert_true(tensorfile_write(path, out, 3, meta, 1, sum, &err));
  assert_int_equal(strlen(sum), 64);
  TensorFile *f = tensorfile_open(path, &err);
  assert_non_null(f);
  assert_int_equal(tensorfile_count(f), 8);
  assert_string_equal(tensorfile_meta(f, "note"), meta[1]);
  const FileTensor *t = tensorfile_find(f, "h.1.m.2.w");
  assert_string_equal(t->axes, "row,col");
  assert_int_equal(t->rank, 2);
  float w2[24] = {0}, s2;
  double v2[2];
  HostTensor in[] = {out[0], out[1], out[2]};
  in[0].data = w2;
  in[1].data = v2;
  in[1].dtype = DT_F64;
  in[2].data = &s2;
  assert_true(tensors_load(f, in, 3, NULL, false, false, &err));
  assert_memory_equal(w, w2, sizeof w);
  assert_true(signbit(v2[0]) && isinf(v2[1]) && s2 == 3);
  w2[23] = 0;
  assert_true(tensors_load(f, in, 1, "h.1.*", false, false, &err)); /* the others are not picked */
  assert_true(w2[23] == 23);
  tensorfile_close(f);
  unlink(path);
}

static void test_one_error_lists_all(void **state) {
  (void)state;
  float w[6] = {0};
  HostTensor out[] = {{.name = "a", .rank = 1, .size = {2}, .data = w},
                      {.name = "b", .rank = 1, .size = {3}, .data = w}};
  Error err = {0};
  const char *path = in_folder("names.safetensors");
  assert_true(tensorfile_write(path, out, 2, NULL, 0, NULL, &err));
  TensorFile *f = tensorfile_open(path, &err);
  HostTensor in[] = {{.name = "a", .rank = 2, .size = {1, 2}, .data = w},
                     {.name = "h.*.c", .rank = 2, .n_repeat = 1, .size = {2, 1}, .data = w}};
  assert_false(tensors_load(f, in, 2, NULL, false, false, &err));
  assert_int_equal(err.cls, ERR_INPUT);
  static const char *const parts[] = {"names.safetensors",
                                      "another shape: a: [2] in the file, [1, 2] in the model",
                                      "missing: h.0.c", "missing: h.1.c", "not in the model: b"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    assert_non_null(strstr(err.msg, parts[i]));
  }
  err = (Error){0};
  in[0] = out[0];
  assert_true(tensors_load(f, in, 2, NULL, true, true, &err));
  HostTensor twice[] = {out[0], out[0]};
  assert_false(tensorfile_write(path, twice, 2, NULL, 0, NULL, &err));
  assert_non_null(strstr(err.msg, "called 'a'"));
  tensorfile_close(f);
  unlink(path);
}

static void test_conversions(void **state) {
  (void)state;
  /* f16 1, -2, 2^-24, inf, nan; bf16 1, -3; e4m3 1, 448, nan; e5m2 1, inf; i8 -1; u16 65535; u64 2^63 */
  static const char header[] =
      "{" ROW("h", "F16", "[5]", "0", "10") "," ROW("b", "BF16", "[2]", "10", "14") "," ROW(
          "e", "F8_E4M3", "[3]", "14",
          "17") "," ROW("f", "F8_E5M2", "[2]", "17",
                        "19") "," ROW("i", "I8", "[1]", "19", "20") "," ROW("u", "U16", "[1]", "20",
                                                                            "22") "," ROW("w", "U64", "[1]",
                                                                                          "22", "30") "}";
  static const unsigned char data[] = {0,    0x3c, 0,    0xc0, 1,    0,    0,    0x7c, 1,    0x7e,
                                       0x80, 0x3f, 0x40, 0xc0, 0x38, 0x7e, 0x7f, 0x3c, 0x7c, 0xff,
                                       0xff, 0xff, 0,    0,    0,    0,    0,    0,    0,    0x80};
  unsigned char bytes[1024];
  size_t n = image(bytes, header, strlen(header), sizeof data);
  memcpy(bytes + n - sizeof data, data, sizeof data);
  Error err = {0};
  TensorFile *f = tensorfile_from_memory(bytes, n, "c", &err);
  assert_non_null(f);
  double d[5];
  float s[2];
  int32_t i;
  int64_t wide;
  assert_true(filetensor_read(tensorfile_find(f, "h"), 0, 5, DT_F64, d, &err));
  assert_true(d[0] == 1 && d[1] == -2 && d[2] == 0x1p-24 && isinf(d[3]) && isnan(d[4]));
  assert_true(filetensor_read(tensorfile_find(f, "b"), 0, 2, DT_F32, s, &err) && s[0] == 1 && s[1] == -3);
  assert_true(filetensor_read(tensorfile_find(f, "e"), 0, 3, DT_F64, d, &err) && d[0] == 1 && d[1] == 448 &&
              isnan(d[2]));
  assert_true(filetensor_read(tensorfile_find(f, "f"), 0, 2, DT_F64, d, &err) && d[0] == 1 && isinf(d[1]));
  assert_true(filetensor_read(tensorfile_find(f, "i"), 0, 1, DT_I32, &i, &err) && i == -1);
  assert_true(filetensor_read(tensorfile_find(f, "u"), 0, 1, DT_I32, &i, &err) && i == 65535);
  assert_true(filetensor_read(tensorfile_find(f, "w"), 0, 1, DT_F64, d, &err) && d[0] == 0x1p63);
  assert_false(filetensor_read(tensorfile_find(f, "w"), 0, 1, DT_I64, &wide, &err));
  assert_non_null(strstr(err.msg, "element 0"));
  err = (Error){0};
  assert_false(filetensor_read(tensorfile_find(f, "h"), 2, 1, DT_I32, &i, &err)); /* a fraction */
  err = (Error){0};
  assert_false(filetensor_read(tensorfile_find(f, "h"), 3, 3, DT_F64, d, &err)); /* past the end */
  tensorfile_close(f);
}

static void test_file_cut_while_open(void **state) {
  (void)state;
  float w[4096] = {0};
  HostTensor t = {.name = "a", .rank = 1, .size = {4096}, .data = w};
  Error err = {0};
  const char *path = in_folder("cut.safetensors");
  assert_true(tensorfile_write(path, &t, 1, NULL, 0, NULL, &err));
  TensorFile *f = tensorfile_open(path, &err);
  assert_int_equal(truncate(path, 5000), 0);
  assert_false(filetensor_read(tensorfile_at(f, 0), 0, 4096, DT_F32, w, &err));
  assert_non_null(strstr(err.msg, "shorter"));
  tensorfile_close(f);
  unlink(path);
  err = (Error){0};
  assert_null(tensorfile_open(path, &err));
  assert_null(tensorfile_open(test_folder, &(Error){0}));
}

static void test_names(void **state) {
  (void)state;
  assert_true(name_like("h.3.attn.wq", "h.*.wq"));
  assert_true(name_like("h.3.attn.wq", "h.3.attn.wq"));
  assert_true(name_like("a", "*") && name_like("", "*") && name_like("ab", "a*b*"));
  assert_false(name_like("h.3.attn.wk", "h.*.wq"));
  assert_false(name_like("xh", "h*") || name_like("", "a") || name_like("ha", "h"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_length_prefix),
      cmocka_unit_test(test_cut_at_every_byte),
      cmocka_unit_test(test_lies),
      cmocka_unit_test(test_deep_header),
      cmocka_unit_test(test_round_trip_with_repeats),
      cmocka_unit_test(test_one_error_lists_all),
      cmocka_unit_test(test_conversions),
      cmocka_unit_test(test_file_cut_while_open),
      cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests(tests, make_test_folder, drop_test_folder);
}
