/* elab_move.c: brackets (rename, split, merge, index) and the calls that move elements. */
#include "frontend/elab.h"

#include <math.h>
#include <string.h>

/* ---- x[a as b] ---- */

static bool operand_axis(Elab *e, Scope *s, const V *v, const AstName *name, AxisBinding *out) {
  if (!find_axis(e, s, name, out)) {
    return false;
  }
  const Type *t = vtype(e, v);
  if (type_has(t, out->axis)) {
    return true;
  }
  uint32_t d =
      report(e, name->span, "the operand is %s, it does not have the axis '%s'", type_text(e, t), name->text);
  const char *names[IR_MAX_RANK];
  for (int i = 0; i < t->rank; i++) {
    names[i] = ir_axis_name(e->m, t->dim[i].axis);
  }
  diag_did_you_mean(e->diag, d, name->text, names, t->rank);
  return false;
}

/* The op that makes axes `to` of axes `from`: rename, split or merge. False after an error. */
static bool reshape(Elab *e, const Type *t, const AstBracket *b, Span at, const AxisBinding *from,
                    const AxisBinding *to, OpCode *code, Axis *axis, int64_t *size, Attr *attr) {
  uint32_t n = b->axes.n, m = b->to.n;
  *attr = (Attr){.axis = axis, .num = size};
  int64_t all = 1;
  for (uint32_t i = 0; i < n; i++) {
    all *= t->dim[type_find(t, from[i].axis)].size;
  }
  if (n == m) {
    *code = OP_RENAME;
    for (uint32_t i = 0; i < n; i++) {
      int64_t have = t->dim[type_find(t, from[i].axis)].size;
      if (have != to[i].size) {
        report(e, b->to.v[i].span, "'%s' has size %lld here, '%s' has size %lld", from[i].name,
               (long long)have, to[i].name, (long long)to[i].size);
        return false;
      }
      axis[2 * i] = from[i].axis;
      axis[2 * i + 1] = to[i].axis;
    }
    attr->n_axis = 2 * n;
  } else if (n == 1) {
    *code = OP_SPLIT;
    axis[0] = from[0].axis;
    for (uint32_t i = 0; i < m; i++) {
      axis[i + 1] = to[i].axis;
      size[i] = to[i].size;
    }
    attr->n_axis = m + 1;
    attr->n_num = m;
  } else if (m == 1) {
    *code = OP_MERGE;
    for (uint32_t i = 0; i < n; i++) {
      axis[i] = from[i].axis;
    }
    axis[n] = to[0].axis;
    attr->n_axis = n + 1;
    if (all != to[0].size) {
      report(e, at, "the merged axes have %lld places, '%s' has %lld", (long long)all, to[0].name,
             (long long)to[0].size);
      return false;
    }
  } else {
    report(e, at,
           "%u axes cannot become %u: rename one for one, split one into several, or merge several into one",
           n, m);
    return false;
  }
  return true;
}

static V bracket_as(Elab *e, Scope *s, V v, const AstBracket *b, Span at) {
  AxisBinding from[IR_MAX_RANK], to[IR_MAX_RANK];
  if (b->axes.n > IR_MAX_RANK || b->to.n > IR_MAX_RANK) {
    report(e, at, "more than %d axes", IR_MAX_RANK);
    return poison();
  }
  for (uint32_t i = 0; i < b->axes.n; i++) {
    if (!operand_axis(e, s, &v, &b->axes.v[i], &from[i])) {
      return poison();
    }
  }
  for (uint32_t i = 0; i < b->to.n; i++) {
    if (!find_axis(e, s, &b->to.v[i], &to[i])) {
      return poison();
    }
  }
  Axis axis[2 * IR_MAX_RANK + 1];
  int64_t size[IR_MAX_RANK];
  Attr attr;
  OpCode code;
  if (!reshape(e, vtype(e, &v), b, at, from, to, &code, axis, size, &attr)) {
    return poison();
  }
  locate(e, s->ctx, at);
  V out = built(e, s->ctx, ir_op(&s->ctx->b, code, &v.val, 1, &attr, NULL), at);
  out.param = v.param;
  return out;
}

