/* vjp_pointwise.c: rules of the pointwise ops.
 *
 * Corners. An infinite or undefined local slope times a cotangent of exactly 0 counts as 0, so that a branch
 * that was not taken cannot poison a gradient: the slope or the divisor is replaced, not the product, and
 * only where the cotangent is 0 and the slope is not finite. Elsewhere the rule is the plain formula in the
 * cotangent, and so differentiates again to the right values. */
#include "passes/internal.h"

#include <math.h>

static Val neg(Ad *a, Val x) {
  return ir_unary(&a->b, OP_NEG, x);
}
static Val add(Ad *a, Val x, Val y) {
  return ir_binary(&a->b, OP_ADD, x, y);
}
static Val sub(Ad *a, Val x, Val y) {
  return ir_binary(&a->b, OP_SUB, x, y);
}
static Val mul(Ad *a, Val x, Val y) {
  return ir_binary(&a->b, OP_MUL, x, y);
}
static Val quot(Ad *a, Val x, Val y) {
  return ir_binary(&a->b, OP_DIV, x, y);
}
static Val scale(Ad *a, double c, Val x) {
  return mul(a, x, ad_const(a, x, c));
}

static Val is_zero(Ad *a, Val x) {
  return ir_binary(&a->b, OP_EQ, x, ad_const(a, x, 0));
}
static Val is_finite(Ad *a, Val x) {
  return ir_binary(&a->b, OP_LT, ir_unary(&a->b, OP_ABS, x), ad_const(a, x, INFINITY));
}

/* dy * slope, 0 where dy is 0 and the slope is not finite. */
static Val times(Ad *a, Val dy, Val slope) {
  Val keep = ir_binary(&a->b, OP_OR, is_finite(a, slope), ir_unary(&a->b, OP_NOT, is_zero(a, dy)));
  return mul(a, dy, ir_select(&a->b, keep, slope, ad_const(a, slope, 0)));
}

/* dy / d, 0 where both are 0. */
static Val over(Ad *a, Val dy, Val d) {
  double c;
  if (d != NONE && is_const(a->b.f, d, &c) && c != 0)
    return quot(a, dy, d);
  Val both = ir_binary(&a->b, OP_AND, is_zero(a, d), is_zero(a, dy));
  return quot(a, dy, ir_select(&a->b, both, ad_const(a, d, 1), d));
}

void vjp_NEG(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), neg(a, *dy));
}

void vjp_EXP(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), times(a, *dy, ad_y(a, id)));
}

void vjp_LOG(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), over(a, *dy, ad_x(a, id, 0)));
}

void vjp_LOG1P(Ad *a, OpId id, const Val *dy) {
  Val x = ad_x(a, id, 0);
  ad_add(a, ad_arg(a, id, 0), over(a, *dy, add(a, x, ad_const(a, x, 1))));
}

void vjp_SQRT(Ad *a, OpId id, const Val *dy) {
  Val y = ad_y(a, id);
  ad_add(a, ad_arg(a, id, 0), times(a, *dy, quot(a, ad_const(a, y, 0.5), y)));
}

void vjp_RSQRT(Ad *a, OpId id, const Val *dy) {
  Val y = ad_y(a, id);
  ad_add(a, ad_arg(a, id, 0), times(a, *dy, scale(a, -0.5, mul(a, mul(a, y, y), y))));
}

void vjp_TANH(Ad *a, OpId id, const Val *dy) {
  Val y = ad_y(a, id);
  ad_add(a, ad_arg(a, id, 0), mul(a, *dy, sub(a, ad_const(a, y, 1), mul(a, y, y))));
}

void vjp_SIGMOID(Ad *a, OpId id, const Val *dy) {
  Val y = ad_y(a, id);
  ad_add(a, ad_arg(a, id, 0), mul(a, *dy, mul(a, y, sub(a, ad_const(a, y, 1), y))));
}

void vjp_ERF(Ad *a, OpId id, const Val *dy) {
  Val x = ad_x(a, id, 0), bell = ir_unary(&a->b, OP_EXP, neg(a, mul(a, x, x)));
  ad_add(a, ad_arg(a, id, 0), mul(a, *dy, scale(a, 2 / sqrt(M_PI), bell)));
}

void vjp_SIN(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), mul(a, *dy, ir_unary(&a->b, OP_COS, ad_x(a, id, 0))));
}

void vjp_COS(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), neg(a, mul(a, *dy, ir_unary(&a->b, OP_SIN, ad_x(a, id, 0)))));
}

void vjp_ABS(Ad *a, OpId id, const Val *dy) {
  ad_add(a, ad_arg(a, id, 0), mul(a, *dy, ir_unary(&a->b, OP_SIGN, ad_x(a, id, 0))));
}

void vjp_CAST(Ad *a, OpId id, const Val *dy) {
  Val x = ad_arg(a, id, 0);
  if (ad_wants(a, x))
    ad_add(a, x, ir_cast(&a->b, *dy, ir_type(a->b.f, x)->dtype));
}

void vjp_ADD(Ad *a, OpId id, const Val *dy) {
  Val x = ad_arg(a, id, 0), y = ad_arg(a, id, 1);
  ad_add(a, x, *dy);
  ad_add(a, y, *dy);
}

