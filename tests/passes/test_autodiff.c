/* Every rule of reverse mode against central differences, first and second derivatives; loops, scans,
 * corners. */
#include "util.h"

/* ---- one case for (at least) every differentiable row ---- */

typedef struct {
  OpCode op;
  const char *name;
  const char *dims[3]; /* of the parameters */
  double lo, hi;
  Val (*build)(Fix *x, const Val *p);
  bool once; /* its second derivative is not taken */
} Case;

#define UNARY(c)                                                                                             \
  static Val build_##c(Fix *x, const Val *p) {                                                               \
    return ir_unary(&x->b, OP_##c, p[0]);                                                                    \
  }
UNARY(NEG)
UNARY(EXP)
UNARY(LOG)
UNARY(LOG1P)
UNARY(SQRT)
UNARY(RSQRT)
UNARY(TANH)
UNARY(SIGMOID)
UNARY(ERF)
UNARY(SIN)
UNARY(COS)
UNARY(ABS)

#define BINARY(c)                                                                                            \
  static Val build_##c(Fix *x, const Val *p) {                                                               \
    return ir_binary(&x->b, OP_##c, p[0], p[1]);                                                             \
  }
BINARY(ADD)
BINARY(SUB)
BINARY(MUL)
BINARY(DIV)
BINARY(MOD)
BINARY(POW)
BINARY(MAX)
BINARY(MIN)

static Val build_CAST(Fix *x, const Val *p) {
  /* f64 -> f32 -> f64 is the identity in exact arithmetic */
  return ir_cast(&x->b, ir_cast(&x->b, p[0], DT_F32), DT_F64);
}

static Val build_pow_const(Fix *x, const Val *p) {
  return ir_binary(&x->b, OP_POW, p[0], num(x, 2.5));
}

static Val build_SELECT(Fix *x, const Val *p) {
  Val c = ir_binary(&x->b, OP_LT, p[0], p[1]);
  return ir_select(&x->b, c, ir_binary(&x->b, OP_MUL, p[0], p[0]), p[2]);
}

static Val build_BROADCAST(Fix *x, const Val *p) {
  Type t = parse_type(x->m, DT_F64, "c=2,a=3,b=5");
  return ir_broadcast(&x->b, p[0], &t);
}

static Val build_RENAME(Fix *x, const Val *p) {
  Axis from[2] = {ax(x, "a"), ax(x, "b")}, to[2] = {ax(x, "b"), ax(x, "a")};
  return ir_binary(&x->b, OP_MUL, ir_rename(&x->b, p[0], from, to, 2), p[1]);
}

static Val attr_op(Fix *x, OpCode c, const Val *args, uint32_t n, const Axis *axis, uint32_t n_axis,
                   const int64_t *v, uint32_t n_num) {
  Attr a = {.axis = axis, .n_axis = n_axis, .num = v, .n_num = n_num};
  return ir_op(&x->b, c, args, n, &a, NULL);
}

static Val build_SPLIT(Fix *x, const Val *p) {
  return attr_op(x, OP_SPLIT, p, 1, (Axis[]){ax(x, "a"), ax(x, "c"), ax(x, "d")}, 3, (int64_t[]){3, 2}, 2);
}

static Val build_MERGE(Fix *x, const Val *p) {
  return attr_op(x, OP_MERGE, p, 1, (Axis[]){ax(x, "b"), ax(x, "a"), ax(x, "m")}, 3, NULL, 0);
}

static Val build_REORDER(Fix *x, const Val *p) {
  Type t = parse_type(x->m, DT_F64, "b=5,a=3");
  return ir_binary(&x->b, OP_MUL, ir_reorder(&x->b, p[0], &t), p[0]);
}

static Val build_SLICE(Fix *x, const Val *p) {
  return attr_op(x, OP_SLICE, p, 1, (Axis[]){ax(x, "b")}, 1, (int64_t[]){1, 4}, 2);
}

static Val build_PAD(Fix *x, const Val *p) {
  return attr_op(x, OP_PAD, p, 1, (Axis[]){ax(x, "b"), ax(x, "w")}, 2, (int64_t[]){2, 1}, 2);
}

static Val build_CONCAT(Fix *x, const Val *p) {
  return attr_op(x, OP_CONCAT, p, 2, (Axis[]){ax(x, "w"), ax(x, "b"), ax(x, "c")}, 3, NULL, 0);
}

static Val reduce(Fix *x, OpCode c, Val v, const char *a, const char *b) {
  Axis axis[2] = {ax(x, a), b ? ax(x, b) : 0};
  return ir_reduce(&x->b, c, v, axis, b ? 2 : 1);
}

