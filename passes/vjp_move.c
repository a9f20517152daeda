/* vjp_move.c: rules of movement and indexing: each is the transposed map. */
#include "passes/internal.h"

void vjp_BROADCAST(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), *dy);
}

void vjp_REORDER(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), *dy);
}

void vjp_RENAME(Ad *a, OpId id, const Val *dy) {
  const Attr *t = &a->b.f->op[id].attr;
  Axis from[IR_MAX_RANK], to[IR_MAX_RANK];
  uint32_t n = t->n_axis / 2;
  for (uint32_t i = 0; i < n; i++) {
    from[i] = t->axis[2 * i + 1];
    to[i] = t->axis[2 * i];
  }
  ad_add(a, ad_arg(a, id, 0), ir_rename(&a->b, *dy, from, to, n));
}

void vjp_SPLIT(Ad *a, OpId id, const Val *dy) {
  const Attr *t = &a->b.f->op[id].attr;
  Axis axis[IR_MAX_RANK + 1];
  uint32_t n = t->n_axis;
  for (uint32_t i = 1; i < n; i++)
    axis[i - 1] = t->axis[i];
  axis[n - 1] = t->axis[0];
  Attr back = {.axis = axis, .n_axis = n};
  ad_add(a, ad_arg(a, id, 0), ir_op(&a->b, OP_MERGE, dy, 1, &back, NULL));
}

void vjp_MERGE(Ad *a, OpId id, const Val *dy) {
  const Attr *t = &a->b.f->op[id].attr;
  const Type *x = ir_type(a->b.f, ad_arg(a, id, 0));
  Axis axis[IR_MAX_RANK + 1];
  int64_t size[IR_MAX_RANK];
  uint32_t n = t->n_axis;
  axis[0] = t->axis[n - 1];
  for (uint32_t i = 0; i + 1 < n; i++) {
    axis[i + 1] = t->axis[i];
    size[i] = x->dim[type_find(x, t->axis[i])].size;
  }
  Attr back = {.axis = axis, .n_axis = n, .num = size, .n_num = n - 1};
  ad_add(a, ad_arg(a, id, 0), ir_op(&a->b, OP_SPLIT, dy, 1, &back, NULL));
}

static Val slice(Ad *a, Val x, Axis axis, int64_t lo, int64_t hi) {
  Attr t = {.axis = &axis, .n_axis = 1, .num = (const int64_t[]){lo, hi}, .n_num = 2};
  return ir_op(&a->b, OP_SLICE, &x, 1, &t, NULL);
}

static int64_t size_of(const Ad *a, Val v, Axis axis) {
  const Type *t = ir_type(a->b.f, v);
  return t->dim[type_find(t, axis)].size;
}

void vjp_SLICE(Ad *a, OpId id, const Val *dy) {
  const Attr *t = &a->b.f->op[id].attr;
  Val x = ad_arg(a, id, 0);
  Axis axis[2] = {t->axis[0], t->axis[0]};
  int64_t num[2] = {t->num[0], size_of(a, x, axis[0]) - t->num[1]};
  Attr back = {.axis = axis, .n_axis = 2, .num = num, .n_num = 2};
  ad_add(a, x, ir_op(&a->b, OP_PAD, dy, 1, &back, NULL));
}

/* The part of dy along `axis` that came from [lo, hi) of an operand whose axis is `own`. */
static Val part(Ad *a, Val dy, Axis axis, Axis own, int64_t lo, int64_t hi) {
  Val g = slice(a, dy, axis, lo, hi);
  return own == axis ? g : ir_rename(&a->b, g, &axis, &own, 1);
}

void vjp_PAD(Ad *a, OpId id, const Val *dy) {
  const Attr *t = &a->b.f->op[id].attr;
  Axis own = t->axis[0], axis = t->axis[1];
  int64_t before = t->num[0];
  Val x = ad_arg(a, id, 0);
  ad_add(a, x, part(a, *dy, axis, own, before, before + size_of(a, x, own)));
}

void vjp_CONCAT(Ad *a, OpId id, const Val *dy) {
  const Attr *t = &a->b.f->op[id].attr;
  const Axis *axis = t->axis;
  uint32_t n = a->b.f->op[id].n_args;
  int64_t at = 0;
  for (uint32_t i = 0; i < n; i++) {
    Val x = ad_arg(a, id, i);
    int64_t size = size_of(a, x, axis[1 + i]);
    if (ad_wants(a, x))
      ad_add(a, x, part(a, *dy, axis[0], axis[1 + i], at, at + size));
    at += size;
  }
}

/* ---- indexing ---- */

/* Scatters g into a tensor of t's dims: axis[k] is written at index[k]. */
static Val scatter(Ad *a, Val g, const Val *index, const Axis *axis, uint32_t n, const Type *t) {
  Axis all[2 * IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  Val args[IR_MAX_RANK + 1] = {g};
  for (uint32_t i = 0; i < n; i++) {
    all[i] = axis[i];
    args[1 + i] = index[i];
  }
  for (uint32_t i = 0; i < t->rank; i++) {
    all[n + i] = t->dim[i].axis;
    size[i] = t->dim[i].size;
  }
  Attr attr = {.axis = all, .n_axis = n + t->rank, .num = size, .n_num = t->rank};
  return ir_op(&a->b, OP_SCATTER_ADD, args, n + 1, &attr, NULL);
}

void vjp_GATHER(Ad *a, OpId id, const Val *dy) {
  Op op = a->b.f->op[id];
  Val index[IR_MAX_RANK];
  if (!ad_wants(a, op.arg[0]))
    return;
  for (uint32_t i = 1; i < op.n_args; i++)
    index[i - 1] = ad_primal(a, op.arg[i]);
  Type t = *ir_type(a->b.f, op.arg[0]);
  Val g = window_transpose(&a->b, index, op.attr.axis, op.n_args - 1, &t, *dy);
  ad_add(a, op.arg[0], g != NONE ? g : scatter(a, *dy, index, op.attr.axis, op.n_args - 1, &t));
}

void vjp_SCATTER_ADD(Ad *a, OpId id, const Val *dy) {
  Op op = a->b.f->op[id];
  Val index[IR_MAX_RANK];
  for (uint32_t i = 1; i < op.n_args; i++)
    index[i - 1] = ad_primal(a, op.arg[i]);
  ad_add(a, op.arg[0], ir_gather(&a->b, *dy, op.attr.axis, index, op.n_args - 1));
}

/* The values are a permutation of (the first of) the operand's. */
void vjp_SORT(Ad *a, OpId id, const Val *dy) {
  Op op = a->b.f->op[id];
  Type t = *ir_type(a->b.f, op.arg[0]);
  Val index = ad_primal(a, op.result + 1);
  if (*dy != NONE)
    ad_add(a, op.arg[0], scatter(a, *dy, &index, op.attr.axis, 1, &t));
}
