/* source.c: files in memory and their line tables. */
#include "frontend/source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void index_lines(Sources *s, Source *f) {
  uint32_t n = 1;
  for (uint32_t i = 0; i < f->len; i++)
    n += f->text[i] == '\n';
  f->line = ARENA_ARRAY(s->arena, uint32_t, n);
  f->n_lines = n;
  uint32_t k = 1;
  for (uint32_t i = 0; i < f->len; i++)
    if (f->text[i] == '\n')
      f->line[k++] = i + 1;
}

uint32_t source_add(Sources *s, const char *path, const char *text, size_t len) {
  if (len > SOURCE_MAX_BYTES)
    len = SOURCE_MAX_BYTES;
  Source f = {.path = arena_strdup(s->arena, path), .len = (uint32_t)len};
  char *copy = arena_alloc(s->arena, len + 1);
  memcpy(copy, text, len);
  f.text = copy;
  index_lines(s, &f);
  VEC_PUSH(s->arena, s->v, s->n, s->cap, f);
  return s->n - 1;
}

static bool read_all(FILE *in, const char *path, Str *text, Error *err) {
  char buf[65536];
  size_t n;
  while ((n = fread(buf, 1, sizeof buf, in)) > 0) {
    str_write(text, buf, n);
    if (text->len > SOURCE_MAX_BYTES)
      return error_set(err, ERR_INPUT, "cannot read '%s': it is larger than %d MiB", path,
                       SOURCE_MAX_BYTES >> 20);
  }
  if (ferror(in))
    return error_set(err, ERR_INPUT, "cannot read '%s': %s", path, strerror(errno));
  return true;
}

bool source_load(Sources *s, const char *path, uint32_t *out, Error *err) {
  struct stat st;
  if (stat(path, &st) != 0)
    return error_set(err, ERR_INPUT, "cannot read '%s': %s", path, strerror(errno));
  if (S_ISDIR(st.st_mode))
    return error_set(err, ERR_INPUT, "cannot read '%s': it is a folder", path);
  FILE *in = fopen(path, "rb");
  if (!in)
    return error_set(err, ERR_INPUT, "cannot read '%s': %s", path, strerror(errno));
  Str text = {0};
  bool ok = read_all(in, path, &text, err);
  fclose(in);
  if (ok)
    *out = source_add(s, path, text.s ? text.s : "", text.len);
  str_free(&text);
  return ok;
}

void source_line_col(const Source *f, uint32_t offset, uint32_t *line, uint32_t *col) {
  if (offset > f->len)
    offset = f->len;
  uint32_t lo = 0, hi = f->n_lines; /* the last line that begins at or before offset */
  while (hi - lo > 1) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (f->line[mid] <= offset)
      lo = mid;
    else
      hi = mid;
  }
  uint32_t c = 1;
  for (uint32_t i = f->line[lo]; i < offset; i++)
    c += ((unsigned char)f->text[i] & 0xC0) != 0x80;
  *line = lo + 1;
  *col = c;
}

Span span_join(Span a, Span b) {
  return (Span){a.file, a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
}

uint32_t utf8_length(const char *text, const char *limit) {
  const unsigned char *p = (const unsigned char *)text;
  uint32_t n = 0;
  if (p[0] < 0x80)
    n = 1;
  else if (p[0] >= 0xC2 && p[0] < 0xE0)
    n = 2;
  else if ((p[0] & 0xF0) == 0xE0)
    n = 3;
  else if (p[0] >= 0xF0 && p[0] < 0xF5)
    n = 4;
  if (n == 0 || (size_t)(limit - text) < n)
    return 0;
  for (uint32_t i = 1; i < n; i++)
    if ((p[i] & 0xC0) != 0x80)
      return 0;
  bool overlong = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xF0 && p[1] < 0x90);
  bool surrogate = p[0] == 0xED && p[1] > 0x9F, beyond = p[0] == 0xF4 && p[1] > 0x8F;
  return overlong || surrogate || beyond ? 0 : n;
}
