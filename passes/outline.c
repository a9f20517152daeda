/* outline.c: finds composites, whoever wrote them: one walk over each block for each kind, inner blocks
 * first. */
#include "passes/internal.h"

#include <string.h>

typedef Val (*Rule)(Builder *b, OpId id, const OutlineInfo *info);

static Val contract_rule(Builder *b, OpId id, const OutlineInfo *info) {
  (void)info;
  return outline_contract(b, id);
}

static Val softmax_rule(Builder *b, OpId id, const OutlineInfo *info) {
  (void)info;
  return outline_softmax(b, id);
}

static void count_uses(const Func *f, const Block *b, uint32_t *uses) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++)
      uses[op->arg[k]]++;
    if (op->body)
      count_uses(f, op->body, uses);
  }
  for (uint32_t i = 0; i < b->n_ret; i++)
    uses[b->ret[i]]++;
}

static OutlineInfo gather_info(Func *f) {
  Arena *arena = &f->module->arena;
  Ad a = {.b = {.f = f}};
  Val *wrt = ARENA_ARRAY(arena, Val, f->body->n_params);
  ad_relevance(&a, f->body, loss_of(f), wrt, trained_params(f, wrt));
  OutlineInfo info = {.act = a.act, .use = a.use, .n = a.n, .uses = ARENA_ARRAY(arena, uint32_t, a.n)};
  count_uses(f, f->body, info.uses);
  return info;
}

static void apply(Func *f, Block *b, Rule rule, OutlineInfo *info, Error *err) {
  OpId *ops;
  uint32_t n = block_take(b, &ops);
  Builder e = {.f = f, .b = b, .err = err};
  for (uint32_t i = 0; i < n; i++)
    if (f->op[ops[i]].code == OP_LOOP)
      apply(f, f->op[ops[i]].body, rule, info, err);
  info->ops = ops;
  info->n_ops = n;
  for (uint32_t i = 0; i < n; i++) {
    const Op *op = &f->op[ops[i]];
    e.loc = op->loc;
    Val r = op->n_results == 1 ? rule(&e, ops[i], info) : NONE;
    if (r == NONE) {
      block_push(f, b, ops[i]);
      continue;
    }
    if (!f->val[r].name)
      f->val[r].name = f->val[f->op[ops[i]].result].name;
    f->val[f->op[ops[i]].result] = f->val[r]; /* renewed at once below and in the ops to come */
    for (uint32_t k = i + 1; k < n; k++)
      for (uint32_t j = 0; j < f->op[ops[k]].n_args; j++)
        f->op[ops[k]].arg[j] = val_renew(f, f->op[ops[k]].arg[j]);
  }
  block_renew(f, b);
}

bool pass_outline(Func *f, Error *err) {
  /* softmax first: its division would leave the sum over keys */
  static const Rule rule[] = {softmax_rule, contract_rule, outline_attention, outline_linear_xent};
  for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
    OutlineInfo info = gather_info(f);
    apply(f, f->body, rule[i], &info, err);
    if (err->cls != ERR_NONE || !simplify(f, false, err))
      return false;
  }
  return true;
}
