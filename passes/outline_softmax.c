/* outline_softmax.c: exp(x - max) / sum of the same over some axes becomes `softmax`, with or without the
 * library's guards for rows that are -inf everywhere; logsumexp(L) - L[target] of logits L that are a
 * contraction becomes `linear_xent`. */
#include "passes/internal.h"

#include <math.h>

bool same_axes(const Axis *a, uint32_t n, const Axis *b, uint32_t m) {
  for (uint32_t i = 0; i < n; i++) {
    bool found = false;
    for (uint32_t k = 0; k < m; k++)
      found |= a[i] == b[k];
    if (!found)
      return false;
  }
  return n == m;
}

static bool is_value(const Func *f, Val v, double want) {
  double c;
  return is_const(f, v, &c) && c == want;
}

/* v = select(x == c, by, x): the x, else v itself. */
static Val unguard(const Func *f, Val v, double c, double by) {
  const Op *op = def_op(f, v);
  if (!op || op->code != OP_SELECT || !is_value(f, op->arg[1], by))
    return v;
  const Op *test = def_op(f, op->arg[0]);
  if (!test || test->code != OP_EQ)
    return v;
  Val x = op->arg[2];
  bool found = (test->arg[0] == x && is_value(f, test->arg[1], c)) ||
               (test->arg[1] == x && is_value(f, test->arg[0], c));
  return found ? x : v;
}

/* Through what keeps the value: stops, broadcasts and orders of storage. */
static Val strip(const Func *f, Val v) {
  for (;;) {
    const Op *op = def_op(f, v);
    if (!op || (op->code != OP_STOP && op->code != OP_BROADCAST && op->code != OP_REORDER))
      return v;
    v = op->arg[0];
  }
}

bool is_row_max(const Func *f, Val m, Val x, const Axis *axis, uint32_t n) {
  m = strip(f, unguard(f, strip(f, m), -INFINITY, 0));
  const Op *op = def_op(f, m);
  return op && op->code == OP_REDUCE_MAX && strip(f, op->arg[0]) == strip(f, x) &&
         same_axes(op->attr.axis, op->attr.n_axis, axis, n);
}

/* e = exp(x - row maximum): the x; NONE otherwise. */
static Val shifted_exp(const Func *f, Val e, const Axis *axis, uint32_t n, Val *max, Val *shifted) {
  const Op *op = def_op(f, e);
  if (!op || op->code != OP_EXP)
    return NONE;
  const Op *sub = def_op(f, op->arg[0]);
  if (!sub || sub->code != OP_SUB || !is_row_max(f, sub->arg[1], sub->arg[0], axis, n))
    return NONE;
  *max = sub->arg[1];
  *shifted = op->arg[0];
  return sub->arg[0];
}

Val outline_softmax(Builder *b, OpId id) {
  Func *f = b->f;
  const Op op = f->op[id];
  Val max, shifted;
  if (op.code != OP_DIV)
    return NONE;
  Val s = strip(f, unguard(f, strip(f, op.arg[1]), 0, 1));
  const Op *sum = def_op(f, s);
  if (!sum || sum->code != OP_SUM || sum->arg[0] != op.arg[0])
    return NONE;
  const Attr attr = {.axis = sum->attr.axis, .n_axis = sum->attr.n_axis};
  Val x = shifted_exp(f, op.arg[0], attr.axis, attr.n_axis, &max, &shifted);
  if (x == NONE)
    return NONE;
  const Type want = *ir_type(f, op.result);
  return build_as(b, ir_op(b, OP_SOFTMAX, &x, 1, &attr, NULL), &want);
}

/* ---- projection + cross-entropy ---- */

enum { MAX_TERMS = 16 };

typedef struct {
  Val v;      /* the term, before it was indexed */
  OpId index; /* the gather it is seen through, or NONE */
  int sign;
} Term;

typedef struct {
  const Func *f;
  Term term[MAX_TERMS];
  uint32_t n;
  Val atom; /* not split further */
} Sum;

/* Splits v into signed terms, through the gather `index` if any: (a - b)[i] = a[i] - b[i], and b[i] = b where
 * b lacks the axis. */
static bool split_terms(Sum *s, Val v, OpId index, int sign) {
  const Op *op = v == s->atom ? NULL : def_op(s->f, v);
  if (op && (op->code == OP_ADD || op->code == OP_SUB))
    return split_terms(s, op->arg[0], index, sign) &&
           split_terms(s, op->arg[1], index, op->code == OP_SUB ? -sign : sign);
  if (op && op->code == OP_NEG)
    return split_terms(s, op->arg[0], index, -sign);
  if (op && op->code == OP_GATHER && index == NONE && op->n_args == 2)
    return split_terms(s, op->arg[0], s->f->val[v].def, sign);
  if (op && (op->code == OP_BROADCAST || op->code == OP_STOP))
    return split_terms(s, op->arg[0], index, sign);
  if (index != NONE && !type_has(ir_type(s->f, v), s->f->op[index].attr.axis[0]))
    index = NONE;
  if (s->n == MAX_TERMS)
    return false;
  s->term[s->n++] = (Term){v, index, sign};
  return true;
}

typedef struct {
  Val logits, max, shifted, log, target;
  Axis vocab;
  int sign;
} Xent;

/* The term +- log sum exp(L - max). */
static bool find_logsumexp(const Sum *s, Xent *x, uint32_t *at) {
  const Func *f = s->f;
  for (uint32_t i = 0; i < s->n; i++) {
    const Op *log = def_op(f, s->term[i].v);
    const Op *sum = log && log->code == OP_LOG && s->term[i].index == NONE
                        ? def_op(f, unguard(f, log->arg[0], 0, 1))
                        : NULL;
    if (!sum || sum->code != OP_SUM || sum->attr.n_axis != 1)
      continue;
    x->logits = shifted_exp(f, sum->arg[0], sum->attr.axis, 1, &x->max, &x->shifted);
    if (x->logits == NONE)
      continue;
    x->log = s->term[i].v;
    x->vocab = sum->attr.axis[0];
    x->sign = s->term[i].sign;
    *at = i;
    return true;
  }
  return false;
}

