/* fuse_result.c: who owns which memory. Stacked values and results of the function have a place of their own,
 * which the kernel that computes them writes; where that is impossible a copy is put in. Parameters and
 * states are overwritten in place when their update is the last to read them. */
#include "passes/fuse.h"
#include "passes/program.h"

#include <string.h>

Val build_copy(Builder *b, Val v) {
  Builder in = *b;
  in.b = ir_block_new(b->f);
  ir_block_ret(b->f, in.b, ir_param(b->f, in.b, *ir_type(b->f, v), NULL));
  Val r = ir_op(b, OP_REGION, &v, 1, &(Attr){.str = "copy"}, in.b);
  if (r != NONE)
    b->f->val[r].name = b->f->val[v].name;
  return r;
}

Val whole_root(const Func *f, Val v) {
  const Op *op = def_op(f, v);
  while (op && op->code != OP_SLICE && is_view(f, op)) {
    v = op->arg[0];
    op = def_op(f, v);
  }
  return v;
}

/* What v is a view of, slices included. */
static Val alias_root(const Func *f, Val v) {
  const Op *op = def_op(f, v);
  while (op && is_view(f, op)) {
    v = op->arg[0];
    op = def_op(f, v);
  }
  return v;
}

/* A kernel writes v to memory that can be chosen freely. */
static bool owns_memory(const Func *f, Val v) {
  const Op *op = def_op(f, v);
  if (!op || (op->code != OP_REGION && op->code != OP_LOOP))
    return false;
  uint32_t i = f->val[v].index;
  if (op->code == OP_REGION || i >= (uint32_t)op->attr.num[1])
    return true;
  /* A carried value: the last iteration's. */
  Val root = whole_root(f, op->body->ret[i]);
  for (uint32_t k = 0; k < op->body->n_ret; k++)
    if (k != i && whole_root(f, op->body->ret[k]) == root)
      return false;
  return owns_memory(f, root);
}

/* ---- loops ---- */

/* The slices of an iteration must be contiguous: the loop axis leads. */
void fuse_copies_before(Func *f, Block *b, Error *err) {
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  Builder e = {.f = f, .b = b, .err = err};
  for (uint32_t i = 0; i < n; i++) {
    LoopShape s = {0};
    if (f->op[ops[i]].code == OP_LOOP)
      s = loop_shape(f, ops[i]);
    for (uint32_t k = s.n_carry; k < s.n_carry + s.n_xs; k++) {
      Val v = f->op[ops[i]].arg[k];
      const Type t = *ir_type(f, v);
      Type want = {.dtype = t.dtype};
      type_push(&want, s.axis, s.size);
      for (int d = 0; d < t.rank; d++)
        type_push(&want, t.dim[d].axis, t.dim[d].size);
      e.loc = f->op[ops[i]].loc;
      v = ir_reorder(&e, v, &want);
      if (v != NONE)
        f->op[ops[i]].arg[k] = v;
    }
    block_push(f, b, ops[i]);
  }
}

/* Slice i of stacked result k may be whatever iteration i has, with no copy: only loops read it, slice by
 * slice, and it is a value carried into the iteration. Never an argument of the function: those change in
 * place. */
static bool may_alias(const Func *f, const Block *outer, OpId loop, uint32_t k) {
  const Op *op = &f->op[loop];
  if (!stacked_apart(f, outer, op->result + k))
    return false;
  for (uint32_t c = 0; c < (uint32_t)op->attr.num[1]; c++) {
    if (op->body->param[1 + c] != op->body->ret[k])
      continue;
    Val start = whole_root(f, op->arg[c]); /* of the outer block, which is not fused yet */
    const Op *from = def_op(f, start);
    return from && !is_view(f, from) && (from->code != OP_LOOP || owns_memory(f, start));
  }
  return false;
}

void fuse_stacked(Func *f, const Block *outer, OpId loop, Error *err) {
  Block *body = f->op[loop].body;
  uint32_t n_carry = (uint32_t)f->op[loop].attr.num[1];
  Builder e = {.f = f, .b = body, .err = err};
  for (uint32_t i = n_carry; i < body->n_ret && err->cls == ERR_NONE; i++) {
    Val root = whole_root(f, body->ret[i]);
    bool own = owns_memory(f, root);
    for (uint32_t k = n_carry; k < i; k++)
      own &= whole_root(f, body->ret[k]) != root;
    if (!own && !may_alias(f, outer, loop, i))
      body->ret[i] = build_copy(&e, body->ret[i]);
  }
}

/* ---- results of the function ---- */

bool is_persistent(ResKind k) {
  return k == RES_PARAM || k == RES_OPT || k == RES_STATE;
}

/* The argument whose memory result i goes to, NONE: the function does not read it. */
static Val target_of(const Func *f, uint32_t i) {
  ArgKind kind = f->res[i].kind == RES_PARAM ? ARG_PARAM : f->res[i].kind == RES_OPT ? ARG_OPT : ARG_STATE;
  for (uint32_t k = 0; k < f->body->n_params; k++)
    if (f->arg[k].kind == kind && f->arg[k].index == f->res[i].index)
      return f->body->param[k];
  return NONE;
}

