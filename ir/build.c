/* build.c: building, cloning and cleaning functions. Types come from ir_infer; bodies give loops and regions
 * theirs. */
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>

static Arena *arena(Func *f) {
  return &f->module->arena;
}

static Val new_value(Func *f, Type t, OpId def, uint32_t index, const char *name) {
  VEC_PUSH(
      arena(f), f->val, f->n_vals, f->cap_vals,
      (Value){.type = t, .def = def, .index = index, .name = name ? arena_strdup(arena(f), name) : NULL});
  return f->n_vals - 1;
}

Block *ir_block_new(Func *f) {
  return ARENA_NEW(arena(f), Block);
}

Val ir_param(Func *f, Block *b, Type t, const char *name) {
  Val v = new_value(f, t, NONE, b->n_params, name);
  VEC_PUSH(arena(f), b->param, b->n_params, b->cap_params, v);
  return v;
}

Val ir_func_arg(Func *f, ArgKind kind, uint32_t index, Type t, const char *name) {
  uint32_t n = f->body->n_params;
  if ((n & (n - 1)) == 0) { /* grows at powers of two: the count is the block's */
    FuncArg *grown = ARENA_ARRAY(arena(f), FuncArg, n ? 2 * n : 1);
    if (n) {
      memcpy(grown, f->arg, n * sizeof *grown);
    }
    f->arg = grown;
  }
  f->arg[n] = (FuncArg){kind, index};
  return ir_param(f, f->body, t, name);
}

void ir_block_ret(Func *f, Block *b, Val v) {
  VEC_PUSH(arena(f), b->ret, b->n_ret, b->cap_ret, v);
}

void ir_func_ret(Func *f, FuncRes res, Val v) {
  uint32_t n = f->body->n_ret;
  if ((n & (n - 1)) == 0) {
    FuncRes *grown = ARENA_ARRAY(arena(f), FuncRes, n ? 2 * n : 1);
    if (n) {
      memcpy(grown, f->res, n * sizeof *grown);
    }
    f->res = grown;
  }
  f->res[n] = res;
  f->res[n].name = res.name ? arena_strdup(arena(f), res.name) : NULL;
  ir_block_ret(f, f->body, v);
}

const Type *ir_type(const Func *f, Val v) {
  return &f->val[v].type;
}

/* Result types of ops whose body decides: loops and regions. */
static bool body_types(const Func *f, OpCode code, const Attr *a, const Block *body, Type *out, uint32_t *n,
                       Error *err) {
  if (code == OP_REGION) {
    for (uint32_t i = 0; i < body->n_ret; i++) {
      out[i] = f->val[body->ret[i]].type;
    }
    *n = body->n_ret;
    return true;
  }
  if (a->n_axis < 1 || a->n_num < 4 || body->n_ret < (uint32_t)a->num[1]) {
    return error_set(err, ERR_INPUT, "loop: attributes or results are missing");
  }
  for (uint32_t i = 0; i < body->n_ret; i++) {
    Type t = f->val[body->ret[i]].type;
    if (i >= (uint32_t)a->num[1]) {
      Type stacked = type_scalar(t.dtype);
      bool ok = type_push(&stacked, a->axis[0], a->num[0]);
      for (int k = 0; ok && k < t.rank; k++) {
        ok = type_push(&stacked, t.dim[k].axis, t.dim[k].size);
      }
      int64_t bytes;
      if (!ok || !type_bytes(&stacked, &bytes)) {
        return error_set(
            err, ERR_INPUT,
            "loop over '%s': a stacked value has the axis already, too many axes, or too many bytes",
            ir_axis_name(f->module, a->axis[0]));
      }
      t = stacked;
    }
    out[i] = t;
  }
  *n = body->n_ret;
  return true;
}

static Attr copy_attr(Arena *mem, const Attr *a) {
  Attr c = *a;
  if (a->n_axis) {
    c.axis = memcpy(arena_alloc_array(mem, a->n_axis, sizeof *a->axis), a->axis, a->n_axis * sizeof *a->axis);
  }
  if (a->n_num) {
    c.num = memcpy(arena_alloc_array(mem, a->n_num, sizeof *a->num), a->num, a->n_num * sizeof *a->num);
  }
  if (a->str) {
    c.str = arena_strdup(mem, a->str);
  }
  return c;
}

