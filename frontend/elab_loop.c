/* elab_loop.c: repeat and scan.
 *
 * A body's carried values get their types from the body itself: it is elaborated with the types known so far
 * until what comes out is what went in (two or three rounds). Everything from outside enters through imports;
 * see elab.h. */
#include "frontend/elab.h"

#include <string.h>

enum { MAX_ROUNDS = 6 };

typedef struct {
  const char **v;
  uint32_t n, cap;
} Names;

static void add_assigned(Elab *e, const AstBlock *b, Names *out) {
  for (uint32_t i = 0; i < b->n; i++) {
    const AstStmt *st = b->v[i];
    if (st->kind == STMT_ASSIGN && st->bind.name.text) {
      bool known = false;
      for (uint32_t k = 0; k < out->n; k++) {
        known |= !strcmp(out->v[k], st->bind.name.text);
      }
      if (!known) {
        VEC_PUSH(e->arena, out->v, out->n, out->cap, st->bind.name.text);
      }
    } else if (st->kind == STMT_IF) {
      add_assigned(e, &st->cond.then, out);
      add_assigned(e, &st->cond.orelse, out);
    } else if (st->kind == STMT_REPEAT || st->kind == STMT_SCAN) {
      add_assigned(e, &st->loop.body, out);
    }
  }
}

static bool is_state_name(Elab *e, Scope *s, const char *name) {
  for (Scope *p = s; p && p->in_module; p = p->up) {
    for (uint32_t i = 0; i < e->n_slots; i++) {
      size_t n = strlen(p->path ? p->path : "");
      const char *path = e->slot[i].path;
      if (e->slot[i].is_state && !strncmp(path, p->path ? p->path : "", n) &&
          !strcmp(path + n + (n > 0), name)) {
        return true;
      }
    }
  }
  return false;
}

/* Names the body assigns that are known outside: the carried ones. */
static Names carried_names(Elab *e, Scope *s, const AstBlock *b) {
  Names all = {0}, out = {0};
  add_assigned(e, b, &all);
  for (uint32_t i = 0; i < all.n; i++) {
    Binding *x = scope_find(s, all.v[i]);
    if (x && !is_state_name(e, s, all.v[i])) {
      x->used = true;
      VEC_PUSH(e->arena, out.v, out.n, out.cap, all.v[i]);
    }
  }
  return out;
}

typedef struct {
  Ctx *c;
  Scope *s;
  Type *type;   /* of each carried value */
  Val *ret;     /* what the body gives for it */
  const V *was; /* before this round: the start, later what the body gave */
} Round;

static Ctx *loop_ctx(Elab *e, Scope *s, const AstStmt *st, const AxisBinding *a, const char *path) {
  Ctx *c = ARENA_NEW(e->arena, Ctx);
  c->up = s->ctx;
  c->depth = s->ctx->depth + 1;
  c->axis = a->axis;
  c->size = a->size;
  c->path = path;
  c->b = (Builder){e->func, ir_block_new(e->func), s->ctx->b.loc, &e->err};
  c->index = ir_param(e->func, c->b.b, type_scalar(DT_I32), st->loop.index.text);
  return c;
}

static Type start_type(Elab *e, V v) {
  return v.kind == V_TENSOR ? *vtype(e, &v) : type_scalar(v.kind == V_NUM && v.is_int ? DT_I32 : e->m->real);
}

/* Elaborates the body once with carried values of the given types. False when something was reported. */
static bool run_round(Elab *e, Scope *outer, const AstStmt *st, const AxisBinding *a, const Names *carry,
                      Type *type, Round *r) {
  bool is_repeat = st->kind == STMT_REPEAT;
  const char *part = arena_printf(e->arena, "%s.*", st->loop.index.text);
  const char *path = !is_repeat       ? NULL
                     : outer->path[0] ? arena_printf(e->arena, "%s.%s", outer->path, part)
                                      : part;
  r->c = loop_ctx(e, outer, st, a, path);
  r->type = type;
  r->ret = ARENA_ARRAY(e->arena, Val, carry->n);
  Scope *s = ARENA_NEW(e->arena, Scope);
  *s = (Scope){.up = outer,
               .file = outer->file,
               .path = is_repeat ? path : outer->path,
               .ctx = r->c,
               .self = outer->self,
               .in_module = outer->in_module,
               .result = poison()};
  r->s = s;
  V index = tensor(r->c, r->c->index);
  index.index_of = r->c;
  scope_set(e, s, st->loop.index.text, index, st->loop.index.span);
  s->v[0].is_input = true;
  for (uint32_t i = 0; i < carry->n; i++) {
    Val v = ir_param(e->func, r->c->b.b, type[i], carry->v[i]);
    if (r->was[i].kind == V_TENSOR) {
      note_link(e, v, r->was[i].val);
    }
    scope_set(e, s, carry->v[i], tensor(r->c, v), st->span);
    s->v[s->n - 1].is_input = true;
  }
  uint32_t errors = e->diag->n_errors;
  run_block(e, s, &st->loop.body);
  return e->diag->n_errors == errors;
}

