/* Step programs: what fusing, unrolling and sharing of memory leave is the same function. */
#include "program_rig.h"

static void show(const Program *p) {
  if (!getenv("DLC_TEST_DUMP"))
    return;
  Str s = {0};
  program_print(p, &s);
  program_print_memory(p, &s);
  fputs(s.s, stderr);
  str_free(&s);
}

static Func *unfused(Fix *x, PipeKind kind, double clip) {
  Func *f = pipeline_unfused(x->m, kind, clip, NULL, 0, &(PassHooks){.verify = true}, &x->err);
  no_error(x);
  return f;
}

static void transformer_programs(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_training(&x);
  pass_select(ir_func(x.m, "train"), "eval", NULL, NULL);
  check_program(&x, "train", unfused(&x, PIPE_TRAIN, 1), 1e-12);
  check_program(&x, "train without clipping", unfused(&x, PIPE_TRAIN, 0), 1e-12);
  check_program(&x, "grad", unfused(&x, PIPE_GRAD, 0), 1e-12);
  check_program(&x, "eval", unfused(&x, PIPE_EVAL, 0), 1e-12);
  ir_module_free(x.m);
}

/* All programs of a module keep parameters and states at one place. */
static void one_place_for_parameters(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_training(&x);
  pass_select(ir_func(x.m, "train"), "eval", NULL, NULL);
  Planned a = make_planned(&x, unfused(&x, PIPE_TRAIN, 1)), b = make_planned(&x, unfused(&x, PIPE_EVAL, 1));
  const Program *p = &a.draft.program, *q = &b.draft.program;
  show(p);
  assert_int_equal(p->persistent_bytes, q->persistent_bytes);
  for (uint32_t i = 0; i < x.m->n_params + x.m->n_opt; i++) {
    assert_string_equal(p->buffer[i].name, q->buffer[i].name);
    assert_int_equal(p->buffer[i].offset, q->buffer[i].offset);
  }
  assert_true(p->arena_bytes >= p->lower_bound_bytes);
  free_planned(&a);
  free_planned(&b);
  ir_module_free(x.m);
}

/* ---- loops ---- */

typedef struct {
  Fix *x;
  Block *body, *outer;
  Val args[8];
  uint32_t n_args;
} Looping;

static Looping loop_open(Fix *x) {
  Looping l = {.x = x, .body = ir_block_new(x->f), .outer = x->b.b};
  ir_param(x->f, l.body, type_scalar(DT_I32), "i");
  x->b.b = l.body;
  return l;
}

static Val loop_in(Looping *l, Val v, const char *slice_axis) {
  Fix *x = l->x;
  Axis a = slice_axis ? ax(x, slice_axis) : 0;
  l->args[l->n_args++] = v;
  return ir_param(x->f, l->body, type_without(ir_type(x->f, v), &a, slice_axis ? 1 : 0), NULL);
}

static Val loop_close(Looping *l, const char *axis, int64_t size, int64_t carry, int64_t xs, bool reverse,
                      const Val *ret, uint32_t n_ret) {
  Fix *x = l->x;
  for (uint32_t i = 0; i < n_ret; i++)
    ir_block_ret(x->f, l->body, ret[i]);
  x->b.b = l->outer;
  Attr attr = {
      .axis = (Axis[]){ax(x, axis)}, .n_axis = 1, .num = (int64_t[]){size, carry, xs, reverse}, .n_num = 4};
  return ir_op(&x->b, OP_LOOP, l->args, l->n_args, &attr, l->body);
}

static void output(Fix *x, const char *name, Val v) {
  ir_func_ret(x->f, (FuncRes){.kind = RES_OUTPUT, .name = name}, v);
}

/* Two carried values that change places, one that stays, slices from the end, a result that is used whole and
 * as slices. */
