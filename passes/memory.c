/* memory.c: where every buffer lies in the arena.
 *
 * Persistent buffers come first. The rest share what follows: two buffers may overlap when no launch needs
 * both. Placing them is packing of rectangles (time by bytes): best fit, the buffers in order of size, of
 * lifetime and of both, and the placement with the lowest top is kept. No placement can be lower than the
 * bytes alive at one time. */
#include "passes/program.h"

#include <stdlib.h>
#include <string.h>

/* More buffers than that are placed in order of time only. */
enum { MAX_BEST_FIT = 10000 };

typedef struct {
  uint32_t buffer, first, last;
  int64_t room, offset;
  double key;
} Item;

/* ---- live ranges ---- */

static void add_scratch(Draft *d, Arena *arena) {
  Program *p = &d->program;
  uint32_t more = 0, n = p->n_buffers;
  for (uint32_t i = 0; i < p->n_launches; i++)
    more += p->kernel[p->launch[i].kernel].scratch_bytes > 0;
  if (!more)
    return;
  Buffer *all = ARENA_ARRAY(arena, Buffer, n + more);
  memcpy(all, p->buffer, n * sizeof *all);
  for (uint32_t i = 0; i < p->n_launches; i++) {
    int64_t bytes = p->kernel[p->launch[i].kernel].scratch_bytes;
    if (bytes <= 0)
      continue;
    all[n] = (Buffer){.name = "scratch", .kind = BUF_TEMP, .dtype = DT_U8, .rank = 0, .bytes = bytes};
    p->launch[i].scratch = (Operand){.buffer = n++};
  }
  p->buffer = all;
  p->n_buffers = n;
}

static void touch(Buffer *b, uint32_t launch) {
  if (b->first < 0)
    b->first = (int32_t)launch;
  b->last = (int32_t)launch;
}

/* What the runtime fills before a step lives through the step: it may be filled once for many steps. */
static void find_lives(Program *p) {
  for (uint32_t i = 0; i < p->n_buffers; i++)
    p->buffer[i].first = p->buffer[i].last = -1;
  for (uint32_t i = 0; i < p->n_launches; i++) {
    const Launch *l = &p->launch[i];
    for (uint32_t k = 0; k < l->n_args; k++)
      touch(&p->buffer[l->arg[k].buffer], i);
    if (l->scratch.buffer != UINT32_MAX)
      touch(&p->buffer[l->scratch.buffer], i);
  }
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    Buffer *b = &p->buffer[i];
    if (b->kind != BUF_TEMP && b->kind != BUF_OUTPUT)
      b->first = 0;
    if (b->first < 0)
      b->first = 0; /* nobody uses it */
    if (b->kind != BUF_TEMP)
      b->last = (int32_t)p->n_launches;
    else if (b->last < 0)
      b->last = 0;
  }
}

/* ---- placement ---- */

static int by_key(const void *a, const void *b) {
  const Item *x = a, *y = b;
  if (x->key != y->key)
    return x->key > y->key ? -1 : 1;
  if (x->first != y->first)
    return x->first < y->first ? -1 : 1;
  return x->buffer < y->buffer ? -1 : x->buffer > y->buffer;
}

/* Into the smallest hole between those placed that live at the same time. `low` lists the placed ones by
 * offset. */
static int64_t best_fit(Item *item, uint32_t n, Arena *mem) {
  uint32_t *low = ARENA_ARRAY(mem, uint32_t, n);
  int64_t top = 0;
  for (uint32_t i = 0; i < n; i++) {
    Item *it = &item[i];
    int64_t end = 0, hole = INT64_MAX, at = -1;
    for (uint32_t k = 0; k < i; k++) {
      const Item *o = &item[low[k]];
      if (o->last < it->first || it->last < o->first)
        continue;
      if (o->offset - end >= it->room && o->offset - end < hole) {
        hole = o->offset - end;
        at = end;
      }
      if (o->offset + o->room > end)
        end = o->offset + o->room;
    }
    it->offset = at < 0 ? end : at;
    if (it->offset + it->room > top)
      top = it->offset + it->room;
    uint32_t k = i;
    for (; k > 0 && item[low[k - 1]].offset > it->offset; k--)
      low[k] = low[k - 1];
    low[k] = i;
  }
  return top;
}

