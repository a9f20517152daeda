/* infer.h: what the files of type inference share. Internal to ir/. */
#ifndef DLC_IR_INFER_H
#define DLC_IR_INFER_H

#include "ir/ir.h"

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

const char *infer_axis(const Infer *x, Axis a);
const char *infer_text(const Infer *x);

/* Each says what is wrong and returns false when the condition does not hold. */
bool infer_fail_type(Infer *x, const Type *t, const char *what);
bool infer_need_axis(Infer *x, const Type *t, Axis a);
bool infer_need_attr(Infer *x, uint32_t n_axis, uint32_t n_num);
/* Two operands stepping along one axis, or one axis summed twice, have no meaning. */
bool infer_distinct(Infer *x, const Axis *a, uint32_t n);
bool infer_join(Infer *x, const Type *a, const Type *b, Type *out);
bool infer_same_dtype(Infer *x, const Type *a, const Type *b);
bool infer_push_dims(Infer *x, Type *t, const Axis *a, const int64_t *size, uint32_t n);

/* One rule a row or group of rows. */
bool rule_broadcast(Infer *x);
bool rule_rename(Infer *x);
bool rule_split(Infer *x);
bool rule_merge(Infer *x);
bool rule_reorder(Infer *x);
bool rule_slice(Infer *x);
bool rule_pad(Infer *x);
bool rule_concat(Infer *x);
bool rule_reduce(Infer *x);
bool rule_cumsum(Infer *x);
bool rule_sort(Infer *x);
bool rule_contract(Infer *x);
bool rule_gather(Infer *x);
bool rule_scatter(Infer *x);
bool rule_softmax(Infer *x);
bool rule_attention(Infer *x);
bool rule_attention_grad(Infer *x);
bool rule_xent(Infer *x);
bool rule_xent_grad(Infer *x);
bool rule_grad(Infer *x);
bool rule_body(Infer *x);

#endif
