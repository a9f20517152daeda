/* fuse_remat.c: which values a kernel computes again instead of reading them. A cheap pointwise value that
 * other units use costs a write and a read each; when what it is made of lies in memory anyway, or is small,
 * computing it again moves fewer bytes. Raw results of contractions may become such material: storing one can
 * replace storing several values made of it. */
#include "passes/fuse.h"

#include <string.h>

enum { MAX_LEAVES = 8, MAX_FLOPS = 16, SMALL = 8, MAX_AFTER = 40, NEAR = 48, MAX_TRIAL_OPS = 8192 };

typedef struct {
  Val *v;
  uint32_t n, cap;
} ValSet;

typedef struct {
  Val leaf[MAX_LEAVES];
  uint32_t n;
  double flops;
  int64_t count; /* elements of the value */
} Recipe;

static bool set_has(const ValSet *s, Val v) {
  for (uint32_t i = 0; i < s->n; i++)
    if (s->v[i] == v)
      return true;
  return false;
}

static void set_add(Arena *mem, ValSet *s, Val v) {
  if (!set_has(s, v))
    VEC_PUSH(mem, s->v, s->n, s->cap, v);
}

static void set_remove(ValSet *s, Val v) {
  for (uint32_t i = 0; i < s->n; i++)
    if (s->v[i] == v)
      s->v[i] = s->v[--s->n];
}

static double bytes_of(const Fuse *x, Val v) {
  int64_t bytes = 0;
  type_bytes(ir_type(x->f, v), &bytes);
  return (double)bytes;
}

static bool is_free(const Fuse *x, Val v) {
  uint32_t p = fuse_pos(x, v);
  return p != NONE && x->role[p] == ROLE_FREE;
}

/* May the user at position q compute its operands itself? */
static bool may_recompute(const Fuse *x, uint32_t q) {
  if (q == x->n || x->role[q] != ROLE_FUSED)
    return false;
  const Unit *u = &x->unit[x->home[q]];
  const Op *op = &x->f->op[x->op[q]];
  return !u->closed && u->role != ROLE_ALONE && (edge_fuses(op) || ir_op_info[op->code].cls == CLASS_MOVE);
}

static bool is_cheap(const Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  return x->role[p] == ROLE_FUSED && (op_is_pointwise(op->code) || op->code == OP_BROADCAST) &&
         ir_op_info[op->code].flops <= SMALL;
}

/* What v is made of, down to what is in memory, small, or free. */
static bool find_recipe(const Fuse *x, uint32_t p, Recipe *r) {
  const Op *op = &x->f->op[x->op[p]];
  r->flops += ir_op_info[op->code].flops;
  if (r->flops > MAX_FLOPS)
    return false;
  for (uint32_t k = 0; k < op->n_args; k++) {
    Val a = op->arg[k];
    uint32_t q = fuse_pos(x, a);
    if (is_free(x, a))
      continue;
    bool leaf =
        q == NONE || x->exported[a] || (!x->remat[q] && type_count(ir_type(x->f, a)) * SMALL <= r->count);
    if (!leaf) {
      if (!is_cheap(x, q) || !find_recipe(x, q, r))
        return false;
      continue;
    }
    bool known = false;
    for (uint32_t i = 0; i < r->n; i++)
      known |= r->leaf[i] == a;
    if (known)
      continue;
    if (r->n == MAX_LEAVES)
      return false;
    r->leaf[r->n++] = a;
  }
  return true;
}

typedef struct {
  ValSet *args;  /* by unit: what it reads */
  ValSet *users; /* by value: units that read it, as numbers */
  bool *memory;  /* by value: somebody needs it in memory */
  Arena mem;
} Traffic;

/* Who reads what when nothing is computed again. */
static Traffic find_traffic(Fuse *x, const bool *forced) {
  Traffic t = {0};
  uint32_t n_vals = x->f->n_vals;
  t.args = ARENA_ARRAY(&t.mem, ValSet, x->n_units);
  t.users = ARENA_ARRAY(&t.mem, ValSet, n_vals);
  t.memory = ARENA_ARRAY(&t.mem, bool, n_vals);
  memset(x->exported, 0, n_vals * sizeof *x->exported);
  memset(x->remat, 0, x->n * sizeof *x->remat);
  for (uint32_t q = 0; q <= x->n; q++) {
    bool end = q == x->n;
    if (!end && x->home[q] == NONE)
      continue;
    const Val *v = end ? x->b->ret : x->f->op[x->op[q]].arg;
    uint32_t n = end ? x->b->n_ret : x->f->op[x->op[q]].n_args;
    for (uint32_t k = 0; k < n; k++) {
      uint32_t p = fuse_pos(x, v[k]);
      if (is_free(x, v[k]) || (!end && p != NONE && x->home[p] == x->home[q]))
        continue;
      x->exported[v[k]] = true;
      t.memory[v[k]] |= !may_recompute(x, q);
      if (!end) {
        set_add(&t.mem, &t.args[x->home[q]], v[k]);
        set_add(&t.mem, &t.users[v[k]], x->home[q]);
      }
    }
  }
  for (uint32_t v = 0; v < n_vals; v++)
    if (forced[v])
      x->exported[v] = t.memory[v] = true;
  return t;
}

