/* infer.c: the result types of every op: the table of rules, and those of sources and pointwise ops.
 * infer_move.c and infer_product.c hold the others; type rules live nowhere else.
 *
 * A rule fills results[] or says what is wrong in words a user can act on: axes in 'quotes', operand types
 * printed whole. */
#include "ir/infer.h"

const char *infer_axis(const Infer *x, Axis a) {
  return ir_axis_name(x->m, a);
}

const char *infer_text(const Infer *x) {
  return ir_op_info[x->code].text;
}

bool infer_fail_type(Infer *x, const Type *t, const char *what) {
  Str s = {0};
  type_print(x->m, t, &s);
  error_set(x->err, ERR_INPUT, "%s: %s, which is %s", infer_text(x), what, s.s);
  str_free(&s);
  return false;
}

bool infer_need_axis(Infer *x, const Type *t, Axis a) {
  if (type_has(t, a)) {
    return true;
  }
  Str s = {0};
  type_print(x->m, t, &s);
  error_set(x->err, ERR_INPUT, "%s[%s]: the operand is %s, it does not have the axis '%s'", infer_text(x),
            infer_axis(x, a), s.s, infer_axis(x, a));
  str_free(&s);
  return false;
}

bool infer_need_attr(Infer *x, uint32_t n_axis, uint32_t n_num) {
  return (x->attr->n_axis >= n_axis && x->attr->n_num >= n_num) ||
         error_set(x->err, ERR_INPUT, "%s: attributes are missing", infer_text(x));
}

bool infer_distinct(Infer *x, const Axis *a, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    for (uint32_t k = 0; k < i; k++) {
      if (a[i] == a[k]) {
        return error_set(x->err, ERR_INPUT, "%s: axis '%s' is named twice", infer_text(x),
                         infer_axis(x, a[i]));
      }
    }
  }
  return true;
}

bool infer_join(Infer *x, const Type *a, const Type *b, Type *out) {
  Axis clash = NONE;
  if (type_join(a, b, out, &clash)) {
    return true;
  }
  int i = type_find(a, clash), k = type_find(b, clash);
  if (i >= 0 && k >= 0) {
    return error_set(x->err, ERR_INPUT, "%s: axis '%s' is %lld in one operand and %lld in the other",
                     infer_text(x), infer_axis(x, clash), (long long)a->dim[i].size,
                     (long long)b->dim[k].size);
  }
  return error_set(x->err, ERR_INPUT, "%s: the result would have more than %d axes", infer_text(x),
                   IR_MAX_RANK);
}

bool infer_same_dtype(Infer *x, const Type *a, const Type *b) {
  return a->dtype == b->dtype || error_set(x->err, ERR_INPUT, "%s: operands are %s and %s", infer_text(x),
                                           dtype_name(a->dtype), dtype_name(b->dtype));
}

bool infer_push_dims(Infer *x, Type *t, const Axis *a, const int64_t *size, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (!type_push(t, a[i], size[i])) {
      return error_set(x->err, ERR_INPUT, "%s: axis '%s' twice, or more than %d axes", infer_text(x),
                       infer_axis(x, a[i]), IR_MAX_RANK);
    }
  }
  return true;
}

/* ---- sources ---- */

static bool rule_const(Infer *x) {
  x->out[0] = type_scalar(x->attr->dtype);
  return true;
}

static bool rule_iota(Infer *x) {
  if (!infer_need_attr(x, 1, 1)) {
    return false;
  }
  if (x->attr->num[0] > INT32_MAX) {
    return error_set(x->err, ERR_INPUT, "index(%s): the axis has %lld elements, more than an int can count",
                     infer_axis(x, x->attr->axis[0]), (long long)x->attr->num[0]);
  }
  x->out[0] = type_scalar(DT_I32);
  return type_push(&x->out[0], x->attr->axis[0], x->attr->num[0]);
}

static bool rule_random(Infer *x) {
  if (!infer_need_attr(x, 0, x->attr->n_axis + 1)) {
    return false;
  }
  if (x->n < 2) {
    return error_set(x->err, ERR_INPUT, "random: needs seed and attempt");
  }
  for (uint32_t i = 0; i < x->n; i++) {
    if (x->arg[i].rank || x->arg[i].dtype != (i < 2 ? DT_I64 : DT_I32)) {
      return infer_fail_type(x, &x->arg[i],
                             "seed and attempt are i64 scalars and loop indices int scalars, not this one");
    }
  }
  if (!dtype_is_float(x->attr->dtype)) {
    return error_set(x->err, ERR_INPUT, "random: draws floats, not %s", dtype_name(x->attr->dtype));
  }
  x->out[0] = type_scalar(x->attr->dtype);
  return infer_push_dims(x, &x->out[0], x->attr->axis, x->attr->num, x->attr->n_axis);
}

/* ---- pointwise ---- */

static bool need_float(Infer *x, const Type *t) {
  return !(ir_op_info[x->code].flags & F_FLOAT) || dtype_is_float(t->dtype) ||
         infer_fail_type(x, t, "needs a float operand");
}