static Val append(Func *f, Block *b, OpCode code, Loc loc, const Val *args, uint32_t n, const Attr *attr,
                  Block *body, const Type *types, uint32_t n_results) {
  Arena *mem = arena(f);
  Op op = {.code = code, .loc = loc, .n_args = n, .n_results = n_results, .result = f->n_vals, .body = body};
  op.arg = ARENA_ARRAY(mem, Val, n);
  if (n) {
    memcpy(op.arg, args, n * sizeof *args);
  }
  op.attr = copy_attr(mem, attr);
  VEC_PUSH(mem, f->op, f->n_ops, f->cap_ops, op);
  OpId id = f->n_ops - 1;
  for (uint32_t i = 0; i < n_results; i++) {
    new_value(f, types[i], id, i, NULL);
  }
  VEC_PUSH(mem, b->op, b->n_ops, b->cap_ops, id);
  return f->op[id].result;
}

Val ir_op(Builder *b, OpCode code, const Val *args, uint32_t n, const Attr *attr, Block *body) {
  static const Attr none = {0};
  Func *f = b->f;
  if (b->err && b->err->cls != ERR_NONE) {
    return NONE;
  }
  for (uint32_t i = 0; i < n; i++) {
    if (args[i] == NONE) {
      return NONE;
    }
  }
  attr = attr ? attr : &none;
  Arena scratch = {0};
  uint32_t n_results = (uint32_t)ir_op_info[code].n_results;
  bool ok;
  Type *types;
  if (code == OP_LOOP || code == OP_REGION) {
    types = ARENA_ARRAY(&scratch, Type, body->n_ret);
    ok = body_types(f, code, attr, body, types, &n_results, b->err);
  } else {
    types = ARENA_ARRAY(&scratch, Type, n_results);
    Type *arg = ARENA_ARRAY(&scratch, Type, n);
    for (uint32_t i = 0; i < n; i++) {
      arg[i] = f->val[args[i]].type;
    }
    ok = ir_infer(f->module, code, arg, n, attr, types, b->err);
  }
  Val v = ok ? append(f, b->b, code, b->loc, args, n, attr, body, types, n_results) : NONE;
  arena_free(&scratch);
  return v;
}

/* ---- conveniences ---- */

Val ir_const(Builder *b, DType d, double v) {
  return ir_op(b, OP_CONST, NULL, 0, &(Attr){.f = v, .dtype = d}, NULL);
}

Val ir_iota(Builder *b, Axis a, int64_t size) {
  return ir_op(b, OP_IOTA, NULL, 0, &(Attr){.axis = &a, .n_axis = 1, .num = &size, .n_num = 1}, NULL);
}

Val ir_unary(Builder *b, OpCode c, Val x) {
  return ir_op(b, c, &x, 1, NULL, NULL);
}

Val ir_binary(Builder *b, OpCode c, Val x, Val y) {
  return ir_op(b, c, (Val[]){x, y}, 2, NULL, NULL);
}

Val ir_select(Builder *b, Val c, Val x, Val y) {
  return ir_op(b, OP_SELECT, (Val[]){c, x, y}, 3, NULL, NULL);
}

Val ir_cast(Builder *b, Val x, DType d) {
  if (x == NONE || ir_type(b->f, x)->dtype == d) {
    return x;
  }
  return ir_op(b, OP_CAST, &x, 1, &(Attr){.dtype = d}, NULL);
}

static void type_axes(const Type *t, Axis *axis, int64_t *size) {
  for (int i = 0; i < t->rank; i++) {
    axis[i] = t->dim[i].axis;
    size[i] = t->dim[i].size;
  }
}

static bool same_order(const Type *a, const Type *b) {
  Type c = *b;
  c.dtype = a->dtype;
  return type_equal(a, &c);
}

