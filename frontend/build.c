/* build.c: the nodes of the tree, with the checks that belong to one node. */
#include "frontend/parser.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Span span_here(const Parser *p, uint32_t begin, uint32_t end) {
  return (Span){p->file, begin, end};
}

AstNames names_of(NameVec v) {
  return (AstNames){v.v, v.n};
}

AstArgs args_of(ArgVec v) {
  return (AstArgs){v.v, v.n};
}

AstNames one_name(Parser *p, AstName name) {
  AstName *v = ARENA_NEW(p->arena, AstName);
  *v = name;
  return (AstNames){v, 1};
}

static uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* A node whose children have at most the given height and nest; reports the one node that crosses a limit. */
static AstExpr *node(Parser *p, AstExprKind kind, Span at, uint32_t height, uint32_t nest) {
  AstExpr *e = ARENA_NEW(p->arena, AstExpr);
  *e = (AstExpr){.kind = kind, .span = at, .height = height + 1, .nest = nest + 1};
  if (e->nest == AST_MAX_NEST + 1)
    report_too_deep(p, at, "this expression is nested", AST_MAX_NEST);
  else if (e->height == AST_MAX_HEIGHT + 1)
    report_too_deep(p, at, "this expression is a chain", AST_MAX_HEIGHT);
  return e;
}

AstExpr *build_number(Parser *p, RawToken t) {
  char *text = arena_alloc(p->arena, t.end - t.begin + 1);
  size_t n = 0;
  for (uint32_t i = t.begin; i < t.end; i++)
    if (p->src->text[i] != '_')
      text[n++] = p->src->text[i];
  AstExpr *e = node(p, EXPR_NUMBER, span_here(p, t.begin, t.end), 0, 0);
  double v = strtod(text, NULL);
  e->number.text = text;
  e->number.value = v;
  if (!isfinite(v)) {
    diag_error(p->diag, e->span, "this number is too large for any float type");
    e->number.value = 0;
  } else if (!text[strspn(text, "0123456789")]) {
    errno = 0;
    e->number.i = strtoll(text, NULL, 10);
    e->number.is_int = errno == 0;
    if (errno != 0)
      diag_error(p->diag, e->span, "this whole number does not fit 64 bits");
  } else if (v == floor(v) &&
             v < 9007199254740992.0) { /* 10e9 and 2.0 are whole: doubles up to 2^53 are exact */
    e->number.i = (int64_t)v;
    e->number.is_int = true;
  }
  return e;
}

AstExpr *build_string(Parser *p, Text t) {
  AstExpr *e = node(p, EXPR_STRING, t.span, 0, 0);
  e->string.text = t.text;
  return e;
}

AstExpr *build_name(Parser *p, AstName name) {
  AstExpr *e = node(p, EXPR_NAME, name.span, 0, 0);
  e->name = name;
  return e;
}

AstExpr *build_unary(Parser *p, AstUnaryOp op, AstExpr *x, Span at) {
  AstExpr *e = node(p, EXPR_UNARY, at, x->height, x->nest);
  e->unary.op = op;
  e->unary.x = x;
  return e;
}

AstExpr *build_binary(Parser *p, AstBinaryOp op, AstExpr *a, AstExpr *b, Span op_span) {
  uint32_t left = a->kind == EXPR_BINARY ? a->nest - 1 : a->nest; /* a left spine does not nest */
  AstExpr *e =
      node(p, EXPR_BINARY, span_join(a->span, b->span), larger(a->height, b->height), larger(left, b->nest));
  e->binary.op = op;
  e->binary.a = a;
  e->binary.b = b;
  e->binary.op_span = op_span;
  return e;
}

static void args_depth(ArgVec args, uint32_t *height, uint32_t *nest) {
  for (uint32_t i = 0; i < args.n; i++) {
    *height = larger(*height, args.v[i].value->height);
    *nest = larger(*nest, args.v[i].value->nest);
  }
}

AstExpr *build_call(Parser *p, AstExpr *f, ArgVec args, Span at) {
  uint32_t height = 0, nest = 0;
  args_depth(args, &height, &nest);
  AstExpr *e = node(p, EXPR_CALL, at, height, nest);
  e->call.args = args_of(args);
  if (f->kind == EXPR_NAME) {
    e->call.f = f->name;
  } else if (f->kind == EXPR_BRACKET && f->bracket.x->kind == EXPR_NAME &&
             f->bracket.b.kind != BRACKET_INDEX) {
    e->call.f = f->bracket.x->name;
    e->call.axes = f->bracket.b;
  } else {
    uint32_t d = diag_error(p->diag, f->span, "only a name can be called");
    diag_hint(p->diag, d, "calls are f(x) and f[axes](x)");
  }
  return e;
}

