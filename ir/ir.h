/* ir.h: the tensor IR: SSA over a closed op table, tensors with named axes.
 *
 * A Module owns axes, files (for locations), tables of parameters and states, and functions; all memory is
 * the module's arena. A Func owns flat arrays of values and ops; blocks (the function's body, bodies of
 * loops, composites and regions) hold op indices in order. A body sees only its own params: nothing is
 * captured, values of outer blocks come in as operands. Types: dtype + ordered dims (axis, size); the order
 * is the storage order, row-major; a pair of equal axes with different sizes may not meet. Sizes are static.
 */
#ifndef DLC_IR_H
#define DLC_IR_H

#include "runtime/base.h"

#define IR_MAX_RANK 12

typedef uint32_t Axis; /* index into Module.axis */
typedef uint32_t Val;  /* index into Func.val */
typedef uint32_t OpId; /* index into Func.op */
#define NONE UINT32_MAX

typedef struct {
  Axis axis;
  int64_t size;
} Dim;

typedef struct {
  DType dtype;
  uint8_t rank;
  Dim dim[IR_MAX_RANK];
} Type;

typedef struct {
  uint32_t file; /* index into Module.file; NONE: no location */
  uint32_t line, col;
} Loc;

typedef enum {
#define OP(name, ...) OP_##name,
#include "ops.def"
#undef OP
  OP_COUNT
} OpCode;

typedef enum {
  CLASS_SOURCE,
  CLASS_UNARY,
  CLASS_BINARY,
  CLASS_COMPARE,
  CLASS_LOGIC,
  CLASS_SELECT,
  CLASS_MOVE,
  CLASS_REDUCE,
  CLASS_CONTRACT,
  CLASS_INDEX,
  CLASS_RANDOM,
  CLASS_COMPOSITE,
  CLASS_STRUCT
} OpClass;

enum { F_COMM = 1, F_CHEAP = 2, F_VIEW = 4, F_FLOAT = 8, F_NODIFF = 16, F_BODY = 32 };

typedef struct {
  const char *text;
  OpClass cls;
  int n_args, n_results; /* -1: any number */
  uint32_t flags;
  double flops;
} OpInfo;
extern const OpInfo ir_op_info[OP_COUNT];
bool op_is_pointwise(OpCode c); /* UNARY, BINARY, COMPARE, LOGIC, SELECT */

typedef struct {
  const Axis *axis;
  const int64_t *num;
  uint32_t n_axis, n_num;
  double f;
  DType dtype;
  const char *str;
} Attr;

typedef struct Block {
  Val *param;
  OpId *op;
  Val *ret;
  uint32_t n_params, n_ops, n_ret;
  uint32_t cap_params, cap_ops, cap_ret;
} Block;

typedef struct {
  OpCode code;
  Loc loc;
  uint32_t n_args, n_results;
  Val *arg;
  Val result; /* the first; results are consecutive values */
  Attr attr;
  Block *body; /* F_BODY ops */
} Op;

typedef struct {
  Type type;
  OpId def;         /* NONE: a block parameter */
  uint32_t index;   /* which result, or which block parameter */
  const char *name; /* the name in the program, or NULL; carries no meaning */
} Value;

/* ---- functions ---- */

typedef enum {
  ARG_PARAM,  /* index into Module.param */
  ARG_OPT,    /* index into Module.opt: optimizer state */
  ARG_STATE,  /* index into Module.state: `state` of modules */
  ARG_INPUT,  /* index into Module.input */
  ARG_SCALAR, /* index = ScalarKind of program.h (step, attempt, seed) */
  ARG_GRAD,   /* update functions: the gradient of parameter `index` (already clipped), same type as the
                 parameter */
  ARG_FACTOR  /* update functions: f64 scalar, the schedule's factor of optimizer group `index` */
} ArgKind;

typedef struct {
  ArgKind kind;
  uint32_t index;
} FuncArg; /* describes body->param[i] */

