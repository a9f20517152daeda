/* region_body.c: a private copy of a region's body: composites expanded, axes merged, dependences on
 * reductions known. */
#include "codegen/region.h"

#include <math.h>
#include <string.h>

bool type_has_all(const Type *t, const Axis *axis, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (!type_has(t, axis[i]))
      return false;
  return true;
}

bool type_subset(const Type *part, const Type *whole) {
  for (int i = 0; i < part->rank; i++)
    if (!type_has(whole, part->dim[i].axis))
      return false;
  return true;
}

const BodyOp *body_def(const Body *b, Val v) {
  return b->val[v].def == NONE ? NULL : &b->op[b->val[v].def];
}

bool body_single(const Body *b, OpCode c, uint32_t *op) {
  *op = NONE;
  for (uint32_t i = 0; i < b->n_ops; i++)
    if (b->op[i].code == c) {
      if (*op != NONE)
        return false;
      *op = i;
    }
  return true;
}

static Val new_value(Body *b, Type t, uint32_t def, uint32_t index) {
  VEC_PUSH(b->arena, b->val, b->n_vals, b->cap_vals, (BodyValue){t, def, index});
  return b->n_vals - 1;
}

Val body_add(Body *b, OpCode c, const Val *args, uint32_t n, const Attr *attr, const Type *types,
             uint32_t n_results) {
  BodyOp op = {.code = c, .n_args = n, .n_results = n_results, .result = b->n_vals};
  op.arg = ARENA_ARRAY(b->arena, Val, n);
  if (n)
    memcpy(op.arg, args, n * sizeof *args);
  if (attr) {
    op.attr = *attr;
    Axis *axis = ARENA_ARRAY(b->arena, Axis, attr->n_axis); /* own copy: merging rewrites it */
    if (attr->n_axis)
      memcpy(axis, attr->axis, attr->n_axis * sizeof *axis);
    op.attr.axis = axis;
  }
  VEC_PUSH(b->arena, b->op, b->n_ops, b->cap_ops, op);
  for (uint32_t i = 0; i < n_results; i++)
    new_value(b, types[i], b->n_ops - 1, i);
  return op.result;
}

static bool is_plain_reduction(OpCode c) {
  return c == OP_SUM || c == OP_REDUCE_MAX || c == OP_REDUCE_MIN || c == OP_PROD || c == OP_ARGMAX ||
         c == OP_CONTRACT;
}

/* Drops what no result needs and finds the reductions each value depends on. */
static bool finish(Body *b, Error *err) {
  bool *live = ARENA_ARRAY(b->arena, bool, b->n_vals + 1);
  for (uint32_t i = 0; i < b->n_rets; i++)
    live[b->ret[i]] = true;
  for (uint32_t i = b->n_ops; i-- > 0;)
    for (uint32_t r = 0; r < b->op[i].n_results; r++)
      if (live[b->op[i].result + r])
        for (uint32_t k = 0; k < b->op[i].n_args; k++)
          live[b->op[i].arg[k]] = true;
  b->reads = ARENA_ARRAY(b->arena, uint64_t, b->n_vals + 1);
  b->red = ARENA_ARRAY(b->arena, uint32_t, 64);
  for (uint32_t i = 0; i < b->n_ops; i++) {
    BodyOp *op = &b->op[i];
    uint64_t reads = 0;
    for (uint32_t k = 0; k < op->n_args; k++)
      reads |= b->reads[op->arg[k]];
    if (live[op->result] && is_plain_reduction(op->code)) {
      if (b->n_reds == 64)
        return error_set(err, ERR_INPUT, "region has more than 64 reductions");
      reads |= 1ull << b->n_reds;
      b->red[b->n_reds++] = i;
    }
    for (uint32_t r = 0; r < op->n_results; r++)
      b->reads[op->result + r] = reads;
  }
  return true;
}

