/* region_random.c: the op random: Philox 4x32-10 on all lanes at once, as rng.h says. The words are kept in
 * the low halves of 64-bit lanes: that is what the vector multiply reads, so nothing has to be narrowed
 * between rounds. */
#include "codegen/region.h"

enum { ROUNDS = 10 };

typedef struct {
  Emit *e;
  bool vector;
  LLVMValueRef key[ROUNDS][2];
} Rng;

static LLVMValueRef constant(Rng *r, uint64_t v) {
  LLVMValueRef c = LLVMConstInt(LLVMInt64TypeInContext(r->e->ctx), v, false), lane[64];
  for (int i = 0; i < r->e->lanes; i++)
    lane[i] = c;
  return r->vector ? LLVMConstVector(lane, (unsigned)r->e->lanes) : c;
}

static LLVMValueRef to_lanes(Rng *r, LLVMValueRef x) {
  return r->vector ? splat(r->e, x) : x;
}

static LLVMValueRef low(Rng *r, LLVMValueRef x) {
  return LLVMBuildAnd(r->e->b, x, constant(r, UINT32_MAX), "");
}

static LLVMValueRef shift_right(Rng *r, LLVMValueRef x, uint64_t n) {
  return LLVMBuildLShr(r->e->b, x, constant(r, n), "");
}

/* Only the low halves of c and of the results mean something. */
static void philox(Rng *r, LLVMValueRef c[4]) {
  LLVMBuilderRef b = r->e->b;
  for (int i = 0; i < ROUNDS; i++) {
    LLVMValueRef x = LLVMBuildMul(b, low(r, c[0]), constant(r, 0xD2511F53u), "");
    LLVMValueRef y = LLVMBuildMul(b, low(r, c[2]), constant(r, 0xCD9E8D57u), "");
    c[0] = LLVMBuildXor(b, LLVMBuildXor(b, shift_right(r, y, 32), c[1], ""), r->key[i][0], "");
    c[1] = y;
    c[2] = LLVMBuildXor(b, LLVMBuildXor(b, shift_right(r, x, 32), c[3], ""), r->key[i][1], "");
    c[3] = x;
  }
}

/* Seed, attempt, loop indices: scalars. */
static LLVMValueRef scalar_arg(Emit *e, Val v, Scope **s) {
  Ev x = region_eval(e, v, NULL);
  *s = deeper(*s, x.scope);
  at(e, x.scope);
  return LLVMBuildIntCast2(e->b, x.v, LLVMInt64TypeInContext(e->ctx), true, "");
}

/* The keys of all rounds, where the seed is known. */
static void keys(Rng *r, LLVMValueRef seed, Scope *s, uint32_t id) {
  Emit *e = r->e;
  at(e, s);
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx), i64 = LLVMInt64TypeInContext(e->ctx);
  LLVMValueRef high = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, seed, i64c(e, 32), ""), i32, "");
  LLVMValueRef mixed = LLVMBuildMul(e->b, high, LLVMConstInt(i32, 0x9E3779B9u, false), "");
  LLVMValueRef key = LLVMBuildXor(e->b, LLVMBuildTrunc(e->b, seed, i32, ""), mixed, "");
  for (uint32_t i = 0; i < ROUNDS; i++) {
    LLVMValueRef k = LLVMBuildAdd(e->b, key, LLVMConstInt(i32, i * 0x9E3779B9u, false), "");
    r->key[i][0] = to_lanes(r, LLVMBuildZExt(e->b, k, i64, ""));
    r->key[i][1] = constant(r, id + i * 0xBB67AE85u);
  }
}

static LLVMValueRef uniform(Rng *r, DType d, LLVMValueRef w[4]) {
  Emit *e = r->e;
  LLVMTypeRef f = elem_type(e, d), i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef scale = LLVMConstReal(f, d == DT_F64 ? 0x1p-53 : 0x1p-24), bits;
  if (d == DT_F64) {
    LLVMValueRef hi = LLVMBuildShl(e->b, shift_right(r, low(r, w[0]), 5), constant(r, 26), "");
    bits = LLVMBuildOr(e->b, hi, shift_right(r, low(r, w[1]), 6), "");
  } else { /* 24 bits: a signed conversion will do */
    bits = LLVMBuildTrunc(e->b, shift_right(r, low(r, w[0]), 8), r->vector ? lanes_type(e, i32) : i32, "");
  }
  LLVMValueRef x = LLVMBuildSIToFP(e->b, bits, r->vector ? lanes_type(e, f) : f, "");
  return LLVMBuildFMul(e->b, x, to_lanes(r, scale), "");
}

Ev random_eval(Emit *e, Val v, const Idx *map) {
  const BodyOp *op = body_def(e->body, v);
  const Type *t = &e->body->val[v].type;
  Idx lin = idx_linear(e, t, map);
  Ev out = {.uniform = idx_uniform(&lin), .scope = lin.scope};
  Rng r = {.e = e, .vector = !out.uniform};
  Scope *known = e->root;
  LLVMValueRef seed = scalar_arg(e, op->arg[0], &known);
  if (e->failed)
    return ev(LLVMGetUndef(elem_type(e, t->dtype)), true, e->root);
  keys(&r, seed, known, (uint32_t)op->attr.num[op->attr.n_num - 1]);
  LLVMValueRef attempt = scalar_arg(e, op->arg[1], &known), loops = i64c(e, 0);
  for (uint32_t k = 2; k < op->n_args; k++) {
    LLVMValueRef i = scalar_arg(e, op->arg[k], &known);
    at(e, known);
    loops = LLVMBuildMul(e->b, loops, i64c(e, 65537), "");
    loops = LLVMBuildAdd(e->b, LLVMBuildAdd(e->b, loops, i, ""), i64c(e, 1), "");
  }
  out.scope = deeper(out.scope, known);
  LLVMValueRef element = r.vector ? idx_vector(e, lin) : lin.base;
  at(e, out.scope);
  LLVMValueRef c[4] = {element, shift_right(&r, element, 32), to_lanes(&r, loops), to_lanes(&r, attempt)};
  philox(&r, c);
  out.v = uniform(&r, t->dtype, c);
  return out;
}
