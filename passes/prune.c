/* prune.c: dead code, loops included: carried values, stacked results, slices and invariants that nothing
 * needs. */
#include "passes/internal.h"

#include <string.h>

static void mark_args(const Op *op, bool *live) {
  for (uint32_t k = 0; k < op->n_args; k++)
    live[op->arg[k]] = true;
}

static bool any_live(const Op *op, const bool *live) {
  for (uint32_t k = 0; k < op->n_results; k++)
    if (live[op->result + k])
      return true;
  return false;
}

static void mark_block(const Func *f, const Block *b, bool *live);

/* Which of the body's values are needed, given which results are; then the operands. */
static void mark_loop(const Func *f, OpId id, bool *live) {
  const Op *op = &f->op[id];
  const Block *body = op->body;
  LoopShape s = loop_shape(f, id);
  for (uint32_t i = 0; i < op->n_results; i++)
    if (live[op->result + i])
      live[body->ret[i]] = true;
  for (bool changed = true; changed;) {
    changed = false;
    mark_block(f, body, live);
    for (uint32_t i = 0; i < s.n_carry; i++)
      if (live[body->param[1 + i]] && !live[op->result + i]) {
        /* The result itself counts as needed: its slot stays. */
        changed = live[op->result + i] = live[body->ret[i]] = true;
      }
  }
  for (uint32_t i = 0; i < op->n_args; i++)
    if (live[body->param[1 + i]] || (i < s.n_carry && live[op->result + i]))
      live[op->arg[i]] = true;
}

static void mark_block(const Func *f, const Block *b, bool *live) {
  for (uint32_t i = b->n_ops; i-- > 0;) {
    const Op *op = &f->op[b->op[i]];
    if (!any_live(op, live))
      continue;
    if (op->code == OP_LOOP)
      mark_loop(f, b->op[i], live);
    else
      mark_args(op, live);
    if (op->body && op->code != OP_LOOP) {
      for (uint32_t k = 0; k < op->body->n_ret; k++)
        live[op->body->ret[k]] = true;
      mark_block(f, op->body, live);
    }
  }
}

/* Compacts the loop to what is live. Results get new consecutive values; the old ones keep pointing at them
 * (val_renew). */
static void shrink_loop(Func *f, OpId id, const bool *live) {
  Arena *arena = &f->module->arena;
  Op op = f->op[id];
  Block *body = op.body;
  LoopShape s = loop_shape(f, id);
  uint32_t n_args = 0, n_carry = 0, n_xs = 0, n_results = 0, n_params = 1;
  Val first = f->n_vals;
  for (uint32_t i = 0; i < op.n_args; i++) {
    Val param = body->param[1 + i];
    bool carry = i < s.n_carry, keep = carry ? live[op.result + i] : live[param];
    if (!keep)
      continue;
    n_carry += carry;
    n_xs += !carry && i < s.n_carry + s.n_xs;
    op.arg[n_args++] = op.arg[i];
    f->val[param].index = n_params;
    body->param[n_params++] = param;
  }
  for (uint32_t i = 0; i < op.n_results; i++) {
    if (!live[op.result + i])
      continue;
    f->val[op.result + i].index = n_results;
    Value v = f->val[op.result + i];
    VEC_PUSH(arena, f->val, f->n_vals, f->cap_vals, v);
    body->ret[n_results++] = body->ret[i];
  }
  body->n_params = n_params;
  body->n_ret = n_results;
  int64_t *num = ARENA_ARRAY(arena, int64_t, 4);
  memcpy(num, (const int64_t[]){s.size, n_carry, n_xs, s.reverse}, 4 * sizeof *num);
  op.attr.num = num;
  op.n_args = n_args;
  op.result = first;
  op.n_results = n_results;
  f->op[id] = op;
}

static void sweep_block(Func *f, Block *b, const bool *live) {
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  for (uint32_t i = 0; i < n; i++) {
    OpId id = ops[i];
    if (!any_live(&f->op[id], live))
      continue;
    block_push(f, b, id);
    if (!f->op[id].body)
      continue;
    bool all = true;
    for (uint32_t k = 0; k < f->op[id].n_results; k++)
      all &= live[f->op[id].result + k];
    for (uint32_t k = 1; k < f->op[id].body->n_params; k++)
      all &= live[f->op[id].body->param[k]];
    if (!all && f->op[id].code == OP_LOOP)
      shrink_loop(f, id, live);
    sweep_block(f, f->op[id].body, live);
  }
  block_renew(f, b);
}

void prune(Func *f, Block *b) {
  bool *live = ARENA_ARRAY(&f->module->arena, bool, f->n_vals);
  for (uint32_t i = 0; i < b->n_ret; i++)
    live[b->ret[i]] = true;
  mark_block(f, b, live);
  sweep_block(f, b, live);
}