static bool rule_unary(Infer *x) {
  x->out[0] = x->arg[0];
  if (x->code == OP_CAST) {
    x->out[0].dtype = x->attr->dtype;
  }
  if (x->code == OP_NOT && x->arg[0].dtype != DT_BOOL) {
    return infer_fail_type(x, &x->arg[0], "needs a bool operand");
  }
  if (x->code != OP_NOT && x->code != OP_CAST && x->code != OP_STOP && x->arg[0].dtype == DT_BOOL) {
    return infer_fail_type(x, &x->arg[0], "needs numbers");
  }
  return need_float(x, &x->arg[0]);
}

static bool rule_binary(Infer *x) {
  if (!infer_same_dtype(x, &x->arg[0], &x->arg[1]) || !need_float(x, &x->arg[0])) {
    return false;
  }
  if (x->code != OP_MAX && x->code != OP_MIN && x->arg[0].dtype == DT_BOOL) {
    return infer_fail_type(x, &x->arg[0], "needs numbers");
  }
  return infer_join(x, &x->arg[0], &x->arg[1], &x->out[0]);
}

static bool rule_compare(Infer *x) {
  if (!infer_same_dtype(x, &x->arg[0], &x->arg[1]) || !infer_join(x, &x->arg[0], &x->arg[1], &x->out[0])) {
    return false;
  }
  x->out[0].dtype = DT_BOOL;
  return true;
}

static bool rule_logic(Infer *x) {
  for (int i = 0; i < 2; i++) {
    if (x->arg[i].dtype != DT_BOOL) {
      return infer_fail_type(x, &x->arg[i], "needs bool operands");
    }
  }
  return infer_join(x, &x->arg[0], &x->arg[1], &x->out[0]);
}

static bool rule_select(Infer *x) {
  if (x->arg[0].dtype != DT_BOOL) {
    return infer_fail_type(x, &x->arg[0], "the condition must be bool");
  }
  if (!infer_same_dtype(x, &x->arg[1], &x->arg[2])) {
    return false;
  }
  /* The operand of largest rank gives the order, whichever it is. */
  int lead = 0;
  for (int i = 1; i < 3; i++) {
    lead = x->arg[i].rank > x->arg[lead].rank ? i : lead;
  }
  Type t = x->arg[lead];
  for (int i = 0; i < 3; i++) {
    if (i != lead && !infer_join(x, &t, &x->arg[i], &t)) {
      return false;
    }
  }
  t.dtype = x->arg[1].dtype;
  x->out[0] = t;
  return true;
}

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
      [OP_CONST] = rule_const,         [OP_IOTA] = rule_iota,
      [OP_RANDOM] = rule_random,       [OP_BROADCAST] = rule_broadcast,
      [OP_RENAME] = rule_rename,       [OP_SPLIT] = rule_split,
      [OP_MERGE] = rule_merge,         [OP_REORDER] = rule_reorder,
      [OP_SLICE] = rule_slice,         [OP_PAD] = rule_pad,
      [OP_CONCAT] = rule_concat,       [OP_SUM] = rule_reduce,
      [OP_REDUCE_MAX] = rule_reduce,   [OP_REDUCE_MIN] = rule_reduce,
      [OP_PROD] = rule_reduce,         [OP_ARGMAX] = rule_reduce,
      [OP_CUMSUM] = rule_cumsum,       [OP_SORT] = rule_sort,
      [OP_CONTRACT] = rule_contract,   [OP_GATHER] = rule_gather,
      [OP_SCATTER_ADD] = rule_scatter, [OP_SOFTMAX] = rule_softmax,
      [OP_ATTENTION] = rule_attention, [OP_ATTENTION_GRAD] = rule_attention_grad,
      [OP_LINEAR_XENT] = rule_xent,    [OP_LINEAR_XENT_GRAD] = rule_xent_grad,
      [OP_GRAD] = rule_grad,           [OP_LOOP] = rule_body,
      [OP_REGION] = rule_body};
  return rules[c];
}

bool ir_infer(const Module *m, OpCode code, const Type *arg, uint32_t n_args, const Attr *attr, Type *results,
              Error *err) {
  const OpInfo *info = &ir_op_info[code];
  static const Attr none = {0};
  Infer x = {m, code, arg, n_args, attr ? attr : &none, results, err};
  if (info->n_args >= 0 && (uint32_t)info->n_args != n_args) {
    return error_set(err, ERR_INPUT, "%s takes %d operands, not %u", info->text, info->n_args, n_args);
  }
  Rule rule = rule_of(code);
  if (!rule || !rule(&x)) {
    return error_set(err, ERR_INPUT, "%s: operands do not fit", info->text);
  }
  for (int i = 0; i < info->n_results; i++) {
    int64_t bytes;
    if (!type_bytes(&results[i], &bytes)) {
      Str s = {0};
      type_print(m, &results[i], &s);
      error_set(err, ERR_INPUT, "%s: a tensor %s cannot be: a size is not positive or its bytes pass 2^63",
                info->text, s.s);
      str_free(&s);
      return false;
    }
  }
  return true;
}
