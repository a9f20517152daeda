/* The reference models through the frontend, the passes and the f64 interpreter: loss and gradients of the first batch. */
#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN DLC_SOURCE_DIR "/tests/golden/"

typedef struct {
  Arena arena;
  Sources sources;
  Diag diag;
  Model *model;
  TensorFile *weights, *data, *grads;
} Case;

static void must(bool ok, const Error *err) {
  if (!ok) {
    fail_msg("%s", err->msg);
  }
}

static TensorFile *open_file(const char *name, const char *file) {
  char path[512];
  Error err = {0};
  snprintf(path, sizeof path, GOLDEN "%s/%s.safetensors", name, file);
  TensorFile *f = tensorfile_open(path, &err);
  must(f != NULL, &err);
  return f;
}

static void open_case(Case *c, const char *name) {
  memset(c, 0, sizeof *c);
  c->sources.arena = &c->arena;
  c->diag.sources = &c->sources;
  const char *set[] = {"precision=f64"};
  FrontOptions o = {.path = arena_printf(&c->arena, GOLDEN "%s/%s.dl", name, name), .layout = "one", .ranks = 1, .set = set, .n_set = 1};
  int code = front_model(&o, &c->sources, &c->diag, &c->model);
  Str text = {0};
  diag_print(&c->diag, &text);
  if (code) {
    fail_msg("%s", text.s);
  }
  str_free(&text);
  c->weights = open_file(name, "weights");
  c->data = open_file(name, "data");
  c->grads = open_file(name, "grads");
}

static void close_case(Case *c) {
  tensorfile_close(c->weights);
  tensorfile_close(c->data);
  tensorfile_close(c->grads);
  front_free(c->model);
  arena_free(&c->arena);
}

/* A stacked parameter from its slices in the file: h.*.w from h.0.w, h.1.w, ... */
static void read_param(Case *c, const TensorFile *f, const IrParam *p, double *out) {
  int64_t layers = p->n_repeat ? p->type.dim[0].size : 1, n = type_count(&p->type) / layers;
  Error err = {0};
  for (int64_t i = 0; i < layers; i++) {
    const char *star = strchr(p->name, '*');
    const char *name = star ? arena_printf(&c->arena, "%.*s%lld%s", (int)(star - p->name), p->name, (long long)i, star + 1) : p->name;
    const FileTensor *t = tensorfile_find(f, name);
    if (!t) {
      fail_msg("no tensor %s", name);
    }
    must(filetensor_read(t, 0, n, DT_F64, out + i * n, &err), &err);
  }
}

static Tensor argument(Case *c, const Func *f, uint32_t i) {
  const Module *m = c->model->module;
  Tensor t = {f->val[f->body->param[i]].type, NULL};
  int64_t n = type_count(&t.type);
  t.data = ARENA_ARRAY(&c->arena, double, (size_t)n);
  Error err = {0};
  if (f->arg[i].kind == ARG_PARAM) {
    read_param(c, c->weights, &m->param[f->arg[i].index], t.data);
  } else if (f->arg[i].kind == ARG_INPUT) {
    int32_t *ids = ARENA_ARRAY(&c->arena, int32_t, (size_t)n);
    must(filetensor_read(tensorfile_find(c->data, m->input[f->arg[i].index].name), 0, n, DT_I32, ids, &err), &err);
    for (int64_t k = 0; k < n; k++) {
      t.data[k] = ids[k];
    }
  }
  return t;
}

static void run_case(const char *name, double loss, double norm) {
  Case c;
  open_case(&c, name);
  const Module *m = c.model->module;
  Error err = {0};
  Func *f = pipeline_unfused(c.model->module, PIPE_GRAD, 0, NULL, 0, &(PassHooks){.verify = true}, &err);
  must(f != NULL, &err);
  Tensor *in = ARENA_ARRAY(&c.arena, Tensor, f->body->n_params), *out = ARENA_ARRAY(&c.arena, Tensor, f->body->n_ret);
  for (uint32_t i = 0; i < f->body->n_params; i++) {
    in[i] = argument(&c, f, i);
  }
  must(ir_interp(f, in, out, &c.arena, false, &err), &err);
  bool seen_loss = false, seen_norm = false;
  uint32_t n_grads = 0;
  double largest = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t i = 0; i < f->body->n_ret; i++) {
      if (f->res[i].kind == RES_LOSS) {
        seen_loss = true;
        assert_true(fabs(out[i].data[0] - loss) < 1e-9 * loss);
      } else if (f->res[i].kind == RES_SCALAR && !strcmp(f->res[i].name, "grad_norm")) {
        seen_norm = true;
        assert_true(fabs(out[i].data[0] - norm) < 1e-9 * norm);
      } else if (f->res[i].kind == RES_GRAD) {
        const IrParam *p = &m->param[f->res[i].index];
        int64_t n = type_count(&p->type);
        double *want = ARENA_ARRAY(&c.arena, double, (size_t)n), most = 0;
        read_param(&c, c.grads, p, want);
        for (int64_t k = 0; k < n; k++) {
          most = fmax(most, fabs(want[k]));
        }
        largest = fmax(largest, most);
        for (int64_t k = 0; pass && k < n; k++) {
          if (!(fabs(out[i].data[k] - want[k]) <= 1e-9 * fmax(most, 1e-3 * largest))) {
            fail_msg("%s: gradient of %s at %lld is %.12g, not %.12g", name, p->name, (long long)k, out[i].data[k], want[k]);
          }
        }
        n_grads += pass;
      }
    }
  }
  assert_true(seen_loss && seen_norm);
  assert_int_equal(n_grads, m->n_params);
  close_case(&c);
}

static void gpt2(void **state) {
  (void)state;
  run_case("gpt2", 5.585448865656211, 1.9815041848995816);
}

static void llama(void **state) {
  (void)state;
  run_case("llama", 6.055777974854107, 3.8676269980184363);
}

int main(void) {
  setenv("DLC_MODELS", DLC_SOURCE_DIR "/models", 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(gpt2), cmocka_unit_test(llama)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
