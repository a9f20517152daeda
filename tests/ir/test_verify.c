/* The verifier on modules broken in memory; cloning, dead code, cost. */
#include "rig.h"

#define LOOP                                                                                                 \
  "%2 = loop %0, %1 axis(l) num(3, 1, 1, 0) : f64[a=2] { (%3: int, %4: f64[a=2], %5: f64[a=2])\n"            \
  "%6 = mul %4, %5 : f64[a=2]\nyield %6\n}\n%7 = neg %2 : f64[a=2]\nreturn %7 output 0 0 \"y\""
#define LOOP_INPUTS "f64[a=2]; f64[l=3, a=2]"

static void expect_broken(Rig *r, const char *words) {
  Error err = {0};
  assert_false(ir_verify(r->m, &err));
  if (!strstr(err.msg, words))
    fail_msg("%s\nlacks: %s", err.msg, words);
  rig_free(r);
}

static Op *op_of(Rig *r, OpCode c) {
  Func *f = r->m->func[0];
  for (uint32_t i = 0; i < f->n_ops; i++)
    if (f->op[i].code == c)
      return &f->op[i];
  fail_msg("no such op");
  return NULL;
}

static void operands(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_NEG)->arg[0] = op_of(&r, OP_NEG)->result;
  expect_broken(&r, "not defined before it in the same block");
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_NEG)->arg[0] = op_of(&r, OP_MUL)->result; /* a value of the body used outside */
  expect_broken(&r, "not defined before it in the same block");
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_MUL)->arg[0] = r.m->func[0]->body->param[0]; /* a value captured by the body */
  expect_broken(&r, "not defined before it in the same block");
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_NEG)->arg[0] = 1000000;
  expect_broken(&r, "not defined before it in the same block");
  rig_read(&r, LOOP_INPUTS, LOOP);
  r.m->func[0]->body->ret[0] = op_of(&r, OP_MUL)->result;
  expect_broken(&r, "a returned value is not defined");
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_NEG)->result = op_of(&r, OP_LOOP)->result;
  expect_broken(&r, "a result is defined twice");
}

static void types(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, LOOP_INPUTS, LOOP);
  r.m->func[0]->val[op_of(&r, OP_NEG)->result].type.dim[0].size = 3;
  expect_broken(&r, "a result's type is not the inferred one");
  rig_read(&r, LOOP_INPUTS, LOOP);
  r.m->func[0]->val[op_of(&r, OP_MUL)->result].type.dtype = DT_F32;
  expect_broken(&r, "not the inferred one");
  rig_read(&r, LOOP_INPUTS, LOOP);
  r.m->func[0]->val[r.m->func[0]->body->param[0]].type.dtype = DT_F32;
  r.m->input[0].type.dtype = DT_F32;
  expect_broken(&r, "a body param's type is not its operand's");
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_LOOP)->body->n_params = 2;
  expect_broken(&r, "operand");
  rig_read(&r, LOOP_INPUTS, LOOP);
  r.m->input[0].type.dtype = DT_F32;
  expect_broken(&r, "argument 0 is not a row of its table");
  rig_read(&r, LOOP_INPUTS, LOOP);
  r.m->func[0]->res[0].name = NULL;
  expect_broken(&r, "result 0 does not fit its kind");
}

static void loops(void **state) {
  (void)state;
  static const struct {
    int at, value;
    const char *words;
  } row[] = {{0, 0, "bad attributes"},
             {0, 4, "a sliced operand lacks the loop axis"},
             {1, 2, "operands, body params and results do not match"},
             {1, -1, "bad attributes"},
             {2, 3, "bad attributes"},
             {2, 0, "a body param's type is not its operand's"}};
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    Rig r;
    rig_read(&r, LOOP_INPUTS, LOOP);
    int64_t num[4];
    memcpy(num, op_of(&r, OP_LOOP)->attr.num, sizeof num);
    num[row[i].at] = row[i].value;
    op_of(&r, OP_LOOP)->attr.num = num;
    expect_broken(&r, row[i].words);
  }
}

static void bodies(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_LOOP)->body = NULL;
  expect_broken(&r, "has no body");
  rig_read(&r, LOOP_INPUTS, LOOP);
  op_of(&r, OP_NEG)->body = op_of(&r, OP_LOOP)->body;
  expect_broken(&r, "has a body");
  static const char *const attention = "%3, %4 = attention %0, %1, %2 axis(d, s) : f64[t=2, d=3], f64[t=2] { "
                                       "(%5: f64[t=2, s=4])\nyield %5\n}\n"
                                       "return %3 output 0 0 \"y\"";
  static const char *const inputs = "f64[t=2, d=3]; f64[s=4, d=3]; f64[s=4, d=3]";
  rig_read(&r, inputs, attention);
  op_of(&r, OP_ATTENTION)->body->n_ret = 0;
  expect_broken(&r, "returns one value");
  rig_read(&r, inputs, attention);
  r.m->func[0]->val[op_of(&r, OP_ATTENTION)->body->param[0]].type.dim[1].size = 5;
  expect_broken(&r, "does not map the product to scores");
}

