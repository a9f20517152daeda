/* parse.y: the grammar of .dl, LALR(1) without conflicts. parser.c tells keywords from names before they get
 * here. Every statement is followed by END_STMT (a line end, a `;`, or one put before `}` and at the end),
 * which is where recovery resumes. */
%require "3.8"
%define api.pure full
%define api.push-pull push
%define api.prefix {dl}
%define api.token.prefix {TOK_}
%define api.value.type union
%define api.location.type {Span}
%define parse.error custom
%define parse.lac full
%locations
%expect 0
%param {Parser *p}

%code requires {
#include "frontend/parser.h"
}

%code {
#include <string.h>

/* Deeper than any tree the builders let through; a full stack is reported by the driver. */
#define YYMAXDEPTH 60000
#define YYLLOC_DEFAULT(cur, rhs, n)                                                                          \
  do {                                                                                                       \
    if (n) (cur) = span_join(YYRHSLOC(rhs, 1), YYRHSLOC(rhs, n));                                            \
    else (cur) = (Span){YYRHSLOC(rhs, 0).file, YYRHSLOC(rhs, 0).end, YYRHSLOC(rhs, 0).end};                  \
  } while (0)
#define PUSH(list, ...) VEC_PUSH(p->arena, (list).v, (list).n, (list).cap, __VA_ARGS__)

static void dlerror(Span *at, Parser *p, const char *msg) {
  (void)at, (void)p, (void)msg; /* only "memory exhausted" comes here; dlpush_parse also returns 2 then */
}
}

/* Words, in the order of the table in parser.c. */
%token USE "use" AXIS "axis" SETTING "setting" FN "fn" MODULE "module" MODEL "model" PLAN "plan"
       OPTIMIZER "optimizer"
%token SCHEDULE "schedule" HARDWARE "hardware"
%token PARAM "param" FROZEN "frozen" STATE "state" REPEAT "repeat" SCAN "scan" IF "if" ELSE "else"
       RETURN "return" METRIC "metric"
%token OUTPUT "output"
%token SET "set" DATA "data" INIT "init" STEPS "steps" EPOCHS "epochs" TOKENS "tokens" CLIP "clip"
       PRECISION "precision" SEED "seed"
%token EVAL "eval" SAVE "save" SAMPLE "sample" FREEZE "freeze" KEEP "keep" AVERAGE "average"
       BUDGET "budget" CAPACITY "capacity"
%token LAYOUT "layout" MESH "mesh" SHARD "shard" GATHER "gather" MICRO "micro" ZERO "zero"
       RECOMPUTE "recompute" OFFLOAD "offload"
%token OVERLAP "overlap"
%token OVER "over" WHERE "where" THEN "then" ON "on" FROM "from" FOR "for" EVERY "every" LIKE "like"
       HAS "has" TRAINABLE "trainable"
%token AS "as" AND "and" OR "or" NOT "not"

%token LPAREN "(" RPAREN ")" LBRACKET "[" RBRACKET "]" LBRACE "{" RBRACE "}" COMMA "," COLON ":"
       ASSIGN "=" TILDE "~" DOT "." DOTDOT ".."
%token EQ "==" NE "!=" LT "<" LE "<=" GT ">" GE ">=" PLUS "+" MINUS "-" STAR "*" SLASH "/"
       SLASHSLASH "//" PERCENT "%" CARET "^"
%token FILL      /* `*` after `=`: a mesh size to be filled in */
%token END_STMT  /* the end of a statement */
%token BAD       /* already reported by the lexer */
%token <AstName> NAME
%token <AstExpr *> NUMBER
%token <Text> STRING

%left OR
%left AND
%precedence NOT
%nonassoc EQ NE LT LE GT GE LIKE
%left PLUS MINUS
%left STAR SLASH SLASHSLASH PERCENT
%precedence NEG
%right CARET

