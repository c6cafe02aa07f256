/* fl_pool: a pool of slots, the memory of batches: filled, lent to the user, and used again.
 *
 * Floor 1. A slot is EMPTY in the pool, FILLING or READY with the thread that got it, or LENT in
 * shares, one for each tensor over its memory. The memory of a LENT slot is not written until the
 * last share comes back, which may be long after the pool is closed. A slot of an arena that was
 * lent during a fork is then RETIRED until the child has ended (fl_fork.h). When no slot is EMPTY a
 * new one is made, so nobody waits for one. In a forked child every call does nothing or fails with
 * FL_EFORK. docs/internals/threads.md draws the states. */
#ifndef FL_POOL_H
#define FL_POOL_H

#include "fl_arena.h"

typedef struct fl_pool fl_pool;
typedef struct fl_slot fl_slot;

/* header_bytes: memory for the caller with every slot (fl_slot_header), zeroed once. arena: where
 * the slots lie, borrowed until the pool and all its slots are gone; NULL: in memory of this
 * process alone. FL_OK, FL_ENOMEM. */
int fl_pool_open(int64_t header_bytes, fl_arena *arena, fl_pool **out, fl_err *err);

/* How slots are pinned for a device. unpin undoes pin and cannot fail. */
typedef struct fl_pinner {
    int (*pin)(int32_t device, char *data, int64_t bytes, fl_err *err);
    void (*unpin)(int32_t device, char *data);
    int32_t device;
} fl_pinner;

/* Slots of this pool may be pinned from now on, and are unpinned before they go back to the system.
 * They are whole pages, and all that come back are kept, whatever reserve and limit say. Call it
 * before the first fl_pool_get. Such slots must not be lent: giving the last share back would unpin
 * on any thread. */
void fl_pool_pin(fl_pool *pool, fl_pinner pinner);

/* Populates and pins at least the first `bytes` of the slot. A slot outside the arena is pinned
 * whole, once; a region as far as asked for, and at least twice as far each time it has to grow.
 * Takes long, and unpins nothing: a slot that another one replaces stays pinned until the pool is
 * trimmed or closed. Only the holder calls it, while no copy reads the slot. Fails as pin does;
 * then what was pinned before still is. */
int fl_slot_pin(fl_slot *slot, int64_t bytes, fl_err *err);

/* Where the range ends that holds the byte `at`, which is pinned: a region that has grown is pinned
 * in several, and a copy must not cross from one to another. */
int64_t fl_slot_pin_end(const fl_slot *slot, int64_t at);

/* Whether fl_slot_pin would have nothing to do. */
bool fl_slot_is_pinned(const fl_slot *slot, int64_t bytes);

/* Frees EMPTY slots; LENT ones are freed when their last share comes back. NULL is fine. No slot
 * may be FILLING or READY. */
void fl_pool_close(fl_pool *pool);

/* From now on up to `slots` EMPTY slots are kept for reuse; what comes back beyond that goes to the
 * system. Any thread. */
void fl_pool_reserve(fl_pool *pool, int64_t slots);

/* From now on a slot that comes back is kept only if the EMPTY ones then have at most `bytes`. Any
 * thread. */
void fl_pool_limit(fl_pool *pool, int64_t bytes);

/* Gives every EMPTY slot to the system now, and RETIRED ones that nobody sees any more. Any thread.
 */
void fl_pool_trim(fl_pool *pool);

/* Gets an EMPTY slot of at least `bytes`, which is then FILLING and the caller's. Any thread; does
 * not wait for slots of others. FL_ENOMEM, FL_EINVAL (no such size), FL_EFORK. */
int fl_pool_get(fl_pool *pool, int64_t bytes, fl_slot **out, fl_err *err);

/* FILLING or READY -> EMPTY, never lent. NULL is fine. Any thread. */
void fl_slot_return(fl_slot *slot);

/* READY -> LENT in `shares` >= 1 shares. */
void fl_slot_lend(fl_slot *slot, int32_t shares);

/* One more share of a slot in which the caller holds one. Any thread. */
void fl_slot_share(fl_slot *slot);

/* Gives one share back. Any thread, also after fl_pool_close: takes no lock, waits for nothing,
 * calls nothing but free, munmap and madvise. Does nothing in a forked child. */
void fl_slot_give(fl_slot *slot);

char *fl_slot_data(const fl_slot *slot);
int64_t fl_slot_bytes(const fl_slot *slot);
void *fl_slot_header(fl_slot *slot);

/* Bytes from the start that were used before this fl_pool_get; pages beyond may be new. */
int64_t fl_slot_used(const fl_slot *slot);

typedef struct fl_pool_stats {
    int64_t lent;     /* slots held by users now */
    int64_t made;     /* slots made so far */
    int64_t replaced; /* of these, because more slots than the reserve were lent */
    int64_t empty;    /* slots waiting for reuse; approximate while others give back */
} fl_pool_stats;

void fl_pool_count(const fl_pool *pool, fl_pool_stats *out);

#endif
