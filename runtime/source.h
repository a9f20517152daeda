/* source.h: what the kinds of data sources share. Internal to runtime/. */
#ifndef DLC_SOURCE_H
#define DLC_SOURCE_H

#include "runtime/runtime.h"

/* A run of token ids: in memory, or in shards on disk. */
typedef struct Shard Shard;
typedef struct {
  const uint8_t *u8; /* one of these three */
  const int32_t *i32;
  const Shard *shard;
  uint32_t n_shards;
  int64_t n; /* ids */
} Stream;

struct Shard {
  const char *path;
  int fd;
  int64_t first, n, start; /* ids before it in the stream; ids in it; byte of its first id */
  int width;               /* bytes an id */
};

/* Where samples come from: a stretch of a stream (ids) or of rows. */
typedef struct {
  int64_t first, n;
  Stream stream;                   /* text, tokens */
  const FileTensor *const *tensor; /* arrays: one an input */
} Part;

struct Data {
  Arena arena;
  SourceKind kind;
  const char *path, *eval_path;
  const char **file; /* every file read, for the hash */
  uint32_t n_files, cap_files;
  bool sequential;
  DataInput *input;
  uint32_t n_inputs;
  uint64_t seed;
  int64_t batch, time;
  int64_t samples, eval_samples;
  Part train, eval; /* eval.n = 0: none */
  Tokenizer *tokenizer;
  TensorFile *tensors, *eval_tensors;
  int32_t *window; /* time + 1 ids */
};

/* n ids from place `at` of a part. */
bool stream_read(const Stream *s, int64_t at, int64_t n, int32_t *out, Error *err);

bool source_open_text(Data *d, const DataOptions *o, Error *err);
bool source_open_tokens(Data *d, const DataOptions *o, Error *err);
void source_close_shards(const Stream *s);
bool source_open_arrays(Data *d, const DataOptions *o, Error *err);
/* Row `row` of the batch from row `from` of the part. */
bool source_read_row(const Data *d, const Part *p, int64_t from, int64_t row, void *const *out, Error *err);
void source_note_file(Data *d, const char *path);
/* Splits n things by hold_out: how many are for training. */
int64_t source_split(int64_t n, double hold_out);

#endif
