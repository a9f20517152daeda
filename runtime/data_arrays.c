/* data_arrays.c: samples that are rows of named tensors in a safetensors file. */
#include <string.h>

#include "runtime/source.h"

static bool same_row(const FileTensor *t, const DataInput *in) {
  return t->rank == in->rank && !memcmp(t->size + 1, in->size + 1, (size_t)(in->rank - 1) * sizeof *in->size);
}

static void put_row_shape(Str *s, const char *first, const int64_t *size, uint8_t rank) {
  str_printf(s, "[%s", rank ? first : "");
  for (uint8_t i = 1; i < rank; i++) {
    str_printf(s, ", %lld", (long long)size[i]);
  }
  str_putc(s, ']');
}

static bool wrong_shape(const char *path, const FileTensor *t, const DataInput *in, Error *err) {
  Str s = {0};
  put_row_shape(&s, "rows", t->size, t->rank);
  str_puts(&s, ", the input needs ");
  put_row_shape(&s, "rows", in->size, in->rank);
  error_set(err, ERR_INPUT, "%s: tensor '%s' is %s", path, t->name, s.s);
  str_free(&s);
  return false;
}

/* Finds the tensors of all inputs; *rows = their common number of rows. */
static bool find_tensors(Data *d, const TensorFile *f, const char *path, const FileTensor *const **out,
                         int64_t *rows, Error *err) {
  const FileTensor **found = ARENA_ARRAY(&d->arena, const FileTensor *, d->n_inputs);
  for (uint32_t i = 0; i < d->n_inputs; i++) {
    const DataInput *in = &d->input[i];
    const FileTensor *t = found[i] = tensorfile_find(f, in->name);
    if (!t) {
      Str names = {0};
      for (uint32_t k = 0; k < tensorfile_count(f) && k < 20; k++) {
        str_printf(&names, "%s%s", k ? ", " : "", tensorfile_at(f, k)->name);
      }
      error_set(err, ERR_INPUT, "%s has no tensor '%s'; it has: %s", path, in->name,
                names.s ? names.s : "none");
      str_free(&names);
      return false;
    }
    if (!same_row(t, in)) {
      return wrong_shape(path, t, in, err);
    }
    if (t->size[0] != found[0]->size[0]) {
      return error_set(err, ERR_INPUT, "%s: tensor '%s' has %lld rows, tensor '%s' has %lld", path,
                       found[0]->name, (long long)found[0]->size[0], t->name, (long long)t->size[0]);
    }
  }
  *rows = found[0]->size[0];
  *out = found;
  return true;
}

static bool check_row(const char *path, const FileTensor *t, const DataInput *in, const void *row, int64_t n,
                      int64_t from, Error *err) {
  for (int64_t i = 0; i < n && in->limit > 0; i++) {
    int64_t id = in->dtype == DT_I32   ? ((const int32_t *)row)[i]
                 : in->dtype == DT_I64 ? ((const int64_t *)row)[i]
                                       : 0;
    if (id < 0 || id >= in->limit) {
      return error_set(
          err, ERR_INPUT,
          "%s: tensor '%s' row %lld holds %lld, outside the axis of size %lld that input '%s' indexes", path,
          t->name, (long long)from, (long long)id, (long long)in->limit, in->name);
    }
  }
  return true;
}

/* Every id of the file, before anything is trained. */
static bool check_ids(const Data *d, const char *path, const FileTensor *const *tensor, Error *err) {
  enum { BLOCK = 1 << 16 };
  for (uint32_t i = 0; i < d->n_inputs; i++) {
    const DataInput *in = &d->input[i];
    const FileTensor *t = tensor[i];
    int64_t row = t->size[0] ? t->count / t->size[0] : 0;
    int64_t step = row && row < BLOCK ? BLOCK / row : 1;
    if (in->limit <= 0 || row == 0) {
      continue;
    }
    Arena a = {0};
    void *ids = arena_alloc_array(&a, (size_t)(step * row), dtype_bytes(in->dtype));
    bool ok = true;
    for (int64_t from = 0; ok && from < t->size[0]; from += step) {
      int64_t n = t->size[0] - from < step ? t->size[0] - from : step;
      ok = filetensor_read(t, from * row, n * row, in->dtype, ids, err);
      for (int64_t k = 0; ok && k < n; k++) {
        ok = check_row(path, t, in, (const char *)ids + (size_t)(k * row) * dtype_bytes(in->dtype), row,
                       from + k, err);
      }
    }
    arena_free(&a);
    if (!ok) {
      return false;
    }
  }
  return true;
}

bool source_open_arrays(Data *d, const DataOptions *o, Error *err) {
  int64_t rows;
  d->tensors = tensorfile_open(o->path, err);
  if (!d->tensors || !find_tensors(d, d->tensors, o->path, &d->train.tensor, &rows, err)) {
    return false;
  }
  if (!check_ids(d, o->path, d->train.tensor, err)) {
    return false;
  }
  source_note_file(d, o->path);
  d->train.n = d->samples = source_split(rows, o->hold_out);
  if (o->eval_path) {
    d->eval_tensors = tensorfile_open(o->eval_path, err);
    if (!d->eval_tensors ||
        !find_tensors(d, d->eval_tensors, o->eval_path, &d->eval.tensor, &d->eval.n, err) ||
        !check_ids(d, o->eval_path, d->eval.tensor, err)) {
      return false;
    }
    source_note_file(d, o->eval_path);
  } else {
    d->eval = (Part){.first = d->samples, .n = rows - d->samples, .tensor = d->train.tensor};
  }
  d->eval_samples = d->eval.n;
  if (d->samples < 1) {
    return error_set(err, ERR_INPUT, "%s has no rows for training", o->path);
  }
  return true;
}

bool source_read_row(const Data *d, const Part *p, int64_t from, int64_t row, void *const *out, Error *err) {
  const char *path = p == &d->eval && d->eval_path ? d->eval_path : d->path;
  for (uint32_t i = 0; i < d->n_inputs; i++) {
    const DataInput *in = &d->input[i];
    const FileTensor *t = p->tensor[i];
    int64_t n = t->size[0] ? t->count / t->size[0] : 0;
    char *to = (char *)out[i] + (size_t)(row * n) * dtype_bytes(in->dtype);
    if (!filetensor_read(t, from * n, n, in->dtype, to, err) || !check_row(path, t, in, to, n, from, err)) {
      return false;
    }
  }
  return true;
}
