/* safetensors.c: reads the header of a safetensors file and distrusts all of it: 8 bytes of length, JSON,
 * then the tensors' bytes, which must follow one another without gap or overlap up to the end of the file. */
#include "runtime/tensorfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct TensorFile {
  Arena arena;
  const char *path;
  int fd;                      /* -1: in memory */
  const unsigned char *memory; /* else */
  uint64_t size, start;        /* of the file; of the tensors' bytes */
  FileTensor *tensor;
  uint32_t *by_name; /* indices, sorted by name */
  uint32_t n;
  json_t *meta; /* "__metadata__" or NULL */
};

static const FileDType file_dtypes[] = {
#define X(name, bytes, dtype) {name, bytes, dtype},
    FILE_DTYPES(X)
#undef X
};
enum { N_FILE_DTYPES = sizeof file_dtypes / sizeof *file_dtypes };

const FileDType *file_dtype(const char *name) {
  for (int i = 0; i < N_FILE_DTYPES; i++) {
    if (!strcmp(file_dtypes[i].name, name)) {
      return &file_dtypes[i];
    }
  }
  return NULL;
}

const FileDType *file_dtype_of(DType t) {
  for (int i = 0; i < N_FILE_DTYPES; i++) {
    if (file_dtypes[i].dtype == t) {
      return &file_dtypes[i];
    }
  }
  return NULL;
}

const char *tensorfile_path(const TensorFile *f) {
  return f->path;
}

bool tensorfile_bytes(const TensorFile *f, uint64_t offset, void *to, size_t n, Error *err) {
  if (offset > f->size || n > f->size - offset) {
    return error_set(err, ERR_INPUT, "%s: ends before byte %llu", f->path, (unsigned long long)(offset + n));
  }
  if (f->fd < 0) {
    if (n) {
      memcpy(to, f->memory + offset, n);
    }
    return true;
  }
  for (size_t done = 0; done < n;) {
    ssize_t got = pread(f->fd, (char *)to + done, n - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return error_set(err, ERR_INPUT, "%s: cannot read: %s", f->path, strerror(errno));
    }
    if (got == 0) {
      return error_set(err, ERR_INPUT, "%s: became shorter while it was read", f->path);
    }
    done += (size_t)got;
  }
  return true;
}

/* ---- the header ---- */

static bool bad(const TensorFile *f, const char *tensor, Error *err, const char *why) {
  return tensor ? error_set(err, ERR_INPUT, "%s: tensor '%.200s': %s", f->path, tensor, why)
                : error_set(err, ERR_INPUT, "%s: not a safetensors file: %s", f->path, why);
}

static bool read_shape(TensorFile *f, FileTensor *t, const json_t *shape, Error *err) {
  if (!json_is_array(shape)) {
    return bad(f, t->name, err, "no 'shape'");
  }
  if (json_array_size(shape) > PROGRAM_MAX_RANK) {
    return bad(f, t->name, err, "more than 12 dimensions");
  }
  t->rank = (uint8_t)json_array_size(shape);
  t->count = 1;
  for (uint8_t i = 0; i < t->rank; i++) {
    const json_t *size = json_array_get(shape, i);
    if (!json_is_integer(size) || json_integer_value(size) < 0) {
      return bad(f, t->name, err, "a size in 'shape' is not a whole number from 0");
    }
    t->size[i] = json_integer_value(size);
    if (!size_mul(t->count, t->size[i], &t->count)) {
      return bad(f, t->name, err, "the sizes in 'shape' multiply to more than 2^63");
    }
  }
  return true;
}

static bool read_offsets(TensorFile *f, FileTensor *t, const json_t *offsets, Error *err) {
  const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
    return bad(f, t->name, err, "no 'data_offsets' of two whole numbers");
  }
  int64_t lo = json_integer_value(begin), hi = json_integer_value(end);
  if (lo < 0 || hi < lo) {
    return bad(f, t->name, err, "'data_offsets' are not in order");
  }
  if ((uint64_t)hi > f->size - f->start) {
    return error_set(err, ERR_INPUT,
                     "%s: tensor '%.200s' ends at byte %lld of the data, the file has %llu: it was cut short",
                     f->path, t->name, (long long)hi, (unsigned long long)(f->size - f->start));
  }
  if (hi - lo != t->bytes) {
    return error_set(err, ERR_INPUT,
                     "%s: tensor '%.200s': shape and dtype need %lld bytes, 'data_offsets' hold %lld",
                     f->path, t->name, (long long)t->bytes, (long long)(hi - lo));
  }
  t->offset = f->start + (uint64_t)lo;
  return true;
}

