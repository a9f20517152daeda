/* region_rig.h: builds one region, runs it as machine code with guarded buffers and compares with the
 * interpreter. */
#ifndef REGION_RIG_H
#define REGION_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/codegen.h"
#include "ir/ir.h"

#define GUARD  256 /* bytes around every buffer */
#define MAX_IO 40

typedef struct {
  Module *m;
  Func *f;
  Block *body;
  Builder b;
  Val outer[MAX_IO], param[MAX_IO];
  uint32_t n_in;
  Error err;
  double lo[MAX_IO], hi[MAX_IO]; /* range of the random input values */
  bool special;                  /* sprinkle NaN and infinities */
  double tol;                    /* relative; 0: exact */
} Rig;

static inline void rig_init(Rig *r) {
  memset(r, 0, sizeof *r);
  r->m = ir_module_new();
  r->m->real = DT_F32;
  r->f = ir_func_new(r->m, "test");
  r->body = ir_block_new(r->f);
  r->b = (Builder){r->f, r->body, {NONE, 0, 0}, &r->err};
  r->tol = 2e-5;
}

/* dims: "a=3 b=4" */
static inline Type rig_type(Rig *r, DType d, const char *dims) {
  Type t = type_scalar(d);
  char buf[256];
  snprintf(buf, sizeof buf, "%s", dims);
  for (char *p = strtok(buf, " "); p; p = strtok(NULL, " ")) {
    char *eq = strchr(p, '=');
    *eq = 0;
    assert_true(type_push(&t, ir_axis(r->m, p), atoll(eq + 1)));
  }
  return t;
}

static inline Val rig_in(Rig *r, DType d, const char *dims, double lo, double hi) {
  Type t = rig_type(r, d, dims);
  r->lo[r->n_in] = lo;
  r->hi[r->n_in] = hi;
  r->outer[r->n_in] = ir_func_arg(r->f, ARG_INPUT, r->n_in, t, NULL);
  return r->param[r->n_in++] = ir_param(r->f, r->body, t, NULL);
}

static inline Axis ax(Rig *r, const char *name) {
  return ir_axis(r->m, name);
}

/* ---- data ---- */

static inline uint64_t rig_next(uint64_t *s) {
  *s ^= *s << 13;
  *s ^= *s >> 7;
  return *s ^= *s << 17;
}

static inline void put_value(void *p, DType d, int64_t i, double v) {
  switch (d) {
  case DT_F32: ((float *)p)[i] = (float)v; break;
  case DT_F64: ((double *)p)[i] = v; break;
  case DT_I32: ((int32_t *)p)[i] = (int32_t)v; break;
  case DT_I64: ((int64_t *)p)[i] = (int64_t)v; break;
  default: ((uint8_t *)p)[i] = (uint8_t)v; break;
  }
}

static inline double get_value(const void *p, DType d, int64_t i) {
  switch (d) {
  case DT_F32: return ((const float *)p)[i];
  case DT_F64: return ((const double *)p)[i];
  case DT_I32: return ((const int32_t *)p)[i];
  case DT_I64: return (double)((const int64_t *)p)[i];
  default: return ((const uint8_t *)p)[i];
  }
}

typedef struct {
  uint8_t *block, *data;
  size_t bytes;
} Guarded;

static inline Guarded guarded_new(size_t bytes) {
  Guarded g = {.bytes = bytes};
  size_t padded = (bytes + 63) / 64 * 64;
  g.block = aligned_alloc(64, 2 * GUARD + padded);
  memset(g.block, 0x7f, 2 * GUARD + padded); /* as f32 3.4e38, as int large: seen at once when used */
  g.data = g.block + GUARD;
  return g;
}

static inline void guarded_check(const Guarded *g, const char *what) {
  size_t padded = (g->bytes + 63) / 64 * 64;
  for (size_t i = 0; i < 2 * GUARD + padded; i++)
    if ((i < GUARD || i >= GUARD + g->bytes) && g->block[i] != 0x7f)
      fail_msg("%s: byte %ld of %zu was written", what, (long)i - GUARD, g->bytes);
}

/* ---- running ---- */

static inline void run_kernel(CodeImage *image, const Kernel *k, void **args, int64_t step) {
  void *a[MAX_IO * 2 + 1];
  memcpy(a, args, k->n_args * sizeof *args);
  Guarded scratch = guarded_new((size_t)k->scratch_bytes), own = guarded_new((size_t)k->thread_scratch_bytes);
  a[k->n_args] = own.data;
  for (uint32_t p = 0; p < k->n_phases; p++) {
    KernelFn fn = codegen_lookup(image, k->phase[p].symbol);
    assert_non_null(fn);
    int64_t n = k->phase[p].ntasks, s = step ? step : n;
    for (int64_t t = 0; t < n; t += s) /* step > 0: backwards and in pieces, as threads might */
      fn(a, step ? (n - t - s > 0 ? n - t - s : 0) : t, step ? n - t : n, scratch.data);
  }
  guarded_check(&scratch, "scratch");
  guarded_check(&own, "thread scratch");
  free(scratch.block);
  free(own.block);
}

static inline Codegen *rig_codegen(void) {
  static Codegen *cg;
  Error err = {0};
  if (!cg)
    cg = codegen_new(&(CodegenOptions){0}, &err);
  if (!cg)
    fail_msg("%s", err.msg);
  return cg;
}

static inline void compare(const Rig *r, const Type *t, const void *got, const double *want,
                           const char *what) {
  for (int64_t i = 0, n = type_count(t); i < n; i++) {
    bool single = t->dtype == DT_F32;
    double g = get_value(got, t->dtype, i), w = single ? (float)want[i] : want[i];
    double tol = single && r->tol < 1e-6 ? 1e-6 : r->tol;
    bool same = isnan(w) ? isnan(g) : isinf(w) ? g == w : fabs(g - w) <= tol * (fabs(w) > 1 ? fabs(w) : 1);
    if (!dtype_is_float(t->dtype))
      same = g == w;
    if (!same)
      fail_msg("%s: element %ld of %ld is %.9g, expected %.9g", what, (long)i, (long)n, g, w);
  }
}

