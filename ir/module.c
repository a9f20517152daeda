/* module.c: the op table, modules, their axes and functions. */
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>

const OpInfo ir_op_info[OP_COUNT] = {
#define OP(name, text, cls, n_args, n_results, flags, flops)                                                 \
  {text, CLASS_##cls, n_args, n_results, flags, flops},
#include "ops.def"
#undef OP
};

bool op_is_pointwise(OpCode c) {
  OpClass k = ir_op_info[c].cls;
  return k == CLASS_UNARY || k == CLASS_BINARY || k == CLASS_COMPARE || k == CLASS_LOGIC || k == CLASS_SELECT;
}

Module *ir_module_new(void) {
  Module *m = calloc(1, sizeof *m);
  if (!m) {
    abort();
  }
  m->real = DT_F32;
  return m;
}

void ir_module_free(Module *m) {
  if (m) {
    arena_free(&m->arena);
    free(m);
  }
}

Axis ir_axis(Module *m, const char *name) {
  for (uint32_t i = 0; i < m->n_axes; i++) {
    if (!strcmp(m->axis[i], name)) {
      return i;
    }
  }
  VEC_PUSH(&m->arena, m->axis, m->n_axes, m->cap_axes, arena_strdup(&m->arena, name));
  return m->n_axes - 1;
}

const char *ir_axis_name(const Module *m, Axis a) {
  return a < m->n_axes ? m->axis[a] : "?";
}

Func *ir_func_new(Module *m, const char *name) {
  Func *f = ARENA_NEW(&m->arena, Func);
  f->module = m;
  f->name = arena_strdup(&m->arena, name);
  f->body = ir_block_new(f);
  VEC_PUSH(&m->arena, m->func, m->n_funcs, m->cap_funcs, f);
  return f;
}

Func *ir_func(Module *m, const char *name) {
  /* The last of a name wins: pipelines rebuild functions. */
  for (uint32_t i = m->n_funcs; i-- > 0;) {
    if (!strcmp(m->func[i]->name, name)) {
      return m->func[i];
    }
  }
  return NULL;
}
