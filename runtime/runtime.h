/* runtime.h: everything a run needs besides the compiler: devices, tensor files, data, checkpoints, metrics,
 * reports, sampling.
 *
 * Conventions: `T *x_open(..., Error *err)` gives NULL on error; what it gives is freed by x_close, which
 * takes NULL. Strings given out live as long as the object they came from, unless an arena is a parameter.
 * Strings and arrays given in are copied or used only during the call, unless said otherwise. Error classes:
 * ERR_INPUT for what a user's file holds or lacks (exit 1), ERR_USAGE for a wrong request (exit 2), ERR_RUN
 * for what the machine refuses: disk full, no memory (exit 3). Messages name the file. */
#ifndef DLC_RUNTIME_H
#define DLC_RUNTIME_H

#include "runtime/base.h"
#include "runtime/device.h"
#include "runtime/program.h"
#include "runtime/rng.h"

/* ---- tensors in host memory, with their place in files ---- */

/* A tensor of the run. `name` may hold stars ("h.*.attn.wq"): one a repeat, whose axes are the first n_repeat
 * dims; in files each index is a tensor of its own, "h.0.attn.wq", without these dims. data: row-major, size
 * as given. */
typedef struct {
  const char *name;
  DType dtype;
  uint8_t rank, n_repeat;
  int64_t size[PROGRAM_MAX_RANK];
  const char *axis[PROGRAM_MAX_RANK];
  void *data;
  bool in_optimizer; /* saved in optimizer.safetensors (optimizer state), else in model.safetensors */
} HostTensor;

/* Fills a HostTensor from a program's buffer and maps it (host devices). n_repeat = stars in the name. */
HostTensor host_tensor(Exec *x, uint32_t buffer);
int64_t tensor_count(const HostTensor *t);
/* How many tensors it is in files, and the name of the i-th: row-major over the repeats. */
int64_t tensor_slices(const HostTensor *t);
char *tensor_slice_name(Arena *a, const HostTensor *t, int64_t slice);
/* Does a name in files ("h.3.attn.wq") match a glob ("h.*.attn.*")? A star matches any text. */
bool name_like(const char *name, const char *glob);

typedef enum { FILL_VALUE, FILL_NORMAL, FILL_UNIFORM } FillKind;
/* Initial values by rng.h, keyed by the names in files: value a; normal of mean a, deviation b; uniform in
 * [a, b). F32 or F64. */
void tensor_fill(const HostTensor *t, FillKind kind, double a, double b, uint64_t seed);

/* ---- safetensors ---- */

/* An open file; its header is checked before anything of the claimed sizes is allocated. */
typedef struct TensorFile TensorFile;
typedef struct {
  const char *name, *dtype; /* "F32", "BF16", "I64", ... as in the file */
  uint8_t rank;
  int64_t size[PROGRAM_MAX_RANK];
  int64_t count, bytes;
  const char *axes; /* "embed,heads,head" from __metadata__ "axes:NAME"; NULL when it is not there */
  uint64_t offset;  /* of its bytes in the file */
  const TensorFile *file;
} FileTensor;

TensorFile *tensorfile_open(const char *path, Error *err);
/* The same checks on bytes in memory (used in place, not copied). */
TensorFile *tensorfile_from_memory(const void *bytes, size_t n, const char *name, Error *err);
void tensorfile_close(TensorFile *f);
uint32_t tensorfile_count(const TensorFile *f);
const FileTensor *tensorfile_at(const TensorFile *f, uint32_t i); /* in order of offsets */
const FileTensor *tensorfile_find(const TensorFile *f, const char *name);
const char *tensorfile_meta(const TensorFile *f, const char *key); /* NULL when it is not there */

/* Elements first .. first + n - 1, read from the file and converted to dtype `to`. Integers out of range, and
 * fractions to an integer, are errors. */
bool filetensor_read(const FileTensor *t, int64_t first, int64_t n, DType to, void *out, Error *err);

