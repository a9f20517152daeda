/* device.c: what is the same on every device: checking a program, one arena for all, constants, scalars,
 * results. */
#include "runtime/device_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Device *device_open(const char *kind, const DeviceOptions *options, Error *err) {
  const DeviceOps *ops = NULL;
  if (!kind || !strcmp(kind, "auto") || !strcmp(kind, "host") || !strcmp(kind, "cpu")) {
    ops = &host_ops;
  } else if (!strcmp(kind, "cuda") || !strcmp(kind, "gpu") || !strcmp(kind, "emu")) {
    error_set(err, ERR_USAGE, "device %s is not built yet: use --device host", kind);
    return NULL;
  } else {
    error_set(err, ERR_USAGE, "there is no device '%s': use auto, host, cuda or emu", kind);
    return NULL;
  }
  Device *d = calloc(1, sizeof *d);
  if (!d) {
    error_set(err, ERR_RUN, "out of memory");
    return NULL;
  }
  d->ops = ops;
  d->persistent_bytes = -1;
  static const DeviceOptions defaults = {.pin = true};
  if (!ops->open(d, options ? options : &defaults, err)) {
    free(d);
    return NULL;
  }
  return d;
}

void device_close(Device *d) {
  if (d) {
    d->ops->close(d);
    free(d);
  }
}

const char *device_kind(const Device *d) {
  return d->ops->kind;
}
int32_t device_threads(const Device *d) {
  return d->threads;
}
int64_t device_arena_bytes(const Device *d) {
  return d->arena_bytes;
}

/* ---- checks: a program that lies is refused before it can touch memory ---- */

static bool damaged(Error *err, const Program *p, const char *what, const char *name) {
  return error_set(err, ERR_RUN, "step program %s: %s '%s'", p->name, what, name);
}

static bool check_buffers(const Program *p, Error *err) {
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffer[i];
    int64_t end, bytes = (int64_t)dtype_bytes(b->dtype);
    if (b->rank > PROGRAM_MAX_RANK || !size_add(b->offset, b->bytes, &end) || end > p->arena_bytes ||
        b->offset % 64) {
      return damaged(err, p, "no room in the arena for buffer", b->name);
    }
    for (uint32_t k = 0; k < b->rank; k++) {
      if (!size_mul(bytes, b->size[k], &bytes)) {
        return damaged(err, p, "impossible size of buffer", b->name);
      }
    }
    if (bytes > b->bytes) {
      return damaged(err, p, "too few bytes for buffer", b->name);
    }
    bool persistent = b->kind == BUF_PARAM || b->kind == BUF_OPT || b->kind == BUF_STATE;
    if (persistent != (b->offset < p->persistent_bytes) && b->bytes) {
      return damaged(err, p, "wrong side of the persistent part for buffer", b->name);
    }
    if (b->kind == BUF_CONST && b->bytes && !b->init) {
      return damaged(err, p, "no bytes for constant", b->name);
    }
  }
  return true;
}

static bool check_operand(const Program *p, const Operand *o, int64_t bytes) {
  int64_t end;
  return o->buffer < p->n_buffers && size_add(o->offset, bytes, &end) && end <= p->buffer[o->buffer].bytes;
}

static bool check_launches(const Program *p, Error *err) {
  for (uint32_t i = 0; i < p->n_launches; i++) {
    const Launch *l = &p->launch[i];
    if (l->kernel >= p->n_kernels) {
      return error_set(err, ERR_RUN, "step program %s: launch %u has no kernel", p->name, i);
    }
    const Kernel *k = &p->kernel[l->kernel];
    if (l->n_args != k->n_args) {
      return damaged(err, p, "wrong number of operands of kernel", k->name);
    }
    for (uint32_t a = 0; a < l->n_args; a++) {
      if (!check_operand(p, &l->arg[a], 0)) {
        return damaged(err, p, "operand outside its buffer of kernel", k->name);
      }
    }
    if (k->scratch_bytes > 0 && !check_operand(p, &l->scratch, k->scratch_bytes)) {
      return damaged(err, p, "no scratch for kernel", k->name);
    }
  }
  for (uint32_t i = 0; i < p->n_results; i++) {
    const Result *r = &p->result[i];
    if (r->num >= p->n_buffers || (r->den != UINT32_MAX && r->den >= p->n_buffers)) {
      return damaged(err, p, "no buffer for result", r->name);
    }
  }
  return true;
}

