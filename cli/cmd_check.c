/* cmd_check.c: `dlc check`: the program's axes, parameters with what the plan decides for each, and its cost.
 */
#include "cli/driver.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double func_flops(const Func *f) {
  double sum = 0;
  for (uint32_t i = 0; i < f->body->n_ops; i++) {
    sum += ir_op_flops(f, f->body->op[i]);
  }
  return sum;
}

/* Samples times positions: what one step reads of its first input along its first two axes when it holds ids,
 * else samples. */
static int64_t tokens_per_step(const Model *m, const char **unit) {
  const Module *mod = m->module;
  *unit = "sample";
  if (!mod->n_inputs || !mod->input[0].type.rank) {
    return 1;
  }
  const Type *t = &mod->input[0].type;
  if (!dtype_is_float(t->dtype) && t->rank == 2) {
    *unit = "token";
    return t->dim[0].size * t->dim[1].size;
  }
  return t->dim[0].size;
}

static int64_t parameter_count(const Module *m, int64_t *trainable) {
  int64_t all = 0;
  *trainable = 0;
  for (uint32_t i = 0; i < m->n_params; i++) {
    int64_t n = type_count(&m->param[i].type);
    all += n;
    *trainable += m->param[i].frozen ? 0 : n;
  }
  return all;
}

static void put_axes(const Module *m, const Type *t, Str *s) {
  str_putc(s, '[');
  for (uint32_t i = 0; i < t->rank; i++) {
    str_printf(s, "%s%s=%lld", i ? ", " : "", ir_axis_name(m, t->dim[i].axis), (long long)t->dim[i].size);
  }
  str_putc(s, ']');
}

static void put_init(const IrParam *p, Str *s) {
  static const char *const kind[] = {
      [IR_INIT_NORMAL] = "normal", [IR_INIT_UNIFORM] = "uniform", [IR_INIT_FILL] = "fill"};
  str_printf(s, "%s(", kind[p->init]);
  str_put_double(s, p->a);
  if (p->init != IR_INIT_FILL) {
    str_puts(s, ", ");
    str_put_double(s, p->b);
  }
  str_putc(s, ')');
}

static void put_setting(const Model *m, uint32_t i, bool lr, Str *s) {
  double v = m->has_plan && m->setting ? (lr ? m->setting[i].lr : m->setting[i].decay) : NAN;
  if (isnan(v)) {
    str_puts(s, "-");
  } else {
    str_put_double(s, v);
  }
}

typedef struct {
  int64_t all, trainable, tokens;
  double forward, step;
  const char *unit;
} Costs;

static void print_text(const Model *m, const Costs *c) {
  const Module *mod = m->module;
  Str s = {0};
  if (m->has_plan) {
    str_printf(&s, "plan %s for %s, layout %s\n", m->plan.name, m->plan.model,
               m->plan.layout ? m->plan.layout : "(one rank)");
  }
  str_printf(&s, "inputs\n");
  for (uint32_t i = 0; i < mod->n_inputs; i++) {
    str_printf(&s, "  %-24s ", mod->input[i].name);
    type_print(mod, &mod->input[i].type, &s);
    str_putc(&s, '\n');
  }
  str_printf(&s, "%-26s %-44s %-24s %-5s %-10s %-8s %s\n", "parameter", "axes", "init", "group", "lr",
             "decay", "frozen");
  for (uint32_t i = 0; i < mod->n_params; i++) {
    const IrParam *p = &mod->param[i];
    Str axes = {0}, init = {0}, lr = {0}, decay = {0};
    put_axes(mod, &p->type, &axes);
    put_init(p, &init);
    put_setting(m, i, true, &lr);
    put_setting(m, i, false, &decay);
    char group[16] = "-";
    if (m->has_plan && p->group != NONE) {
      snprintf(group, sizeof group, "%u", p->group);
    }
    str_printf(&s, "%-26s %-44s %-24s %-5s %-10s %-8s %s\n", p->name, axes.s, init.s, group, lr.s, decay.s,
               p->frozen ? "yes" : "no");
    str_free(&axes), str_free(&init), str_free(&lr), str_free(&decay);
  }
  str_printf(&s, "parameters %lld (%lld trained)\n", (long long)c->all, (long long)c->trainable);
  str_printf(&s, "FLOPs per %s: forward %.6g, forward and backward %.6g\n", c->unit,
             c->forward / (double)c->tokens, c->step / (double)c->tokens);
  fputs(s.s, stdout);
  str_free(&s);
}

static void print_json(const Model *m, const Costs *c) {
  const Module *mod = m->module;
  Str s = {0};
  str_printf(&s, "{\"parameters\": %lld, \"trainable\": %lld, \"unit\": \"%s\", \"flops_forward\": ",
             (long long)c->all, (long long)c->trainable, c->unit);
  str_put_double(&s, c->forward / (double)c->tokens);
  str_puts(&s, ", \"flops_step\": ");
  str_put_double(&s, c->step / (double)c->tokens);
  if (m->has_plan) {
    str_puts(&s, ", \"plan\": ");
    str_put_json(&s, m->plan.name);
    str_puts(&s, ", \"layout\": ");
    str_put_json(&s, m->plan.layout ? m->plan.layout : "");
  }
  str_puts(&s, ", \"table\": [");
  for (uint32_t i = 0; i < mod->n_params; i++) {
    const IrParam *p = &mod->param[i];
    str_puts(&s, i ? ", {\"name\": " : "{\"name\": ");
    str_put_json(&s, p->name);
    str_puts(&s, ", \"axes\": {");
    for (uint32_t k = 0; k < p->type.rank; k++) {
      str_puts(&s, k ? ", " : "");
      str_put_json(&s, ir_axis_name(mod, p->type.dim[k].axis));
      str_printf(&s, ": %lld", (long long)p->type.dim[k].size);
    }
    Str init = {0};
    put_init(p, &init);
    str_printf(&s, "}, \"init\": \"%s\", \"frozen\": %s, \"matrix\": %s, \"group\": ", init.s,
               p->frozen ? "true" : "false", p->matrix ? "true" : "false");
    str_free(&init);
    if (m->has_plan && p->group != NONE) {
      str_printf(&s, "%u", p->group);
    } else {
      str_puts(&s, "null");
    }
    for (int lr = 1; lr >= 0; lr--) {
      double v = m->has_plan && m->setting ? (lr ? m->setting[i].lr : m->setting[i].decay) : NAN;
      str_puts(&s, lr ? ", \"lr\": " : ", \"decay\": ");
      if (isnan(v)) {
        str_puts(&s, "null");
      } else {
        str_put_double(&s, v);
      }
    }
    str_putc(&s, '}');
  }
  str_puts(&s, "]}\n");
  fputs(s.s, stdout);
  str_free(&s);
}

int cmd_check(const Args *a) {
  Session s;
  int code = session_open(&s, a, NULL, 0);
  if (code) {
    return code;
  }
  Error err = {0};
  Costs c = {0};
  Func *eval = pipeline_unfused(s.model->module, PIPE_EVAL, 0, NULL, 0, NULL, &err);
  Func *grad = eval ? pipeline_unfused(s.model->module, PIPE_GRAD, 0, NULL, 0, NULL, &err) : NULL;
  if (!grad) {
    session_close(&s);
    return cli_fail(&err);
  }
  c.forward = func_flops(eval);
  c.step = func_flops(grad);
  c.tokens = tokens_per_step(s.model, &c.unit);
  c.all = parameter_count(s.model->module, &c.trainable);
  if (a->json) {
    print_json(s.model, &c);
  } else {
    print_text(s.model, &c);
  }
  session_close(&s);
  return 0;
}
