/* Attention kernels against the interpreter: forward, then backward on its results. Scores with masks, biases
 * and non-linear functions; grouped queries; odd sizes; rows without keys; NaN behind a mask's edge must not
 * be read as a key. */
#include "region_rig.h"

typedef enum { PLAIN, CAUSAL, WINDOW, BIAS, SOFTCAP, EMPTY_ROWS, SCORES } ScoreKind;

typedef struct {
  int b, g, h, t, s, d, e; /* g: queries of one head of keys */
  DType dtype;
  bool keys_first; /* layout of k and v: key before head */
} Shape;

typedef struct {
  Rig r;
  Kernel kernel;
  Object object;
  OpId region;
} Built;

static const char *text(const char *fmt, ...) {
  static char buf[8][160];
  static int k;
  k = (k + 1) % 8;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(buf[k], sizeof buf[k], fmt, ap);
  va_end(ap);
  return buf[k];
}

static Block *score_body(Rig *r, const Shape *s, ScoreKind kind, const Type *raw, const Type *bias) {
  Block *body = ir_block_new(r->f);
  Builder b = {r->f, body, {NONE, 0, 0}, &r->err};
  Val x = ir_param(r->f, body, *raw, NULL), row = ir_iota(&b, ax(r, "t"), s->t),
      key = ir_iota(&b, ax(r, "s"), s->s);
  Val none = ir_const(&b, s->dtype, -INFINITY);
  x = ir_binary(&b, OP_MUL, x, ir_const(&b, s->dtype, 0.25));
  switch (kind) {
  case PLAIN: break;
  case CAUSAL: x = ir_select(&b, ir_binary(&b, OP_LE, key, row), x, none); break;
  case EMPTY_ROWS:
    x = ir_select(&b, ir_binary(&b, OP_LE, ir_binary(&b, OP_ADD, key, ir_const(&b, DT_I32, 3)), row), x,
                  none);
    break;
  case WINDOW: {
    Val near = ir_binary(&b, OP_LT, ir_binary(&b, OP_SUB, row, key), ir_const(&b, DT_I32, 40));
    x = ir_select(&b, ir_binary(&b, OP_AND, ir_binary(&b, OP_LE, key, row), near), x, none);
    break;
  }
  case BIAS: x = ir_binary(&b, OP_ADD, x, ir_param(r->f, body, *bias, NULL)); break;
  default: {
    Val soft = ir_binary(&b, OP_MUL, ir_unary(&b, OP_TANH, x), ir_const(&b, s->dtype, 3));
    Val bent = ir_binary(&b, OP_MAX, ir_unary(&b, OP_SIGMOID, x),
                         ir_binary(&b, OP_DIV, x, ir_const(&b, s->dtype, 7)));
    x = ir_binary(&b, OP_ADD, soft, bent);
  }
  }
  ir_block_ret(r->f, body, x);
  return body;
}

