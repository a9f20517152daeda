/* Modules to objects to code in the process: symbols, equal objects, calls out, bad bytes, bad targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/llvm.h"

/* void NAME(args, lo, hi, scratch): fills 4 MiB of scratch with `byte` (a call of memset). */
static void build_object(Arena *arena, const char *name, int byte, Object *out) {
  Error err = {0};
  Target *t = target_new(NULL, NULL, &err);
  assert_non_null(t);
  Gen *g = gen_new(t, name, &err);
  assert_non_null(g);
  LLVMTypeRef ptr = LLVMPointerTypeInContext(g->ctx, 0), i64 = LLVMInt64TypeInContext(g->ctx);
  LLVMTypeRef sig =
      LLVMFunctionType(LLVMVoidTypeInContext(g->ctx), (LLVMTypeRef[]){ptr, i64, i64, ptr}, 4, false);
  LLVMValueRef fn = LLVMAddFunction(g->mod, name, sig);
  gen_function_attributes(g, fn);
  LLVMPositionBuilderAtEnd(g->b, LLVMAppendBasicBlockInContext(g->ctx, fn, "entry"));
  LLVMValueRef value = LLVMConstInt(LLVMInt8TypeInContext(g->ctx), (unsigned)byte, false);
  LLVMBuildMemSet(g->b, LLVMGetParam(fn, 3), value, LLVMConstInt(i64, 4 << 20, false), 1);
  LLVMBuildRetVoid(g->b);
  assert_true(gen_optimize(g, "function(early-cse)", &err));
  assert_true(gen_object(g, arena, out, &err));
  gen_free(g);
  target_free(t);
}

static void test_load(void **state) {
  (void)state;
  Arena arena = {0};
  Error err = {0};
  Object object[3];
  unsigned char *buf = malloc(4 << 20);
  assert_non_null(buf);
  build_object(&arena, "fill_7", 7, &object[0]);
  build_object(&arena, "fill_9", 9, &object[1]);
  build_object(&arena, "fill_7", 7, &object[2]); /* the same again */
  CodeImage *image = codegen_load(object, 3, &err);
  assert_non_null(image);
  arena_free(&arena); /* the image has its own copy */
  KernelFn seven = codegen_lookup(image, "fill_7"), nine = codegen_lookup(image, "fill_9");
  assert_non_null(seven);
  assert_non_null(nine);
  assert_null(codegen_lookup(image, "fill_8"));
  seven(NULL, 0, 1, buf);
  assert_int_equal(buf[12345], 7);
  nine(NULL, 0, 1, buf);
  assert_int_equal(buf[(4 << 20) - 1], 9);
  codegen_unload(image);
  free(buf);
}

static void test_nothing(void **state) {
  (void)state;
  Error err = {0};
  CodeImage *image = codegen_load(NULL, 0, &err);
  assert_non_null(image);
  assert_null(codegen_lookup(image, "anything"));
  codegen_unload(image);
  codegen_unload(NULL);
}

static void test_bad_bytes(void **state) {
  (void)state;
  Error err = {0};
  Object bad = {"this is no object file", 22};
  assert_null(codegen_load(&bad, 1, &err));
  assert_int_equal(err.cls, ERR_RUN);
}

static void test_target_text(void **state) {
  (void)state;
  Error err = {0};
  Target *host = target_new(NULL, NULL, &err), *other = target_new("x86-64", "+sse2", &err);
  assert_non_null(host);
  assert_non_null(other);
  assert_string_not_equal(target_text(host), target_text(other));
  setenv("DLC_CPU_FEATURES", "+sse2,+avx2", 1);
  Target *from_env = target_new(NULL, NULL, &err);
  unsetenv("DLC_CPU_FEATURES");
  assert_non_null(strstr(target_text(from_env), " +sse2,+avx2 "));
  Gen *g = gen_new(from_env, "lanes", &err);
  assert_int_equal(g->lanes, 8);
  gen_free(g);
  target_free(host);
  target_free(other);
  target_free(from_env);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_load),
      cmocka_unit_test(test_nothing),
      cmocka_unit_test(test_bad_bytes),
      cmocka_unit_test(test_target_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
