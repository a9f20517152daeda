/* A small transformer through the whole pipeline: values, gradients, what is recognised and what is stored.
 */
#include "util.h"

enum { B = 2, T = 4, E = 4, H = 2, D = 2, F = 6, V = 7, L = 3 };

static Val mul(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_MUL, a, b);
}
static Val add(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_ADD, a, b);
}
static Val sub(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_SUB, a, b);
}
static Val sum(Fix *x, Val v, const char *axis) {
  Axis a = ax(x, axis);
  return ir_reduce(&x->b, OP_SUM, v, &a, 1);
}
static Val mean(Fix *x, Val v, const char *axis, double n) {
  return mul(x, sum(x, v, axis), num(x, 1 / n));
}

static Val norm(Fix *x, Val v, Val gain) {
  Val z = sub(x, v, mean(x, v, "e", E));
  Val var = mean(x, mul(x, z, z), "e", E);
  return mul(x, mul(x, z, ir_unary(&x->b, OP_RSQRT, add(x, var, num(x, 1e-5)))), gain);
}

static Val guarded_max(Fix *x, Val v, const char *axis) {
  Axis a = ax(x, axis);
  Val m = ir_unary(&x->b, OP_STOP, ir_reduce(&x->b, OP_REDUCE_MAX, v, &a, 1));
  return ir_select(&x->b, ir_binary(&x->b, OP_EQ, m, num(x, -INFINITY)), num(x, 0), m);
}

static Val softmax(Fix *x, Val v, const char *axis) {
  Val e = ir_unary(&x->b, OP_EXP, sub(x, v, guarded_max(x, v, axis))), s = sum(x, e, axis);
  s = ir_select(&x->b, ir_binary(&x->b, OP_EQ, s, num(x, 0)), num(x, 1), s);
  return ir_binary(&x->b, OP_DIV, e, s);
}

typedef struct {
  Val g1, wq, wk, wv, wo, g2, w1, b1, w2;
} Layer;

static Val block_of(Fix *x, Val v, const Layer *p, Val seed, Val attempt, Val index) {
  Builder *b = &x->b;
  Axis time = ax(x, "t"), key = ax(x, "key");
  Val n = norm(x, v, p->g1);
  Val q = sum(x, mul(x, n, p->wq), "e");
  Val k = ir_rename(b, sum(x, mul(x, n, p->wk), "e"), &time, &key, 1);
  Val val = ir_rename(b, sum(x, mul(x, n, p->wv), "e"), &time, &key, 1);
  Val score = ir_binary(b, OP_DIV, sum(x, mul(x, q, k), "d"), num(x, sqrt(D)));
  Val mask = ir_binary(b, OP_LE, ir_iota(b, key, T), ir_iota(b, time, T));
  Val o = sum(x, mul(x, softmax(x, ir_select(b, mask, score, num(x, -INFINITY)), "key"), val), "key");
  Axis hd[2] = {ax(x, "h"), ax(x, "d")};
  v = add(x, v, ir_reduce(b, OP_SUM, mul(x, o, p->wo), hd, 2));
  Val h = add(x, sum(x, mul(x, norm(x, v, p->g2), p->w1), "e"), p->b1);
  Val m = sum(x, mul(x, mul(x, h, ir_unary(b, OP_SIGMOID, h)), p->w2), "f");
  Attr r = {.axis = (Axis[]){ax(x, "b"), time, ax(x, "e")},
            .n_axis = 3,
            .num = (int64_t[]){B, T, E, 0},
            .n_num = 4,
            .dtype = DT_F64};
  Val u = ir_op(b, OP_RANDOM, (Val[]){seed, attempt, index}, 3, &r, NULL);
  Val keep = ir_select(b, ir_binary(b, OP_LT, u, num(x, 0.25)), num(x, 0), num(x, 1 / 0.75));
  return add(x, v, mul(x, m, keep));
}

static Val slice_of(Fix *x, Block *body, Val whole) {
  Axis layer = ax(x, "layer");
  return ir_param(x->f, body, type_without(ir_type(x->f, whole), &layer, 1), NULL);
}

