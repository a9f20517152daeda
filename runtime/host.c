/* host.c: the host device: an arena in ordinary memory, kernels run over the thread pool. */
#include "runtime/device_ops.h"
#include "runtime/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef void (*HostKernel)(void *const *args, int64_t lo, int64_t hi, void *scratch);

enum { HUGE_PAGE = 2 << 20, LINE = 64 };

typedef struct {
  Pool *pool;
  unsigned char *arena; /* on a huge page's boundary inside the mapping */
  void *mapping;
  size_t mapped;
  unsigned char **own; /* thread scratch of each worker */
  int64_t own_bytes;
} Host;

/* A launch with its pointers. Kernels with thread scratch have one table of arguments a worker, each ending
 * in its scratch. */
typedef struct {
  void **args;
  uint32_t stride; /* pointers a worker; 0: all share one table */
  void *scratch;
} HostLaunch;

typedef struct {
  HostKernel *fn; /* of every phase, kernel after kernel */
  uint32_t *first_fn;
  HostLaunch *launch;
  void **args;
} HostExec;

/* ---- the arena ---- */

static bool host_open(Device *d, const DeviceOptions *o, Error *err) {
  int32_t threads = o->threads ? o->threads : pool_default_threads(err);
  Host *h = threads ? calloc(1, sizeof *h) : NULL;
  unsigned char **own = threads > 0 ? calloc((size_t)threads, sizeof *own) : NULL;
  Pool *pool = h && own ? pool_new(threads, o->pin, err) : NULL;
  if (!pool) {
    free(h);
    free(own);
    return error_set(err, ERR_RUN, "out of memory");
  }
  h->pool = pool;
  h->own = own;
  d->impl = h;
  d->threads = threads;
  return true;
}

static void host_close(Device *d) {
  Host *h = d->impl;
  pool_free(h->pool);
  for (int32_t w = 0; w < d->threads; w++) {
    free(h->own[w]);
  }
  free(h->own);
  if (h->mapping) {
    munmap(h->mapping, h->mapped);
  }
  free(h);
}

static bool host_reserve(Device *d, int64_t bytes, int64_t keep, Error *err) {
  Host *h = d->impl;
  int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), total;
  if (!size_add(bytes, HUGE_PAGE, &total) || total > memory) {
    return error_set(
        err, ERR_RUN,
        "the program needs %.2f GiB of memory, this machine has %.2f GiB: make the model, the batch or "
        "the sequence smaller",
        (double)bytes / (1 << 30), (double)memory / (1 << 30));
  }
  void *map = mmap(NULL, (size_t)total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    return error_set(err, ERR_RUN, "cannot get %.2f GiB of memory: %s", (double)bytes / (1 << 30),
                     strerror(errno));
  }
  unsigned char *arena = (unsigned char *)(((uintptr_t)map + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
  madvise(arena, (size_t)bytes, MADV_HUGEPAGE); /* advice: a refusal costs speed only */
  if (keep) {
    memcpy(arena, h->arena, (size_t)keep);
  }
  if (h->mapping) {
    munmap(h->mapping, h->mapped);
  }
  h->mapping = map;
  h->mapped = (size_t)total;
  h->arena = arena;
  return true;
}

static void host_upload(Device *d, int64_t offset, const void *from, int64_t n) {
  if (n) {
    memcpy(((Host *)d->impl)->arena + offset, from, (size_t)n);
  }
}

static void host_download(Device *d, int64_t offset, void *to, int64_t n) {
  if (n) {
    memcpy(to, ((Host *)d->impl)->arena + offset, (size_t)n);
  }
}

static void *host_map(Device *d, int64_t offset) {
  return ((Host *)d->impl)->arena + offset;
}

/* ---- loading ---- */

static void host_moved(Exec *x) {
  const Program *p = x->program;
  const Host *h = x->device->impl;
  HostExec *e = x->impl;
  for (uint32_t i = 0; i < p->n_launches; i++) {
    const Launch *l = &p->launch[i];
    HostLaunch *to = &e->launch[i];
    for (int32_t w = 0; w < (to->stride ? x->device->threads : 1); w++) {
      void **args = to->args + (size_t)w * to->stride;
      for (uint32_t a = 0; a < l->n_args; a++) {
        args[a] = h->arena + p->buffer[l->arg[a].buffer].offset + l->arg[a].offset;
      }
      if (to->stride) {
        args[l->n_args] = h->own[w];
      }
    }
    bool has = p->kernel[l->kernel].scratch_bytes > 0;
    to->scratch = has ? h->arena + p->buffer[l->scratch.buffer].offset + l->scratch.offset : NULL;
  }
}

/* Thread scratch only grows; every program loaded points to it. */
static bool grow_own(Device *d, int64_t bytes, Error *err) {
  Host *h = d->impl;
  if (bytes <= h->own_bytes) {
    return true;
  }
  bytes = (bytes + LINE - 1) / LINE * LINE;
  for (int32_t w = 0; w < d->threads; w++) {
    free(h->own[w]);
    h->own[w] = aligned_alloc(LINE, (size_t)bytes);
    if (!h->own[w]) {
      h->own_bytes = 0;
      return error_set(err, ERR_RUN, "cannot get %lld bytes of scratch for each thread", (long long)bytes);
    }
  }
  h->own_bytes = bytes;
  for (Exec *x = d->first; x; x = x->next) {
    host_moved(x);
  }
  return true;
}

static bool find_symbols(const Program *p, HostExec *e, SymbolFn symbol, void *ctx, Error *err) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < p->n_kernels; k++) {
    const Kernel *kernel = &p->kernel[k];
    e->first_fn[k] = n;
    for (uint32_t i = 0; i < kernel->n_phases; i++) {
      void *at = symbol(ctx, kernel->object, kernel->phase[i].symbol);
      if (!at) {
        return error_set(err, ERR_RUN, "kernel %s: its object has no symbol %s", kernel->name,
                         kernel->phase[i].symbol);
      }
      memcpy(&e->fn[n++], &at, sizeof at);
    }
  }
  return true;
}

