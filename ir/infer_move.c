/* infer_move.c: result types of movement and reductions. */
#include "ir/infer.h"

/* ---- movement ---- */

bool rule_broadcast(Infer *x) {
  if (!infer_need_attr(x, 0, x->attr->n_axis)) {
    return false;
  }
  x->out[0] = type_scalar(x->arg[0].dtype);
  if (!infer_push_dims(x, &x->out[0], x->attr->axis, x->attr->num, x->attr->n_axis)) {
    return false;
  }
  for (int i = 0; i < x->arg[0].rank; i++) {
    Dim d = x->arg[0].dim[i];
    int k = type_find(&x->out[0], d.axis);
    if (k < 0 || x->out[0].dim[k].size != d.size) {
      return error_set(x->err, ERR_INPUT, "broadcast: axis '%s' of size %lld is not in the result",
                       infer_axis(x, d.axis), (long long)d.size);
    }
  }
  return true;
}

bool rule_rename(Infer *x) {
  const Attr *a = x->attr;
  Type t = x->arg[0];
  if (a->n_axis % 2) {
    return error_set(x->err, ERR_INPUT, "rename: an axis without a new name");
  }
  for (uint32_t i = 0; i + 1 < a->n_axis; i += 2) {
    if (!infer_need_axis(x, &x->arg[0], a->axis[i])) {
      return false;
    }
    t.dim[type_find(&x->arg[0], a->axis[i])].axis = a->axis[i + 1];
  }
  for (int i = 0; i < t.rank; i++) {
    for (int k = 0; k < i; k++) {
      if (t.dim[i].axis == t.dim[k].axis) {
        return error_set(x->err, ERR_INPUT, "rename: the result would have the axis '%s' twice",
                         infer_axis(x, t.dim[i].axis));
      }
    }
  }
  x->out[0] = t;
  return true;
}

/* Replaces dim `at` of t by n dims. */
static bool replace_dim(Infer *x, const Type *t, int at, const Axis *a, const int64_t *size, uint32_t n,
                        Type *out) {
  Type r = type_scalar(t->dtype);
  for (int i = 0; i < t->rank; i++) {
    bool ok = i == at ? infer_push_dims(x, &r, a, size, n)
                      : infer_push_dims(x, &r, &t->dim[i].axis, &t->dim[i].size, 1);
    if (!ok) {
      return false;
    }
  }
  *out = r;
  return true;
}

