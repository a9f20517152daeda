/* The interpreter, row by row: sources, pointwise ops, movement, reductions, products, indexing against naive
 * formulas. */
#include "rig.h"

#include "runtime/rng.h"

static double ref_sigmoid(double x) {
  return 1 / (1 + exp(-x));
}
static double ref_rsqrt(double x) {
  return 1 / sqrt(x);
}
static double ref_neg(double x) {
  return -x;
}
static double ref_sign(double x) {
  return (x > 0) - (x < 0);
}
static double ref_same(double x) {
  return x;
}

static void unary(void **state) {
  (void)state;
  static const struct {
    const char *op;
    double (*ref)(double);
  } row[] = {
      {"neg", ref_neg},         {"exp", exp},   {"log", log},     {"log1p", log1p},   {"sqrt", sqrt},
      {"rsqrt", ref_rsqrt},     {"tanh", tanh}, {"sin", sin},     {"cos", cos},       {"erf", erf},
      {"sigmoid", ref_sigmoid}, {"abs", fabs},  {"floor", floor}, {"sign", ref_sign}, {"stop", ref_same}};
  for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
    char ops[128];
    snprintf(ops, sizeof ops, "%%1 = %s %%0 : f64[a=7]\nreturn %%1 output 0 0 \"y\"", row[k].op);
    Rig r;
    rig_read(&r, "f64[a=7]", ops);
    bool positive = row[k].ref == log || row[k].ref == sqrt || row[k].ref == ref_rsqrt || row[k].ref == log1p;
    for (int i = 0; positive && i < 7; i++)
      r.in[0].data[i] = fabs(r.in[0].data[i]);
    rig_run(&r);
    for (int i = 0; i < 7; i++)
      near(r.out[0].data[i], row[k].ref(r.in[0].data[i]));
    rig_free(&r);
  }
}

static double ref_add(double x, double y) {
  return x + y;
}
static double ref_sub(double x, double y) {
  return x - y;
}
static double ref_mul(double x, double y) {
  return x * y;
}
static double ref_div(double x, double y) {
  return x / y;
}
static double ref_floordiv(double x, double y) {
  return floor(x / y);
}
static double ref_mod(double x, double y) {
  return x - y * floor(x / y);
}

/* x[a, b] with y[b, c]: the missing axes broadcast, the result is [a, b, c]. */
static void binary(void **state) {
  (void)state;
  static const struct {
    const char *op;
    double (*ref)(double, double);
  } row[] = {{"add", ref_add},           {"sub", ref_sub}, {"mul", ref_mul}, {"div", ref_div}, {"pow", pow},
             {"floordiv", ref_floordiv}, {"mod", ref_mod}, {"max", fmax},    {"min", fmin}};
  for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
    char ops[128];
    snprintf(ops, sizeof ops, "%%2 = %s %%0, %%1 : f64[a=3, b=5, c=2]\nreturn %%2 output 0 0 \"y\"",
             row[k].op);
    Rig r;
    rig_read(&r, "f64[a=3, b=5]; f64[b=5, c=2]", ops);
    for (int i = 0; row[k].ref == pow && i < 15; i++)
      r.in[0].data[i] = fabs(r.in[0].data[i]);
    rig_run(&r);
    for (int a = 0; a < 3; a++)
      for (int b = 0; b < 5; b++)
        for (int c = 0; c < 2; c++)
          near(AT(r.out[0], a, b, c), row[k].ref(AT(r.in[0], a, b), AT(r.in[1], b, c)));
    rig_free(&r);
  }
}

static void nan_goes_through_max_and_min(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "f64[a=2]; f64[a=2]",
           "%2 = max %0, %1 : f64[a=2]\n%3 = min %0, %1 : f64[a=2]\n%4 = reduce_max %0 axis(a) : f64\n"
           "%5 = reduce_min %0 axis(a) : f64\n"
           "return %2 output 0 0 \"a\"\nreturn %3 output 0 0 \"b\"\nreturn %4 output 0 0 \"c\"\nreturn %5 "
           "output 0 0 \"d\"");
  r.in[0].data[0] = NAN;
  r.in[1].data[1] = NAN;
  rig_run(&r);
  for (int i = 0; i < 2; i++)
    assert_true(isnan(r.out[0].data[i]) && isnan(r.out[1].data[i]));
  assert_true(isnan(r.out[2].data[0]) && isnan(r.out[3].data[0]));
  rig_free(&r);
}

