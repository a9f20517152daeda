/* region_plan.c: from outputs and reductions to nests.
 *
 * A reduction is computed inside the nest that uses it when that nest visits each of its elements once;
 * otherwise, and when its result has too few elements to keep the threads busy, it gets a phase of its own
 * that leaves (partial) results in scratch. */
#include "codegen/region.h"

#include <string.h>

typedef struct {
  Emit *e;
  Body *b;
  uint64_t *direct; /* per value: reductions reached without passing through another one */
  Nest *nest;
  uint32_t n_nests;
  bool *in_place; /* per result: written by the phase of its reduction or contraction */
  RegionPlan *plan;
} Planner;

static const BodyOp *red_op(const Planner *p, uint32_t r) {
  return &p->b->op[p->b->red[r]];
}
static const Type *val_type(const Planner *p, Val v) {
  return &p->b->val[v].type;
}

static int red_index(const Planner *p, uint32_t op) {
  for (uint32_t r = 0; r < p->b->n_reds; r++)
    if (p->b->red[r] == op)
      return (int)r;
  return -1;
}

static void find_direct(Planner *p) {
  Body *b = p->b;
  p->direct = ARENA_ARRAY(b->arena, uint64_t, b->n_vals + 1);
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const BodyOp *op = &b->op[i];
    int r = red_index(p, i);
    uint64_t d = r >= 0 ? 1ull << r : 0;
    for (uint32_t k = 0; r < 0 && k < op->n_args; k++)
      d |= p->direct[op->arg[k]];
    for (uint32_t k = 0; k < op->n_results; k++)
      p->direct[op->result + k] = d;
  }
}

/* Do vectors along the reduced axes read memory in order, rather than along the kept ones? */
static bool prefer_row(const Planner *p, const BodyOp *op) {
  const Body *b = p->b;
  const Type *rt = val_type(p, op->result);
  if (rt->rank == 0 || rt->dim[rt->rank - 1].size == 1)
    return true;
  int64_t row = 0, col = 0;
  for (uint32_t i = 0; i < b->n_params; i++) {
    const Type *t = val_type(p, b->param[i]);
    if (!t->rank)
      continue;
    Axis last = t->dim[t->rank - 1].axis;
    if (type_has(rt, last))
      col += type_count(t);
    else if (type_has(val_type(p, op->arg[0]), last))
      row += type_count(t);
  }
  if (row != col)
    return row > col;
  const Type *xt = val_type(p, op->arg[0]);
  return !type_has(rt, xt->dim[xt->rank - 1].axis);
}

/* The dims over which a user of type t sees reduction r as fixed. */
static Type fixed_dims(const Type *t, const BodyOp *r) {
  return type_has_all(t, r->attr.axis, r->attr.n_axis) ? type_without(t, r->attr.axis, r->attr.n_axis) : *t;
}

/* The inline reduction that shapes the loops of an output; NULL: none. */
static const BodyOp *shaping(const Planner *p, Val v) {
  const BodyOp *any = NULL;
  for (uint32_t r = 0; r < p->b->n_reds; r++) {
    if (!(p->direct[v] >> r & 1) || p->e->split[r].on)
      continue;
    const BodyOp *op = red_op(p, r);
    if (type_has_all(val_type(p, v), op->attr.axis, op->attr.n_axis))
      return op;
    any = any ? any : op;
  }
  return any;
}

static bool inline_ok(const Planner *p, uint32_t r) {
  const Body *b = p->b;
  const BodyOp *op = red_op(p, r);
  const Type *rt = val_type(p, op->result);
  for (uint32_t i = 0; i < b->n_rets; i++) {
    Val v = b->ret[i];
    if (!(p->direct[v] >> r & 1))
      continue;
    Type t = fixed_dims(val_type(p, v), op);
    const BodyOp *shape = shaping(p, v);
    if (!type_same_dims(&t, rt) || (shape && !reduce_same_axes(shape, op)))
      return false;
  }
  for (uint32_t q = 0; q < b->n_reds; q++) {
    const BodyOp *user = red_op(p, q);
    if (q == r || !(p->direct[user->arg[0]] >> r & 1))
      continue;
    Type t = fixed_dims(val_type(p, user->arg[0]), op);
    if (!type_same_dims(&t, rt) || !type_subset(val_type(p, user->result), rt))
      return false;
  }
  return true;
}