/* ---- x[a = i] ---- */

static bool whole_number(Elab *e, V v, Span at, int64_t *out) {
  if (v.kind == V_POISON) {
    return false;
  }
  if (v.kind != V_NUM || !v.is_int) {
    report(e, at, "an index here must be a whole number known when the program is compiled");
    return false;
  }
  *out = (int64_t)v.num;
  return true;
}

static V bracket_range(Elab *e, Scope *s, V v, const AstIndex *ix, const AxisBinding *a) {
  int64_t lo, hi;
  if (!whole_number(e, eval(e, s, ix->lo), ix->span, &lo) ||
      !whole_number(e, eval(e, s, ix->hi), ix->span, &hi)) {
    return poison();
  }
  int64_t size = vtype(e, &v)->dim[type_find(vtype(e, &v), a->axis)].size;
  if (lo < 0 || hi > size || lo >= hi) {
    report(e, ix->span, "%lld..%lld is outside '%s', whose size is %lld, or empty", (long long)lo,
           (long long)hi, a->name, (long long)size);
    return poison();
  }
  locate(e, s->ctx, ix->span);
  V out = built(e, s->ctx,
                ir_op(&s->ctx->b, OP_SLICE, &v.val, 1,
                      &(Attr){.axis = &a->axis, .n_axis = 1, .num = (int64_t[]){lo, hi}, .n_num = 2}, NULL),
                ix->span);
  out.param = v.param;
  return out;
}

/* `index(b)` alone, longer than the axis it reads. */
static bool bare_index_fits(Elab *e, Scope *s, const AstIndex *ix, const AxisBinding *a, int64_t size) {
  const AstExpr *x = ix->lo;
  if (x->kind != EXPR_CALL || !x->call.f.text || strcmp(x->call.f.text, "index") || x->call.args.n != 1 ||
      x->call.args.v[0].value->kind != EXPR_NAME) {
    return true;
  }
  AxisBinding b;
  if (!find_axis(e, s, &x->call.args.v[0].value->name, &b)) {
    return false;
  }
  if (b.size > size) {
    report(e, ix->span, "index(%s) runs to %lld, but '%s' has only %lld places", b.name,
           (long long)b.size - 1, a->name, (long long)size);
    return false;
  }
  return true;
}

/* x[time = t] inside `scan t over time`, x from outside: the step's slice. */
static bool scan_slice(Elab *e, Scope *s, const AstExpr *x, V *out) {
  Ctx *c = s->ctx;
  const AstIndex *ix = x->bracket.b.index;
  if (x->bracket.b.n_index != 1 || ix->hi || !ix->lo || ix->lo->kind != EXPR_NAME ||
      x->bracket.x->kind != EXPR_NAME || ix->lo->name.qual || x->bracket.x->name.qual) {
    return false;
  }
  Binding *t = scope_find(s, ix->lo->name.text), *b = scope_find(s, x->bracket.x->name.text);
  AxisBinding a;
  if (!t || t->v.index_of != c || !b || b->v.kind != V_TENSOR || b->v.ctx == c ||
      !axis_known(s, ix->axis.text) || !find_axis(e, s, &ix->axis, &a) || a.axis != c->axis) {
    return false;
  }
  Val outer = import_value(e, c->up, b->v.ctx, b->v.val, false);
  if (!type_has(ir_type(e->func, outer), a.axis)) {
    return false;
  }
  *out = tensor(c, import_value(e, c, c->up, outer, true));
  t->used = b->used = true;
  return true;
}

