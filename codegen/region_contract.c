/* region_contract.c: contractions as matrix products: operands resolved to strides, dims grouped into batch,
 * M, N and K. */
#include "codegen/region.h"

#include <string.h>

/* ---- operands as strided views ---- */

static int view_find(const View *w, Axis a) {
  for (int i = 0; i < w->n; i++)
    if (w->dim[i].axis == a)
      return i;
  return -1;
}

static void view_rename(View *w, const Attr *a) {
  View old = *w;
  for (uint32_t k = 0; k + 1 < a->n_axis; k += 2)
    for (int i = 0; i < w->n; i++)
      if (old.dim[i].axis == a->axis[k])
        w->dim[i].axis = a->axis[k + 1];
}

static bool view_split(View *w, const Attr *a) {
  int p = view_find(w, a->axis[0]), parts = (int)a->n_axis - 1;
  if (p < 0 || w->n - 1 + parts > IR_MAX_RANK)
    return false;
  int64_t stride = w->stride[p];
  int tail = w->n - p - 1;
  memmove(&w->dim[p + parts], &w->dim[p + 1], (size_t)tail * sizeof *w->dim);
  memmove(&w->stride[p + parts], &w->stride[p + 1], (size_t)tail * sizeof *w->stride);
  for (int k = parts; k-- > 0;) {
    w->dim[p + k] = (Dim){a->axis[k + 1], a->num[k]};
    w->stride[p + k] = stride;
    stride *= a->num[k];
  }
  w->n += parts - 1;
  return true;
}

static bool view_merge(View *w, const Attr *a) {
  int64_t size = 1, stride = 0;
  for (uint32_t k = a->n_axis - 1; k-- > 0;) { /* innermost first */
    int p = view_find(w, a->axis[k]);
    if (p < 0 || (k + 2 < a->n_axis && w->stride[p] != stride * size))
      return false;
    stride = k + 2 < a->n_axis ? stride : w->stride[p];
    size *= w->dim[p].size;
  }
  int first = view_find(w, a->axis[0]);
  w->dim[first] = (Dim){a->axis[a->n_axis - 1], size};
  w->stride[first] = stride;
  for (uint32_t k = 1; k + 1 < a->n_axis; k++) {
    int p = view_find(w, a->axis[k]);
    memmove(&w->dim[p], &w->dim[p + 1], (size_t)(w->n - p - 1) * sizeof *w->dim);
    memmove(&w->stride[p], &w->stride[p + 1], (size_t)(w->n - p - 1) * sizeof *w->stride);
    w->n--;
  }
  return true;
}

bool contract_view(const Body *b, Val v, View *w) {
  const BodyOp *op = body_def(b, v);
  if (!op || op->code == OP_CONTRACT) {
    const Type *t = &b->val[v].type;
    *w = (View){.base = v, .n = t->rank};
    int64_t stride = 1;
    for (int i = t->rank; i-- > 0;) {
      w->dim[i] = t->dim[i];
      w->stride[i] = stride;
      stride *= t->dim[i].size;
    }
    return true;
  }
  if ((op->code != OP_RENAME && op->code != OP_SPLIT && op->code != OP_MERGE && op->code != OP_REORDER &&
       op->code != OP_SLICE) ||
      !contract_view(b, op->arg[0], w))
    return false;
  if (op->code == OP_RENAME) {
    view_rename(w, &op->attr);
  } else if (op->code == OP_SPLIT) {
    return view_split(w, &op->attr);
  } else if (op->code == OP_MERGE) {
    return view_merge(w, &op->attr);
  } else if (op->code == OP_SLICE) {
    int p = view_find(w, op->attr.axis[0]);
    w->offset += op->attr.num[0] * w->stride[p];
    w->dim[p].size = op->attr.num[1] - op->attr.num[0];
  }
  return true;
}

/* ---- groups ---- */

static bool in_axes(const Attr *a, Axis x) {
  for (uint32_t k = 0; k < a->n_axis; k++)
    if (a->axis[k] == x)
      return true;
  return false;
}

typedef struct {
  int64_t size, x, y, c; /* strides in elements, 0 where the dim is absent */
} CDim;

typedef struct {
  CDim outer[IR_MAX_RANK], m, n,
      k[IR_MAX_RANK]; /* outer: batch and what is left of M and N; n: the result's innermost dim */
  int n_outer, n_k;
} Shape;

