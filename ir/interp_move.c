/* interp_move.c: movement, reductions, sorting of the interpreter: each by its definition in ops.def. */
#include "ir/interp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- movement ---- */

/* Copies t into out point by point; `view` is t's type with the axis names of out. */
static void copy_renamed(const Tensor *t, Tensor *out, Type view, int64_t start) {
  const Type *types[1] = {&view};
  Walk w;
  int64_t step, size = rows_begin(&w, &out->type, types, 1, &step);
  double *y = out->data;
  do {
    const double *p = t->data + start + w.offset[0];
    for (int64_t i = 0; i < size; i++) {
      *y++ = p[i * step];
    }
  } while (walk_next(&w));
}

static int64_t stride_of(const Type *t, Axis a) {
  Type one = type_scalar(t->dtype);
  int64_t s;
  type_push(&one, a, 1);
  tensor_strides(t, &one, &s);
  return s;
}

/* Renames `from` to `to` in a copy of the type. */
static Type with_axis(Type t, Axis from, Axis to) {
  t.dim[type_find(&t, from)].axis = to;
  return t;
}

static void move_merge(const Tensor *t, const Op *op, Tensor *out) {
  const Attr *a = &op->attr;
  uint32_t parts = a->n_axis - 1;
  Walk w;
  const Type *types[1] = {&t->type};
  walk_begin(&w, &out->type, types, 1);
  int at = type_find(&out->type, a->axis[parts]);
  w.stride[0][at] = 0; /* the merged axis may be called like one of its parts */
  int64_t i = 0;
  do {
    int64_t rest = w.index[at], offset = 0;
    for (uint32_t k = parts; k-- > 0;) {
      int64_t size = t->type.dim[type_find(&t->type, a->axis[k])].size;
      offset += rest % size * stride_of(&t->type, a->axis[k]);
      rest /= size;
    }
    out->data[i++] = t->data[w.offset[0] + offset];
  } while (walk_next(&w));
}

static void move_split(const Tensor *t, const Op *op, Tensor *out) {
  const Attr *a = &op->attr;
  Walk w;
  const Type *types[1] = {&t->type};
  walk_begin(&w, &out->type, types, 1);
  for (uint32_t k = 1; k < a->n_axis; k++) {
    w.stride[0][type_find(&out->type, a->axis[k])] = 0;
  }
  int64_t along = stride_of(&t->type, a->axis[0]), i = 0;
  do {
    int64_t at = 0;
    for (uint32_t k = 1; k < a->n_axis; k++) {
      int d = type_find(&out->type, a->axis[k]);
      at = at * out->type.dim[d].size + w.index[d];
    }
    out->data[i++] = t->data[w.offset[0] + at * along];
  } while (walk_next(&w));
}

static void move_pad(const Tensor *t, const Op *op, Tensor *out) {
  const Attr *a = &op->attr;
  Type view = with_axis(t->type, a->axis[0], a->axis[1]);
  int at = type_find(&out->type, a->axis[1]);
  int64_t size = view.dim[type_find(&view, a->axis[1])].size, along = stride_of(&t->type, a->axis[0]), i = 0;
  const Type *types[1] = {&view};
  Walk w;
  walk_begin(&w, &out->type, types, 1);
  do {
    int64_t k = w.index[at] - a->num[0];
    out->data[i++] = k >= 0 && k < size ? t->data[w.offset[0] - a->num[0] * along] : 0;
  } while (walk_next(&w));
}

static void move_concat(Interp *x, const Op *op, Tensor *out) {
  const Attr *a = &op->attr;
  int64_t at = 0;
  for (uint32_t n = 0; n < op->n_args; n++) {
    const Tensor *t = &x->val[op->arg[n]];
    Type view = with_axis(t->type, a->axis[n + 1], a->axis[0]);
    const Type *types[2] = {&view, &out->type};
    Walk w;
    walk_begin(&w, &view, types, 2);
    int64_t along = stride_of(&out->type, a->axis[0]);
    do {
      out->data[w.offset[1] + at * along] = t->data[w.offset[0]];
    } while (walk_next(&w));
    at += view.dim[type_find(&view, a->axis[0])].size;
  }
}

bool interp_move(Interp *x, const Op *op) {
  const Tensor *t = &x->val[op->arg[0]];
  Tensor out = tensor_new(x, x->f->val[op->result].type);
  const Attr *a = &op->attr;
  Type view = t->type;
  switch (op->code) {
  case OP_RENAME: memcpy(out.data, t->data, (size_t)type_count(&t->type) * sizeof(double)); break;
  case OP_BROADCAST:
  case OP_REORDER: copy_renamed(t, &out, view, 0); break;
  case OP_SLICE: copy_renamed(t, &out, view, a->num[0] * stride_of(&t->type, a->axis[0])); break;
  case OP_SPLIT: move_split(t, op, &out); break;
  case OP_MERGE: move_merge(t, op, &out); break;
  case OP_PAD: move_pad(t, op, &out); break;
  case OP_CONCAT: move_concat(x, op, &out); break;
  default: return false;
  }
  x->val[op->result] = out;
  return true;
}

