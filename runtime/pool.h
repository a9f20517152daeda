/* pool.h: a fixed set of worker threads that run ranges of tasks. Internal to runtime/. */
#ifndef DLC_POOL_H
#define DLC_POOL_H

#include "runtime/base.h"

typedef struct Pool Pool;

/* Runs tasks lo <= t < hi as worker `worker` (0 is the caller's thread). */
typedef void (*PoolFn)(void *ctx, int32_t worker, int64_t lo, int64_t hi);

/* DLC_THREADS, else the smaller of the CPUs this process may use and the cgroup's quota. A DLC_THREADS that
 * is no number from 1 to POOL_MAX_THREADS: ERR_USAGE, returns 0. */
enum { POOL_MAX_THREADS = 1024 };
int32_t pool_default_threads(Error *err);

/* threads counts the caller. pin: one worker a CPU, done only when there are as many workers as CPUs allowed
 * (fewer may share the machine with another process, and more would fight for one CPU); the caller's affinity
 * comes back at pool_free. */
Pool *pool_new(int32_t threads, bool pin, Error *err);
void pool_free(Pool *p);
int32_t pool_threads(const Pool *p);

/* Worker w of n runs tasks ntasks * w / n .. ntasks * (w + 1) / n - 1; returns when all have ended. One
 * caller at a time. */
void pool_run(Pool *p, int64_t ntasks, PoolFn fn, void *ctx);

#endif
