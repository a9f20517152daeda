/* device.h: where a step program runs. One table of functions a kind of device; callers use the exec_ and
 * device_ functions.
 *
 * A Device owns ONE arena. Every program loaded on it shares that arena: persistent buffers (parameters,
 * optimizer state, module state) keep their offsets in every program of a model, so that what `train` wrote
 * is what `eval` reads. Everything else in the arena belongs to the program that runs: outputs of a program
 * are lost when another one runs. A Device and its programs are used by one thread at a time. */
#ifndef DLC_DEVICE_H
#define DLC_DEVICE_H

#include "runtime/program.h"

typedef struct Device Device;
typedef struct Exec Exec; /* a program loaded on a device */

/* Finds a kernel's symbol in object `object` of the program; NULL when it is not there. ctx is the caller's.
 */
typedef void *(*SymbolFn)(void *ctx, uint32_t object, const char *name);

typedef struct {
  int32_t threads; /* 0: DLC_THREADS, else what affinity and the cgroup's quota allow */
  bool pin;        /* one worker a CPU; switched off by itself when there are more workers than CPUs */
} DeviceOptions;

/* kind: "auto", "host" or "cpu". Other kinds are an ERR_USAGE error that says what is missing. NULL on error.
 */
Device *device_open(const char *kind, const DeviceOptions *options, Error *err);
void device_close(Device *d); /* programs loaded on it must be unloaded before */
const char *device_kind(const Device *d);
int32_t device_threads(const Device *d);
int64_t device_arena_bytes(const Device *d);

/* Loads a program: checks it (operands inside their buffers, buffers inside the arena, the same persistent
 * bytes as the programs loaded before), resolves every symbol, grows the arena when it must (contents of the
 * persistent part are kept). The program, its strings and the code behind the symbols must outlive the Exec.
 * The first arena is zeroed. NULL on error. */
Exec *exec_load(Device *d, const Program *p, SymbolFn symbol, void *ctx, Error *err);
void exec_unload(Exec *x);
const Program *exec_program(const Exec *x);

/* Index of the buffer with this kind and name, UINT32_MAX when there is none. */
uint32_t exec_buffer(const Exec *x, BufferKind kind, const char *name);
/* Index of the result with this name, UINT32_MAX when there is none. */
uint32_t exec_result(const Exec *x, const char *name);

/* Copies between host memory and a buffer; offset and n in bytes, checked against the buffer (ERR_RUN). */
bool exec_write(Exec *x, uint32_t buffer, int64_t offset, const void *from, int64_t n, Error *err);
bool exec_read(Exec *x, uint32_t buffer, int64_t offset, void *to, int64_t n, Error *err);
/* The buffer's bytes in host memory when the device shares it (host), else NULL. Valid until the next
 * exec_load. */
void *exec_map(Exec *x, uint32_t buffer);

/* Sets a scalar (SCALARS of program.h); programs that do not have it ignore the call. */
void exec_set_scalar(Exec *x, ScalarKind kind, int64_t value);

/* Runs the program once: scalars and inputs must have been written since another program ran. ERR_RUN on
 * failure. */
bool exec_run(Exec *x, Error *err);

/* A result after exec_run: the mean num / den (kind 0), or the scalar itself (kind 1). NaN for other kinds.
 */
double exec_value(Exec *x, uint32_t result);
/* num and den apart, in f64 (den = 1 where there is none), for sums over several runs. */
void exec_num_den(Exec *x, uint32_t result, double *num, double *den);

/* Time by kernel while switched on (costs two clock reads a launch). */
typedef struct {
  uint32_t kernel; /* index into Program.kernel */
  int64_t launches;
  double seconds;
} KernelTime;
void exec_profile(Exec *x, bool on);
/* n_kernels rows owned by the Exec, in order of kernels. */
const KernelTime *exec_times(const Exec *x, uint32_t *n);

#endif
