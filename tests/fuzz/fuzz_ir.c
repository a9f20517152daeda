/* Fuzzing the IR's text side: what the reader accepts has passed the verifier, prints to a text that reads
 * back and prints to itself, and runs in the interpreter without fault when it is small. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ir/ir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void add_axes(Type *all, double *points, const Type *t) {
  for (int i = 0; i < t->rank; i++) {
    if (all->rank == IR_MAX_RANK || !type_has(all, t->dim[i].axis))
      *points *= (double)t->dim[i].size;
    type_push(all, t->dim[i].axis, t->dim[i].size);
  }
}

/* An upper bound of the interpreter's work: for every op the points of all its axes together. */
static double cost(const Func *f, const Block *b) {
  double sum = 1;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    Type all = {0};
    double points = 1;
    for (uint32_t k = 0; k < op->n_args; k++)
      add_axes(&all, &points, &f->val[op->arg[k]].type);
    for (uint32_t k = 0; k < op->n_results; k++)
      add_axes(&all, &points, &f->val[op->result + k].type);
    if (op->code == OP_GRAD)
      sum += 4 * (double)type_count(&f->val[op->arg[1]].type) * (sum + f->n_vals);
    sum += points * (op->n_args + op->n_results + 1);
    if (op->body)
      sum += (op->code == OP_LOOP ? (double)op->attr.num[0] : 1) * (cost(f, op->body) + op->body->n_params);
  }
  return sum;
}

static void run(const Func *f) {
  Arena arena = {0};
  Error err = {0};
  const Block *b = f->body;
  double size = cost(f, b);
  for (uint32_t i = 0; i < b->n_params; i++)
    size += (double)type_count(&f->val[b->param[i]].type);
  if (size < 1e5) {
    Tensor *in = ARENA_ARRAY(&arena, Tensor, b->n_params), *out = ARENA_ARRAY(&arena, Tensor, b->n_ret);
    for (uint32_t i = 0; i < b->n_params; i++) {
      in[i].type = f->val[b->param[i]].type;
      int64_t n = type_count(&in[i].type);
      in[i].data = ARENA_ARRAY(&arena, double, (size_t)n);
      for (int64_t k = 0; k < n; k++) {
        double v = (double)((k * 7 + i) % 11 - 3);
        in[i].data[k] = in[i].type.dtype == DT_BOOL ? v > 0 : in[i].type.dtype == DT_U8 ? v + 3 : v;
      }
    }
    ir_interp(f, in, out, &arena, true, &err);
  }
  arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  Error err = {0};
  Module *m = ir_read((const char *)data, n, "fuzz.ir", &err);
  if (!m)
    return 0;
  Str once = {0}, twice = {0};
  ir_print(m, &once);
  Module *again = ir_read(once.s, once.len, "again.ir", &err);
  if (!again)
    abort();
  ir_print(again, &twice);
  if (once.len != twice.len || memcmp(once.s, twice.s, once.len))
    abort();
  for (uint32_t i = 0; i < m->n_funcs; i++)
    run(m->func[i]);
  str_free(&once);
  str_free(&twice);
  ir_module_free(m);
  ir_module_free(again);
  return 0;
}
