/* cmd_run.c: `dlc run`: training. Everything that can be wrong is found before the run's folder is touched.
 */
#include "cli/setup.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static volatile sig_atomic_t stop_requested;

static void on_signal(int number) {
  stop_requested = number;
}

typedef struct {
  const Args *args;
  Session session;
  Codegen *cg;
  Device *device;
  Compiled train, eval;
  Exec *train_x, *eval_x;
  Tensors tensors;
  DataSet data;
  Sampler sampler;
  bool has_eval, has_sampler;
  RunDir *dir;
  MetricsLog *log;
  Progress *progress;
  TrainState state;
  int64_t total, saved_step;
  char hash[65];
  Str last_sample;
} Run;

static const char *out_folder(Run *r) {
  struct stat st;
  if (r->args->out) {
    return r->args->out;
  }
  if (stat(r->args->file, &st) == 0 && S_ISDIR(st.st_mode) &&
      file_exists(arena_printf(&r->session.arena, "%s/run.json", r->args->file))) {
    return r->args->file;
  }
  return arena_printf(&r->session.arena, "out/%s", r->session.model->plan.name);
}

static bool compile_all(Run *r, Error *err) {
  r->cg = driver_codegen(err);
  if (!r->cg || !driver_compile(&r->session, r->cg, PIPE_TRAIN, NULL, 0, "train", NULL, &r->train, err)) {
    return false;
  }
  r->device = device_open(r->args->device ? r->args->device : "auto", &(DeviceOptions){.pin = true}, err);
  if (!r->device) {
    return false;
  }
  r->has_eval = setup_has_eval(&r->data);
  if (r->has_eval && !driver_compile(&r->session, r->cg, PIPE_EVAL, NULL, 0, "eval", NULL, &r->eval, err)) {
    return false;
  }
  r->train_x = exec_load(r->device, &r->train.draft.program, driver_symbol, &r->train, err);
  r->eval_x = r->train_x && r->has_eval
                  ? exec_load(r->device, &r->eval.draft.program, driver_symbol, &r->eval, err)
                  : NULL;
  return r->train_x && (!r->has_eval || r->eval_x);
}

static int open_sampler(Run *r, Error *err) {
  const Plan *p = &r->session.model->plan;
  const Tokenizer *tok = r->data.n ? data_tokenizer(r->data.source[0]) : NULL;
  if (!p->sample_every || !tok) {
    return 0;
  }
  int code = sampler_open(&r->sampler, r->args, r->cg, r->device, tok, err);
  r->has_sampler = code == 0;
  return code;
}

/* Reports the first line in which two programs differ. */
static void show_change(const char *was, const char *is) {
  const char *a = was, *b = is;
  for (;;) {
    size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
    if (n != m || strncmp(a, b, n)) {
      fprintf(stderr, "  was: %.*s\n  is:  %.*s\n", (int)n, a, (int)m, b);
      return;
    }
    if (!a[n] || !b[m]) {
      return;
    }
    a += n + 1;
    b += m + 1;
  }
}

static bool resume(Run *r, const char *folder, bool *found, Error *err) {
  Arena *a = &r->session.arena;
  CheckpointPath path;
  char *skipped = NULL;
  *found = false;
  if (!checkpoint_latest(folder, a, &path, found, &skipped, err)) {
    return false;
  }
  if (skipped) {
    fprintf(stderr, "dlc: %s\n", skipped);
  }
  if (!*found) {
    return true;
  }
  TrainState s;
  if (!checkpoint_load(path.dir, r->tensors.t, r->tensors.n, a, &s, err)) {
    return false;
  }
  if (strcmp(s.plan_hash, r->hash) && !r->args->accept_plan_change) {
    char *was = NULL;
    size_t n;
    Error ignored = {0};
    const char *plan = arena_printf(a, "%s/plan.dl", folder);
    fprintf(stderr, "dlc: the program is not the one that '%s' was trained with:\n", folder);
    if (file_read(plan, a, &was, &n, &ignored)) {
      show_change(was, r->session.model->folded);
    }
    return error_set(err, ERR_USAGE, "to go on with the changed program, add --accept-plan-change");
  }
  r->state = s;
  return true;
}

