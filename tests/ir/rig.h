/* rig.h: what the tests of the IR share: modules from text, inputs with uneven values, one run of the
 * interpreter. */
#ifndef DLC_TESTS_IR_RIG_H
#define DLC_TESTS_IR_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"

/* A module with one function `eval`: inputs of the types in `inputs` ("f64[a=3]; int") are %0, %1, ...; then
 * `ops`. */
static inline char *module_text(const char *inputs, const char *ops) {
  Str table = {0}, args = {0}, all = {0};
  for (int n = 0; *inputs; n++) {
    int len = (int)strcspn(inputs, ";");
    str_printf(&table, "input \"x%d\" %.*s @4294967295:0:0\n", n, len, inputs);
    str_printf(&args, "%s%%%d: %.*s input %d", n ? ", " : "", n, len, inputs, n);
    inputs += len + (inputs[len] == ';');
    inputs += *inputs == ' ';
  }
  str_printf(&all, "module f64\n%sfunc eval(%s) {\n%s\n}\n", table.s ? table.s : "", args.s ? args.s : "",
             ops);
  str_free(&table);
  str_free(&args);
  return all.s;
}

enum { RIG_MAX = 8 };
typedef struct {
  Module *m;
  Arena arena;
  Error err;
  Tensor in[RIG_MAX], out[RIG_MAX];
  bool round;
} Rig;

/* Floats irregular in [-2, 2], ints in [-4, 8], both signs and repeats. */
static inline void fill(Tensor *t, int seed) {
  for (int64_t i = 0, n = type_count(&t->type); i < n; i++) {
    double v = 2 * sin(0.7 * (double)i + 1.3 * seed + 0.4);
    t->data[i] = dtype_is_float(t->type.dtype) ? v
                 : t->type.dtype == DT_BOOL    ? v > 0
                                               : (double)((i * 7 + 3 * seed) % 13 - 4);
  }
}

static inline void rig_read(Rig *r, const char *inputs, const char *ops) {
  memset(r, 0, sizeof *r);
  char *text = module_text(inputs, ops);
  r->m = ir_read(text, strlen(text), "test", &r->err);
  if (!r->m)
    fail_msg("%s\n%s", r->err.msg, text);
  free(text);
  const Func *f = r->m->func[0];
  assert_true(f->body->n_params <= RIG_MAX && f->body->n_ret <= RIG_MAX);
  for (uint32_t i = 0; i < f->body->n_params; i++) {
    r->in[i].type = f->val[f->body->param[i]].type;
    r->in[i].data = ARENA_ARRAY(&r->arena, double, (size_t)type_count(&r->in[i].type));
    fill(&r->in[i], (int)i);
  }
}

static inline void rig_run(Rig *r) {
  if (!ir_interp(r->m->func[0], r->in, r->out, &r->arena, r->round, &r->err))
    fail_msg("%s", r->err.msg);
}

static inline void rig_free(Rig *r) {
  arena_free(&r->arena);
  ir_module_free(r->m);
}

static inline void run(Rig *r, const char *inputs, const char *ops) {
  rig_read(r, inputs, ops);
  rig_run(r);
}

/* The element at indices given in the order of the type's dims. */
static inline double *at(const Tensor *t, const int64_t *index) {
  int64_t k = 0;
  for (int i = 0; i < t->type.rank; i++) {
    assert_true(index[i] >= 0 && index[i] < t->type.dim[i].size);
    k = k * t->type.dim[i].size + index[i];
  }
  return &t->data[k];
}
#define AT(t, ...) (*at(&(t), (const int64_t[]){__VA_ARGS__, 0}))

static inline void near(double got, double want) {
  bool ok = isnan(want) ? isnan(got) : got == want || fabs(got - want) <= 1e-12 * (1 + fabs(want));
  if (!ok)
    fail_msg("%.17g, not %.17g", got, want);
}

#endif