static void ints(void **state) {
  (void)state;
  static const double x[] = {7, -7, 7, -7, 5, 2147483647, -2147483648.0, 65537};
  static const double y[] = {3, 3, -3, -3, 0, 1, -1, 65537};
  static const double div[] = {2, -3, -3, 2, 0, 2147483647, -2147483648.0, 1};
  static const double mod[] = {1, 2, -2, -1, 0, 0, 0, 0};
  static const double sum[] = {10, -4, 4, -10, 5, -2147483648.0, 2147483647, 131074};
  static const double mul[] = {21, -21, -21, 21, 0, 2147483647, -2147483648.0, 131073};
  Rig r;
  rig_read(&r, "int[a=8]; int[a=8]",
           "%2 = floordiv %0, %1 : int[a=8]\n%3 = mod %0, %1 : int[a=8]\n%4 = add %0, %1 : int[a=8]\n"
           "%5 = mul %0, %1 : int[a=8]\nreturn %2 output 0 0 \"a\"\nreturn %3 output 0 0 \"b\"\n"
           "return %4 output 0 0 \"c\"\nreturn %5 output 0 0 \"d\"");
  memcpy(r.in[0].data, x, sizeof x);
  memcpy(r.in[1].data, y, sizeof y);
  rig_run(&r);
  for (int i = 0; i < 8; i++) {
    near(r.out[0].data[i], div[i]);
    near(r.out[1].data[i], mod[i]);
    near(r.out[2].data[i], sum[i]);
    near(r.out[3].data[i], mul[i]);
  }
  rig_free(&r);
}

static void casts(void **state) {
  (void)state;
  static const double x[] = {1.9, -1.9, 1e20, -1e20, NAN, 0, 300};
  static const double i32[] = {1, -1, 2147483647, -2147483648.0, 0, 0, 300};
  static const double u8[] = {1, 0, 255, 0, 0, 0, 255};
  static const double yes[] = {1, 1, 1, 1, 1, 0, 1};
  Rig r;
  rig_read(
      &r, "f64[a=7]",
      "%1 = cast %0 : int[a=7]\n%2 = cast %0 : u8[a=7]\n%3 = cast %0 : bool[a=7]\n%4 = cast %3 : f64[a=7]\n"
      "return %1 output 0 0 \"a\"\nreturn %2 output 0 0 \"b\"\nreturn %3 output 0 0 \"c\"\nreturn %4 output "
      "0 0 \"d\"");
  memcpy(r.in[0].data, x, sizeof x);
  rig_run(&r);
  for (int i = 0; i < 7; i++) {
    near(r.out[0].data[i], i32[i]);
    near(r.out[1].data[i], u8[i]);
    near(r.out[2].data[i], yes[i]);
    near(r.out[3].data[i], yes[i]);
  }
  rig_free(&r);
}

static void comparisons_logic_select(void **state) {
  (void)state;
  Rig r;
  run(&r, "int[a=9]; int[a=9]; f64[b=2]",
      "%3 = eq %0, %1 : bool[a=9]\n%4 = ne %0, %1 : bool[a=9]\n%5 = lt %0, %1 : bool[a=9]\n%6 = le %0, %1 : "
      "bool[a=9]\n"
      "%7 = not %3 : bool[a=9]\n%8 = and %7, %5 : bool[a=9]\n%9 = or %3, %8 : bool[a=9]\n%10 = const 0.25 : "
      "f64\n"
      "%11 = select %6, %10, %2 : f64[a=9, b=2]\nreturn %3 output 0 0 \"a\"\nreturn %4 output 0 0 \"b\"\n"
      "return %5 output 0 0 \"c\"\nreturn %6 output 0 0 \"d\"\nreturn %8 output 0 0 \"e\"\nreturn %9 output "
      "0 0 \"f\"\n"
      "return %11 output 0 0 \"g\"");
  for (int i = 0; i < 9; i++) {
    double x = r.in[0].data[i], y = r.in[1].data[i];
    near(r.out[0].data[i], x == y);
    near(r.out[1].data[i], x != y);
    near(r.out[2].data[i], x < y);
    near(r.out[3].data[i], x <= y);
    near(r.out[4].data[i], x != y && x < y);
    near(r.out[5].data[i], x <= y);
    for (int b = 0; b < 2; b++)
      near(AT(r.out[6], i, b), x <= y ? 0.25 : r.in[2].data[b]);
  }
  rig_free(&r);
}

