/* metrics.c: metrics.jsonl and the progress line. */
#include "runtime/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* ---- metrics.jsonl ---- */

struct MetricsLog {
  FILE *f;
  char *path;
};

static double wall_seconds(void) {
  struct timeval t;
  gettimeofday(&t, NULL);
  return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* Keeps whole lines whose step is at most keep_through. */
static bool cut(const char *path, int64_t keep_through, Error *err) {
  Arena a = {0};
  char *text;
  size_t n;
  if (!file_exists(path)) {
    return true;
  }
  if (!file_read(path, &a, &text, &n, err)) {
    arena_free(&a);
    return false;
  }
  Str kept = {0};
  for (char *p = text, *end; (end = strchr(p, '\n')); p = end + 1) {
    char *at = strstr(p, "\"step\": ");
    if (at && at < end && strtoll(at + 8, NULL, 10) <= keep_through) {
      str_write(&kept, p, (size_t)(end + 1 - p));
    }
  }
  bool ok = file_write(path, kept.s ? kept.s : "", kept.len, err);
  str_free(&kept);
  arena_free(&a);
  return ok;
}

MetricsLog *metrics_open(const char *path, int64_t keep_through, Error *err) {
  if (!cut(path, keep_through, err)) {
    return NULL;
  }
  MetricsLog *m = calloc(1, sizeof *m);
  if (!m) {
    abort();
  }
  m->path = strdup(path);
  m->f = fopen(path, "a");
  if (!m->f) {
    error_set(err, ERR_RUN, "%s: cannot open: %s", path, strerror(errno));
    free(m->path);
    free(m);
    return NULL;
  }
  return m;
}

static bool put_number(Str *s, const char *key, double v) {
  str_printf(s, ", \"%s\": ", key);
  if (!isfinite(v)) {
    str_puts(s, "null");
    return false;
  }
  str_put_double(s, v);
  return true;
}

bool metrics_step(MetricsLog *m, const StepMetrics *s, Error *err) {
  Str line = {0};
  bool finite = true;
  str_printf(&line, "{\"time\": %.3f, \"step\": %lld", wall_seconds(), (long long)s->step);
  finite &= put_number(&line, "epoch", s->epoch);
  finite &= put_number(&line, "loss", s->loss);
  finite &= put_number(&line, "grad_norm", s->grad_norm);
  finite &= put_number(&line, "lr", s->lr);
  str_printf(&line, ", \"tokens\": %lld", (long long)s->tokens);
  put_number(&line, "step_ms", s->step_ms);
  put_number(&line, "tokens_per_s", s->tokens_per_s);
  if (!isnan(s->mfu)) {
    put_number(&line, "mfu", s->mfu);
  }
  if (s->has_eval) {
    finite &= put_number(&line, "eval_loss", s->eval_loss);
  }
  for (uint32_t i = 0; i < s->n; i++) {
    finite &= put_number(&line, s->name[i], s->value[i]);
  }
  str_puts(&line, finite ? "}\n" : ", \"nonfinite\": true}\n");
  bool ok = fwrite(line.s, 1, line.len, m->f) == line.len && fflush(m->f) == 0;
  str_free(&line);
  return ok || error_set(err, ERR_RUN, "%s: cannot write: %s", m->path, strerror(errno));
}

bool metrics_close(MetricsLog *m, Error *err) {
  if (!m) {
    return true;
  }
  bool ok = fflush(m->f) == 0 && fsync(fileno(m->f)) == 0;
  ok = fclose(m->f) == 0 && ok;
  if (!ok) {
    error_set(err, ERR_RUN, "%s: cannot write: %s", m->path, strerror(errno));
  }
  free(m->path);
  free(m);
  return ok;
}

/* ---- progress ---- */

struct Progress {
  int64_t total, first;
  FILE *log;
  bool terminal, color, open; /* open: the rewriting line stands */
  double started, last;
  StepMetrics now;
  bool seen;
};

Progress *progress_open(int64_t total_steps, int64_t first_step, const char *log_path) {
  Progress *p = calloc(1, sizeof *p);
  if (!p) {
    abort();
  }
  p->total = total_steps;
  p->first = first_step;
  p->terminal = isatty(STDERR_FILENO);
  p->color = p->terminal && !getenv("NO_COLOR");
  p->log = log_path ? fopen(log_path, "a") : NULL;
  p->started = wall_seconds();
  return p;
}

static void step_text(const Progress *p, Str *s) {
  const StepMetrics *m = &p->now;
  int64_t done = m->step - p->first;
  double left = done > 0 ? (wall_seconds() - p->started) / (double)done * (double)(p->total - m->step) : 0;
  str_printf(s, "step %lld/%lld  loss %.4f  %.0f tokens/s  ETA %d:%02d", (long long)m->step,
             (long long)p->total, m->loss, m->tokens_per_s, (int)left / 60, (int)left % 60);
}

/* What a model of bytes writes may be no text: nothing of it may steer the terminal. */
static void put_clean(Str *s, const char *text) {
  uint32_t code;
  for (size_t left = strlen(text); left > 0;) {
    int len = utf8_next(text, left, &code);
    if (!len || (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0)) {
      utf8_put(s, 0xfffd);
    } else {
      str_write(s, text, (size_t)len);
    }
    text += len ? len : 1;
    left -= len ? (size_t)len : 1;
  }
}

static void put_line(Progress *p, const char *text) {
  if (p->open) {
    fputs("\r\033[K", stderr);
    p->open = false;
  }
  fprintf(stderr, "%s\n", text);
  if (p->log) {
    fprintf(p->log, "%s\n", text);
    fflush(p->log);
  }
}

void progress_step(Progress *p, const StepMetrics *s) {
  p->now = *s;
  p->now.name = NULL;
  p->now.value = NULL;
  p->now.n = 0;
  p->seen = true;
  double now = wall_seconds();
  if (now - p->last < (p->terminal ? 0.1 : 10)) {
    return;
  }
  p->last = now;
  Str text = {0};
  step_text(p, &text);
  if (p->terminal) {
    fprintf(stderr, p->color ? "\r\033[K\033[36m%s\033[0m" : "\r\033[K%s", text.s);
    fflush(stderr);
    p->open = true;
  } else {
    put_line(p, text.s);
  }
  str_free(&text);
}

void progress_line(Progress *p, const char *fmt, ...) {
  char text[8192];
  Str clean = {0};
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  put_clean(&clean, text);
  put_line(p, clean.s ? clean.s : "");
  str_free(&clean);
}

void progress_close(Progress *p) {
  if (!p) {
    return;
  }
  if (p->seen) {
    Str text = {0};
    step_text(p, &text);
    put_line(p, text.s);
    str_free(&text);
  }
  if (p->log) {
    fclose(p->log);
  }
  free(p);
}
