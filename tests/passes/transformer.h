/* transformer.h: a small transformer with dropout, for the tests of the passes. */
#ifndef DLC_TESTS_PASSES_TRANSFORMER_H
#define DLC_TESTS_PASSES_TRANSFORMER_H

#include "util.h"

enum { B = 2, T = 4, E = 4, H = 2, D = 2, F = 6, V = 7, L = 3 };

static inline Val mul(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_MUL, a, b);
}
static inline Val add(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_ADD, a, b);
}
static inline Val sub(Fix *x, Val a, Val b) {
  return ir_binary(&x->b, OP_SUB, a, b);
}
static inline Val sum(Fix *x, Val v, const char *axis) {
  Axis a = ax(x, axis);
  return ir_reduce(&x->b, OP_SUM, v, &a, 1);
}
static inline Val mean(Fix *x, Val v, const char *axis, double n) {
  return mul(x, sum(x, v, axis), num(x, 1 / n));
}

static inline Val norm(Fix *x, Val v, Val gain) {
  Val z = sub(x, v, mean(x, v, "e", E));
  Val var = mean(x, mul(x, z, z), "e", E);
  return mul(x, mul(x, z, ir_unary(&x->b, OP_RSQRT, add(x, var, num(x, 1e-5)))), gain);
}

static inline Val guarded_max(Fix *x, Val v, const char *axis) {
  Axis a = ax(x, axis);
  Val m = ir_unary(&x->b, OP_STOP, ir_reduce(&x->b, OP_REDUCE_MAX, v, &a, 1));
  return ir_select(&x->b, ir_binary(&x->b, OP_EQ, m, num(x, -INFINITY)), num(x, 0), m);
}

static inline Val softmax(Fix *x, Val v, const char *axis) {
  Val e = ir_unary(&x->b, OP_EXP, sub(x, v, guarded_max(x, v, axis))), s = sum(x, e, axis);
  s = ir_select(&x->b, ir_binary(&x->b, OP_EQ, s, num(x, 0)), num(x, 1), s);
  return ir_binary(&x->b, OP_DIV, e, s);
}

typedef struct {
  Val g1, wq, wk, wv, wo, g2, w1, b1, w2;
} Layer;

static inline Val block_of(Fix *x, Val v, const Layer *p, Val seed, Val attempt, Val index) {
  Builder *b = &x->b;
  Axis time = ax(x, "t"), key = ax(x, "key");
  Val n = norm(x, v, p->g1);
  Val q = sum(x, mul(x, n, p->wq), "e");
  Val k = ir_rename(b, sum(x, mul(x, n, p->wk), "e"), &time, &key, 1);
  Val val = ir_rename(b, sum(x, mul(x, n, p->wv), "e"), &time, &key, 1);
  Val score = ir_binary(b, OP_DIV, sum(x, mul(x, q, k), "d"), num(x, sqrt(D)));
  Val mask = ir_binary(b, OP_LE, ir_iota(b, key, T), ir_iota(b, time, T));
  Val o = sum(x, mul(x, softmax(x, ir_select(b, mask, score, num(x, -INFINITY)), "key"), val), "key");
  Axis hd[2] = {ax(x, "h"), ax(x, "d")};
  v = add(x, v, ir_reduce(b, OP_SUM, mul(x, o, p->wo), hd, 2));
  Val h = add(x, sum(x, mul(x, norm(x, v, p->g2), p->w1), "e"), p->b1);
  Val m = sum(x, mul(x, mul(x, h, ir_unary(b, OP_SIGMOID, h)), p->w2), "f");
  Attr r = {.axis = (Axis[]){ax(x, "b"), time, ax(x, "e")},
            .n_axis = 3,
            .num = (int64_t[]){B, T, E, 0},
            .n_num = 4,
            .dtype = DT_F64};
  Val u = ir_op(b, OP_RANDOM, (Val[]){seed, attempt, index}, 3, &r, NULL);
  Val keep = ir_select(b, ir_binary(b, OP_LT, u, num(x, 0.25)), num(x, 0), num(x, 1 / 0.75));
  return add(x, v, mul(x, m, keep));
}

static inline Val slice_of(Fix *x, Block *body, Val whole) {
  Axis layer = ax(x, "layer");
  return ir_param(x->f, body, type_without(ir_type(x->f, whole), &layer, 1), NULL);
}

static inline Val layers(Fix *x, Val v) {
  const Val w[9] = {fix_param(x, "g1", "layer=3,e=4"),         fix_param(x, "wq", "layer=3,e=4,h=2,d=2"),
                    fix_param(x, "wk", "layer=3,e=4,h=2,d=2"), fix_param(x, "wv", "layer=3,e=4,h=2,d=2"),
                    fix_param(x, "wo", "layer=3,h=2,d=2,e=4"), fix_param(x, "g2", "layer=3,e=4"),
                    fix_param(x, "w1", "layer=3,e=4,f=6"),     fix_param(x, "b1", "layer=3,f=6"),
                    fix_param(x, "w2", "layer=3,f=6,e=4")};
  Val seed = ir_func_arg(x->f, ARG_SCALAR, SCALAR_SEED, type_scalar(DT_I64), "$seed");
  Val attempt = ir_func_arg(x->f, ARG_SCALAR, SCALAR_ATTEMPT, type_scalar(DT_I64), "$attempt");
  Block *body = ir_block_new(x->f), *outer = x->b.b;
  Val index = ir_param(x->f, body, type_scalar(DT_I32), "layer"),
      c = ir_param(x->f, body, *ir_type(x->f, v), "x"), s[9], args[12] = {v};
  for (int i = 0; i < 9; i++) {
    args[1 + i] = w[i];
    s[i] = slice_of(x, body, w[i]);
  }
  args[10] = seed;
  args[11] = attempt;
  Val in_seed = ir_param(x->f, body, type_scalar(DT_I64), NULL),
      in_attempt = ir_param(x->f, body, type_scalar(DT_I64), NULL);
  const Layer p = {s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]};
  x->b.b = body;
  ir_block_ret(x->f, body, block_of(x, c, &p, in_seed, in_attempt, index));
  x->b.b = outer;
  Attr attr = {.axis = (Axis[]){ax(x, "layer")}, .n_axis = 1, .num = (int64_t[]){L, 1, 9, 0}, .n_num = 4};
  return ir_op(&x->b, OP_LOOP, args, 12, &attr, body);
}

