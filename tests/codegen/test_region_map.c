/* Pointwise and movement ops of generated kernels against the interpreter, on odd sizes. */
#include "region_rig.h"

#include "codegen/region.h"

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

/* ---- the table ---- */

static void every_pointwise_row_has_an_emitter(void **state) {
  (void)state;
  for (int c = 0; c < OP_COUNT; c++)
    if (op_is_pointwise((OpCode)c) && !pointwise_has((OpCode)c))
      fail_msg("op %s has no emitter", ir_op_info[c].text);
}

static Val apply(Rig *r, OpCode c, DType d, const char *shape) {
  const OpInfo *info = &ir_op_info[c];
  double lo = -3, hi = 3;
  if (c == OP_LOG || c == OP_SQRT || c == OP_RSQRT || c == OP_POW)
    lo = 0.01;
  if (c == OP_LOG1P)
    lo = -0.9;
  if (!dtype_is_float(d))
    lo = d == DT_BOOL || d == DT_U8 ? 0 : -20, hi = d == DT_BOOL ? 2 : 20;
  Val v[3];
  Attr cast = {.dtype = d == DT_F32 ? DT_I32 : DT_F32};
  for (int k = 0; k < info->n_args; k++)
    v[k] = rig_in(r, c == OP_SELECT && k == 0 ? DT_BOOL : d, shape, c == OP_SELECT && k == 0 ? 0 : lo,
                  c == OP_SELECT && k == 0 ? 2 : hi);
  return ir_op(&r->b, c, v, (uint32_t)info->n_args, c == OP_CAST ? &cast : NULL, NULL);
}

static void pointwise_ops(void **state) {
  (void)state;
  static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_I64, DT_U8, DT_BOOL};
  for (int c = 0; c < OP_COUNT; c++)
    for (int t = 0; t < 6; t++) {
      DType d = types[t];
      if (!op_is_pointwise((OpCode)c))
        continue;
      Rig r;
      rig_init(&r);
      r.tol = d == DT_F64 ? 1e-12 : 4e-6;
      Val v = apply(&r, (OpCode)c, d, "a=3 b=43");
      if (r.err.cls) { /* not an op of this dtype */
        ir_module_free(r.m);
        continue;
      }
      rig_run(&r, "map", &v, 1, dims("%s %s", ir_op_info[c].text, dtype_name(d)));
    }
}

static void pointwise_special_values(void **state) {
  (void)state;
  for (int c = 0; c < OP_COUNT; c++) {
    if (!op_is_pointwise((OpCode)c) || c == OP_MOD || c == OP_FLOORDIV || c == OP_POW || c == OP_SIN ||
        c == OP_COS || c == OP_CAST)
      continue;
    Rig r;
    rig_init(&r);
    r.special = true;
    Val v = apply(&r, (OpCode)c, DT_F32, "a=129");
    if (r.err.cls) {
      ir_module_free(r.m);
      continue;
    }
    rig_run(&r, "map", &v, 1, ir_op_info[c].text);
  }
}

/* ---- shapes ---- */

static void sizes(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++)
    for (int k = 0; k < N_SIZES; k++) {
      Rig r;
      rig_init(&r);
      Val x = rig_in(&r, DT_F32, dims("a=%d b=%d", SIZES[i], SIZES[k]), -2, 2);
      Val bias = rig_in(&r, DT_F32, dims("b=%d", SIZES[k]), -2, 2);
      Val row = rig_in(&r, DT_F32, dims("a=%d", SIZES[i]), -2, 2);
      Val y = ir_binary(&r.b, OP_MUL, ir_binary(&r.b, OP_ADD, x, bias), row);
      Val out[] = {y, ir_unary(&r.b, OP_TANH, y), row};
      rig_run(&r, "map", out, 3, dims("sizes %d %d", SIZES[i], SIZES[k]));
    }
}

static void large_map(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  Val x = rig_in(&r, DT_F32, "a=37 b=1031", -2, 2), y = rig_in(&r, DT_F32, "a=37 b=1031", -2, 2);
  Val s = rig_in(&r, DT_F32, "", -2, 2);
  Val v = ir_binary(&r.b, OP_ADD, ir_binary(&r.b, OP_MUL, x, s), ir_unary(&r.b, OP_EXP, y));
  rig_run(&r, "update", &v, 1, "large map");
  rig_init(&r);
  x = rig_in(&r, DT_F64, "a=100003", -2, 2);
  v = ir_unary(&r.b, OP_SIGMOID, x);
  rig_run(&r, "map", &v, 1, "large vector");
}

