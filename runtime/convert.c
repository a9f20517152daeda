/* convert.c: elements of tensor files to the dtypes of programs. */
#include "runtime/tensorfile.h"

#include <math.h>
#include <string.h>

double half_to_double(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double v = exponent == 31  ? (fraction ? NAN : INFINITY)
             : exponent == 0 ? ldexp(fraction, -24)
                             : ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -v : v;
}

static double bf16_to_double(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float v;
  memcpy(&v, &wide, sizeof v);
  return (double)v;
}

/* OCP e4m3: no infinities, all ones is NaN. */
static double e4m3_to_double(uint8_t bits) {
  int exponent = bits >> 3 & 15, fraction = bits & 7;
  double v = exponent == 15 && fraction == 7 ? NAN
             : exponent == 0                 ? ldexp(fraction, -9)
                                             : ldexp(8 + fraction, exponent - 10);
  return bits & 0x80 ? -v : v;
}

/* An element as it is in the file: exact either way. */
typedef struct {
  bool real;
  double d;
  int64_t i;
  bool over; /* an unsigned integer above 2^63 - 1 */
} Element;

static Element load_element(const FileDType *type, const unsigned char *p) {
  Element e = {0};
  uint64_t word = 0;
  memcpy(&word, p, (size_t)type->bytes);
  switch (type->dtype) {
  case DT_F32: {
    float v;
    memcpy(&v, p, sizeof v);
    e.d = (double)v;
    break;
  }
  case DT_F64: memcpy(&e.d, p, sizeof e.d); break;
  case DT_F16: e.d = half_to_double((uint16_t)word); break;
  case DT_BF16: e.d = bf16_to_double((uint16_t)word); break;
  case DT_F8E4M3: e.d = e4m3_to_double((uint8_t)word); break;
  case DT_F8E5M2: e.d = half_to_double((uint16_t)(word << 8)); break;
  default: {
    bool is_signed = type->name[0] == 'I';
    int shift = 64 - 8 * (int)type->bytes;
    e.i = is_signed ? (int64_t)(word << shift) >> shift : (int64_t)word;
    e.over = !is_signed && e.i < 0;
    return e;
  }
  }
  e.real = true;
  return e;
}

static bool whole(const Element *e, int64_t lo, int64_t hi, int64_t *v) {
  if (e->real) {
    if (!(e->d >= -0x1p62 && e->d <= 0x1p62) || e->d != floor(e->d)) {
      return false;
    }
    *v = (int64_t)e->d;
  } else {
    *v = e->i;
  }
  return !e->over && *v >= lo && *v <= hi;
}

static bool store_element(const Element *e, DType to, void *out, int64_t at) {
  double d = e->real ? e->d : e->over ? (double)(uint64_t)e->i : (double)e->i;
  int64_t v;
  switch (to) {
  case DT_F32: ((float *)out)[at] = (float)d; return true;
  case DT_F64: ((double *)out)[at] = d; return true;
  case DT_I32:
    if (!whole(e, INT32_MIN, INT32_MAX, &v)) {
      return false;
    }
    ((int32_t *)out)[at] = (int32_t)v;
    return true;
  case DT_I64:
    if (!whole(e, INT64_MIN, INT64_MAX, &v)) {
      return false;
    }
    ((int64_t *)out)[at] = v;
    return true;
  case DT_U8:
  case DT_BOOL:
    if (!whole(e, 0, to == DT_U8 ? 255 : 1, &v)) {
      return false;
    }
    ((uint8_t *)out)[at] = (uint8_t)v;
    return true;
  default: return false;
  }
}

bool convert_elements(const FileDType *type, const unsigned char *from, int64_t n, DType to, void *out,
                      int64_t *bad) {
  if (type->dtype == to && to != DT_BOOL) {
    if (n) {
      memcpy(out, from, (size_t)(n * type->bytes));
    }
    return true;
  }
  for (int64_t i = 0; i < n; i++) {
    Element e = load_element(type, from + i * type->bytes);
    if (!store_element(&e, to, out, i)) {
      *bad = i;
      return false;
    }
  }
  return true;
}

bool filetensor_read(const FileTensor *t, int64_t first, int64_t n, DType to, void *out, Error *err) {
  unsigned char piece[32768];
  const FileDType *type = file_dtype(t->dtype);
  int64_t end, most = (int64_t)sizeof piece / type->bytes;
  if (!size_add(first, n, &end) || end > t->count) {
    return error_set(err, ERR_INPUT, "%s: tensor '%s' has %lld elements, not %lld", tensorfile_path(t->file),
                     t->name, (long long)t->count, (long long)end);
  }
  if (type->dtype == to && to != DT_BOOL) {
    return tensorfile_bytes(t->file, t->offset + (uint64_t)(first * type->bytes), out,
                            (size_t)(n * type->bytes), err);
  }
  for (int64_t done = 0; done < n;) {
    int64_t take = n - done < most ? n - done : most, bad;
    uint64_t at = t->offset + (uint64_t)((first + done) * type->bytes);
    if (!tensorfile_bytes(t->file, at, piece, (size_t)(take * type->bytes), err)) {
      return false;
    }
    if (!convert_elements(type, piece, take, to, (char *)out + (size_t)done * dtype_bytes(to), &bad)) {
      return error_set(
          err, ERR_INPUT, "%s: tensor '%s' of dtype %s: element %lld cannot be a value of dtype %s",
          tensorfile_path(t->file), t->name, t->dtype, (long long)(first + done + bad), dtype_name(to));
    }
    done += take;
  }
  return true;
}