static void movement(void **state) {
  (void)state;
  Rig r;
  run(&r, "f64[a=6, b=5]; f64[c=3, b=5]",
      "%2 = broadcast %0 axis(b, n, a) num(5, 2, 6) : f64[b=5, n=2, a=6]\n%3 = rename %0 axis(a, b, b, a) : "
      "f64[b=6, a=5]\n"
      "%4 = split %0 axis(a, p, q) num(2, 3) : f64[p=2, q=3, b=5]\n%5 = merge %4 axis(b, q, m) : f64[p=2, "
      "m=15]\n"
      "%6 = slice %0 axis(b) num(1, 4) : f64[a=6, b=3]\n%7 = pad %0 axis(b, t) num(2, 1) : f64[a=6, t=8]\n"
      "%8 = concat %0, %1 axis(u, a, c) : f64[u=9, b=5]\n%9 = reorder %4 axis(b, p, q) : f64[b=5, p=2, q=3]\n"
      "return %2 output 0 0 \"a\"\nreturn %3 output 0 0 \"b\"\nreturn %4 output 0 0 \"c\"\nreturn %5 output "
      "0 0 \"d\"\n"
      "return %6 output 0 0 \"e\"\nreturn %7 output 0 0 \"f\"\nreturn %8 output 0 0 \"g\"\nreturn %9 output "
      "0 0 \"h\"");
  for (int a = 0; a < 6; a++)
    for (int b = 0; b < 5; b++) {
      double x = AT(r.in[0], a, b);
      near(AT(r.out[0], b, 0, a), x);
      near(AT(r.out[0], b, 1, a), x);
      near(AT(r.out[1], a, b), x);
      near(AT(r.out[2], a / 3, a % 3, b), x);
      near(AT(r.out[3], a / 3, b * 3 + a % 3), x);
      if (b >= 1 && b < 4)
        near(AT(r.out[4], a, b - 1), x);
      near(AT(r.out[5], a, b + 2), x);
      near(AT(r.out[5], a, (b + 7) % 5 < 2 ? (b + 7) % 5 : 7), 0);
      near(AT(r.out[6], a, b), x);
      near(AT(r.out[7], b, a / 3, a % 3), x);
      if (a < 3)
        near(AT(r.out[6], 6 + a, b), AT(r.in[1], a, b));
    }
  rig_free(&r);
}

static void reductions(void **state) {
  (void)state;
  Rig r;
  run(&r, "f64[a=3, b=5, c=7]",
      "%1 = sum %0 axis(c, a) : f64[b=5]\n%2 = reduce_max %0 axis(b) : f64[a=3, c=7]\n"
      "%3 = reduce_min %0 axis(b) : f64[a=3, c=7]\n%4 = prod %0 axis(b) : f64[a=3, c=7]\n"
      "%5 = argmax %0 axis(b) : int[a=3, c=7]\n%6 = cumsum %0 axis(b) num(0) : f64[a=3, b=5, c=7]\n"
      "%7 = cumsum %0 axis(b) num(1) : f64[a=3, b=5, c=7]\nreturn %1 output 0 0 \"a\"\nreturn %2 output 0 0 "
      "\"b\"\n"
      "return %3 output 0 0 \"c\"\nreturn %4 output 0 0 \"d\"\nreturn %5 output 0 0 \"e\"\nreturn %6 output "
      "0 0 \"f\"\n"
      "return %7 output 0 0 \"g\"");
  for (int b = 0; b < 5; b++) {
    double s = 0;
    for (int a = 0; a < 3; a++)
      for (int c = 0; c < 7; c++)
        s += AT(r.in[0], a, b, c);
    near(AT(r.out[0], b), s);
  }
  for (int a = 0; a < 3; a++)
    for (int c = 0; c < 7; c++) {
      double most = -9, least = 9, prod = 1, before = 0, all = 0;
      int best = 0;
      for (int b = 0; b < 5; b++) {
        double x = AT(r.in[0], a, b, c);
        best = x > most ? b : best;
        most = fmax(most, x);
        least = fmin(least, x);
        prod *= x;
        all += x;
      }
      near(AT(r.out[1], a, c), most);
      near(AT(r.out[2], a, c), least);
      near(AT(r.out[3], a, c), prod);
      near(AT(r.out[4], a, c), best);
      for (int b = 0; b < 5; b++) {
        double x = AT(r.in[0], a, b, c);
        near(AT(r.out[5], a, b, c), before + x);
        near(AT(r.out[6], a, b, c), all - before);
        before += x;
      }
    }
  rig_free(&r);
}

