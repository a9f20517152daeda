/* base.c: arenas, errors, growable text, dtypes, checked sizes, hashing. */
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

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

static void sha_block(uint32_t h[8], const unsigned char *p) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++) {
    w[i] =
        (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
  }
  for (int i = 16; i < 64; i++) {
    uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  memcpy(v, h, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
    uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + sha_k[i] + w[i];
    uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
    uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++) {
    h[i] += v[i];
  }
}

void sha256_start(Sha256 *s) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  *s = (Sha256){0};
  memcpy(s->h, start, sizeof start);
}

void sha256_add(Sha256 *s, const void *p, size_t n) {
  const unsigned char *b = p;
  size_t held = s->n % 64;
  s->n += n;
  if (held) {
    size_t take = n < 64 - held ? n : 64 - held;
    if (take) {
      memcpy(s->tail + held, b, take);
    }
    if (held + take < 64) {
      return;
    }
    sha_block(s->h, s->tail);
    b += take;
    n -= take;
  }
  for (; n >= 64; n -= 64, b += 64) {
    sha_block(s->h, b);
  }
  if (n) {
    memcpy(s->tail, b, n);
  }
}

void sha256_end(Sha256 *s, char out[65]) {
  uint64_t bits = s->n * 8;
  unsigned char pad[72] = {0x80};
  size_t n = (s->n % 64 < 56 ? 56 : 120) - s->n % 64;
  for (int i = 0; i < 8; i++) {
    pad[n + 7 - (size_t)i] = (unsigned char)(bits >> 8 * i);
  }
  sha256_add(s, pad, n + 8);
  for (int i = 0; i < 8; i++) {
    snprintf(out + 8 * i, 9, "%08" PRIx32, s->h[i]);
  }
}

void sha256_hex(const void *p, size_t n, char out[65]) {
  Sha256 s;
  sha256_start(&s);
  sha256_add(&s, p, n);
  sha256_end(&s, out);
}