static Val build_SUM(Fix *x, const Val *p) {
  return reduce(x, OP_SUM, ir_binary(&x->b, OP_MUL, p[0], p[0]), "a", "c");
}
static Val build_REDUCE_MAX(Fix *x, const Val *p) {
  return reduce(x, OP_REDUCE_MAX, p[0], "a", NULL);
}
static Val build_max_two(Fix *x, const Val *p) {
  return reduce(x, OP_REDUCE_MAX, p[0], "a", "c");
}
static Val build_REDUCE_MIN(Fix *x, const Val *p) {
  return reduce(x, OP_REDUCE_MIN, p[0], "b", NULL);
}
static Val build_min_two(Fix *x, const Val *p) {
  return reduce(x, OP_REDUCE_MIN, p[0], "b", "a");
}
static Val build_PROD(Fix *x, const Val *p) {
  return reduce(x, OP_PROD, p[0], "b", NULL);
}

static Val build_CUMSUM(Fix *x, const Val *p) {
  Val up = attr_op(x, OP_CUMSUM, p, 1, (Axis[]){ax(x, "b")}, 1, (int64_t[]){0}, 1);
  Val down = attr_op(x, OP_CUMSUM, p, 1, (Axis[]){ax(x, "a")}, 1, (int64_t[]){1}, 1);
  return ir_binary(&x->b, OP_MUL, up, down);
}

static Val build_SORT(Fix *x, const Val *p) {
  Val v = attr_op(x, OP_SORT, p, 1, (Axis[]){ax(x, "b"), ax(x, "s")}, 2, (int64_t[]){3, 1}, 2);
  return ir_binary(&x->b, OP_MUL, v, v);
}

static Val build_CONTRACT(Fix *x, const Val *p) {
  Axis k = ax(x, "k");
  return ir_contract(&x->b, p[0], p[1], &k, 1);
}

/* Indices 2, 0, 2, -1 (outside) along t. */
static Val indices(Fix *x, const char *axis) {
  Builder *b = &x->b;
  Val i = ir_iota(b, ax(x, axis), 4);
  Val three = ir_binary(b, OP_EQ, i, ir_const(b, DT_I32, 3)),
      one = ir_binary(b, OP_EQ, i, ir_const(b, DT_I32, 1));
  Val r = ir_select(b, one, ir_const(b, DT_I32, 0), ir_const(b, DT_I32, 2));
  return ir_select(b, three, ir_const(b, DT_I32, -1), r);
}

static Val build_GATHER(Fix *x, const Val *p) {
  Axis a = ax(x, "a");
  Val i = indices(x, "t");
  Val v = ir_gather(&x->b, p[0], &a, &i, 1);
  return ir_binary(&x->b, OP_MUL, v, v);
}

/* x[a = i + b] where the index shares the kept axis b, two axes at once, and an index along the indexed axis
 * itself. */
static Val build_gather_joined(Fix *x, const Val *p) {
  Builder *b = &x->b;
  Axis a = ax(x, "a");
  Axis both[2] = {a, ax(x, "b")};
  Val ia = ir_iota(b, a, 3), ib = ir_iota(b, ax(x, "b"), 5);
  Val near = ir_binary(b, OP_ADD, ia, ir_const(b, DT_I32, 1));
  Val shared = ir_binary(b, OP_MOD, ib, ir_const(b, DT_I32, 3));
  Val two[2] = {indices(x, "t"), ir_binary(b, OP_ADD, indices(x, "t"), ir_const(b, DT_I32, 1))};
  Val u = ir_gather(b, p[0], &a, &near, 1), v = ir_gather(b, p[0], &a, &shared, 1),
      w = ir_gather(b, p[0], both, two, 2);
  u = ir_binary(b, OP_MUL, u, v);
  return ir_binary(b, OP_MUL, u, ir_binary(b, OP_ADD, w, num(x, 1)));
}

/* A convolution window with stride 2 and padding, a shift and a reversal: windows, whose gradients are
 * windows. */
static Val build_window(Fix *x, const Val *p) {
  Builder *b = &x->b;
  Val out = ir_iota(b, ax(x, "o"), 3), tap = ir_iota(b, ax(x, "tap"), 3), two = ir_const(b, DT_I32, 2),
      one = ir_const(b, DT_I32, 1);
  Val at = ir_binary(b, OP_SUB, ir_binary(b, OP_ADD, ir_binary(b, OP_MUL, out, two), tap), one);
  Axis a = ax(x, "b");
  Val v = ir_gather(b, p[0], &a, &at, 1), self = ir_iota(b, a, 5);
  Val near = ir_binary(b, OP_ADD, self, two), turned = ir_binary(b, OP_SUB, ir_const(b, DT_I32, 4), self);
  Val u = ir_binary(b, OP_MUL, ir_gather(b, p[0], &a, &near, 1), ir_gather(b, p[0], &a, &turned, 1));
  Axis over[2] = {ax(x, "o"), ax(x, "tap")};
  Val w = ir_binary(b, OP_MUL, ir_unary(b, OP_SIN, v), ir_binary(b, OP_ADD, v, ir_cast(b, tap, DT_F64)));
  return ir_binary(b, OP_MUL, ir_binary(b, OP_ADD, u, num(x, 1)), ir_reduce(b, OP_SUM, w, over, 2));
}

