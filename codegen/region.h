/* region.h: the generic region emitter (inside codegen).
 *
 * A region's body is copied into a Body, composites expanded into primitives and adjacent axes that always
 * travel together merged into one. Values are then computed on demand ("pull"): region_eval(value, index map)
 * emits the code of one value at one index per lane, memoised by (value, map). A movement op only rewrites
 * the map. A nest of loops drives it.
 *
 * Scopes: each open loop has a scope: the place where code that depends on its variable, and on no deeper
 * one, is emitted. A value is emitted in the deepest scope among what it depends on, so invariant code never
 * sits in an inner loop. Loop variables and accumulators live in stack slots that the mem2reg pass turns into
 * registers, so a loop can be spliced into an outer scope after inner loops were opened: that is how a
 * reduction lands outside the loop that uses it.
 *
 * Lanes: a vector holds W neighbours along one axis. A value that is the same in all lanes is kept as a
 * scalar. */
#ifndef DLC_CODEGEN_REGION_H
#define DLC_CODEGEN_REGION_H

#include <llvm-c/Core.h>

#include "codegen/codegen.h"
#include "codegen/gemm.h"
#include "codegen/llvm.h"

/* ---- the body ---- */

typedef struct {
  Type type;
  uint32_t def; /* index into Body.op; NONE: param `index` */
  uint32_t index;
} BodyValue;

typedef struct {
  OpCode code;
  uint32_t n_args, n_results;
  Val *arg, result;
  Attr attr;
} BodyOp;

typedef struct {
  Arena *arena;
  const Func *func; /* for axis names and bodies of composites */
  BodyValue *val;
  BodyOp *op; /* in order of definition */
  uint32_t n_vals, cap_vals, n_ops, cap_ops;
  Val *param, *ret;
  uint32_t n_params, n_rets;
  uint64_t *reads; /* per value: bit r set when it depends on reduction r (the r-th REDUCE op but cumsum and
                      sort, or CONTRACT) */
  uint32_t n_reds;
  uint32_t *red; /* op of reduction r */
} Body;

/* Copies the region; expands composites, and contractions too small for packed tiles. */
bool body_init(Body *b, const Func *f, OpId region, Arena *arena, Error *err);
/* The same for any block of pointwise and movement ops, as the score of an attention. */
bool body_init_block(Body *b, const Func *f, const Block *block, Arena *arena, Error *err);
void body_collapse(Body *b); /* merges axes */
/* A new op; returns its first result. args and the axes of attr are copied. */
Val body_add(Body *b, OpCode c, const Val *args, uint32_t n, const Attr *attr, const Type *types,
             uint32_t n_results);
/* region_expand.c: op (with operands args) as primitives, results to out[]; false: op is a primitive. */
bool body_expand(Body *b, const Func *f, const Op *op, const Val *args, Val *out);
const BodyOp *body_def(const Body *b, Val v); /* NULL for params */
/* The only op of class/code c, NONE if there is none; several: false. */
bool body_single(const Body *b, OpCode c, uint32_t *op);
bool type_has_all(const Type *t, const Axis *axis, uint32_t n);
bool type_subset(const Type *part, const Type *whole); /* every axis of part is in whole */

/* ---- emission ---- */

typedef struct Scope Scope;
struct Scope {
  Scope *up;
  int depth;
  LLVMBasicBlockRef block; /* new code goes before its terminator */
};

/* The index along one dim for every lane: vec[l] when vec is set, else base + step * l. */
typedef struct {
  LLVMValueRef base; /* i64 */
  int64_t step;
  LLVMValueRef vec; /* <W x i64> */
  int64_t mult;     /* base is a multiple of this (0: of everything, base is 0) */
  Scope *scope;
} Idx;

typedef struct {
  LLVMValueRef v; /* a scalar when uniform, else <W x T> */
  bool uniform;
  Scope *scope;
  bool affine; /* an int that is idx in every lane */
  Idx idx;
} Ev;

