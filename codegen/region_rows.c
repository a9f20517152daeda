/* region_rows.c: costly values of a row that a later pass needs again (the exponentials of a softmax) are
 * kept in thread scratch. */
#include "codegen/region.h"

#include <string.h>

enum { MAX_ROWS = 8, MAX_ROW_BYTES = 256 * 1024, COSTLY_FLOPS = 8 };

struct Row {
  Val v;
  Idx map[IR_MAX_RANK]; /* of the row: the lane dim aside */
  int lane;             /* position of the lane axis in v's dims */
  LLVMValueRef ptr;
  Scope *scope;
  uint32_t pass;
  bool done;
};

struct Rows {
  struct Row row[MAX_ROWS];
  uint32_t n, pass;
  int64_t bytes;
  LLVMValueRef base; /* thread scratch */
};

void rows_reset(Emit *e) {
  e->rows = ARENA_NEW(e->arena, Rows);
}

static bool costly(const Emit *e, Val v) {
  const BodyOp *op = body_def(e->body, v);
  return op && dtype_is_float(e->body->val[v].type.dtype) && ir_op_info[op->code].flops >= COSTLY_FLOPS &&
         (op_is_pointwise(op->code) || op->code == OP_RANDOM);
}

static bool is_reduction(const Emit *e, const BodyOp *op) {
  for (uint32_t r = 0; r < e->body->n_reds; r++)
    if (&e->body->op[e->body->red[r]] == op)
      return true;
  return false;
}

/* Marks what v is computed from, up to reductions. */
static void mark(const Emit *e, Val v, bool *marked) {
  const BodyOp *op = body_def(e->body, v);
  if (marked[v])
    return;
  marked[v] = true;
  if (op && !is_reduction(e, op))
    for (uint32_t k = 0; k < op->n_args; k++)
      mark(e, op->arg[k], marked);
}

uint32_t rows_pass(Emit *e, const BodyOp *const *member, int n, bool *later) {
  const Body *b = e->body;
  for (uint32_t i = 0; i < e->nest->n_outs; i++)
    if (!e->nest->group)
      mark(e, e->nest->out[i].v, later);
  for (uint32_t r = 0; r < b->n_reds; r++) {
    const BodyOp *op = &b->op[b->red[r]];
    bool now = !(e->want >> r & 1) || e->split[r].on;
    for (int k = 0; k < n; k++)
      now |= member[k] == op;
    if (!now)
      mark(e, op->arg[0], later);
  }
  return ++e->rows->pass;
}

static struct Row *find(Emit *e, Val v, const Idx *map) {
  for (uint32_t i = 0; i < e->rows->n; i++) {
    struct Row *row = &e->rows->row[i];
    bool same = row->v == v;
    for (int k = 0; same && k < e->body->val[v].type.rank; k++)
      same = k == row->lane || idx_same(&row->map[k], &map[k]);
    if (same)
      return row;
  }
  return NULL;
}

static struct Row *add(Emit *e, Val v, const Idx *map, int lane, Scope *scope, uint32_t pass) {
  Rows *rows = e->rows;
  const Type *t = &e->body->val[v].type;
  int64_t bytes = (t->dim[lane].size * (int64_t)dtype_bytes(t->dtype) + 63) / 64 * 64;
  if (rows->n == MAX_ROWS || rows->bytes + bytes > MAX_ROW_BYTES)
    return NULL;
  if (!rows->base)
    rows->base = phase_thread_scratch(e);
  at(e, e->root);
  struct Row *row = &rows->row[rows->n++];
  *row = (struct Row){
      .v = v, .lane = lane, .ptr = byte_offset(e, rows->base, rows->bytes), .scope = scope, .pass = pass};
  memcpy(row->map, map, (size_t)t->rank * sizeof *map);
  rows->bytes += bytes;
  return row;
}

void rows_save(Emit *e, const Type *full, const Idx *idx, int lane, Scope *s, Scope *row_scope, uint32_t pass,
               const bool *later) {
  for (Val v = 0; v < e->body->n_vals; v++) {
    const Type *t = &e->body->val[v].type;
    Idx map[IR_MAX_RANK];
    Ev x;
    if (!later[v] || !costly(e, v) || !type_same_dims(t, full))
      continue;
    operand_map(full, idx, t, map);
    if (!memo_get(e, v, map, &x) || x.uniform)
      continue;
    struct Row *row = find(e, v, map);
    if (!row)
      row = add(e, v, map, type_find(t, full->dim[lane].axis), row_scope, pass);
    if (row && row->pass == pass)
      store_at(e, row->ptr, t->dtype, idx[lane], x, s);
  }
}

void rows_end(Emit *e, uint32_t pass) {
  for (uint32_t i = 0; i < e->rows->n; i++)
    e->rows->row[i].done |= e->rows->row[i].pass == pass;
}

bool rows_load(Emit *e, Val v, const Idx *map, Ev *r) {
  struct Row *row = e->rows->n ? find(e, v, map) : NULL;
  if (!row || !row->done || map[row->lane].vec || (map[row->lane].step != 0 && map[row->lane].step != 1))
    return false;
  Idx i = map[row->lane];
  i.scope = deeper(i.scope, row->scope); /* after the pass that stored it */
  *r = load_at(e, row->ptr, e->body->val[v].type.dtype, i);
  return true;
}

int64_t rows_bytes(const Emit *e) {
  return e->rows->bytes;
}
