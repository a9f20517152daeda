/* The interpreter: composites and structure against naive formulas; gradients against differences of those
 * formulas. */
#include "rig.h"

#include "runtime/rng.h"

static void softmax_rows(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "f64[a=3, b=5, c=2]",
           "%1 = softmax %0 axis(b, c) : f64[a=3, b=5, c=2]\nreturn %1 output 0 0 \"y\"");
  for (int i = 0; i < 10; i++)
    r.in[0].data[i] = -INFINITY; /* a row with nothing */
  r.in[0].data[12] = 800;        /* a row that would overflow without the shift */
  rig_run(&r);
  for (int a = 0; a < 3; a++) {
    double most = a == 1 ? 800 : 0, sum = 0;
    for (int i = 0; i < 10; i++)
      sum += exp(r.in[0].data[a * 10 + i] - most);
    for (int i = 0; i < 10; i++)
      near(r.out[0].data[a * 10 + i], a == 0 ? 0 : exp(r.in[0].data[a * 10 + i] - most) / sum);
  }
  rig_free(&r);
}

/* ---- attention: q[b, h, t, d] against k[b, s, d] and v[b, s, e]: one key head serves all query heads ----
 */

enum { B = 2, H = 3, T = 3, S = 5, D = 3, E = 2 };
#define ATTENTION_INPUTS "f64[b=2, h=3, t=3, d=3]; f64[b=2, s=5, d=3]; f64[b=2, s=5, e=2]; bool[t=3, s=5]"
#define SCORE                                                                                                \
  "(%%%d: f64[b=2, h=3, t=3, s=5], %%%d: bool[t=3, s=5])\n%%%d = const 0.5 : f64\n"                          \
  "%%%d = mul %%%d, %%%d : f64[b=2, h=3, t=3, s=5]\n%%%d = tanh %%%d : f64[b=2, h=3, t=3, s=5]\n"            \
  "%%%d = const -inf : f64\n%%%d = select %%%d, %%%d, %%%d : f64[b=2, h=3, t=3, s=5]\nyield %%%d\n}\n"

/* The score function tanh(raw / 2) under a mask, its values numbered from n. */
static void put_score(Str *s, int n) {
  str_printf(s, SCORE, n, n + 1, n + 2, n + 3, n, n + 2, n + 4, n + 3, n + 5, n + 6, n + 1, n + 4, n + 5,
             n + 6);
}

static double score(const Rig *r, int b, int h, int t, int s) {
  double raw = 0;
  for (int d = 0; d < D; d++)
    raw += AT(r->in[0], b, h, t, d) * AT(r->in[1], b, s, d);
  return AT(r->in[3], t, s) != 0 ? tanh(0.5 * raw) : -INFINITY;
}

/* o[e] of one query and its lse. */
static double attend(const Rig *r, int b, int h, int t, double o[E]) {
  double sum = 0;
  for (int e = 0; e < E; e++)
    o[e] = 0;
  for (int s = 0; s < S; s++) {
    double p = exp(score(r, b, h, t, s));
    sum += p;
    for (int e = 0; e < E; e++)
      o[e] += p * AT(r->in[2], b, s, e);
  }
  for (int e = 0; e < E; e++)
    o[e] = sum == 0 ? 0 : o[e] / sum;
  return log(sum);
}

/* The mask: query 0 sees nothing, query t sees keys up to 2 t. */
static void put_mask(Rig *r) {
  for (int t = 0; t < T; t++)
    for (int s = 0; s < S; s++)
      AT(r->in[3], t, s) = t > 0 && s <= 2 * t;
}

static void attention_values(void **state) {
  (void)state;
  Str ops = {0};
  str_puts(&ops,
           "%4, %5 = attention %0, %1, %2, %3 axis(d, s) : f64[b=2, h=3, t=3, e=2], f64[b=2, h=3, t=3] { ");
  put_score(&ops, 6);
  str_puts(&ops, "return %4 output 0 0 \"o\"\nreturn %5 output 0 0 \"lse\"");
  Rig r;
  rig_read(&r, ATTENTION_INPUTS, ops.s);
  put_mask(&r);
  rig_run(&r);
  for (int b = 0; b < B; b++)
    for (int h = 0; h < H; h++)
      for (int t = 0; t < T; t++) {
        double o[E], lse = attend(&r, b, h, t, o);
        near(AT(r.out[1], b, h, t), lse);
        for (int e = 0; e < E; e++)
          near(AT(r.out[0], b, h, t, e), o[e]);
      }
  rig_free(&r);
  str_free(&ops);
}