/* One `axis = index` as an int tensor; NONE after an error. */
static Val index_value(Elab *e, Scope *s, const AstIndex *ix, const AxisBinding *a, int64_t size) {
  V v = eval(e, s, ix->lo);
  if (v.kind == V_POISON) {
    return NONE;
  }
  if (v.kind == V_NUM && (!v.is_int || v.num < 0 || v.num >= (double)size)) {
    report(e, ix->span, "index %g is outside '%s', whose size is %lld", v.num, a->name, (long long)size);
    return NONE;
  }
  if (v.kind == V_TENSOR && dtype_is_float(vtype(e, &v)->dtype)) {
    report(e, ix->span, "an index is int, this is %s; write int(...) to truncate",
           type_text(e, vtype(e, &v)));
    return NONE;
  }
  if (!bare_index_fits(e, s, ix, a, size)) {
    return NONE;
  }
  DType d = v.kind == V_TENSOR && vtype(e, &v)->dtype == DT_I64 ? DT_I64 : DT_I32;
  return as_tensor(e, s->ctx, v, d).val;
}

static V bracket_gather(Elab *e, Scope *s, const AstExpr *x, V v) {
  const AstBracket *b = &x->bracket.b;
  Axis axis[IR_MAX_RANK];
  Val index[IR_MAX_RANK];
  for (uint32_t i = 0; i < b->n_index; i++) {
    const AstIndex *ix = &b->index[i];
    AxisBinding a;
    if (!operand_axis(e, s, &v, &ix->axis, &a)) {
      return poison();
    }
    for (uint32_t k = 0; k < i; k++) {
      if (axis[k] == a.axis) {
        report(e, ix->span, "'%s' is indexed twice", a.name);
        return poison();
      }
    }
    if (ix->hi && b->n_index > 1) {
      report(e, ix->span, "a range stands alone in its brackets; chain the others: x[a = lo..hi][b = i]");
      return poison();
    }
    if (ix->hi) {
      return bracket_range(e, s, v, ix, &a);
    }
    axis[i] = a.axis;
    index[i] = index_value(e, s, ix, &a, vtype(e, &v)->dim[type_find(vtype(e, &v), a.axis)].size);
    if (index[i] == NONE) {
      return poison();
    }
  }
  if (v.param != NONE) {
    e->m->param[v.param].matrix = true;
    note_summed(e, &v, axis, b->n_index);
  }
  locate(e, s->ctx, x->span);
  return built(e, s->ctx, ir_gather(&s->ctx->b, v.val, axis, index, b->n_index), x->span);
}

static V bracket_index(Elab *e, Scope *s, const AstExpr *x) {
  V v;
  if (scan_slice(e, s, x, &v)) {
    return v;
  }
  v = eval(e, s, x->bracket.x);
  if (v.kind == V_NUM) {
    report(e, x->span, "a number has no axes to index");
  }
  return v.kind == V_TENSOR ? bracket_gather(e, s, x, bring(e, s->ctx, v)) : poison();
}

/* x[a, b] on a value: meant as its type, or as a matrix over one axis twice. */
static V bracket_axes(Elab *e, Scope *s, const AstExpr *x) {
  const AstNames *axes = &x->bracket.b.axes;
  const char *text = source_text(e, x->bracket.x->span);
  for (uint32_t i = 1; i < axes->n; i++) {
    for (uint32_t k = 0; k < i; k++) {
      const char *name = axes->v[i].text;
      if (!strcmp(name, axes->v[k].text)) {
        uint32_t d =
            report(e, axes->v[i].span, "'%s' has the axis '%s' twice", source_text(e, x->span), name);
        diag_hint(e->diag, d,
                  "declare a second name of the same size (axis %s_2 = %s) and write %s[%s as %s_2]", name,
                  name, text, name, name);
        return poison();
      }
    }
  }
  V v = eval(e, s, x->bracket.x);
  if (v.kind == V_POISON) {
    return v;
  }
  uint32_t d = report(e, x->bracket.b.span, "axis names alone in [ ] after a value have no meaning");
  diag_hint(e->diag, d, "write %s; index with %s[axis = i], rename with %s[axis as other]", text, text, text);
  return poison();
}

