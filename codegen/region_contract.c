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

/* Where one value lies beside the result. */
typedef struct {
  const View *a, *b; /* of the rows, of the result's innermost dim */
  const Nest *nest;
} Layout;

static int64_t stride_of(const View *w, Axis axis) {
  int p = view_find(w, axis);
  return p < 0 ? 0 : w->stride[p];
}

static void push_dim(GemmDims *dims, const Layout *l, Axis axis, int64_t size, int64_t c) {
  GemmDim d = {size, stride_of(l->a, axis), stride_of(l->b, axis), c, {0}};
  for (int i = 0; i < l->nest->n_adds; i++)
    d.d[i] = stride_of(&l->nest->add[i], axis);
  if (size > 1)
    dims->dim[dims->n++] = d;
}

static GemmSpec spec_of(const Type *ct, const Attr *attr, const Layout *l) {
  GemmSpec s = {.dtype = ct->dtype, .addends = l->nest->n_adds};
  int64_t stride[IR_MAX_RANK], c = 1;
  for (int i = ct->rank; i-- > 0;) {
    stride[i] = c;
    c *= ct->dim[i].size;
  }
  for (int i = 0; i < ct->rank; i++) {
    Dim d = ct->dim[i];
    bool in_a = view_find(l->a, d.axis) >= 0, in_b = view_find(l->b, d.axis) >= 0;
    push_dim(in_a && in_b ? &s.batch : in_a ? &s.m : &s.n, l, d.axis, d.size, stride[i]);
  }
  for (int i = 0; i < l->b->n; i++)
    if (in_axes(attr, l->b->dim[i].axis))
      push_dim(&s.k, l, l->b->dim[i].axis, l->b->dim[i].size, 0);
  return s;
}

/* ---- what is added to a product ---- */

static bool has_user(const Body *b, Val v) {
  for (uint32_t i = 0; i < b->n_ops; i++)
    for (uint32_t k = 0; k < b->op[i].n_args; k++)
      if (b->op[i].arg[k] == v)
        return true;
  return false;
}

/* The only op that uses v; NULL: there are several, or v is a result. */
static const BodyOp *only_user(const Body *b, Val v) {
  const BodyOp *user = NULL;
  for (uint32_t i = 0; i < b->n_rets; i++)
    if (b->ret[i] == v)
      return NULL;
  for (uint32_t i = 0; i < b->n_ops; i++)
    for (uint32_t k = 0; k < b->op[i].n_args; k++)
      if (b->op[i].arg[k] == v) {
        if (user)
          return NULL;
        user = &b->op[i];
      }
  return user;
}

/* Vectors run along the result's innermost dim: there the addend is contiguous or does not change. */
static bool addend_ok(const Type *ct, const View *w) {
  int last = ct->rank - 1;
  while (last > 0 && ct->dim[last].size == 1)
    last--;
  return last < 0 || stride_of(w, ct->dim[last].axis) <= 1;
}

Val contract_written(const Body *b, Val c, View *add, int *n) {
  const Type *ct = &b->val[c].type;
  Val v = c, end = c;
  int end_n = 0;
  for (*n = 0; *n < GEMM_ADDENDS;) {
    const BodyOp *user = only_user(b, v);
    if (!user || user->code != OP_ADD || !type_equal(&b->val[user->result].type, ct))
      break;
    Val other = user->arg[user->arg[0] == v];
    if (body_def(b, other) || b->val[other].type.dtype != ct->dtype || !contract_view(b, other, &add[*n]) ||
        !addend_ok(ct, &add[*n]))
      break;
    ++*n;
    v = user->result;
    int returned = 0;
    for (uint32_t i = 0; i < b->n_rets; i++)
      returned += b->ret[i] == v;
    if (returned == 1 && !has_user(b, v)) {
      end = v;
      end_n = *n;
    }
  }
  *n = end_n;
  return end;
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

static bool in_place(const Body *b, uint32_t arg) {
  View add[GEMM_ADDENDS];
  int n;
  if (b->n_reds != 1 || b->op[b->red[0]].code != OP_CONTRACT || !only_user(b, b->param[arg]))
    return false;
  const BodyOp *op = &b->op[b->red[0]];
  const Type *xt = &b->val[op->arg[0]].type;
  double k = 1;
  for (int i = 0; i < xt->rank; i++)
    k *= in_axes(&op->attr, xt->dim[i].axis) ? (double)xt->dim[i].size : 1;
  bool found = false;
  if (contract_written(b, op->result, add, &n) == b->ret[0])
    for (int i = 0; i < n; i++)
      found = found || add[i].base == b->param[arg];
  return found && k <= (double)gemm_in_place_k(b->val[op->result].type.dtype);
}

bool contract_in_place(const Func *f, OpId region, uint32_t arg) {
  const Block *block = f->op[region].body;
  bool contract = false;
  for (uint32_t i = 0; i < block->n_ops; i++)
    contract = contract || f->op[block->op[i]].code == OP_CONTRACT;
  if (!contract)
    return false;
  Arena arena = {0};
  Error err = {0};
  Body b;
  bool ok = body_init(&b, f, region, &arena, &err);
  if (ok) {
    body_collapse(&b);
    ok = in_place(&b, arg);
  }
  arena_free(&arena);
  return ok;
}

void contract_emit(Emit *e, RegionPlan *plan, const Nest *nest) {
  const BodyOp *op = &e->body->op[e->body->red[nest->contract]];
  const Type *ct = &e->body->val[op->result].type;
  const View *a = &nest->x, *b = &nest->y;
  if (view_find(b, ct->dim[ct->rank - 1].axis) < 0)
    a = &nest->y, b = &nest->x;
  GemmSpec spec = spec_of(ct, &op->attr, &(Layout){a, b, nest});
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
    GemmArgs args = {0};
    phase_begin(e, plan, &args.lo, &args.hi);
    args.a = base_pointer(e, a);
    args.b = base_pointer(e, b);
    args.c = split->result != NONE ? e->out[split->result] : byte_offset(e, e->scratch, split->offset);
    for (int k = 0; k < nest->n_adds; k++)
      args.d[k] = base_pointer(e, &nest->add[k]);
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
