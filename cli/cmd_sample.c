/* cmd_sample.c: `dlc sample`: text from saved weights. */
#include "cli/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tokenizer of the run, else the one the plan's data line makes. */
static Tokenizer *find_tokenizer(Arena *a, const char *run, const Plan *p, Error *err) {
  const char *saved = run ? arena_printf(a, "%s/vocab.json", run) : NULL;
  if (saved && file_exists(saved)) {
    return tokenizer_load(saved, err);
  }
  const char *kind = p->n_data && p->data[0].kind == DATA_TEXT ? p->data[0].tokenizer : "bytes";
  if (!strcmp(kind, "bytes")) {
    return tokenizer_new("bytes", NULL, 0, err);
  }
  char *text;
  size_t n;
  return file_read(p->data[0].path, a, &text, &n, err) ? tokenizer_new(kind, text, n, err) : NULL;
}

static bool write_text(Sampler *s, const Args *a, const char *prompt, Error *err) {
  SampleRule rule = {isnan(a->temperature) ? 1 : a->temperature, a->top_k > 0 ? a->top_k : 0,
                     isnan(a->top_p) ? 1 : a->top_p};
  Str out = {0};
  uint64_t seed = a->seed >= 0 ? (uint64_t)a->seed : s->session.model->plan.seed;
  bool ok = sampler_text(s, prompt, a->tokens > 0 ? a->tokens : 200, &rule, seed, &out, err);
  if (ok && a->json) {
    Str j = {0};
    str_puts(&j, "{\"prompt\": ");
    str_put_json(&j, prompt);
    str_puts(&j, ", \"text\": ");
    str_put_json(&j, out.s ? out.s : "");
    str_puts(&j, "}\n");
    fputs(j.s, stdout);
    str_free(&j);
  } else if (ok) {
    printf("%s%s\n", prompt, out.s ? out.s : "");
  }
  str_free(&out);
  return ok;
}

static bool all_prompts(Sampler *s, const Args *a, Error *err) {
  if (!a->second || strcmp(a->second, "-")) {
    return write_text(s, a, a->second ? a->second : "\n", err);
  }
  char *line = NULL;
  size_t cap = 0;
  bool ok = true;
  for (ssize_t n; ok && (n = getline(&line, &cap, stdin)) > 0;) {
    line[strcspn(line, "\n")] = 0;
    ok = write_text(s, a, line, err);
  }
  free(line);
  return ok;
}

int cmd_sample(const Args *a) {
  if (!a->from) {
    return cli_usage(a, "--from says which weights");
  }
  Error err = {0};
  Arena mem = {0};
  Sampler s;
  Tokenizer *tok = NULL;
  Codegen *cg = driver_codegen(&err);
  Device *d = cg ? device_open(a->device ? a->device : "auto", &(DeviceOptions){.pin = true}, &err) : NULL;
  if (!d) {
    codegen_free(cg);
    return cli_fail(&err);
  }
  int code = sampler_open(&s, a, cg, d, NULL, &err);
  if (!code) {
    const Module *m = s.session.model->module;
    Tensors t = setup_tensors(&mem, m, s.exec);
    const char *run = NULL;
    bool ok = setup_weights(&mem, a->from, &t, m, &run, &err);
    tok = ok ? find_tokenizer(&mem, run, &s.session.model->plan, &err) : NULL;
    s.tokenizer = tok;
    ok = tok && all_prompts(&s, a, &err);
    code = ok ? 0 : (int)err.cls;
  }
  if (err.cls) {
    cli_fail(&err);
  }
  sampler_close(&s);
  tokenizer_close(tok);
  device_close(d);
  codegen_free(cg);
  arena_free(&mem);
  return code;
}
