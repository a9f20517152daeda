/* driver.h: from a file and arguments to a checked model, from a model to a compiled program. Shared by the
 * commands. */
#ifndef DLC_DRIVER_H
#define DLC_DRIVER_H

#include "cli/cli.h"
#include "codegen/codegen.h"
#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "passes/passes.h"

typedef struct {
  Arena arena;
  Sources sources;
  Diag diag;
  Model *model;
} Session;

/* Parses and elaborates FILE (or DIR/plan.dl) with the plan, layout and overrides of the arguments plus
 * `extra` ones. Prints diagnostics to standard error (as JSON lines with --json). Returns an exit code; on 0
 * the model is there. */
int session_open(Session *s, const Args *a, const char *const *extra, uint32_t n_extra);
/* The same in f64, whatever precision the plan has. */
int session_open_f64(Session *s, const Args *a);
/* The same for inference: the layout is not looked at; batch > 0 sets the sample axis to that size. Silent
 * about warnings. */
int session_open_inference(Session *s, const Args *a, int64_t batch);
void session_close(Session *s);

typedef struct {
  Func *func; /* fused */
  Draft draft;
  CodeImage *image;
} Compiled;

Codegen *driver_codegen(Error *err);
/* Runs the pipeline, generates and loads the kernels, plans the memory. */
bool driver_compile(Session *s, Codegen *cg, PipeKind kind, const char *const *outputs, uint32_t n_outputs,
                    const char *name, const PassHooks *hooks, Compiled *out, Error *err);
void driver_unload(Compiled *c);
/* Resolves a kernel's symbol: the callback the runtime's devices take. ctx is a Compiled. */
void *driver_symbol(void *ctx, uint32_t object, const char *symbol);

/* "" for a plan that can be trained from; otherwise why not (no plan chosen). */
bool driver_need_plan(const Session *s, Error *err);

#endif
