/* The syntax: every cases/X.dl is parsed and compared with X.err (no X.err: nothing is reported), and, when
 * it parses, formatted: X.fmt is the expected text when there is one, and formatting twice changes nothing.
 * DLC_UPDATE=1 rewrites the .err and .fmt files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend/ast.h"

typedef struct {
  Arena arena;
  Sources sources;
  Diag diag;
  Str report;
} Run;

static void run_begin(Run *r) {
  *r = (Run){0};
  r->sources.arena = &r->arena;
  r->diag.sources = &r->sources;
}

static const char *run_report(Run *r) {
  diag_print(&r->diag, &r->report);
  return r->report.s ? r->report.s : "";
}

static void run_end(Run *r) {
  str_free(&r->report);
  arena_free(&r->arena);
}

static char *read_text(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f)
    return NULL;
  Str s = {0};
  char buf[4096];
  size_t n;
  str_puts(&s, "");
  while ((n = fread(buf, 1, sizeof buf, f)) > 0)
    str_write(&s, buf, n);
  fclose(f);
  return s.s;
}

static void write_text(const char *path, const char *text) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

/* 1 when `got` is not what the golden file `path` holds. */
static int differs(const char *path, const char *got, bool absent_is_empty) {
  char *want = read_text(path);
  if (getenv("DLC_UPDATE") && (want || (absent_is_empty && *got))) {
    if (*got)
      write_text(path, got);
    else
      unlink(path);
    free(want);
    return 0;
  }
  int bad = want ? strcmp(want, got) != 0 : absent_is_empty && *got;
  if (bad)
    printf("--- %s\n%s--- got\n%s", path, want ? want : "", got);
  free(want);
  return bad;
}

static char *format_text(const char *name, const char *text, size_t n) {
  Run r;
  run_begin(&r);
  Str out = {0};
  str_puts(&out, "");
  bool ok = ast_format(&r.sources, source_add(&r.sources, name, text, n), &out, &r.diag);
  if (!ok)
    printf("%s\n", run_report(&r));
  assert_true(ok);
  run_end(&r);
  return out.s;
}

static int check_format(const char *name, const char *golden) {
  char *text = read_text(name);
  char *once = format_text(name, text, strlen(text));
  char *twice = format_text(name, once, strlen(once));
  int bad = strcmp(once, twice) != 0;
  if (bad)
    printf("--- %s formatted once\n%s--- twice\n%s", name, once, twice);
  if (golden)
    bad |= differs(golden, once, false);
  free(text);
  free(once);
  free(twice);
  return bad;
}

static int check_case(const char *name) {
  Run r;
  run_begin(&r);
  AstFile *file;
  bool ok = ast_parse_file(&r.sources, &r.arena, name, &file, &r.diag);
  int stem = (int)strlen(name) - 3;
  char err[256], fmt[256];
  snprintf(err, sizeof err, "%.*s.err", stem, name);
  snprintf(fmt, sizeof fmt, "%.*s.fmt", stem, name);
  int bad = differs(err, run_report(&r), true);
  if (ok)
    bad |= check_format(name, fmt);
  run_end(&r);
  return bad;
}

static int check_glob(const char *pattern, int (*check)(const char *)) {
  glob_t g;
  int found = glob(pattern, 0, NULL, &g);
  if (found == GLOB_NOMATCH)
    return 0;
  assert_int_equal(found, 0);
  int bad = 0;
  for (size_t i = 0; i < g.gl_pathc; i++)
    bad += check(g.gl_pathv[i]);
  globfree(&g);
  return bad;
}

static void golden_cases(void **state) {
  (void)state;
  assert_int_equal(chdir(DLC_SOURCE_DIR "/tests/frontend/cases"), 0);
  setenv("DLC_MODELS", "library", 1);
  int bad = check_glob("*.dl", check_case);
  unsetenv("DLC_MODELS");
  assert_int_equal(bad, 0);
}

static int check_model(const char *path) {
  Run r;
  run_begin(&r);
  AstFile *file;
  setenv("DLC_MODELS", DLC_SOURCE_DIR "/models", 1);
  bool ok = ast_parse_file(&r.sources, &r.arena, path, &file, &r.diag);
  unsetenv("DLC_MODELS");
  if (!ok)
    printf("%s", run_report(&r));
  run_end(&r);
  return ok ? check_format(path, NULL) : 1;
}

static void every_model_parses(void **state) {
  (void)state;
  assert_int_equal(check_glob(DLC_SOURCE_DIR "/models/*.dl", check_model), 0);
  assert_int_equal(check_glob(DLC_SOURCE_DIR "/models/std/*.dl", check_model), 0);
}

/* ---- limits ---- */

static Str repeated(const char *before, const char *part, int n, const char *middle, const char *part_after,
                    const char *after) {
  Str s = {0};
  str_puts(&s, before);
  for (int i = 0; i < n; i++)
    str_puts(&s, part);
  str_puts(&s, middle);
  for (int i = 0; i < n; i++)
    str_puts(&s, part_after);
  str_puts(&s, after);
  return s;
}

