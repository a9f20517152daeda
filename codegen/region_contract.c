/* region_contract.c: contractions as matrix products: operands resolved to strides, dims grouped into batch,
 * M, N and K. */
#include "codegen/gemm.h"
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

static GemmDim dim_of(const View *a, const View *b, Axis axis, int64_t size, int64_t c) {
  int pa = view_find(a, axis), pb = view_find(b, axis);
  return (GemmDim){size, pa < 0 ? 0 : a->stride[pa], pb < 0 ? 0 : b->stride[pb], c};
}

/* Adds d inside of the others: joined to the last one when they are one run in all matrices. */
static void push_dim(GemmDims *dims, GemmDim d) {
  GemmDim *last = dims->n ? &dims->dim[dims->n - 1] : NULL;
  if (d.size == 1)
    return;
  if (last && last->a == d.a * d.size && last->b == d.b * d.size && last->c == d.c * d.size)
    *last = (GemmDim){last->size * d.size, d.a, d.b, d.c};
  else
    dims->dim[dims->n++] = d;
}

/* a: the operand of the rows, b: of the result's innermost dim. */
static GemmSpec spec_of(const Type *ct, const Attr *attr, const View *a, const View *b) {
  GemmSpec s = {.dtype = ct->dtype};
  int64_t stride[IR_MAX_RANK], c = 1;
  for (int i = ct->rank; i-- > 0;) {
    stride[i] = c;
    c *= ct->dim[i].size;
  }
  for (int i = 0; i < ct->rank; i++) {
    GemmDim d = dim_of(a, b, ct->dim[i].axis, ct->dim[i].size, stride[i]);
    bool in_a = view_find(a, ct->dim[i].axis) >= 0, in_b = view_find(b, ct->dim[i].axis) >= 0;
    push_dim(in_a && in_b ? &s.batch : in_a ? &s.m : &s.n, d);
  }
  for (int i = 0; i < b->n; i++)
    if (in_axes(attr, b->dim[i].axis))
      push_dim(&s.k, dim_of(a, b, b->dim[i].axis, b->dim[i].size, 0));
  return s;
}

/* ---- code ---- */

static LLVMValueRef base_pointer(Emit *e, const View *w) {
  LLVMValueRef base = NULL, offset = i64c(e, w->offset);
  const BodyOp *op = body_def(e->body, w->base);
  at(e, e->root);
  if (w->in_scratch) {
    base = byte_offset(e, e->scratch, w->scratch);
  } else if (!op) {
    base = e->in[e->body->val[w->base].index];
  } else {
    uint32_t r = 0;
    while (&e->body->op[e->body->red[r]] != op)
      r++;
    const Split *s = &e->split[r];
    base = s->result != NONE ? e->out[s->result] : byte_offset(e, e->scratch, s->offset);
  }
  return LLVMBuildGEP2(e->b, elem_type(e, e->body->val[w->base].type.dtype), base, &offset, 1, "");
}

void contract_emit(Emit *e, RegionPlan *plan, const Nest *nest) {
  const BodyOp *op = &e->body->op[e->body->red[nest->contract]];
  const Type *ct = &e->body->val[op->result].type;
  const View *a = &nest->x, *b = &nest->y;
  if (view_find(b, ct->dim[ct->rank - 1].axis) < 0)
    a = &nest->y, b = &nest->x;
  GemmSpec spec = spec_of(ct, &op->attr, a, b);
  GemmPlan *p = gemm_plan(&spec, e->g->lanes, e->arena, e->err);
  if (!p) {
    e->failed = true;
    return;
  }
  int64_t temp = gemm_scratch(p), own = gemm_thread_scratch(p);
  plan->temp_bytes = temp > plan->temp_bytes ? temp : plan->temp_bytes;
  plan->thread_scratch_bytes = own > plan->thread_scratch_bytes ? own : plan->thread_scratch_bytes;
  const Split *split = &e->split[nest->contract];
  for (int i = 0; i < gemm_phases(p); i++) {
    GemmArgs args;
    phase_begin(e, plan, &args.lo, &args.hi);
    args.a = base_pointer(e, a);
    args.b = base_pointer(e, b);
    args.c = split->result != NONE ? e->out[split->result] : byte_offset(e, e->scratch, split->offset);
    args.scratch = byte_offset(e, e->scratch, plan->scratch_bytes);
    args.thread_scratch = phase_thread_scratch(e);
    at(e, e->root);
    gemm_emit(e->g, p, i, &args);
    e->root->block = LLVMGetInsertBlock(e->b);
    phase_end(e, plan, gemm_tasks(p, i));
  }
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
