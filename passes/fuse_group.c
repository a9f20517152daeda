/* fuse_group.c: which ops share a kernel. Every op starts as its own unit; in program order a unit is merged
 * with those its operands come from, as long as the result is a legal region and no cycle of units appears.
 */
#include "passes/fuse.h"

#include <string.h>

uint32_t fuse_pos(const Fuse *x, Val v) {
  return x->pos[v];
}

bool is_view(const Func *f, const Op *op) {
  const Type *t;
  switch (op->code) {
  case OP_RENAME:
  case OP_SPLIT: return true;
  case OP_MERGE:
    t = ir_type(f, op->arg[0]);
    for (uint32_t i = 0; i + 2 < op->attr.n_axis; i++)
      if (type_find(t, op->attr.axis[i]) + 1 != type_find(t, op->attr.axis[i + 1]))
        return false;
    return true;
  case OP_SLICE:
    t = ir_type(f, op->arg[0]);
    for (int i = 0; i < type_find(t, op->attr.axis[0]); i++)
      if (t->dim[i].size != 1)
        return false;
    return true;
  default: return false;
  }
}

/* Constants, iotas, and what is cheap to compute from them alone. chain: ops in a row below it, so far. */
static bool is_free(const Fuse *x, const Op *op, uint32_t *chain) {
  if (op->code == OP_CONST || op->code == OP_IOTA)
    return true;
  OpClass c = ir_op_info[op->code].cls;
  if (!op_is_pointwise(op->code) && c != CLASS_MOVE)
    return false;
  if (ir_op_info[op->code].flops >= 8)
    return false;
  for (uint32_t k = 0; k < op->n_args; k++) {
    uint32_t p = fuse_pos(x, op->arg[k]);
    if (p == NONE || x->role[p] != ROLE_FREE)
      return false;
    *chain = x->chain[p] >= *chain ? x->chain[p] + 1 : *chain;
  }
  return op->n_args > 0 && *chain < MAX_CHAIN;
}

static Role role_of(const Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  if (is_free(x, op, &x->chain[p]))
    return ROLE_FREE;
  switch (op->code) {
  case OP_LOOP: return ROLE_LOOP;
  case OP_CONTRACT: return ROLE_GEMM;
  case OP_CUMSUM:
  case OP_SORT:
  case OP_SCATTER_ADD:
  case OP_ATTENTION:
  case OP_ATTENTION_GRAD: return ROLE_ALONE;
  default: return is_view(x->f, op) ? ROLE_VIEW : ROLE_FUSED;
  }
}

bool edge_fuses(const Op *op) {
  if (op_is_pointwise(op->code))
    return true;
  switch (op->code) {
  case OP_BROADCAST:
  case OP_REORDER:
  case OP_SUM:
  case OP_REDUCE_MAX:
  case OP_REDUCE_MIN:
  case OP_PROD:
  case OP_ARGMAX:
  case OP_GATHER:
  case OP_SOFTMAX: return true;
  default: return false;
  }
}

/* ---- sets ---- */

static bool subset(const Type *part, const Type *whole) {
  for (int i = 0; i < part->rank; i++) {
    int k = type_find(whole, part->dim[i].axis);
    if (k < 0 || whole->dim[k].size != part->dim[i].size)
      return false;
  }
  return true;
}

static bool reaches(const Unit *from, uint32_t to) {
  return from->reach[to / 64] >> (to % 64) & 1;
}

static void reach_add(Fuse *x, Unit *u, const Unit *v) {
  for (uint32_t i = 0; i < x->words; i++)
    u->reach[i] |= v->reach[i];
}

/* ---- one unit ---- */

static bool is_update(const Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  if (x->b != x->f->body)
    return false;
  for (uint32_t i = 0; i < x->b->n_ret; i++)
    if (is_persistent(x->f->res[i].kind) && x->b->ret[i] == op->result && op->n_results == 1)
      return true;
  return false;
}

static void unit_new(Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  uint32_t id = x->n_units++;
  Unit *u = &x->unit[id];
  *u = (Unit){.role = x->role[p]};
  u->reach = ARENA_ARRAY(&x->mem, uint64_t, x->words);
  u->reach[id / 64] |= UINT64_C(1) << (id % 64);
  x->home[p] = id;
  VEC_PUSH(&x->mem, u->op, u->n_ops, u->cap_ops, p);
  for (uint32_t k = 0; k < op->n_args; k++) {
    uint32_t q = fuse_pos(x, op->arg[k]);
    if (q != NONE && x->home[q] != NONE)
      reach_add(x, u, &x->unit[x->home[q]]);
  }
  if (u->role == ROLE_LOOP || op->n_results == 0)
    return;
  u->domain = *ir_type(x->f, op->result);
  u->update = is_update(x, p);
  u->reduces = (ir_op_info[op->code].cls == CLASS_REDUCE && u->role == ROLE_FUSED) || op->code == OP_SOFTMAX;
  if (u->reduces) {
    u->domain = *ir_type(x->f, op->arg[0]);
    u->n_red = op->attr.n_axis;
    memcpy(u->red, op->attr.axis, u->n_red * sizeof *u->red);
  }
}

