/* interp.h: what the files of the interpreter share. Internal to ir/. */
#ifndef DLC_IR_INTERP_H
#define DLC_IR_INTERP_H

#include "ir/ir.h"

typedef struct {
  const Func *f;
  const Block *block; /* being run */
  Tensor *val;        /* of every value computed so far; data NULL before */
  Arena *arena;
  bool round;
  Error *err;
} Interp;

/* Strides of t's dims in the order of `dims` (0: t does not have the axis). */
void tensor_strides(const Type *t, const Type *dims, int64_t *stride);
Tensor tensor_new(Interp *x, Type t);
/* Rounds every element to the dtype of t when the interpreter is asked to, and always for ints and bools. */
void tensor_round(const Interp *x, Tensor *t);
bool interp_block(Interp *x, const Block *b, const Tensor *param);
bool interp_step(Interp *x, const Op *op); /* one op: its results, rounded */

/* Walks the points of `dims` in row-major order with a running offset in each of n operands. */
enum { WALK_MAX = 16 };
typedef struct {
  Type dims;
  int64_t index[IR_MAX_RANK];
  int64_t stride[WALK_MAX][IR_MAX_RANK];
  int64_t offset[WALK_MAX];
  uint32_t n;
} Walk;
void walk_begin(Walk *w, const Type *dims, const Type *const *operand, uint32_t n);
bool walk_next(Walk *w); /* false after the last point */
/* Walks all dims but the last; the length of the last and the operands' steps along it make the inner loop.
 */
int64_t rows_begin(Walk *w, const Type *dims, const Type *const *operand, uint32_t n, int64_t *step);

double interp_scalar(OpCode c, double a, double b, DType d); /* one pointwise op, SELECT and CAST excluded */
double round_to(DType d, double v);
int64_t interp_int(double v); /* saturates; NaN is 0 */

/* One function a group of rows; each computes x->val of the op's results. */
bool interp_pointwise(Interp *x, const Op *op);
bool interp_move(Interp *x, const Op *op);
bool interp_reduce(Interp *x, const Op *op);
bool interp_contract(Interp *x, const Tensor *a, const Tensor *b, const Axis *axis, uint32_t n, Tensor *out);
bool interp_index(Interp *x, const Op *op);
bool interp_random(Interp *x, const Op *op);
bool interp_composite(Interp *x, const Op *op);
bool interp_grad(Interp *x, const Op *op);

#endif