static CDim dim_of(const View *x, const View *y, Axis a, int64_t size, int64_t c) {
  int px = view_find(x, a), py = view_find(y, a);
  return (CDim){size, px < 0 ? 0 : x->stride[px], py < 0 ? 0 : y->stride[py], c};
}

/* Adds d inside of dims[0..n): joined to the last one when they are one run in all buffers. */
static int push_dim(CDim *dims, int n, CDim d) {
  CDim *last = n ? &dims[n - 1] : NULL;
  if (d.size == 1)
    return n;
  if (last && last->x == d.x * d.size && last->y == d.y * d.size && last->c == d.c * d.size) {
    *last = (CDim){last->size * d.size, d.x, d.y, d.c};
    return n;
  }
  dims[n] = d;
  return n + 1;
}

/* x: the operand of the rows, y: of the result's innermost dim. */
static void shape_of(const Type *ct, const Attr *attr, const View *x, const View *y, Shape *s) {
  CDim batch[IR_MAX_RANK], m[IR_MAX_RANK], n[IR_MAX_RANK];
  int nb = 0, nm = 0, nn = 0;
  int64_t stride[IR_MAX_RANK], c = 1;
  *s = (Shape){.m = {.size = 1}, .n = {.size = 1}};
  for (int i = ct->rank; i-- > 0;) {
    stride[i] = c;
    c *= ct->dim[i].size;
  }
  for (int i = 0; i < ct->rank; i++) {
    CDim d = dim_of(x, y, ct->dim[i].axis, ct->dim[i].size, stride[i]);
    bool in_x = view_find(x, ct->dim[i].axis) >= 0, in_y = view_find(y, ct->dim[i].axis) >= 0;
    if (in_x && in_y)
      nb = push_dim(batch, nb, d);
    else if (in_x)
      nm = push_dim(m, nm, d);
    else
      nn = push_dim(n, nn, d);
  }
  for (int i = 0; i < y->n; i++)
    if (in_axes(attr, y->dim[i].axis))
      s->n_k = push_dim(s->k, s->n_k, dim_of(x, y, y->dim[i].axis, y->dim[i].size, 0));
  int widest = 0;
  for (int i = 0; i < nm; i++)
    widest = m[i].size > m[widest].size ? i : widest;
  for (int i = 0; i < nb; i++)
    s->outer[s->n_outer++] = batch[i];
  for (int i = 0; i + 1 < nn; i++)
    s->outer[s->n_outer++] = n[i];
  for (int i = 0; i < nm; i++)
    if (i != widest)
      s->outer[s->n_outer++] = m[i];
  if (nm)
    s->m = m[widest];
  if (nn)
    s->n = n[nn - 1];
}

/* ---- code: a panel of y (K block x W columns) packed in thread scratch, then tiles of rows against it ----
 */

#define MAX_ROWS    8
#define MAX_VECTORS 3

typedef struct {
  Emit *e;
  Shape s;
  DType d;
  int lanes, vectors, rows;                           /* of one vector; per tile */
  int64_t columns;                                    /* W = lanes * vectors */
  int64_t inner_k, block_k;                           /* elements of k[1..]; of k[0] per block */
  LLVMValueRef px, py, pc, panel, xo, yo, co, column; /* offsets of this task; first column */
  LLVMValueRef k_lo, k_hi;                            /* the block of k[0] */
  LLVMValueRef acc[MAX_ROWS][MAX_VECTORS];            /* slots */
} Tile;

static LLVMValueRef plus(Tile *t, LLVMValueRef a, LLVMValueRef b) {
  return LLVMBuildAdd(t->e->b, a, b, "");
}
static LLVMValueRef scaled(Tile *t, LLVMValueRef a, int64_t c) {
  return LLVMBuildMul(t->e->b, a, i64c(t->e, c), "");
}
static LLVMValueRef pointer(Tile *t, LLVMValueRef base, LLVMValueRef offset) {
  return LLVMBuildGEP2(t->e->b, elem_type(t->e, t->d), base, &offset, 1, "");
}

/* The columns of vector v that exist; NULL: all. */
static LLVMValueRef column_mask(Tile *t, int v) {
  if (t->s.n.size % t->columns == 0)
    return NULL;
  Emit *e = t->e;
  LLVMValueRef first = splat(e, plus(t, t->column, i64c(e, (int64_t)v * t->lanes))), step[64], end[64];
  for (int i = 0; i < t->lanes; i++) {
    step[i] = i64c(e, i);
    end[i] = i64c(e, t->s.n.size);
  }
  LLVMValueRef j = plus(t, first, LLVMConstVector(step, (unsigned)t->lanes));
  return LLVMBuildICmp(e->b, LLVMIntSLT, j, LLVMConstVector(end, (unsigned)t->lanes), "");
}