static bool open_folder(Run *r, const char *folder, RunMode mode, Error *err) {
  const Model *m = r->session.model;
  r->dir = rundir_open(folder, mode, err);
  if (!r->dir) {
    return false;
  }
  Str target = {0}, hash = {0}, data = {0};
  str_put_json(&target, codegen_target(r->cg));
  str_put_json(&hash, r->hash);
  str_putc(&data, '[');
  for (uint32_t i = 0; i < r->data.n; i++) {
    str_puts(&data, i ? ", " : "");
    str_put_json(&data, data_hash(r->data.source[i], &r->session.arena));
  }
  str_putc(&data, ']');
  const char *extra[] = {"target", target.s, "plan_hash", hash.s, "data_hash", data.s};
  bool ok = file_write(rundir_file(r->dir, "plan.dl"), m->folded, strlen(m->folded), err) &&
            run_json_write(rundir_file(r->dir, "run.json"), r->args->argc, (const char *const *)r->args->argv,
                           extra, 3, err);
  str_free(&target);
  str_free(&hash);
  str_free(&data);
  const Tokenizer *tok = r->data.n ? data_tokenizer(r->data.source[0]) : NULL;
  if (ok && tok && strcmp(tokenizer_kind(tok), "bytes")) {
    ok = tokenizer_save(tok, rundir_file(r->dir, "vocab.json"), err);
  }
  if (ok) {
    r->log = metrics_open(rundir_file(r->dir, "metrics.jsonl"), r->state.step, err);
    r->progress = progress_open(r->total, r->state.step, rundir_file(r->dir, "log.txt"));
  }
  return ok && r->log;
}

/* ---- steps ---- */

static double now_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool save(Run *r, Error *err) {
  if (r->saved_step == r->state.step) {
    return true;
  }
  const Plan *p = &r->session.model->plan;
  r->saved_step = r->state.step;
  return checkpoint_save(rundir_path(r->dir), &r->state, r->tensors.t, r->tensors.n, p->save_keep, err);
}

static bool evaluate(Run *r, StepMetrics *s, Arena *a, Error *err) {
  EvalResult e;
  const Plan *p = &r->session.model->plan;
  if (!setup_eval(a, r->session.model, &r->data, r->eval_x, &r->eval, p->eval_batches, &e, err)) {
    return false;
  }
  const char **name = ARENA_ARRAY(a, const char *, s->n + e.n);
  double *value = ARENA_ARRAY(a, double, s->n + e.n);
  Str line = {0};
  str_printf(&line, "step %lld: held-out loss %.4f", (long long)s->step, e.loss);
  for (uint32_t i = 0; i < s->n + e.n; i++) {
    bool own = i < s->n;
    name[i] = own ? s->name[i] : arena_printf(a, "eval_%s", e.name[i - s->n]);
    value[i] = own ? s->value[i] : e.value[i - s->n];
    if (!own) {
      str_printf(&line, ", %s %.4f", e.name[i - s->n], value[i]);
    }
  }
  progress_line(r->progress, "%s", line.s);
  str_free(&line);
  s->has_eval = true;
  s->eval_loss = e.loss;
  s->n += e.n;
  s->name = name;
  s->value = value;
  return true;
}

static bool write_sample(Run *r, int64_t step, Error *err) {
  const Plan *p = &r->session.model->plan;
  SampleRule rule = {p->sample_temperature, p->sample_top_k, 1};
  str_free(&r->last_sample);
  if (!sampler_text(&r->sampler, p->sample_prompt, p->sample_tokens, &rule, p->seed + (uint64_t)step,
                    &r->last_sample, err)) {
    return false;
  }
  progress_line(r->progress, "step %lld writes: %s%s", (long long)step, p->sample_prompt,
                r->last_sample.s ? r->last_sample.s : "");
  return true;
}

