/* base.c: arenas, errors, growable text, dtypes, checked sizes, hashing for tables. */
#include "runtime/base.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

bool error_set(Error *err, ErrorClass cls, const char *fmt, ...) {
  if (!err || err->cls != ERR_NONE) {
    return false;
  }
  err->cls = cls;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(err->msg, sizeof err->msg, fmt, ap);
  va_end(ap);
  return false;
}

static void out_of_memory(size_t n) {
  fprintf(stderr, "dlc: out of memory asking for %zu bytes\n", n);
  abort();
}

/* ---- arenas ---- */

struct ArenaBlock {
  ArenaBlock *next;
  size_t used, cap;
  _Alignas(16) unsigned char data[];
};

enum { ARENA_BLOCK = 1 << 16 };

void *arena_alloc(Arena *a, size_t n) {
  if (n > SIZE_MAX / 2) {
    out_of_memory(n);
  }
  n = (n + 15) & ~(size_t)15;
  ArenaBlock *b = a->head;
  if (!b || b->cap - b->used < n) {
    size_t cap = n > ARENA_BLOCK ? n : ARENA_BLOCK;
    b = calloc(1, sizeof *b + cap);
    if (!b) {
      out_of_memory(cap);
    }
    b->cap = cap;
    /* A big request gets a block of its own behind the head, which keeps its room for small ones. */
    if (a->head && n > ARENA_BLOCK) {
      b->next = a->head->next;
      a->head->next = b;
    } else {
      b->next = a->head;
      a->head = b;
    }
  }
  void *p = b->data + b->used;
  b->used += n;
  return p;
}

void *arena_alloc_array(Arena *a, size_t n, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(n, size, &bytes)) {
    out_of_memory(SIZE_MAX);
  }
  return arena_alloc(a, bytes);
}

char *arena_strndup(Arena *a, const char *s, size_t n) {
  char *p = arena_alloc(a, n + 1);
  memcpy(p, s, n);
  return p;
}

char *arena_strdup(Arena *a, const char *s) {
  return arena_strndup(a, s, strlen(s));
}

char *arena_printf(Arena *a, const char *fmt, ...) {
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  char *p = arena_alloc(a, (size_t)n + 1);
  vsnprintf(p, (size_t)n + 1, fmt, again);
  va_end(again);
  return p;
}

void *arena_grow(Arena *a, const void *old, size_t n, size_t size) {
  void *p = arena_alloc_array(a, n < 4 ? 8 : 2 * n, size);
  if (n) {
    memcpy(p, old, n * size);
  }
  return p;
}

void arena_free(Arena *a) {
  for (ArenaBlock *b = a->head, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  a->head = NULL;
}

/* ---- growable text ---- */

static void str_reserve(Str *s, size_t more) {
  if (s->cap - s->len > more) {
    return;
  }
  size_t cap = s->cap ? s->cap * 2 : 64;
  while (cap - s->len <= more) {
    cap *= 2;
  }
  char *p = realloc(s->s, cap);
  if (!p) {
    out_of_memory(cap);
  }
  s->s = p;
  s->cap = cap;
}

void str_write(Str *s, const void *bytes, size_t n) {
  str_reserve(s, n);
  if (n) {
    memcpy(s->s + s->len, bytes, n);
  }
  s->len += n;
  s->s[s->len] = 0;
}

void str_putc(Str *s, char c) {
  str_write(s, &c, 1);
}

void str_puts(Str *s, const char *text) {
  str_write(s, text, strlen(text));
}

void str_printf(Str *s, const char *fmt, ...) {
  va_list ap, again;
  va_start(ap, fmt);
  va_copy(again, ap);
  int n = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  str_reserve(s, (size_t)n);
  vsnprintf(s->s + s->len, (size_t)n + 1, fmt, again);
  va_end(again);
  s->len += (size_t)n;
}

void str_free(Str *s) {
  free(s->s);
  *s = (Str){0};
}

void str_put_double(Str *s, double v) {
  if (isnan(v) || isinf(v)) {
    str_puts(s, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
    return;
  }
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, v);
    if (strtod(text, NULL) == v) {
      break;
    }
  }
  str_puts(s, text);
}

void str_put_json(Str *s, const char *text) {
  str_putc(s, '"');
  for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
    if (*p == '"' || *p == '\\') {
      str_putc(s, '\\');
      str_putc(s, (char)*p);
    } else if (*p == '\n') {
      str_puts(s, "\\n");
    } else if (*p < 0x20 || *p == 0x7f) {
      str_printf(s, "\\u%04x", *p);
    } else {
      str_putc(s, (char)*p);
    }
  }
  str_putc(s, '"');
}

/* ---- dtypes ---- */

static const struct {
  const char *name;
  size_t bytes;
  bool is_float;
} dtypes[DT_COUNT] = {
#define X(name, text, bytes, is_float) {text, bytes, is_float},
    DTYPES(X)
#undef X
};

const char *dtype_name(DType t) {
  return dtypes[t].name;
}

size_t dtype_bytes(DType t) {
  return dtypes[t].bytes;
}

bool dtype_is_float(DType t) {
  return dtypes[t].is_float;
}

bool dtype_parse(const char *text, size_t n, DType *out) {
  for (int i = 0; i < DT_COUNT; i++) {
    if (strlen(dtypes[i].name) == n && !memcmp(dtypes[i].name, text, n)) {
      *out = (DType)i;
      return true;
    }
  }
  return false;
}

/* ---- sizes ---- */

bool size_mul(int64_t a, int64_t b, int64_t *out) {
  return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

bool size_add(int64_t a, int64_t b, int64_t *out) {
  return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}

/* ---- hashing ---- */

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed) {
  uint64_t h = 0xcbf29ce484222325u ^ seed;
  for (const unsigned char *b = p, *end = b + n; b != end; b++) {
    h = (h ^ *b) * 0x100000001b3u;
  }
  return h;
}
