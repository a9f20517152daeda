/* Every region the fuser makes of whole models is compiled and compared with the interpreter. */
#include "region_rig.h"

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "passes/passes.h"

/* A function of its own around a copy of one region. */
static void check_region(Func *f, OpId id, const char *what) {
  Rig r = {.m = f->module, .tol = 2e-3};
  const Op op = f->op[id];
  r.f = ir_func_new(f->module, what);
  r.n_in = op.n_args;
  Val *map = ARENA_ARRAY(&f->module->arena, Val, f->n_vals);
  memset(map, 0xff, f->n_vals * sizeof *map);
  assert_true(op.n_args <= MAX_IO);
  for (uint32_t i = 0; i < op.n_args; i++) {
    r.outer[i] = ir_func_arg(r.f, ARG_INPUT, i, f->val[op.arg[i]].type, NULL);
    r.lo[i] = dtype_is_float(f->val[op.arg[i]].type.dtype) ? 0.2 : 0;
    r.hi[i] = dtype_is_float(f->val[op.arg[i]].type.dtype) ? 1
              : f->val[op.arg[i]].type.dtype == DT_BOOL    ? 2
                                                           : 5;
    map[op.arg[i]] = r.outer[i];
  }
  Builder b = {r.f, r.f->body, {NONE, 0, 0}, &r.err};
  OpId copy = ir_clone_op(&b, f, id, map);
  if (r.err.cls)
    fail_msg("%s: %s", what, r.err.msg);
  for (uint32_t i = 0; i < op.n_results; i++)
    ir_func_ret(r.f, (FuncRes){.kind = RES_OUTPUT, .name = "o"}, r.f->op[copy].result + i);
  rig_check(&r, copy, op.n_results, what);
}

static void check_block(Func *f, const Block *b, const char *model, int *n) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    if (op->code == OP_REGION) {
      char what[64];
      snprintf(what, sizeof what, "%s.%d.%s", model, (*n)++, op->attr.str);
      /* o and lse of an attention_grad have to fit the other operands: test_region_gemm.c */
      if (strcmp(op->attr.str, "attention_grad") != 0)
        check_region(f, b->op[i], what);
    } else if (op->body) {
      check_block(f, op->body, model, n);
    }
  }
}

static void check_model(const char *name, PipeKind kind) {
  Arena arena = {0};
  Sources sources = {.arena = &arena};
  Diag diag = {.sources = &sources};
  Model *model = NULL;
  const char *set[] = {"precision=f32"};
  FrontOptions o = {.path = arena_printf(&arena, DLC_SOURCE_DIR "/tests/golden/%s/%s.dl", name, name),
                    .layout = "one",
                    .ranks = 1,
                    .set = set,
                    .n_set = 1};
  Str text = {0};
  int code = front_model(&o, &sources, &diag, &model);
  diag_print(&diag, &text);
  if (code)
    fail_msg("%s", text.s);
  str_free(&text);
  Error err = {0};
  Func *f = pipeline(model->module, kind, 1.0, NULL, 0, &(PassHooks){.verify = true}, &err);
  if (!f)
    fail_msg("%s", err.msg);
  int n = 0;
  check_block(f, f->body, name, &n);
  assert_true(n > 5);
  front_free(model);
  arena_free(&arena);
}

static void gpt2_train(void **state) {
  (void)state;
  check_model("gpt2", PIPE_TRAIN);
}
static void gpt2_eval(void **state) {
  (void)state;
  check_model("gpt2", PIPE_EVAL);
}
static void llama_train(void **state) {
  (void)state;
  check_model("llama", PIPE_TRAIN);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2_train), cmocka_unit_test(gpt2_eval),
                                     cmocka_unit_test(llama_train)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
