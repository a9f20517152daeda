/* cmd_compile.c: `dlc compile`: the artifact of a training step: program, kernels, memory plan, IR after each
 * pass. */
#include "cli/setup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
  Arena *arena;
  const char *dir, *dump_after;
  uint32_t n;
  bool dumped, ok;
  Error err;
} Dumps;

static void after_pass(void *ctx, const char *pass, const Func *f) {
  Dumps *d = ctx;
  Str text = {0};
  ir_print_func(f, &text);
  if (d->dump_after && !strcmp(d->dump_after, pass)) {
    fputs(text.s, stdout);
    d->dumped = true;
  }
  if (d->dir) {
    const char *path = arena_printf(d->arena, "%s/ir/%02u-%s.txt", d->dir, d->n++, pass);
    d->ok = d->ok && file_write(path, text.s, text.len, &d->err);
  }
  str_free(&text);
}

static bool write_text(const char *dir, const char *name, Arena *a, const Str *s, Error *err) {
  return file_write(arena_printf(a, "%s/%s", dir, name), s->s ? s->s : "", s->len, err);
}

static bool write_kernels(Codegen *cg, const Compiled *c, const char *dir, Arena *a, Error *err) {
  const Program *p = &c->draft.program;
  bool ok = true;
  for (uint32_t i = 0; ok && i < p->n_kernels; i++) {
    const Kernel *k = &p->kernel[i];
    Str ir = {0};
    str_printf(&ir, "; kernel %s, class %s\n; lines: %s\n; fused: %s\n; FLOPs %.6g, bytes %.6g a launch\n",
               k->name, k->cls, k->loc, k->fused, k->flops, k->bytes);
    ok = codegen_ir(cg, c->func, c->draft.region[i], &ir, err) &&
         write_text(dir, arena_printf(a, "kernels/%s.ll", k->name), a, &ir, err) &&
         file_write(arena_printf(a, "%s/kernels/%s.o", dir, k->name), p->object[k->object].bytes,
                    p->object[k->object].n, err);
    str_free(&ir);
  }
  return ok;
}

/* A folder that `dlc run DIR` and `dlc inspect DIR` take: plan.dl is the program. */
static bool write_artifact(const Model *m, Codegen *cg, const Compiled *c, const char *dir, Arena *a,
                           Error *err) {
  Str program = {0}, memory = {0};
  Report report = {.title = m->has_plan ? m->plan.name : "gradients",
                   .program = &c->draft.program,
                   .layout = m->plan.layout,
                   .plan = m->folded};
  program_print(&c->draft.program, &program);
  program_print_memory(&c->draft.program, &memory);
  bool ok = write_text(dir, "program.txt", a, &program, err) &&
            write_text(dir, "memory.txt", a, &memory, err) && write_kernels(cg, c, dir, a, err) &&
            file_write(arena_printf(a, "%s/plan.dl", dir), m->folded, strlen(m->folded), err) &&
            report_write(arena_printf(a, "%s/report.html", dir), &report, err);
  str_free(&program);
  str_free(&memory);
  return ok;
}

static int emit(const Args *a, Session *s, Codegen *cg, const Compiled *c, Error *err) {
  Str out = {0};
  const Program *p = &c->draft.program;
  bool ok = true;
  if (!strcmp(a->emit, "ir")) {
    ir_print(s->model->module, &out);
  } else if (!strcmp(a->emit, "ast")) {
    ok = ast_format(&s->sources, 0, &out, &s->diag);
  } else if (!strcmp(a->emit, "program")) {
    program_print(p, &out);
  } else {
    for (uint32_t i = 0; ok && i < p->n_kernels; i++) {
      str_printf(&out, "; kernel %s: %s\n", p->kernel[i].name, p->kernel[i].fused);
      ok = codegen_ir(cg, c->func, c->draft.region[i], &out, err);
    }
  }
  if (ok && out.s) {
    fputs(out.s, stdout);
  }
  str_free(&out);
  return ok ? 0 : cli_fail(err);
}

static bool folder_make(const char *path, Error *err) {
  char part[4096];
  snprintf(part, sizeof part, "%s", path);
  for (char *p = part + 1;; p++) {
    if (*p && *p != '/') {
      continue;
    }
    char c = *p;
    *p = 0;
    if (mkdir(part, 0777) && errno != EEXIST) {
      return error_set(err, ERR_RUN, "%s: cannot make the folder: %s", part, strerror(errno));
    }
    *p = c;
    if (!c) {
      return true;
    }
  }
}

static bool make_folders(Arena *a, const char *dir, Error *err) {
  return folder_make(dir, err) && folder_make(arena_printf(a, "%s/ir", dir), err) &&
         folder_make(arena_printf(a, "%s/kernels", dir), err);
}

int cmd_compile(const Args *a) {
  static const char *const emits[] = {"ast", "ir", "program", "kernels"};
  bool known = !a->emit;
  for (int i = 0; i < 4 && a->emit; i++) {
    known |= !strcmp(a->emit, emits[i]);
  }
  if (a->target && strcmp(a->target, "host")) {
    return cli_usage(a, "target '%s' is not built yet; host is", a->target);
  }
  if (!known) {
    return cli_usage(a, "--emit %s is not built; choose ast, ir, program or kernels", a->emit);
  }
  Session s;
  int code = session_open(&s, a, NULL, 0);
  if (code) {
    return code;
  }
  Error err = {0};
  Compiled c = {0};
  Dumps d = {.arena = &s.arena, .dir = a->out, .dump_after = a->dump_after, .ok = true};
  PassHooks hooks = {.after = after_pass, .ctx = &d};
  bool ok = !a->out || make_folders(&s.arena, a->out, &err);
  Codegen *cg = ok ? driver_codegen(&err) : NULL;
  ok = cg &&
       driver_compile(&s, cg, s.model->has_plan ? PIPE_TRAIN : PIPE_GRAD, NULL, 0, "train", &hooks, &c, &err);
  ok = ok && (d.ok || error_set(&err, d.err.cls, "%s", d.err.msg));
  if (ok && a->dump_after && !d.dumped) {
    ok = error_set(&err, ERR_USAGE,
                   "--dump-after: there is no pass '%s'; `dlc compile -o DIR` writes ir/ with all of them",
                   a->dump_after);
  }
  ok = ok && (!a->out || write_artifact(s.model, cg, &c, a->out, &s.arena, &err));
  if (!ok) {
    code = cli_fail(&err);
  } else if (a->emit) {
    code = emit(a, &s, cg, &c, &err);
  } else if (!a->dump_after) {
    const Program *p = &c.draft.program;
    printf("%u kernels, %u launches, arena %lld bytes (lower bound %lld)\n", p->n_kernels, p->n_launches,
           (long long)p->arena_bytes, (long long)p->lower_bound_bytes);
  }
  driver_unload(&c);
  codegen_free(cg);
  session_close(&s);
  return code;
}