AstExpr *build_bracket(Parser *p, AstExpr *x, AstBracket b, Span at) {
  uint32_t height = x->height, nest = x->kind == EXPR_BRACKET ? x->nest - 1 : x->nest;
  for (uint32_t i = 0; i < b.n_index; i++) {
    const AstIndex *k = &b.index[i];
    height = larger(height, larger(k->lo->height, k->hi ? k->hi->height : 0));
    nest = larger(nest, larger(k->lo->nest, k->hi ? k->hi->nest : 0));
  }
  AstExpr *e = node(p, EXPR_BRACKET, at, height, nest);
  e->bracket.x = x;
  e->bracket.b = b;
  return e;
}

AstExpr *build_choice(Parser *p, CaseVec cases, Span at) {
  uint32_t height = 0, nest = 0;
  for (uint32_t i = 0; i < cases.n; i++) {
    const AstCase *c = &cases.v[i];
    height = larger(height, larger(c->value->height, c->where ? c->where->height : 0));
    nest = larger(nest, larger(c->value->nest, c->where ? c->where->nest : 0));
    if (!c->where && i + 1 < cases.n)
      diag_error(p->diag, c->value->span, "nothing can follow the last 'else'");
  }
  AstExpr *e = node(p, EXPR_CHOICE, at, height, nest);
  e->choice.v = cases.v;
  e->choice.n = cases.n;
  return e;
}

AstExpr *build_like(Parser *p, AstExpr *x, Text pattern, Span at) {
  AstExpr *e = node(p, EXPR_LIKE, at, x->height, x->nest);
  e->like.x = x;
  e->like.pattern = pattern.text;
  e->like.pattern_span = pattern.span;
  return e;
}

AstExpr *build_has(Parser *p, AstName axis, Span at) {
  AstExpr *e = node(p, EXPR_HAS, at, 0, 0);
  e->has.axis = axis;
  return e;
}

AstStmt *build_stmt(Parser *p, AstStmtKind kind, Span at) {
  AstStmt *s = ARENA_NEW(p->arena, AstStmt);
  s->kind = kind;
  s->span = at;
  return s;
}

AstStmt *build_if(Parser *p, AstExpr *test, AstBlock then, AstBlock orelse, Span at) {
  AstStmt *s = build_stmt(p, STMT_IF, at);
  s->cond.test = test;
  s->cond.then = then;
  s->cond.orelse = orelse;
  s->cond.has_else = orelse.span.end > orelse.span.begin;
  bool else_if = orelse.n == 1 && orelse.v[0]->kind == STMT_IF && orelse.v[0]->span.end == orelse.span.end;
  if (else_if)
    s->cond.n_else_if = orelse.v[0]->cond.n_else_if + 1;
  if (s->cond.n_else_if == AST_MAX_NEST + 1)
    report_too_deep(p, at, "'else if' goes on", AST_MAX_NEST);
  return s;
}

AstStmt *build_decl(Parser *p, AstStmtKind kind, DeclVec v, Span at) {
  AstStmt *s = build_stmt(p, kind, at);
  AstDecl *next = NULL; /* the nearest later name with an initialiser */
  for (uint32_t i = v.n; i-- > 0;) {
    AstDecl *d = &v.v[i];
    if (d->init_kind != INIT_NONE) {
      next = d;
    } else if (next) {
      d->init_kind = next->init_kind;
      d->init = next->init;
    } else {
      uint32_t e = diag_error(p->diag, d->span, "'%s' has no initialiser", d->name.text);
      diag_hint(p->diag, e, "write '= 0' or '~ normal(0, 0.02)' after it");
    }
  }
  s->decl.v = v.v;
  s->decl.n = v.n;
  return s;
}

InputVec build_inputs(InputVec v) {
  AstType *next = NULL;
  for (uint32_t i = v.n; i-- > 0;) {
    if (v.v[i].type)
      next = v.v[i].type;
    else if (!v.v[i].value)
      v.v[i].type = next; /* a setting is a number */
  }
  return v;
}

AstItem *build_item(Parser *p, AstItemKind kind, Span at) {
  AstItem *x = ARENA_NEW(p->arena, AstItem);
  x->kind = kind;
  x->span = at;
  return x;
}

AstItem *build_def(Parser *p, AstItemKind kind, AstName name, NameVec axes, InputVec inputs, AstBlock body,
                   Span at) {
  AstItem *x = build_item(p, kind, at);
  x->def.name = name;
  x->def.axes = names_of(axes);
  x->def.inputs = inputs.v;
  x->def.n_inputs = inputs.n;
  x->def.body = body;
  return x;
}

AstPlanItem *build_plan_item(Parser *p, AstPlanItemKind kind, Span word, Span at) {
  AstPlanItem *x = ARENA_NEW(p->arena, AstPlanItem);
  x->kind = kind;
  x->word = word;
  x->span = at;
  if (word.end == word.begin)
    x->word = at;
  return x;
}

const char *ast_binary_text(AstBinaryOp op) {
  static const char *const text[] = {
#define X(name, text) text,
      AST_BINARY_OPS(X)
#undef X
  };
  return text[op];
}
