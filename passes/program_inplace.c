/* program_inplace.c: results written over operands that nobody reads any more. */
#include "passes/program.h"

#include <string.h>

/* Whether each element of the arguments marked is read for the same element of the results only, so that a
 * result may be written over one of them. Reductions may take several passes over their operands, hence none
 * at all. */
static bool same_index(const Func *f, const Block *b, const Type *t, bool *tainted) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    OpClass c = ir_op_info[op->code].cls;
    bool pointwise = op_is_pointwise(op->code), in = false;
    if (!pointwise && c != CLASS_SOURCE && c != CLASS_RANDOM && c != CLASS_MOVE && op->code != OP_GATHER)
      return false;
    for (uint32_t k = 0; k < op->n_args; k++)
      in |= tainted[op->arg[k]];
    if (in && ((!pointwise && op->code != OP_BROADCAST) || !type_same_dims(ir_type(f, op->result), t)))
      return false;
    tainted[op->result] = in;
  }
  for (uint32_t i = 0; i < b->n_ret; i++)
    if (tainted[b->ret[i]] && !type_same_dims(ir_type(f, b->ret[i]), t))
      return false;
  return true;
}

bool region_in_place(const Func *f, OpId region, uint32_t result, uint32_t arg) {
  const Block *b = f->op[region].body;
  const Type *t = ir_type(f, b->param[arg]);
  if (!type_equal(t, ir_type(f, b->ret[result])))
    return false;
  Arena mem = {0};
  bool *tainted = ARENA_ARRAY(&mem, bool, f->n_vals);
  tainted[b->param[arg]] = true;
  bool ok = same_index(f, b, t, tainted);
  arena_free(&mem);
  return ok;
}

/* ---- over a whole program ---- */

typedef struct {
  const Draft *d;
  Program *p;
  uint32_t *becomes; /* by buffer: NONE, or the one that takes its place */
  uint32_t *first, *last;
  unsigned char **legal; /* by kernel: [result * operands + operand]: 0 unknown, 1 no, 2 yes */
  Arena mem;
} InPlace;

static void find_uses(InPlace *x) {
  const Program *p = x->p;
  memset(x->first, 0xff, p->n_buffers * sizeof *x->first);
  for (uint32_t i = 0; i < p->n_launches; i++)
    for (uint32_t k = 0; k < p->launch[i].n_args; k++) {
      uint32_t b = p->launch[i].arg[k].buffer;
      x->first[b] = x->first[b] == NONE ? i : x->first[b];
      x->last[b] = i;
    }
}

static bool legal(InPlace *x, uint32_t kernel, uint32_t result, uint32_t arg) {
  const Kernel *k = &x->p->kernel[kernel];
  uint32_t n = k->n_args - k->n_outputs;
  if (!x->legal[kernel])
    x->legal[kernel] = ARENA_ARRAY(&x->mem, unsigned char, (size_t)n * k->n_outputs);
  unsigned char *known = &x->legal[kernel][result * n + arg];
  if (!*known)
    *known =
        (x->d->in_place ? x->d->in_place : region_in_place)(x->d->func, x->d->region[kernel], result, arg)
            ? 2
            : 1;
  return *known == 2;
}

static bool used_once(const Launch *l, uint32_t buffer) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < l->n_args; k++)
    n += l->arg[k].buffer == buffer;
  return n == 1;
}

/* The operand of launch i over which its result `r` is written, NONE: it keeps its own buffer. */
static uint32_t operand_for(InPlace *x, uint32_t i, uint32_t r) {
  const Launch *l = &x->p->launch[i];
  uint32_t inputs = l->n_args - x->p->kernel[l->kernel].n_outputs;
  const Operand *out = &l->arg[inputs + r];
  const Buffer *b = &x->p->buffer[out->buffer];
  if ((b->kind != BUF_TEMP && b->kind != BUF_OUTPUT) || x->first[out->buffer] != i || out->offset ||
      !used_once(l, out->buffer))
    return NONE;
  for (uint32_t k = 0; k < inputs; k++) {
    uint32_t a = l->arg[k].buffer;
    const Buffer *in = &x->p->buffer[a];
    if (in->kind == BUF_TEMP && !l->arg[k].offset && in->bytes == b->bytes && x->last[a] == i &&
        x->becomes[a] == NONE && used_once(l, a) && legal(x, l->kernel, r, k))
      return a;
  }
  return NONE;
}

/* Buffers that gave way leave the table. */
static void rename_buffers(InPlace *x) {
  Program *p = x->p;
  uint32_t *to = ARENA_ARRAY(&x->mem, uint32_t, p->n_buffers), n = 0;
  for (uint32_t i = 0; i < p->n_buffers; i++)
    if (x->becomes[i] == NONE) {
      p->buffer[n] = p->buffer[i];
      to[i] = n++;
    }
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    uint32_t b = i;
    while (x->becomes[b] != NONE)
      b = x->becomes[b];
    to[i] = to[b];
  }
  p->n_buffers = n;
  for (uint32_t i = 0; i < p->n_launches; i++)
    for (uint32_t k = 0; k < p->launch[i].n_args; k++)
      p->launch[i].arg[k].buffer = to[p->launch[i].arg[k].buffer];
  for (uint32_t i = 0; i < p->n_results; i++) {
    p->result[i].num = to[p->result[i].num];
    p->result[i].den = p->result[i].den == UINT32_MAX ? UINT32_MAX : to[p->result[i].den];
  }
}

void share_in_place(Draft *d) {
  Program *p = &d->program;
  InPlace x = {.d = d, .p = p};
  x.becomes = ARENA_ARRAY(&x.mem, uint32_t, p->n_buffers);
  x.first = ARENA_ARRAY(&x.mem, uint32_t, p->n_buffers);
  x.last = ARENA_ARRAY(&x.mem, uint32_t, p->n_buffers);
  x.legal = ARENA_ARRAY(&x.mem, unsigned char *, p->n_kernels);
  memset(x.becomes, 0xff, p->n_buffers * sizeof *x.becomes);
  find_uses(&x);
  for (uint32_t i = 0; i < p->n_launches; i++)
    for (uint32_t r = 0; r < p->kernel[p->launch[i].kernel].n_outputs; r++) {
      uint32_t a = operand_for(&x, i, r);
      if (a != NONE)
        x.becomes[a] =
            p->launch[i].arg[p->launch[i].n_args - p->kernel[p->launch[i].kernel].n_outputs + r].buffer;
    }
  rename_buffers(&x);
  arena_free(&x.mem);
}
