/* elab_expr.c: numbers, names, operators. */
#include "frontend/elab.h"

#include <math.h>
#include <string.h>

/* ---- dtypes of operands ---- */

V as_tensor(Elab *e, Ctx *c, V v, DType d) {
  (void)e;
  if (v.kind == V_NUM) {
    return tensor(c, ir_const(&c->b, d, v.num));
  }
  V out = bring(e, c, v);
  out.val = ir_cast(&c->b, out.val, d);
  return out;
}

V to_float(Elab *e, Ctx *c, V v, Span at) {
  if (v.kind == V_POISON) {
    return v;
  }
  if (v.kind == V_NUM || !dtype_is_float(vtype(e, &v)->dtype)) {
    V out = as_tensor(e, c, v, e->m->real);
    return built(e, c, out.val, at);
  }
  return bring(e, c, v);
}

static bool is_float_tensor(Elab *e, const V *v) {
  return v->kind == V_TENSOR && dtype_is_float(vtype(e, v)->dtype);
}

/* The dtype in which operands meet. */
static DType meeting_dtype(Elab *e, const V *v, uint32_t n, bool want_float) {
  DType best = DT_COUNT;
  bool fraction = want_float, scalar = false;
  DType widest_int = DT_I32;
  for (uint32_t i = 0; i < n; i++) {
    if (v[i].kind == V_NUM) {
      fraction |= !v[i].is_int;
      continue;
    }
    DType d = vtype(e, &v[i])->dtype;
    if (dtype_is_float(d)) {
      if (v[i].scalar) {
        scalar = true;
      } else if (best == DT_COUNT || dtype_bytes(d) > dtype_bytes(best)) {
        best = d;
      }
    } else if (d == DT_I64) {
      widest_int = DT_I64;
    }
  }
  if (best != DT_COUNT) {
    return best;
  }
  if (scalar) {
    bool others = false;
    for (uint32_t i = 0; i < n; i++) {
      others |= v[i].kind == V_TENSOR && !v[i].scalar;
    }
    return others ? e->m->real : DT_F64;
  }
  return fraction ? e->m->real : widest_int;
}

bool joins(Elab *e, const V *a, const V *b, Span at) {
  Type t;
  Axis clash;
  if (type_join(vtype(e, a), vtype(e, b), &t, &clash)) {
    return true;
  }
  const Type *ta = vtype(e, a), *tb = vtype(e, b);
  int i = type_find(ta, clash), k = type_find(tb, clash);
  if (i < 0 || k < 0) {
    report(e, at, "%s and %s have more than %d axes together", type_text(e, ta), type_text(e, tb),
           IR_MAX_RANK);
    return false;
  }
  uint32_t d = report(e, at, "%s and %s cannot be joined: '%s' has size %lld in one and %lld in the other",
                      type_text(e, ta), type_text(e, tb), ir_axis_name(e->m, clash),
                      (long long)ta->dim[i].size, (long long)tb->dim[k].size);
  diag_hint(e->diag, d, "rename one to an axis of its own size: x[%s as ...]", ir_axis_name(e->m, clash));
  return false;
}

bool unify(Elab *e, Ctx *c, V *v, uint32_t n, bool want_float, Span at) {
  for (uint32_t i = 0; i < n; i++) {
    if (v[i].kind == V_POISON) {
      return false;
    }
  }
  DType d = meeting_dtype(e, v, n, want_float);
  for (uint32_t i = 0; i < n; i++) {
    if (v[i].kind == V_NUM && !dtype_is_float(d) && fabs(v[i].num) > 2147483647.0 && d == DT_I32) {
      report(e, at, "%.17g does not fit an int", v[i].num);
      return false;
    }
    v[i] = as_tensor(e, c, v[i], d);
    if (built(e, c, v[i].val, at).kind == V_POISON) {
      return false;
    }
  }
  return true;
}

/* ---- compile-time numbers ---- */

