/* What outline recognises: one composite for each, the same values, right gradients; and what it must leave
 * alone. */
#include "util.h"

static Val mul(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_MUL, a, b);
}
static Val add(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_ADD, a, b);
}
static Val sum(Fix *x, Val v, const char *axis) {
  Axis a = ax(x, axis);
  return ir_reduce(&x->b, OP_SUM, v, &a, 1);
}
static Val iota(Fix *x, const char *axis, int64_t size) {
  return ir_iota(&x->b, ax(x, axis), size);
}
static Val real_iota(Fix *x, const char *axis, int64_t size) {
  return ir_cast(&x->b, iota(x, axis, size), DT_F64);
}

/* As the library writes it; guarded = false: as a newcomer does. */
static Val softmax(Fix *x, Val v, const char *axis, bool guarded) {
  Builder *b = &x->b;
  Axis a = ax(x, axis);
  Val m = ir_reduce(b, OP_REDUCE_MAX, v, &a, 1);
  if (guarded) {
    m = ir_unary(b, OP_STOP, m);
    m = ir_select(b, ir_binary(b, OP_EQ, m, num(x, -INFINITY)), num(x, 0), m);
  }
  Val e = ir_unary(b, OP_EXP, ir_binary(b, OP_SUB, v, m)), s = ir_reduce(b, OP_SUM, e, &a, 1);
  if (guarded)
    s = ir_select(b, ir_binary(b, OP_EQ, s, num(x, 0)), num(x, 1), s);
  return ir_binary(b, OP_DIV, e, s);
}

/* Outlines a copy; checks the values against the original and the gradients against differences. */
static Func *outlined(Fix *x, double tol) {
  Arena arena = {0};
  Func *f = pass_select(x->f, "copy", NULL, NULL);
  if (!simplify(f, false, &x->err) || !pass_outline(f, &x->err))
    fail_msg("%s", x->err.msg);
  Data d = make_data(x->f, -1, 1);
  Tensor *a = run(x->f, &d, &arena), *b = run(f, &d, &arena);
  for (uint32_t r = 0; r < f->body->n_ret; r++) {
    assert_true(type_equal(&a[r].type, &b[r].type));
    for (int64_t i = 0; i < type_count(&a[r].type); i++)
      close_to("outlined value", b[r].data[i], a[r].data[i], 1e-12);
  }
  Func *g = pass_autodiff(f, "grad", &x->err);
  no_error(x);
  check_against_differences("outlined", x->f, g, &d, tol);
  assert_true(simplify(g, true, &x->err));
  check_against_differences("outlined, simplified", x->f, g, &d, tol);
  arena_free(&arena);
  arena_free(&d.arena);
  return f;
}

/* ---- contractions ---- */

static void product_becomes_contraction(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val a = fix_param(&x, "a", "t=3,e=5"), w = fix_param(&x, "w", "e=5,f=4");
  fix_loss(&x, weigh(&x, sum(&x, mul(&x, a, w), "e")));
  Func *f = outlined(&x, 1e-7);
  assert_int_equal(count_ops(f, OP_CONTRACT), 1);
  ir_module_free(x.m);
}

/* sum[f](a * sigmoid(a) * b * w * g): the gate joins the tokens' side, g leaves the sum. */
static void factors_are_a_set(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val a = fix_param(&x, "a", "t=3,f=5"), b = fix_param(&x, "b", "t=3,f=5"), w = fix_param(&x, "w", "f=5,e=4"),
      g = fix_param(&x, "g", "t=3");
  Val silu = mul(&x, a, ir_unary(&x.b, OP_SIGMOID, a));
  Val tree = mul(&x, mul(&x, w, ir_unary(&x.b, OP_NEG, mul(&x, g, silu))), b);
  fix_loss(&x, weigh(&x, sum(&x, tree, "f")));
  Func *f = outlined(&x, 1e-7);
  assert_int_equal(count_ops(f, OP_CONTRACT), 1);
  for (uint32_t i = 0; i < f->body->n_ops; i++) /* nothing of rank 3 is formed */
    assert_true(ir_type(f, f->op[f->body->op[i]].result)->rank <= 2);
  ir_module_free(x.m);
}

