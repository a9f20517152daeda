/* kernel.c: the driver: one REGION op -> object code and its launch data. */
#include "codegen/region.h"

#include <llvm-c/Analysis.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cache.h"

/* Part of every cache key: to be raised when generated code changes. */
#define GENERATOR "10"

/* Emitted code is in vector form already; stack slots become registers first. */
#define PASSES "function(mem2reg,instcombine<no-verify-fixpoint>,early-cse<memssa>,simplifycfg,dce)"

struct Codegen {
  Arena arena;
  Target *target;
  const char *cache_dir;
  uint32_t threads;
};

typedef struct {
  Codegen *cg;
  const Func *f;
  OpId region;
  char symbol[40], key[65];
  RegionPlan plan;
} Job;

Codegen *codegen_new(const CodegenOptions *o, Error *err) {
  Codegen *cg = calloc(1, sizeof *cg);
  if (!cg) {
    error_set(err, ERR_RUN, "out of memory");
    return NULL;
  }
  cg->target = target_new(o->cpu, o->features, err);
  cg->cache_dir = o->cache_dir ? arena_strdup(&cg->arena, o->cache_dir) : NULL;
  cg->threads = o->threads ? o->threads : 1;
  if (!cg->target) {
    codegen_free(cg);
    return NULL;
  }
  return cg;
}

void codegen_free(Codegen *cg) {
  if (!cg)
    return;
  if (cg->target)
    target_free(cg->target);
  arena_free(&cg->arena);
  free(cg);
}

const char *codegen_target(const Codegen *cg) {
  return target_text(cg->target);
}

/* ---- emission ---- */

static bool has_op(const Func *f, OpId region, OpCode c) {
  const Block *b = f->op[region].body;
  for (uint32_t i = 0; i < b->n_ops; i++)
    if (f->op[b->op[i]].code == c)
      return true;
  return false;
}

static bool emit_region(Job *j, Gen *g, Arena *arena, Error *err) {
  const Func *f = j->f;
  Body body;
  Emit e = {.g = g, .ctx = g->ctx, .mod = g->mod, .b = g->b, .arena = arena, .err = err, .body = &body};
  j->plan = (RegionPlan){.symbol = j->symbol};
  e.in = ARENA_ARRAY(arena, LLVMValueRef, CODEGEN_MAX_ARGS);
  e.out = ARENA_ARRAY(arena, LLVMValueRef, CODEGEN_MAX_ARGS);
  if (attention_region_ok(f, j->region))
    return region_emit_attention(&e, &j->plan, f, j->region);
  if (!body_init(&body, f, j->region, arena, err))
    return false;
  body_collapse(&body);
  e.split = ARENA_ARRAY(arena, Split, 64);
  if (has_op(f, j->region, OP_CUMSUM))
    return region_emit_scan(&e, &j->plan);
  if (has_op(f, j->region, OP_SORT))
    return region_emit_sort(&e, &j->plan);
  if (has_op(f, j->region, OP_SCATTER_ADD))
    return region_emit_scatter(&e, &j->plan);
  return region_emit_nests(&e, &j->plan);
}

static bool build(Job *j, Gen *g, Arena *arena, Error *err) {
  char *msg = NULL;
  if (!emit_region(j, g, arena, err))
    return err->cls ? false : error_set(err, ERR_RUN, "region could not be emitted");
  if (LLVMVerifyModule(g->mod, LLVMReturnStatusAction, &msg)) {
    error_set(err, ERR_RUN, "generated code is not valid: %s", msg);
    LLVMDisposeMessage(msg);
    return false;
  }
  LLVMDisposeMessage(msg);
  return gen_optimize(g, PASSES, err);
}

static void name_job(Job *j) {
  Str text = {0};
  ir_print_region(j->f, j->region, &text);
  str_printf(&text, "\n%s\n%s\n", target_text(j->cg->target), GENERATOR);
  sha256_hex(text.s, text.len, j->key);
  str_free(&text);
  memcpy(j->symbol, "k_", 2);
  memcpy(j->symbol + 2, j->key, 24);
  j->symbol[26] = 0;
}

/* ---- launch data ---- */

static void fill_kernel(const Job *j, Arena *arena, Kernel *k) {
  const Op *reg = &j->f->op[j->region];
  const Block *b = reg->body;
  k->cls = arena_strdup(arena, reg->attr.str ? reg->attr.str : "map");
  k->n_args = b->n_params + b->n_ret;
  k->n_outputs = b->n_ret;
  k->scratch_bytes = j->plan.scratch_bytes + j->plan.temp_bytes;
  k->thread_scratch_bytes = j->plan.thread_scratch_bytes;
  k->n_phases = j->plan.n_phases;
  k->phase = ARENA_ARRAY(arena, Phase, k->n_phases);
  for (uint32_t i = 0; i < k->n_phases; i++)
    k->phase[i] = (Phase){arena_printf(arena, "%s_p%u", j->symbol, i), j->plan.ntasks[i]};
  k->flops = ir_op_flops(j->f, j->region);
  k->bytes = 0;
  for (uint32_t i = 0; i < k->n_args; i++) {
    int64_t n = 0;
    type_bytes(&j->f->val[i < b->n_params ? b->param[i] : b->ret[i - b->n_params]].type, &n);
    k->bytes += (double)n;
  }
}

/* Cache entries hold the plan's numbers before the object: n_phases, scratch, thread scratch, tasks of each
 * phase. */
