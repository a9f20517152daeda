/* cmd_grad.c: `dlc grad`: loss and gradients of the first batch at the initial parameters.
 *
 * --check: the same program in f64 on the host, against central differences (f(w + h d) - f(w - h d)) / 2h:
 * for each tensor one random direction d (entries +1 or -1) and 16 entries, the 8 with the largest gradient
 * among them. */
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
static int open_grad(Grad *g, const Args *a, const char *precision, Error *err) {
  memset(g, 0, sizeof *g);
  const char *set[1];
  char text[64];
  uint32_t n = 0;
  if (precision) {
    snprintf(text, sizeof text, "precision=%s", precision);
    set[n++] = text;
  }
  int code = session_open(&g->session, a, set, n);
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
  exec_set_scalar(g->x, SCALAR_STEP, 1);
  exec_set_scalar(g->x, SCALAR_ATTEMPT, 1);
  exec_set_scalar(g->x, SCALAR_SEED, (int64_t)g->session.model->plan.seed);
  if (!setup_init(g->session.model, &g->tensors, err) ||
      !setup_batch(g->session.model, &g->data, g->x, 1, err)) {
    return err->cls;
  }
  return 0;
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

/* The gradient buffer of parameter i, NULL for a frozen one. */
static bool gradient_of(Grad *g, uint32_t i, HostTensor *out) {
  const Program *p = exec_program(g->x);
  for (uint32_t r = 0; r < p->n_results; r++) {
    if (p->result[r].kind == 3 && !strcmp(p->result[r].name, g->tensors.t[i].name)) {
      *out = g->tensors.t[i];
      out->data = exec_map(g->x, p->result[r].num);
      return true;
    }
  }
  return false;
}

static bool write_gradients(Grad *g, const char *path, Error *err) {
  HostTensor *t = ARENA_ARRAY(&g->session.arena, HostTensor, g->tensors.n_params);
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->tensors.n_params; i++) {
    n += gradient_of(g, i, &t[n]);
  }
  return tensorfile_write(path, t, n, NULL, 0, NULL, err);
}

/* ---- central differences ---- */

enum { ENTRIES = 16, LARGEST = 8 };
static const double STEP = 1e-3, LIMIT = 1e-6;

typedef struct {
  double worst; /* |difference - gradient| over its scale */
  const char *name;
  int64_t entry; /* -1: the direction */
  double difference, gradient;
  int64_t checked;
} Check;

static double loss_at(Grad *g, bool *ok, Error *err) {
  double loss = NAN, norm;
  *ok = *ok && run_grad(g, &loss, &norm, err);
  return loss;
}

