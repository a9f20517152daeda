/* reference.c: a device that interprets: every launch runs its region in the interpreter of the IR, on the
 * bytes of the arena. What fusing, lowering and the memory plan did to a function is checked with it, kernels
 * apart. */
#include "passes/program.h"

#include <math.h>
#include <string.h>

static double load(DType d, const unsigned char *at) {
  union {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint8_t u8;
  } v = {0};
  memcpy(&v, at, dtype_bytes(d));
  switch (d) {
  case DT_F32: return (double)v.f32;
  case DT_F64: return v.f64;
  case DT_I32: return (double)v.i32;
  case DT_I64: return (double)v.i64;
  case DT_U8:
  case DT_BOOL: return (double)v.u8;
  default: return NAN;
  }
}

static void store(DType d, unsigned char *at, double x) {
  union {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint8_t u8;
  } v = {0};
  switch (d) {
  case DT_F32: v.f32 = (float)x; break;
  case DT_F64: v.f64 = x; break;
  case DT_I32: v.i32 = (int32_t)x; break;
  case DT_I64: v.i64 = (int64_t)x; break;
  default: v.u8 = (uint8_t)x; break;
  }
  memcpy(at, &v, dtype_bytes(d));
}

void program_load(const Program *p, uint32_t buffer, const void *arena, double *out, int64_t n) {
  const Buffer *b = &p->buffer[buffer];
  const unsigned char *at = (const unsigned char *)arena + b->offset;
  for (int64_t i = 0; i < n; i++)
    out[i] = load(b->dtype, at + i * (int64_t)dtype_bytes(b->dtype));
}

void program_store(const Program *p, uint32_t buffer, void *arena, const double *in, int64_t n) {
  const Buffer *b = &p->buffer[buffer];
  unsigned char *at = (unsigned char *)arena + b->offset;
  for (int64_t i = 0; i < n; i++)
    store(b->dtype, at + i * (int64_t)dtype_bytes(b->dtype), in[i]);
}

static unsigned char *operand_at(const Program *p, const Operand *o, const Type *t, unsigned char *arena,
                                 Error *err) {
  const Buffer *b = &p->buffer[o->buffer];
  int64_t bytes;
  if (!type_bytes(t, &bytes) || o->offset + bytes > b->bytes) {
    error_set(err, ERR_RUN, "an operand reaches past the end of buffer %u '%s'", o->buffer, b->name);
    return NULL;
  }
  return arena + b->offset + o->offset;
}

static bool run_launch(const Draft *d, const Launch *l, unsigned char *arena, bool round, Error *err) {
  const Program *p = &d->program;
  const Op *op = &d->func->op[d->region[l->kernel]];
  Arena mem = {0};
  Tensor *in = ARENA_ARRAY(&mem, Tensor, op->n_args), *out = ARENA_ARRAY(&mem, Tensor, op->n_results);
  bool ok = true;
  for (uint32_t k = 0; k < op->n_args && ok; k++) {
    in[k].type = *ir_type(d->func, op->body->param[k]);
    int64_t n = type_count(&in[k].type), size = (int64_t)dtype_bytes(in[k].type.dtype);
    const unsigned char *at = operand_at(p, &l->arg[k], &in[k].type, arena, err);
    ok = at != NULL;
    in[k].data = ARENA_ARRAY(&mem, double, (size_t)n);
    for (int64_t i = 0; i < n && ok; i++)
      in[k].data[i] = load(in[k].type.dtype, at + i * size);
  }
  /* The region's body as a function of its own. */
  Func body = *d->func;
  body.body = op->body;
  ok = ok && ir_interp(&body, in, out, &mem, round, err);
  for (uint32_t k = 0; k < op->n_results && ok; k++) {
    const Type *t = ir_type(d->func, op->body->ret[k]);
    int64_t n = type_count(t), size = (int64_t)dtype_bytes(t->dtype);
    unsigned char *at = operand_at(p, &l->arg[op->n_args + k], t, arena, err);
    ok = at != NULL;
    for (int64_t i = 0; i < n && ok; i++)
      store(t->dtype, at + i * size, out[k].data[i]);
  }
  arena_free(&mem);
  return ok;
}

/* Bytes nobody may read any more. */
static void poison(const Program *p, const Buffer *b, unsigned char *arena) {
  if (b->kind == BUF_TEMP && b->bytes && b->offset + b->bytes <= p->arena_bytes)
    memset(arena + b->offset, 0xff, (size_t)b->bytes);
}

bool program_run_reference(const Draft *d, void *arena, bool round_to_dtype, Error *err) {
  const Program *p = &d->program;
  for (uint32_t i = 0; i < p->n_buffers; i++)
    if (p->buffer[i].kind == BUF_CONST && p->buffer[i].bytes)
      memcpy((unsigned char *)arena + p->buffer[i].offset, p->buffer[i].init, (size_t)p->buffer[i].bytes);
  for (uint32_t i = 0; i < p->n_launches; i++) {
    if (!run_launch(d, &p->launch[i], arena, round_to_dtype, err))
      return false;
    for (uint32_t k = 0; k < p->launch[i].n_args; k++) {
      const Buffer *b = &p->buffer[p->launch[i].arg[k].buffer];
      if (b->last == (int32_t)i)
        poison(p, b, arena);
    }
  }
  return true;
}
