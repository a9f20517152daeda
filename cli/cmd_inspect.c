/* cmd_inspect.c: `dlc inspect`: the kernels of a training step beside the lines they came from, or one kernel
 * whole. */
#include "cli/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void count_launches(const Program *p, uint32_t *count) {
  for (uint32_t i = 0; i < p->n_launches; i++) {
    count[p->launch[i].kernel]++;
  }
}

static void put_intensity(Str *s, const Kernel *k) {
  str_printf(s, "%.3g", k->bytes > 0 ? k->flops / k->bytes : 0.0);
}

static void list_text(const Program *p, const uint32_t *launches) {
  Str s = {0};
  str_printf(&s, "%-24s %-14s %8s %12s %12s %9s  %s\n", "kernel", "class", "launches", "FLOPs", "bytes",
             "FLOP/byte", "lines; fused");
  for (uint32_t i = 0; i < p->n_kernels; i++) {
    const Kernel *k = &p->kernel[i];
    str_printf(&s, "%-24s %-14s %8u %12.4g %12.4g ", k->name, k->cls, launches[i], k->flops, k->bytes);
    Str n = {0};
    put_intensity(&n, k);
    str_printf(&s, "%9s  %s; %s\n", n.s, k->loc, k->fused);
    str_free(&n);
  }
  str_printf(&s, "%u kernels, %u launches a step, arena %lld bytes (lower bound %lld)\n", p->n_kernels,
             p->n_launches, (long long)p->arena_bytes, (long long)p->lower_bound_bytes);
  fputs(s.s, stdout);
  str_free(&s);
}

static void list_json(const Program *p, const uint32_t *launches) {
  Str s = {0};
  str_puts(&s, "{\"kernels\": [");
  for (uint32_t i = 0; i < p->n_kernels; i++) {
    const Kernel *k = &p->kernel[i];
    str_puts(&s, i ? ", {\"name\": " : "{\"name\": ");
    str_put_json(&s, k->name);
    str_puts(&s, ", \"class\": ");
    str_put_json(&s, k->cls);
    str_puts(&s, ", \"loc\": ");
    str_put_json(&s, k->loc);
    str_puts(&s, ", \"fused\": ");
    str_put_json(&s, k->fused);
    str_printf(&s, ", \"launches\": %u, \"flops\": %.17g, \"bytes\": %.17g, \"intensity\": ", launches[i],
               k->flops, k->bytes);
    put_intensity(&s, k);
    str_putc(&s, '}');
  }
  str_printf(&s, "], \"launches\": %u, \"arena_bytes\": %lld, \"lower_bound_bytes\": %lld}\n", p->n_launches,
             (long long)p->arena_bytes, (long long)p->lower_bound_bytes);
  fputs(s.s, stdout);
  str_free(&s);
}

/* The .dl lines that Kernel.loc names ("gpt2.dl:24, gpt2.dl:25"), as they stand in the files. */
static void put_source_lines(const Session *s, const char *loc, Str *out) {
  for (const char *p = loc; *p;) {
    size_t n = strcspn(p, ",");
    char item[1024];
    snprintf(item, sizeof item, "%.*s", (int)n, p);
    char *colon = strrchr(item, ':');
    long line = colon ? strtol(colon + 1, NULL, 10) : 0;
    for (uint32_t i = 0; colon && line > 0 && i < s->sources.n; i++) {
      const Source *f = &s->sources.v[i];
      const char *base = strrchr(f->path, '/');
      size_t path_len = (size_t)(colon - item);
      bool match = (strlen(f->path) == path_len && !strncmp(f->path, item, path_len)) ||
                   (base && strlen(base + 1) == path_len && !strncmp(base + 1, item, path_len));
      if (match && (uint32_t)line <= f->n_lines) {
        const char *text = f->text + f->line[line - 1];
        str_printf(out, "; %s | %.*s\n", item, (int)strcspn(text, "\r\n"), text);
        break;
      }
    }
    p += n;
    p += strspn(p, ", ");
  }
}

static int print_kernel(Session *s, Codegen *cg, const Compiled *c, const char *name) {
  const Program *p = &c->draft.program;
  for (uint32_t i = 0; i < p->n_kernels; i++) {
    if (strcmp(p->kernel[i].name, name)) {
      continue;
    }
    Error err = {0};
    Str out = {0}, ir = {0};
    str_printf(&out, "; kernel %s, class %s: %s\n", p->kernel[i].name, p->kernel[i].cls, p->kernel[i].fused);
    put_source_lines(s, p->kernel[i].loc, &out);
    program_print_stored(&c->draft, i, "; ", &out);
    if (!codegen_ir(cg, c->func, c->draft.region[i], &ir, &err)) {
      str_free(&out);
      return cli_fail(&err);
    }
    fputs(out.s, stdout);
    fputs(ir.s, stdout);
    str_free(&out);
    str_free(&ir);
    return 0;
  }
  fprintf(stderr, "dlc: no kernel '%s'; `dlc inspect %s` lists them\n", name, s->sources.v[0].path);
  return ERR_INPUT;
}

int cmd_inspect(const Args *a) {
  Session s;
  int code = session_open(&s, a, NULL, 0);
  if (code) {
    return code;
  }
  Error err = {0};
  Compiled c = {0};
  Codegen *cg = driver_codegen(&err);
  bool ok = cg && driver_compile(&s, cg, s.model->has_plan ? PIPE_TRAIN : PIPE_GRAD, NULL, 0, "train", NULL,
                                 &c, &err);
  if (!ok) {
    code = cli_fail(&err);
  } else if (a->second) {
    code = print_kernel(&s, cg, &c, a->second);
  } else {
    uint32_t *launches = ARENA_ARRAY(&s.arena, uint32_t, c.draft.program.n_kernels);
    count_launches(&c.draft.program, launches);
    (a->json ? list_json : list_text)(&c.draft.program, launches);
  }
  driver_unload(&c);
  codegen_free(cg);
  session_close(&s);
  return code;
}
