/* rewrite.c: small tools every pass uses to take blocks apart and put them together. */
#include "passes/internal.h"

#include <string.h>

void block_replace(Func *f, Block *b, Val from, Val to) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    Op *op = &f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      if (op->arg[k] == from)
        op->arg[k] = to;
  }
  for (uint32_t i = 0; i < b->n_ret; i++)
    if (b->ret[i] == from)
      b->ret[i] = to;
}

Val val_renew(const Func *f, Val v) {
  OpId id = f->val[v].def;
  return id == NONE ? v : f->op[id].result + f->val[v].index;
}

void block_renew(Func *f, Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    Op *op = &f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      op->arg[k] = val_renew(f, op->arg[k]);
  }
  for (uint32_t i = 0; i < b->n_ret; i++)
    b->ret[i] = val_renew(f, b->ret[i]);
}

uint32_t block_take(Block *b, OpId **ops) {
  uint32_t n = b->n_ops;
  *ops = b->op;
  b->op = NULL;
  b->n_ops = b->cap_ops = 0;
  return n;
}

void block_push(Func *f, Block *b, OpId id) {
  VEC_PUSH(&f->module->arena, b->op, b->n_ops, b->cap_ops, id);
}

const Op *def_op(const Func *f, Val v) {
  OpId id = f->val[v].def;
  return id == NONE ? NULL : &f->op[id];
}

bool is_const(const Func *f, Val v, double *out) {
  const Op *op = def_op(f, v);
  if (!op)
    return false;
  if (op->code == OP_BROADCAST)
    return is_const(f, op->arg[0], out);
  if (op->code != OP_CONST)
    return false;
  *out = op->attr.f;
  return true;
}

LoopShape loop_shape(const Func *f, OpId id) {
  const Op *op = &f->op[id];
  LoopShape s = {.axis = op->attr.axis[0],
                 .size = op->attr.num[0],
                 .n_carry = (uint32_t)op->attr.num[1],
                 .n_xs = (uint32_t)op->attr.num[2],
                 .reverse = op->attr.num[3] != 0};
  s.n_inv = op->n_args - s.n_carry - s.n_xs;
  s.n_ys = op->body->n_ret - s.n_carry;
  return s;
}

Val build_zeros(Builder *b, const Type *t) {
  return ir_broadcast(b, ir_const(b, t->dtype, 0), t);
}

Val build_as(Builder *b, Val v, const Type *t) {
  if (v == NONE)
    return v;
  return type_same_dims(ir_type(b->f, v), t) ? ir_reorder(b, v, t) : ir_broadcast(b, v, t);
}

Val axis_first(Builder *b, Val v, Axis axis) {
  if (v == NONE)
    return v;
  const Type *t = ir_type(b->f, v);
  Type want = {.dtype = t->dtype};
  type_push(&want, axis, t->dim[type_find(t, axis)].size);
  for (uint32_t i = 0; i < t->rank; i++)
    if (t->dim[i].axis != axis)
      type_push(&want, t->dim[i].axis, t->dim[i].size);
  return ir_reorder(b, v, &want);
}

Func *func_copy(const Func *f, const char *name, bool (*keep)(void *ctx, const FuncRes *r), void *ctx) {
  Module *m = f->module;
  Func *g = ir_func_new(m, name);
  Error err = {0};
  Builder b = {.f = g, .b = g->body, .loc = {NONE, 0, 0}, .err = &err};
  Val *map = ARENA_ARRAY(&m->arena, Val, f->n_vals);
  memset(map, 0xff, f->n_vals * sizeof *map);
  for (uint32_t i = 0; i < f->body->n_params; i++) {
    Val v = f->body->param[i];
    map[v] = ir_func_arg(g, f->arg[i].kind, f->arg[i].index, f->val[v].type, f->val[v].name);
  }
  ir_clone_ops(&b, f, f->body, map);
  for (uint32_t i = 0; i < f->body->n_ret; i++)
    if (!keep || keep(ctx, &f->res[i]))
      ir_func_ret(g, f->res[i], map[f->body->ret[i]]);
  return g;
}

void func_inline(Builder *b, const Func *src, const Val *args, Val *out) {
  Val *map = ARENA_ARRAY(&src->module->arena, Val, src->n_vals);
  memset(map, 0xff, src->n_vals * sizeof *map);
  for (uint32_t i = 0; i < src->body->n_params; i++)
    map[src->body->param[i]] = args[i];
  ir_clone_ops(b, src, src->body, map);
  for (uint32_t i = 0; i < src->body->n_ret; i++)
    out[i] = map[src->body->ret[i]];
}
