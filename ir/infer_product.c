/* infer_product.c: result types of contractions, indexing and composites. */
#include "ir/infer.h"

/* ---- products, indexing ---- */

static bool contract_type(Infer *x, const Type *a, const Type *b, const Axis *ax, uint32_t n, Type *out) {
  Type both;
  if (!infer_same_dtype(x, a, b) || !infer_join(x, a, b, &both) || !infer_distinct(x, ax, n)) {
    return false;
  }
  if (a->dtype == DT_BOOL) {
    return infer_fail_type(x, a, "needs numbers");
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!infer_need_axis(x, a, ax[i]) || !infer_need_axis(x, b, ax[i])) {
      return false;
    }
  }
  Type r = type_scalar(a->dtype), ka = type_without(a, ax, n), kb = type_without(b, ax, n);
  for (int pass = 0; pass < 3; pass++) {
    const Type *t = pass == 2 ? &kb : &ka;
    for (int i = 0; i < t->rank; i++) {
      bool shared = type_has(&ka, t->dim[i].axis) && type_has(&kb, t->dim[i].axis);
      if (shared == (pass == 0) && !type_push(&r, t->dim[i].axis, t->dim[i].size)) {
        return error_set(x->err, ERR_INPUT, "%s: the result would have more than %d axes", infer_text(x),
                         IR_MAX_RANK);
      }
    }
  }
  int64_t bytes;
  if (!type_bytes(&r, &bytes)) { /* also of products that no op returns: scores, logits */
    return infer_fail_type(x, &r, "the product is too large");
  }
  *out = r;
  return true;
}

bool rule_contract(Infer *x) {
  return contract_type(x, &x->arg[0], &x->arg[1], x->attr->axis, x->attr->n_axis, &x->out[0]);
}

/* The join of the index operands, in order. */
static bool join_indices(Infer *x, const Type *index, uint32_t n, Type *out) {
  Type t = index[0];
  for (uint32_t i = 0; i < n; i++) {
    if (index[i].dtype != DT_I32 && index[i].dtype != DT_I64) {
      return infer_fail_type(x, &index[i], "an index must be int");
    }
    if (i && !infer_join(x, &t, &index[i], &t)) {
      return false;
    }
  }
  *out = t;
  return true;
}

bool rule_gather(Infer *x) {
  const Attr *a = x->attr;
  if (x->n < 2 || !infer_need_attr(x, x->n - 1, 0)) {
    return error_set(x->err, ERR_INPUT, "gather: needs an index for each axis");
  }
  if (!infer_distinct(x, a->axis, x->n - 1)) {
    return false;
  }
  for (uint32_t i = 0; i + 1 < x->n; i++) {
    if (!infer_need_axis(x, &x->arg[0], a->axis[i])) {
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
                       infer_axis(x, rest.dim[i].axis), (long long)rest.dim[i].size,
                       (long long)(k >= 0 ? t.dim[k].size : 0));
    }
  }
  x->out[0] = t;
  return true;
}

static bool need_size(Infer *x, const Type *t, Dim d) {
  int k = type_find(t, d.axis);
  if (k >= 0 && t->dim[k].size == d.size) {
    return true;
  }
  Str s = {0};
  type_print(x->m, t, &s);
  error_set(x->err, ERR_INPUT, "%s: the result has axis '%s' of size %lld, the operands make %s",
            infer_text(x), infer_axis(x, d.axis), (long long)d.size, s.s);
  str_free(&s);
  return false;
}

bool rule_scatter(Infer *x) {
  const Attr *a = x->attr;
  uint32_t k = x->n - 1;
  if (x->n < 2 || a->n_axis < k || a->n_num != a->n_axis - k) {
    return error_set(x->err, ERR_INPUT, "scatter_add: attributes are missing");
  }
  Type t = type_scalar(x->arg[0].dtype), ind, all;
  if (!infer_push_dims(x, &t, a->axis + k, a->num, a->n_num) || !join_indices(x, x->arg + 1, k, &ind)) {
    return false;
  }
  ind.dtype = x->arg[0].dtype;
  if (!infer_join(x, &x->arg[0], &ind, &all)) {
    return false;
  }
  if (!infer_distinct(x, a->axis, k)) {
    return false;
  }
  for (uint32_t i = 0; i < k; i++) {
    if (!infer_need_axis(x, &t, a->axis[i])) {
      return false;
    }
  }
  Type rest = type_without(&t, a->axis, k);
  for (int i = 0; i < rest.rank; i++) {
    if (!need_size(x, &all, rest.dim[i])) {
      return false;
    }
  }
  x->out[0] = t;
  return true;
}

