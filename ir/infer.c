/* infer.c: the result types of every op: the one place type rules live.
 *
 * A rule fills results[] or says what is wrong in words a user can act on: axes in 'quotes', operand types printed whole. */
#include "ir/ir.h"

#include <string.h>

typedef struct {
  const Module *m;
  OpCode code;
  const Type *arg;
  uint32_t n;
  const Attr *attr;
  Type *out;
  Error *err;
} Infer;

typedef bool (*Rule)(Infer *x);

static const char *axis(const Infer *x, Axis a) { return ir_axis_name(x->m, a); }

static const char *text(const Infer *x) { return ir_op_info[x->code].text; }

static bool fail_type(Infer *x, const Type *t, const char *what) {
  Str s = {0};
  type_print(x->m, t, &s);
  error_set(x->err, ERR_INPUT, "%s: %s, which is %s", text(x), what, s.s);
  str_free(&s);
  return false;
}

static bool need_axis(Infer *x, const Type *t, Axis a) {
  if (type_has(t, a)) {
    return true;
  }
  Str s = {0};
  type_print(x->m, t, &s);
  error_set(x->err, ERR_INPUT, "%s[%s]: the operand is %s, it does not have the axis '%s'", text(x), axis(x, a), s.s, axis(x, a));
  str_free(&s);
  return false;
}

static bool need_attr(Infer *x, uint32_t n_axis, uint32_t n_num) {
  return (x->attr->n_axis >= n_axis && x->attr->n_num >= n_num) ||
         error_set(x->err, ERR_INPUT, "%s: attributes are missing", text(x));
}

static bool join(Infer *x, const Type *a, const Type *b, Type *out) {
  Axis clash = NONE;
  if (type_join(a, b, out, &clash)) {
    return true;
  }
  int i = type_find(a, clash), k = type_find(b, clash);
  if (i >= 0 && k >= 0) {
    return error_set(x->err, ERR_INPUT, "%s: axis '%s' is %lld in one operand and %lld in the other", text(x), axis(x, clash),
                     (long long)a->dim[i].size, (long long)b->dim[k].size);
  }
  return error_set(x->err, ERR_INPUT, "%s: the result would have more than %d axes", text(x), IR_MAX_RANK);
}

static bool same_dtype(Infer *x, const Type *a, const Type *b) {
  return a->dtype == b->dtype || error_set(x->err, ERR_INPUT, "%s: operands are %s and %s", text(x), dtype_name(a->dtype),
                                           dtype_name(b->dtype));
}

/* ---- sources ---- */

static bool rule_const(Infer *x) {
  x->out[0] = type_scalar(x->attr->dtype);
  return true;
}

static bool rule_iota(Infer *x) {
  if (!need_attr(x, 1, 1)) {
    return false;
  }
  x->out[0] = type_scalar(DT_I32);
  return type_push(&x->out[0], x->attr->axis[0], x->attr->num[0]);
}

static bool push_dims(Infer *x, Type *t, const Axis *a, const int64_t *size, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (!type_push(t, a[i], size[i])) {
      return error_set(x->err, ERR_INPUT, "%s: axis '%s' twice, or more than %d axes", text(x), axis(x, a[i]), IR_MAX_RANK);
    }
  }
  return true;
}

static bool rule_random(Infer *x) {
  if (!need_attr(x, 0, x->attr->n_axis + 1)) {
    return false;
  }
  if (x->n < 2) {
    return error_set(x->err, ERR_INPUT, "random: needs seed and attempt");
  }
  x->out[0] = type_scalar(x->attr->dtype);
  return push_dims(x, &x->out[0], x->attr->axis, x->attr->num, x->attr->n_axis);
}

/* ---- pointwise ---- */

static bool need_float(Infer *x, const Type *t) {
  return !(ir_op_info[x->code].flags & F_FLOAT) || dtype_is_float(t->dtype) ||
         fail_type(x, t, "needs a float operand");
}

static bool rule_unary(Infer *x) {
  x->out[0] = x->arg[0];
  if (x->code == OP_CAST) {
    x->out[0].dtype = x->attr->dtype;
  }
  if (x->code == OP_NOT && x->arg[0].dtype != DT_BOOL) {
    return fail_type(x, &x->arg[0], "needs a bool operand");
  }
  return need_float(x, &x->arg[0]);
}

