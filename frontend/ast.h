/* ast.h: the syntax tree of a .dl file, as written: nothing is resolved or typed here.
 *
 * Every node lives in the arena given to ast_parse_file. Lists are a pointer and a count. A text (const char
 * *) that is absent is NULL; a name that is absent has text NULL. Every node has the span of its text.
 *
 * When errors were reported the tree is partial: names may have text NULL and expressions may be NULL. Check
 * the result first.
 *
 * Depth: AST_MAX_NEST bounds nesting of brackets, blocks, unary operators and right operands; AST_MAX_HEIGHT
 * bounds the height of a tree with its left spines (a + b + c + ..., x[..][..]) included. A consumer that
 * walks left spines in a loop recurses at most AST_MAX_NEST deep. The parser reports what is deeper, so no
 * consumer checks. */
#ifndef DLC_AST_H
#define DLC_AST_H

#include "frontend/diag.h"
#include "frontend/source.h"

enum { AST_MAX_NEST = 1000, AST_MAX_HEIGHT = 20000 };

typedef struct AstExpr AstExpr;
typedef struct AstStmt AstStmt;
typedef struct AstItem AstItem;
typedef struct AstPlanItem AstPlanItem;
typedef struct AstFile AstFile;

/* ---- names, types, argument lists ---- */

/* `x`, or `t.x` with qual "t" (t: the alias of a used file). */
typedef struct {
  const char *text;
  const char *qual;
  Span span;
} AstName;

typedef struct {
  AstName *v;
  uint32_t n;
} AstNames;

/* `float[batch, time]`; a scalar `int` has no axes. */
typedef struct {
  AstName dtype; /* float int f32 ...: not checked by the parser */
  AstNames axes;
  Span span;
} AstType;

/* `value`, `name = value`, or `value over axis` (join only). */
typedef struct {
  AstName name; /* text NULL: positional */
  AstExpr *value;
  AstName over;
  Span span;
} AstArg;

typedef struct {
  AstArg *v;
  uint32_t n;
} AstArgs;

/* `axis = lo` or `axis = lo..hi` inside a bracket; hi is NULL when there is no `..`. */
typedef struct {
  AstName axis;
  AstExpr *lo, *hi;
  Span span;
} AstIndex;

/* What one pair of [ ] holds. */
typedef enum {
  BRACKET_NONE,  /* no bracket */
  BRACKET_AXES,  /* [a, b]           axes */
  BRACKET_AS,    /* [a, b as c, d]   axes, to */
  BRACKET_INDEX, /* [a = i, b = lo..hi]  index */
} AstBracketKind;

typedef struct {
  AstBracketKind kind;
  AstNames axes, to;
  AstIndex *index;
  uint32_t n_index;
  Span span; /* with the [ ] */
} AstBracket;

/* ---- expressions ---- */

typedef enum {
  EXPR_NUMBER, /* number */
  EXPR_STRING, /* string */
  EXPR_NAME,  /* name: a value, else the size of an axis, a setting, or a word such as `bytes` in `tokenizer =
                 bytes` */
  EXPR_UNARY, /* unary */
  EXPR_BINARY,  /* binary */
  EXPR_CALL,    /* call: every f(..) and f[..](..), built-ins (where, index, grad, sum, join, ...) included */
  EXPR_BRACKET, /* bracket: x[a as b], x[a = i]; x[a, b], which has no meaning, is reported where values are known */
  EXPR_CHOICE,  /* choice: `a where c else b where d else e`, only as the value of a plan's or optimizer's
                   `name = value` */
  EXPR_LIKE,    /* like: `name like "h.*.wq"`, only in conditions */
  EXPR_HAS,     /* has: `has embed`, only in conditions */
} AstExprKind;

typedef enum { UNARY_NEG, UNARY_NOT } AstUnaryOp;

#define AST_BINARY_OPS(X) /* name, text */                                                                   \
  X(OR, "or")                                                                                                \
  X(AND, "and")                                                                                              \
  X(EQ, "==")                                                                                                \
  X(NE, "!=")                                                                                                \
  X(LT, "<")                                                                                                 \
  X(LE, "<=")                                                                                                \
  X(GT, ">")                                                                                                 \
  X(GE, ">=")                                                                                                \
  X(ADD, "+")                                                                                                \
  X(SUB, "-")                                                                                                \
  X(MUL, "*")                                                                                                \
  X(DIV, "/")                                                                                                \
  X(FLOORDIV, "//")                                                                                          \
  X(MOD, "%")                                                                                                \
  X(POW, "^")
typedef enum {
#define X(name, text) BINARY_##name,
  AST_BINARY_OPS(X)
#undef X
      BINARY_COUNT
} AstBinaryOp;
const char *ast_binary_text(AstBinaryOp op);

typedef struct {
  AstExpr *value, *where; /* where NULL: the final `else` value */
} AstCase;

