/* baselines.c: what counting alone reaches on the held-out part of a text. */
#include <math.h>
#include <stdlib.h>

#include "runtime/source.h"

enum { BIGRAM_MOST = 4096 }; /* a table of counts above this would not fit in memory */

typedef struct {
  int64_t vocab, total;
  int64_t *one, *two; /* two may be NULL */
} Counts;

static bool walk(const Data *d, const Part *p, int64_t n, void (*pair)(void *ctx, int64_t a, int64_t b),
                 void *ctx, Error *err) {
  enum { PIECE = 4096 };
  int32_t ids[PIECE + 1];
  for (int64_t at = 0; at + 1 < n; at += PIECE) {
    int64_t take = n - 1 - at < PIECE ? n - 1 - at : PIECE;
    if (!stream_read(&p->stream, p->first + at, take + 1, ids, err)) {
      return false;
    }
    for (int64_t i = 0; i < take; i++) {
      pair(ctx, ids[i], ids[i + 1]);
    }
  }
  (void)d;
  return true;
}

static void count(void *ctx, int64_t a, int64_t b) {
  Counts *c = ctx;
  c->one[b]++;
  c->total++;
  if (c->two) {
    c->two[a * (c->vocab + 1) + b]++;
    c->two[a * (c->vocab + 1) + c->vocab]++; /* the row's sum */
  }
}

typedef struct {
  const Counts *c;
  double unigram, bigram;
  int64_t n;
} Score;

static void score(void *ctx, int64_t a, int64_t b) {
  Score *s = ctx;
  const Counts *c = s->c;
  s->unigram -= log((double)(c->one[b] + 1) / (double)(c->total + c->vocab));
  if (c->two) {
    const int64_t *row = c->two + a * (c->vocab + 1);
    s->bigram -= log((double)(row[b] + 1) / (double)(row[c->vocab] + c->vocab));
  }
  s->n++;
}

bool data_baselines(const Data *d, int64_t vocab, Baselines *out, Error *err) {
  if (d->kind == SOURCE_ARRAYS || !d->eval_samples) {
    return error_set(err, ERR_USAGE, "data from %s has no held-out text", d->path);
  }
  int64_t size = d->tokenizer ? tokenizer_size(d->tokenizer) : 65536;
  if (vocab < size) {
    vocab = size; /* ids are below both: data_open checked them against the inputs' limits */
  }
  Counts c = {.vocab = vocab, .one = calloc((size_t)vocab, sizeof *c.one)};
  if (vocab <= BIGRAM_MOST) {
    c.two = calloc((size_t)(vocab * (vocab + 1)), sizeof *c.two);
  }
  Score s = {.c = &c};
  bool ok = c.one && (c.two || vocab > BIGRAM_MOST);
  if (!ok) {
    error_set(err, ERR_RUN, "out of memory");
  }
  /* The targets of the held-out windows, as the model's evaluation sees them. */
  ok = ok && walk(d, &d->train, d->train.n, count, &c, err) &&
       walk(d, &d->eval, d->eval_samples * d->time + 1, score, &s, err);
  free(c.one);
  free(c.two);
  if (ok) {
    *out = (Baselines){log((double)vocab), s.unigram / (double)s.n, c.two ? s.bigram / (double)s.n : NAN};
  }
  return ok;
}
