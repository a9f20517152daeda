/* Random regions: any mix of pointwise, movement, reduction, contraction and gather ops must agree with the
 * interpreter. */
#include "region_rig.h"

enum { N_AXES = 6, MAX_VALS = 48, SMALL = 20000, LARGE = 400000 };

typedef struct {
  Rig r;
  uint64_t seed;
  Val val[MAX_VALS];
  int n;
  Axis axis[N_AXES];
  int64_t size[N_AXES], limit; /* of elements */
  int fresh;
  DType real;
} Gen;

static uint64_t pick(Gen *g, uint64_t n) {
  return (rig_next(&g->seed) >> 20) % n;
}
static Val any(Gen *g) {
  return g->val[pick(g, (uint64_t)g->n)];
}
static const Type *type_of(Gen *g, Val v) {
  return ir_type(g->r.f, v);
}

static void keep(Gen *g, Val v) {
  if (v != NONE && !g->r.err.cls && type_count(type_of(g, v)) <= g->limit && g->n < MAX_VALS)
    g->val[g->n++] = v;
  else
    g->r.err = (Error){0}; /* not a legal combination: try another */
}

static Axis fresh_axis(Gen *g) {
  char name[16];
  snprintf(name, sizeof name, "n%d", g->fresh++);
  return ir_axis(g->r.m, name);
}

static Val op1(Gen *g, OpCode c, Val x, Attr a) {
  return ir_op(&g->r.b, c, &x, 1, &a, NULL);
}

static Dim any_dim(Gen *g, Val x) {
  return type_of(g, x)->dim[pick(g, type_of(g, x)->rank)];
}

static void add_input(Gen *g) {
  char dims[128] = "";
  for (int tries = 0; tries < 3; tries++) {
    int k = (int)pick(g, N_AXES);
    char name[32];
    snprintf(name, sizeof name, "a%d=", k);
    if (!strstr(dims, name))
      snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%s%d", *dims ? " " : "", name,
               (int)g->size[k]);
  }
  keep(g, rig_in(&g->r, g->real, dims, -1, 1));
}

static void add_scalar(Gen *g) {
  keep(g, rig_in(&g->r, g->real, "", -1, 1));
}

static void add_pointwise(Gen *g) {
  static const OpCode one[] = {OP_TANH, OP_NEG, OP_ABS, OP_SIGMOID, OP_ERF, OP_COS};
  static const OpCode two[] = {OP_ADD, OP_SUB, OP_MUL, OP_MAX, OP_MIN};
  Builder *b = &g->r.b;
  if (pick(g, 2)) {
    keep(g, ir_unary(b, one[pick(g, 6)], any(g)));
  } else {
    Val half = ir_const(b, g->real, 0.5);
    keep(g, ir_binary(b, OP_MUL, half, ir_binary(b, two[pick(g, 5)], any(g), any(g))));
  }
}

static void add_mask(Gen *g) {
  Val x = any(g);
  if (!type_of(g, x)->rank)
    return;
  Dim d = any_dim(g, x);
  Val i = ir_iota(&g->r.b, d.axis, d.size),
      at = ir_const(&g->r.b, DT_I32, (double)pick(g, (uint64_t)d.size + 1));
  keep(g, ir_select(&g->r.b, ir_binary(&g->r.b, OP_LT, i, at), x, any(g)));
}

static void add_move(Gen *g) {
  Val x = any(g);
  if (!type_of(g, x)->rank)
    return;
  Dim d = any_dim(g, x);
  Axis two[3] = {d.axis, d.axis, 0};
  int64_t num[2];
  switch (pick(g, 6)) {
  case 0:
    two[1] = fresh_axis(g);
    keep(g, op1(g, OP_RENAME, x, (Attr){.axis = two, .n_axis = 2}));
    return;
  case 1:
    num[0] = (int64_t)pick(g, (uint64_t)d.size);
    num[1] = num[0] + 1 + (int64_t)pick(g, (uint64_t)(d.size - num[0]));
    x = op1(g, OP_SLICE, x, (Attr){.axis = two, .n_axis = 1, .num = num, .n_num = 2});
    if (num[1] - num[0] == d.size)
      keep(g, x);
    else if (x != NONE) { /* another size: another axis */
      two[1] = fresh_axis(g);
      keep(g, op1(g, OP_RENAME, x, (Attr){.axis = two, .n_axis = 2}));
    }
    return;
  case 2:
    two[1] = fresh_axis(g);
    num[0] = (int64_t)pick(g, 4), num[1] = (int64_t)pick(g, 20);
    keep(g, op1(g, OP_PAD, x, (Attr){.axis = two, .n_axis = 2, .num = num, .n_num = 2}));
    return;
  case 3:
    for (int64_t p = 2; p < d.size; p++)
      if (d.size % p == 0) {
        two[1] = fresh_axis(g), two[2] = fresh_axis(g);
        num[0] = p, num[1] = d.size / p;
        keep(g, op1(g, OP_SPLIT, x, (Attr){.axis = two, .n_axis = 3, .num = num, .n_num = 2}));
        return;
      }
    return;
  case 4: {
    Dim e = any_dim(g, x);
    if (e.axis == d.axis)
      return;
    Axis merge[] = {d.axis, e.axis, fresh_axis(g)};
    keep(g, op1(g, OP_MERGE, x, (Attr){.axis = merge, .n_axis = 3}));
    return;
  }
  default: {
    Val y = any(g);
    Type t = *type_of(g, x), u = *type_of(g, y), full;
    Axis clash;
    if (type_join(&u, &t, &full, &clash) && type_count(&full) <= g->limit)
      keep(g, ir_broadcast(&g->r.b, x, &full));
  }
  }
}