static inline Ev ev(LLVMValueRef v, bool uniform, Scope *scope) {
  return (Ev){.v = v, .uniform = uniform, .scope = scope};
}

typedef struct Memo Memo;

/* A reduction or contraction done in an earlier phase: `chunks` partial results of `count` elements each in
 * scratch, or the whole result in a result buffer of the region. */
typedef struct {
  bool on;
  int64_t chunks, count, offset; /* bytes in scratch */
  uint32_t result;               /* NONE: scratch */
} Split;

typedef struct Emit Emit;
typedef struct Rows Rows;
typedef struct Nest Nest;

struct Emit {
  Gen *g;
  LLVMContextRef ctx;
  LLVMModuleRef mod;
  LLVMBuilderRef b;
  LLVMValueRef fn;
  LLVMBasicBlockRef entry;
  Arena *arena;
  Error *err;
  Body *body;
  Scope *root;
  int lanes;         /* W */
  LLVMValueRef mask; /* lanes in use, NULL: all */
  LLVMValueRef pred; /* lanes whose index is in range (pad, concat), NULL: all */
  Scope *pred_scope;
  Memo **memo;
  LLVMValueRef *in, *out; /* pointers of operands and results */
  LLVMValueRef scratch;
  Split *split;  /* per reduction */
  uint64_t want; /* reductions the current nest needs */
  const Nest *nest;
  Rows *rows;
  bool failed;
};

/* region_scope.c: places and loops */
void at(Emit *e, Scope *s); /* the builder emits at the end of s */
Scope *deeper(Scope *a, Scope *b);
Scope *scope_child(Emit *e, Scope *up, LLVMBasicBlockRef block);
LLVMValueRef slot(Emit *e, LLVMTypeRef t); /* stack slot in the entry block */

typedef struct {
  Scope *outer, *scope;
  LLVMBasicBlockRef head, after;
  LLVMValueRef var, i, terminator;
  int64_t step;
} Loop;
/* for (i = lo; i < hi; i += step), code inside goes to l->scope. */
void loop_begin(Emit *e, Scope *outer, LLVMValueRef lo, LLVMValueRef hi, int64_t step, Loop *l);
void loop_end(Emit *e, Loop *l);
/* if (cond) { code in l->scope } */
void if_begin(Emit *e, Scope *outer, LLVMValueRef cond, Loop *l);
void if_end(Emit *e, Loop *l);
/* Calls fn for every vector of lanes of [0, n), or of [lo, hi) when lo is set: lo is a multiple of the lanes
 * and hi is too or is n. The rest is one vector with e->mask set. */
typedef void (*LaneFn)(void *ctx, Scope *s, Idx i);
void lane_loop(Emit *e, Scope *s, int64_t n, LLVMValueRef lo, LLVMValueRef hi, LaneFn fn, void *ctx);
LLVMValueRef tail_mask(Emit *e, int64_t used); /* the first `used` lanes */

/* region_index.c: index arithmetic */
LLVMValueRef i64c(Emit *e, int64_t v);
bool const_i64(LLVMValueRef v, int64_t *out);
Idx idx_const(Emit *e, int64_t v);
Idx idx_var(Emit *e, LLVMValueRef base, int64_t step, int64_t mult, Scope *s);
bool idx_uniform(const Idx *i);
bool idx_same(const Idx *a, const Idx *b);
Idx idx_add(Emit *e, Idx a, int64_t c);
Idx idx_scale(Emit *e, Idx a, int64_t c);
Idx idx_sum(Emit *e, Idx a, Idx b);
void idx_divmod(Emit *e, Idx a, int64_t n, int64_t size, Idx *quot, Idx *rem); /* 0 <= a < size */
LLVMValueRef idx_vector(Emit *e, Idx a); /* <W x i64>, emitted in a.scope */
Idx idx_linear(Emit *e, const Type *t, const Idx *map);
/* in range 0 .. size-1: a scalar i1 when a is uniform, else <W x i1>; NULL: always. */
LLVMValueRef idx_in_range(Emit *e, Idx a, int64_t size);
Idx idx_clamp(Emit *e, Idx a, LLVMValueRef in_range); /* 0 where not in range */