%type <AstName> qname
%type <NameVec> names opt_axes
%type <AstType *> type opt_type
%type <AstExpr *> expr postfix value opt_default opt_where
%type <ArgVec> args opt_args arg_list options settings mesh_list
%type <AstArg> arg setting mesh_axis
%type <CaseVec> choice
%type <AstBracket> bracket opt_bracket
%type <IndexVec> indexes
%type <AstIndex> index
%type <Init> opt_init
%type <DeclVec> decls
%type <AstDecl> decl
%type <UseVec> uses
%type <AstUse> use
%type <AstStmt *> simple compound if_stmt
%type <StmtVec> stmts else_part
%type <AstBlock> block
%type <InputVec> inputs opt_inputs input_list
%type <AstInput> input
%type <BindVec> binds axis_binds
%type <AstBind> bind axis_bind
%type <ItemVec> items
%type <AstItem *> simple_item compound_item
%type <AstItemKind> def_word
%type <StageVec> stages
%type <AstStage> stage
%type <PlanVec> plan_items layout_items
%type <AstPlanItem *> plan_item layout layout_item
%type <AstPlanItemKind> plan_number
%type <ArgVec> hardware_items

%%

file: items { p->out->v = $1.v; p->out->n = $1.n; };

/* ---- file items ---- */

items:
  %empty { $$ = (ItemVec){0}; }
| items END_STMT
| items simple_item END_STMT { $$ = $1; PUSH($$, $2); }
| items compound_item { $$ = $1; PUSH($$, $2); }
| items error END_STMT { $$ = $1; yyerrok; }
;

simple_item:
  USE NAME {
    $$ = build_item(p, ITEM_USE, @$);
    $$->use.path_span = @2;
    if (strcmp($2.text, "std"))
      diag_hint(p->diag, diag_error(p->diag, @2, "there is no library '%s'", $2.text),
                "write 'use std', or a path: use \"%s.dl\"", $2.text);
  }
| USE STRING { $$ = build_item(p, ITEM_USE, @$); $$->use.path = $2.text; $$->use.path_span = @2; }
| USE STRING AS NAME opt_args {
    $$ = build_item(p, ITEM_USE, @$);
    $$->use.path = $2.text;
    $$->use.path_span = @2;
    $$->use.alias = $4;
    $$->use.args = args_of($5);
  }
| AXIS axis_binds { $$ = build_item(p, ITEM_AXIS, @$); $$->binds.v = $2.v; $$->binds.n = $2.n; }
| SETTING binds { $$ = build_item(p, ITEM_SETTING, @$); $$->binds.v = $2.v; $$->binds.n = $2.n; }
;

compound_item:
  def_word NAME opt_axes LPAREN opt_inputs RPAREN block { $$ = build_def(p, $1, $2, $3, $5, $7, @$); }
| def_word error block { $$ = build_item(p, $1, @$); $$->def.body = $3; yyerrok; }
| def_word error END_STMT { $$ = build_item(p, $1, @$); yyerrok; }
| PLAN NAME FOR qname LBRACE plan_items RBRACE {
    $$ = build_item(p, ITEM_PLAN, @$);
    $$->plan.name = $2;
    $$->plan.model = $4;
    $$->plan.v = $6.v;
    $$->plan.n = $6.n;
  }
| PLAN error LBRACE plan_items RBRACE { $$ = build_item(p, ITEM_PLAN, @$); yyerrok; }
| PLAN error END_STMT { $$ = build_item(p, ITEM_PLAN, @$); yyerrok; }
| HARDWARE NAME LBRACE hardware_items RBRACE {
    $$ = build_item(p, ITEM_HARDWARE, @$);
    $$->hardware.name = $2;
    $$->hardware.args = args_of($4);
  }
| HARDWARE error LBRACE hardware_items RBRACE { $$ = build_item(p, ITEM_HARDWARE, @$); yyerrok; }
| HARDWARE error END_STMT { $$ = build_item(p, ITEM_HARDWARE, @$); yyerrok; }
;