Val ir_broadcast(Builder *b, Val x, const Type *dims) {
  if (x == NONE || same_order(ir_type(b->f, x), dims)) {
    return x;
  }
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  type_axes(dims, axis, size);
  return ir_op(b, OP_BROADCAST, &x, 1,
               &(Attr){.axis = axis, .n_axis = dims->rank, .num = size, .n_num = dims->rank}, NULL);
}

Val ir_reorder(Builder *b, Val x, const Type *dims) {
  if (x == NONE || same_order(ir_type(b->f, x), dims)) {
    return x;
  }
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  type_axes(dims, axis, size);
  return ir_op(b, OP_REORDER, &x, 1, &(Attr){.axis = axis, .n_axis = dims->rank}, NULL);
}

Val ir_rename(Builder *b, Val x, const Axis *from, const Axis *to, uint32_t n) {
  Axis pair[2 * IR_MAX_RANK];
  if (n > IR_MAX_RANK) {
    error_set(b->err, ERR_INPUT, "rename: more than %d axes", IR_MAX_RANK);
    return NONE;
  }
  for (uint32_t i = 0; i < n; i++) {
    pair[2 * i] = from[i];
    pair[2 * i + 1] = to[i];
  }
  return ir_op(b, OP_RENAME, &x, 1, &(Attr){.axis = pair, .n_axis = 2 * n}, NULL);
}

Val ir_reduce(Builder *b, OpCode c, Val x, const Axis *axis, uint32_t n) {
  return n ? ir_op(b, c, &x, 1, &(Attr){.axis = axis, .n_axis = n}, NULL) : x;
}

Val ir_contract(Builder *b, Val x, Val y, const Axis *axis, uint32_t n) {
  return ir_op(b, OP_CONTRACT, (Val[]){x, y}, 2, &(Attr){.axis = axis, .n_axis = n}, NULL);
}

Val ir_gather(Builder *b, Val x, const Axis *axis, const Val *index, uint32_t n) {
  Val arg[IR_MAX_RANK + 1] = {x};
  if (n > IR_MAX_RANK) {
    error_set(b->err, ERR_INPUT, "gather: more than %d axes", IR_MAX_RANK);
    return NONE;
  }
  memcpy(arg + 1, index, n * sizeof *index);
  return ir_op(b, OP_GATHER, arg, n + 1, &(Attr){.axis = axis, .n_axis = n}, NULL);
}

/* ---- cloning ---- */

static void clone_into(Func *dst, Block *to, const Func *src, const Block *from, Val *map);

static OpId clone_op(Func *dst, Block *to, const Func *src, OpId id, Val *map, Loc loc) {
  Op op = src->op[id]; /* by value: dst may be src, whose arrays move */
  Arena scratch = {0};
  Val *args = ARENA_ARRAY(&scratch, Val, op.n_args);
  Type *types = ARENA_ARRAY(&scratch, Type, op.n_results);
  for (uint32_t i = 0; i < op.n_args; i++) {
    args[i] = map[op.arg[i]];
  }
  for (uint32_t i = 0; i < op.n_results; i++) {
    types[i] = src->val[op.result + i].type;
  }
  Block *body = op.body ? ir_clone_block(dst, src, op.body) : NULL;
  Val v = append(dst, to, op.code, loc, args, op.n_args, &op.attr, body, types, op.n_results);
  for (uint32_t i = 0; i < op.n_results; i++) {
    map[op.result + i] = v + i;
    dst->val[v + i].name = src->val[op.result + i].name;
  }
  arena_free(&scratch);
  return dst->n_ops - 1;
}

OpId ir_clone_op(Builder *b, const Func *src, OpId id, Val *map) {
  return clone_op(b->f, b->b, src, id, map, src->op[id].loc);
}

void ir_clone_ops(Builder *b, const Func *src, const Block *from, Val *map) {
  clone_into(b->f, b->b, src, from, map);
}

static void clone_into(Func *dst, Block *to, const Func *src, const Block *from, Val *map) {
  uint32_t n = from->n_ops;
  for (uint32_t i = 0; i < n; i++) {
    clone_op(dst, to, src, from->op[i], map, src->op[from->op[i]].loc);
  }
}

