/* expand.c: composites as primitives, for what the fuser does not emit whole. */
#include "passes/internal.h"

#include <math.h>
#include <string.h>

/* The largest block of logits that is stored at once: each chunk reads the vocabulary matrix and adds to its
 * gradient anew, so a quarter of that matrix costs less than smaller chunks would save. */
enum { XENT_CHUNK_BYTES = 16 << 20, XENT_CHUNK_SHARE = 4 };

static Val like(Builder *b, Val x, double v) {
  return x == NONE ? NONE : ir_const(b, ir_type(b->f, x)->dtype, v);
}

static Val equals(Builder *b, Val x, double v) {
  return ir_binary(b, OP_EQ, x, like(b, x, v));
}

/* sum of x * y over what both have and t lacks, in t's order. */
Val contract_onto(Builder *b, Val x, Val y, const Type *t) {
  if (x == NONE || y == NONE)
    return NONE;
  const Type *tx = ir_type(b->f, x), *ty = ir_type(b->f, y);
  Axis axis[IR_MAX_RANK];
  uint32_t n = 0;
  for (uint32_t i = 0; i < tx->rank; i++)
    if (!type_has(t, tx->dim[i].axis) && type_has(ty, tx->dim[i].axis))
      axis[n++] = tx->dim[i].axis;
  bool x_first = true;
  for (uint32_t i = 0; i < t->rank; i++) {
    bool in_x = type_has(tx, t->dim[i].axis), in_y = type_has(ty, t->dim[i].axis);
    if (in_x != in_y) {
      x_first = in_x;
      break;
    }
  }
  return x_first ? ir_contract(b, x, y, axis, n) : ir_contract(b, y, x, axis, n);
}

static Val in_type(Builder *b, Val v, Val as) {
  if (v == NONE || as == NONE)
    return NONE;
  const Type t = *ir_type(b->f, as);
  return build_as(b, v, &t);
}

/* ---- softmax ---- */

typedef struct {
  Val max, shifted, e, sum; /* max: 0 in place of -inf */
} Rows;

static Rows softmax_rows(Builder *b, Val x, const Axis *axis, uint32_t n) {
  Val max = ir_reduce(b, OP_REDUCE_MAX, x, axis, n);
  max = ir_select(b, equals(b, max, -INFINITY), like(b, max, 0), max);
  Val shifted = ir_binary(b, OP_SUB, x, max), e = ir_unary(b, OP_EXP, shifted);
  return (Rows){max, shifted, e, ir_reduce(b, OP_SUM, e, axis, n)};
}

static Val softmax_of(Builder *b, const Rows *r) {
  return ir_binary(b, OP_DIV, r->e, ir_select(b, equals(b, r->sum, 0), like(b, r->sum, 1), r->sum));
}

static Val logsumexp_of(Builder *b, const Rows *r) {
  return ir_binary(b, OP_ADD, ir_unary(b, OP_LOG, r->sum), r->max);
}

/* ---- attention ---- */

/* The score function on raw, inlined. */
static Val score(Builder *b, const Block *body, Val raw, const Val *extras) {
  Func *f = b->f;
  Val *map = ARENA_ARRAY(&f->module->arena, Val, f->n_vals);
  memset(map, 0xff, f->n_vals * sizeof *map);
  map[body->param[0]] = raw;
  for (uint32_t i = 1; i < body->n_params; i++)
    map[body->param[i]] = extras[i - 1];
  ir_clone_ops(b, f, body, map);
  return map[body->ret[0]];
}

static void expand_attention(Builder *b, const Op *op, Val *out) {
  uint32_t n = op->attr.n_axis;
  const Axis *key = &op->attr.axis[n - 1];
  Val raw = ir_contract(b, op->arg[0], op->arg[1], op->attr.axis, n - 1);
  if (raw == NONE)
    return;
  Rows r = softmax_rows(b, score(b, op->body, raw, op->arg + 3), key, 1);
  out[0] = in_type(b, ir_contract(b, softmax_of(b, &r), op->arg[2], key, 1), op->result);
  out[1] = in_type(b, logsumexp_of(b, &r), op->result + 1);
}

