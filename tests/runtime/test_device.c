/* Programs on the host device: launches, phases, shared parameters, constants, scratch, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/device.h"

enum { N = 1000 };

/* out[i] = a[i] + c[0] */
static void add_first(void *const *args, int64_t lo, int64_t hi, void *scratch) {
  (void)scratch;
  const float *a = args[0], *c = args[1];
  float *out = args[2];
  for (int64_t i = lo; i < hi; i++) {
    out[i] = a[i] + c[0];
  }
}

/* Sum in two phases: each task sums a tenth into scratch (through the worker's own memory), then one task
 * adds. */
static void sum_parts(void *const *args, int64_t lo, int64_t hi, void *scratch) {
  const float *a = args[0];
  double *own = args[2];
  for (int64_t t = lo; t < hi; t++) {
    own[0] = 0;
    for (int64_t i = t * (N / 10); i < (t + 1) * (N / 10); i++) {
      own[0] += (double)a[i];
    }
    ((double *)scratch)[t] = own[0];
  }
}

static void sum_total(void *const *args, int64_t lo, int64_t hi, void *scratch) {
  (void)lo;
  (void)hi;
  double total = 0;
  for (int t = 0; t < 10; t++) {
    total += ((double *)scratch)[t];
  }
  *(float *)args[1] = (float)total;
}

static void *symbol(void *ctx, uint32_t object, const char *name) {
  (void)ctx;
  static const struct {
    const char *name;
    void (*fn)(void *const *, int64_t, int64_t, void *);
  } table[] = {{"add_first", add_first}, {"sum_parts", sum_parts}, {"sum_total", sum_total}};
  for (size_t i = 0; object == 0 && i < sizeof table / sizeof *table; i++) {
    if (!strcmp(table[i].name, name)) {
      void *p;
      memcpy(&p, &table[i].fn, sizeof p);
      return p;
    }
  }
  return NULL;
}

typedef struct {
  Buffer buffer[7];
  Phase phase[3];
  Kernel kernel[2];
  Operand arg[5];
  Launch launch[2];
  Result result[1];
  float constant;
  Program program;
} Case;

/* w += constant, then total = sum(w), through the value y when `pad` bytes of the arena lie unused. */
static void make(Case *c, const char *name, float constant, int64_t pad) {
  *c = (Case){.constant = constant};
  const int64_t big = N * 4;
  int64_t at = 4032; /* N floats up to a multiple of 64 */
  c->buffer[0] =
      (Buffer){.name = "w", .kind = BUF_PARAM, .rank = 1, .axis = {"x"}, .size = {N}, .bytes = big};
  c->buffer[1] = (Buffer){
      .name = "c", .kind = BUF_CONST, .bytes = 4, .offset = at + pad, .last = 2, .init = &c->constant};
  c->buffer[2] = (Buffer){.name = "total", .kind = BUF_OUTPUT, .bytes = 4, .offset = at + 64 + pad};
  c->buffer[3] =
      (Buffer){.name = "scratch", .kind = BUF_TEMP, .dtype = DT_F64, .bytes = 80, .offset = at + 128 + pad};
  c->buffer[4] =
      (Buffer){.name = "$step", .kind = BUF_SCALAR, .dtype = DT_F64, .bytes = 8, .offset = at + 256 + pad};
  c->phase[0] = (Phase){"add_first", N};
  c->phase[1] = (Phase){"sum_parts", 10};
  c->phase[2] = (Phase){"sum_total", 1};
  c->kernel[0] = (Kernel){.name = "add", .phase = &c->phase[0], .n_phases = 1, .n_args = 3, .n_outputs = 1};
  c->kernel[1] = (Kernel){.name = "sum",
                          .phase = &c->phase[1],
                          .n_phases = 2,
                          .n_args = 2,
                          .n_outputs = 1,
                          .scratch_bytes = 80,
                          .thread_scratch_bytes = 8};
  c->arg[0] = c->arg[2] = c->arg[3] = (Operand){0, 0};
  c->arg[1] = (Operand){1, 0};
  c->arg[4] = (Operand){2, 0};
  c->launch[0] = (Launch){.kernel = 0, .n_args = 3, .arg = &c->arg[0], .scratch = {.buffer = UINT32_MAX}};
  c->launch[1] = (Launch){.kernel = 1, .n_args = 2, .arg = &c->arg[3], .scratch = {.buffer = 3}};
  c->result[0] = (Result){.name = "loss", .num = 2, .den = 1, .kind = 0};
  c->program = (Program){.name = name,
                         .buffer = c->buffer,
                         .kernel = c->kernel,
                         .launch = c->launch,
                         .result = c->result,
                         .n_buffers = 5,
                         .n_kernels = 2,
                         .n_launches = 2,
                         .n_results = 1,
                         .arena_bytes = at + 320 + pad,
                         .persistent_bytes = at};
}

