/* pipeline.c: the flat list of passes for each kind of program. */
#include "passes/internal.h"

#include <string.h>

typedef struct {
  PipeKind kind;
  const char *const *outputs;
  uint32_t n_outputs;
} Want;

static bool wanted(void *ctx, const FuncRes *r) {
  const Want *w = ctx;
  switch (r->kind) {
  case RES_LOSS: return w->kind == PIPE_TRAIN || w->kind == PIPE_GRAD || w->kind == PIPE_LOSS;
  case RES_LOSS_NUM:
  case RES_LOSS_DEN: return w->kind != PIPE_APPLY && w->kind != PIPE_LOSS;
  case RES_METRIC_NUM:
  case RES_METRIC_DEN: return w->kind == PIPE_TRAIN || w->kind == PIPE_EVAL;
  case RES_STATE: return w->kind == PIPE_TRAIN;
  case RES_OUTPUT:
    for (uint32_t i = 0; w->kind == PIPE_APPLY && i < w->n_outputs; i++)
      if (strcmp(w->outputs[i], r->name) == 0)
        return true;
    return false;
  default: return false;
  }
}

static bool no_loss(void *ctx, const FuncRes *r) {
  (void)ctx;
  return r->kind != RES_LOSS;
}

static bool done(const Func *f, const char *pass, const PassHooks *hooks, Error *err) {
  if (hooks && hooks->after)
    hooks->after(hooks->ctx, pass, f);
  return !hooks || !hooks->verify || ir_verify_func(f, err);
}

static bool clean(Func *f, bool drop_stop, const PassHooks *hooks, Error *err) {
  return simplify(f, drop_stop, err) && done(f, "simplify", hooks, err);
}

/* The forward in its composite form. */
static Func *forward(Module *m, const Want *want, const PassHooks *hooks, Error *err) {
  bool training = want->kind == PIPE_TRAIN || want->kind == PIPE_GRAD || want->kind == PIPE_LOSS;
  const char *source = training ? "train" : "eval";
  static const char *const name[] = {[PIPE_TRAIN] = "step.forward",
                                     [PIPE_GRAD] = "grad.forward",
                                     [PIPE_LOSS] = "loss.program",
                                     [PIPE_EVAL] = "eval.program",
                                     [PIPE_APPLY] = "apply.program"};
  Func *f = ir_func(m, source);
  if (!f) {
    error_set(err, ERR_INPUT, "the program has no function %s", source);
    return NULL;
  }
  f = pass_select(f, name[want->kind], wanted, (void *)want);
  bool ok = done(f, "select", hooks, err) && clean(f, false, hooks, err) && pass_expand_grad(f, err) &&
            done(f, "expand_grad", hooks, err) && clean(f, false, hooks, err) && pass_outline(f, err) &&
            done(f, "outline", hooks, err) && pass_hoist(f, err) && done(f, "hoist", hooks, err);
  return ok ? f : NULL;
}

static Func *with_gradients(Func *f, const char *name, const PassHooks *hooks, Error *err) {
  f = pass_autodiff(f, name, err);
  if (!f || !done(f, "autodiff", hooks, err) || !clean(f, true, hooks, err))
    return NULL;
  return pass_share_loss(f, err) && done(f, "share_loss", hooks, err) ? f : NULL;
}

static void add_norm(Func *f, Error *err) {
  Module *m = f->module;
  Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = err};
  Val *grad = ARENA_ARRAY(&m->arena, Val, m->n_params);
  memset(grad, 0xff, m->n_params * sizeof *grad);
  for (uint32_t i = 0; i < f->body->n_ret; i++)
    if (f->res[i].kind == RES_GRAD)
      grad[f->res[i].index] = f->body->ret[i];
  ir_func_ret(f, (FuncRes){.kind = RES_SCALAR, .name = "grad_norm"}, gradient_norm(&b, grad, m->n_params));
}

Func *pipeline_unfused(Module *m, PipeKind kind, double clip, const char *const *outputs, uint32_t n_outputs,
                       const PassHooks *hooks, Error *err) {
  Want want = {kind, outputs, n_outputs};
  Func *f = forward(m, &want, hooks, err);
  if (!f)
    return NULL;
  if (kind == PIPE_GRAD) {
    f = with_gradients(f, "grad", hooks, err);
    if (f)
      add_norm(f, err);
  } else if (kind == PIPE_TRAIN) {
    f = with_gradients(f, "step.grad", hooks, err);
    if (f)
      f = pass_optimizer(f, "step.full", clip, err);
    if (f && done(f, "optimizer", hooks, err))
      f = pass_select(f, "step", no_loss, NULL);
  }
  if (!f || err->cls != ERR_NONE || !clean(f, true, hooks, err))
    return NULL;
  return f;
}

Func *pipeline(Module *m, PipeKind kind, double clip, const char *const *outputs, uint32_t n_outputs,
               const PassHooks *hooks, Error *err) {
  Func *f = pipeline_unfused(m, kind, clip, outputs, n_outputs, hooks, err);
  if (!f || !pass_fuse(f, err) || !done(f, "fuse", hooks, err))
    return NULL;
  return f;
}