static const char *axes_of(TensorFile *f, const char *name) {
  return tensorfile_meta(f, arena_printf(&f->arena, "axes:%s", name));
}

static bool read_tensor(TensorFile *f, FileTensor *t, const char *name, const json_t *row, Error *err) {
  t->file = f;
  t->name = arena_strdup(&f->arena, name);
  if (!json_is_object(row)) {
    return bad(f, name, err, "its entry is not an object");
  }
  const json_t *dtype = json_object_get(row, "dtype");
  const FileDType *type = json_is_string(dtype) ? file_dtype(json_string_value(dtype)) : NULL;
  if (!type) {
    return bad(f, name, err, json_is_string(dtype) ? "unknown dtype" : "no 'dtype'");
  }
  if (json_object_size(row) != 3) {
    return bad(f, name, err, "its entry must hold dtype, shape and data_offsets only");
  }
  t->dtype = type->name;
  if (!read_shape(f, t, json_object_get(row, "shape"), err)) {
    return false;
  }
  if (!size_mul(t->count, type->bytes, &t->bytes)) {
    return bad(f, name, err, "its size in bytes is over 2^63");
  }
  t->axes = axes_of(f, name);
  return read_offsets(f, t, json_object_get(row, "data_offsets"), err);
}

static bool check_metadata(const TensorFile *f, Error *err) {
  const char *key;
  json_t *value;
  if (!json_is_object(f->meta)) {
    return bad(f, NULL, err, "__metadata__ is not an object");
  }
  json_object_foreach(f->meta, key, value) {
    if (!json_is_string(value)) {
      return bad(f, NULL, err, "a value in __metadata__ is not a string");
    }
  }
  return true;
}

static int by_offset(const void *a, const void *b) {
  const FileTensor *x = a, *y = b;
  if (x->offset != y->offset) {
    return x->offset < y->offset ? -1 : 1;
  }
  return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first */
}

