/* interp_grad.c: the op `grad` by differences: the ops between x and e run again with each element of x
 * moved. Slow and without any rule of differentiation, which is what makes it a check of the passes that
 * expand the op. */
#include "ir/interp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  OpId *op; /* ops of the block before `grad` that depend on x, in order */
  uint32_t n;
} Replay;

/* `stop` cuts the dependence; a stop inside a body does not, so bodies with one are outside what this can
 * judge. */
static Replay dependents(const Interp *x, const Op *grad) {
  const Block *b = x->block;
  bool *moved = calloc(x->f->n_vals, sizeof *moved);
  Replay r = {.op = calloc(b->n_ops, sizeof *r.op)};
  if (!moved || !r.op) {
    abort();
  }
  moved[grad->arg[1]] = true;
  for (uint32_t i = 0; i < b->n_ops && &x->f->op[b->op[i]] != grad; i++) {
    const Op *op = &x->f->op[b->op[i]];
    bool any = false;
    for (uint32_t k = 0; k < op->n_args; k++) {
      any |= moved[op->arg[k]];
    }
    if (any && op->code != OP_STOP) {
      r.op[r.n++] = b->op[i];
      for (uint32_t k = 0; k < op->n_results; k++) {
        moved[op->result + k] = true;
      }
    }
  }
  free(moved);
  return r;
}

/* sum(e) with element i of x set to v; values are left as they were. */
static bool sum_at(Interp *x, const Op *grad, const Replay *r, int64_t i, double v, double *sum) {
  Interp y = *x;
  Arena mem = {0};
  size_t bytes = x->f->n_vals * sizeof *y.val;
  y.arena = &mem;
  y.round = false;
  y.val = memcpy(arena_alloc(&mem, bytes), x->val, bytes);
  const Tensor *t = &x->val[grad->arg[1]];
  Tensor *moved = &y.val[grad->arg[1]];
  *moved = tensor_new(&y, t->type);
  memcpy(moved->data, t->data, (size_t)type_count(&t->type) * sizeof *t->data);
  moved->data[i] = v;
  bool ok = true;
  for (uint32_t k = 0; ok && k < r->n; k++) {
    ok = interp_step(&y, &x->f->op[r->op[k]]);
  }
  const Tensor *e = &y.val[grad->arg[0]];
  *sum = 0;
  for (int64_t k = 0, n = type_count(&e->type); ok && k < n; k++) {
    *sum += e->data[k];
  }
  arena_free(&mem);
  return ok;
}

bool interp_grad(Interp *x, const Op *op) {
  const Tensor *t = &x->val[op->arg[1]];
  Tensor out = tensor_new(x, x->f->val[op->result].type);
  Replay r = dependents(x, op);
  bool ok = true;
  for (int64_t i = 0, n = type_count(&out.type); ok && i < n; i++) {
    /* Five points: the error is of fourth order in the step. */
    double v = t->data[i], h = 1e-3 * fmax(1, fabs(v)), s[4];
    static const double at[4] = {-2, -1, 1, 2};
    for (int k = 0; ok && k < 4; k++) {
      ok = sum_at(x, op, &r, i, v + at[k] * h, &s[k]);
    }
    out.data[i] = ok ? (8 * (s[2] - s[1]) - (s[3] - s[0])) / (12 * h) : 0;
  }
  free(r.op);
  x->val[op->result] = out;
  return ok;
}
