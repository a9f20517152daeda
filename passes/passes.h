/* passes.h: IR -> IR, then IR -> step program. One pass a file; pipeline.c is the flat list. Every pass
 * leaves a module that ir_verify accepts; passes report errors (ERR_INPUT) with the location of the op they
 * concern. */
#ifndef DLC_PASSES_H
#define DLC_PASSES_H

#include "ir/ir.h"
#include "runtime/program.h"

/* Called after each pass when set (`--dump-after`, ir/NN-PASS.txt of an artifact). */
typedef struct {
  void (*after)(void *ctx, const char *pass, const Func *f);
  void *ctx;
  bool verify; /* run ir_verify_func after every pass: debug builds and tests */
} PassHooks;

/* ---- single passes (rewrite f in place) ---- */
bool pass_simplify(Func *f,
                   Error *err); /* constant folding, algebra that keeps bits, CSE inside a block, dead code */
bool pass_outline(Func *f, Error *err);     /* sum of products -> contract; softmax, attention, linear_xent */
bool pass_expand_grad(Func *f, Error *err); /* the op `grad` of user programs, innermost first */
bool pass_fuse(
    Func *f,
    Error *err); /* every op that computes goes into a region (one kernel); views, loops stay outside */

/* Joint forward + backward: a new function `name` with the results of f plus RES_GRAD of every parameter that
 * is not frozen (zeros when the loss does not reach it). */
Func *pass_autodiff(Func *f, const char *name, Error *err);
/* The training step: gradients of `grad` -> global norm, clipping, schedule.G and update.K inlined; adds
 * RES_PARAM, RES_OPT, RES_SCALAR grad_norm (before clipping) and lr. clip = 0: none. The RES_GRAD results are
 * dropped. */
Func *pass_optimizer(Func *grad, const char *name, double clip, Error *err);
/* A copy of f that keeps only the results `keep` accepts, dead code removed. */
Func *pass_select(Func *f, const char *name, bool (*keep)(void *ctx, const FuncRes *r), void *ctx);

/* For kernels of attention_grad: a copy of an attention's body with one more parameter, the cotangent of the
 * score, and one more return, the cotangent of raw (its first parameter). Pointwise throughout. */
Block *body_gradient(Func *f, const Block *body, Error *err);

/* ---- pipelines ---- */
/* Builds and fuses a function ready for program_lower from Model.module's "train" or "eval". NULL on error.
 */
typedef enum {
  PIPE_TRAIN, /* "train" -> the step: loss terms, metrics, state, parameters, optimizer state, grad_norm, lr
               */
  PIPE_GRAD,  /* "train" -> loss, gradients, grad_norm */
  PIPE_LOSS,  /* "train" -> the loss alone */
  PIPE_EVAL,  /* "eval" -> loss terms and metrics */
  PIPE_APPLY  /* "eval" -> the outputs named */
} PipeKind;
Func *pipeline(Module *m, PipeKind kind, double clip, const char *const *outputs, uint32_t n_outputs,
               const PassHooks *hooks, Error *err);
/* The same without fusing: for the interpreter (the oracle). */
Func *pipeline_unfused(Module *m, PipeKind kind, double clip, const char *const *outputs, uint32_t n_outputs,
                       const PassHooks *hooks, Error *err);

/* ---- the step program ---- */
/* program_lower: unrolls loops into launches, gives every value a buffer with a live range, one Kernel per
 * distinct region (by ir_print_region). The driver then lets codegen fill phases and scratch of kernel[i]
 * from region[i], and calls program_plan. */
typedef struct {
  Program program;     /* kernels without phases, buffers without offsets (persistent ones have theirs) */
  OpId *region;        /* region[i] of program.kernel[i], in func */
  uint32_t *kernel_of; /* by op of func: the kernel of a region, UINT32_MAX for others */
  const Func *func;
  /* May the kernels of the device write that result over that operand (codegen_inplace)? Set before
   * program_plan; NULL: only what holds for any kernel, pointwise regions. */
  bool (*in_place)(const Func *f, OpId region, uint32_t result, uint32_t arg);
} Draft;
bool program_lower(const Func *fused, const char *name, Arena *arena, Draft *out, Error *err);
bool program_plan(Draft *d, Arena *arena,
                  Error *err); /* scratch buffers, offsets, arena_bytes, lower bound */
bool program_check(const Program *p,
                   Error *err); /* no two live buffers overlap, operands inside their buffers */
void program_print(const Program *p, Str *out);        /* program.txt */
void program_print_memory(const Program *p, Str *out); /* memory.txt */

/* Every value that a kernel of a fused function writes to memory, in program order, and why it does not stay
 * inside the kernel: `writer` and `reader` are regions, reader = NONE when no kernel of the same block reads
 * it. */
typedef struct {
  Val value;
  OpId writer, reader;
  const char *why;
} StoredValue;
const StoredValue *fuse_stored(const Func *fused, Arena *arena, uint32_t *n);
/* One line a value of the kernel (UINT32_MAX: of all): PREFIX"gemm_2 writes q f32[...] for attention_3: why".
 */
void program_print_stored(const Draft *d, uint32_t kernel, const char *prefix, Str *out);

/* A device that interprets, for tests: runs a planned program's regions in the interpreter on `arena`
 * (arena_bytes, 64-byte aligned): the oracle of real devices. Buffers are overwritten with ones (NaN) after
 * their last use. Persistent buffers, inputs and scalars are filled before by program_store, results read by
 * program_load: n elements as f64. */
bool program_run_reference(const Draft *d, void *arena, bool round_to_dtype, Error *err);
void program_load(const Program *p, uint32_t buffer, const void *arena, double *out, int64_t n);
void program_store(const Program *p, uint32_t buffer, void *arena, const double *in, int64_t n);

#endif
