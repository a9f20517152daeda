/* data_text.c: streams of ids from text and from shards of ids. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/source.h"
#include "runtime/text.h"

/* ---- streams ---- */

static bool read_shard(const Shard *h, int64_t at, int64_t n, int32_t *out, Error *err) {
  unsigned char piece[16384];
  while (n > 0) {
    int64_t take = (int64_t)sizeof piece / h->width;
    take = n < take ? n : take;
    ssize_t got = pread(h->fd, piece, (size_t)(take * h->width), (off_t)(h->start + at * h->width));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got != (ssize_t)(take * h->width)) {
      return error_set(err, ERR_INPUT, "%s: %s", h->path,
                       got < 0 ? strerror(errno) : "became shorter while it was read");
    }
    for (int64_t i = 0; i < take; i++) {
      const unsigned char *p = piece + i * h->width;
      out[i] =
          h->width == 2 ? p[0] | p[1] << 8 : (int32_t)(p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
    }
    out += take;
    at += take;
    n -= take;
  }
  return true;
}

bool stream_read(const Stream *s, int64_t at, int64_t n, int32_t *out, Error *err) {
  if (s->i32) {
    memcpy(out, s->i32 + at, (size_t)n * sizeof *out);
    return true;
  }
  for (int64_t i = 0; s->u8 && i < n; i++) {
    out[i] = s->u8[at + i];
  }
  for (uint32_t k = 0; k < s->n_shards && n > 0; k++) {
    const Shard *h = &s->shard[k];
    if (at >= h->first + h->n) {
      continue;
    }
    int64_t take = h->first + h->n - at < n ? h->first + h->n - at : n;
    if (!read_shard(h, at - h->first, take, out, err)) {
      return false;
    }
    at += take;
    out += take;
    n -= take;
  }
  return true;
}

/* Every id of the stream is below the limit of every input, or the error says where it is not. */
static bool check_ids(const Data *d, const char *path, const Stream *s, Error *err) {
  int64_t limit = 0;
  const char *name = NULL;
  for (uint32_t i = 0; i < d->n_inputs; i++) {
    if (d->input[i].limit > 0 && (!limit || d->input[i].limit < limit)) {
      limit = d->input[i].limit;
      name = d->input[i].name;
    }
  }
  if (!limit || (s->u8 && limit >= 256)) {
    return true;
  }
  enum { PIECE = 4096 };
  int32_t ids[PIECE];
  for (int64_t at = 0; at < s->n; at += PIECE) {
    int64_t n = s->n - at < PIECE ? s->n - at : PIECE;
    if (!stream_read(s, at, n, ids, err)) {
      return false;
    }
    for (int64_t i = 0; i < n; i++) {
      if (ids[i] < 0 || ids[i] >= limit) {
        return error_set(
            err, ERR_INPUT,
            "%s: id %d at position %lld is outside the vocabulary of %lld that input '%s' indexes: make "
            "that axis larger",
            path, ids[i], (long long)(at + i), (long long)limit, name);
      }
    }
  }
  return true;
}

/* ---- text ---- */

static bool is_jsonl(const char *path) {
  size_t n = strlen(path);
  return n > 6 && !strcmp(path + n - 6, ".jsonl");
}

/* The "text" fields of a file of JSON lines, a newline after each. */
static bool join_texts(const char *path, const char *text, size_t n, Str *out, Error *err) {
  int64_t line = 0;
  for (size_t at = 0; at < n;) {
    const char *end = memchr(text + at, '\n', n - at);
    size_t len = end ? (size_t)(end - text) - at : n - at;
    line++;
    if (strspn(text + at, " \t\r") < len) {
      json_error_t why;
      json_t *row = json_loadb(text + at, len, 0, &why);
      const json_t *field = json_object_get(row, "text");
      if (!json_is_string(field)) {
        error_set(err, ERR_INPUT, "%s:%lld: %s", path, (long long)line,
                  row ? "no string \"text\"" : why.text);
        json_decref(row);
        return false;
      }
      str_write(out, json_string_value(field), json_string_length(field));
      str_putc(out, '\n');
      json_decref(row);
    }
    at += len + 1;
  }
  return true;
}

static bool load_text(Data *d, const char *path, const char **text, size_t *n, Error *err) {
  char *raw;
  if (!file_read(path, &d->arena, &raw, n, err)) {
    return false;
  }
  source_note_file(d, path);
  *text = raw;
  if (is_jsonl(path)) {
    Str joined = {0};
    bool ok = join_texts(path, raw, *n, &joined, err);
    *text = arena_strndup(&d->arena, joined.s ? joined.s : "", joined.len);
    *n = joined.len;
    str_free(&joined);
    if (!ok) {
      return false;
    }
  }
  return *n > 0 || error_set(err, ERR_INPUT, "%s is empty", path);
}

static bool encode(Data *d, const char *path, const char *text, size_t n, Stream *out, Error *err) {
  if (!strcmp(tokenizer_kind(d->tokenizer), "bytes")) {
    *out = (Stream){.u8 = (const uint8_t *)text, .n = (int64_t)n};
  } else {
    int32_t *ids;
    int64_t count;
    Error why = {0};
    if (!tokenizer_encode(d->tokenizer, text, n, &d->arena, &ids, &count, &why)) {
      return error_set(err, why.cls, "%s: %s", path, why.msg);
    }
    *out = (Stream){.i32 = ids, .n = count};
  }
  return check_ids(d, path, out, err);
}

