/* Data sources: every sample once an epoch, exact continuation, held-out parts, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>

#include "folder.h"
#include "runtime/runtime.h"

static DataInput ids(const char *name, int64_t batch, int64_t time, int64_t limit) {
  return (DataInput){.name = name, .dtype = DT_I32, .rank = 2, .size = {batch, time}, .limit = limit};
}

static void refuse(const DataOptions *o, const char *why) {
  Error err = {0};
  Data *d = data_open(o, &err);
  if (d || !strstr(err.msg, why) || err.cls != ERR_INPUT) {
    fail_msg("'%s' lacks '%s'", err.msg, why);
  }
}

static void test_permutation(void **state) {
  (void)state;
  for (uint64_t n = 1; n < 300; n += n < 20 ? 1 : 37) {
    unsigned char seen[300] = {0};
    uint64_t moved = 0;
    for (uint64_t i = 0; i < n; i++) {
      uint64_t at = permute(i, n, 1337, 0);
      assert_true(at < n && !seen[at]);
      seen[at] = 1;
      moved += at != permute(i, n, 1337, 1);
    }
    assert_true(n < 5 || moved > n / 2);
  }
  assert_true(permute(7, (uint64_t)1 << 40, 1, 0) < (uint64_t)1 << 40);
}

/* Ids 0 .. n - 1 as raw 16-bit shards of `each`; a path pattern. */
static const char *make_shards(const char *prefix, int n, int each) {
  uint16_t raw[2048];
  char name[64];
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < each; k++) {
      raw[k] = (uint16_t)(i * each + k);
    }
    snprintf(name, sizeof name, "%s-%d.bin", prefix, i);
    put_file(name, raw, (size_t)each * 2);
  }
  snprintf(name, sizeof name, "%s-*.bin", prefix);
  return in_folder(name);
}

static void check_epoch(Data *d, int64_t batch, int64_t time, int64_t first_step, int64_t steps, int n_ids) {
  int32_t x[64], y[64];
  unsigned char seen[2048] = {0};
  void *out[] = {x, y};
  Error err = {0};
  for (int64_t s = first_step; s < first_step + steps; s++) {
    assert_true(data_train_batch(d, s, out, &err));
    for (int64_t i = 0; i < batch * time; i++) {
      assert_int_equal(y[i], x[i] + 1);
      assert_true(x[i] < n_ids - 1 && !seen[x[i]]);
      seen[x[i]] = 1;
    }
  }
}

static void test_shards(void **state) {
  (void)state;
  DataInput in[] = {ids("tokens", 1, 8, 560), ids("targets", 1, 8, 0)};
  DataOptions o = {
      .kind = SOURCE_TOKENS, .path = make_shards("a", 4, 140), .input = in, .n_inputs = 2, .seed = 5};
  Error err = {0};
  Data *d = data_open(&o, &err);
  assert_non_null(d);
  int64_t n = data_train_samples(d);
  assert_true(n * 8 > 560 - 1 - 16);
  check_epoch(d, 1, 8, 1, n, 560);
  check_epoch(d, 1, 8, n + 1, n, 560);
  assert_float_equal(data_epoch(d, n), 1, 1e-12);
  data_close(d);
  o.sequential = true;
  d = data_open(&o, &err);
  assert_int_equal(data_train_samples(d), 69);
  int32_t x[8], y[8];
  assert_true(data_train_batch(d, 2, (void *[]){x, y}, &err) && x[0] == 8 && y[7] == 16);
  data_close(d);
  o.path = make_shards("b", 1, 8);
  refuse(&o, "needs time + 1 = 9");
  o.path = make_shards("c", 1, 9);
  d = data_open(&o, &err);
  assert_int_equal(data_train_samples(d), 1);
  check_epoch(d, 1, 8, 1, 1, 9);
  data_close(d);
  in[0].limit = 8;
  refuse(&o, "id 8 at position 8 is outside the vocabulary of 8");
  o.path = put_file("odd.bin", "abc", 3);
  refuse(&o, "16-bit");
  o.path = in_folder("none-*.bin");
  refuse(&o, "no file matches");
  int32_t head[256] = {20240520, 1, 5};
  o.path = put_file("cut.bin", head, sizeof head);
  refuse(&o, "claims 5 ids");
}