static Val build_SCATTER_ADD(Fix *x, const Val *p) {
  Val args[2] = {p[0], indices(x, "t")};
  Val v = attr_op(x, OP_SCATTER_ADD, args, 2, (Axis[]){ax(x, "s"), ax(x, "s"), ax(x, "b")}, 3,
                  (int64_t[]){3, 5}, 2);
  return ir_binary(&x->b, OP_MUL, v, v);
}

static Val build_SOFTMAX(Fix *x, const Val *p) {
  return attr_op(x, OP_SOFTMAX, p, 1, (Axis[]){ax(x, "b")}, 1, NULL, 0);
}

static Val build_ATTENTION(Fix *x, const Val *p) {
  Builder *b = &x->b;
  Block *body = ir_block_new(x->f);
  Builder in = *b;
  in.b = body;
  Type raw = parse_type(x->m, DT_F64, "h=2,t=5,key=5");
  Val r = ir_param(x->f, body, raw, "raw");
  Val s = ir_unary(&in, OP_TANH, r);
  Val mask = ir_binary(&in, OP_LE, ir_iota(&in, ax(x, "key"), 5), ir_iota(&in, ax(x, "t"), 5));
  s = ir_select(&in, mask, s, ir_const(&in, DT_F64, -INFINITY));
  ir_block_ret(x->f, body, s);
  Attr a = {.axis = (Axis[]){ax(x, "d"), ax(x, "key")}, .n_axis = 2};
  return ir_op(b, OP_ATTENTION, p, 3, &a, body);
}

static Val build_LINEAR_XENT(Fix *x, const Val *p) {
  Val args[3] = {p[0], p[1], indices(x, "t")};
  args[2] = ir_select(&x->b, ir_binary(&x->b, OP_LT, args[2], ir_const(&x->b, DT_I32, 0)),
                      ir_const(&x->b, DT_I32, 1), args[2]);
  return attr_op(x, OP_LINEAR_XENT, args, 3, (Axis[]){ax(x, "e"), ax(x, "v")}, 2, NULL, 0);
}

