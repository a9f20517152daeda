/* optimizer.c: gradients -> the training step.
 *
 * norm = sqrt(sum over parameters of sum(g * g)), over logical tensors: whatever their storage, each element
 * counts once. With `clip c` every gradient is multiplied by min(1, c / norm). Then schedule.G of each
 * optimizer group and update.K of each parameter are inlined. */
#include "passes/internal.h"

#include <string.h>

typedef struct {
  Func *f;
  Builder b;
  Val *grad;   /* by parameter; NONE: it has none */
  Val *factor; /* by optimizer group */
  Val lr;      /* of the first group */
  uint32_t n_groups;
} Step;

/* Takes the gradients out of the function's results. */
static void take_gradients(Step *s) {
  Func *f = s->f;
  uint32_t n = 0;
  for (uint32_t i = 0; i < f->body->n_ret; i++) {
    if (f->res[i].kind == RES_GRAD) {
      s->grad[f->res[i].index] = f->body->ret[i];
      continue;
    }
    f->res[n] = f->res[i];
    f->body->ret[n++] = f->body->ret[i];
  }
  f->body->n_ret = n;
}

Val gradient_norm(Builder *b, const Val *grad, uint32_t n) {
  Val total = NONE;
  for (uint32_t p = 0; p < n; p++) {
    if (grad[p] == NONE)
      continue;
    const Type t = *ir_type(b->f, grad[p]);
    Axis axis[IR_MAX_RANK];
    for (uint32_t i = 0; i < t.rank; i++)
      axis[i] = t.dim[i].axis;
    Val sum = ir_reduce(b, OP_SUM, ir_binary(b, OP_MUL, grad[p], grad[p]), axis, t.rank);
    total = total == NONE ? sum : ir_binary(b, OP_ADD, total, sum);
  }
  return total == NONE ? ir_const(b, b->f->module->real, 0) : ir_unary(b, OP_SQRT, total);
}

static void clip_gradients(Step *s, Val norm, double clip) {
  Module *m = s->f->module;
  Builder *b = &s->b;
  DType d = m->real;
  Val factor = ir_binary(b, OP_MIN, ir_const(b, d, 1), ir_binary(b, OP_DIV, ir_const(b, d, clip), norm));
  for (uint32_t p = 0; p < m->n_params; p++)
    if (s->grad[p] != NONE)
      s->grad[p] = ir_binary(b, OP_MUL, s->grad[p], factor);
}

/* The function's argument of that kind, added if it is not there. */
static Val argument(Func *f, ArgKind kind, uint32_t index, const Type *t, const char *name) {
  for (uint32_t i = 0; i < f->body->n_params; i++)
    if (f->arg[i].kind == kind && f->arg[i].index == index)
      return f->body->param[i];
  return ir_func_arg(f, kind, index, *t, name);
}

static Val outer_argument(Step *s, FuncArg a, const Type *t, const char *name) {
  switch (a.kind) {
  case ARG_GRAD: return s->grad[a.index];
  case ARG_FACTOR: return s->factor[a.index];
  default: return argument(s->f, a.kind, a.index, t, name);
  }
}

static Val *inline_code(Step *s, const Func *code) {
  Arena *arena = &s->f->module->arena;
  Val *args = ARENA_ARRAY(arena, Val, code->body->n_params),
      *out = ARENA_ARRAY(arena, Val, code->body->n_ret);
  for (uint32_t i = 0; i < code->body->n_params; i++) {
    const Value *v = &code->val[code->body->param[i]];
    args[i] = outer_argument(s, code->arg[i], &v->type, v->name);
  }
  func_inline(&s->b, code, args, out);
  return out;
}

/* Without a schedule function the factor is 1. */
static void inline_schedule(Step *s, uint32_t group) {
  Module *m = s->f->module;
  s->factor[group] = ir_const(&s->b, DT_F64, 1);
  const Func *code = ir_func(m, arena_printf(&m->arena, "schedule.%u", group));
  if (!code)
    return;
  const Val *out = inline_code(s, code);
  for (uint32_t i = 0; i < code->body->n_ret; i++) {
    if (strcmp(code->res[i].name, "factor") == 0)
      s->factor[group] = out[i];
    else if (strcmp(code->res[i].name, "lr") == 0 && s->lr == NONE)
      s->lr = out[i];
  }
}

static bool inline_update(Step *s, uint32_t p, Error *err) {
  Module *m = s->f->module;
  const Func *code = ir_func(m, arena_printf(&m->arena, "update.%u", p));
  if (!code)
    return error_set(err, ERR_INPUT, "parameter %s has no optimizer", m->param[p].name);
  const Val *out = inline_code(s, code);
  for (uint32_t i = 0; i < code->body->n_ret; i++) {
    const Type *t = code->res[i].kind == RES_PARAM ? &m->param[p].type : &m->opt[code->res[i].index].type;
    ir_func_ret(s->f, code->res[i], build_as(&s->b, out[i], t));
  }
  return true;
}

Func *pass_optimizer(Func *grad, const char *name, double clip, Error *err) {
  Module *m = grad->module;
  Step s = {.f = func_copy(grad, name, NULL, NULL), .lr = NONE};
  s.b = (Builder){.f = s.f, .b = s.f->body, .loc = {NONE, 0, 0}, .err = err};
  s.grad = ARENA_ARRAY(&m->arena, Val, m->n_params);
  memset(s.grad, 0xff, m->n_params * sizeof *s.grad);
  take_gradients(&s);
  Val norm = gradient_norm(&s.b, s.grad, m->n_params);
  if (clip > 0)
    clip_gradients(&s, norm, clip);
  for (uint32_t p = 0; p < m->n_params; p++)
    if (!m->param[p].frozen && m->param[p].group != NONE && m->param[p].group >= s.n_groups)
      s.n_groups = m->param[p].group + 1;
  s.factor = ARENA_ARRAY(&m->arena, Val, s.n_groups);
  for (uint32_t g = 0; g < s.n_groups; g++)
    inline_schedule(&s, g);
  for (uint32_t p = 0; p < m->n_params; p++)
    if (s.grad[p] != NONE && !inline_update(&s, p, err))
      return NULL;
  ir_func_ret(s.f, (FuncRes){.kind = RES_SCALAR, .name = "grad_norm"}, norm);
  if (s.lr != NONE)
    ir_func_ret(s.f, (FuncRes){.kind = RES_SCALAR, .name = "lr"}, s.lr);
  return err->cls == ERR_NONE ? s.f : NULL;
}
