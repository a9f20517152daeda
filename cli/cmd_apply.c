/* cmd_apply.c: `dlc apply`: outputs of the model on any data. Rows go through in batches; the last one is
 * filled up with its own last row, which is cut off again. "h.3.attn.p" picks layer 3 of the output
 * "h.attn.p". */
#include "cli/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OUTPUTS = 64 };

typedef struct {
  const char *asked, *base; /* "h.3.attn.p", "h.attn.p" */
  int64_t layer;            /* -1: all */
  uint32_t buffer;
  HostTensor whole; /* all rows, in the output's order of axes */
  int sample_dim;   /* -1: the output has no sample axis */
} Output;

typedef struct {
  Session session;
  Codegen *cg;
  Device *device;
  Compiled c;
  Exec *x;
  TensorFile *file;
  Output out[MAX_OUTPUTS];
  uint32_t n;
  int64_t rows;
} Apply;

/* "h.3.attn.p" -> "h.attn.p" and 3. */
static const char *split_layer(Arena *a, const char *name, int64_t *layer) {
  *layer = -1;
  const char *p = name;
  while (*p) {
    size_t n = strcspn(p, ".");
    if (n && strspn(p, "0123456789") == n && p != name && p[n] == '.') {
      *layer = strtoll(p, NULL, 10);
      return arena_printf(a, "%.*s%s", (int)(p - name), name, p + n + 1);
    }
    p += n + (p[n] == '.');
  }
  return arena_strdup(a, name);
}

static void list_outputs(const Model *m, Str *s) {
  const Func *f = ir_func(m->module, "eval");
  for (uint32_t i = 0; f && i < f->body->n_ret; i++) {
    if (f->res[i].kind == RES_OUTPUT) {
      str_printf(s, "%s%s", s->len ? ", " : "", f->res[i].name);
    }
  }
}

static bool choose_outputs(Apply *p, const char *asked, Error *err) {
  Arena *a = &p->session.arena;
  Str all = {0};
  list_outputs(p->session.model, &all);
  if (!all.len) {
    return error_set(err, ERR_INPUT, "the model has no outputs; write `output NAME` in it");
  }
  char *list = arena_strdup(a, asked ? asked : all.s);
  bool ok = true;
  for (char *save, *w = strtok_r(list, ", ", &save); w && ok; w = strtok_r(NULL, ", ", &save)) {
    Output *o = &p->out[p->n];
    if (p->n == MAX_OUTPUTS) {
      ok = error_set(err, ERR_USAGE, "more than %d outputs", MAX_OUTPUTS);
      break;
    }
    o->asked = w;
    o->base = split_layer(a, w, &o->layer);
    const Func *f = ir_func(p->session.model->module, "eval");
    bool known = false;
    for (uint32_t i = 0; i < f->body->n_ret; i++) {
      known |= f->res[i].kind == RES_OUTPUT && !strcmp(f->res[i].name, o->base);
    }
    ok = known || error_set(err, ERR_USAGE, "the model has no output '%s'; it has %s", w, all.s);
    p->n++;
  }
  str_free(&all);
  return ok;
}

/* Which launches read buffer b? An input nobody reads need not be in the data. */
static bool is_read(const Program *p, uint32_t b) {
  for (uint32_t i = 0; i < p->n_launches; i++) {
    for (uint32_t k = 0; k < p->launch[i].n_args; k++) {
      if (p->launch[i].arg[k].buffer == b) {
        return true;
      }
    }
  }
  return false;
}

static bool check_input(Apply *p, uint32_t b, Error *err) {
  const Buffer *buf = &exec_program(p->x)->buffer[b];
  const FileTensor *t = tensorfile_find(p->file, buf->name);
  if (!t) {
    return error_set(err, ERR_INPUT, "the data has no tensor '%s', an input of the model", buf->name);
  }
  bool fits = t->rank == buf->rank;
  for (int i = 1; fits && i < t->rank; i++) {
    fits = t->size[i] == buf->size[i];
  }
  if (!fits) {
    Str want = {0};
    for (int i = 0; i < buf->rank; i++) {
      str_printf(&want, "%s%s", i ? ", " : "", buf->axis[i]);
      if (i) {
        str_printf(&want, "=%lld", (long long)buf->size[i]);
      }
    }
    error_set(err, ERR_INPUT, "%s: tensor '%s' has rank %d; the model wants [%s]", "the data", buf->name,
              t->rank, want.s);
    str_free(&want);
    return false;
  }
  if (p->rows >= 0 && p->rows != t->size[0]) {
    return error_set(err, ERR_INPUT, "%s: tensor '%s' has %lld rows, another input has %lld", "the data",
                     buf->name, (long long)t->size[0], (long long)p->rows);
  }
  p->rows = t->size[0];
  return p->rows > 0 || error_set(err, ERR_INPUT, "%s: tensor '%s' has no rows", "the data", buf->name);
}