def_word:
  FN { $$ = ITEM_FN; }
| MODULE { $$ = ITEM_MODULE; }
| MODEL { $$ = ITEM_MODEL; }
| OPTIMIZER { $$ = ITEM_OPTIMIZER; }
| SCHEDULE { $$ = ITEM_SCHEDULE; }
;

axis_binds:
  axis_bind { $$ = (BindVec){0}; PUSH($$, $1); }
| axis_binds COMMA axis_bind { $$ = $1; PUSH($$, $3); }
;
axis_bind: NAME { $$ = (AstBind){.name = $1, .span = @$}; } | bind;
binds: bind { $$ = (BindVec){0}; PUSH($$, $1); } | binds COMMA bind { $$ = $1; PUSH($$, $3); };
bind: NAME ASSIGN expr { $$ = (AstBind){.name = $1, .value = $3, .span = @$}; };

opt_axes: %empty { $$ = (NameVec){0}; } | LBRACKET names RBRACKET { $$ = $2; };
opt_inputs: %empty { $$ = (InputVec){0}; } | inputs { $$ = build_inputs($1); };
inputs: input_list | input_list COMMA;
input_list: input { $$ = (InputVec){0}; PUSH($$, $1); } | input_list COMMA input { $$ = $1; PUSH($$, $3); };
input: NAME opt_type opt_default { $$ = (AstInput){.name = $1, .type = $2, .value = $3, .span = @$}; };
opt_default: %empty { $$ = NULL; } | ASSIGN expr { $$ = $2; };

hardware_items:
  %empty { $$ = (ArgVec){0}; }
| hardware_items END_STMT
| hardware_items setting END_STMT { $$ = $1; PUSH($$, $2); }
| hardware_items error END_STMT { $$ = $1; yyerrok; }
;

/* ---- names, types, brackets ---- */

qname: NAME | NAME DOT NAME { $$ = (AstName){.text = $3.text, .qual = $1.text, .span = @$}; };
names: qname { $$ = (NameVec){0}; PUSH($$, $1); } | names COMMA qname { $$ = $1; PUSH($$, $3); };
opt_type: %empty { $$ = NULL; } | COLON type { $$ = $2; };
type: NAME opt_axes {
    $$ = ARENA_NEW(p->arena, AstType);
    *$$ = (AstType){.dtype = $1, .axes = names_of($2), .span = @$};
  };

bracket:
  LBRACKET names RBRACKET { $$ = (AstBracket){.kind = BRACKET_AXES, .axes = names_of($2), .span = @$}; }
| LBRACKET names AS names RBRACKET {
    $$ = (AstBracket){.kind = BRACKET_AS, .axes = names_of($2), .to = names_of($4), .span = @$};
  }
| LBRACKET indexes RBRACKET {
    $$ = (AstBracket){.kind = BRACKET_INDEX, .index = $2.v, .n_index = $2.n, .span = @$};
  }
;
indexes: index { $$ = (IndexVec){0}; PUSH($$, $1); } | indexes COMMA index { $$ = $1; PUSH($$, $3); };
index:
  qname ASSIGN expr { $$ = (AstIndex){.axis = $1, .lo = $3, .span = @$}; }
| qname ASSIGN expr DOTDOT expr { $$ = (AstIndex){.axis = $1, .lo = $3, .hi = $5, .span = @$}; }
;

/* ---- expressions ---- */

expr:
  postfix { $$ = $1; }