/* Writes tensors (stars split into one a slice) in the order given, axis names as "axes:NAME" = "a,b" in
 * __metadata__, besides n_meta pairs meta[2i] = meta[2i + 1]. Synced; nothing is left at path on error.
 * sha256 may be NULL, else gets the file's. */
bool tensorfile_write(const char *path, const HostTensor *t, uint32_t n, const char *const *meta,
                      uint32_t n_meta, char sha256[65], Error *err);

/* Loads tensors by name from a file, converted to their dtype. glob (NULL: all) picks the names, in files,
 * that this file fills; a name missing (unless missing_ok), left over (unless extra_ok; names the glob does
 * not pick never are) or of another shape: one error that lists all, and nothing is loaded. Draw initial
 * values first where missing_ok. */
bool tensors_load(const TensorFile *f, const HostTensor *t, uint32_t n, const char *glob, bool missing_ok,
                  bool extra_ok, Error *err);

/* ---- tokenizers ---- */

typedef struct Tokenizer Tokenizer;
/* "bytes" (256 ids), or "chars": the code points of `text` (UTF-8), sorted. Others: an ERR_INPUT error that
 * names it. */
Tokenizer *tokenizer_new(const char *kind, const char *text, size_t n, Error *err);
/* vocab.json of a run; for "bytes" none is written. */
bool tokenizer_save(const Tokenizer *t, const char *path, Error *err);
Tokenizer *tokenizer_load(const char *path, Error *err);
void tokenizer_close(Tokenizer *t);
const char *tokenizer_kind(const Tokenizer *t);
int64_t tokenizer_size(const Tokenizer *t); /* ids are 0 .. size - 1 */
/* Ids of a text, from the arena; an error names a character that is not in the vocabulary. */
bool tokenizer_encode(const Tokenizer *t, const char *text, size_t n, Arena *a, int32_t **ids, int64_t *n_ids,
                      Error *err);
void tokenizer_decode(const Tokenizer *t, int32_t id, Str *out); /* an id outside writes U+FFFD */

/* ---- data ---- */

typedef enum { SOURCE_TEXT, SOURCE_TOKENS, SOURCE_ARRAYS } SourceKind;

/* A model input a source fills: dtype and sizes as the program's buffer has them, size[0] = the batch. */
typedef struct {
  const char *name;
  DType dtype;
  uint8_t rank;
  int64_t size[PROGRAM_MAX_RANK];
  int64_t limit; /* ids must be below it (the vocabulary's size); 0: unchecked */
} DataInput;

typedef struct {
  SourceKind kind;
  const char *path, *eval_path; /* eval_path NULL: none */
  const char *tokenizer;        /* text: "bytes", "chars" */
  double hold_out;              /* fraction of the end that is only for evaluation */
  bool sequential;
  const DataInput
      *input; /* arrays: by name; text and tokens: [0] the ids, [1] the next ids, both [batch, time] */
  uint32_t n_inputs;
  uint64_t seed;
} DataOptions;

/* One data source. Sample index: one global counter from 0; step s (from 1) takes samples (s - 1) * batch
 * ...; in epoch e = index / n the place index % n goes through a permutation of n keyed by (seed, e), so that
 * any run goes on at the exact sample. arrays: a sample is a row. text, tokens: a sample is a window of time
 * + 1 ids; windows of an epoch do not share an input; they start at an offset that differs by epoch (0 when
 * sequential), so that less than 2 * time ids at both ends together are left out in an epoch. Evaluation:
 * rows, or consecutive windows from the start, over the whole held-out part, in order; the last window may
 * end early: less than `time` ids at the very end are left out. */
