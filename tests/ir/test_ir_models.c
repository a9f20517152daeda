/* Every model of the library and both reference models, as elaborated and as fused: valid at every pass, and
 * the text of the module reads back byte-identical. */
#include "rig.h"

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "passes/passes.h"

static void round_trip(const Module *m, const char *name) {
  Str once = {0}, twice = {0};
  Error err = {0};
  ir_print(m, &once);
  Module *again = ir_read(once.s, once.len, name, &err);
  if (!again)
    fail_msg("%s", err.msg);
  ir_print(again, &twice);
  assert_true(once.len == twice.len && !memcmp(once.s, twice.s, once.len));
  str_free(&once);
  str_free(&twice);
  ir_module_free(again);
}

static void model(const char *path, const char *layout) {
  Arena arena = {0};
  Sources sources = {.arena = &arena};
  Diag diag = {.sources = &sources};
  Model *model = NULL;
  FrontOptions o = {.path = path, .layout = layout, .ranks = 1};
  if (front_model(&o, &sources, &diag, &model)) {
    Str text = {0};
    diag_print(&diag, &text);
    fail_msg("%s", text.s);
  }
  round_trip(model->module, path);
  Error err = {0};
  PassHooks hooks = {.verify = true};
  if (!pipeline(model->module, PIPE_TRAIN, 1, NULL, 0, &hooks, &err) ||
      !pipeline(model->module, PIPE_EVAL, 0, NULL, 0, &hooks, &err))
    fail_msg("%s: %s", path, err.msg);
  round_trip(model->module, path);
  front_free(model);
  arena_free(&arena);
}

static void models(void **state) {
  (void)state;
  static const char *const names[] = {"models/characters.dl",
                                      "models/digits.dl",
                                      "models/gpt2.dl",
                                      "models/llama.dl",
                                      "models/mlp.dl",
                                      "models/rnn.dl",
                                      "tests/golden/gpt2/gpt2.dl",
                                      "tests/golden/llama/llama.dl"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", DLC_SOURCE_DIR, names[i]);
    model(path, strstr(path, "golden") ? "one" : NULL);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(models)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
