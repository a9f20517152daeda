/* grad_check.c: `dlc grad --check`: gradients against central differences, both in f64 on the device.
 *
 * For each tensor one random direction d (entries +1 or -1) and 16 entries, the 8 with the largest gradient
 * among them: (f(w + h d) - f(w - h d)) / 2h. The differences run a program of the loss alone. */
#include "cli/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ENTRIES = 16, LARGEST = 8 };
static const double STEP = 1e-3, FIRST_STEP = 3e-4, LIMIT = 1e-6, SETTLED = 1e-7;

typedef struct {
  Session session;
  Codegen *cg;
  Device *device;
  Compiled grad_c, loss_c;
  Exec *grad_x, *loss_x;
  Tensors tensors;
  DataSet data;
  double **gradient; /* of each parameter; NULL: frozen */
  double largest;    /* of all */
  uint64_t random;
  time_t shown;
} Checker;

typedef struct {
  double worst; /* |difference - gradient| over its scale */
  const char *name;
  int64_t entry; /* -1: the direction */
  double difference, gradient;
  int64_t checked;
} Check;

static void close_checker(Checker *g) {
  for (uint32_t i = 0; g->gradient && i < g->tensors.n_params; i++) {
    free(g->gradient[i]);
  }
  if (g->loss_x) {
    exec_unload(g->loss_x);
  }
  if (g->grad_x) {
    exec_unload(g->grad_x);
  }
  device_close(g->device);
  driver_unload(&g->loss_c);
  driver_unload(&g->grad_c);
  codegen_free(g->cg);
  setup_close_data(&g->data);
  if (g->session.model) {
    session_close(&g->session);
  }
}

static bool load(Checker *g, const Args *a, Error *err) {
  Session *s = &g->session;
  if (!driver_need_plan(s, err) || !setup_data(&s->arena, s->model, &g->data, err)) {
    return false;
  }
  g->cg = driver_codegen(err);
  bool ok = g->cg && driver_compile(s, g->cg, PIPE_GRAD, NULL, 0, "grad", NULL, &g->grad_c, err) &&
            driver_compile(s, g->cg, PIPE_LOSS, NULL, 0, "loss", NULL, &g->loss_c, err);
  g->device = ok ? device_open(a->device ? a->device : "auto", &(DeviceOptions){.pin = true}, err) : NULL;
  g->grad_x =
      g->device ? exec_load(g->device, &g->grad_c.draft.program, driver_symbol, &g->grad_c, err) : NULL;
  g->loss_x =
      g->grad_x ? exec_load(g->device, &g->loss_c.draft.program, driver_symbol, &g->loss_c, err) : NULL;
  if (!g->loss_x) {
    return false;
  }
  g->tensors = setup_tensors(&s->arena, s->model->module, g->loss_x);
  return setup_init(s->model, &g->tensors, err);
}

/* Runs the gradient program once and keeps every gradient: the loss program writes over them. */
static bool take_gradients(Checker *g, Error *err) {
  const Model *m = g->session.model;
  if (!setup_first_batch(m, &g->data, g->grad_x, err) || !exec_run(g->grad_x, err)) {
    return false;
  }
  g->gradient = ARENA_ARRAY(&g->session.arena, double *, g->tensors.n_params);
  for (uint32_t i = 0; i < g->tensors.n_params; i++) {
    HostTensor t;
    if (!setup_gradient(g->grad_x, &g->tensors, i, &t)) {
      continue;
    }
    size_t n = (size_t)tensor_count(&t);
    g->gradient[i] = malloc(n * sizeof(double));
    if (!g->gradient[i]) {
      return error_set(err, ERR_RUN, "no memory for the gradient of '%s'", t.name);
    }
    memcpy(g->gradient[i], t.data, n * sizeof(double));
    for (size_t k = 0; k < n; k++) {
      g->largest = fmax(g->largest, fabs(g->gradient[i][k]));
    }
  }
  return setup_first_batch(m, &g->data, g->loss_x, err);
}

/* ---- central differences ---- */