static void add_reduction(Gen *g) {
  static const OpCode ops[] = {OP_SUM, OP_REDUCE_MAX, OP_REDUCE_MIN, OP_SUM};
  Val x = any(g);
  if (!type_of(g, x)->rank)
    return;
  Dim d = any_dim(g, x), e = any_dim(g, x);
  Axis axes[] = {d.axis, e.axis};
  uint32_t n = e.axis != d.axis && pick(g, 2) ? 2 : 1;
  int64_t count = d.size * (n == 2 ? e.size : 1);
  if (pick(g, 4) == 0) {
    keep(g, op1(g, OP_SOFTMAX, x, (Attr){.axis = axes, .n_axis = n}));
    return;
  }
  OpCode c = ops[pick(g, 4)];
  Val v = ir_reduce(&g->r.b, c, x, axes, n);
  keep(g, c == OP_SUM ? ir_binary(&g->r.b, OP_MUL, v, ir_const(&g->r.b, g->real, 1.0 / (double)count)) : v);
}

static void add_contraction(Gen *g) {
  Val x = any(g), y = any(g);
  Axis axes[2];
  uint32_t n = 0;
  int64_t count = 1;
  for (int i = 0; i < type_of(g, x)->rank && n < 2; i++)
    if (type_has(type_of(g, y), type_of(g, x)->dim[i].axis) && pick(g, 2)) {
      axes[n++] = type_of(g, x)->dim[i].axis;
      count *= type_of(g, x)->dim[i].size;
    }
  if (n)
    keep(g, ir_binary(&g->r.b, OP_MUL, ir_contract(&g->r.b, x, y, axes, n),
                      ir_const(&g->r.b, g->real, 1.0 / (double)count)));
}

static void add_gather(Gen *g) {
  Val x = any(g);
  if (!type_of(g, x)->rank)
    return;
  Dim d = any_dim(g, x);
  int k = (int)pick(g, N_AXES);
  Val i = ir_iota(&g->r.b, g->axis[k], g->size[k]);
  if (g->axis[k] == d.axis)
    return;
  Val step = ir_const(&g->r.b, DT_I32, (double)pick(g, 3)),
      shift = ir_const(&g->r.b, DT_I32, (double)pick(g, 20));
  i = ir_binary(&g->r.b, OP_SUB, ir_binary(&g->r.b, OP_MUL, i, step), shift);
  if (pick(g, 2)) /* a window: two axes joined */
    i = ir_binary(&g->r.b, OP_ADD, i, ir_iota(&g->r.b, fresh_axis(g), 3));
  if (pick(g, 3) == 0)
    i = ir_binary(&g->r.b, OP_SUB, ir_const(&g->r.b, DT_I32, 5), i);
  keep(g, ir_gather(&g->r.b, x, &d.axis, &i, 1));
}

static void one_region(uint64_t seed) {
  static const int64_t sizes[] = {1, 2, 3, 5, 6, 16, 17, 32, 33, 48, 65, 129, 300, 1000};
  bool large = seed % 10 == 9; /* enough elements for several tasks and split reductions */
  Gen g = {.limit = large ? LARGE : SMALL, .seed = seed * 0x9E3779B97F4A7C15ull + 1};
  rig_init(&g.r);
  g.real = seed % 3 == 2 ? DT_F64 : DT_F32;
  g.r.tol = g.real == DT_F64 ? 1e-10 : 3e-4;
  rig_next(&g.seed);
  for (int k = 0; k < N_AXES; k++) {
    char name[16];
    snprintf(name, sizeof name, "a%d", k);
    g.axis[k] = ir_axis(g.r.m, name);
    g.size[k] = sizes[pick(&g, large ? 14 : 10)];
  }
  add_scalar(&g);
  for (int k = 0; k < 3; k++)
    add_input(&g);
  int steps = 4 + (int)pick(&g, 14);
  for (int s = 0; s < steps; s++)
    switch (pick(&g, 12)) {
    case 0:
    case 1: add_move(&g); break;
    case 2:
    case 3: add_reduction(&g); break;
    case 4: add_contraction(&g); break;
    case 5: add_gather(&g); break;
    case 6: add_mask(&g); break;
    default: add_pointwise(&g);
    }
  Val out[4];
  uint32_t n = 1 + (uint32_t)pick(&g, 4);
  for (uint32_t k = 0; k < n; k++)
    out[k] = k == 0 ? g.val[g.n - 1] : any(&g);
  char what[64];
  snprintf(what, sizeof what, "region %lu", (unsigned long)seed);
  rig_run(&g.r, "map", out, n, what);
}

static void random_regions(void **state) {
  (void)state;
  const char *one = getenv("REGION_SEED"), *many = getenv("REGION_COUNT");
  if (one) {
    one_region(strtoull(one, NULL, 10));
    return;
  }
  for (uint64_t s = 0; s < (many ? strtoull(many, NULL, 10) : 300); s++)
    one_region(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_regions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
