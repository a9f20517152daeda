/* The text of the IR: every row of the op table goes through reader, verifier, printer and interpreter (the
 * seeds of the fuzz target hold them all); broken texts are refused with their line. */
#include "rig.h"

static const char *const seeds[] = {"pointwise", "move", "reduce", "index", "composite", "struct"};

static char *file_text(const char *name, size_t *n) {
  char path[1024];
  snprintf(path, sizeof path, "%s/tests/fuzz/seeds/fuzz_ir/%s.ir", DLC_SOURCE_DIR, name);
  FILE *f = fopen(path, "r");
  if (!f)
    fail_msg("cannot open %s", path);
  char *text = calloc(1, 1 << 16);
  *n = fread(text, 1, (1 << 16) - 1, f);
  fclose(f);
  return text;
}

static void count_ops(const Func *f, const Block *b, int seen[OP_COUNT]) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    seen[op->code]++;
    if (op->body)
      count_ops(f, op->body, seen);
  }
}

static void run_func(const Func *f) {
  Arena arena = {0};
  Error err = {0};
  const Block *b = f->body;
  Tensor *in = ARENA_ARRAY(&arena, Tensor, b->n_params), *out = ARENA_ARRAY(&arena, Tensor, b->n_ret);
  for (uint32_t i = 0; i < b->n_params; i++) {
    in[i].type = f->val[b->param[i]].type;
    in[i].data = ARENA_ARRAY(&arena, double, (size_t)type_count(&in[i].type));
    fill(&in[i], (int)i);
  }
  if (!ir_interp(f, in, out, &arena, false, &err))
    fail_msg("%s: %s", f->name, err.msg);
  for (uint32_t i = 0; i < b->n_ret; i++)
    assert_true(type_equal(&out[i].type, &f->val[b->ret[i]].type));
  arena_free(&arena);
}

static void every_row(void **state) {
  (void)state;
  int seen[OP_COUNT] = {0};
  for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
    size_t n;
    char *text = file_text(seeds[i], &n);
    Error err = {0};
    Module *m = ir_read(text, n, seeds[i], &err);
    if (!m)
      fail_msg("%s", err.msg);
    Str again = {0};
    ir_print(m, &again);
    assert_string_equal(again.s, text);
    for (uint32_t k = 0; k < m->n_funcs; k++) {
      count_ops(m->func[k], m->func[k]->body, seen);
      run_func(m->func[k]);
    }
    str_free(&again);
    ir_module_free(m);
    free(text);
  }
  for (int c = 0; c < OP_COUNT; c++)
    if (!seen[c])
      fail_msg("no seed has the op '%s': a row without reader, inference and interpreter tests",
               ir_op_info[c].text);
}

/* Cut or changed anywhere, a text is refused or read, but never more. */
static void cut_texts(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
    size_t n;
    char *text = file_text(seeds[i], &n);
    for (size_t at = 0; at < n; at += 3) {
      Error err = {0};
      ir_module_free(ir_read(text, at, "cut", &err));
      char keep = text[at];
      text[at] = '0' + (char)(at % 10);
      err = (Error){0};
      ir_module_free(ir_read(text, n, "changed", &err));
      text[at] = keep;
    }
    free(text);
  }
}