static double cost_again(const Fuse *x, const Traffic *t, Val v, const Recipe *r) {
  double cost = 0;
  for (uint32_t i = 0; i < r->n; i++) {
    if (fuse_pos(x, r->leaf[i]) != NONE && !x->exported[r->leaf[i]])
      cost += bytes_of(x, r->leaf[i]);
    for (uint32_t c = 0; c < t->users[v].n; c++)
      if (!set_has(&t->args[t->users[v].v[c]], r->leaf[i]))
        cost += bytes_of(x, r->leaf[i]);
  }
  return cost;
}

/* The op and what lies between it and its leaves. */
static void mark_again(Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  x->remat[p] = true;
  for (uint32_t k = 0; k < op->n_args; k++) {
    uint32_t q = fuse_pos(x, op->arg[k]);
    if (q != NONE && !is_free(x, op->arg[k]) && !x->exported[op->arg[k]] && !x->remat[q])
      mark_again(x, q);
  }
}

static void compute_again(Fuse *x, Traffic *t, uint32_t p, Val v, const Recipe *r) {
  x->exported[v] = false;
  for (uint32_t c = 0; c < t->users[v].n; c++) {
    uint32_t u = t->users[v].v[c];
    set_remove(&t->args[u], v);
    for (uint32_t i = 0; i < r->n; i++) {
      set_add(&t->mem, &t->args[u], r->leaf[i]);
      set_add(&t->mem, &t->users[r->leaf[i]], u);
    }
  }
  for (uint32_t i = 0; i < r->n; i++)
    x->exported[r->leaf[i]] = true;
  mark_again(x, p);
}

static uint32_t count_results(const Fuse *x, const Unit *u) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < u->n_ops; i++) {
    const Op *op = &x->f->op[x->op[u->op[i]]];
    for (uint32_t k = 0; k < op->n_results; k++)
      n += x->exported[op->result + k];
  }
  return n;
}

/* Fills remat and exported. Units whose operands became too many are closed, and the whole is done again. */
static Traffic decide(Fuse *x, const bool *forced) {
  Traffic t = find_traffic(x, forced);
  for (uint32_t p = 0; p < x->n; p++) {
    const Op *op = &x->f->op[x->op[p]];
    Val v = op->result;
    if (x->home[p] == NONE || op->n_results != 1 || !x->exported[v] || t.memory[v] || !is_cheap(x, p))
      continue;
    Recipe r = {.count = type_count(ir_type(x->f, v))};
    if (find_recipe(x, p, &r) && cost_again(x, &t, v, &r) <= bytes_of(x, v) * (1 + t.users[v].n))
      compute_again(x, &t, p, v, &r);
  }
  bool closed = false;
  for (uint32_t u = 0; u < x->n_units; u++) {
    Unit *unit = &x->unit[u];
    if (!unit->dead && !unit->closed && t.args[u].n + count_results(x, unit) > MAX_AFTER)
      closed = unit->closed = unit->role == ROLE_FUSED || unit->role == ROLE_GEMM;
  }
  if (!closed)
    return t;
  arena_free(&t.mem);
  return decide(x, forced);
}

/* Bytes that kernels read and write. */
static double moved(Fuse *x, const bool *forced) {
  Traffic t = decide(x, forced);
  double total = 0;
  for (uint32_t u = 0; u < x->n_units; u++) {
    if (x->unit[u].dead || x->unit[u].role == ROLE_LOOP || x->unit[u].role == ROLE_VIEW)
      continue;
    for (uint32_t i = 0; i < t.args[u].n; i++)
      total += bytes_of(x, t.args[u].v[i]);
  }
  for (uint32_t v = 0; v < x->f->n_vals; v++)
    if (x->exported[v] && fuse_pos(x, v) != NONE)
      total += bytes_of(x, v);
  arena_free(&t.mem);
  return total;
}