static void collect(Run *r, StepMetrics *s, Arena *a) {
  const Program *p = exec_program(r->train_x);
  s->name = ARENA_ARRAY(a, const char *, p->n_results);
  double *value = ARENA_ARRAY(a, double, p->n_results);
  const char **name = ARENA_ARRAY(a, const char *, p->n_results);
  for (uint32_t i = 0; i < p->n_results; i++) {
    const Result *res = &p->result[i];
    double v = res->kind <= 1 ? exec_value(r->train_x, i) : 0;
    if (res->kind == 0 && !strncmp(res->name, "loss_term.", 10)) {
      s->loss += v * setup_term_coef(r->train.func, res->name);
    } else if (res->kind == 0) {
      name[s->n] = res->name;
      value[s->n++] = v;
    } else if (!strcmp(res->name, "grad_norm")) {
      s->grad_norm = v;
    } else if (!strcmp(res->name, "lr")) {
      s->lr = v;
    }
  }
  s->name = name;
  s->value = value;
}

static bool due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

/* What a user can do after a loss that is no number. */
static const char *way_on(const Run *r, Arena *a) {
  const char *cure = "lower the learning rate, clip, or look at the data and the initial weights";
  return r->saved_step >= 0 ? arena_printf(a, "%s; --resume goes on from the checkpoint of step %lld", cure,
                                           (long long)r->saved_step)
                            : arena_printf(a, "%s; nothing was saved yet", cure);
}

static bool one_step(Run *r, Error *err) {
  const Model *m = r->session.model;
  const Plan *p = &m->plan;
  Arena a = {0};
  int64_t step = r->state.step + 1;
  double start = now_seconds();
  exec_set_scalar(r->train_x, SCALAR_STEP, step);
  exec_set_scalar(r->train_x, SCALAR_ATTEMPT, step);
  exec_set_scalar(r->train_x, SCALAR_SEED, (int64_t)p->seed);
  bool ok = setup_batch(m, &r->data, r->train_x, step, err) && exec_run(r->train_x, err);
  StepMetrics s = {.step = step, .mfu = NAN};
  if (ok) {
    collect(r, &s, &a);
    s.step_ms = 1e3 * (now_seconds() - start);
    int64_t per_step = p->batch * (r->data.n ? data_tokens_per_sample(r->data.source[0]) : 1);
    s.tokens = step * per_step;
    s.tokens_per_s = (double)per_step * 1e3 / s.step_ms;
    s.epoch = r->data.n ? data_epoch(r->data.source[0], step) : 0;
    if (!isfinite(s.loss)) {
      metrics_step(r->log, &s, err);
      ok = error_set(err, ERR_RUN, "the loss is %s at step %lld of rank 0; %s",
                     isnan(s.loss) ? "not a number" : "infinite", (long long)step, way_on(r, &a));
    }
  }
  if (ok) {
    r->state.step = step;
    r->state.sample = step * p->batch;
    bool last = step == r->total;
    if (r->has_eval && (due(step, p->eval_every) || last)) {
      ok = evaluate(r, &s, &a, err);
    }
    ok = ok && metrics_step(r->log, &s, err);
    progress_step(r->progress, &s);
    if (ok && r->has_sampler && (due(step, p->sample_every) || last)) {
      ok = write_sample(r, step, err);
    }
    if (ok && due(step, p->save_every)) {
      ok = save(r, err);
    }
  }
  arena_free(&a);
  return ok;
}

static bool finish(Run *r, Error *err) {
  uint32_t n_times;
  const Model *m = r->session.model;
  Report rep = {.title = m->plan.name,
                .subtitle = m->plan.model,
                .metrics_path = rundir_file(r->dir, "metrics.jsonl"),
                .program = &r->train.draft.program,
                .time = r->args->profile ? exec_times(r->train_x, &n_times) : NULL,
                .layout = m->plan.layout,
                .plan = m->folded,
                .sample = r->last_sample.s};
  bool ok = metrics_close(r->log, err);
  r->log = NULL;
  return report_write(rundir_file(r->dir, "report.html"), &rep, err) && ok;
}