int64_t task_target(int64_t work) {
  int64_t n = work / 16384;
  return n < 1 ? 1 : n > 64 ? 64 : n;
}

/* How many parts the reduced range is cut into so that there are enough tasks. */
static int64_t chunks_of(const Planner *p, const BodyOp *op) {
  const Type *rt = val_type(p, op->result), *xt = val_type(p, op->arg[0]);
  int64_t kept = type_count(rt), work = type_count(xt);
  for (uint32_t r = 0; r < p->b->n_reds; r++) /* rows reduced inside count too */
    if (p->b->reads[op->arg[0]] >> r & 1) {
      int64_t inner = type_count(val_type(p, red_op(p, r)->arg[0]));
      work = inner > work ? inner : work;
    }
  int64_t target = task_target(work), tasks = kept;
  if (!prefer_row(p, op)) {
    int64_t last = rt->dim[rt->rank - 1].size;
    tasks = kept / last * ((last + 63) / 64);
  }
  return op->code == OP_ARGMAX || tasks >= 16 || target < 2 * tasks ? 1 : target;
}

/* Tasks are [lo, hi) of the outer reduced axes, or blocks of the lane axis when those are too few: no empty
 * task. */
static int64_t usable_chunks(const Planner *p, const BodyOp *op, int64_t want) {
  bool row = prefer_row(p, op);
  int64_t outer = reduce_outer_count(p->e, op, row);
  if (outer >= want) {
    int64_t per = (outer + want - 1) / want;
    return (outer + per - 1) / per;
  }
  int lane = reduce_lane_dim(p->e, op);
  if (lane < 0 || !row)
    return outer;
  int64_t size = val_type(p, op->arg[0])->dim[lane].size, blocks = (want + outer - 1) / outer;
  int64_t block = ((size + blocks - 1) / blocks + 255) / 256 * 256;
  return outer * ((size + block - 1) / block);
}

static int64_t scratch_for(RegionPlan *plan, const Type *t, int64_t copies) {
  int64_t offset = plan->scratch_bytes;
  plan->scratch_bytes += (type_count(t) * copies * (int64_t)dtype_bytes(t->dtype) + 63) / 64 * 64;
  return offset;
}

/* A result that is computed element by element from contraction c (and whatever else), so that c may lie in
 * its buffer until then: all users of c are pointwise over c's dims and end in results of one nest. NONE:
 * there is none. */
static uint32_t overwritten_result(const Planner *p, Val c, bool *lent) {
  const Body *b = p->b;
  const Type *t = val_type(p, c);
  uint64_t products = 0;
  for (uint32_t r = 0; r < b->n_reds; r++)
    products |= red_op(p, r)->code == OP_CONTRACT ? 1ull << r : 0;
  bool *uses = ARENA_ARRAY(b->arena, bool, b->n_vals + 1);
  uses[c] = true;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const BodyOp *op = &b->op[i];
    bool any = false;
    for (uint32_t k = 0; k < op->n_args; k++)
      any |= uses[op->arg[k]];
    if (any && (!op_is_pointwise(op->code) || !type_same_dims(val_type(p, op->result), t)))
      return NONE;
    uses[op->result] |= any;
  }
  uint32_t found = NONE;
  for (uint32_t i = 0; i < b->n_rets; i++) {
    if (!uses[b->ret[i]])
      continue;
    if (b->reads[b->ret[i]] & ~products)
      return NONE;
    if (found == NONE && !lent[i] && !p->in_place[i] && type_equal(val_type(p, b->ret[i]), t))
      found = i;
  }
  if (found != NONE)
    lent[found] = true;
  return found;
}

