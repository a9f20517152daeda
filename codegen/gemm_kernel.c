/* gemm_kernel.c: the micro-kernel: a tile of rows x vectors of C kept in registers over a block of k. */
#include "codegen/gemm_plan.h"

enum { MAX_ACC = 32, UNROLL = 4 };

typedef struct {
  Gen *g;
  const GemmPlan *p;
  V fn;
  LLVMTypeRef et, vt;
  int rows, vectors;
  V mask;                        /* lanes of the last vector; NULL: all */
  int64_t a_row, a_step, b_step; /* strides in elements */
} Micro;

/* What the loop over k carries. */
typedef struct {
  V a, b, acc[MAX_ACC];
} State;

static LLVMTypeRef pointer_type(Gen *g) {
  return LLVMPointerTypeInContext(g->ctx, 0);
}

static LLVMBasicBlockRef block(Micro *m, const char *name) {
  return LLVMAppendBasicBlockInContext(m->g->ctx, m->fn, name);
}

static V lane_mask(Gen *g, int lanes, int64_t used) {
  V bit[64];
  LLVMTypeRef i1 = LLVMInt1TypeInContext(g->ctx);
  for (int i = 0; i < lanes; i++)
    bit[i] = LLVMConstInt(i1, i < used, false);
  return LLVMConstVector(bit, (unsigned)lanes);
}

static V offset(Micro *m, V base, int64_t elements) {
  return elements ? gemm_at(m->g, m->p, base, gemm_i64(m->g, elements)) : base;
}

static V load_vector(Micro *m, V ptr, bool last) {
  V align = LLVMConstInt(LLVMInt32TypeInContext(m->g->ctx), (unsigned long long)m->p->elem, false);
  if (last && m->mask)
    return gen_intrinsic(m->g, "llvm.masked.load", (LLVMTypeRef[]){m->vt, pointer_type(m->g)}, 2,
                         (V[]){ptr, align, m->mask, LLVMConstNull(m->vt)}, 4);
  V r = LLVMBuildLoad2(m->g->b, m->vt, ptr, "");
  LLVMSetAlignment(r, (unsigned)m->p->elem);
  return r;
}

static void store_vector(Micro *m, V value, V ptr, bool last) {
  V align = LLVMConstInt(LLVMInt32TypeInContext(m->g->ctx), (unsigned long long)m->p->elem, false);
  if (last && m->mask)
    gen_intrinsic(m->g, "llvm.masked.store", (LLVMTypeRef[]){m->vt, pointer_type(m->g)}, 2,
                  (V[]){value, ptr, align, m->mask}, 4);
  else
    LLVMSetAlignment(LLVMBuildStore(m->g->b, value, ptr), (unsigned)m->p->elem);
}

static V broadcast(Micro *m, V scalar) {
  V undef = LLVMGetUndef(m->vt), zero = LLVMConstInt(LLVMInt32TypeInContext(m->g->ctx), 0, false);
  V one = LLVMBuildInsertElement(m->g->b, undef, scalar, zero, "");
  LLVMTypeRef index = LLVMVectorType(LLVMInt32TypeInContext(m->g->ctx), (unsigned)m->p->lanes);
  return LLVMBuildShuffleVector(m->g->b, one, undef, LLVMConstNull(index), "");
}

static void step(Micro *m, State *s, int u) {
  V col[MAX_ACC];
  V b = offset(m, s->b, u * m->b_step);
  for (int v = 0; v < m->vectors; v++)
    col[v] = load_vector(m, offset(m, b, (int64_t)v * m->p->lanes), m->p->b.direct && v == m->vectors - 1);
  for (int r = 0; r < m->rows; r++) {
    V x = LLVMBuildLoad2(m->g->b, m->et, offset(m, s->a, u * m->a_step + r * m->a_row), "");
    LLVMSetAlignment(x, (unsigned)m->p->elem);
    V wide = broadcast(m, x);
    for (int v = 0; v < m->vectors; v++) {
      V *acc = &s->acc[r * m->vectors + v];
      *acc = gen_intrinsic(m->g, "llvm.fma", &m->vt, 1, (V[]){wide, col[v], *acc}, 3);
    }
  }
}