static void set_tables(Exec *x, HostExec *e) {
  const Program *p = x->program;
  void **next = e->args;
  for (uint32_t i = 0; i < p->n_launches; i++) {
    const Launch *l = &p->launch[i];
    bool own = p->kernel[l->kernel].thread_scratch_bytes > 0;
    e->launch[i].args = next;
    e->launch[i].stride = own ? l->n_args + 1 : 0;
    next += own ? (size_t)(l->n_args + 1) * (size_t)x->device->threads : l->n_args;
  }
}

static void host_unload(Exec *x) {
  HostExec *e = x->impl;
  free(e->fn);
  free(e->first_fn);
  free(e->launch);
  free(e->args);
  free(e);
}

static bool host_load(Exec *x, SymbolFn symbol, void *ctx, Error *err) {
  const Program *p = x->program;
  size_t phases = 0, pointers = 0;
  int64_t own = 0;
  for (uint32_t k = 0; k < p->n_kernels; k++) {
    phases += p->kernel[k].n_phases;
    own = p->kernel[k].thread_scratch_bytes > own ? p->kernel[k].thread_scratch_bytes : own;
  }
  for (uint32_t i = 0; i < p->n_launches; i++) {
    bool has_own = p->kernel[p->launch[i].kernel].thread_scratch_bytes > 0;
    pointers +=
        has_own ? (size_t)(p->launch[i].n_args + 1) * (size_t)x->device->threads : p->launch[i].n_args;
  }
  HostExec *e = calloc(1, sizeof *e);
  if (!e) {
    return error_set(err, ERR_RUN, "out of memory");
  }
  x->impl = e;
  e->fn = calloc(phases + 1, sizeof *e->fn);
  e->first_fn = calloc(p->n_kernels + 1, sizeof *e->first_fn);
  e->launch = calloc(p->n_launches + 1, sizeof *e->launch);
  e->args = calloc(pointers + 1, sizeof *e->args);
  bool ok = e->fn && e->first_fn && e->launch && e->args;
  if (!ok) {
    error_set(err, ERR_RUN, "out of memory");
  }
  ok = ok && find_symbols(p, e, symbol, ctx, err) && grow_own(x->device, own, err);
  if (!ok) {
    host_unload(x);
    return false;
  }
  set_tables(x, e);
  host_moved(x);
  return true;
}

/* ---- running ---- */

typedef struct {
  HostKernel fn;
  const HostLaunch *launch;
} HostJob;

static void run_tasks(void *ctx, int32_t worker, int64_t lo, int64_t hi) {
  const HostJob *job = ctx;
  job->fn(job->launch->args + (size_t)worker * job->launch->stride, lo, hi, job->launch->scratch);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool host_run(Exec *x, Error *err) {
  (void)err;
  const Program *p = x->program;
  const Host *h = x->device->impl;
  const HostExec *e = x->impl;
  for (uint32_t i = 0; i < p->n_launches; i++) {
    uint32_t k = p->launch[i].kernel;
    double start = x->profile ? seconds() : 0;
    for (uint32_t phase = 0; phase < p->kernel[k].n_phases; phase++) {
      HostJob job = {.fn = e->fn[e->first_fn[k] + phase], .launch = &e->launch[i]};
      pool_run(h->pool, p->kernel[k].phase[phase].ntasks, run_tasks, &job);
    }
    if (x->profile) {
      x->time[k].launches++;
      x->time[k].seconds += seconds() - start;
    }
  }
  return true;
}

const DeviceOps host_ops = {
    .kind = "host",
    .open = host_open,
    .close = host_close,
    .reserve = host_reserve,
    .load = host_load,
    .unload = host_unload,
    .moved = host_moved,
    .upload = host_upload,
    .download = host_download,
    .map = host_map,
    .run = host_run,
};