bool body_init_block(Body *b, const Func *f, const Block *blk, Arena *arena, Error *err) {
  *b = (Body){.arena = arena, .func = f, .n_params = blk->n_params, .n_rets = blk->n_ret};
  Val *map = ARENA_ARRAY(arena, Val, f->n_vals + 1);
  b->param = ARENA_ARRAY(arena, Val, blk->n_params);
  for (uint32_t i = 0; i < blk->n_params; i++)
    map[blk->param[i]] = b->param[i] = new_value(b, f->val[blk->param[i]].type, NONE, i);
  for (uint32_t i = 0; i < blk->n_ops; i++) {
    const Op *op = &f->op[blk->op[i]];
    Val *args = ARENA_ARRAY(arena, Val, op->n_args);
    for (uint32_t k = 0; k < op->n_args; k++)
      args[k] = map[op->arg[k]];
    if (body_expand(b, f, op, args, &map[op->result])) {
      continue;
    } else if ((op->code == OP_SUM || op->code == OP_REDUCE_MAX || op->code == OP_REDUCE_MIN ||
                op->code == OP_PROD) &&
               op->attr.n_axis == 0) {
      map[op->result] = args[0];
    } else {
      Type *types = ARENA_ARRAY(arena, Type, op->n_results);
      for (uint32_t r = 0; r < op->n_results; r++)
        types[r] = f->val[op->result + r].type;
      Val v = body_add(b, op->code, args, op->n_args, &op->attr, types, op->n_results);
      for (uint32_t r = 0; r < op->n_results; r++)
        map[op->result + r] = v + r;
    }
  }
  b->ret = ARENA_ARRAY(arena, Val, blk->n_ret);
  for (uint32_t i = 0; i < blk->n_ret; i++)
    b->ret[i] = map[blk->ret[i]];
  return finish(b, err);
}

bool body_init(Body *b, const Func *f, OpId region, Arena *arena, Error *err) {
  return body_init_block(b, f, f->op[region].body, arena, err);
}

/* ---- merging of axes ---- */

/* Do axes x and y appear in every type both, side by side in this order, or not at all? */
static bool travel_together(const Body *b, Axis x, Axis y) {
  for (uint32_t i = 0; i < b->n_vals; i++) {
    const Type *t = &b->val[i].type;
    int px = type_find(t, x), py = type_find(t, y);
    if ((px < 0) != (py < 0) || (px >= 0 && py != px + 1))
      return false;
  }
  return true;
}

/* Ops whose attributes name axes one by one keep them apart; reductions may treat a pair as one. */
static bool attrs_allow(const Body *b, Axis x, Axis y) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const BodyOp *op = &b->op[i];
    OpCode c = op->code;
    bool hx = false, hy = false;
    for (uint32_t k = 0; k < op->attr.n_axis; k++) {
      hx |= op->attr.axis[k] == x;
      hy |= op->attr.axis[k] == y;
    }
    if (c == OP_BROADCAST || c == OP_REORDER || c == OP_RANDOM)
      continue; /* the result type says it all */
    bool set = c == OP_SUM || c == OP_REDUCE_MAX || c == OP_REDUCE_MIN || c == OP_PROD || c == OP_CONTRACT;
    if (set ? hx != hy : hx || hy)
      return false;
  }
  return true;
}

static void merge_axes(Body *b, Axis x, Axis y) {
  for (uint32_t i = 0; i < b->n_vals; i++) {
    Type *t = &b->val[i].type;
    int p = type_find(t, x);
    if (p < 0)
      continue;
    t->dim[p].size *= t->dim[p + 1].size;
    memmove(&t->dim[p + 1], &t->dim[p + 2], (size_t)(t->rank - p - 2) * sizeof *t->dim);
    t->rank--;
  }
  for (uint32_t i = 0; i < b->n_ops; i++) {
    Attr *a = &b->op[i].attr;
    uint32_t n = 0;
    Axis *axis = (Axis *)a->axis; /* the copy made by new_op */
    for (uint32_t k = 0; k < a->n_axis; k++)
      if (axis[k] != y)
        axis[n++] = axis[k];
    a->n_axis = n;
  }
}

static bool merge_one(Body *b) {
  for (uint32_t i = 0; i < b->n_vals; i++) {
    const Type *t = &b->val[i].type;
    for (int k = 0; k + 1 < t->rank; k++) {
      Axis x = t->dim[k].axis, y = t->dim[k + 1].axis;
      if (travel_together(b, x, y) && attrs_allow(b, x, y)) {
        merge_axes(b, x, y);
        return true;
      }
    }
  }
  return false;
}

void body_collapse(Body *b) {
  while (merge_one(b)) {
  }
}