/* May v lie in the memory of argument a? A carried value may come out of a loop as it went in. */
static bool may_lie_in(const Func *f, Val v, Val a) {
  Val root = alias_root(f, v);
  const Op *op = def_op(f, root);
  if (root == a)
    return true;
  if (!op || op->code != OP_LOOP || owns_memory(f, root))
    return false;
  for (uint32_t k = 0; k < op->n_args; k++)
    if (may_lie_in(f, op->arg[k], a))
      return true;
  return false;
}

static bool reads(const Func *f, const Op *op, Val a) {
  for (uint32_t k = 0; k < op->n_args; k++)
    if (may_lie_in(f, op->arg[k], a))
      return true;
  return false;
}

/* Each element of param `a` is read for the same element of the results only. */
static bool same_index(const Func *f, const Op *region, Val a) {
  const Block *b = region->body;
  const Type *t = ir_type(f, a);
  Arena mem = {0};
  bool ok = true, *tainted = ARENA_ARRAY(&mem, bool, f->n_vals);
  for (uint32_t i = 0; i < region->n_args; i++)
    if (may_lie_in(f, region->arg[i], a)) {
      tainted[b->param[i]] = true;
      ok &= region->arg[i] == a;
    }
  for (uint32_t i = 0; i < b->n_ops && ok; i++) {
    const Op *op = &f->op[b->op[i]];
    OpClass c = ir_op_info[op->code].cls;
    ok = op_is_pointwise(op->code) || c == CLASS_SOURCE || c == CLASS_RANDOM || c == CLASS_MOVE;
    for (uint32_t k = 0; k < op->n_args; k++)
      tainted[op->result] |= tainted[op->arg[k]];
    if (tainted[op->result])
      ok &= (op_is_pointwise(op->code) || op->code == OP_BROADCAST) &&
            type_same_dims(ir_type(f, op->result), t);
  }
  for (uint32_t i = 0; i < b->n_ret && ok; i++)
    ok = !tainted[b->ret[i]] || type_same_dims(ir_type(f, b->ret[i]), t);
  arena_free(&mem);
  return ok;
}

/* Result i may be written over its argument by the op that computes it, where that stands. */
static bool in_place(const Func *f, uint32_t i) {
  const Block *b = f->body;
  Val v = b->ret[i], a = target_of(f, i);
  const Op *op = def_op(f, v);
  if (!owns_memory(f, v))
    return false;
  for (uint32_t k = 0; k < i; k++)
    if (is_persistent(f->res[k].kind) && b->ret[k] == v)
      return false;
  if (a == NONE)
    return true;
  if (!type_equal(ir_type(f, v), ir_type(f, a)))
    return false;
  bool after = false;
  for (uint32_t p = 0; p < b->n_ops; p++) {
    const Op *other = &f->op[b->op[p]];
    if (other == op) {
      after = true;
      if (reads(f, op, a) && (op->code != OP_REGION || !same_index(f, op, a)))
        return false;
    } else if (after && !is_view(f, other) && (other->code == OP_LOOP || reads(f, other, a))) {
      return false; /* loops: slices stacked by an earlier one may lie anywhere */
    }
  }
  return true;
}

/* Regions that compute nothing but next values of parameters and states go last. */
static void move_updates(Func *f) {
  Block *b = f->body;
  Arena mem = {0};
  bool *early = ARENA_ARRAY(&mem, bool, f->n_vals); /* somebody else needs it */
  for (uint32_t i = 0; i < b->n_ret; i++)
    early[b->ret[i]] |= !is_persistent(f->res[i].kind);
  for (uint32_t p = 0; p < b->n_ops; p++)
    for (uint32_t k = 0; k < f->op[b->op[p]].n_args; k++)
      early[f->op[b->op[p]].arg[k]] = true;
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  for (int late = 0; late < 2; late++)
    for (uint32_t p = 0; p < n; p++) {
      const Op *op = &f->op[ops[p]];
      bool last = op->code == OP_REGION;
      for (uint32_t k = 0; k < op->n_results; k++)
        last &= !early[op->result + k];
      if (last == (late == 1))
        block_push(f, b, ops[p]);
    }
  arena_free(&mem);
}

static void name_updates(Func *f) {
  for (uint32_t i = 0; i < f->body->n_ret; i++) {
    OpId id = f->val[f->body->ret[i]].def;
    if (f->res[i].kind == RES_PARAM && id != NONE && f->op[id].code == OP_REGION && f->op[id].attr.str &&
        strcmp(f->op[id].attr.str, "map") == 0)
      f->op[id].attr.str = "update";
  }
}

void fuse_results(Func *f, Error *err) {
  Block *b = f->body;
  Builder e = {.f = f, .b = b, .loc = {NONE, 0, 0}, .err = err};
  for (uint32_t i = 0; i < b->n_ret && err->cls == ERR_NONE; i++) {
    Val v = b->ret[i];
    bool own = owns_memory(f, v);
    if (is_persistent(f->res[i].kind)) {
      /* Another parameter, or part of one, as it was before this step. */
      if (v != target_of(f, i) && !owns_memory(f, alias_root(f, v)))
        b->ret[i] = build_copy(&e, v);
    } else if (!own) {
      b->ret[i] = build_copy(&e, v);
    }
  }
  name_updates(f);
  move_updates(f);
  for (uint32_t i = 0; i < b->n_ret && err->cls == ERR_NONE; i++)
    if (is_persistent(f->res[i].kind) && b->ret[i] != target_of(f, i) && !in_place(f, i))
      b->ret[i] = build_copy(&e, b->ret[i]);
}