/* In order of time: into the first hole among those alive. */
static int64_t first_fit(Item *item, uint32_t n, Arena *mem) {
  uint32_t *low = ARENA_ARRAY(mem, uint32_t, n), n_live = 0;
  int64_t top = 0;
  for (uint32_t i = 0; i < n; i++) {
    Item *it = &item[i];
    uint32_t kept = 0, place = 0;
    int64_t end = 0;
    bool found = false;
    for (uint32_t k = 0; k < n_live; k++)
      if (item[low[k]].last >= it->first)
        low[kept++] = low[k];
    n_live = kept;
    for (; place < n_live && !found; place++) {
      found = item[low[place]].offset - end >= it->room;
      if (found)
        break;
      end = item[low[place]].offset + item[low[place]].room;
    }
    it->offset = end;
    if (end + it->room > top)
      top = end + it->room;
    memmove(low + place + 1, low + place, (n_live - place) * sizeof *low);
    low[place] = i;
    n_live++;
  }
  return top;
}

typedef enum { ORDER_SIZE, ORDER_LIFE, ORDER_AREA, ORDER_TIME, ORDERS } Order;

static int64_t place_in_order(Order order, Item *item, uint32_t n, Arena *mem) {
  for (uint32_t i = 0; i < n; i++) {
    double life = 1.0 + item[i].last - item[i].first, room = (double)item[i].room;
    item[i].key = order == ORDER_SIZE   ? room
                  : order == ORDER_LIFE ? life * 0x1p50 + room
                  : order == ORDER_AREA ? life * room
                                        : 0;
  }
  qsort(item, n, sizeof *item, by_key);
  return order == ORDER_TIME ? first_fit(item, n, mem) : best_fit(item, n, mem);
}

/* Most bytes alive at one launch. */
static int64_t bytes_alive(const Item *item, uint32_t n, uint32_t n_launches, Arena *mem) {
  int64_t *change = ARENA_ARRAY(mem, int64_t, (size_t)n_launches + 2), alive = 0, most = 0;
  for (uint32_t i = 0; i < n; i++) {
    change[item[i].first] += item[i].room;
    change[item[i].last + 1] -= item[i].room;
  }
  for (uint32_t t = 0; t <= n_launches; t++) {
    alive += change[t];
    most = alive > most ? alive : most;
  }
  return most;
}

static Item *list_items(const Program *p, uint32_t *n, bool *ok, Arena *mem) {
  Item *item = ARENA_ARRAY(mem, Item, p->n_buffers);
  int64_t sum = p->persistent_bytes;
  *n = 0;
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffer[i];
    if (buffer_persistent(b))
      continue;
    item[(*n)++] =
        (Item){.buffer = i, .first = (uint32_t)b->first, .last = (uint32_t)b->last, .room = buffer_room(b)};
    *ok &= size_add(sum, buffer_room(b), &sum);
  }
  return item;
}

static void place_all(Program *p, Item *item, uint32_t n, Arena *mem) {
  int64_t best = INT64_MAX, bound = bytes_alive(item, n, p->n_launches, mem);
  for (Order o = n > MAX_BEST_FIT ? ORDER_TIME : 0; o < ORDERS && best > bound; o++) {
    int64_t top = place_in_order(o, item, n, mem);
    if (top >= best)
      continue;
    best = top;
    for (uint32_t i = 0; i < n; i++)
      p->buffer[item[i].buffer].offset = p->persistent_bytes + item[i].offset;
  }
  p->arena_bytes = p->persistent_bytes + (n ? best : 0);
  p->lower_bound_bytes = p->persistent_bytes + bound;
}

bool program_plan(Draft *d, Arena *arena, Error *err) {
  Program *p = &d->program;
  Arena mem = {0};
  uint32_t n;
  bool ok = true;
  share_in_place(d);
  add_scratch(d, arena);
  find_lives(p);
  Item *item = list_items(p, &n, &ok, &mem);
  if (ok)
    place_all(p, item, n, &mem);
  else
    error_set(err, ERR_INPUT, "step program %s needs more bytes than can be addressed", p->name);
  arena_free(&mem);
  return ok && program_check(p, err);
}

/* ---- the checker ---- */

static bool wrong(const Program *p, uint32_t buffer, const char *what, Error *err) {
  return error_set(err, ERR_RUN, "step program %s: buffer %u '%s' %s", p->name, buffer,
                   p->buffer[buffer].name, what);
}

static bool check_ranges(const Program *p, Error *err) {
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffer[i];
    if (b->offset % BUFFER_ALIGN || b->offset < 0 || b->bytes < 0 || b->offset + b->bytes > p->arena_bytes)
      return wrong(p, i, "lies outside of the arena", err);
    if (buffer_persistent(b) && b->offset + b->bytes > p->persistent_bytes)
      return wrong(p, i, "lies outside of the persistent part", err);
    if (!buffer_persistent(b) && b->offset < p->persistent_bytes)
      return wrong(p, i, "lies in the persistent part", err);
    if (b->first < 0 || b->last < b->first || b->last > (int32_t)p->n_launches)
      return wrong(p, i, "has no life", err);
  }
  return true;
}