static bool check_inputs(Apply *p, Error *err) {
  const Program *prog = exec_program(p->x);
  p->rows = -1;
  for (uint32_t i = 0; i < prog->n_buffers; i++) {
    if (prog->buffer[i].kind == BUF_INPUT && is_read(prog, i) && !check_input(p, i, err)) {
      return false;
    }
  }
  return p->rows > 0 || error_set(err, ERR_INPUT, "the outputs asked for depend on no input");
}

static bool prepare_outputs(Apply *p, Error *err) {
  const Program *prog = exec_program(p->x);
  const char *sample = ir_axis_name(p->session.model->module, p->session.model->plan.sample_axis);
  for (uint32_t i = 0; i < p->n; i++) {
    Output *o = &p->out[i];
    uint32_t r = exec_result(p->x, o->base);
    if (r == UINT32_MAX) {
      return error_set(err, ERR_RUN, "output '%s' is missing from the compiled program", o->base);
    }
    o->buffer = prog->result[r].num;
    const Buffer *b = &prog->buffer[o->buffer];
    o->whole = (HostTensor){.name = o->asked, .dtype = b->dtype};
    o->sample_dim = -1;
    int64_t bytes = (int64_t)dtype_bytes(b->dtype);
    int first = o->layer >= 0 ? 1 : 0;
    if (first && (b->rank < 1 || o->layer >= b->size[0])) {
      return error_set(err, ERR_USAGE, "output '%s' has %lld layers", o->base,
                       (long long)(b->rank ? b->size[0] : 0));
    }
    for (int k = first; k < b->rank; k++) {
      int at = o->whole.rank++;
      o->whole.axis[at] = b->axis[k];
      bool is_sample = !strcmp(b->axis[k], sample);
      o->sample_dim = is_sample ? at : o->sample_dim;
      o->whole.size[at] = is_sample ? p->rows : b->size[k];
      if (!size_mul(bytes, o->whole.size[at], &bytes)) {
        return error_set(err, ERR_INPUT, "output '%s' is too large", o->asked);
      }
    }
    o->whole.data = calloc(1, (size_t)bytes + 1);
    if (!o->whole.data) {
      return error_set(err, ERR_RUN, "no memory for output '%s' of %lld bytes", o->asked, (long long)bytes);
    }
  }
  return true;
}

static int64_t limit_of(const Apply *p, const char *input) {
  const Module *m = p->session.model->module;
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    if (!strcmp(m->input[i].name, input)) {
      return setup_id_limit(p->session.model, i);
    }
  }
  return 0;
}

static bool check_ids(const Buffer *b, const void *row, int64_t n, int64_t limit, int64_t at, Error *err) {
  for (int64_t i = 0; i < n && limit > 0; i++) {
    int64_t id = b->dtype == DT_I32   ? ((const int32_t *)row)[i]
                 : b->dtype == DT_I64 ? ((const int64_t *)row)[i]
                                      : 0;
    if (id < 0 || id >= limit) {
      return error_set(err, ERR_INPUT,
                       "the data: tensor '%s' row %lld holds %lld, outside the axis of size %lld", b->name,
                       (long long)at, (long long)id, (long long)limit);
    }
  }
  return true;
}

static bool fill_batch(Apply *p, int64_t first, int64_t batch, Error *err) {
  const Program *prog = exec_program(p->x);
  for (uint32_t i = 0; i < prog->n_buffers; i++) {
    const Buffer *b = &prog->buffer[i];
    const FileTensor *t = b->kind == BUF_INPUT ? tensorfile_find(p->file, b->name) : NULL;
    if (!t || !is_read(prog, i)) {
      continue;
    }
    int64_t row = t->count / t->size[0], row_bytes = row * (int64_t)dtype_bytes(b->dtype);
    int64_t limit = limit_of(p, b->name);
    char *to = exec_map(p->x, i);
    for (int64_t k = 0; k < batch; k++) {
      int64_t at = first + k < p->rows ? first + k : p->rows - 1;
      if (!filetensor_read(t, at * row, row, b->dtype, to + k * row_bytes, err) ||
          !check_ids(b, to + k * row_bytes, row, limit, at, err)) {
        return false;
      }
    }
  }
  return true;
}

