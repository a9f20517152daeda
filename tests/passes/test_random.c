/* Random programs: simplification and outlining keep values, gradients equal central differences. */
#include "random_program.h"

/* Whether differences by two steps agree: no jump or kink of the program is near. */
static bool smooth(const Func *f, Data *d) {
  for (uint32_t p = 0; p < d->n; p++)
    for (int64_t k = 0; k < type_count(&d->in[p].type); k++) {
      double x = d->in[p].data[k], slope[2];
      for (int i = 0; i < 2; i++) {
        double h = (i ? 2e-6 : 2e-5) * (1 + fabs(x));
        d->in[p].data[k] = x + h;
        double up = loss_at(f, d);
        d->in[p].data[k] = x - h;
        slope[i] = (up - loss_at(f, d)) / (2 * h);
      }
      d->in[p].data[k] = x;
      if (!(fabs(slope[0] - slope[1]) <= 1e-3 * (1 + fabs(slope[0]))))
        return false;
    }
  return true;
}

static void one_program(uint64_t seed) {
  Gen g;
  random_body(&g, seed);
  random_loss(&g);
  Func *f = pass_select(g.x.f, "copy", NULL, NULL);
  if (!simplify(f, false, &g.x.err) || !pass_outline(f, &g.x.err) || !pass_hoist(f, &g.x.err))
    fail_msg("%s", g.x.err.msg);
  Func *grad = pass_autodiff(f, "grad", &g.x.err);
  no_error(&g.x);
  assert_true(simplify(grad, true, &g.x.err));
  char name[64];
  snprintf(name, sizeof name, "program %llu", (unsigned long long)seed);
  Data d = make_data(g.x.f, -1, 1);
  Arena arena = {0};
  Tensor *out = run(grad, &d, &arena);
  bool finite = true;
  for (uint32_t i = 0; i < grad->body->n_ret; i++)
    finite &= all_finite(&out[i]);
  if (finite) {
    close_to(name, out[0].data[0], loss_at(g.x.f, &d), 1e-10);
    if (smooth(g.x.f, &d))
      check_against_differences(name, g.x.f, grad, &d, 1e-3);
  }
  arena_free(&arena);
  arena_free(&d.arena);
  ir_module_free(g.x.m);
}

static void random_programs(void **state) {
  (void)state;
  const char *from = getenv("DLC_TEST_SEED"), *count = getenv("DLC_TEST_COUNT");
  uint64_t first = from ? strtoull(from, NULL, 10) : 1, n = count ? strtoull(count, NULL, 10) : 150;
  for (uint64_t i = 0; i < n; i++)
    one_program(first + i);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
