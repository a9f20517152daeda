/* interp.c: the f64 interpreter: blocks, loops, pointwise ops. The oracle of every pass and kernel, so it is
 * written from the definitions in ops.def and shares nothing with the emitters. */
#include "ir/interp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

void tensor_strides(const Type *t, const Type *dims, int64_t *stride) {
  int64_t own[IR_MAX_RANK], s = 1;
  for (int i = t->rank; i-- > 0;) {
    own[i] = s;
    s *= t->dim[i].size;
  }
  for (int i = 0; i < dims->rank; i++) {
    int k = type_find(t, dims->dim[i].axis);
    stride[i] = k < 0 ? 0 : own[k];
  }
}

Tensor tensor_new(Interp *x, Type t) {
  return (Tensor){t, arena_alloc_array(x->arena, (size_t)type_count(&t), sizeof(double))};
}

double round_to(DType d, double v) {
  switch (d) {
  case DT_F32: return (double)(float)v;
  case DT_I32: return isnan(v) ? 0 : (double)(int32_t)(int64_t)v;
  case DT_I64: return trunc(v);
  case DT_U8: return (double)(uint8_t)(int64_t)v;
  case DT_BOOL: return v != 0;
  case DT_F64:
  case DT_F16:
  case DT_BF16:
  case DT_F8E4M3:
  case DT_F8E5M2:
  case DT_COUNT: break;
  }
  return v;
}

void tensor_round(const Interp *x, Tensor *t) {
  DType d = t->type.dtype;
  if (d == DT_F64 || d == DT_BOOL || (dtype_is_float(d) && !x->round)) {
    return;
  }
  int64_t n = type_count(&t->type);
  for (int64_t i = 0; i < n; i++) {
    t->data[i] = round_to(d, t->data[i]);
  }
}

void walk_begin(Walk *w, const Type *dims, const Type *const *operand, uint32_t n) {
  memset(w, 0, sizeof *w);
  w->dims = *dims;
  w->n = n;
  for (uint32_t k = 0; k < n; k++) {
    tensor_strides(operand[k], dims, w->stride[k]);
  }
}

bool walk_next(Walk *w) {
  for (int i = w->dims.rank; i-- > 0;) {
    if (++w->index[i] < w->dims.dim[i].size) {
      for (uint32_t k = 0; k < w->n; k++) {
        w->offset[k] += w->stride[k][i];
      }
      return true;
    }
    for (uint32_t k = 0; k < w->n; k++) {
      w->offset[k] -= w->stride[k][i] * (w->dims.dim[i].size - 1);
    }
    w->index[i] = 0;
  }
  return false;
}

/* ---- pointwise ---- */

static double floor_div(double a, double b, DType d) {
  if (!dtype_is_float(d)) {
    return b == 0 ? 0 : floor(a / b);
  }
  return floor(a / b);
}

