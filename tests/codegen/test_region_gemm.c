/* Contractions of generated kernels against the interpreter: all operand orders, views, prologues, epilogues,
 * odd sizes. */
#include "region_rig.h"

static const char *dims(const char *fmt, ...) {
  static char buf[4][128];
  static int k;
  k = (k + 1) % 4;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(buf[k], sizeof buf[k], fmt, ap);
  va_end(ap);
  return buf[k];
}

static void orders_and_sizes(void **state) {
  (void)state;
  static const int sizes[][3] = {{17, 33, 65}, {129, 48, 7},  {8, 96, 385},  {65, 129, 33},
                                 {7, 1000, 3}, {64, 64, 800}, {200, 17, 40}, {2, 70, 300}};
  for (int i = 0; i < 8; i++)
    for (int order = 0; order < 4; order++)
      for (int d = 0; d < 2; d++) {
        int m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        DType t = d ? DT_F64 : DT_F32;
        Rig r;
        rig_init(&r);
        r.tol = d ? 1e-12 : 1e-4;
        Val x = rig_in(&r, t, order & 1 ? dims("k=%d m=%d", k, m) : dims("m=%d k=%d", m, k), -1, 1);
        Val y = rig_in(&r, t, order & 2 ? dims("n=%d k=%d", n, k) : dims("k=%d n=%d", k, n), -1, 1);
        Axis ka = ax(&r, "k");
        Val v = ir_contract(&r.b, x, y, &ka, 1);
        rig_run(&r, "gemm", &v, 1, dims("gemm %d %d %d order %d", m, n, k, order));
      }
}

static void epilogue(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  r.tol = 1e-4;
  Val x = rig_in(&r, DT_F32, "b=2 t=33 e=64", -1, 1), w = rig_in(&r, DT_F32, "e=64 f=129", -1, 1);
  Val bias = rig_in(&r, DT_F32, "f=129", -1, 1), res = rig_in(&r, DT_F32, "b=2 t=33 f=129", -1, 1);
  Axis e = ax(&r, "e");
  Val h = ir_binary(&r.b, OP_ADD, ir_contract(&r.b, x, w, &e, 1), bias);
  Val g = ir_binary(&r.b, OP_ADD, ir_unary(&r.b, OP_TANH, h), res);
  Axis f = ax(&r, "f");
  Val out[] = {g, h, ir_reduce(&r.b, OP_SUM, g, &f, 1)};
  rig_run(&r, "gemm", out, 3, "epilogue");
}

static void prologue(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  r.tol = 1e-4;
  Val x = rig_in(&r, DT_F32, "b=2 t=33 e=64", -1, 1), w = rig_in(&r, DT_F32, "e=64 f=40", -1, 1);
  Axis e = ax(&r, "e");
  Val mean = ir_binary(&r.b, OP_DIV, ir_reduce(&r.b, OP_SUM, x, &e, 1), ir_const(&r.b, DT_F32, 64));
  Val v = ir_contract(&r.b, ir_binary(&r.b, OP_SUB, x, mean), ir_unary(&r.b, OP_EXP, w), &e, 1);
  rig_run(&r, "gemm", &v, 1, "prologue");
}

/* Attention-like: batch axes in the middle, split heads, two contracted axes. */
static void views(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  r.tol = 1e-4;
  Val q = rig_in(&r, DT_F32, "b=2 t=17 e=48", -1, 1), k = rig_in(&r, DT_F32, "b=2 t=17 e=48", -1, 1);
  Axis sp[] = {ax(&r, "e"), ax(&r, "h"), ax(&r, "d")}, t = ax(&r, "t"), s = ax(&r, "s"), d = ax(&r, "d");
  Attr a = {.axis = sp, .n_axis = 3, .num = (int64_t[]){3, 16}, .n_num = 2};
  Val qh = ir_op(&r.b, OP_SPLIT, &q, 1, &a, NULL),
      kh = ir_rename(&r.b, ir_op(&r.b, OP_SPLIT, &k, 1, &a, NULL), &t, &s, 1);
  Val v = ir_contract(&r.b, qh, kh, &d, 1);
  rig_run(&r, "gemm", &v, 1, "scores");

  rig_init(&r);
  r.tol = 1e-4;
  Val o = rig_in(&r, DT_F32, "b=2 h=3 t=17 d=16", -1, 1), w = rig_in(&r, DT_F32, "h=3 d=16 e=50", -1, 1);
  Axis hd[] = {ax(&r, "h"), ax(&r, "d")};
  v = ir_contract(&r.b, o, w, hd, 2);
  rig_run(&r, "gemm", &v, 1, "two contracted axes");

  rig_init(&r);
  r.tol = 1e-4;
  Val dy = rig_in(&r, DT_F32, "b=2 t=17 f=33", -1, 1), x = rig_in(&r, DT_F32, "b=2 t=17 e=50", -1, 1);
  Axis bt[] = {ax(&r, "b"), ax(&r, "t")};
  v = ir_contract(&r.b, x, dy, bt, 2);
  Val old = rig_in(&r, DT_F32, "e=50 f=33", -1, 1);
  Val out[] = {ir_binary(&r.b, OP_ADD, old, v)};
  rig_run(&r, "gemm", out, 1, "weight gradient added");

  rig_init(&r);
  r.tol = 1e-4;
  Val p = rig_in(&r, DT_F32, "b=2 h=3 t=17 s=40", -1, 1), u = rig_in(&r, DT_F32, "b=2 s=40 h=3 d=16", -1, 1);
  s = ax(&r, "s");
  v = ir_contract(&r.b, p, u, &s, 1);
  rig_run(&r, "gemm", &v, 1, "batched over two axes");
}

static void one_row_or_column(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  r.tol = 1e-4;
  Val x = rig_in(&r, DT_F32, "m=70 k=300", -1, 1), y = rig_in(&r, DT_F32, "k=300", -1, 1),
      z = rig_in(&r, DT_F32, "k=300 n=1", -1, 1);
  Axis k = ax(&r, "k");
  Val out[] = {ir_contract(&r.b, x, y, &k, 1), ir_contract(&r.b, y, z, &k, 1)};
  rig_run(&r, "gemm", out, 1, "matrix times vector");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(orders_and_sizes), cmocka_unit_test(epilogue),
                                     cmocka_unit_test(prologue), cmocka_unit_test(views),
                                     cmocka_unit_test(one_row_or_column)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