/* Worth a trial: not in memory, and made into several things of the unit. */
static bool is_material(const Fuse *x, uint32_t p) {
  const Op *op = &x->f->op[x->op[p]];
  if (x->home[p] == NONE || op->n_results != 1 || x->exported[op->result])
    return false;
  const Unit *u = &x->unit[x->home[p]];
  return (u->role == ROLE_GEMM || u->role == ROLE_FUSED) && x->n_users[p] > 1 &&
         type_same_dims(ir_type(x->f, op->result), &u->domain) && count_results(x, u) > 1;
}

/* Values that are stored though no other unit asks for them, because less moves then. Each trial looks at the
 * whole block. */
static void choose_material(Fuse *x, bool *forced) {
  if (x->n > MAX_TRIAL_OPS)
    return;
  double best = moved(x, forced);
  for (uint32_t p = 0; p < x->n; p++) {
    if (!is_material(x, p))
      continue;
    Val v = x->f->op[x->op[p]].result;
    forced[v] = true;
    double now = moved(x, forced);
    if (now < best) {
      best = now;
    } else {
      forced[v] = false;
      moved(x, forced);
    }
  }
}

/* Do the two read the same big values, so that joined they read them once? */
static bool share_operands(const Fuse *x, const ValSet *a, const ValSet *b) {
  double shared = 0, most = 0;
  for (uint32_t i = 0; i < b->n; i++) {
    double bytes = bytes_of(x, b->v[i]);
    most = bytes > most ? bytes : most;
    shared += set_has(a, b->v[i]) ? bytes : 0;
  }
  return most > 0 && shared >= most;
}

/* All that is as large as the loops has their dims in their order: one walk serves them all. */
static bool same_order(const Fuse *x, const ValSet *args, const Type *domain) {
  for (uint32_t i = 0; i < args->n; i++) {
    Type t = *ir_type(x->f, args->v[i]);
    t.dtype = domain->dtype;
    if (t.rank == domain->rank && !type_equal(&t, domain))
      return false;
  }
  return true;
}

/* Two that only sum up, over the same axes of values of one shape: one launch instead of two. */
static bool sum_alike(const Fuse *x, const Traffic *t, uint32_t a, uint32_t b) {
  const Unit *u = &x->unit[a], *v = &x->unit[b];
  /* Far apart, one's operands would have to be kept until the other's exist. */
  uint32_t apart = v->op[0] > u->op[0] ? v->op[0] - u->op[0] : u->op[0] - v->op[0];
  if (apart > NEAR || !u->reduces || !v->reduces || t->args[a].n + t->args[b].n > MAX_LEAVES)
    return false;
  for (int side = 0; side < 2; side++) {
    const Unit *w = side ? v : u;
    for (uint32_t i = 0; i < w->n_ops; i++) {
      const Op *op = &x->f->op[x->op[w->op[i]]];
      if (x->exported[op->result] && type_count(ir_type(x->f, op->result)) * SMALL > type_count(&w->domain))
        return false;
    }
  }
  return same_order(x, &t->args[a], &u->domain) && same_order(x, &t->args[b], &u->domain);
}

/* Units over the same dims become one where that saves reading or a launch. */
static bool join_siblings(Fuse *x, const bool *forced) {
  Traffic t = decide(x, forced);
  bool any = false;
  for (uint32_t a = 0; a < x->n_units; a++)
    for (uint32_t b = a + 1; b < x->n_units; b++) {
      if (x->unit[a].dead || x->unit[b].dead || x->unit[a].role != ROLE_FUSED ||
          x->unit[b].role != ROLE_FUSED ||
          !(share_operands(x, &t.args[a], &t.args[b]) || sum_alike(x, &t, a, b)) || !units_join(x, a, b))
        continue;
      any = true;
      for (uint32_t i = 0; i < t.args[b].n; i++)
        set_add(&t.mem, &t.args[a], t.args[b].v[i]);
    }
  arena_free(&t.mem);
  return any;
}

void fuse_remat(Fuse *x) {
  bool *forced = ARENA_ARRAY(&x->mem, bool, x->f->n_vals);
  x->exported = ARENA_ARRAY(&x->mem, bool, x->f->n_vals);
  x->remat = ARENA_ARRAY(&x->mem, bool, x->n);
  choose_material(x, forced);
  if (join_siblings(x, forced)) {
    memset(forced, 0, x->f->n_vals * sizeof *forced);
    choose_material(x, forced);
  }
  Traffic t = decide(x, forced);
  arena_free(&t.mem);
}