static bool rule_binary(Infer *x) {
  if (!same_dtype(x, &x->arg[0], &x->arg[1]) || !need_float(x, &x->arg[0])) {
    return false;
  }
  if (x->code != OP_MAX && x->code != OP_MIN && x->arg[0].dtype == DT_BOOL) {
    return fail_type(x, &x->arg[0], "needs numbers");
  }
  return join(x, &x->arg[0], &x->arg[1], &x->out[0]);
}

static bool rule_compare(Infer *x) {
  if (!same_dtype(x, &x->arg[0], &x->arg[1]) || !join(x, &x->arg[0], &x->arg[1], &x->out[0])) {
    return false;
  }
  x->out[0].dtype = DT_BOOL;
  return true;
}

static bool rule_logic(Infer *x) {
  for (int i = 0; i < 2; i++) {
    if (x->arg[i].dtype != DT_BOOL) {
      return fail_type(x, &x->arg[i], "needs bool operands");
    }
  }
  return join(x, &x->arg[0], &x->arg[1], &x->out[0]);
}

static bool rule_select(Infer *x) {
  if (x->arg[0].dtype != DT_BOOL) {
    return fail_type(x, &x->arg[0], "the condition must be bool");
  }
  if (!same_dtype(x, &x->arg[1], &x->arg[2])) {
    return false;
  }
  /* The operand of largest rank gives the order, whichever it is. */
  int lead = 0;
  for (int i = 1; i < 3; i++) {
    lead = x->arg[i].rank > x->arg[lead].rank ? i : lead;
  }
  Type t = x->arg[lead];
  for (int i = 0; i < 3; i++) {
    if (i != lead && !join(x, &t, &x->arg[i], &t)) {
      return false;
    }
  }
  t.dtype = x->arg[1].dtype;
  x->out[0] = t;
  return true;
}

/* ---- movement ---- */

static bool rule_broadcast(Infer *x) {
  if (!need_attr(x, 0, x->attr->n_axis)) {
    return false;
  }
  x->out[0] = type_scalar(x->arg[0].dtype);
  if (!push_dims(x, &x->out[0], x->attr->axis, x->attr->num, x->attr->n_axis)) {
    return false;
  }
  for (int i = 0; i < x->arg[0].rank; i++) {
    Dim d = x->arg[0].dim[i];
    int k = type_find(&x->out[0], d.axis);
    if (k < 0 || x->out[0].dim[k].size != d.size) {
      return error_set(x->err, ERR_INPUT, "broadcast: axis '%s' of size %lld is not in the result", axis(x, d.axis), (long long)d.size);
    }
  }
  return true;
}

static bool rule_rename(Infer *x) {
  const Attr *a = x->attr;
  Type t = x->arg[0];
  for (uint32_t i = 0; i + 1 < a->n_axis; i += 2) {
    if (!need_axis(x, &x->arg[0], a->axis[i])) {
      return false;
    }
    t.dim[type_find(&x->arg[0], a->axis[i])].axis = a->axis[i + 1];
  }
  for (int i = 0; i < t.rank; i++) {
    for (int k = 0; k < i; k++) {
      if (t.dim[i].axis == t.dim[k].axis) {
        return error_set(x->err, ERR_INPUT, "rename: the result would have the axis '%s' twice", axis(x, t.dim[i].axis));
      }
    }
  }
  x->out[0] = t;
  return true;
}

/* Replaces dim `at` of t by n dims. */
static bool replace_dim(Infer *x, const Type *t, int at, const Axis *a, const int64_t *size, uint32_t n, Type *out) {
  Type r = type_scalar(t->dtype);
  for (int i = 0; i < t->rank; i++) {
    bool ok = i == at ? push_dims(x, &r, a, size, n) : push_dims(x, &r, &t->dim[i].axis, &t->dim[i].size, 1);
    if (!ok) {
      return false;
    }
  }
  *out = r;
  return true;
}

