/* Any bytes as a tensor file: refused in words, or every tensor can be read. */
#include <stdlib.h>

#include "runtime/runtime.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  Error err = {0};
  TensorFile *f = tensorfile_from_memory(bytes, n, "fuzz", &err);
  if (!f) {
    if (err.cls == ERR_NONE || !err.msg[0]) {
      abort();
    }
    return 0;
  }
  for (uint32_t i = 0; i < tensorfile_count(f); i++) {
    const FileTensor *t = tensorfile_at(f, i);
    double *out = malloc((size_t)t->count * sizeof *out + 1); /* elements are backed by bytes of the input */
    Error read = {0};
    if (!out || tensorfile_find(f, t->name) != t || !filetensor_read(t, 0, t->count, DT_F64, out, &read)) {
      abort();
    }
    free(out);
  }
  tensorfile_close(f);
  return 0;
}
