/* type.c: dtypes with ordered named dims. */
#include "ir/ir.h"

#include <string.h>

bool type_equal(const Type *a, const Type *b) {
  if (a->dtype != b->dtype || a->rank != b->rank) {
    return false;
  }
  for (int i = 0; i < a->rank; i++) {
    if (a->dim[i].axis != b->dim[i].axis || a->dim[i].size != b->dim[i].size) {
      return false;
    }
  }
  return true;
}

int type_find(const Type *t, Axis a) {
  for (int i = 0; i < t->rank; i++) {
    if (t->dim[i].axis == a) {
      return i;
    }
  }
  return -1;
}

bool type_has(const Type *t, Axis a) {
  return type_find(t, a) >= 0;
}

bool type_same_dims(const Type *a, const Type *b) {
  if (a->rank != b->rank) {
    return false;
  }
  for (int i = 0; i < a->rank; i++) {
    int k = type_find(b, a->dim[i].axis);
    if (k < 0 || b->dim[k].size != a->dim[i].size) {
      return false;
    }
  }
  return true;
}

int64_t type_count(const Type *t) {
  int64_t n = 1;
  for (int i = 0; i < t->rank; i++) {
    n *= t->dim[i].size;
  }
  return n;
}

bool type_bytes(const Type *t, int64_t *out) {
  int64_t n = (int64_t)dtype_bytes(t->dtype);
  for (int i = 0; i < t->rank; i++) {
    if (t->dim[i].size < 1 || !size_mul(n, t->dim[i].size, &n)) {
      return false;
    }
  }
  *out = n;
  return true;
}

Type type_scalar(DType d) {
  return (Type){.dtype = d};
}

Type type_without(const Type *t, const Axis *axis, uint32_t n) {
  Type out = {.dtype = t->dtype};
  for (int i = 0; i < t->rank; i++) {
    bool drop = false;
    for (uint32_t k = 0; k < n; k++) {
      drop |= t->dim[i].axis == axis[k];
    }
    if (!drop) {
      out.dim[out.rank++] = t->dim[i];
    }
  }
  return out;
}

bool type_push(Type *t, Axis a, int64_t size) {
  if (t->rank == IR_MAX_RANK || type_has(t, a)) {
    return false;
  }
  t->dim[t->rank++] = (Dim){a, size};
  return true;
}

bool type_join(const Type *a, const Type *b, Type *out, Axis *clash) {
  const Type *first = b->rank > a->rank ? b : a, *second = first == a ? b : a;
  Type t = *first;
  t.dtype = a->dtype;
  for (int i = 0; i < second->rank; i++) {
    int k = type_find(first, second->dim[i].axis);
    bool ok = k >= 0 ? first->dim[k].size == second->dim[i].size
                     : type_push(&t, second->dim[i].axis, second->dim[i].size);
    if (!ok) {
      *clash = second->dim[i].axis;
      return false;
    }
  }
  *out = t;
  return true;
}

void type_print(const Module *m, const Type *t, Str *out) {
  str_puts(out, dtype_name(t->dtype));
  if (!t->rank) {
    return;
  }
  for (int i = 0; i < t->rank; i++) {
    str_printf(out, "%s%s=%lld", i ? ", " : "[", ir_axis_name(m, t->dim[i].axis), (long long)t->dim[i].size);
  }
  str_putc(out, ']');
}
