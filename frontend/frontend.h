/* frontend.h: text -> checked program. The one public header of the frontend besides ast.h's diagnostics.
 *
 * front_model parses FILE, chooses the plan and layout, folds the overrides in, and elaborates: every
 * function below is in Model.module on success, typed, with locations. All errors go to the Diag sink
 * (several a run); false means at least one. */
#ifndef DLC_FRONTEND_H
#define DLC_FRONTEND_H

#include "ir/ir.h"

typedef struct Diag Diag;       /* ast.h: the sink of errors and warnings */
typedef struct Sources Sources; /* ast.h: files, for carets */

typedef struct {
  const char *path;
  const char *plan;   /* NULL: the only one (several: an ERR_USAGE error listing them) */
  const char *layout; /* NULL: the first whose mesh product equals `ranks` */
  int ranks;
  const char *const *set; /* "optimizer.lr=3e-4", "batch=8", "layout.micro=4", "steps=100", "seed=7", ... */
  uint32_t n_set;
  bool f64;       /* in f64 whatever the plan's precision: for checks */
  bool inference; /* eval, sample, apply: the layout's micro-batches and the like are not looked at */
} FrontOptions;

typedef enum { DATA_TEXT, DATA_TOKENS, DATA_ARRAYS } DataKind;
typedef struct {
  DataKind kind;
  const char **input; /* names of model inputs it fills, in order */
  uint32_t n_inputs;
  const char *path;      /* resolved against the folder of the .dl file */
  const char *eval_path; /* NULL: none */
  const char *tokenizer; /* "bytes", "chars" or a path */
  double hold_out;       /* 0: none */
  bool sequential;
  Loc loc;
} PlanData;

typedef struct {
  const char *path;    /* resolved */
  const char *pattern; /* "for" glob, NULL: every parameter */
  bool missing_draw;
  Loc loc;
} PlanInit;

typedef struct {
  const char *optimizer; /* "adamw" */
  const char *settings;  /* "lr = 0.001, beta1 = 0.9, ...": for reports */
  double lr;             /* base value of the setting called lr (0 if the optimizer has none) */
} PlanGroup;

typedef struct {
  const char *name, *model, *layout;
  Axis sample_axis; /* first axis of the model's inputs */
  int64_t batch;    /* its size */
  Axis time_axis;   /* second axis of a token input, NONE if there is none */
  Axis vocab_axis;  /* axis of the output `logits` that tokens index, NONE if unknown */
  PlanData *data;
  PlanInit *init;
  PlanGroup *group;
  uint32_t n_data, n_init, n_groups;
  int64_t steps; /* 0: not given; epochs/tokens below then say how long */
  double epochs, tokens;
  double clip; /* 0: none */
  uint64_t seed;
  int64_t eval_every, eval_batches; /* 0: never; batches 0: all */
  int64_t save_every, save_keep;    /* 0: only at the end; keep 0: all */
  bool save_trainable;
  const char *sample_prompt;
  int64_t sample_tokens, sample_every;
  double sample_temperature;
  int64_t sample_top_k;
  double budget;
  double average; /* 0: none */
} Plan;

/* One row of `dlc check`: every parameter with what the plan decides for it (index = Module.param). */
typedef struct {
  double lr, decay; /* base values of settings called lr and decay; NaN when the optimizer has none */
} ParamSettings;

typedef struct {
  Module *module; /* functions "train", "eval", "update.K", "schedule.G" (the last two only with a plan) */
  Plan plan;
  bool has_plan;
  ParamSettings *setting;
  uint32_t n_warnings;
  char *folded; /* plan.dl: the whole program text with every override folded in (imports of other files with
                   absolute paths kept as such) */
} Model;

/* Functions of the module:
 *   train: args: params, states, inputs, scalars (seed, attempt) that are used. Results: RES_LOSS, then
 * RES_LOSS_NUM/DEN of each term, metrics, RES_STATE, RES_OUTPUT.   eval: the same with training = 0 and no
 * RES_STATE. update.K: args ARG_PARAM K, ARG_GRAD K, ARG_OPT of K, ARG_FACTOR of its group, ARG_SCALAR step.
 * Results RES_PARAM K, RES_OPT. schedule.G: arg ARG_SCALAR step. Results RES_SCALAR "factor" and "lr" (f64).
 */
/* Returns an exit code: 0, 1 (diagnostics) or 2 (no such plan, several plans, an override that is unknown or makes a
 * right program wrong: diagnostics too). */
int front_model(const FrontOptions *opt, Sources *src, Diag *diag, Model **out);
void front_free(Model *m);

#endif
