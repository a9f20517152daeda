/* report.c: report.html: one self-contained page: loss curves as SVG, kernels, memory, the plan. */
#include "runtime/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Escaped; what is no UTF-8 (a model of bytes may write anything) becomes U+FFFD. */
static void put_html(Str *s, const char *text) {
  uint32_t code;
  for (size_t left = strlen(text); left > 0;) {
    int len = utf8_next(text, left, &code);
    switch (len ? *text : 0) {
    case '<': str_puts(s, "&lt;"); break;
    case '>': str_puts(s, "&gt;"); break;
    case '&': str_puts(s, "&amp;"); break;
    case '"': str_puts(s, "&quot;"); break;
    case 0: utf8_put(s, 0xfffd); break;
    default: str_write(s, text, (size_t)len);
    }
    text += len ? len : 1;
    left -= len ? (size_t)len : 1;
  }
}

/* ---- curves ---- */

typedef struct {
  double *step, *value;
  uint32_t n, cap_s, cap_v, n_v;
} Curve;

static void add_point(Arena *a, Curve *c, double step, double value) {
  VEC_PUSH(a, c->step, c->n, c->cap_s, step);
  VEC_PUSH(a, c->value, c->n_v, c->cap_v, value);
}

static bool field(const char *line, const char *end, const char *key, double *out) {
  const char *p = strstr(line, key);
  if (!p || p >= end) {
    return false;
  }
  char *after;
  *out = strtod(p + strlen(key), &after);
  return after != p + strlen(key) && isfinite(*out);
}

static bool read_curves(Arena *a, const char *path, Curve *loss, Curve *eval, Error *err) {
  char *text;
  size_t n;
  if (!path || !file_exists(path)) {
    return true;
  }
  if (!file_read(path, a, &text, &n, err)) {
    return false;
  }
  for (char *p = text, *end; (end = strchr(p, '\n')); p = end + 1) {
    double step, v;
    if (!field(p, end, "\"step\": ", &step)) {
      continue;
    }
    if (field(p, end, "\"loss\": ", &v)) {
      add_point(a, loss, step, v);
    }
    if (field(p, end, "\"eval_loss\": ", &v)) {
      add_point(a, eval, step, v);
    }
  }
  return true;
}

enum { WIDTH = 860, HEIGHT = 320, LEFT = 56, BOTTOM = 28 };

typedef struct {
  double x1, y0, y1;
} Range;

static double px(const Range *r, double step) {
  return LEFT + (WIDTH - LEFT - 8) * step / r->x1;
}

static double py(const Range *r, double v) {
  return 8 + (HEIGHT - BOTTOM - 8) * (r->y1 - v) / (r->y1 - r->y0);
}

static void put_curve(Str *s, const Curve *c, const Range *r, const char *style, bool dots) {
  if (!c->n) {
    return;
  }
  uint32_t every = c->n > 800 ? c->n / 800 : 1;
  str_printf(s, "<polyline fill=\"none\" %s points=\"", style);
  for (uint32_t i = 0; i < c->n; i++) {
    if (i % every == 0 || i + 1 == c->n) {
      str_printf(s, "%.1f,%.1f ", px(r, c->step[i]), py(r, c->value[i]));
    }
  }
  str_puts(s, "\"/>\n");
  for (uint32_t i = 0; dots && i < c->n; i++) {
    str_printf(
        s,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#c2410c\"><title>step %.0f: %.4f</title></circle>\n",
        px(r, c->step[i]), py(r, c->value[i]), c->step[i], c->value[i]);
  }
}

static void widen(Range *r, const Curve *c) {
  for (uint32_t i = 0; i < c->n; i++) {
    r->x1 = fmax(r->x1, c->step[i]);
    r->y0 = fmin(r->y0, c->value[i]);
    r->y1 = fmax(r->y1, c->value[i]);
  }
}

static void put_chart(Str *s, const Curve *loss, const Curve *eval) {
  Range r = {1, INFINITY, -INFINITY};
  widen(&r, loss);
  widen(&r, eval);
  if (!(r.y1 >= r.y0)) {
    return;
  }
  if (r.y1 - r.y0 < 1e-9) {
    r.y0 -= 0.5;
    r.y1 += 0.5;
  }
  str_printf(s, "<h2>Loss</h2>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"loss by step\">\n",
             WIDTH, HEIGHT);
  for (int i = 0; i <= 4; i++) {
    double v = r.y0 + (r.y1 - r.y0) * i / 4, step = r.x1 * i / 4;
    str_printf(s,
               "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
               "text-anchor=\"end\">%.3g</text>\n",
               LEFT, WIDTH - 8, py(&r, v), py(&r, v), LEFT - 6, py(&r, v) + 4, v);
    str_printf(s, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", px(&r, step), HEIGHT - 8,
               step);
  }
  put_curve(s, loss, &r, "stroke=\"#2563eb\" stroke-width=\"1.2\"", false);
  put_curve(s, eval, &r, "stroke=\"#c2410c\" stroke-width=\"2\"", true);
  str_puts(s, "</svg>\n<p><span style=\"color:#2563eb\">training</span>, <span style=\"color:#c2410c\">held "
              "out</span>; last training loss ");
  str_printf(s, "%.4f", loss->n ? loss->value[loss->n - 1] : NAN);
  if (eval->n) {
    str_printf(s, ", last held-out loss %.4f", eval->value[eval->n - 1]);
  }
  str_puts(s, ".</p>\n");
}

