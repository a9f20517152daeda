/* The elaborator: every elab/X.dl is elaborated and what is reported compared with X.err (no X.err: nothing),
 * and the meaning of expressions is checked by running what they become in the interpreter. DLC_UPDATE=1
 * rewrites the .err files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/ast.h"
#include "frontend/frontend.h"

typedef struct {
  Arena arena;
  Sources sources;
  Diag diag;
  Str report;
  Model *model;
  int code;
} Run;

static void run_begin(Run *r, const FrontOptions *opt) {
  *r = (Run){0};
  r->sources.arena = &r->arena;
  r->diag.sources = &r->sources;
  r->code = front_model(opt, &r->sources, &r->diag, &r->model);
  diag_print(&r->diag, &r->report);
}

static void run_end(Run *r) {
  front_free(r->model);
  str_free(&r->report);
  arena_free(&r->arena);
}

static void run_file(Run *r, const char *path) {
  run_begin(r, &(FrontOptions){.path = path, .ranks = 1});
}

/* Elaborates a text from a file of its own. */
static void run_text(Run *r, const char *text, const char *const *set, uint32_t n_set) {
  char path[] = "/tmp/dlc-elab-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
  close(fd);
  run_begin(r, &(FrontOptions){.path = path, .ranks = 1, .set = set, .n_set = n_set});
  unlink(path);
}

static void verify(const Run *r, const char *what) {
  Error err = {0};
  if (r->code || !ir_verify(r->model->module, &err)) {
    fail_msg("%s: code %d\n%s%s", what, r->code, r->report.s ? r->report.s : "", err.msg);
  }
}

/* ---- reports ---- */

static char *read_text(const char *path) {
  FILE *f = fopen(path, "rb");
  Str s = {0};
  char buf[4096];
  size_t n;
  str_puts(&s, "");
  while (f && (n = fread(buf, 1, sizeof buf, f)) > 0) {
    str_write(&s, buf, n);
  }
  if (f) {
    fclose(f);
  }
  return s.s;
}

static int check_case(const char *path) {
  Run r;
  run_file(&r, path);
  char err[512];
  snprintf(err, sizeof err, "%.*s.err", (int)strlen(path) - 3, path);
  const char *got = r.report.s ? r.report.s : "";
  if (getenv("DLC_UPDATE") && *got) {
    FILE *f = fopen(err, "wb");
    fputs(got, f);
    fclose(f);
  }
  char *want = read_text(err);
  int bad = strcmp(want, got) != 0;
  if (bad) {
    printf("--- %s\n%s--- got\n%s", err, want, got);
  }
  if (!r.code) {
    verify(&r, path);
  }
  free(want);
  run_end(&r);
  return bad;
}

static void test_reports(void **state) {
  (void)state;
  glob_t g;
  int bad = 0;
  assert_int_equal(chdir(DLC_SOURCE_DIR "/tests/frontend/elab"), 0);
  assert_int_equal(glob("*.dl", 0, NULL, &g), 0);
  for (size_t i = 0; i < g.gl_pathc; i++) {
    bad += check_case(g.gl_pathv[i]);
  }
  globfree(&g);
  assert_int_equal(bad, 0);
}

static void test_models(void **state) {
  (void)state;
  glob_t g;
  assert_int_equal(glob(DLC_SOURCE_DIR "/models/*.dl", 0, NULL, &g), 0);
  for (size_t i = 0; i < g.gl_pathc; i++) {
    Run r;
    run_file(&r, g.gl_pathv[i]);
    verify(&r, g.gl_pathv[i]);
    assert_int_equal(r.diag.n, 0);
    if (strstr(g.gl_pathv[i], "/gpt2.dl")) {
      int64_t n = 0;
      for (uint32_t k = 0; k < r.model->module->n_params; k++) {
        n += type_count(&r.model->module->param[k].type);
      }
      assert_int_equal(n, 124439808);
    }
    run_end(&r);
  }
  globfree(&g);
}

/* ---- meaning ---- */

static const char HEAD[] = "use std\n"
                           "axis b = 2, t = 3, u = t, p = 2, w = 6, n5 = 5, s = 2\n"
                           "model m(x: float[b, t], i: int[b]) {\n"
                           "  loss = mean[b, t](x)\n";

