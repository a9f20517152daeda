/* elab_param.c: parameters and states: rows of the module's tables, arguments of functions, slices in loops.
 */
#include "frontend/elab.h"

#include <math.h>
#include <string.h>

static const char *join_path(Elab *e, const char *path, const char *name) {
  return path[0] ? arena_printf(e->arena, "%s.%s", path, name) : name;
}

static bool belongs_to(const char *slot, const Ctx *c) {
  size_t n = c->path ? strlen(c->path) : 0;
  return n && !strncmp(slot, c->path, n) && slot[n] == '.';
}

/* `param w[a]: f32`: the precision's own float; other types would need storage of their own. */
static bool slot_dtype(Elab *e, const AstDecl *d, DType *out) {
  DType t = e->m->real;
  if (strcmp(d->dtype.text, "float") && !dtype_parse(d->dtype.text, strlen(d->dtype.text), &t)) {
    report(e, d->dtype.span, "there is no type '%s'", d->dtype.text);
    return false;
  }
  t = t == DT_F32 && e->m->real == DT_F64 ? DT_F64 : t;
  if (t != e->m->real) {
    report(e, d->dtype.span, "'%s' of type %s is not built yet; leave the type out", d->name.text,
           dtype_name(t));
    return false;
  }
  *out = t;
  return true;
}

/* The declared axes, with the axes of the repeats around in front. */
static bool slot_type(Elab *e, Scope *s, const AstDecl *d, const char *path, Type *out, uint32_t *n_repeat) {
  Ctx *chain[IR_MAX_RANK];
  uint32_t n = 0;
  for (Ctx *c = s->ctx; c; c = c->up) {
    if (belongs_to(path, c) && n < IR_MAX_RANK) {
      chain[n++] = c;
    }
  }
  *out = type_scalar(e->m->real);
  if (d->dtype.text && !slot_dtype(e, d, &out->dtype)) {
    return false;
  }
  *n_repeat = n;
  while (n-- > 0) {
    if (!type_push(out, chain[n]->axis, chain[n]->size)) {
      report(e, d->span, "a repeat inside a repeat over the same axis");
      return false;
    }
  }
  for (uint32_t i = 0; i < d->axes.n; i++) {
    AxisBinding a;
    if (!find_axis(e, s, &d->axes.v[i], &a)) {
      return false;
    }
    if (type_has(out, a.axis)) {
      uint32_t id = report(e, d->axes.v[i].span, "'%s' has the axis '%s' twice", d->name.text, a.name);
      diag_hint(e->diag, id,
                "declare a second name of the same size (axis %s_out = %s) and write %s[%s, %s_out]", a.name,
                a.name, d->name.text, a.name, a.name);
      return false;
    }
    if (!type_push(out, a.axis, a.size)) {
      report(e, d->span, "'%s' has more than %d axes, its repeats included", d->name.text, IR_MAX_RANK);
      return false;
    }
  }
  int64_t bytes;
  if (!type_bytes(out, &bytes)) {
    report(e, d->span, "'%s' cannot be: %s is more than 2^63 bytes", d->name.text, type_text(e, out));
    return false;
  }
  return true;
}

static bool init_of(Elab *e, Scope *s, const AstDecl *d, IrParam *p) {
  const AstExpr *x = d->init;
  double v[2];
  bool whole;
  if (d->init_kind == INIT_FILL) {
    p->init = IR_INIT_FILL;
    return eval_number(e, s, x, &p->a, &whole, "the value of a parameter");
  }
  const char *f = x && x->kind == EXPR_CALL ? x->call.f.text : NULL;
  if (!f || (strcmp(f, "normal") && strcmp(f, "uniform")) || x->call.args.n != 2) {
    report(e, x ? x->span : d->span, "an initialiser is normal(mean, sd) or uniform(low, high)");
    return false;
  }
  for (int i = 0; i < 2; i++) {
    if (!eval_number(e, s, x->call.args.v[i].value, &v[i], &whole, "an initialiser")) {
      return false;
    }
  }
  p->init = strcmp(f, "normal") ? IR_INIT_UNIFORM : IR_INIT_NORMAL;
  p->a = v[0];
  p->b = v[1];
  if (!isfinite(v[0]) || !isfinite(v[1]) || (p->init == IR_INIT_NORMAL && v[1] < 0) ||
      (p->init == IR_INIT_UNIFORM && v[1] < v[0])) {
    report(e, x->span, "%s(%g, %g): %s", f, v[0], v[1],
           p->init == IR_INIT_NORMAL ? "the second number is a deviation, at least 0"
                                     : "the first number is at most the second");
    return false;
  }
  return true;
}