static void an_axis_of_one_factor_is_summed_first(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val a = fix_param(&x, "a", "t=3,e=5,s=2"), w = fix_param(&x, "w", "e=5,f=4");
  Axis axis[2] = {ax(&x, "e"), ax(&x, "s")};
  fix_loss(&x, weigh(&x, ir_reduce(&x.b, OP_SUM, mul(&x, a, w), axis, 2)));
  Func *f = outlined(&x, 1e-7);
  assert_int_equal(count_ops(f, OP_CONTRACT), 1);
  ir_module_free(x.m);
}

static void squares_stay_reductions(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val a = fix_param(&x, "a", "t=3,e=5"), w = fix_param(&x, "w", "e=5");
  Val y = add(&x, sum(&x, mul(&x, a, a), "e"), sum(&x, mul(&x, a, w), "e"));
  fix_loss(&x, weigh(&x, y));
  assert_int_equal(count_ops(outlined(&x, 1e-7), OP_CONTRACT), 0);
  ir_module_free(x.m);
}

/* ---- softmax ---- */

static void softmax_is_found(void **state) {
  (void)state;
  for (int guarded = 0; guarded < 2; guarded++) {
    Fix x;
    fix_init(&x);
    Val a = fix_param(&x, "a", "t=3,e=5");
    fix_loss(&x, weigh(&x, softmax(&x, a, "e", guarded)));
    Func *f = outlined(&x, 1e-7);
    assert_int_equal(count_ops(f, OP_SOFTMAX), 1);
    assert_int_equal(count_ops(f, OP_EXP), 0);
    ir_module_free(x.m);
  }
}

/* ---- attention ---- */

enum { T = 6 };
typedef Val (*Score)(Fix *x, Val s);

static Val minus_inf(Fix *x) {
  return num(x, -INFINITY);
}
static Val masked(Fix *x, Val keep, Val s) {
  return ir_select(&x->b, keep, s, minus_inf(x));
}
static Val causal_mask(Fix *x) {
  return ir_binary(&x->b, OP_LE, iota(x, "key", T), iota(x, "t", T));
}
static Val plain(Fix *x, Val s) {
  (void)x;
  return s;
}
static Val causal(Fix *x, Val s) {
  return masked(x, causal_mask(x), mul(x, s, num(x, 0.5)));
}
static Val window(Fix *x, Val s) {
  Val far = ir_binary(&x->b, OP_SUB, iota(x, "t", T), iota(x, "key", T));
  Val near = ir_binary(&x->b, OP_LT, far, ir_const(&x->b, DT_I32, 3));
  return masked(x, ir_binary(&x->b, OP_AND, causal_mask(x), near), s);
}
static Val alibi(Fix *x, Val s) {
  Val slope = ir_binary(&x->b, OP_POW, num(x, 2), ir_unary(&x->b, OP_NEG, real_iota(x, "h", 2)));
  Val far = ir_binary(&x->b, OP_SUB, real_iota(x, "key", T), real_iota(x, "t", T));
  return masked(x, causal_mask(x), add(x, s, mul(x, slope, far)));
}
static Val softcap(Fix *x, Val s) {
  Val c = mul(x, ir_unary(&x->b, OP_TANH, ir_binary(&x->b, OP_DIV, s, num(x, 3))), num(x, 3));
  return masked(x, causal_mask(x), c);
}
static Val documents(Fix *x, Val s) {
  Val doc = fix_input(x, "doc", DT_I32, "b=2,t=6");
  Axis t = ax(x, "t"), key = ax(x, "key");
  Val same = ir_binary(&x->b, OP_EQ, doc, ir_rename(&x->b, doc, &t, &key, 1));
  return masked(x, ir_binary(&x->b, OP_AND, same, causal_mask(x)), s);
}
/* Every key of the first query is masked: zeros, with zero gradients. */
static Val strict(Fix *x, Val s) {
  return masked(x, ir_binary(&x->b, OP_LT, iota(x, "key", T), iota(x, "t", T)), s);
}

static void build_attention(Fix *x, Score f) {
  Val q = fix_param(x, "q", "b=2,t=6,h=2,d=3"), k = fix_param(x, "k", "b=2,key=6,h=2,d=3"),
      v = fix_param(x, "v", "b=2,key=6,h=2,d=3");
  Val s = f(x, sum(x, mul(x, q, k), "d"));
  Val p = softmax(x, s, "key", true);
  fix_loss(x, weigh(x, sum(x, mul(x, p, v), "key")));
}

