/* sampler.c: text from a model: the program of its logits at batch 1, a window that slides. */
#include "cli/setup.h"

#include <string.h>

int sampler_open(Sampler *s, const Args *a, Codegen *cg, Device *d, const Tokenizer *tok, Error *err) {
  memset(s, 0, sizeof *s);
  int code = session_open_inference(&s->session, a, 1);
  if (code) {
    return code;
  }
  const Plan *p = &s->session.model->plan;
  if (p->time_axis == NONE || p->vocab_axis == NONE) {
    error_set(err, ERR_INPUT,
              "sampling needs a model of token ids [batch, time] with an output 'logits' that has a "
              "vocabulary axis");
    return ERR_INPUT;
  }
  const char *outputs[] = {"logits"};
  if (!driver_compile(&s->session, cg, PIPE_APPLY, outputs, 1, "sample", NULL, &s->compiled, err)) {
    return err->cls;
  }
  s->exec = exec_load(d, &s->compiled.draft.program, driver_symbol, &s->compiled, err);
  if (!s->exec) {
    return err->cls;
  }
  const Module *m = s->session.model->module;
  uint32_t r = exec_result(s->exec, "logits");
  s->tokens = exec_buffer(s->exec, BUF_INPUT, m->input[0].name);
  if (r == UINT32_MAX || s->tokens == UINT32_MAX) {
    error_set(err, ERR_INPUT, "the output 'logits' does not depend on the input '%s'", m->input[0].name);
    return ERR_INPUT;
  }
  s->logits = s->compiled.draft.program.result[r].num;
  s->time = m->input[0].type.dim[1].size;
  s->tokenizer = tok;
  const Buffer *b = &s->compiled.draft.program.buffer[s->logits];
  for (int i = 0; i < b->rank; i++) {
    if (!strcmp(b->axis[i], ir_axis_name(m, p->vocab_axis))) {
      s->vocab = b->size[i];
    }
  }
  return 0;
}

void sampler_close(Sampler *s) {
  if (s->exec) {
    exec_unload(s->exec);
    s->exec = NULL;
  }
  driver_unload(&s->compiled);
  if (s->session.model) {
    session_close(&s->session);
  }
}

/* Row of the logits at one position: batch is 1, so [time, vocab] in the output's own order. */
static void logits_at(Sampler *s, int64_t position, float *out) {
  const Program *p = &s->compiled.draft.program;
  const Buffer *b = &p->buffer[s->logits];
  const Module *m = s->session.model->module;
  int64_t stride = 1, time_stride = 0, vocab_stride = 0;
  for (int i = b->rank; i-- > 0;) {
    if (!strcmp(b->axis[i], ir_axis_name(m, s->session.model->plan.time_axis))) {
      time_stride = stride;
    } else if (!strcmp(b->axis[i], ir_axis_name(m, s->session.model->plan.vocab_axis))) {
      vocab_stride = stride;
    }
    stride *= b->size[i];
  }
  const void *data = exec_map(s->exec, s->logits);
  for (int64_t i = 0; i < s->vocab; i++) {
    int64_t at = position * time_stride + i * vocab_stride;
    out[i] = b->dtype == DT_F64 ? (float)((const double *)data)[at] : ((const float *)data)[at];
  }
}

/* Length of the UTF-8 character at p, 0 when there is none. */
static size_t character(const unsigned char *p, size_t n) {
  size_t want = p[0] < 0x80                   ? 1
                : p[0] >= 0xC2 && p[0] < 0xE0 ? 2
                : p[0] >= 0xE0 && p[0] < 0xF0 ? 3
                : p[0] >= 0xF0 && p[0] < 0xF5 ? 4
                                              : 0;
  for (size_t i = 1; i < want; i++) {
    if (i >= n || (p[i] & 0xC0) != 0x80) {
      return 0;
    }
  }
  return want;
}

/* What a model of bytes writes need not be UTF-8; what we print is: a byte that fits nowhere becomes U+FFFD.
 */
static void append_readable(Str *out, const Str *raw) {
  for (size_t i = 0; i < raw->len;) {
    size_t n = character((const unsigned char *)raw->s + i, raw->len - i);
    if (n) {
      str_write(out, raw->s + i, n);
    } else {
      str_puts(out, "\xEF\xBF\xBD");
    }
    i += n ? n : 1;
  }
}

bool sampler_text(Sampler *s, const char *prompt, int64_t n_tokens, const SampleRule *rule, uint64_t seed,
                  Str *out, Error *err) {
  Arena mem = {0};
  int32_t *ids;
  int64_t n;
  if (!tokenizer_encode(s->tokenizer, prompt, strlen(prompt), &mem, &ids, &n, err)) {
    arena_free(&mem);
    return false;
  }
  int32_t *text = ARENA_ARRAY(&mem, int32_t, (size_t)(n + n_tokens + 1));
  memcpy(text, ids, (size_t)n * sizeof *text);
  if (n == 0) {
    text[n++] = 0; /* something must come first: id 0 */
  }
  float *logits = ARENA_ARRAY(&mem, float, (size_t)s->vocab);
  double *scratch = ARENA_ARRAY(&mem, double, 2 * (size_t)s->vocab);
  int32_t *window = exec_map(s->exec, s->tokens);
  int64_t known = tokenizer_size(s->tokenizer) < s->vocab ? tokenizer_size(s->tokenizer) : s->vocab;
  Str raw = {0};
  bool ok = true;
  for (int64_t i = 0; ok && i < n_tokens; i++) {
    int64_t from = n > s->time ? n - s->time : 0, used = n - from;
    memset(window, 0, (size_t)s->time * sizeof *window);
    memcpy(window, text + from, (size_t)used * sizeof *window);
    ok = exec_run(s->exec, err);
    logits_at(s, used - 1, logits);
    int64_t id = ok ? sample_token(logits, known, rule, seed, (uint64_t)i, scratch) : -1;
    if (ok && id < 0) {
      ok = error_set(err, ERR_RUN, "sampling: no logit is a number at token %lld", (long long)i);
    } else if (ok) {
      text[n++] = (int32_t)id;
      tokenizer_decode(s->tokenizer, (int32_t)id, &raw);
    }
  }
  append_readable(out, &raw);
  str_free(&raw);
  arena_free(&mem);
  return ok;
}