static void carries(void **state) {
  (void)state;
  for (int reverse = 0; reverse < 2; reverse++) {
    Fix x;
    fix_init(&x);
    Builder *b = &x.b;
    Val p = fix_param(&x, "p", "a=3"), q = fix_param(&x, "q", "a=3"), s = fix_param(&x, "s", "n=4,a=3"),
        late = fix_param(&x, "late", "a=3,n=4");
    Looping l = loop_open(&x);
    Val c0 = loop_in(&l, p, NULL), c1 = loop_in(&l, q, NULL), same = loop_in(&l, q, NULL),
        si = loop_in(&l, s, "n"), li = loop_in(&l, late, "n"), inv = loop_in(&l, p, NULL);
    Val i = ir_cast(b, l.body->param[0], DT_F64);
    Val y = add(&x, mul(&x, c0, si), mul(&x, mul(&x, li, i), inv));
    Val r = loop_close(&l, "n", 4, 3, 2, reverse, (Val[]){c1, add(&x, y, same), same, y, c0}, 5);
    Val ys = r + 3, cs = r + 4;
    /* slices of a stacked result in a second loop, and all of it */
    Looping m = loop_open(&x);
    Val d = loop_in(&m, r, NULL), yi = loop_in(&m, ys, "n"), ci = loop_in(&m, cs, "n");
    Val r2 = loop_close(&m, "n", 4, 1, 2, !reverse, (Val[]){sub(&x, mul(&x, d, yi), ci)}, 1);
    output(&x, "first", r);
    output(&x, "second", r + 1);
    output(&x, "same", r + 2);
    output(&x, "chain", r2);
    output(&x, "whole", sum(&x, mul(&x, cs, num(&x, 2)), "n"));
    output(&x, "stacked", cs);
    check_program(&x, reverse ? "reverse" : "forward", x.f, 1e-12);
    ir_module_free(x.m);
  }
}

/* A loop in a loop, both stacking; the outer one's slices are read by another. */
static void nested(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Val p = fix_param(&x, "p", "a=3"), w = fix_param(&x, "w", "n=2,m=3,a=3");
  Looping o = loop_open(&x);
  Val c = loop_in(&o, p, NULL), wi = loop_in(&o, w, "n");
  Looping in = loop_open(&x);
  Val d = loop_in(&in, c, NULL), wij = loop_in(&in, wi, "m");
  Val t = ir_unary(&x.b, OP_TANH, mul(&x, d, wij));
  Val r = loop_close(&in, "m", 3, 1, 1, false, (Val[]){add(&x, d, t), t}, 2);
  Val r2 = loop_close(&o, "n", 2, 1, 1, false, (Val[]){r, r + 1, mul(&x, r, r)}, 3);
  Looping back = loop_open(&x);
  Val e = loop_in(&back, r2, NULL), ti = loop_in(&back, r2 + 1, "n"), sq = loop_in(&back, r2 + 2, "n");
  Looping inner = loop_open(&x);
  Val g = loop_in(&inner, e, NULL), tij = loop_in(&inner, ti, "m");
  Val r3 = loop_close(&inner, "m", 3, 1, 1, true, (Val[]){mul(&x, g, tij)}, 1);
  Val r4 = loop_close(&back, "n", 2, 1, 2, true, (Val[]){add(&x, r3, sq)}, 1);
  output(&x, "out", r4);
  check_program(&x, "nested", x.f, 1e-12);
  ir_module_free(x.m);
}

/* ---- persistent results ---- */

static void persist(Fix *x, uint32_t p, Val v) {
  ir_func_ret(x->f, (FuncRes){.kind = RES_PARAM, .index = p}, v);
}

/* Parameters that change places, shift, stay, move by a neighbour, and outputs that see them as they were. */
static void updates(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  Builder *b = &x.b;
  Val p[6];
  const char *name[] = {"p0", "p1", "p2", "p3", "p4", "p5"};
  for (int i = 0; i < 6; i++)
    p[i] = fix_param(&x, name[i], i < 4 ? "a=4,b=4" : i == 4 ? "b=4" : "n=3,a=4");
  Axis ab[2] = {ax(&x, "a"), ax(&x, "b")};
  Val norm2 = ir_unary(b, OP_SQRT, ir_reduce(b, OP_SUM, mul(&x, p[2], p[2]), ab, 2));
  persist(&x, 0, p[1]);
  persist(&x, 1, p[0]);
  persist(&x, 2, mul(&x, p[2], norm2));
  Val turned = ir_rename(b, p[3], ab, (Axis[]){ab[1], ab[0]}, 2);
  persist(&x, 3, add(&x, p[3], ir_reorder(b, turned, ir_type(x.f, p[3]))));
  persist(&x, 4, sum(&x, mul(&x, p[2], p[3]), "a"));
  Looping l = loop_open(&x);
  Val c = loop_in(&l, p[4], NULL), s = loop_in(&l, p[5], "n");
  Val next = add(&x, c, ir_rename(b, s, ab, ab + 1, 1));
  Val r = loop_close(&l, "n", 3, 1, 1, false, (Val[]){next, ir_rename(b, next, ab + 1, ab, 1)}, 2);
  persist(&x, 5, r + 1);
  output(&x, "was2", mul(&x, p[2], num(&x, 2)));
  output(&x, "is2", x.f->body->ret[2]);
  output(&x, "sum4", r);
  output(&x, "was0", p[0]);
  check_program(&x, "updates", x.f, 1e-12);
  ir_module_free(x.m);
}