/* ---- composites ---- */

bool rule_softmax(Infer *x) {
  if (!infer_distinct(x, x->attr->axis, x->attr->n_axis)) {
    return false;
  }
  for (uint32_t i = 0; i < x->attr->n_axis; i++) {
    if (!infer_need_axis(x, &x->arg[0], x->attr->axis[i])) {
      return false;
    }
  }
  x->out[0] = x->arg[0];
  return dtype_is_float(x->arg[0].dtype) || infer_fail_type(x, &x->arg[0], "needs a float operand");
}

/* o and lse of an attention whose first operands are q, k, v. */
static bool attention_type(Infer *x, Type *o, Type *lse) {
  const Attr *a = x->attr;
  Type raw;
  if (x->n < 3 || a->n_axis < 2) {
    return error_set(x->err, ERR_INPUT, "%s: needs q, k, v, head axes and a key axis", infer_text(x));
  }
  const Axis *key = a->axis + a->n_axis - 1;
  if (!dtype_is_float(x->arg[0].dtype)) {
    return infer_fail_type(x, &x->arg[0], "needs float operands");
  }
  if (!contract_type(x, &x->arg[0], &x->arg[1], a->axis, a->n_axis - 1, &raw) ||
      !infer_need_axis(x, &raw, *key) || !contract_type(x, &raw, &x->arg[2], key, 1, o)) {
    return false;
  }
  *lse = type_without(&raw, key, 1);
  return true;
}

bool rule_attention(Infer *x) {
  return attention_type(x, &x->out[0], &x->out[1]);
}

/* The operand must have the dims of `want`, in any order, and its dtype. */
static bool need_like(Infer *x, uint32_t operand, const Type *want, const char *name) {
  if (type_same_dims(&x->arg[operand], want) && x->arg[operand].dtype == want->dtype) {
    return true;
  }
  Str s = {0};
  type_print(x->m, want, &s);
  str_puts(&s, ", not ");
  type_print(x->m, &x->arg[operand], &s);
  error_set(x->err, ERR_INPUT, "%s: %s must be %s", infer_text(x), name, s.s);
  str_free(&s);
  return false;
}

bool rule_attention_grad(Infer *x) {
  Type o, lse;
  if (x->n < 6) {
    return error_set(x->err, ERR_INPUT, "attention_grad: needs q, k, v, o, lse, do");
  }
  if (!attention_type(x, &o, &lse) || !need_like(x, 3, &o, "o") || !need_like(x, 4, &lse, "lse") ||
      !need_like(x, 5, &o, "do")) {
    return false;
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
      !infer_need_axis(x, &logits, a->axis[a->n_axis - 1])) {
    return error_set(x->err, ERR_INPUT, "%s: needs contracted axes and the vocabulary axis", infer_text(x));
  }
  *nll = type_without(&logits, a->axis + a->n_axis - 1, 1);
  Type target = x->arg[2];
  if (!dtype_is_float(logits.dtype)) {
    return infer_fail_type(x, &logits, "needs float operands");
  }
  if (target.dtype != DT_I32 && target.dtype != DT_I64) {
    return infer_fail_type(x, &target, "the target must be int");
  }
  return type_same_dims(nll, &target) ||
         infer_fail_type(x, &target, "the target must have the axes of the loss");
}

bool rule_xent(Infer *x) {
  return xent_type(x, &x->out[0]);
}

bool rule_xent_grad(Infer *x) {
  x->out[1] = x->arg[0];
  x->out[2] = x->arg[1];
  return xent_type(x, &x->out[0]) && need_like(x, 3, &x->out[0], "the cotangent");
}

bool rule_grad(Infer *x) {
  x->out[0] = x->arg[1];
  return (dtype_is_float(x->arg[0].dtype) && dtype_is_float(x->arg[1].dtype)) ||
         infer_fail_type(x, &x->arg[1], "needs floats");
}

bool rule_body(Infer *x) {
  return error_set(x->err, ERR_INPUT, "%s: its results come from its body", infer_text(x));
}
