/* elab.h: what the files of the elaborator share. Internal to frontend/.
 *
 * Elaboration is typing: the syntax tree is evaluated with IR values in place of tensors. A name holds a V: a
 * compile-time number, a tensor, or poison after an error (poison spreads silently, so one mistake gives one
 * message).
 *
 * Places (Ctx): the function body and the body of each enclosing loop. A tensor belongs to the place that
 * made it; using it deeper brings it in through every loop between as an invariant, or as a slice when it
 * carries the loop's axis for it (parameters declared inside the repeat, x[time = t] inside a scan). */
#ifndef DLC_ELAB_H
#define DLC_ELAB_H

#include "frontend/ast.h"
#include "frontend/frontend.h"

typedef struct Ctx Ctx;
typedef struct Scope Scope;
typedef struct FileScope FileScope;
typedef struct Instance Instance;
typedef struct Elab Elab;

/* loss = sum of coef * num / den */
typedef struct {
  Val num, den;
  double coef;
} Term;

typedef enum { V_POISON, V_NUM, V_TENSOR } VKind;
typedef struct {
  VKind kind;
  double num;  /* V_NUM */
  bool is_int; /* V_NUM: whole */
  Ctx *ctx;    /* V_TENSOR: the place of val */
  Val val;
  bool scalar;    /* made of `step` and settings alone: f64, narrowed where it meets a tensor */
  uint32_t param; /* a parameter or a view of one: its row; NONE otherwise */
  Ctx *index_of;  /* the index of that loop */
  Term *term;     /* rank 0: a sum of means, when known */
  uint32_t n_terms;
} V;

typedef struct {
  const char *name;
  V v;
  Span span;
  bool used, is_input;
  bool is_slot;   /* a parameter or state declared in this scope */
  uint32_t depth; /* of the ctx it was assigned in */
} Binding;

typedef struct {
  const char *name; /* as the program calls it */
  Axis axis;
  int64_t size;
} AxisBinding;

/* Names of one body: a call of a fn, of a module instance, of the model; blocks of loops open a child. */
struct Scope {
  Scope *up; /* enclosing block of the same body, NULL at its top */
  FileScope *file;
  AxisBinding *axis; /* axis parameters of the call */
  uint32_t n_axes;
  Binding *v;
  uint32_t n, cap;
  Instance **instance;
  uint32_t n_instances, cap_instances;
  const char **repeat; /* names of the repeats so far */
  uint32_t n_repeats, cap_repeats;
  const char *path; /* prefix of parameters, "" at the model: "h.*.attn" */
  Ctx *ctx;
  Instance *self;
  bool returned;
  V result;
  bool in_module; /* may hold params */
};

struct Instance {
  const char *name, *path;
  const AstItem *def;
  FileScope *file;
  AxisBinding *axis;
  uint32_t n_axes;
  V *setting;    /* one for each input with a default, in order of inputs; V_POISON where not a setting */
  uint32_t home; /* repeats around its `use` */
  Scope *settings_scope;
};

typedef struct {
  const char *name;
  AstExpr *formula; /* NULL: sized by the plan */
  Axis axis;
  int64_t size; /* -1: unknown, -2: being computed */
  Span span;
  bool given; /* by set */
  FileScope *file;
} AxisDef;

typedef struct {
  const char *name;
  AstExpr *value;
  FileScope *file; /* where its value is read */
  V v;
  bool done, busy, given;
} SettingDef;

/* One file, or the whole library, as seen with its axes bound. */
struct FileScope {
  AstFile **file;
  uint32_t n_files;
  const char *alias; /* "" for the main file */
  AxisDef *axis;
  uint32_t n_axes, cap_axes;
  SettingDef *setting;
  uint32_t n_settings, cap_settings;
  FileScope **use;
  const char **use_name;
  uint32_t n_uses, cap_uses;
  FileScope *std;
};

/* A value that leaves loops stacked: outputs and next states. */
typedef struct {
  FuncRes res;
  V v;
  bool annotated; /* its order of axes was written */
} Escape;

typedef struct {
  Val outer; /* in up's block */
  Val inner;
  bool sliced;
} Import;

typedef struct {
  uint32_t state; /* Module.state */
  V v;
} NextState;

struct Ctx {
  Ctx *up;
  uint32_t depth;
  Builder b;
  Axis axis; /* of the loop; NONE at the function */
  int64_t size;
  const char *path; /* a repeat's part of parameter paths, "h.*"; NULL for a scan and for the function */
  Val index;
  Import *import;
  uint32_t n_imports, cap_imports;
  Escape *escape;
  uint32_t n_escapes, cap_escapes;
  NextState *next; /* assigned module states */
  uint32_t n_next, cap_next;
};