static bool make_tokenizer(Data *d, const DataOptions *o, const char *text, size_t n, Error *err) {
  Error why = {0};
  d->tokenizer = tokenizer_new(o->tokenizer ? o->tokenizer : "bytes", text, n, &why);
  if (!d->tokenizer) {
    return error_set(err, why.cls, "%s: %s", d->path, why.msg);
  }
  int64_t size = tokenizer_size(d->tokenizer);
  for (uint32_t i = 0; i < d->n_inputs && !strcmp(tokenizer_kind(d->tokenizer), "chars"); i++) {
    if (d->input[i].limit && d->input[i].limit < size) {
      return error_set(
          err, ERR_INPUT,
          "%s has %lld different characters, the vocabulary of input '%s' has %lld: set its axis to %lld",
          d->path, (long long)size, d->input[i].name, (long long)d->input[i].limit, (long long)size);
    }
  }
  return true;
}

/* The vocabulary of chars is that of both texts, so that none of them holds a character without an id. */
static bool tokenizer_of_both(Data *d, const DataOptions *o, const char *text, size_t n, const char *more,
                              size_t n_more, Error *err) {
  Str both = {0};
  str_write(&both, text, n);
  str_write(&both, more, n_more);
  bool ok = make_tokenizer(d, o, both.s, both.len, err);
  str_free(&both);
  return ok;
}

static void split_stream(Data *d, const DataOptions *o, const Stream *s) {
  int64_t train = source_split(s->n, o->hold_out);
  d->train = (Part){.n = train, .stream = *s};
  if (!o->eval_path) {
    d->eval = (Part){.first = train, .n = s->n - train, .stream = *s};
  }
}

bool source_open_text(Data *d, const DataOptions *o, Error *err) {
  const char *text, *eval = "";
  size_t n, n_eval = 0;
  Stream s, held;
  if (!load_text(d, o->path, &text, &n, err) ||
      (o->eval_path && !load_text(d, o->eval_path, &eval, &n_eval, err)) ||
      !tokenizer_of_both(d, o, text, n, eval, n_eval, err) || !encode(d, o->path, text, n, &s, err)) {
    return false;
  }
  split_stream(d, o, &s);
  if (o->eval_path) {
    if (!encode(d, o->eval_path, eval, n_eval, &held, err)) {
      return false;
    }
    d->eval = (Part){.n = held.n, .stream = held};
  }
  return true;
}

/* ---- shards of ids ---- */

enum { SHARD_HEADER = 1024, MAGIC_GPT2 = 20240520, MAGIC_LLAMA = 20240801 };

static int32_t word(const unsigned char *p) {
  return (int32_t)(p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
}

/* llm.c shards begin with a magic number; everything else is raw 16-bit ids. */
static bool read_shard_header(Shard *h, int64_t bytes, Error *err) {
  unsigned char head[12] = {0};
  ssize_t got = pread(h->fd, head, sizeof head, 0);
  h->width = 2;
  h->n = bytes / 2;
  if (got == (ssize_t)sizeof head && (word(head) == MAGIC_GPT2 || word(head) == MAGIC_LLAMA)) {
    h->width = word(head) == MAGIC_GPT2 ? 2 : 4;
    h->start = SHARD_HEADER;
    h->n = word(head + 8);
    if (h->n < 0 || bytes != SHARD_HEADER + h->n * h->width) {
      return error_set(err, ERR_INPUT,
                       "%s: its header claims %lld ids of %d bytes, the file has %lld bytes after it",
                       h->path, (long long)h->n, h->width, (long long)bytes - SHARD_HEADER);
    }
  } else if (bytes % 2) {
    return error_set(err, ERR_INPUT, "%s: %lld bytes are no whole number of 16-bit ids", h->path,
                     (long long)bytes);
  }
  return true;
}

static bool open_shard(Data *d, Shard *h, const char *path, Error *err) {
  struct stat st;
  h->path = arena_strdup(&d->arena, path);
  h->fd = open(path, O_RDONLY | O_CLOEXEC);
  if (h->fd < 0 || fstat(h->fd, &st) || !S_ISREG(st.st_mode)) {
    return error_set(err, ERR_INPUT, "cannot open %s: %s", path, h->fd < 0 ? strerror(errno) : "not a file");
  }
  source_note_file(d, path);
  return read_shard_header(h, st.st_size, err);
}

static bool open_shards(Data *d, const char *pattern, Stream *s, Error *err) {
  glob_t found = {0};
  if (glob(pattern, 0, NULL, &found) || !found.gl_pathc) {
    globfree(&found);
    return error_set(err, ERR_INPUT, "no file matches %s", pattern);
  }
  Shard *shards = ARENA_ARRAY(&d->arena, Shard, found.gl_pathc);
  *s = (Stream){.shard = shards};
  bool ok = true;
  for (size_t i = 0; i < found.gl_pathc && ok; i++) {
    shards[i].fd = -1;
    s->n_shards++;
    ok = open_shard(d, &shards[i], found.gl_pathv[i], err);
    shards[i].first = s->n;
    s->n += shards[i].n;
  }
  globfree(&found);
  return ok && check_ids(d, pattern, s, err);
}

void source_close_shards(const Stream *s) {
  for (uint32_t i = 0; i < s->n_shards; i++) {
    if (s->shard[i].fd >= 0) {
      close(s->shard[i].fd);
    }
  }
}

bool source_open_tokens(Data *d, const DataOptions *o, Error *err) {
  if (!open_shards(d, o->path, &d->train.stream, err)) {
    return false;
  }
  Stream s = d->train.stream;
  split_stream(d, o, &s);
  if (o->eval_path) {
    bool ok = open_shards(d, o->eval_path, &d->eval.stream, err);
    d->eval.n = d->eval.stream.n;
    return ok;
  }
  return true;
}
