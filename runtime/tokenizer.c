/* tokenizer.c: text to ids and back: bytes, and code points. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text.h"

struct Tokenizer {
  Arena arena;
  bool bytes;
  uint32_t *code; /* chars: code points, ascending */
  int64_t n;
};

enum { CODE_POINTS = 0x110000 };

/* ---- UTF-8 ---- */

int utf8_next(const char *text, size_t n, uint32_t *code) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *p = (const unsigned char *)text;
  int len = n == 0 ? 0 : p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
  if (len == 0 || (size_t)len > n) {
    return 0;
  }
  uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
  for (int i = 1; i < len; i++) {
    if (p[i] >> 6 != 2) {
      return 0;
    }
    c = c << 6 | (p[i] & 63);
  }
  *code = c;
  return c < least[len] || c >= CODE_POINTS || (c >= 0xd800 && c < 0xe000) ? 0 : len;
}

void utf8_put(Str *out, uint32_t c) {
  if (c < 0x80) {
    str_putc(out, (char)c);
  } else if (c < 0x800) {
    str_putc(out, (char)(0xc0 | c >> 6));
    str_putc(out, (char)(0x80 | (c & 63)));
  } else if (c < 0x10000) {
    str_putc(out, (char)(0xe0 | c >> 12));
    str_putc(out, (char)(0x80 | (c >> 6 & 63)));
    str_putc(out, (char)(0x80 | (c & 63)));
  } else {
    str_putc(out, (char)(0xf0 | c >> 18));
    str_putc(out, (char)(0x80 | (c >> 12 & 63)));
    str_putc(out, (char)(0x80 | (c >> 6 & 63)));
    str_putc(out, (char)(0x80 | (c & 63)));
  }
}

/* ---- vocabularies ---- */

static Tokenizer *new_tokenizer(bool bytes) {
  Arena arena = {0};
  Tokenizer *t = ARENA_NEW(&arena, Tokenizer);
  *t = (Tokenizer){.bytes = bytes, .n = bytes ? 256 : 0};
  t->arena = arena;
  return t;
}

static bool collect_chars(Tokenizer *t, const char *text, size_t n, Error *err) {
  unsigned char *seen = calloc(CODE_POINTS, 1);
  if (!seen) {
    return error_set(err, ERR_RUN, "out of memory");
  }
  int64_t count = 0;
  for (size_t at = 0; at < n;) {
    uint32_t code;
    int len = utf8_next(text + at, n - at, &code);
    if (!len) {
      free(seen);
      return error_set(err, ERR_INPUT,
                       "the text is not UTF-8 at byte %zu: use tokenizer = bytes, or repair it", at);
    }
    count += !seen[code];
    seen[code] = 1;
    at += (size_t)len;
  }
  t->code = ARENA_ARRAY(&t->arena, uint32_t, (size_t)count);
  for (uint32_t c = 0; c < CODE_POINTS; c++) {
    if (seen[c]) {
      t->code[t->n++] = c;
    }
  }
  free(seen);
  return true;
}

Tokenizer *tokenizer_new(const char *kind, const char *text, size_t n, Error *err) {
  bool bytes = !strcmp(kind, "bytes");
  if (!bytes && strcmp(kind, "chars") != 0) {
    error_set(err, ERR_INPUT, "tokenizer '%s' is not built yet: use bytes or chars", kind);
    return NULL;
  }
  Tokenizer *t = new_tokenizer(bytes);
  if (!bytes && !collect_chars(t, text, n, err)) {
    tokenizer_close(t);
    return NULL;
  }
  return t;
}

void tokenizer_close(Tokenizer *t) {
  if (t) {
    Arena arena = t->arena; /* t itself lies in it */
    arena_free(&arena);
  }
}

const char *tokenizer_kind(const Tokenizer *t) {
  return t->bytes ? "bytes" : "chars";
}
int64_t tokenizer_size(const Tokenizer *t) {
  return t->n;
}

/* ---- files ---- */

bool tokenizer_save(const Tokenizer *t, const char *path, Error *err) {
  if (t->bytes) {
    return true;
  }
  Str s = {0};
  str_puts(&s, "{\"kind\": \"chars\", \"code_points\": [");
  for (int64_t i = 0; i < t->n; i++) {
    str_printf(&s, "%s%u", i ? ", " : "", t->code[i]);
  }
  str_puts(&s, "]}\n");
  bool ok = file_write(path, s.s, s.len, err);
  str_free(&s);
  return ok;
}

static bool read_codes(Tokenizer *t, const json_t *codes, const char *path, Error *err) {
  size_t n = json_array_size(codes);
  t->code = ARENA_ARRAY(&t->arena, uint32_t, n);
  json_int_t last = -1;
  for (size_t i = 0; i < n; i++) {
    json_int_t code =
        json_is_integer(json_array_get(codes, i)) ? json_integer_value(json_array_get(codes, i)) : -1;
    if (code <= last || code >= CODE_POINTS) {
      return error_set(err, ERR_INPUT, "%s: code point %zu is not above the one before it, or no code point",
                       path, i);
    }
    t->code[t->n++] = (uint32_t)code;
    last = code;
  }
  return n > 0 || error_set(err, ERR_INPUT, "%s: no list of code points", path);
}

Tokenizer *tokenizer_load(const char *path, Error *err) {
  json_error_t why;
  json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
  if (!root) {
    error_set(err, ERR_INPUT, "%s: %s (line %d)", path, why.text, why.line);
    return NULL;
  }
  const char *kind = json_string_value(json_object_get(root, "kind"));
  Tokenizer *t = NULL;
  if (!kind || strcmp(kind, "chars") != 0) {
    error_set(err, ERR_INPUT, "%s: its kind is not \"chars\"", path);
  } else {
    t = new_tokenizer(false);
    if (!read_codes(t, json_object_get(root, "code_points"), path, err)) {
      tokenizer_close(t);
      t = NULL;
    }
  }
  json_decref(root);
  return t;
}

/* ---- use ---- */

static int64_t find_code(const Tokenizer *t, uint32_t code) {
  int64_t lo = 0, hi = t->n;
  while (lo < hi) {
    int64_t mid = lo + (hi - lo) / 2;
    if (t->code[mid] < code) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo < t->n && t->code[lo] == code ? lo : -1;
}

bool tokenizer_encode(const Tokenizer *t, const char *text, size_t n, Arena *a, int32_t **ids, int64_t *n_ids,
                      Error *err) {
  int32_t *out = ARENA_ARRAY(a, int32_t, n);
  int64_t count = 0;
  for (size_t at = 0; at < n;) {
    if (t->bytes) {
      out[count++] = (unsigned char)text[at++];
      continue;
    }
    uint32_t code;
    int len = utf8_next(text + at, n - at, &code);
    int64_t id = len ? find_code(t, code) : -1;
    if (id < 0) {
      return len ? error_set(err, ERR_INPUT,
                             "character '%.*s' at byte %zu is not in the vocabulary of %lld characters", len,
                             text + at, at, (long long)t->n)
                 : error_set(err, ERR_INPUT, "the text is not UTF-8 at byte %zu", at);
    }
    out[count++] = (int32_t)id;
    at += (size_t)len;
  }
  *ids = out;
  *n_ids = count;
  return true;
}

void tokenizer_decode(const Tokenizer *t, int32_t id, Str *out) {
  if (id < 0 || id >= t->n) {
    utf8_put(out, 0xfffd);
  } else if (t->bytes) {
    str_putc(out, (char)id);
  } else {
    utf8_put(out, t->code[id]);
  }
}
