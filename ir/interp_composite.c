/* interp_composite.c: composites by their definition in ops.def.
 *
 * attention:      raw = q k,  s = body(raw),  p = softmax(s; key),  o = p v,  lse = log sum exp s
 * attention_grad: p = exp(s - lse),  dp = do v,  ds = p (dp - sum[key] p dp),  draw = ds * ds/draw of the
 * body, dq = draw k,  dk = draw q,  dv = p do The body is pointwise, so its derivative by raw is carried
 * along as a second number beside every value (dual numbers). */
#include "ir/interp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- softmax ---- */

/* p = softmax(s), lse = log sum exp s (may be NULL), both over `axis`; a row that is -inf everywhere gives
 * zeros and -inf. */
static void softmax(Interp *x, const Tensor *s, const Axis *axis, uint32_t n, Tensor *p, Tensor *lse) {
  Type rows = type_without(&s->type, axis, n), part = type_scalar(s->type.dtype);
  for (int i = 0; i < s->type.rank; i++) {
    if (!type_has(&rows, s->type.dim[i].axis)) {
      type_push(&part, s->type.dim[i].axis, s->type.dim[i].size);
    }
  }
  *p = tensor_new(x, s->type);
  if (lse) {
    *lse = tensor_new(x, rows);
  }
  const Type *types[1] = {&s->type};
  Walk w, first;
  walk_begin(&w, &rows, types, 1);
  walk_begin(&first, &part, types, 1);
  int64_t row = 0;
  do {
    double most = -INFINITY, sum = 0;
    Walk in = first;
    do {
      double v = s->data[w.offset[0] + in.offset[0]];
      most = isnan(v) || v > most ? v : most;
    } while (walk_next(&in) && !isnan(most));
    double shift = most == -INFINITY ? 0 : most;
    in = first;
    do {
      double e = exp(s->data[w.offset[0] + in.offset[0]] - shift);
      p->data[w.offset[0] + in.offset[0]] = e;
      sum += e;
    } while (walk_next(&in));
    in = first;
    do {
      p->data[w.offset[0] + in.offset[0]] /= sum == 0 ? 1 : sum;
    } while (walk_next(&in));
    if (lse) {
      lse->data[row] = sum == 0 ? -INFINITY : shift + log(sum);
    }
    row++;
  } while (walk_next(&w));
}

/* ---- the body of an attention with its derivative ---- */

static void partials(OpCode c, double a, double b, double y, double *da, double *db) {
  *db = 0;
  switch (c) {
  case OP_NEG: *da = -1; break;
  case OP_EXP: *da = y; break;
  case OP_LOG: *da = 1 / a; break;
  case OP_LOG1P: *da = 1 / (1 + a); break;
  case OP_SQRT: *da = 0.5 / y; break;
  case OP_RSQRT: *da = -0.5 * y / a; break;
  case OP_TANH: *da = 1 - y * y; break;
  case OP_SIGMOID: *da = y * (1 - y); break;
  case OP_ERF: *da = 1.1283791670955126 * exp(-a * a); break;
  case OP_SIN: *da = cos(a); break;
  case OP_COS: *da = -sin(a); break;
  case OP_ABS: *da = a > 0 ? 1 : a < 0 ? -1 : 0; break;
  case OP_CAST: *da = 1; break;
  case OP_ADD: *da = *db = 1; break;
  case OP_SUB: *da = 1, *db = -1; break;
  case OP_MUL: *da = b, *db = a; break;
  case OP_DIV: *da = 1 / b, *db = -y / b; break;
  case OP_MOD: *da = 1, *db = -floor(a / b); break;
  case OP_POW: *da = b == 0 ? 0 : b * pow(a, b - 1), *db = a > 0 ? y * log(a) : 0; break;
  case OP_MAX: *da = a >= b, *db = !(a >= b); break;
  case OP_MIN: *da = a <= b, *db = !(a <= b); break;
  default: *da = 0; break;
  }
}

static double tangent_at(const Tensor *t, int64_t i) {
  return t->data ? t->data[i] : 0;
}

/* The tangent of one pointwise op of the body; d[v].data NULL means zero. */
static void push_tangent(Interp *x, const Op *op, Tensor *d) {
  bool any = false;
  for (uint32_t i = 0; i < op->n_args; i++) {
    any |= d[op->arg[i]].data != NULL;
  }
  const Tensor *y = &x->val[op->result];
  if (!any || !dtype_is_float(y->type.dtype)) {
    return;
  }
  Tensor out = tensor_new(x, y->type);
  const Type *types[3];
  for (uint32_t i = 0; i < op->n_args; i++) {
    types[i] = &x->val[op->arg[i]].type;
  }
  Walk w;
  walk_begin(&w, &y->type, types, op->n_args);
  const Tensor *a = &x->val[op->arg[0]];
  int64_t i = 0;
  do {
    if (op->code == OP_SELECT) {
      bool taken = a->data[w.offset[0]] != 0;
      out.data[i++] = tangent_at(&d[op->arg[taken ? 1 : 2]], w.offset[taken ? 1 : 2]);
      continue;
    }
    double da, db, b = op->n_args > 1 ? x->val[op->arg[1]].data[w.offset[1]] : 0;
    partials(op->code, a->data[w.offset[0]], b, y->data[i], &da, &db);
    double ta = tangent_at(&d[op->arg[0]], w.offset[0]),
           tb = op->n_args > 1 ? tangent_at(&d[op->arg[1]], w.offset[1]) : 0;
    out.data[i++] = (ta == 0 ? 0 : da * ta) + (tb == 0 ? 0 : db * tb);
  } while (walk_next(&w));
  d[op->result] = out;
}