/* ---- tables ---- */

static void put_kernels(Str *s, const Program *p, const KernelTime *time) {
  double total = 0;
  for (uint32_t i = 0; time && i < p->n_kernels; i++) {
    total += time[i].seconds;
  }
  str_printf(s,
             "<h2>Kernels</h2>\n<p>%u kernels, %u launches a "
             "step.%s</p>\n<table><tr><th>kernel</th><th>class</th><th>lines</th><th>fused</th><th>FLOPs</"
             "th><th>bytes</th>%s</tr>\n",
             p->n_kernels, p->n_launches, time ? "" : " Run with --profile for their times.",
             time ? "<th>share of time</th>" : "");
  for (uint32_t i = 0; i < p->n_kernels; i++) {
    const Kernel *k = &p->kernel[i];
    str_printf(s, "<tr><td>%s</td><td>%s</td><td>", k->name, k->cls);
    put_html(s, k->loc ? k->loc : "");
    str_puts(s, "</td><td>");
    put_html(s, k->fused ? k->fused : "");
    str_printf(s, "</td><td>%.3g</td><td>%.3g</td>", k->flops, k->bytes);
    if (time) {
      str_printf(s, "<td>%.1f %%</td>", total > 0 ? 100 * time[i].seconds / total : 0);
    }
    str_puts(s, "</tr>\n");
  }
  str_puts(s, "</table>\n");
}

static void put_memory(Str *s, const Program *p) {
  static const char *const kinds[] = {
      "parameters", "optimizer state",           "module state", "inputs", "scalars",
      "constants",  "activations and workspace", "outputs"};
  int64_t bytes[8] = {0};
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    bytes[p->buffer[i].kind] += p->buffer[i].bytes;
  }
  str_printf(s,
             "<h2>Memory</h2>\n<p>One arena of %lld bytes; no plan could do with less than "
             "%lld.</p>\n<table><tr><th>kind</th><th>bytes in all</th></tr>\n",
             (long long)p->arena_bytes, (long long)p->lower_bound_bytes);
  for (int i = 0; i < 8; i++) {
    if (bytes[i]) {
      str_printf(s, "<tr><td>%s</td><td>%lld</td></tr>\n", kinds[i], (long long)bytes[i]);
    }
  }
  str_puts(s, "</table>\n");
  /* live bytes by launch */
  double *live = calloc((size_t)p->n_launches + 2, sizeof *live), most = 0;
  if (!live) {
    abort();
  }
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    for (int32_t t = p->buffer[i].first; t <= p->buffer[i].last && t <= (int32_t)p->n_launches; t++) {
      live[t < 0 ? 0 : t] += (double)p->buffer[i].bytes;
    }
  }
  for (uint32_t t = 0; t < p->n_launches; t++) {
    most = fmax(most, live[t]);
  }
  Range r = {p->n_launches ? p->n_launches : 1, 0, most > 0 ? most / 1048576 : 1};
  str_printf(s,
             "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"live memory by launch\">\n<polyline "
             "fill=\"none\" stroke=\"#15803d\" stroke-width=\"1.5\" points=\"",
             WIDTH, HEIGHT);
  uint32_t every = p->n_launches > 800 ? p->n_launches / 800 : 1;
  for (uint32_t t = 0; t < p->n_launches; t += every) {
    str_printf(s, "%.1f,%.1f ", px(&r, t), py(&r, live[t] / 1048576));
  }
  str_printf(s, "\"/>\n<text x=\"%d\" y=\"20\">MiB live by launch, at most %.1f</text></svg>\n", LEFT + 8,
             most / 1048576);
  free(live);
}

static void put_block(Str *s, const char *title, const char *text) {
  if (text && *text) {
    str_printf(s, "<h2>%s</h2>\n<pre>", title);
    put_html(s, text);
    str_puts(s, "</pre>\n");
  }
}

bool report_write(const char *path, const Report *r, Error *err) {
  Arena a = {0};
  Curve loss = {0}, eval = {0};
  if (!read_curves(&a, r->metrics_path, &loss, &eval, err)) {
    arena_free(&a);
    return false;
  }
  Str s = {0};
  str_puts(&s, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
  put_html(&s, r->title ? r->title : "run");
  str_puts(
      &s,
      "</title>\n<style>body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 "
      "1em;color:#222}svg{width:100%;font-size:11px}"
      "table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}td,th{border:1px solid "
      "#ddd;padding:2px 8px;text-align:left}"
      "pre{background:#f6f6f6;padding:1em;overflow-x:auto;white-space:pre-wrap}</style></head><body>\n<h1>");
  put_html(&s, r->title ? r->title : "run");
  str_puts(&s, "</h1>\n<p>");
  put_html(&s, r->subtitle ? r->subtitle : "");
  str_puts(&s, "</p>\n");
  put_chart(&s, &loss, &eval);
  put_block(&s, "A sample", r->sample);
  if (r->program) {
    put_kernels(&s, r->program, r->time);
    put_memory(&s, r->program);
  }
  put_block(&s, "Layout", r->layout);
  put_block(&s, "The plan", r->plan);
  str_puts(&s, "</body></html>\n");
  bool ok = file_write(path, s.s, s.len, err);
  str_free(&s);
  arena_free(&a);
  return ok;
}