| HAS qname { $$ = build_has(p, $2, @$); }
| MINUS expr %prec NEG { $$ = build_unary(p, UNARY_NEG, $2, @$); }
| NOT expr { $$ = build_unary(p, UNARY_NOT, $2, @$); }
| expr OR expr { $$ = build_binary(p, BINARY_OR, $1, $3, @2); }
| expr AND expr { $$ = build_binary(p, BINARY_AND, $1, $3, @2); }
| expr EQ expr { $$ = build_binary(p, BINARY_EQ, $1, $3, @2); }
| expr NE expr { $$ = build_binary(p, BINARY_NE, $1, $3, @2); }
| expr LT expr { $$ = build_binary(p, BINARY_LT, $1, $3, @2); }
| expr LE expr { $$ = build_binary(p, BINARY_LE, $1, $3, @2); }
| expr GT expr { $$ = build_binary(p, BINARY_GT, $1, $3, @2); }
| expr GE expr { $$ = build_binary(p, BINARY_GE, $1, $3, @2); }
| expr LIKE STRING { $$ = build_like(p, $1, $3, @$); }
| expr PLUS expr { $$ = build_binary(p, BINARY_ADD, $1, $3, @2); }
| expr MINUS expr { $$ = build_binary(p, BINARY_SUB, $1, $3, @2); }
| expr STAR expr { $$ = build_binary(p, BINARY_MUL, $1, $3, @2); }
| expr SLASH expr { $$ = build_binary(p, BINARY_DIV, $1, $3, @2); }
| expr SLASHSLASH expr { $$ = build_binary(p, BINARY_FLOORDIV, $1, $3, @2); }
| expr PERCENT expr { $$ = build_binary(p, BINARY_MOD, $1, $3, @2); }
| expr CARET expr { $$ = build_binary(p, BINARY_POW, $1, $3, @2); }
;

postfix:
  NUMBER
| STRING { $$ = build_string(p, $1); }
| qname { $$ = build_name(p, $1); }
| LPAREN expr RPAREN { $$ = $2; }
| postfix args { $$ = build_call(p, $1, $2, @$); }
| postfix bracket { $$ = build_bracket(p, $1, $2, @$); }
;

opt_args: %empty { $$ = (ArgVec){0}; } | args;
args:
  LPAREN RPAREN { $$ = (ArgVec){0}; }
| LPAREN arg_list RPAREN { $$ = $2; }
| LPAREN arg_list COMMA RPAREN { $$ = $2; }
;
arg_list: arg { $$ = (ArgVec){0}; PUSH($$, $1); } | arg_list COMMA arg { $$ = $1; PUSH($$, $3); };
arg:
  value { $$ = (AstArg){.value = $1, .span = @$}; }
| expr OVER qname { $$ = (AstArg){.value = $1, .over = $3, .span = @$}; }
| setting
;
setting: qname ASSIGN value { $$ = (AstArg){.name = $1, .value = $3, .span = @$}; };
settings: setting { $$ = (ArgVec){0}; PUSH($$, $1); } | settings COMMA setting { $$ = $1; PUSH($$, $3); };

value: expr | choice { $$ = build_choice(p, $1, @$); };
choice:
  expr WHERE expr { $$ = (CaseVec){0}; PUSH($$, (AstCase){$1, $3}); }
| choice ELSE expr { $$ = $1; PUSH($$, (AstCase){$3, NULL}); }
| choice ELSE expr WHERE expr { $$ = $1; PUSH($$, (AstCase){$3, $5}); }
;

/* ---- statements ---- */

block: LBRACE stmts RBRACE { $$ = (AstBlock){.v = $2.v, .n = $2.n, .span = @$}; };

stmts:
  %empty { $$ = (StmtVec){0}; }
| stmts END_STMT
| stmts simple END_STMT { $$ = $1; PUSH($$, $2); }
| stmts compound { $$ = $1; PUSH($$, $2); }
| stmts error END_STMT { $$ = $1; yyerrok; }
;

simple:
  PARAM decls { $$ = build_decl(p, STMT_PARAM, $2, @$); }