static void attention_whatever_the_score(void **state) {
  (void)state;
  const Score scores[] = {plain, causal, window, alibi, softcap, documents, strict};
  for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
    Fix x;
    fix_init(&x);
    build_attention(&x, scores[i]);
    Func *f = outlined(&x, 1e-6);
    assert_int_equal(count_ops(f, OP_ATTENTION), 1);
    assert_int_equal(count_ops(f, OP_CONTRACT), 0);
    assert_int_equal(count_ops(f, OP_SOFTMAX), 0);
    ir_module_free(x.m);
  }
}

/* Masks come in as small values, never as a table over queries and keys. */
static void extras_are_small(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_attention(&x, documents);
  Func *f = outlined(&x, 1e-6);
  for (uint32_t i = 0; i < f->body->n_ops; i++) {
    const Op *op = &f->op[f->body->op[i]];
    for (uint32_t k = 3; op->code == OP_ATTENTION && k < op->n_args; k++)
      assert_int_equal(ir_type(f, op->arg[k])->rank, 2);
  }
  ir_module_free(x.m);
}

/* A learned bias on the scores needs a gradient that the composite does not have: left as contractions. */
static Val learned(Fix *x, Val s) {
  return add(x, s, fix_param(x, "bias", "h=2,t=6,key=6"));
}

static void learned_bias_is_left_alone(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_attention(&x, learned);
  Func *f = outlined(&x, 1e-6);
  assert_int_equal(count_ops(f, OP_ATTENTION), 0);
  assert_int_equal(count_ops(f, OP_SOFTMAX), 1);
  assert_int_equal(count_ops(f, OP_CONTRACT), 2);
  ir_module_free(x.m);
}

/* Grouped queries: keys and values without the share axis. */
static void grouped_queries(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val q = fix_param(&x, "q", "b=2,t=6,g=2,s=2,d=3"), k = fix_param(&x, "k", "b=2,key=6,g=2,d=3"),
      v = fix_param(&x, "v", "b=2,key=6,g=2,d=3");
  Val p = softmax(&x, causal(&x, sum(&x, mul(&x, q, k), "d")), "key", true);
  fix_loss(&x, weigh(&x, sum(&x, mul(&x, p, v), "key")));
  assert_int_equal(count_ops(outlined(&x, 1e-6), OP_ATTENTION), 1);
  ir_module_free(x.m);
}

/* ---- expansions ---- */

static void expand_all(Func *f, Error *err) {
  Block *b = f->body;
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  Builder e = {.f = f, .b = b, .err = err};
  for (uint32_t i = 0; i < n; i++) {
    Op *op = &f->op[ops[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      op->arg[k] = val_renew(f, op->arg[k]);
    if (!can_expand(op->code)) {
      block_push(f, b, ops[i]);
      continue;
    }
    Val out[3];
    Op old = *op;
    expand_composite(&e, ops[i], out);
    for (uint32_t k = 0; k < old.n_results; k++) {
      assert_true(out[k] != NONE && type_equal(ir_type(f, out[k]), ir_type(f, old.result + k)));
      f->val[old.result + k] = f->val[out[k]];
    }
  }
  block_renew(f, b);
}

static void check_expansion(Fix *x) {
  Func *f = pass_select(x->f, "copy", NULL, NULL);
  assert_true(pass_outline(f, &x->err));
  Func *g = pass_autodiff(f, "grad", &x->err);
  no_error(x);
  expand_all(g, &x->err);
  no_error(x);
  Data d = make_data(x->f, -1, 1);
  check_against_differences("expanded", x->f, g, &d, 1e-6);
  assert_true(simplify(g, true, &x->err));
  check_against_differences("expanded, simplified", x->f, g, &d, 1e-6);
  arena_free(&d.arena);
  ir_module_free(x->m);
}

static void attention_expands(void **state) {
  (void)state;
  const Score scores[] = {causal, alibi, softcap, documents, strict};
  for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
    Fix x;
    fix_init(&x);
    build_attention(&x, scores[i]);
    check_expansion(&x);
  }
}

/* The derivative of the score function for kernels: pointwise throughout, and right. */
static void body_gradient_is_pointwise(void **state) {
  (void)state;
  const Score scores[] = {plain, causal, window, alibi, softcap, documents};
  for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
    Fix x;
    fix_init(&x);
    build_attention(&x, scores[i]);
    Func *f = pass_select(x.f, "copy", NULL, NULL);
    assert_true(simplify(f, false, &x.err) && pass_outline(f, &x.err));
    const Block *body = NULL;
    for (uint32_t k = 0; k < f->body->n_ops; k++)
      if (f->op[f->body->op[k]].code == OP_ATTENTION)
        body = f->op[f->body->op[k]].body;
    assert_non_null(body);
    uint32_t n = body->n_params;
    Block *g = body_gradient(f, body, &x.err);
    assert_non_null(g);
    assert_int_equal(g->n_params, n + 1);
    assert_int_equal(g->n_ret, 2);
    for (uint32_t k = 0; k < g->n_ops; k++) {
      OpCode c = f->op[g->op[k]].code;
      assert_true(op_is_pointwise(c) || c == OP_CONST || c == OP_IOTA);
    }
    ir_module_free(x.m);
  }
}

