/* region_index.c: indices as base + step * lane, or a vector when they are not of that form. */
#include "codegen/region.h"

#include <stdlib.h>

LLVMValueRef i64c(Emit *e, int64_t v) {
  return LLVMConstInt(LLVMInt64TypeInContext(e->ctx), (unsigned long long)v, true);
}

bool const_i64(LLVMValueRef v, int64_t *out) {
  if (!v || !LLVMIsAConstantInt(v))
    return false;
  *out = LLVMConstIntGetSExtValue(v);
  return true;
}

static int64_t gcd(int64_t a, int64_t b) {
  a = llabs(a), b = llabs(b);
  while (b) {
    int64_t r = a % b;
    a = b, b = r;
  }
  return a;
}

static bool divides(int64_t n, int64_t mult) {
  return mult % n == 0;
} /* mult 0: base is 0 */

Idx idx_const(Emit *e, int64_t v) {
  return (Idx){.base = i64c(e, v), .mult = llabs(v), .scope = e->root};
}

Idx idx_var(Emit *e, LLVMValueRef base, int64_t step, int64_t mult, Scope *s) {
  (void)e;
  int64_t c;
  return (Idx){.base = base, .step = step, .mult = const_i64(base, &c) ? llabs(c) : mult, .scope = s};
}

bool idx_uniform(const Idx *i) {
  return !i->vec && i->step == 0;
}

bool idx_same(const Idx *a, const Idx *b) {
  return a->base == b->base && a->step == b->step && a->vec == b->vec;
}

static LLVMValueRef splat_i64(Emit *e, int64_t v) {
  LLVMValueRef lane[64];
  for (int i = 0; i < e->lanes; i++)
    lane[i] = i64c(e, v);
  return LLVMConstVector(lane, (unsigned)e->lanes);
}

static LLVMValueRef steps(Emit *e, int64_t step) {
  LLVMValueRef lane[64];
  for (int i = 0; i < e->lanes; i++)
    lane[i] = i64c(e, step * i);
  return LLVMConstVector(lane, (unsigned)e->lanes);
}

LLVMValueRef idx_vector(Emit *e, Idx a) {
  if (a.vec)
    return a.vec;
  int64_t c;
  at(e, a.scope);
  if (const_i64(a.base, &c)) {
    LLVMValueRef lane[64];
    for (int i = 0; i < e->lanes; i++)
      lane[i] = i64c(e, c + a.step * i);
    return LLVMConstVector(lane, (unsigned)e->lanes);
  }
  LLVMValueRef base = splat(e, a.base);
  return a.step ? LLVMBuildAdd(e->b, base, steps(e, a.step), "") : base;
}

Idx idx_add(Emit *e, Idx a, int64_t c) {
  if (c == 0)
    return a;
  at(e, a.scope);
  if (a.vec)
    a.vec = LLVMBuildAdd(e->b, a.vec, splat_i64(e, c), "");
  else
    a = idx_var(e, LLVMBuildAdd(e->b, a.base, i64c(e, c), ""), a.step, gcd(a.mult, c), a.scope);
  return a;
}

Idx idx_scale(Emit *e, Idx a, int64_t c) {
  if (c == 1)
    return a;
  at(e, a.scope);
  if (a.vec)
    a.vec = LLVMBuildMul(e->b, a.vec, splat_i64(e, c), "");
  else
    a = idx_var(e, LLVMBuildMul(e->b, a.base, i64c(e, c), ""), a.step * c, a.mult * c, a.scope);
  return a;
}

static bool is_zero(const Idx *a) {
  int64_t c;
  return !a->vec && a->step == 0 && const_i64(a->base, &c) && c == 0;
}

Idx idx_sum(Emit *e, Idx a, Idx b) {
  if (is_zero(&a))
    return b;
  if (is_zero(&b))
    return a;
  Scope *s = deeper(a.scope, b.scope);
  if (a.vec || b.vec) {
    LLVMValueRef va = idx_vector(e, a), vb = idx_vector(e, b);
    at(e, s);
    return (Idx){.vec = LLVMBuildAdd(e->b, va, vb, ""), .mult = 1, .scope = s};
  }
  at(e, s);
  return idx_var(e, LLVMBuildAdd(e->b, a.base, b.base, ""), a.step + b.step, gcd(a.mult, b.mult), s);
}