static double weighted(const Rig *r, const Tensor *weight) {
  double sum = 0;
  for (int b = 0; b < B; b++)
    for (int h = 0; h < H; h++)
      for (int t = 0; t < T; t++) {
        double o[E];
        attend(r, b, h, t, o);
        for (int e = 0; e < E; e++)
          sum += o[e] * AT(*weight, b, h, t, e);
      }
  return sum;
}

static double close_to(double got, double want) {
  if (!(fabs(got - want) < 1e-8 * (1 + fabs(want))))
    fail_msg("%.17g, not %.17g", got, want);
  return got;
}

static void attention_gradients(void **state) {
  (void)state;
  Str ops = {0};
  str_puts(&ops,
           "%5, %6 = attention %0, %1, %2, %3 axis(d, s) : f64[b=2, h=3, t=3, e=2], f64[b=2, h=3, t=3] { ");
  put_score(&ops, 7);
  str_puts(&ops, "%14, %15, %16 = attention_grad %0, %1, %2, %5, %6, %4, %3 axis(d, s) : "
                 "f64[b=2, h=3, t=3, d=3], f64[b=2, s=5, d=3], f64[b=2, s=5, e=2] { ");
  put_score(&ops, 17);
  str_puts(&ops, "return %14 output 0 0 \"dq\"\nreturn %15 output 0 0 \"dk\"\nreturn %16 output 0 0 \"dv\"");
  Rig r;
  rig_read(&r, ATTENTION_INPUTS "; f64[b=2, h=3, t=3, e=2]", ops.s);
  put_mask(&r);
  rig_run(&r);
  for (int k = 0; k < 3; k++)
    for (int64_t i = 0, n = type_count(&r.in[k].type); i < n; i++) {
      double *x = &r.in[k].data[i], keep = *x, h = 1e-4;
      *x = keep + h;
      double up = weighted(&r, &r.in[4]);
      *x = keep - h;
      double down = weighted(&r, &r.in[4]);
      *x = keep;
      close_to(r.out[k].data[i], (up - down) / (2 * h));
    }
  rig_free(&r);
  str_free(&ops);
}

/* ---- projection and cross-entropy ---- */

static double nll(const Rig *r, int n) {
  double sum = 0, hit = 0;
  for (int v = 0; v < 7; v++) {
    double logit = 0;
    for (int d = 0; d < 3; d++)
      logit += AT(r->in[0], n, d) * AT(r->in[1], v, d);
    sum += exp(logit);
    hit = v == (int)AT(r->in[2], n) ? logit : hit;
  }
  return log(sum) - hit;
}

static void cross_entropy(void **state) {
  (void)state;
  Rig r;
  rig_read(
      &r, "f64[n=5, d=3]; f64[v=7, d=3]; int[n=5]; f64[n=5]",
      "%4 = linear_xent %0, %1, %2 axis(d, v) : f64[n=5]\n"
      "%5, %6, %7 = linear_xent_grad %0, %1, %2, %3 axis(d, v) : f64[n=5], f64[n=5, d=3], f64[v=7, d=3]\n"
      "return %4 output 0 0 \"nll\"\nreturn %6 output 0 0 \"dx\"\nreturn %7 output 0 0 \"dw\"\nreturn %5 "
      "output 0 0 \"same\"");
  memcpy(r.in[2].data, (double[]){0, 6, 3, 3, -1},
         5 * sizeof(double)); /* the last target is outside: 0 as its logit */
  rig_run(&r);
  for (int n = 0; n < 5; n++) {
    near(AT(r.out[0], n), nll(&r, n));
    near(AT(r.out[3], n), nll(&r, n));
  }
  for (int k = 0; k < 2; k++)
    for (int64_t i = 0, count = type_count(&r.in[k].type); i < count; i++) {
      double *x = &r.in[k].data[i], keep = *x, h = 1e-4, slope = 0;
      for (int n = 0; n < 5; n++) {
        *x = keep + h;
        slope += r.in[3].data[n] * nll(&r, n) / (2 * h);
        *x = keep - h;
        slope -= r.in[3].data[n] * nll(&r, n) / (2 * h);
      }
      *x = keep;
      close_to(r.out[k + 1].data[i], slope);
    }
  rig_free(&r);
}

/* ---- grad ---- */

