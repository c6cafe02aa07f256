/* fl_pool: see fl_pool.h.
 *
 * Slots come back over a lock-free stack. Any thread pushes; only the holder of the pool's mutex
 * empties the stack, as a whole, by one exchange. No slot is popped singly, so there is no ABA
 * problem. Closing replaces the head by CLOSED; a slot that comes back later is freed at once. The
 * pool's own memory is freed with the last slot. If forked workers may still read a slot, the slot
 * is RETIRED: it comes back over a second stack of the same kind, and is examined at that moment
 * and after each worker's end. */
#include "fl_pool.h"

#include "fl_fork.h"
#include "fl_pages.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

enum { MOST_PINS = 48 }; /* each pin but the last is at least as large as all earlier ones */

struct fl_slot {
    fl_pool *pool;          /* owned: one reference */
    fl_slot *next;          /* belongs to the holder of the list */
    fl_pages pages;         /* owned unless block is set; written by the holder of a FILLING slot */
    fl_shared_block *block; /* owned; the memory of pages if the pool has an arena; else NULL */
    int64_t used, before;   /* holder: most bytes ever asked for, with and without this holder */
    int64_t pinned;         /* holder: pinned bytes from the start */
    int64_t ends[MOST_PINS]; /* holder: end of each range that was pinned in one call */
    int32_t pins;            /* holder: pinned ranges */
    int64_t outgrown;        /* holder: pinned bytes of the slot that this slot replaces */
    int64_t lent_at;         /* the lender: fl_fork_count at lending */
    int64_t given_at;        /* the giver of the last share: fl_fork_count at that moment */
    _Atomic int32_t shares;  /* > 0: LENT */
    _Alignas(64) char header[];
};

struct fl_pool {
    pthread_mutex_t mutex;
    fl_slot *spare;              /* owned, EMPTY; mutex */
    fl_slot *outgrown;           /* owned: pinned, and too small for any batch now; mutex */
    fl_arena *arena;             /* borrowed; NULL: none. Set at open */
    int64_t header_bytes;        /* set at open */
    fl_pinner pinner;            /* set before the first slot; pin NULL: slots are not pinned */
    uint64_t nodes;              /* set before the first slot; 0: the system's choice */
    uint32_t generation;         /* set at open */
    _Atomic(fl_slot *) returned; /* owned, EMPTY: the stack, or CLOSED */
    _Atomic(fl_slot *) retired;  /* owned, RETIRED and not examined yet: the stack, or CLOSED */
    fl_slot *seen;               /* owned, RETIRED: workers may read them; mutex */
    _Atomic int64_t looked_at;   /* fl_fork_ends when `seen` was examined; mutex to write */
    _Atomic int64_t references;  /* one for the opener, one for each slot */
    _Atomic int64_t empty; /* slots in spare and returned; never too few, even during a push */
    _Atomic int64_t empty_bytes;    /* bytes of the empty slots */
    _Atomic int64_t reserve, limit; /* slots and bytes kept EMPTY */
    _Atomic int64_t slot_bytes; /* the largest size so far; with pinning, the size of new slots */
    _Atomic int64_t lent, made, replaced;
};

#define CLOSED ((fl_slot *)(uintptr_t)1)

static inline bool is_foreign(const fl_pool *pool)
{
    return pool->generation != fl_fork_generation();
}