/* p = exp(s - lse), ds = p * (dp - sum(do * o)); the score function is differentiated on its own. */
static void expand_attention_grad(Builder *b, const Op *op, Val *out) {
  Func *f = b->f;
  const Val q = op->arg[0], k = op->arg[1], v = op->arg[2], o = op->arg[3], lse = op->arg[4],
            d_o = op->arg[5];
  Val raw = ir_contract(b, q, k, op->attr.axis, op->attr.n_axis - 1);
  if (raw == NONE)
    return;
  const Type ts = *ir_type(f, raw), tq = *ir_type(f, q), tk = *ir_type(f, k), tv = *ir_type(f, v);
  Val s = score(b, op->body, raw, op->arg + 6);
  Val base = ir_select(b, equals(b, lse, -INFINITY), like(b, lse, 0), lse);
  Val p = ir_unary(b, OP_EXP, ir_binary(b, OP_SUB, s, base));
  Val dp = contract_onto(b, d_o, v, &ts), delta = ir_binary(b, OP_MUL, d_o, o);
  if (dp == NONE || delta == NONE)
    return;
  const Type *td = ir_type(f, delta);
  Axis own[IR_MAX_RANK];
  uint32_t n = 0;
  for (uint32_t i = 0; i < td->rank; i++)
    if (!type_has(&ts, td->dim[i].axis))
      own[n++] = td->dim[i].axis;
  delta = ir_reduce(b, OP_SUM, delta, own, n);
  Val ds = ir_binary(b, OP_MUL, p, ir_binary(b, OP_SUB, dp, delta)), draw = NONE;
  if (ds == NONE || !ad_pull(f, b->b, s, ds, &raw, 1, &draw, b->err))
    return;
  if (draw == NONE)
    draw = build_zeros(b, &ts);
  out[0] = build_as(b, contract_onto(b, draw, k, &tq), &tq);
  out[1] = build_as(b, contract_onto(b, draw, q, &tk), &tk);
  out[2] = build_as(b, contract_onto(b, p, d_o, &tv), &tv);
}

Block *body_gradient(Func *f, const Block *body, Error *err) {
  Block *g = ir_clone_block(f, f, body);
  Val s = g->ret[0], ds = ir_param(f, g, *ir_type(f, s), "ds"), raw = g->param[0], draw = NONE;
  const Type t = *ir_type(f, raw);
  if (!ad_pull(f, g, s, ds, &raw, 1, &draw, err))
    return NULL;
  Builder b = {.f = f, .b = g, .loc = {NONE, 0, 0}, .err = err};
  if (draw == NONE)
    draw = build_zeros(&b, &t);
  else if (!type_same_dims(ir_type(f, draw), &t))
    draw = build_as(&b, draw, &t);
  ir_block_ret(f, g, draw);
  return simplify_body(f, g, true, err) ? g : NULL;
}

/* ---- projection + cross-entropy ---- */

typedef struct {
  Val x, w, target, g; /* g: NONE in the forward */
  const Axis *axis;
  uint32_t n_axis; /* the last is the vocabulary */
} Xent;

/* nll, and dx, dw when g is there. */
static void xent(Builder *b, const Xent *c, Val *out) {
  Func *f = b->f;
  const Axis *vocab = &c->axis[c->n_axis - 1];
  Val logits = ir_contract(b, c->x, c->w, c->axis, c->n_axis - 1);
  if (logits == NONE)
    return;
  const Type tx = *ir_type(f, c->x), tw = *ir_type(f, c->w), tl = *ir_type(f, logits),
             tt = *ir_type(f, c->target);
  Rows r = softmax_rows(b, logits, vocab, 1);
  /* not logsumexp - logits[target]: a large offset shared by all logits would swallow the sum */
  out[0] = ir_binary(b, OP_SUB, ir_unary(b, OP_LOG, r.sum), ir_gather(b, r.shifted, vocab, &c->target, 1));
  if (c->g == NONE)
    return;
  Val id = ir_cast(b, ir_iota(b, *vocab, tl.dim[type_find(&tl, *vocab)].size), tt.dtype);
  Val hit = ir_select(b, ir_binary(b, OP_EQ, id, c->target), like(b, c->x, 1), like(b, c->x, 0));
  Val d = ir_binary(b, OP_MUL, ir_binary(b, OP_SUB, softmax_of(b, &r), hit), c->g);
  out[1] = build_as(b, contract_onto(b, d, c->w, &tx), &tx);
  out[2] = build_as(b, contract_onto(b, d, c->x, &tw), &tw);
}

/* How many chunks of the axis keep a block of logits within `limit` bytes: the smallest divisor that does. */
static int64_t chunk_count(int64_t size, int64_t bytes, int64_t limit) {
  for (int64_t n = 1; n < size; n++)
    if (size % n == 0 && bytes / n <= limit)
      return n;
  return size;
}

/* v with `axis` of n * m split into (chunk, axis), chunk first. */
static Val split_chunks(Builder *b, Val v, Axis axis, Axis chunk, int64_t n) {
  const Type t = *ir_type(b->f, v);
  Axis axes[3] = {axis, chunk, axis};
  int64_t size[2] = {n, t.dim[type_find(&t, axis)].size / n};
  Attr a = {.axis = axes, .n_axis = 3, .num = size, .n_num = 2};
  v = ir_op(b, OP_SPLIT, &v, 1, &a, NULL);
  if (v == NONE)
    return v;
  const Type s = *ir_type(b->f, v);
  Type want = {.dtype = s.dtype};
  type_push(&want, chunk, n);
  for (uint32_t i = 0; i < s.rank; i++)
    type_push(&want, s.dim[i].axis, s.dim[i].size);
  return ir_reorder(b, v, &want);
}

static Val merge_chunks(Builder *b, Val v, Axis axis, Axis chunk, const Type *want) {
  Axis axes[3] = {chunk, axis, axis};
  Attr a = {.axis = axes, .n_axis = 3};
  return build_as(b, ir_op(b, OP_MERGE, &v, 1, &a, NULL), want);
}

