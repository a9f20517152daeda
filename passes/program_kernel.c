/* program_kernel.c: the table of kernels: regions with one canonical text are one kernel, whatever the layer
 * or module. */
#include "passes/program.h"

#include <string.h>

enum { MAX_TEXT = 160, MAX_LINES = 8 };

/* "contract, add, tanh, mul x3": what a reader wants to know, so nothing that only moves or spreads. */
static const char *fused_text(const Func *f, const Block *b, Arena *arena) {
  Str s = {0};
  const char *last = NULL;
  uint32_t times = 0;
  for (uint32_t i = 0; i <= b->n_ops; i++) {
    const Op *op = i < b->n_ops ? &f->op[b->op[i]] : NULL;
    const char *name = op ? ir_op_info[op->code].text : NULL;
    if (op && (op->code == OP_CONST || op->code == OP_BROADCAST || op->code == OP_RENAME))
      continue;
    if (last && name && strcmp(last, name) == 0) {
      times++;
      continue;
    }
    if (times > 1)
      str_printf(&s, " x%u", times);
    if (op && s.len > MAX_TEXT) {
      str_puts(&s, ", ...");
      break;
    }
    if (op)
      str_printf(&s, "%s%s", s.len ? ", " : "", name);
    last = name;
    times = 1;
  }
  const char *text = arena_strdup(arena, s.s ? s.s : "copy");
  str_free(&s);
  return text;
}

/* "gpt2.dl:24, gpt2.dl:25" */
static const char *source_lines(const Func *f, const Block *b, Arena *arena) {
  Loc seen[MAX_LINES];
  uint32_t n = 0;
  Str s = {0};
  for (uint32_t i = 0; i < b->n_ops && n < MAX_LINES; i++) {
    Loc l = f->op[b->op[i]].loc;
    uint32_t k = 0;
    if (l.file >= f->module->n_files || !l.line)
      continue;
    while (k < n && (seen[k].file != l.file || seen[k].line != l.line))
      k++;
    if (k < n)
      continue;
    seen[n++] = l;
    const char *path = f->module->file[l.file], *slash = strrchr(path, '/');
    str_printf(&s, "%s%s:%u", s.len ? ", " : "", slash ? slash + 1 : path, l.line);
  }
  const char *text = arena_strdup(arena, s.s ? s.s : "");
  str_free(&s);
  return text;
}

static double moved_bytes(const Func *f, const Op *op) {
  double sum = 0;
  for (uint32_t i = 0; i < op->n_args + op->n_results; i++) {
    const Type *t = ir_type(f, i < op->n_args ? op->arg[i] : op->result + (i - op->n_args));
    int64_t bytes = 0;
    sum += type_bytes(t, &bytes) ? (double)bytes : 0;
  }
  return sum;
}

static uint32_t new_kernel(Making *x, OpId region) {
  const Func *f = x->f;
  const Op *op = &f->op[region];
  Program *p = x->p;
  Kernel k = {.cls = op->attr.str ? op->attr.str : "map",
              .fused = fused_text(f, op->body, x->arena),
              .loc = source_lines(f, op->body, x->arena),
              .n_args = op->n_args + op->n_results,
              .n_outputs = op->n_results,
              .bytes = moved_bytes(f, op),
              .object = p->n_kernels};
  k.name = arena_printf(x->arena, "%s_%u", k.cls, p->n_kernels);
  for (uint32_t i = 0; i < op->body->n_ops; i++)
    k.flops += ir_op_flops(f, op->body->op[i]);
  uint32_t n = p->n_kernels;
  VEC_PUSH(x->arena, x->region, n, x->cap_regions, region);
  VEC_PUSH(x->arena, p->kernel, p->n_kernels, x->cap_kernels, k);
  return p->n_kernels - 1;
}

uint32_t make_kernel(Making *x, OpId region) {
  if (x->kernel_of[region] != NONE)
    return x->kernel_of[region];
  Str s = {0};
  ir_print_region(x->f, region, &s);
  uint64_t hash = hash_bytes(s.s, s.len, 0);
  uint32_t k = 0;
  while (k < x->n_hash && (x->hash[k] != hash || strcmp(x->text[k], s.s) != 0))
    k++;
  if (k == x->n_hash) {
    VEC_PUSH(&x->mem, x->hash, x->n_hash, x->cap_hash, hash);
    VEC_PUSH(&x->mem, x->text, x->n_text, x->cap_text, arena_strdup(&x->mem, s.s));
    k = new_kernel(x, region);
  }
  str_free(&s);
  return x->kernel_of[region] = k;
}
