/* Reductions, normalisations, scans, sorts and scatters of generated kernels against the interpreter, on odd
 * sizes. */
#include "region_rig.h"

static const int SIZES[] = {1, 3, 7, 16, 17, 33, 65, 129};
#define N_SIZES (int)(sizeof SIZES / sizeof *SIZES)

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

static Val red(Rig *r, OpCode c, Val x, const char *axis) {
  Axis a = ax(r, axis);
  return ir_reduce(&r->b, c, x, &a, 1);
}

/* ---- plain reductions ---- */

static void one_axis(void **state) {
  (void)state;
  static const OpCode ops[] = {OP_SUM, OP_REDUCE_MAX, OP_REDUCE_MIN, OP_PROD, OP_ARGMAX};
  static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_I64, DT_BOOL};
  for (int o = 0; o < 5; o++)
    for (int d = 0; d < 5; d++)
      for (int i = 0; i < N_SIZES; i++)
        for (int outer = 0; outer < 2; outer++) {
          Rig r;
          rig_init(&r);
          bool prod = ops[o] == OP_PROD;
          double lo = types[d] == DT_BOOL ? 0
                      : prod              ? 0.9
                                          : -9,
                 hi = types[d] == DT_BOOL ? 2
                      : prod              ? 1.1
                                          : 9;
          Val x =
              rig_in(&r, types[d], outer ? dims("a=%d b=5", SIZES[i]) : dims("b=5 a=%d", SIZES[i]), lo, hi);
          Val v = red(&r, ops[o], x, "a");
          if (r.err.cls) {
            ir_module_free(r.m);
            continue;
          }
          rig_run(&r, "reduce", &v, 1,
                  dims("%s %s %d outer %d", ir_op_info[ops[o]].text, dtype_name(types[d]), SIZES[i], outer));
        }
}

static void ties_and_nan(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++) {
    Rig r;
    rig_init(&r);
    r.special = true;
    Val x = rig_in(&r, DT_F32, dims("b=9 a=%d", SIZES[i]), -2, 2);
    Val out[] = {red(&r, OP_ARGMAX, x, "a"), red(&r, OP_REDUCE_MAX, x, "a"), red(&r, OP_REDUCE_MIN, x, "a")};
    rig_run(&r, "reduce", out, 3, dims("nan %d", SIZES[i]));
    rig_init(&r);
    x = rig_in(&r, DT_I32, dims("b=9 a=%d", SIZES[i]), 0, 3);
    Val t = red(&r, OP_ARGMAX, x, "a");
    rig_run(&r, "reduce", &t, 1, dims("ties %d", SIZES[i]));
  }
}

static void to_scalar(void **state) {
  (void)state;
  static const char *shapes[] = {"a=3 b=5", "a=129", "a=70001", "a=129 b=1031", "a=4000 b=33", "a=3 b=50257"};
  for (int i = 0; i < 6; i++) {
    Rig r;
    rig_init(&r);
    r.tol = 1e-4;
    Val x = rig_in(&r, DT_F32, shapes[i], -1, 1);
    Val sq = ir_binary(&r.b, OP_MUL, x, x);
    Val s = red(&r, OP_SUM, sq, "a");
    if (strchr(shapes[i], 'b')) {
      Axis both[] = {ax(&r, "a"), ax(&r, "b")};
      s = ir_reduce(&r.b, OP_SUM, sq, both, 2);
    }
    Val norm = ir_unary(&r.b, OP_SQRT, s);
    Val out[] = {norm, ir_binary(&r.b, OP_DIV, x, norm)};
    rig_run(&r, "reduce", out, 2, dims("scalar %s", shapes[i]));
  }
}

static void columns(void **state) {
  (void)state;
  static const char *shapes[] = {"b=2 t=3 e=17", "b=4 t=129 e=65", "b=8 t=64 e=768", "b=3 t=1000 e=7",
                                 "b=16 t=128 e=128"};
  for (int i = 0; i < 5; i++) {
    Rig r;
    rig_init(&r);
    r.tol = 1e-4;
    Val x = rig_in(&r, DT_F32, shapes[i], -1, 1), y = rig_in(&r, DT_F32, shapes[i], -1, 1);
    Axis bt[] = {ax(&r, "b"), ax(&r, "t")};
    Val out[] = {ir_reduce(&r.b, OP_SUM, x, bt, 2),
                 ir_reduce(&r.b, OP_SUM, ir_binary(&r.b, OP_MUL, x, y), bt, 2)};
    rig_run(&r, "reduce", out, 2, dims("columns %s", shapes[i]));
  }
}