static bool check_program(const Device *d, const Program *p, Error *err) {
  if (p->persistent_bytes < 0 || p->persistent_bytes > p->arena_bytes) {
    return error_set(err, ERR_RUN, "step program %s: impossible sizes", p->name);
  }
  if (d->persistent_bytes >= 0 && d->persistent_bytes != p->persistent_bytes) {
    return error_set(err, ERR_RUN,
                     "step program %s keeps %lld bytes between steps, those loaded before it keep %lld",
                     p->name, (long long)p->persistent_bytes, (long long)d->persistent_bytes);
  }
  return check_buffers(p, err) && check_launches(p, err);
}

/* ---- loading ---- */

/* Makes the arena large enough for p. Programs loaded before learn that it moved. */
static bool make_room(Device *d, const Program *p, Error *err) {
  if (p->arena_bytes <= d->arena_bytes) {
    return true;
  }
  int64_t keep = d->arena_bytes ? d->persistent_bytes : 0;
  if (!d->ops->reserve(d, p->arena_bytes, keep, err)) {
    return false;
  }
  d->arena_bytes = p->arena_bytes;
  d->last_run = NULL;
  for (Exec *x = d->first; x; x = x->next) {
    d->ops->moved(x);
  }
  return true;
}

Exec *exec_load(Device *d, const Program *p, SymbolFn symbol, void *ctx, Error *err) {
  if (!check_program(d, p, err) || !make_room(d, p, err)) {
    return NULL;
  }
  Exec *x = calloc(1, sizeof *x);
  KernelTime *time = calloc(p->n_kernels + 1, sizeof *time);
  if (!x || !time) {
    free(x);
    free(time);
    error_set(err, ERR_RUN, "out of memory");
    return NULL;
  }
  *x = (Exec){.device = d, .program = p, .time = time};
  for (uint32_t k = 0; k < p->n_kernels; k++) {
    time[k].kernel = k;
  }
  if (!d->ops->load(x, symbol, ctx, err)) {
    free(time);
    free(x);
    return NULL;
  }
  d->persistent_bytes = p->persistent_bytes;
  x->next = d->first;
  d->first = x;
  return x;
}

void exec_unload(Exec *x) {
  if (!x) {
    return;
  }
  Device *d = x->device;
  for (Exec **link = &d->first; *link; link = &(*link)->next) {
    if (*link == x) {
      *link = x->next;
      break;
    }
  }
  if (d->last_run == x) {
    d->last_run = NULL;
  }
  d->ops->unload(x);
  free(x->time);
  free(x);
}

const Program *exec_program(const Exec *x) {
  return x->program;
}

/* ---- buffers ---- */

uint32_t exec_buffer(const Exec *x, BufferKind kind, const char *name) {
  for (uint32_t i = 0; i < x->program->n_buffers; i++) {
    const Buffer *b = &x->program->buffer[i];
    if (b->kind == kind && b->name && !strcmp(b->name, name)) {
      return i;
    }
  }
  return UINT32_MAX;
}

uint32_t exec_result(const Exec *x, const char *name) {
  for (uint32_t i = 0; i < x->program->n_results; i++) {
    if (!strcmp(x->program->result[i].name, name)) {
      return i;
    }
  }
  return UINT32_MAX;
}

static bool in_buffer(const Exec *x, uint32_t buffer, int64_t offset, int64_t n, Error *err) {
  int64_t end;
  if (buffer >= x->program->n_buffers) {
    return error_set(err, ERR_RUN, "program %s has no buffer %u", x->program->name, buffer);
  }
  const Buffer *b = &x->program->buffer[buffer];
  if (!size_add(offset, n, &end) || end > b->bytes) {
    return error_set(err, ERR_RUN, "bytes %lld to %lld are outside buffer '%s' of %lld bytes",
                     (long long)offset, (long long)offset + n, b->name, (long long)b->bytes);
  }
  return true;
}

