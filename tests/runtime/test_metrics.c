/* What a run writes besides its weights: metrics.jsonl, log.txt, report.html, run.json, its folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <sys/wait.h>

#include "folder.h"
#include "runtime/runtime.h"

static char *slurp(Arena *a, const char *path) {
  char *text;
  size_t n;
  Error err = {0};
  assert_true(file_read(path, a, &text, &n, &err));
  return text;
}

static int count(const char *text, const char *what) {
  int n = 0;
  for (const char *p = text; (p = strstr(p, what)); p++) {
    n++;
  }
  return n;
}

static StepMetrics step_of(int64_t step) {
  return (StepMetrics){.step = step,
                       .epoch = 0.1,
                       .loss = 1.0 / 3,
                       .grad_norm = 2,
                       .lr = 1e-3,
                       .tokens = step * 64,
                       .step_ms = 1.5,
                       .tokens_per_s = 40000,
                       .mfu = NAN};
}

static void test_lines_and_cut(void **state) {
  (void)state;
  Error err = {0};
  Arena a = {0};
  const char *path = in_folder("metrics.jsonl");
  MetricsLog *m = metrics_open(path, 0, &err);
  assert_non_null(m);
  for (int64_t i = 1; i <= 12; i++) {
    StepMetrics s = step_of(i);
    const char *names[] = {"acc"};
    double values[] = {0.25};
    s.has_eval = i == 2;
    s.eval_loss = 0.1;
    s.loss = i == 3 ? NAN : s.loss;
    s.n = 1;
    s.name = names;
    s.value = values;
    assert_true(metrics_step(m, &s, &err));
  }
  assert_true(metrics_close(m, &err));
  char *text = slurp(&a, path);
  assert_int_equal(count(text, "\n"), 12);
  assert_int_equal(count(text, "nonfinite"), 1);
  assert_int_equal(count(text, "\"eval_loss\": 0.1"), 1);
  for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
    json_t *row = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(row);
    int64_t step = json_integer_value(json_object_get(row, "step"));
    const json_t *loss = json_object_get(row, "loss");
    assert_true(step == 3 ? json_is_null(loss) : json_real_value(loss) == 1.0 / 3);
    assert_true(json_real_value(json_object_get(row, "acc")) == 0.25 && !json_object_get(row, "mfu"));
    json_decref(row);
  }
  FILE *f = fopen(path, "a"); /* torn by a kill */
  fputs("{\"time\": 1, \"step\": 1", f);
  fclose(f);
  m = metrics_open(path, 10, &err);
  StepMetrics s = step_of(11);
  assert_true(metrics_step(m, &s, &err) && metrics_close(m, &err));
  text = slurp(&a, path);
  assert_int_equal(count(text, "\n"), 11);
  assert_int_equal(count(text, "\"step\": 11,"), 1);
  assert_int_equal(count(text, "\"step\": 12,"), 0);
  assert_true(metrics_close(metrics_open(path, 0, &err), &err));
  assert_int_equal(strlen(slurp(&a, path)), 0);
  assert_null(metrics_open(in_folder("absent/metrics.jsonl"), 0, &err));
  arena_free(&a);
}

/* Standard error of a child that shows 1000 steps, off a terminal. */
static void test_progress_off_a_terminal(void **state) {
  (void)state;
  const char *path = in_folder("stderr.txt"), *log = in_folder("log.txt");
  pid_t child = fork();
  if (child == 0) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(fd, STDERR_FILENO);
    Progress *p = progress_open(1000, 0, log);
    for (int64_t i = 1; i <= 1000; i++) {
      StepMetrics s = step_of(i);
      progress_step(p, &s);
    }
    progress_line(p, "held-out loss %d \033[31m\xff", 7);
    progress_close(p);
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
  Arena a = {0};
  const char *text = slurp(&a, path);
  assert_int_equal(count(text, "\n"), 3); /* the first step, the line, the last step */
  assert_int_equal(count(text, "\033") + count(text, "\xff"), 0);
  assert_int_equal(count(text, "step 1000/1000  loss 0.3333"), 1);
  assert_string_equal(text, slurp(&a, log));
  arena_free(&a);
}