static inline double rig_value(const Rig *r, uint32_t i, DType d, uint64_t *seed) {
  double u = (double)(rig_next(seed) >> 11) / 9007199254740992.0;
  if (r->special && dtype_is_float(d) && rig_next(seed) % 7 == 0) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-40, 3e38};
    return odd[rig_next(seed) % 7];
  }
  double v = r->lo[i] + (r->hi[i] - r->lo[i]) * u;
  if (d == DT_F32)
    return (float)v;
  return d == DT_F64 ? v : floor(v);
}

/* Compiles region `region` of the rig's function, whose arguments are the region's and whose results are too;
 * runs it (whole and in pieces: bits must agree) and compares. */
static inline void rig_check(Rig *r, OpId region, uint32_t n, const char *what) {
  Val res = r->f->op[region].result;
  Arena arena = {0};
  Kernel k = {0};
  Object obj = {0};
  Codegen *cg = rig_codegen();
  char why[256] = "";
  if (!codegen_region_ok(r->f, region, why, sizeof why))
    fail_msg("%s: %s", what, why);
  if (!codegen_kernel(cg, r->f, region, &arena, &k, &obj, &r->err))
    fail_msg("%s: %s", what, r->err.msg);
  CodeImage *image = codegen_load(&obj, 1, &r->err);
  if (!image)
    fail_msg("%s: %s", what, r->err.msg);
  Tensor in[MAX_IO], out[MAX_IO];
  Guarded gin[MAX_IO], gout[MAX_IO], again[MAX_IO];
  void *args[2 * MAX_IO], *args2[2 * MAX_IO];
  uint64_t seed = 88172645463325252ull;
  for (uint32_t i = 0; i < r->n_in; i++) {
    in[i].type = *ir_type(r->f, r->outer[i]);
    int64_t count = type_count(&in[i].type);
    in[i].data = ARENA_ARRAY(&arena, double, (size_t)count);
    gin[i] = guarded_new((size_t)count * dtype_bytes(in[i].type.dtype));
    for (int64_t e = 0; e < count; e++) {
      in[i].data[e] = rig_value(r, i, in[i].type.dtype, &seed);
      put_value(gin[i].data, in[i].type.dtype, e, in[i].data[e]);
    }
    args[i] = args2[i] = gin[i].data;
  }
  for (uint32_t i = 0; i < n; i++) {
    size_t bytes = (size_t)type_count(ir_type(r->f, res + i)) * dtype_bytes(ir_type(r->f, res + i)->dtype);
    gout[i] = guarded_new(bytes);
    again[i] = guarded_new(bytes);
    args[r->n_in + i] = gout[i].data;
    args2[r->n_in + i] = again[i].data;
  }
  assert_int_equal(k.n_args, r->n_in + n);
  assert_int_equal(k.n_outputs, n);
  run_kernel(image, &k, args, 0);
  run_kernel(image, &k, args2, 1);
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t j = 0; j < r->n_in; j++)
      if (codegen_inplace(r->f, region, i, j)) { /* the same, result i over operand j */
        Guarded over = guarded_new(gin[j].bytes);
        memcpy(over.data, gin[j].data, gin[j].bytes);
        void *args3[2 * MAX_IO];
        memcpy(args3, args2, (r->n_in + n) * sizeof *args);
        args3[j] = args3[r->n_in + i] = over.data;
        run_kernel(image, &k, args3, 0);
        guarded_check(&over, what);
        if (memcmp(over.data, gout[i].data, gout[i].bytes) != 0)
          fail_msg("%s: result %u over operand %u differs", what, i, j);
        free(over.block);
      }
  if (!ir_interp(r->f, in, out, &arena, false, &r->err))
    fail_msg("%s: %s", what, r->err.msg);
  for (uint32_t i = 0; i < r->n_in; i++)
    guarded_check(&gin[i], what);
  for (uint32_t i = 0; i < n; i++) {
    guarded_check(&gout[i], what);
    guarded_check(&again[i], what);
    compare(r, ir_type(r->f, res + i), gout[i].data, out[i].data, what);
    if (memcmp(gout[i].data, again[i].data, gout[i].bytes) != 0)
      fail_msg("%s: result %u depends on how tasks are run", what, i);
    free(gout[i].block);
    free(again[i].block);
  }
  for (uint32_t i = 0; i < r->n_in; i++)
    free(gin[i].block);
  codegen_unload(image);
  arena_free(&arena);
}

/* Closes the region with results v[0..n), checks it, frees the module. */
static inline void rig_run(Rig *r, const char *cls, const Val *v, uint32_t n, const char *what) {
  if (r->err.cls)
    fail_msg("%s: %s", what, r->err.msg);
  for (uint32_t i = 0; i < n; i++)
    ir_block_ret(r->f, r->body, v[i]);
  Builder top = {r->f, r->f->body, {NONE, 0, 0}, &r->err};
  Attr attr = {.str = cls};
  Val res = ir_op(&top, OP_REGION, r->outer, r->n_in, &attr, r->body);
  if (r->err.cls)
    fail_msg("%s: %s", what, r->err.msg);
  for (uint32_t i = 0; i < n; i++)
    ir_func_ret(r->f, (FuncRes){.kind = RES_OUTPUT, .name = "o"}, res + i);
  rig_check(r, r->f->val[res].def, n, what);
  ir_module_free(r->m);
}

#endif