/* A parameter or state of the current function. */
typedef struct {
  const char *path;
  uint32_t row; /* Module.param or Module.state */
  Val arg;
  bool is_state;
} Slot;

/* How the model uses a parameter. */
typedef struct {
  uint32_t fan_in; /* product of its contracted axes; 0: never contracted */
  uint32_t summed; /* bit k: its axis k (repeats not counted) is contracted or indexed */
} ParamUse;

/* A body being elaborated. */
typedef struct {
  const AstItem *def;
  const AstExpr *x; /* the call; NULL: the model, a stage of a schedule */
  Span at;
  bool library;
} Call;

/* elab_product.c: a product as written, and what a body param stands for. */
typedef struct {
  Val out, a, b;
  Span at;
} NotedProduct;
typedef struct {
  Val param, from;
} Link;

struct Elab {
  Arena *arena;
  Sources *sources;
  Diag *diag;
  Module *m;
  FileScope *main, *std;
  Func *func;
  Ctx *root;
  bool training;
  uint32_t depth; /* of calls */
  Call call[64];
  Slot *slot;
  uint32_t n_slots, cap_slots;
  NotedProduct *product; /* of the current function */
  uint32_t n_products, cap_products;
  Link *link;
  uint32_t n_links, cap_links;
  Val scalar_arg[3]; /* step, attempt, seed of the current function; NONE: not asked for yet */
  Error err;
  bool in_optimizer;     /* sum(x) without brackets: over every axis of x but these */
  const Type *opt_param; /* the parameter's type; its first n_opt_repeat dims are repeats */
  uint32_t n_opt_repeat;
  uint32_t opt_row; /* of that parameter */
  ParamUse *use;    /* by parameter */
  uint32_t draws;   /* random numbers asked for so far in this function: the key of the next */
};

