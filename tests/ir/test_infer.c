/* Type rules: what each row refuses and in which words; sizes that wrap. What rows accept is in the other
 * tests. */
#include "rig.h"

static void refused(void **state) {
  (void)state;
  static const struct {
    const char *inputs, *op, *words;
  } row[] = {
      {"", "iota axis(a) num(0) : int", "size is not positive"},
      {"", "iota axis(a) num(3000000000) : int", "more than an int can count"},
      {"", "iota axis(a) : int", "attributes are missing"},
      {"f32; i64", "random %0, %1 axis(a) num(2, 1) : f32", "seed and attempt are i64 scalars"},
      {"i64; i64", "random %0, %1 axis(a) num(2) : f32", "attributes are missing"},
      {"i64; i64", "random %0, %1 axis(a) num(2, 1) : int", "draws floats, not int"},
      {"i64; i64", "random %0, %1 axis(a, a) num(2, 2, 1) : f32", "axis 'a' twice"},
      {"i64", "random %0 num(1) : f32", "needs seed and attempt"},
      {"int[a=2]", "exp %0 : int", "exp: needs a float operand, which is int[a=2]"},
      {"bool", "neg %0 : bool", "needs numbers"},
      {"f32", "not %0 : f32", "needs a bool operand"},
      {"f32; f32", "neg %0, %1 : f32", "neg takes 1 operands, not 2"},
      {"f32[a=3]; f32[a=4]", "add %0, %1 : f32", "axis 'a' is 3 in one operand and 4 in the other"},
      {"f32; f64", "mul %0, %1 : f32", "operands are f32 and f64"},
      {"bool; bool", "add %0, %1 : bool", "needs numbers"},
      {"int; int", "div %0, %1 : int", "needs a float operand"},
      {"f32; int", "lt %0, %1 : bool", "operands are f32 and int"},
      {"f32; bool", "and %0, %1 : bool", "needs bool operands"},
      {"f32; f32; f32", "select %0, %1, %2 : f32", "the condition must be bool"},
      {"bool; f32; int", "select %0, %1, %2 : f32", "operands are f32 and int"},
      {"bool[a=2]; f32[a=3]; f32", "select %0, %1, %2 : f32", "axis 'a' is"},
      {"f32[a=3]", "broadcast %0 axis(b) num(2) : f32", "axis 'a' of size 3 is not in the result"},
      {"f32[a=3]", "broadcast %0 axis(a, b) num(3, -1) : f32", "size is not positive"},
      {"f32[a=3]", "rename %0 axis(b, c) : f32", "the operand is f32[a=3], it does not have the axis 'b'"},
      {"f32[a=3, b=2]", "rename %0 axis(a, b) : f32", "would have the axis 'b' twice"},
      {"f32[a=3]", "rename %0 axis(a) : f32", "without a new name"},
      {"f32[a=6]", "split %0 axis(a, p, q) num(2, 2) : f32", "has size 6, the parts make 4"},
      {"f32[a=6, p=1]", "split %0 axis(a, p, q) num(2, 3) : f32", "axis 'p' twice"},
      {"f32[a=6]", "merge %0 axis(a, a, m) : f32", "'a' is named twice"},
      {"f32[a=6, b=2]", "merge %0 axis(a, c, m) : f32", "does not have the axis 'c'"},
      {"f32[a=6, b=2, m=1]", "merge %0 axis(a, b, m) : f32", "axis 'm' twice"},
      {"f32[a=6, b=2]", "reorder %0 axis(a) : f32", "an axis is missing"},
      {"f32[a=6]", "slice %0 axis(a) num(2, 2) : f32", "2..2 is outside axis 'a' of size 6, or empty"},
      {"f32[a=6]", "slice %0 axis(a) num(-1, 2) : f32", "-1..2 is outside"},
      {"f32[a=6]", "slice %0 axis(a) num(2, 7) : f32", "2..7 is outside"},
      {"f32[a=6]", "pad %0 axis(a, a) num(-1, 0) : f32", "negative or overflow"},
      {"f32[a=6]", "pad %0 axis(a, a) num(9223372036854775807, 0) : f32", "negative or overflow"},
      {"f32[a=6]; f32[b=2]", "concat %0, %1 axis(c, a) : f32", "attributes are missing"},
      {"f32[a=6, x=2]; f32[b=2, x=3]", "concat %0, %1 axis(c, a, b) : f32", "must agree in their other axes"},
      {"f32[a=6]", "sum %0 axis(b) : f32", "sum[b]: the operand is f32[a=6]"},
      {"f32[a=6]", "sum %0 axis(a, a) : f32", "'a' is named twice"},
      {"bool[a=6]", "sum %0 axis(a) : bool", "needs numbers"},
      {"bool[a=6]", "prod %0 axis(a) : bool", "needs numbers"},
      {"f32[a=6]", "reduce_max %0 axis(b) : f32", "does not have the axis 'b'"},
      {"f32[a=6]", "reduce_min %0 axis(b) : f32", "does not have the axis 'b'"},
      {"f32[a=6, b=2]", "argmax %0 axis(a, b) : int", "one axis at a time"},
      {"f32[a=6]", "cumsum %0 axis(b) num(0) : f32", "does not have the axis 'b'"},
      {"f32[a=6]", "sort %0 axis(a, k) num(7, 0) : f32", "longer than 'a' of size 6"},
      {"f32[a=6]; f32[a=5]", "contract %0, %1 axis(a) : f32",
       "axis 'a' is 6 in one operand and 5 in the other"},
      {"f32[a=6]; f32[b=5]", "contract %0, %1 axis(a) : f32", "does not have the axis 'a'"},
      {"f32[a=6]; f64[a=6]", "contract %0, %1 axis(a) : f32", "operands are f32 and f64"},
      {"f32[a=6]; f32[b=2]", "gather %0, %1 axis(a) : f32", "an index must be int"},
      {"f32[a=6]; int[b=2]", "gather %0, %1 axis(c) : f32", "does not have the axis 'c'"},
      {"f32[a=6, b=3]; int[b=2]", "gather %0, %1 axis(a) : f32",
       "axis 'b' is 3 in the operand and 2 in the index"},
      {"f32[a=6]; int", "gather %0, %1, %1 axis(a, a) : f32", "'a' is named twice"},
      {"f32[b=2]; int[b=2]", "scatter_add %0, %1 axis(v, u) num(7) : f32", "does not have the axis 'v'"},
      {"f32[b=2]; int[b=2]", "scatter_add %0, %1 axis(v, v, e) num(7, 3) : f32",
       "the result has axis 'e' of size 3"},
      {"int[a=6]", "softmax %0 axis(a) : int", "needs a float operand"},
      {"f32[d=2]; f32[d=2, s=3]; f32[s=3]", "linear_xent %0, %1, %2 axis(d, s) : f32",
       "the target must be int"},
      {"f32[n=4, d=2]; f32[d=2, s=3]; int[n=5]", "linear_xent %0, %1, %2 axis(d, s) : f32",
       "axes of the loss"},
      {"f32[n=4, d=2]; f32[d=2, s=3]; int[n=4]; f32",
       "linear_xent_grad %0, %1, %2, %3 axis(d, s) : f32, f32, f32",
       "the cotangent must be f32[n=4], not f32"},
      {"f32; int", "grad %0, %1 : int", "needs floats"},
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    Str ops = {0};
    int args = row[i].inputs[0] != 0;
    for (const char *c = row[i].inputs; *c; c++)
      args += *c == ';';
    bool sorts = strstr(row[i].op, "sort") != NULL, three = strstr(row[i].op, "xent_grad") != NULL;
    str_printf(&ops, "%%%d", args);
    if (sorts || three)
      str_printf(&ops, ", %%%d", args + 1);
    if (three)
      str_printf(&ops, ", %%%d", args + 2);
    str_printf(&ops, " = %s%s", row[i].op, sorts ? ", int" : "");
    char *text = module_text(row[i].inputs, ops.s);
    Error err = {0};
    assert_null(ir_read(text, strlen(text), "test", &err));
    if (!strstr(err.msg, row[i].words))
      fail_msg("%s\n%s\nlacks: %s", row[i].op, err.msg, row[i].words);
    free(text);
    str_free(&ops);
  }
}