static void locations_are_named(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, LOOP_INPUTS, LOOP);
  VEC_PUSH(&r.m->arena, r.m->file, r.m->n_files, r.m->cap_files, "model.dl");
  op_of(&r, OP_NEG)->loc = (Loc){0, 12, 5};
  op_of(&r, OP_NEG)->arg[0] = 1000000;
  expect_broken(&r, "model.dl:12:5: invalid IR in eval: neg");
}

static void dead_code(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "f64[a=2]",
           "%1 = neg %0 : f64[a=2]\n%2 = exp %1 : f64[a=2]\n%3, %4 = region %1 \"map\" : f64[a=2], f64[a=2] "
           "{ (%5: f64[a=2])\n"
           "%6 = sin %5 : f64[a=2]\n%7 = cos %5 : f64[a=2]\n%8 = tanh %5 : f64[a=2]\nyield %6, %7\n}\n"
           "return %3 output 0 0 \"y\"");
  Func *f = r.m->func[0];
  ir_dce(f);
  assert_int_equal(f->body->n_ops, 2);
  assert_int_equal(op_of(&r, OP_REGION)->body->n_ops, 2);
  assert_true(ir_verify(r.m, &r.err));
  rig_run(&r);
  near(r.out[0].data[0], sin(-r.in[0].data[0]));
  rig_free(&r);
}

/* A whole function copied op by op, with its loop's body, has the same text. */
static void cloning(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, LOOP_INPUTS, LOOP);
  Func *src = r.m->func[0], *dst = ir_func_new(r.m, "eval");
  Val *map = ARENA_ARRAY(&r.arena, Val, src->n_vals);
  memset(map, 0xff, src->n_vals * sizeof *map);
  for (uint32_t i = 0; i < src->body->n_params; i++)
    map[src->body->param[i]] =
        ir_func_arg(dst, src->arg[i].kind, src->arg[i].index, *ir_type(src, src->body->param[i]), NULL);
  Builder b = {.f = dst, .b = dst->body, .loc = {NONE, 0, 0}, .err = &r.err};
  ir_clone_ops(&b, src, src->body, map);
  ir_func_ret(dst, src->res[0], map[src->body->ret[0]]);
  Str before = {0}, after = {0};
  ir_print_func(src, &before);
  ir_print_func(dst, &after);
  assert_string_equal(before.s, after.s);
  assert_true(ir_verify(r.m, &r.err));
  /* In place: the arrays grow while they are read. */
  for (int k = 0; k < 50; k++)
    ir_clone_op(&b, dst, dst->body->op[0], map);
  assert_true(ir_verify(r.m, &r.err));
  ir_dce(dst);
  str_free(&after);
  after = (Str){0};
  ir_print_func(dst, &after);
  assert_string_equal(before.s, after.s);
  str_free(&before);
  str_free(&after);
  rig_free(&r);
}

static void failed_builders_give_none(void **state) {
  (void)state;
  Module *m = ir_module_new();
  Error err = {0};
  Func *f = ir_func_new(m, "eval");
  Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = &err};
  Val x = ir_const(&b, DT_F32, 1), y = ir_const(&b, DT_F64, 1);
  Val sum = ir_binary(&b, OP_ADD, x, y);
  assert_int_equal(sum, NONE);
  assert_int_equal(ir_unary(&b, OP_EXP, sum), NONE);
  assert_int_equal(ir_cast(&b, sum, DT_F64), NONE);
  assert_int_equal(ir_const(&b, DT_F32, 2), NONE);
  assert_non_null(strstr(err.msg, "f32 and f64"));
  ir_module_free(m);
}

static void cost(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "f64[m=3, k=5]; f64[k=5, n=7]; f64[l=4, n=7]",
           "%3 = contract %0, %1 axis(k) : f64[m=3, n=7]\n%4 = loop %3, %2 axis(l) num(4, 1, 1, 0) : "
           "f64[m=3, n=7] { (%5: int, "
           "%6: f64[m=3, n=7], %7: f64[n=7])\n%8 = mul %6, %7 : f64[m=3, n=7]\nyield %8\n}\n%9 = sum %4 "
           "axis(n) : f64[m=3]\n"
           "return %9 output 0 0 \"y\"");
  const Func *f = r.m->func[0];
  near(ir_op_flops(f, f->body->op[0]), 2 * 3 * 5 * 7);
  near(ir_op_flops(f, f->body->op[1]), 4 * 21);
  near(ir_op_flops(f, f->body->op[2]), 21);
  rig_free(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operands),  cmocka_unit_test(types),
      cmocka_unit_test(loops),     cmocka_unit_test(bodies),
      cmocka_unit_test(dead_code), cmocka_unit_test(locations_are_named),
      cmocka_unit_test(cloning),   cmocka_unit_test(failed_builders_give_none),
      cmocka_unit_test(cost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
