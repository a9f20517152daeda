/* Fusing: nothing changes, nothing computes outside of regions, memory is owned. */
#include "passes/fuse.h"
#include "program_rig.h"

#include <stdlib.h>

static void check_block(const Func *f, const Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    if (op->code == OP_LOOP)
      check_block(f, op->body);
    else if (op->code != OP_REGION && !is_view(f, op))
      fail_msg("%s is outside of regions", ir_op_info[op->code].text);
    if (op->code == OP_REGION && op->n_args + op->n_results > MAX_OPERANDS)
      fail_msg("a region has %u operands and results", op->n_args + op->n_results);
  }
}

static void dump(const Func *f) {
  Str s = {0};
  ir_print_func(f, &s);
  fputs(s.s, stderr);
  str_free(&s);
}

/* Fuses a copy of f and compares all results. */
static void check_fused(Fix *x, const Func *f, double tol) {
  Func *g = func_copy(f, "fused", NULL, NULL);
  assert_true(pass_fuse(g, &x->err));
  no_error(x);
  if (getenv("DLC_TEST_DUMP"))
    dump(g);
  check_block(g, g->body);
  Data d = make_data(f, -1, 1);
  Arena arena = {0};
  Tensor *want = run(f, &d, &arena), *got = run(g, &d, &arena);
  for (uint32_t i = 0; i < f->body->n_ret; i++)
    for (int64_t k = 0; k < type_count(&want[i].type); k++)
      close_to(f->res[i].name ? f->res[i].name : "result", got[i].data[k], want[i].data[k], tol);
  arena_free(&arena);
  arena_free(&d.arena);
}

static void transformer_step(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_training(&x);
  for (PipeKind kind = PIPE_TRAIN; kind <= PIPE_EVAL; kind++) {
    if (kind == PIPE_EVAL)
      pass_select(ir_func(x.m, "train"), "eval", NULL, NULL);
    Func *f = pipeline_unfused(x.m, kind, 1, NULL, 0, &(PassHooks){.verify = true}, &x.err);
    no_error(&x);
    check_fused(&x, f, 1e-12);
  }
  ir_module_free(x.m);
}

/* ---- what ends up in one kernel ---- */

static uint32_t count_class(const Func *f, const Block *b, const char *cls) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    if (op->code == OP_REGION)
      n += !cls || strcmp(op->attr.str, cls) == 0;
    else if (op->body)
      n += count_class(f, op->body, cls);
  }
  return n;
}

static const Op *find_region(const Func *f, const char *cls) {
  for (uint32_t i = 0; i < f->body->n_ops; i++) {
    const Op *op = &f->op[f->body->op[i]];
    if (op->code == OP_REGION && strcmp(op->attr.str, cls) == 0)
      return op;
  }
  fail_msg("no region of class %s", cls);
  return NULL;
}

static void output(Fix *x, const char *name, Val v) {
  no_error(x);
  ir_func_ret(x->f, (FuncRes){.kind = RES_OUTPUT, .name = name}, v);
}

static Func *fused(Fix *x) {
  check_fused(x, x->f, 1e-12);
  return ir_func(x->m, "fused");
}

/* act(x w + b) and its mean square: a product with its epilogue, then a sum. */
static void epilogue(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Axis in = ax(&x, "i"), both[2] = {ax(&x, "n"), ax(&x, "o")};
  Val a = fix_param(&x, "a", "n=4,i=8"), w = fix_param(&x, "w", "i=8,o=16"), b = fix_param(&x, "b", "o=16");
  Val y = ir_unary(&x.b, OP_TANH, add(&x, ir_contract(&x.b, a, w, &in, 1), b));
  output(&x, "y", y);
  output(&x, "s", ir_reduce(&x.b, OP_SUM, mul(&x, y, y), both, 2));
  Func *f = fused(&x);
  assert_int_equal(count_class(f, f->body, NULL), 2);
  assert_int_equal(find_region(f, "gemm")->n_results, 1);
  assert_int_equal(find_region(f, "reduce")->n_args, 1); /* the square is not stored */
  ir_module_free(x.m);
}

/* Row statistics and all that is computed from them: one kernel; what others need of it is computed again
 * from the statistics. */
static void rows(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Axis in = ax(&x, "e"), t = ax(&x, "t");
  Val v = fix_param(&x, "v", "t=32,e=16"), g = fix_param(&x, "g", "e=16"),
      w = fix_param(&x, "w", "e=16,o=32");
  Val n = norm(&x, v, g);
  output(&x, "y", ir_contract(&x.b, n, w, &in, 1));
  output(&x, "columns", ir_reduce(&x.b, OP_SUM, mul(&x, n, v), &t, 1));
  Func *f = fused(&x);
  assert_int_equal(count_class(f, f->body, "norm"), 1);
  assert_int_equal(find_region(f, "norm")->n_results, 1);
  assert_int_equal(count_class(f, f->body, NULL), 3);
  ir_module_free(x.m);
}

static void sums_of_one_shape(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Axis rows[1] = {ax(&x, "n")};
  for (int i = 0; i < 3; i++)
    output(&x, i ? i == 1 ? "b" : "c" : "a",
           ir_reduce(&x.b, OP_SUM, fix_param(&x, i ? i == 1 ? "p" : "q" : "r", "n=64,o=3"), rows, 1));
  Func *f = fused(&x);
  assert_int_equal(count_class(f, f->body, NULL), 1);
  ir_module_free(x.m);
}

