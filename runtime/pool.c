/* pool.c: fork and join in about half a microsecond: workers spin on a generation counter for a while, then
 * sleep on it. */
#include "runtime/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 30000, PAUSES_A_LOOK = 32 };

typedef struct {
  Pool *pool;
  int32_t index;
  pthread_t thread;
} Worker;

struct Pool {
  _Alignas(64) atomic_uint generation; /* goes up at each job; workers wait for it to change */
  atomic_uint sleepers;                /* workers that may be asleep on it */
  _Alignas(64) atomic_uint pending;    /* workers that have not ended the job */
  atomic_uint caller_sleeps;
  _Alignas(64) PoolFn fn; /* the job; written before the generation moves */
  void *ctx;
  int64_t ntasks;
  bool stop;
  int32_t threads, started;
  int64_t spin_ns;
  Worker *worker;
  bool pinned;
  cpu_set_t before; /* the caller's affinity */
};

static void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void futex_wait(atomic_uint *word, uint32_t seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Spins while *word equals `seen` (while_equal) or differs from it; false when `limit` ns are over. */
static bool spin(atomic_uint *word, uint32_t seen, bool while_equal, int64_t limit) {
  int64_t end = 0;
  for (;;) {
    for (int i = 0; i < PAUSES_A_LOOK; i++) {
      if ((atomic_load_explicit(word, memory_order_acquire) == seen) != while_equal) {
        return true;
      }
      pause_cpu();
    }
    int64_t now = now_ns();
    if (!end) {
      end = now + limit;
    } else if (now >= end) {
      return false;
    }
  }
}

static void run_range(Pool *p, int32_t w) {
  int64_t whole = p->ntasks / p->threads, rest = p->ntasks % p->threads;
  int64_t lo = whole * w + rest * w / p->threads;
  int64_t hi = whole * (w + 1) + rest * (w + 1) / p->threads;
  if (lo < hi) {
    p->fn(p->ctx, w, lo, hi);
  }
}

static void *worker_main(void *arg) {
  Worker *w = arg;
  Pool *p = w->pool;
  uint32_t seen = 0;
  for (;;) {
    if (!spin(&p->generation, seen, true, p->spin_ns)) {
      atomic_fetch_add(&p->sleepers, 1);
      while (atomic_load(&p->generation) == seen) {
        futex_wait(&p->generation, seen);
      }
      atomic_fetch_sub(&p->sleepers, 1);
    }
    seen++;
    if (p->stop) {
      return NULL;
    }
    run_range(p, w->index);
    if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps)) {
      futex_wake(&p->pending);
    }
  }
}

static void start_job(Pool *p) {
  atomic_store(&p->pending, (uint32_t)p->started);
  atomic_fetch_add(&p->generation, 1);
  if (atomic_load(&p->sleepers)) {
    futex_wake(&p->generation);
  }
}

void pool_run(Pool *p, int64_t ntasks, PoolFn fn, void *ctx) {
  if (ntasks <= 0) {
    return;
  }
  if (ntasks == 1 || p->threads == 1) {
    fn(ctx, 0, 0, ntasks);
    return;
  }
  p->fn = fn;
  p->ctx = ctx;
  p->ntasks = ntasks;
  start_job(p);
  run_range(p, 0);
  if (spin(&p->pending, 0, false, p->spin_ns)) {
    return;
  }
  atomic_store(&p->caller_sleeps, 1);
  for (uint32_t left; (left = atomic_load(&p->pending)) != 0;) {
    futex_wait(&p->pending, left);
  }
  atomic_store(&p->caller_sleeps, 0);
}

/* ---- how many, and where ---- */

static bool read_line(const char *path, char *line, int n) {
  FILE *f = fopen(path, "re");
  bool ok = f && fgets(line, n, f);
  if (f) {
    fclose(f);
  }
  return ok;
}

