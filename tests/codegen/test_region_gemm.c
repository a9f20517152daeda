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

/* Biases and residuals that the product's own phase adds: by column, by row, in another order, one and two of
 * them. */
static void addends(void **state) {
  (void)state;
  static const char *first[] = {"f=129", "b=2 t=33", "f=129 t=33", "b=2 t=33 f=129", ""};
  for (int i = 0; i < 5; i++)
    for (int two = 0; two < 2; two++) {
      Rig r;
      rig_init(&r);
      r.tol = 1e-4;
      Val x = rig_in(&r, DT_F32, "b=2 t=33 e=64", -1, 1), w = rig_in(&r, DT_F32, "e=64 f=129", -1, 1);
      Val more = rig_in(&r, DT_F32, first[i], -1, 1), res = rig_in(&r, DT_F32, "b=2 t=33 f=129", -1, 1);
      Axis e = ax(&r, "e");
      Val h = ir_binary(&r.b, OP_ADD, ir_contract(&r.b, x, w, &e, 1), more);
      if (two)
        h = ir_binary(&r.b, OP_ADD, h, res);
      rig_run(&r, "gemm", &h, 1, dims("addend %d %d", i, two));
    }
}

/* A sum that goes on from chunk to chunk is kept in one buffer as long as k is one block. */
static void in_place(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) {
    Rig r;
    rig_init(&r);
    const char *k = i == 1 ? "k=700" : "k=64";
    Val x = rig_in(&r, DT_F32, dims("%s m=100", k), -1, 1), y = rig_in(&r, DT_F32, dims("%s n=80", k), -1, 1);
    Val acc = rig_in(&r, DT_F32, "m=100 n=80", -1, 1);
    Axis ka = ax(&r, "k");
    Val sum = ir_binary(&r.b, OP_ADD, acc, ir_contract(&r.b, x, y, &ka, 1));
    ir_block_ret(r.f, r.body, i == 2 ? ir_binary(&r.b, OP_ADD, sum, acc) : sum);
    Builder top = {r.f, r.f->body, {NONE, 0, 0}, &r.err};
    Val res = ir_op(&top, OP_REGION, r.outer, r.n_in, &(Attr){.str = "gemm"}, r.body);
    OpId region = r.f->val[res].def;
    assert_int_equal(codegen_inplace(r.f, region, 0, 2), i == 0);
    assert_false(codegen_inplace(r.f, region, 0, 0));
    ir_module_free(r.m);
  }
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

/* Masked, scaled scores; rows without any key when the mask is shifted. */
static void attention(void **state) {
  (void)state;
  static const int shapes[][4] = {{1, 2, 5, 8}, {2, 3, 33, 16}, {4, 4, 64, 16}, {1, 1, 65, 7}};
  for (int i = 0; i < 4; i++)
    for (int kind = 0; kind < 6; kind++) {
      int shift = kind % 3 - 1;
      const char *e = kind < 3 ? "e" : "d"; /* values may have the axis of the keys */
      int b = shapes[i][0], h = shapes[i][1], t = shapes[i][2], d = shapes[i][3];
      Rig r;
      rig_init(&r);
      r.tol = 3e-4;
      const char *qs = dims("b=%d t=%d h=%d d=%d", b, t, h, d), *ks = dims("b=%d s=%d h=%d d=%d", b, t, h, d);
      Val q = rig_in(&r, DT_F32, qs, -1, 1), k = rig_in(&r, DT_F32, ks, -1, 1);
      Val v = rig_in(&r, DT_F32, dims("b=%d s=%d h=%d %s=%d", b, t, h, e, d), -1, 1);
      Val scale = rig_in(&r, DT_F32, "", 0.2, 0.4);
      Val d_o = rig_in(&r, DT_F32, dims("b=%d t=%d h=%d %s=%d", b, t, h, e, d), -1, 1);
      Axis axes[] = {ax(&r, "d"), ax(&r, "s")};
      Type raw = rig_type(&r, DT_F32, dims("b=%d h=%d t=%d s=%d", b, h, t, t));
      Block *body = ir_block_new(r.f);
      Builder sb = {r.f, body, {NONE, 0, 0}, &r.err};
      Val x = ir_param(r.f, body, raw, NULL), c = ir_param(r.f, body, type_scalar(DT_F32), NULL);
      Val pos = ir_binary(&sb, OP_ADD, ir_iota(&sb, ax(&r, "t"), t), ir_const(&sb, DT_I32, shift));
      Val seen = ir_binary(&sb, OP_LE, ir_iota(&sb, ax(&r, "s"), t), pos);
      Val s = ir_unary(&sb, OP_TANH, ir_binary(&sb, OP_MUL, x, c));
      ir_block_ret(r.f, body, ir_select(&sb, seen, s, ir_const(&sb, DT_F32, -INFINITY)));
      Attr a = {.axis = axes, .n_axis = 2};
      Val o = ir_op(&r.b, OP_ATTENTION, (Val[]){q, k, v, scale}, 4, &a, body);
      Val dor = shift ? ir_reorder(&r.b, d_o, ir_type(r.f, o)) : d_o; /* its order may be another than o's */
      Val g = ir_op(&r.b, OP_ATTENTION_GRAD, (Val[]){q, k, v, o, o + 1, dor, scale}, 7, &a,
                    ir_clone_block(r.f, r.f, body));
      Val out[] = {o, o + 1, g, g + 1, g + 2};
      rig_run(&r, "attention", out, 5, dims("attention %d kind %d", t, kind));
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(orders_and_sizes),  cmocka_unit_test(epilogue),
                                     cmocka_unit_test(addends),           cmocka_unit_test(in_place),
                                     cmocka_unit_test(prologue),          cmocka_unit_test(views),
                                     cmocka_unit_test(one_row_or_column), cmocka_unit_test(attention)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