bool exec_write(Exec *x, uint32_t buffer, int64_t offset, const void *from, int64_t n, Error *err) {
  if (!in_buffer(x, buffer, offset, n, err)) {
    return false;
  }
  x->device->ops->upload(x->device, x->program->buffer[buffer].offset + offset, from, n);
  return true;
}

bool exec_read(Exec *x, uint32_t buffer, int64_t offset, void *to, int64_t n, Error *err) {
  if (!in_buffer(x, buffer, offset, n, err)) {
    return false;
  }
  x->device->ops->download(x->device, x->program->buffer[buffer].offset + offset, to, n);
  return true;
}

void *exec_map(Exec *x, uint32_t buffer) {
  return x->device->ops->map(x->device, x->program->buffer[buffer].offset);
}

/* ---- scalars ---- */

void exec_set_scalar(Exec *x, ScalarKind kind, int64_t value) {
  static const char *const names[SCALAR_COUNT] = {
#define X(e, name, dtype) name,
      SCALARS(X)
#undef X
  };
  uint32_t at = exec_buffer(x, BUF_SCALAR, names[kind]);
  if (at == UINT32_MAX) {
    return;
  }
  const Buffer *b = &x->program->buffer[at];
  double real = (double)value;
  float single = (float)value;
  int32_t narrow = (int32_t)value;
  const void *from = b->dtype == DT_F64   ? (void *)&real
                     : b->dtype == DT_F32 ? (void *)&single
                     : b->dtype == DT_I32 ? (void *)&narrow
                                          : (void *)&value;
  x->device->ops->upload(x->device, b->offset, from, (int64_t)dtype_bytes(b->dtype));
}

static double read_scalar(Exec *x, uint32_t buffer) {
  const Buffer *b = &x->program->buffer[buffer];
  union {
    double f64;
    float f32;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
  } v = {0};
  int64_t n = (int64_t)dtype_bytes(b->dtype);
  x->device->ops->download(x->device, b->offset, &v, n < b->bytes ? n : b->bytes);
  switch (b->dtype) {
  case DT_F64: return v.f64;
  case DT_F32: return (double)v.f32;
  case DT_I64: return (double)v.i64;
  case DT_I32: return (double)v.i32;
  case DT_U8:
  case DT_BOOL: return (double)v.u8;
  default: return NAN;
  }
}

void exec_num_den(Exec *x, uint32_t result, double *num, double *den) {
  const Result *r = &x->program->result[result];
  *num = read_scalar(x, r->num);
  *den = r->den == UINT32_MAX ? 1 : read_scalar(x, r->den);
}

double exec_value(Exec *x, uint32_t result) {
  if (x->program->result[result].kind > 1) {
    return NAN;
  }
  double num, den;
  exec_num_den(x, result, &num, &den);
  return num / den;
}

/* ---- running ---- */

/* Constants lie in the part of the arena that other programs use too, and their room may be lent out after
 * their last use. */
static void write_constants(Exec *x) {
  const Program *p = x->program;
  bool fresh = x->device->last_run != x;
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffer[i];
    bool whole = b->first <= 0 && b->last >= (int32_t)p->n_launches;
    if (b->kind == BUF_CONST && b->bytes && (fresh || !whole)) {
      x->device->ops->upload(x->device, b->offset, b->init, b->bytes);
    }
  }
  x->device->last_run = x;
}

bool exec_run(Exec *x, Error *err) {
  write_constants(x);
  return x->device->ops->run(x, err);
}

void exec_profile(Exec *x, bool on) {
  x->profile = on;
}

const KernelTime *exec_times(const Exec *x, uint32_t *n) {
  *n = x->program->n_kernels;
  return x->time;
}