/* Vector quotient and remainder; in 32 bits when the values fit (64-bit lanes have no high multiply). */
static void divmod_vector(Emit *e, Idx a, int64_t n, int64_t size, Idx *quot, Idx *rem) {
  LLVMValueRef v = idx_vector(e, a);
  at(e, a.scope);
  LLVMTypeRef wide = lanes_type(e, LLVMInt64TypeInContext(e->ctx));
  LLVMTypeRef t = size <= INT32_MAX ? lanes_type(e, LLVMInt32TypeInContext(e->ctx)) : wide;
  LLVMValueRef d = splat_i64(e, n);
  if (t != wide) {
    v = LLVMBuildTrunc(e->b, v, t, "");
    d = LLVMBuildTrunc(e->b, d, t, "");
  }
  LLVMValueRef q = LLVMBuildUDiv(e->b, v, d, "");
  LLVMValueRef r = LLVMBuildSub(e->b, v, LLVMBuildMul(e->b, q, d, ""), "");
  if (t != wide) {
    q = LLVMBuildZExt(e->b, q, wide, "");
    r = LLVMBuildZExt(e->b, r, wide, "");
  }
  *quot = (Idx){.vec = q, .mult = 1, .scope = a.scope};
  *rem = (Idx){.vec = r, .mult = 1, .scope = a.scope};
}

void idx_divmod(Emit *e, Idx a, int64_t n, int64_t size, Idx *quot, Idx *rem) {
  if (n == 1) {
    *quot = a;
    *rem = idx_const(e, 0);
    return;
  }
  if (size <= n) {
    *quot = idx_const(e, 0);
    *rem = a;
    return;
  }
  bool one_block = a.step && divides(a.step * e->lanes, n) && divides(a.step * e->lanes, a.mult);
  /* Under a predicate some lanes may be negative: then only a whole block divides as one. */
  if (a.vec || (a.step && !one_block && (a.step % n != 0 || e->pred))) {
    divmod_vector(e, a, n, size, quot, rem);
    return;
  }
  at(e, a.scope);
  LLVMValueRef q = LLVMBuildUDiv(e->b, a.base, i64c(e, n), "");
  LLVMValueRef r = LLVMBuildSub(e->b, a.base, LLVMBuildMul(e->b, q, i64c(e, n), ""), "");
  int64_t qstep = a.step && !one_block ? a.step / n : 0;
  *quot = idx_var(e, q, qstep, divides(n, a.mult) ? a.mult / n : 1, a.scope);
  *rem = idx_var(e, r, one_block ? a.step : 0, gcd(a.mult, n), a.scope);
}

Idx idx_linear(Emit *e, const Type *t, const Idx *map) {
  Idx sum = idx_const(e, 0);
  int64_t stride = 1;
  for (int k = t->rank; k-- > 0;) {
    if (t->dim[k].size != 1)
      sum = idx_sum(e, sum, idx_scale(e, map[k], stride));
    stride *= t->dim[k].size;
  }
  return sum;
}

LLVMValueRef idx_in_range(Emit *e, Idx a, int64_t size) {
  int64_t c;
  if (!a.vec && const_i64(a.base, &c)) {
    int64_t last = c + a.step * (a.step ? e->lanes - 1 : 0);
    if (c >= 0 && c < size && last >= 0 && last < size)
      return NULL;
  }
  if (idx_uniform(&a)) {
    at(e, a.scope);
    return LLVMBuildICmp(e->b, LLVMIntULT, a.base, i64c(e, size), "");
  }
  LLVMValueRef v = idx_vector(e, a);
  at(e, a.scope);
  return LLVMBuildICmp(e->b, LLVMIntULT, v, splat_i64(e, size), "");
}

Idx idx_clamp(Emit *e, Idx a, LLVMValueRef in_range) {
  if (!in_range)
    return a;
  if (idx_uniform(&a)) {
    at(e, a.scope);
    a = idx_var(e, LLVMBuildSelect(e->b, in_range, a.base, i64c(e, 0), ""), 0, 1, a.scope);
    return a;
  }
  LLVMValueRef v = idx_vector(e, a);
  at(e, a.scope);
  return (Idx){.vec = LLVMBuildSelect(e->b, in_range, v, splat_i64(e, 0), ""), .mult = 1, .scope = a.scope};
}
