/* cmd_doctor.c: `dlc doctor`: what this machine has, and what each lack costs. Loads nothing it does not
 * close again. */
#include "cli/cli.h"
#include "codegen/codegen.h"
#include "runtime/runtime.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  const char *key, *what;
  const char *const *names; /* library names to try, NULL-terminated */
  const char *lack;         /* what its absence costs, and the line that installs it */
} Library;

static const char *const cuda_names[] = {"libcuda.so.1", NULL};
static const char *const nvrtc_names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", NULL};
static const char *const nccl_names[] = {"libnccl.so.2", NULL};
static const char *const mpi_names[] = {"libmpi.so.40", "libmpich.so.12", NULL};

static const Library libraries[] = {
    {"driver", "NVIDIA driver", cuda_names, "no GPU can be used; --device host trains on the processor"},
    {"nvrtc", "NVRTC", nvrtc_names,
     "no CUDA kernels can be compiled; install with: python3 -m pip install nvidia-cuda-nvrtc"},
    {"nccl", "NCCL", nccl_names,
     "no collectives between GPUs; install with: python3 -m pip install nvidia-nccl-cu13"},
    {"mpi", "MPI", mpi_names, "no runs over several ranks; install with: apt-get install libopenmpi3"},
};

/* Where CUDA's libraries lie when the loader does not know: CUDA_HOME, the usual folder, conda, pip. */
static const char *find_library(Arena *arena, const char *name) {
  void *lib = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (lib) {
    dlclose(lib);
    return name;
  }
  const char *home = getenv("CUDA_HOME"), *conda = getenv("CONDA_PREFIX");
  const char *patterns[] = {
      home ? arena_printf(arena, "%s/lib64/%s", home, name) : NULL,
      arena_printf(arena, "/usr/local/cuda*/lib64/%s", name),
      conda ? arena_printf(arena, "%s/lib/%s", conda, name) : NULL,
      arena_printf(arena, "/usr/lib/python3/dist-packages/nvidia/*/lib/%s", name),
      arena_printf(arena, "/usr/local/lib/python3*/*-packages/nvidia/*/lib/%s", name),
  };
  for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
    glob_t g = {0};
    const char *found = NULL;
    if (patterns[i] && glob(patterns[i], 0, NULL, &g) == 0 && g.gl_pathc) {
      found = arena_strdup(arena, g.gl_pathv[0]);
    }
    globfree(&g);
    if (found) {
      return found;
    }
  }
  return NULL;
}

static void cpu_model(char *out, size_t n) {
  snprintf(out, n, "unknown");
  FILE *f = fopen("/proc/cpuinfo", "r");
  char line[512];
  while (f && fgets(line, sizeof line, f)) {
    char *colon = strchr(line, ':');
    if (!strncmp(line, "model name", 10) && colon) {
      line[strcspn(line, "\n")] = 0;
      snprintf(out, n, "%s", colon + 2);
      break;
    }
  }
  if (f) {
    fclose(f);
  }
}

int cmd_doctor(const Args *a) {
  Arena arena = {0};
  Error err = {0};
  Str s = {0};
  char cpu[256];
  cpu_model(cpu, sizeof cpu);
  CodegenOptions options = {0};
  Codegen *cg = codegen_new(&options, &err);
  if (!cg) {
    return cli_fail(&err);
  }
  Device *device = device_open("host", &(DeviceOptions){0}, &err);
  if (!device) {
    codegen_free(cg);
    return cli_fail(&err);
  }
  int threads = device_threads(device);
  device_close(device);
  long memory = sysconf(_SC_PHYS_PAGES) / 1024 * (sysconf(_SC_PAGESIZE) / 1024);
  if (a->json) {
    str_puts(&s, "{\"cpu\": ");
    str_put_json(&s, cpu);
    str_puts(&s, ", \"target\": ");
    str_put_json(&s, codegen_target(cg));
    str_printf(&s, ", \"threads\": %d, \"memory_mib\": %ld", threads, memory);
  } else {
    /* the triple and the processor; the list of features behind them is in --json */
    const char *target = codegen_target(cg);
    size_t n = strcspn(target, " ");
    n += target[n] ? 1 + strcspn(target + n + 1, " ") : 0;
    str_printf(&s, "processor  %s\nkernels    %.*s\nthreads    %d\nmemory     %ld MiB\n", cpu, (int)n, target,
               threads, memory);
  }
  for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
    const Library *l = &libraries[i];
    const char *found = NULL;
    for (const char *const *name = l->names; *name && !found; name++) {
      found = find_library(&arena, *name);
    }
    if (a->json) {
      str_printf(&s, ", \"%s\": ", l->key);
      if (found) {
        str_put_json(&s, found);
      } else {
        str_puts(&s, "null");
      }
    } else {
      str_printf(&s, "%-10s %s%s\n", l->what, found ? found : "not found: ", found ? "" : l->lack);
    }
  }
  str_puts(&s, a->json ? "}\n" : "");
  fputs(s.s, stdout);
  str_free(&s);
  codegen_free(cg);
  arena_free(&arena);
  return 0;
}