static V phi(Micro *m, LLVMTypeRef t, V from, LLVMBasicBlockRef where) {
  V r = LLVMBuildPhi(m->g->b, t, "");
  LLVMAddIncoming(r, &from, &where, 1);
  return r;
}

/* All of the state as phis of the block the builder is in. */
static void state_phi(Micro *m, State *s, LLVMBasicBlockRef from) {
  s->a = phi(m, pointer_type(m->g), s->a, from);
  s->b = phi(m, pointer_type(m->g), s->b, from);
  for (int i = 0; i < m->rows * m->vectors; i++)
    s->acc[i] = phi(m, m->vt, s->acc[i], from);
}

static void state_join(Micro *m, const State *phis, const State *s, LLVMBasicBlockRef from) {
  LLVMAddIncoming(phis->a, (V *)&s->a, &from, 1);
  LLVMAddIncoming(phis->b, (V *)&s->b, &from, 1);
  for (int i = 0; i < m->rows * m->vectors; i++)
    LLVMAddIncoming(phis->acc[i], (V *)&s->acc[i], &from, 1);
}

/* count times `unroll` steps; tested at the bottom. */
static void k_loop(Micro *m, State *s, V count, int unroll) {
  LLVMBuilderRef b = m->g->b;
  LLVMBasicBlockRef before = LLVMGetInsertBlock(b), body = block(m, "k"), after = block(m, "after");
  V zero = gemm_i64(m->g, 0);
  LLVMBuildCondBr(b, LLVMBuildICmp(b, LLVMIntSGT, count, zero, ""), body, after);
  State out = *s, in = *s;
  LLVMPositionBuilderAtEnd(b, after);
  state_phi(m, &out, before);
  LLVMPositionBuilderAtEnd(b, body);
  V left = phi(m, LLVMInt64TypeInContext(m->g->ctx), count, before);
  state_phi(m, &in, before);
  *s = in;
  for (int u = 0; u < unroll; u++)
    step(m, s, u);
  s->a = offset(m, s->a, unroll * m->a_step);
  s->b = offset(m, s->b, unroll * m->b_step);
  V next = gemm_add(m->g, left, gemm_i64(m->g, -1));
  LLVMBuildCondBr(b, LLVMBuildICmp(b, LLVMIntSGT, next, zero, ""), body, after);
  LLVMAddIncoming(left, &next, &body, 1);
  state_join(m, &in, s, body);
  state_join(m, &out, s, body);
  LLVMPositionBuilderAtEnd(b, after);
  *s = out;
}

static V result_at(Micro *m, int r, int v) {
  return offset(m, LLVMGetParam(m->fn, 2), r * m->p->a.inner.c + (int64_t)v * m->p->lanes);
}

/* Sums start from C when `add`, else from zero. */
static void start(Micro *m, State *s) {
  LLVMBuilderRef b = m->g->b;
  LLVMBasicBlockRef entry = block(m, "entry"), old = block(m, "old"), run = block(m, "run");
  int n = m->rows * m->vectors;
  V loaded[MAX_ACC];
  LLVMPositionBuilderAtEnd(b, entry);
  LLVMBuildCondBr(b, LLVMGetParam(m->fn, 4), old, run);
  LLVMPositionBuilderAtEnd(b, old);
  for (int i = 0; i < n; i++)
    loaded[i] =
        load_vector(m, result_at(m, i / m->vectors, i % m->vectors), i % m->vectors == m->vectors - 1);
  LLVMBuildBr(b, run);
  LLVMPositionBuilderAtEnd(b, run);
  for (int i = 0; i < n; i++) {
    s->acc[i] = phi(m, m->vt, LLVMConstNull(m->vt), entry);
    LLVMAddIncoming(s->acc[i], &loaded[i], &old, 1);
  }
  s->a = LLVMGetParam(m->fn, 0);
  s->b = LLVMGetParam(m->fn, 1);
}

