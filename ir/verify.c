/* verify.c: what every pass may rely on. */
#include "ir/ir.h"

#include "runtime/program.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  const Func *f;
  const Block **home; /* value -> the block that has defined it so far */
  Error *err;
} Verifier;

static bool fail(Verifier *v, const Op *op, const char *what) {
  const Module *m = v->f->module;
  const char *file = op->loc.line && op->loc.file < m->n_files ? m->file[op->loc.file] : v->f->name;
  return error_set(v->err, ERR_INPUT, "%s:%u:%u: invalid IR in %s: %s: %s", file, op->loc.line, op->loc.col,
                   v->f->name, ir_op_info[op->code].text, what);
}

static bool check_block(Verifier *v, const Block *b);

static bool check_types(Verifier *v, const Op *op) {
  if (op->code == OP_REGION) {
    for (uint32_t i = 0; i < op->n_results; i++) {
      if (!type_equal(&v->f->val[op->result + i].type, &v->f->val[op->body->ret[i]].type)) {
        return fail(v, op, "a result's type is not what the body returns");
      }
    }
    return true;
  }
  Arena mem = {0};
  Type *arg = ARENA_ARRAY(&mem, Type, op->n_args), *res = ARENA_ARRAY(&mem, Type, op->n_results);
  for (uint32_t i = 0; i < op->n_args; i++) {
    arg[i] = v->f->val[op->arg[i]].type;
  }
  bool ok = ir_infer(v->f->module, op->code, arg, op->n_args, &op->attr, res, v->err);
  for (uint32_t i = 0; ok && i < op->n_results; i++) {
    ok = type_equal(&res[i], &v->f->val[op->result + i].type) ||
         fail(v, op, "a result's type is not the inferred one");
  }
  arena_free(&mem);
  return ok;
}

static bool is_view_of(const Type *outer, const Type *inner, Axis axis) {
  Type t = type_without(outer, &axis, 1);
  return type_equal(&t, inner);
}

static bool check_loop(Verifier *v, const Op *op) {
  const Attr *a = &op->attr;
  if (a->n_axis != 1 || a->n_num != 4 || a->num[0] < 1 || a->num[0] > INT32_MAX || a->num[1] < 0 ||
      a->num[1] > op->n_args || a->num[2] < 0 || a->num[2] > op->n_args) {
    return fail(v, op, "bad attributes");
  }
  uint32_t carry = (uint32_t)a->num[1], xs = (uint32_t)a->num[2];
  const Block *b = op->body;
  if (op->n_args < carry + xs || b->n_params != op->n_args + 1 || b->n_ret < carry ||
      op->n_results != b->n_ret) {
    return fail(v, op, "operands, body params and results do not match");
  }
  const Type *index = &v->f->val[b->param[0]].type;
  if (index->rank || index->dtype != DT_I32) {
    return fail(v, op, "the first body param must be the int index");
  }
  for (uint32_t i = 0; i < op->n_args; i++) {
    const Type *outer = &v->f->val[op->arg[i]].type, *inner = &v->f->val[b->param[i + 1]].type;
    bool sliced = i >= carry && i < carry + xs;
    if (sliced &&
        (!type_has(outer, a->axis[0]) || outer->dim[type_find(outer, a->axis[0])].size != a->num[0])) {
      return fail(v, op, "a sliced operand lacks the loop axis");
    }
    if (sliced ? !is_view_of(outer, inner, a->axis[0]) : !type_equal(outer, inner)) {
      return fail(v, op, "a body param's type is not its operand's");
    }
    if (i < carry && !type_equal(outer, &v->f->val[b->ret[i]].type)) {
      return fail(v, op, "a carried value changes its type");
    }
  }
  for (uint32_t i = 0; i < op->n_results; i++) {
    const Type *t = &v->f->val[op->result + i].type, *inner = &v->f->val[b->ret[i]].type;
    bool ok = i < carry ? type_equal(t, inner)
                        : t->rank && t->dim[0].axis == a->axis[0] && t->dim[0].size == a->num[0] &&
                              is_view_of(t, inner, a->axis[0]);
    if (!ok) {
      return fail(v, op, "a result's type is not what the body returns");
    }
  }
  return true;
}

