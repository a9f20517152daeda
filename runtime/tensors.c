/* tensors.c: tensors of a run and their names in files: slices of repeats, initial values, loading by name.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/pool.h"
#include "runtime/tensorfile.h"

HostTensor host_tensor(Exec *x, uint32_t buffer) {
  const Buffer *b = &exec_program(x)->buffer[buffer];
  HostTensor t = {.name = b->name, .dtype = b->dtype, .rank = b->rank, .data = exec_map(x, buffer)};
  t.in_optimizer = b->kind == BUF_OPT;
  memcpy(t.size, b->size, sizeof t.size);
  memcpy(t.axis, b->axis, sizeof t.axis);
  for (const char *p = b->name; *p; p++) {
    t.n_repeat += *p == '*';
  }
  return t;
}

static int64_t product(const int64_t *size, uint32_t n) {
  int64_t count = 1;
  for (uint32_t i = 0; i < n; i++) {
    count *= size[i];
  }
  return count;
}

int64_t tensor_count(const HostTensor *t) {
  return product(t->size, t->rank);
}

int64_t tensor_slices(const HostTensor *t) {
  return product(t->size, t->n_repeat);
}

char *tensor_slice_name(Arena *a, const HostTensor *t, int64_t slice) {
  int64_t index[PROGRAM_MAX_RANK] = {0};
  for (int i = t->n_repeat - 1; i >= 0; i--) {
    index[i] = slice % t->size[i];
    slice /= t->size[i];
  }
  Str s = {0};
  int star = 0;
  for (const char *p = t->name; *p; p++) {
    if (*p == '*' && star < t->n_repeat) {
      str_printf(&s, "%lld", (long long)index[star++]);
    } else {
      str_putc(&s, *p);
    }
  }
  char *name = arena_strdup(a, s.s ? s.s : "");
  str_free(&s);
  return name;
}

bool name_like(const char *name, const char *glob) {
  const char *star = NULL, *back = NULL;
  while (*name) {
    if (*glob == '*') {
      star = glob++;
      back = name;
    } else if (*glob == *name) {
      glob++;
      name++;
    } else if (star) { /* let the last star take one character more */
      glob = star + 1;
      name = ++back;
    } else {
      return false;
    }
  }
  while (*glob == '*') {
    glob++;
  }
  return !*glob;
}

/* ---- initial values ---- */

static double draw(FillKind kind, double a, double b, const RngInit *key, int64_t i) {
  switch (kind) {
  case FILL_NORMAL: return a + b * rng_init_normal_at(key, (uint64_t)i);
  case FILL_UNIFORM: return a + (b - a) * rng_init_uniform_at(key, (uint64_t)i);
  default: return a;
  }
}

typedef struct {
  const HostTensor *t;
  int64_t first; /* element of the tensor where the slice begins */
  FillKind kind;
  double a, b;
  RngInit key;
} Fill;

enum { FILL_PIECE = 1 << 16 };

/* Pieces lo .. hi - 1 of a slice. */
static void fill_pieces(void *ctx, int32_t worker, int64_t lo, int64_t hi) {
  (void)worker;
  const Fill *f = ctx;
  int64_t count = tensor_count(f->t) / tensor_slices(f->t),
          end = hi * FILL_PIECE < count ? hi * FILL_PIECE : count;
  for (int64_t i = lo * FILL_PIECE; i < end; i++) {
    double v = draw(f->kind, f->a, f->b, &f->key, i);
    if (f->t->dtype == DT_F64) {
      ((double *)f->t->data)[f->first + i] = v;
    } else {
      ((float *)f->t->data)[f->first + i] = (float)v;
    }
  }
}

void tensor_fill(const HostTensor *t, FillKind kind, double a, double b, uint64_t seed) {
  Arena arena = {0};
  Error ignored = {0};
  int64_t slices = tensor_slices(t), each = slices ? tensor_count(t) / slices : 0;
  int64_t pieces = (each + FILL_PIECE - 1) / FILL_PIECE;
  int32_t threads = pieces > 4 ? pool_default_threads(&ignored) : 1;
  Pool *pool = threads > 1 ? pool_new(threads, false, &ignored) : NULL;
  for (int64_t s = 0; s < slices; s++) {
    Fill f = {t, s * each, kind, a, b, rng_init_key(seed, tensor_slice_name(&arena, t, s))};
    if (pool) {
      pool_run(pool, pieces, fill_pieces, &f);
    } else {
      fill_pieces(&f, 0, 0, pieces);
    }
  }
  pool_free(pool);
  arena_free(&arena);
}