static Val layers(Fix *x, Val v) {
  const Val w[9] = {fix_param(x, "g1", "layer=3,e=4"),         fix_param(x, "wq", "layer=3,e=4,h=2,d=2"),
                    fix_param(x, "wk", "layer=3,e=4,h=2,d=2"), fix_param(x, "wv", "layer=3,e=4,h=2,d=2"),
                    fix_param(x, "wo", "layer=3,h=2,d=2,e=4"), fix_param(x, "g2", "layer=3,e=4"),
                    fix_param(x, "w1", "layer=3,e=4,f=6"),     fix_param(x, "b1", "layer=3,f=6"),
                    fix_param(x, "w2", "layer=3,f=6,e=4")};
  Val seed = ir_func_arg(x->f, ARG_SCALAR, SCALAR_SEED, type_scalar(DT_I64), "$seed");
  Val attempt = ir_func_arg(x->f, ARG_SCALAR, SCALAR_ATTEMPT, type_scalar(DT_I64), "$attempt");
  Block *body = ir_block_new(x->f), *outer = x->b.b;
  Val index = ir_param(x->f, body, type_scalar(DT_I32), "layer"),
      c = ir_param(x->f, body, *ir_type(x->f, v), "x"), s[9], args[12] = {v};
  for (int i = 0; i < 9; i++) {
    args[1 + i] = w[i];
    s[i] = slice_of(x, body, w[i]);
  }
  args[10] = seed;
  args[11] = attempt;
  Val in_seed = ir_param(x->f, body, type_scalar(DT_I64), NULL),
      in_attempt = ir_param(x->f, body, type_scalar(DT_I64), NULL);
  const Layer p = {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]};
  x->b.b = body;
  ir_block_ret(x->f, body, block_of(x, c, &p, in_seed, in_attempt, index));
  x->b.b = outer;
  Attr attr = {.axis = (Axis[]){ax(x, "layer")}, .n_axis = 1, .num = (int64_t[]){L, 1, 9, 0}, .n_num = 4};
  return ir_op(&x->b, OP_LOOP, args, 12, &attr, body);
}

static void build_model(Fix *x, bool penalty) {
  Builder *b = &x->b;
  Axis vocab = ax(x, "v"), ctx = ax(x, "ctx");
  Val tokens = fix_input(x, "tokens", DT_I32, "b=2,t=4"),
      targets = fix_input(x, "targets", DT_I32, "b=2,t=4");
  Val wte = fix_param(x, "wte", "v=7,e=4"), wpe = fix_param(x, "wpe", "ctx=6,e=4"),
      gf = fix_param(x, "gf", "e=4");
  Val at = ir_iota(b, ax(x, "t"), T);
  Val start = add(x, ir_gather(b, wte, &vocab, &tokens, 1), ir_gather(b, wpe, &ctx, &at, 1)),
      v = layers(x, start);
  Val logits = sum(x, mul(x, norm(x, v, gf), wte), "e"), m = guarded_max(x, logits, "v");
  Val lse = add(x, ir_unary(b, OP_LOG, sum(x, ir_unary(b, OP_EXP, sub(x, logits, m)), "v")), m);
  Val nll = sub(x, lse, ir_gather(b, logits, &vocab, &targets, 1));
  Val total = ir_reduce(b, OP_SUM, nll, (Axis[]){ax(x, "b"), ax(x, "t")}, 2), n = num(x, B * T);
  Val loss = ir_binary(b, OP_DIV, total, n);
  if (penalty) {
    Val g = ir_op(b, OP_GRAD, (Val[]){loss, start}, 2, NULL, NULL);
    loss = add(x, loss, ir_reduce(b, OP_SUM, mul(x, g, g), (Axis[]){ax(x, "b"), ax(x, "t"), ax(x, "e")}, 3));
  }
  fix_loss(x, loss);
  ir_func_ret(x->f, (FuncRes){.kind = RES_LOSS_NUM, .name = "loss", .coef = 1}, total);
  ir_func_ret(x->f, (FuncRes){.kind = RES_LOSS_DEN, .name = "loss"}, n);
}