V eval_bracket(Elab *e, Scope *s, const AstExpr *x) {
  if (x->bracket.b.kind == BRACKET_AXES) {
    return bracket_axes(e, s, x);
  }
  if (x->bracket.b.kind == BRACKET_INDEX) {
    return bracket_index(e, s, x);
  }
  V v = eval(e, s, x->bracket.x);
  if (v.kind != V_TENSOR) {
    if (v.kind == V_NUM) {
      report(e, x->span, "a number has no axes to rename");
    }
    return poison();
  }
  return bracket_as(e, s, bring(e, s->ctx, v), &x->bracket.b, x->span);
}

/* ---- calls ---- */

static bool one_axis(Elab *e, Scope *s, const AstExpr *x, AxisBinding *a) {
  if (x->call.axes.kind != BRACKET_AXES || x->call.axes.axes.n != 1) {
    report(e, x->span, "%s needs one axis in brackets", x->call.f.text);
    return false;
  }
  return find_axis(e, s, &x->call.axes.axes.v[0], a);
}

static bool axis_as_axis(Elab *e, Scope *s, const AstExpr *x, AxisBinding *from, AxisBinding *to) {
  const AstBracket *b = &x->call.axes;
  if (b->kind != BRACKET_AS || b->axes.n != 1 || b->to.n != 1) {
    report(e, x->span, "write %s[a as b](...)", x->call.f.text);
    return false;
  }
  return find_axis(e, s, &b->axes.v[0], from) && find_axis(e, s, &b->to.v[0], to);
}

static bool tensor_arg(Elab *e, Scope *s, const AstExpr *x, uint32_t i, const AxisBinding *need, V *out) {
  if (i >= x->call.args.n) {
    report(e, x->span, "%s lacks an argument", x->call.f.text);
    return false;
  }
  *out = eval(e, s, x->call.args.v[i].value);
  if (out->kind == V_POISON) {
    return false;
  }
  if (out->kind == V_NUM || !type_has(vtype(e, out), need->axis)) {
    report(e, x->call.args.v[i].span, "%s: the operand is %s, without the axis '%s'", x->call.f.text,
           out->kind == V_NUM ? "a number" : type_text(e, vtype(e, out)), need->name);
    return false;
  }
  *out = bring(e, s->ctx, *out);
  return true;
}

V call_join(Elab *e, Scope *s, const AstExpr *x) {
  const AstArgs *a = &x->call.args;
  AxisBinding to;
  V v[IR_MAX_RANK];
  Val val[IR_MAX_RANK];
  Axis axis[IR_MAX_RANK + 1];
  if (!one_axis(e, s, x, &to)) {
    return poison();
  }
  if (a->n < 1 || a->n > IR_MAX_RANK) {
    report(e, x->span, "join takes 1 to %d operands", IR_MAX_RANK);
    return poison();
  }
  axis[0] = to.axis;
  int64_t sum = 0;
  for (uint32_t i = 0; i < a->n; i++) {
    AxisBinding over;
    if (!a->v[i].over.text) {
      report(e, a->v[i].span, "write join[c](x over a, y over b)");
      return poison();
    }
    if (!find_axis(e, s, &a->v[i].over, &over) || !tensor_arg(e, s, x, i, &over, &v[i])) {
      return poison();
    }
    axis[i + 1] = over.axis;
    sum += over.size;
  }
  if (sum != to.size) {
    report(e, x->span, "the joined axes have %lld places together, '%s' has %lld", (long long)sum, to.name,
           (long long)to.size);
    return poison();
  }
  locate(e, s->ctx, x->span);
  if (!unify(e, s->ctx, v, a->n, false, x->span)) {
    return poison();
  }
  /* operands broadcast to each other's other axes */
  Type rest = type_without(vtype(e, &v[0]), &axis[1], 1);
  for (uint32_t i = 1; i < a->n; i++) {
    Type other = type_without(vtype(e, &v[i]), &axis[i + 1], 1);
    Axis clash;
    if (!type_join(&rest, &other, &rest, &clash)) {
      report(e, x->span, "join: the operands differ in the size of '%s'", ir_axis_name(e->m, clash));
      return poison();
    }
  }
  for (uint32_t i = 0; i < a->n; i++) {
    Type t = rest;
    int at = type_find(vtype(e, &v[i]), axis[i + 1]);
    type_push(&t, axis[i + 1], vtype(e, &v[i])->dim[at].size);
    val[i] = type_same_dims(&t, vtype(e, &v[i])) ? v[i].val : ir_broadcast(&s->ctx->b, v[i].val, &t);
  }
  return built(e, s->ctx,
               ir_op(&s->ctx->b, OP_CONCAT, val, a->n, &(Attr){.axis = axis, .n_axis = a->n + 1}, NULL),
               x->span);
}