static void any_and_all(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "bool[a=2, b=2]",
           "%1 = reduce_max %0 axis(b) : bool[a=2]\n%2 = reduce_min %0 axis(b) : bool[a=2]\n"
           "return %1 output 0 0 \"a\"\nreturn %2 output 0 0 \"b\"");
  memcpy(r.in[0].data, (double[]){0, 1, 1, 1}, 4 * sizeof(double));
  rig_run(&r);
  near(r.out[0].data[0], 1);
  near(r.out[1].data[0], 0);
  near(r.out[1].data[1], 1);
  rig_free(&r);
}

static void ties_and_order(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "f64[b=5]",
           "%1, %2 = sort %0 axis(b, k) num(4, 1) : f64[k=4], int[k=4]\n%3, %4 = sort %0 axis(b, b) num(5, "
           "0) : f64[b=5], int[b=5]\n"
           "%5 = argmax %0 axis(b) : int\nreturn %1 output 0 0 \"a\"\nreturn %2 output 0 0 \"b\"\nreturn %4 "
           "output 0 0 \"c\"\n"
           "return %5 output 0 0 \"d\"");
  memcpy(r.in[0].data, (double[]){1, 3, 2, 3, 1}, 5 * sizeof(double));
  rig_run(&r);
  static const double top[] = {3, 3, 2, 1}, which[] = {1, 3, 2, 0}, up[] = {0, 4, 2, 1, 3};
  for (int k = 0; k < 4; k++) {
    near(r.out[0].data[k], top[k]);
    near(r.out[1].data[k], which[k]);
  }
  for (int k = 0; k < 5; k++)
    near(r.out[2].data[k], up[k]);
  near(r.out[3].data[0], 1);
  r.in[0].data[2] = NAN;
  rig_run(&r);
  near(r.out[3].data[0], 2);
  near(r.out[1].data[0], 2);
  rig_free(&r);
}

/* A batch axis, two summed axes, axes of one operand only, in any order. */
static void products(void **state) {
  (void)state;
  Rig r;
  run(&r, "f64[m=3, k=5, n=2, j=2]; f64[k=5, p=7, j=2, n=2]",
      "%2 = contract %0, %1 axis(k, j) : f64[n=2, m=3, p=7]\n%3 = contract %0, %1 : f64[k=5, n=2, j=2, m=3, "
      "p=7]\n"
      "return %2 output 0 0 \"y\"\nreturn %3 output 0 0 \"z\"");
  for (int n = 0; n < 2; n++)
    for (int m = 0; m < 3; m++)
      for (int p = 0; p < 7; p++) {
        double s = 0;
        for (int k = 0; k < 5; k++)
          for (int j = 0; j < 2; j++) {
            double xy = AT(r.in[0], m, k, n, j) * AT(r.in[1], k, p, j, n);
            near(AT(r.out[1], k, n, j, m, p), xy);
            s += xy;
          }
        near(AT(r.out[0], n, m, p), s);
      }
  rig_free(&r);
}