static void decide_reductions(Planner *p, RegionPlan *plan) {
  const Body *b = p->b;
  bool *lent = ARENA_ARRAY(b->arena, bool, b->n_rets + 1); /* results that hold a contraction for a while */
  Split *split = p->e->split;
  for (uint32_t r = 0; r < b->n_reds; r++)
    if (red_op(p, r)->code == OP_CONTRACT || !inline_ok(p, r))
      split[r] = (Split){.on = true, .chunks = 1, .result = NONE};
  for (uint32_t r = 0; r < b->n_reds; r++) {
    int64_t want = red_op(p, r)->code == OP_CONTRACT ? 1 : chunks_of(p, red_op(p, r));
    if (want > 1)
      split[r] = (Split){.on = true, .chunks = want, .result = NONE};
  }
  for (uint32_t r = 0; r < b->n_reds; r++) {
    if (!split[r].on)
      continue;
    const Type *rt = val_type(p, red_op(p, r)->result);
    if (split[r].chunks > 1)
      split[r].chunks = usable_chunks(p, red_op(p, r), split[r].chunks);
    split[r].count = type_count(rt);
    Val written = red_op(p, r)->result;
    View add[GEMM_ADDENDS];
    int n_adds;
    if (red_op(p, r)->code == OP_CONTRACT)
      written = contract_written(b, written, add, &n_adds);
    for (uint32_t i = 0; i < b->n_rets && split[r].chunks == 1; i++) /* no copy when it is a result itself */
      if (b->ret[i] == written) {
        split[r].result = i;
        p->in_place[i] = true;
        break;
      }
    if (split[r].result == NONE && red_op(p, r)->code == OP_CONTRACT)
      split[r].result = overwritten_result(p, red_op(p, r)->result, lent);
    if (split[r].result == NONE)
      split[r].offset = scratch_for(plan, rt, split[r].chunks);
  }
}

static Nest *add_nest(Planner *p) {
  uint32_t cap = 3 * p->b->n_reds + p->b->n_rets;
  if (!p->nest)
    p->nest = ARENA_ARRAY(p->b->arena, Nest, cap);
  Nest *n = &p->nest[p->n_nests++];
  *n = (Nest){.lane = -1, .width = 16, .chunks = 1, .contract = NONE};
  n->out = ARENA_ARRAY(p->b->arena, NestOut, cap);
  return n;
}

static int column_width(const Type *t, int lane) {
  int64_t size = t->dim[lane].size;
  return size >= 64 && dtype_bytes(t->dtype) < 8 ? 64 : size >= 32 ? 32 : 16;
}

static uint64_t needs(const Planner *p, const BodyOp *op) {
  uint64_t m = 0;
  for (uint32_t k = 0; k < op->n_args; k++)
    m |= p->b->reads[op->arg[k]];
  return m;
}

static void shape_nest(Planner *p, Nest *n, Val v);

/* The operand where it lies, or put in scratch by a phase before. */
static View contract_operand(Planner *p, Val v) {
  View w;
  if (contract_view(p->b, v, &w))
    return w;
  const Type *t = val_type(p, v);
  Nest *n = add_nest(p);
  shape_nest(p, n, v);
  w = (View){.base = v, .in_scratch = true, .scratch = scratch_for(p->plan, t, 1), .n = t->rank};
  n->out[n->n_outs++] = (NestOut){v, NONE, w.scratch, NONE};
  int64_t stride = 1;
  for (int i = t->rank; i-- > 0;) {
    w.dim[i] = t->dim[i];
    w.stride[i] = stride;
    stride *= t->dim[i].size;
  }
  return w;
}

static void plan_contract(Planner *p, uint32_t r) {
  View x = contract_operand(p, red_op(p, r)->arg[0]), y = contract_operand(p, red_op(p, r)->arg[1]);
  Nest *n = add_nest(p);
  n->contract = r;
  n->x = x;
  n->y = y;
  contract_written(p->b, red_op(p, r)->result, n->add, &n->n_adds);
}

