/* interp_index.c: products, gathers, scatters and random numbers of the interpreter. */
#include "ir/interp.h"

#include "runtime/rng.h"

#include <math.h>
#include <string.h>

/* ---- contraction ---- */

/* row[i] += p[i * sp] * q[i * sq]; one of the two usually stands still. */
static void add_product(double *row, int64_t size, const double *p, int64_t sp, const double *q, int64_t sq) {
  if (sp == 0 && sq == 1) {
    for (int64_t i = 0; i < size; i++) {
      row[i] += *p * q[i];
    }
  } else {
    for (int64_t i = 0; i < size; i++) {
      row[i] += p[i * sp] * q[i * sq];
    }
  }
}

bool interp_contract(Interp *x, const Tensor *a, const Tensor *b, const Axis *axis, uint32_t n, Tensor *out) {
  Type arg[2] = {a->type, b->type}, type;
  Attr attr = {.axis = axis, .n_axis = n};
  if (!ir_infer(x->f->module, OP_CONTRACT, arg, 2, &attr, &type, x->err)) {
    return false;
  }
  *out = tensor_new(x, type);
  Type part = type_scalar(type.dtype);
  for (uint32_t i = 0; i < n; i++) {
    type_push(&part, axis[i], a->type.dim[type_find(&a->type, axis[i])].size);
  }
  const Type *types[2] = {&a->type, &b->type};
  Walk w, first;
  int64_t step[2], size = rows_begin(&w, &type, types, 2, step);
  walk_begin(&first, &part, types, 2);
  double *row = out->data;
  do {
    Walk in = first;
    do {
      add_product(row, size, a->data + w.offset[0] + in.offset[0], step[0],
                  b->data + w.offset[1] + in.offset[1], step[1]);
    } while (walk_next(&in));
    row += size;
  } while (walk_next(&w));
  return true;
}

/* ---- gather, scatter ---- */

enum { INDEX_MAX = 8 };

/* Where the indexed axes point at the current place of the walk: the offset into a tensor of type t, or -1
 * when outside. Operand 1 + k of the walk is index k. */
static int64_t indexed_offset(Interp *x, const Op *op, const Walk *w, const Type *t, const int64_t *stride) {
  int64_t offset = 0;
  for (uint32_t k = 0; k + 1 < op->n_args; k++) {
    double at = x->val[op->arg[k + 1]].data[w->offset[k + 1]];
    if (!(at >= 0 && at < (double)t->dim[type_find(t, op->attr.axis[k])].size)) {
      return -1;
    }
    offset += (int64_t)at * stride[k];
  }
  return offset;
}

/* t's strides along the indexed axes, and those axes taken out of operand `operand` of the walk. */
static void indexed_strides(const Op *op, const Type *t, Walk *w, uint32_t operand, int64_t *stride) {
  for (uint32_t k = 0; k + 1 < op->n_args; k++) {
    Type one = type_scalar(t->dtype);
    type_push(&one, op->attr.axis[k], 1);
    tensor_strides(t, &one, &stride[k]);
    int at = type_find(&w->dims, op->attr.axis[k]);
    if (at >= 0) { /* an index may itself have an axis of the indexed name: it does not step through t */
      w->stride[operand][at] = 0;
    }
  }
}

static bool gather(Interp *x, const Op *op) {
  const Tensor *t = &x->val[op->arg[0]];
  Tensor out = tensor_new(x, x->f->val[op->result].type);
  const Type *types[WALK_MAX];
  for (uint32_t i = 0; i < op->n_args; i++) {
    types[i] = &x->val[op->arg[i]].type;
  }
  int64_t stride[INDEX_MAX];
  Walk w;
  walk_begin(&w, &out.type, types, op->n_args);
  indexed_strides(op, &t->type, &w, 0, stride);
  int64_t i = 0;
  do {
    int64_t at = indexed_offset(x, op, &w, &t->type, stride);
    out.data[i++] = at < 0 ? 0 : t->data[w.offset[0] + at];
  } while (walk_next(&w));
  x->val[op->result] = out;
  return true;
}

static bool scatter(Interp *x, const Op *op) {
  const Tensor *g = &x->val[op->arg[0]];
  Tensor out = tensor_new(x, x->f->val[op->result].type);
  const Type *types[WALK_MAX];
  Type all = g->type;
  for (uint32_t i = 0; i < op->n_args; i++) {
    types[i] = &x->val[op->arg[i]].type;
    Axis clash;
    if (i && !type_join(&all, types[i], &all, &clash)) {
      return error_set(x->err, ERR_RUN, "scatter_add: operands do not fit");
    }
  }
  types[op->n_args] = &out.type;
  int64_t stride[INDEX_MAX];
  Walk w;
  walk_begin(&w, &all, types, op->n_args + 1);
  indexed_strides(op, &out.type, &w, op->n_args, stride);
  do {
    int64_t at = indexed_offset(x, op, &w, &out.type, stride);
    if (at >= 0) {
      out.data[w.offset[op->n_args] + at] += g->data[w.offset[0]];
    }
  } while (walk_next(&w));
  x->val[op->result] = out;
  return true;
}

bool interp_index(Interp *x, const Op *op) {
  if (op->n_args > INDEX_MAX) {
    return error_set(x->err, ERR_RUN, "interpreter: more than %d indexed axes", INDEX_MAX - 1);
  }
  return op->code == OP_GATHER ? gather(x, op) : scatter(x, op);
}

/* ---- random ---- */

bool interp_random(Interp *x, const Op *op) {
  Tensor out = tensor_new(x, x->f->val[op->result].type);
  uint64_t seed = (uint64_t)interp_int(x->val[op->arg[0]].data[0]),
           attempt = (uint64_t)interp_int(x->val[op->arg[1]].data[0]);
  int64_t index[IR_MAX_RANK];
  uint32_t n = op->n_args - 2;
  if (n > IR_MAX_RANK) {
    return error_set(x->err, ERR_RUN, "random: more than %d enclosing loops", IR_MAX_RANK);
  }
  for (uint32_t i = 0; i < n; i++) {
    index[i] = interp_int(x->val[op->arg[i + 2]].data[0]);
  }
  uint32_t loops = rng_loops(index, n), id = (uint32_t)op->attr.num[op->attr.n_num - 1];
  int64_t count = type_count(&out.type);
  for (int64_t i = 0; i < count; i++) {
    out.data[i] = rng_uniform(out.type.dtype, seed, id, loops, attempt, (uint64_t)i);
  }
  x->val[op->result] = out;
  return true;
}
