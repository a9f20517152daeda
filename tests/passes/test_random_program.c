/* Random functions and their gradients as step programs, with parameters updated in place: on the
 * interpreting device, and every region a legal one. A part of them on the host as well. */
#include "program_rig.h"
#include "random_program.h"
#include "runtime/device.h"

static void check_regions(const Draft *d) {
  char why[256];
  for (uint32_t k = 0; k < d->program.n_kernels; k++)
    if (!codegen_region_ok(d->func, d->region[k], why, sizeof why)) {
      Str s = {0};
      ir_print_region(d->func, d->region[k], &s);
      fail_msg("%s\n%s", why, s.s);
    }
}

/* Next values of the parameters: anything of their dims, one another's included. */
static void add_updates(Gen *g, Func *f) {
  const Module *m = g->x.m;
  for (uint32_t p = 0; p < m->n_params; p++) {
    Builder b = {.f = f, .b = f->body, .loc = {NONE, 0, 0}, .err = &g->x.err};
    const Type *t = &m->param[p].type;
    Val v = NONE;
    for (uint32_t tries = 0; tries < 20 && v == NONE; tries++) {
      Val u = below(g, f->n_vals);
      if (f->val[u].def == NONE || !type_same_dims(ir_type(f, u), t) || ir_type(f, u)->dtype != DT_F64)
        continue;
      for (uint32_t i = 0; i < f->body->n_ops; i++) {
        const Op *op = &f->op[f->body->op[i]];
        if (u >= op->result && u < op->result + op->n_results)
          v = u;
      }
    }
    if (v == NONE)
      v = f->body->param[p];
    if (below(g, 3) == 0)
      v = ir_binary(&b, OP_SUB, f->body->param[p], ir_binary(&b, OP_MUL, v, ir_const(&b, DT_F64, 0.1)));
    ir_func_ret(f, (FuncRes){.kind = RES_PARAM, .index = p}, ir_reorder(&b, v, t));
  }
}

static Func *random_function(Gen *g, uint64_t seed) {
  random_body(g, seed);
  random_loss(g);
  Func *f = pass_select(g->x.f, "copy", NULL, NULL);
  if (!simplify(f, false, &g->x.err) || !pass_outline(f, &g->x.err) || !pass_hoist(f, &g->x.err))
    fail_msg("%s", g->x.err.msg);
  f = pass_autodiff(f, "grad", &g->x.err);
  no_error(&g->x);
  if (below(g, 2))
    add_updates(g, f);
  if (!simplify(f, true, &g->x.err) || !ir_verify_func(f, &g->x.err))
    fail_msg("program %llu: %s", (unsigned long long)seed, g->x.err.msg);
  return f;
}

static bool finite_results(const Func *f) {
  Data d = make_data(f, -1, 1);
  Arena arena = {0};
  Tensor *out = run(f, &d, &arena);
  bool ok = true;
  for (uint32_t i = 0; i < f->body->n_ret; i++)
    ok &= all_finite(&out[i]);
  arena_free(&arena);
  arena_free(&d.arena);
  return ok;
}

static uint64_t setting(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

static void on_reference(void **state) {
  (void)state;
  uint64_t first = setting("DLC_TEST_SEED", 1), n = setting("DLC_TEST_COUNT", 150);
  for (uint64_t i = 0; i < n; i++) {
    Gen g;
    Func *f = random_function(&g, first + i);
    char name[64];
    snprintf(name, sizeof name, "program %llu", (unsigned long long)(first + i));
    Planned p = make_planned(&g.x, f);
    check_regions(&p.draft);
    free_planned(&p);
    if (finite_results(f))
      check_program(&g.x, name, f, 1e-9);
    ir_module_free(g.x.m);
  }
}

/* ---- the host ---- */

static void *find_symbol(void *ctx, uint32_t object, const char *name) {
  (void)object;
  KernelFn fn = codegen_lookup(ctx, name);
  void *p;
  memcpy(&p, &fn, sizeof p);
  return p;
}

static void run_on_host(Codegen *cg, Fix *x, const char *name, const Func *f) {
  Planned p = {0};
  Func *g = func_copy(f, "fused", NULL, NULL);
  Program *prog = &p.draft.program;
  pass_fuse(g, &x->err);
  no_error(x);
  program_lower(g, "host", &p.arena, &p.draft, &x->err);
  no_error(x);
  prog->n_objects = prog->n_kernels;
  prog->object = ARENA_ARRAY(&p.arena, Object, prog->n_objects);
  codegen_kernels(cg, g, p.draft.region, prog->n_kernels, &p.arena, prog->kernel, prog->object, &x->err);
  no_error(x);
  p.draft.in_place = codegen_inplace;
  program_plan(&p.draft, &p.arena, &x->err);
  no_error(x);
  CodeImage *image = codegen_load(prog->object, prog->n_objects, &x->err);
  Device *device = device_open("host", NULL, &x->err);
  Exec *exec = exec_load(device, prog, find_symbol, image, &x->err);
  no_error(x);
  Data d = make_data(f, -1, 1);
  Arena arena = {0};
  Tensor *want = run(f, &d, &arena);
  p.bytes = malloc((size_t)prog->arena_bytes + 1);
  for (int step = 0; step < 2; step++) {
    fill_planned(&p, f, &d);
    for (uint32_t i = 0; i < d.n; i++) {
      uint32_t b = arg_buffer(f, prog, i);
      exec_write(exec, b, 0, p.bytes + prog->buffer[b].offset, prog->buffer[b].bytes, &x->err);
    }
    exec_run(exec, &x->err);
    for (uint32_t i = 0; i < prog->n_buffers; i++)
      exec_read(exec, i, 0, p.bytes + prog->buffer[i].offset, prog->buffer[i].bytes, &x->err);
    no_error(x);
    compare_planned(name, &p, f, want, 1e-9);
  }
  exec_unload(exec);
  device_close(device);
  codegen_unload(image);
  arena_free(&arena);
  arena_free(&d.arena);
  free_planned(&p);
}

static void on_host(void **state) {
  (void)state;
  uint64_t first = setting("DLC_TEST_SEED", 1), n = setting("DLC_TEST_HOST_COUNT", 8);
  Error err = {0};
  Codegen *cg = codegen_new(&(CodegenOptions){.threads = 2}, &err);
  assert_non_null(cg);
  for (uint64_t i = 0; i < n; i++) {
    Gen g;
    Func *f = random_function(&g, first + i);
    char name[64];
    snprintf(name, sizeof name, "program %llu on the host", (unsigned long long)(first + i));
    if (finite_results(f))
      run_on_host(cg, &g.x, name, f);
    ir_module_free(g.x.m);
  }
  codegen_free(cg);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(on_reference), cmocka_unit_test(on_host)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