/* ---- rows ---- */

static Val layer_norm(Rig *r, Val x, int n, Val *mean, Val *rstd) {
  Val count = ir_const(&r->b, DT_F32, n);
  *mean = ir_binary(&r->b, OP_DIV, red(r, OP_SUM, x, "e"), count);
  Val c = ir_binary(&r->b, OP_SUB, x, *mean);
  Val var = ir_binary(&r->b, OP_DIV, red(r, OP_SUM, ir_binary(&r->b, OP_MUL, c, c), "e"), count);
  *rstd = ir_unary(&r->b, OP_RSQRT, ir_binary(&r->b, OP_ADD, var, ir_const(&r->b, DT_F32, 1e-5)));
  return ir_binary(&r->b, OP_MUL, c, *rstd);
}

static void layer_norms(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES + 1; i++)
    for (int outer = 0; outer < 2; outer++) {
      int n = i < N_SIZES ? SIZES[i] : 768;
      Rig r;
      rig_init(&r);
      r.tol = 2e-4;
      Val x = rig_in(&r, DT_F32, outer ? dims("e=%d b=3 t=7", n) : dims("b=3 t=7 e=%d", n), -2, 2), mean,
          rstd;
      Val g = rig_in(&r, DT_F32, dims("e=%d", n), -2, 2), beta = rig_in(&r, DT_F32, dims("e=%d", n), -2, 2);
      Val y = ir_binary(&r.b, OP_ADD, ir_binary(&r.b, OP_MUL, layer_norm(&r, x, n, &mean, &rstd), g), beta);
      Val out[] = {y, mean, rstd};
      rig_run(&r, "norm", out, 3, dims("layer norm %d outer %d", n, outer));
    }
}

/* dx needs two row sums, the parameter gradients column sums; statistics recomputed from x. */
static void layer_norm_backward(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES + 1; i++) {
    int n = i < N_SIZES ? SIZES[i] : 768;
    Rig r;
    rig_init(&r);
    r.tol = 1e-3;
    Val x = rig_in(&r, DT_F32, dims("b=5 t=13 e=%d", n), -2, 2), mean, rstd;
    Val dy = rig_in(&r, DT_F32, dims("b=5 t=13 e=%d", n), -2, 2);
    Val xhat = layer_norm(&r, x, n, &mean, &rstd), count = ir_const(&r.b, DT_F32, n);
    Val s1 = ir_binary(&r.b, OP_DIV, red(&r, OP_SUM, dy, "e"), count);
    Val s2 = ir_binary(&r.b, OP_DIV, red(&r, OP_SUM, ir_binary(&r.b, OP_MUL, dy, xhat), "e"), count);
    Val dx = ir_binary(&r.b, OP_SUB, ir_binary(&r.b, OP_SUB, dy, s1), ir_binary(&r.b, OP_MUL, xhat, s2));
    Axis bt[] = {ax(&r, "b"), ax(&r, "t")};
    Val out[] = {ir_binary(&r.b, OP_MUL, dx, rstd),
                 ir_reduce(&r.b, OP_SUM, ir_binary(&r.b, OP_MUL, dy, xhat), bt, 2),
                 ir_reduce(&r.b, OP_SUM, dy, bt, 2)};
    rig_run(&r, "norm", out, 3, dims("layer norm backward %d", n));
  }
}

static void softmaxes(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES + 1; i++)
    for (int k = 0; k < 3; k++) {
      int n = i < N_SIZES ? SIZES[i] : 50257;
      Rig r;
      rig_init(&r);
      Val x = rig_in(&r, DT_F32, k == 1 ? dims("v=%d b=3", n) : dims("b=3 v=%d", n), -9, 9);
      if (k == 2) { /* rows of -inf */
        Val m = rig_in(&r, DT_BOOL, "b=3", 0, 2);
        x = ir_select(&r.b, m, x, ir_const(&r.b, DT_F32, -INFINITY));
      }
      Axis v = ax(&r, "v");
      Attr a = {.axis = &v, .n_axis = 1};
      Val p = ir_op(&r.b, OP_SOFTMAX, &x, 1, &a, NULL);
      rig_run(&r, "norm", &p, 1, dims("softmax %d kind %d", n, k));
    }
}