static void gathers(void **state) {
  (void)state;
  Rig r;
  run(&r, "f64[v=7, b=3, e=2]; int[b=3, t=5]; int[t=5]",
      "%3 = gather %0, %1 axis(v) : f64[b=3, t=5, e=2]\n%4 = gather %0, %1, %2 axis(v, e) : f64[b=3, t=5]\n"
      "%5 = iota axis(v) num(7) : int[v=7]\n%6 = const 3 : int\n%7 = add %5, %6 : int[v=7]\n"
      "%8 = gather %0, %7 axis(v) : f64[v=7, b=3, e=2]\nreturn %3 output 0 0 \"a\"\nreturn %4 output 0 0 "
      "\"b\"\n"
      "return %8 output 0 0 \"c\"");
  for (int b = 0; b < 3; b++)
    for (int t = 0; t < 5; t++) {
      int i = (int)AT(r.in[1], b, t), j = (int)AT(r.in[2], t);
      bool in = i >= 0 && i < 7;
      for (int e = 0; e < 2; e++)
        near(AT(r.out[0], b, t, e), in ? AT(r.in[0], i, b, e) : 0);
      near(AT(r.out[1], b, t), in && j >= 0 && j < 2 ? AT(r.in[0], i, b, j) : 0);
    }
  for (int v = 0; v < 7; v++)
    near(AT(r.out[2], v, 2, 1), v + 3 < 7 ? AT(r.in[0], v + 3, 2, 1) : 0);
  rig_free(&r);
}

static void scatters(void **state) {
  (void)state;
  Rig r;
  run(&r, "f64[b=3, t=5, e=2]; int[b=3, t=5]",
      "%2 = scatter_add %0, %1 axis(v, v, e) num(7, 2) : f64[v=7, e=2]\n"
      "%3 = scatter_add %0, %1 axis(v, e, v, b) num(2, 7, 3) : f64[e=2, v=7, b=3]\nreturn %2 output 0 0 "
      "\"a\"\n"
      "return %3 output 0 0 \"b\"");
  double all[7][2] = {{0}}, each[2][7][3] = {{{0}}};
  for (int b = 0; b < 3; b++)
    for (int t = 0; t < 5; t++)
      for (int e = 0; e < 2; e++) {
        int i = (int)AT(r.in[1], b, t);
        if (i >= 0 && i < 7) {
          all[i][e] += AT(r.in[0], b, t, e);
          each[e][i][b] += AT(r.in[0], b, t, e);
        }
      }
  for (int v = 0; v < 7; v++)
    for (int e = 0; e < 2; e++) {
      near(AT(r.out[0], v, e), all[v][e]);
      for (int b = 0; b < 3; b++)
        near(AT(r.out[1], e, v, b), each[e][v][b]);
    }
  rig_free(&r);
}

static void draws(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "i64; i64; int",
           "%3 = random %0, %1, %2 axis(a, b) num(3, 5, 99) : f32[a=3, b=5]\nreturn %3 output 0 0 \"y\"");
  r.in[0].data[0] = 12345;
  r.in[1].data[0] = 7;
  r.in[2].data[0] = 4;
  rig_run(&r);
  for (uint32_t i = 0; i < 15; i++) {
    uint32_t w[4];
    philox4x32((uint32_t[]){i, 0, 5, 7}, (uint32_t[]){12345, 99}, w);
    near(r.out[0].data[i], (double)(w[0] >> 8) / 16777216);
  }
  rig_free(&r);
}

static void rounds_to_the_dtype_when_asked(void **state) {
  (void)state;
  Rig r;
  rig_read(&r, "f32; f32", "%2 = add %0, %1 : f32\nreturn %2 output 0 0 \"y\"");
  r.in[0].data[0] = 1;
  r.in[1].data[0] = 1e-9;
  rig_run(&r);
  assert_true(r.out[0].data[0] == 1 + 1e-9);
  r.round = true;
  rig_run(&r);
  assert_true(r.out[0].data[0] == 1);
  rig_free(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unary),
      cmocka_unit_test(binary),
      cmocka_unit_test(nan_goes_through_max_and_min),
      cmocka_unit_test(ints),
      cmocka_unit_test(casts),
      cmocka_unit_test(comparisons_logic_select),
      cmocka_unit_test(movement),
      cmocka_unit_test(reductions),
      cmocka_unit_test(any_and_all),
      cmocka_unit_test(ties_and_order),
      cmocka_unit_test(products),
      cmocka_unit_test(gathers),
      cmocka_unit_test(scatters),
      cmocka_unit_test(draws),
      cmocka_unit_test(rounds_to_the_dtype_when_asked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