/* Loops over k[d..], k[0] from k_lo to k_hi; calls body with the offsets of x and y and the position in the
 * panel. */
typedef void (*KBody)(Tile *t, Scope *s, LLVMValueRef x, LLVMValueRef y, LLVMValueRef row);
static void k_loops(Tile *t, Scope *s, int d, LLVMValueRef x, LLVMValueRef y, LLVMValueRef row, KBody body) {
  Emit *e = t->e;
  if (d == t->s.n_k) {
    body(t, s, x, y, row);
    return;
  }
  CDim k = t->s.k[d];
  Loop l;
  loop_begin(e, s, d ? i64c(e, 0) : t->k_lo, d ? i64c(e, k.size) : t->k_hi, 1, &l);
  at(e, l.scope);
  LLVMValueRef in_block = d ? l.i : LLVMBuildSub(e->b, l.i, t->k_lo, "");
  LLVMValueRef next = plus(t, d ? scaled(t, row, k.size) : i64c(e, 0), in_block);
  k_loops(t, l.scope, d + 1, plus(t, x, scaled(t, l.i, k.x)), plus(t, y, scaled(t, l.i, k.y)), next, body);
  loop_end(e, &l);
}

static void pack_row(Tile *t, Scope *s, LLVMValueRef x, LLVMValueRef y, LLVMValueRef row) {
  (void)x;
  Emit *e = t->e;
  for (int v = 0; v < t->vectors; v++) {
    at(e, s);
    LLVMValueRef first = plus(t, t->column, i64c(e, (int64_t)v * t->lanes));
    e->mask = column_mask(t, v);
    LLVMValueRef base = plus(t, y, scaled(t, first, t->s.n.y));
    Ev col = load_at(e, t->py, t->d, idx_var(e, base, t->s.n.y, 1, s));
    e->mask = NULL;
    at(e, s);
    LLVMValueRef to = plus(t, scaled(t, row, t->columns), i64c(e, (int64_t)v * t->lanes));
    store_at(e, t->panel, t->d, idx_var(e, to, 1, 1, s), col, s);
  }
}

static void tile_step(Tile *t, Scope *s, LLVMValueRef x, LLVMValueRef y, LLVMValueRef row) {
  (void)y;
  Emit *e = t->e;
  LLVMTypeRef et = elem_type(e, t->d), vt = lanes_type(e, et);
  at(e, s);
  LLVMValueRef col[MAX_VECTORS], line = scaled(t, row, t->columns);
  for (int v = 0; v < t->vectors; v++) {
    col[v] =
        LLVMBuildLoad2(e->b, vt, pointer(t, t->panel, plus(t, line, i64c(e, (int64_t)v * t->lanes))), "");
    LLVMSetAlignment(col[v], (unsigned)dtype_bytes(t->d));
  }
  LLVMValueRef px = pointer(t, t->px, x);
  for (int r = 0; r < t->rows; r++) {
    LLVMValueRef a = LLVMBuildLoad2(e->b, et, pointer(t, px, i64c(e, r * t->s.m.x)), "");
    LLVMValueRef wide = splat(e, a);
    for (int v = 0; v < t->vectors; v++) {
      LLVMValueRef sum = LLVMBuildLoad2(e->b, vt, t->acc[r][v], "");
      sum = intrinsic(e, "llvm.fma", &vt, 1, (LLVMValueRef[]){wide, col[v], sum}, 3);
      LLVMBuildStore(e->b, sum, t->acc[r][v]);
    }
  }
}

static Idx result_at(Tile *t, LLVMValueRef row, int r, int v, Scope *s) {
  LLVMValueRef o = plus(t, t->co, scaled(t, plus(t, row, i64c(t->e, r)), t->s.m.c));
  o = plus(t, o, plus(t, t->column, i64c(t->e, (int64_t)v * t->lanes)));
  return idx_var(t->e, o, 1, 1, s);
}

