/* cmd_grad.c: `dlc grad`: loss and gradients of the first batch at the initial parameters. --check is
 * grad_check.c. */
#include "cli/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  Session session;
  Codegen *cg;
  Device *device;
  Compiled c;
  Exec *x;
  Tensors tensors;
  DataSet data;
} Grad;

static void close_grad(Grad *g) {
  if (g->x) {
    exec_unload(g->x);
  }
  device_close(g->device);
  driver_unload(&g->c);
  codegen_free(g->cg);
  setup_close_data(&g->data);
  if (g->session.model) {
    session_close(&g->session);
  }
}

/* Loads the gradient program with the first batch; a file without a plan has no data to take one from. */
static int open_grad(Grad *g, const Args *a, Error *err) {
  memset(g, 0, sizeof *g);
  int code = session_open(&g->session, a, NULL, 0);
  if (code) {
    return code;
  }
  Arena *mem = &g->session.arena;
  bool ok = driver_need_plan(&g->session, err) && setup_data(mem, g->session.model, &g->data, err);
  g->cg = ok ? driver_codegen(err) : NULL;
  ok = g->cg && driver_compile(&g->session, g->cg, PIPE_GRAD, NULL, 0, "grad", NULL, &g->c, err);
  g->device = ok ? device_open(a->device ? a->device : "auto", &(DeviceOptions){.pin = true}, err) : NULL;
  g->x = g->device ? exec_load(g->device, &g->c.draft.program, driver_symbol, &g->c, err) : NULL;
  if (!g->x) {
    return err->cls;
  }
  g->tensors = setup_tensors(mem, g->session.model->module, g->x);
  return setup_init(g->session.model, &g->tensors, err) &&
                 setup_first_batch(g->session.model, &g->data, g->x, err)
             ? 0
             : (int)err->cls;
}

static bool run_grad(Grad *g, double *loss, double *norm, Error *err) {
  if (!exec_run(g->x, err)) {
    return false;
  }
  uint32_t l = exec_result(g->x, "loss"), n = exec_result(g->x, "grad_norm");
  *loss = exec_value(g->x, l);
  *norm = n == UINT32_MAX ? NAN : exec_value(g->x, n);
  return true;
}

static bool write_gradients(Grad *g, const char *path, Error *err) {
  HostTensor *t = ARENA_ARRAY(&g->session.arena, HostTensor, g->tensors.n_params);
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->tensors.n_params; i++) {
    n += setup_gradient(g->x, &g->tensors, i, &t[n]);
  }
  return tensorfile_write(path, t, n, NULL, 0, NULL, err);
}

int cmd_grad(const Args *a) {
  Error err = {0};
  if (a->check) {
    return grad_check(a);
  }
  Grad g;
  double loss = NAN, norm = NAN;
  int code = open_grad(&g, a, &err);
  if (!code && (!run_grad(&g, &loss, &norm, &err) || (a->out && !write_gradients(&g, a->out, &err)))) {
    code = err.cls;
  }
  if (!code && a->json) {
    Str s = {0};
    str_puts(&s, "{\"loss\": ");
    str_put_double(&s, loss);
    str_puts(&s, ", \"grad_norm\": ");
    str_put_double(&s, norm);
    str_puts(&s, "}\n");
    fputs(s.s, stdout);
    str_free(&s);
  } else if (!code) {
    printf("loss %.9g\ngradient norm %.9g\n", loss, norm);
  }
  close_grad(&g);
  return err.cls ? cli_fail(&err) : code;
}