/* The slot of a path in the current function, with its argument. */
static Slot *slot_of(Elab *e, const char *path, bool is_state, uint32_t row, const Type *t) {
  for (uint32_t i = 0; i < e->n_slots; i++) {
    if (e->slot[i].is_state == is_state && !strcmp(e->slot[i].path, path)) {
      return &e->slot[i];
    }
  }
  Val arg = ir_func_arg(e->func, is_state ? ARG_STATE : ARG_PARAM, row, *t, path);
  VEC_PUSH(e->arena, e->slot, e->n_slots, e->cap_slots, (Slot){path, row, arg, is_state});
  return &e->slot[e->n_slots - 1];
}

/* The slot's part in place c: whole at the function, a slice in each repeat it was declared in. */
static Val slot_value(Elab *e, Ctx *c, const Slot *slot) {
  if (!c->up) {
    return slot->arg;
  }
  Val outer = slot_value(e, c->up, slot);
  return import_value(e, c, c->up, outer, belongs_to(slot->path, c));
}

static uint32_t param_row(Elab *e, Scope *s, const AstDecl *d, const char *path, bool frozen) {
  Module *m = e->m;
  for (uint32_t i = 0; i < m->n_params; i++) {
    if (!strcmp(m->param[i].name, path)) {
      return i;
    }
  }
  IrParam p = {.name = arena_strdup(&m->arena, path), .frozen = frozen, .group = NONE};
  if (!slot_type(e, s, d, path, &p.type, &p.n_repeat) || !init_of(e, s, d, &p)) {
    return NONE;
  }
  p.loc.file = d->name.span.file;
  source_line_col(&e->sources->v[d->name.span.file], d->name.span.begin, &p.loc.line, &p.loc.col);
  uint32_t old_cap = m->cap_params;
  VEC_PUSH(&m->arena, m->param, m->n_params, m->cap_params, p);
  if (m->cap_params != old_cap) {
    ParamUse *grown = ARENA_ARRAY(e->arena, ParamUse, m->cap_params);
    if (e->use) {
      memcpy(grown, e->use, old_cap * sizeof *grown);
    }
    e->use = grown;
  }
  return m->n_params - 1;
}

static void bind_slot(Elab *e, Scope *s, const AstDecl *d, Slot *slot) {
  V v = tensor(s->ctx, slot_value(e, s->ctx, slot));
  v.param = slot->is_state ? NONE : slot->row;
  scope_set(e, s, d->name.text, v, d->name.span);
  Binding *b = scope_find(s, d->name.text);
  b->is_input = b->is_slot = true;
}

static bool is_declared(Scope *s, const char *name) {
  for (uint32_t i = 0; i < s->n; i++) {
    if (!strcmp(s->v[i].name, name) && s->v[i].is_slot) {
      return true;
    }
  }
  return false;
}

void declare_params(Elab *e, Scope *s, const AstStmt *st) {
  for (uint32_t i = 0; i < st->decl.n; i++) {
    const AstDecl *d = &st->decl.v[i];
    if (!d->name.text) {
      continue;
    }
    if (!s->in_module) {
      report(e, d->span, "a function holds no parameters; make it a module");
      return;
    }
    if (axis_known(s, d->name.text)) {
      report(e, d->name.span, "'%s' is an axis; a parameter needs another name", d->name.text);
      scope_set(e, s, d->name.text, poison(), d->name.span);
      continue;
    }
    if (is_declared(s, d->name.text)) {
      report(e, d->name.span, "'%s' is declared twice in this body", d->name.text);
      continue;
    }
    const char *path = join_path(e, s->path, d->name.text);
    uint32_t row = param_row(e, s, d, path, st->kind == STMT_FROZEN);
    if (row == NONE) {
      scope_set(e, s, d->name.text, poison(), d->name.span);
      continue;
    }
    bind_slot(e, s, d, slot_of(e, path, false, row, &e->m->param[row].type));
  }
}

