/* sample.c: drawing a token from logits: temperature, top-k, top-p, one uniform number of rng.h a position.
 */
#include "runtime/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
  double p;
  int64_t id;
} Choice;

static int by_probability(const void *a, const void *b) {
  const Choice *x = a, *y = b;
  if (x->p != y->p) {
    return x->p > y->p ? -1 : 1;
  }
  return x->id < y->id ? -1 : 1;
}

static int64_t largest(const float *logits, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; i++) {
    if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) {
      best = i;
    }
  }
  return best;
}

int64_t sample_token(const float *logits, int64_t n, const SampleRule *rule, uint64_t seed, uint64_t index,
                     double *scratch) {
  int64_t best = largest(logits, n);
  if (best < 0 || rule->temperature <= 0 || isinf(logits[best])) {
    return best;
  }
  /* scratch holds n pairs (probability, id): two doubles each */
  _Static_assert(sizeof(Choice) == 2 * sizeof(double), "a choice fills two doubles of the scratch");
  Choice *c = (Choice *)scratch;
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    double p = isnan(logits[i]) ? 0 : exp(((double)logits[i] - (double)logits[best]) / rule->temperature);
    c[i] = (Choice){p, i};
    sum += p;
  }
  qsort(c, (size_t)n, sizeof *c, by_probability);
  int64_t kept = rule->top_k > 0 && rule->top_k < n ? rule->top_k : n;
  double mass = 0, limit = rule->top_p < 1 ? rule->top_p * sum : INFINITY;
  for (int64_t i = 0; i < kept; i++) {
    mass += c[i].p;
    if (mass >= limit) {
      kept = i + 1;
    }
  }
  double u = rng_uniform(DT_F64, seed, 0, 0, 0, index) * mass;
  for (int64_t i = 0; i < kept; i++) {
    u -= c[i].p;
    if (u < 0) {
      return c[i].id;
    }
  }
  return c[0].id;
}
