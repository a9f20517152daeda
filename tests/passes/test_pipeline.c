/* A small transformer through the whole pipeline: values, gradients, what is recognised and what is stored.
 */
#include "transformer.h"

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
