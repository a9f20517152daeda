/* program.h: the step program: what the compiler hands to the runtime. Pure data, no pointers into the
 * compiler.
 *
 * A program works on ONE arena of `arena_bytes`. Buffers are byte ranges of it; persistent ones (parameters,
 * optimizer state, module state) come first and keep their place in every program of a Bundle, so that train
 * and eval share them. Instructions run in order; each launches a kernel on buffers (base buffer + byte
 * offset). */
#ifndef DLC_PROGRAM_H
#define DLC_PROGRAM_H

#include "base.h"

#define PROGRAM_MAX_RANK 12

typedef enum {
  BUF_PARAM,  /* parameters: persistent, saved */
  BUF_OPT,    /* optimizer state: persistent, saved */
  BUF_STATE,  /* module state: persistent, saved */
  BUF_INPUT,  /* a batch input, filled by the runtime before a step */
  BUF_SCALAR, /* runtime scalars (see ScalarKind), filled before a step */
  BUF_CONST,  /* bytes known at compile time, filled once (`init`) */
  BUF_TEMP,   /* activations, gradients, workspace */
  BUF_OUTPUT  /* read by the runtime after a step; alive to the end of the program */
} BufferKind;

typedef struct {
  const char *name; /* path (parameters), "$step" (scalars), or a value name */
  BufferKind kind;
  DType dtype;
  uint8_t rank;
  const char *axis[PROGRAM_MAX_RANK]; /* axis names and sizes, storage order, row-major */
  int64_t size[PROGRAM_MAX_RANK];
  int64_t bytes, offset; /* in the arena; offset is a multiple of 64 */
  int32_t first, last;   /* live range in instruction indices (persistent: 0 .. n) */
  const void *init;      /* BUF_CONST only: `bytes` bytes */
} Buffer;

/* A kernel: phases run one after another with a barrier between; tasks of a phase may run in any order and in
 * parallel. ABI of a symbol: void f(void *const *args, int64_t task_lo, int64_t task_hi, void *scratch) runs
 * tasks lo <= t < hi. scratch is `scratch_bytes` of arena shared by the phases of one launch, 64-byte
 * aligned; thread_scratch_bytes more per worker follow through args[n_args] (a pointer private to the calling
 * worker). */
typedef struct {
  const char *symbol;
  int64_t ntasks;
} Phase;

typedef struct {
  const char *name;  /* unique, a C identifier */
  const char *cls;   /* map, reduce, norm, gemm, attention, loss, update, gather, scan, sort */
  const char *fused; /* human text: what was fused */
  const char *loc;   /* "gpt2.dl:24, gpt2.dl:25": source lines */
  Phase *phase;
  uint32_t n_phases, n_args, n_outputs; /* the last n_outputs args are written */
  int64_t scratch_bytes, thread_scratch_bytes;
  double flops, bytes; /* per launch */
  uint32_t object;     /* index into Program.objects: where its symbols live */
} Kernel;

typedef struct {
  uint32_t buffer;
  int64_t offset; /* bytes from the buffer's start */
} Operand;

typedef struct {
  uint32_t kernel;
  uint32_t n_args;
  Operand *arg;
  Operand scratch; /* buffer = UINT32_MAX when the kernel has none */
} Launch;

typedef struct {
  const void *bytes; /* relocatable object file */
  size_t n;
} Object;

/* Runtime scalars every program may read; each is a BUF_SCALAR buffer of rank 0. */
#define SCALARS(X)            /* enum, buffer name, dtype */                                                 \
  X(STEP, "$step", F64)       /* number of this update, 1 at the first */                                    \
  X(ATTEMPT, "$attempt", I64) /* counter of random numbers: the step, also when it is skipped */             \
  X(SEED, "$seed", I64)
typedef enum {
#define X(e, name, dtype) SCALAR_##e,
  SCALARS(X)
#undef X
      SCALAR_COUNT
} ScalarKind;

/* What the runtime reads back. */
typedef struct {
  const char
      *name; /* "loss", "grad_norm", "lr", metric names, output names ("logits", "h.attn.p"), "grad:NAME" */
  uint32_t num, den; /* buffers; value = num / den for means, den = UINT32_MAX otherwise */
  uint8_t kind;      /* 0 loss or metric (mean), 1 scalar, 2 tensor output, 3 gradient of a parameter */
} Result;

typedef struct {
  const char *name; /* "train", "grad", "eval", "apply", "init" */
  Buffer *buffer;
  Kernel *kernel;
  Launch *launch;
  Result *result;
  Object *object;
  uint32_t n_buffers, n_kernels, n_launches, n_results, n_objects;
  int64_t arena_bytes, persistent_bytes, lower_bound_bytes;
} Program;

#endif