static void build(Built *u, const Shape *s, ScoreKind kind, bool grad) {
  Rig *r = &u->r;
  rig_init(r);
  r->m->real = s->dtype;
  const char *ks = s->keys_first ? "b=%d s=%d h=%d " : "b=%d h=%d s=%d ";
  int a = s->keys_first ? s->s : s->h, c = s->keys_first ? s->h : s->s;
  Val arg[8];
  int n = 0;
  arg[n++] = rig_in(r, s->dtype, text("b=%d t=%d h=%d g=%d d=%d", s->b, s->t, s->h, s->g, s->d), -2, 2);
  arg[n++] = rig_in(r, s->dtype, text("%sd=%d", text(ks, s->b, a, c), s->d), -2, 2);
  arg[n++] = rig_in(r, s->dtype, text("%se=%d", text(ks, s->b, a, c), s->e), -1, 1);
  Type raw, o, lse;
  Axis axes[] = {ax(r, "d"), ax(r, "s")};
  raw = rig_type(r, s->dtype, text("b=%d h=%d t=%d g=%d s=%d", s->b, s->h, s->t, s->g, s->s));
  Type bias = rig_type(r, s->dtype, text("h=%d t=%d s=%d", s->h, s->t, s->s));
  Attr attr = {.axis = axes, .n_axis = 2};
  if (grad) {
    /* the result types of the forward */
    Block *probe = ir_block_new(r->f);
    Builder pb = {r->f, probe, {NONE, 0, 0}, &r->err};
    Val p[4] = {arg[0], arg[1], arg[2], NONE};
    int pn = 3;
    if (kind == BIAS)
      p[pn++] = ir_param(r->f, probe, bias, NULL);
    Val f = ir_op(&pb, OP_ATTENTION, p, (uint32_t)pn, &attr, score_body(r, s, kind, &raw, &bias));
    assert_int_not_equal(f, NONE);
    o = *ir_type(r->f, f);
    lse = *ir_type(r->f, f + 1);
    const Type *t[] = {&o, &lse, &o};
    for (int i = 0; i < 3; i++) {
      r->lo[r->n_in] = -1;
      r->hi[r->n_in] = 1;
      r->outer[r->n_in] = ir_func_arg(r->f, ARG_INPUT, r->n_in, *t[i], NULL);
      arg[n++] = r->param[r->n_in++] = ir_param(r->f, r->body, *t[i], NULL);
    }
  }
  if (kind == BIAS)
    arg[n++] = rig_in(r, s->dtype, text("h=%d t=%d s=%d", s->h, s->t, s->s), -1, 1);
  Val f = ir_op(&r->b, grad ? OP_ATTENTION_GRAD : OP_ATTENTION, arg, (uint32_t)n, &attr,
                score_body(r, s, kind, &raw, &bias));
  if (f == NONE)
    fail_msg("%s", r->err.msg);
  for (int i = 0; i < (grad ? 3 : 2); i++)
    ir_block_ret(r->f, r->body, f + (Val)i);
}

/* Compiles and runs it on `in`; compares with the interpreter, whose results go to out. */
static void check(Built *u, const Tensor *in, Tensor *out, Arena *arena, const char *what) {
  Rig *r = &u->r;
  Builder top = {r->f, r->f->body, {NONE, 0, 0}, &r->err};
  Val first = ir_op(&top, OP_REGION, r->outer, r->n_in, &(Attr){.str = "attention"}, r->body);
  if (r->err.cls)
    fail_msg("%s: %s", what, r->err.msg);
  for (uint32_t i = 0; i < r->body->n_ret; i++)
    ir_func_ret(r->f, (FuncRes){.kind = RES_OUTPUT, .name = "o"}, first + i);
  u->region = r->f->val[first].def;
  uint32_t n = r->body->n_ret;
  Guarded gi[MAX_IO], go[MAX_IO], again[MAX_IO];
  void *args[2 * MAX_IO], *args2[2 * MAX_IO];
  if (!codegen_kernel(rig_codegen(), r->f, u->region, arena, &u->kernel, &u->object, &r->err))
    fail_msg("%s: %s", what, r->err.msg);
  assert_int_equal(u->kernel.n_phases, 1); /* not expanded */
  CodeImage *image = codegen_load(&u->object, 1, &r->err);
  for (uint32_t i = 0; i < r->n_in; i++) {
    const Type *t = ir_type(r->f, r->outer[i]);
    gi[i] = guarded_new((size_t)type_count(t) * dtype_bytes(t->dtype));
    for (int64_t e = 0; e < type_count(t); e++)
      put_value(gi[i].data, t->dtype, e, in[i].data[e]);
    args[i] = args2[i] = gi[i].data;
  }
  Val res = r->f->op[u->region].result;
  for (uint32_t i = 0; i < n; i++) {
    const Type *t = ir_type(r->f, res + i);
    size_t bytes = (size_t)type_count(t) * dtype_bytes(t->dtype);
    go[i] = guarded_new(bytes);
    again[i] = guarded_new(bytes);
    args[r->n_in + i] = go[i].data;
    args2[r->n_in + i] = again[i].data;
  }
  run_kernel(image, &u->kernel, args, 0);
  run_kernel(image, &u->kernel, args2, 1);
  if (!ir_interp(r->f, in, out, arena, false, &r->err))
    fail_msg("%s: %s", what, r->err.msg);
  for (uint32_t i = 0; i < r->n_in; i++) {
    guarded_check(&gi[i], what);
    free(gi[i].block);
  }
  for (uint32_t i = 0; i < n; i++) {
    guarded_check(&go[i], what);
    guarded_check(&again[i], what);
    compare(r, ir_type(r->f, res + i), go[i].data, out[i].data, text("%s, result %u", what, i));
    if (memcmp(go[i].data, again[i].data, go[i].bytes) != 0)
      fail_msg("%s: result %u depends on how tasks are run", what, i);
    free(go[i].block);
    free(again[i].block);
  }
  codegen_unload(image);
}

