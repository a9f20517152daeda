/* cmd_eval.c: `dlc eval`: held-out loss and metrics of saved weights over the whole held-out part. */
#include "cli/setup.h"

#include <stdio.h>
#include <string.h>

static void print_result(const Args *a, const EvalResult *e, const Baselines *b) {
  Str s = {0};
  if (a->json) {
    str_puts(&s, "{\"eval_loss\": ");
    str_put_double(&s, e->loss);
    str_printf(&s, ", \"samples\": %lld", (long long)e->samples);
    for (uint32_t i = 0; i < e->n; i++) {
      str_puts(&s, ", ");
      str_put_json(&s, e->name[i]);
      str_puts(&s, ": ");
      str_put_double(&s, e->value[i]);
    }
    if (b) {
      str_printf(&s, ", \"uniform\": %.9g, \"unigram\": %.9g, \"bigram\": %.9g", b->uniform, b->unigram,
                 b->bigram);
    }
    str_puts(&s, "}\n");
  } else {
    str_printf(&s, "held-out loss %.4f over %lld samples\n", e->loss, (long long)e->samples);
    for (uint32_t i = 0; i < e->n; i++) {
      str_printf(&s, "%s %.4f\n", e->name[i], e->value[i]);
    }
    if (b) {
      str_printf(
          &s,
          "of the same text by counting: unigram %.4f, bigram %.4f, knowing nothing %.4f (nats a token)\n",
          b->unigram, b->bigram, b->uniform);
    }
  }
  fputs(s.s, stdout);
  str_free(&s);
}

static bool eval_run(const Args *a, Session *s, DataSet *data, Error *err) {
  const Model *m = s->model;
  Arena *mem = &s->arena;
  Compiled c = {0};
  Exec *x = NULL;
  const char *run = NULL;
  EvalResult result;
  Baselines base;
  if (!driver_need_plan(s, err) || !setup_data(mem, m, data, err)) {
    return false;
  }
  if (!setup_has_eval(data)) {
    return error_set(err, ERR_INPUT,
                     "the plan holds out no data; add hold_out = 0.1 or eval = \"FILE\" to its data line");
  }
  Codegen *cg = driver_codegen(err);
  Device *d = cg ? device_open(a->device ? a->device : "auto", &(DeviceOptions){.pin = true}, err) : NULL;
  bool ok = d && driver_compile(s, cg, PIPE_EVAL, NULL, 0, "eval", NULL, &c, err);
  x = ok ? exec_load(d, &c.draft.program, driver_symbol, &c, err) : NULL;
  ok = x != NULL;
  if (ok) {
    Tensors t = setup_tensors(mem, m->module, x);
    exec_set_scalar(x, SCALAR_SEED, (int64_t)m->plan.seed);
    exec_set_scalar(x, SCALAR_ATTEMPT, 0);
    ok = setup_weights(mem, a->from, &t, m->module, &run, err) &&
         setup_eval(mem, m, data, x, &c, a->batches > 0 ? a->batches : 0, &result, err);
  }
  const Tokenizer *tok = data_tokenizer(data->source[0]);
  if (ok && a->baselines) {
    ok = tok ? data_baselines(data->source[0], tokenizer_size(tok), &base, err)
             : error_set(err, ERR_USAGE, "--baselines are counts of a text; this plan's data is no text");
  }
  if (ok) {
    print_result(a, &result, a->baselines ? &base : NULL);
  }
  if (x) {
    exec_unload(x);
  }
  device_close(d);
  driver_unload(&c);
  codegen_free(cg);
  return ok;
}

int cmd_eval(const Args *a) {
  if (!a->from) {
    return cli_usage(a, "--from says which weights");
  }
  Session s;
  int code = session_open_inference(&s, a, 0);
  if (code) {
    return code;
  }
  Error err = {0};
  DataSet data = {0};
  if (!eval_run(a, &s, &data, &err)) {
    code = cli_fail(&err);
  }
  setup_close_data(&data);
  session_close(&s);
  return code;
}