/* s = body(raw, extras); slope (may be NULL) = ds / draw. */
static bool score(Interp *x, const Op *op, const Tensor *raw, uint32_t first_extra, Tensor *s,
                  Tensor *slope) {
  const Block *b = op->body;
  Tensor *param = ARENA_ARRAY(x->arena, Tensor, b->n_params);
  param[0] = *raw;
  for (uint32_t i = 1; i < b->n_params; i++) {
    param[i] = x->val[op->arg[first_extra + i - 1]];
  }
  /* The body's raw has an order of its own; points are the same. */
  Type want = x->f->val[b->param[0]].type;
  if (!type_equal(&want, &raw->type)) {
    Tensor t = tensor_new(x, want);
    const Type *types[1] = {&raw->type};
    Walk w;
    walk_begin(&w, &want, types, 1);
    int64_t i = 0;
    do {
      t.data[i++] = raw->data[w.offset[0]];
    } while (walk_next(&w));
    param[0] = t;
  }
  if (!interp_block(x, b, param)) {
    return false;
  }
  *s = x->val[b->ret[0]];
  if (!slope) {
    return true;
  }
  Tensor *d = calloc(x->f->n_vals, sizeof *d);
  if (!d) {
    abort();
  }
  d[b->param[0]] = tensor_new(x, want);
  for (int64_t i = 0, n = type_count(&want); i < n; i++) {
    d[b->param[0]].data[i] = 1;
  }
  bool ok = true;
  for (uint32_t i = 0; ok && i < b->n_ops; i++) {
    const Op *o = &x->f->op[b->op[i]];
    bool touched = false;
    for (uint32_t k = 0; k < o->n_args; k++) {
      touched |= d[o->arg[k]].data != NULL;
    }
    if (op_is_pointwise(o->code)) {
      push_tangent(x, o, d);
    } else if (touched) {
      ok = error_set(x->err, ERR_RUN, "attention: the score function is not pointwise in the product");
    }
  }
  *slope = d[b->ret[0]].data ? d[b->ret[0]] : tensor_new(x, s->type);
  free(d);
  return ok;
}

/* ---- attention ---- */

static bool attention(Interp *x, const Op *op) {
  const Axis *axis = op->attr.axis;
  uint32_t n = op->attr.n_axis;
  Tensor raw, s, p;
  if (!interp_contract(x, &x->val[op->arg[0]], &x->val[op->arg[1]], axis, n - 1, &raw) ||
      !score(x, op, &raw, 3, &s, NULL)) {
    return false;
  }
  Tensor lse, o;
  softmax(x, &s, axis + n - 1, 1, &p, &lse);
  /* results take the inferred order, whatever order the body gave */
  Tensor dense = tensor_new(x, raw.type);
  const Type *types[1] = {&p.type};
  Walk w;
  walk_begin(&w, &raw.type, types, 1);
  int64_t i = 0;
  do {
    dense.data[i++] = p.data[w.offset[0]];
  } while (walk_next(&w));
  if (!interp_contract(x, &dense, &x->val[op->arg[2]], axis + n - 1, 1, &o)) {
    return false;
  }
  Tensor rows = tensor_new(x, x->f->val[op->result + 1].type);
  const Type *lse_type[1] = {&lse.type};
  walk_begin(&w, &rows.type, lse_type, 1);
  i = 0;
  do {
    rows.data[i++] = lse.data[w.offset[0]];
  } while (walk_next(&w));
  x->val[op->result] = o;
  x->val[op->result + 1] = rows;
  return true;
}

/* The product of a and b summed over every axis that `like` lacks, in like's order. */
static bool product_like(Interp *x, const Tensor *a, const Tensor *b, const Type *like, Tensor *out) {
  Axis axis[2 * IR_MAX_RANK];
  uint32_t n = 0;
  for (int i = 0; i < a->type.rank; i++) {
    if (!type_has(like, a->type.dim[i].axis)) {
      axis[n++] = a->type.dim[i].axis;
    }
  }
  Tensor t;
  if (!interp_contract(x, a, b, axis, n, &t)) {
    return false;
  }
  *out = tensor_new(x, *like);
  const Type *types[1] = {&t.type};
  Walk w;
  walk_begin(&w, like, types, 1);
  int64_t i = 0;
  do {
    out->data[i++] = t.data[w.offset[0]];
  } while (walk_next(&w));
  return true;
}

