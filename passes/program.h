/* program.h: what the files that write step programs share. */
#ifndef DLC_PASSES_PROGRAM_H
#define DLC_PASSES_PROGRAM_H

#include "passes/internal.h"

/* Buffers start on lines of 64 bytes. */
enum { BUFFER_ALIGN = 64 };

bool buffer_persistent(const Buffer *b);
/* Bytes it takes in the arena: whole lines. */
int64_t buffer_room(const Buffer *b);

/* A program under construction: growing tables, all in `arena`; `mem` holds what dies with the lowering. */
typedef struct {
  const Func *f;
  Arena *arena, mem;
  Error *err;
  Program *p;
  OpId *region; /* by kernel: one of the regions it stands for */
  uint32_t cap_buffers, cap_kernels, cap_launches, cap_results, cap_regions;
  uint32_t *kernel_of; /* by op: NONE, or the kernel of the region */
  uint64_t *hash;      /* by kernel: of its canonical text */
  char **text;
  uint32_t n_hash, cap_hash, n_text, cap_text;
} Making;

/* program_kernel.c: the kernel of a region; equal canonical text, same kernel. */
uint32_t make_kernel(Making *x, OpId region);

/* A new buffer of v's type; NONE and an error when it is too large to address. */
uint32_t make_buffer(Making *x, BufferKind kind, const Type *t, const char *name);

/* Does nothing but loops that go through its leading axis read v, a value of block b? Then its slices may lie
 * apart, and a stacked result of a loop costs no writing: each iteration's value stays where it is. */
bool stacked_apart(const Func *f, const Block *b, Val v);

/* program_inplace.c */
bool region_in_place(const Func *f, OpId region, uint32_t result, uint32_t arg);
void share_in_place(Draft *d);

#endif
