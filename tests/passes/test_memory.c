/* The memory plan: nothing alive overlaps, close to the bound, and the checker sees what is wrong. */
#include "util.h"

#include "passes/program.h"

#include <stdlib.h>

typedef struct {
  Arena arena;
  Draft d;
  uint64_t state;
} Sim;

static uint32_t below(Sim *s, uint32_t n) {
  s->state = s->state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(s->state >> 33) % n;
}

/* A program of launches with three operands and a result each: two recent values, one old, a new one. Kernels
 * are opaque: no region stands behind them. */
static void simulate(Sim *s, uint32_t launches, uint32_t persistent, int64_t largest) {
  Program *p = &s->d.program;
  *p = (Program){.name = "sim", .n_launches = launches, .n_buffers = persistent + launches, .n_kernels = 1};
  p->buffer = ARENA_ARRAY(&s->arena, Buffer, p->n_buffers);
  p->kernel = ARENA_NEW(&s->arena, Kernel);
  p->kernel[0] = (Kernel){.name = "k", .cls = "map", .n_args = 4, .n_outputs = 1, .scratch_bytes = 100};
  p->launch = ARENA_ARRAY(&s->arena, Launch, launches);
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    Buffer *b = &p->buffer[i];
    *b = (Buffer){.name = "b", .dtype = DT_U8, .bytes = 1 + below(s, (uint32_t)largest)};
    b->kind = i < persistent ? BUF_PARAM : i + 1 == p->n_buffers ? BUF_OUTPUT : BUF_TEMP;
    if (i < persistent) {
      b->offset = p->persistent_bytes;
      p->persistent_bytes += buffer_room(b);
    }
  }
  for (uint32_t i = 0; i < launches; i++) {
    Launch *l = &p->launch[i];
    *l = (Launch){.n_args = 4, .arg = ARENA_ARRAY(&s->arena, Operand, 4), .scratch = {.buffer = UINT32_MAX}};
    uint32_t known = persistent + i;
    l->arg[0].buffer = known - 1;
    l->arg[1].buffer = known - 1 - below(s, known < 5 ? known : 5);
    l->arg[2].buffer = below(s, known);
    l->arg[3].buffer = known;
  }
}

static Type one_byte(void) {
  return type_scalar(DT_U8);
}

/* A region that can never be written in place, for the kernel of all launches. */
static void add_region(Sim *s, Fix *x) {
  fix_init(x);
  Block *body = ir_block_new(x->f);
  Val p[3], outer[3];
  for (int i = 0; i < 3; i++) {
    p[i] = ir_param(x->f, body, one_byte(), NULL);
    outer[i] = ir_func_arg(x->f, ARG_INPUT, 0, one_byte(), NULL);
  }
  Builder in = {.f = x->f, .b = body, .loc = {NONE, 0, 0}, .err = &x->err};
  ir_block_ret(x->f, body, ir_cast(&in, p[0], DT_F64));
  Val r = ir_op(&x->b, OP_REGION, outer, 3, &(Attr){.str = "map"}, body);
  no_error(x);
  s->d.func = x->f;
  s->d.region = ARENA_NEW(&s->arena, OpId);
  s->d.region[0] = x->f->val[r].def;
}

static void random_plans(void **state) {
  (void)state;
  double worst = 1, sum = 0;
  uint32_t n = 0;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    Sim s = {.state = seed};
    Fix x;
    Error err = {0};
    simulate(&s, 5 + below(&s, 400), 1 + below(&s, 6), seed % 3 == 0 ? 64 : 1 << 20);
    add_region(&s, &x);
    if (!program_plan(&s.d, &s.arena, &err))
      fail_msg("%s", err.msg);
    const Program *p = &s.d.program;
    assert_true(p->arena_bytes >= p->lower_bound_bytes);
    double ratio = (double)p->arena_bytes / (double)p->lower_bound_bytes;
    worst = ratio > worst ? ratio : worst;
    sum += ratio;
    n++;
    ir_module_free(x.m);
    arena_free(&s.arena);
  }
  if (worst > 1.15 || sum / n > 1.05)
    fail_msg("worst %.3f, mean %.3f times the lower bound", worst, sum / n);
}

/* Every fault put into a good plan is found. */
static void faults(void **state) {
  (void)state;
  for (int fault = 0; fault < 7; fault++) {
    Sim s = {.state = 7};
    Fix x;
    Error err = {0};
    simulate(&s, 50, 3, 4096);
    add_region(&s, &x);
    assert_true(program_plan(&s.d, &s.arena, &err));
    Program *p = &s.d.program;
    Buffer *b = &p->buffer[p->launch[20].arg[3].buffer], *near = &p->buffer[p->launch[20].arg[0].buffer];
    switch (fault) {
    case 0: b->offset = near->offset; break;   /* over another that is alive */
    case 1: b->offset = p->arena_bytes; break; /* outside */
    case 2: b->offset = 0; break;              /* over a parameter */
    case 3: p->launch[20].arg[0].offset = near->bytes; break;
    case 4: p->launch[3].arg[0].buffer = p->launch[4].arg[3].buffer; break;   /* not yet written */
    case 5: b->offset += 1; break;                                            /* not on a line */
    default: p->launch[49].arg[0].buffer = p->launch[5].arg[0].buffer; break; /* after its life */
    }
    if (program_check(p, &err))
      fail_msg("fault %d is not seen", fault);
    ir_module_free(x.m);
    arena_free(&s.arena);
  }
}

/* A long recurrence: the plan of many buffers stays quick. */
static void many_buffers(void **state) {
  (void)state;
  Sim s = {.state = 3};
  Fix x;
  Error err = {0};
  simulate(&s, 60000, 4, 4096);
  add_region(&s, &x);
  if (!program_plan(&s.d, &s.arena, &err))
    fail_msg("%s", err.msg);
  ir_module_free(x.m);
  arena_free(&s.arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_plans), cmocka_unit_test(faults),
                                     cmocka_unit_test(many_buffers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