static void attentions_refused(void **state) {
  (void)state;
  static const struct {
    const char *inputs, *op, *words;
  } row[] = {
      {"f32[t=2, d=3]; f32[s=4, d=3]; f32[s=4, d=3]", "attention %0, %1, %2 axis(d) : f32",
       "head axes and a key axis"},
      {"f32[t=2, d=3]; f32[s=4, d=3]; f32[s=5, d=3]", "attention %0, %1, %2 axis(d, s) : f32",
       "axis 's' is 4"},
      {"f32[t=2, d=3]; f32[s=4, d=3]; f32[s=4, d=3]", "attention %0, %1, %2 axis(d, u) : f32", "axis 'u'"},
      {"int[t=2, d=3]; int[s=4, d=3]; int[s=4, d=3]", "attention %0, %1, %2 axis(d, s) : int",
       "float operands"},
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    Str ops = {0};
    str_printf(&ops, "%%3, %%4 = %s, f32 { (%%5: f32[t=2, s=4])\nyield %%5\n}", row[i].op);
    char *text = module_text(row[i].inputs, ops.s);
    Error err = {0};
    assert_null(ir_read(text, strlen(text), "test", &err));
    if (!strstr(err.msg, row[i].words))
      fail_msg("%s\n%s\nlacks: %s", row[i].op, err.msg, row[i].words);
    free(text);
    str_free(&ops);
  }
}