/* x = 1 2 3 / 4 5 6, i = 2 0 */
static void run_model(Run *r, const char *what, const char *output, Tensor *out) {
  const Func *f = ir_func(r->model->module, "eval");
  Tensor *in = ARENA_ARRAY(&r->arena, Tensor, f->body->n_params);
  Tensor *res = ARENA_ARRAY(&r->arena, Tensor, f->body->n_ret);
  for (uint32_t k = 0; k < f->body->n_params; k++) {
    in[k].type = f->val[f->body->param[k]].type;
    in[k].data = ARENA_ARRAY(&r->arena, double, (size_t)type_count(&in[k].type));
    for (int64_t j = 0; j < type_count(&in[k].type); j++) {
      bool is_x = f->arg[k].kind == ARG_INPUT && f->arg[k].index == 0;
      in[k].data[j] = is_x ? (double)(j + 1) : f->arg[k].kind == ARG_INPUT ? 2.0 - 2.0 * (double)j : 0.5;
    }
  }
  Error err = {0};
  if (!ir_interp(f, in, res, &r->arena, false, &err)) {
    fail_msg("%s: %s", what, err.msg);
  }
  for (uint32_t k = 0; k < f->body->n_ret; k++) {
    if (f->res[k].kind == RES_OUTPUT && !strcmp(f->res[k].name, output)) {
      *out = res[k];
      return;
    }
  }
  fail_msg("%s: no output '%s'", what, output);
}

static void expect(const char *body, const char *type, const double *want) {
  Run r;
  Tensor out = {0};
  char *text = NULL;
  Str s = {0};
  str_printf(&s, "%s%s}\n", HEAD, body);
  text = s.s;
  run_text(&r, text, NULL, 0);
  verify(&r, body);
  run_model(&r, body, "r", &out);
  Str got = {0};
  type_print(r.model->module, &out.type, &got);
  if (strcmp(got.s, type)) {
    fail_msg("%s: is %s, not %s", body, got.s, type);
  }
  for (int64_t k = 0; k < type_count(&out.type); k++) {
    if (!(fabs(out.data[k] - want[k]) < 1e-9)) {
      fail_msg("%s: element %lld is %.17g, not %.17g", body, (long long)k, out.data[k], want[k]);
    }
  }
  str_free(&got);
  str_free(&s);
  run_end(&r);
}

static const struct {
  const char *expr, *type;
  double want[12];
} meanings[] = {
    {"x + 1", "f32[b=2, t=3]", {2, 3, 4, 5, 6, 7}},
    {"-x ^ 2", "f32[b=2, t=3]", {-1, -4, -9, -16, -25, -36}},
    {"7 // 2 + 7 % 3 + -7 % 3 + -7 // 2 + 0 * x", "f32[b=2, t=3]", {2, 2, 2, 2, 2, 2}},
    {"i / 4", "f32[b=2]", {0.5, 0}},
    {"i // 4 + (i - 3) % 4", "int[b=2]", {3, 1}},
    {"i * 0.5", "f32[b=2]", {1, 0}},
    {"int(x / 2)", "int[b=2, t=3]", {0, 1, 1, 2, 2, 3}},
    {"x > 2 and x <= 5 or not (x < 6)", "bool[b=2, t=3]", {0, 0, 1, 1, 1, 1}},
    {"where(x > 3, x, 0)", "f32[b=2, t=3]", {0, 0, 0, 4, 5, 6}},
    {"where(t == 3, 1, 2) + x", "f32[b=2, t=3]", {2, 3, 4, 5, 6, 7}},
    {"sum[t](x)", "f32[b=2]", {6, 15}},
    {"mean[b, t](x) + 0 * index(p)", "f32[p=2]", {3.5, 3.5}},
    {"max[t](x) - min[t](x) + prod[t](x)", "f32[b=2]", {8, 122}},
    {"max(x, 4) + min(x, 2)", "f32[b=2, t=3]", {5, 6, 6, 6, 7, 8}},
    {"argmax[t](-(x - 2) ^ 2)", "int[b=2]", {1, 0}},
    {"any[t](x > 5)", "bool[b=2]", {0, 1}},
    {"all[t](x > 3)", "bool[b=2]", {0, 1}},
    {"sum[t](x > 2)", "int[b=2]", {1, 3}},
    {"cumsum[t](x)", "f32[b=2, t=3]", {1, 3, 6, 4, 9, 15}},
    {"x[t = i]", "f32[b=2]", {3, 4}},
    {"x[t = 1]", "f32[b=2]", {2, 5}},
    {"x[t = 1..3]", "f32[b=2, t=2]", {2, 3, 5, 6}},
    {"x[t = index(t) - 1]", "f32[b=2, t=3]", {0, 1, 2, 0, 4, 5}},
    {"x[b = 1, t = index(u)]", "f32[u=3]", {4, 5, 6}},
    {"x[t as u]", "f32[b=2, u=3]", {1, 2, 3, 4, 5, 6}},
    {"x[b, t as w]", "f32[w=6]", {1, 2, 3, 4, 5, 6}},
    {"x[b, t as w][w as t, p]", "f32[t=3, p=2]", {1, 2, 3, 4, 5, 6}},
    {"sum[t](x * x[b as p])", "f32[b=2, p=2]", {14, 32, 32, 77}},
    {"shift[t](x, 1)", "f32[b=2, t=3]", {0, 1, 2, 0, 4, 5}},
    {"shift[t](x, -1)", "f32[b=2, t=3]", {2, 3, 0, 5, 6, 0}},
    {"roll[t](x, 1)", "f32[b=2, t=3]", {3, 1, 2, 6, 4, 5}},
    {"pad[t as n5](x, 1)", "f32[b=2, n5=5]", {0, 1, 2, 3, 0, 0, 4, 5, 6, 0}},
    {"top_k[t as s](x)", "f32[b=2, s=2]", {3, 2, 6, 5}},
    {"top_index[t as s](x)", "int[b=2, s=2]", {2, 1, 2, 1}},
    {"sort[t](-x)", "f32[b=2, t=3]", {-3, -2, -1, -6, -5, -4}},
    {"sort_index[t](-x)", "int[b=2, t=3]", {2, 1, 0, 2, 1, 0}},
    {"full[p](pi) - pi", "f32[p=2]", {0, 0}},
    {"grad(x ^ 3, x)", "f32[b=2, t=3]", {3, 12, 27, 48, 75, 108}},
    {"grad(stop(x) * x, x)", "f32[b=2, t=3]", {1, 2, 3, 4, 5, 6}},
    {"dropout(x, 0.5)", "f32[b=2, t=3]", {1, 2, 3, 4, 5, 6}}, /* the identity outside training */
    {"float(training) + 0 * index(p)", "f32[p=2]", {0, 0}},
    {"sum[t](softmax[t](where(x > 9, x, -inf)))", "f32[b=2]", {0, 0}},
    {"cross_entropy[t](0 * x, i)", "f32[b=2]", {1.0986122886681098, 1.0986122886681098}},
    {"variance[t](x)", "f32[b=2]", {0.66666666666666663, 0.66666666666666663}},
};

