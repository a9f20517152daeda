/* The kernel driver: cache, compilation on several threads, launch data, results over operands. */
#include "region_rig.h"

#include <dirent.h>
#include <unistd.h>

typedef struct {
  Module *m;
  Func *f;
  OpId region[4];
} Case;

/* y = a x + y: four regions that differ in a constant. */
static OpId add_region(Func *f, double c) {
  Module *m = f->module;
  Error err = {0};
  Type t = type_scalar(DT_F32);
  type_push(&t, ir_axis(m, "n"), 1000);
  Block *body = ir_block_new(f);
  Builder b = {f, body, {NONE, 0, 0}, &err}, top = {f, f->body, {NONE, 0, 0}, &err};
  Val x = ir_param(f, body, t, NULL), y = ir_param(f, body, t, NULL);
  ir_block_ret(f, body, ir_binary(&b, OP_ADD, ir_binary(&b, OP_MUL, x, ir_const(&b, DT_F32, c)), y));
  Val args[] = {f->body->param[0], f->body->param[1]};
  Attr a = {.str = "map"};
  Val v = ir_op(&top, OP_REGION, args, 2, &a, body);
  assert_int_equal(err.cls, ERR_NONE);
  ir_func_ret(f, (FuncRes){.kind = RES_OUTPUT, .name = "y"}, v);
  return f->val[v].def;
}

static Case program(void) {
  Case p = {.m = ir_module_new()};
  p.f = ir_func_new(p.m, "f");
  Type t = type_scalar(DT_F32);
  type_push(&t, ir_axis(p.m, "n"), 1000);
  ir_func_arg(p.f, ARG_INPUT, 0, t, NULL);
  ir_func_arg(p.f, ARG_INPUT, 1, t, NULL);
  for (int i = 0; i < 4; i++)
    p.region[i] = add_region(p.f, i + 1);
  return p;
}

static int entries(const char *dir) {
  int n = 0;
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));)
    n += e->d_name[0] != '.';
  if (d)
    closedir(d);
  return n;
}

static void remove_dir(const char *dir) {
  DIR *d = opendir(dir);
  char path[512];
  for (struct dirent *e; d && (e = readdir(d));)
    if (e->d_name[0] != '.') {
      snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
      unlink(path);
    }
  if (d)
    closedir(d);
  rmdir(dir);
}

static void check_values(const Kernel *k, const Object *o, uint32_t n) {
  Error err = {0};
  CodeImage *image = codegen_load(o, n, &err);
  if (!image)
    fail_msg("%s", err.msg);
  static float x[1000], y[1000], z[1000];
  for (int i = 0; i < 1000; i++)
    x[i] = (float)i, y[i] = 1;
  for (uint32_t r = 0; r < n; r++) {
    void *args[] = {x, y, z, NULL};
    assert_int_equal(k[r].n_args, 3);
    assert_int_equal(k[r].object, r);
    run_kernel(image, &k[r], args, 0);
    for (int i = 0; i < 1000; i++)
      assert_true(z[i] == (float)(r + 1) * x[i] + 1);
  }
  codegen_unload(image);
}

static void cache_and_threads(void **state) {
  (void)state;
  char dir[] = "/tmp/dlc-kernel-XXXXXX";
  assert_non_null(mkdtemp(dir));
  Case p = program();
  Object first[4];
  Arena arena = {0};
  Error err = {0};
  for (int round = 0; round < 2; round++) {
    Codegen *cg = codegen_new(&(CodegenOptions){.cache_dir = dir, .threads = 3}, &err);
    assert_non_null(cg);
    Kernel k[4] = {0};
    Object o[4] = {0};
    if (!codegen_kernels(cg, p.f, p.region, 4, &arena, k, o, &err))
      fail_msg("%s", err.msg);
    check_values(k, o, 4);
    for (int i = 0; i < 4; i++) {
      if (round == 0) {
        first[i] = o[i];
      } else { /* from the cache: the same bytes */
        assert_int_equal(o[i].n, first[i].n);
        assert_memory_equal(o[i].bytes, first[i].bytes, o[i].n);
      }
    }
    assert_int_equal(entries(dir), 4);
    codegen_free(cg);
  }
  remove_dir(dir);
  arena_free(&arena);
  ir_module_free(p.m);
}