/* ---- cross-entropy ---- */

static Val logits_of(Fix *x, const char *tokens) {
  Val h = fix_param(x, "h", arena_printf(&x->m->arena, "%s,e=3", tokens)), w = fix_param(x, "w", "v=5,e=3");
  return sum(x, mul(x, h, w), "e");
}

/* form 0: logsumexp(L) - L[t]; 1: -(log_softmax(L)[t]); 2: log(sum(exp(L - m))) - (L - m)[t] */
static Val cross_entropy(Fix *x, Val logits, Val target, int form) {
  Builder *b = &x->b;
  Axis v = ax(x, "v");
  Val m = ir_reduce(b, OP_REDUCE_MAX, logits, &v, 1);
  if (form == 0) {
    m = ir_unary(b, OP_STOP, m);
    m = ir_select(b, ir_binary(b, OP_EQ, m, num(x, -INFINITY)), num(x, 0), m);
  }
  Val z = ir_binary(b, OP_SUB, logits, m), l = ir_unary(b, OP_LOG, sum(x, ir_unary(b, OP_EXP, z), "v"));
  if (form == 0)
    return ir_binary(b, OP_SUB, add(x, l, m), ir_gather(b, logits, &v, &target, 1));
  if (form == 1)
    return ir_unary(b, OP_NEG, ir_gather(b, ir_binary(b, OP_SUB, z, l), &v, &target, 1));
  return ir_binary(b, OP_SUB, l, ir_gather(b, z, &v, &target, 1));
}

static void cross_entropy_is_found(void **state) {
  (void)state;
  for (int form = 0; form < 3; form++) {
    Fix x;
    fix_init(&x);
    Val target = fix_input(&x, "target", DT_I32, "b=2,t=4");
    Val nll = cross_entropy(&x, logits_of(&x, "b=2,t=4"), target, form);
    fix_loss(&x, weigh(&x, nll));
    Func *f = outlined(&x, 1e-6);
    assert_int_equal(count_ops(f, OP_LINEAR_XENT), 1);
    assert_int_equal(count_ops(f, OP_CONTRACT), 0);
    Func *g = pass_autodiff(f, "grad", &x.err);
    assert_true(simplify(g, true, &x.err) && pass_share_loss(g, &x.err) && simplify(g, true, &x.err));
    assert_int_equal(count_ops(g, OP_LINEAR_XENT), 0);
    assert_int_equal(count_ops(g, OP_LINEAR_XENT_GRAD), 1);
    Data d = make_data(x.f, -1, 1);
    check_against_differences("shared loss", x.f, g, &d, 1e-6);
    arena_free(&d.arena);
    check_expansion(&x);
  }
}