static Tensor random_tensor(const Type *t, Arena *arena, double lo, double hi, uint64_t *seed) {
  Tensor x = {.type = *t, .data = ARENA_ARRAY(arena, double, (size_t)type_count(t))};
  for (int64_t i = 0; i < type_count(t); i++) {
    double v = lo + (hi - lo) * (double)(rig_next(seed) >> 11) / 9007199254740992.0;
    x.data[i] = t->dtype == DT_F32 ? (float)v : v;
  }
  return x;
}

static void round_to(Tensor *t) {
  for (int64_t i = 0; t->type.dtype == DT_F32 && i < type_count(&t->type); i++)
    t->data[i] = (float)t->data[i];
}

static void both(const Shape *s, ScoreKind kind, const char *what) {
  static Built fwd, bwd;
  Arena arena = {0};
  uint64_t seed = 0x9e3779b97f4a7c15ull;
  Tensor in[8], out[2], gin[8], gout[3];
  build(&fwd, s, kind, false);
  fwd.r.tol = s->dtype == DT_F64 ? 1e-12 : 1e-5;
  for (uint32_t i = 0; i < fwd.r.n_in; i++)
    in[i] = random_tensor(ir_type(fwd.r.f, fwd.r.outer[i]), &arena, fwd.r.lo[i], fwd.r.hi[i], &seed);
  check(&fwd, in, out, &arena, text("%s forward", what));
  build(&bwd, s, kind, true);
  bwd.r.tol = s->dtype == DT_F64 ? 1e-11 : 3e-5;
  round_to(&out[0]);
  round_to(&out[1]);
  memcpy(gin, in, 3 * sizeof *in);
  gin[3] = out[0];
  gin[4] = out[1];
  gin[5] = random_tensor(&out[0].type, &arena, -1, 1, &seed);
  gin[6] = in[3];
  check(&bwd, gin, gout, &arena, text("%s backward", what));
  ir_module_free(fwd.r.m);
  ir_module_free(bwd.r.m);
  arena_free(&arena);
}

static void scores(void **state) {
  (void)state;
  static const char *name[] = {"plain", "causal", "window", "bias", "softcap", "empty rows"};
  Shape s = {2, 1, 2, 70, 70, 24, 24, DT_F32, false};
  for (int k = 0; k < SCORES; k++)
    both(&s, (ScoreKind)k, name[k]);
}

static void shapes(void **state) {
  (void)state;
  static const Shape list[] = {
      {1, 1, 1, 2, 2, 1, 1, DT_F32, false},      {1, 1, 3, 5, 5, 3, 7, DT_F64, true},
      {2, 3, 2, 17, 17, 16, 16, DT_F32, true},   {1, 4, 2, 65, 65, 33, 17, DT_F64, false},
      {3, 1, 2, 130, 130, 64, 64, DT_F32, true}, {1, 2, 1, 1, 80, 16, 8, DT_F32, false},
      {1, 1, 2, 33, 200, 40, 16, DT_F32, true},  {2, 1, 1, 200, 33, 8, 100, DT_F32, false},
  };
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    const Shape *s = &list[i];
    const char *size = text("b%d g%d h%d t%d s%d d%d e%d", s->b, s->g, s->h, s->t, s->s, s->d, s->e);
    both(s, PLAIN, size);
    both(s, CAUSAL, text("%s causal", size));
    both(s, BIAS, text("%s bias", size));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(scores), cmocka_unit_test(shapes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