/* region_types.c: LLVM types of dtypes, loads and stores */
LLVMTypeRef elem_type(Emit *e, DType d);   /* as computed with: bool is i1 */
LLVMTypeRef memory_type(Emit *e, DType d); /* as stored: bool is i8 */
LLVMTypeRef lanes_type(Emit *e, LLVMTypeRef t);
LLVMValueRef splat(Emit *e, LLVMValueRef scalar);
LLVMValueRef as_lanes(Emit *e, Ev v); /* splats uniform values; builder must be placed */
LLVMValueRef const_elem(Emit *e, DType d, double v);
LLVMValueRef intrinsic(Emit *e, const char *name, LLVMTypeRef *types, unsigned n_types, LLVMValueRef *args,
                       unsigned n);
Ev load_at(Emit *e, LLVMValueRef ptr, DType d, Idx linear);
void store_at(Emit *e, LLVMValueRef ptr, DType d, Idx linear, Ev v, Scope *s);
LLVMValueRef byte_offset(Emit *e, LLVMValueRef ptr, int64_t bytes);

/* region_pointwise.c */
/* Emits one pointwise op at the builder; args are all scalars or all <W x T>. */
LLVMValueRef pointwise(Emit *e, OpCode c, LLVMValueRef *arg, DType in, DType out, bool vector);
bool pointwise_has(OpCode c);

/* region_eval.c */
Ev region_eval(Emit *e, Val v, const Idx *map);
void memo_put(Emit *e, Val v, const Idx *map, Ev r);
bool memo_get(Emit *e, Val v, const Idx *map, Ev *r);
void operand_map(const Type *from, const Idx *map, const Type *to, Idx *out); /* by axis name */
void eval_fail(Emit *e, const char *what);

/* region_random.c */
Ev random_eval(Emit *e, Val v, const Idx *map);

/* region_rows.c: values of a row kept for later passes */
void rows_reset(Emit *e);
/* A pass of reductions begins: marks the values that something later in the nest needs again; returns its
 * number. */
uint32_t rows_pass(Emit *e, const BodyOp *const *member, int n, bool *later);
/* Stores what was computed for the vector at idx of the lane dim of `full`. */
void rows_save(Emit *e, const Type *full, const Idx *idx, int lane, Scope *s, Scope *row_scope, uint32_t pass,
               const bool *later);
void rows_end(Emit *e, uint32_t pass);
bool rows_load(Emit *e, Val v, const Idx *map, Ev *r);
int64_t rows_bytes(const Emit *e); /* of thread scratch */

/* region_reduce.c */
Ev reduce_eval(Emit *e, Val v, const Idx *map); /* on demand */
/* Part of a reduction: [lo, hi) of the flattened reduced axes without the lane axis, [lane_lo, lane_hi) of
 * the lane axis. */
typedef struct {
  LLVMValueRef lo, hi, lane_lo, lane_hi; /* i64 */
  Scope *scope;                          /* where they are known */
} Range;
/* Emits reduction r at `map` (range NULL: all of it), together with others over the same axes: those of
 * `group`, or with group 0 all that the nest wants and that are ready. */
void reduce_group(Emit *e, uint32_t r, const Idx *map, const Range *range, uint64_t group);
bool reduce_same_axes(const BodyOp *a, const BodyOp *b);
/* Position in the operand's dims of the axis a row reduction runs its lanes along; -1: one element at a time.
 */
int reduce_lane_dim(const Emit *e, const BodyOp *op);
int64_t reduce_outer_count(const Emit *e, const BodyOp *op,
                           bool row); /* elements of the reduced axes, without the lane axis when row */

/* Keeps the better of (x, i) and (*best, *pos): larger, or smaller when !largest; a NaN counts as largest, a
 * tie goes to the lower index; i = INT32_MAX: no element. */
