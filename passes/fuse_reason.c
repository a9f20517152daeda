/* fuse_reason.c: why a value is written to memory instead of staying inside a kernel. It looks at a fused
 * function only: at the region that writes the value and at the first that reads it. */
#include "passes/fuse.h"

#include <string.h>

typedef struct {
  const Func *f;
  Arena *arena;
  StoredValue *out;
  uint32_t n, cap;
} Reasons;

/* ---- what stands between two regions ---- */

static const char *read_by(const Op *op, uint32_t k) {
  switch (op->code) {
  case OP_CONTRACT: return "operands of a contraction lie in memory, where its tiles are packed from";
  case OP_ATTENTION:
  case OP_ATTENTION_GRAD: return "operands of attention lie in memory, tiles of them are read many times";
  case OP_GATHER: return k == 0 ? "it is read at computed places" : NULL;
  case OP_SCATTER_ADD: return "scatter_add reads its operands from memory";
  case OP_SORT: return "sort reads its operand from memory";
  case OP_CUMSUM: return "a running sum reads its operand from memory";
  case OP_SLICE:
  case OP_PAD:
  case OP_CONCAT:
  case OP_SPLIT:
  case OP_MERGE:
  case OP_RENAME: return "its reader takes other elements of it than those it has at hand";
  default: return NULL;
  }
}

/* The first use of a region's operand that needs it in memory. */
static const char *use_in(const Func *f, const Block *b, Val param) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      if (op->arg[k] == param && read_by(op, k))
        return read_by(op, k);
  }
  return NULL;
}

static const Op *find_op(const Func *f, const Block *b, OpClass cls) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    if (ir_op_info[op->code].cls == cls || (cls == CLASS_REDUCE && op->code == OP_SOFTMAX))
      return op;
  }
  return NULL;
}

static const char *written_by(const Func *f, const Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++)
    switch (f->op[b->op[i]].code) {
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD: return "attention writes its results tile by tile";
    case OP_SCATTER_ADD: return "scatter_add is complete only at its end";
    case OP_SORT: return "sort is complete only at its end";
    case OP_CUMSUM: return "a running sum is a kernel of its own";
    default: break;
    }
  return NULL;
}

static bool same_dims_somewhere(const Func *f, const Block *b, const Type *t) {
  for (uint32_t i = 0; i < b->n_ret; i++)
    if (type_same_dims(ir_type(f, b->ret[i]), t))
      return true;
  return false;
}

/* Does the op at `from`, through others, read what `to` writes? */
static bool depends(const Func *f, OpId from, OpId to, bool *seen) {
  const Op *op = &f->op[from];
  for (uint32_t k = 0; k < op->n_args; k++) {
    OpId d = f->val[op->arg[k]].def;
    if (d == to)
      return true;
    if (d != NONE && !seen[d]) {
      seen[d] = true;
      if (depends(f, d, to, seen))
        return true;
    }
  }
  return false;
}

/* The reader needs another kernel that itself waits for the writer. */
static bool kernel_between(const Func *f, OpId writer, OpId reader) {
  Arena mem = {0};
  bool *seen = ARENA_ARRAY(&mem, bool, f->n_ops), found = false;
  const Op *op = &f->op[reader];
  for (uint32_t k = 0; k < op->n_args && !found; k++) {
    OpId d = f->val[op->arg[k]].def;
    while (d != NONE && d != writer && is_view(f, &f->op[d]))
      d = f->val[f->op[d].arg[0]].def;
    found = d != NONE && d != writer && !seen[d] && depends(f, d, writer, seen);
  }
  arena_free(&mem);
  return found;
}