/* Copies `valid` rows of the batch's output into their place among all rows. */
static void take_rows(Apply *p, const Output *o, int64_t first, int64_t valid, int64_t batch) {
  const HostTensor *w = &o->whole;
  int64_t inner = (int64_t)dtype_bytes(w->dtype), outer = 1;
  for (int i = 0; i < w->rank; i++) {
    if (i < o->sample_dim) {
      outer *= w->size[i];
    } else if (i > o->sample_dim) {
      inner *= w->size[i];
    }
  }
  const char *from = exec_map(p->x, o->buffer);
  if (o->sample_dim < 0) {
    int64_t all = inner;
    memcpy(w->data, from + (o->layer > 0 ? o->layer * all : 0), (size_t)all);
    return;
  }
  from += o->layer > 0 ? o->layer * outer * batch * inner : 0;
  for (int64_t k = 0; k < outer; k++) {
    memcpy((char *)w->data + (k * p->rows + first) * inner, from + k * batch * inner,
           (size_t)(valid * inner));
  }
}

static bool all_batches(Apply *p, Error *err) {
  int64_t batch = p->session.model->plan.batch;
  for (int64_t first = 0; first < p->rows; first += batch) {
    int64_t valid = p->rows - first < batch ? p->rows - first : batch;
    if (!fill_batch(p, first, batch, err) || !exec_run(p->x, err)) {
      return false;
    }
    for (uint32_t i = 0; i < p->n; i++) {
      take_rows(p, &p->out[i], first, valid, batch);
    }
  }
  return true;
}

static bool apply(Apply *p, const Args *a, Error *err) {
  const char *names[MAX_OUTPUTS];
  if (!driver_need_plan(&p->session, err) || !choose_outputs(p, a->outputs, err)) {
    return false;
  }
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->n; i++) {
    bool again = false;
    for (uint32_t k = 0; k < n; k++) {
      again |= !strcmp(names[k], p->out[i].base);
    }
    if (!again) {
      names[n++] = p->out[i].base;
    }
  }
  const char *run;
  p->file = tensorfile_open(a->data, err);
  p->cg = p->file ? driver_codegen(err) : NULL;
  bool ok = p->cg && driver_compile(&p->session, p->cg, PIPE_APPLY, names, n, "apply", NULL, &p->c, err);
  p->device = ok ? device_open(a->device ? a->device : "auto", &(DeviceOptions){.pin = true}, err) : NULL;
  p->x = p->device ? exec_load(p->device, &p->c.draft.program, driver_symbol, &p->c, err) : NULL;
  if (!p->x) {
    return false;
  }
  Tensors t = setup_tensors(&p->session.arena, p->session.model->module, p->x);
  exec_set_scalar(p->x, SCALAR_SEED, (int64_t)p->session.model->plan.seed);
  if (!setup_weights(&p->session.arena, a->from, &t, p->session.model->module, &run, err) ||
      !check_inputs(p, err) || !prepare_outputs(p, err) || !all_batches(p, err)) {
    return false;
  }
  HostTensor *out = ARENA_ARRAY(&p->session.arena, HostTensor, p->n);
  for (uint32_t i = 0; i < p->n; i++) {
    out[i] = p->out[i].whole;
  }
  return tensorfile_write(a->out, out, p->n, NULL, 0, NULL, err);
}

int cmd_apply(const Args *a) {
  if (!a->from || !a->data || !a->out) {
    return cli_usage(a, "--from, --data and -o are needed");
  }
  Apply *p = calloc(1, sizeof *p);
  if (!p) {
    abort();
  }
  int code = session_open_inference(&p->session, a, 0);
  if (code) {
    free(p);
    return code;
  }
  Error err = {0};
  if (!apply(p, a, &err)) {
    code = cli_fail(&err);
  }
  for (uint32_t i = 0; i < p->n; i++) {
    free(p->out[i].whole.data);
  }
  if (p->x) {
    exec_unload(p->x);
  }
  device_close(p->device);
  driver_unload(&p->c);
  codegen_free(p->cg);
  tensorfile_close(p->file);
  session_close(&p->session);
  free(p);
  return code;
}