/* raw, extras -> s of raw's dims; what depends on raw is pointwise (the interpreter says so when it is not).
 */
static bool check_score(Verifier *v, const Op *op) {
  const Block *b = op->body;
  uint32_t first = op->code == OP_ATTENTION ? 3 : 6;
  if (b->n_params != op->n_args - first + 1 || b->n_ret != 1) {
    return fail(v, op, "the score function takes the product and each extra operand and returns one value");
  }
  const Type *raw = &v->f->val[b->param[0]].type, *s = &v->f->val[b->ret[0]].type;
  Type want;
  Attr attr = {.axis = op->attr.axis, .n_axis = op->attr.n_axis - 1};
  Type qk[2] = {v->f->val[op->arg[0]].type, v->f->val[op->arg[1]].type};
  if (!ir_infer(v->f->module, OP_CONTRACT, qk, 2, &attr, &want, v->err)) {
    return false;
  }
  if (raw->dtype != want.dtype || s->dtype != want.dtype || !type_same_dims(raw, &want) ||
      !type_same_dims(s, &want)) {
    return fail(v, op, "the score function does not map the product to scores of the same axes");
  }
  for (uint32_t i = first; i < op->n_args; i++) {
    if (!type_equal(&v->f->val[op->arg[i]].type, &v->f->val[b->param[i - first + 1]].type)) {
      return fail(v, op, "a body param's type is not its operand's");
    }
  }
  return true;
}

static bool check_region_params(Verifier *v, const Op *op) {
  if (op->body->n_params != op->n_args || op->n_results != op->body->n_ret) {
    return fail(v, op, "operands, body params and results do not match");
  }
  for (uint32_t i = 0; i < op->n_args; i++) {
    if (!type_equal(&v->f->val[op->arg[i]].type, &v->f->val[op->body->param[i]].type)) {
      return fail(v, op, "a body param's type is not its operand's");
    }
  }
  return true;
}

static bool check_op(Verifier *v, const Block *b, OpId id) {
  const Op *op = &v->f->op[id];
  if (op->code >= OP_COUNT || op->result > v->f->n_vals || op->n_results > v->f->n_vals - op->result) {
    return error_set(v->err, ERR_INPUT, "invalid IR in %s: op %u has no code or no results", v->f->name, id);
  }
  for (uint32_t i = 0; i < op->n_args; i++) {
    if (op->arg[i] >= v->f->n_vals || v->home[op->arg[i]] != b) {
      return fail(v, op, "an operand is not defined before it in the same block");
    }
  }
  if (!(ir_op_info[op->code].flags & F_BODY) != !op->body) {
    return fail(v, op, op->body ? "has a body" : "has no body");
  }
  if (op->body && !check_block(v, op->body)) {
    return false;
  }
  if (op->code == OP_REGION && !check_region_params(v, op)) {
    return false;
  }
  if (!(op->code == OP_LOOP ? check_loop(v, op) : check_types(v, op))) {
    return false;
  }
  if ((op->code == OP_ATTENTION || op->code == OP_ATTENTION_GRAD) && !check_score(v, op)) {
    return false;
  }
  for (uint32_t i = 0; i < op->n_results; i++) {
    if (v->home[op->result + i]) {
      return fail(v, op, "a result is defined twice");
    }
    v->home[op->result + i] = b;
  }
  return true;
}

static bool check_block(Verifier *v, const Block *b) {
  for (uint32_t i = 0; i < b->n_params; i++) {
    int64_t bytes;
    if (b->param[i] >= v->f->n_vals || !type_bytes(&v->f->val[b->param[i]].type, &bytes)) {
      return error_set(v->err, ERR_INPUT, "invalid IR in %s: a block param is no tensor that can be",
                       v->f->name);
    }
    if (v->home[b->param[i]]) {
      return error_set(v->err, ERR_INPUT, "invalid IR in %s: a block param is defined twice", v->f->name);
    }
    v->home[b->param[i]] = b;
  }
  for (uint32_t i = 0; i < b->n_ops; i++) {
    if (b->op[i] >= v->f->n_ops || !check_op(v, b, b->op[i])) {
      return false;
    }
  }
  for (uint32_t i = 0; i < b->n_ret; i++) {
    if (b->ret[i] >= v->f->n_vals || v->home[b->ret[i]] != b) {
      return error_set(v->err, ERR_INPUT, "invalid IR in %s: a returned value is not defined in its block",
                       v->f->name);
    }
  }
  return true;
}