/* shift[a](x, n): element i is x's element i - n; roll wraps. */
V call_shift(Elab *e, Scope *s, const AstExpr *x, bool roll) {
  AxisBinding a;
  V v;
  int64_t n;
  if (!one_axis(e, s, x, &a) || !tensor_arg(e, s, x, 0, &a, &v)) {
    return poison();
  }
  if (x->call.args.n != 2 || !whole_number(e, eval(e, s, x->call.args.v[1].value), x->span, &n)) {
    return poison();
  }
  locate(e, s->ctx, x->span);
  Builder *b = &s->ctx->b;
  Val at = ir_binary(b, OP_SUB, ir_iota(b, a.axis, a.size), ir_const(b, DT_I32, (double)n));
  if (roll) {
    at = ir_binary(b, OP_MOD, at, ir_const(b, DT_I32, (double)a.size));
  }
  return built(e, s->ctx, ir_gather(b, v.val, &a.axis, &at, 1), x->span);
}

V call_pad(Elab *e, Scope *s, const AstExpr *x) {
  AxisBinding from, to;
  V v;
  int64_t before;
  if (!axis_as_axis(e, s, x, &from, &to) || !tensor_arg(e, s, x, 0, &from, &v)) {
    return poison();
  }
  if (x->call.args.n != 2 || !whole_number(e, eval(e, s, x->call.args.v[1].value), x->span, &before)) {
    return poison();
  }
  int64_t after = to.size - from.size - before;
  if (before < 0 || after < 0) {
    report(e, x->span, "'%s' of size %lld with %lld zeros before does not fit '%s' of size %lld", from.name,
           (long long)from.size, (long long)before, to.name, (long long)to.size);
    return poison();
  }
  locate(e, s->ctx, x->span);
  Axis axis[2] = {from.axis, to.axis};
  return built(e, s->ctx,
               ir_op(&s->ctx->b, OP_PAD, &v.val, 1,
                     &(Attr){.axis = axis, .n_axis = 2, .num = (int64_t[]){before, after}, .n_num = 2}, NULL),
               x->span);
}

V call_sort(Elab *e, Scope *s, const AstExpr *x, bool top, uint32_t result) {
  AxisBinding from, to;
  V v;
  if (top ? !axis_as_axis(e, s, x, &from, &to) : !one_axis(e, s, x, &from)) {
    return poison();
  }
  to = top ? to : from;
  if (!tensor_arg(e, s, x, 0, &from, &v)) {
    return poison();
  }
  if (to.size > from.size) {
    report(e, x->span, "'%s' of size %lld is longer than '%s' of size %lld", to.name, (long long)to.size,
           from.name, (long long)from.size);
    return poison();
  }
  locate(e, s->ctx, x->span);
  Axis axis[2] = {from.axis, to.axis};
  Val first = ir_op(&s->ctx->b, OP_SORT, &v.val, 1,
                    &(Attr){.axis = axis, .n_axis = 2, .num = (int64_t[]){to.size, top}, .n_num = 2}, NULL);
  return built(e, s->ctx, first == NONE ? NONE : first + result, x->span);
}