/* ---- elab.c: errors, names, axes ---- */
V poison(void);
V num(double v);
V tensor(Ctx *c, Val v);
uint32_t report(Elab *e, Span at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Sets the place's location for the ops that follow. */
void locate(Elab *e, Ctx *c, Span at);
/* The place of a location: one character wide. */
Span span_of(Elab *e, Loc loc);
/* Turns a failed builder call into a diagnostic at `at`; returns the value otherwise. */
V built(Elab *e, Ctx *c, Val v, Span at);
const char *type_text(Elab *e, const Type *t);
const Type *vtype(Elab *e, const V *v);
/* v in place c: imported through the loops between. */
V bring(Elab *e, Ctx *c, V v);
Val import_value(Elab *e, Ctx *c, Ctx *from, Val v, bool sliced);

Binding *scope_find(Scope *s, const char *name);
void scope_set(Elab *e, Scope *s, const char *name, V v, Span at);

/* An axis by name in a scope: parameters of the call, then the file. False after an error. */
bool find_axis(Elab *e, Scope *s, const AstName *name, AxisBinding *out);
bool axis_known(Scope *s, const char *name);
bool axis_size(Elab *e, AxisDef *d, int64_t *out);
AxisDef *file_axis(FileScope *f, const char *name);
FileScope *file_used_as(FileScope *f, const char *alias);         /* NULL: no such file */
FileScope *used_file(Elab *e, FileScope *f, const AstName *name); /* by name->qual; reports */
SettingDef *file_setting(FileScope *f, const char *name);
const AstItem *find_def(FileScope *f, AstItemKind kind, const char *name, FileScope **home);
FileScope *file_scope(Elab *e, AstFile *file, const char *alias, const AstArgs *args, FileScope *user);
/* A suggestion for an unknown name among those visible. */
void suggest(Elab *e, uint32_t diag, Scope *s, const char *name);

/* ---- elab_expr.c ---- */
V eval(Elab *e, Scope *s, const AstExpr *x);
bool eval_number(Elab *e, Scope *s, const AstExpr *x, double *out, bool *is_int, const char *what);
V binary(Elab *e, Ctx *c, AstBinaryOp op, V a, V b, Span at);
V unary_op(Elab *e, Ctx *c, OpCode code, V a, Span at);
/* Makes operands of one float/int dtype; numbers become constants. */
bool unify(Elab *e, Ctx *c, V *v, uint32_t n, bool want_float, Span at);
/* Whether two tensors may meet; reports when they differ in the size of an axis. */
bool joins(Elab *e, const V *a, const V *b, Span at);
V as_tensor(Elab *e, Ctx *c, V v, DType d);
V to_float(Elab *e, Ctx *c, V v, Span at);

/* ---- elab_product.c ---- */
void note_product(Elab *e, Val out, Val a, Val b, Span at);
void note_link(Elab *e, Val param, Val from);
const NotedProduct *noted_product(const Elab *e, Val out); /* NULL: out is no product */
const char *source_text(Elab *e, Span at);                 /* on one line, cut when long */
bool in_library(const Elab *e, uint32_t file);
/* v has an axis too many. Reports the product that lacks its sum, with the line to write and a note `why` at `at`; false when
 * there is no such product. */
bool report_missing_sum(Elab *e, V v, Axis axis, Span at, const char *why);

/* ---- elab_call.c ---- */
V eval_call(Elab *e, Scope *s, const AstExpr *x);
/* Evaluates exactly n plain arguments. */
bool args_n(Elab *e, Scope *s, const AstExpr *x, uint32_t n, V *out);
/* The axes in the call's brackets, each once. */
bool axes_of(Elab *e, Scope *s, const AstExpr *x, Axis *axis, int64_t *size, uint32_t *n);
/* ---- elab_reduce.c ---- */
const char *reduction_name(uint32_t i); /* NULL after the last */
bool reduction_code(const char *name, OpCode *out);
V call_reduction(Elab *e, Scope *s, const AstExpr *x, const char *name, OpCode code);
V call_cumsum(Elab *e, Scope *s, const AstExpr *x);
V sum_of_parameter(Elab *e, Ctx *c, V v, Span at);
/* The axes of a parameter that its first use as a matrix sums or indexes: its rows. */
void note_summed(Elab *e, const V *v, const Axis *axis, uint32_t n);
/* ---- elab_random.c ---- */
V call_dropout(Elab *e, Scope *s, const AstExpr *x);
V call_draw(Elab *e, Scope *s, const AstExpr *x, bool is_normal);
/* ---- elab_move.c ---- */
V eval_bracket(Elab *e, Scope *s, const AstExpr *x);
V call_join(Elab *e, Scope *s, const AstExpr *x);
V call_shift(Elab *e, Scope *s, const AstExpr *x, bool roll);
V call_pad(Elab *e, Scope *s, const AstExpr *x);
V call_sort(Elab *e, Scope *s, const AstExpr *x, bool top, uint32_t result);

/* ---- elab_stmt.c ---- */
void run_block(Elab *e, Scope *s, const AstBlock *b);
V call_def(Elab *e, Scope *caller, const AstExpr *x, const AstItem *def, FileScope *file, Instance *inst);
/* x: the call, NULL for a stage of a schedule. */
V call_values(Elab *e, Ctx *c, const AstItem *def, FileScope *file, Instance *inst, const AxisBinding *axis,
              uint32_t n_axes, const V *arg, const AstExpr *x, Span at);
/* ---- elab_param.c ---- */
void declare_params(Elab *e, Scope *s, const AstStmt *st);
void declare_states(Elab *e, Scope *s, const AstStmt *st);
/* Assigns the module state of that name, if there is one; false otherwise. */
bool assign_state(Elab *e, Scope *s, const char *name, V v, Span at);
Val scalar_arg(Elab *e, uint32_t which);
/* ---- elab_loop.c ---- */
void run_loop(Elab *e, Scope *s, const AstStmt *st);

/* ---- elab_order.c ---- */
/* By value of the current function: its axes in the order in which its operands first name them. */
Type *named_orders(Elab *e);
/* Warns of pointwise results larger than both operands that nothing reduces. */
void warn_outer_products(Elab *e);

/* ---- elab_model.c ---- */
bool elab_function(Elab *e, const AstItem *model, const char *name, bool training);
/* Starts a function: its place, no slots, no scalars. */
void begin_function(Elab *e, const char *name);
/* ---- plan.c: items of the plan into Plan ---- */
bool elab_plan(Elab *e, const AstItem *plan, const AstPlanItem *layout, const char *folder, Plan *out);
/* ---- elab_update.c: optimizers, schedules, conditions ---- */
bool elab_updates(Elab *e, const AstItem *plan, Model *out);
bool elab_schedules(Elab *e, const AstItem *plan, Model *out);
/* ---- elab_condition.c ---- */
/* A condition on one parameter: rank >= 2 and name like "h.*". */
bool eval_condition(Elab *e, const AstExpr *x, uint32_t param, double *out);

#endif