/* ---- merging ---- */

static bool pointwise_unit(const Unit *u) {
  return u->role == ROLE_FUSED && !u->reduces;
}

static bool shapes_fuse(const Unit *a, const Unit *b) {
  if ((a->update && !pointwise_unit(b)) || (b->update && !pointwise_unit(a)))
    return false;
  bool scalar = a->domain.rank == 0 || b->domain.rank == 0;
  if (scalar)
    return a->domain.rank == b->domain.rank && a->role == ROLE_FUSED && b->role == ROLE_FUSED;
  if (a->role == ROLE_GEMM)
    return b->role == ROLE_FUSED && !b->reduces && b->domain.rank == a->domain.rank &&
           subset(&b->domain, &a->domain);
  if (b->role == ROLE_GEMM)
    return shapes_fuse(b, a);
  if (a->role != ROLE_FUSED || b->role != ROLE_FUSED)
    return false;
  bool in_b = subset(&a->domain, &b->domain), in_a = subset(&b->domain, &a->domain);
  if (a->reduces && b->reduces)
    return in_a && in_b && same_axes(a->red, a->n_red, b->red, b->n_red);
  if (a->reduces)
    return in_a;
  if (b->reduces)
    return in_b;
  return in_a || in_b;
}

/* Edges from one unit into the other that need the value in memory. */
static bool edges_fuse(const Fuse *x, const Unit *u, uint32_t from) {
  for (uint32_t i = 0; i < u->n_ops; i++) {
    const Op *op = &x->f->op[x->op[u->op[i]]];
    for (uint32_t k = 0; k < op->n_args; k++) {
      uint32_t q = fuse_pos(x, op->arg[k]);
      if (q != NONE && x->home[q] == from && !edge_fuses(op))
        return false;
    }
  }
  return true;
}

/* Another unit on a path between the two. */
static bool would_cycle(const Fuse *x, uint32_t a, uint32_t b) {
  for (uint32_t w = 0; w < x->n_units; w++) {
    const Unit *u = &x->unit[w];
    if (u->dead || w == a || w == b)
      continue;
    if ((reaches(u, a) && reaches(&x->unit[b], w)) || (reaches(u, b) && reaches(&x->unit[a], w)))
      return true;
  }
  return false;
}

/* Operands and results of the two units as one region. */
static uint32_t count_operands(Fuse *x, uint32_t a, uint32_t b) {
  Val seen[MAX_OPERANDS + 1];
  uint32_t n = 0, results = 0;
  for (int side = 0; side < 2; side++) {
    const Unit *u = &x->unit[side ? b : a];
    for (uint32_t i = 0; i < u->n_ops; i++) {
      uint32_t p = u->op[i];
      const Op *op = &x->f->op[x->op[p]];
      for (uint32_t k = 0; k < op->n_args && n <= MAX_OPERANDS; k++) {
        uint32_t q = fuse_pos(x, op->arg[k]), s = 0;
        if (q != NONE && (x->role[q] == ROLE_FREE || x->home[q] == a || x->home[q] == b))
          continue;
        while (s < n && seen[s] != op->arg[k])
          s++;
        if (s == n)
          seen[n++] = op->arg[k];
      }
      bool out = false;
      for (uint32_t k = 0; k < x->n_users[p]; k++) {
        uint32_t q = x->user[p][k];
        out |= q == x->n || (x->home[q] != a && x->home[q] != b);
      }
      results += out;
    }
  }
  return n + results;
}

static bool can_merge(Fuse *x, uint32_t a, uint32_t b) {
  const Unit *u = &x->unit[a], *v = &x->unit[b];
  if (a == b || u->n_ops + v->n_ops > MAX_OPS || !shapes_fuse(u, v) || !edges_fuse(x, u, b) ||
      !edges_fuse(x, v, a) || would_cycle(x, a, b))
    return false;
  bool gemm = u->role == ROLE_GEMM || v->role == ROLE_GEMM;
  return count_operands(x, a, b) <= (gemm ? MAX_GEMM_OPERANDS : MAX_OPERANDS);
}

