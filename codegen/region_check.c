/* region_check.c: which regions the host can emit, and which results may overwrite operands. */
#include "codegen/region.h"

#include <stdio.h>
#include <string.h>

typedef enum {
  KIND_NESTS,
  KIND_SCAN,
  KIND_SORT,
  KIND_SCATTER,
  KIND_CONTRACT,
  KIND_ATTENTION,
  KIND_NONE
} Kind;

static Kind kind_of(OpCode c) {
  switch (c) {
  case OP_CUMSUM: return KIND_SCAN;
  case OP_SORT: return KIND_SORT;
  case OP_SCATTER_ADD: return KIND_SCATTER;
  case OP_CONTRACT: return KIND_CONTRACT;
  case OP_ATTENTION:
  case OP_ATTENTION_GRAD: return KIND_CONTRACT;
  case OP_CONST:
  case OP_IOTA:
  case OP_RANDOM:
  case OP_BROADCAST:
  case OP_RENAME:
  case OP_SPLIT:
  case OP_MERGE:
  case OP_REORDER:
  case OP_SLICE:
  case OP_PAD:
  case OP_CONCAT:
  case OP_SUM:
  case OP_REDUCE_MAX:
  case OP_REDUCE_MIN:
  case OP_PROD:
  case OP_ARGMAX:
  case OP_GATHER:
  case OP_SOFTMAX: return KIND_NESTS;
  default: return pointwise_has(c) ? KIND_NESTS : KIND_NONE;
  }
}

static bool supported(DType d) {
  return d == DT_F32 || d == DT_F64 || d == DT_I32 || d == DT_I64 || d == DT_U8 || d == DT_BOOL;
}

/* Running sums of one shape; what is computed from them is used pointwise only; all results have their dims.
 */
static bool scan_ok(const Func *f, const Block *b) {
  Arena a = {0};
  bool ok = true, *tainted = ARENA_ARRAY(&a, bool, f->n_vals + 1);
  const Op *first = NULL;
  for (uint32_t i = 0; i < b->n_ops && ok; i++) {
    const Op *op = &f->op[b->op[i]];
    bool in = false, sum = op->code == OP_CUMSUM;
    for (uint32_t k = 0; k < op->n_args; k++)
      in |= tainted[op->arg[k]];
    ok = !in || op_is_pointwise(op->code) || sum || op->code == OP_BROADCAST;
    first = sum && !first ? op : first;
    if (sum)
      ok = ok && op->attr.axis[0] == first->attr.axis[0] && op->attr.num[0] == first->attr.num[0] &&
           type_same_dims(&f->val[op->result].type, &f->val[first->result].type);
    for (uint32_t r = 0; r < op->n_results; r++)
      tainted[op->result + r] = in || sum;
  }
  for (uint32_t i = 0; i < b->n_ret && ok; i++)
    ok = type_same_dims(&f->val[b->ret[i]].type, &f->val[first->result].type);
  arena_free(&a);
  return ok;
}

/* The result is the scatter, or its sum with a param of the same type. */
static bool scatter_ok(const Func *f, const Block *b) {
  OpId d = b->n_ret == 1 ? f->val[b->ret[0]].def : NONE;
  if (d == NONE || f->op[d].code == OP_SCATTER_ADD)
    return d != NONE;
  const Op *add = &f->op[d];
  for (uint32_t k = 0; k < 2 && add->code == OP_ADD; k++) {
    OpId from = f->val[add->arg[k]].def;
    Val other = add->arg[1 - k];
    if (from != NONE && f->op[from].code == OP_SCATTER_ADD && f->val[other].def == NONE &&
        type_equal(&f->val[other].type, &f->val[add->result].type) &&
        type_equal(&f->val[other].type, &f->val[add->arg[k]].type))
      return true;
  }
  return false;
}

static bool no(char *why, size_t size, const char *text) {
  if (why && size)
    snprintf(why, size, "%s", text);
  return false;
}