static double floor_mod(double a, double b) {
  double r = fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static V fold_binary(Elab *e, AstBinaryOp op, double a, double b, Span at) {
  switch (op) {
  case BINARY_ADD: return num(a + b);
  case BINARY_SUB: return num(a - b);
  case BINARY_MUL: return num(a * b);
  case BINARY_DIV:
  case BINARY_FLOORDIV:
  case BINARY_MOD:
    if (b == 0) {
      report(e, at, "division by zero");
      return poison();
    }
    return num(op == BINARY_DIV ? a / b : op == BINARY_FLOORDIV ? floor(a / b) : floor_mod(a, b));
  case BINARY_POW: return num(pow(a, b));
  case BINARY_EQ: return num(a == b);
  case BINARY_NE: return num(a != b);
  case BINARY_LT: return num(a < b);
  case BINARY_LE: return num(a <= b);
  case BINARY_GT: return num(a > b);
  case BINARY_GE: return num(a >= b);
  case BINARY_AND: return num(a != 0 && b != 0);
  case BINARY_OR: return num(a != 0 || b != 0);
  case BINARY_COUNT: break;
  }
  return poison();
}

/* ---- sums of means ---- */

static bool is_rank0(Elab *e, const V *v) {
  return v->kind == V_TENSOR && vtype(e, v)->rank == 0;
}

static void scale_terms(Elab *e, V *v, const V *from, double k) {
  v->term = ARENA_ARRAY(e->arena, Term, from->n_terms);
  v->n_terms = from->n_terms;
  for (uint32_t i = 0; i < from->n_terms; i++) {
    v->term[i] = from->term[i];
    v->term[i].coef *= k;
  }
}

static void keep_terms(Elab *e, AstBinaryOp op, const V *a, const V *b, V *out) {
  if ((op == BINARY_ADD || op == BINARY_SUB) && a->n_terms && b->n_terms) {
    V right = {0};
    scale_terms(e, &right, b, op == BINARY_SUB ? -1 : 1);
    Term *t = ARENA_ARRAY(e->arena, Term, a->n_terms + b->n_terms);
    memcpy(t, a->term, a->n_terms * sizeof *t);
    memcpy(t + a->n_terms, right.term, right.n_terms * sizeof *t);
    out->term = t;
    out->n_terms = a->n_terms + b->n_terms;
  } else if (op == BINARY_MUL && a->n_terms && b->kind == V_NUM) {
    scale_terms(e, out, a, b->num);
  } else if (op == BINARY_MUL && b->n_terms && a->kind == V_NUM) {
    scale_terms(e, out, b, a->num);
  } else if (op == BINARY_DIV && a->n_terms && b->kind == V_NUM) {
    scale_terms(e, out, a, 1 / b->num);
  } else if (op == BINARY_DIV && !a->n_terms && is_rank0(e, a) && is_rank0(e, b) && a->ctx == b->ctx) {
    out->term = ARENA_NEW(e->arena, Term);
    out->term[0] = (Term){a->val, b->val, 1};
    out->n_terms = 1;
  }
}

/* ---- operators ---- */

static V compare_or_logic(Elab *e, Ctx *c, AstBinaryOp op, V a, V b, Span at) {
  V v[2] = {a, b};
  if (op == BINARY_AND || op == BINARY_OR) {
    for (int i = 0; i < 2; i++) {
      if (v[i].kind == V_TENSOR && vtype(e, &v[i])->dtype != DT_BOOL) {
        report(e, at, "'%s' joins conditions, but one side is %s; compare it with something",
               ast_binary_text(op), type_text(e, vtype(e, &v[i])));
        return poison();
      }
      v[i] = as_tensor(e, c, v[i].kind == V_NUM ? num(v[i].num != 0) : v[i], DT_BOOL);
    }
    return built(e, c, ir_binary(&c->b, op == BINARY_AND ? OP_AND : OP_OR, v[0].val, v[1].val), at);
  }
  if (!unify(e, c, v, 2, false, at) || !joins(e, &v[0], &v[1], at)) {
    return poison();
  }
  bool swap = op == BINARY_GT || op == BINARY_GE;
  OpCode code = op == BINARY_EQ                      ? OP_EQ
                : op == BINARY_NE                    ? OP_NE
                : op == BINARY_LT || op == BINARY_GT ? OP_LT
                                                     : OP_LE;
  return built(e, c, ir_binary(&c->b, code, v[swap].val, v[!swap].val), at);
}

/* A parameter that was scaled or shifted, on its own axes, is still that parameter to what it is multiplied
 * with. */
static uint32_t same_parameter(Elab *e, const V *a, const V *b, const V *out) {
  const V *v[2] = {a, b};
  for (int i = 0; i < 2; i++) {
    if (v[i]->kind == V_TENSOR && v[i]->param != NONE && type_same_dims(vtype(e, v[i]), vtype(e, out))) {
      return v[i]->param;
    }
  }
  return NONE;
}

V binary(Elab *e, Ctx *c, AstBinaryOp op, V a, V b, Span at) {
  if (a.kind == V_POISON || b.kind == V_POISON) {
    return poison();
  }
  if (a.kind == V_NUM && b.kind == V_NUM) {
    return fold_binary(e, op, a.num, b.num, at);
  }
  locate(e, c, at);
  if (op <= BINARY_GE) {
    V v = compare_or_logic(e, c, op, a, b, at);
    v.scalar = (a.kind == V_NUM || a.scalar) && (b.kind == V_NUM || b.scalar);
    return v;
  }
  static const OpCode codes[BINARY_COUNT] = {
      [BINARY_ADD] = OP_ADD,           [BINARY_SUB] = OP_SUB, [BINARY_MUL] = OP_MUL, [BINARY_DIV] = OP_DIV,
      [BINARY_FLOORDIV] = OP_FLOORDIV, [BINARY_MOD] = OP_MOD, [BINARY_POW] = OP_POW};
  V v[2] = {bring(e, c, a), bring(e, c, b)};
  bool scalar = (a.kind == V_NUM || a.scalar) && (b.kind == V_NUM || b.scalar);
  if (!unify(e, c, v, 2, op == BINARY_DIV || op == BINARY_POW, at) || !joins(e, &v[0], &v[1], at)) {
    return poison();
  }
  V out = built(e, c, ir_binary(&c->b, codes[op], v[0].val, v[1].val), at);
  if (out.kind == V_POISON) {
    return out;
  }
  out.scalar = scalar;
  out.param = same_parameter(e, &a, &b, &out);
  if (op == BINARY_MUL) {
    note_product(e, out.val, v[0].val, v[1].val, at);
  }
  if (vtype(e, &out)->rank == 0) {
    V ka = a, kb = b;
    if (a.kind == V_TENSOR && (a.ctx != c || a.val != v[0].val)) {
      ka.n_terms = 0;
      ka.val = v[0].val, ka.ctx = c;
    }
    if (b.kind == V_TENSOR && (b.ctx != c || b.val != v[1].val)) {
      kb.n_terms = 0;
      kb.val = v[1].val, kb.ctx = c;
    }
    keep_terms(e, op, &ka, &kb, &out);
  }
  return out;
}

V unary_op(Elab *e, Ctx *c, OpCode code, V a, Span at) {
  if (a.kind == V_POISON) {
    return a;
  }
  if (a.kind == V_NUM) {
    static const OpCode folded[] = {OP_NEG,     OP_EXP, OP_LOG, OP_LOG1P, OP_SQRT, OP_RSQRT, OP_TANH,
                                    OP_SIGMOID, OP_ERF, OP_SIN, OP_COS,   OP_ABS,  OP_SIGN,  OP_FLOOR};
    double x = a.num;
    double y[] = {-x,
                  exp(x),
                  log(x),
                  log1p(x),
                  sqrt(x),
                  1 / sqrt(x),
                  tanh(x),
                  1 / (1 + exp(-x)),
                  erf(x),
                  sin(x),
                  cos(x),
                  fabs(x),
                  x > 0   ? 1
                  : x < 0 ? -1
                          : x,
                  floor(x)};
    for (size_t i = 0; i < sizeof folded / sizeof *folded; i++) {
      if (folded[i] == code) {
        return num(y[i]);
      }
    }
  }
  locate(e, c, at);
  V v = bring(e, c, a);
  if ((ir_op_info[code].flags & F_FLOAT) && !is_float_tensor(e, &v)) {
    v = to_float(e, c, v, at);
  }
  if (v.kind == V_POISON) {
    return v;
  }
  V out = built(e, c, ir_unary(&c->b, code, v.val), at);
  if (out.kind == V_TENSOR) {
    out.scalar = a.scalar;
    out.param = a.param;
    if (code == OP_NEG && a.n_terms && a.ctx == c) {
      scale_terms(e, &out, &a, -1);
    }
  }
  return out;
}

/* ---- names ---- */

static V setting_value(Elab *e, SettingDef *d, Span at) {
  if (!d->done) {
    if (d->busy) {
      report(e, at, "setting '%s' depends on itself", d->name);
      return poison();
    }
    d->busy = true;
    Scope file = {.file = d->file, .ctx = e->root};
    double v;
    bool whole;
    d->v = eval_number(e, &file, d->value, &v, &whole, "a setting") ? num(v) : poison();
    d->busy = false;
    d->done = true;
  }
  return d->v;
}

static V eval_name(Elab *e, Scope *s, const AstName *name) {
  if (!name->text) {
    return poison();
  }
  Binding *b = name->qual ? NULL : scope_find(s, name->text);
  if (b) {
    b->used = true;
    return bring(e, s->ctx, b->v);
  }
  SettingDef *st = name->qual ? NULL : file_setting(s->file, name->text);
  if (st) {
    return setting_value(e, st, name->span);
  }
  if (axis_known(s, name->text) || name->qual) {
    AxisBinding a;
    return find_axis(e, s, name, &a) ? num((double)a.size) : poison();
  }
  if (!strcmp(name->text, "training")) {
    return num(e->training);
  }
  if (!strcmp(name->text, "pi")) {
    return num(3.14159265358979323846);
  }
  if (!strcmp(name->text, "inf")) {
    return num(INFINITY);
  }
  uint32_t d = report(e, name->span, "there is no value '%s'", name->text);
  suggest(e, d, s, name->text);
  return poison();
}

/* ---- expressions ---- */

/* a + b + c + ...: left spines are walked in a loop, so that ten thousand additions need no stack. */
static V eval_binary(Elab *e, Scope *s, const AstExpr *x) {
  uint32_t n = 0;
  for (const AstExpr *p = x; p && p->kind == EXPR_BINARY; p = p->binary.a) {
    n++;
  }
  const AstExpr **spine = ARENA_ARRAY(e->arena, const AstExpr *, n);
  const AstExpr *p = x;
  for (uint32_t i = n; i-- > 0; p = p->binary.a) {
    spine[i] = p;
  }
  V v = eval(e, s, p);
  for (uint32_t i = 0; i < n; i++) {
    V right = eval(e, s, spine[i]->binary.b);
    v = binary(e, s->ctx, spine[i]->binary.op, v, right, spine[i]->span);
  }
  return v;
}

static V eval_unary(Elab *e, Scope *s, const AstExpr *x) {
  V v = eval(e, s, x->unary.x);
  if (x->unary.op == UNARY_NEG) {
    return unary_op(e, s->ctx, OP_NEG, v, x->span);
  }
  if (v.kind == V_NUM) {
    return num(v.num == 0);
  }
  if (v.kind == V_TENSOR && vtype(e, &v)->dtype != DT_BOOL) {
    report(e, x->span, "'not' takes a condition, this is %s", type_text(e, vtype(e, &v)));
    return poison();
  }
  return v.kind == V_POISON ? v : unary_op(e, s->ctx, OP_NOT, v, x->span);
}

V eval(Elab *e, Scope *s, const AstExpr *x) {
  if (!x) {
    return poison();
  }
  switch (x->kind) {
  case EXPR_NUMBER: return num(x->number.value);
  case EXPR_NAME: return eval_name(e, s, &x->name);
  case EXPR_UNARY: return eval_unary(e, s, x);
  case EXPR_BINARY: return eval_binary(e, s, x);
  case EXPR_CALL: return eval_call(e, s, x);
  case EXPR_BRACKET: return eval_bracket(e, s, x);
  case EXPR_STRING: report(e, x->span, "a text is no value here"); return poison();
  case EXPR_CHOICE:
    report(e, x->span, "'a where c' belongs in a plan; here write where(c, a, b)");
    return poison();
  case EXPR_LIKE:
  case EXPR_HAS: report(e, x->span, "this condition belongs in a plan"); return poison();
  }
  return poison();
}

bool eval_number(Elab *e, Scope *s, const AstExpr *x, double *out, bool *is_int, const char *what) {
  V v = eval(e, s, x);
  if (v.kind == V_TENSOR) {
    report(e, x->span, "%s must be known when the program is compiled; this is a tensor", what);
  }
  *out = v.num;
  *is_int = v.is_int;
  return v.kind == V_NUM;
}