static void test_two_programs_share_parameters(void **state) {
  (void)state;
  for (int32_t threads = 1; threads <= 5; threads++) {
    Error err = {0};
    Device *d = device_open("host", &(DeviceOptions){.threads = threads}, &err);
    assert_non_null(d);
    Case one, two;
    make(&one, "train", 2, 0);
    make(&two, "eval", 0.5f, 1 << 20);
    Exec *train = exec_load(d, &one.program, symbol, NULL, &err);
    assert_non_null(train);
    assert_int_equal(threads, device_threads(d));
    assert_true(exec_run(train, &err));
    assert_float_equal(exec_value(train, 0), 2 * N / 2.0, 0);
    Exec *eval = exec_load(d, &two.program, symbol, NULL, &err); /* moves the arena */
    assert_non_null(eval);
    assert_true(exec_run(eval, &err));
    double num, den;
    exec_num_den(eval, exec_result(eval, "loss"), &num, &den);
    assert_float_equal(num, 2.5 * N, 0);
    assert_float_equal(den, 0.5, 0);
    assert_true(exec_run(train, &err)); /* its constant was overwritten or lost: it must be written again */
    assert_float_equal(exec_value(train, 0) * 2, 4.5 * N, 0);
    float w[N];
    assert_true(exec_read(eval, exec_buffer(eval, BUF_PARAM, "w"), 0, w, sizeof w, &err));
    assert_float_equal((double)w[N - 1], 4.5, 0);
    assert_ptr_not_equal(exec_map(eval, 0), NULL);
    assert_int_equal((uintptr_t)exec_map(eval, 0) % 64, 0);
    exec_unload(eval);
    exec_unload(train);
    device_close(d);
  }
}

static void test_scalars_and_profile(void **state) {
  (void)state;
  Error err = {0};
  Device *d = device_open("auto", NULL, &err);
  Case c;
  make(&c, "train", 1, 0);
  Exec *x = exec_load(d, &c.program, symbol, NULL, &err);
  exec_set_scalar(x, SCALAR_STEP, 7);
  exec_set_scalar(x, SCALAR_SEED, 7); /* not in this program */
  double step;
  assert_true(exec_read(x, exec_buffer(x, BUF_SCALAR, "$step"), 0, &step, 8, &err));
  assert_float_equal(step, 7, 0);
  exec_profile(x, true);
  assert_true(exec_run(x, &err) && exec_run(x, &err));
  uint32_t n;
  const KernelTime *t = exec_times(x, &n);
  assert_int_equal(n, 2);
  assert_int_equal(t[1].launches, 2);
  assert_true(t[1].seconds > 0);
  assert_false(exec_write(x, 0, 4000, &step, 8, &err));
  assert_int_equal(err.cls, ERR_RUN);
  exec_unload(x);
  device_close(d);
}

static void refuse(Device *d, Case *c, const char *why) {
  Error err = {0};
  assert_null(exec_load(d, &c->program, symbol, NULL, &err));
  if (!strstr(err.msg, why)) {
    fail_msg("'%s' lacks '%s'", err.msg, why);
  }
}

static void test_refusals(void **state) {
  (void)state;
  Error err = {0};
  assert_null(device_open("cuda", NULL, &err));
  assert_int_equal(err.cls, ERR_USAGE);
  Device *d = device_open("host", NULL, &(Error){0});
  Case c;
  make(&c, "p", 1, 0);
  c.buffer[2].offset = c.program.arena_bytes;
  refuse(d, &c, "total");
  make(&c, "p", 1, 0);
  c.buffer[0].size[0] = INT64_MAX / 2;
  refuse(d, &c, "'w'");
  make(&c, "p", 1, 0);
  c.arg[0].offset = 1 << 30;
  refuse(d, &c, "operand outside");
  make(&c, "p", 1, 0);
  c.phase[1].symbol = "gone";
  refuse(d, &c, "no symbol gone");
  make(&c, "p", 1, 0);
  c.launch[1].scratch.buffer = UINT32_MAX;
  refuse(d, &c, "no scratch");
  make(&c, "p", 1, 0);
  c.program.arena_bytes = (int64_t)1 << 60;
  refuse(d, &c, "GiB");
  make(&c, "p", 1, 0);
  Exec *x = exec_load(d, &c.program, symbol, NULL, &err);
  Case other;
  make(&other, "q", 1, 0);
  other.program.persistent_bytes -= 64;
  refuse(d, &other, "between steps");
  exec_unload(x);
  device_close(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_two_programs_share_parameters),
      cmocka_unit_test(test_scalars_and_profile),
      cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
