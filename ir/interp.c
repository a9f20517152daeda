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

/* Saturates; NaN is 0: what a cast of a float to an int gives. */
static double to_int(DType d, double v) {
  double lo = d == DT_U8 ? 0 : d == DT_I32 ? -0x1p31 : -0x1p63;
  double hi = d == DT_U8 ? 255 : d == DT_I32 ? 0x1p31 - 1 : 0x1p63 - 1024;
  return isnan(v) ? 0 : v < lo ? lo : v > hi ? hi : trunc(v);
}

int64_t interp_int(double v) {
  return (int64_t)to_int(DT_I64, v);
}

static double wrap(DType d, int64_t v) {
  return d == DT_I32 ? (double)(int32_t)v : d == DT_U8 ? (double)(uint8_t)v : (double)v;
}

double round_to(DType d, double v) {
  switch (d) {
  case DT_F32: return (double)(float)v;
  case DT_I32:
  case DT_I64:
  case DT_U8: return wrap(d, interp_int(v));
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

int64_t rows_begin(Walk *w, const Type *dims, const Type *const *operand, uint32_t n, int64_t *step) {
  Walk all;
  walk_begin(&all, dims, operand, n);
  Type outer = *dims;
  outer.rank -= outer.rank > 0;
  walk_begin(w, &outer, operand, n);
  for (uint32_t k = 0; k < n; k++) {
    step[k] = dims->rank ? all.stride[k][dims->rank - 1] : 0;
  }
  return dims->rank ? dims->dim[dims->rank - 1].size : 1;
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

/* Ints in two's complement: sums and products wrap, division rounds down, by 0 it gives 0. */
static int64_t int_scalar(OpCode c, int64_t a, int64_t b) {
  switch (c) {
  case OP_NEG: return (int64_t)(0 - (uint64_t)a);
  case OP_ABS: return a < 0 ? (int64_t)(0 - (uint64_t)a) : a;
  case OP_SIGN: return (a > 0) - (a < 0);
  case OP_ADD: return (int64_t)((uint64_t)a + (uint64_t)b);
  case OP_SUB: return (int64_t)((uint64_t)a - (uint64_t)b);
  case OP_MUL: return (int64_t)((uint64_t)a * (uint64_t)b);
  case OP_FLOORDIV:
    return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b - (a % b != 0 && (a < 0) != (b < 0));
  case OP_MOD: return b == 0 || b == -1 ? 0 : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
  case OP_MAX: return a >= b ? a : b;
  case OP_MIN: return a <= b ? a : b;
  default: return a; /* stop */
  }
}

static double modulo(double a, double b) {
  double r = fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double interp_scalar(OpCode c, double a, double b, DType d) {
  OpClass cls = ir_op_info[c].cls;
  if (!dtype_is_float(d) && d != DT_BOOL && (cls == CLASS_UNARY || cls == CLASS_BINARY)) {
    return wrap(d, int_scalar(c, interp_int(a), interp_int(b)));
  }
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
  case OP_FLOORDIV: return floor(a / b);
  case OP_MOD: return modulo(a, b);
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

static double round_bool(DType d, double v) {
  return d == DT_BOOL ? v != 0 : v;
}

bool interp_pointwise(Interp *x, const Op *op) {
  Tensor *out = &x->val[op->result];
  *out = tensor_new(x, x->f->val[op->result].type);
  const Type *types[3];
  int64_t step[3] = {0};
  for (uint32_t i = 0; i < op->n_args; i++) {
    types[i] = &x->val[op->arg[i]].type;
  }
  Walk w;
  int64_t size = rows_begin(&w, &out->type, types, op->n_args, step);
  DType from = types[0]->dtype, to = out->type.dtype;
  double *y = out->data;
  do {
    const double *in[3] = {NULL};
    for (uint32_t k = 0; k < op->n_args; k++) {
      in[k] = x->val[op->arg[k]].data + w.offset[k];
    }
    const double *second = in[1] ? in[1] : in[0];
    for (int64_t i = 0; i < size; i++) {
      double a = in[0][i * step[0]];
      if (op->code == OP_SELECT) {
        *y++ = a != 0 ? in[1][i * step[1]] : in[2][i * step[2]];
      } else if (op->code == OP_CAST) {
        *y++ =
            dtype_is_float(from) && !dtype_is_float(to) && to != DT_BOOL ? to_int(to, a) : round_bool(to, a);
      } else {
        *y++ = round_bool(to, interp_scalar(op->code, a, second[i * step[1]], from));
      }
    }
  } while (walk_next(&w));
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

bool interp_step(Interp *x, const Op *op) {
  if (!interp_op(x, op)) {
    return error_set(x->err, ERR_RUN, "interpreter: %s failed", ir_op_info[op->code].text);
  }
  /* Results of loops and regions were rounded inside, and may be the caller's own tensors. */
  for (uint32_t k = 0; k < op->n_results && ir_op_info[op->code].cls != CLASS_STRUCT; k++) {
    tensor_round(x, &x->val[op->result + k]);
  }
  return true;
}

bool interp_block(Interp *x, const Block *b, const Tensor *param) {
  const Block *outer = x->block;
  x->block = b;
  for (uint32_t i = 0; i < b->n_params; i++) {
    x->val[b->param[i]] = param[i];
  }
  bool ok = true;
  for (uint32_t i = 0; ok && i < b->n_ops; i++) {
    ok = interp_step(x, &x->f->op[b->op[i]]);
  }
  x->block = outer;
  return ok;
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
