/* rng.h: counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers:
 * as easy as 1, 2, 3", SC 2011). The same draw in the forward, in a recomputation and on every layout: a draw
 * is a function of what it is for.
 *
 * The op `random` (generated kernels compute exactly this):
 *   key     = {low 32 bits of seed ^ 0x9E3779B9 * (high 32 bits of seed), low 32 bits of the op id}
 *   counter = {low 32 bits of e, high 32 bits of e, loops, low 32 bits of attempt}
 *     e     = row-major logical index of the element in the op's own dims
 *     loops = 0 outside loops; for each enclosing loop index i, outermost first: loops = loops * 65537 + i +
 * 1 (mod 2^32) f32: (w0 >> 8) * 2^-24          f64: ((w0 >> 5) * 2^26 + (w1 >> 6)) * 2^-53          both in
 * [0, 1) Initial values: key = {seed as above, FNV-1a hash of the parameter's path in the file
 * ("h.3.attn.wq")}, counter = {e, 0, 0}, uniform as f64 above; normal by Box-Muller: sqrt(-2 ln(1 - u)) cos(2
 * pi v), u from w0 w1, v from w2 w3. */
#ifndef DLC_RNG_H
#define DLC_RNG_H

#include "runtime/base.h"

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
uint32_t rng_seed_key(uint64_t seed);
uint32_t rng_loops(const int64_t *index, uint32_t n); /* `loops` above */
double rng_uniform(DType d, uint64_t seed, uint32_t op, uint32_t loops, uint64_t attempt, uint64_t element);
/* Initial values: the key of a parameter, hashed once. */
typedef struct {
  uint32_t key[2];
} RngInit;
RngInit rng_init_key(uint64_t seed, const char *path);
double rng_init_uniform_at(const RngInit *key, uint64_t element);
double rng_init_normal_at(const RngInit *key, uint64_t element);

#endif