typedef enum {
  RES_LOSS,     /* the scalar that is differentiated: sum over terms of coef * num / den */
  RES_LOSS_NUM, /* index = term */
  RES_LOSS_DEN,
  RES_METRIC_NUM, /* name = metric */
  RES_METRIC_DEN,
  RES_OUTPUT, /* name = path ("logits", "h.attn.p" stacked over its repeats, repeat axes first) */
  RES_PARAM,  /* next value of parameter `index` */
  RES_OPT,    /* next value of optimizer state `index` */
  RES_STATE,  /* next value of module state `index` */
  RES_GRAD,   /* gradient of parameter `index` */
  RES_SCALAR  /* name: "grad_norm", "lr", ...; schedule.G returns the f64 scalars "factor" and "lr" */
} ResKind;

typedef struct {
  ResKind kind;
  uint32_t index;
  const char *name;
  double coef; /* RES_LOSS_NUM: the factor of its term */
} FuncRes;     /* describes body->ret[i] */

typedef struct Module Module;

typedef struct {
  Module *module;
  const char *name; /* "train", "eval", "update.K" (K = parameter index), "schedule.G" (G = optimizer group),
                       later "grad", "step", ... */
  FuncArg *arg;     /* body->n_params of them */
  FuncRes *res;     /* body->n_ret of them */
  Block *body;
  Value *val;
  Op *op;
  uint32_t n_vals, cap_vals, n_ops, cap_ops;
} Func;

/* ---- tables ---- */

typedef enum { IR_INIT_NORMAL, IR_INIT_UNIFORM, IR_INIT_FILL } InitKind;

typedef struct {
  const char *name; /* path with a star per enclosing repeat: "h.*.attn.wq"; no repeats: "wte" */
  Type type; /* repeat axes first (outermost first), then the declared axes in order; float, as the plan's
                precision */
  uint32_t n_repeat; /* leading dims that are repeat axes */
  InitKind init;
  double a, b; /* normal: mean, sd; uniform: lo, hi; fill: value */
  bool frozen;
  bool matrix;    /* used in a contraction or a gather */
  uint32_t group; /* optimizer line it belongs to; NONE when frozen */
  Loc loc;
} IrParam;

typedef struct {
  const char *name; /* optimizer state "m", "v" of `param`, or a module state's path */
  Type type;
  uint32_t param; /* optimizer state: its parameter; starts from it when from_param */
  bool from_param;
  double fill; /* start value otherwise */
  uint32_t n_repeat;
} IrState;

typedef struct {
  const char *name;
  Type type;
  Loc loc;
} IrInput;

struct Module {
  Arena arena;
  const char **axis; /* names */
  const char **file; /* paths as shown in messages */
  IrParam *param;
  IrState *opt, *state;
  IrInput *input;
  Func **func;
  uint32_t n_axes, cap_axes, n_files, cap_files, n_params, cap_params, n_opt, cap_opt, n_states, cap_states;
  uint32_t n_inputs, cap_inputs, n_funcs, cap_funcs;
  DType real; /* what `float` means: F32 or F64 */
};

Module *ir_module_new(void);
void ir_module_free(Module *m);
Axis ir_axis(Module *m, const char *name); /* finds or adds */
const char *ir_axis_name(const Module *m, Axis a);
Func *ir_func_new(Module *m, const char *name);
Func *ir_func(Module *m, const char *name); /* NULL if absent */

/* ---- types ---- */

bool type_equal(const Type *a, const Type *b);     /* same dtype, dims and order */
bool type_same_dims(const Type *a, const Type *b); /* as sets, dtype ignored */
int type_find(const Type *t, Axis a);              /* position of the axis or -1 */
bool type_has(const Type *t, Axis a);
int64_t type_count(const Type *t); /* elements; types in a Func never overflow (ir_infer checks bytes too) */
bool type_bytes(const Type *t, int64_t *out); /* false on overflow */
Type type_scalar(DType d);
Type type_without(const Type *t, const Axis *axis, uint32_t n);
bool type_push(Type *t, Axis a, int64_t size); /* appends; false if full or present */
/* Joins b's dims into a by the pointwise rule; false (with *clash = the axis) when sizes differ or the rank
 * overflows. */
bool type_join(const Type *a, const Type *b, Type *out, Axis *clash);
void type_print(const Module *m, const Type *t, Str *out); /* f32[batch=4, time=64] */

/* Result types of an op; the one place type rules live. results has room for op n_results (loops, regions:
 * taken from the body). */
