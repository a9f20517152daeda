/* fuse_emit.c: writes the block anew: one region per unit, in an order that respects their operands. */
#include "passes/fuse.h"

#include <string.h>

static void emit_unit(Fuse *x, uint32_t u);

/* The name of v outside of regions; computes it first when it is not there yet. */
static Val outer_of(Fuse *x, Val v);

/* One region under construction. */
typedef struct {
  Fuse *x;
  Builder in;
  Val *map; /* by value of the old block: its copy in the body, NONE: none */
  Val *arg;
  uint32_t n_args, cap_args;
} Region;

static void region_begin(Region *r, Fuse *x, Loc loc) {
  *r = (Region){.x = x};
  r->in = (Builder){.f = x->f, .b = ir_block_new(x->f), .loc = loc, .err = x->err};
  uint32_t n = x->f->n_vals;
  r->map = ARENA_ARRAY(&x->mem, Val, n);
  memset(r->map, 0xff, n * sizeof *r->map);
}

static void region_op(Region *r, uint32_t p);

static void region_param(Region *r, Val v) {
  Fuse *x = r->x;
  if (r->map[v] != NONE)
    return;
  Val outside = outer_of(x, v);
  r->map[v] = ir_param(x->f, r->in.b, *ir_type(x->f, outside), x->f->val[v].name);
  VEC_PUSH(&x->mem, r->arg, r->n_args, r->cap_args, outside);
}

/* Makes v known in the body: a parameter, or a copy of what is computed where it is used. */
static void region_need(Region *r, Val v) {
  uint32_t p = fuse_pos(r->x, v);
  if (r->map[v] != NONE)
    return;
  if (p != NONE && (r->x->role[p] == ROLE_FREE || r->x->remat[p]))
    region_op(r, p);
  else
    region_param(r, v);
}

static void region_op(Region *r, uint32_t p) {
  Fuse *x = r->x;
  OpId id = x->op[p];
  bool whole =
      x->f->op[id].code == OP_ATTENTION || x->f->op[id].code == OP_ATTENTION_GRAD; /* all read from memory */
  for (uint32_t k = 0; k < x->f->op[id].n_args; k++) {
    Val v = x->f->op[id].arg[k];
    if (whole)
      region_param(r, v);
    else
      region_need(r, v);
  }
  ir_clone_op(&r->in, x->f, id, r->map);
}

/* out[i] are the values of the old block that the region returns. */
static void region_end(Region *r, const char *cls, const Val *out, uint32_t n) {
  Fuse *x = r->x;
  for (uint32_t i = 0; i < n; i++)
    ir_block_ret(x->f, r->in.b, r->map[out[i]]);
  Builder b = {.f = x->f, .b = x->b, .loc = r->in.loc, .err = x->err};
  Val v = ir_op(&b, OP_REGION, r->arg, r->n_args, &(Attr){.str = cls}, r->in.b);
  for (uint32_t i = 0; i < n && v != NONE; i++) {
    x->outer[out[i]] = v + i;
    x->f->val[v + i].name = x->f->val[out[i]].name;
  }
}

static Val outer_of(Fuse *x, Val v) {
  uint32_t p = fuse_pos(x, v);
  if (x->outer[v] != NONE)
    return x->outer[v];
  if (p == NONE)
    return x->outer[v] = v;
  if (x->role[p] != ROLE_FREE) {
    emit_unit(x, x->home[p]);
    return x->outer[v];
  }
  Region r;
  region_begin(&r, x, x->f->op[x->op[p]].loc);
  region_op(&r, p);
  region_end(&r, "map", &v, 1);
  return x->outer[v];
}

static const char *unit_class(const Fuse *x, const Unit *u, const bool *need) {
  bool rows = false, gather = false, moves = true;
  for (uint32_t i = 0; i < u->n_ops; i++) {
    if (!need[i])
      continue;
    const Op *op = &x->f->op[x->op[u->op[i]]];
    moves &= ir_op_info[op->code].cls == CLASS_MOVE;
    switch (op->code) {
    case OP_CONTRACT: return "gemm";
    case OP_ATTENTION: return "attention";
    case OP_ATTENTION_GRAD: return "attention_grad";
    case OP_SCATTER_ADD: return "scatter";
    case OP_SORT: return "sort";
    case OP_CUMSUM: return "scan";
    case OP_GATHER: gather = true; break;
    default: break;
    }
    /* Results over everything the loops run over, beside a reduction: rows are normalised. */
    rows |= u->reduces && x->exported[op->result] && ir_type(x->f, op->result)->rank == u->domain.rank;
  }
  return u->reduces ? rows ? "norm" : "reduce" : gather ? "gather" : moves ? "copy" : "map";
}