static void test_meanings(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof meanings / sizeof *meanings; k++) {
    char body[256];
    snprintf(body, sizeof body, "  output r = %s\n", meanings[k].expr);
    expect(body, meanings[k].type, meanings[k].want);
  }
}

static void test_statements(void **state) {
  (void)state;
  expect("  output r: float[t, b] = x\n", "f32[t=3, b=2]", (double[]){1, 4, 2, 5, 3, 6});
  expect("  y = index(t) * 10\n  output r = y + x\n", "f32[t=3, b=2]", (double[]){1, 4, 12, 15, 23, 26});
  expect("  output r = join[w](x over t, 2 * x over t)\n", "f32[b=2, w=6]",
         (double[]){1, 2, 3, 2, 4, 6, 4, 5, 6, 8, 10, 12});
  expect("  h = 0\n  scan k over t {\n    h = h + x[t = k]\n    y = h * 2\n  }\n  output r = y\n",
         "f32[t=3, b=2]", (double[]){2, 8, 6, 18, 12, 30});
  expect("  h = 1\n  scan k over t { h = h * x[t = k] + x[t = k - 1] }\n  output r = h\n", "f32[b=2]",
         (double[]){11, 149});
  expect("  h = x\n  repeat k over t {\n    param g = 0.5\n    h = h * g + k\n  }\n  output r = h\n",
         "f32[b=2, t=3]", (double[]){2.625, 2.75, 2.875, 3, 3.125, 3.25});
  expect("  h = x\n  repeat k over p {\n    repeat l over t { h = h + k * l }\n    output z = h\n  }\n  "
         "output r = h\n",
         "f32[b=2, t=3]", (double[]){4, 5, 6, 7, 8, 9});
  expect("  if training { y = x } else { y = 2 * x }\n  output r = y\n", "f32[b=2, t=3]",
         (double[]){2, 4, 6, 8, 10, 12});
}

/* ---- plans ---- */