typedef struct Data Data;
Data *data_open(const DataOptions *o, Error *err);
void data_close(Data *d);
int64_t
data_train_samples(const Data *d); /* n above; a batch larger than that takes samples of the next epoch */
int64_t data_eval_samples(const Data *d); /* 0: no evaluation data */
int64_t data_eval_batches(const Data *d); /* the last one may be partial */
double data_epoch(const Data *d, int64_t steps_done);
int64_t data_tokens_per_sample(const Data *d); /* time; arrays whose first input is no int[batch, time]: 1 */
/* out[i] gets the bytes of input i. ERR_INPUT when an id is outside its limit (checked for the whole source
 * when it is opened for text and tokens, batch by batch for arrays). */
bool data_train_batch(Data *d, int64_t step, void *const *out, Error *err);
/* Batch `index` from 0. *valid rows are samples; the rows after them repeat the last valid row. */
bool data_eval_batch(Data *d, int64_t index, void *const *out, int64_t *valid, Error *err);
/* Every row = the last held-out sample: with num_all and num_last the sums of a partial batch and of this
 * one, the sum over the valid rows is num_all - (batch - valid) * num_last / batch. */
bool data_eval_fill_last(Data *d, void *const *out, Error *err);
const Tokenizer *data_tokenizer(const Data *d); /* text only, else NULL; owned by the Data */
char *data_hash(const Data *d,
                Arena *a); /* sha256 of the source's bytes, for run.json; computed at the call */
char *
data_describe(const Data *d,
              Arena *a); /* "text bible.txt: 4,047,392 bytes; 3,642,652 for training, 404,740 held out" */

/* Entropy in nats a token of the held-out part under counts of the training part, add-one smoothed. ERR_USAGE
 * without a held-out part. */
typedef struct {
  double uniform, unigram, bigram;
} Baselines;
bool data_baselines(const Data *d, int64_t vocab, Baselines *out, Error *err);

/* A keyed permutation of 0 .. n - 1 (Feistel network on Philox, walking the cycle back into range). */
uint64_t permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t epoch);

/* ---- the run's folder ---- */

typedef enum { RUN_NEW, RUN_FRESH, RUN_RESUME } RunMode;
typedef struct RunDir RunDir;
/* Makes the folder and locks it. RUN_NEW on a folder that holds a run: ERR_USAGE with both ways on. RUN_FRESH
 * moves such a folder to NAME.1
 * (.2, ...). A folder locked by a live process: ERR_USAGE naming it. */
RunDir *rundir_open(const char *path, RunMode mode, Error *err);
void rundir_close(RunDir *r);
const char *rundir_path(const RunDir *r);
/* Path of a file in the folder; lives as long as r. */
const char *rundir_file(RunDir *r, const char *name);

/* Whole small files: written beside, synced, renamed. */
bool file_write(const char *path, const char *text, size_t n, Error *err);
bool file_read(const char *path, Arena *a, char **text, size_t *n, Error *err); /* NUL after the end */
bool file_exists(const char *path);

/* run.json: arguments, hashes, versions, hardware. extra: pairs of key and JSON text ("\"abc\"", "3"). */
bool run_json_write(const char *path, int argc, const char *const *argv, const char *const *extra,
                    uint32_t n_extra, Error *err);
/* "AMD EPYC ..., 2 CPUs, 24 GiB". */
char *machine_describe(Arena *a);

/* ---- checkpoints ---- */

typedef struct {
  int64_t step;   /* updates done */
  int64_t sample; /* samples taken */
  uint64_t seed;
  double loss_scale;     /* 1 where there is none */
  const char *plan_hash; /* of plan.dl */
} TrainState;

/* RUN/step-000500/: model.safetensors, optimizer.safetensors (when a tensor is in_optimizer), state.json and,
 * last, MANIFEST with a sha256 a file. Written beside its name, synced, renamed; `latest` (a link) moves
 * after that. Then all but the newest `keep` (0: all) are deleted, never the one just verified. On error
 * nothing half-written is left and older ones stay. */
bool checkpoint_save(const char *run, const TrainState *s, const HostTensor *t, uint32_t n, int64_t keep,
                     Error *err);