static bool check_operand(const Program *p, const Operand *o, uint32_t launch, Error *err) {
  if (o->buffer >= p->n_buffers)
    return error_set(err, ERR_RUN, "step program %s: launch %u names no buffer", p->name, launch);
  const Buffer *b = &p->buffer[o->buffer];
  if (o->offset < 0 || o->offset > b->bytes || (o->offset == b->bytes && b->bytes))
    return wrong(p, o->buffer, "is used outside of its bytes", err);
  if ((int32_t)launch < b->first || (int32_t)launch > b->last)
    return wrong(p, o->buffer, "is used when it is not alive", err);
  return true;
}

/* Operands exist, and what a step computes is written before it is read. */
static bool check_launches(const Program *p, Arena *mem, Error *err) {
  bool *written = ARENA_ARRAY(mem, bool, p->n_buffers);
  for (uint32_t i = 0; i < p->n_launches; i++) {
    const Launch *l = &p->launch[i];
    if (l->kernel >= p->n_kernels || l->n_args != p->kernel[l->kernel].n_args)
      return error_set(err, ERR_RUN, "step program %s: launch %u does not fit its kernel", p->name, i);
    uint32_t inputs = l->n_args - p->kernel[l->kernel].n_outputs;
    for (uint32_t k = 0; k < l->n_args; k++) {
      if (!check_operand(p, &l->arg[k], i, err))
        return false;
      const Buffer *b = &p->buffer[l->arg[k].buffer];
      bool computed = b->kind == BUF_TEMP || b->kind == BUF_OUTPUT;
      if (k < inputs && computed && !written[l->arg[k].buffer])
        return wrong(p, l->arg[k].buffer, "is read before it is written", err);
    }
    for (uint32_t k = inputs; k < l->n_args; k++)
      written[l->arg[k].buffer] = true;
    if (l->scratch.buffer != UINT32_MAX && !check_operand(p, &l->scratch, i, err))
      return false;
  }
  return true;
}

static int by_offset(const void *a, const void *b) {
  const Item *x = a, *y = b;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_first(const void *a, const void *b) {
  const Item *x = a, *y = b;
  if (x->first != y->first)
    return x->first < y->first ? -1 : 1;
  return by_offset(a, b);
}

/* Where the live item at or after `offset` stands among n sorted ones. */
static uint32_t find_live(const Item *live, uint32_t n, int64_t offset) {
  uint32_t lo = 0, hi = n;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    if (live[mid].offset < offset)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

/* A sweep over time; `live` holds what is alive by offset, so that a newcomer can meet its two neighbours
 * only. */
static bool check_overlaps(const Program *p, Arena *mem, Error *err) {
  Item *all = ARENA_ARRAY(mem, Item, p->n_buffers), *live = ARENA_ARRAY(mem, Item, p->n_buffers);
  uint32_t n = 0, n_live = 0;
  for (uint32_t i = 0; i < p->n_buffers; i++) {
    const Buffer *b = &p->buffer[i];
    if (b->bytes)
      all[n++] = (Item){.buffer = i,
                        .first = (uint32_t)b->first,
                        .last = (uint32_t)b->last,
                        .room = buffer_room(b),
                        .offset = b->offset};
  }
  qsort(all, n, sizeof *all, by_first);
  uint32_t now = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (all[i].first != now) {
      uint32_t kept = 0;
      now = all[i].first;
      for (uint32_t k = 0; k < n_live; k++)
        if (live[k].last >= now)
          live[kept++] = live[k];
      n_live = kept;
    }
    uint32_t at = find_live(live, n_live, all[i].offset);
    if ((at < n_live && live[at].offset < all[i].offset + all[i].room) ||
        (at > 0 && live[at - 1].offset + live[at - 1].room > all[i].offset))
      return wrong(p, all[i].buffer, "shares bytes with another that is alive", err);
    memmove(live + at + 1, live + at, (n_live - at) * sizeof *live);
    live[at] = all[i];
    n_live++;
  }
  return true;
}

bool program_check(const Program *p, Error *err) {
  Arena mem = {0};
  bool ok = check_ranges(p, err) && check_launches(p, &mem, err) && check_overlaps(p, &mem, err);
  arena_free(&mem);
  return ok;
}