static bool rule_split(Infer *x) {
  const Attr *a = x->attr;
  if (!need_attr(x, 2, a->n_axis - 1) || !need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  int64_t n = 1;
  for (uint32_t i = 0; i + 1 < a->n_axis; i++) {
    if (!size_mul(n, a->num[i], &n)) {
      n = -1;
    }
  }
  if (n != x->arg[0].dim[at].size) {
    return error_set(x->err, ERR_INPUT, "split: axis '%s' has size %lld, the parts make %lld", axis(x, a->axis[0]),
                     (long long)x->arg[0].dim[at].size, (long long)n);
  }
  return replace_dim(x, &x->arg[0], at, a->axis + 1, a->num, a->n_axis - 1, &x->out[0]);
}

static bool rule_merge(Infer *x) {
  const Attr *a = x->attr;
  if (!need_attr(x, 2, 0)) {
    return false;
  }
  int64_t size = 1;
  for (uint32_t i = 0; i + 1 < a->n_axis; i++) {
    if (!need_axis(x, &x->arg[0], a->axis[i])) {
      return false;
    }
    if (!size_mul(size, x->arg[0].dim[type_find(&x->arg[0], a->axis[i])].size, &size)) {
      return error_set(x->err, ERR_INPUT, "merge: the size of '%s' overflows", axis(x, a->axis[a->n_axis - 1]));
    }
  }
  Type t = type_scalar(x->arg[0].dtype);
  for (int i = 0; i < x->arg[0].rank; i++) {
    Dim d = x->arg[0].dim[i];
    bool merged = false;
    for (uint32_t k = 0; k + 1 < a->n_axis; k++) {
      merged |= d.axis == a->axis[k];
    }
    if (d.axis == a->axis[0]) {
      d = (Dim){a->axis[a->n_axis - 1], size};
    } else if (merged) {
      continue;
    }
    if (!push_dims(x, &t, &d.axis, &d.size, 1)) {
      return false;
    }
  }
  x->out[0] = t;
  return true;
}

static bool rule_reorder(Infer *x) {
  Type t = type_scalar(x->arg[0].dtype);
  for (uint32_t i = 0; i < x->attr->n_axis; i++) {
    if (!need_axis(x, &x->arg[0], x->attr->axis[i])) {
      return false;
    }
    Dim d = x->arg[0].dim[type_find(&x->arg[0], x->attr->axis[i])];
    if (!push_dims(x, &t, &d.axis, &d.size, 1)) {
      return false;
    }
  }
  x->out[0] = t;
  return t.rank == x->arg[0].rank || error_set(x->err, ERR_INPUT, "reorder: an axis is missing");
}

static bool rule_slice(Infer *x) {
  const Attr *a = x->attr;
  if (!need_attr(x, 1, 2) || !need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  int64_t size = x->arg[0].dim[at].size;
  if (a->num[0] < 0 || a->num[1] > size || a->num[0] >= a->num[1]) {
    return error_set(x->err, ERR_INPUT, "slice: %lld..%lld is outside axis '%s' of size %lld, or empty", (long long)a->num[0],
                     (long long)a->num[1], axis(x, a->axis[0]), (long long)size);
  }
  x->out[0] = x->arg[0];
  x->out[0].dim[at].size = a->num[1] - a->num[0];
  return true;
}

static bool rule_pad(Infer *x) {
  const Attr *a = x->attr;
  if (!need_attr(x, 2, 2) || !need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  int64_t size;
  if (!size_add(x->arg[0].dim[at].size, a->num[0], &size) || !size_add(size, a->num[1], &size)) {
    return error_set(x->err, ERR_INPUT, "pad: the widths of '%s' are negative or overflow", axis(x, a->axis[0]));
  }
  return replace_dim(x, &x->arg[0], at, a->axis + 1, &size, 1, &x->out[0]);
}

static bool rule_concat(Infer *x) {
  const Attr *a = x->attr;
  if (x->n < 1 || !need_attr(x, x->n + 1, 0)) {
    return error_set(x->err, ERR_INPUT, "concat: needs operands and an axis for each");
  }
  int64_t size = 0;
  Type rest = {0};
  for (uint32_t i = 0; i < x->n; i++) {
    if (!need_axis(x, &x->arg[i], a->axis[i + 1]) || !same_dtype(x, &x->arg[0], &x->arg[i])) {
      return false;
    }
    Type other = type_without(&x->arg[i], &a->axis[i + 1], 1);
    if (i && !type_same_dims(&rest, &other)) {
      return fail_type(x, &x->arg[i], "all operands must agree in their other axes; this one does not");
    }
    rest = i ? rest : other;
    if (!size_add(size, x->arg[i].dim[type_find(&x->arg[i], a->axis[i + 1])].size, &size)) {
      return error_set(x->err, ERR_INPUT, "concat: the size of '%s' overflows", axis(x, a->axis[0]));
    }
  }
  return replace_dim(x, &x->arg[0], type_find(&x->arg[0], a->axis[1]), a->axis, &size, 1, &x->out[0]);
}

/* ---- reductions ---- */

static bool rule_reduce(Infer *x) {
  const Attr *a = x->attr;
  for (uint32_t i = 0; i < a->n_axis; i++) {
    if (!need_axis(x, &x->arg[0], a->axis[i])) {
      return false;
    }
    for (uint32_t k = 0; k < i; k++) {
      if (a->axis[i] == a->axis[k]) {
        return error_set(x->err, ERR_INPUT, "%s: axis '%s' is named twice", text(x), axis(x, a->axis[i]));
      }
    }
  }
  if ((x->code == OP_SUM || x->code == OP_PROD) && x->arg[0].dtype == DT_BOOL) {
    return fail_type(x, &x->arg[0], "needs numbers");
  }
  x->out[0] = type_without(&x->arg[0], a->axis, a->n_axis);
  if (x->code == OP_ARGMAX) {
    x->out[0].dtype = DT_I32;
  }
  return true;
}

static bool rule_cumsum(Infer *x) {
  if (!need_attr(x, 1, 1) || !need_axis(x, &x->arg[0], x->attr->axis[0])) {
    return false;
  }
  x->out[0] = x->arg[0];
  return true;
}

static bool rule_sort(Infer *x) {
  const Attr *a = x->attr;
  if (!need_attr(x, 2, 2) || !need_axis(x, &x->arg[0], a->axis[0])) {
    return false;
  }
  int at = type_find(&x->arg[0], a->axis[0]);
  if (a->num[0] < 1 || a->num[0] > x->arg[0].dim[at].size) {
    return error_set(x->err, ERR_INPUT, "sort: '%s' of size %lld is longer than '%s' of size %lld", axis(x, a->axis[1]),
                     (long long)a->num[0], axis(x, a->axis[0]), (long long)x->arg[0].dim[at].size);
  }
  if (!replace_dim(x, &x->arg[0], at, a->axis + 1, a->num, 1, &x->out[0])) {
    return false;
  }
  x->out[1] = x->out[0];
  x->out[1].dtype = DT_I32;
  return true;
}

/* ---- products, indexing ---- */

static bool contract_type(Infer *x, const Type *a, const Type *b, const Axis *ax, uint32_t n, Type *out) {
  Type both;
  if (!same_dtype(x, a, b) || !join(x, a, b, &both)) {
    return false;
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!need_axis(x, a, ax[i]) || !need_axis(x, b, ax[i])) {
      return false;
    }
  }
  Type r = type_scalar(a->dtype), ka = type_without(a, ax, n), kb = type_without(b, ax, n);
  for (int pass = 0; pass < 3; pass++) {
    const Type *t = pass == 2 ? &kb : &ka;
    for (int i = 0; i < t->rank; i++) {
      bool shared = type_has(&ka, t->dim[i].axis) && type_has(&kb, t->dim[i].axis);
      if (shared == (pass == 0) && !type_push(&r, t->dim[i].axis, t->dim[i].size)) {
        return error_set(x->err, ERR_INPUT, "%s: the result would have more than %d axes", text(x), IR_MAX_RANK);
      }
    }
  }
  *out = r;
  return true;
}

static bool rule_contract(Infer *x) {
  return contract_type(x, &x->arg[0], &x->arg[1], x->attr->axis, x->attr->n_axis, &x->out[0]);
}

/* The join of the index operands, in order. */
static bool join_indices(Infer *x, const Type *index, uint32_t n, Type *out) {
  Type t = index[0];
  for (uint32_t i = 0; i < n; i++) {
    if (index[i].dtype != DT_I32 && index[i].dtype != DT_I64) {
      return fail_type(x, &index[i], "an index must be int");
    }
    if (i && !join(x, &t, &index[i], &t)) {
      return false;
    }
  }
  *out = t;
  return true;
}

static bool rule_gather(Infer *x) {
  const Attr *a = x->attr;
  if (x->n < 2 || !need_attr(x, x->n - 1, 0)) {
    return error_set(x->err, ERR_INPUT, "gather: needs an index for each axis");
  }
  for (uint32_t i = 0; i + 1 < x->n; i++) {
    if (!need_axis(x, &x->arg[0], a->axis[i])) {
      return false;
    }
  }
  Type t, rest = type_without(&x->arg[0], a->axis, x->n - 1);
  if (!join_indices(x, x->arg + 1, x->n - 1, &t)) {
    return false;
  }
  t.dtype = rest.dtype;
  for (int i = 0; i < rest.rank; i++) {
    int k = type_find(&t, rest.dim[i].axis);
    if (k >= 0 ? t.dim[k].size != rest.dim[i].size : !type_push(&t, rest.dim[i].axis, rest.dim[i].size)) {
      return error_set(x->err, ERR_INPUT, "gather: axis '%s' is %lld in the operand and %lld in the index",
                       axis(x, rest.dim[i].axis), (long long)rest.dim[i].size, (long long)(k >= 0 ? t.dim[k].size : 0));
    }
  }
  x->out[0] = t;
  return true;
}

static bool rule_scatter(Infer *x) {
  const Attr *a = x->attr;
  uint32_t k = x->n - 1;
  if (x->n < 2 || a->n_axis < k || a->n_num != a->n_axis - k) {
    return error_set(x->err, ERR_INPUT, "scatter_add: attributes are missing");
  }
  Type t = type_scalar(x->arg[0].dtype), ind, all;
  if (!push_dims(x, &t, a->axis + k, a->num, a->n_num) || !join_indices(x, x->arg + 1, k, &ind)) {
    return false;
  }
  ind.dtype = x->arg[0].dtype;
  if (!join(x, &x->arg[0], &ind, &all)) {
    return false;
  }
  for (uint32_t i = 0; i < k; i++) {
    if (!need_axis(x, &t, a->axis[i])) {
      return false;
    }
  }
  x->out[0] = t;
  return true;
}

/* ---- composites ---- */

static bool rule_softmax(Infer *x) {
  for (uint32_t i = 0; i < x->attr->n_axis; i++) {
    if (!need_axis(x, &x->arg[0], x->attr->axis[i])) {
      return false;
    }
  }
  x->out[0] = x->arg[0];
  return dtype_is_float(x->arg[0].dtype) || fail_type(x, &x->arg[0], "needs a float operand");
}

static bool rule_attention(Infer *x) {
  const Attr *a = x->attr;
  Type raw, o;
  if (x->n < 3 || a->n_axis < 2) {
    return error_set(x->err, ERR_INPUT, "attention: needs q, k, v, head axes and a key axis");
  }
  if (!contract_type(x, &x->arg[0], &x->arg[1], a->axis, a->n_axis - 1, &raw) || !need_axis(x, &raw, a->axis[a->n_axis - 1]) ||
      !contract_type(x, &raw, &x->arg[2], a->axis + a->n_axis - 1, 1, &o)) {
    return false;
  }
  x->out[0] = o;
  x->out[1] = type_without(&raw, a->axis + a->n_axis - 1, 1);
  return true;
}

static bool rule_attention_grad(Infer *x) {
  if (x->n < 6) {
    return error_set(x->err, ERR_INPUT, "attention_grad: needs q, k, v, o, lse, do");
  }
  for (int i = 0; i < 3; i++) {
    x->out[i] = x->arg[i];
  }
  return true;
}

static bool xent_type(Infer *x, Type *nll) {
  const Attr *a = x->attr;
  Type logits;
  if (a->n_axis < 2 || !contract_type(x, &x->arg[0], &x->arg[1], a->axis, a->n_axis - 1, &logits) ||
      !need_axis(x, &logits, a->axis[a->n_axis - 1])) {
    return error_set(x->err, ERR_INPUT, "%s: needs contracted axes and the vocabulary axis", text(x));
  }
  *nll = type_without(&logits, a->axis + a->n_axis - 1, 1);
  Type target = x->arg[2];
  return type_same_dims(nll, &target) || fail_type(x, &target, "the target must have the axes of the loss");
}

static bool rule_xent(Infer *x) { return xent_type(x, &x->out[0]); }

static bool rule_xent_grad(Infer *x) {
  x->out[1] = x->arg[0];
  x->out[2] = x->arg[1];
  return xent_type(x, &x->out[0]);
}

static bool rule_grad(Infer *x) {
  x->out[0] = x->arg[1];
  return (dtype_is_float(x->arg[0].dtype) && dtype_is_float(x->arg[1].dtype)) || fail_type(x, &x->arg[1], "needs floats");
}

static bool rule_body(Infer *x) { return error_set(x->err, ERR_INPUT, "%s: its results come from its body", text(x)); }

/* ---- the table ---- */

static Rule rule_of(OpCode c) {
  switch (ir_op_info[c].cls) {
  case CLASS_UNARY: return rule_unary;
  case CLASS_BINARY: return rule_binary;
  case CLASS_COMPARE: return rule_compare;
  case CLASS_LOGIC: return rule_logic;
  case CLASS_SELECT: return rule_select;
  default: break;
  }
  static const Rule rules[OP_COUNT] = {
      [OP_CONST] = rule_const, [OP_IOTA] = rule_iota, [OP_RANDOM] = rule_random, [OP_BROADCAST] = rule_broadcast,
      [OP_RENAME] = rule_rename, [OP_SPLIT] = rule_split, [OP_MERGE] = rule_merge, [OP_REORDER] = rule_reorder,
      [OP_SLICE] = rule_slice, [OP_PAD] = rule_pad, [OP_CONCAT] = rule_concat, [OP_SUM] = rule_reduce,
      [OP_REDUCE_MAX] = rule_reduce, [OP_REDUCE_MIN] = rule_reduce, [OP_PROD] = rule_reduce, [OP_ARGMAX] = rule_reduce,
      [OP_CUMSUM] = rule_cumsum, [OP_SORT] = rule_sort, [OP_CONTRACT] = rule_contract, [OP_GATHER] = rule_gather,
      [OP_SCATTER_ADD] = rule_scatter, [OP_SOFTMAX] = rule_softmax, [OP_ATTENTION] = rule_attention,
      [OP_ATTENTION_GRAD] = rule_attention_grad, [OP_LINEAR_XENT] = rule_xent, [OP_LINEAR_XENT_GRAD] = rule_xent_grad,
      [OP_GRAD] = rule_grad, [OP_LOOP] = rule_body, [OP_REGION] = rule_body};
  return rules[c];
}

bool ir_infer(const Module *m, OpCode code, const Type *arg, uint32_t n_args, const Attr *attr, Type *results, Error *err) {
  const OpInfo *info = &ir_op_info[code];
  static const Attr none = {0};
  Infer x = {m, code, arg, n_args, attr ? attr : &none, results, err};
  if (info->n_args >= 0 && (uint32_t)info->n_args != n_args) {
    return error_set(err, ERR_INPUT, "%s takes %d operands, not %u", info->text, info->n_args, n_args);
  }
  if (!rule_of(code)(&x)) {
    return error_set(err, ERR_INPUT, "%s: operands do not fit", info->text);
  }
  for (int i = 0; i < info->n_results; i++) {
    int64_t bytes;
    if (!type_bytes(&results[i], &bytes)) {
      Str s = {0};
      type_print(m, &results[i], &s);
      error_set(err, ERR_INPUT, "%s: a tensor %s cannot be: a size is not positive or its bytes pass 2^63", info->text, s.s);
      str_free(&s);
      return false;
    }
  }
  return true;
}
