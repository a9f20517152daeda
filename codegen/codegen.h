/* codegen.h: REGION ops -> host kernels.
 *
 * A region's operands and results are dense row-major buffers in the dim order of their types (rank 0: one element); bool is
 * one byte 0 or 1. Kernel args = region operands, then results (Kernel.n_outputs of them). Buffers must not overlap, except
 * as codegen_inplace allows. Bytes next to a buffer are never touched.
 *
 * Legal regions (codegen_region_ok says why not):
 *   - at most CODEGEN_MAX_ARGS operands and results together; dtypes f32, f64, int, i64, u8, bool;
 *   - results may have different dims; a result may be a body param (a copy) or occur twice;
 *   - classes "map", "update", "copy", "gather", "norm", "reduce", "loss": any pointwise, movement, SOURCE, RANDOM and GATHER ops,
 *     SOFTMAX, and SUM, REDUCE_MAX, REDUCE_MIN, PROD, ARGMAX over any axes, in any order. They are fast when all reductions have
 *     the same set of axes and are used by pointwise ops only (each row is then read once or twice); a reduction used otherwise
 *     is a phase of its own that leaves its result in scratch;
 *   - "scatter": one SCATTER_ADD whose result is returned, alone or as one operand of an ADD with a body param of its type
 *     (the sum then starts from that param); its operands may be computed in the body as above;
 *   - "scan": CUMSUMs over one axis, pointwise and movement ops before and pointwise ops after;
 *   - "sort": one SORT, its operand computed in the body, both results returned as they are;
 *   - "gemm": any number of CONTRACTs among the ops of "map" and "norm" (each is its own phase; what comes before and after is
 *     computed in phases of its own as well, fused as far as possible). Operands that are body params, or RENAME, SPLIT, MERGE,
 *     REORDER or SLICE of them, are read in place; anything else is put in scratch first. Products too small for tiles are sums;
 *   - "attention", "attention_grad": ATTENTION and ATTENTION_GRAD with pointwise score functions count as contractions.
 * The class is a hint for the reader: the emitter is chosen by the ops found. */
#ifndef DLC_CODEGEN_H
#define DLC_CODEGEN_H

#include "ir/ir.h"
#include "runtime/program.h"

#define CODEGEN_MAX_ARGS 64

typedef struct Codegen Codegen;

typedef struct {
  const char *cpu, *features; /* LLVM names; NULL: this machine's */
  const char *cache_dir;      /* NULL: no cache on disk */
  uint32_t threads;           /* that compile; 0 and 1: the caller only */
} CodegenOptions;

/* DLC_CACHE, else XDG_CACHE_HOME/dlc, else ~/.cache/dlc; malloc'ed. NULL: no cache (DLC_CACHE is empty, or no home). */
char *cache_default_dir(void);

Codegen *codegen_new(const CodegenOptions *options, Error *err);
void codegen_free(Codegen *cg);
const char *codegen_target(const Codegen *cg); /* "x86_64-... znver4 avx512": for reports and cache keys */

bool codegen_region_ok(const Func *f, OpId region, char *why, size_t why_size);

/* May result `result` be written over the buffer of operand `arg`? True only when their types are equal and every element
 * of the operand is read for no other purpose than to compute the same element of the results, or is what a scatter
 * starts from. */
bool codegen_inplace(const Func *f, OpId region, uint32_t result, uint32_t arg);

/* Fills phases, n_args, n_outputs, scratch bytes, flops, bytes and cls of *out (strings from the arena; name, fused, loc and object
 * are left alone) and the object with its symbols. Symbols are unique per canonical region text and target. */
bool codegen_kernel(Codegen *cg, const Func *f, OpId region, Arena *arena, Kernel *out, Object *obj, Error *err);

/* The same for n regions, object i for kernel i (kernel[i].object = i); missing ones are compiled on `threads` threads. */
bool codegen_kernels(Codegen *cg, const Func *f, const OpId *region, uint32_t n, Arena *arena, Kernel *kernel,
                     Object *object, Error *err);

/* The LLVM IR of one region after the light passes, as text. */
bool codegen_ir(Codegen *cg, const Func *f, OpId region, Str *out, Error *err);

/* Loads objects into the process. Lookup returns NULL for an unknown symbol. */
typedef void (*KernelFn)(void *const *args, int64_t task_lo, int64_t task_hi, void *scratch);
typedef struct CodeImage CodeImage;
CodeImage *codegen_load(const Object *object, uint32_t n, Error *err);
KernelFn codegen_lookup(CodeImage *image, const char *symbol);
void codegen_unload(CodeImage *image);

#endif