/* Values of one block and its nested blocks are numbered densely enough that a map over the whole function is
 * the simplest. */
Block *ir_clone_block(Func *dst, const Func *src, const Block *from) {
  Val *map = malloc((src->n_vals ? src->n_vals : 1) * sizeof *map);
  if (!map) {
    abort();
  }
  Block *b = ir_block_new(dst);
  for (uint32_t i = 0; i < from->n_params; i++) {
    Type t = src->val[from->param[i]].type;
    map[from->param[i]] = ir_param(dst, b, t, src->val[from->param[i]].name);
  }
  clone_into(dst, b, src, from, map);
  for (uint32_t i = 0; i < from->n_ret; i++) {
    ir_block_ret(dst, b, map[from->ret[i]]);
  }
  free(map);
  return b;
}

/* ---- dead code ---- */

static void mark_block(const Func *f, Block *b, bool *used) {
  for (uint32_t i = 0; i < b->n_ret; i++) {
    used[b->ret[i]] = true;
  }
  uint32_t kept = b->n_ops;
  for (uint32_t i = b->n_ops; i-- > 0;) {
    const Op *op = &f->op[b->op[i]];
    bool live = false;
    for (uint32_t k = 0; k < op->n_results; k++) {
      live |= used[op->result + k];
    }
    if (!live) {
      continue;
    }
    for (uint32_t k = 0; k < op->n_args; k++) {
      used[op->arg[k]] = true;
    }
    if (op->body) {
      mark_block(f, op->body, used);
    }
    b->op[--kept] = b->op[i];
  }
  memmove(b->op, b->op + kept, (b->n_ops - kept) * sizeof *b->op);
  b->n_ops -= kept;
}

void ir_dce(Func *f) {
  bool *used = calloc(f->n_vals ? f->n_vals : 1, sizeof *used);
  if (!used) {
    abort();
  }
  mark_block(f, f->body, used);
  free(used);
}

/* ---- cost ---- */

static double product_of(const Type *t, const Axis *axis, uint32_t n) {
  double p = 1;
  for (uint32_t i = 0; i < n; i++) {
    int k = type_find(t, axis[i]);
    p *= k < 0 ? 1 : (double)t->dim[k].size;
  }
  return p;
}

static double block_flops(const Func *f, const Block *b) {
  double sum = 0;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    sum += ir_op_flops(f, b->op[i]);
  }
  return sum;
}

/* Work of a product: every axis of either operand once; in double, for it may pass what a tensor may hold. */
static double contraction_flops(const Func *f, const Op *op, double passes) {
  const Type *x = &f->val[op->arg[0]].type, *y = &f->val[op->arg[1]].type;
  double n = (double)type_count(x);
  for (int i = 0; i < y->rank; i++) {
    n *= type_has(x, y->dim[i].axis) ? 1 : (double)y->dim[i].size;
  }
  return passes * 2 * n;
}

double ir_op_flops(const Func *f, OpId id) {
  const Op *op = &f->op[id];
  const OpInfo *info = &ir_op_info[op->code];
  double out = op->n_results ? (double)type_count(&f->val[op->result].type) : 0;
  switch (op->code) {
  case OP_LOOP: return (double)op->attr.num[0] * block_flops(f, op->body);
  case OP_REGION: return block_flops(f, op->body);
  case OP_CONTRACT: return contraction_flops(f, op, 1);
  case OP_LINEAR_XENT: return contraction_flops(f, op, 1);
  case OP_LINEAR_XENT_GRAD: return contraction_flops(f, op, 3);
  /* Scores, then values: two products forward; scores again, dp, dq, dk, dv backward. The body's work is left
   * out. */
  case OP_ATTENTION: return contraction_flops(f, op, 2);
  case OP_ATTENTION_GRAD: return contraction_flops(f, op, 5);
  case OP_SOFTMAX: return out * 12;
  case OP_SUM:
  case OP_REDUCE_MAX:
  case OP_REDUCE_MIN:
  case OP_PROD:
  case OP_ARGMAX: return out * product_of(&f->val[op->arg[0]].type, op->attr.axis, op->attr.n_axis);
  default: return out * info->flops;
  }
}
