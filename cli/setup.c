/* setup.c: parameters and data of a loaded program. */
#include "cli/setup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- parameters ---- */

Tensors setup_tensors(Arena *a, const Module *m, Exec *x) {
  const Program *p = exec_program(x);
  Tensors out = {.t = ARENA_ARRAY(a, HostTensor, p->n_buffers), .n_params = m->n_params};
  static const BufferKind kinds[] = {BUF_PARAM, BUF_OPT, BUF_STATE};
  for (int k = 0; k < 3; k++) {
    for (uint32_t i = 0; i < p->n_buffers; i++) {
      if (p->buffer[i].kind == kinds[k]) {
        out.t[out.n] = host_tensor(x, i);
        out.t[out.n].in_optimizer = kinds[k] == BUF_OPT;
        out.n++;
      }
    }
  }
  return out;
}

static void fill_states(const Module *m, const Tensors *t) {
  for (uint32_t i = 0; i < m->n_opt + m->n_states; i++) {
    const IrState *s = i < m->n_opt ? &m->opt[i] : &m->state[i - m->n_opt];
    const HostTensor *to = &t->t[m->n_params + i];
    if (s->from_param) {
      memcpy(to->data, t->t[s->param].data, (size_t)tensor_count(to) * dtype_bytes(to->dtype));
    } else {
      tensor_fill(to, FILL_VALUE, s->fill, 0, 0);
    }
  }
}

bool setup_init(const Model *model, const Tensors *t, Error *err) {
  const Module *m = model->module;
  static const FillKind kind[] = {
      [IR_INIT_NORMAL] = FILL_NORMAL, [IR_INIT_UNIFORM] = FILL_UNIFORM, [IR_INIT_FILL] = FILL_VALUE};
  for (uint32_t i = 0; i < m->n_params; i++) {
    tensor_fill(&t->t[i], kind[m->param[i].init], m->param[i].a, m->param[i].b, model->plan.seed);
  }
  bool ok = true;
  for (uint32_t i = 0; ok && i < model->plan.n_init; i++) {
    const PlanInit *in = &model->plan.init[i];
    TensorFile *f = tensorfile_open(in->path, err);
    ok = f && tensors_load(f, t->t, m->n_params, in->pattern, in->missing_draw, in->pattern != NULL, err);
    tensorfile_close(f);
  }
  fill_states(m, t);
  return ok;
}

bool setup_weights(Arena *a, const char *from, const Tensors *t, const Module *m, const char **run,
                   Error *err) {
  CheckpointPath path;
  char *skipped = NULL;
  if (!checkpoint_find(from, a, &path, &skipped, err)) {
    return false;
  }
  if (skipped) {
    fprintf(stderr, "dlc: %s\n", skipped);
  }
  *run = path.run;
  if (path.dir && !checkpoint_verify(path.dir, err)) {
    return false;
  }
  fill_states(m, t);
  TensorFile *f = tensorfile_open(path.model, err);
  bool ok = f && tensors_load(f, t->t, m->n_params, NULL, false, m->n_states > 0, err);
  if (ok && m->n_states) {
    ok = tensors_load(f, t->t + m->n_params + m->n_opt, m->n_states, "*", true, true, err);
  }
  tensorfile_close(f);
  return ok;
}

/* ---- data ---- */

int64_t setup_id_limit(const Model *m, uint32_t input) {
  const Module *mod = m->module;
  /* ids index the vocabulary axis: of the output logits, else of what the program gathers from */
  if (dtype_is_float(mod->input[input].type.dtype)) {
    return 0;
  }
  for (uint32_t i = 0; i < mod->n_funcs; i++) {
    const Func *f = mod->func[i];
    for (uint32_t k = 0; k < f->n_ops; k++) {
      const Op *op = &f->op[k];
      if (op->code != OP_GATHER || strcmp(f->name, "train")) {
        continue;
      }
      for (uint32_t j = 1; j < op->n_args; j++) {
        const Value *v = &f->val[op->arg[j]];
        if (v->def == NONE && v->index < f->body->n_params && f->body->param[v->index] == op->arg[j] &&
            f->arg[v->index].kind == ARG_INPUT && f->arg[v->index].index == input) {
          const Type *t = &f->val[op->arg[0]].type;
          return t->dim[type_find(t, op->attr.axis[j - 1])].size;
        }
      }
    }
  }
  return 0;
}

