/* region_types.c: LLVM types of dtypes; loads and stores at linear indices. */
#include "codegen/region.h"

LLVMTypeRef elem_type(Emit *e, DType d) {
  switch (d) {
  case DT_F32: return LLVMFloatTypeInContext(e->ctx);
  case DT_F64: return LLVMDoubleTypeInContext(e->ctx);
  case DT_I64: return LLVMInt64TypeInContext(e->ctx);
  case DT_U8: return LLVMInt8TypeInContext(e->ctx);
  case DT_BOOL: return LLVMInt1TypeInContext(e->ctx);
  default: return LLVMInt32TypeInContext(e->ctx);
  }
}

LLVMTypeRef memory_type(Emit *e, DType d) {
  return d == DT_BOOL ? LLVMInt8TypeInContext(e->ctx) : elem_type(e, d);
}

LLVMTypeRef lanes_type(Emit *e, LLVMTypeRef t) {
  return LLVMVectorType(t, (unsigned)e->lanes);
}

LLVMValueRef splat(Emit *e, LLVMValueRef scalar) {
  LLVMTypeRef t = lanes_type(e, LLVMTypeOf(scalar));
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef one = LLVMBuildInsertElement(e->b, LLVMGetPoison(t), scalar, LLVMConstInt(i32, 0, false), "");
  return LLVMBuildShuffleVector(e->b, one, LLVMGetPoison(t), LLVMConstNull(lanes_type(e, i32)), "");
}

LLVMValueRef as_lanes(Emit *e, Ev v) {
  return v.uniform ? splat(e, v.v) : v.v;
}

LLVMValueRef const_elem(Emit *e, DType d, double v) {
  LLVMTypeRef t = elem_type(e, d);
  if (dtype_is_float(d))
    return LLVMConstReal(t, v);
  if (d == DT_BOOL)
    return LLVMConstInt(t, v != 0, false);
  return LLVMConstInt(t, (unsigned long long)(int64_t)v, true);
}

LLVMValueRef intrinsic(Emit *e, const char *name, LLVMTypeRef *types, unsigned n_types, LLVMValueRef *args,
                       unsigned n) {
  return gen_intrinsic(e->g, name, types, n_types, args, n);
}

LLVMValueRef byte_offset(Emit *e, LLVMValueRef ptr, int64_t bytes) {
  LLVMValueRef off = i64c(e, bytes);
  return bytes ? LLVMBuildGEP2(e->b, LLVMInt8TypeInContext(e->ctx), ptr, &off, 1, "") : ptr;
}

/* Lanes to touch: those in use and in range; NULL: all. */
static LLVMValueRef active(Emit *e, bool with_pred) {
  if (with_pred && e->pred)
    return e->mask ? LLVMBuildAnd(e->b, e->mask, e->pred, "") : e->pred;
  return e->mask;
}

static LLVMValueRef all_lanes(Emit *e) {
  return LLVMConstAllOnes(lanes_type(e, LLVMInt1TypeInContext(e->ctx)));
}

static LLVMValueRef align_const(Emit *e, DType d) {
  return LLVMConstInt(LLVMInt32TypeInContext(e->ctx), dtype_bytes(d), false);
}

/* Memory to computed form: bool bytes to i1. */
static LLVMValueRef from_memory(Emit *e, DType d, LLVMValueRef v) {
  return d == DT_BOOL ? LLVMBuildICmp(e->b, LLVMIntNE, v, LLVMConstNull(LLVMTypeOf(v)), "") : v;
}

static LLVMValueRef load_vector(Emit *e, LLVMValueRef ptr, DType d, LLVMTypeRef vt) {
  LLVMValueRef mask = active(e, true);
  if (!mask) {
    LLVMValueRef v = LLVMBuildLoad2(e->b, vt, ptr, "");
    LLVMSetAlignment(v, (unsigned)dtype_bytes(d));
    return v;
  }
  LLVMValueRef args[] = {ptr, align_const(e, d), mask, LLVMConstNull(vt)};
  return intrinsic(e, "llvm.masked.load", (LLVMTypeRef[]){vt, LLVMTypeOf(ptr)}, 2, args, 4);
}

Ev load_at(Emit *e, LLVMValueRef ptr, DType d, Idx lin) {
  LLVMTypeRef t = memory_type(e, d);
  Ev r = {.uniform = idx_uniform(&lin), .scope = lin.scope};
  if (r.uniform) {
    at(e, r.scope);
    LLVMValueRef v = LLVMBuildLoad2(e->b, t, LLVMBuildGEP2(e->b, t, ptr, &lin.base, 1, ""), "");
    LLVMSetAlignment(v, (unsigned)dtype_bytes(d));
    r.v = from_memory(e, d, v);
    return r;
  }
  if (e->pred)
    r.scope = deeper(r.scope, e->pred_scope);
  LLVMTypeRef vt = lanes_type(e, t);
  LLVMValueRef v;
  if (!lin.vec && lin.step == 1) {
    at(e, r.scope);
    v = load_vector(e, LLVMBuildGEP2(e->b, t, ptr, &lin.base, 1, ""), d, vt);
  } else {
    LLVMValueRef off = idx_vector(e, lin);
    at(e, r.scope);
    LLVMValueRef ptrs = LLVMBuildGEP2(e->b, t, ptr, &off, 1, ""), mask = active(e, true);
    LLVMValueRef args[] = {ptrs, align_const(e, d), mask ? mask : all_lanes(e), LLVMConstNull(vt)};
    v = intrinsic(e, "llvm.masked.gather", (LLVMTypeRef[]){vt, LLVMTypeOf(ptrs)}, 2, args, 4);
  }
  r.v = from_memory(e, d, v);
  return r;
}

void store_at(Emit *e, LLVMValueRef ptr, DType d, Idx lin, Ev v, Scope *s) {
  LLVMTypeRef t = memory_type(e, d);
  if (idx_uniform(&lin)) {
    at(e, s);
    LLVMValueRef x = d == DT_BOOL ? LLVMBuildZExt(e->b, v.v, t, "") : v.v;
    LLVMValueRef st = LLVMBuildStore(e->b, x, LLVMBuildGEP2(e->b, t, ptr, &lin.base, 1, ""));
    LLVMSetAlignment(st, (unsigned)dtype_bytes(d));
    return;
  }
  bool dense = !lin.vec && lin.step == 1;
  LLVMValueRef off = dense ? lin.base : idx_vector(e, lin);
  at(e, s);
  LLVMTypeRef vt = lanes_type(e, t);
  LLVMValueRef x = as_lanes(e, v), mask = active(e, false);
  if (d == DT_BOOL)
    x = LLVMBuildZExt(e->b, x, vt, "");
  LLVMValueRef p = LLVMBuildGEP2(e->b, t, ptr, &off, 1, "");
  if (dense && !mask) {
    LLVMSetAlignment(LLVMBuildStore(e->b, x, p), (unsigned)dtype_bytes(d));
    return;
  }
  LLVMValueRef args[] = {x, p, align_const(e, d), mask ? mask : all_lanes(e)};
  intrinsic(e, dense ? "llvm.masked.store" : "llvm.masked.scatter", (LLVMTypeRef[]){vt, LLVMTypeOf(p)}, 2,
            args, 4);
}
