/* driver.c: the road every command shares: file -> model -> fused function -> program -> loaded kernels. */
#include "cli/driver.h"

#include "runtime/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *program_path(Session *s, const Args *a) {
  struct stat st;
  if (stat(a->file, &st) == 0 && S_ISDIR(st.st_mode)) {
    return arena_printf(&s->arena, "%s/plan.dl", a->file);
  }
  return a->file;
}

static void print_diagnostics(const Session *s, bool json) {
  Str text = {0};
  if (json) {
    diag_print_json(&s->diag, &text);
  } else {
    diag_print(&s->diag, &text);
  }
  if (text.s) {
    fputs(text.s, stderr);
  }
  str_free(&text);
}

static int open_model(Session *s, const Args *a, const char *const *extra, uint32_t n_extra, bool inference,
                      bool quiet, bool f64) {
  memset(s, 0, sizeof *s);
  s->sources.arena = &s->arena;
  s->diag.sources = &s->sources;
  if (!a->file) {
    return cli_usage(a, "which file?");
  }
  if (a->nodes > 1) {
    return cli_usage(a, "--nodes %lld: runs over several ranks are not built yet", (long long)a->nodes);
  }
  const char *set[MAX_SETS + 16];
  uint32_t n = 0;
  for (uint32_t i = 0; i < a->n_set; i++) {
    set[n++] = a->set[i];
  }
  if (a->seed >= 0 && strcmp(a->command, "sample")) {
    set[n++] = arena_printf(&s->arena, "seed=%lld", (long long)a->seed);
  }
  for (uint32_t i = 0; i < n_extra && n < sizeof set / sizeof *set; i++) {
    set[n++] = extra[i];
  }
  FrontOptions opt = {.path = program_path(s, a),
                      .plan = a->plan,
                      .layout = a->layout,
                      .ranks = 1,
                      .set = set,
                      .n_set = n,
                      .inference = inference,
                      .f64 = f64};
  int code = front_model(&opt, &s->sources, &s->diag, &s->model);
  if (code || !quiet) {
    print_diagnostics(s, a->json);
  }
  if (code) {
    session_close(s);
  }
  return code;
}

int session_open(Session *s, const Args *a, const char *const *extra, uint32_t n_extra) {
  return open_model(s, a, extra, n_extra, false, false, false);
}

int session_open_f64(Session *s, const Args *a) {
  return open_model(s, a, NULL, 0, false, false, true);
}

int session_open_inference(Session *s, const Args *a, int64_t batch) {
  int code = open_model(s, a, NULL, 0, true, true, false);
  if (code || batch <= 0 || !s->model->has_plan) {
    return code;
  }
  char set[256];
  snprintf(set, sizeof set, "%s=%lld", ir_axis_name(s->model->module, s->model->plan.sample_axis),
           (long long)batch);
  session_close(s);
  const char *extra[] = {set};
  return open_model(s, a, extra, 1, true, true, false);
}

void session_close(Session *s) {
  if (s->model) {
    front_free(s->model);
    s->model = NULL;
  }
  arena_free(&s->arena);
}

bool driver_need_plan(const Session *s, Error *err) {
  if (!s->model->has_plan) {
    return error_set(err, ERR_INPUT,
                     "this file has no plan; write `plan NAME for MODEL { ... }` with its data and steps");
  }
  return true;
}

Codegen *driver_codegen(Error *err) {
  char *dir = cache_default_dir();
  CodegenOptions options = {.cache_dir = dir, .threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN)};
  Codegen *cg = codegen_new(&options, err);
  free(dir);
  return cg;
}

bool driver_compile(Session *s, Codegen *cg, PipeKind kind, const char *const *outputs, uint32_t n_outputs,
                    const char *name, const PassHooks *hooks, Compiled *out, Error *err) {
  Model *m = s->model;
  memset(out, 0, sizeof *out);
  out->func = pipeline(m->module, kind, m->plan.clip, outputs, n_outputs, hooks, err);
  if (!out->func || !program_lower(out->func, name, &m->module->arena, &out->draft, err)) {
    return false;
  }
  Program *p = &out->draft.program;
  out->draft.in_place = codegen_inplace;
  p->n_objects = p->n_kernels;
  p->object = ARENA_ARRAY(&m->module->arena, Object, p->n_objects);
  if (!codegen_kernels(cg, out->func, out->draft.region, p->n_kernels, &m->module->arena, p->kernel,
                       p->object, err) ||
      !program_plan(&out->draft, &m->module->arena, err)) {
    return false;
  }
  out->image = codegen_load(p->object, p->n_objects, err);
  return out->image != NULL;
}

void driver_unload(Compiled *c) {
  if (c->image) {
    codegen_unload(c->image);
    c->image = NULL;
  }
}

void *driver_symbol(void *ctx, uint32_t object, const char *symbol) {
  (void)object;
  Compiled *c = ctx;
  KernelFn fn = codegen_lookup(c->image, symbol);
  void *p;
  memcpy(&p, &fn, sizeof p);
  return p;
}
