/* sha256.c: SHA-256 (FIPS 180-4): with the processor's own instructions where it has them, about ten times as
 * fast. */
#include "runtime/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

static uint32_t big_endian(const unsigned char *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void blocks_plain(uint32_t state[8], const unsigned char *p, size_t n) {
  for (; n; n--, p += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
      w[i] = big_endian(p + 4 * i);
    }
    for (int i = 16; i < 64; i++) {
      uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
      uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
      uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + sha_k[i] + w[i];
      uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1;
      d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

#if defined(__x86_64__)

static bool has_sha(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
         (b & bit_SHA);
}

/* The instructions hold the state as (a, b, e, f) and (c, d, g, h), highest lane first, and do two rounds
 * each. */
__attribute__((target("sha,sse4.1"))) static void blocks_sha(uint32_t state[8], const unsigned char *p,
                                                             size_t n) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);        /* cdab */
  __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b); /* efgh */
  __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; n; n--, p += 64) {
    __m128i abef_was = abef, cdgh_was = cdgh, w[4];
    for (int i = 0; i < 4; i++) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), swap);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) { /* four rounds each */
      __m128i wk = _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i *)(sha_k + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
      if (i < 12) { /* the four words of the round after the next three take this one's place */
        __m128i first = _mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]);
        __m128i seventh = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
        w[i % 4] = _mm_sha256msg2_epu32(_mm_add_epi32(first, seventh), w[(i + 3) % 4]);
      }
    }
    abef = _mm_add_epi32(abef, abef_was);
    cdgh = _mm_add_epi32(cdgh, cdgh_was);
  }
  low = _mm_shuffle_epi32(abef, 0x1b);  /* feba -> abef reversed: a b e f */
  high = _mm_shuffle_epi32(cdgh, 0xb1); /* dchg */
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(low, high, 0xf0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(high, low, 8));
}

#else

static bool has_sha(void) {
  return false;
}

static void blocks_sha(uint32_t state[8], const unsigned char *p, size_t n) {
  blocks_plain(state, p, n);
}

#endif

static void add_blocks(Sha256 *s, const unsigned char *p, size_t n) {
  (s->fast ? blocks_sha : blocks_plain)(s->h, p, n);
}

void sha256_start(Sha256 *s) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  *s = (Sha256){.fast = has_sha()};
  memcpy(s->h, start, sizeof start);
}

void sha256_add(Sha256 *s, const void *p, size_t n) {
  const unsigned char *b = p;
  size_t held = s->n % 64;
  s->n += n;
  if (held) {
    size_t take = n < 64 - held ? n : 64 - held;
    if (take) {
      memcpy(s->tail + held, b, take);
    }
    if (held + take < 64) {
      return;
    }
    add_blocks(s, s->tail, 1);
    b += take;
    n -= take;
  }
  if (n >= 64) {
    add_blocks(s, b, n / 64);
    b += n / 64 * 64;
    n %= 64;
  }
  if (n) {
    memcpy(s->tail, b, n);
  }
}

void sha256_end(Sha256 *s, char out[65]) {
  uint64_t bits = s->n * 8;
  unsigned char pad[72] = {0x80};
  size_t n = (s->n % 64 < 56 ? 56 : 120) - s->n % 64;
  for (int i = 0; i < 8; i++) {
    pad[n + 7 - (size_t)i] = (unsigned char)(bits >> 8 * i);
  }
  sha256_add(s, pad, n + 8);
  for (int i = 0; i < 8; i++) {
    snprintf(out + 8 * i, 9, "%08" PRIx32, s->h[i]);
  }
}

void sha256_hex(const void *p, size_t n, char out[65]) {
  Sha256 s;
  sha256_start(&s);
  sha256_add(&s, p, n);
  sha256_end(&s, out);
}