static void merge(Fuse *x, uint32_t into, uint32_t from) {
  Unit *a = &x->unit[into], *b = &x->unit[from];
  uint32_t *op = ARENA_ARRAY(&x->mem, uint32_t, a->n_ops + b->n_ops), n = 0;
  for (uint32_t i = 0, k = 0; i < a->n_ops || k < b->n_ops;)
    op[n++] = k == b->n_ops || (i < a->n_ops && a->op[i] < b->op[k]) ? a->op[i++] : b->op[k++];
  for (uint32_t i = 0; i < b->n_ops; i++)
    x->home[b->op[i]] = into;
  a->op = op;
  a->n_ops = a->cap_ops = n;
  if (a->role != ROLE_ALONE &&
      (b->role == ROLE_GEMM || (a->role != ROLE_GEMM && b->domain.rank > a->domain.rank))) {
    a->domain = b->domain;
    a->role = b->role;
  }
  if (b->reduces) {
    a->reduces = true;
    a->n_red = b->n_red;
    memcpy(a->red, b->red, sizeof a->red);
  }
  a->update |= b->update;
  b->dead = true;
  reach_add(x, a, b);
  for (uint32_t w = 0; w < x->n_units; w++)
    if (!x->unit[w].dead && (reaches(&x->unit[w], into) || reaches(&x->unit[w], from)))
      reach_add(x, &x->unit[w], a);
}

bool units_join(Fuse *x, uint32_t a, uint32_t b) {
  const Unit *u = &x->unit[a], *v = &x->unit[b];
  if (reaches(u, b) || reaches(v, a) || u->domain.rank != v->domain.rank || !can_merge(x, a, b))
    return false;
  merge(x, a, b);
  return true;
}

/* A sum that starts from another value instead of zero: scatter_add and the addition of its result are one
 * kernel. */
static bool joins_scatter(Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  if (op->code != OP_ADD)
    return false;
  for (uint32_t k = 0; k < 2; k++) {
    uint32_t q = fuse_pos(x, op->arg[k]), other = fuse_pos(x, op->arg[1 - k]);
    if (q == NONE || q == other || x->f->op[x->op[q]].code != OP_SCATTER_ADD || x->n_users[q] != 1 ||
        x->unit[x->home[p]].update || !type_equal(ir_type(x->f, op->arg[k]), ir_type(x->f, op->arg[1 - k])) ||
        (other != NONE && x->role[other] == ROLE_FREE) || would_cycle(x, x->home[q], x->home[p]))
      continue;
    merge(x, x->home[q], x->home[p]);
    return true;
  }
  return false;
}

/* Joins the unit of position p with those of its operands, the latest first: it is the likeliest to be free
 * of other paths. */
static void merge_with_operands(Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  bool *tried = ARENA_ARRAY(&x->mem, bool, op->n_args);
  for (uint32_t round = 0; round < op->n_args; round++) {
    uint32_t best = NONE, at = 0;
    for (uint32_t k = 0; k < op->n_args; k++) {
      uint32_t q = fuse_pos(x, op->arg[k]);
      if (!tried[k] && q != NONE && x->home[q] != NONE && (best == NONE || q > best)) {
        best = q;
        at = k;
      }
    }
    if (best == NONE)
      return;
    tried[at] = true;
    if (can_merge(x, x->home[p], x->home[best]))
      merge(x, x->home[best], x->home[p]);
  }
}

static void find_users(Fuse *x) {
  x->user = ARENA_ARRAY(&x->mem, uint32_t *, x->n);
  x->n_users = ARENA_ARRAY(&x->mem, uint32_t, x->n);
  uint32_t *cap = ARENA_ARRAY(&x->mem, uint32_t, x->n);
  for (uint32_t i = 0; i <= x->n; i++) {
    const Val *v = i < x->n ? x->f->op[x->op[i]].arg : x->b->ret;
    uint32_t n = i < x->n ? x->f->op[x->op[i]].n_args : x->b->n_ret;
    for (uint32_t k = 0; k < n; k++) {
      uint32_t p = fuse_pos(x, v[k]);
      if (p != NONE)
        VEC_PUSH(&x->mem, x->user[p], x->n_users[p], cap[p], i);
    }
  }
}

void fuse_group(Fuse *x) {
  x->role = ARENA_ARRAY(&x->mem, Role, x->n);
  x->chain = ARENA_ARRAY(&x->mem, uint32_t, x->n);
  x->home = ARENA_ARRAY(&x->mem, uint32_t, x->n);
  x->unit = ARENA_ARRAY(&x->mem, Unit, x->n);
  x->words = (x->n + 63) / 64;
  find_users(x);
  for (uint32_t p = 0; p < x->n; p++)
    x->role[p] = role_of(x, p);
  memset(x->home, 0xff, x->n * sizeof *x->home);
  for (uint32_t p = 0; p < x->n; p++) {
    if (x->role[p] == ROLE_FREE)
      continue;
    unit_new(x, p);
    if (x->role[p] == ROLE_FUSED && !joins_scatter(x, p))
      merge_with_operands(x, p);
  }
}