/* What addend i adds to vector v of row r. */
static V addend(Micro *m, int i, int r, int v) {
  int64_t column = m->p->b.inner.size == 1 ? 1 : m->p->b.inner.d[i];
  V d = offset(m, LLVMGetParam(m->fn, (unsigned)(MICRO_ARGS + i)),
               r * m->p->a.inner.d[i] + column * v * m->p->lanes);
  if (column)
    return load_vector(m, d, v == m->vectors - 1);
  V one = LLVMBuildLoad2(m->g->b, m->et, d, "");
  LLVMSetAlignment(one, (unsigned)m->p->elem);
  return broadcast(m, one);
}

/* After the last block of k. */
static void add_all(Micro *m, State *s) {
  LLVMBuilderRef b = m->g->b;
  if (!m->p->spec.addends)
    return;
  LLVMBasicBlockRef from = LLVMGetInsertBlock(b), more = block(m, "finish"), join = block(m, "join");
  LLVMBuildCondBr(b, LLVMGetParam(m->fn, 5), more, join);
  LLVMPositionBuilderAtEnd(b, more);
  V sum[MAX_ACC];
  int n = m->rows * m->vectors;
  for (int i = 0; i < n; i++) {
    sum[i] = s->acc[i];
    for (int d = 0; d < m->p->spec.addends; d++)
      sum[i] = LLVMBuildFAdd(b, sum[i], addend(m, d, i / m->vectors, i % m->vectors), "");
  }
  LLVMBuildBr(b, join);
  LLVMPositionBuilderAtEnd(b, join);
  for (int i = 0; i < n; i++) {
    s->acc[i] = phi(m, m->vt, s->acc[i], from);
    LLVMAddIncoming(s->acc[i], &sum[i], &more, 1);
  }
}

static V micro(Gen *g, GemmPlan *p, bool last_rows, bool last_columns) {
  int64_t rows = last_rows ? p->a.tail : p->a.width, columns = last_columns ? p->b.tail : p->b.width;
  int64_t padded = (columns + p->lanes - 1) / p->lanes * p->lanes;
  Micro m = {.g = g, .p = p, .et = gemm_elem(g, p), .vt = gemm_vector(g, p, p->lanes)};
  m.rows = (int)rows;
  m.vectors = (int)(padded / p->lanes);
  m.mask = columns == padded ? NULL : lane_mask(g, p->lanes, columns % p->lanes);
  m.a_row = p->a.direct ? p->a.unit_stride : 1;
  m.a_step = p->a.direct ? p->a.k_stride : rows;
  m.b_step = p->b.direct ? p->b.k_stride : padded;
  m.fn = LLVMAddFunction(g->mod, "micro", p->micro_type);
  LLVMSetLinkage(m.fn, LLVMInternalLinkage);
  gen_function_attributes(g, m.fn);
  State s;
  start(&m, &s);
  V k = LLVMGetParam(m.fn, 3);
  k_loop(&m, &s, LLVMBuildLShr(g->b, k, gemm_i64(g, 2), ""), UNROLL);
  k_loop(&m, &s, LLVMBuildAnd(g->b, k, gemm_i64(g, UNROLL - 1), ""), 1);
  add_all(&m, &s);
  for (int i = 0; i < m.rows * m.vectors; i++)
    store_vector(&m, s.acc[i], result_at(&m, i / m.vectors, i % m.vectors), i % m.vectors == m.vectors - 1);
  LLVMBuildRetVoid(g->b);
  return m.fn;
}

void gemm_micro_functions(Gen *g, GemmPlan *p) {
  LLVMTypeRef ptr = pointer_type(g), i1 = LLVMInt1TypeInContext(g->ctx);
  LLVMTypeRef arg[] = {ptr, ptr, ptr, LLVMInt64TypeInContext(g->ctx), i1, i1, ptr, ptr};
  LLVMBasicBlockRef here = LLVMGetInsertBlock(g->b);
  p->micro_type =
      LLVMFunctionType(LLVMVoidTypeInContext(g->ctx), arg, MICRO_ARGS + (unsigned)p->spec.addends, false);
  for (int r = 0; r < 2; r++)
    for (int c = 0; c < 2; c++)
      if ((!r || p->a.tail) && (!c || p->b.tail))
        p->micro[r][c] = micro(g, p, r, c);
  LLVMPositionBuilderAtEnd(g->b, here);
}
