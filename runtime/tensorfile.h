/* tensorfile.h: what the readers and writers of tensor files share. Internal to runtime/. */
#ifndef DLC_TENSORFILE_H
#define DLC_TENSORFILE_H

#include <jansson.h>

#include "runtime/runtime.h"

/* Names of dtypes in safetensors files. `dtype` is DT_COUNT where the program has no such dtype: such tensors
 * can be read, converted. */
#define FILE_DTYPES(X) /* name, bytes, dtype */                                                              \
  X("F32", 4, DT_F32)                                                                                        \
  X("F64", 8, DT_F64)                                                                                        \
  X("F16", 2, DT_F16)                                                                                        \
  X("BF16", 2, DT_BF16)                                                                                      \
  X("F8_E4M3", 1, DT_F8E4M3)                                                                                 \
  X("F8_E5M2", 1, DT_F8E5M2)                                                                                 \
  X("I32", 4, DT_I32)                                                                                        \
  X("I64", 8, DT_I64)                                                                                        \
  X("U8", 1, DT_U8)                                                                                          \
  X("BOOL", 1, DT_BOOL)                                                                                      \
  X("I8", 1, DT_COUNT)                                                                                       \
  X("I16", 2, DT_COUNT)                                                                                      \
  X("U16", 2, DT_COUNT)                                                                                      \
  X("U32", 4, DT_COUNT)                                                                                      \
  X("U64", 8, DT_COUNT)
typedef struct {
  const char *name;
  int64_t bytes;
  DType dtype;
} FileDType;
const FileDType *file_dtype(const char *name); /* NULL: unknown */
const FileDType *file_dtype_of(DType t);

enum { TENSORFILE_HEADER_MAX = 100000000 };

const char *tensorfile_path(const TensorFile *f);
/* n bytes at `offset` of the file; an error when the file has become shorter. */
bool tensorfile_bytes(const TensorFile *f, uint64_t offset, void *to, size_t n, Error *err);

/* n elements at `from` (unaligned) to `to`; *bad = index of the first that does not fit. */
bool convert_elements(const FileDType *type, const unsigned char *from, int64_t n, DType to, void *out,
                      int64_t *bad);
double half_to_double(uint16_t bits);

#endif
