/* rng.c: Philox 4x32-10 and what is drawn from it. Formulas in rng.h. */
#include "runtime/rng.h"

#include <math.h>
#include <string.h>

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c[4], k[2] = {key[0], key[1]};
  memcpy(c, counter, sizeof c);
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                        (uint32_t)a};
    memcpy(c, next, sizeof c);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  memcpy(out, c, sizeof c);
}

uint32_t rng_seed_key(uint64_t seed) {
  return (uint32_t)seed ^ 0x9E3779B9u * (uint32_t)(seed >> 32);
}

uint32_t rng_loops(const int64_t *index, uint32_t n) {
  uint32_t loops = 0;
  for (uint32_t i = 0; i < n; i++) {
    loops = loops * 65537u + (uint32_t)index[i] + 1;
  }
  return loops;
}

static double uniform53(uint32_t hi, uint32_t lo) {
  return ((double)(hi >> 5) * 67108864.0 + (double)(lo >> 6)) * 0x1p-53;
}

double rng_uniform(DType d, uint64_t seed, uint32_t op, uint32_t loops, uint64_t attempt, uint64_t element) {
  uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), loops, (uint32_t)attempt};
  uint32_t key[2] = {rng_seed_key(seed), op}, w[4];
  philox4x32(counter, key, w);
  return d == DT_F64 ? uniform53(w[0], w[1]) : (double)(w[0] >> 8) * 0x1p-24;
}

RngInit rng_init_key(uint64_t seed, const char *path) {
  uint64_t h = hash_bytes(path, strlen(path), 0);
  return (RngInit){{rng_seed_key(seed), (uint32_t)(h ^ h >> 32)}};
}

static void init_words(const RngInit *key, uint64_t element, uint32_t w[4]) {
  uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), 0, 0};
  philox4x32(counter, key->key, w);
}

double rng_init_uniform_at(const RngInit *key, uint64_t element) {
  uint32_t w[4];
  init_words(key, element, w);
  return uniform53(w[0], w[1]);
}

double rng_init_normal_at(const RngInit *key, uint64_t element) {
  uint32_t w[4];
  init_words(key, element, w);
  return sqrt(-2 * log1p(-uniform53(w[0], w[1]))) * cos(6.283185307179586 * uniform53(w[2], w[3]));
}