void declare_states(Elab *e, Scope *s, const AstStmt *st) {
  Module *m = e->m;
  for (uint32_t i = 0; i < st->decl.n; i++) {
    const AstDecl *d = &st->decl.v[i];
    if (!d->name.text) {
      continue;
    }
    if (!s->in_module || is_declared(s, d->name.text)) {
      report(e, d->name.span,
             s->in_module ? "'%s' is declared twice in this body"
                          : "a function holds no state; make it a module",
             d->name.text);
      continue;
    }
    if (axis_known(s, d->name.text)) {
      report(e, d->name.span, "'%s' is an axis; a state needs another name", d->name.text);
      scope_set(e, s, d->name.text, poison(), d->name.span);
      continue;
    }
    const char *path = join_path(e, s->path, d->name.text);
    uint32_t row = NONE;
    for (uint32_t k = 0; k < m->n_states; k++) {
      row = strcmp(m->state[k].name, path) ? row : k;
    }
    if (row == NONE) {
      IrState r = {.name = arena_strdup(&m->arena, path), .param = NONE};
      bool whole;
      if (!slot_type(e, s, d, path, &r.type, &r.n_repeat) ||
          !eval_number(e, s, d->init, &r.fill, &whole, "the start of a state")) {
        scope_set(e, s, d->name.text, poison(), d->name.span);
        continue;
      }
      VEC_PUSH(&m->arena, m->state, m->n_states, m->cap_states, r);
      row = m->n_states - 1;
    }
    bind_slot(e, s, d, slot_of(e, path, true, row, &m->state[row].type));
  }
}

bool assign_state(Elab *e, Scope *s, const char *name, V v, Span at) {
  const Slot *slot = NULL;
  for (Scope *p = s; p && p->in_module && !slot; p = p->up) {
    const char *path = join_path(e, p->path ? p->path : "", name);
    for (uint32_t i = 0; i < e->n_slots && !slot; i++) {
      slot = e->slot[i].is_state && !strcmp(e->slot[i].path, path) ? &e->slot[i] : NULL;
    }
  }
  if (!slot) {
    return false;
  }
  if (s->ctx->up && !belongs_to(slot->path, s->ctx)) {
    report(e, at,
           "state '%s' is assigned inside a loop it was declared outside of; carry a value and assign it "
           "after the loop",
           name);
    return true;
  }
  if (!e->training || v.kind == V_POISON) {
    return true; /* read-only outside training */
  }
  Type want = *ir_type(e->func, slot_value(e, s->ctx, slot));
  v = as_tensor(e, s->ctx, v, want.dtype);
  const Type *have = v.val == NONE ? &want : vtype(e, &v);
  for (int i = 0; i < have->rank; i++) {
    if (!type_has(&want, have->dim[i].axis)) {
      report(e, at, "state '%s' has no axis '%s', the new value has", name,
             ir_axis_name(e->m, have->dim[i].axis));
      return true;
    }
  }
  locate(e, s->ctx, at);
  v = built(e, s->ctx,
            ir_reorder(&s->ctx->b,
                       type_same_dims(have, &want) ? v.val : ir_broadcast(&s->ctx->b, v.val, &want), &want),
            at);
  v = unary_op(e, s->ctx, OP_STOP, v, at);
  for (uint32_t i = 0; i < s->ctx->n_next; i++) {
    if (s->ctx->next[i].state == slot->row) {
      s->ctx->next[i].v = v;
      scope_set(e, s, name, v, at);
      return true;
    }
  }
  VEC_PUSH(e->arena, s->ctx->next, s->ctx->n_next, s->ctx->cap_next, (NextState){slot->row, v});
  scope_set(e, s, name, v, at);
  scope_find(s, name)->used = true;
  return true;
}

Val scalar_arg(Elab *e, uint32_t which) {
  static const DType dtype[3] = {DT_F64, DT_I64, DT_I64};
  static const char *const name[3] = {"$step", "$attempt", "$seed"};
  if (e->scalar_arg[which] == NONE) {
    e->scalar_arg[which] = ir_func_arg(e->func, ARG_SCALAR, which, type_scalar(dtype[which]), name[which]);
  }
  return e->scalar_arg[which];
}
