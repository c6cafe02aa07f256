/* fl_pool: a pool of slots, the memory of batches: filled, lent to the user, and used again.
 *
 * Floor 1. A slot is EMPTY in the pool, FILLING or READY with the thread that got the slot, or LENT
 * in shares, one for each tensor over its memory. The memory of a LENT slot is not written until
 * the last share comes back, perhaps long after the pool is closed. If a slot of an arena was lent
 * during a fork, the slot is then RETIRED until the child has ended (fl_fork.h). If no slot is
 * EMPTY a new one is made, so nobody waits for a slot. In a forked child every call does nothing or
 * fails with FL_EFORK. docs/internals/threads.md draws the states. */
#ifndef FL_POOL_H
#define FL_POOL_H

#include "fl_arena.h"

typedef struct fl_pool fl_pool;
typedef struct fl_slot fl_slot;

/* Opens a pool; the caller closes *out. header_bytes: memory for the caller with every slot
 * (fl_slot_header), zeroed once. arena: the memory of the slots, borrowed until the pool and all
 * its slots are gone; NULL: slots lie in memory of this process alone. FL_OK, FL_ENOMEM. */
int fl_pool_open(int64_t header_bytes, fl_arena *arena, fl_pool **out, fl_err *err);

/* The functions that pin slots for a device. unpin undoes pin and cannot fail. */
typedef struct fl_pinner {
    int (*pin)(int32_t device, char *data, int64_t bytes, fl_err *err);
    void (*unpin)(int32_t device, char *data);
    int32_t device;
} fl_pinner;

/* Lets slots of this pool be pinned from now on; they are unpinned before they go back to the
 * system. Such slots are whole pages, and every slot that comes back is kept, whatever reserve and
 * limit say. Call this before the first fl_pool_get. Slots of this pool must not be lent: giving
 * the last share back would unpin on any thread. */
void fl_pool_pin(fl_pool *pool, fl_pinner pinner);

/* Puts the mapped slots of this pool on these nodes (fl_pages_place). The owner of an arena places
 * the arena. Call this before the first fl_pool_get. */
void fl_pool_place(fl_pool *pool, uint64_t nodes);

/* Populates and pins at least the first `bytes` of the slot. A slot outside an arena is pinned
 * whole, once; a shared block only as far as asked for, and at least twice as far each time the
 * shared block has to grow. Takes long, and unpins nothing: a slot that was replaced by a larger
 * one stays pinned until the pool is trimmed or closed. Only the holder calls this function, while
 * no copy reads the slot. Fails as pin does; the bytes pinned before stay pinned. */
int fl_slot_pin(fl_slot *slot, int64_t bytes, fl_err *err);

/* Returns the end of the pinned range around byte `at`, which must be pinned. A shared block that
 * has grown is pinned in several ranges, and a copy must not cross from one range into the next. */
int64_t fl_slot_pin_end(const fl_slot *slot, int64_t at);

/* Returns true if fl_slot_pin would have nothing to do. */
bool fl_slot_is_pinned(const fl_slot *slot, int64_t bytes);

/* Frees EMPTY slots; a LENT slot is freed when its last share comes back. NULL is fine. No slot may
 * be FILLING or READY. */
void fl_pool_close(fl_pool *pool);

/* Keeps up to `slots` EMPTY slots for reuse from now on; further slots that come back go to the
 * system. Any thread. */
void fl_pool_reserve(fl_pool *pool, int64_t slots);

/* Keeps a slot that comes back only if the EMPTY slots then have at most `bytes`, from now on. Any
 * thread. */
void fl_pool_limit(fl_pool *pool, int64_t bytes);

/* Gives every EMPTY slot to the system now, and every RETIRED slot that no child sees any more. Any
 * thread. */
void fl_pool_trim(fl_pool *pool);

/* Gets an EMPTY slot of at least `bytes`, which is then FILLING and the caller's. Any thread; never
 * waits for a slot to come back. FL_ENOMEM, FL_EINVAL (no such size), FL_EFORK. */
int fl_pool_get(fl_pool *pool, int64_t bytes, fl_slot **out, fl_err *err);

/* Returns a slot that was never lent: FILLING or READY -> EMPTY. NULL is fine. Any thread. */
void fl_slot_return(fl_slot *slot);

/* Lends the slot: READY -> LENT in `shares` >= 1 shares. */
void fl_slot_lend(fl_slot *slot, int32_t shares);

/* Adds a share to a slot in which the caller holds a share. Any thread. */
void fl_slot_share(fl_slot *slot);

/* Gives one share back. Any thread, also after fl_pool_close: takes no lock, never waits, calls
 * nothing but free, munmap and madvise. Does nothing in a forked child. */
void fl_slot_give(fl_slot *slot);

char *fl_slot_data(const fl_slot *slot);
int64_t fl_slot_bytes(const fl_slot *slot);
void *fl_slot_header(fl_slot *slot);

/* Returns how many bytes from the start were used before this fl_pool_get; pages beyond may be
 * new. */
int64_t fl_slot_used(const fl_slot *slot);

typedef struct fl_pool_stats {
    int64_t lent;     /* slots held by users now */
    int64_t made;     /* slots made so far */
    int64_t replaced; /* slots made beyond the reserve; included in made */
    int64_t empty;    /* slots waiting for reuse; approximate while slots come back */
} fl_pool_stats;

void fl_pool_count(const fl_pool *pool, fl_pool_stats *out);

#endif