static void other_orders(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++) {
    Rig r;
    rig_init(&r);
    Val x = rig_in(&r, DT_F32, dims("a=5 b=%d c=3", SIZES[i]), -2, 2);
    Val y = rig_in(&r, DT_F32, dims("c=3 a=5 b=%d", SIZES[i]), -2, 2);
    Type t = rig_type(&r, DT_F32, dims("b=%d c=3 a=5", SIZES[i]));
    Val out[] = {ir_binary(&r.b, OP_SUB, x, y), ir_reorder(&r.b, x, &t)};
    rig_run(&r, "copy", out, 2, "orders");
  }
}

static void scalars(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  Val x = rig_in(&r, DT_F32, "", -2, 2), n = rig_in(&r, DT_I64, "", 1, 9);
  Val c = ir_const(&r.b, DT_F32, 2.5);
  Val out[] = {ir_binary(&r.b, OP_ADD, ir_unary(&r.b, OP_EXP, x), c), ir_cast(&r.b, n, DT_F64), x};
  rig_run(&r, "map", out, 3, "scalars");
}

/* ---- movement ---- */

static Val move(Rig *r, OpCode c, Val x, const Axis *axis, uint32_t na, const int64_t *num, uint32_t nn) {
  Attr a = {.axis = axis, .n_axis = na, .num = num, .n_num = nn};
  return ir_op(&r->b, c, &x, 1, &a, NULL);
}

static void slices_and_pads(void **state) {
  (void)state;
  for (int i = 1; i < N_SIZES; i++)
    for (int inner = 0; inner < 2; inner++) {
      Rig r;
      rig_init(&r);
      int n = SIZES[i];
      Val x = rig_in(&r, DT_F32, inner ? dims("k=5 a=%d", n) : dims("a=%d k=5", n), -2, 2);
      Axis a[] = {ax(&r, "a"), ax(&r, "p")};
      Val s = move(&r, OP_SLICE, x, a, 1, (int64_t[]){1, n - 1}, 2);
      Val p = move(&r, OP_PAD, ir_unary(&r.b, OP_EXP, x), a, 2, (int64_t[]){3, 2}, 2);
      Val back = move(&r, OP_PAD, s, (Axis[]){a[0], a[0]}, 2, (int64_t[]){1, 1}, 2);
      Val out[] = {s, p, ir_binary(&r.b, OP_ADD, back, x)};
      rig_run(&r, "map", out, 3, dims("slice, pad %d inner %d", n, inner));
    }
}

static void splits_and_merges(void **state) {
  (void)state;
  static const int parts[][2] = {{2, 3}, {3, 16}, {4, 32}, {5, 7}, {1, 9}, {6, 48}};
  for (int i = 0; i < 6; i++) {
    int p = parts[i][0], q = parts[i][1];
    Rig r;
    rig_init(&r);
    Val x = rig_in(&r, DT_F32, dims("b=3 a=%d", p * q), -2, 2);
    Val y = rig_in(&r, DT_F32, dims("h=%d b=3 d=%d", p, q), -2, 2);
    Val z = rig_in(&r, DT_F32, dims("h=%d d=%d b=3", p, q), -2, 2);
    Axis sp[] = {ax(&r, "a"), ax(&r, "h"), ax(&r, "d")}, mg[] = {ax(&r, "h"), ax(&r, "d"), ax(&r, "a")};
    Val s = move(&r, OP_SPLIT, x, sp, 3, (int64_t[]){p, q}, 2);
    Val m = move(&r, OP_MERGE, y, mg, 3, NULL, 0), mz = move(&r, OP_MERGE, z, mg, 3, NULL, 0);
    Val out[] = {ir_binary(&r.b, OP_ADD, s, y), ir_binary(&r.b, OP_ADD, m, x), ir_unary(&r.b, OP_NEG, mz)};
    rig_run(&r, "map", out, 3, dims("split, merge %d %d", p, q));
  }
}