/* CPUs by the quotas of this process's cgroup (version 2) and those above it; 0: no quota. */
static int32_t quota_v2(void) {
  char line[512], path[640];
  if (!read_line("/proc/self/cgroup", line, sizeof line) || strncmp(line, "0::", 3) != 0) {
    return 0;
  }
  char *group = line + 3;
  group[strcspn(group, "\n")] = 0;
  int32_t least = 0;
  for (;;) {
    char text[64];
    long long quota, period;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", strcmp(group, "/") ? group : "");
    if (read_line(path, text, sizeof text) && sscanf(text, "%lld %lld", &quota, &period) == 2 && period > 0) {
      int32_t cpus = quota < period ? 1 : (int32_t)(quota / period);
      least = !least || cpus < least ? cpus : least;
    }
    char *slash = strrchr(group, '/');
    if (!slash || !group[0]) {
      return least;
    }
    *slash = 0;
  }
}

static int32_t quota_v1(void) {
  char quota[64], period[64];
  if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota) ||
      !read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period)) {
    return 0;
  }
  long long q = atoll(quota), p = atoll(period);
  return q <= 0 || p <= 0 ? 0 : q < p ? 1 : (int32_t)(q / p);
}

static int32_t allowed_cpus(cpu_set_t *set) {
  CPU_ZERO(set);
  if (sched_getaffinity(0, sizeof *set, set)) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (int32_t)n;
  }
  return CPU_COUNT(set);
}

int32_t pool_default_threads(Error *err) {
  const char *text = getenv("DLC_THREADS");
  if (text && *text) {
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*end || errno || n < 1 || n > POOL_MAX_THREADS) {
      error_set(err, ERR_USAGE, "DLC_THREADS is '%s': it must be a number from 1 to %d", text,
                POOL_MAX_THREADS);
      return 0;
    }
    return (int32_t)n;
  }
  cpu_set_t set;
  int32_t cpus = allowed_cpus(&set), quota = quota_v2();
  if (!quota) {
    quota = quota_v1();
  }
  cpus = quota && quota < cpus ? quota : cpus;
  return cpus < POOL_MAX_THREADS ? cpus : POOL_MAX_THREADS;
}

/* Worker w on the w-th CPU allowed. A pin that fails costs speed only. */
static void pin_all(Pool *p) {
  int32_t w = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && w < p->threads; cpu++) {
    if (!CPU_ISSET(cpu, &p->before)) {
      continue;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(w ? p->worker[w].thread : pthread_self(), sizeof one, &one);
    w++;
  }
  p->pinned = true;
}

Pool *pool_new(int32_t threads, bool pin, Error *err) {
  if (threads < 1 || threads > POOL_MAX_THREADS) {
    error_set(err, ERR_USAGE, "%d threads: it must be a number from 1 to %d", threads, POOL_MAX_THREADS);
    return NULL;
  }
  Pool *p = aligned_alloc(64, (sizeof *p + 63) & ~(size_t)63);
  Worker *workers = calloc((size_t)threads, sizeof *workers);
  if (!p || !workers) {
    free(p);
    free(workers);
    error_set(err, ERR_RUN, "out of memory for %d threads", threads);
    return NULL;
  }
  memset(p, 0, sizeof *p);
  p->threads = threads;
  p->worker = workers;
  int32_t cpus = allowed_cpus(&p->before);
  p->spin_ns =
      threads <= cpus ? SPIN_NS : 0; /* with more threads than CPUs, spinning holds up the one that works */
  for (int32_t w = 1; w < threads; w++) {
    workers[w] = (Worker){.pool = p, .index = w};
    int code = pthread_create(&workers[w].thread, NULL, worker_main, &workers[w]);
    if (code) {
      error_set(err, ERR_RUN, "cannot start thread %d of %d: %s", w + 1, threads, strerror(code));
      pool_free(p);
      return NULL;
    }
    p->started++;
  }
  if (pin && threads == cpus && threads > 1) {
    pin_all(p);
  }
  return p;
}

void pool_free(Pool *p) {
  if (!p) {
    return;
  }
  p->stop = true;
  start_job(p);
  for (int32_t w = 1; w <= p->started; w++) {
    pthread_join(p->worker[w].thread, NULL);
  }
  if (p->pinned) {
    pthread_setaffinity_np(pthread_self(), sizeof p->before, &p->before);
  }
  free(p->worker);
  free(p);
}

int32_t pool_threads(const Pool *p) {
  return p->threads;
}