/* The type a table row gives to the function arguments and results of its kind; NULL: no such row. */
static const Type *row_type(const Module *m, ArgKind kind, uint32_t i) {
  switch (kind) {
  case ARG_PARAM:
  case ARG_GRAD: return i < m->n_params ? &m->param[i].type : NULL;
  case ARG_OPT: return i < m->n_opt ? &m->opt[i].type : NULL;
  case ARG_STATE: return i < m->n_states ? &m->state[i].type : NULL;
  case ARG_INPUT: return i < m->n_inputs ? &m->input[i].type : NULL;
  case ARG_SCALAR:
  case ARG_FACTOR: break;
  }
  return NULL;
}

static bool check_args(const Func *f, Error *err) {
  for (uint32_t i = 0; i < f->body->n_params; i++) {
    FuncArg a = f->arg[i];
    const Type *t = &f->val[f->body->param[i]].type, *want = row_type(f->module, a.kind, a.index);
    bool ok = a.kind == ARG_SCALAR   ? a.index < SCALAR_COUNT && !t->rank
              : a.kind == ARG_FACTOR ? !t->rank && t->dtype == DT_F64
                                     : want && type_equal(t, want);
    if (!ok) {
      return error_set(err, ERR_INPUT, "invalid IR in %s: argument %u is not a row of its table", f->name, i);
    }
  }
  return true;
}

static bool check_results(const Func *f, Error *err) {
  static const ArgKind row[] = {
      [RES_PARAM] = ARG_PARAM, [RES_OPT] = ARG_OPT, [RES_STATE] = ARG_STATE, [RES_GRAD] = ARG_GRAD};
  for (uint32_t i = 0; i < f->body->n_ret; i++) {
    FuncRes r = f->res[i];
    const Type *t = &f->val[f->body->ret[i]].type;
    bool table = r.kind == RES_PARAM || r.kind == RES_OPT || r.kind == RES_STATE || r.kind == RES_GRAD;
    const Type *want = table ? row_type(f->module, row[r.kind], r.index) : NULL;
    bool named =
        r.kind == RES_METRIC_NUM || r.kind == RES_METRIC_DEN || r.kind == RES_OUTPUT || r.kind == RES_SCALAR;
    if (r.kind > RES_SCALAR || (table && (!want || !type_equal(t, want))) || (named && !r.name) ||
        (!table && r.kind != RES_OUTPUT && t->rank)) {
      return error_set(err, ERR_INPUT, "invalid IR in %s: result %u does not fit its kind", f->name, i);
    }
  }
  return true;
}

bool ir_verify_func(const Func *f, Error *err) {
  Verifier v = {.f = f, .err = err, .home = calloc(f->n_vals ? f->n_vals : 1, sizeof *v.home)};
  if (!v.home) {
    abort();
  }
  bool ok = check_args(f, err) && check_block(&v, f->body) && check_results(f, err);
  free(v.home);
  return ok;
}

bool ir_verify(const Module *m, Error *err) {
  int64_t bytes;
  for (uint32_t i = 0; i < m->n_params; i++) {
    if (m->param[i].n_repeat > m->param[i].type.rank || !type_bytes(&m->param[i].type, &bytes)) {
      return error_set(err, ERR_INPUT, "invalid IR: parameter '%s' is no tensor that can be",
                       m->param[i].name);
    }
  }
  for (uint32_t i = 0; i < m->n_opt; i++) {
    if (m->opt[i].param >= m->n_params) {
      return error_set(err, ERR_INPUT, "invalid IR: optimizer state '%s' has no parameter", m->opt[i].name);
    }
  }
  for (uint32_t i = 0; i < m->n_funcs; i++) {
    if (!ir_verify_func(m->func[i], err)) {
      return false;
    }
  }
  return true;
}
