/* print.c: the canonical text of modules, functions and regions. read.c parses exactly this.
 *
 *   func train(%0: f32[embed=4] param 0 "w") {
 *     %1 = neg %0 : f32[embed=4] @0:12:5 0 "y"
 *     %2 = loop %1 axis(layer) num(2, 1, 0, 0) : f32[embed=4] { (%3: int, %4: f32[embed=4])
 *       %5 = add %4, %4 : f32[embed=4]
 *       yield %5
 *     } @0:13:3
 *     return %2 output 0 0 "y"
 *   }
 * Values are numbered in the order in which they appear, so that equal functions have equal texts. */
#include "ir/ir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  const Func *f;
  Str *out;
  uint32_t *number; /* value -> printed number, NONE before it is defined */
  uint32_t next;
  bool region;    /* axes renamed, no names, no locations */
  uint32_t *axis; /* region: axis -> printed number */
  uint32_t n_axes;
} Printer;

static void put_axis(Printer *p, Axis a) {
  if (!p->region) {
    str_puts(p->out, ir_axis_name(p->f->module, a));
    return;
  }
  if (p->axis[a] == NONE) {
    p->axis[a] = p->n_axes++;
  }
  str_printf(p->out, "a%u", p->axis[a]);
}

static void put_type(Printer *p, const Type *t) {
  str_puts(p->out, dtype_name(t->dtype));
  for (int i = 0; i < t->rank; i++) {
    str_puts(p->out, i ? ", " : "[");
    put_axis(p, t->dim[i].axis);
    str_printf(p->out, "=%lld", (long long)t->dim[i].size);
  }
  str_puts(p->out, t->rank ? "]" : "");
}

static void define(Printer *p, Val v) {
  p->number[v] = p->next++;
  str_printf(p->out, "%%%u", p->number[v]);
}

static void put_name(Printer *p, Val v) {
  if (!p->region && p->f->val[v].name) {
    str_putc(p->out, ' ');
    str_put_json(p->out, p->f->val[v].name);
  }
}

static void put_params(Printer *p, const Block *b, const FuncArg *arg) {
  static const char *const kind[] = {"param", "opt", "state", "input", "scalar", "grad", "factor"};
  str_putc(p->out, '(');
  for (uint32_t i = 0; i < b->n_params; i++) {
    str_puts(p->out, i ? ", " : "");
    define(p, b->param[i]);
    str_puts(p->out, ": ");
    put_type(p, &p->f->val[b->param[i]].type);
    if (arg) {
      str_printf(p->out, " %s %u", kind[arg[i].kind], arg[i].index);
    }
    put_name(p, b->param[i]);
  }
  str_putc(p->out, ')');
}

static void indent(Printer *p, int depth) {
  for (int i = 0; i < depth; i++) {
    str_puts(p->out, "  ");
  }
}

static void put_attr(Printer *p, const Op *op) {
  const Attr *a = &op->attr;
  if (a->n_axis) {
    str_puts(p->out, " axis(");
    for (uint32_t i = 0; i < a->n_axis; i++) {
      str_puts(p->out, i ? ", " : "");
      put_axis(p, a->axis[i]);
    }
    str_putc(p->out, ')');
  }
  if (a->n_num) {
    str_puts(p->out, " num(");
    for (uint32_t i = 0; i < a->n_num; i++) {
      str_printf(p->out, "%s%lld", i ? ", " : "", (long long)a->num[i]);
    }
    str_putc(p->out, ')');
  }
  if (op->code == OP_CONST) {
    str_puts(p->out, a->f == 0 && signbit(a->f) ? " -0" : " ");
    if (!(a->f == 0 && signbit(a->f))) {
      str_put_double(p->out, a->f);
    }
  }
  if (a->str) {
    str_putc(p->out, ' ');
    str_put_json(p->out, a->str);
  }
}

static void put_block(Printer *p, const Block *b, int depth);

static void put_op(Printer *p, const Op *op, int depth) {
  indent(p, depth);
  uint32_t first = p->next; /* results take their numbers before the body's values do */
  p->next += op->n_results;
  for (uint32_t i = 0; i < op->n_results; i++) {
    p->number[op->result + i] = first + i;
    str_printf(p->out, "%s%%%u", i ? ", " : "", first + i);
  }
  str_printf(p->out, " = %s", ir_op_info[op->code].text);
  for (uint32_t i = 0; i < op->n_args; i++) {
    str_printf(p->out, "%s%%%u", i ? ", " : " ", p->number[op->arg[i]]);
  }
  put_attr(p, op);
  str_puts(p->out, " : ");
  for (uint32_t i = 0; i < op->n_results; i++) {
    str_puts(p->out, i ? ", " : "");
    put_type(p, &p->f->val[op->result + i].type);
  }
  if (op->body) {
    str_puts(p->out, " { ");
    put_params(p, op->body, NULL);
    str_putc(p->out, '\n');
    put_block(p, op->body, depth + 1);
    indent(p, depth + 1);
    str_puts(p->out, "yield");
    for (uint32_t i = 0; i < op->body->n_ret; i++) {
      str_printf(p->out, "%s%%%u", i ? ", " : " ", p->number[op->body->ret[i]]);
    }
    str_putc(p->out, '\n');
    indent(p, depth);
    str_putc(p->out, '}');
  }
  if (!p->region && op->loc.file != NONE && op->loc.line) {
    str_printf(p->out, " @%u:%u:%u", op->loc.file, op->loc.line, op->loc.col);
  }
  if (!p->region) {
    for (uint32_t i = 0; i < op->n_results; i++) {
      if (p->f->val[op->result + i].name) {
        str_printf(p->out, " %u", i);
        put_name(p, op->result + i);
      }
    }
  }
  str_putc(p->out, '\n');
}

