/* outline_attention.c: contract(softmax[key](s), v; key) with s a pointwise function of one contraction q * k
 * becomes `attention`; the function is its body. Masks and biases that are made from indices alone are made
 * anew inside; of what else the score depends on, the smallest outside values come in as extras, which must
 * not depend on trained parameters (the composite has no gradient for them). */
#include "passes/internal.h"

#include <string.h>

enum { MAX_EXTRAS = 16 };

typedef struct {
  Builder *b;
  const OutlineInfo *info;
  Axis key;
  Val raw; /* the contraction of queries and keys */
  bool several;
  Builder body;
  Val *map; /* value -> its copy in the body */
  uint32_t n;
  Val extra[MAX_EXTRAS];
  uint32_t n_extras;
  bool *depends, *seen; /* by value: on raw */
} Match;

static bool pointwise(const Op *op) {
  return op && (op_is_pointwise(op->code) || op->code == OP_BROADCAST || op->code == OP_REORDER);
}

/* A contraction in which the key axis comes from one side alone: scores of queries against keys. */
static bool is_scores(const Match *m, const Op *op) {
  const Func *f = m->b->f;
  if (!op || op->code != OP_CONTRACT)
    return false;
  return type_has(ir_type(f, op->arg[0]), m->key) != type_has(ir_type(f, op->arg[1]), m->key);
}

/* Finds raw below v by pointwise ops; fills depends. */
static bool find_raw(Match *m, Val v) {
  if (m->seen[v])
    return m->depends[v];
  m->seen[v] = true;
  const Op *op = def_op(m->b->f, v);
  if (is_scores(m, op)) {
    m->several |= m->raw != NONE;
    m->raw = v;
    return m->depends[v] = true;
  }
  if (!pointwise(op))
    return false;
  for (uint32_t i = 0; i < op->n_args; i++)
    m->depends[v] |= find_raw(m, op->arg[i]);
  return m->depends[v];
}

/* Made from constants and indices only. */
static bool is_closed(const Func *f, Val v) {
  const Op *op = def_op(f, v);
  if (!op)
    return false;
  if (op->code == OP_CONST || op->code == OP_IOTA)
    return true;
  if (!pointwise(op) && op->code != OP_RENAME)
    return false;
  for (uint32_t i = 0; i < op->n_args; i++)
    if (!is_closed(f, op->arg[i]))
      return false;
  return true;
}

/* Closed but dear, and without the key axis: computed once outside. */
static bool is_dear(const Match *m, Val v) {
  const Func *f = m->b->f;
  const Op *op = def_op(f, v);
  if (!op || type_has(ir_type(f, v), m->key))
    return false;
  if (ir_op_info[op->code].flops >= 8)
    return true;
  for (uint32_t i = 0; i < op->n_args; i++)
    if (is_dear(m, op->arg[i]))
      return true;
  return false;
}

/* A table over queries and keys: computed inside rather than stored. */
static bool is_table(const Match *m, Val v) {
  const Func *f = m->b->f;
  const Op *op = def_op(f, v);
  if (!pointwise(op) || !type_has(ir_type(f, v), m->key))
    return false;
  for (uint32_t i = 0; i < op->n_args; i++)
    if (ir_type(f, op->arg[i])->rank < ir_type(f, v)->rank || is_table(m, op->arg[i]))
      return true;
  return false;
}

static Val inside(Match *m, Val v);

/* Axes join by name inside, so storage order and broadcasts say nothing there. */
static Val copy_inside(Match *m, OpId id) {
  const Op op = m->b->f->op[id];
  if (op.code == OP_REORDER || op.code == OP_BROADCAST)
    return inside(m, op.arg[0]);
  Val args[4];
  for (uint32_t i = 0; i < op.n_args; i++)
    if ((args[i] = inside(m, op.arg[i])) == NONE)
      return NONE;
  m->body.loc = op.loc;
  return ir_op(&m->body, op.code, args, op.n_args, &op.attr, NULL);
}

static Val take_extra(Match *m, Val v) {
  Func *f = m->b->f;
  if (m->n_extras == MAX_EXTRAS || (v < m->info->n && m->info->act[v]))
    return NONE;
  m->extra[m->n_extras++] = v;
  return ir_param(f, m->body.b, *ir_type(f, v), f->val[v].name);
}

/* v as a value of the body; NONE when it cannot be had there. */
static Val inside(Match *m, Val v) {
  if (v >= m->n)
    return NONE;
  if (m->map[v] != NONE)
    return m->map[v];
  Func *f = m->b->f;
  bool copy = m->depends[v] || (is_closed(f, v) && !is_dear(m, v)) || is_table(m, v);
  Val r = copy ? copy_inside(m, f->val[v].def) : take_extra(m, v);
  return m->map[v] = r;
}

static bool build_body(Match *m, Val score) {
  Func *f = m->b->f;
  m->body = *m->b;
  m->body.b = ir_block_new(f);
  const Type raw = *ir_type(f, m->raw);
  m->map[m->raw] = ir_param(f, m->body.b, raw, "raw");
  Val s = inside(m, score);
  if (s == NONE || !type_same_dims(ir_type(f, s), &raw) || ir_type(f, s)->dtype != raw.dtype)
    return false;
  ir_block_ret(f, m->body.b, s);
  return true;
}

static void init_match(Match *m) {
  Arena *arena = &m->b->f->module->arena;
  m->n = m->b->f->n_vals;
  m->map = ARENA_ARRAY(arena, Val, m->n);
  memset(m->map, 0xff, m->n * sizeof *m->map);
  m->depends = ARENA_ARRAY(arena, bool, m->n);
  m->seen = ARENA_ARRAY(arena, bool, m->n);
}

Val outline_attention(Builder *b, OpId id, const OutlineInfo *info) {
  Func *f = b->f;
  const Op op = f->op[id];
  if (op.code != OP_CONTRACT || op.attr.n_axis != 1)
    return NONE;
  Match m = {.b = b, .info = info, .key = op.attr.axis[0], .raw = NONE};
  Val p = NONE, v = NONE;
  for (uint32_t i = 0; i < 2 && p == NONE; i++) {
    const Op *soft = def_op(f, op.arg[i]);
    if (soft && soft->code == OP_SOFTMAX && soft->attr.n_axis == 1 && soft->attr.axis[0] == m.key) {
      p = op.arg[i];
      v = op.arg[1 - i];
    }
  }
  if (p == NONE || p >= info->n || info->uses[p] != 1)
    return NONE;
  Val score = def_op(f, p)->arg[0];
  init_match(&m);
  if (!find_raw(&m, score) || m.several || !build_body(&m, score))
    return NONE;
  const Op raw = f->op[f->val[m.raw].def];
  bool first_is_key = type_has(ir_type(f, raw.arg[0]), m.key);
  Val args[3 + MAX_EXTRAS] = {raw.arg[first_is_key ? 1 : 0], raw.arg[first_is_key ? 0 : 1], v};
  for (uint32_t i = 0; i < m.n_extras; i++)
    args[3 + i] = m.extra[i];
  Axis axis[IR_MAX_RANK + 1];
  for (uint32_t i = 0; i < raw.attr.n_axis; i++)
    axis[i] = raw.attr.axis[i];
  axis[raw.attr.n_axis] = m.key;
  const Attr attr = {.axis = axis, .n_axis = raw.attr.n_axis + 1};
  const Type want = *ir_type(f, op.result);
  return build_as(b, ir_op(b, OP_ATTENTION, args, 3 + m.n_extras, &attr, m.body.b), &want);
}