| FROZEN PARAM decls { $$ = build_decl(p, STMT_FROZEN, $3, @$); }
| STATE decls { $$ = build_decl(p, STMT_STATE, $2, @$); }
| USE uses { $$ = build_stmt(p, STMT_USE, @$); $$->use.v = $2.v; $$->use.n = $2.n; }
| NAME opt_type ASSIGN expr {
    $$ = build_stmt(p, STMT_ASSIGN, @$);
    $$->bind.name = $1;
    $$->bind.type = $2;
    $$->bind.value = $4;
  }
| METRIC NAME ASSIGN expr { $$ = build_stmt(p, STMT_METRIC, @$); $$->bind.name = $2; $$->bind.value = $4; }
| OUTPUT NAME opt_type opt_default {
    $$ = build_stmt(p, STMT_OUTPUT, @$);
    $$->bind.name = $2;
    $$->bind.type = $3;
    $$->bind.value = $4;
  }
| RETURN expr { $$ = build_stmt(p, STMT_RETURN, @$); $$->ret.value = $2; }
;

compound:
  REPEAT NAME OVER qname block {
    $$ = build_stmt(p, STMT_REPEAT, @$);
    $$->loop.index = $2;
    $$->loop.axis = $4;
    $$->loop.body = $5;
  }
| SCAN NAME OVER qname block {
    $$ = build_stmt(p, STMT_SCAN, @$);
    $$->loop.index = $2;
    $$->loop.axis = $4;
    $$->loop.body = $5;
  }
| if_stmt
| REPEAT error block { $$ = build_stmt(p, STMT_REPEAT, @$); $$->loop.body = $3; yyerrok; }
| REPEAT error END_STMT { $$ = build_stmt(p, STMT_REPEAT, @$); yyerrok; }
| SCAN error block { $$ = build_stmt(p, STMT_SCAN, @$); $$->loop.body = $3; yyerrok; }
| SCAN error END_STMT { $$ = build_stmt(p, STMT_SCAN, @$); yyerrok; }
;

if_stmt:
  IF expr block else_part { $$ = build_if(p, $2, $3, (AstBlock){$4.v, $4.n, @4}, @$); }
| IF error block else_part { $$ = build_stmt(p, STMT_IF, @$); $$->cond.then = $3; yyerrok; }
| IF error END_STMT { $$ = build_stmt(p, STMT_IF, @$); yyerrok; }
;

else_part:
  %empty { $$ = (StmtVec){0}; }
| ELSE block { $$ = (StmtVec){.v = $2.v, .n = $2.n}; }
| ELSE if_stmt { $$ = (StmtVec){0}; PUSH($$, $2); }
;

decls: decl { $$ = (DeclVec){0}; PUSH($$, $1); } | decls COMMA decl { $$ = $1; PUSH($$, $3); };
decl:
  NAME opt_axes opt_init {
    $$ = (AstDecl){.name = $1, .axes = names_of($2), .init_kind = $3.kind, .init = $3.value, .span = @$};
  }
| NAME opt_axes COLON NAME opt_init {
    $$ = (AstDecl){.name = $1, .axes = names_of($2), .dtype = $4, .span = @$};
    $$.init_kind = $5.kind;
    $$.init = $5.value;
  }
;
opt_init:
  %empty { $$ = (Init){0}; }
| ASSIGN expr { $$ = (Init){INIT_FILL, $2}; }
| TILDE expr { $$ = (Init){INIT_DRAW, $2}; }
;

uses: use { $$ = (UseVec){0}; PUSH($$, $1); } | uses COMMA use { $$ = $1; PUSH($$, $3); };
use: NAME COLON qname opt_bracket opt_args {
    $$ = (AstUse){.inst = $1, .module = $3, .axes = $4, .args = args_of($5), .span = @$};
  };
opt_bracket:
  %empty { $$ = (AstBracket){0}; }
| LBRACKET names RBRACKET { $$ = (AstBracket){.kind = BRACKET_AXES, .axes = names_of($2), .span = @$}; }
;

/* ---- plans ---- */

plan_items:
  %empty { $$ = (PlanVec){0}; }