static void test_report(void **state) {
  (void)state;
  Error err = {0};
  Arena a = {0};
  const char *path = in_folder("m.jsonl");
  MetricsLog *m = metrics_open(path, 0, &err);
  for (int64_t i = 1; i <= 5000; i++) {
    StepMetrics s = step_of(i);
    s.loss = i == 7 ? NAN : 5.0 / (double)i;
    s.has_eval = i % 1000 == 0;
    s.eval_loss = 1;
    assert_true(metrics_step(m, &s, &err));
  }
  assert_true(metrics_close(m, &err));
  Buffer buffer[] = {{.name = "w", .kind = BUF_PARAM, .bytes = 64},
                     {.name = "t", .kind = BUF_TEMP, .bytes = 128, .offset = 64}};
  Kernel kernel[] = {{.name = "k0", .cls = "map", .fused = "a < b", .loc = "x.dl:3"}};
  Launch launch[] = {{.kernel = 0}};
  Program p = {.name = "train",
               .buffer = buffer,
               .kernel = kernel,
               .launch = launch,
               .n_buffers = 2,
               .n_kernels = 1,
               .n_launches = 1,
               .arena_bytes = 192,
               .lower_bound_bytes = 192};
  KernelTime time[] = {{0, 5000, 1.5}};
  Report r = {.title = "a & b",
              .metrics_path = path,
              .program = &p,
              .time = time,
              .layout = "micro 4",
              .plan = "plan <x>",
              .sample = "caf\xe9 <b>"};
  const char *html = in_folder("report.html");
  assert_true(report_write(html, &r, &err));
  const char *text = slurp(&a, html);
  static const char *const parts[] = {
      "<title>a &amp; b</title>",  "<polyline", "<circle", "a &lt; b", "100.0 %", "micro 4", "plan &lt;x&gt;",
      "caf\xef\xbf\xbd &lt;b&gt;", "</html>"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (!strstr(text, parts[i])) {
      fail_msg("report.html lacks %s", parts[i]);
    }
  }
  assert_int_equal(count(text, "http://") + count(text, "https://") + count(text, "nan"), 0);
  assert_int_equal(count(text, "<circle"), 5);
  assert_true(report_write(html, &(Report){.title = "bare"}, &err));
  assert_false(report_write(in_folder("absent/report.html"), &r, &err));
  arena_free(&a);
}

static void test_run_folder(void **state) {
  (void)state;
  Error err = {0};
  Arena a = {0};
  const char *path = in_folder("out/demo");
  RunDir *r = rundir_open(path, RUN_NEW, &err);
  assert_non_null(r);
  const char *argv[] = {"dlc", "run", "a \"b\".dl"}, *extra[] = {"seed", "7"};
  assert_true(run_json_write(rundir_file(r, "run.json"), 3, argv, extra, 1, &err));
  json_t *row = json_loads(slurp(&a, rundir_file(r, "run.json")), 0, NULL);
  assert_int_equal(json_integer_value(json_object_get(row, "seed")), 7);
  json_decref(row);
  assert_null(rundir_open(path, RUN_RESUME, &err)); /* held by this very process */
  assert_int_equal(err.cls, ERR_USAGE);
  rundir_close(r);
  err = (Error){0};
  assert_null(rundir_open(path, RUN_NEW, &err));
  assert_int_equal(err.cls, ERR_USAGE);
  assert_true(strstr(err.msg, "--resume") && strstr(err.msg, "--fresh"));
  err = (Error){0};
  r = rundir_open(path, RUN_RESUME, &err);
  assert_non_null(r);
  rundir_close(r);
  r = rundir_open(path, RUN_FRESH, &err);
  assert_non_null(r);
  assert_true(file_exists(in_folder("out/demo.1/run.json")) && !file_exists(in_folder("out/demo/run.json")));
  rundir_close(r);
  arena_free(&a);
}

static void test_sampling(void **state) {
  (void)state;
  enum { N = 5, DRAWS = 20000 };
  float logits[N] = {0, (float)log(3), NAN, -INFINITY, (float)log(3)};
  double scratch[2 * N];
  int hits[N] = {0};
  SampleRule rule = {1, 0, 1};
  for (uint64_t i = 0; i < DRAWS; i++) {
    hits[sample_token(logits, N, &rule, 7, i, scratch)]++;
  }
  assert_float_equal(hits[0], DRAWS / 7.0, 250);
  assert_float_equal(hits[1], DRAWS * 3 / 7.0, 350);
  assert_true(hits[2] == 0 && hits[3] == 0);
  assert_int_equal(sample_token(logits, N, &rule, 7, 3, scratch),
                   sample_token(logits, N, &rule, 7, 3, scratch));
  const SampleRule certain[] = {{0, 0, 1}, {1, 1, 1}, {1, 0, 0.2}, {0.001, 1, 1}}; /* ties: the lowest id */
  for (size_t k = 0; k < sizeof certain / sizeof *certain; k++) {
    for (uint64_t i = 0; i < 50; i++) {
      assert_int_equal(sample_token(logits, N, &certain[k], 7, i, scratch), 1);
    }
  }
  SampleRule two = {1, 2, 1};
  for (uint64_t i = 0; i < 200; i++) {
    assert_true(sample_token(logits, N, &two, 7, i, scratch) % 3 == 1);
  }
  float none[2] = {NAN, NAN};
  assert_int_equal(sample_token(none, 2, &rule, 7, 0, scratch), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lines_and_cut), cmocka_unit_test(test_progress_off_a_terminal),
      cmocka_unit_test(test_report),        cmocka_unit_test(test_run_folder),
      cmocka_unit_test(test_sampling),
  };
  return cmocka_run_group_tests(tests, make_test_folder, drop_test_folder);
}