#define AB "a=3,b=5"
#define ROW(c, d0, d1, d2, lo, hi)                                                                           \
  { OP_##c, #c, {d0, d1, d2}, lo, hi, build_##c, false }
static const Case cases[] = {
    ROW(NEG, AB, NULL, NULL, -1, 1),
    ROW(EXP, AB, NULL, NULL, -1, 1),
    ROW(LOG, AB, NULL, NULL, 0.3, 2),
    ROW(LOG1P, AB, NULL, NULL, -0.5, 2),
    ROW(SQRT, AB, NULL, NULL, 0.3, 2),
    ROW(RSQRT, AB, NULL, NULL, 0.3, 2),
    ROW(TANH, AB, NULL, NULL, -2, 2),
    ROW(SIGMOID, AB, NULL, NULL, -2, 2),
    ROW(ERF, AB, NULL, NULL, -2, 2),
    ROW(SIN, AB, NULL, NULL, -2, 2),
    ROW(COS, AB, NULL, NULL, -2, 2),
    ROW(ABS, AB, NULL, NULL, -2, 2),
    ROW(CAST, AB, NULL, NULL, -2, 2),
    ROW(ADD, AB, "b=5", NULL, -2, 2),
    ROW(SUB, "b=5", AB, NULL, -2, 2),
    ROW(MUL, "b=5,a=3", "a=3", NULL, -2, 2),
    {OP_MUL, "scalar times tensor", {"", AB, NULL}, -2, 2, build_MUL, false},
    {OP_MUL, "outer product", {"a=3", "b=5", NULL}, -2, 2, build_MUL, false},
    {OP_MUL, "sizes of one", {"a=1", "a=1,b=2", NULL}, -2, 2, build_MUL, false},
    {OP_MUL, "stretched", {"a=2,o=1,b=3,c=4", "a=2,b=3", NULL}, -2, 2, build_MUL, false},
    ROW(DIV, AB, "a=3", NULL, 0.4, 2),
    ROW(MOD, AB, "b=5", NULL, 0.4, 2),
    ROW(POW, AB, "b=5", NULL, 0.4, 2),
    {OP_POW, "constant power", {AB, NULL, NULL}, 0.4, 2, build_pow_const, false},
    ROW(MAX, AB, "b=5", NULL, -2, 2),
    ROW(MIN, AB, "b=5", NULL, -2, 2),
    ROW(SELECT, AB, "b=5", "a=3", -2, 2),
    ROW(BROADCAST, "b=5", NULL, NULL, -2, 2),
    ROW(RENAME, "a=3,b=3", "b=3", NULL, -2, 2),
    ROW(SPLIT, "b=5,a=6", NULL, NULL, -2, 2),
    ROW(MERGE, "a=3,c=2,b=5", NULL, NULL, -2, 2),
    ROW(REORDER, AB, NULL, NULL, -2, 2),
    ROW(SLICE, AB, NULL, NULL, -2, 2),
    ROW(PAD, AB, NULL, NULL, -2, 2),
    ROW(CONCAT, AB, "c=2,a=3", NULL, -2, 2),
    ROW(SUM, "a=3,b=5,c=2", NULL, NULL, -2, 2),
    ROW(REDUCE_MAX, AB, NULL, NULL, -2, 2),
    {OP_REDUCE_MAX, "max over two axes", {"a=3,b=5,c=2", NULL, NULL}, -2, 2, build_max_two, false},
    ROW(REDUCE_MIN, AB, NULL, NULL, -2, 2),
    {OP_REDUCE_MIN, "min over two axes", {"a=3,b=5,c=2", NULL, NULL}, -2, 2, build_min_two, false},
    ROW(PROD, AB, NULL, NULL, -2, 2),
    ROW(CUMSUM, AB, NULL, NULL, -2, 2),
    ROW(SORT, AB, NULL, NULL, -2, 2),
    ROW(CONTRACT, "k=5,m=3,s=2", "s=2,n=4,k=5", NULL, -2, 2),
    ROW(GATHER, AB, NULL, NULL, -2, 2),
    {OP_GATHER, "joined indices", {AB, NULL, NULL}, -2, 2, build_gather_joined, false},
    {OP_GATHER, "windows", {AB, NULL, NULL}, -2, 2, build_window, false},
    ROW(SCATTER_ADD, "t=4,b=5", NULL, NULL, -2, 2),
    ROW(SOFTMAX, AB, NULL, NULL, -2, 2),
    {OP_ATTENTION,
     "ATTENTION",
     {"t=5,h=2,d=3", "key=5,h=2,d=3", "key=5,h=2,d=3"},
     -1,
     1,
     build_ATTENTION,
     true},
    {OP_LINEAR_XENT, "LINEAR_XENT", {"t=4,e=3", "v=3,e=3", NULL}, -1, 1, build_LINEAR_XENT, true},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static Val case_value(Fix *x, const Case *c, Val *param) {
  static const char *const names[3] = {"x", "y", "z"};
  for (uint32_t i = 0; i < 3 && c->dims[i]; i++)
    param[i] = fix_param(x, names[i], c->dims[i]);
  return c->build(x, param);
}

static void check_function(const char *what, Fix *x, double lo, double hi) {
  Func *g = pass_autodiff(x->f, "grad", &x->err);
  no_error(x);
  Data d = make_data(x->f, lo, hi);
  check_against_differences(what, x->f, g, &d, 2e-7);
  assert_true(simplify(g, true, &x->err));
  check_against_differences(what, x->f, g, &d, 2e-7);
  arena_free(&d.arena);
  ir_module_free(x->m);
}

static void every_rule(void **state) {
  (void)state;
  for (uint32_t i = 0; i < N_CASES; i++) {
    Fix x;
    Val p[3];
    fix_init(&x);
    Val v = case_value(&x, &cases[i], p);
    no_error(&x);
    fix_loss(&x, weigh(&x, v));
    check_function(cases[i].name, &x, cases[i].lo, cases[i].hi);
  }
}

/* The gradient of (sum of the squared gradient by the first parameter), through the op `grad`. */
static void every_rule_twice(void **state) {
  (void)state;
  for (uint32_t i = 0; i < N_CASES; i++) {
    if (cases[i].once)
      continue;
    Fix x;
    Val p[3];
    fix_init(&x);
    Val v = weigh(&x, case_value(&x, &cases[i], p));
    Val g = ir_op(&x.b, OP_GRAD, (Val[]){v, p[0]}, 2, NULL, NULL);
    fix_loss(&x, weigh(&x, ir_binary(&x.b, OP_MUL, g, g)));
    assert_true(pass_expand_grad(x.f, &x.err));
    no_error(&x);
    assert_int_equal(count_ops(x.f, OP_GRAD), 0);
    check_function(cases[i].name, &x, cases[i].lo, cases[i].hi);
  }
}

static bool covered(OpCode op) {
  for (uint32_t i = 0; i < N_CASES; i++)
    if (cases[i].op == op)
      return true;
  /* Loops have tests of their own; the backward composites and `grad` are gone before autodiff, regions come
   * after it. */
  return op == OP_LOOP || op == OP_ATTENTION_GRAD || op == OP_LINEAR_XENT_GRAD || op == OP_GRAD ||
         op == OP_REGION;
}

static void no_row_without_rule(void **state) {
  (void)state;
  for (int c = 0; c < OP_COUNT; c++) {
    bool differentiable = !(ir_op_info[c].flags & F_NODIFF);
    if (differentiable && (!vjp_table[c] || !covered((OpCode)c)))
      fail_msg("%s has no rule, or no test of it", ir_op_info[c].text);
    if (!differentiable && vjp_table[c])
      fail_msg("%s has a rule that is never used", ir_op_info[c].text);
  }
}

/* ---- loops ---- */

static Val loop(Fix *x, const char *axis, int64_t size, uint32_t n_carry, uint32_t n_xs, bool reverse,
                const Val *args, uint32_t n, Block *body) {
  Attr a = {.axis = (Axis[]){ax(x, axis)},
            .n_axis = 1,
            .num = (int64_t[]){size, n_carry, n_xs, reverse},
            .n_num = 4};
  return ir_op(&x->b, OP_LOOP, args, n, &a, body);
}

static Val body_param(Fix *x, Block *b, DType d, const char *dims) {
  return ir_param(x->f, b, parse_type(x->m, d, dims), NULL);
}

/* Layers: x <- x + tanh(x w[l]) * s + l; a stacked output; s is shared by all layers. */
static Val layers(Fix *x, Val start, Val w, Val s, bool reverse) {
  Block *body = ir_block_new(x->f);
  Builder in = x->b;
  in.b = body;
  Val index = body_param(x, body, DT_I32, "");
  Val c = body_param(x, body, DT_F64, "t=2,e=3"), wl = body_param(x, body, DT_F64, "e=3,f=3"),
      sl = body_param(x, body, DT_F64, "e=3");
  Axis e = ax(x, "e"), f = ax(x, "f");
  Val h = ir_rename(&in, ir_contract(&in, c, wl, &e, 1), &f, &e, 1);
  h = ir_binary(&in, OP_MUL, ir_unary(&in, OP_TANH, h), sl);
  h = ir_binary(&in, OP_ADD, h, ir_cast(&in, index, DT_F64));
  ir_block_ret(x->f, body, ir_binary(&in, OP_ADD, c, ir_unary(&in, OP_SIN, h)));
  ir_block_ret(x->f, body, ir_reduce(&in, OP_SUM, ir_binary(&in, OP_MUL, h, h), &e, 1));
  return loop(x, "layer", 4, 1, 1, reverse, (Val[]){start, w, s}, 3, body);
}

static void loop_over_layers(void **state) {
  (void)state;
  for (int reverse = 0; reverse < 2; reverse++) {
    Fix x;
    fix_init(&x);
    Val p0 = fix_param(&x, "x", "t=2,e=3"), w = fix_param(&x, "w", "layer=4,e=3,f=3"),
        s = fix_param(&x, "s", "e=3");
    Val r = layers(&x, p0, w, s, reverse);
    no_error(&x);
    fix_loss(&x, ir_binary(&x.b, OP_ADD, weigh(&x, r), weigh(&x, r + 1)));
    check_function("layers", &x, -1, 1);
  }
}

/* h <- a[t] * h + x[t] u, all h used: a recurrence along time, and its gradient penalty. */
static Val scan(Fix *x, Val h0, Val a, Val xs, Val u) {
  Block *body = ir_block_new(x->f);
  Builder in = x->b;
  in.b = body;
  body_param(x, body, DT_I32, "");
  Val h = body_param(x, body, DT_F64, "e=3"), at = body_param(x, body, DT_F64, ""),
      xt = body_param(x, body, DT_F64, "d=2");
  Val ul = body_param(x, body, DT_F64, "d=2,e=3");
  Axis d = ax(x, "d");
  Val next = ir_binary(&in, OP_ADD, ir_binary(&in, OP_MUL, ir_unary(&in, OP_TANH, h), at),
                       ir_contract(&in, xt, ul, &d, 1));
  ir_block_ret(x->f, body, next);
  ir_block_ret(x->f, body, next);
  return loop(x, "time", 5, 1, 2, false, (Val[]){h0, a, xs, u}, 4, body);
}

static void scan_over_time(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val h0 = fix_param(&x, "h0", "e=3"), a = fix_param(&x, "a", "time=5"),
      xs = fix_param(&x, "xs", "time=5,d=2"), u = fix_param(&x, "u", "d=2,e=3");
  Val r = scan(&x, h0, a, xs, u);
  no_error(&x);
  fix_loss(&x, weigh(&x, r + 1));
  check_function("scan", &x, -1, 1);
}

static void scan_differentiated_twice(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val h0 = fix_param(&x, "h0", "e=3"), a = fix_param(&x, "a", "time=5"),
      xs = fix_param(&x, "xs", "time=5,d=2"), u = fix_param(&x, "u", "d=2,e=3");
  Val v = weigh(&x, scan(&x, h0, a, xs, u) + 1);
  Val g = ir_op(&x.b, OP_GRAD, (Val[]){v, xs}, 2, NULL, NULL);
  fix_loss(&x, ir_binary(&x.b, OP_ADD, v, weigh(&x, ir_binary(&x.b, OP_MUL, g, g))));
  assert_true(pass_expand_grad(x.f, &x.err));
  no_error(&x);
  check_function("scan, twice", &x, -1, 1);
}

/* A scan inside a loop over layers: residuals of the inner loop are residuals of the outer. */
static void nested_loops(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val start = fix_param(&x, "x", "time=5,d=2"), a = fix_param(&x, "a", "layer=3,time=5"),
      u = fix_param(&x, "u", "layer=3,d=2,e=3");
  Val h0 = fix_param(&x, "h0", "e=3"), back = fix_param(&x, "back", "e=3,d=2");
  Block *body = ir_block_new(x.f);
  Builder outer = x.b;
  body_param(&x, body, DT_I32, "");
  Val c = body_param(&x, body, DT_F64, "time=5,d=2"), al = body_param(&x, body, DT_F64, "time=5"),
      ul = body_param(&x, body, DT_F64, "d=2,e=3");
  Val h = body_param(&x, body, DT_F64, "e=3"), w = body_param(&x, body, DT_F64, "e=3,d=2");
  x.b.b = body;
  Val hs = scan(&x, h, al, c, ul);
  Axis e = ax(&x, "e");
  Val out = ir_contract(&x.b, ir_unary(&x.b, OP_SIN, hs + 1), w, &e, 1);
  ir_block_ret(x.f, body, ir_binary(&x.b, OP_ADD, c, out));
  ir_block_ret(x.f, body, hs);
  x.b = outer;
  Val r = loop(&x, "layer", 3, 1, 2, false, (Val[]){start, a, u, h0, back}, 5, body);
  no_error(&x);
  fix_loss(&x, ir_binary(&x.b, OP_ADD, weigh(&x, r), weigh(&x, r + 1)));
  check_function("nested", &x, -1, 1);
}

/* A carry that no iteration reads again: only the last one counts. */
static void last_value_only(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val c0 = fix_param(&x, "c0", "e=3"), xs = fix_param(&x, "xs", "time=4,e=3");
  Block *body = ir_block_new(x.f);
  Builder in = x.b;
  in.b = body;
  body_param(&x, body, DT_I32, "");
  body_param(&x, body, DT_F64, "e=3");
  Val xt = body_param(&x, body, DT_F64, "e=3");
  ir_block_ret(x.f, body, ir_unary(&in, OP_SIN, xt));
  Val r = loop(&x, "time", 4, 1, 1, false, (Val[]){c0, xs}, 2, body);
  fix_loss(&x, weigh(&x, r));
  check_function("last value", &x, -1, 1);
}

/* grad inside a loop body. */
static void grad_in_a_loop(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val c0 = fix_param(&x, "c0", "e=3"), w = fix_param(&x, "w", "layer=3,e=3");
  Block *body = ir_block_new(x.f);
  Builder in = x.b;
  in.b = body;
  body_param(&x, body, DT_I32, "");
  Val c = body_param(&x, body, DT_F64, "e=3"), wl = body_param(&x, body, DT_F64, "e=3");
  Val energy = ir_unary(&in, OP_SIN, ir_binary(&in, OP_MUL, c, wl));
  Val g = ir_op(&in, OP_GRAD, (Val[]){energy, c}, 2, NULL, NULL);
  ir_block_ret(x.f, body, ir_binary(&in, OP_SUB, c, g));
  Val r = loop(&x, "layer", 3, 1, 1, false, (Val[]){c0, w}, 2, body);
  fix_loss(&x, weigh(&x, r));
  assert_true(pass_expand_grad(x.f, &x.err));
  check_function("grad in a loop", &x, -1, 1);
}

static void windows_do_not_scatter(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val p = fix_param(&x, "x", "a=3,b=5");
  fix_loss(&x, weigh(&x, build_window(&x, &p)));
  Func *g = pass_autodiff(x.f, "grad", &x.err);
  no_error(&x);
  assert_int_equal(count_ops(g, OP_SCATTER_ADD), 0);
  ir_module_free(x.m);
}

/* ---- corners ---- */

static double *gradient_at(Fix *x, const double *values, Arena *arena) {
  Func *g = pass_autodiff(x->f, "grad", &x->err);
  no_error(x);
  Data d = make_data(x->f, 0, 1);
  memcpy(d.in[0].data, values, (size_t)type_count(&d.in[0].type) * sizeof(double));
  Tensor *out = run(g, &d, arena);
  arena_free(&d.arena);
  return out[g->body->n_ret - 1].data;
}

/* One parameter of n elements; f of it summed; expected gradient by element. */
static void corner(const char *what, Val (*f)(Fix *x, Val p), uint32_t n, const double *at,
                   const double *want) {
  Fix x;
  Arena arena = {0};
  fix_init(&x);
  Axis a = ax(&x, "a");
  Val p = fix_param(&x, "x", arena_printf(&x.m->arena, "a=%u", n));
  Val v = f(&x, p);
  fix_loss(&x, type_has(ir_type(x.f, v), a) ? ir_reduce(&x.b, OP_SUM, v, &a, 1) : v);
  const double *got = gradient_at(&x, at, &arena);
  for (uint32_t i = 0; i < n; i++)
    if (got[i] != want[i])
      fail_msg("%s: gradient at %g is %g, expected %g", what, at[i], got[i], want[i]);
  arena_free(&arena);
  ir_module_free(x.m);
}

static Val not_taken(Fix *x, Val v, Val branch) {
  return ir_select(&x->b, ir_binary(&x->b, OP_LT, v, num(x, 1)), v, branch);
}
static Val corner_sqrt(Fix *x, Val p) {
  return not_taken(x, p, ir_unary(&x->b, OP_SQRT, p));
}
static Val corner_rsqrt(Fix *x, Val p) {
  return not_taken(x, p, ir_unary(&x->b, OP_RSQRT, p));
}
static Val corner_log(Fix *x, Val p) {
  return not_taken(x, p, ir_unary(&x->b, OP_LOG, p));
}
static Val corner_div(Fix *x, Val p) {
  return not_taken(x, p, ir_binary(&x->b, OP_DIV, p, p));
}
static Val corner_inverse(Fix *x, Val p) {
  return not_taken(x, p, ir_binary(&x->b, OP_DIV, num(x, 1), p));
}
static Val corner_pow(Fix *x, Val p) {
  return not_taken(x, p, ir_binary(&x->b, OP_POW, p, num(x, 0.3)));
}
static Val corner_pow_self(Fix *x, Val p) {
  return not_taken(x, p, ir_binary(&x->b, OP_POW, p, p));
}
static Val corner_abs(Fix *x, Val p) {
  return ir_unary(&x->b, OP_ABS, p);
}
static Val corner_relu(Fix *x, Val p) {
  return ir_select(&x->b, ir_binary(&x->b, OP_LT, num(x, 0), p), p, num(x, 0));
}
static Val corner_tie(Fix *x, Val p) {
  Axis a = ax(x, "a");
  return ir_reduce(&x->b, OP_REDUCE_MAX, p, &a, 1);
}
static Val corner_tie_pair(Fix *x, Val p) {
  return ir_binary(&x->b, OP_MAX, p, ir_binary(&x->b, OP_MUL, num(x, 3), p));
}
static Val corner_prod(Fix *x, Val p) {
  Axis a = ax(x, "a");
  return ir_reduce(&x->b, OP_PROD, p, &a, 1);
}
/* max(sqrt(sum x^2), 1e-10) */
static Val corner_norm(Fix *x, Val p) {
  Axis a = ax(x, "a");
  Val s = ir_reduce(&x->b, OP_SUM, ir_binary(&x->b, OP_MUL, p, p), &a, 1);
  return ir_binary(&x->b, OP_MAX, ir_unary(&x->b, OP_SQRT, s), num(x, 1e-10));
}

static void corners(void **state) {
  (void)state;
  const double at[4] = {0, -1, 0.5, -0.25}, ones[4] = {1, 1, 1, 1}, zeros[4] = {0};
  corner("sqrt", corner_sqrt, 4, at, ones);
  corner("rsqrt", corner_rsqrt, 4, at, ones);
  corner("log", corner_log, 4, at, ones);
  corner("x / x", corner_div, 4, at, ones);
  corner("1 / x", corner_inverse, 4, at, ones);
  corner("x ^ 0.3", corner_pow, 4, at, ones);
  corner("x ^ x", corner_pow_self, 4, at, ones);
  corner("abs", corner_abs, 4, at, (const double[]){0, -1, 1, -1});
  corner("relu", corner_relu, 4, at, (const double[]){0, 0, 1, 0});
  corner("tied maximum", corner_tie, 4, (const double[]){1, 2, 2, 2}, (const double[]){0, 1, 0, 0});
  corner("tied pair", corner_tie_pair, 2, (const double[]){0, 2}, (const double[]){1, 3});
  corner("product with a zero", corner_prod, 3, (const double[]){2, 0, 5}, (const double[]){0, 10, 0});
  corner("product with two zeros", corner_prod, 3, (const double[]){0, 0, 5}, zeros);
  corner("norm of zero", corner_norm, 2, zeros, zeros);
}

/* The second derivative by the cotangent is right where a cotangent is 0: d/da of (d/dx a log x) at a = 0 is
 * 1 / x. */
static void guard_keeps_second_derivative(void **state) {
  (void)state;
  Fix x;
  Arena arena = {0};
  fix_init(&x);
  Val a = fix_param(&x, "a", ""), p = num(&x, 4);
  Val v = ir_binary(&x.b, OP_MUL, a, ir_unary(&x.b, OP_LOG, p));
  fix_loss(&x, ir_op(&x.b, OP_GRAD, (Val[]){v, p}, 2, NULL, NULL));
  assert_true(pass_expand_grad(x.f, &x.err));
  assert_true(gradient_at(&x, (const double[]){0}, &arena)[0] == 0.25);
  arena_free(&arena);
  ir_module_free(x.m);
}

/* A parameter nobody uses, one that only another result uses, and a frozen one. */
static void unreached_parameters(void **state) {
  (void)state;
  Fix x;
  Arena arena = {0};
  fix_init(&x);
  Val w = fix_param(&x, "w", "a=3"), v = fix_param(&x, "v", "a=3"), z = fix_param(&x, "z", "a=3");
  x.m->param[2].frozen = true;
  IrParam spare = {.name = "u", .type = parse_type(x.m, DT_F64, "b=3"), .loc = {NONE, 0, 0}};
  VEC_PUSH(&x.m->arena, x.m->param, x.m->n_params, x.m->cap_params, spare);
  fix_loss(&x, weigh(&x, ir_binary(&x.b, OP_MUL, w, z)));
  ir_func_ret(x.f, (FuncRes){.kind = RES_OUTPUT, .name = "out"}, v);
  Func *g = pass_autodiff(x.f, "grad", &x.err);
  no_error(&x);
  assert_int_equal(g->body->n_ret, 5); /* loss, out, w, v, u */
  Data d = make_data(x.f, -1, 1);
  Tensor *out = run(g, &d, &arena);
  for (int i = 0; i < 3; i++) {
    assert_true(out[2].data[i] != 0);
    assert_true(out[3].data[i] == 0 && out[4].data[i] == 0);
  }
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(x.m);
}

/* A random mask drawn in a loop body is drawn again in the backward, and nothing of it is stored. */
static void random_is_recomputed(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val c0 = fix_param(&x, "c0", "e=7");
  Val seed = ir_func_arg(x.f, ARG_SCALAR, SCALAR_SEED, type_scalar(DT_I64), "$seed");
  Val attempt = ir_func_arg(x.f, ARG_SCALAR, SCALAR_ATTEMPT, type_scalar(DT_I64), "$attempt");
  Block *body = ir_block_new(x.f);
  Builder in = x.b;
  in.b = body;
  Val index = body_param(&x, body, DT_I32, ""), c = body_param(&x, body, DT_F64, "e=7");
  Val sl = body_param(&x, body, DT_I64, ""), al = body_param(&x, body, DT_I64, "");
  Attr r = {
      .axis = (Axis[]){ax(&x, "e")}, .n_axis = 1, .num = (int64_t[]){7, 3}, .n_num = 2, .dtype = DT_F64};
  Val u = ir_op(&in, OP_RANDOM, (Val[]){sl, al, index}, 3, &r, NULL);
  Val keep = ir_binary(&in, OP_LT, u, ir_const(&in, DT_F64, 0.5));
  ir_block_ret(x.f, body, ir_select(&in, keep, ir_unary(&in, OP_SIN, c), c));
  Val v = loop(&x, "layer", 4, 1, 0, false, (Val[]){c0, seed, attempt}, 3, body);
  fix_loss(&x, weigh(&x, v));
  check_function("random", &x, -1, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_row_without_rule),
      cmocka_unit_test(every_rule),
      cmocka_unit_test(every_rule_twice),
      cmocka_unit_test(loop_over_layers),
      cmocka_unit_test(scan_over_time),
      cmocka_unit_test(scan_differentiated_twice),
      cmocka_unit_test(nested_loops),
      cmocka_unit_test(last_value_only),
      cmocka_unit_test(grad_in_a_loop),
      cmocka_unit_test(corners),
      cmocka_unit_test(guard_keeps_second_derivative),
      cmocka_unit_test(unreached_parameters),
      cmocka_unit_test(random_is_recomputed),
      cmocka_unit_test(windows_do_not_scatter),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