/* Brings the body's value to type t; NONE when it has another type (then *out is that type). */
static Val carry_as(Elab *e, Ctx *c, V v, const Type *t, Type *out) {
  if (v.kind == V_NUM) {
    v = as_tensor(e, c, v, t->dtype);
  }
  v = bring(e, c, v);
  const Type *have = vtype(e, &v);
  bool fewer = have->rank <= t->rank && have->dtype == t->dtype;
  for (int i = 0; i < have->rank && fewer; i++) {
    int k = type_find(t, have->dim[i].axis);
    fewer = k >= 0 && t->dim[k].size == have->dim[i].size;
  }
  if (!fewer) {
    *out = *have;
    Axis clash;
    Type joined;
    if (type_join(have, t, &joined, &clash) && dtype_is_float(t->dtype) == dtype_is_float(have->dtype)) {
      *out = joined;
    }
    return NONE;
  }
  return type_same_dims(have, t) ? ir_reorder(&c->b, v.val, t) : ir_broadcast(&c->b, v.val, t);
}

static bool settle(Elab *e, Round *r, const Names *carry, Type *type) {
  bool same = true;
  for (uint32_t i = 0; i < carry->n; i++) {
    V v = scope_find(r->s, carry->v[i])->v;
    Type want = type[i];
    r->ret[i] = v.kind == V_POISON ? NONE : carry_as(e, r->c, v, &want, &type[i]);
    same &= r->ret[i] != NONE;
  }
  return same;
}

/* ---- the finished loop ---- */

static void order_params(Elab *e, Ctx *c, uint32_t n_carry) {
  Block *b = c->b.b;
  Val *order = ARENA_ARRAY(e->arena, Val, b->n_params);
  uint32_t n = 0;
  for (uint32_t i = 0; i <= n_carry; i++) {
    order[n++] = b->param[i];
  }
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < c->n_imports; i++) {
      if (c->import[i].sliced == (pass == 0)) {
        order[n++] = c->import[i].inner;
      }
    }
  }
  for (uint32_t i = 0; i < n; i++) {
    b->param[i] = order[i];
    e->func->val[order[i]].index = i;
  }
}

typedef enum { Y_NAME, Y_ESCAPE, Y_STATE } YKind;
typedef struct {
  YKind kind;
  uint32_t at;
} Y;

/* Values that leave stacked: names born in a scan, outputs, next states. */
static uint32_t collect_ys(Elab *e, Round *r, bool is_scan, uint32_t n_carry, Y **out) {
  Y *y = NULL;
  uint32_t n = 0, cap = 0;
  for (uint32_t i = 1 + n_carry; is_scan && i < r->s->n; i++) {
    V v = r->s->v[i].v;
    if (v.kind == V_TENSOR && !type_has(vtype(e, &v), r->c->axis) && vtype(e, &v)->rank < IR_MAX_RANK) {
      VEC_PUSH(e->arena, y, n, cap, (Y){Y_NAME, i});
      ir_block_ret(e->func, r->c->b.b, bring(e, r->c, v).val);
    }
  }
  for (uint32_t i = 0; i < r->c->n_escapes; i++) {
    VEC_PUSH(e->arena, y, n, cap, (Y){Y_ESCAPE, i});
    ir_block_ret(e->func, r->c->b.b, r->c->escape[i].v.val);
  }
  for (uint32_t i = 0; i < r->c->n_next; i++) {
    VEC_PUSH(e->arena, y, n, cap, (Y){Y_STATE, i});
    ir_block_ret(e->func, r->c->b.b, r->c->next[i].v.val);
  }
  *out = y;
  return n;
}

static void leave(Elab *e, Scope *s, Round *r, const Y *y, V v) {
  Ctx *up = s->ctx;
  switch (y->kind) {
  case Y_NAME: {
    const Binding *b = &r->s->v[y->at];
    scope_set(e, s, b->name, v, b->span);
    scope_find(s, b->name)->used = true;
    break;
  }
  case Y_ESCAPE: {
    Escape x = {r->c->escape[y->at].res, v, r->c->escape[y->at].annotated};
    VEC_PUSH(e->arena, up->escape, up->n_escapes, up->cap_escapes, x);
    break;
  }
  case Y_STATE: {
    NextState x = {r->c->next[y->at].state, v};
    VEC_PUSH(e->arena, up->next, up->n_next, up->cap_next, x);
    break;
  }
  }
}