static void refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *words;
  } row[] = {
      {"", "t:1: expected 'module'"},
      {"module f33\n", "t:1: expected a dtype"},
      {"module f32\nfunk\n", "t:2: expected 'func' or the end"},
      {"module f32\ninput \"x f32\n", "t:2: a string does not end on its line"},
      {"module f32\ninput \"\\x\" f32 @0:0:0\n", "t:2: bad escape"},
      {"module f32\ninput \"x\" f32[a=2, a=2] @0:0:0\n", "an axis is there twice"},
      {"module f32\ninput \"x\" f32 @0:0\n", "expected ':'"},
      {"module f32\nparam \"x\" f32 repeat 0 what 0 0\n", "unknown word"},
      {"module f32\nparam \"x\" f32 repeat 4294967296 fill 0 0\n", "number out of range"},
      {"module f32\nparam \"x\" f32[a=2] repeat 2 fill 0 0 group 0 @0:0:0\n", "parameter 'x'"},
      {"module f32\nopt \"m\" f32 param 0 fill 0 repeat 0\n", "optimizer state 'm' has no parameter"},
      {"module f32\nfunc eval() {\n  %0 = const 1 : f32\n", "t:4: expected '}'"},
      {"module f32\nfunc eval() {\n  %1 = const 1 : f32\n}\n", "t:3: values are numbered from 0"},
      {"module f32\nfunc eval() {\n  %0 = cosnt 1 : f32\n}\n", "t:3: there is no op 'cosnt'"},
      {"module f32\nfunc eval() {\n  %0 = const one : f32\n}\n", "t:3: expected a number"},
      {"module f32\nfunc eval() {\n  %0 = neg %0 : f32\n}\n", "t:3: a value is used before it is defined"},
      {"module f32\nfunc eval() {\n  %0, %1 = const 1 : f32, f32\n}\n", "t:3: wrong number of results"},
      {"module f32\nfunc eval() {\n  %0 = iota axis(a) num(x) : int\n}\n", "t:3: expected a whole number"},
      {"module f32\nfunc eval() {\n  %0 = iota axis(a) num(3) : int[a=4]\n}\n",
       "t:3: the result of iota is int[a=3]"},
      {"module f32\nfunc eval() {\n  %0 = const 1 : f32 @4294967295:1:1\n}\n", "t:3: expected a place"},
      {"module f32\nfunc eval() {\n  %0 = const 1 : f32 1 \"x\"\n}\n", "t:3: expected the name of a result"},
      {"module f32\nfunc eval(%0: f32 input 0) {\n}\n", "argument 0 is not a row of its table"},
      {"module f32\nfunc eval() {\n  %0 = const 1 : f32\n  return %0 param 0 0\n}\n",
       "result 0 does not fit its kind"},
      {"module f32\nfunc eval() {\n  %0 = const 1 : f32\n  return %0 output 0 0\n}\n",
       "result 0 does not fit its kind"},
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    Error err = {0};
    assert_null(ir_read(row[i].text, strlen(row[i].text), "t", &err));
    assert_int_equal(err.cls, ERR_INPUT);
    if (!strstr(err.msg, row[i].words))
      fail_msg("%s\nlacks: %s", err.msg, row[i].words);
  }
}

static void deep_nesting(void **state) {
  (void)state;
  Str s = {0};
  str_puts(&s, "module f32\nfunc eval() {\n");
  for (int i = 0; i < 1000; i++)
    str_printf(&s, "%%%d = region \"map\" : f32 { ()\n", i);
  Error err = {0};
  assert_null(ir_read(s.s, s.len, "t", &err));
  assert_non_null(strstr(err.msg, "nested too deeply"));
  str_free(&s);
}

static void constants_are_exact(void **state) {
  (void)state;
  static const double v[] = {0.1,
                             -0.0,
                             INFINITY,
                             -INFINITY,
                             5e-324,
                             1.7976931348623157e308,
                             0.57735026918962573,
                             9007199254740991.0};
  for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
    Module *m = ir_module_new();
    Error err = {0};
    Func *f = ir_func_new(m, "eval");
    Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = &err};
    ir_func_ret(f, (FuncRes){.kind = RES_OUTPUT, .name = "y"}, ir_const(&b, DT_F64, v[i]));
    Str s = {0};
    ir_print(m, &s);
    Module *again = ir_read(s.s, s.len, "t", &err);
    assert_non_null(again);
    double got = again->func[0]->op[0].attr.f;
    assert_memory_equal(&got, &v[i], sizeof got);
    str_free(&s);
    ir_module_free(m);
    ir_module_free(again);
  }
}

/* Regions that differ only in axis names, value names and places have one text; in a size or a constant, two.
 */
static void region_texts(void **state) {
  (void)state;
  static const char *const ops = "%%1 = region %%0 \"map\" : f64[%s=%d] { (%%2: f64[%s=%d] \"%s\")\n%%3 = "
                                 "const %s : f64\n%%4 = mul %%2, %%3 : "
                                 "f64[%s=%d]\nyield %%4\n}\nreturn %%1 output 0 0 \"y\"";
  static const struct {
    const char *axis, *name, *value;
    int size;
  } row[] = {{"a", "x", "2", 3}, {"b", "z", "2", 3}, {"a", "x", "2", 4}, {"a", "x", "2.5", 3}};
  char text[4][1024];
  for (int i = 0; i < 4; i++) {
    char o[512], input[32];
    const char *a = row[i].axis;
    int n = row[i].size;
    snprintf(o, sizeof o, ops, a, n, a, n, row[i].name, row[i].value, a, n);
    snprintf(input, sizeof input, "f64[%s=%d]", a, n);
    Rig r;
    rig_read(&r, input, o);
    Str s = {0};
    ir_print_region(r.m->func[0], r.m->func[0]->body->op[0], &s);
    snprintf(text[i], sizeof text[i], "%s", s.s);
    str_free(&s);
    rig_free(&r);
  }
  assert_string_equal(text[0], text[1]);
  assert_string_not_equal(text[0], text[2]);
  assert_string_not_equal(text[0], text[3]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_row),    cmocka_unit_test(cut_texts),           cmocka_unit_test(refused),
      cmocka_unit_test(deep_nesting), cmocka_unit_test(constants_are_exact), cmocka_unit_test(region_texts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