static const char PLAN[] =
    "use std\naxis batch, f = 4, layer = 3\naxis o = 2 * f\nsetting rate = 0.5\n"
    "model m(x: float[batch, f]) {\n"
    "  param w[f, o] ~ normal(0, rate)\n  param e[batch] = 0\n"
    "  repeat h over layer { param g[f] = 1; x = x * g }\n"
    "  loss = mean[batch](sum[o](sum[f](x * w)) + e)\n}\n"
    "plan p for m {\n  set batch = 2\n  data x from arrays(\"x.safetensors\")\n  steps 10\n"
    "  optimizer adamw(lr = 0.1, decay = 0.2 where matrix) where not name like \"e\"\n"
    "  optimizer sgd(lr = 0.3) where name like \"e\"\n"
    "  schedule warmup(4) then cosine(to = 0.1)\n}\n";

static double scalar_at(const Run *r, const char *func, const char *name, double step) {
  const Func *f = ir_func(r->model->module, func);
  Arena arena = {0};
  Tensor in = {.type = type_scalar(DT_F64), .data = &step};
  Tensor *out = ARENA_ARRAY(&arena, Tensor, f->body->n_ret);
  Error err = {0};
  assert_true(f->body->n_params <= 1 && ir_interp(f, &in, out, &arena, false, &err));
  double v = NAN;
  for (uint32_t k = 0; k < f->body->n_ret; k++) {
    v = !strcmp(f->res[k].name, name) ? out[k].data[0] : v;
  }
  arena_free(&arena);
  return v;
}

static void test_plan(void **state) {
  (void)state;
  Run r;
  run_text(&r, PLAN, NULL, 0);
  verify(&r, "plan");
  const Module *m = r.model->module;
  const Plan *p = &r.model->plan;
  assert_int_equal(p->batch, 2);
  assert_int_equal(p->steps, 10);
  assert_int_equal(p->n_groups, 2);
  assert_string_equal(m->param[2].name, "h.*.g");
  assert_int_equal(m->param[2].n_repeat, 1);
  assert_true(m->param[0].matrix && !m->param[1].matrix && !m->param[2].matrix);
  assert_int_equal(m->param[1].group, 1);
  assert_true(r.model->setting[0].decay == 0.2 && r.model->setting[2].decay == 0);
  assert_true(fabs(scalar_at(&r, "schedule.0", "factor", 1) - 0.25) < 1e-12);
  assert_true(fabs(scalar_at(&r, "schedule.0", "factor", 4) - 1) < 1e-12);
  assert_true(fabs(scalar_at(&r, "schedule.0", "factor", 7) - 0.55) < 1e-12);
  assert_true(fabs(scalar_at(&r, "schedule.1", "lr", 10) - 0.03) < 1e-12);
  run_end(&r);
}

static void test_overrides(void **state) {
  (void)state;
  Run r;
  static const char *const set[] = {"f=5",          "batch=3",       "steps=20",           "optimizer.lr=0.7",
                                    "rate=0.25",    "seed=9",        "optimizer.eps=1e-6", "clip=2",
                                    "eval.every=5", "layout.micro=3"};
  run_text(&r, PLAN, set, sizeof set / sizeof *set);
  verify(&r, "overrides");
  const Module *m = r.model->module;
  assert_int_equal(m->param[0].type.dim[1].size, 10);
  assert_int_equal(r.model->plan.batch, 3);
  assert_int_equal(r.model->plan.steps, 20);
  assert_int_equal(r.model->plan.seed, 9);
  assert_int_equal(r.model->plan.eval_every, 5);
  assert_true(r.model->plan.clip == 2 && m->param[0].b == 0.25 && r.model->setting[0].lr == 0.7);
  Run again; /* the folded text alone is the same program */
  run_text(&again, r.model->folded, NULL, 0);
  verify(&again, "folded");
  for (uint32_t i = 0; i < m->n_funcs; i++) {
    const Func *f = again.model->module->func[i];
    assert_int_equal(m->func[i]->n_ops, f->n_ops);
    for (uint32_t k = 0; k < f->n_ops; k++) {
      assert_int_equal(m->func[i]->op[k].code, f->op[k].code);
      assert_true(m->func[i]->op[k].attr.f == f->op[k].attr.f);
    }
  }
  run_end(&again);
  run_end(&r);
  run_text(&r, PLAN, (const char *const[]){"bacth=3"}, 1);
  assert_int_equal(r.code, ERR_USAGE);
  assert_non_null(strstr(r.report.s, "did you mean 'batch'"));
  run_end(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_reports),  cmocka_unit_test(test_models),
                                     cmocka_unit_test(test_meanings), cmocka_unit_test(test_statements),
                                     cmocka_unit_test(test_plan),     cmocka_unit_test(test_overrides)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