| plan_items END_STMT
| plan_items plan_item END_STMT { $$ = $1; PUSH($$, $2); }
| plan_items layout { $$ = $1; PUSH($$, $2); }
| plan_items error END_STMT { $$ = $1; yyerrok; }
;

plan_item:
  SET settings { $$ = build_plan_item(p, PLAN_SET, @1, @$); $$->args = args_of($2); }
| DATA names FROM stage options {
    $$ = build_plan_item(p, PLAN_DATA, @1, @$);
    $$->names = names_of($2);
    $$->stage = $4;
    $$->args = args_of($5);
  }
| INIT postfix options { $$ = build_plan_item(p, PLAN_INIT, @1, @$); $$->value = $2; $$->args = args_of($3); }
| INIT postfix FOR STRING options {
    $$ = build_plan_item(p, PLAN_INIT, @1, @$);
    $$->value = $2;
    $$->pattern = $4.text;
    $$->pattern_span = $4.span;
    $$->args = args_of($5);
  }
| plan_number expr { $$ = build_plan_item(p, $1, @1, @$); $$->value = $2; }
| AVERAGE expr options {
    $$ = build_plan_item(p, PLAN_AVERAGE, @1, @$);
    $$->value = $2;
    $$->args = args_of($3);
  }
| OPTIMIZER stage opt_where {
    $$ = build_plan_item(p, PLAN_OPTIMIZER, @1, @$);
    $$->stage = $2;
    $$->where = $3;
  }
| SCHEDULE stages { $$ = build_plan_item(p, PLAN_SCHEDULE, @1, @$); $$->stages = $2.v; $$->n_stages = $2.n; }
| PRECISION NAME options {
    $$ = build_plan_item(p, PLAN_PRECISION, @1, @$);
    $$->names = one_name(p, $2);
    $$->args = args_of($3);
  }
| EVAL EVERY expr options {
    $$ = build_plan_item(p, PLAN_EVAL, @1, @$);
    $$->every = $3;
    $$->args = args_of($4);
  }
| SAVE EVERY expr options {
    $$ = build_plan_item(p, PLAN_SAVE, @1, @$);
    $$->every = $3;
    $$->args = args_of($4);
  }
| SAVE TRAINABLE { $$ = build_plan_item(p, PLAN_SAVE, @1, @$); $$->trainable = true; }
| SAVE TRAINABLE EVERY expr options {
    $$ = build_plan_item(p, PLAN_SAVE, @1, @$);
    $$->trainable = true;
    $$->every = $4;
    $$->args = args_of($5);
  }
| SAMPLE STRING expr options {
    $$ = build_plan_item(p, PLAN_SAMPLE, @1, @$);
    $$->text = $2.text;
    $$->text_span = $2.span;
    $$->value = $3;
    $$->args = args_of($4);
  }
| SAMPLE STRING expr EVERY expr options {
    $$ = build_plan_item(p, PLAN_SAMPLE, @1, @$);
    $$->text = $2.text;
    $$->text_span = $2.span;
    $$->value = $3;
    $$->every = $5;
    $$->args = args_of($6);
  }
| FREEZE WHERE expr { $$ = build_plan_item(p, PLAN_FREEZE, @1, @$); $$->where = $3; }
| KEEP WHERE expr { $$ = build_plan_item(p, PLAN_KEEP, @1, @$); $$->where = $3; }
| KEEP NAME WHERE expr {
    $$ = build_plan_item(p, PLAN_KEEP, @1, @$);
    $$->names = one_name(p, $2);
    $$->where = $4;
  }
;

plan_number:
  STEPS { $$ = PLAN_STEPS; }
| EPOCHS { $$ = PLAN_EPOCHS; }
| TOKENS { $$ = PLAN_TOKENS; }
| CLIP { $$ = PLAN_CLIP; }
| SEED { $$ = PLAN_SEED; }
| BUDGET { $$ = PLAN_BUDGET; }
| CAPACITY { $$ = PLAN_CAPACITY; }
;