/* Rows row .. row + t->rows of the result, this block of K added to what earlier blocks left. */
static void tile(Tile *t, Scope *s, LLVMValueRef row) {
  Emit *e = t->e;
  LLVMTypeRef vt = lanes_type(e, elem_type(e, t->d));
  at(e, s);
  for (int r = 0; r < t->rows; r++)
    for (int v = 0; v < t->vectors; v++)
      LLVMBuildStore(e->b, LLVMConstNull(vt), t->acc[r][v]);
  if (t->block_k < t->s.k[0].size) {
    Loop l;
    if_begin(e, s, LLVMBuildICmp(e->b, LLVMIntNE, t->k_lo, i64c(e, 0), ""), &l);
    for (int r = 0; r < t->rows; r++)
      for (int v = 0; v < t->vectors; v++) {
        at(e, l.scope);
        e->mask = column_mask(t, v);
        Ev old = load_at(e, t->pc, t->d, result_at(t, row, r, v, l.scope));
        e->mask = NULL;
        at(e, l.scope);
        LLVMBuildStore(e->b, old.v, t->acc[r][v]);
      }
    if_end(e, &l);
  }
  at(e, s);
  k_loops(t, s, 0, plus(t, t->xo, scaled(t, row, t->s.m.x)), i64c(e, 0), i64c(e, 0), tile_step);
  for (int r = 0; r < t->rows; r++)
    for (int v = 0; v < t->vectors; v++) {
      at(e, s);
      LLVMValueRef sum = LLVMBuildLoad2(e->b, vt, t->acc[r][v], "");
      e->mask = column_mask(t, v);
      store_at(e, t->pc, t->d, result_at(t, row, r, v, s), (Ev){sum, false, s}, s);
      e->mask = NULL;
    }
}

/* All tiles of this part of M against the packed panel. */
static void tiles(Tile *t, Scope *s, LLVMValueRef lo, LLVMValueRef hi, LLVMValueRef last_part) {
  Emit *e = t->e;
  int64_t full = t->s.m.size / t->rows, rest = t->s.m.size % t->rows;
  int rows = t->rows;
  if (full) {
    Loop l;
    loop_begin(e, s, lo, hi, 1, &l);
    at(e, l.scope);
    tile(t, l.scope, scaled(t, l.i, rows));
    loop_end(e, &l);
  }
  if (rest) {
    Loop l;
    at(e, s);
    if_begin(e, s, last_part, &l);
    t->rows = (int)rest;
    tile(t, l.scope, i64c(e, full * rows));
    t->rows = rows;
    if_end(e, &l);
  }
}

static void tile_sizes(Tile *t) {
  int64_t n = t->s.n.size;
  t->lanes = t->d == DT_F64 ? 8 : 16;
  t->vectors = n % (3 * t->lanes) == 0 || n > 8 * t->lanes ? 3 : n > t->lanes ? 2 : 1;
  if (n % (2 * t->lanes) == 0 && n % (3 * t->lanes) != 0 && n <= 16 * t->lanes)
    t->vectors = 2;
  t->columns = (int64_t)t->lanes * t->vectors;
  t->rows = t->s.m.size < MAX_ROWS ? (int)t->s.m.size : MAX_ROWS;
  t->inner_k = 1;
  for (int i = 1; i < t->s.n_k; i++)
    t->inner_k *= t->s.k[i].size;
  int64_t limit = 384 / t->inner_k < 1 ? 1 : 384 / t->inner_k, size = t->s.k[0].size;
  int64_t blocks = (size + limit - 1) / limit;
  t->block_k = (size + blocks - 1) / blocks;
}

static LLVMValueRef base_pointer(Emit *e, const View *w) {
  at(e, e->root);
  if (w->in_scratch)
    return byte_offset(e, e->scratch, w->scratch);
  const BodyOp *op = body_def(e->body, w->base);
  if (!op)
    return e->in[e->body->val[w->base].index];
  uint32_t r = 0;
  while (&e->body->op[e->body->red[r]] != op)
    r++;
  return e->split[r].result != NONE ? e->out[e->split[r].result]
                                    : byte_offset(e, e->scratch, e->split[r].offset);
}

