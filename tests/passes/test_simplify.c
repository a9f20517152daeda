/* Folding, common subexpressions, dead code; and that bits are kept where they must be. */
#include "util.h"

static Func *simplified(Fix *x, Val v) {
  no_error(x);
  ir_func_ret(x->f, (FuncRes){.kind = RES_OUTPUT, .name = "out"}, v);
  assert_true(pass_simplify(x->f, &x->err));
  assert_true(ir_verify_func(x->f, &x->err));
  return x->f;
}

static Val out_of(const Func *f) {
  return f->body->ret[0];
}

static Val bin(Fix *x, OpCode c, Val a, Val b) {
  return ir_binary(&x->b, c, a, b);
}

typedef Val (*Make)(Fix *x, Val p);
static Val times_one(Fix *x, Val p) {
  return bin(x, OP_MUL, num(x, 1), p);
}
static Val over_one(Fix *x, Val p) {
  return bin(x, OP_DIV, p, num(x, 1));
}
static Val minus_zero(Fix *x, Val p) {
  return bin(x, OP_SUB, p, num(x, 0));
}
static Val twice_negated(Fix *x, Val p) {
  return ir_unary(&x->b, OP_NEG, ir_unary(&x->b, OP_NEG, p));
}
static Val to_the_one(Fix *x, Val p) {
  return bin(x, OP_POW, p, num(x, 1));
}
static Val chosen(Fix *x, Val p) {
  return ir_select(&x->b, bin(x, OP_LT, num(x, 1), num(x, 2)), p, num(x, 7));
}
static Val renamed_back(Fix *x, Val p) {
  Axis a = ax(x, "a"), c = ax(x, "c");
  return ir_rename(&x->b, ir_rename(&x->b, p, &a, &c, 1), &c, &a, 1);
}
static Val reordered_back(Fix *x, Val p) {
  Type t = *ir_type(x->f, p), r = parse_type(x->m, DT_F64, "b=5,a=3");
  return ir_reorder(&x->b, ir_reorder(&x->b, p, &r), &t);
}
static Val constant_arithmetic(Fix *x, Val p) {
  Val one = bin(x, OP_SUB, bin(x, OP_MUL, num(x, 2), num(x, 3)), num(x, 5));
  return bin(x, OP_MUL, p, ir_broadcast(&x->b, one, ir_type(x->f, p)));
}

static void becomes_the_operand(void **state) {
  (void)state;
  const Make make[] = {times_one, over_one,     minus_zero,     twice_negated,      to_the_one,
                       chosen,    renamed_back, reordered_back, constant_arithmetic};
  for (size_t i = 0; i < sizeof make / sizeof *make; i++) {
    Fix x;
    fix_init(&x);
    Val p = fix_param(&x, "x", "a=3,b=5");
    Func *f = simplified(&x, make[i](&x, p));
    if (out_of(f) != p || f->body->n_ops != 0)
      fail_msg("case %zu is not simplified", i);
    ir_module_free(x.m);
  }
}

/* -0 + 0 is 0; x * 0 may be NaN; x - x likewise. */
static void keeps_bits(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val p = fix_param(&x, "x", "a=3");
  Val v = bin(&x, OP_ADD, bin(&x, OP_ADD, p, num(&x, 0)), bin(&x, OP_MUL, p, num(&x, 0)));
  Func *f = simplified(&x, v);
  assert_int_equal(count_ops(f, OP_ADD), 2);
  assert_int_equal(count_ops(f, OP_MUL), 1);
  ir_module_free(x.m);
}

