/* data.c: samples of a source by a global index: order, windows, batches. The kinds of sources are in
 * data_*.c. */
#include <stdlib.h>
#include <string.h>

#include "runtime/files.h"
#include "runtime/source.h"

/* ---- the order of samples ---- */

enum { ROUNDS = 6, KEY_ORDER = 0x6f726472, KEY_OFFSET = 0x6f666673 };

static uint32_t draw(uint64_t seed, uint32_t purpose, uint64_t epoch, uint32_t a, uint32_t b) {
  uint32_t counter[4] = {a, b, (uint32_t)epoch, (uint32_t)(epoch >> 32)},
           key[2] = {rng_seed_key(seed), purpose}, out[4];
  philox4x32(counter, key, out);
  return out[0];
}

/* A Feistel network over 2 * half bits permutes 0 .. 4^half - 1; walking on until the value is below n
 * permutes 0 .. n - 1. */
uint64_t permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch) {
  uint32_t half = 1;
  while (half < 32 && (uint64_t)1 << 2 * half < n) {
    half++;
  }
  uint64_t mask = ((uint64_t)1 << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
      uint64_t next = left ^ (draw(seed, KEY_ORDER, epoch, (uint32_t)right, round) & mask);
      left = right;
      right = next;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

/* ---- opening ---- */

void source_note_file(Data *d, const char *path) {
  VEC_PUSH(&d->arena, d->file, d->n_files, d->cap_files, arena_strdup(&d->arena, path));
}

int64_t source_split(int64_t n, double hold_out) {
  return n - (int64_t)((double)n * hold_out);
}

static bool check_options(const Data *d, const DataOptions *o, Error *err) {
  if (!(o->hold_out >= 0 && o->hold_out < 1)) {
    return error_set(err, ERR_INPUT, "data from %s: hold_out is %g, it must be from 0 to below 1", o->path,
                     o->hold_out);
  }
  if (!o->n_inputs) {
    return error_set(err, ERR_INPUT, "data from %s: it fills no input", o->path);
  }
  for (uint32_t i = 0; i < d->n_inputs; i++) {
    const DataInput *in = &d->input[i];
    if (in->rank < 1 || in->size[0] < 1 || in->size[0] != d->input[0].size[0]) {
      return error_set(err, ERR_INPUT, "data from %s: input '%s' has no batch axis of the size of input '%s'",
                       o->path, in->name, d->input[0].name);
    }
  }
  return true;
}

/* Ids come as windows into one or two inputs [batch, time]. */
static bool check_token_inputs(const Data *d, Error *err) {
  if (d->n_inputs > 2) {
    return error_set(err, ERR_INPUT, "data from %s fills one or two inputs (the ids, the next ids), not %u",
                     d->path, d->n_inputs);
  }
  for (uint32_t i = 0; i < d->n_inputs; i++) {
    const DataInput *in = &d->input[i];
    if (in->rank != 2 || in->size[1] != d->input[0].size[1] || in->size[1] < 1 ||
        (in->dtype != DT_I32 && in->dtype != DT_I64)) {
      return error_set(err, ERR_INPUT, "data from %s: input '%s' must be int[batch, time]", d->path,
                       in->name);
    }
  }
  return true;
}

/* How many windows a stretch of n ids gives to training. From 16 on one is given up, so that epochs can start
 * at different places. */
static int64_t train_windows(const Data *d, int64_t n) {
  int64_t whole = n > 0 ? (n - 1) / d->time : 0;
  return whole >= 16 && !d->sequential ? whole - 1 : whole;
}

static bool count_windows(Data *d, bool wants_eval, Error *err) {
  d->samples = train_windows(d, d->train.n);
  d->eval_samples = d->eval.n > 0 ? (d->eval.n - 1) / d->time : 0;
  d->window = ARENA_ARRAY(&d->arena, int32_t, (size_t)d->time + 1);
  if (d->samples < 1 || (wants_eval && d->eval_samples < 1)) {
    bool train = d->samples < 1;
    return error_set(err, ERR_INPUT, "%s holds %lld ids %s: one sample needs time + 1 = %lld",
                     train || !d->eval_path ? d->path : d->eval_path,
                     (long long)(train ? d->train.n : d->eval.n), train ? "for training" : "held out",
                     (long long)d->time + 1);
  }
  return true;
}

static bool open_source(Data *d, const DataOptions *o, Error *err) {
  if (!check_options(d, o, err)) {
    return false;
  }
  d->batch = d->input[0].size[0];
  if (o->kind == SOURCE_ARRAYS) {
    return source_open_arrays(d, o, err);
  }
  d->time = d->input[0].rank > 1 ? d->input[0].size[1] : 0;
  return check_token_inputs(d, err) &&
         (o->kind == SOURCE_TEXT ? source_open_text(d, o, err) : source_open_tokens(d, o, err)) &&
         count_windows(d, o->hold_out > 0 || o->eval_path, err);
}

Data *data_open(const DataOptions *o, Error *err) {
  Arena arena = {0};
  Data *d = ARENA_NEW(&arena, Data);
  *d = (Data){.kind = o->kind, .sequential = o->sequential, .n_inputs = o->n_inputs, .seed = o->seed};
  d->path = arena_strdup(&arena, o->path);
  d->eval_path = o->eval_path ? arena_strdup(&arena, o->eval_path) : NULL;
  d->input = ARENA_ARRAY(&arena, DataInput, o->n_inputs);
  for (uint32_t i = 0; i < o->n_inputs; i++) {
    d->input[i] = o->input[i];
    d->input[i].name = arena_strdup(&arena, o->input[i].name);
  }
  d->arena = arena;
  if (!open_source(d, o, err)) {
    data_close(d);
    return NULL;
  }
  return d;
}

void data_close(Data *d) {
  if (!d) {
    return;
  }
  source_close_shards(&d->train.stream);
  if (d->eval_path) {
    source_close_shards(&d->eval.stream);
  }
  tokenizer_close(d->tokenizer);
  tensorfile_close(d->tensors);
  tensorfile_close(d->eval_tensors);
  Arena arena = d->arena; /* d itself lies in it */
  arena_free(&arena);
}

int64_t data_train_samples(const Data *d) {
  return d->samples;
}
int64_t data_eval_samples(const Data *d) {
  return d->eval_samples;
}
int64_t data_eval_batches(const Data *d) {
  return (d->eval_samples + d->batch - 1) / d->batch;
}
int64_t data_tokens_per_sample(const Data *d) {
  return d->kind == SOURCE_ARRAYS ? 1 : d->time;
}
const Tokenizer *data_tokenizer(const Data *d) {
  return d->tokenizer;
}

double data_epoch(const Data *d, int64_t steps_done) {
  return (double)steps_done * (double)d->batch / (double)d->samples;
}

/* ---- batches ---- */

static bool put_window(const Data *d, const Part *p, int64_t from, int64_t row, void *const *out,
                       Error *err) {
  int64_t n = d->n_inputs > 1 ? d->time + 1 : d->time;
  if (!stream_read(&p->stream, p->first + from, n, d->window, err)) {
    return false;
  }
  for (uint32_t i = 0; i < d->n_inputs; i++) {
    const int32_t *ids = d->window + i;
    if (d->input[i].dtype == DT_I32) {
      memcpy((int32_t *)out[i] + row * d->time, ids, (size_t)d->time * sizeof *ids);
    } else {
      for (int64_t t = 0; t < d->time; t++) {
        ((int64_t *)out[i])[row * d->time + t] = ids[t];
      }
    }
  }
  return true;
}

static bool put_sample(const Data *d, const Part *p, int64_t at, int64_t row, void *const *out, Error *err) {
  return d->kind == SOURCE_ARRAYS ? source_read_row(d, p, p->first + at, row, out, err)
                                  : put_window(d, p, at, row, out, err);
}

/* First id of an epoch's first window. */
static int64_t epoch_start(const Data *d, uint64_t epoch) {
  int64_t room = d->train.n - 1 - d->samples * d->time;
  uint64_t r = draw(d->seed, KEY_OFFSET, epoch, 0, 0);
  return d->sequential ? 0 : (int64_t)(r * ((uint64_t)room + 1) >> 32);
}

bool data_train_batch(Data *d, int64_t step, void *const *out, Error *err) {
  if (step < 1) {
    return error_set(err, ERR_RUN, "steps count from 1, not %lld", (long long)step);
  }
  for (int64_t row = 0; row < d->batch; row++) {
    uint64_t index = (uint64_t)(step - 1) * (uint64_t)d->batch + (uint64_t)row, n = (uint64_t)d->samples;
    uint64_t epoch = index / n, place = index % n;
    int64_t sample = (int64_t)(d->sequential ? place : permute(place, n, d->seed, epoch));
    int64_t at = d->kind == SOURCE_ARRAYS ? sample : epoch_start(d, epoch) + sample * d->time;
    if (!put_sample(d, &d->train, at, row, out, err)) {
      return false;
    }
  }
  return true;
}

static bool put_eval(Data *d, int64_t sample, int64_t row, void *const *out, Error *err) {
  return put_sample(d, &d->eval, d->kind == SOURCE_ARRAYS ? sample : sample * d->time, row, out, err);
}

bool data_eval_batch(Data *d, int64_t index, void *const *out, int64_t *valid, Error *err) {
  if (index < 0 || index >= data_eval_batches(d)) {
    return error_set(err, ERR_RUN, "data from %s has %lld batches for evaluation, not %lld", d->path,
                     (long long)data_eval_batches(d), (long long)index + 1);
  }
  int64_t left = d->eval_samples - index * d->batch;
  *valid = left < d->batch ? left : d->batch;
  for (int64_t row = 0; row < d->batch; row++) {
    int64_t sample = index * d->batch + (row < *valid ? row : *valid - 1);
    if (!put_eval(d, sample, row, out, err)) {
      return false;
    }
  }
  return true;
}

bool data_eval_fill_last(Data *d, void *const *out, Error *err) {
  if (!d->eval_samples) {
    return error_set(err, ERR_USAGE, "data from %s has no held-out part", d->path);
  }
  for (int64_t row = 0; row < d->batch; row++) {
    if (!put_eval(d, d->eval_samples - 1, row, out, err)) {
      return false;
    }
  }
  return true;
}

/* ---- description ---- */

char *data_hash(const Data *d, Arena *a) {
  Str all = {0};
  for (uint32_t i = 0; i < d->n_files; i++) {
    char sum[65];
    Error err = {0};
    str_puts(&all, file_sha256(d->file[i], sum, &err) ? sum : "unreadable");
  }
  char whole[65];
  sha256_hex(all.s ? all.s : "", all.len, whole);
  char *hash = arena_strdup(a, d->n_files == 1 ? all.s : whole);
  str_free(&all);
  return hash;
}

static void put_count(Str *s, int64_t n) {
  if (n >= 1000) {
    put_count(s, n / 1000);
    str_printf(s, ",%03d", (int)(n % 1000));
  } else {
    str_printf(s, "%d", (int)n);
  }
}

char *data_describe(const Data *d, Arena *a) {
  static const char *const kinds[] = {"text", "tokens", "arrays"};
  const char *unit = d->kind == SOURCE_ARRAYS ? "rows" : d->tokenizer ? tokenizer_kind(d->tokenizer) : "ids";
  Str s = {0};
  str_printf(&s, "%s %s: ", kinds[d->kind], d->path);
  put_count(&s, d->train.n);
  str_printf(&s, " %s for training (", unit);
  put_count(&s, d->samples);
  str_puts(&s, " samples an epoch)");
  if (d->eval.n) {
    str_puts(&s, ", ");
    put_count(&s, d->eval.n);
    str_printf(&s, " %s held out%s%s", unit, d->eval_path ? ": " : "", d->eval_path ? d->eval_path : "");
  }
  char *text = arena_strdup(a, s.s);
  str_free(&s);
  return text;
}
