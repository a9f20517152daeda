/* select.c: a function with some of its results. */
#include "passes/internal.h"

Func *pass_select(Func *f, const char *name, bool (*keep)(void *ctx, const FuncRes *r), void *ctx) {
  Func *g = func_copy(f, name, keep, ctx);
  prune(g, g->body);
  return g;
}
