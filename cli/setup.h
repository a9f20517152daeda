/* setup.h: a compiled program on a device with its parameters and data: what run, grad, eval, sample and
 * apply share. */
#ifndef DLC_SETUP_H
#define DLC_SETUP_H

#include "cli/driver.h"
#include "runtime/runtime.h"

/* Parameters, optimizer states and module states of a loaded program, in table order (params, opt, states).
 */
typedef struct {
  HostTensor *t;
  uint32_t n, n_params;
} Tensors;
Tensors setup_tensors(Arena *a, const Module *m, Exec *x);
/* Initial values by seed, then the plan's `init` files. */
bool setup_init(const Model *m, const Tensors *t, Error *err);
/* Parameters (and module states, where the file has them) from a run, a step's folder or a file. *run: the
 * run's folder or NULL. */
bool setup_weights(Arena *a, const char *from, const Tensors *t, const Module *m, const char **run,
                   Error *err);

/* The plan's data sources. */
typedef struct {
  Data *source[8];
  DataInput *input[8]; /* of each source */
  uint32_t n;
} DataSet;
/* What ids of that input must stay below; 0: no limit known. */
int64_t setup_id_limit(const Model *m, uint32_t input);
bool setup_data(Arena *a, const Model *m, DataSet *d, Error *err);
void setup_close_data(DataSet *d);
bool setup_batch(const Model *m, DataSet *d, Exec *x, int64_t step, Error *err);
/* The first batch and the scalars of the first step. */
bool setup_first_batch(const Model *m, DataSet *d, Exec *x, Error *err);
/* The gradient buffer of parameter i after a PIPE_GRAD program ran; false for a frozen one. */
bool setup_gradient(Exec *x, const Tensors *t, uint32_t i, HostTensor *out);
/* grad_check.c: `dlc grad --check`; an exit code. */
int grad_check(const Args *a);
/* Held-out loss and metrics over `batches` batches (0: all). value has room for one a metric name, loss
 * first. */
typedef struct {
  double loss;
  const char **name;
  double *value;
  uint32_t n;
  int64_t samples;
} EvalResult;
bool setup_eval(Arena *a, const Model *m, DataSet *d, Exec *x, const Compiled *c, int64_t batches,
                EvalResult *out, Error *err);
double setup_term_coef(const Func *f,
                       const char *result); /* the factor of "loss_term.K" in the loss; 1 for other results */
bool setup_has_eval(const DataSet *d);

/* Writes text: reads the prompt's window, draws, appends. The program is PIPE_APPLY of "logits" at batch 1.
 */
typedef struct {
  Session session;
  Compiled compiled;
  Exec *exec;
  uint32_t tokens, logits; /* buffers */
  int64_t time, vocab;
  const Tokenizer *tokenizer;
} Sampler;
int sampler_open(Sampler *s, const Args *a, Codegen *cg, Device *d, const Tokenizer *tok,
                 Error *err); /* exit code */
void sampler_close(Sampler *s);
bool sampler_text(Sampler *s, const char *prompt, int64_t n_tokens, const SampleRule *rule, uint64_t seed,
                  Str *out, Error *err);

#endif
