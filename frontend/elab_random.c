/* elab_random.c: dropout, uniform, normal: counter-based random numbers. */
#include "frontend/elab.h"

static V random_tensor(Elab *e, Ctx *c, const Type *dims, Span at) {
  Val args[IR_MAX_RANK + 2];
  uint32_t n = 0, loops = 0;
  Ctx *chain[IR_MAX_RANK];
  args[n++] = import_value(e, c, e->root, scalar_arg(e, 2), false);
  args[n++] = import_value(e, c, e->root, scalar_arg(e, 1), false);
  for (Ctx *p = c; p->up; p = p->up) {
    if (loops == IR_MAX_RANK) {
      report(e, at, "random numbers inside more than %d loops", IR_MAX_RANK);
      return poison();
    }
    chain[loops++] = p;
  }
  while (loops-- > 0) {
    args[n++] = import_value(e, c, chain[loops], chain[loops]->index, false);
  }
  Axis axis[IR_MAX_RANK];
  int64_t number[IR_MAX_RANK + 1];
  for (int i = 0; i < dims->rank; i++) {
    axis[i] = dims->dim[i].axis;
    number[i] = dims->dim[i].size;
  }
  uint32_t key = e->draws++;
  uint64_t h = hash_bytes(&key, sizeof key, 0);
  number[dims->rank] = (int64_t)((h ^ h >> 32) & 0x7fffffff);
  Attr attr = {
      .axis = axis, .n_axis = dims->rank, .num = number, .n_num = dims->rank + 1u, .dtype = e->m->real};
  return built(e, c, ir_op(&c->b, OP_RANDOM, args, n, &attr, NULL), at);
}

V call_dropout(Elab *e, Scope *s, const AstExpr *x) {
  V v[2];
  if (!args_n(e, s, x, 2, v)) {
    return poison();
  }
  if (v[1].kind != V_NUM || !(v[1].num >= 0 && v[1].num < 1)) {
    report(e, x->call.args.v[1].span,
           "the rate of dropout is a compile-time number of at least 0 and under 1");
    return poison();
  }
  if (!e->training || v[1].num == 0) {
    return v[0];
  }
  V t = to_float(e, s->ctx, v[0], x->span);
  if (t.kind == V_POISON) {
    return t;
  }
  Builder *b = &s->ctx->b;
  V u = random_tensor(e, s->ctx, vtype(e, &t), x->span);
  u = as_tensor(e, s->ctx, u, vtype(e, &t)->dtype);
  DType d = vtype(e, &t)->dtype;
  Val keep = ir_binary(b, OP_LE, ir_const(b, d, v[1].num), u.val);
  Val scaled = ir_binary(b, OP_MUL, t.val, ir_const(b, d, 1 / (1 - v[1].num)));
  return built(e, s->ctx, ir_select(b, keep, scaled, ir_const(b, d, 0)), x->span);
}

V call_draw(Elab *e, Scope *s, const AstExpr *x, bool is_normal) {
  Axis axis[IR_MAX_RANK];
  int64_t size[IR_MAX_RANK];
  uint32_t n;
  V v[2] = {num(0), num(1)};
  if (!axes_of(e, s, x, axis, size, &n) || (x->call.args.n && !args_n(e, s, x, 2, v))) {
    return poison();
  }
  Type t = type_scalar(e->m->real);
  for (uint32_t i = 0; i < n; i++) {
    type_push(&t, axis[i], size[i]);
  }
  Ctx *c = s->ctx;
  V u = random_tensor(e, c, &t, x->span);
  if (is_normal && u.kind == V_TENSOR) {
    Builder *b = &c->b;
    V w = random_tensor(e, c, &t, x->span);
    DType d = e->m->real;
    Val log_u = ir_unary(b, OP_LOG1P, ir_unary(b, OP_NEG, u.val));
    Val radius = ir_unary(b, OP_SQRT, ir_binary(b, OP_MUL, ir_const(b, d, -2), log_u));
    Val turn = ir_unary(b, OP_COS, ir_binary(b, OP_MUL, ir_const(b, d, 6.283185307179586), w.val));
    u = built(e, c, ir_binary(b, OP_MUL, radius, turn), x->span);
    return binary(e, c, BINARY_ADD, binary(e, c, BINARY_MUL, u, v[1], x->span), v[0], x->span);
  }
  return x->call.args.n
             ? binary(e, c, BINARY_ADD,
                      binary(e, c, BINARY_MUL, u, binary(e, c, BINARY_SUB, v[1], v[0], x->span), x->span),
                      v[0], x->span)
             : u;
}
