/* cache.h: files of compiled kernels, by key (64 hex digits). Several processes may use one directory at
 * once. Anything wrong with an entry or the directory is a miss, never an error. */
#ifndef DLC_CODEGEN_CACHE_H
#define DLC_CODEGEN_CACHE_H

#include "runtime/base.h"

bool cache_get(const char *dir, const char *key, Arena *arena, const void **bytes, size_t *n);
void cache_put(const char *dir, const char *key, const void *bytes, size_t n);

#endif