/* A parameter of the body for one slice of v. */
static Val slice_param(Builder *b, Block *body, Val v, Axis chunk) {
  Type t = type_without(ir_type(b->f, v), &chunk, 1);
  return ir_param(b->f, body, t, NULL);
}

/* A loop over chunks of the first axis of the tokens: it carries dw, stacks nll and dx. */
static void xent_chunks(Builder *b, const Xent *c, const Op *op, Axis axis, int64_t n, Val *out) {
  Func *f = b->f;
  Module *m = f->module;
  Axis chunk = ir_axis(m, arena_printf(&m->arena, "%s_chunk", ir_axis_name(m, axis)));
  bool grad = c->g != NONE;
  Val args[5];
  uint32_t k = 0, n_xs = grad ? 3 : 2;
  const Type tw = *ir_type(f, c->w);
  if (grad)
    args[k++] = build_zeros(b, &tw);
  const Val sliced[3] = {c->x, c->target, c->g};
  for (uint32_t i = 0; i < n_xs; i++)
    if ((args[k++] = split_chunks(b, sliced[i], axis, chunk, n)) == NONE)
      return;
  args[k++] = c->w;
  Block *body = ir_block_new(f);
  Builder e = *b;
  e.b = body;
  Xent in = *c;
  ir_param(f, body, type_scalar(DT_I32), NULL);
  Val dw = grad ? ir_param(f, body, tw, NULL) : NONE;
  in.x = slice_param(b, body, args[grad], chunk);
  in.target = slice_param(b, body, args[grad + 1], chunk);
  in.g = grad ? slice_param(b, body, args[grad + 2], chunk) : NONE;
  in.w = ir_param(f, body, tw, NULL);
  Val r[3] = {NONE, NONE, NONE};
  xent(&e, &in, r);
  if (grad)
    ir_block_ret(f, body, ir_binary(&e, OP_ADD, dw, r[2]));
  ir_block_ret(f, body, r[0]);
  if (grad)
    ir_block_ret(f, body, r[1]);
  if (b->err->cls != ERR_NONE)
    return;
  Attr attr = {.axis = &chunk, .n_axis = 1, .num = (const int64_t[]){n, grad, n_xs, 0}, .n_num = 4};
  Val v = ir_op(b, OP_LOOP, args, k, &attr, body);
  if (v == NONE)
    return;
  const Type tn = *ir_type(f, op->result), tx = *ir_type(f, c->x);
  out[0] = merge_chunks(b, v + grad, axis, chunk, &tn);
  if (grad) {
    out[1] = merge_chunks(b, v + 2, axis, chunk, &tx);
    out[2] = v;
  }
}

static void expand_xent(Builder *b, const Op *op, Val *out) {
  Func *f = b->f;
  Xent c = {op->arg[0],    op->arg[1],     op->arg[2], op->n_args > 3 ? op->arg[3] : NONE,
            op->attr.axis, op->attr.n_axis};
  const Type nll = *ir_type(f, op->result), tw = *ir_type(f, c.w);
  int64_t vocab = tw.dim[type_find(&tw, c.axis[c.n_axis - 1])].size;
  double bytes = (double)type_count(&nll) * (double)vocab * (double)dtype_bytes(nll.dtype);
  int64_t w_bytes = 0, limit = XENT_CHUNK_BYTES;
  if (type_bytes(ir_type(b->f, c.w), &w_bytes) && w_bytes / XENT_CHUNK_SHARE > limit)
    limit = w_bytes / XENT_CHUNK_SHARE;
  int64_t n = nll.rank && bytes < 0x1p62 ? chunk_count(nll.dim[0].size, (int64_t)bytes, limit) : 1;
  if (n > 1)
    xent_chunks(b, &c, op, nll.dim[0].axis, n, out);
  else
    xent(b, &c, out);
  for (uint32_t i = 0; i < op->n_results; i++)
    out[i] = in_type(b, out[i], op->result + i);
}

/* ---- */

bool can_expand(OpCode c) {
  return c == OP_SOFTMAX || c == OP_ATTENTION || c == OP_ATTENTION_GRAD || c == OP_LINEAR_XENT ||
         c == OP_LINEAR_XENT_GRAD;
}

void expand_composite(Builder *b, OpId id, Val *out) {
  const Op op = b->f->op[id];
  b->loc = op.loc;
  for (uint32_t i = 0; i < op.n_results; i++)
    out[i] = NONE;
  if (op.code == OP_SOFTMAX) {
    Rows r = softmax_rows(b, op.arg[0], op.attr.axis, op.attr.n_axis);
    out[0] = in_type(b, softmax_of(b, &r), op.result);
  } else if (op.code == OP_ATTENTION) {
    expand_attention(b, &op, out);
  } else if (op.code == OP_ATTENTION_GRAD) {
    expand_attention_grad(b, &op, out);
  } else {
    expand_xent(b, &op, out);
  }
}
