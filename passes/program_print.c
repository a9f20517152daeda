/* program_print.c: program.txt and memory.txt. */
#include "passes/program.h"

#include <stdlib.h>
#include <string.h>

static const char *const kind_name[] = {"param",  "opt",   "state", "input",
                                        "scalar", "const", "temp",  "output"};

static void put_shape(const Buffer *b, Str *out) {
  str_puts(out, dtype_name(b->dtype));
  for (uint32_t i = 0; i < b->rank; i++)
    str_printf(out, "%s%s=%lld", i ? ", " : "[", b->axis[i], (long long)b->size[i]);
  str_puts(out, b->rank ? "]" : "");
}

static void put_operand(const Program *p, const Operand *o, Str *out) {
  str_printf(out, " #%u:%s", o->buffer, p->buffer[o->buffer].name);
  if (o->offset)
    str_printf(out, "+%lld", (long long)o->offset);
}

static void put_sizes(const Program *p, Str *out) {
  str_printf(out, "program %s\n", p->name);
  str_printf(out, "arena %lld bytes, persistent %lld, lower bound %lld (%.3f times)\n",
             (long long)p->arena_bytes, (long long)p->persistent_bytes, (long long)p->lower_bound_bytes,
             p->lower_bound_bytes ? (double)p->arena_bytes / (double)p->lower_bound_bytes : 1.0);
}

void program_print(const Program *p, Str *out) {
  put_sizes(p, out);
  str_printf(out, "\n%u kernels\n", p->n_kernels);
  for (uint32_t i = 0; i < p->n_kernels; i++) {
    const Kernel *k = &p->kernel[i];
    str_printf(out, "  %s %s: %u operands, %u results, %.0f flops, %.0f bytes, scratch %lld", k->name, k->cls,
               k->n_args - k->n_outputs, k->n_outputs, k->flops, k->bytes, (long long)k->scratch_bytes);
    str_printf(out, "; %s%s%s\n", k->fused, k->loc[0] ? "; " : "", k->loc);
    for (uint32_t n = 0; n < k->n_phases; n++)
      str_printf(out, "    phase %s: %lld tasks\n", k->phase[n].symbol, (long long)k->phase[n].ntasks);
  }
  str_printf(out, "\n%u launches\n", p->n_launches);
  for (uint32_t i = 0; i < p->n_launches; i++) {
    const Launch *l = &p->launch[i];
    const Kernel *k = &p->kernel[l->kernel];
    str_printf(out, "  %u %s", i, k->name);
    for (uint32_t a = 0; a < l->n_args; a++) {
      str_puts(out, a == l->n_args - k->n_outputs ? " ->" : "");
      put_operand(p, &l->arg[a], out);
    }
    if (l->scratch.buffer != UINT32_MAX) {
      str_puts(out, " scratch");
      put_operand(p, &l->scratch, out);
    }
    str_putc(out, '\n');
  }
  str_printf(out, "\n%u results\n", p->n_results);
  static const char *const result_kind[] = {"mean", "scalar", "tensor", "gradient"};
  for (uint32_t i = 0; i < p->n_results; i++) {
    const Result *r = &p->result[i];
    str_printf(out, "  %s %s #%u", r->name, result_kind[r->kind], r->num);
    if (r->den != UINT32_MAX)
      str_printf(out, " / #%u", r->den);
    str_putc(out, '\n');
  }
}

typedef struct {
  uint32_t buffer;
  int64_t offset, bytes;
} Row;

static int by_offset(const void *a, const void *b) {
  const Row *x = a, *y = b;
  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  return x->buffer < y->buffer ? -1 : x->buffer > y->buffer;
}

static int by_bytes(const void *a, const void *b) {
  const Row *x = a, *y = b;
  return x->bytes != y->bytes ? (x->bytes > y->bytes ? -1 : 1) : by_offset(a, b);
}

static bool alive(const Buffer *b, uint32_t launch) {
  return b->first <= (int32_t)launch && b->last >= (int32_t)launch;
}

/* The launch with most bytes alive. */
static uint32_t peak_of(const Program *p, Arena *mem) {
  int64_t *change = ARENA_ARRAY(mem, int64_t, (size_t)p->n_launches + 2), now = 0, most = -1;
  uint32_t peak = 0;
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    change[p->buffer[i].first] += buffer_room(&p->buffer[i]);
    change[p->buffer[i].last + 1] -= buffer_room(&p->buffer[i]);
  }
  for (uint32_t t = 0; t < p->n_launches; t++) {
    now += change[t];
    if (now > most) {
      most = now;
      peak = t;
    }
  }
  return peak;
}

static void put_row(const Program *p, uint32_t i, Str *out) {
  const Buffer *b = &p->buffer[i];
  str_printf(out, "  %12lld %12lld  %5d..%-5d %-6s #%u:%s ", (long long)b->offset, (long long)b->bytes,
             b->first, b->last, kind_name[b->kind], i, b->name);
  put_shape(b, out);
  str_putc(out, '\n');
}

void program_print_memory(const Program *p, Str *out) {
  Arena mem = {0};
  Row *row = ARENA_ARRAY(&mem, Row, p->n_buffers);
  int64_t sum[sizeof kind_name / sizeof *kind_name] = {0};
  put_sizes(p, out);
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    row[i] = (Row){i, p->buffer[i].offset, p->buffer[i].bytes};
    sum[p->buffer[i].kind] += buffer_room(&p->buffer[i]);
  }
  for (size_t k = 0; k < sizeof sum / sizeof *sum; k++)
    if (sum[k])
      str_printf(out, "  %-6s %lld bytes\n", kind_name[k], (long long)sum[k]);
  uint32_t peak = peak_of(p, &mem);
  if (p->n_launches)
    str_printf(out, "\nalive at the peak, launch %u %s, largest first\n", peak,
               p->kernel[p->launch[peak].kernel].name);
  qsort(row, p->n_buffers, sizeof *row, by_bytes);
  for (uint32_t i = 0; i < p->n_buffers && p->n_launches; i++)
    if (alive(&p->buffer[row[i].buffer], peak))
      put_row(p, row[i].buffer, out);
  str_puts(out, "\nall buffers by place\n");
  qsort(row, p->n_buffers, sizeof *row, by_offset);
  for (uint32_t i = 0; i < p->n_buffers; i++)
    put_row(p, row[i].buffer, out);
  arena_free(&mem);
}
