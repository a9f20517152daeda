/* fuse.c: every op that computes goes into a region, one kernel each; views and loops stay outside.
 *
 *   expand   composites that no kernel computes whole become primitives
 *   group    which ops share a region (fuse_group.c)
 *   remat    what kernels compute again instead of reading it (fuse_remat.c)
 *   emit     the block anew (fuse_emit.c)
 *   results  copies where a value needs memory of its own (fuse_result.c) */
#include "passes/fuse.h"

#include <string.h>

/* Composites without a kernel of their own. */
static bool expands(OpCode c) {
  return c == OP_LINEAR_XENT || c == OP_LINEAR_XENT_GRAD;
}

static void expand_block(Func *f, Block *b, Error *err) {
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  Builder e = {.f = f, .b = b, .err = err};
  for (uint32_t i = 0; i < n && err->cls == ERR_NONE; i++) {
    Op *op = &f->op[ops[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      op->arg[k] = val_renew(f, op->arg[k]);
    if (op->code == OP_LOOP)
      expand_block(f, op->body, err);
    if (!expands(f->op[ops[i]].code)) {
      block_push(f, b, ops[i]);
      continue;
    }
    Val out[3];
    expand_composite(&e, ops[i], out);
    for (uint32_t k = 0; k < f->op[ops[i]].n_results && err->cls == ERR_NONE; k++)
      f->val[f->op[ops[i]].result + k] =
          f->val[out[k]]; /* renewing turns every mention of the result into out */
  }
  block_renew(f, b);
}

static void fuse_block(Func *f, Block *b, Error *err);

static void fuse_loops(Func *f, Block *b, Error *err) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    OpId id = b->op[i];
    if (f->op[id].code != OP_LOOP)
      continue;
    fuse_block(f, f->op[id].body, err);
    fuse_stacked(f, b, id, err);
  }
}

static void fuse_block(Func *f, Block *b, Error *err) {
  fuse_copies_before(f, b, err);
  fuse_loops(f, b, err);
  Fuse x = {.f = f, .b = b, .err = err};
  OpId *ops;
  x.n = block_take(b, &ops);
  x.op = ops;
  x.pos = ARENA_ARRAY(&x.mem, uint32_t, f->n_vals);
  memset(x.pos, 0xff, f->n_vals * sizeof *x.pos);
  for (uint32_t p = 0; p < x.n; p++)
    for (uint32_t k = 0; k < f->op[ops[p]].n_results; k++)
      x.pos[f->op[ops[p]].result + k] = p;
  fuse_group(&x);
  fuse_remat(&x);
  fuse_emit(&x);
  arena_free(&x.mem);
}

bool pass_fuse(Func *f, Error *err) {
  expand_block(f, f->body, err);
  if (err->cls != ERR_NONE || !simplify(f, true, err))
    return false;
  fuse_block(f, f->body, err);
  if (err->cls == ERR_NONE)
    fuse_results(f, err);
  if (err->cls != ERR_NONE)
    return false;
  prune(f, f->body);
  return true;
}