bool ir_infer(const Module *m, OpCode code, const Type *arg, uint32_t n_args, const Attr *attr, Type *results,
              Error *err);

/* ---- building ---- */

typedef struct {
  Func *f;
  Block *b;
  Loc loc;
  Error *err; /* first failure; builders return NONE after it and accept NONE operands (returning NONE) */
} Builder;

Val ir_param(Func *f, Block *b, Type t, const char *name); /* new block parameter */
Val ir_func_arg(Func *f, ArgKind kind, uint32_t index, Type t, const char *name);
void ir_func_ret(Func *f, FuncRes res, Val v);
void ir_block_ret(Func *f, Block *b, Val v);
Block *ir_block_new(Func *f);
/* The general builder: copies args and attr into the arena; returns the first result. Body ops: body is taken
 * over. */
Val ir_op(Builder *b, OpCode code, const Val *args, uint32_t n, const Attr *attr, Block *body);
const Type *ir_type(const Func *f, Val v);

Val ir_const(Builder *b, DType d, double v);
Val ir_iota(Builder *b, Axis a, int64_t size);
Val ir_unary(Builder *b, OpCode c, Val x);
Val ir_binary(Builder *b, OpCode c, Val x, Val y);
Val ir_select(Builder *b, Val c, Val x, Val y);
Val ir_cast(Builder *b, Val x, DType d);               /* x itself when it already has the dtype */
Val ir_broadcast(Builder *b, Val x, const Type *dims); /* x itself when equal */
Val ir_reorder(Builder *b, Val x, const Type *dims);   /* x itself when already so */
Val ir_rename(Builder *b, Val x, const Axis *from, const Axis *to, uint32_t n);
Val ir_reduce(Builder *b, OpCode c, Val x, const Axis *axis,
              uint32_t n); /* x itself when n == 0 (sum, max, min, prod) */
Val ir_contract(Builder *b, Val x, Val y, const Axis *axis, uint32_t n);
Val ir_gather(Builder *b, Val x, const Axis *axis, const Val *index, uint32_t n);

/* Copies blocks between functions of one module: map[old] = new (NONE: not yet), n = src->n_vals entries. */
void ir_clone_ops(Builder *b, const Func *src, const Block *from,
                  Val *map); /* ops of the block; rets are left to the caller */
OpId ir_clone_op(Builder *b, const Func *src, OpId id, Val *map);     /* with its body */
Block *ir_clone_block(Func *dst, const Func *src, const Block *from); /* a whole closed block */
/* Drops ops whose results nobody uses (bodies too); keeps block params. */
void ir_dce(Func *f);

double ir_op_flops(const Func *f,
                   OpId id); /* contractions 2*M*N*K, composites by formula, loops times count */

/* ---- text ---- */

/* Canonical text of a module or one function; ir_read of it prints byte-identical. */
void ir_print(const Module *m, Str *out);
void ir_print_func(const Func *f, Str *out);
/* Canonical text of one op with body, values renumbered from 0, without names and locations, axes renamed to
 * a0, a1, ... in order of first use: equal text = same kernel. */
void ir_print_region(const Func *f, OpId id, Str *out);
/* Reads what ir_print writes; blanks and newlines are free. What it returns has passed ir_verify; NULL: err
 * says the line. */
Module *ir_read(const char *text, size_t n, const char *path, Error *err);

/* ---- checking, running ---- */

/* Types as inferred, operands defined before use and in the same block, bodies fit their ops, arguments and
 * results fit their table rows, every tensor's bytes below 2^63. */
bool ir_verify(const Module *m, Error *err);
bool ir_verify_func(const Func *f, Error *err);

/* A tensor of the interpreter: values in f64 whatever the dtype (ints exact), row-major in the order of
 * `type`. */
typedef struct {
  Type type;
  double *data;
} Tensor;
/* Runs a verified f in f64: in[i] for body->param[i]; out[i] for body->ret[i] (data from the arena).
 * round_to_dtype: results of every op are rounded to their dtype (f32), as a device would; false: pure f64.
 */
bool ir_interp(const Func *f, const Tensor *in, Tensor *out, Arena *arena, bool round_to_dtype, Error *err);

#endif