/* Gradient of a table that is looked up and multiplied with: the sum of both in one buffer. */
static void scatter_onto(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Axis n = ax(&x, "n"), v = ax(&x, "v");
  Val at = fix_input(&x, "at", DT_I32, "n=6"), g = fix_param(&x, "g", "n=6,e=4"),
      h = fix_param(&x, "h", "n=6,v=3");
  Attr a = {.axis = (Axis[]){v, v, ax(&x, "e")}, .n_axis = 3, .num = (int64_t[]){3, 4}, .n_num = 2};
  Val s = ir_op(&x.b, OP_SCATTER_ADD, (Val[]){g, at}, 2, &a, NULL);
  output(&x, "dw", add(&x, s, ir_contract(&x.b, h, g, &n, 1)));
  Func *f = fused(&x);
  assert_int_equal(count_class(f, f->body, NULL), 2);
  assert_int_equal(find_region(f, "scatter")->n_args, 3);
  ir_module_free(x.m);
}

/* Next values are written over the last ones: no copies but where somebody reads the last one later. */
static void updates_in_place(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_training(&x);
  Func *f = pipeline(x.m, PIPE_TRAIN, 1, NULL, 0, &(PassHooks){.verify = true}, &x.err);
  no_error(&x);
  assert_int_equal(count_class(f, f->body, "copy"), 0);
  assert_int_equal(count_class(f, f->body, "update"), x.m->n_params);
  ir_module_free(x.m);
}

/* The norm of a parameter is not part of its update, which would then have to be stored elsewhere. */
static void update_with_norm(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Axis both[2] = {ax(&x, "a"), ax(&x, "b")};
  Val p = fix_param(&x, "p", "a=4,b=8");
  Val size = ir_reduce(&x.b, OP_SUM, mul(&x, p, p), both, 2);
  Val next = sub(&x, p, mul(&x, p, size));
  no_error(&x);
  ir_func_ret(x.f, (FuncRes){.kind = RES_PARAM, .index = 0}, next);
  Func *f = fused(&x);
  assert_int_equal(count_class(f, f->body, "copy"), 0);
  assert_int_equal(count_class(f, f->body, "reduce"), 1);
  assert_int_equal(count_class(f, f->body, "update"), 1);
  ir_module_free(x.m);
}

/* Arguments and parts of them as results, one value twice, a constant, parameters that change places. */
static void results_of_their_own(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val p = fix_param(&x, "p", "a=4,b=2"), q = fix_param(&x, "q", "a=4,b=2");
  Axis a = ax(&x, "a"), c = ax(&x, "c");
  Attr slice = {.axis = &a, .n_axis = 1, .num = (int64_t[]){1, 3}, .n_num = 2};
  Val twice = add(&x, p, q);
  output(&x, "argument", p);
  output(&x, "part", ir_op(&x.b, OP_SLICE, &p, 1, &slice, NULL));
  output(&x, "renamed", ir_rename(&x.b, twice, &a, &c, 1));
  output(&x, "once", twice);
  output(&x, "again", twice);
  output(&x, "constant", num(&x, 3));
  ir_func_ret(x.f, (FuncRes){.kind = RES_PARAM, .index = 0}, q);
  ir_func_ret(x.f, (FuncRes){.kind = RES_PARAM, .index = 1}, p);
  fused(&x);
  check_program(&x, "results of their own", x.f, 1e-12);
  ir_module_free(x.m);
}

/* Carried values that only change places lie where the parameters do, which are then updated. */
static void carried_parameters(void **state) {
  (void)state;
  for (int64_t turns = 2; turns <= 3; turns++) {
    Fix x;
    fix_init(&x);
    Val p = fix_param(&x, "p", "a=4"), q = fix_param(&x, "q", "a=4");
    Block *body = ir_block_new(x.f);
    ir_param(x.f, body, type_scalar(DT_I32), "i");
    Val c = ir_param(x.f, body, *ir_type(x.f, p), NULL), d = ir_param(x.f, body, *ir_type(x.f, q), NULL);
    ir_block_ret(x.f, body, d);
    ir_block_ret(x.f, body, c);
    ir_block_ret(x.f, body, d);
    Attr attr = {.axis = (Axis[]){ax(&x, "n")}, .n_axis = 1, .num = (int64_t[]){turns, 2, 0, 0}, .n_num = 4};
    Val r = ir_op(&x.b, OP_LOOP, (Val[]){p, q}, 2, &attr, body);
    ir_func_ret(x.f, (FuncRes){.kind = RES_PARAM, .index = 0}, sub(&x, p, mul(&x, r, num(&x, 2))));
    ir_func_ret(x.f, (FuncRes){.kind = RES_PARAM, .index = 1}, add(&x, q, mul(&x, r + 1, r)));
    output(&x, "stacked", r + 2);
    check_program(&x, "carried parameters", x.f, 1e-12);
    ir_module_free(x.m);
  }
}

/* More operands than a kernel takes. */
static void wide_sum(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val sum = num(&x, 0);
  char name[100][8];
  for (int i = 0; i < 100; i++) {
    snprintf(name[i], sizeof name[i], "p%d", i);
    sum = add(&x, sum, ir_unary(&x.b, OP_EXP, fix_param(&x, name[i], "a=5")));
  }
  output(&x, "sum", sum);
  Func *f = fused(&x);
  assert_true(count_class(f, f->body, NULL) >= 4);
  ir_module_free(x.m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transformer_step),
      cmocka_unit_test(epilogue),
      cmocka_unit_test(rows),
      cmocka_unit_test(sums_of_one_shape),
      cmocka_unit_test(scatter_onto),
      cmocka_unit_test(updates_in_place),
      cmocka_unit_test(update_with_norm),
      cmocka_unit_test(results_of_their_own),
      cmocka_unit_test(wide_sum),
      cmocka_unit_test(carried_parameters),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