/* Parses the text; the report must contain `want`, or be empty when want is NULL. */
static void expect(Str text, const char *want) {
  Run r;
  run_begin(&r);
  AstFile *file;
  bool ok =
      ast_parse_text(&r.sources, &r.arena, source_add(&r.sources, "t.dl", text.s, text.len), &file, &r.diag);
  const char *got = run_report(&r);
  if (want ? !strstr(got, want) : *got)
    fail_msg("want '%s', got '%.400s'", want ? want : "", got);
  assert_int_equal(ok, want == NULL);
  str_free(&text);
  run_end(&r);
}

static void depth_limits(void **state) {
  (void)state;
  const char *open = "fn f(x) {\n  return ", *close = "\n}\n";
  expect(repeated(open, "(", 900, "x", ")", close), NULL);
  expect(repeated(open, "(", 5000, "x", ")", close), "brackets are nested more than 1000 deep");
  expect(repeated(open, "f(", 990, "x", ")", close), NULL);
  expect(repeated(open, "x[a = ", 5000, "x", "]", close), "brackets are nested");
  expect(repeated(open, "", 680, "x", " + 1", close), NULL);
  expect(repeated(open, "", 10000, "x", " + 1", close), NULL);
  expect(repeated(open, "", 30000, "x", " * x", close), "a chain more than 20000 deep");
  expect(repeated(open, "", 30000, "x", "[a as b]", close), "a chain more than 20000 deep");
  expect(repeated(open, "-", 5000, "x", "", close), "nested more than 1000 deep");
  expect(repeated(open, "-", 200000, "x", "", close), "nested more than 1000 deep");
  expect(repeated(open, "x ^ ", 5000, "x", "", close), "nested more than 1000 deep");
  expect(repeated(open, "not ", 5000, "x", "", close), "nested more than 1000 deep");
  expect(repeated("fn f(x) {\n", "if 1 {\n", 5000, "y = x\n", "}\n", close), "blocks are nested");
  expect(repeated("fn f(x) {\n", "if 1 { y = 1 } else ", 3000, "{ y = 2 }", "", close), "'else if' goes on");
  expect(repeated("fn f(x) {\n", "use b: n\nx = b(x)\n", 2000, "", "", close), NULL);
  expect(repeated("fn f(x) {\n", ") = ] + {\n", 3000, "", "", close), "unexpected ')'");
}

static void too_many_errors_are_counted(void **state) {
  (void)state;
  expect(repeated("fn f(x) {\n", "a = = 1\n", 500, "", "", "}\n"), "480 more not shown");
}

static void nearest_name(void **state) {
  (void)state;
  const char *const names[] = {"key", "time", "batch", "embed"};
  assert_string_equal(diag_nearest("bacth", names, 4), "batch");
  assert_string_equal(diag_nearest("keys", names, 4), "key");
  assert_null(diag_nearest("vocab", names, 4));
  assert_null(diag_nearest("x", names, 4));
}

/* The tree of a small program, node by node. */
static void tree_shape(void **state) {
  (void)state;
  static const char text[] = "module m(x, eps = 1e-5) {\n"
                             "  param a[e], b[e] = 1, c ~ normal(0, 0.02)\n"
                             "  return -x ^ 2 + f[e](x[e = 0..3], k = 2) * a\n"
                             "}\n";
  Run r;
  run_begin(&r);
  AstFile *file;
  assert_true(ast_parse_text(&r.sources, &r.arena, source_add(&r.sources, "t.dl", text, strlen(text)), &file,
                             &r.diag));
  assert_int_equal(file->n, 1);
  AstItem *m = file->v[0];
  assert_int_equal(m->kind, ITEM_MODULE);
  assert_int_equal(m->def.n_inputs, 2);
  assert_true(m->def.inputs[1].value->number.value == 1e-5);
  AstStmt *decl = m->def.body.v[0];
  assert_int_equal(decl->decl.n, 3);
  assert_ptr_equal(decl->decl.v[0].init, decl->decl.v[1].init);
  assert_int_equal(decl->decl.v[2].init_kind, INIT_DRAW);
  AstExpr *e = m->def.body.v[1]->ret.value;
  assert_int_equal(e->binary.op, BINARY_ADD);
  assert_int_equal(e->binary.a->kind, EXPR_UNARY);
  assert_int_equal(e->binary.a->unary.x->binary.op, BINARY_POW);
  AstExpr *call = e->binary.b->binary.a;
  assert_int_equal(call->kind, EXPR_CALL);
  assert_string_equal(call->call.axes.axes.v[0].text, "e");
  assert_string_equal(call->call.args.v[1].name.text, "k");
  assert_int_equal(call->call.args.v[0].value->bracket.b.index[0].hi->number.i, 3);
  run_end(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_cases),
      cmocka_unit_test(every_model_parses),
      cmocka_unit_test(depth_limits),
      cmocka_unit_test(nearest_name),
      cmocka_unit_test(too_many_errors_are_counted),
      cmocka_unit_test(tree_shape),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