static void gradient_of_a_block(void **state) {
  (void)state;
  Rig r;
  run(&r, "f64[a=4]; f64[a=4]",
      "%2 = sin %0 : f64[a=4]\n%3 = mul %2, %1 : f64[a=4]\n%4 = grad %3, %0 : f64[a=4]\n%5 = stop %0 : "
      "f64[a=4]\n"
      "%6 = mul %5, %0 : f64[a=4]\n%7 = grad %6, %0 : f64[a=4]\n%8 = grad %1, %0 : f64[a=4]\n"
      "return %4 output 0 0 \"a\"\nreturn %7 output 0 0 \"b\"\nreturn %8 output 0 0 \"c\"");
  for (int i = 0; i < 4; i++) {
    close_to(r.out[0].data[i], cos(r.in[0].data[i]) * r.in[1].data[i]);
    close_to(r.out[1].data[i], r.in[0].data[i]);
    close_to(r.out[2].data[i], 0);
  }
  rig_free(&r);
}

/* ---- structure ---- */

/* h = h * w[l] + l + bias, forwards and backwards; ys hold what each iteration began with. */
static void loops(void **state) {
  (void)state;
  for (int reverse = 0; reverse < 2; reverse++) {
    Str ops = {0};
    str_printf(&ops,
               "%%3, %%4 = loop %%0, %%1, %%2 axis(l) num(3, 1, 1, %d) : f64[a=2], f64[l=3, a=2] { (%%5: "
               "int, %%6: f64[a=2], "
               "%%7: f64[a=2], %%8: f64)\n%%9 = mul %%6, %%7 : f64[a=2]\n%%10 = cast %%5 : f64\n%%11 = add "
               "%%9, %%10 : f64[a=2]\n"
               "%%12 = add %%11, %%8 : f64[a=2]\nyield %%12, %%6\n}\nreturn %%3 output 0 0 \"h\"\nreturn %%4 "
               "output 0 0 \"all\"",
               reverse);
    Rig r;
    run(&r, "f64[a=2]; f64[a=2, l=3]; f64", ops.s);
    for (int a = 0; a < 2; a++) {
      double h = r.in[0].data[a];
      for (int i = 0; i < 3; i++) {
        int l = reverse ? 2 - i : i;
        near(AT(r.out[1], l, a), h);
        h = h * AT(r.in[1], a, l) + l + r.in[2].data[0];
      }
      near(AT(r.out[0], a), h);
    }
    rig_free(&r);
    str_free(&ops);
  }
}

/* Loops in loops: each draw depends on both indices. */
static void nested_loops(void **state) {
  (void)state;
  Rig r;
  rig_read(
      &r, "i64; i64",
      "%2 = loop %0, %1 axis(i) num(2, 0, 0, 0) : f32[i=2, j=3, a=2] { (%3: int, %4: i64, %5: i64)\n"
      "%6 = loop %4, %5, %3 axis(j) num(3, 0, 0, 0) : f32[j=3, a=2] { (%7: int, %8: i64, %9: i64, %10: int)\n"
      "%11 = random %8, %9, %10, %7 axis(a) num(2, 5) : f32[a=2]\nyield %11\n}\nyield %6\n}\nreturn %2 "
      "output 0 0 \"y\"");
  r.in[0].data[0] = 1;
  r.in[1].data[0] = 2;
  rig_run(&r);
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 3; j++)
      for (uint32_t a = 0; a < 2; a++) {
        uint32_t w[4], loops = (uint32_t)(i + 1) * 65537u + (uint32_t)j + 1;
        philox4x32((uint32_t[]){a, 0, loops, 2}, (uint32_t[]){1, 5}, w);
        near(AT(r.out[0], i, j, a), (double)(w[0] >> 8) / 16777216);
      }
  rig_free(&r);
}

static void regions(void **state) {
  (void)state;
  Rig r;
  run(&r, "f64[a=5]; f64[a=5]",
      "%2, %3 = region %0, %1 \"map\" : f64[a=5], f64 { (%4: f64[a=5], %5: f64[a=5])\n%6 = mul %4, %5 : "
      "f64[a=5]\n"
      "%7 = sum %6 axis(a) : f64\nyield %6, %7\n}\nreturn %2 output 0 0 \"y\"\nreturn %3 output 0 0 \"s\"");
  double sum = 0;
  for (int i = 0; i < 5; i++) {
    near(r.out[0].data[i], r.in[0].data[i] * r.in[1].data[i]);
    sum += r.in[0].data[i] * r.in[1].data[i];
  }
  near(r.out[1].data[0], sum);
  rig_free(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(softmax_rows),        cmocka_unit_test(attention_values),
      cmocka_unit_test(attention_gradients), cmocka_unit_test(cross_entropy),
      cmocka_unit_test(gradient_of_a_block), cmocka_unit_test(loops),
      cmocka_unit_test(nested_loops),        cmocka_unit_test(regions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