/* Phases for reductions in scratch, those that others wait for first. */
static void plan_reductions(Planner *p) {
  const Body *b = p->b;
  Split *split = p->e->split;
  uint64_t done = 0, all = 0;
  for (uint32_t r = 0; r < b->n_reds; r++)
    all |= split[r].on ? 1ull << r : 0;
  while (done != all) {
    uint64_t known = done;
    for (uint32_t r = 0; r < b->n_reds; r++) {
      const BodyOp *op = red_op(p, r);
      if (!(all >> r & 1) || (done >> r & 1) || (needs(p, op) & all & ~known))
        continue;
      if (op->code == OP_CONTRACT) {
        plan_contract(p, r);
        done |= 1ull << r;
        continue;
      }
      Nest *n = add_nest(p);
      n->loops = *val_type(p, op->result);
      n->n_p = n->loops.rank;
      n->chunks = split[r].chunks;
      if (!prefer_row(p, op)) {
        n->lane = n->n_p - 1;
        n->width = column_width(&n->loops, n->lane);
      }
      for (uint32_t q = r; q < b->n_reds; q++) {
        const BodyOp *o = red_op(p, q);
        if (!(all >> q & 1) || (done >> q & 1) || o->code == OP_CONTRACT || (needs(p, o) & all & ~known) ||
            !reduce_same_axes(o, op) || !type_same_dims(val_type(p, o->result), &n->loops) ||
            split[q].chunks != n->chunks)
          continue;
        n->out[n->n_outs++] = (NestOut){o->result, split[q].result, split[q].offset, q};
        n->group |= 1ull << q;
        done |= 1ull << q;
      }
    }
  }
}

/* Loops of the nest whose main output is v. */
static void shape_nest(Planner *p, Nest *n, Val v) {
  const Type *t = val_type(p, v);
  const BodyOp *red = shaping(p, v);
  n->loops = *t;
  n->n_p = t->rank;
  n->lane = t->rank - 1;
  if (!red) {
    for (int i = 0; i < t->rank; i++)
      n->lane = t->dim[i].size > 1 ? i : n->lane;
    return;
  }
  bool row = prefer_row(p, red);
  if (type_has_all(t, red->attr.axis, red->attr.n_axis)) {
    n->loops = type_without(t, red->attr.axis, red->attr.n_axis);
    n->n_p = n->loops.rank;
    for (int i = 0; i < t->rank; i++)
      if (!type_has(&n->loops, t->dim[i].axis))
        type_push(&n->loops, t->dim[i].axis, t->dim[i].size);
    n->lane = row ? t->rank - 1 : n->n_p - 1;
  } else {
    n->lane = row ? -1 : t->rank - 1;
  }
  if (!row)
    n->width = column_width(&n->loops, n->lane);
}

static bool joins(const Planner *p, const Nest *n, Val v, const BodyOp *red) {
  const Type *t = val_type(p, v);
  Type head = n->loops;
  head.rank = (uint8_t)n->n_p;
  if (!type_same_dims(t, &n->loops) && !type_same_dims(t, &head))
    return false;
  const BodyOp *own = shaping(p, v);
  return !own || (red && reduce_same_axes(own, red));
}

static void plan_outputs(Planner *p) {
  const Body *b = p->b;
  bool *done = p->in_place;
  for (;;) {
    uint32_t best = NONE;
    for (uint32_t i = 0; i < b->n_rets; i++)
      if (!done[i] &&
          (best == NONE || type_count(val_type(p, b->ret[i])) > type_count(val_type(p, b->ret[best])) ||
           (type_count(val_type(p, b->ret[i])) == type_count(val_type(p, b->ret[best])) &&
            !shaping(p, b->ret[best]) && shaping(p, b->ret[i]))))
        best = i;
    if (best == NONE)
      return;
    Nest *n = add_nest(p);
    const BodyOp *red = shaping(p, b->ret[best]);
    shape_nest(p, n, b->ret[best]);
    for (uint32_t i = 0; i < b->n_rets; i++)
      if (!done[i] && (i == best || joins(p, n, b->ret[i], red))) {
        n->out[n->n_outs++] = (NestOut){b->ret[i], i, 0, NONE};
        done[i] = true;
      }
  }
}

bool region_plan_nests(Emit *e, RegionPlan *plan, Nest **nests, uint32_t *n) {
  Planner p = {.e = e, .b = e->body};
  e->split = ARENA_ARRAY(e->arena, Split, 64);
  p.plan = plan;
  p.in_place = ARENA_ARRAY(e->arena, bool, e->body->n_rets + 1);
  find_direct(&p);
  decide_reductions(&p, plan);
  plan_reductions(&p);
  plan_outputs(&p);
  *nests = p.nest;
  *n = p.n_nests;
  return p.n_nests <= MAX_PHASES ||
         error_set(e->err, ERR_INPUT, "region needs more than %d phases", MAX_PHASES);
}
