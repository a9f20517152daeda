/* base.h: the bottom layer every folder may use: memory arenas, errors, growable text, dtypes, checked sizes.
 *
 * Ownership: what an arena hands out lives until arena_free; nothing is freed one by one.
 * Errors: a function that can fail takes `Error *err` last and returns false (or NULL, or a documented
 * value). The first error set is kept: later error_set calls on the same Error do not overwrite it. */
#ifndef DLC_BASE_H
#define DLC_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- errors ---- */

/* Exit codes of the program (INTERFACES.md); the class of an error is the code the program would leave with.
 */
typedef enum { ERR_NONE = 0, ERR_INPUT = 1, ERR_USAGE = 2, ERR_RUN = 3, ERR_STOPPED = 75 } ErrorClass;

typedef struct {
  ErrorClass cls;
  char msg[2048]; /* one sentence or several lines, no trailing newline: what is wrong, where, what to change
                   */
} Error;

/* Formats into err unless err already holds an error. Always returns false, so that `return error_set(...)`
 * reads well. */
bool error_set(Error *err, ErrorClass cls, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- arenas ---- */

typedef struct ArenaBlock ArenaBlock;
typedef struct {
  ArenaBlock *head;
} Arena; /* zero-initialise: Arena a = {0}; */

/* Zeroed memory, 16-byte aligned; aborts with a message only when the machine is out of memory. n may be 0.
 */
void *arena_alloc(Arena *a, size_t n);
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void arena_free(Arena *a);
#define ARENA_NEW(a, T)      ((T *)arena_alloc((a), sizeof(T)))
#define ARENA_ARRAY(a, T, n) ((T *)arena_alloc_array((a), (n), sizeof(T)))
void *arena_alloc_array(Arena *a, size_t n, size_t size); /* checks n * size for overflow */

/* Growable array in an arena: `T *p; uint32_t n, cap;`. Old storage is left to the arena. */
#define VEC_PUSH(a, p, n, cap, ...)                                                                          \
  do {                                                                                                       \
    if ((n) == (cap)) {                                                                                      \
      (p) = arena_grow((a), (p), (n), sizeof *(p));                                                          \
      (cap) = (cap) ? (cap)*2 : 8;                                                                           \
    }                                                                                                        \
    (p)[(n)++] = (__VA_ARGS__);                                                                              \
  } while (0)
void *arena_grow(Arena *a, const void *old, size_t n, size_t size); /* room for max(8, 2n) items, n copied */

/* ---- growable text (heap) ---- */

typedef struct {
  char *s; /* always NUL-terminated once anything was appended; NULL when empty */
  size_t len, cap;
} Str;
void str_putc(Str *s, char c);
void str_puts(Str *s, const char *text);
void str_write(Str *s, const void *bytes, size_t n);
void str_printf(Str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void str_free(Str *s);
/* Shortest decimal text that reads back to the same double ("0.1", "1e-08", "inf", "nan"). */
void str_put_double(Str *s, double v);
/* A JSON string with quotes and escapes. */
void str_put_json(Str *s, const char *text);

/* ---- dtypes ---- */

#define DTYPES(X) /* name, text, bytes, is float */                                                          \
  X(F32, "f32", 4, true)                                                                                     \
  X(F64, "f64", 8, true)                                                                                     \
  X(F16, "f16", 2, true)                                                                                     \
  X(BF16, "bf16", 2, true)                                                                                   \
  X(F8E4M3, "f8e4m3", 1, true)                                                                               \
  X(F8E5M2, "f8e5m2", 1, true)                                                                               \
  X(I32, "int", 4, false)                                                                                    \
  X(I64, "i64", 8, false)                                                                                    \
  X(U8, "u8", 1, false)                                                                                      \
  X(BOOL, "bool", 1, false)
typedef enum {
#define X(name, text, bytes, is_float) DT_##name,
  DTYPES(X)
#undef X
      DT_COUNT
} DType;
const char *dtype_name(DType t);
size_t dtype_bytes(DType t);
bool dtype_is_float(DType t);
bool dtype_parse(const char *text, size_t n, DType *out);

/* ---- sizes ---- */

/* *out = a * b, a + b; false on overflow of int64 or a negative operand. */
bool size_mul(int64_t a, int64_t b, int64_t *out);
bool size_add(int64_t a, int64_t b, int64_t *out);

/* ---- hashing ---- */

/* 64-bit FNV-1a, seedable: for tables, never for cache keys of kernels (those use sha256). */
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);
/* SHA-256 as 64 hex digits and a NUL. */
void sha256_hex(const void *p, size_t n, char out[65]);
/* The same in pieces: start, any number of adds, end once. */
typedef struct {
  uint32_t h[8];
  uint64_t n;
  unsigned char tail[64];
  bool fast; /* use the processor's instructions; set by start */
} Sha256;
void sha256_start(Sha256 *s);
void sha256_add(Sha256 *s, const void *p, size_t n);
void sha256_end(Sha256 *s, char out[65]);

#endif