/* ---- sizes ---- */

static Func *deep(Fix *x, int64_t layers_n) {
  fix_init(x);
  char dims[32];
  snprintf(dims, sizeof dims, "n=%lld,a=32,c=32", (long long)layers_n);
  Val v = fix_input(x, "v", DT_F64, "b=64,a=32"), w = fix_param(x, "w", dims);
  Axis a = ax(x, "a"), c = ax(x, "c");
  Looping l = loop_open(x);
  Val h = loop_in(&l, v, NULL), wi = loop_in(&l, w, "n");
  Val z = ir_unary(&x->b, OP_TANH, ir_rename(&x->b, ir_contract(&x->b, h, wi, &a, 1), &c, &a, 1));
  Val r = loop_close(&l, "n", layers_n, 1, 1, false, &z, 1);
  Val loss = ir_reduce(&x->b, OP_SUM, mul(x, r, r), (Axis[]){ax(x, "b"), a}, 2);
  fix_loss(x, loss);
  return unfused(x, PIPE_GRAD, 0);
}

/* Kernels do not grow with depth, and what a layer saved is freed layer by layer. */
static void depth(void **state) {
  (void)state;
  uint32_t kernels = 0;
  for (int64_t n = 4; n <= 64; n *= 4) {
    Fix x;
    Func *f = deep(&x, n);
    Planned p = make_planned(&x, f);
    const Program *prog = &p.draft.program;
    if (kernels)
      assert_int_equal(prog->n_kernels, kernels);
    kernels = prog->n_kernels;
    int64_t layer = 64 * 32 * 8, weights = 32 * 32 * 8;
    int64_t most = prog->persistent_bytes + n * (weights + 2 * layer) + 8 * layer;
    if (prog->arena_bytes > most)
      fail_msg("%lld layers take %lld bytes, expected at most %lld", (long long)n,
               (long long)prog->arena_bytes, (long long)most);
    assert_true((double)prog->arena_bytes <= 1.05 * (double)prog->lower_bound_bytes);
    free_planned(&p);
    if (n == 4)
      check_program(&x, "deep", f, 1e-11);
    ir_module_free(x.m);
  }
}

/* Every value in memory has a reason, and the plain ones are the right ones. */
static void reasons(void **state) {
  (void)state;
  Fix x;
  fix_init(&x);
  build_training(&x);
  Planned p = make_planned(&x, unfused(&x, PIPE_TRAIN, 1));
  const Func *f = p.draft.func;
  uint32_t n, contractions = 0, kept = 0;
  const StoredValue *s = fuse_stored(f, &p.arena, &n);
  assert_true(n > 30);
  for (uint32_t i = 0; i < n; i++) {
    assert_non_null(s[i].why);
    contractions += strstr(s[i].why, "operands of a contraction") != NULL;
    kept += strstr(s[i].why, "kept for later") != NULL;
    if (s[i].reader != NONE)
      assert_true(f->op[s[i].reader].code == OP_REGION && s[i].reader != s[i].writer);
  }
  assert_true(contractions > 2 && kept > 5);
  Str text = {0};
  program_print_stored(&p.draft, UINT32_MAX, "; ", &text);
  assert_non_null(strstr(text.s, "it is a result of the step"));
  if (getenv("DLC_TEST_DUMP"))
    fputs(text.s, stderr);
  str_free(&text);
  free_planned(&p);
  ir_module_free(x.m);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(transformer_programs),
                                     cmocka_unit_test(one_place_for_parameters),
                                     cmocka_unit_test(carries),
                                     cmocka_unit_test(nested),
                                     cmocka_unit_test(updates),
                                     cmocka_unit_test(reasons),
                                     cmocka_unit_test(depth)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