/* Removes one term that `want` accepts with the sign. */
static bool take(Sum *s, Val v, bool indexed, int sign, OpId *index) {
  for (uint32_t i = 0; i < s->n; i++) {
    const Term *t = &s->term[i];
    if (strip(s->f, t->v) != strip(s->f, v) || t->sign != sign || (t->index != NONE) != indexed)
      continue;
    *index = t->index;
    s->term[i] = s->term[--s->n];
    return true;
  }
  return false;
}

/* Cancels pairs of equal terms with opposite signs: the shift of a log-softmax that is then indexed. */
static void cancel(Sum *s) {
  for (uint32_t i = 0; i < s->n; i++)
    for (uint32_t k = 0; k < s->n; k++) {
      const Term a = s->term[i], c = s->term[k];
      if (a.v != c.v || a.index != c.index || a.sign != -c.sign)
        continue;
      uint32_t hi = i > k ? i : k, lo = i > k ? k : i;
      s->term[hi] = s->term[--s->n];
      s->term[lo] = s->term[--s->n];
      i = UINT32_MAX; /* again from the start */
      break;
    }
}

static bool match_xent(const Func *f, Val v, Xent *x) {
  Sum s = {.f = f, .atom = NONE}, max = {.f = f, .atom = NONE};
  uint32_t at;
  OpId index, none;
  if (!split_terms(&s, v, NONE, 1) || !find_logsumexp(&s, x, &at))
    return false;
  s.n = 0;
  s.atom = x->logits;
  if (!split_terms(&s, v, NONE, 1) || !find_logsumexp(&s, x, &at))
    return false;
  s.term[at] = s.term[--s.n];
  if (!take(&s, x->logits, true, -x->sign, &index))
    return false;
  /* The maximum is added back once, unless it cancels against the target's. */
  split_terms(&max, x->max, NONE, 1);
  cancel(&s);
  if (s.n != 1 || max.n != 1 || !take(&s, max.term[0].v, false, x->sign, &none))
    return false;
  x->target = f->op[index].arg[1];
  return f->op[index].attr.axis[0] == x->vocab;
}

/* Logits that also go elsewhere with a gradient would be computed twice and stored anyway. The loss itself
 * names them in a maximum, a shift and a gather. */
static bool only_for_loss(const Func *f, Val logits, const OutlineInfo *info) {
  uint32_t others = 0;
  for (uint32_t i = 0; i < info->n_ops; i++) {
    const Op *op = &f->op[info->ops[i]];
    bool known =
        op->code == OP_REDUCE_MAX || op->code == OP_SUB || op->code == OP_GATHER || op->code == OP_STOP;
    for (uint32_t k = 0; k < op->n_args; k++)
      others += op->arg[k] == logits && !known && op->result < info->n && info->use[op->result];
  }
  return others == 0;
}

/* The composite, when the logits are a contraction of tokens with a table that has only the vocabulary and
 * the contracted axes; NONE otherwise. */
static Val fused_loss(Builder *b, const Xent *x, const Type *nll, const OutlineInfo *info) {
  Func *f = b->f;
  const Op *def = def_op(f, strip(f, x->logits));
  if (!def || def->code != OP_CONTRACT || !only_for_loss(f, x->logits, info))
    return NONE;
  const Op c = *def;
  bool first = type_has(ir_type(f, c.arg[0]), x->vocab);
  Val w = c.arg[first ? 0 : 1], in = c.arg[first ? 1 : 0];
  const Type *tw = ir_type(f, w), *tx = ir_type(f, in);
  if (type_has(tx, x->vocab) || tw->rank != c.attr.n_axis + 1 || tx->rank != c.attr.n_axis + nll->rank)
    return NONE;
  Type tt = *nll;
  tt.dtype = ir_type(f, x->target)->dtype;
  Axis axis[IR_MAX_RANK + 1];
  for (uint32_t i = 0; i < c.attr.n_axis; i++)
    axis[i] = c.attr.axis[i];
  axis[c.attr.n_axis] = x->vocab;
  const Attr attr = {.axis = axis, .n_axis = c.attr.n_axis + 1};
  Val target = type_same_dims(ir_type(f, x->target), nll) ? x->target : ir_broadcast(b, x->target, &tt);
  return ir_op(b, OP_LINEAR_XENT, (Val[]){in, w, target}, 3, &attr, NULL);
}

Val outline_linear_xent(Builder *b, OpId id, const OutlineInfo *info) {
  Func *f = b->f;
  const Op op = f->op[id];
  Xent x = {.max = NONE};
  if ((op.code != OP_SUB && op.code != OP_ADD && op.code != OP_NEG) || !match_xent(f, op.result, &x))
    return NONE;
  const Type want = *ir_type(f, op.result);
  for (uint32_t i = 0; i < ir_type(f, x.target)->rank; i++)
    if (!type_has(&want, ir_type(f, x.target)->dim[i].axis))
      return NONE;
  Val r = fused_loss(b, &x, &want, info);
  if (r == NONE) /* other logits: in the form in which a large offset shared by them cancels first */
    r = ir_binary(b, OP_SUB, x.log, ir_gather(b, x.shifted, &x.vocab, &x.target, 1));
  if (x.sign < 0 && r != NONE)
    r = ir_unary(b, OP_NEG, r);
  return build_as(b, r, &want);
}