/* Counts and bytes that pass 2^63 are errors before anything is allocated or multiplied. */
static void sizes_that_wrap(void **state) {
  (void)state;
  static const char *const types[] = {"f32[a=3037000500, b=3037000500]",
                                      "f32[a=4611686018427387904]",
                                      "u8[a=4294967296, b=4294967296]",
                                      "f32[a=0, b=4]",
                                      "f32[a=-1, b=4]",
                                      "f32[a=4, b=0, c=0]",
                                      "f32[a=9223372036854775808]"};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char *text = module_text(types[i], "");
    Error err = {0};
    assert_null(ir_read(text, strlen(text), "test", &err));
    assert_non_null(strstr(err.msg, "test:2: "));
    free(text);
  }
  static const char *const ops[] = {"%2 = add %0, %1 : f32[a=4294967296, b=4294967296]",
                                    "%2 = contract %0, %1 : f32",
                                    "%2 = broadcast %0 axis(a, c) num(4294967296, 4294967296) : f32"};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    char *text = module_text("f32[a=4294967296]; f32[b=4294967296]", ops[i]);
    Error err = {0};
    assert_null(ir_read(text, strlen(text), "test", &err));
    if (!strstr(err.msg, "bytes pass 2^63") && !strstr(err.msg, "too large"))
      fail_msg("%s", err.msg);
    free(text);
  }
}

static void too_many_axes(void **state) {
  (void)state;
  char *text = module_text("f32[a=1, b=1, c=1, d=1, e=1, f=1, g=1]; f32[h=1, i=1, j=1, k=1, l=1, m=1]",
                           "%2 = add %0, %1 : f32");
  Error err = {0};
  assert_null(ir_read(text, strlen(text), "test", &err));
  assert_non_null(strstr(err.msg, "more than 12 axes"));
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(refused),
      cmocka_unit_test(attentions_refused),
      cmocka_unit_test(sizes_that_wrap),
      cmocka_unit_test(too_many_axes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
