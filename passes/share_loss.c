/* share_loss.c: the backward of `linear_xent` computes the losses as well; where its cotangent does not
 * depend on them, the forward op is dropped and the logits are computed once. */
#include "passes/internal.h"

#include <string.h>

/* Whether v depends on the results of op `on`, both in one block; ops in order, dep by value. */
static bool depends(const Func *f, const OpId *ops, uint32_t from, uint32_t to, OpId on, Val v) {
  Arena scratch = {0};
  bool *dep = ARENA_ARRAY(&scratch, bool, f->n_vals);
  dep[f->op[on].result] = true;
  for (uint32_t i = from; i < to; i++) {
    const Op *op = &f->op[ops[i]];
    bool any = false;
    for (uint32_t k = 0; k < op->n_args; k++)
      any |= dep[op->arg[k]];
    for (uint32_t k = 0; any && k < op->n_results; k++)
      dep[op->result + k] = true;
  }
  bool r = dep[v];
  arena_free(&scratch);
  return r;
}

static void share_block(Func *f, Block *b);

/* Moves what the grad op needs before the first use of the losses: ops that do not depend on the forward op
 * go first. */
static void share_one(Func *f, Block *b, uint32_t fwd, uint32_t bwd) {
  OpId loss = b->op[fwd], grad = b->op[bwd];
  if (depends(f, b->op, fwd, bwd, loss, f->op[grad].arg[3]))
    return;
  Arena *arena = &f->module->arena;
  bool *dep = ARENA_ARRAY(arena, bool, f->n_vals);
  dep[f->op[loss].result] = true;
  OpId *ops;
  uint32_t n = block_take(b, &ops), n_late = 0;
  OpId *late = ARENA_ARRAY(arena, OpId, n);
  for (uint32_t i = 0; i < n; i++) {
    const Op *op = &f->op[ops[i]];
    bool waits = false;
    for (uint32_t k = 0; k < op->n_args; k++)
      waits |= dep[op->arg[k]];
    if (i <= fwd || i >= bwd || !waits) {
      if (i == bwd) {
        block_push(f, b, grad);
        for (uint32_t k = 0; k < n_late; k++)
          block_push(f, b, late[k]);
      } else if (i != fwd) {
        block_push(f, b, ops[i]);
      }
      continue;
    }
    for (uint32_t k = 0; k < op->n_results; k++)
      dep[op->result + k] = true;
    late[n_late++] = ops[i];
  }
  block_replace(f, b, f->op[loss].result, f->op[grad].result);
}

static bool same_loss(const Func *f, OpId loss, OpId grad) {
  const Op *a = &f->op[loss], *g = &f->op[grad];
  return g->code == OP_LINEAR_XENT_GRAD && memcmp(a->arg, g->arg, 3 * sizeof *a->arg) == 0 &&
         same_axes(a->attr.axis, a->attr.n_axis, g->attr.axis, g->attr.n_axis);
}

static void share_block(Func *f, Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    if (op->code == OP_LOOP)
      share_block(f, op->body);
    if (op->code != OP_LINEAR_XENT)
      continue;
    for (uint32_t k = i + 1; k < b->n_ops; k++)
      if (same_loss(f, b->op[i], b->op[k])) {
        uint32_t before = b->n_ops;
        share_one(f, b, i, k);
        i -= b->n_ops < before; /* another op stands here now */
        break;
      }
  }
}

bool pass_share_loss(Func *f, Error *err) {
  share_block(f, f->body);
  return err->cls == ERR_NONE;
}