/* nll per token, mean over tokens, and the gradient of the logits: rows inside a full sum. */
static void cross_entropy(void **state) {
  (void)state;
  static const char *shapes[] = {"b=2 t=3 v=17", "b=4 t=16 v=1000", "b=1 t=1 v=5"};
  for (int i = 0; i < 3; i++) {
    Rig r;
    rig_init(&r);
    r.tol = 1e-4;
    Val x = rig_in(&r, DT_F32, shapes[i], -3, 3);
    const Type *xt = ir_type(r.f, x);
    Val target = rig_in(&r, DT_I32, dims("b=%d t=%d", (int)xt->dim[0].size, (int)xt->dim[1].size), 0, 5);
    Val m = red(&r, OP_REDUCE_MAX, x, "v");
    Val s = red(&r, OP_SUM, ir_unary(&r.b, OP_EXP, ir_binary(&r.b, OP_SUB, x, m)), "v");
    Val lse = ir_binary(&r.b, OP_ADD, m, ir_unary(&r.b, OP_LOG, s));
    Axis v = ax(&r, "v"), bt[] = {ax(&r, "b"), ax(&r, "t")};
    Val nll = ir_binary(&r.b, OP_SUB, lse, ir_gather(&r.b, x, &v, &target, 1));
    Val out[] = {ir_reduce(&r.b, OP_SUM, nll, bt, 2), nll,
                 ir_unary(&r.b, OP_EXP, ir_binary(&r.b, OP_SUB, x, lse))};
    rig_run(&r, "loss", out, 3, dims("cross entropy %s", shapes[i]));
  }
}

/* A reduction used through a rename has to be computed ahead. */
static void renamed_reduction(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  Val x = rig_in(&r, DT_F32, "t=21 e=19", -2, 2), y = rig_in(&r, DT_F32, "u=21 t=21", -2, 2);
  Val s = red(&r, OP_SUM, x, "e");
  Axis t = ax(&r, "t"), u = ax(&r, "u");
  Val v = ir_binary(&r.b, OP_ADD, y, ir_rename(&r.b, s, &t, &u, 1));
  Val out[] = {ir_binary(&r.b, OP_SUB, v, s), s};
  rig_run(&r, "reduce", out, 2, "renamed reduction");
}

static void small_contractions(void **state) {
  (void)state;
  static const char *pairs[][3] = {
      {"k=129", "k=129", "k"}, {"m=5 k=33", "k=33", "k"}, {"k=33 m=65", "k=33", "k"}, {"m=7", "n=9", ""}};
  for (int i = 0; i < 4; i++) {
    Rig r;
    rig_init(&r);
    Val x = rig_in(&r, DT_F32, pairs[i][0], -1, 1), y = rig_in(&r, DT_F32, pairs[i][1], -1, 1);
    Axis k = ax(&r, "k");
    Val v = ir_contract(&r.b, x, y, &k, pairs[i][2][0] ? 1 : 0);
    v = ir_unary(&r.b, OP_EXP, v);
    rig_run(&r, "gemm", &v, 1, dims("contract %s %s", pairs[i][0], pairs[i][1]));
  }
}

/* ---- scans, sorts, scatters ---- */

static void running_sums(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++)
    for (int k = 0; k < 4; k++) {
      Rig r;
      rig_init(&r);
      Val x = rig_in(&r, DT_F32,
                     k & 1 ? dims("a=%d b=%d", SIZES[i], SIZES[N_SIZES - 1 - i]) : dims("b=5 a=%d", SIZES[i]),
                     -1, 1);
      Axis a = ax(&r, "a");
      Attr attr = {.axis = &a, .n_axis = 1, .num = (int64_t[]){k / 2}, .n_num = 1};
      Val sq = ir_binary(&r.b, OP_MUL, x, x);
      Val c = ir_op(&r.b, OP_CUMSUM, &sq, 1, &attr, NULL);
      Val out[] = {c, ir_binary(&r.b, OP_SUB, c, x)};
      rig_run(&r, "scan", out, 2, dims("cumsum %d kind %d", SIZES[i], k));
    }
}

