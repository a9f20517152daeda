/* hoist.c: what a loop body computes from constants and indices alone, if it is dear (powers, exponentials,
 * sines), is computed once before the loop and comes in as an invariant: tables of rotary positions, slopes.
 * Cheap masks stay where they are used. */
#include "passes/internal.h"

#include <string.h>

enum { MAX_ELEMENTS = 1 << 22, DEAR = 8 };

typedef struct {
  Func *f;
  bool *closed, *dear; /* by value */
  Val *outside;        /* value of the body -> its copy before the loop */
  uint32_t n;
} Hoist;

static void classify(Hoist *h, const Block *body) {
  const Func *f = h->f;
  for (uint32_t i = 0; i < body->n_ops; i++) {
    const Op *op = &f->op[body->op[i]];
    bool closed = op->code == OP_CONST || op->code == OP_IOTA;
    bool dear = false;
    if (op_is_pointwise(op->code) || op->code == OP_RENAME || op->code == OP_BROADCAST) {
      closed = true;
      dear = ir_op_info[op->code].flops >= DEAR;
      for (uint32_t k = 0; k < op->n_args; k++) {
        closed &= h->closed[op->arg[k]];
        dear |= h->dear[op->arg[k]];
      }
    }
    if (!closed || type_count(&f->val[op->result].type) > MAX_ELEMENTS)
      continue;
    h->closed[op->result] = true;
    h->dear[op->result] = dear;
  }
}

static Val copy_outside(Hoist *h, Builder *b, Val v) {
  if (h->outside[v] != NONE)
    return h->outside[v];
  const Op op = h->f->op[h->f->val[v].def];
  Val args[4];
  for (uint32_t i = 0; i < op.n_args; i++)
    args[i] = copy_outside(h, b, op.arg[i]);
  b->loc = op.loc;
  return h->outside[v] = ir_op(b, op.code, args, op.n_args, &op.attr, NULL);
}

static void add_invariant(Func *f, OpId loop, Val outside, Val inside) {
  Op *op = &f->op[loop];
  Block *body = op->body;
  Val *arg = ARENA_ARRAY(&f->module->arena, Val, op->n_args + 1);
  memcpy(arg, op->arg, op->n_args * sizeof *arg);
  arg[op->n_args] = outside;
  op->arg = arg;
  op->n_args++;
  Val param = ir_param(f, body, *ir_type(f, outside), f->val[inside].name);
  block_replace(f, body, inside, param);
}

/* Whether an op that stays inside, or a return, uses v. */
static bool used_inside(const Hoist *h, const Block *body, Val v) {
  const Func *f = h->f;
  for (uint32_t i = 0; i < body->n_ops; i++) {
    const Op *op = &f->op[body->op[i]];
    bool stays = op->n_results == 0 || op->result >= h->n || !h->dear[op->result];
    for (uint32_t k = 0; stays && k < op->n_args; k++)
      if (op->arg[k] == v)
        return true;
  }
  for (uint32_t i = 0; i < body->n_ret; i++)
    if (body->ret[i] == v)
      return true;
  return false;
}

static void hoist_loop(Func *f, Builder *b, OpId id) {
  Arena *arena = &f->module->arena;
  Hoist h = {.f = f, .n = f->n_vals};
  h.closed = ARENA_ARRAY(arena, bool, h.n);
  h.dear = ARENA_ARRAY(arena, bool, h.n);
  h.outside = ARENA_ARRAY(arena, Val, h.n);
  memset(h.outside, 0xff, h.n * sizeof *h.outside);
  Block *body = f->op[id].body;
  classify(&h, body);
  for (uint32_t i = 0; i < body->n_ops; i++) {
    const Op *op = &f->op[body->op[i]];
    Val v = op->result;
    if (op->n_results == 1 && v < h.n && h.dear[v] && used_inside(&h, body, v))
      add_invariant(f, id, copy_outside(&h, b, v), v);
  }
}

static void hoist_block(Func *f, Block *b, Error *err) {
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  Builder e = {.f = f, .b = b, .err = err};
  for (uint32_t i = 0; i < n; i++) {
    if (f->op[ops[i]].code == OP_LOOP) {
      hoist_block(f, f->op[ops[i]].body, err);
      hoist_loop(f, &e, ops[i]);
    }
    block_push(f, b, ops[i]);
  }
}

bool pass_hoist(Func *f, Error *err) {
  hoist_block(f, f->body, err);
  return err->cls == ERR_NONE && simplify(f, false, err);
}
