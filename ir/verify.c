/* verify.c: what every pass may rely on. */
#include "ir/ir.h"

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
  return error_set(v->err, ERR_INPUT, "%s:%u:%u: invalid IR in %s: %s: %s", file, op->loc.line, op->loc.col, v->f->name,
                   ir_op_info[op->code].text, what);
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
    ok = type_equal(&res[i], &v->f->val[op->result + i].type) || fail(v, op, "a result's type is not the inferred one");
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
  if (a->n_axis != 1 || a->n_num < 4 || a->num[0] < 1 || a->num[1] < 0 || a->num[2] < 0) {
    return fail(v, op, "bad attributes");
  }
  uint32_t carry = (uint32_t)a->num[1], xs = (uint32_t)a->num[2];
  const Block *b = op->body;
  if (op->n_args < carry + xs || b->n_params != op->n_args + 1 || b->n_ret < carry || op->n_results != b->n_ret) {
    return fail(v, op, "operands, body params and results do not match");
  }
  const Type *index = &v->f->val[b->param[0]].type;
  if (index->rank || index->dtype != DT_I32) {
    return fail(v, op, "the first body param must be the int index");
  }
  for (uint32_t i = 0; i < op->n_args; i++) {
    const Type *outer = &v->f->val[op->arg[i]].type, *inner = &v->f->val[b->param[i + 1]].type;
    bool sliced = i >= carry && i < carry + xs;
    if (sliced && (!type_has(outer, a->axis[0]) || outer->dim[type_find(outer, a->axis[0])].size != a->num[0])) {
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
                        : t->rank && t->dim[0].axis == a->axis[0] && t->dim[0].size == a->num[0] && is_view_of(t, inner, a->axis[0]);
    if (!ok) {
      return fail(v, op, "a result's type is not what the body returns");
    }
  }
  return true;
}

static bool check_op(Verifier *v, const Block *b, OpId id) {
  const Op *op = &v->f->op[id];
  if (op->code >= OP_COUNT) {
    return error_set(v->err, ERR_INPUT, "invalid IR in %s: op %u has no code", v->f->name, id);
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
  if (op->code == OP_REGION && op->body->n_params != op->n_args) {
    return fail(v, op, "operands and body params do not match");
  }
  if (!(op->code == OP_LOOP ? check_loop(v, op) : check_types(v, op))) {
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
    if (v->home[b->param[i]]) {
      return error_set(v->err, ERR_INPUT, "invalid IR in %s: a block param is defined twice", v->f->name);
    }
    v->home[b->param[i]] = b;
  }
  for (uint32_t i = 0; i < b->n_ops; i++) {
    if (!check_op(v, b, b->op[i])) {
      return false;
    }
  }
  for (uint32_t i = 0; i < b->n_ret; i++) {
    if (b->ret[i] >= v->f->n_vals || v->home[b->ret[i]] != b) {
      return error_set(v->err, ERR_INPUT, "invalid IR in %s: a returned value is not defined in its block", v->f->name);
    }
  }
  return true;
}

static bool check_args(const Func *f, Error *err) {
  const Module *m = f->module;
  const uint32_t limit[] = {[ARG_PARAM] = m->n_params, [ARG_OPT] = m->n_opt, [ARG_STATE] = m->n_states,
                            [ARG_INPUT] = m->n_inputs, [ARG_SCALAR] = 3, [ARG_GRAD] = m->n_params, [ARG_FACTOR] = NONE};
  for (uint32_t i = 0; i < f->body->n_params; i++) {
    if (f->arg[i].kind > ARG_FACTOR || f->arg[i].index >= limit[f->arg[i].kind]) {
      return error_set(err, ERR_INPUT, "invalid IR in %s: argument %u names no table row", f->name, i);
    }
  }
  return true;
}

bool ir_verify_func(const Func *f, Error *err) {
  Verifier v = {.f = f, .err = err, .home = calloc(f->n_vals ? f->n_vals : 1, sizeof *v.home)};
  if (!v.home) {
    abort();
  }
  bool ok = check_args(f, err) && check_block(&v, f->body);
  free(v.home);
  return ok;
}

bool ir_verify(const Module *m, Error *err) {
  for (uint32_t i = 0; i < m->n_funcs; i++) {
    if (!ir_verify_func(m->func[i], err)) {
      return false;
    }
  }
  return true;
}