static void powers_become_products(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val p = fix_param(&x, "x", "a=3"), v = num(&x, 0);
  const double e[] = {2, 3, 4, 0.5, 1.5, -0.5, -1, -2};
  for (size_t i = 0; i < sizeof e / sizeof *e; i++)
    v = bin(&x, OP_ADD, v, bin(&x, OP_POW, p, num(&x, e[i])));
  Func *before = (no_error(&x), x.f);
  ir_func_ret(before, (FuncRes){.kind = RES_OUTPUT, .name = "out"}, v);
  Func *f = pass_select(before, "copy", NULL, NULL);
  assert_true(pass_simplify(f, &x.err));
  assert_int_equal(count_ops(f, OP_POW), 0);
  Arena arena = {0};
  Data d = make_data(f, 0.5, 2);
  Tensor *a = run(before, &d, &arena), *b = run(f, &d, &arena);
  for (int i = 0; i < 3; i++)
    close_to("power", b[0].data[i], a[0].data[i], 1e-14);
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

/* Constants are rounded to their dtype before they are used again. */
static void folds_in_the_right_dtype(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val third = bin(&x, OP_DIV, ir_const(&x.b, DT_F32, 1), ir_const(&x.b, DT_F32, 3));
  Val v = ir_cast(&x.b, third, DT_F64);
  Func *f = simplified(&x, v);
  double c;
  assert_true(is_const(f, out_of(f), &c));
  assert_true(c == (double)(1.0f / 3.0f));
  ir_module_free(x.m);
}

static void equal_ops_merge_but_draws_do_not(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val p = fix_param(&x, "x", "a=3"), q = fix_param(&x, "y", "a=3");
  Val seed = ir_const(&x.b, DT_I64, 1);
  Val draw[2];
  for (int i = 0; i < 2; i++) {
    Attr r = {
        .axis = (Axis[]){ax(&x, "a")}, .n_axis = 1, .num = (int64_t[]){3, i}, .n_num = 2, .dtype = DT_F64};
    draw[i] = ir_op(&x.b, OP_RANDOM, (Val[]){seed, seed}, 2, &r, NULL);
  }
  Val v = bin(&x, OP_MUL, bin(&x, OP_ADD, p, q), bin(&x, OP_ADD, q, p));
  Func *f = simplified(&x, bin(&x, OP_MUL, v, bin(&x, OP_SUB, draw[0], draw[1])));
  assert_int_equal(count_ops(f, OP_ADD), 1);
  assert_int_equal(count_ops(f, OP_RANDOM), 2);
  ir_module_free(x.m);
}

/* x[c = index(t)] is a slice, x[c = 2] too: so their gradients are pads. */
static void indices_become_slices(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val p = fix_param(&x, "x", "c=8,e=3");
  Axis c = ax(&x, "c");
  Val i = ir_iota(&x.b, ax(&x, "t"), 5), two = ir_const(&x.b, DT_I32, 2),
      far = ir_binary(&x.b, OP_ADD, i, two);
  Val v = bin(&x, OP_MUL, ir_gather(&x.b, p, &c, &i, 1), ir_gather(&x.b, p, &c, &two, 1));
  v = bin(&x, OP_MUL, v, ir_gather(&x.b, p, &c, &far, 1));
  no_error(&x);
  ir_func_ret(x.f, (FuncRes){.kind = RES_OUTPUT, .name = "out"}, v);
  Func *f = pass_select(x.f, "copy", NULL, NULL);
  assert_true(pass_simplify(f, &x.err));
  assert_int_equal(count_ops(f, OP_GATHER), 0);
  Arena arena = {0};
  Data d = make_data(f, -1, 1);
  Tensor *a = run(x.f, &d, &arena), *b = run(f, &d, &arena);
  assert_true(type_equal(&a[0].type, &b[0].type));
  assert_memory_equal(a[0].data, b[0].data, 15 * sizeof(double));
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

/* A loop with one useful carry among dead ones, an unused result, a slice and an invariant that nothing
 * reads. */
static void loops_shrink(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val a = fix_param(&x, "a", "e=3"), b = fix_param(&x, "b", "e=3"), xs = fix_param(&x, "xs", "l=4,e=3"),
      ys = fix_param(&x, "ys", "l=4,e=3");
  Block *body = ir_block_new(x.f);
  Builder in = x.b;
  in.b = body;
  Type e = parse_type(x.m, DT_F64, "e=3");
  ir_param(x.f, body, type_scalar(DT_I32), "i");
  Val pa = ir_param(x.f, body, e, NULL), pb = ir_param(x.f, body, e, NULL), px = ir_param(x.f, body, e, NULL);
  ir_param(x.f, body, e, NULL);
  ir_param(x.f, body, e, NULL);
  Val two = ir_param(x.f, body, type_scalar(DT_F64), NULL);
  ir_block_ret(x.f, body, ir_binary(&in, OP_ADD, ir_binary(&in, OP_MUL, pa, two), px));
  ir_block_ret(x.f, body, ir_binary(&in, OP_ADD, pb, pa));
  ir_block_ret(x.f, body, pb);
  ir_block_ret(x.f, body, pa);
  Attr attr = {.axis = (Axis[]){ax(&x, "l")}, .n_axis = 1, .num = (int64_t[]){4, 2, 2, 0}, .n_num = 4};
  Val r = ir_op(&x.b, OP_LOOP, (Val[]){a, b, xs, ys, b, num(&x, 2)}, 6, &attr, body);
  Func *f = x.f;
  no_error(&x);
  ir_func_ret(f, (FuncRes){.kind = RES_OUTPUT, .name = "out"}, r + 3);
  Func *before = pass_select(f, "before", NULL, NULL);
  assert_true(pass_simplify(f, &x.err));
  const Op *loop = def_op(f, out_of(f));
  assert_int_equal(loop->code, OP_LOOP);
  assert_int_equal(loop->n_args, 2);    /* a, xs */
  assert_int_equal(loop->n_results, 2); /* last a, stacked a */
  Arena arena = {0};
  Data d = make_data(f, -1, 1);
  Tensor *u = run(before, &d, &arena), *v = run(f, &d, &arena);
  assert_memory_equal(u[0].data, v[0].data, 12 * sizeof(double));
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

/* A table of angles in a loop body is computed before the loop, its cheap mask is not. */
static void dear_tables_are_hoisted(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val c = fix_param(&x, "c", "t=3,e=4");
  Block *body = ir_block_new(x.f);
  Builder in = x.b;
  in.b = body;
  ir_param(x.f, body, type_scalar(DT_I32), "i");
  Val p = ir_param(x.f, body, parse_type(x.m, DT_F64, "t=3,e=4"), NULL);
  Val t = ir_iota(&in, ax(&x, "t"), 3), e = ir_iota(&in, ax(&x, "e"), 4);
  Val angle = ir_binary(&in, OP_MUL, ir_cast(&in, t, DT_F64), ir_cast(&in, e, DT_F64));
  Val turned = ir_binary(&in, OP_MUL, p, ir_unary(&in, OP_COS, angle));
  ir_block_ret(x.f, body, ir_select(&in, ir_binary(&in, OP_LT, t, e), turned, p));
  Attr attr = {.axis = (Axis[]){ax(&x, "l")}, .n_axis = 1, .num = (int64_t[]){4, 1, 0, 0}, .n_num = 4};
  Val r = ir_op(&x.b, OP_LOOP, &c, 1, &attr, body);
  no_error(&x);
  ir_func_ret(x.f, (FuncRes){.kind = RES_OUTPUT, .name = "out"}, r);
  Func *f = pass_select(x.f, "copy", NULL, NULL);
  assert_true(pass_hoist(f, &x.err));
  const Op *loop = def_op(f, f->body->ret[0]);
  assert_int_equal(loop->n_args, 2);
  assert_int_equal(count_in(f, loop->body, OP_COS), 0);
  assert_int_equal(count_in(f, loop->body, OP_LT), 1);
  Arena arena = {0};
  Data d = make_data(f, -1, 1);
  Tensor *u = run(x.f, &d, &arena), *v = run(f, &d, &arena);
  assert_memory_equal(u[0].data, v[0].data, 12 * sizeof(double));
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(becomes_the_operand),
      cmocka_unit_test(keeps_bits),
      cmocka_unit_test(powers_become_products),
      cmocka_unit_test(folds_in_the_right_dtype),
      cmocka_unit_test(equal_ops_merge_but_draws_do_not),
      cmocka_unit_test(indices_become_slices),
      cmocka_unit_test(loops_shrink),
      cmocka_unit_test(dear_tables_are_hoisted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