static void finish(Elab *e, Scope *s, const AstStmt *st, Round *r, const Names *carry) {
  Ctx *up = s->ctx, *c = r->c;
  for (uint32_t i = 0; i < carry->n; i++) {
    ir_block_ret(e->func, c->b.b, r->ret[i]);
  }
  Y *y;
  uint32_t n_y = collect_ys(e, r, st->kind == STMT_SCAN, carry->n, &y), n_xs = 0;
  order_params(e, c, carry->n);
  Val *arg = ARENA_ARRAY(e->arena, Val, carry->n + c->n_imports);
  uint32_t n = 0;
  locate(e, up, st->span);
  for (uint32_t i = 0; i < carry->n; i++) {
    V v = scope_find(s, carry->v[i])->v;
    v = as_tensor(e, up, bring(e, up, v), r->type[i].dtype);
    const Type *have = vtype(e, &v);
    arg[n++] = type_same_dims(have, &r->type[i]) ? ir_reorder(&up->b, v.val, &r->type[i])
                                                 : ir_broadcast(&up->b, v.val, &r->type[i]);
  }
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < c->n_imports; i++) {
      if (c->import[i].sliced == (pass == 0)) {
        arg[n++] = c->import[i].outer;
        n_xs += pass == 0;
      }
    }
  }
  Attr attr = {.axis = &c->axis, .n_axis = 1, .num = (int64_t[]){c->size, carry->n, n_xs, 0}, .n_num = 4};
  V out = built(e, up, ir_op(&up->b, OP_LOOP, arg, n, &attr, c->b.b), st->span);
  if (out.kind == V_POISON) {
    return;
  }
  for (uint32_t i = 0; i < carry->n; i++) {
    Binding *b = scope_find(s, carry->v[i]);
    scope_set(e, s, carry->v[i], tensor(up, out.val + i), b->span);
  }
  for (uint32_t i = 0; i < n_y; i++) {
    leave(e, s, r, &y[i], tensor(up, out.val + carry->n + i));
  }
}

/* The index is no axis, and the repeats of one body have names of their own, for the paths of their
 * parameters. */
static bool name_loop(Elab *e, Scope *s, const AstStmt *st) {
  const char *name = st->loop.index.text;
  if (axis_known(s, name)) {
    report(e, st->loop.index.span, "'%s' is an axis; the index of a loop needs another name", name);
    return false;
  }
  for (uint32_t i = 0; st->kind == STMT_REPEAT && i < s->n_repeats; i++) {
    if (!strcmp(s->repeat[i], name)) {
      report(e, st->loop.index.span,
             "a second repeat '%s' in one body would name its parameters as the first does", name);
      return false;
    }
  }
  if (st->kind == STMT_REPEAT) {
    VEC_PUSH(e->arena, s->repeat, s->n_repeats, s->cap_repeats, name);
  }
  return true;
}

void run_loop(Elab *e, Scope *s, const AstStmt *st) {
  AxisBinding a;
  if (!find_axis(e, s, &st->loop.axis, &a) || !name_loop(e, s, st)) {
    return;
  }
  Names carry = carried_names(e, s, &st->loop.body);
  Type *type = ARENA_ARRAY(e->arena, Type, carry.n);
  for (uint32_t i = 0; i < carry.n; i++) {
    V v = scope_find(s, carry.v[i])->v;
    if (v.kind == V_POISON) {
      return;
    }
    type[i] = start_type(e, v);
  }
  const uint32_t draws = e->draws; /* every round draws the same numbers */
  V *was = ARENA_ARRAY(e->arena, V, carry.n);
  for (uint32_t i = 0; i < carry.n; i++) {
    was[i] = scope_find(s, carry.v[i])->v;
  }
  for (int round = 0; round < MAX_ROUNDS; round++) {
    Round r = {.was = was};
    Type *next = ARENA_ARRAY(e->arena, Type, carry.n);
    memcpy(next, type, carry.n * sizeof *next);
    e->draws = draws;
    if (!run_round(e, s, st, &a, &carry, type, &r)) {
      for (uint32_t i = 0; i < carry.n; i++) {
        scope_set(e, s, carry.v[i], poison(), st->span);
      }
      return;
    }
    if (settle(e, &r, &carry, next)) {
      finish(e, s, st, &r, &carry);
      return;
    }
    for (uint32_t i = 0; i < carry.n; i++) {
      was[i] = scope_find(r.s, carry.v[i])->v;
    }
    type = next;
  }
  report(e, st->span, "a value carried through this loop never settles on its axes");
}