static bool attention_grad(Interp *x, const Op *op) {
  const Axis *axis = op->attr.axis;
  Axis key = axis[op->attr.n_axis - 1];
  const Tensor *q = &x->val[op->arg[0]], *k = &x->val[op->arg[1]], *v = &x->val[op->arg[2]];
  const Tensor *lse = &x->val[op->arg[4]], *go = &x->val[op->arg[5]];
  Tensor raw, s, slope;
  if (!interp_contract(x, q, k, axis, op->attr.n_axis - 1, &raw) || !score(x, op, &raw, 6, &s, &slope)) {
    return false;
  }
  Tensor p = tensor_new(x, s.type), draw = tensor_new(x, s.type), dp;
  if (!product_like(x, go, v, &s.type, &dp)) {
    return false;
  }
  const Type *types[2] = {&s.type, &lse->type};
  Walk w;
  walk_begin(&w, &s.type, types, 2);
  do {
    double l = lse->data[w.offset[1]];
    p.data[w.offset[0]] = l == -INFINITY ? 0 : exp(s.data[w.offset[0]] - l);
  } while (walk_next(&w));
  Type rows = type_without(&s.type, &key, 1), part = type_scalar(s.type.dtype);
  type_push(&part, key, s.type.dim[type_find(&s.type, key)].size);
  Walk in, outer;
  walk_begin(&outer, &rows, types, 1);
  walk_begin(&in, &part, types, 1);
  do {
    double sum = 0;
    do {
      int64_t at = outer.offset[0] + in.offset[0];
      sum += p.data[at] * dp.data[at];
    } while (walk_next(&in));
    do {
      int64_t at = outer.offset[0] + in.offset[0];
      draw.data[at] = p.data[at] == 0 ? 0 : p.data[at] * (dp.data[at] - sum) * slope.data[at];
    } while (walk_next(&in));
  } while (walk_next(&outer));
  return product_like(x, &draw, k, &q->type, &x->val[op->result]) &&
         product_like(x, &draw, q, &k->type, &x->val[op->result + 1]) &&
         product_like(x, &p, go, &v->type, &x->val[op->result + 2]);
}

/* ---- projection and cross-entropy ---- */

/* nll and, with g set, dlogits = g (softmax - onehot) in place of the logits. */
static bool xent(Interp *x, const Op *op, bool grad) {
  const Axis *axis = op->attr.axis;
  Axis vocab = axis[op->attr.n_axis - 1];
  const Tensor *a = &x->val[op->arg[0]], *b = &x->val[op->arg[1]], *target = &x->val[op->arg[2]];
  Tensor logits, p, lse, nll = tensor_new(x, x->f->val[op->result].type);
  if (!interp_contract(x, a, b, axis, op->attr.n_axis - 1, &logits)) {
    return false;
  }
  softmax(x, &logits, &vocab, 1, &p, &lse);
  Type one = type_scalar(DT_F64);
  int64_t along, size = logits.type.dim[type_find(&logits.type, vocab)].size;
  type_push(&one, vocab, 1);
  tensor_strides(&logits.type, &one, &along);
  const Tensor *g = grad ? &x->val[op->arg[3]] : target;
  const Type *types[4] = {&logits.type, &lse.type, &target->type, &g->type};
  Walk w;
  walk_begin(&w, &nll.type, types, 4);
  int64_t i = 0;
  do {
    double t = target->data[w.offset[2]];
    bool inside = t >= 0 && t < (double)size;
    nll.data[i++] = lse.data[w.offset[1]] - (inside ? logits.data[w.offset[0] + (int64_t)t * along] : 0);
    for (int64_t k = 0; grad && k < size; k++) {
      double *at = &p.data[w.offset[0] + k * along];
      *at = g->data[w.offset[3]] * (*at - (inside && k == (int64_t)t));
    }
  } while (walk_next(&w));
  x->val[op->result] = nll;
  return !grad || (product_like(x, &p, b, &a->type, &x->val[op->result + 1]) &&
                   product_like(x, &p, a, &b->type, &x->val[op->result + 2]));
}

bool interp_composite(Interp *x, const Op *op) {
  switch (op->code) {
  case OP_SOFTMAX: {
    Tensor p;
    softmax(x, &x->val[op->arg[0]], op->attr.axis, op->attr.n_axis, &p, NULL);
    x->val[op->result] = p;
    return true;
  }
  case OP_ATTENTION: return attention(x, op);
  case OP_ATTENTION_GRAD: return attention_grad(x, op);
  case OP_LINEAR_XENT: return xent(x, op, false);
  case OP_LINEAR_XENT_GRAD: return xent(x, op, true);
  case OP_GRAD: return interp_grad(x, op);
  default: return false;
  }
}