options: %empty { $$ = (ArgVec){0}; } | options COMMA setting { $$ = $1; PUSH($$, $3); };
opt_where: %empty { $$ = NULL; } | WHERE expr { $$ = $2; };
stages: stage { $$ = (StageVec){0}; PUSH($$, $1); } | stages THEN stage { $$ = $1; PUSH($$, $3); };
stage: qname opt_args { $$ = (AstStage){.name = $1, .args = args_of($2), .span = @$}; };

layout:
  LAYOUT NAME LBRACE layout_items RBRACE {
    $$ = build_plan_item(p, PLAN_LAYOUT, @1, @$);
    $$->names = one_name(p, $2);
    $$->items = $4.v;
    $$->n_items = $4.n;
  }
| LAYOUT error LBRACE layout_items RBRACE { $$ = build_plan_item(p, PLAN_LAYOUT, @1, @$); yyerrok; }
| LAYOUT error END_STMT { $$ = build_plan_item(p, PLAN_LAYOUT, @1, @$); yyerrok; }
;

layout_items:
  %empty { $$ = (PlanVec){0}; }
| layout_items END_STMT
| layout_items layout_item END_STMT { $$ = $1; PUSH($$, $2); }
| layout_items error END_STMT { $$ = $1; yyerrok; }
;

layout_item:
  MESH mesh_list { $$ = build_plan_item(p, LAYOUT_MESH, @1, @$); $$->args = args_of($2); }
| SHARD names ON NAME {
    $$ = build_plan_item(p, LAYOUT_SHARD, @1, @$);
    $$->names = names_of($2);
    $$->on = $4;
  }
| GATHER names ON NAME {
    $$ = build_plan_item(p, LAYOUT_GATHER, @1, @$);
    $$->names = names_of($2);
    $$->on = $4;
  }
| MICRO expr { $$ = build_plan_item(p, LAYOUT_MICRO, @1, @$); $$->value = $2; }
| ZERO expr { $$ = build_plan_item(p, LAYOUT_ZERO, @1, @$); $$->value = $2; }
| RECOMPUTE names { $$ = build_plan_item(p, LAYOUT_RECOMPUTE, @1, @$); $$->names = names_of($2); }
| OFFLOAD names { $$ = build_plan_item(p, LAYOUT_OFFLOAD, @1, @$); $$->names = names_of($2); }
| OVERLAP names { $$ = build_plan_item(p, LAYOUT_OVERLAP, @1, @$); $$->names = names_of($2); }
| SCHEDULE stages {
    $$ = build_plan_item(p, LAYOUT_SCHEDULE, @1, @$);
    $$->stages = $2.v;
    $$->n_stages = $2.n;
  }
;
mesh_list:
  mesh_axis { $$ = (ArgVec){0}; PUSH($$, $1); }
| mesh_list COMMA mesh_axis { $$ = $1; PUSH($$, $3); }
;
mesh_axis:
  NAME ASSIGN expr { $$ = (AstArg){.name = $1, .value = $3, .span = @$}; }
| NAME ASSIGN FILL { $$ = (AstArg){.name = $1, .span = @$}; }
;

%%

static int yyreport_syntax_error(const yypcontext_t *ctx, Parser *p) {
  yysymbol_kind_t kinds[YYNTOKENS];
  int tokens[YYNTOKENS];
  int n = yypcontext_expected_tokens(ctx, kinds, YYNTOKENS), k = 0;
  /* Symbol kinds count tokens in the order of their declaration; 0 to 2 are the end, error and undefined. */
  for (int i = 0; i < n; i++)
    if (kinds[i] > 2) tokens[k++] = (int)kinds[i] - 3 + 258;
  report_syntax_error(p, *yypcontext_location(ctx), tokens, k);
  return 0;
}
