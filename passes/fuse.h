/* fuse.h: what the files of the fuser share.
 *
 * A block is cut into units. A unit is one future kernel (a region), or one op that stays outside: a loop, a
 * view. Constants, iotas and cheap pointwise ops of them belong to no unit: every region that uses one
 * computes it itself. */
#ifndef DLC_FUSE_H
#define DLC_FUSE_H

#include "passes/internal.h"

typedef enum {
  ROLE_FREE, /* computed where it is used */
  ROLE_VIEW, /* an alias of its operand's memory */
  ROLE_LOOP,
  ROLE_ALONE, /* a region of its own: sort, cumsum, scatter_add, attention */
  ROLE_GEMM,  /* contract: takes pointwise consumers as its epilogue */
  ROLE_FUSED  /* everything else */
} Role;

/* Most operands and results of a region, most ops, and most free ops in a row: emitters walk chains of ops by
 * recursion. */
enum { MAX_OPERANDS = 32, MAX_GEMM_OPERANDS = 16, MAX_OPS = 512, MAX_CHAIN = 32 };

typedef struct {
  Role role;
  Type domain; /* what its loops run over, as a set of dims */
  bool reduces;
  bool update; /* computes the next value of a parameter or state: pointwise, so that it can overwrite the
                  last */
  Axis red[IR_MAX_RANK];
  uint32_t n_red;
  uint32_t *op; /* positions in the block, in order */
  uint32_t n_ops, cap_ops;
  uint64_t *reach; /* units it depends on, itself included */
  bool dead;       /* merged into another */
  bool closed;     /* reads what others computed, computes nothing of theirs again */
} Unit;

typedef struct {
  Func *f;
  Block *b;
  Arena mem;
  Error *err;
  const OpId *op; /* the block's ops, by position */
  uint32_t n;
  Role *role;      /* by position */
  uint32_t *chain; /* by position: free ops in a row that end there */
  uint32_t *home;  /* by position: its unit, NONE for free ops */
  uint32_t *pos;   /* by value: position of the op that computes it, NONE: a block parameter */
  uint32_t **user; /* by position: positions that use its results; n stands for the block's returns */
  uint32_t *n_users;
  Unit *unit;
  uint32_t n_units, words;
  bool *remat;    /* by position: units other than its own compute it again */
  bool *exported; /* by value: written to memory by its unit */
  /* emission */
  Val *outer; /* by value: what it is called outside of regions, NONE: not emitted */
  bool *done; /* by unit */
} Fuse;

/* fuse_group.c: roles and units of the block. */
void fuse_group(Fuse *x);
/* Makes one unit of two that do not depend on each other, if that is legal. */
bool units_join(Fuse *x, uint32_t a, uint32_t b);
/* fuse_remat.c: what is computed again, and what is written to memory. */
void fuse_remat(Fuse *x);
/* May operands be computed in the op's own region? Otherwise they have to lie in memory. */
bool edge_fuses(const Op *op);
/* fuse_emit.c: the block anew, from regions, views and loops. */
void fuse_emit(Fuse *x);
/* Position of the op that computes v, NONE: a parameter. */
uint32_t fuse_pos(const Fuse *x, Val v);

/* fuse_result.c: copies where a loop, a stacked value or a result of the function needs memory of its own. */
void fuse_copies_before(Func *f, Block *b, Error *err); /* operands of loops */
void fuse_stacked(Func *f, const Block *outer, OpId loop, Error *err);
void fuse_results(Func *f, Error *err);
/* Results of that kind live in the memory of an argument. */
bool is_persistent(ResKind k);
/* A region "copy" of v at the end of the builder's block. */
Val build_copy(Builder *b, Val v);
/* v, or what it is a view of when the view covers all of it. */
Val whole_root(const Func *f, Val v);
bool is_view(const Func *f, const Op *op);

#endif