static bool data_input(const Model *m, const PlanData *d, const char *name, DataInput *out, Error *err) {
  const Module *mod = m->module;
  for (uint32_t i = 0; i < mod->n_inputs; i++) {
    if (strcmp(mod->input[i].name, name)) {
      continue;
    }
    const Type *t = &mod->input[i].type;
    *out = (DataInput){
        .name = mod->input[i].name, .dtype = t->dtype, .rank = t->rank, .limit = setup_id_limit(m, i)};
    for (int k = 0; k < t->rank; k++) {
      out->size[k] = t->dim[k].size;
    }
    return true;
  }
  return error_set(err, ERR_INPUT, "line %u: data fills '%s', which is no input of the model", d->loc.line,
                   name);
}

bool setup_data(Arena *a, const Model *m, DataSet *out, Error *err) {
  const Plan *p = &m->plan;
  memset(out, 0, sizeof *out);
  if (p->n_data > sizeof out->source / sizeof *out->source) {
    return error_set(err, ERR_INPUT, "more than 8 data lines");
  }
  uint32_t covered = 0;
  for (uint32_t i = 0; i < p->n_data; i++) {
    const PlanData *d = &p->data[i];
    DataInput *in = ARENA_ARRAY(a, DataInput, d->n_inputs);
    for (uint32_t k = 0; k < d->n_inputs; k++) {
      if (!data_input(m, d, d->input[k], &in[k], err)) {
        return false;
      }
      covered++;
    }
    DataOptions o = {.kind = d->kind == DATA_TEXT     ? SOURCE_TEXT
                             : d->kind == DATA_TOKENS ? SOURCE_TOKENS
                                                      : SOURCE_ARRAYS,
                     .path = d->path,
                     .eval_path = d->eval_path,
                     .tokenizer = d->tokenizer,
                     .hold_out = d->hold_out,
                     .sequential = d->sequential,
                     .input = in,
                     .n_inputs = d->n_inputs,
                     .seed = p->seed};
    out->source[i] = data_open(&o, err);
    out->input[i] = in;
    if (!out->source[i]) {
      setup_close_data(out);
      return false;
    }
    out->n++;
  }
  if (covered < m->module->n_inputs) {
    setup_close_data(out);
    return error_set(err, ERR_INPUT, "the plan's data fills %u of the model's %u inputs", covered,
                     m->module->n_inputs);
  }
  return true;
}

void setup_close_data(DataSet *d) {
  for (uint32_t i = 0; i < d->n; i++) {
    data_close(d->source[i]);
  }
  d->n = 0;
}

/* Where each input of source i goes; NULL entries are inputs the program does not read: they get a scrap
 * buffer. */
static void input_buffers(Arena *a, const DataSet *d, uint32_t i, uint32_t n, Exec *x, void **out) {
  for (uint32_t k = 0; k < n; k++) {
    const DataInput *in = &d->input[i][k];
    uint32_t b = exec_buffer(x, BUF_INPUT, in->name);
    int64_t bytes = (int64_t)dtype_bytes(in->dtype);
    for (int j = 0; j < in->rank; j++) {
      bytes *= in->size[j];
    }
    out[k] = b == UINT32_MAX ? arena_alloc(a, (size_t)bytes) : exec_map(x, b);
  }
}

static uint32_t source_inputs(const Model *m, uint32_t i) {
  return m->plan.data[i].n_inputs;
}

bool setup_batch(const Model *m, DataSet *d, Exec *x, int64_t step, Error *err) {
  Arena scrap = {0};
  bool ok = true;
  for (uint32_t i = 0; ok && i < d->n; i++) {
    void *out[64];
    uint32_t n = source_inputs(m, i) < 64 ? source_inputs(m, i) : 64;
    input_buffers(&scrap, d, i, n, x, out);
    ok = data_train_batch(d->source[i], step, out, err);
  }
  arena_free(&scrap);
  return ok;
}