/* ---- reductions ---- */

/* The reduced part of t's type, in t's order. */
static Type reduced_part(const Type *t, const Axis *axis, uint32_t n) {
  Type kept = type_without(t, axis, n), r = type_scalar(t->dtype);
  for (int i = 0; i < t->rank; i++) {
    if (!type_has(&kept, t->dim[i].axis)) {
      type_push(&r, t->dim[i].axis, t->dim[i].size);
    }
  }
  return r;
}

static double reduce_row(OpCode c, const double *data, Walk inner) {
  double acc = c == OP_PROD ? 1 : 0;
  int64_t at = 0, best = 0;
  bool first = true;
  do {
    double v = data[inner.offset[0]];
    switch (c) {
    case OP_SUM: acc += v; break;
    case OP_PROD: acc *= v; break;
    case OP_REDUCE_MIN: acc = first || isnan(v) || v < acc ? (isnan(acc) && !first ? acc : v) : acc; break;
    default: /* REDUCE_MAX, ARGMAX: NaN counts as largest, the first of equals wins */
      if (first || (!isnan(acc) && (isnan(v) || v > acc))) {
        acc = v;
        best = at;
      }
      break;
    }
    first = false;
    at++;
  } while (walk_next(&inner));
  return c == OP_ARGMAX ? (double)best : acc;
}

static void reduce_all(const Tensor *t, const Op *op, Tensor *out) {
  Type part = reduced_part(&t->type, op->attr.axis, op->attr.n_axis);
  const Type *types[1] = {&t->type};
  Walk outer, inner;
  walk_begin(&outer, &out->type, types, 1);
  walk_begin(&inner, &part, types, 1);
  int64_t i = 0;
  do {
    out->data[i++] = reduce_row(op->code, t->data + outer.offset[0], inner);
  } while (walk_next(&outer));
}

static void cumsum_all(const Tensor *t, const Op *op, Tensor *out) {
  Axis axis = op->attr.axis[0];
  Type rows = type_without(&t->type, &axis, 1);
  int64_t n = t->type.dim[type_find(&t->type, axis)].size, along = stride_of(&t->type, axis);
  const Type *types[1] = {&t->type};
  Walk w;
  walk_begin(&w, &rows, types, 1);
  do {
    double acc = 0;
    for (int64_t k = 0; k < n; k++) {
      int64_t at = w.offset[0] + (op->attr.num[0] ? n - 1 - k : k) * along;
      acc += t->data[at];
      out->data[at] = acc;
    }
  } while (walk_next(&w));
}

typedef struct {
  double v;
  int64_t at;
} Keyed;

/* NaN counts as largest, as in argmax. */
static int by_value(const void *a, const void *b) {
  const Keyed *x = a, *y = b;
  int nan = (isnan(x->v) != 0) - (isnan(y->v) != 0), less = x->v < y->v ? -1 : x->v > y->v;
  return nan ? nan : less ? less : x->at < y->at ? -1 : 1;
}

static int by_value_down(const void *a, const void *b) {
  const Keyed *x = a, *y = b;
  int up = by_value(a, b);
  return x->v == y->v || (isnan(x->v) && isnan(y->v)) ? up : -up;
}

static void sort_all(Interp *x, const Tensor *t, const Op *op) {
  const Attr *a = &op->attr;
  Tensor v = tensor_new(x, x->f->val[op->result].type), index = tensor_new(x, x->f->val[op->result + 1].type);
  Type rows = type_without(&t->type, a->axis, 1);
  int64_t n = t->type.dim[type_find(&t->type, a->axis[0])].size, from = stride_of(&t->type, a->axis[0]),
          to = stride_of(&v.type, a->axis[1]);
  Keyed *key = arena_alloc_array(x->arena, (size_t)n, sizeof *key);
  const Type *types[2] = {&t->type, &v.type};
  Walk w;
  walk_begin(&w, &rows, types, 2);
  do {
    for (int64_t k = 0; k < n; k++) {
      key[k] = (Keyed){t->data[w.offset[0] + k * from], k};
    }
    qsort(key, (size_t)n, sizeof *key, a->num[1] ? by_value_down : by_value);
    for (int64_t k = 0; k < a->num[0]; k++) {
      v.data[w.offset[1] + k * to] = key[k].v;
      index.data[w.offset[1] + k * to] = (double)key[k].at;
    }
  } while (walk_next(&w));
  x->val[op->result] = v;
  x->val[op->result + 1] = index;
}

bool interp_reduce(Interp *x, const Op *op) {
  const Tensor *t = &x->val[op->arg[0]];
  if (op->code == OP_SORT) {
    sort_all(x, t, op);
    return true;
  }
  Tensor out = tensor_new(x, x->f->val[op->result].type);
  (op->code == OP_CUMSUM ? cumsum_all : reduce_all)(t, op, &out);
  x->val[op->result] = out;
  return true;
}