void vjp_SUB(Ad *a, OpId id, const Val *dy) {
  Val x = ad_arg(a, id, 0), y = ad_arg(a, id, 1);
  ad_add(a, x, *dy);
  if (ad_wants(a, y))
    ad_add(a, y, neg(a, *dy));
}

void vjp_MUL(Ad *a, OpId id, const Val *dy) {
  Val x = ad_arg(a, id, 0), y = ad_arg(a, id, 1);
  if (x == y) {
    ad_add(a, x, mul(a, *dy, scale(a, 2, ad_primal(a, x))));
    return;
  }
  if (ad_wants(a, x))
    ad_add(a, x, mul(a, *dy, ad_primal(a, y)));
  if (ad_wants(a, y))
    ad_add(a, y, mul(a, *dy, ad_primal(a, x)));
}

/* By the divisor: -dy * q / y, where a quotient that is not finite needs the guard as well. */
void vjp_DIV(Ad *a, OpId id, const Val *dy) {
  Val x = ad_arg(a, id, 0), y = ad_arg(a, id, 1);
  Val by = ad_primal(a, y);
  if (ad_wants(a, x))
    ad_add(a, x, over(a, *dy, by));
  if (ad_wants(a, y)) {
    Val slope = quot(a, ad_y(a, id), by);
    ad_add(a, y, neg(a, times(a, *dy, slope)));
  }
}

/* x mod y = x - floor(x / y) * y. */
void vjp_MOD(Ad *a, OpId id, const Val *dy) {
  Val x = ad_arg(a, id, 0), y = ad_arg(a, id, 1);
  ad_add(a, x, *dy);
  if (ad_wants(a, y)) {
    Val turns = ir_binary(&a->b, OP_FLOORDIV, ad_primal(a, x), ad_primal(a, y));
    ad_add(a, y, neg(a, times(a, *dy, turns)));
  }
}

/* By the base: e * x ^ (e - 1), plain for whole e >= 1 where it is finite everywhere. */
static void pow_base(Ad *a, OpId id, Val dy) {
  Val x = ad_x(a, id, 0), e = ad_x(a, id, 1);
  double c;
  if (is_const(a->b.f, ad_arg(a, id, 1), &c)) {
    if (c == 0)
      return;
    Val slope = scale(a, c, ir_binary(&a->b, OP_POW, x, ad_const(a, x, c - 1)));
    ad_add(a, ad_arg(a, id, 0), c >= 1 && c == floor(c) ? mul(a, dy, slope) : times(a, dy, slope));
    return;
  }
  Val slope = mul(a, e, ir_binary(&a->b, OP_POW, x, sub(a, e, ad_const(a, e, 1))));
  slope = ir_select(&a->b, is_zero(a, e), ad_const(a, e, 0), slope);
  ad_add(a, ad_arg(a, id, 0), times(a, dy, slope));
}

/* By the exponent: y * log x; 0 for x <= 0, where x ^ e is constant or undefined as a function of e. */
static void pow_exponent(Ad *a, OpId id, Val dy) {
  Val x = ad_x(a, id, 0);
  Val positive = ir_binary(&a->b, OP_LT, ad_const(a, x, 0), x);
  Val log_x = ir_unary(&a->b, OP_LOG, ir_select(&a->b, positive, x, ad_const(a, x, 1)));
  ad_add(a, ad_arg(a, id, 1), times(a, dy, mul(a, ad_y(a, id), log_x)));
}

void vjp_POW(Ad *a, OpId id, const Val *dy) {
  if (ad_wants(a, ad_arg(a, id, 0)))
    pow_base(a, id, *dy);
  if (ad_wants(a, ad_arg(a, id, 1)))
    pow_exponent(a, id, *dy);
}

/* The whole cotangent goes to the winner, to the first operand on a tie. */
static void pick(Ad *a, OpId id, Val first_wins, Val dy) {
  Val x = ad_arg(a, id, 0), y = ad_arg(a, id, 1), zero = ad_const(a, dy, 0);
  if (ad_wants(a, x))
    ad_add(a, x, ir_select(&a->b, first_wins, dy, zero));
  if (ad_wants(a, y))
    ad_add(a, y, ir_select(&a->b, first_wins, zero, dy));
}

void vjp_MAX(Ad *a, OpId id, const Val *dy) {
  pick(a, id, ir_binary(&a->b, OP_LE, ad_x(a, id, 1), ad_x(a, id, 0)), *dy);
}

void vjp_MIN(Ad *a, OpId id, const Val *dy) {
  pick(a, id, ir_binary(&a->b, OP_LE, ad_x(a, id, 0), ad_x(a, id, 1)), *dy);
}

void vjp_SELECT(Ad *a, OpId id, const Val *dy) {
  Val c = ad_x(a, id, 0), x = ad_arg(a, id, 1), y = ad_arg(a, id, 2), zero = ad_const(a, *dy, 0);
  if (ad_wants(a, x))
    ad_add(a, x, ir_select(&a->b, c, *dy, zero));
  if (ad_wants(a, y))
    ad_add(a, y, ir_select(&a->b, c, zero, *dy));
}