static void test_text_held_out(void **state) {
  (void)state;
  char text[1000];
  for (int i = 0; i < 1000; i++) {
    text[i] = (char)(i < 900 ? 'a' + i % 7 : 'x');
  }
  DataInput in[] = {ids("tokens", 4, 9, 256), ids("targets", 4, 9, 256)};
  DataOptions o = {.kind = SOURCE_TEXT,
                   .path = put_file("t.txt", text, sizeof text),
                   .tokenizer = "bytes",
                   .hold_out = 0.1,
                   .input = in,
                   .n_inputs = 2,
                   .seed = 1};
  Error err = {0};
  Data *d = data_open(&o, &err);
  assert_non_null(d);
  int32_t x[36], y[36];
  void *out[] = {x, y};
  for (int64_t s = 1; s < 60; s++) { /* over two epochs: nothing held out is ever trained on */
    assert_true(data_train_batch(d, s, out, &err));
    for (int i = 0; i < 36; i++) {
      assert_true(x[i] != 'x' && y[i] != 'x');
    }
  }
  assert_int_equal(data_eval_samples(d), 11);
  assert_int_equal(data_eval_batches(d), 3);
  int64_t valid;
  assert_true(data_eval_batch(d, 2, out, &valid, &err) && valid == 3 && x[0] == 'x');
  assert_memory_equal(x + 18, x + 27, 9 * sizeof *x);
  assert_true(data_eval_fill_last(d, out, &err));
  assert_false(data_eval_batch(d, 3, out, &valid, &err));
  Arena a = {0};
  assert_non_null(strstr(data_describe(d, &a), "900 bytes for training"));
  assert_int_equal(strlen(data_hash(d, &a)), 64);
  arena_free(&a);
  Data *again = data_open(&o, &(Error){0}); /* the same step of another process is the same batch */
  int32_t x2[36], y2[36];
  assert_true(data_train_batch(d, 17, out, &(Error){0}) &&
              data_train_batch(again, 17, (void *[]){x2, y2}, &(Error){0}));
  assert_memory_equal(x, x2, sizeof x);
  data_close(again);
  data_close(d);
  o.hold_out = 0.005;
  refuse(&o, "held out");
  o.hold_out = 1;
  refuse(&o, "hold_out");
  o.hold_out = 0;
  in[0].limit = 'f';
  refuse(&o, "outside the vocabulary");
  o.path = in_folder("nothing.txt");
  refuse(&o, "cannot open");
  o.path = test_folder;
  refuse(&o, "not a file");
  o.path = put_file("empty.txt", "", 0);
  refuse(&o, "empty");
  o.tokenizer = "vocab.bpe";
  o.path = in_folder("t.txt");
  refuse(&o, "vocab.bpe");
}

static void test_chars_and_jsonl(void **state) {
  (void)state;
  static const char lines[] = "{\"text\": \"b\\u00e9\\n\"}\n\n{\"id\": 3, \"text\": \"ab\"}";
  DataInput in[] = {ids("tokens", 1, 5, 4)};
  DataOptions o = {.kind = SOURCE_TEXT,
                   .path = put_file("t.jsonl", lines, sizeof lines - 1),
                   .tokenizer = "chars",
                   .input = in,
                   .n_inputs = 1,
                   .sequential = true};
  Error err = {0};
  Data *d = data_open(&o, &err); /* bé \n \n ab \n: \n a b é */
  assert_non_null(d);
  int32_t x[5];
  assert_true(data_train_batch(d, 1, (void *[]){x}, &err));
  assert_memory_equal(x, ((int32_t[]){2, 3, 0, 0, 1}), sizeof x);
  const Tokenizer *t = data_tokenizer(d);
  assert_int_equal(tokenizer_size(t), 4);
  const char *path = in_folder("vocab.json");
  assert_true(tokenizer_save(t, path, &err));
  Tokenizer *back = tokenizer_load(path, &err);
  assert_non_null(back);
  Str s = {0};
  Arena a = {0};
  int32_t *coded;
  int64_t n;
  assert_true(tokenizer_encode(back, "éa", 3, &a, &coded, &n, &err) && n == 2);
  tokenizer_decode(back, coded[0], &s);
  tokenizer_decode(back, 99, &s);
  assert_string_equal(s.s, "é\xef\xbf\xbd");
  assert_false(tokenizer_encode(back, "z", 1, &a, &coded, &n, &err));
  assert_non_null(strstr(err.msg, "'z'"));
  str_free(&s);
  arena_free(&a);
  tokenizer_close(back);
  data_close(d);
  in[0].limit = 3;
  refuse(&o, "has 4 different characters");
  o.path = put_file("bad.jsonl", "{\"text\": 3}\n", 12);
  refuse(&o, "bad.jsonl:1");
  o.path = put_file("bad.txt", "ab\xff", 3);
  refuse(&o, "not UTF-8 at byte 2");
}

