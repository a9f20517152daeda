/* expand_grad.c: the op `grad` of user programs becomes the ops of the gradient, by the machinery of
 * autodiff.c, at the place where it stands. In program order, so that a gradient inside a gradient is
 * expanded before it is differentiated. */
#include "passes/internal.h"

static bool expand_block(Func *f, Block *b, Error *err);

static bool expand_one(Func *f, Block *b, OpId id, Error *err) {
  Op op = f->op[id];
  Val g = NONE;
  if (!ad_pull(f, b, op.arg[0], NONE, &op.arg[1], 1, &g, err))
    return false;
  Builder e = {.f = f, .b = b, .loc = op.loc, .err = err};
  Type t = *ir_type(f, op.result);
  g = g == NONE ? build_zeros(&e, &t) : ir_reorder(&e, g, &t);
  if (g == NONE)
    return false;
  f->val[op.result] = f->val[g]; /* renewing turns every mention of the result into g */
  return true;
}

static bool expand_block(Func *f, Block *b, Error *err) {
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  for (uint32_t i = 0; i < n; i++) {
    Op *op = &f->op[ops[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      op->arg[k] = val_renew(f, op->arg[k]);
    if (op->body && !expand_block(f, op->body, err))
      return false;
    if (f->op[ops[i]].code != OP_GRAD)
      block_push(f, b, ops[i]);
    else if (!expand_one(f, b, ops[i], err))
      return false;
  }
  block_renew(f, b);
  return true;
}

bool pass_expand_grad(Func *f, Error *err) {
  if (!expand_block(f, f->body, err))
    return false;
  prune(f, f->body);
  return true;
}
