/* Fusing: nothing changes, nothing computes outside of regions, memory is owned. */
#include "passes/fuse.h"
#include "transformer.h"

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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(transformer_step)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