int fl_pool_open(int64_t header_bytes, fl_arena *arena, fl_pool **out, fl_err *err)
{
    *out = NULL;
    fl_pool *pool = fl_alloc(sizeof *pool);
    if (pool == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a pool");
    int status = fl_mutex_open(&pool->mutex, err);
    if (status != FL_OK) {
        fl_free(pool);
        return status;
    }
    pool->arena = arena;
    pool->header_bytes = header_bytes;
    pool->generation = fl_fork_generation();
    atomic_init(&pool->references, 1);
    atomic_init(&pool->limit, INT64_MAX);
    *out = pool;
    return FL_OK;
}

void fl_pool_pin(fl_pool *pool, fl_pinner pinner) { pool->pinner = pinner; }

void fl_pool_place(fl_pool *pool, uint64_t nodes) { pool->nodes = nodes; }

static void drop_reference(fl_pool *pool)
{
    /* acq_rel: the thread that frees sees every write made before a reference was given up. */
    if (atomic_fetch_sub_explicit(&pool->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&pool->mutex);
    fl_free(pool);
}

static inline bool is_pinning(const fl_pool *pool) { return pool->pinner.pin != NULL; }

static int open_pages(const fl_pool *pool, int64_t bytes, fl_pages *pages, fl_err *err)
{
    FL_TRY((is_pinning(pool) ? fl_pages_map : fl_pages_open)(bytes, pages, err));
    if (pages->is_mapped) fl_pages_place(pages->data, pages->capacity, pool->nodes);
    /* A fork would either copy pinned pages, or leave the pages that the device reads to the
     * child. */
    if (is_pinning(pool)) fl_pages_withhold(pages);
    return FL_OK;
}

static int open_memory(fl_pool *pool, fl_slot *slot, int64_t bytes, fl_err *err)
{
    fl_pages *pages = &slot->pages;
    if (pool->arena == NULL) return open_pages(pool, bytes, pages, err);
    FL_TRY(fl_arena_get(pool->arena, bytes, &slot->block, err));
    *pages = (fl_pages){.data = fl_shared_block_data(slot->block),
                        .capacity = fl_shared_block_bytes(slot->block)};
    return FL_OK;
}

static void unpin(fl_slot *slot)
{
    const fl_pinner *pinner = &slot->pool->pinner;
    for (int32_t i = 0; i < slot->pins; i++)
        pinner->unpin(pinner->device, slot->pages.data + (i > 0 ? slot->ends[i - 1] : 0));
    slot->pins = 0;
    slot->pinned = 0;
}

static void free_slot(fl_slot *slot)
{
    fl_pool *pool = slot->pool;
    unpin(slot);
    if (slot->block != NULL)
        fl_shared_block_give(slot->block);
    else
        fl_pages_close(&slot->pages);
    fl_free(slot);
    drop_reference(pool);
}

static void abandon_slot(fl_slot *slot)
{
    fl_pool *pool = slot->pool;
    fl_shared_block_abandon(slot->block);
    fl_free(slot);
    drop_reference(pool);
}

/* Returns the memory of an EMPTY slot at most: a block has none where no batch has been. */
static int64_t held_bytes(const fl_slot *slot)
{
    return slot->block != NULL ? slot->used : slot->pages.capacity;
}

/* Counts EMPTY slots; returns true if there was room within the reserve and the limit before.
 * Pinned slots are always kept: to unpin a slot, the returning thread would have to wait for the
 * device, and the next epoch would pin the slot again. */
static bool count_empty(fl_pool *pool, int64_t slots, int64_t bytes)
{
    int64_t empty = atomic_fetch_add_explicit(&pool->empty, slots, memory_order_relaxed);
    int64_t before = atomic_fetch_add_explicit(&pool->empty_bytes, bytes, memory_order_relaxed);
    return is_pinning(pool) ||
           (empty < atomic_load_explicit(&pool->reserve, memory_order_relaxed) &&
            bytes <= atomic_load_explicit(&pool->limit, memory_order_relaxed) - before);
}

static void free_list(fl_pool *pool, fl_slot *slot)
{
    while (slot != NULL) {
        fl_slot *next = slot->next;
        count_empty(pool, -1, -held_bytes(slot));
        free_slot(slot);
        slot = next;
    }
}

/* Keeps the slot pinned until the epoch is over: unpinning waits for the device, and the device may
 * wait for this process. */
static void keep_outgrown(fl_slot *slot)
{
    fl_pool *pool = slot->pool;
    pthread_mutex_lock(&pool->mutex);
    slot->next = pool->outgrown;
    pool->outgrown = slot;
    pthread_mutex_unlock(&pool->mutex);
}

static void free_outgrown(fl_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    fl_slot *slot = pool->outgrown;
    pool->outgrown = NULL;
    pthread_mutex_unlock(&pool->mutex);
    while (slot != NULL) {
        fl_slot *next = slot->next;
        free_slot(slot);
        slot = next;
    }
}

/* Pushes the slot. Returns false if the stack is CLOSED: then the slot, and its reference to the
 * pool, are still the caller's. */
static bool push(_Atomic(fl_slot *) *stack, fl_slot *slot)
{
    fl_slot *head = atomic_load_explicit(stack, memory_order_relaxed);
    while (head != CLOSED) {
        slot->next = head;
        /* release: the thread that empties the stack sees all earlier writes to the slot. */
        if (atomic_compare_exchange_weak_explicit(stack, &head, slot, memory_order_release,
                                                  memory_order_relaxed))
            return true;
    }
    return false;
}

/* Makes the slot EMPTY if the pool may keep one more; otherwise gives the slot to the system. */
static void recycle(fl_slot *slot)
{
    fl_pool *pool = slot->pool;
    int64_t bytes = held_bytes(slot);
    if (count_empty(pool, 1, bytes) && push(&pool->returned, slot)) return;
    count_empty(pool, -1, -bytes);
    free_slot(slot);
}

/* ---- slots that were lent during a fork: the child also has tensors over the slot, and in an
 * arena both processes share the memory */

/* Makes the slot RETIRED. If the pool is closed, or if the child is not a worker and so its end is
 * never told, abandons the slot. */
static void retire(fl_slot *slot)
{
    if (fl_fork_is_seen_for_good(slot->lent_at) || !push(&slot->pool->retired, slot))
        abandon_slot(slot);
}

/* Moves slots that no child reads any more onto the list `*unseen`, the remaining slots onto
 * pool->seen. */
static void sort_locked(fl_pool *pool, fl_slot *slot, fl_slot **unseen)
{
    while (slot != NULL) {
        fl_slot *next = slot->next;
        bool is_seen = fl_fork_is_seen(slot->lent_at, slot->given_at);
        fl_slot **list = is_seen ? &pool->seen : unseen;
        slot->next = *list;
        *list = slot;
        slot = next;
    }
}

static fl_slot *take_unseen_locked(fl_pool *pool, fl_slot *retired)
{
    fl_slot *seen = pool->seen, *unseen = NULL;
    atomic_store(&pool->looked_at, fl_fork_ends());
    pool->seen = NULL;
    sort_locked(pool, seen, &unseen);
    sort_locked(pool, retired, &unseen);
    return unseen;
}

static void recycle_list(fl_slot *slot)
{
    while (slot != NULL) {
        fl_slot *next = slot->next;
        recycle(slot);
        slot = next;
    }
}

static void recycle_unseen(fl_pool *pool)
{
    if (atomic_load(&pool->retired) == NULL && atomic_load(&pool->looked_at) == fl_fork_ends())
        return;
    pthread_mutex_lock(&pool->mutex);
    fl_slot *unseen = take_unseen_locked(pool, atomic_exchange(&pool->retired, NULL));
    pthread_mutex_unlock(&pool->mutex);
    recycle_list(unseen);
}

void fl_pool_close(fl_pool *pool)
{
    if (pool == NULL || is_foreign(pool)) return;
    fl_slot *returned = atomic_exchange_explicit(&pool->returned, CLOSED, memory_order_acquire);
    free_list(pool, pool->spare);
    free_list(pool, returned);
    free_outgrown(pool);
    pthread_mutex_lock(&pool->mutex);
    fl_slot *unseen = take_unseen_locked(pool, atomic_exchange(&pool->retired, CLOSED));
    fl_slot *seen = pool->seen;
    pthread_mutex_unlock(&pool->mutex);
    recycle_list(unseen);
    while (seen != NULL) {
        fl_slot *next = seen->next;
        abandon_slot(seen);
        seen = next;
    }
    drop_reference(pool);
}

static void raise_to(_Atomic int64_t *value, int64_t least)
{
    int64_t now = atomic_load_explicit(value, memory_order_relaxed);
    while (now < least && !atomic_compare_exchange_weak(value, &now, least)) continue;
}

void fl_pool_reserve(fl_pool *pool, int64_t slots) { raise_to(&pool->reserve, slots); }

void fl_pool_limit(fl_pool *pool, int64_t bytes)
{
    atomic_store_explicit(&pool->limit, bytes, memory_order_relaxed);
}

void fl_pool_trim(fl_pool *pool)
{
    if (is_foreign(pool)) return;
    recycle_unseen(pool);
    pthread_mutex_lock(&pool->mutex);
    fl_slot *spare = pool->spare;
    fl_slot *returned = atomic_exchange_explicit(&pool->returned, NULL, memory_order_acquire);
    pool->spare = NULL;
    pthread_mutex_unlock(&pool->mutex);
    free_list(pool, spare);
    free_list(pool, returned);
    free_outgrown(pool);
}

static fl_slot *pop_empty_locked(fl_pool *pool)
{
    if (pool->spare == NULL)
        pool->spare = atomic_exchange_explicit(&pool->returned, NULL, memory_order_acquire);
    fl_slot *slot = pool->spare;
    if (slot == NULL) return NULL;
    pool->spare = slot->next;
    count_empty(pool, -1, -held_bytes(slot));
    return slot;
}

/* Takes an EMPTY slot that is pinned and large enough; NULL: there is no such slot. */
static fl_slot *pop_pinned_locked(fl_pool *pool, int64_t bytes)
{
    fl_slot **place = &pool->spare;
    while (*place != NULL) place = &(*place)->next;
    *place = atomic_exchange_explicit(&pool->returned, NULL, memory_order_acquire);
    place = &pool->spare;
    while (*place != NULL && ((*place)->pinned == 0 || (*place)->pages.capacity < bytes))
        place = &(*place)->next;
    fl_slot *found = *place;
    if (found == NULL) return NULL;
    *place = found->next;
    count_empty(pool, -1, -held_bytes(found));
    return found;
}

static int make_slot(fl_pool *pool, int64_t bytes, fl_slot **out, fl_err *err)
{
    fl_slot *slot = fl_alloc((int64_t)sizeof *slot + pool->header_bytes);
    if (slot == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a batch slot");
    int status = open_memory(pool, slot, bytes, err);
    if (status != FL_OK) {
        fl_free(slot);
        return status;
    }
    slot->pool = pool;
    atomic_fetch_add_explicit(&pool->made, 1, memory_order_relaxed);
    int64_t others = atomic_fetch_add_explicit(&pool->references, 1, memory_order_relaxed) - 1;
    if (others >= atomic_load_explicit(&pool->reserve, memory_order_relaxed))
        atomic_fetch_add_explicit(&pool->replaced, 1, memory_order_relaxed);
    *out = slot;
    return FL_OK;
}

/* Returns the size of a new slot. In an arena, whose blocks are sparse, a slot has room for a
 * quarter more, because a slot that is too small for the next batch is freed. A large slot of an
 * arena that ulimit -v keeps small has not: fewer slots would fit. Without an arena a
 * slot is as large as the largest slot so far, so that it serves every batch. Pinned slots at least
 * double, so that slowly growing batches are pinned again only as often as they double. */
static int64_t find_size(fl_pool *pool, const fl_slot *outgrown, int64_t bytes)
{
    int64_t largest = atomic_load_explicit(&pool->slot_bytes, memory_order_relaxed);
    bool is_small = bytes <= INT64_MAX / 4;
    if (pool->arena != NULL && outgrown != NULL && is_small) return 2 * bytes;
    if (pool->arena != NULL)
        return bytes <= fl_arena_bytes(pool->arena) / 32 ? bytes + bytes / 4 : bytes;
    if (is_pinning(pool) && largest > 0 && bytes > largest && is_small)
        return fl_max(bytes, 2 * largest);
    return fl_max(bytes, largest);
}

/* Makes a slot in place of `outgrown`, which may be NULL. After a failure `outgrown` is back in the
 * pool. */
static int replace_slot(fl_pool *pool, fl_slot *outgrown, int64_t bytes, fl_slot **out, fl_err *err)
{
    int64_t size = find_size(pool, outgrown, bytes);
    int status = FL_OK;
    /* If there is no memory for the larger size, the size that was asked for will do. */
    if (size == bytes || make_slot(pool, size, out, NULL) != FL_OK)
        status = make_slot(pool, bytes, out, err);
    else
        raise_to(&pool->slot_bytes, size);
    if (outgrown == NULL) return status;
    if (status != FL_OK) {
        recycle(outgrown);
        return status;
    }
    (*out)->outgrown = fl_max(outgrown->pinned, outgrown->outgrown);
    keep_outgrown(outgrown);
    return FL_OK;
}

/* Forgets the contents of an EMPTY slot of private pages that children have had since a fork: the
 * system would split huge pages and copy what nobody needs, one small page at each first write. */
static void forget_shared(const fl_slot *slot)
{
    const int64_t since = slot->lent_at, now = fl_fork_count();
    if (since == now || !slot->pages.is_mapped || slot->pinned > 0) return;
    if (fl_fork_is_seen_for_good(since) || fl_fork_is_seen(since, now))
        fl_pages_forget(&slot->pages);
}

int fl_pool_get(fl_pool *pool, int64_t bytes, fl_slot **out, fl_err *err)
{
    *out = NULL;
    if (is_foreign(pool)) return fl_fail(err, FL_EFORK, "this pool belongs to a parent process");
    recycle_unseen(pool);
    pthread_mutex_lock(&pool->mutex);
    fl_slot *slot = is_pinning(pool) ? pop_pinned_locked(pool, bytes) : NULL;
    if (slot == NULL) slot = pop_empty_locked(pool);
    pthread_mutex_unlock(&pool->mutex);
    fl_slot *outgrown = NULL;
    if (slot != NULL && slot->pages.capacity < bytes) {
        if (slot->pinned > 0)
            outgrown = slot;
        else
            free_slot(slot);
        slot = NULL;
    }
    if (slot != NULL) forget_shared(slot);
    if (slot == NULL) FL_TRY(replace_slot(pool, outgrown, bytes, &slot, err));
    raise_to(&pool->slot_bytes, bytes);
    slot->before = slot->used;
    slot->used = fl_max(slot->used, bytes);
    *out = slot;
    return FL_OK;
}

bool fl_slot_is_pinned(const fl_slot *slot, int64_t bytes) { return bytes <= slot->pinned; }

int64_t fl_slot_pin_end(const fl_slot *slot, int64_t at)
{
    int32_t i = 0;
    assert(at < slot->pinned);
    while (slot->ends[i] <= at) i++;
    return slot->ends[i];
}

/* Returns up to which byte to pin if `bytes` are wanted. A block is sparse and pinning populates
 * its pages, so no more than `bytes` is pinned at first, and at least twice as much each time the
 * block has to grow. */
static int64_t find_pinned_size(const fl_slot *slot, int64_t bytes)
{
    int64_t capacity = slot->pages.capacity;
    if (slot->block == NULL) return capacity;
    int64_t before = fl_max(slot->outgrown, slot->pinned);
    int64_t least = bytes > before ? 2 * before : before;
    return fl_min(capacity, fl_max(fl_pages_whole(bytes), least));
}

int fl_slot_pin(fl_slot *slot, int64_t bytes, fl_err *err)
{
    const fl_pinner *pinner = &slot->pool->pinner;
    assert(is_pinning(slot->pool) && bytes <= slot->pages.capacity && slot->pins < MOST_PINS);
    if (fl_slot_is_pinned(slot, bytes)) return FL_OK;
    int64_t end = find_pinned_size(slot, bytes);
    char *data = slot->pages.data + slot->pinned;
    (void)fl_pages_populate(data, end - slot->pinned); /* pinning would fault page by page */
    FL_TRY(pinner->pin(pinner->device, data, end - slot->pinned, err));
    slot->ends[slot->pins++] = slot->pinned = end;
    slot->used = fl_max(slot->used, end);
    return FL_OK;
}

void fl_slot_return(fl_slot *slot)
{
    if (slot == NULL || is_foreign(slot->pool)) return;
    assert(atomic_load(&slot->shares) == 0);
    recycle(slot);
}

void fl_slot_lend(fl_slot *slot, int32_t shares)
{
    assert(shares >= 1 && atomic_load(&slot->shares) == 0 && slot->pool->pinner.pin == NULL);
    atomic_fetch_add_explicit(&slot->pool->lent, 1, memory_order_relaxed);
    slot->lent_at = fl_fork_count();
    atomic_store_explicit(&slot->shares, shares, memory_order_release);
}

void fl_slot_share(fl_slot *slot)
{
    atomic_fetch_add_explicit(&slot->shares, 1, memory_order_relaxed);
}

void fl_slot_give(fl_slot *slot)
{
    if (is_foreign(slot->pool)) return;
    /* acq_rel: all uses of the memory by the holders of the other shares come before its reuse. */
    if (atomic_fetch_sub_explicit(&slot->shares, 1, memory_order_acq_rel) != 1) return;
    atomic_fetch_sub_explicit(&slot->pool->lent, 1, memory_order_relaxed);
    slot->given_at = fl_fork_count();
    if (slot->block != NULL && slot->given_at != slot->lent_at)
        retire(slot);
    else
        recycle(slot);
}

char *fl_slot_data(const fl_slot *slot) { return slot->pages.data; }

int64_t fl_slot_bytes(const fl_slot *slot) { return slot->pages.capacity; }

void *fl_slot_header(fl_slot *slot) { return slot->header; }

int64_t fl_slot_used(const fl_slot *slot) { return slot->before; }

void fl_pool_count(const fl_pool *pool, fl_pool_stats *out)
{
    int64_t empty = atomic_load_explicit(&pool->empty, memory_order_relaxed);
    *out = (fl_pool_stats){.lent = atomic_load_explicit(&pool->lent, memory_order_relaxed),
                           .made = atomic_load_explicit(&pool->made, memory_order_relaxed),
                           .replaced = atomic_load_explicit(&pool->replaced, memory_order_relaxed),
                           .empty = empty};
}