static void same_object_twice(void **state) {
  (void)state;
  Case p = program();
  Arena arena = {0};
  Error err = {0};
  Kernel k = {0};
  Object a, b;
  assert_true(codegen_kernel(rig_codegen(), p.f, p.region[0], &arena, &k, &a, &err));
  assert_true(codegen_kernel(rig_codegen(), p.f, p.region[0], &arena, &k, &b, &err));
  assert_int_equal(a.n, b.n);
  assert_memory_equal(a.bytes, b.bytes, a.n);
  assert_string_equal(k.cls, "map");
  assert_true(k.bytes == 12000 && k.flops == 2000);
  Str text = {0};
  assert_true(codegen_ir(rig_codegen(), p.f, p.region[0], &text, &err));
  assert_non_null(strstr(text.s, "define void @k_"));
  str_free(&text);
  arena_free(&arena);
  ir_module_free(p.m);
}

static void over_operands(void **state) {
  (void)state;
  Case p = program();
  assert_true(codegen_inplace(p.f, p.region[0], 0, 0));
  assert_true(codegen_inplace(p.f, p.region[0], 0, 1));
  ir_module_free(p.m);

  Rig r;
  rig_init(&r);
  Val x = rig_in(&r, DT_F32, "n=100", -1, 1), y = rig_in(&r, DT_F32, "m=3 n=100", -1, 1);
  Axis n = ax(&r, "n");
  ir_block_ret(r.f, r.body, ir_unary(&r.b, OP_NEG, x));
  ir_block_ret(r.f, r.body, ir_binary(&r.b, OP_ADD, y, x)); /* x again, in another nest */
  ir_block_ret(r.f, r.body, ir_binary(&r.b, OP_SUB, y, ir_reduce(&r.b, OP_SUM, y, &n, 1)));
  Builder top = {r.f, r.f->body, {NONE, 0, 0}, &r.err};
  Attr a = {.str = "map"};
  Val v = ir_op(&top, OP_REGION, r.outer, 2, &a, r.body);
  OpId id = r.f->val[v].def;
  assert_false(codegen_inplace(r.f, id, 0, 0));
  assert_false(codegen_inplace(r.f, id, 1, 0)); /* another type */
  assert_false(codegen_inplace(r.f, id, 1, 1)); /* y is read again for the row sums */
  assert_false(codegen_inplace(r.f, id, 2, 1));
  ir_module_free(r.m);
}

/* Results over operands, as the memory plan lays them. */
static void runs_in_place(void **state) {
  (void)state;
  Case p = program();
  Arena arena = {0};
  Error err = {0};
  Kernel k = {0};
  Object o;
  assert_true(codegen_kernel(rig_codegen(), p.f, p.region[2], &arena, &k, &o, &err));
  CodeImage *image = codegen_load(&o, 1, &err);
  static float x[1000], y[1000];
  for (int i = 0; i < 1000; i++)
    x[i] = (float)i, y[i] = 2;
  run_kernel(image, &k, (void *[]){x, y, y}, 0);
  for (int i = 0; i < 1000; i++)
    assert_true(y[i] == 3 * (float)i + 2);
  codegen_unload(image);
  arena_free(&arena);
  ir_module_free(p.m);
}

static void refused(void **state) {
  (void)state;
  Rig r;
  rig_init(&r);
  Val x = rig_in(&r, DT_F32, "n=10", -1, 1);
  Axis n = ax(&r, "n");
  Attr c = {.axis = &n, .n_axis = 1, .num = (int64_t[]){0}, .n_num = 1};
  Val sum = ir_op(&r.b, OP_CUMSUM, &x, 1, &c, NULL);
  ir_block_ret(r.f, r.body, ir_reduce(&r.b, OP_SUM, sum, &n, 1));
  Builder top = {r.f, r.f->body, {NONE, 0, 0}, &r.err};
  Attr a = {.str = "scan"};
  Val v = ir_op(&top, OP_REGION, r.outer, 1, &a, r.body);
  OpId id = r.f->val[v].def;
  char why[128];
  assert_false(codegen_region_ok(r.f, id, why, sizeof why));
  assert_non_null(strstr(why, "running sums"));
  Arena arena = {0};
  Kernel k = {0};
  Object o;
  assert_false(codegen_kernel(rig_codegen(), r.f, id, &arena, &k, &o, &r.err));
  assert_int_equal(r.err.cls, ERR_INPUT);
  arena_free(&arena);
  ir_module_free(r.m);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(cache_and_threads), cmocka_unit_test(same_object_twice),
                                     cmocka_unit_test(over_operands), cmocka_unit_test(runs_in_place),
                                     cmocka_unit_test(refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