static void plan_pack(const RegionPlan *p, Str *s) {
  int64_t head[3] = {p->n_phases, p->scratch_bytes + p->temp_bytes, p->thread_scratch_bytes};
  str_write(s, head, sizeof head);
  str_write(s, p->ntasks, p->n_phases * sizeof *p->ntasks);
}

static bool plan_unpack(RegionPlan *p, const void *bytes, size_t n, size_t *used) {
  int64_t head[3];
  if (n < sizeof head)
    return false;
  memcpy(head, bytes, sizeof head);
  if (head[0] < 0 || head[0] > MAX_PHASES || n < sizeof head + (size_t)head[0] * sizeof(int64_t))
    return false;
  p->n_phases = (uint32_t)head[0];
  p->scratch_bytes = head[1];
  p->thread_scratch_bytes = head[2];
  memcpy(p->ntasks, (const char *)bytes + sizeof head, (size_t)head[0] * sizeof(int64_t));
  *used = sizeof head + (size_t)head[0] * sizeof(int64_t);
  return true;
}

static bool from_cache(Job *j, Arena *arena, Object *obj) {
  const void *bytes;
  size_t n, used;
  if (!j->cg->cache_dir || !cache_get(j->cg->cache_dir, j->key, arena, &bytes, &n) ||
      !plan_unpack(&j->plan, bytes, n, &used))
    return false;
  *obj = (Object){(const char *)bytes + used, n - used};
  return true;
}

static void to_cache(const Job *j, const Object *obj) {
  Str s = {0};
  plan_pack(&j->plan, &s);
  str_write(&s, obj->bytes, obj->n);
  cache_put(j->cg->cache_dir, j->key, s.s, s.len);
  str_free(&s);
}

static bool compile(Job *j, Arena *arena, Object *obj, Error *err) {
  name_job(j);
  if (from_cache(j, arena, obj))
    return true;
  Gen *g = gen_new(j->cg->target, j->symbol, err);
  bool ok = g && build(j, g, arena, err) && gen_object(g, arena, obj, err);
  if (g)
    gen_free(g);
  if (ok && j->cg->cache_dir)
    to_cache(j, obj);
  return ok;
}

bool codegen_kernel(Codegen *cg, const Func *f, OpId region, Arena *arena, Kernel *out, Object *obj,
                    Error *err) {
  Job j = {.cg = cg, .f = f, .region = region};
  Arena work = {0};
  Object o = {0};
  bool ok = compile(&j, &work, &o, err);
  if (ok) {
    void *bytes = arena_alloc(arena, o.n);
    memcpy(bytes, o.bytes, o.n);
    *obj = (Object){bytes, o.n};
    fill_kernel(&j, arena, out);
  }
  arena_free(&work);
  return ok;
}

bool codegen_ir(Codegen *cg, const Func *f, OpId region, Str *out, Error *err) {
  Job j = {.cg = cg, .f = f, .region = region};
  Arena work = {0};
  name_job(&j);
  Gen *g = gen_new(cg->target, j.symbol, err);
  bool ok = g && build(&j, g, &work, err);
  if (ok) {
    char *text = LLVMPrintModuleToString(g->mod);
    str_puts(out, text);
    LLVMDisposeMessage(text);
  }
  if (g)
    gen_free(g);
  arena_free(&work);
  return ok;
}

/* ---- several at once ---- */

typedef struct {
  Job *job;
  Object *object;
  uint32_t n;
  uint32_t *next;
  pthread_mutex_t *lock;
  Arena arena;
  Error err;
} Worker;

static void *work(void *ctx) {
  Worker *w = ctx;
  for (;;) {
    pthread_mutex_lock(w->lock);
    uint32_t i = (*w->next)++;
    pthread_mutex_unlock(w->lock);
    if (i >= w->n || !compile(&w->job[i], &w->arena, &w->object[i], &w->err))
      return NULL;
  }
}

bool codegen_kernels(Codegen *cg, const Func *f, const OpId *region, uint32_t n, Arena *arena, Kernel *kernel,
                     Object *object, Error *err) {
  enum { MAX_THREADS = 64 };
  Arena mine = {0};
  uint32_t next = 0, threads = cg->threads < MAX_THREADS ? cg->threads : MAX_THREADS, started = 1;
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_t id[MAX_THREADS];
  Job *job = ARENA_ARRAY(&mine, Job, n + 1);
  Object *made = ARENA_ARRAY(&mine, Object, n + 1);
  Worker *w = ARENA_ARRAY(&mine, Worker, threads);
  for (uint32_t i = 0; i < n; i++)
    job[i] = (Job){.cg = cg, .f = f, .region = region[i]};
  for (uint32_t t = 0; t < threads; t++)
    w[t] = (Worker){.job = job, .object = made, .n = n, .next = &next, .lock = &lock};
  while (started < threads && started < n && pthread_create(&id[started], NULL, work, &w[started]) == 0)
    started++;
  work(&w[0]);
  for (uint32_t t = 1; t < started; t++)
    pthread_join(id[t], NULL);
  bool ok = true;
  for (uint32_t t = 0; t < started; t++)
    if (w[t].err.cls)
      ok = error_set(err, w[t].err.cls, "%s", w[t].err.msg);
  for (uint32_t i = 0; ok && i < n; i++) {
    void *bytes = arena_alloc(arena, made[i].n);
    memcpy(bytes, made[i].bytes, made[i].n);
    object[i] = (Object){bytes, made[i].n};
    fill_kernel(&job[i], arena, &kernel[i]);
    kernel[i].object = i;
  }
  for (uint32_t t = 0; t < started; t++)
    arena_free(&w[t].arena);
  arena_free(&mine);
  return ok;
}