/* The backward loop: the one with an attention_grad in it. */
static const Op *loop_with(const Func *f, OpCode c) {
  for (uint32_t i = 0; i < f->body->n_ops; i++) {
    const Op *op = &f->op[f->body->op[i]];
    if (op->code == OP_LOOP && count_in(f, op->body, c))
      return op;
  }
  fail_msg("no loop has %s", ir_op_info[c].text);
  return NULL;
}

static void transformer(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_model(&x, false);
  no_error(&x);
  Func *g = pipeline_unfused(x.m, PIPE_GRAD, 0, NULL, 0, &(PassHooks){.verify = true}, &x.err);
  no_error(&x);
  assert_int_equal(count_ops(g, OP_ATTENTION), 1);
  assert_int_equal(count_ops(g, OP_ATTENTION_GRAD), 1);
  assert_int_equal(count_ops(g, OP_LINEAR_XENT_GRAD), 1);
  assert_int_equal(count_ops(g, OP_LINEAR_XENT), 0);
  assert_int_equal(count_ops(g, OP_SOFTMAX), 0);
  assert_int_equal(count_ops(g, OP_SCATTER_ADD), 1); /* tokens; positions are a slice */
  assert_int_equal(count_ops(g, OP_CONTRACT), 6 * 3);
  assert_int_equal(count_ops(g, OP_REORDER), 0);
  assert_int_equal(count_in(g, loop_with(g, OP_ATTENTION_GRAD)->body, OP_RANDOM), 1);
  /* Stored by an iteration: x, two means and variances, the operands of six contractions (the norms, gate; q,
   * k, v), o and lse, and the results that are needed to recompute: output projection, hidden. */
  const Op *fwd = loop_with(g, OP_ATTENTION);
  Str s = {0};
  ir_print_func(g, &s);
  if (fwd->n_results - 1 > 15)
    fail_msg("%u values are stored by an iteration\n%s", fwd->n_results - 1, s.s);
  str_free(&s);
  for (uint32_t i = 0; i < fwd->n_results; i++) /* and nothing over queries and keys */
    assert_false(type_has(ir_type(g, fwd->result + i), ax(&x, "key")));
  Data d = make_data(x.f, -1, 1), dg = {.n = g->body->n_params};
  Arena arena = {0};
  Func *plain = pass_autodiff(x.f, "plain", &x.err);
  no_error(&x);
  dg.in = ARENA_ARRAY(&arena, Tensor, dg.n);
  for (uint32_t i = 0; i < dg.n; i++)
    for (uint32_t k = 0; k < d.n; k++)
      if (x.f->arg[k].kind == g->arg[i].kind && x.f->arg[k].index == g->arg[i].index)
        dg.in[i] = d.in[k];
  check_against_differences("without composites", x.f, plain, &d, 1e-6);
  Tensor *a = run(plain, &d, &arena), *b = run(g, &dg, &arena);
  for (uint32_t i = 0; i < g->body->n_ret; i++)
    for (uint32_t k = 0; k < plain->body->n_ret; k++)
      if (g->res[i].kind == RES_GRAD && plain->res[k].kind == RES_GRAD &&
          g->res[i].index == plain->res[k].index)
        for (int64_t e = 0; e < type_count(&b[i].type); e++)
          close_to(g->res[i].name, b[i].data[e], a[k].data[e], 1e-10);
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

/* A gradient penalty: second derivatives of the whole model, loop included, and still contractions. */
static void gradient_penalty(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_model(&x, true);
  no_error(&x);
  Func *plain = pass_select(x.f, "plain", NULL, NULL);
  assert_true(pass_expand_grad(plain, &x.err));
  Func *f = pass_select(x.f, "copy", NULL, NULL);
  assert_true(pass_expand_grad(f, &x.err) && simplify(f, false, &x.err) && pass_outline(f, &x.err));
  Func *g = pass_autodiff(f, "grad", &x.err);
  assert_true(simplify(g, true, &x.err));
  no_error(&x);
  assert_true(count_ops(g, OP_CONTRACT) > 18);
  Data d = make_data(plain, -1, 1);
  check_against_differences("gradient penalty", plain, g, &d, 1e-5);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(transformer), cmocka_unit_test(gradient_penalty)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