/* ---- loading by name ---- */

enum { LISTED = 12 };

typedef struct {
  Str text;
  int64_t n;
} Faults;

static void fault(Faults *f, const char *what, const char *name, const char *detail) {
  if (f->n++ < LISTED) {
    str_printf(&f->text, "\n  %s %s%s%s", what, name, *detail ? ": " : "", detail);
  }
}

static void put_shape(Str *s, const int64_t *size, uint32_t rank) {
  str_putc(s, '[');
  for (uint32_t i = 0; i < rank; i++) {
    str_printf(s, "%s%lld", i ? ", " : "", (long long)size[i]);
  }
  str_putc(s, ']');
}

static bool same_shape(const HostTensor *t, const FileTensor *in) {
  uint32_t rank = (uint32_t)(t->rank - t->n_repeat);
  return in->rank == rank && !memcmp(in->size, t->size + t->n_repeat, rank * sizeof *in->size);
}

static void check_slice(Faults *faults, const HostTensor *t, const char *name, const FileTensor *in,
                        bool missing_ok) {
  if (!in) {
    if (!missing_ok) {
      fault(faults, "missing:", name, "");
    }
  } else if (!same_shape(t, in)) {
    Str s = {0};
    put_shape(&s, in->size, in->rank);
    str_puts(&s, " in the file, ");
    put_shape(&s, t->size + t->n_repeat, (uint32_t)(t->rank - t->n_repeat));
    str_puts(&s, " in the model");
    fault(faults, "another shape:", name, s.s);
    str_free(&s);
  }
}

/* Which tensors of the file the model has: marks them in `used`. */
static void check_tensors(const TensorFile *f, const HostTensor *t, uint32_t n, const char *glob,
                          bool missing_ok, unsigned char *used, Faults *faults) {
  Arena arena = {0};
  for (uint32_t i = 0; i < n; i++) {
    for (int64_t s = 0; s < tensor_slices(&t[i]); s++) {
      const char *name = tensor_slice_name(&arena, &t[i], s);
      if (glob && !name_like(name, glob)) {
        continue;
      }
      const FileTensor *in = tensorfile_find(f, name);
      check_slice(faults, &t[i], name, in, missing_ok);
      if (in) {
        used[in - tensorfile_at(f, 0)] = 1;
      }
    }
    arena_free(&arena);
  }
}

static bool load_tensor(const TensorFile *f, const HostTensor *t, const char *glob, Error *err) {
  Arena arena = {0};
  int64_t slices = tensor_slices(t), each = slices ? tensor_count(t) / slices : 0;
  bool ok = true;
  for (int64_t s = 0; s < slices && ok; s++) {
    const char *name = tensor_slice_name(&arena, t, s);
    const FileTensor *in = glob && !name_like(name, glob) ? NULL : tensorfile_find(f, name);
    char *to = (char *)t->data + (size_t)(s * each) * dtype_bytes(t->dtype);
    ok = !in || filetensor_read(in, 0, each, t->dtype, to, err);
  }
  arena_free(&arena);
  return ok;
}

bool tensors_load(const TensorFile *f, const HostTensor *t, uint32_t n, const char *glob, bool missing_ok,
                  bool extra_ok, Error *err) {
  Faults faults = {0};
  unsigned char *used = calloc(tensorfile_count(f) + 1, 1);
  if (!used) {
    return error_set(err, ERR_RUN, "out of memory");
  }
  check_tensors(f, t, n, glob, missing_ok, used, &faults);
  for (uint32_t i = 0; i < tensorfile_count(f) && !extra_ok; i++) {
    const char *name = tensorfile_at(f, i)->name;
    if (!used[i] && (!glob || name_like(name, glob))) {
      fault(&faults, "not in the model:", name, "");
    }
  }
  free(used);
  if (faults.n > LISTED) {
    str_printf(&faults.text, "\n  and %lld more", (long long)(faults.n - LISTED));
  }
  if (faults.n) {
    error_set(err, ERR_INPUT, "%s does not fit the model:%s", tensorfile_path(f), faults.text.s);
    str_free(&faults.text);
    return false;
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!load_tensor(f, &t[i], glob, err)) {
      return false;
    }
  }
  return true;
}