/* The unit's ops that its results depend on, by index in the unit. */
static bool *needed_ops(const Fuse *x, const Unit *u, Arena *mem) {
  bool *need = ARENA_ARRAY(mem, bool, u->n_ops), *at = ARENA_ARRAY(mem, bool, x->n);
  for (uint32_t i = u->n_ops; i-- > 0;) {
    const Op *op = &x->f->op[x->op[u->op[i]]];
    need[i] = at[u->op[i]];
    for (uint32_t k = 0; k < op->n_results; k++)
      need[i] |= x->exported[op->result + k];
    for (uint32_t k = 0; need[i] && k < op->n_args; k++)
      if (fuse_pos(x, op->arg[k]) != NONE)
        at[fuse_pos(x, op->arg[k])] = true;
  }
  return need;
}

/* Has units emitted whose values op p reads, through what it computes again too. */
static void emit_operands(Fuse *x, uint32_t p, uint32_t unit) {
  for (uint32_t k = 0; k < x->f->op[x->op[p]].n_args; k++) {
    Val v = x->f->op[x->op[p]].arg[k];
    uint32_t q = fuse_pos(x, v);
    if (q == NONE || x->role[q] == ROLE_FREE || x->home[q] == unit)
      continue;
    if (x->remat[q])
      emit_operands(x, q, unit);
    else
      outer_of(x, v);
  }
}

/* Kernels whose results are all written, asked for or not. */
static bool writes_all(OpCode c) {
  return c == OP_SORT || c == OP_ATTENTION_GRAD;
}

static void emit_region(Fuse *x, uint32_t id) {
  const Unit *u = &x->unit[id];
  Region r;
  Val *out = NULL;
  uint32_t n = 0, cap = 0;
  bool *need = needed_ops(x, u, &x->mem);
  for (uint32_t i = 0; i < u->n_ops; i++)
    if (need[i])
      emit_operands(x, u->op[i], id);
  region_begin(&r, x, x->f->op[x->op[u->op[0]]].loc);
  for (uint32_t i = 0; i < u->n_ops; i++)
    if (need[i])
      region_op(&r, u->op[i]);
  for (uint32_t i = 0; i < u->n_ops; i++) {
    const Op *op = &x->f->op[x->op[u->op[i]]];
    for (uint32_t k = 0; k < op->n_results; k++)
      if (x->exported[op->result + k] || writes_all(op->code))
        VEC_PUSH(&x->mem, out, n, cap, op->result + k);
  }
  if (n)
    region_end(&r, unit_class(x, u, need), out, n);
}

/* A loop or a view: the op itself, with its operands renamed. */
static void emit_op(Fuse *x, uint32_t p) {
  OpId id = x->op[p];
  for (uint32_t k = 0; k < x->f->op[id].n_args; k++) {
    Val v = outer_of(x, x->f->op[id].arg[k]);
    x->f->op[id].arg[k] = v;
  }
  for (uint32_t k = 0; k < x->f->op[id].n_results; k++)
    x->outer[x->f->op[id].result + k] = x->f->op[id].result + k;
  block_push(x->f, x->b, id);
}

static void emit_unit(Fuse *x, uint32_t id) {
  const Unit *u = &x->unit[id];
  if (x->done[id])
    return;
  x->done[id] = true;
  if (u->role == ROLE_VIEW || u->role == ROLE_LOOP)
    emit_op(x, u->op[0]);
  else
    emit_region(x, id);
}

void fuse_emit(Fuse *x) {
  x->done = ARENA_ARRAY(&x->mem, bool, x->n_units);
  x->outer = ARENA_ARRAY(&x->mem, Val, x->f->n_vals);
  memset(x->outer, 0xff, x->f->n_vals * sizeof *x->outer);
  for (uint32_t p = 0; p < x->n; p++)
    if (x->home[p] != NONE)
      emit_unit(x, x->home[p]);
  for (uint32_t i = 0; i < x->b->n_ret; i++)
    x->b->ret[i] = outer_of(x, x->b->ret[i]);
}