static int by_name(const void *a, const void *b, void *tensors) {
  const FileTensor *t = tensors;
  return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* The tensors must tile the data: no gap, no overlap, nothing after the last. */
static bool check_tiling(const TensorFile *f, Error *err) {
  uint64_t at = f->start;
  for (uint32_t i = 0; i < f->n; i++) {
    const FileTensor *t = &f->tensor[i];
    if (t->offset != at) {
      return bad(f, t->name, err,
                 t->offset < at ? "its bytes overlap another tensor's" : "there is a gap before its bytes");
    }
    at += (uint64_t)t->bytes;
  }
  if (at != f->size) {
    return error_set(err, ERR_INPUT, "%s: %llu bytes after the last tensor", f->path,
                     (unsigned long long)(f->size - at));
  }
  return true;
}

static bool read_tensors(TensorFile *f, json_t *root, Error *err) {
  f->meta = json_incref(json_object_get(root, "__metadata__"));
  if (f->meta && !check_metadata(f, err)) {
    return false;
  }
  size_t n = json_object_size(root) - (f->meta != NULL);
  if (n > UINT32_MAX / 2) {
    return bad(f, NULL, err, "too many tensors");
  }
  f->tensor = ARENA_ARRAY(&f->arena, FileTensor, n);
  f->by_name = ARENA_ARRAY(&f->arena, uint32_t, n);
  const char *name;
  json_t *row;
  json_object_foreach(root, name, row) {
    if (strcmp(name, "__metadata__") != 0 && !read_tensor(f, &f->tensor[f->n++], name, row, err)) {
      return false;
    }
  }
  if (f->n) {
    qsort(f->tensor, f->n, sizeof *f->tensor, by_offset);
  }
  for (uint32_t i = 0; i < f->n; i++) {
    f->by_name[i] = i;
  }
  if (f->n) {
    qsort_r(f->by_name, f->n, sizeof *f->by_name, by_name, f->tensor);
  }
  return check_tiling(f, err);
}

static bool parse_header(TensorFile *f, const char *text, size_t n, Error *err) {
  json_error_t why;
  if (text[0] != '{') {
    return bad(f, NULL, err, "its header does not begin with '{'");
  }
  json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
  if (!root) {
    return error_set(err, ERR_INPUT,
                     "%s: not a safetensors file: its header is not valid JSON: %s at byte %d", f->path,
                     why.text, why.position + 8);
  }
  bool ok =
      json_is_object(root) ? read_tensors(f, root, err) : bad(f, NULL, err, "its header is not an object");
  json_decref(root);
  return ok;
}

static bool read_header(TensorFile *f, Error *err) {
  unsigned char prefix[8];
  if (f->size < sizeof prefix) {
    return error_set(err, ERR_INPUT, "%s: not a safetensors file: %llu bytes, shorter than its length prefix",
                     f->path, (unsigned long long)f->size);
  }
  if (!tensorfile_bytes(f, 0, prefix, sizeof prefix, err)) {
    return false;
  }
  uint64_t n = 0;
  for (int i = 7; i >= 0; i--) {
    n = n << 8 | prefix[i];
  }
  if (n < 2) {
    return bad(f, NULL, err, "its header is empty");
  }
  if (n > TENSORFILE_HEADER_MAX) {
    return error_set(err, ERR_INPUT,
                     "%s: not a safetensors file: it claims a header of %llu bytes, over the limit of %d",
                     f->path, (unsigned long long)n, TENSORFILE_HEADER_MAX);
  }
  if (n > f->size - sizeof prefix) {
    return error_set(err, ERR_INPUT,
                     "%s: cut short or not a safetensors file: it claims a header of %llu bytes and has %llu",
                     f->path, (unsigned long long)n, (unsigned long long)(f->size - sizeof prefix));
  }
  char *text = malloc(n);
  if (!text) {
    return error_set(err, ERR_RUN, "out of memory for the header of %s", f->path);
  }
  f->start = sizeof prefix + n;
  bool ok = tensorfile_bytes(f, sizeof prefix, text, n, err) && parse_header(f, text, n, err);
  free(text);
  return ok;
}

/* ---- opening ---- */

static TensorFile *file_new(const char *path) {
  Arena arena = {0};
  TensorFile *f = ARENA_NEW(&arena, TensorFile);
  f->path = arena_strdup(&arena, path);
  f->fd = -1;
  f->arena = arena;
  return f;
}

void tensorfile_close(TensorFile *f) {
  if (!f) {
    return;
  }
  if (f->fd >= 0) {
    close(f->fd);
  }
  json_decref(f->meta);
  Arena arena = f->arena; /* f itself lies in it */
  arena_free(&arena);
}

TensorFile *tensorfile_from_memory(const void *bytes, size_t n, const char *name, Error *err) {
  TensorFile *f = file_new(name);
  f->memory = bytes;
  f->size = n;
  if (!read_header(f, err)) {
    tensorfile_close(f);
    return NULL;
  }
  return f;
}

static bool open_fd(TensorFile *f, Error *err) {
  struct stat st;
  f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
  if (f->fd < 0 || fstat(f->fd, &st)) {
    return error_set(err, ERR_INPUT, "cannot open %s: %s", f->path, strerror(errno));
  }
  if (!S_ISREG(st.st_mode)) {
    return error_set(err, ERR_INPUT, "%s is not a file", f->path);
  }
  f->size = (uint64_t)st.st_size;
  return true;
}

TensorFile *tensorfile_open(const char *path, Error *err) {
  TensorFile *f = file_new(path);
  if (!open_fd(f, err) || !read_header(f, err)) {
    tensorfile_close(f);
    return NULL;
  }
  return f;
}

/* ---- looking ---- */

uint32_t tensorfile_count(const TensorFile *f) {
  return f->n;
}

const FileTensor *tensorfile_at(const TensorFile *f, uint32_t i) {
  return &f->tensor[i];
}

const FileTensor *tensorfile_find(const TensorFile *f, const char *name) {
  uint32_t lo = 0, hi = f->n;
  while (lo < hi) {
    uint32_t mid = lo + (hi - lo) / 2;
    const FileTensor *t = &f->tensor[f->by_name[mid]];
    int order = strcmp(t->name, name);
    if (order == 0) {
      return t;
    }
    if (order < 0) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return NULL;
}

const char *tensorfile_meta(const TensorFile *f, const char *key) {
  return json_string_value(json_object_get(f->meta, key));
}