void pick_step(Emit *e, DType d, bool largest, LLVMValueRef x, LLVMValueRef i, LLVMValueRef *best,
               LLVMValueRef *pos);
void pick_tree(Emit *e, DType d, bool largest, LLVMValueRef *best,
               LLVMValueRef *pos); /* over the lanes: now scalars */
LLVMValueRef min_i64(Emit *e, LLVMValueRef a, int64_t limit);

/* ---- schedules ---- */

#define MAX_PHASES 160

/* What one region becomes: phases with symbols SYMBOL_p0, SYMBOL_p1, ... in the module. */
typedef struct {
  const char *symbol;
  int64_t ntasks[MAX_PHASES];
  uint32_t n_phases;
  int64_t scratch_bytes, temp_bytes,
      thread_scratch_bytes; /* temp: after the rest, used within single contractions */
} RegionPlan;

typedef struct {
  Val v;
  uint32_t result; /* index of the region's result; NONE: scratch */
  int64_t offset;  /* in scratch */
  uint32_t red;    /* of a nest with `group` */
} NestOut;

/* Where an operand of a contraction lies: strides, in elements, of a buffer. */
typedef struct {
  Val base; /* a body param, a contraction's result, or any value put in scratch at `scratch` */
  int64_t offset, scratch;
  bool in_scratch;
  int n;
  Dim dim[IR_MAX_RANK];
  int64_t stride[IR_MAX_RANK];
} View;

/* One phase: loops over `loops`, the first n_p of them split into tasks. Outputs have the dims of the first
 * n_p loops or of all. */
struct Nest {
  Type loops;
  int n_p, lane;  /* lane: the loop that runs over vectors; -1: none */
  int width;      /* lanes */
  int64_t chunks; /* > 1: tasks are parts of the reduced range, outputs partial results */
  uint64_t group; /* chunks > 1: the reductions */
  NestOut *out;
  uint32_t n_outs;
  uint32_t contract; /* NONE, or the reduction index of the contraction this phase is */
  View x, y;         /* its operands */
  View add[GEMM_ADDENDS];
  int n_adds; /* added to it before it is written */
};

/* region_plan.c: which reductions get a phase of their own, and the nests in order. */
bool region_plan_nests(Emit *e, RegionPlan *plan, Nest **nests, uint32_t *n);

/* region_phase.c: starts a phase function; fills fn, entry, root, pointers; *lo, *hi = the tasks to run. */
void phase_begin(Emit *e, RegionPlan *plan, LLVMValueRef *lo, LLVMValueRef *hi);
LLVMValueRef phase_thread_scratch(Emit *e); /* only in kernels that ask for thread scratch */
void phase_end(Emit *e, RegionPlan *plan, int64_t ntasks);
int64_t task_target(int64_t work); /* how many tasks `work` element visits are worth */

bool region_emit_nests(Emit *e, RegionPlan *plan);   /* region_nest.c */
bool region_emit_scan(Emit *e, RegionPlan *plan);    /* region_scan.c */
bool region_emit_sort(Emit *e, RegionPlan *plan);    /* region_sort.c */
bool region_emit_scatter(Emit *e, RegionPlan *plan); /* region_scatter.c */

/* region_contract.c */
bool contract_is_large(const Type *x, const Type *y,
                       const Attr *attr);            /* worth packed tiles; else a sum of products */
bool contract_view(const Body *b, Val v, View *out); /* false: v has to be put in scratch first */
/* The value that the phase of contraction c writes: c itself, or the result that params are added to it for.
 */
Val contract_written(const Body *b, Val c, View *add, int *n_adds);
/* May the region's only result, a contraction and sums with params, be written over param `arg`? */
bool contract_in_place(const Func *f, OpId region, uint32_t arg);
void contract_emit(Emit *e, RegionPlan *plan, const Nest *n);

/* region_attention.c */
bool attention_region_ok(const Func *f, OpId region); /* one attention op that has a kernel of its own */
bool region_emit_attention(Emit *e, RegionPlan *plan, const Func *f, OpId region);

#endif
