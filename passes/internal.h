/* internal.h: what the passes share and nobody else sees. */
#ifndef DLC_PASSES_INTERNAL_H
#define DLC_PASSES_INTERNAL_H

#include "passes/passes.h"

/* ---- rewriting a block (rewrite.c) ---- */

/* Replaces every use of `from` by `to` in a block: operands of its ops and its returns (bodies see nothing of
 * it). */
void block_replace(Func *f, Block *b, Val from, Val to);
/* A loop that gains results gets new values for all of them: what an old value is called now, and the same
 * for all of a block. */
Val val_renew(const Func *f, Val v);
void block_renew(Func *f, Block *b);
/* Takes the ops out of the block, for a pass that pushes the kept ones back in order, new ones between them.
 */
uint32_t block_take(Block *b, OpId **ops);
void block_push(Func *f, Block *b, OpId id);
/* The op that computes v, or NULL for a block parameter. Pointers into Func arrays die with the next op
 * built. */
const Op *def_op(const Func *f, Val v);
bool is_const(const Func *f, Val v, double *out); /* v is a `const` or a broadcast of one */
/* The parameters of a loop's attributes. */
typedef struct {
  Axis axis;
  int64_t size;
  uint32_t n_carry, n_xs, n_inv, n_ys;
  bool reverse;
} LoopShape;
LoopShape loop_shape(const Func *f, OpId id);
Val build_zeros(Builder *b, const Type *t);
Val build_as(Builder *b, Val v, const Type *t); /* broadcast or reordered to exactly t's dims */
Val axis_first(Builder *b, Val v, Axis axis); /* reordered so that the axis is slowest */
/* Copies a function of one module under another name, without the results `keep` refuses. */
Func *func_copy(const Func *f, const char *name, bool (*keep)(void *ctx, const FuncRes *r), void *ctx);
/* Inlines src at the end of the builder's block: args[i] stands for its i-th parameter; out[i] = its i-th
 * result. */
void func_inline(Builder *b, const Func *src, const Val *args, Val *out);

/* ---- simplification (simplify.c, fold.c, prune.c) ---- */

bool simplify(Func *f, bool drop_stop, Error *err); /* drop_stop: no gradient will be taken any more */
Val fold_op(Builder *b, OpId id, bool drop_stop);   /* what the op's one result may be replaced by, or NONE */
bool simplify_body(Func *f, Block *b, bool drop_stop, Error *err); /* the same for one closed block */
void prune(Func *f, Block *b);

/* Dear values of loop bodies that depend on nothing but indices move before the loop. */
bool pass_hoist(Func *f, Error *err);

/* ---- outlining (outline.c, outline_*.c): what stands for the op's result, or NONE ---- */

typedef struct {
  bool *act;       /* by value: depends on a trained parameter */
  bool *use;       /* by value: so does it, and the loss depends on it */
  uint32_t *uses;  /* by value: how many operands and returns name it */
  uint32_t n;      /* values known to both */
  const OpId *ops; /* of the block at hand, before it is rewritten */
  uint32_t n_ops;
} OutlineInfo;
Val outline_contract(Builder *b, OpId id);
Val outline_softmax(Builder *b, OpId id);
Val outline_attention(Builder *b, OpId id, const OutlineInfo *info);
Val outline_linear_xent(Builder *b, OpId id, const OutlineInfo *info);
bool same_axes(const Axis *a, uint32_t n, const Axis *b, uint32_t m); /* as sets */
/* m is the row maximum of x over the axes, maybe stopped, maybe with 0 in place of -inf. */
bool is_row_max(const Func *f, Val m, Val x, const Axis *axis, uint32_t n);

/* ---- reverse mode (autodiff.c, vjp_*.c) ---- */

/* One block being differentiated. The backward ops go to the end of `fwd` itself at function level, into the
 * body of a backward loop
 * (`bwd`) inside a loop; there primal values must be brought over: ad_primal. */
typedef struct Ad Ad;
struct Ad {
  Builder b; /* emits backward ops; b.f is the function */
  Block *fwd;
  bool *act;  /* by value: depends on what is differentiated by, through differentiable ops */
  bool *use;  /* by value: active, and the differentiated result depends on it */
  Val *cot;   /* by value: the cotangent so far, NONE when there is none; dims of the value in any order */
  uint32_t n; /* length of act, use and cot: values born in the backward have none */
  struct AdLoop *loop; /* NULL at function level */
};

/* The value v of the forward, usable in the backward. */
Val ad_primal(Ad *a, Val v);
/* Adds g to the cotangent of v: sums the axes v lacks, broadcasts those g lacks. Nothing when v needs none.
 */
void ad_add(Ad *a, Val v, Val g);
/* Whether a cotangent of v is wanted. */
bool ad_wants(const Ad *a, Val v);
/* Runs the rules of `ops` in reverse. */
void ad_sweep(Ad *a, const OpId *ops, uint32_t n_ops);

/* Short forms for rules: operand k of the op (forward value), the same in the backward, its result in the
 * backward. */
Val ad_arg(const Ad *a, OpId id, uint32_t k);
Val ad_x(Ad *a, OpId id, uint32_t k);
Val ad_y(Ad *a, OpId id);
Val ad_const(Ad *a, Val like, double v); /* of like's dtype */

/* The rule of one op: dy[i] is the cotangent of result i (NONE: none, but never all). */
typedef void (*Vjp)(Ad *a, OpId id, const Val *dy);
extern const Vjp vjp_table[OP_COUNT];
#define OP(name, ...) void vjp_##name(Ad *a, OpId id, const Val *dy);
#include "ir/ops.def"
#undef OP

/* The cotangent of x for y = x[axis[k] = index[k]] when the indices are affine in axes (vjp_window.c); NONE
 * otherwise. */
Val window_transpose(Builder *b, const Val *index, const Axis *axis, uint32_t n, const Type *x, Val dy);

/* Fills act and use of an Ad for the target and what it is differentiated by; n = f->n_vals. */
void ad_relevance(Ad *a, const Block *b, Val target, const Val *wrt, uint32_t n);
/* The trained parameters among the function's arguments; out has room for all arguments. */
uint32_t trained_params(const Func *f, Val *out);
/* The value of the result RES_LOSS, or NONE. */
Val loss_of(const Func *f);
/* Cotangents of wrt[i] for the cotangent `seed` of target (NONE: ones), the backward at the end of block b;
 * out[i] is NONE when target does not depend on wrt[i]. */
bool ad_pull(Func *f, Block *b, Val target, Val seed, const Val *wrt, uint32_t n, Val *out, Error *err);

/* sqrt of the sum of squares of all gradients that are not NONE. */
Val gradient_norm(Builder *b, const Val *grad, uint32_t n);
/* linear_xent whose gradient is taken too: one op for both. */
bool pass_share_loss(Func *f, Error *err);

/* ---- composites as primitives (expand.c) ---- */

/* sum of x * y over what both have and t lacks; the operand that holds t's first own dim comes first. */
Val contract_onto(Builder *b, Val x, Val y, const Type *t);
/* Emits primitives for the composite op; out[i] has exactly the type of result i. */
void expand_composite(Builder *b, OpId id, Val *out);
bool can_expand(OpCode c);

#endif