bool codegen_region_ok(const Func *f, OpId region, char *why, size_t size) {
  const Op *reg = &f->op[region];
  const Block *b = reg->body;
  int count[KIND_NONE + 1] = {0}, special = 0, reductions = 0;
  if (reg->code != OP_REGION || !b)
    return no(why, size, "not a region");
  if (b->n_params + b->n_ret > CODEGEN_MAX_ARGS)
    return no(why, size, "more than 64 operands and results");
  for (uint32_t i = 0; i < b->n_params; i++)
    if (!supported(f->val[b->param[i]].type.dtype))
      return no(why, size, "dtype without a host kernel");
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    Kind k = kind_of(op->code);
    if (k == KIND_NONE)
      return no(why, size, ir_op_info[op->code].text);
    special += k != KIND_NESTS && count[k]++ == 0;
    reductions += ir_op_info[op->code].cls == CLASS_REDUCE || k == KIND_CONTRACT ? 1
                  : op->code == OP_SOFTMAX                                       ? 2
                                                                                 : 0;
    for (uint32_t r = 0; r < op->n_results; r++)
      if (!supported(f->val[op->result + r].type.dtype))
        return no(why, size, "dtype without a host kernel");
  }
  if (special > 1)
    return no(why, size, "two of contract, attention, cumsum, sort, scatter_add in one region");
  if (reductions > 64)
    return no(why, size, "more than 64 reductions and contractions");
  if (count[KIND_SORT] > 1 || count[KIND_SCATTER] > 1)
    return no(why, size, "two sorts or scatters in one region");
  if (count[KIND_SCAN] && !scan_ok(f, b))
    return no(why, size, "running sums of several shapes, or used other than pointwise");
  if (count[KIND_SCATTER] && !scatter_ok(f, b))
    return no(why, size, "results beside that of scatter_add");
  for (uint32_t i = 0; i < b->n_ret; i++) {
    OpId d = f->val[b->ret[i]].def;
    if (count[KIND_SORT] && (d == NONE || f->op[d].code != OP_SORT))
      return no(why, size, "results beside those of the sort");
  }
  return true;
}

/* Is v only what a scatter starts from? Each task then reads its part before it adds to it. */
static bool starts_scatter(const Func *f, const Block *b, Val v) {
  OpId d = b->n_ret == 1 ? f->val[b->ret[0]].def : NONE;
  if (d == NONE || f->op[d].code != OP_ADD || !scatter_ok(f, b))
    return false;
  uint32_t uses = 0;
  for (uint32_t i = 0; i < b->n_ops; i++)
    for (uint32_t k = 0; k < f->op[b->op[i]].n_args; k++)
      uses += f->op[b->op[i]].arg[k] == v;
  return uses == 1 && (f->op[d].arg[0] == v || f->op[d].arg[1] == v);
}

bool codegen_inplace(const Func *f, OpId region, uint32_t result, uint32_t arg) {
  const Block *b = f->op[region].body;
  const Type *t = &f->val[b->param[arg]].type;
  if (!type_equal(t, &f->val[b->ret[result]].type))
    return false;
  if (b->n_ret == 1 && contract_in_place(f, region, arg))
    return true;
  if (starts_scatter(f, b, b->param[arg]))
    return true;
  Arena a = {0};
  bool ok = true, *tainted = ARENA_ARRAY(&a, bool, f->n_vals + 1);
  tainted[b->param[arg]] = true;
  for (uint32_t i = 0; i < b->n_ops && ok; i++) {
    const Op *op = &f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      tainted[op->result] |= tainted[op->arg[k]];
    Kind kind = kind_of(op->code);
    if (kind != KIND_NESTS || ir_op_info[op->code].cls == CLASS_REDUCE || op->code == OP_SOFTMAX)
      ok = false; /* several phases or passes */
    else if (tainted[op->result])
      ok = (op_is_pointwise(op->code) || op->code == OP_BROADCAST) &&
           type_same_dims(&f->val[op->result].type, t);
  }
  for (uint32_t i = 0; i < b->n_ret && ok; i++) /* results of other dims are written in another pass */
    ok = !tainted[b->ret[i]] || type_same_dims(&f->val[b->ret[i]].type, t);
  arena_free(&a);
  return ok;
}
