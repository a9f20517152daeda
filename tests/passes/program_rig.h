/* program_rig.h: a function through fusing, lowering and the memory plan, run on the interpreting device,
 * against the interpreter on the function itself. */
#ifndef DLC_TESTS_PASSES_PROGRAM_RIG_H
#define DLC_TESTS_PASSES_PROGRAM_RIG_H

#include "codegen/codegen.h"
#include "passes/program.h"
#include "transformer.h"

#include <stdlib.h>

typedef struct {
  Draft draft;
  Arena arena;
  unsigned char *bytes;
} Planned;

static inline uint32_t find_buffer(const Program *p, BufferKind kind, uint32_t index, const char *name) {
  for (uint32_t i = 0; i < p->n_buffers; i++)
    if (p->buffer[i].kind == kind && (name ? strcmp(p->buffer[i].name, name) == 0 : index-- == 0))
      return i;
  fail_msg("the program has no such buffer");
  return 0;
}

static inline uint32_t arg_buffer(const Func *f, const Program *p, uint32_t i) {
  static const char *const scalar[] = {"$step", "$attempt", "$seed"};
  FuncArg a = f->arg[i];
  switch (a.kind) {
  case ARG_PARAM: return find_buffer(p, BUF_PARAM, a.index, NULL);
  case ARG_OPT: return find_buffer(p, BUF_OPT, a.index, NULL);
  case ARG_STATE: return find_buffer(p, BUF_STATE, a.index, NULL);
  case ARG_INPUT: return find_buffer(p, BUF_INPUT, 0, f->module->input[a.index].name);
  default: return find_buffer(p, BUF_SCALAR, 0, scalar[a.index]);
  }
}

static inline uint32_t result_buffer(const Func *f, const Program *p, uint32_t i) {
  const FuncRes *r = &f->res[i];
  char term[32];
  const char *name = r->name;
  bool den = r->kind == RES_LOSS_DEN || r->kind == RES_METRIC_DEN;
  switch (r->kind) {
  case RES_PARAM: return find_buffer(p, BUF_PARAM, r->index, NULL);
  case RES_OPT: return find_buffer(p, BUF_OPT, r->index, NULL);
  case RES_STATE: return find_buffer(p, BUF_STATE, r->index, NULL);
  case RES_LOSS: name = "loss"; break;
  case RES_GRAD: name = f->module->param[r->index].name; break;
  case RES_LOSS_NUM:
  case RES_LOSS_DEN:
    snprintf(term, sizeof term, "loss_term.%u", r->index);
    name = term;
    break;
  default: break;
  }
  for (uint32_t k = 0; k < p->n_results; k++)
    if (strcmp(p->result[k].name, name) == 0)
      return den ? p->result[k].den : p->result[k].num;
  fail_msg("the program has no result %s", name);
  return 0;
}

/* Launches that write over an operand are those the host allows to. */
static inline void check_in_place(const Draft *d) {
  for (uint32_t i = 0; i < d->program.n_launches; i++) {
    const Launch *l = &d->program.launch[i];
    uint32_t inputs = l->n_args - d->program.kernel[l->kernel].n_outputs;
    for (uint32_t k = 0; k < inputs; k++)
      for (uint32_t r = inputs; r < l->n_args; r++)
        if (l->arg[k].buffer == l->arg[r].buffer && l->arg[k].offset == l->arg[r].offset)
          assert_true(codegen_inplace(d->func, d->region[l->kernel], r - inputs, k));
  }
}

/* f fused, lowered, planned; the arena full of ones bits (NaN). */
static inline Planned make_planned(Fix *x, const Func *f) {
  Planned p = {0};
  Func *g = func_copy(f, "fused", NULL, NULL);
  assert_true(pass_fuse(g, &x->err) && ir_verify_func(g, &x->err));
  if (getenv("DLC_TEST_DUMP")) {
    Str s = {0};
    ir_print_func(g, &s);
    fputs(s.s, stderr);
    str_free(&s);
  }
  program_lower(g, "test", &p.arena, &p.draft, &x->err);
  no_error(x);
  /* Scratch of odd sizes, as kernels would ask for. */
  for (uint32_t k = 0; k < p.draft.program.n_kernels; k += 3)
    p.draft.program.kernel[k].scratch_bytes = 100 * k + 8;
  program_plan(&p.draft, &p.arena, &x->err);
  no_error(x);
  check_in_place(&p.draft);
  p.bytes = malloc((size_t)p.draft.program.arena_bytes + 1);
  memset(p.bytes, 0xff, (size_t)p.draft.program.arena_bytes);
  return p;
}

static inline void free_planned(Planned *p) {
  free(p->bytes);
  arena_free(&p->arena);
}

static inline void fill_planned(Planned *p, const Func *f, const Data *d) {
  for (uint32_t i = 0; i < d->n; i++)
    program_store(&p->draft.program, arg_buffer(f, &p->draft.program, i), p->bytes, d->in[i].data,
                  type_count(&d->in[i].type));
}

static inline void compare_planned(const char *what, const Planned *p, const Func *f, const Tensor *want,
                                   double tol) {
  Arena arena = {0};
  for (uint32_t i = 0; i < f->body->n_ret; i++) {
    int64_t n = type_count(&want[i].type);
    double *got = ARENA_ARRAY(&arena, double, (size_t)n);
    program_load(&p->draft.program, result_buffer(f, &p->draft.program, i), p->bytes, got, n);
    char name[128];
    for (int64_t k = 0; k < n; k++) {
      snprintf(name, sizeof name, "%s: result %u %s [%lld]", what, i, f->res[i].name ? f->res[i].name : "",
               (long long)k);
      close_to(name, got[k], want[i].data[k], tol);
    }
  }
  arena_free(&arena);
}

/* The whole road, twice, since nothing may be left over from a step but what is persistent. */
static inline void check_program(Fix *x, const char *what, const Func *f, double tol) {
  no_error(x);
  Planned p = make_planned(x, f);
  Data d = make_data(f, -1, 1);
  Arena arena = {0};
  Tensor *want = run(f, &d, &arena);
  for (int step = 0; step < 2; step++) {
    fill_planned(&p, f, &d);
    program_run_reference(&p.draft, p.bytes, false, &x->err);
    no_error(x);
    compare_planned(what, &p, f, want, tol);
  }
  arena_free(&arena);
  arena_free(&d.arena);
  free_planned(&p);
}

#endif
