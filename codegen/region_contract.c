/* region_contract.c: contractions as matrix products: operands resolved to strides, dims grouped into batch,
 * M, N and K. */
#include "codegen/region.h"

#include <string.h>

/* ---- operands as strided views ---- */

static int view_find(const View *w, Axis a) {
  for (int i = 0; i < w->n; i++)
    if (w->dim[i].axis == a)
      return i;
  return -1;
}

static void view_rename(View *w, const Attr *a) {
  View old = *w;
  for (uint32_t k = 0; k + 1 < a->n_axis; k += 2)
    for (int i = 0; i < w->n; i++)
      if (old.dim[i].axis == a->axis[k])
        w->dim[i].axis = a->axis[k + 1];
}

static bool view_split(View *w, const Attr *a) {
  int p = view_find(w, a->axis[0]), parts = (int)a->n_axis - 1;
  if (p < 0 || w->n - 1 + parts > IR_MAX_RANK)
    return false;
  int64_t stride = w->stride[p];
  int tail = w->n - p - 1;
  memmove(&w->dim[p + parts], &w->dim[p + 1], (size_t)tail * sizeof *w->dim);
  memmove(&w->stride[p + parts], &w->stride[p + 1], (size_t)tail * sizeof *w->stride);
  for (int k = parts; k-- > 0;) {
    w->dim[p + k] = (Dim){a->axis[k + 1], a->num[k]};
    w->stride[p + k] = stride;
    stride *= a->num[k];
  }
  w->n += parts - 1;
  return true;
}

static bool view_merge(View *w, const Attr *a) {
  int64_t size = 1, stride = 0;
  for (uint32_t k = a->n_axis - 1; k-- > 0;) { /* innermost first */
    int p = view_find(w, a->axis[k]);
    if (p < 0 || (k + 2 < a->n_axis && w->stride[p] != stride * size))
      return false;
    stride = k + 2 < a->n_axis ? stride : w->stride[p];
    size *= w->dim[p].size;
  }
  int first = view_find(w, a->axis[0]);
  w->dim[first] = (Dim){a->axis[a->n_axis - 1], size};
  w->stride[first] = stride;
  for (uint32_t k = 1; k + 1 < a->n_axis; k++) {
    int p = view_find(w, a->axis[k]);
    memmove(&w->dim[p], &w->dim[p + 1], (size_t)(w->n - p - 1) * sizeof *w->dim);
    memmove(&w->stride[p], &w->stride[p + 1], (size_t)(w->n - p - 1) * sizeof *w->stride);
    w->n--;
  }
  return true;
}

bool contract_view(const Body *b, Val v, View *w) {
  const BodyOp *op = body_def(b, v);
  if (!op || op->code == OP_CONTRACT) {
    const Type *t = &b->val[v].type;
    *w = (View){.base = v, .n = t->rank};
    int64_t stride = 1;
    for (int i = t->rank; i-- > 0;) {
      w->dim[i] = t->dim[i];
      w->stride[i] = stride;
      stride *= t->dim[i].size;
    }
    return true;
  }
  if ((op->code != OP_RENAME && op->code != OP_SPLIT && op->code != OP_MERGE && op->code != OP_REORDER &&
       op->code != OP_SLICE) ||
      !contract_view(b, op->arg[0], w))
    return false;
  if (op->code == OP_RENAME) {
    view_rename(w, &op->attr);
  } else if (op->code == OP_SPLIT) {
    return view_split(w, &op->attr);
  } else if (op->code == OP_MERGE) {
    return view_merge(w, &op->attr);
  } else if (op->code == OP_SLICE) {
    int p = view_find(w, op->attr.axis[0]);
    w->offset += op->attr.num[0] * w->stride[p];
    w->dim[p].size = op->attr.num[1] - op->attr.num[0];
  }
  return true;
}

/* ---- groups ---- */

static bool in_axes(const Attr *a, Axis x) {
  for (uint32_t k = 0; k < a->n_axis; k++)
    if (a->axis[k] == x)
      return true;
  return false;
}

void contract_emit(Emit *e, RegionPlan *plan, const Nest *n) {
  (void)plan;
  (void)n;
  eval_fail(e, "contract");
}

bool contract_is_large(const Type *x, const Type *y, const Attr *attr) {
  double m = 1, n = 1, k = 1, batch = 1;
  for (int i = 0; i < x->rank; i++) {
    double size = (double)x->dim[i].size;
    if (in_axes(attr, x->dim[i].axis))
      k *= size;
    else if (type_has(y, x->dim[i].axis))
      batch *= size;
    else
      m *= size;
  }
  for (int i = 0; i < y->rank; i++)
    if (!type_has(x, y->dim[i].axis))
      n *= (double)y->dim[i].size;
  return dtype_is_float(x->dtype) && m > 1 && n > 1 && k > 1 && batch * m * n * k >= 1e99;
}