/* Logits too large to be stored at once: a loop over chunks of the tokens. */
static void large_vocabulary_goes_in_chunks(void **state) {
  (void)state;
  Fix x;
  Arena arena = {0};
  fix_init(&x);
  Val h = fix_param(&x, "h", "b=2,t=8,e=2"), w = fix_param(&x, "w", "v=140000,e=2");
  Val target = fix_input(&x, "target", DT_I32, "b=2,t=8"), g = fix_input(&x, "g", DT_F64, "b=2,t=8");
  Attr a = {.axis = (Axis[]){ax(&x, "e"), ax(&x, "v")}, .n_axis = 2};
  Val r = ir_op(&x.b, OP_LINEAR_XENT_GRAD, (Val[]){h, w, target, g}, 4, &a, NULL);
  no_error(&x);
  for (uint32_t i = 0; i < 3; i++)
    ir_func_ret(x.f, (FuncRes){.kind = RES_OUTPUT, .name = "out"}, r + i);
  Func *f = pass_select(x.f, "copy", NULL, NULL);
  expand_all(f, &x.err);
  no_error(&x);
  assert_int_equal(count_ops(f, OP_LOOP), 1);
  Data d = make_data(f, -1, 1);
  Tensor *want = run(x.f, &d, &arena), *got = run(f, &d, &arena);
  for (uint32_t i = 0; i < 3; i++) {
    assert_true(type_equal(&want[i].type, &got[i].type));
    for (int64_t k = 0; k < type_count(&want[i].type); k++)
      close_to("chunked loss", got[i].data[k], want[i].data[k], 1e-12);
  }
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

/* Two equal logits, however large: log 2, not the 0 that adding and taking away the offset leaves. */
static void shared_offset_cancels(void **state) {
  (void)state;
  for (int form = 0; form < 3; form++) {
    Fix x;
    Arena arena = {0};
    Error err = {0};
    fix_init(&x);
    Val a = fix_param(&x, "a", "t=4"),
        zero = ir_broadcast(&x.b, num(&x, 0), &(Type){.dtype = DT_F64, .rank = 1, .dim = {{ax(&x, "v"), 2}}});
    Val logits = add(&x, a, zero), target = fix_input(&x, "target", DT_I32, "t=4");
    fix_loss(&x, sum(&x, cross_entropy(&x, logits, target, form), "t"));
    Func *f = pass_select(x.f, "copy", NULL, NULL);
    assert_true(simplify(f, false, &x.err) && pass_outline(f, &x.err));
    Data d = make_data(f, 0, 1);
    const double big[4] = {1, 1e4, 1e6, 1e15};
    memcpy(d.in[0].data, big, sizeof big);
    Tensor out;
    assert_true(ir_interp(f, d.in, &out, &arena, true, &err));
    close_to("four times log 2", out.data[0], 4 * log(2), 1e-12);
    arena_free(&arena);
    arena_free(&d.arena);
    ir_module_free(x.m);
  }
}

/* A metric on the logits keeps its own contraction; the loss still fuses. A second loss on them does not. */
static void other_uses_of_logits(void **state) {
  (void)state;
  for (int active = 0; active < 2; active++) {
    Fix x;
    fix_init(&x);
    Val target = fix_input(&x, "target", DT_I32, "b=2,t=4"), logits = logits_of(&x, "b=2,t=4");
    Val loss = weigh(&x, cross_entropy(&x, logits, target, 0));
    Val other = weigh(&x, mul(&x, logits, logits));
    fix_loss(&x, active ? add(&x, loss, other) : loss);
    if (!active)
      ir_func_ret(x.f, (FuncRes){.kind = RES_METRIC_NUM, .name = "m"}, other);
    Func *f = outlined(&x, 1e-6);
    assert_int_equal(count_ops(f, OP_LINEAR_XENT), !active);
    assert_int_equal(count_ops(f, OP_CONTRACT), 1);
    ir_module_free(x.m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(product_becomes_contraction),
      cmocka_unit_test(factors_are_a_set),
      cmocka_unit_test(an_axis_of_one_factor_is_summed_first),
      cmocka_unit_test(squares_stay_reductions),
      cmocka_unit_test(softmax_is_found),
      cmocka_unit_test(attention_whatever_the_score),
      cmocka_unit_test(extras_are_small),
      cmocka_unit_test(learned_bias_is_left_alone),
      cmocka_unit_test(grouped_queries),
      cmocka_unit_test(attention_expands),
      cmocka_unit_test(body_gradient_is_pointwise),
      cmocka_unit_test(cross_entropy_is_found),
      cmocka_unit_test(large_vocabulary_goes_in_chunks),
      cmocka_unit_test(shared_offset_cancels),
      cmocka_unit_test(other_uses_of_logits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