void contract_emit(Emit *e, RegionPlan *plan, const Nest *nest) {
  const BodyOp *op = &e->body->op[e->body->red[nest->contract]];
  const Type *ct = &e->body->val[op->result].type;
  const View *x = &nest->x, *y = &nest->y;
  if (view_find(y, ct->dim[ct->rank - 1].axis) < 0)
    x = &nest->y, y = &nest->x;
  Tile t = {.e = e, .d = ct->dtype};
  shape_of(ct, &op->attr, x, y, &t.s);
  tile_sizes(&t);
  LLVMValueRef lo, hi;
  phase_begin(e, plan, &lo, &hi);
  e->lanes = t.lanes;
  const Split *split = &e->split[nest->contract];
  t.px = base_pointer(e, x);
  t.py = base_pointer(e, y);
  t.pc = split->result != NONE ? e->out[split->result] : byte_offset(e, e->scratch, split->offset);
  t.panel = phase_thread_scratch(e);
  int64_t bytes = t.block_k * t.inner_k * t.columns * (int64_t)dtype_bytes(t.d);
  plan->thread_scratch_bytes = bytes > plan->thread_scratch_bytes ? bytes : plan->thread_scratch_bytes;
  for (int r = 0; r < t.rows; r++)
    for (int v = 0; v < t.vectors; v++)
      t.acc[r][v] = slot(e, lanes_type(e, elem_type(e, t.d)));

  int64_t panels = (t.s.n.size + t.columns - 1) / t.columns, outer = panels, full = t.s.m.size / t.rows,
          parts = 1;
  for (int i = 0; i < t.s.n_outer; i++)
    outer *= t.s.outer[i].size;
  int64_t target = task_target(outer * t.columns * t.s.m.size * t.s.k[0].size * t.inner_k / 64);
  if (outer < 16 && outer < target) {
    parts = (16 + outer - 1) / outer;
    parts = parts > full / 4 ? full / 4 : parts;
    parts = parts < 1 ? 1 : parts;
  }
  int64_t part = (full + parts - 1) / parts, total = outer * parts, per = (total + target - 1) / target;
  parts = part ? (full + part - 1) / part : 1;
  total = outer * parts;
  Loop l, kb;
  at(e, e->root);
  LLVMValueRef first = scaled(&t, lo, per);
  loop_begin(e, e->root, first, min_i64(e, scaled(&t, hi, per), total), 1, &l);
  at(e, l.scope);
  LLVMValueRef rest = l.i, which = LLVMBuildURem(e->b, rest, i64c(e, parts), "");
  rest = LLVMBuildUDiv(e->b, rest, i64c(e, parts), "");
  t.column = scaled(&t, LLVMBuildURem(e->b, rest, i64c(e, panels), ""), t.columns);
  rest = LLVMBuildUDiv(e->b, rest, i64c(e, panels), "");
  t.xo = i64c(e, x->offset), t.yo = i64c(e, y->offset), t.co = i64c(e, 0);
  for (int i = t.s.n_outer; i-- > 0;) {
    CDim d = t.s.outer[i];
    LLVMValueRef j = LLVMBuildURem(e->b, rest, i64c(e, d.size), "");
    rest = LLVMBuildUDiv(e->b, rest, i64c(e, d.size), "");
    t.xo = plus(&t, t.xo, scaled(&t, j, d.x));
    t.yo = plus(&t, t.yo, scaled(&t, j, d.y));
    t.co = plus(&t, t.co, scaled(&t, j, d.c));
  }
  LLVMValueRef m_lo = scaled(&t, which, part), m_hi = min_i64(e, plus(&t, m_lo, i64c(e, part)), full);
  LLVMValueRef last = LLVMBuildICmp(e->b, LLVMIntEQ, which, i64c(e, parts - 1), "");
  loop_begin(e, l.scope, i64c(e, 0), i64c(e, t.s.k[0].size), t.block_k, &kb);
  at(e, kb.scope);
  t.k_lo = kb.i;
  t.k_hi = min_i64(e, plus(&t, kb.i, i64c(e, t.block_k)), t.s.k[0].size);
  k_loops(&t, kb.scope, 0, i64c(e, 0), t.yo, i64c(e, 0), pack_row);
  tiles(&t, kb.scope, m_lo, m_hi, last);
  loop_end(e, &kb);
  loop_end(e, &l);
  e->lanes = 16;
  phase_end(e, plan, (total + per - 1) / per);
}

bool contract_is_large(const Type *x, const Type *y, const Attr *attr) {
  double m = 1, n = 1, k = 1, batch = 1;
  for (int i = 0; i < x->rank; i++) {
    double size = (double)x->dim[i].size;
    if (in_axes(attr, x->dim[i].axis))
      k *= size;
    else if (type_has(y, x->dim[i].axis))
      batch *= size;
    else
      m *= size;
  }
  for (int i = 0; i < y->rank; i++)
    if (!type_has(x, y->dim[i].axis))
      n *= (double)y->dim[i].size;
  return dtype_is_float(x->dtype) && m > 1 && n > 1 && k > 1 && batch * m * n * k >= 8192;
}
