/* main.c: the table of commands, the table of options, and their parser. */
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const Command commands[] = {
    {"check", cmd_check, "dlc check FILE [--plan P] [--layout L] [--set NAME=VALUE] [--json]",
     "parse, resolve and type; print axes, parameters and FLOPs per token"},
    {"compile", cmd_compile,
     "dlc compile FILE [--plan P] [--layout L] [--target host] [-o DIR] [--emit ast|ir|program|kernels] "
     "[--dump-after PASS]",
     "write the step program, every kernel's source and the memory plan"},
    {"run", cmd_run,
     "dlc run FILE|DIR [--plan P] [--layout L] [--device auto|host] [--set NAME=VALUE] [--steps N] [--seed "
     "N] "
     "[--out DIR] [--resume] [--fresh] [--accept-plan-change] [--profile] [--json]",
     "train"},
    {"grad", cmd_grad, "dlc grad FILE [--plan P] [-o grads.safetensors] [--check] [--json]",
     "loss and gradients of the first batch; --check compares with central differences"},
    {"inspect", cmd_inspect, "dlc inspect FILE [KERNEL] [--plan P] [--json]",
     "list the kernels with their source lines and what was fused, or print one"},
    {"eval", cmd_eval, "dlc eval FILE --from RUN|STEP|FILE.safetensors [--baselines] [--json]",
     "held-out loss and metrics of saved weights"},
    {"sample", cmd_sample,
     "dlc sample FILE --from RUN|STEP|FILE.safetensors [\"prompt\"|-] [--tokens N] [--temperature T] "
     "[--top-k K] "
     "[--top-p P] [--seed N]",
     "text from saved weights"},
    {"apply", cmd_apply, "dlc apply FILE --from CKPT --data X.safetensors [--outputs a,b] -o Y.safetensors",
     "any output of the model on any data"},
    {"fmt", cmd_fmt, "dlc fmt FILE [--check]", "canonical formatting, in place"},
    {"doctor", cmd_doctor, "dlc doctor [--json]", "what this machine has and what each lack costs"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

typedef enum { OPT_TEXT, OPT_INT, OPT_REAL, OPT_FLAG, OPT_SET } OptKind;
typedef struct {
  const char *name;
  OptKind kind;
  size_t offset;
} Option;

#define O(name, kind, field)                                                                                 \
  { name, kind, offsetof(Args, field) }
static const Option options[] = {
    O("--plan", OPT_TEXT, plan),
    O("--layout", OPT_TEXT, layout),
    O("--device", OPT_TEXT, device),
    O("--out", OPT_TEXT, out),
    O("-o", OPT_TEXT, out),
    O("--from", OPT_TEXT, from),
    O("--data", OPT_TEXT, data),
    O("--outputs", OPT_TEXT, outputs),
    O("--target", OPT_TEXT, target),
    O("--emit", OPT_TEXT, emit),
    O("--dump-after", OPT_TEXT, dump_after),
    O("--set", OPT_SET, set),
    O("--steps", OPT_INT, steps),
    O("--seed", OPT_INT, seed),
    O("--nodes", OPT_INT, nodes),
    O("--tokens", OPT_INT, tokens),
    O("--top-k", OPT_INT, top_k),
    O("--top-p", OPT_REAL, top_p),
    O("--temperature", OPT_REAL, temperature),
    O("--batches", OPT_INT, batches),
    O("--resume", OPT_FLAG, resume),
    O("--fresh", OPT_FLAG, fresh),
    O("--json", OPT_FLAG, json),
    O("--check", OPT_FLAG, check),
    O("--accept-plan-change", OPT_FLAG, accept_plan_change),
    O("--profile", OPT_FLAG, profile),
    O("--baselines", OPT_FLAG, baselines),
    O("--interp", OPT_FLAG, interp),
};
#undef O
enum { N_OPTIONS = sizeof options / sizeof *options };

int cli_fail(const Error *err) {
  fflush(stdout);
  fprintf(stderr, "dlc: %s\n", err->msg);
  return err->cls == ERR_NONE ? ERR_RUN : (int)err->cls;
}

/* Commands of INTERFACES that are not built: refused by name. */
static const char *const later[] = {"plan", "verify", "status", "data", "import", "export"};

static const Command *find_command(const char *name) {
  for (int i = 0; i < N_COMMANDS; i++) {
    if (!strcmp(commands[i].name, name)) {
      return &commands[i];
    }
  }
  return NULL;
}

int cli_usage(const Args *a, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fputs("dlc: ", stderr);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
  const Command *c = a->command ? find_command(a->command) : NULL;
  if (c) {
    fprintf(stderr, "usage: %s\n", c->usage);
  }
  return ERR_USAGE;
}

/* Optimal string alignment is overkill here: plain edit distance decides "did you mean". */
static int edit_distance(const char *a, const char *b) {
  size_t n = strlen(a), m = strlen(b);
  int row[64];
  if (n > 60 || m > 60) {
    return 99;
  }
  for (size_t j = 0; j <= m; j++) {
    row[j] = (int)j;
  }
  for (size_t i = 1; i <= n; i++) {
    int diagonal = row[0];
    row[0] = (int)i;
    for (size_t j = 1; j <= m; j++) {
      int up = row[j], best = diagonal + (a[i - 1] != b[j - 1]);
      if (up + 1 < best) {
        best = up + 1;
      }
      if (row[j - 1] + 1 < best) {
        best = row[j - 1] + 1;
      }
      diagonal = up;
      row[j] = best;
    }
  }
  return row[m];
}

static int print_help(FILE *f) {
  fprintf(f, "dlc: from a page of mathematics to a training run\n\n");
  for (int i = 0; i < N_COMMANDS; i++) {
    fprintf(f, "  %-8s %s\n           %s\n", commands[i].name, commands[i].help, commands[i].usage);
  }
  return f == stdout ? 0 : ERR_USAGE;
}

static int unknown_option(const Args *a, const char *word) {
  const char *best = NULL;
  int best_d = 4;
  for (int i = 0; i < N_OPTIONS; i++) {
    int d = edit_distance(word, options[i].name);
    if (d < best_d) {
      best_d = d;
      best = options[i].name;
    }
  }
  return best ? cli_usage(a, "unknown option '%s'; did you mean '%s'?", word, best)
              : cli_usage(a, "unknown option '%s'", word);
}

static int set_option(Args *a, const Option *o, const char *value) {
  char *field = (char *)a + o->offset, *end;
  errno = 0;
  switch (o->kind) {
  case OPT_FLAG: *(bool *)field = true; return 0;
  case OPT_TEXT: *(const char **)field = value; return 0;
  case OPT_SET:
    if (!strchr(value, '=')) {
      return cli_usage(a, "--set takes NAME=VALUE, not '%s'", value);
    }
    if (a->n_set == MAX_SETS) {
      return cli_usage(a, "more than %d --set", MAX_SETS);
    }
    a->set[a->n_set++] = value;
    return 0;
  case OPT_INT: {
    long long v = strtoll(value, &end, 10);
    if (errno || end == value || *end || v < 0) {
      return cli_usage(a, "%s takes a whole number that is not negative, not '%s'", o->name, value);
    }
    *(int64_t *)field = v;
    return 0;
  }
  case OPT_REAL: {
    double v = strtod(value, &end);
    if (end == value || *end || !isfinite(v)) {
      return cli_usage(a, "%s takes a number, not '%s'", o->name, value);
    }
    *(double *)field = v;
    return 0;
  }
  }
  return ERR_USAGE;
}

static const Option *find_option(const char *word, size_t n) {
  for (int i = 0; i < N_OPTIONS; i++) {
    if (strlen(options[i].name) == n && !memcmp(options[i].name, word, n)) {
      return &options[i];
    }
  }
  return NULL;
}

static int parse_args(Args *a, int argc, char **argv) {
  bool plain = false;
  for (int i = 2; i < argc; i++) {
    const char *word = argv[i];
    if (!plain && !strcmp(word, "--")) {
      plain = true;
      continue;
    }
    if (plain || word[0] != '-' || !word[1]) {
      if (!a->file) {
        a->file = word;
      } else if (!a->second) {
        a->second = word;
      } else {
        return cli_usage(a, "one argument too many: '%s'", word);
      }
      continue;
    }
    const char *eq = strncmp(word, "--", 2) ? NULL : strchr(word, '=');
    const Option *o = find_option(word, eq ? (size_t)(eq - word) : strlen(word));
    if (!o) {
      return unknown_option(a, word);
    }
    const char *value = eq ? eq + 1 : NULL;
    if (o->kind == OPT_FLAG && value) {
      return cli_usage(a, "%s takes no value", o->name);
    }
    if (o->kind != OPT_FLAG && !value) {
      if (i + 1 >= argc) {
        return cli_usage(a, "%s needs a value", o->name);
      }
      value = argv[++i];
    }
    int rc = set_option(a, o, value);
    if (rc) {
      return rc;
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    return print_help(stderr);
  }
  const Command *about = argc > 2 && !strcmp(argv[1], "help") ? find_command(argv[2]) : NULL;
  if (about) {
    printf("usage: %s\n%s\n", about->usage, about->help);
    return 0;
  }
  if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
    return print_help(stdout);
  }
  Args a = {.argc = argc,
            .argv = argv,
            .steps = -1,
            .seed = -1,
            .nodes = -1,
            .gpus = -1,
            .tokens = -1,
            .top_k = -1,
            .threads = -1,
            .batches = -1,
            .temperature = NAN,
            .top_p = NAN};
  const Command *c = find_command(argv[1]);
  for (size_t i = 0; !c && i < sizeof later / sizeof *later; i++) {
    if (!strcmp(argv[1], later[i])) {
      fprintf(stderr, "dlc: '%s' is not built yet; `dlc help` lists what is\n", argv[1]);
      return ERR_USAGE;
    }
  }
  if (!c) {
    const char *best = NULL;
    int best_d = 3;
    for (int i = 0; i < N_COMMANDS; i++) {
      int d = edit_distance(argv[1], commands[i].name);
      if (d < best_d) {
        best_d = d;
        best = commands[i].name;
      }
    }
    fprintf(stderr, "dlc: unknown command '%s'%s%s%s\n", argv[1], best ? "; did you mean '" : "",
            best ? best : "", best ? "'?" : "");
    return print_help(stderr);
  }
  a.command = c->name;
  for (int i = 2; i < argc; i++) {
    if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
      printf("usage: %s\n%s\n", c->usage, c->help);
      return 0;
    }
  }
  int rc = parse_args(&a, argc, argv);
  return rc ? rc : c->run(&a);
}