struct AstExpr {
  AstExprKind kind;
  Span span;       /* the whole expression, without enclosing parentheses */
  uint32_t height; /* of this tree; see AST_MAX_HEIGHT */
  uint32_t nest;   /* the same without counting left spines */
  union {
    struct {
      const char *text; /* as written, without `_` */
      double value;     /* finite */
      int64_t i;        /* its value when is_int */
      bool is_int;      /* whole and exact in int64 (10e9 is; 1e300 is not) */
    } number;
    struct {
      const char *text; /* escapes resolved; no NUL inside */
    } string;
    AstName name;
    struct {
      AstUnaryOp op;
      AstExpr *x;
    } unary;
    struct {
      AstBinaryOp op;
      AstExpr *a, *b;
      Span op_span;
    } binary;
    struct {
      AstName f;
      AstBracket axes; /* BRACKET_NONE, BRACKET_AXES or BRACKET_AS */
      AstArgs args;
    } call;
    struct {
      AstExpr *x;
      AstBracket b;
    } bracket;
    struct {
      AstCase *v; /* in order; only the last may have where NULL */
      uint32_t n;
    } choice;
    struct {
      AstExpr *x;
      const char *pattern;
      Span pattern_span;
    } like;
    struct {
      AstName axis;
    } has;
  };
};

/* ---- statements ---- */

typedef struct {
  AstStmt **v;
  uint32_t n;
  Span span; /* with the { } */
} AstBlock;

typedef enum { INIT_NONE, INIT_FILL /* = value */, INIT_DRAW /* ~ init(...) */ } AstInitKind;

/* One name of a param or state line. An initialiser that covers several names is the same AstExpr in each. */
typedef struct {
  AstName name;
  AstNames axes;
  AstName dtype;         /* `param w[a]: f64 = 0`; text NULL when not given */
  AstInitKind init_kind; /* never INIT_NONE: the parser reports a name without an initialiser */
  AstExpr *init;
  Span span;
} AstDecl;

/* `inst: module[axes](settings)` */
typedef struct {
  AstName inst, module;
  AstBracket axes; /* BRACKET_NONE or BRACKET_AXES */
  AstArgs args;
  Span span;
} AstUse;

typedef enum {
  STMT_PARAM,  /* decl */
  STMT_FROZEN, /* decl: frozen param */
  STMT_STATE,  /* decl */
  STMT_USE,    /* use */
  STMT_ASSIGN, /* bind: name [: type] = value; `loss = ...` too */
  STMT_METRIC, /* bind: metric name = value */
  STMT_OUTPUT, /* bind: output name [: type] [= value]; value NULL: the value of that name */
  STMT_REPEAT, /* loop */
  STMT_SCAN,   /* loop */
  STMT_IF,     /* cond; `else if` is an orelse block holding one STMT_IF */
  STMT_RETURN, /* ret */
} AstStmtKind;

struct AstStmt {
  AstStmtKind kind;
  Span span; /* a loop or if: up to and with its last } */
  union {
    struct {
      AstDecl *v;
      uint32_t n;
    } decl;
    struct {
      AstUse *v;
      uint32_t n;
    } use;
    struct {
      AstName name;
      AstType *type;
      AstExpr *value;
    } bind;
    struct {
      AstName index, axis;
      AstBlock body;
    } loop;
    struct {
      AstExpr *test;
      AstBlock then, orelse;
      bool has_else;
      uint32_t n_else_if; /* how many `else if` follow, at most AST_MAX_NEST */
    } cond;
    struct {
      AstExpr *value;
    } ret;
  };
};

/* ---- plans and layouts ---- */

/* One stage of a schedule, `warmup(100)`, or any NAME with an optional argument list. */
typedef struct {
  AstName name;
  AstArgs args;
  Span span;
} AstStage;

