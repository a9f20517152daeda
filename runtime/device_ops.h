/* device_ops.h: the table every kind of device fills. Internal to runtime/. */
#ifndef DLC_DEVICE_OPS_H
#define DLC_DEVICE_OPS_H

#include "runtime/device.h"

typedef struct {
  const char *kind;
  bool (*open)(Device *d, const DeviceOptions *o, Error *err); /* sets d->impl and d->threads */
  void (*close)(Device *d);
  bool (*reserve)(Device *d, int64_t bytes, int64_t keep,
                  Error *err); /* a larger arena; the first `keep` bytes stay */
  bool (*load)(Exec *x, SymbolFn symbol, void *ctx, Error *err); /* sets x->impl */
  void (*unload)(Exec *x);
  void (*moved)(Exec *x); /* the arena is at another place: update what points into it */
  void (*upload)(Device *d, int64_t offset, const void *from, int64_t n);
  void (*download)(Device *d, int64_t offset, void *to, int64_t n);
  void *(*map)(Device *d, int64_t offset); /* NULL: not in host memory */
  bool (*run)(Exec *x, Error *err);
} DeviceOps;

struct Device {
  const DeviceOps *ops;
  void *impl;
  int32_t threads;
  int64_t arena_bytes, persistent_bytes; /* -1 before the first program */
  Exec *first;                           /* programs loaded, linked by next */
  const Exec *last_run;                  /* whose constants are in the arena */
};

struct Exec {
  Device *device;
  const Program *program;
  Exec *next;
  void *impl;
  bool profile;
  KernelTime *time;
};

extern const DeviceOps host_ops;

#endif