static void put_block(Printer *p, const Block *b, int depth) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    put_op(p, &p->f->op[b->op[i]], depth);
  }
}

static void *filled(size_t n, size_t size) {
  void *v = malloc((n ? n : 1) * size);
  if (!v) {
    abort();
  }
  memset(v, 0xff, n * size);
  return v;
}

static const char *const res_name[] = {"loss",  "num", "den",   "metric_num", "metric_den", "output",
                                       "param", "opt", "state", "grad",       "scalar"};

void ir_print_func(const Func *f, Str *out) {
  Printer p = {.f = f, .out = out, .number = filled(f->n_vals, sizeof(uint32_t))};
  str_printf(out, "func %s", f->name);
  put_params(&p, f->body, f->arg);
  str_puts(out, " {\n");
  put_block(&p, f->body, 1);
  for (uint32_t i = 0; i < f->body->n_ret; i++) {
    const FuncRes *r = &f->res[i];
    str_printf(out, "  return %%%u %s %u ", p.number[f->body->ret[i]], res_name[r->kind], r->index);
    str_put_double(out, r->coef);
    if (r->name) {
      str_putc(out, ' ');
      str_put_json(out, r->name);
    }
    str_putc(out, '\n');
  }
  str_puts(out, "}\n");
  free(p.number);
}

void ir_print_region(const Func *f, OpId id, Str *out) {
  Printer p = {.f = f, .out = out, .region = true};
  p.number = filled(f->n_vals, sizeof(uint32_t));
  p.axis = filled(f->module->n_axes, sizeof(uint32_t));
  const Op *op = &f->op[id];
  str_printf(out, "%s %s ", ir_op_info[op->code].text, op->attr.str ? op->attr.str : "");
  put_params(&p, op->body, NULL);
  str_putc(out, '\n');
  put_block(&p, op->body, 1);
  str_puts(out, "  yield");
  for (uint32_t i = 0; i < op->body->n_ret; i++) {
    str_printf(out, "%s%%%u", i ? ", " : " ", p.number[op->body->ret[i]]);
  }
  str_putc(out, '\n');
  free(p.number);
  free(p.axis);
}

static void put_state(const Module *m, const char *word, const IrState *s, Str *out) {
  str_printf(out, "%s ", word);
  str_put_json(out, s->name);
  str_puts(out, " ");
  type_print(m, &s->type, out);
  str_printf(out, " param %u %s ", s->param, s->from_param ? "copy" : "fill");
  str_put_double(out, s->fill);
  str_printf(out, " repeat %u\n", s->n_repeat);
}

void ir_print(const Module *m, Str *out) {
  static const char *const init[] = {"normal", "uniform", "fill"};
  str_printf(out, "module %s\n", dtype_name(m->real));
  for (uint32_t i = 0; i < m->n_files; i++) {
    str_puts(out, "file ");
    str_put_json(out, m->file[i]);
    str_putc(out, '\n');
  }
  for (uint32_t i = 0; i < m->n_params; i++) {
    const IrParam *p = &m->param[i];
    str_puts(out, "param ");
    str_put_json(out, p->name);
    str_putc(out, ' ');
    type_print(m, &p->type, out);
    str_printf(out, " repeat %u %s ", p->n_repeat, init[p->init]);
    str_put_double(out, p->a);
    str_putc(out, ' ');
    str_put_double(out, p->b);
    str_printf(out, "%s%s group %u @%u:%u:%u\n", p->frozen ? " frozen" : "", p->matrix ? " matrix" : "",
               p->group, p->loc.file, p->loc.line, p->loc.col);
  }
  for (uint32_t i = 0; i < m->n_opt; i++) {
    put_state(m, "opt", &m->opt[i], out);
  }
  for (uint32_t i = 0; i < m->n_states; i++) {
    put_state(m, "state", &m->state[i], out);
  }
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    str_puts(out, "input ");
    str_put_json(out, m->input[i].name);
    str_putc(out, ' ');
    type_print(m, &m->input[i].type, out);
    str_printf(out, " @%u:%u:%u\n", m->input[i].loc.file, m->input[i].loc.line, m->input[i].loc.col);
  }
  for (uint32_t i = 0; i < m->n_funcs; i++) {
    ir_print_func(m->func[i], out);
  }
}
