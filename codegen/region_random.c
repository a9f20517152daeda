/* region_random.c: the op random: Philox 4x32-10 on all lanes at once, as rng.h says. */
#include "codegen/region.h"

typedef struct {
  Emit *e;
  bool vector;
  LLVMTypeRef i32, i64; /* scalars or lanes */
} Rng;

static LLVMValueRef of_type(Rng *r, LLVMTypeRef t, uint64_t v) {
  if (!r->vector)
    return LLVMConstInt(t, v, false);
  LLVMValueRef lane[64];
  for (int i = 0; i < r->e->lanes; i++)
    lane[i] = LLVMConstInt(LLVMGetElementType(t), v, false);
  return LLVMConstVector(lane, (unsigned)r->e->lanes);
}

static LLVMValueRef high(Rng *r, LLVMValueRef x) {
  return LLVMBuildTrunc(r->e->b, LLVMBuildLShr(r->e->b, x, of_type(r, r->i64, 32), ""), r->i32, "");
}

static LLVMValueRef low(Rng *r, LLVMValueRef x) {
  return LLVMBuildTrunc(r->e->b, x, r->i32, "");
}

static LLVMValueRef wide_mul(Rng *r, LLVMValueRef x, uint32_t c) {
  return LLVMBuildMul(r->e->b, LLVMBuildZExt(r->e->b, x, r->i64, ""), of_type(r, r->i64, c), "");
}

static void philox(Rng *r, LLVMValueRef c[4], LLVMValueRef k[2]) {
  LLVMBuilderRef b = r->e->b;
  for (int round = 0; round < 10; round++) {
    LLVMValueRef x = wide_mul(r, c[0], 0xD2511F53u), y = wide_mul(r, c[2], 0xCD9E8D57u);
    LLVMValueRef c0 = LLVMBuildXor(b, LLVMBuildXor(b, high(r, y), c[1], ""), k[0], "");
    LLVMValueRef c2 = LLVMBuildXor(b, LLVMBuildXor(b, high(r, x), c[3], ""), k[1], "");
    c[0] = c0, c[1] = low(r, y), c[2] = c2, c[3] = low(r, x);
    k[0] = LLVMBuildAdd(b, k[0], of_type(r, r->i32, 0x9E3779B9u), "");
    k[1] = LLVMBuildAdd(b, k[1], of_type(r, r->i32, 0xBB67AE85u), "");
  }
}

/* Seed, attempt, loop indices: scalars. */
static LLVMValueRef scalar_arg(Emit *e, Val v, bool wide, Scope **s) {
  Ev x = region_eval(e, v, NULL);
  *s = deeper(*s, x.scope);
  at(e, x.scope);
  LLVMTypeRef t = wide ? LLVMInt64TypeInContext(e->ctx) : LLVMInt32TypeInContext(e->ctx);
  return LLVMBuildIntCast2(e->b, x.v, t, true, "");
}

static LLVMValueRef to_lanes(Rng *r, LLVMValueRef x) {
  return r->vector ? splat(r->e, x) : x;
}

static LLVMValueRef uniform(Rng *r, DType d, LLVMValueRef w[4]) {
  Emit *e = r->e;
  LLVMTypeRef f = elem_type(e, d), t = r->vector ? lanes_type(e, f) : f;
  LLVMValueRef bits, scale = LLVMConstReal(f, d == DT_F64 ? 0x1p-53 : 0x1p-24);
  if (d == DT_F64) {
    LLVMValueRef hi = LLVMBuildLShr(e->b, LLVMBuildZExt(e->b, w[0], r->i64, ""), of_type(r, r->i64, 5), "");
    LLVMValueRef lo = LLVMBuildLShr(e->b, LLVMBuildZExt(e->b, w[1], r->i64, ""), of_type(r, r->i64, 6), "");
    bits = LLVMBuildOr(e->b, LLVMBuildShl(e->b, hi, of_type(r, r->i64, 26), ""), lo, "");
  } else {
    bits = LLVMBuildLShr(e->b, w[0], of_type(r, r->i32, 8), "");
  }
  return LLVMBuildFMul(e->b, LLVMBuildUIToFP(e->b, bits, t, ""), to_lanes(r, scale), "");
}

Ev random_eval(Emit *e, Val v, const Idx *map) {
  const BodyOp *op = body_def(e->body, v);
  const Type *t = &e->body->val[v].type;
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx), i64 = LLVMInt64TypeInContext(e->ctx);
  Idx lin = idx_linear(e, t, map);
  Ev out = {.uniform = idx_uniform(&lin), .scope = lin.scope};
  Rng r = {e, !out.uniform, i32, i64};
  LLVMValueRef seed = scalar_arg(e, op->arg[0], true, &out.scope);
  LLVMValueRef attempt = scalar_arg(e, op->arg[1], false, &out.scope);
  LLVMValueRef loops = LLVMConstInt(i32, 0, false);
  for (uint32_t k = 2; k < op->n_args; k++) {
    LLVMValueRef i = scalar_arg(e, op->arg[k], false, &out.scope);
    at(e, out.scope);
    loops = LLVMBuildMul(e->b, loops, LLVMConstInt(i32, 65537, false), "");
    loops = LLVMBuildAdd(e->b, LLVMBuildAdd(e->b, loops, i, ""), LLVMConstInt(i32, 1, false), "");
  }
  if (e->failed)
    return ev(LLVMGetUndef(elem_type(e, t->dtype)), true, e->root);
  LLVMValueRef element = r.vector ? idx_vector(e, lin) : lin.base;
  at(e, out.scope);
  LLVMValueRef up =
      LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, seed, LLVMConstInt(i64, 32, false), ""), i32, "");
  LLVMValueRef mixed = LLVMBuildMul(e->b, up, LLVMConstInt(i32, 0x9E3779B9u, false), "");
  LLVMValueRef key = LLVMBuildXor(e->b, LLVMBuildTrunc(e->b, seed, i32, ""), mixed, "");
  uint32_t id = (uint32_t)op->attr.num[op->attr.n_num - 1];
  if (r.vector) {
    r.i32 = lanes_type(e, i32);
    r.i64 = lanes_type(e, i64);
  }
  LLVMValueRef k[2] = {to_lanes(&r, key), of_type(&r, r.i32, id)};
  LLVMValueRef c[4] = {low(&r, element), high(&r, element), to_lanes(&r, loops), to_lanes(&r, attempt)};
  philox(&r, c, k);
  out.v = uniform(&r, t->dtype, c);
  return out;
}