static void sorts(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++)
    for (int k = 0; k < 4; k++) {
      Rig r;
      rig_init(&r);
      int n = SIZES[i], top = k & 1 ? n : (n + 2) / 3;
      Val x = rig_in(&r, k < 2 ? DT_F32 : DT_I32, dims("b=3 a=%d c=2", n), -9, 9);
      Attr attr = {.axis = (Axis[]){ax(&r, "a"), ax(&r, "k")},
                   .n_axis = 2,
                   .num = (int64_t[]){top, i & 1},
                   .n_num = 2};
      Val neg = ir_unary(&r.b, OP_NEG, x);
      Val v = ir_op(&r.b, OP_SORT, &neg, 1, &attr, NULL);
      Val out[] = {v, v + 1};
      rig_run(&r, "sort", out, 2, dims("sort %d of %d", top, n));
    }
}

static Val scatter(Rig *r, Val g, const Val *index, uint32_t n, const char **axes, const char *shape) {
  Type t = rig_type(r, DT_F32, shape);
  Axis axis[2 * IR_MAX_RANK];
  int64_t num[IR_MAX_RANK];
  Val v[8] = {g};
  uint32_t na = 0;
  for (uint32_t k = 0; k < n; k++) {
    axis[na++] = ax(r, axes[k]);
    v[1 + k] = index[k];
  }
  for (int k = 0; k < t.rank; k++) {
    axis[na++] = t.dim[k].axis;
    num[k] = t.dim[k].size;
  }
  Attr a = {.axis = axis, .n_axis = na, .num = num, .n_num = t.rank};
  return ir_op(&r->b, OP_SCATTER_ADD, v, n + 1, &a, NULL);
}

static void scatters(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++) {
    const char *shape = dims("v=11 e=%d", SIZES[i]);
    Rig r;
    rig_init(&r);
    Val g = rig_in(&r, DT_F32, dims("b=3 t=7 e=%d", SIZES[i]), -2, 2),
        ids = rig_in(&r, DT_I32, "b=3 t=7", -2, 13);
    Val s = scatter(&r, ir_unary(&r.b, OP_NEG, g), &ids, 1, (const char *[]){"v"}, shape);
    rig_run(&r, "scatter", &s, 1, dims("scatter %d", SIZES[i]));
    rig_init(&r);
    g = rig_in(&r, DT_F32, dims("b=3 t=7 e=%d", SIZES[i]), -2, 2),
    ids = rig_in(&r, DT_I32, "b=3 t=7", -2, 13);
    Val old = rig_in(&r, DT_F32, shape, -2, 2);
    s = ir_binary(&r.b, OP_ADD, old, scatter(&r, g, &ids, 1, (const char *[]){"v"}, shape));
    rig_run(&r, "scatter", &s, 1, dims("scatter onto %d", SIZES[i]));
    rig_init(&r);
    g = rig_in(&r, DT_F32, dims("b=3 t=%d", SIZES[i]), -2, 2),
    ids = rig_in(&r, DT_I32, dims("b=3 t=%d", SIZES[i]), 0, 9);
    s = scatter(&r, g, &ids, 1, (const char *[]){"v"}, dims("b=3 t=%d v=9", SIZES[i]));
    rig_run(&r, "scatter", &s, 1, dims("scatter rows %d", SIZES[i]));
  }
  Rig r;
  rig_init(&r);
  Val g = rig_in(&r, DT_F32, "b=9 e=700", -2, 2), ids = rig_in(&r, DT_I32, "b=9", 0, 300);
  Val s = scatter(&r, g, &ids, 1, (const char *[]){"v"}, "v=300 e=700");
  rig_run(&r, "scatter", &s, 1, "large scatter");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_axis),          cmocka_unit_test(ties_and_nan),
      cmocka_unit_test(to_scalar),         cmocka_unit_test(columns),
      cmocka_unit_test(layer_norms),       cmocka_unit_test(layer_norm_backward),
      cmocka_unit_test(softmaxes),         cmocka_unit_test(cross_entropy),
      cmocka_unit_test(renamed_reduction), cmocka_unit_test(small_contractions),
      cmocka_unit_test(running_sums),      cmocka_unit_test(sorts),
      cmocka_unit_test(scatters),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