typedef enum {              /* fields used, beside kind and span */
               PLAN_SET,    /* args         set a = 1, optimizer.lr = 2    (a dotted name has qual) */
               PLAN_DATA,   /* names stage args   data NAMES from STAGE, ARGS */
               PLAN_INIT,   /* value text pattern args  init "file" for "t.*", missing = draw; text NULL when
                               value is not a literal */
               PLAN_STEPS,  /* value */
               PLAN_EPOCHS, /* value */
               PLAN_TOKENS, /* value */
               PLAN_OPTIMIZER, /* stage where  optimizer adamw(lr = 1e-3, decay = 0.1 where matrix) where
                                  CONDITION */
               PLAN_SCHEDULE,  /* stages       warmup(100) then cosine(to = 0.1) */
               PLAN_CLIP,      /* value */
               PLAN_PRECISION, /* names[0] args  precision bf16, state = f32 */
               PLAN_SEED,      /* value */
               PLAN_EVAL,      /* every args   eval every 250, batches = 20 */
               PLAN_SAVE,   /* every args trainable   save every 500, keep = 3; save trainable; both in one:
                               save trainable every 500 */
               PLAN_SAMPLE, /* text value every args  sample "O " 200 every 500, temperature = 0.8 */
               PLAN_FREEZE, /* where        freeze where CONDITION */
               PLAN_KEEP, /* names[0] where  keep f32 where CONDITION (the dtype may be absent: names.n == 0)
                           */
               PLAN_AVERAGE,  /* value args   average 0.999 */
               PLAN_BUDGET,   /* value */
               PLAN_CAPACITY, /* value */
               PLAN_LAYOUT,   /* names[0] items */
               /* inside a layout */
               LAYOUT_MESH, /* args       mesh data = 2, tensor = *     (value NULL: filled from the number of
                               ranks) */
               LAYOUT_SHARD,     /* names on   shard heads, ffn on tensor */
               LAYOUT_GATHER,    /* names on   gather other on data */
               LAYOUT_MICRO,     /* value */
               LAYOUT_ZERO,      /* value */
               LAYOUT_RECOMPUTE, /* names      recompute layer */
               LAYOUT_OFFLOAD,   /* names */
               LAYOUT_SCHEDULE,  /* stages     the pipeline's schedule */
               LAYOUT_OVERLAP,   /* names */
} AstPlanItemKind;

struct AstPlanItem {
  AstPlanItemKind kind;
  Span span;
  Span word; /* the keyword: where "not built yet" points */
  AstNames names;
  AstName on;
  AstStage stage;
  AstStage *stages;
  uint32_t n_stages;
  AstExpr *value, *every, *where;
  const char *text, *pattern;
  Span text_span, pattern_span;
  AstArgs args;
  bool trainable;
  AstPlanItem **items;
  uint32_t n_items;
};

/* ---- file items ---- */

/* An input of a fn, module, model, optimizer or schedule. A `:` type covers every input since the previous
 * type: the same AstType in each. */
typedef struct {
  AstName name;
  AstType *type;  /* or NULL */
  AstExpr *value; /* default, or NULL */
  Span span;
} AstInput;

typedef enum {
  ITEM_USE,       /* use */
  ITEM_AXIS,      /* binds: value NULL for an axis sized by the plan */
  ITEM_SETTING,   /* binds */
  ITEM_FN,        /* def */
  ITEM_MODULE,    /* def */
  ITEM_MODEL,     /* def */
  ITEM_OPTIMIZER, /* def */
  ITEM_SCHEDULE,  /* def */
  ITEM_PLAN,      /* plan */
  ITEM_HARDWARE,  /* hardware: name { args } */
} AstItemKind;

typedef struct {
  AstName name;
  AstExpr *value;
  Span span;
} AstBind;

struct AstItem {
  AstItemKind kind;
  Span span;
  union {
    /* `use std`, `use "x.dl"`, `use "x.dl" as t (axis = value)`. files: the parsed file; for std, every file
     * of the library in alphabetical order. Without alias the file's names are visible as they are. */
    struct {
      const char *path; /* as written; NULL for std */
      Span path_span;
      AstName alias;
      AstArgs args;
      AstFile **files;
      uint32_t n_files;
    } use;
    struct {
      AstBind *v;
      uint32_t n;
    } binds;
    struct {
      AstName name;
      AstNames axes;
      AstInput *inputs;
      uint32_t n_inputs;
      AstBlock body;
    } def;
    struct {
      AstName name, model;
      AstPlanItem **v;
      uint32_t n;
    } plan;
    struct {
      AstName name;
      AstArgs args;
    } hardware;
  };
};

struct AstFile {
  uint32_t file;    /* number in Sources */
  const char *path; /* resolved: two spellings of one file are one AstFile */
  bool is_std;      /* a library file: it sees the other library files without `use` */
  AstItem **v;
  uint32_t n;
};

/* Parses `path` and every file it uses. True when nothing was reported as an error; *out is set (possibly
 * partial) whenever the file could be read. `use std` reads DIR/std for DIR = $DLC_MODELS, else
 * EXE/../models, else the compiled-in folder. */
bool ast_parse_file(Sources *sources, Arena *arena, const char *path, AstFile **out, Diag *diag);
/* The same with the main file's text given (NULL: read it): the text of a file after overrides. */
bool ast_parse_program(Sources *sources, Arena *arena, const char *path, const char *text, AstFile **out, Diag *diag);
/* Parses one text without following its `use`s (use.files stay empty). */
bool ast_parse_text(Sources *sources, Arena *arena, uint32_t file, AstFile **out, Diag *diag);
/* Appends the canonical text of a file: comments and single blank lines kept, spacing and indentation
 * rewritten; formatting it again changes nothing. False with the errors reported and nothing appended when
 * the file does not parse. */
bool ast_format(Sources *sources, uint32_t file, Str *out, Diag *diag);

#endif
