/* vjp_window.c: the rule of a gather whose indices are affine in the axes: a window. Its transpose is a
 * window too: y[a, t] = x[r = c0 + c1 a + c2 t] gives dx[r] = sum over t of dy[a = (r - c0 - c2 t) / c1, t]
 * where that is whole. */
#include "passes/internal.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK], coef[IR_MAX_RANK], start;
  uint32_t n;
} Affine;

static bool add_term(Affine *a, Axis axis, int64_t size, int64_t coef) {
  for (uint32_t i = 0; i < a->n; i++)
    if (a->axis[i] == axis) {
      a->coef[i] += coef;
      return true;
    }
  if (a->n == IR_MAX_RANK)
    return false;
  a->axis[a->n] = axis;
  a->size[a->n] = size;
  a->coef[a->n++] = coef;
  return true;
}

static bool affine(const Func *f, Val v, int64_t scale, Affine *a) {
  const Op *op = def_op(f, v);
  double c;
  if (llabs(scale) > 1 << 20)
    return false;
  if (is_const(f, v, &c)) {
    if (fabs(c) > 0x1p30)
      return false;
    a->start += scale * (int64_t)c;
    return true;
  }
  if (!op || dtype_is_float(ir_type(f, v)->dtype))
    return false;
  switch (op->code) {
  case OP_IOTA: return add_term(a, op->attr.axis[0], op->attr.num[0], scale);
  case OP_BROADCAST: return affine(f, op->arg[0], scale, a);
  case OP_NEG: return affine(f, op->arg[0], -scale, a);
  case OP_ADD: return affine(f, op->arg[0], scale, a) && affine(f, op->arg[1], scale, a);
  case OP_SUB: return affine(f, op->arg[0], scale, a) && affine(f, op->arg[1], -scale, a);
  case OP_MUL:
    for (int i = 0; i < 2; i++)
      if (is_const(f, op->arg[i], &c) && fabs(c) < 1 << 20)
        return affine(f, op->arg[1 - i], scale * (int64_t)c, a);
    return false;
  default: return false;
  }
}

/* The term to solve for: the widest stride, then the largest size, of an axis that neither x nor another
 * index has. */
static int solved_term(const Affine *all, uint32_t n, uint32_t k, const Type *x, const Axis *indexed) {
  int best = -1;
  for (uint32_t i = 0; i < all[k].n; i++) {
    Axis axis = all[k].axis[i];
    bool taken = all[k].coef[i] == 0;
    for (uint32_t j = 0; j < n; j++)
      for (uint32_t t = 0; j != k && t < all[j].n; t++)
        taken |= all[j].axis[t] == axis;
    taken |= type_has(x, axis) && axis != indexed[k];
    if (taken)
      continue;
    int64_t stride = llabs(all[k].coef[i]), top = best < 0 ? 0 : llabs(all[k].coef[best]);
    if (stride > top || (stride == top && all[k].size[i] > all[k].size[best]))
      best = (int)i;
  }
  return best;
}

static Val whole(Builder *b, int64_t v) {
  return ir_const(b, DT_I32, (double)v);
}

/* Where along the solved axis the element at r of x was read; outside the axis where nowhere. */
static Val solve(Builder *b, const Affine *a, int term, Axis r, int64_t size) {
  Val n = ir_binary(b, OP_SUB, ir_iota(b, r, size), whole(b, a->start));
  for (uint32_t i = 0; i < a->n; i++)
    if ((int)i != term && a->coef[i] != 0)
      n = ir_binary(b, OP_SUB, n,
                    ir_binary(b, OP_MUL, ir_iota(b, a->axis[i], a->size[i]), whole(b, a->coef[i])));
  int64_t c = a->coef[term];
  if (c == 1)
    return n;
  if (c == -1)
    return ir_unary(b, OP_NEG, n);
  Val fits = ir_binary(b, OP_EQ, ir_binary(b, OP_MOD, n, whole(b, c)), whole(b, 0));
  return ir_select(b, fits, ir_binary(b, OP_FLOORDIV, n, whole(b, c)), whole(b, -1));
}

/* Emits the window form; NONE when the indices do not allow it. */
Val window_transpose(Builder *b, const Val *index, const Axis *axis, uint32_t n, const Type *x, Val dy) {
  Affine all[IR_MAX_RANK] = {0};
  int term[IR_MAX_RANK];
  Val at[IR_MAX_RANK];
  Axis from[IR_MAX_RANK];
  if (dy == NONE)
    return NONE;
  for (uint32_t k = 0; k < n; k++)
    if (ir_type(b->f, index[k])->dtype != DT_I32 || !affine(b->f, index[k], 1, &all[k]))
      return NONE;
  for (uint32_t k = 0; k < n; k++) {
    if ((term[k] = solved_term(all, n, k, x, axis)) < 0)
      return NONE;
    from[k] = all[k].axis[term[k]];
    /* the new axis may not meet one of the same name that stays */
    for (uint32_t j = 0; j < n; j++)
      for (uint32_t t = 0; t < all[j].n; t++)
        if (all[j].axis[t] == axis[k] && (j != k || all[j].axis[t] != from[k]))
          return NONE;
  }
  for (uint32_t k = 0; k < n; k++)
    at[k] = solve(b, &all[k], term[k], axis[k], x->dim[type_find(x, axis[k])].size);
  return ir_gather(b, dy, from, at, n);
}