bool setup_first_batch(const Model *m, DataSet *d, Exec *x, Error *err) {
  exec_set_scalar(x, SCALAR_STEP, 1);
  exec_set_scalar(x, SCALAR_ATTEMPT, 1);
  exec_set_scalar(x, SCALAR_SEED, (int64_t)m->plan.seed);
  return setup_batch(m, d, x, 1, err);
}

bool setup_gradient(Exec *x, const Tensors *t, uint32_t i, HostTensor *out) {
  const Program *p = exec_program(x);
  for (uint32_t r = 0; r < p->n_results; r++) {
    if (p->result[r].kind == 3 && !strcmp(p->result[r].name, t->t[i].name)) {
      *out = t->t[i];
      out->data = exec_map(x, p->result[r].num);
      return true;
    }
  }
  return false;
}

bool setup_has_eval(const DataSet *d) {
  bool all = d->n > 0;
  for (uint32_t i = 0; i < d->n; i++) {
    all &= data_eval_samples(d->source[i]) > 0;
  }
  return all;
}

/* ---- evaluation ---- */

typedef struct {
  const Program *p;
  double *num, *den;
} Sums;

static void add_results(Exec *x, Sums *s, double weight) {
  for (uint32_t r = 0; r < s->p->n_results; r++) {
    double num, den;
    if (s->p->result[r].kind == 0) {
      exec_num_den(x, r, &num, &den);
      s->num[r] += weight * num;
      s->den[r] += weight * den;
    }
  }
}

double setup_term_coef(const Func *f, const char *name) {
  uint32_t index = 0;
  if (sscanf(name, "loss_term.%u", &index) != 1) {
    return 1;
  }
  for (uint32_t i = 0; i < f->body->n_ret; i++) {
    if (f->res[i].kind == RES_LOSS_NUM && f->res[i].index == index) {
      return f->res[i].coef;
    }
  }
  return 1;
}

bool setup_eval(Arena *a, const Model *m, DataSet *d, Exec *x, const Compiled *c, int64_t batches,
                EvalResult *out, Error *err) {
  Sums s = {.p = exec_program(x)};
  s.num = ARENA_ARRAY(a, double, s.p->n_results);
  s.den = ARENA_ARRAY(a, double, s.p->n_results);
  int64_t n = d->n ? data_eval_batches(d->source[0]) : 0;
  n = batches > 0 && batches < n ? batches : n;
  memset(out, 0, sizeof *out);
  for (int64_t i = 0; i < n; i++) {
    Arena scrap = {0};
    int64_t valid = m->plan.batch;
    bool ok = true;
    for (uint32_t k = 0; ok && k < d->n; k++) {
      void *to[64];
      input_buffers(&scrap, d, k, source_inputs(m, k), x, to);
      ok = data_eval_batch(d->source[k], i, to, &valid, err);
    }
    ok = ok && exec_run(x, err);
    if (ok) {
      add_results(x, &s, 1);
      out->samples += valid;
    }
    if (ok && valid < m->plan.batch) { /* the rows after the last sample repeat it: take their share away */
      for (uint32_t k = 0; ok && k < d->n; k++) {
        void *to[64];
        input_buffers(&scrap, d, k, source_inputs(m, k), x, to);
        ok = data_eval_fill_last(d->source[k], to, err);
      }
      ok = ok && exec_run(x, err);
      if (ok) {
        add_results(x, &s, -(double)(m->plan.batch - valid) / (double)m->plan.batch);
      }
    }
    arena_free(&scrap);
    if (!ok) {
      return false;
    }
  }
  out->name = ARENA_ARRAY(a, const char *, s.p->n_results);
  out->value = ARENA_ARRAY(a, double, s.p->n_results);
  for (uint32_t r = 0; r < s.p->n_results; r++) {
    const Result *res = &s.p->result[r];
    if (res->kind != 0) {
      continue;
    }
    double v = s.num[r] / s.den[r];
    if (!strncmp(res->name, "loss_term.", 10)) {
      out->loss += setup_term_coef(c->func, res->name) * v;
    } else {
      out->name[out->n] = res->name;
      out->value[out->n++] = v;
    }
  }
  return true;
}