static uint64_t next_random(uint64_t *s) {
  *s += 0x9E3779B97F4A7C15u;
  uint64_t z = (*s ^ *s >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* Where and along what a tensor is moved. */
typedef struct {
  const double *base, *d;
  int64_t n;
  double step, along; /* along: the gradient's own slope */
} Probe;

/* Two differences, steps h and h/2, joined by Richardson: the error falls from h^2 to h^4. */
static double derivative(Grad *g, double *w, const Probe *at, double h, bool *ok, Error *err) {
  double slope[2];
  for (int k = 0; k < 2; k++) {
    double step = k ? h / 2 : h, f[2];
    for (int side = 0; side < 2; side++) {
      for (int64_t i = 0; i < at->n; i++) {
        w[i] = at->base[i] + (side ? -step : step) * at->d[i];
      }
      f[side] = loss_at(g, ok, err);
    }
    slope[k] = (f[0] - f[1]) / (2 * step);
  }
  memcpy(w, at->base, (size_t)at->n * sizeof *w);
  return (4 * slope[1] - slope[0]) / 3;
}

/* The difference along d beside the gradient's. Where the loss bends within the step (relu, abs, max) the
 * difference is of another function: such steps are made shorter. */
static void judge(Grad *g, Check *c, HostTensor *p, int64_t entry, const Probe *at, double scale, bool *ok,
                  Error *err) {
  double off = INFINITY, difference = NAN;
  for (double h = at->step; *ok && !(off <= LIMIT) && h >= at->step * 0.9e-3; h /= 10) {
    difference = derivative(g, p->data, at, h, ok, err);
    off = fabs(difference - at->along) / scale;
  }
  c->checked++;
  if (!(off <= c->worst)) {
    *c = (Check){isnan(off) ? INFINITY : off, p->name, entry, difference, at->along, c->checked};
  }
}

static void pick_entries(const double *grad, int64_t n, uint64_t *seed, int64_t *entry, uint32_t *count) {
  *count = 0;
  for (int k = 0; k < ENTRIES && k < n; k++) {
    int64_t best = -1;
    for (int64_t i = 0; k < LARGEST && i < n; i++) {
      bool taken = false;
      for (uint32_t j = 0; j < *count; j++) {
        taken |= entry[j] == i;
      }
      if (!taken && (best < 0 || fabs(grad[i]) > fabs(grad[best]))) {
        best = i;
      }
    }
    entry[(*count)++] = best >= 0 ? best : (int64_t)(next_random(seed) % (uint64_t)n);
  }
}

static bool check_tensor(Grad *g, uint32_t i, double largest, uint64_t *seed, Check *c, Error *err) {
  HostTensor t, *p = &g->tensors.t[i];
  if (!gradient_of(g, i, &t)) {
    return true;
  }
  Arena mem = {0};
  int64_t n = tensor_count(&t), entry[ENTRIES];
  double *grad = ARENA_ARRAY(&mem, double, (size_t)n), *base = ARENA_ARRAY(&mem, double, (size_t)n),
         *d = ARENA_ARRAY(&mem, double, (size_t)n);
  memcpy(grad, t.data, (size_t)n * sizeof *grad);
  memcpy(base, p->data, (size_t)n * sizeof *base);
  double most = 0, along = 0;
  uint32_t count;
  for (int64_t k = 0; k < n; k++) {
    most = fmax(most, fabs(grad[k]));
    d[k] = next_random(seed) & 1 ? 1 : -1;
    along += grad[k] * d[k];
  }
  double scale = fmax(most, 1e-3 * largest) + 1e-12;
  bool ok = true;
  pick_entries(grad, n, seed, entry, &count);
  /* the direction moves every entry: its step shrinks with their number */
  judge(g, c, p, -1, &(Probe){base, d, n, STEP / sqrt((double)n), along}, scale * sqrt((double)n), &ok, err);
  memset(d, 0, (size_t)n * sizeof *d);
  for (uint32_t k = 0; ok && k < count; k++) {
    d[entry[k]] = 1;
    judge(g, c, p, entry[k], &(Probe){base, d, n, STEP, grad[entry[k]]}, scale, &ok, err);
    d[entry[k]] = 0;
  }
  arena_free(&mem);
  return ok;
}

static int check(const Args *a, Error *err) {
  Grad g;
  int code = open_grad(&g, a, "f64", err);
  double loss = NAN, norm = NAN, largest = 0;
  if (code || !run_grad(&g, &loss, &norm, err)) {
    close_grad(&g);
    return code ? code : (int)err->cls;
  }
  for (uint32_t i = 0; i < g.tensors.n_params; i++) {
    HostTensor t;
    for (int64_t k = 0; gradient_of(&g, i, &t) && k < tensor_count(&t); k++) {
      largest = fmax(largest, fabs(((const double *)t.data)[k]));
    }
  }
  Check c = {0};
  uint64_t seed = 1;
  bool ok = true;
  for (uint32_t i = 0; ok && i < g.tensors.n_params; i++) {
    ok = run_grad(&g, &loss, &norm, err) && check_tensor(&g, i, largest, &seed, &c, err);
  }
  if (ok && c.worst > LIMIT) {
    ok = error_set(err, ERR_INPUT,
                   "gradient check failed: '%s' entry %lld: gradient %.9g, central difference %.9g", c.name,
                   (long long)c.entry, c.gradient, c.difference);
  } else if (ok && a->json) {
    printf("{\"checked\": %lld, \"worst\": %.3g}\n", (long long)c.checked, c.worst);
  } else if (ok) {
    printf("gradients agree with central differences: %lld checks in f64, worst relative difference %.2g\n",
           (long long)c.checked, c.worst);
  }
  code = ok ? 0 : (int)err->cls;
  close_grad(&g);
  return code;
}

int cmd_grad(const Args *a) {
  Error err = {0};
  if (a->check) {
    int code = check(a, &err);
    return err.cls ? cli_fail(&err) : code;
  }
  Grad g;
  double loss = NAN, norm = NAN;
  int code = open_grad(&g, a, NULL, &err);
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