static inline void build_model(Fix *x, bool penalty) {
  Builder *b = &x->b;
  Axis vocab = ax(x, "v"), ctx = ax(x, "ctx");
  Val tokens = fix_input(x, "tokens", DT_I32, "b=2,t=4"),
      targets = fix_input(x, "targets", DT_I32, "b=2,t=4");
  Val wte = fix_param(x, "wte", "v=7,e=4"), wpe = fix_param(x, "wpe", "ctx=6,e=4"),
      gf = fix_param(x, "gf", "e=4");
  Val at = ir_iota(b, ax(x, "t"), T);
  Val start = add(x, ir_gather(b, wte, &vocab, &tokens, 1), ir_gather(b, wpe, &ctx, &at, 1)),
      v = layers(x, start);
  Val logits = sum(x, mul(x, norm(x, v, gf), wte), "e"), m = guarded_max(x, logits, "v");
  Val lse = add(x, ir_unary(b, OP_LOG, sum(x, ir_unary(b, OP_EXP, sub(x, logits, m)), "v")), m);
  Val nll = sub(x, lse, ir_gather(b, logits, &vocab, &targets, 1));
  Val total = ir_reduce(b, OP_SUM, nll, (Axis[]){ax(x, "b"), ax(x, "t")}, 2), n = num(x, B * T);
  Val loss = ir_binary(b, OP_DIV, total, n);
  if (penalty) {
    Val g = ir_op(b, OP_GRAD, (Val[]){loss, start}, 2, NULL, NULL);
    loss = add(x, loss, ir_reduce(b, OP_SUM, mul(x, g, g), (Axis[]){ax(x, "b"), ax(x, "t"), ax(x, "e")}, 3));
  }
  fix_loss(x, loss);
  ir_func_ret(x->f, (FuncRes){.kind = RES_LOSS_NUM, .name = "loss", .coef = 1}, total);
  ir_func_ret(x->f, (FuncRes){.kind = RES_LOSS_DEN, .name = "loss"}, n);
}

/* Momentum for every parameter: m <- 0.9 m + g; p <- p - 0.1 factor m. */
static inline void build_update(Fix *x, uint32_t p) {
  Module *m = x->m;
  Type t = m->param[p].type;
  IrState s = {.name = "m", .type = t, .param = p};
  VEC_PUSH(&m->arena, m->opt, m->n_opt, m->cap_opt, s);
  char name[32];
  snprintf(name, sizeof name, "update.%u", p);
  Func *f = ir_func_new(m, name);
  Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = &x->err};
  Val w = ir_func_arg(f, ARG_PARAM, p, t, "param"), g = ir_func_arg(f, ARG_GRAD, p, t, "grad");
  Val mom = ir_func_arg(f, ARG_OPT, p, t, "m"),
      factor = ir_func_arg(f, ARG_FACTOR, 0, type_scalar(DT_F64), "factor");
  Val next = ir_binary(&b, OP_ADD, ir_binary(&b, OP_MUL, mom, ir_const(&b, DT_F64, 0.9)), g);
  Val rate = ir_binary(&b, OP_MUL, factor, ir_const(&b, DT_F64, 0.1));
  ir_func_ret(f, (FuncRes){.kind = RES_PARAM, .index = p},
              ir_binary(&b, OP_SUB, w, ir_binary(&b, OP_MUL, rate, next)));
  ir_func_ret(f, (FuncRes){.kind = RES_OPT, .index = p}, next);
}

/* factor = step / 4, lr = 0.1 * factor */
static inline void build_schedule(Fix *x) {
  Func *f = ir_func_new(x->m, "schedule.0");
  Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = &x->err};
  Val step = ir_func_arg(f, ARG_SCALAR, SCALAR_STEP, type_scalar(DT_F64), "step");
  Val factor = ir_binary(&b, OP_DIV, step, ir_const(&b, DT_F64, 4));
  ir_func_ret(f, (FuncRes){.kind = RES_SCALAR, .name = "factor"}, factor);
  ir_func_ret(f, (FuncRes){.kind = RES_SCALAR, .name = "lr"},
              ir_binary(&b, OP_MUL, factor, ir_const(&b, DT_F64, 0.1)));
}

/* The transformer with all that a training step needs. */
static inline void build_training(Fix *x) {
  build_model(x, false);
  for (uint32_t p = 0; p < x->m->n_params; p++)
    build_update(x, p);
  build_schedule(x);
  no_error(x);
}

#endif