/* Where --from points: a run's folder (its newest verified checkpoint; damaged ones are skipped with a line
 * in *skipped, NULL or from the arena), a step's folder, or a .safetensors file. */
typedef struct {
  const char *dir;   /* folder of the step; NULL for a lone file */
  const char *model; /* path of model.safetensors or the file */
  const char *run;   /* the run's folder: where vocab.json is; NULL for a lone file outside one */
  int64_t step;      /* -1 unknown */
} CheckpointPath;
bool checkpoint_find(const char *from, Arena *a, CheckpointPath *out, char **skipped, Error *err);
/* Like that for --resume: *found = false and no error when the folder has no checkpoint at all. All of them
 * damaged is an error. */
bool checkpoint_latest(const char *run, Arena *a, CheckpointPath *out, bool *found, char **skipped,
                       Error *err);
/* Checks every sum of a step's folder: the error names the file and what is wrong. */
bool checkpoint_verify(const char *dir, Error *err);
/* Verifies, loads every tensor (model and optimizer) and the state. s may be NULL; s->plan_hash is from the
 * arena. Without in_optimizer tensors in t the optimizer's file is not read. */
bool checkpoint_load(const char *dir, const HostTensor *t, uint32_t n, Arena *a, TrainState *s, Error *err);

/* ---- metrics ---- */

typedef struct {
  int64_t step;
  double epoch, loss, grad_norm, lr;
  int64_t tokens;                    /* so far; samples where there are no tokens */
  double step_ms, tokens_per_s, mfu; /* mfu NaN: unknown, left out */
  bool has_eval;
  double eval_loss;
  const char *const *name; /* metrics of the model by name ("acc", "eval_acc") */
  const double *value;
  uint32_t n;
} StepMetrics;

typedef struct MetricsLog MetricsLog;
/* Opens metrics.jsonl for appending; lines with a step above `keep_through` (and a torn last line) are cut
 * first. 0: starts anew. */
MetricsLog *metrics_open(const char *path, int64_t keep_through, Error *err);
bool metrics_step(MetricsLog *m, const StepMetrics *s, Error *err);
bool metrics_close(MetricsLog *m, Error *err); /* syncs */

/* Progress on standard error: on a terminal one line that rewrites itself, elsewhere at most a line in 10 s.
 * Colours only on a terminal and without NO_COLOR. Every line also goes to log.txt when a path is given. */
typedef struct Progress Progress;
Progress *progress_open(int64_t total_steps, int64_t first_step, const char *log_path);
void progress_step(Progress *p, const StepMetrics *s);
/* A line of its own, always shown (an evaluation, a sample, a warning). */
void progress_line(Progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void progress_close(Progress *p); /* ends the rewriting line with the last step's numbers */

/* report.html: self-contained: loss curves from metrics.jsonl, time by kernel, memory, layout. */
typedef struct {
  const char *title, *subtitle;
  const char *metrics_path; /* metrics.jsonl; NULL: no curves */
  const Program *program;   /* for kernels and memory; NULL: none */
  const KernelTime *time;   /* n_kernels of program, or NULL */
  const char *layout;       /* text, or NULL */
  const char *plan;         /* plan.dl, or NULL */
  const char *sample;       /* text the model wrote, or NULL */
} Report;
bool report_write(const char *path, const Report *r, Error *err);

/* ---- sampling ---- */

typedef struct {
  double temperature; /* 0: the largest logit */
  int64_t top_k;      /* 0: all */
  double top_p;       /* 1: all */
} SampleRule;
/* The id drawn for position `index` of a text: a function of (logits, rule, seed, index). Ties go to the
 * lowest id. -1 when no logit is a number. scratch: 2 * n doubles. */
int64_t sample_token(const float *logits, int64_t n, const SampleRule *rule, uint64_t seed, uint64_t index,
                     double *scratch);

#endif