static uint64_t next_random(uint64_t *s) {
  *s += 0x9E3779B97F4A7C15u;
  uint64_t z = (*s ^ *s >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

/* What is moved: one entry, or every entry by its sign. */
typedef struct {
  double *w;
  const double *base;
  const signed char *sign; /* NULL: the entry alone */
  int64_t n, entry;
  double step, along; /* along: the gradient's own slope */
} Probe;

static void move(const Probe *at, double step) {
  if (!at->sign) {
    at->w[at->entry] = at->base[at->entry] + step;
    return;
  }
  for (int64_t i = 0; i < at->n; i++) {
    at->w[i] = at->base[i] + step * at->sign[i];
  }
}

static double slope(Checker *g, const Probe *at, double step, bool *ok, Error *err) {
  double f[2] = {NAN, NAN};
  for (int side = 0; side < 2 && *ok; side++) {
    move(at, side ? -step : step);
    *ok = exec_run(g->loss_x, err);
    f[side] = *ok ? exec_value(g->loss_x, exec_result(g->loss_x, "loss")) : NAN;
  }
  move(at, 0);
  return (f[0] - f[1]) / (2 * step);
}

/* Two differences, steps h and h/2, joined by Richardson: the error falls from h^2 to h^4. */
static double joined_slope(Checker *g, const Probe *at, double h, bool *ok, Error *err) {
  double whole = slope(g, at, h, ok, err), half = slope(g, at, h / 2, ok, err);
  return (4 * half - whole) / 3;
}

/* The difference along d beside the gradient's: a plain one first, a joined one where it does not settle the
 * matter. Where the loss bends within the step (relu, abs, max) the difference is of another function: such
 * steps are made shorter. */
static void judge(Checker *g, Check *c, const char *name, const Probe *at, double scale, bool *ok,
                  Error *err) {
  double difference = slope(g, at, at->step * (FIRST_STEP / STEP), ok, err);
  double off = fabs(difference - at->along) / scale;
  double limit = SETTLED; /* a plain difference must agree well; a joined one within the limit */
  for (double h = at->step; *ok && !(off <= limit) && h >= at->step * 0.9e-3; h /= 10, limit = LIMIT) {
    difference = joined_slope(g, at, h, ok, err);
    off = fabs(difference - at->along) / scale;
  }
  c->checked++;
  if (!(off <= c->worst)) {
    *c = (Check){
        isnan(off) ? INFINITY : off, name, at->sign ? -1 : at->entry, difference, at->along, c->checked};
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

/* On a terminal at once, elsewhere at most a line in 10 s. */
static void show_progress(Checker *g, uint32_t i, bool last) {
  bool terminal = isatty(STDERR_FILENO);
  time_t now = time(NULL);
  if (last) {
    fputs(terminal ? "\r\033[K" : "", stderr);
  } else if (terminal || now - g->shown >= 10) {
    fprintf(stderr, terminal ? "\r\033[Kchecking %s (%u of %u)" : "checking %s (%u of %u)\n",
            g->tensors.t[i].name, i + 1, g->tensors.n_params);
    g->shown = now;
  }
}

static bool check_tensor(Checker *g, uint32_t i, Check *c, Error *err) {
  const HostTensor *p = &g->tensors.t[i];
  const double *grad = g->gradient[i];
  int64_t n = tensor_count(p), entry[ENTRIES];
  double *base = malloc((size_t)n * sizeof *base);
  signed char *sign = malloc((size_t)n);
  bool ok = (base && sign) || error_set(err, ERR_RUN, "no memory to check '%s'", p->name);
  double most = 0, along = 0;
  uint32_t count = 0;
  for (int64_t k = 0; ok && k < n; k++) {
    base[k] = ((const double *)p->data)[k];
    most = fmax(most, fabs(grad[k]));
    sign[k] = next_random(&g->random) & 1 ? 1 : -1;
    along += grad[k] * sign[k];
  }
  double scale = fmax(most, 1e-3 * g->largest) + 1e-12;
  if (ok) {
    pick_entries(grad, n, &g->random, entry, &count);
    /* the direction moves every entry: its step shrinks with their number */
    Probe all = {p->data, base, sign, n, -1, STEP / sqrt((double)n), along};
    judge(g, c, p->name, &all, scale * sqrt((double)n), &ok, err);
  }
  for (uint32_t k = 0; ok && k < count; k++) {
    show_progress(g, i, false);
    Probe one = {p->data, base, NULL, n, entry[k], STEP, grad[entry[k]]};
    judge(g, c, p->name, &one, scale, &ok, err);
  }
  free(base);
  free(sign);
  return ok;
}

static bool check_all(Checker *g, const Args *a, Error *err) {
  Check c = {0};
  bool ok = load(g, a, err) && take_gradients(g, err);
  g->random = 1;
  g->shown = time(NULL);
  for (uint32_t i = 0; ok && i < g->tensors.n_params; i++) {
    ok = !g->gradient[i] || check_tensor(g, i, &c, err);
  }
  if (ok) {
    show_progress(g, 0, true);
  }
  if (ok && c.worst > LIMIT) {
    char where[64] = "along a random direction";
    if (c.entry >= 0) {
      snprintf(where, sizeof where, "entry %lld", (long long)c.entry);
    }
    return error_set(err, ERR_INPUT, "gradient check failed: '%s' %s: gradient %.9g, central difference %.9g",
                     c.name, where, c.gradient, c.difference);
  }
  if (ok && a->json) {
    printf("{\"checked\": %lld, \"worst\": %.3g}\n", (long long)c.checked, c.worst);
  } else if (ok) {
    printf("gradients agree with central differences: %lld checks in f64, worst relative difference %.2g\n",
           (long long)c.checked, c.worst);
  }
  return ok;
}

int grad_check(const Args *a) {
  Checker g = {0};
  Error err = {0};
  int code = session_open_f64(&g.session, a);
  if (code) {
    return code;
  }
  if (!check_all(&g, a, &err)) {
    code = cli_fail(&err);
  }
  close_checker(&g);
  return code;
}
