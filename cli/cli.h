/* cli.h: what the command files share: parsed arguments and the table of commands. Known by none outside
 * cli/. */
#ifndef DLC_CLI_H
#define DLC_CLI_H

#include "runtime/base.h"

enum { MAX_SETS = 64 };

typedef struct {
  int argc; /* the command line as it was given */
  char **argv;
  const char *command;
  const char *file;   /* first positional: FILE or DIR */
  const char *second; /* second positional: a prompt or a kernel name */
  const char *plan, *layout, *device, *out, *from, *data, *outputs, *target, *emit, *dump_after, *html, *log;
  const char *set[MAX_SETS];
  uint32_t n_set;
  int64_t steps, seed, nodes, gpus, tokens, top_k, threads, batches; /* -1: not given */
  double temperature, top_p;                                         /* NaN: not given */
  bool resume, fresh, json, check, accept_plan_change, profile, baselines, interp, write;
} Args;

typedef struct {
  const char *name;
  int (*run)(const Args *a);
  const char *usage, *help;
} Command;

/* Prints "dlc: MESSAGE" to standard error and returns the exit code of the error's class. */
int cli_fail(const Error *err);
/* Wrong command line: prints the message and the command's usage; returns 2. */
int cli_usage(const Args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int cmd_apply(const Args *a);
int cmd_check(const Args *a);
int cmd_compile(const Args *a);
int cmd_doctor(const Args *a);
int cmd_eval(const Args *a);
int cmd_fmt(const Args *a);
int cmd_grad(const Args *a);
int cmd_inspect(const Args *a);
int cmd_run(const Args *a);
int cmd_sample(const Args *a);

#endif