static void test_arrays(void **state) {
  (void)state;
  float image[7 * 2];
  int64_t label[7];
  for (int i = 0; i < 7; i++) {
    image[2 * i] = image[2 * i + 1] = (float)i;
    label[i] = i;
  }
  HostTensor t[] = {{.name = "image", .rank = 2, .size = {7, 2}, .data = image},
                    {.name = "label", .dtype = DT_I64, .rank = 1, .size = {7}, .data = label}};
  Error err = {0};
  const char *path = in_folder("x.safetensors");
  assert_true(tensorfile_write(path, t, 2, NULL, 0, NULL, &err));
  DataInput in[] = {{.name = "label", .dtype = DT_I32, .rank = 1, .size = {2}, .limit = 7},
                    {.name = "image", .dtype = DT_F64, .rank = 2, .size = {2, 2}}};
  DataOptions o = {.kind = SOURCE_ARRAYS, .path = path, .sequential = true, .input = in, .n_inputs = 2};
  Data *d = data_open(&o, &err);
  assert_non_null(d);
  int32_t l[2];
  double p[4];
  void *out[] = {l, p};
  assert_true(data_train_batch(d, 2, out, &err) && l[0] == 2 && l[1] == 3 && p[2] == 3);
  assert_true(data_train_batch(d, 4, out, &err) && l[0] == 6 && l[1] == 0); /* the next epoch begins */
  data_close(d);
  o.hold_out = 0.3;
  o.sequential = false;
  d = data_open(&o, &err);
  int64_t valid;
  assert_int_equal(data_train_samples(d), 5);
  assert_true(data_eval_batch(d, 0, out, &valid, &err) && valid == 2 && l[0] == 5 && l[1] == 6);
  data_close(d);
  in[0].limit = 3;
  refuse(&o, "row 3 holds 3");
  in[1].size[1] = 3;
  refuse(&o, "the input needs [rows, 3]");
  in[1].name = "picture";
  refuse(&o, "no tensor 'picture'; it has: image, label");
}

static void test_baselines(void **state) {
  (void)state;
  char text[4000];
  for (int i = 0; i < 4000; i++) {
    text[i] = i % 2 ? 'a' : 'b';
  }
  DataInput in[] = {ids("tokens", 1, 10, 256)};
  DataOptions o = {.kind = SOURCE_TEXT,
                   .path = put_file("ab.txt", text, 4000),
                   .hold_out = 0.5,
                   .input = in,
                   .n_inputs = 1};
  Error err = {0};
  Data *d = data_open(&o, &err);
  Baselines b;
  assert_true(data_baselines(d, 256, &b, &err));
  assert_float_equal(b.uniform, log(256), 1e-12);
  assert_float_equal(b.unigram, -log(1000.5 / 2255), 1e-3);
  assert_float_equal(b.bigram, -log(1000.5 / 1256), 1e-3);
  data_close(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_permutation),   cmocka_unit_test(test_shards),
      cmocka_unit_test(test_text_held_out), cmocka_unit_test(test_chars_and_jsonl),
      cmocka_unit_test(test_arrays),        cmocka_unit_test(test_baselines),
  };
  return cmocka_run_group_tests(tests, make_test_folder, drop_test_folder);
}
