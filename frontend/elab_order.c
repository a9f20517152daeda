/* elab_order.c: looks at a finished function: the order of axes of outputs without a written type, and
 * products that nothing reduces. */
#include "frontend/elab.h"

#include <string.h>

/* ---- the order in which operands first name the axes ---- */

static void append_dims(Type *to, const Type *from, const Axis *without, uint32_t n) {
  for (uint32_t i = 0; i < from->rank; i++) {
    bool drop = false;
    for (uint32_t k = 0; k < n; k++) {
      drop |= without[k] == from->dim[i].axis;
    }
    if (!drop) {
      type_push(to, from->dim[i].axis, from->dim[i].size); /* false: named already */
    }
  }
}

static Type order_of(const Type *order, const Func *f, const Op *op) {
  Type t = type_scalar(ir_type(f, op->result)->dtype);
  if (op_is_pointwise(op->code) || op->code == OP_BROADCAST) {
    for (uint32_t i = 0; i < op->n_args; i++) {
      append_dims(&t, &order[op->arg[i]], NULL, 0);
    }
  } else if (op->code == OP_SUM || op->code == OP_REDUCE_MAX || op->code == OP_REDUCE_MIN ||
             op->code == OP_PROD || op->code == OP_ARGMAX) {
    append_dims(&t, &order[op->arg[0]], op->attr.axis, op->attr.n_axis);
  } else if (op->code == OP_GATHER) { /* an index stands in the place of the axis it reads */
    for (uint32_t i = 0; i < order[op->arg[0]].rank; i++) {
      const Dim d = order[op->arg[0]].dim[i];
      uint32_t k = 0;
      while (k < op->attr.n_axis && op->attr.axis[k] != d.axis) {
        k++;
      }
      if (k < op->attr.n_axis) {
        append_dims(&t, &order[op->arg[k + 1]], NULL, 0);
      } else {
        type_push(&t, d.axis, d.size);
      }
    }
  } else if (op->code == OP_RENAME) {
    t = order[op->arg[0]];
    for (uint32_t i = 0; i < t.rank; i++) {
      const Axis was = t.dim[i].axis;
      for (uint32_t k = 0; k + 1 < op->attr.n_axis; k += 2) {
        t.dim[i].axis = op->attr.axis[k] == was ? op->attr.axis[k + 1] : t.dim[i].axis;
      }
    }
  }
  append_dims(&t, ir_type(f, op->result), NULL, 0);
  return t;
}

static void order_block(Type *order, const Func *f, const Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &f->op[b->op[i]];
    if (op->code == OP_LOOP) {
      order_block(order, f, op->body);
      for (uint32_t k = 0; k < op->n_results; k++) {
        const Type *t = ir_type(f, op->result + k), *body = &order[op->body->ret[k]];
        Type r = type_scalar(t->dtype);
        if (t->rank > body->rank) {
          type_push(&r, t->dim[0].axis, t->dim[0].size);
        }
        append_dims(&r, body, NULL, 0);
        order[op->result + k] = r;
      }
    } else if (op->n_results == 1) {
      order[op->result] = order_of(order, f, op);
    }
  }
}

Type *named_orders(Elab *e) {
  const Func *f = e->func;
  Type *order = ARENA_ARRAY(e->arena, Type, f->n_vals);
  for (uint32_t v = 0; v < f->n_vals; v++) {
    order[v] = f->val[v].type;
  }
  order_block(order, f, f->body);
  return order;
}

/* ---- outer products ---- */

typedef struct {
  Elab *e;
  const Func *f;
  bool *kept;   /* by value: something other than a reduction takes it */
  bool *closed; /* by value: made from constants and indices */
} Outer;

static bool is_reduction(OpCode c) {
  return ir_op_info[c].cls == CLASS_REDUCE && c != OP_CUMSUM && c != OP_SORT;
}

static bool passes_through(OpCode c) {
  return op_is_pointwise(c) || c == OP_RENAME || c == OP_REORDER || c == OP_BROADCAST || c == OP_SPLIT ||
         c == OP_MERGE;
}

static void find_closed(Outer *o, const Block *b) {
  for (uint32_t i = 0; i < b->n_ops; i++) {
    const Op *op = &o->f->op[b->op[i]];
    bool closed = op->code == OP_CONST || op->code == OP_IOTA || passes_through(op->code);
    for (uint32_t k = 0; k < op->n_args; k++) {
      closed &= o->closed[op->arg[k]];
    }
    for (uint32_t k = 0; k < op->n_results; k++) {
      o->closed[op->result + k] = closed;
    }
    if (op->body) {
      find_closed(o, op->body);
    }
  }
}

static void warn_outer(Outer *o, const Op *op) {
  Elab *e = o->e;
  const Type *t = ir_type(o->f, op->result), *a = ir_type(o->f, op->arg[0]), *b = ir_type(o->f, op->arg[1]);
  bool outer = a->rank && b->rank && type_count(t) > type_count(a) && type_count(t) > type_count(b);
  if (!outer || !o->kept[op->result] || o->closed[op->arg[0]] || o->closed[op->arg[1]] ||
      op->loc.file == NONE) {
    return;
  }
  if (in_library(e, op->loc.file)) {
    return; /* the library's own tables */
  }
  uint32_t d =
      diag_warning(e->diag, span_of(e, op->loc), "%s and %s meet in every combination: %s is stored whole",
                   type_text(e, a), type_text(e, b), type_text(e, t));
  Str shared = {0};
  for (int i = 0; i < a->rank; i++) {
    if (type_has(b, a->dim[i].axis)) {
      str_printf(&shared, "%s%s", shared.len ? ", " : "", ir_axis_name(e->m, a->dim[i].axis));
    }
  }
  if (shared.len) {
    const NotedProduct *p = noted_product(e, op->result);
    diag_hint(e->diag, d, "for a matrix product write sum[%s](%s)", shared.s,
              p ? source_text(e, p->at) : "...");
  } else {
    diag_hint(e->diag, d, "reduced over one of its axes it would need no memory");
  }
  str_free(&shared);
}

static void walk_outer(Outer *o, const Block *b) {
  for (uint32_t i = 0; i < b->n_ret; i++) {
    o->kept[b->ret[i]] = true;
  }
  for (uint32_t i = b->n_ops; i-- > 0;) {
    const Op *op = &o->f->op[b->op[i]];
    for (uint32_t k = 0; k < op->n_args; k++) {
      o->kept[op->arg[k]] |= passes_through(op->code) ? o->kept[op->result] : !is_reduction(op->code);
    }
    if (ir_op_info[op->code].cls == CLASS_BINARY) {
      warn_outer(o, op);
    }
    if (op->body) {
      walk_outer(o, op->body);
    }
  }
}

void warn_outer_products(Elab *e) {
  Outer o = {.e = e, .f = e->func};
  o.kept = ARENA_ARRAY(e->arena, bool, e->func->n_vals);
  o.closed = ARENA_ARRAY(e->arena, bool, e->func->n_vals);
  find_closed(&o, e->func->body);
  walk_outer(&o, e->func->body);
}