static const char *between(const Func *f, OpId writer, Val v, OpId reader, uint32_t operand) {
  const Op *w = &f->op[writer], *r = &f->op[reader];
  const char *why = use_in(f, r->body, r->body->param[operand]);
  if (!why)
    why = written_by(f, w->body);
  if (why)
    return why;
  const Op *sums = find_op(f, w->body, CLASS_REDUCE), *other = find_op(f, r->body, CLASS_REDUCE);
  if (kernel_between(f, writer, reader))
    return "its reader waits for a third kernel that waits for this one";
  if (sums && other && !same_axes(sums->attr.axis, sums->attr.n_axis, other->attr.axis, other->attr.n_axis))
    return "its reader reduces other axes";
  bool product = find_op(f, w->body, CLASS_CONTRACT) != NULL,
       same = same_dims_somewhere(f, r->body, ir_type(f, v));
  if (written_by(f, r->body))
    return "its reader is a kernel of its own kind that starts from it";
  if (find_op(f, r->body, CLASS_CONTRACT))
    return product ? "a kernel has one contraction" : "the pass after a contraction reads it";
  if (product)
    return other  ? "the pass after a contraction does not reduce"
           : same ? "the contraction's kernel has no room for its reader"
                  : "its reader runs over other dims than the contraction";
  if (sums && !other)
    return "its reader runs over other dims than the reduction";
  if (!same)
    return "its reader runs over other dims";
  if (w->n_args + w->n_results + r->n_args + r->n_results > MAX_OPERANDS)
    return "the two kernels together would have too many operands";
  return "storing it moves fewer bytes than computing it again";
}

/* ---- every value ---- */

static void add(Reasons *x, Val v, OpId writer, OpId reader, const char *why) {
  StoredValue s = {.value = v, .writer = writer, .reader = reader, .why = why};
  VEC_PUSH(x->arena, x->out, x->n, x->cap, s);
}

/* The first reader of v in the block, through views; false: there is none. */
static bool first_reader(const Func *f, const Block *b, Val v, OpId *reader, uint32_t *operand) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++) {
      if (op->arg[k] != v)
        continue;
      if (op->code != OP_REGION && op->code != OP_LOOP) {
        if (first_reader(f, b, op->result, reader, operand))
          return true;
        continue;
      }
      *reader = b->op[i];
      *operand = k;
      return true;
    }
  }
  return false;
}

static const char *returned(const Func *f, const Block *b, Val v, const Op *loop) {
  for (uint32_t i = 0; i < b->n_ret; i++) {
    if (whole_root(f, b->ret[i]) != v)
      continue;
    if (!loop)
      return "it is a result of the step";
    return i < (uint32_t)loop->attr.num[1] ? "the next iteration reads it"
                                           : "each iteration's is kept for later";
  }
  return NULL;
}

static void visit_block(Reasons *x, const Block *b, const Op *loop) {
  const Func *f = x->f;
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    if (op->code == OP_LOOP)
      visit_block(x, op->body, op);
    for (uint32_t k = 0; op->code == OP_REGION && k < op->n_results; k++) {
      Val v = op->result + k;
      OpId reader = NONE;
      uint32_t operand = 0;
      const char *why = returned(f, b, v, loop);
      bool read = first_reader(f, b, v, &reader, &operand);
      if (!why && !read)
        why = "its kernel writes all it computes";
      else if (!why)
        why = f->op[reader].code == OP_LOOP ? "a loop reads it" : between(f, b->op[i], v, reader, operand);
      add(x, v, b->op[i], read && f->op[reader].code == OP_REGION ? reader : NONE, why);
    }
  }
}

const StoredValue *fuse_stored(const Func *f, Arena *arena, uint32_t *n) {
  Reasons x = {.f = f, .arena = arena};
  visit_block(&x, f->body, NULL);
  *n = x.n;
  return x.out;
}

void program_print_stored(const Draft *d, uint32_t kernel, const char *prefix, Str *out) {
  const Func *f = d->func;
  Arena mem = {0};
  uint32_t n;
  const StoredValue *s = fuse_stored(f, &mem, &n);
  for (uint32_t i = 0; i < n; i++) {
    const char *name = f->val[s[i].value].name;
    if (kernel != UINT32_MAX && d->kernel_of[s[i].writer] != kernel)
      continue;
    str_printf(out, "%s%s writes %s%s", prefix, d->program.kernel[d->kernel_of[s[i].writer]].name,
               name ? name : "", name ? " " : "");
    type_print(f->module, ir_type(f, s[i].value), out);
    if (s[i].reader != NONE)
      str_printf(out, " for %s", d->program.kernel[d->kernel_of[s[i].reader]].name);
    str_printf(out, ": %s\n", s[i].why);
  }
  arena_free(&mem);
}
