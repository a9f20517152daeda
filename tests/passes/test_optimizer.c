/* The training step: global norm, clipping, schedules and update code inlined, against the same mathematics
 * in C. */
#include "util.h"

/* loss = sum(w^2 / 2) + sum(3 b): gradients w and 3. */
static void build_train(Fix *x) {
  Val w = fix_param(x, "w", "a=3,b=2"), c = fix_param(x, "c", "b=2");
  Axis both[2] = {ax(x, "a"), ax(x, "b")};
  Val sq = ir_binary(&x->b, OP_MUL, num(x, 0.5), ir_binary(&x->b, OP_MUL, w, w));
  Val loss = ir_reduce(&x->b, OP_SUM, sq, both, 2);
  fix_loss(x, ir_binary(&x->b, OP_ADD, loss,
                        ir_binary(&x->b, OP_MUL, num(x, 3), ir_reduce(&x->b, OP_SUM, c, &both[1], 1))));
}

/* momentum: m <- 0.9 m + g; p <- p - 0.1 factor m, and step enters by a decay of 1 / step. */
static void build_update(Fix *x, uint32_t p) {
  Module *m = x->m;
  Type t = m->param[p].type;
  IrState s = {.name = "m", .type = t, .param = p};
  VEC_PUSH(&m->arena, m->opt, m->n_opt, m->cap_opt, s);
  Func *f = ir_func_new(m, p == 0 ? "update.0" : "update.1");
  Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = &x->err};
  Val w = ir_func_arg(f, ARG_PARAM, p, t, "param"), g = ir_func_arg(f, ARG_GRAD, p, t, "grad");
  Val mom = ir_func_arg(f, ARG_OPT, p, t, "m"),
      factor = ir_func_arg(f, ARG_FACTOR, 0, type_scalar(DT_F64), "factor");
  Val step = ir_func_arg(f, ARG_SCALAR, SCALAR_STEP, type_scalar(DT_F64), "step");
  Val next = ir_binary(&b, OP_ADD, ir_binary(&b, OP_MUL, mom, ir_const(&b, DT_F64, 0.9)), g);
  Val rate = ir_binary(&b, OP_DIV, ir_binary(&b, OP_MUL, factor, ir_const(&b, DT_F64, 0.1)), step);
  ir_func_ret(f, (FuncRes){.kind = RES_PARAM, .index = p},
              ir_binary(&b, OP_SUB, w, ir_binary(&b, OP_MUL, rate, next)));
  ir_func_ret(f, (FuncRes){.kind = RES_OPT, .index = p}, next);
}

/* factor = step / 4, lr = 0.1 * factor */
static void build_schedule(Fix *x) {
  Func *f = ir_func_new(x->m, "schedule.0");
  Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = &x->err};
  Val step = ir_func_arg(f, ARG_SCALAR, SCALAR_STEP, type_scalar(DT_F64), "step");
  Val factor = ir_binary(&b, OP_DIV, step, ir_const(&b, DT_F64, 4));
  ir_func_ret(f, (FuncRes){.kind = RES_SCALAR, .name = "factor"}, factor);
  ir_func_ret(f, (FuncRes){.kind = RES_SCALAR, .name = "lr"},
              ir_binary(&b, OP_MUL, factor, ir_const(&b, DT_F64, 0.1)));
}

static double *input(const Func *f, Data *d, ArgKind kind, uint32_t index) {
  for (uint32_t i = 0; i < d->n; i++)
    if (f->arg[i].kind == kind && f->arg[i].index == index)
      return d->in[i].data;
  fail_msg("no such argument");
  return NULL;
}

static const double *result(const Func *f, const Tensor *out, ResKind kind, uint32_t index,
                            const char *name) {
  for (uint32_t i = 0; i < f->body->n_ret; i++)
    if (f->res[i].kind == kind && (name ? strcmp(name, f->res[i].name) == 0 : f->res[i].index == index))
      return out[i].data;
  fail_msg("no such result");
  return NULL;
}

static void step_with(double clip) {
  Fix x;
  Arena arena = {0};
  fix_init(&x);
  build_train(&x);
  build_update(&x, 0);
  build_update(&x, 1);
  build_schedule(&x);
  no_error(&x);
  Func *f = pipeline_unfused(x.m, PIPE_TRAIN, clip, NULL, 0, &(PassHooks){.verify = true}, &x.err);
  no_error(&x);
  Data d = make_data(f, -1, 1);
  *input(f, &d, ARG_SCALAR, SCALAR_STEP) = 3;
  const double *w = input(f, &d, ARG_PARAM, 0), *c = input(f, &d, ARG_PARAM, 1);
  const double *m0 = input(f, &d, ARG_OPT, 0), *m1 = input(f, &d, ARG_OPT, 1);
  Tensor *out = run(f, &d, &arena);
  double norm = 2 * 9;
  for (int i = 0; i < 6; i++)
    norm += w[i] * w[i];
  norm = sqrt(norm);
  double scale = clip > 0 && clip < norm ? clip / norm : 1, rate = 0.1 * (3.0 / 4) / 3;
  close_to("norm", *result(f, out, RES_SCALAR, 0, "grad_norm"), norm, 1e-14);
  close_to("lr", *result(f, out, RES_SCALAR, 0, "lr"), 0.075, 1e-14);
  for (int i = 0; i < 6; i++) {
    double m = 0.9 * m0[i] + scale * w[i];
    close_to("m", result(f, out, RES_OPT, 0, NULL)[i], m, 1e-14);
    close_to("w", result(f, out, RES_PARAM, 0, NULL)[i], w[i] - rate * m, 1e-14);
  }
  for (int i = 0; i < 2; i++) {
    double m = 0.9 * m1[i] + scale * 3;
    close_to("c", result(f, out, RES_PARAM, 1, NULL)[i], c[i] - rate * m, 1e-14);
  }
  for (uint32_t i = 0; i < f->body->n_ret; i++)
    assert_true(f->res[i].kind != RES_GRAD && f->res[i].kind != RES_LOSS);
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

static void step_without_clipping(void **state) {
  (void)state;
  step_with(0);
}

static void step_with_clipping(void **state) {
  (void)state;
  step_with(1);
}

static void step_below_the_clip(void **state) {
  (void)state;
  step_with(1e6);
}

static void gradients_and_norm(void **state) {
  (void)state;
  Fix x;
  Arena arena = {0};
  fix_init(&x);
  build_train(&x);
  Func *f = pipeline_unfused(x.m, PIPE_GRAD, 0, NULL, 0, &(PassHooks){.verify = true}, &x.err);
  no_error(&x);
  Data d = make_data(f, -1, 1);
  Tensor *out = run(f, &d, &arena);
  const double *w = input(f, &d, ARG_PARAM, 0), *g = result(f, out, RES_GRAD, 0, NULL);
  double norm = 18;
  for (int i = 0; i < 6; i++) {
    close_to("gradient", g[i], w[i], 1e-15);
    norm += w[i] * w[i];
  }
  close_to("norm", *result(f, out, RES_SCALAR, 0, "grad_norm"), sqrt(norm), 1e-14);
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

static void missing_update_is_an_error(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_train(&x);
  assert_null(pipeline_unfused(x.m, PIPE_TRAIN, 0, NULL, 0, NULL, &x.err));
  assert_non_null(strstr(x.err.msg, "parameter w has no optimizer"));
  ir_module_free(x.m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(step_without_clipping),      cmocka_unit_test(step_with_clipping),
      cmocka_unit_test(step_below_the_clip),        cmocka_unit_test(gradients_and_norm),
      cmocka_unit_test(missing_update_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
