/* tensor_write.c: writes safetensors files straight from where the tensors lie. */
#include <stdlib.h>
#include <string.h>

#include "runtime/files.h"
#include "runtime/tensorfile.h"

enum { DATA_ALIGN = 64 };

static void put_axes(Str *s, const HostTensor *t) {
  Str axes = {0};
  for (uint32_t i = t->n_repeat; i < t->rank; i++) {
    str_printf(&axes, "%s%s", i > t->n_repeat ? "," : "", t->axis[i] ? t->axis[i] : "");
  }
  str_put_json(s, axes.s ? axes.s : "");
  str_free(&axes);
}

static void put_metadata(Str *s, const HostTensor *t, uint32_t n, const char *const *meta, uint32_t n_meta,
                         Arena *arena) {
  str_puts(s, "{\"__metadata__\":{\"format\":\"pt\"");
  for (uint32_t i = 0; i < n_meta; i++) {
    str_putc(s, ',');
    str_put_json(s, meta[2 * i]);
    str_putc(s, ':');
    str_put_json(s, meta[2 * i + 1]);
  }
  for (uint32_t i = 0; i < n; i++) {
    for (int64_t k = 0; k < tensor_slices(&t[i]); k++) {
      str_putc(s, ',');
      str_put_json(s, arena_printf(arena, "axes:%s", tensor_slice_name(arena, &t[i], k)));
      str_putc(s, ':');
      put_axes(s, &t[i]);
    }
  }
  str_putc(s, '}');
}

static void put_slice(Str *s, const HostTensor *t, const char *name, int64_t begin, int64_t bytes) {
  str_putc(s, ',');
  str_put_json(s, name);
  str_printf(s, ":{\"dtype\":\"%s\",\"shape\":[", file_dtype_of(t->dtype)->name);
  for (uint32_t i = t->n_repeat; i < t->rank; i++) {
    str_printf(s, "%s%lld", i > t->n_repeat ? "," : "", (long long)t->size[i]);
  }
  str_printf(s, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)(begin + bytes));
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Two tensors of one name would make a file that nobody can read. */
static bool names_differ(char **name, uint32_t n, const char *path, Error *err) {
  qsort(name, n, sizeof *name, by_text);
  for (uint32_t i = 1; i < n; i++) {
    if (!strcmp(name[i - 1], name[i])) {
      return error_set(err, ERR_RUN, "%s: two tensors are called '%s'", path, name[i]);
    }
  }
  return true;
}

static bool make_header(Str *s, const char *path, const HostTensor *t, uint32_t n, const char *const *meta,
                        uint32_t n_meta, Error *err) {
  Arena arena = {0};
  char **name = NULL;
  uint32_t n_names = 0, cap = 0;
  int64_t at = 0;
  put_metadata(s, t, n, meta, n_meta, &arena);
  for (uint32_t i = 0; i < n; i++) {
    int64_t slices = tensor_slices(&t[i]);
    int64_t bytes = slices ? tensor_count(&t[i]) / slices * (int64_t)dtype_bytes(t[i].dtype) : 0;
    for (int64_t k = 0; k < slices; k++) {
      char *slice = tensor_slice_name(&arena, &t[i], k);
      put_slice(s, &t[i], slice, at, bytes);
      VEC_PUSH(&arena, name, n_names, cap, slice);
      at += bytes;
    }
  }
  str_putc(s, '}');
  while ((8 + s->len) % DATA_ALIGN) {
    str_putc(s, ' ');
  }
  bool ok = !n_names || names_differ(name, n_names, path, err);
  if (ok && s->len > TENSORFILE_HEADER_MAX) {
    ok = error_set(err, ERR_RUN, "%s: too many tensors for one file", path);
  }
  arena_free(&arena);
  return ok;
}

bool tensorfile_write(const char *path, const HostTensor *t, uint32_t n, const char *const *meta,
                      uint32_t n_meta, char sha256[65], Error *err) {
  Str header = {0};
  if (!make_header(&header, path, t, n, meta, n_meta, err)) {
    str_free(&header);
    return false;
  }
  unsigned char prefix[8];
  for (int i = 0; i < 8; i++) {
    prefix[i] = (unsigned char)((uint64_t)header.len >> 8 * i);
  }
  FileOut f;
  if (fileout_open(&f, path, err)) {
    fileout_write(&f, prefix, sizeof prefix);
    fileout_write(&f, header.s, header.len);
    for (uint32_t i = 0; i < n; i++) { /* slices of a repeat lie one after another, as in memory */
      fileout_write(&f, t[i].data, (size_t)tensor_count(&t[i]) * dtype_bytes(t[i].dtype));
    }
  }
  str_free(&header);
  return fileout_close(&f, sha256);
}
