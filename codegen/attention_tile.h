/* attention_tile.h: what the forward and the backward of attention share (inside codegen/attention*.c). */
#ifndef DLC_CODEGEN_ATTENTION_TILE_H
#define DLC_CODEGEN_ATTENTION_TILE_H

#include "codegen/attention.h"
#include "codegen/gemm.h"

typedef LLVMValueRef V;

/* Sizes of tiles; padded ones are multiples of the lanes. */
typedef struct {
  int64_t rows, keys; /* of a tile */
  int64_t row_tiles, key_tiles;
  int64_t head, value; /* padded */
  int64_t elem;
} AttentionTiles;
AttentionTiles attention_tiles(const AttentionSpec *s);

typedef struct {
  Gen *g;
  const AttentionSpec *s;
  const AttentionScore *score;
  const AttentionArgs *args;
  Arena *arena;
  Error *err;
  AttentionTiles t;
  LLVMTypeRef et, vt; /* element; vector of lanes */
  AttentionPoint at;
  V q, k, v, o, l, d_o; /* offsets of the current batch index */
} Attention;

/* Buffers in thread scratch; the forward has the first ones only. */
typedef enum {
  B_Q,
  B_S,
  B_MAX,
  B_SUM,
  B_KT,
  B_V,
  B_ACC,
  B_FORWARD,
  B_DO = B_FORWARD,
  B_O,
  B_DS,
  B_DQ,
  B_K,
  B_DK,
  B_DV,
  B_COUNT
} AttentionBuffer;
/* Elements of each; false: too large. */
bool attention_buffers(const AttentionSpec *s, bool backward, int64_t size[B_COUNT]);

/* A function of the module with the parameters of gemm_tile or gemm_copy. */
typedef LLVMValueRef Fn;

Attention attention_begin(Gen *g, const AttentionSpec *s, const AttentionScore *score,
                          const AttentionArgs *args, Arena *arena, Error *err);

V at_i64(Attention *x, int64_t v);
V at_add(Attention *x, V a, V b);
V at_mul(Attention *x, V a, int64_t c);
V at_min(Attention *x, V a, int64_t limit);
V at_ptr(Attention *x, V base, V index);
V at_splat(Attention *x, V scalar);
V at_const(Attention *x, double v); /* a vector */
V at_real(Attention *x, double v);  /* a scalar */
V at_load(Attention *x, V ptr);     /* a vector */
void at_store(Attention *x, V value, V ptr);
V at_get(Attention *x, V ptr);    /* a scalar */
V at_sum(Attention *x, V vector); /* fixed tree */
V at_max(Attention *x, V vector);

void at_buffers(Attention *x, bool backward, V buffer[B_COUNT]);
V at_slot(Attention *x, LLVMTypeRef t); /* a variable; later a register */

/* c[rows][columns] (+)= a b. b and c are dense with `columns` columns; a has the strides given. */
Fn at_product(Attention *x, int64_t rows, int64_t columns, int64_t k, int64_t a_row, int64_t a_k);
void at_multiply(Attention *x, Fn f, V a, V b, V c, bool add);
/* Copies `n` lines of `count` elements, padded to `width` by zeros; lines up to `lines` are set to zero. */
Fn at_copier(Attention *x, int64_t count, int64_t width, int64_t unit, int64_t step);
void at_copy(Attention *x, Fn f, V to, V from, V n);
void at_zero(Attention *x, V ptr, V from_line, V to_line, int64_t width);
/* Vectors of keys of a tile, transposed: [head][keys]; the last tile may be short. */
typedef struct {
  Fn full, last;
} KeyCopier;
KeyCopier at_key_copier(Attention *x, int64_t head_stride, int64_t key_stride);
void at_copy_keys(Attention *x, const KeyCopier *c, V tile, V to, V from, int64_t head);
/* Writes rows [0, n) of from[][width] to memory: `count` elements each at `unit`, rows at `step`. */
void at_write(Attention *x, V to, V from, V n, int64_t width, int64_t count, int64_t unit, int64_t step);

/* Sets x->at and the offsets from flattened indices. */
void at_outer(Attention *x, V index);
void at_share(Attention *x, V index);
/* Loop over key tiles that may matter to rows [row_lo, row_lo + n). */
typedef struct {
  GenLoop loop;
  LLVMBasicBlockRef next; /* NULL: no test */
} TileLoop;
void at_tiles_begin(Attention *x, V row_lo, V n, TileLoop *l);
void at_tiles_end(Attention *x, TileLoop *l);
/* Number of vectors of keys to look at in a tile, and the mask of one of them. */
V at_key_count(Attention *x, V key_lo);
V at_key_mask(Attention *x, V key);
/* lse and maxima of rows without any score count as `instead`. */
V at_finite(Attention *x, V scalar, double instead);
/* How many units make a task. */
int64_t attention_units_per_task(double flops, int64_t units);
/* Units of a task and, in *total, of all. */
int64_t attention_task_size(const AttentionSpec *s, bool backward, int64_t *total);
int64_t attention_count(const AttentionDims *d);

#endif
