/* vjp_reduce.c: rules of reductions, contractions, composites, and of the ops that have to be gone before
 * autodiff. */
#include "passes/internal.h"

/* ad_add broadcasts the missing axes. */
void vjp_SUM(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), *dy);
}

/* True at the first element of each row that equals the row's result y: the smallest row-major index among
 * those that do. */
static Val first_of(Ad *a, Val x, Val y, const Axis *axis, uint32_t n) {
  Builder *b = &a->b;
  if (x == NONE || y == NONE)
    return NONE;
  const Type t = *ir_type(b->f, x);
  Val index = NONE;
  int64_t count = 1;
  for (uint32_t i = 0; i < n; i++) {
    int64_t size = t.dim[type_find(&t, axis[i])].size;
    Val part = ir_iota(b, axis[i], size);
    count *= size;
    if (index == NONE)
      index = part;
    else
      index = ir_binary(b, OP_ADD, ir_binary(b, OP_MUL, index, ir_const(b, DT_I32, (double)size)), part);
  }
  Val equal = ir_binary(b, OP_EQ, x, y);
  Val candidate = ir_select(b, equal, index, ir_const(b, DT_I32, (double)count));
  return ir_binary(b, OP_EQ, index, ir_reduce(b, OP_REDUCE_MIN, candidate, axis, n));
}

static void vjp_extremum(Ad *a, OpId id, Val dy) {
  Op op = a->b.f->op[id];
  Val first;
  if (op.attr.n_axis == 1) {
    Val x = ad_x(a, id, 0);
    Axis axis = op.attr.axis[0];
    const Type *t = ir_type(a->b.f, op.arg[0]);
    int64_t size = t->dim[type_find(t, axis)].size;
    if (op.code == OP_REDUCE_MIN)
      x = ir_unary(&a->b, OP_NEG, x);
    first = ir_binary(&a->b, OP_EQ, ir_iota(&a->b, axis, size), ir_reduce(&a->b, OP_ARGMAX, x, &axis, 1));
  } else {
    first = first_of(a, ad_x(a, id, 0), ad_y(a, id), op.attr.axis, op.attr.n_axis);
  }
  ad_add(a, op.arg[0], ir_select(&a->b, first, dy, ad_const(a, dy, 0)));
}

void vjp_REDUCE_MAX(Ad *a, OpId id, const Val *dy) {
  vjp_extremum(a, id, *dy);
}

void vjp_REDUCE_MIN(Ad *a, OpId id, const Val *dy) {
  vjp_extremum(a, id, *dy);
}

/* The product of the others: all / x without zeros in the row; with one zero only that element has a
 * gradient; with more, none. */
void vjp_PROD(Ad *a, OpId id, const Val *dy) {
  Builder *b = &a->b;
  Op op = b->f->op[id];
  Val x = ad_x(a, id, 0), zero = ad_const(a, x, 0), one = ad_const(a, x, 1);
  Val is_zero = ir_binary(b, OP_EQ, x, zero);
  Val zeros = ir_reduce(b, OP_SUM, ir_select(b, is_zero, one, zero), op.attr.axis, op.attr.n_axis);
  Val safe = ir_select(b, is_zero, one, x);
  Val rest = ir_reduce(b, OP_PROD, safe, op.attr.axis, op.attr.n_axis);
  Val alone = ir_select(b, ir_binary(b, OP_AND, is_zero, ir_binary(b, OP_EQ, zeros, one)), rest, zero);
  Val slope = ir_select(b, ir_binary(b, OP_EQ, zeros, zero), ir_binary(b, OP_DIV, rest, safe), alone);
  ad_add(a, op.arg[0], ir_binary(b, OP_MUL, *dy, slope));
}

void vjp_CUMSUM(Ad *a, OpId id, const Val *dy) {
  Attr attr = a->b.f->op[id].attr;
  int64_t from_end = attr.n_num == 0 || !attr.num[0];
  attr.num = &from_end;
  attr.n_num = 1;
  ad_add(a, ad_arg(a, id, 0), ir_op(&a->b, OP_CUMSUM, dy, 1, &attr, NULL));
}

/* ---- contractions ---- */

void vjp_CONTRACT(Ad *a, OpId id, const Val *dy) {
  for (uint32_t i = 0; i < 2; i++) {
    Val of = ad_arg(a, id, i);
    if (!ad_wants(a, of))
      continue;
    const Type t = *ir_type(a->b.f, of);
    ad_add(a, of, contract_onto(&a->b, *dy, ad_x(a, id, 1 - i), &t));
  }
}

/* ---- composites ---- */

void vjp_SOFTMAX(Ad *a, OpId id, const Val *dy) {
  Builder *b = &a->b;
  Op op = b->f->op[id];
  Val y = ad_y(a, id);
  Val mean = ir_reduce(b, OP_SUM, ir_binary(b, OP_MUL, *dy, y), op.attr.axis, op.attr.n_axis);
  ad_add(a, op.arg[0], ir_binary(b, OP_MUL, y, ir_binary(b, OP_SUB, *dy, mean)));
}

/* o and lse are saved, probabilities are not. lse is for the backward alone: outline makes no use of it. */
void vjp_ATTENTION(Ad *a, OpId id, const Val *dy) {
  Op op = a->b.f->op[id];
  if (dy[0] == NONE || dy[1] != NONE) {
    error_set(a->b.err, ERR_INPUT, "the log-sum-exp of an attention has no gradient");
    return;
  }
  Val *args = ARENA_ARRAY(&a->b.f->module->arena, Val, op.n_args + 3);
  for (uint32_t i = 0; i < 3; i++)
    args[i] = ad_primal(a, op.arg[i]);
  args[3] = ad_primal(a, op.result);
  args[4] = ad_primal(a, op.result + 1);
  args[5] = dy[0];
  for (uint32_t i = 3; i < op.n_args; i++)
    args[i + 3] = ad_primal(a, op.arg[i]);
  Block *body = ir_clone_block(a->b.f, a->b.f, op.body);
  Val r = ir_op(&a->b, OP_ATTENTION_GRAD, args, op.n_args + 3, &op.attr, body);
  for (uint32_t i = 0; i < 3 && r != NONE; i++)
    ad_add(a, op.arg[i], r + i);
}

void vjp_LINEAR_XENT(Ad *a, OpId id, const Val *dy) {
  Op op = a->b.f->op[id];
  Val args[4] = {ad_primal(a, op.arg[0]), ad_primal(a, op.arg[1]), ad_primal(a, op.arg[2]), *dy};
  Val r = ir_op(&a->b, OP_LINEAR_XENT_GRAD, args, 4, &op.attr, NULL);
  for (uint32_t i = 0; i < 2 && r != NONE; i++)
    ad_add(a, op.arg[i], r + 1 + i);
}

/* ---- gone before autodiff ---- */

static void refuse(Ad *a, OpId id) {
  error_set(a->b.err, ERR_INPUT, "%s has to be expanded before it is differentiated",
            ir_op_info[a->b.f->op[id].code].text);
}

void vjp_ATTENTION_GRAD(Ad *a, OpId id, const Val *dy) {
  (void)dy;
  refuse(a, id);
}

void vjp_LINEAR_XENT_GRAD(Ad *a, OpId id, const Val *dy) {
  (void)dy;
  refuse(a, id);
}

void vjp_GRAD(Ad *a, OpId id, const Val *dy) {
  (void)dy;
  refuse(a, id);
}

void vjp_REGION(Ad *a, OpId id, const Val *dy) {
  (void)dy;
  refuse(a, id);
}