static void concats(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++)
    for (int inner = 0; inner < 2; inner++) {
      Rig r;
      rig_init(&r);
      int n = SIZES[i];
      Val x = rig_in(&r, DT_F32, inner ? dims("k=3 a=%d", n) : dims("a=%d k=3", n), -2, 2);
      Val y = rig_in(&r, DT_F32, inner ? "k=3 b=5" : "b=5 k=3", -2, 2);
      Val z = rig_in(&r, DT_F32, inner ? dims("k=3 c=%d", 2 * n) : dims("c=%d k=3", 2 * n), -2, 2);
      Attr a = {.axis = (Axis[]){ax(&r, "z"), ax(&r, "a"), ax(&r, "b"), ax(&r, "c")}, .n_axis = 4};
      Val v = ir_op(&r.b, OP_CONCAT, (Val[]){x, ir_unary(&r.b, OP_NEG, y), z}, 3, &a, NULL);
      rig_run(&r, "map", &v, 1, dims("concat %d inner %d", n, inner));
    }
}

static void renames_iota(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  Val x = rig_in(&r, DT_F32, "t=19 u=19", -2, 2);
  Val i = ir_iota(&r.b, ax(&r, "t"), 19), j = ir_iota(&r.b, ax(&r, "u"), 19);
  Val mask = ir_binary(&r.b, OP_LE, j, i);
  Val low = ir_const(&r.b, DT_F32, -INFINITY);
  Axis from[] = {ax(&r, "t"), ax(&r, "u")}, to[] = {ax(&r, "u"), ax(&r, "t")};
  Val swapped = ir_rename(&r.b, x, from, to, 2);
  Val out[] = {ir_select(&r.b, mask, x, low), ir_binary(&r.b, OP_SUB, x, swapped), mask};
  rig_run(&r, "map", out, 3, "rename, iota");
}

static void gathers(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++) {
    Rig r;
    rig_init(&r);
    Val w = rig_in(&r, DT_F32, dims("v=11 e=%d", SIZES[i]), -2, 2);
    Val ids = rig_in(&r, DT_I32, "b=3 t=4", -2, 13); /* some outside */
    Val pos = rig_in(&r, DT_F32, dims("t=4 e=%d", SIZES[i]), -2, 2);
    Val e = ir_gather(&r.b, w, (Axis[]){ax(&r, "v")}, &ids, 1);
    Val logits = rig_in(&r, DT_F32, dims("b=3 t=4 v=%d", SIZES[i]), -2, 2);
    Val pick = ir_gather(&r.b, logits, (Axis[]){ax(&r, "v")}, &ids, 1);
    Val out[] = {ir_binary(&r.b, OP_ADD, e, pos), pick};
    rig_run(&r, "gather", out, 2, dims("gather %d", SIZES[i]));
  }
}

static void random_numbers(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++)
    for (int d = 0; d < 2; d++) {
      Rig r;
      rig_init(&r);
      r.tol = 0;
      Val seed = rig_in(&r, DT_I64, "", 1e9, 1e12), attempt = rig_in(&r, DT_I64, "", 1, 90);
      Val loop = rig_in(&r, DT_I32, "", 0, 9), row = rig_in(&r, DT_F32, dims("a=%d", SIZES[i]), 0, 1);
      Attr a = {.axis = (Axis[]){ax(&r, "b"), ax(&r, "a")},
                .n_axis = 2,
                .num = (int64_t[]){3, SIZES[i], 77},
                .n_num = 3,
                .dtype = d ? DT_F64 : DT_F32};
      Val u = ir_op(&r.b, OP_RANDOM, (Val[]){seed, attempt, loop}, 3, &a, NULL);
      Val keep = ir_binary(&r.b, OP_LT, ir_cast(&r.b, u, DT_F32), ir_const(&r.b, DT_F32, 0.5));
      Val out[] = {u, ir_select(&r.b, keep, row, ir_const(&r.b, DT_F32, 0))};
      rig_run(&r, "map", out, 2, dims("random %d", SIZES[i]));
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_pointwise_row_has_an_emitter),
      cmocka_unit_test(pointwise_ops),
      cmocka_unit_test(pointwise_special_values),
      cmocka_unit_test(sizes),
      cmocka_unit_test(large_map),
      cmocka_unit_test(other_orders),
      cmocka_unit_test(scalars),
      cmocka_unit_test(slices_and_pads),
      cmocka_unit_test(splits_and_merges),
      cmocka_unit_test(concats),
      cmocka_unit_test(renames_iota),
      cmocka_unit_test(gathers),
      cmocka_unit_test(random_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