bool rule_split(Infer *x) {
  const Attr *a = x->attr;
  if (!infer_need_attr(x, 2, a->n_axis - 1) || !infer_need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  int64_t n = 1;
  for (uint32_t i = 0; i + 1 < a->n_axis; i++) {
    if (!size_mul(n, a->num[i], &n)) {
      n = -1;
    }
  }
  if (n != x->arg[0].dim[at].size) {
    return error_set(x->err, ERR_INPUT, "split: axis '%s' has size %lld, the parts make %lld",
                     infer_axis(x, a->axis[0]), (long long)x->arg[0].dim[at].size, (long long)n);
  }
  return replace_dim(x, &x->arg[0], at, a->axis + 1, a->num, a->n_axis - 1, &x->out[0]);
}

bool rule_merge(Infer *x) {
  const Attr *a = x->attr;
  if (!infer_need_attr(x, 2, 0) || !infer_distinct(x, a->axis, a->n_axis - 1)) {
    return false;
  }
  int64_t size = 1;
  for (uint32_t i = 0; i + 1 < a->n_axis; i++) {
    if (!infer_need_axis(x, &x->arg[0], a->axis[i])) {
      return false;
    }
    if (!size_mul(size, x->arg[0].dim[type_find(&x->arg[0], a->axis[i])].size, &size)) {
      return error_set(x->err, ERR_INPUT, "merge: the size of '%s' overflows",
                       infer_axis(x, a->axis[a->n_axis - 1]));
    }
  }
  Type t = type_scalar(x->arg[0].dtype);
  for (int i = 0; i < x->arg[0].rank; i++) {
    Dim d = x->arg[0].dim[i];
    bool merged = false;
    for (uint32_t k = 0; k + 1 < a->n_axis; k++) {
      merged |= d.axis == a->axis[k];
    }
    if (d.axis == a->axis[0]) {
      d = (Dim){a->axis[a->n_axis - 1], size};
    } else if (merged) {
      continue;
    }
    if (!infer_push_dims(x, &t, &d.axis, &d.size, 1)) {
      return false;
    }
  }
  x->out[0] = t;
  return true;
}

bool rule_reorder(Infer *x) {
  Type t = type_scalar(x->arg[0].dtype);
  for (uint32_t i = 0; i < x->attr->n_axis; i++) {
    if (!infer_need_axis(x, &x->arg[0], x->attr->axis[i])) {
      return false;
    }
    Dim d = x->arg[0].dim[type_find(&x->arg[0], x->attr->axis[i])];
    if (!infer_push_dims(x, &t, &d.axis, &d.size, 1)) {
      return false;
    }
  }
  x->out[0] = t;
  return t.rank == x->arg[0].rank || error_set(x->err, ERR_INPUT, "reorder: an axis is missing");
}

bool rule_slice(Infer *x) {
  const Attr *a = x->attr;
  if (!infer_need_attr(x, 1, 2) || !infer_need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  int64_t size = x->arg[0].dim[at].size;
  if (a->num[0] < 0 || a->num[1] > size || a->num[0] >= a->num[1]) {
    return error_set(x->err, ERR_INPUT, "slice: %lld..%lld is outside axis '%s' of size %lld, or empty",
                     (long long)a->num[0], (long long)a->num[1], infer_axis(x, a->axis[0]), (long long)size);
  }
  x->out[0] = x->arg[0];
  x->out[0].dim[at].size = a->num[1] - a->num[0];
  return true;
}

bool rule_pad(Infer *x) {
  const Attr *a = x->attr;
  if (!infer_need_attr(x, 2, 2) || !infer_need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  int64_t size;
  if (!size_add(x->arg[0].dim[at].size, a->num[0], &size) || !size_add(size, a->num[1], &size)) {
    return error_set(x->err, ERR_INPUT, "pad: the widths of '%s' are negative or overflow",
                     infer_axis(x, a->axis[0]));
  }
  return replace_dim(x, &x->arg[0], at, a->axis + 1, &size, 1, &x->out[0]);
}

bool rule_concat(Infer *x) {
  const Attr *a = x->attr;
  if (x->n < 1 || !infer_need_attr(x, x->n + 1, 0)) {
    return error_set(x->err, ERR_INPUT, "concat: needs operands and an axis for each");
  }
  int64_t size = 0;
  Type rest = {0};
  for (uint32_t i = 0; i < x->n; i++) {
    if (!infer_need_axis(x, &x->arg[i], a->axis[i + 1]) || !infer_same_dtype(x, &x->arg[0], &x->arg[i])) {
      return false;
    }
    Type other = type_without(&x->arg[i], &a->axis[i + 1], 1);
    if (i && !type_same_dims(&rest, &other)) {
      return infer_fail_type(x, &x->arg[i], "all operands must agree in their other axes; this one does not");
    }
    rest = i ? rest : other;
    if (!size_add(size, x->arg[i].dim[type_find(&x->arg[i], a->axis[i + 1])].size, &size)) {
      return error_set(x->err, ERR_INPUT, "concat: the size of '%s' overflows", infer_axis(x, a->axis[0]));
    }
  }
  return replace_dim(x, &x->arg[0], type_find(&x->arg[0], a->axis[1]), a->axis, &size, 1, &x->out[0]);
}

/* ---- reductions ---- */

bool rule_reduce(Infer *x) {
  const Attr *a = x->attr;
  if (!infer_distinct(x, a->axis, a->n_axis) || (x->code == OP_ARGMAX && !infer_need_attr(x, 1, 0))) {
    return false;
  }
  for (uint32_t i = 0; i < a->n_axis; i++) {
    if (!infer_need_axis(x, &x->arg[0], a->axis[i])) {
      return false;
    }
  }
  if (x->code == OP_ARGMAX && a->n_axis != 1) {
    return error_set(x->err, ERR_INPUT, "argmax: over one axis at a time; merge them first");
  }
  if ((x->code == OP_SUM || x->code == OP_PROD) && x->arg[0].dtype == DT_BOOL) {
    return infer_fail_type(x, &x->arg[0], "needs numbers");
  }
  x->out[0] = type_without(&x->arg[0], a->axis, a->n_axis);
  if (x->code == OP_ARGMAX) {
    x->out[0].dtype = DT_I32;
  }
  return true;
}

bool rule_cumsum(Infer *x) {
  if (!infer_need_attr(x, 1, 1) || !infer_need_axis(x, &x->arg[0], x->attr->axis[0])) {
    return false;
  }
  x->out[0] = x->arg[0];
  return true;
}

bool rule_sort(Infer *x) {
  const Attr *a = x->attr;
  if (!infer_need_attr(x, 2, 2) || !infer_need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  if (a->num[0] < 1 || a->num[0] > x->arg[0].dim[at].size) {
    return error_set(x->err, ERR_INPUT, "sort: '%s' of size %lld is longer than '%s' of size %lld",
                     infer_axis(x, a->axis[1]), (long long)a->num[0], infer_axis(x, a->axis[0]),
                     (long long)x->arg[0].dim[at].size);
  }
  if (!replace_dim(x, &x->arg[0], at, a->axis + 1, a->num, 1, &x->out[0])) {
    return false;
  }
  x->out[1] = x->out[0];
  x->out[1].dtype = DT_I32;
  return true;
}