static double modulo(double a, double b, DType d) {
  if (!dtype_is_float(d) && b == 0) {
    return 0;
  }
  double r = fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double interp_scalar(OpCode c, double a, double b, DType d) {
  switch (c) {
  case OP_NEG: return -a;
  case OP_EXP: return exp(a);
  case OP_LOG: return log(a);
  case OP_LOG1P: return log1p(a);
  case OP_SQRT: return sqrt(a);
  case OP_RSQRT: return 1 / sqrt(a);
  case OP_TANH: return tanh(a);
  case OP_SIGMOID: return 1 / (1 + exp(-a));
  case OP_ERF: return erf(a);
  case OP_SIN: return sin(a);
  case OP_COS: return cos(a);
  case OP_ABS: return fabs(a);
  case OP_SIGN: return a > 0 ? 1 : a < 0 ? -1 : a;
  case OP_FLOOR: return floor(a);
  case OP_NOT: return a == 0;
  case OP_STOP: return a;
  case OP_ADD: return a + b;
  case OP_SUB: return a - b;
  case OP_MUL: return a * b;
  case OP_DIV: return a / b;
  case OP_FLOORDIV: return floor_div(a, b, d);
  case OP_MOD: return modulo(a, b, d);
  case OP_POW: return pow(a, b);
  case OP_MAX: return isnan(a) ? a : isnan(b) ? b : a >= b ? a : b;
  case OP_MIN: return isnan(a) ? a : isnan(b) ? b : a <= b ? a : b;
  case OP_EQ: return a == b;
  case OP_NE: return a != b;
  case OP_LT: return a < b;
  case OP_LE: return a <= b;
  case OP_AND: return a != 0 && b != 0;
  case OP_OR: return a != 0 || b != 0;
  default: return NAN;
  }
}

bool interp_pointwise(Interp *x, const Op *op) {
  Tensor *out = &x->val[op->result];
  *out = tensor_new(x, x->f->val[op->result].type);
  const Type *types[3];
  const double *data[3];
  for (uint32_t i = 0; i < op->n_args; i++) {
    types[i] = &x->val[op->arg[i]].type;
    data[i] = x->val[op->arg[i]].data;
  }
  Walk w;
  walk_begin(&w, &out->type, types, op->n_args);
  DType d = types[0]->dtype;
  int64_t i = 0;
  do {
    double a = data[0][w.offset[0]];
    if (op->code == OP_SELECT) {
      out->data[i++] = a != 0 ? data[1][w.offset[1]] : data[2][w.offset[2]];
    } else if (op->code == OP_CAST) {
      out->data[i++] = dtype_is_float(out->type.dtype) || out->type.dtype == DT_BOOL ? a : trunc(a);
    } else {
      out->data[i++] = interp_scalar(op->code, a, op->n_args > 1 ? data[1][w.offset[1]] : 0, d);
    }
  } while (walk_next(&w));
  if (out->type.dtype == DT_BOOL) {
    int64_t n = type_count(&out->type);
    for (i = 0; i < n; i++) {
      out->data[i] = out->data[i] != 0;
    }
  }
  return true;
}

/* ---- structure ---- */

/* The part of `t` with index i along `axis`; copied. */
static Tensor slice_of(Interp *x, const Tensor *t, Axis axis, int64_t i, Type inner) {
  Tensor out = tensor_new(x, inner);
  int64_t along[1];
  Type one = type_scalar(t->type.dtype);
  type_push(&one, axis, 1);
  tensor_strides(&t->type, &one, along);
  const Type *types[1] = {&t->type};
  Walk w;
  walk_begin(&w, &inner, types, 1);
  int64_t k = 0;
  do {
    out.data[k++] = t->data[w.offset[0] + i * along[0]];
  } while (walk_next(&w));
  return out;
}

static bool interp_loop(Interp *x, const Op *op) {
  int64_t size = op->attr.num[0];
  uint32_t carry = (uint32_t)op->attr.num[1], xs = (uint32_t)op->attr.num[2];
  bool reverse = op->attr.num[3] != 0;
  const Block *b = op->body;
  Tensor *param = ARENA_ARRAY(x->arena, Tensor, b->n_params);
  for (uint32_t i = 0; i < op->n_args; i++) {
    param[i + 1] = x->val[op->arg[i]];
  }
  for (uint32_t i = carry; i < op->n_results; i++) {
    x->val[op->result + i] = tensor_new(x, x->f->val[op->result + i].type);
  }
  for (int64_t step = 0; step < size; step++) {
    int64_t at = reverse ? size - 1 - step : step;
    param[0] = tensor_new(x, x->f->val[b->param[0]].type);
    param[0].data[0] = (double)at;
    for (uint32_t i = carry; i < carry + xs; i++) {
      param[i + 1] = slice_of(x, &x->val[op->arg[i]], op->attr.axis[0], at, x->f->val[b->param[i + 1]].type);
    }
    if (!interp_block(x, b, param)) {
      return false;
    }
    for (uint32_t i = 0; i < carry; i++) {
      param[i + 1] = x->val[b->ret[i]];
    }
    for (uint32_t i = carry; i < b->n_ret; i++) {
      Tensor *y = &x->val[b->ret[i]];
      int64_t n = type_count(&y->type);
      memcpy(x->val[op->result + i].data + at * n, y->data, (size_t)n * sizeof(double));
    }
  }
  for (uint32_t i = 0; i < carry; i++) {
    x->val[op->result + i] = param[i + 1];
  }
  return true;
}

static bool interp_region(Interp *x, const Op *op) {
  Tensor *param = ARENA_ARRAY(x->arena, Tensor, op->n_args);
  for (uint32_t i = 0; i < op->n_args; i++) {
    param[i] = x->val[op->arg[i]];
  }
  if (!interp_block(x, op->body, param)) {
    return false;
  }
  for (uint32_t i = 0; i < op->n_results; i++) {
    x->val[op->result + i] = x->val[op->body->ret[i]];
  }
  return true;
}

static bool interp_source(Interp *x, const Op *op) {
  Tensor *out = &x->val[op->result];
  *out = tensor_new(x, x->f->val[op->result].type);
  if (op->code == OP_CONST) {
    out->data[0] = op->attr.f;
    return true;
  }
  for (int64_t i = 0; i < out->type.dim[0].size; i++) {
    out->data[i] = (double)i;
  }
  return true;
}

static bool interp_op(Interp *x, const Op *op) {
  switch (ir_op_info[op->code].cls) {
  case CLASS_SOURCE: return interp_source(x, op);
  case CLASS_UNARY:
  case CLASS_BINARY:
  case CLASS_COMPARE:
  case CLASS_LOGIC:
  case CLASS_SELECT: return interp_pointwise(x, op);
  case CLASS_MOVE: return interp_move(x, op);
  case CLASS_REDUCE: return interp_reduce(x, op);
  case CLASS_CONTRACT:
    return interp_contract(x, &x->val[op->arg[0]], &x->val[op->arg[1]], op->attr.axis, op->attr.n_axis,
                           &x->val[op->result]);
  case CLASS_INDEX: return interp_index(x, op);
  case CLASS_RANDOM: return interp_random(x, op);
  case CLASS_COMPOSITE: return interp_composite(x, op);
  case CLASS_STRUCT: return op->code == OP_LOOP ? interp_loop(x, op) : interp_region(x, op);
  }
  return false;
}

bool interp_block(Interp *x, const Block *b, const Tensor *param) {
  for (uint32_t i = 0; i < b->n_params; i++) {
    x->val[b->param[i]] = param[i];
  }
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &x->f->op[b->op[i]];
    if (!interp_op(x, op)) {
      return error_set(x->err, ERR_RUN, "interpreter: %s failed", ir_op_info[op->code].text);
    }
    for (uint32_t k = 0; k < op->n_results; k++) {
      tensor_round(x, &x->val[op->result + k]);
    }
  }
  return true;
}

bool ir_interp(const Func *f, const Tensor *in, Tensor *out, Arena *arena, bool round_to_dtype, Error *err) {
  Interp x = {.f = f, .arena = arena, .round = round_to_dtype, .err = err};
  x.val = calloc(f->n_vals ? f->n_vals : 1, sizeof *x.val);
  if (!x.val) {
    abort();
  }
  for (uint32_t i = 0; i < f->body->n_params; i++) {
    if (!type_equal(&in[i].type, &f->val[f->body->param[i]].type)) {
      free(x.val);
      return error_set(err, ERR_RUN, "interpreter: argument %u of %s has another type", i, f->name);
    }
  }
  bool ok = interp_block(&x, f->body, in);
  for (uint32_t i = 0; ok && i < f->body->n_ret; i++) {
    out[i] = x.val[f->body->ret[i]];
  }
  free(x.val);
  return ok;
}