static bool train(Run *r, Error *err) {
  exec_profile(r->train_x, r->args->profile);
  bool ok = true;
  while (ok && r->state.step < r->total && !stop_requested) {
    ok = one_step(r, err);
  }
  ok = ok && save(r, err);
  progress_close(r->progress);
  r->progress = NULL;
  Error late = {0};
  if (!finish(r, &late) && ok) {
    *err = late;
    return false;
  }
  if (ok && stop_requested) {
    return error_set(err, ERR_STOPPED,
                     "stopped on request at step %lld with a checkpoint saved; run again with --resume",
                     (long long)r->state.step);
  }
  return ok;
}

static void close_run(Run *r) {
  if (r->progress) {
    progress_close(r->progress);
  }
  Error ignored = {0};
  if (r->log) {
    metrics_close(r->log, &ignored);
  }
  rundir_close(r->dir);
  sampler_close(&r->sampler);
  if (r->eval_x) {
    exec_unload(r->eval_x);
  }
  if (r->train_x) {
    exec_unload(r->train_x);
  }
  device_close(r->device);
  driver_unload(&r->eval);
  driver_unload(&r->train);
  codegen_free(r->cg);
  setup_close_data(&r->data);
  str_free(&r->last_sample);
  session_close(&r->session);
}

static bool prepare(Run *r, const char **folder, Error *err) {
  const Args *a = r->args;
  Model *m = r->session.model;
  if (!driver_need_plan(&r->session, err) || !setup_data(&r->session.arena, m, &r->data, err)) {
    return false;
  }
  r->total = a->steps >= 0 ? a->steps : m->plan.steps;
  if (r->total > m->plan.steps) {
    return error_set(err, ERR_USAGE,
                     "--steps %lld is beyond the plan's %lld steps; --set steps=%lld lengthens the plan",
                     (long long)r->total, (long long)m->plan.steps, (long long)r->total);
  }
  sha256_hex(m->folded, strlen(m->folded), r->hash);
  *folder = out_folder(r);
  return compile_all(r, err) && open_sampler(r, err) == 0;
}

static bool start(Run *r, const char *folder, Error *err) {
  const Args *a = r->args;
  const Model *m = r->session.model;
  r->tensors = setup_tensors(&r->session.arena, m->module, r->train_x);
  r->state = (TrainState){.seed = m->plan.seed, .loss_scale = 1, .plan_hash = r->hash};
  r->saved_step = -1;
  bool found = false;
  if (a->resume && !resume(r, folder, &found, err)) {
    return false;
  }
  if (!found && !setup_init(m, &r->tensors, err)) {
    return false;
  }
  r->saved_step = found ? r->state.step : -1;
  r->state.plan_hash = r->hash;
  return open_folder(r, folder,
                     found       ? RUN_RESUME
                     : a->fresh  ? RUN_FRESH
                     : a->resume ? RUN_RESUME
                                 : RUN_NEW,
                     err);
}

/* From the start on: a run that is asked to stop while it is being prepared saves what it begins from. */
static void catch_signals(void) {
  struct sigaction sa = {.sa_handler = on_signal};
  sigaction(SIGTERM, &sa, NULL);
  sigaction(SIGINT, &sa, NULL);
  sigaction(SIGUSR1, &sa, NULL);
}

int cmd_run(const Args *a) {
  catch_signals();
  Run *r = calloc(1, sizeof *r);
  if (!r) {
    abort();
  }
  r->args = a;
  int code = session_open(&r->session, a, NULL, 0);
  if (code) {
    free(r);
    return code;
  }
  Error err = {0};
  const char *folder = NULL;
  bool ok = prepare(r, &folder, &err) && start(r, folder, &err) && train(r, &err);
  if (!ok) {
    code = cli_fail(&err);
  } else if (a->json) {
    Str s = {0};
    str_puts(&s, "{\"out\": ");
    str_put_json(&s, folder);
    printf("%s, \"step\": %lld}\n", s.s, (long long)r->state.step);
    str_free(&s);
  } else {
    fprintf(stderr, "%s: %lld steps; report: %s/report.html\n", folder, (long long)r->state.step, folder);
  }
  close_run(r);
  free(r);
  return code;
}
