/* fl_ring: see fl_ring.h.
 *
 * One mutex guards everything; it is held for a few list operations, never while copying. Batches
 * live in `depth` entries that move between two lists: free, and posted in order of number. Work
 * is handed out part by part from the oldest batch on. */
#include "fl_ring.h"

#include "fl_pages.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

enum {
    CONSUMER_SPIN_NS = 10000, /* watching for a part to be done: being woken takes longer; */
    MAX_SPINS = 2,            /* so often in one take */
    THREAD_SPIN_NS = 30000    /* watching for work: being woken keeps the waker for 10 us */
};

typedef struct fl_entry {
    fl_batch batch;
    struct fl_entry *next; /* ring.mutex */
    int32_t front, back;   /* ring.mutex: parts from front to back are not handed out yet */
    int32_t parts;         /* ring.mutex: those of the batch, and one if it was added */
    int32_t filled;        /* ring.mutex: parts done; == parts: the batch is ready */
    int status;            /* ring.mutex: first failure of a part, or of a mark */
    fl_err error;          /* ring.mutex: goes with status */
} fl_entry;

struct fl_ring {
    fl_ring_config config; /* set at open, then read-only */
    uint32_t generation;   /* likewise */
    pthread_mutex_t mutex;
    pthread_cond_t has_work;   /* ring threads wait here for parts to copy */
    pthread_cond_t has_ready;  /* the consumer waits here for parts others copy */
    fl_entry *entries;         /* owned: config.depth of them */
    fl_entry *free;            /* consumer only */
    fl_entry *oldest, *newest; /* mutex: posted */
    fl_entry *work;            /* mutex: first posted entry with unclaimed parts, or NULL */
    int64_t unfilled;          /* mutex: posted entries with unclaimed parts */
    int64_t posted_count;      /* written by the consumer under the mutex */
    int64_t next_number;       /* consumer only */
    int32_t idle_threads;      /* mutex: in has_work */
    int32_t busy_parts;        /* mutex: parts being copied */
    bool consumer_waits;       /* mutex: in has_ready for a batch to be ready */
    bool consumer_drains;      /* mutex: in has_ready for busy_parts to be 0 */
    bool is_closing;           /* mutex */
    _Atomic int64_t finished;  /* parts so far, and batches so far: changed under the mutex, */
    _Atomic int64_t posted;    /* watched for change without it */
    bool is_alone;             /* set at open: one CPU, spinning only keeps others from working */
    bool is_stopped;           /* mutex */
    pthread_t *threads;        /* owned; consumer only */
    int32_t thread_count;      /* consumer only: started */
};

static inline bool is_foreign(const fl_ring *ring)
{
    return ring->generation != fl_fork_generation();
}

static inline bool is_ready(const fl_entry *entry) { return entry->filled == entry->parts; }

static inline bool has_unclaimed(const fl_entry *entry) { return entry->front < entry->back; }

static fl_entry *find_work(fl_entry *entry)
{
    while (entry != NULL && !has_unclaimed(entry)) entry = entry->next;
    return entry;
}

/* Behind the first, whose row list may be in the making. */
static void put_free(fl_ring *ring, fl_entry *entry)
{
    fl_entry **place = ring->free != NULL ? &ring->free->next : &ring->free;
    entry->next = *place;
    *place = entry;
}

/* Makes the pages of this part present in one call where they may be new. */
static void populate_part(const fl_batch *batch, int32_t part)
{
    int64_t share = batch->bytes / batch->parts;
    int64_t to = part + 1 == batch->parts ? batch->bytes : share * (part + 1);
    int64_t from = fl_max(share * part, fl_slot_used(batch->slot));
    if (part < batch->parts && batch->bytes >= FL_PAGES_MAPPED_FROM && to > from)
        (void)fl_pages_populate(fl_slot_data(batch->slot) + from, to - from);
}

/* Copies one part of ring->work. Enters and leaves with the mutex held, not while copying. The
 * consumer takes parts from the front and the threads from the back, so that each finds much of
 * a reused slot in its own cache. */
static void run_part_locked(fl_ring *ring, bool is_consumer)
{
    fl_entry *entry = ring->work;
    assert(has_unclaimed(entry));
    int32_t part = is_consumer ? entry->front++ : --entry->back;
    ring->unfilled -= !has_unclaimed(entry);
    ring->work = find_work(entry);
    ring->busy_parts++;
    bool is_spoilt = entry->status != FL_OK;
    pthread_mutex_unlock(&ring->mutex);

    fl_err error = {0};
    int status = FL_OK;
    if (!is_spoilt) {
        populate_part(&entry->batch, part);
        status = ring->config.fill(ring->config.context, &entry->batch, part, &error);
    }

    pthread_mutex_lock(&ring->mutex);
    ring->busy_parts--;
    if (status != FL_OK && entry->status == FL_OK) {
        entry->status = status;
        entry->error = error;
    }
    entry->filled++;
    atomic_fetch_add_explicit(&ring->finished, 1, memory_order_relaxed);
    bool is_awaited = entry == ring->oldest || !ring->config.is_in_order;
    if ((ring->consumer_waits && is_awaited && is_ready(entry)) ||
        (ring->consumer_drains && ring->busy_parts == 0))
        pthread_cond_signal(&ring->has_ready);
}

/* Watches for a change of `events`, without the mutex, for a moment. */
static void spin_locked(fl_ring *ring, _Atomic int64_t *events, int64_t spin_ns)
{
    if (ring->is_alone) return;
    int64_t until_ns = fl_now_ns() + spin_ns;
    int64_t seen = atomic_load_explicit(events, memory_order_relaxed);
    pthread_mutex_unlock(&ring->mutex);
    while (atomic_load_explicit(events, memory_order_relaxed) == seen && fl_now_ns() < until_ns)
        fl_relax();
    pthread_mutex_lock(&ring->mutex);
}

static void *run_thread(void *arg)
{
    fl_ring *ring = arg;
    bool has_spun = true;
    pthread_mutex_lock(&ring->mutex);
    while (!ring->is_closing) {
        if (ring->work != NULL) {
            run_part_locked(ring, false);
            has_spun = false;
        } else if (!has_spun) {
            spin_locked(ring, &ring->posted, THREAD_SPIN_NS);
            has_spun = true;
        } else {
            ring->idle_threads++;
            pthread_cond_wait(&ring->has_work, &ring->mutex);
            ring->idle_threads--;
        }
    }
    pthread_mutex_unlock(&ring->mutex);
    return NULL;
}

static int start_threads(fl_ring *ring, fl_err *err)
{
    while (ring->thread_count < ring->config.threads) {
        FL_TRY(fl_thread_start(&ring->threads[ring->thread_count], run_thread, ring, err));
        ring->thread_count++;
    }
    return FL_OK;
}

static int open_locks(fl_ring *ring, fl_err *err)
{
    FL_TRY(fl_mutex_open(&ring->mutex, err));
    int status = fl_cond_open(&ring->has_work, err);
    if (status == FL_OK) {
        status = fl_cond_open(&ring->has_ready, err);
        if (status == FL_OK) return FL_OK;
        pthread_cond_destroy(&ring->has_work);
    }
    pthread_mutex_destroy(&ring->mutex);
    return status;
}

static void free_memory(fl_ring *ring)
{
    for (int64_t i = 0; ring->entries != NULL && i < ring->config.depth; i++)
        fl_rows_close(&ring->entries[i].batch.rows);
    fl_free(ring->entries);
    fl_free(ring->threads);
    fl_free(ring);
}

static int allocate(const fl_ring_config *config, fl_ring **out, fl_err *err)
{
    fl_ring *ring = fl_alloc(sizeof *ring);
    if (ring != NULL) {
        int64_t bytes;
        ring->config = *config;
        ring->generation = fl_fork_generation();
        ring->is_alone = fl_cpu_count() == 1;
        if (fl_mul(config->depth, sizeof *ring->entries, &bytes)) ring->entries = fl_alloc(bytes);
        ring->threads = fl_alloc(config->threads * (int64_t)sizeof *ring->threads);
        if (ring->entries != NULL && ring->threads != NULL) {
            *out = ring;
            return FL_OK;
        }
        free_memory(ring);
    }
    return fl_fail(err, FL_ENOMEM, "out of memory for a ring of %lld batches",
                   (long long)config->depth);
}

int fl_ring_open(const fl_ring_config *config, fl_ring **out, fl_err *err)
{
    assert(config->depth >= 1 && config->threads >= (config->runs_ahead ? 1 : 0));
    *out = NULL;
    fl_ring *ring = NULL;
    FL_TRY(allocate(config, &ring, err));
    int status = open_locks(ring, err);
    if (status != FL_OK) {
        free_memory(ring);
        return status;
    }
    for (int64_t i = 0; i < config->depth; i++) put_free(ring, &ring->entries[i]);
    if (config->runs_ahead) status = start_threads(ring, err);
    if (status != FL_OK) {
        fl_ring_close(ring);
        return status;
    }
    *out = ring;
    return FL_OK;
}

fl_rows *fl_ring_rows(fl_ring *ring)
{
    /* The consumer alone takes entries from the free list and puts them there. */
    if (is_foreign(ring) || ring->free == NULL) return NULL;
    fl_rows_clear(&ring->free->batch.rows);
    return &ring->free->batch.rows;
}

static inline bool is_worth_waking_locked(const fl_ring *ring, const fl_batch *batch)
{
    return batch->bytes >= ring->config.lazy_bytes ||
           ring->unfilled >= ring->config.depth - ring->config.depth / 4;
}

static void wake_threads_locked(fl_ring *ring, const fl_batch *batch)
{
    if (!is_worth_waking_locked(ring, batch)) return;
    int32_t wanted = ring->config.runs_ahead ? batch->parts : batch->parts - 1;
    for (int32_t n = (int32_t)fl_min(wanted, ring->idle_threads); n > 0; n--)
        pthread_cond_signal(&ring->has_work);
}

/* Moves the first free entry, its batch and status set, to the end of the posted ones. */
static void append(fl_ring *ring)
{
    fl_entry *entry = ring->free;
    ring->free = entry->next;
    entry->next = NULL;
    entry->front = entry->filled = 0;
    entry->parts = entry->back = entry->batch.parts;
    entry->batch.number = ring->next_number++;
    pthread_mutex_lock(&ring->mutex);
    if (ring->newest != NULL)
        ring->newest->next = entry;
    else
        ring->oldest = entry;
    ring->newest = entry;
    ring->posted_count++;
    atomic_fetch_add_explicit(&ring->posted, 1, memory_order_relaxed);
    if (ring->work == NULL) ring->work = find_work(entry);
    ring->unfilled += has_unclaimed(entry);
    wake_threads_locked(ring, &entry->batch);
    pthread_mutex_unlock(&ring->mutex);
}

int fl_ring_submit(fl_ring *ring, int64_t bytes, int32_t parts, int64_t tag, fl_err *err)
{
    if (is_foreign(ring)) return fl_fail(err, FL_EFORK, "this ring belongs to a parent process");
    assert(ring->free != NULL && parts >= 1);
    fl_batch *batch = &ring->free->batch;
    FL_TRY(fl_pool_get(ring->config.pool, bytes, &batch->slot, err));
    batch->bytes = bytes;
    batch->parts = parts;
    batch->tag = tag;
    ring->free->status = FL_OK;
    /* Helpers that cannot be started only leave more to the consumer. */
    if (!ring->config.runs_ahead && parts > 1) (void)start_threads(ring, NULL);
    append(ring);
    return FL_OK;
}

void fl_ring_submit_sentinel(fl_ring *ring, int status, const fl_err *error, int64_t tag)
{
    if (is_foreign(ring)) return;
    assert(ring->free != NULL);
    fl_entry *entry = ring->free;
    entry->batch.slot = NULL;
    entry->batch.bytes = 0;
    entry->batch.parts = 0;
    entry->batch.tag = tag;
    entry->status = status;
    entry->error = error != NULL ? *error : (fl_err){.code = status};
    append(ring);
}

/* The posted entry that is ready for the consumer, or NULL; *before is the one before it. */
static fl_entry *look_ready_locked(const fl_ring *ring, fl_entry **before)
{
    fl_entry *entry = ring->oldest;
    *before = NULL;
    while (entry != NULL && !is_ready(entry) && !ring->config.is_in_order) {
        *before = entry;
        entry = entry->next;
    }
    return entry != NULL && is_ready(entry) ? entry : NULL;
}

static fl_entry *pop_ready_locked(fl_ring *ring)
{
    fl_entry *before, *entry = look_ready_locked(ring, &before);
    if (entry == NULL) return NULL;
    if (before != NULL)
        before->next = entry->next;
    else
        ring->oldest = entry->next;
    if (ring->newest == entry) ring->newest = before;
    ring->posted_count--;
    return entry;
}

/* Sleeps until a batch may be ready or the deadline has passed. */
static void wait_ready_locked(fl_ring *ring, int64_t deadline_ns)
{
    ring->consumer_waits = true;
    (void)fl_cond_wait_until(&ring->has_ready, &ring->mutex, deadline_ns);
    ring->consumer_waits = false;
}

static int find_ready_locked(fl_ring *ring, fl_entry **out)
{
    if (ring->is_stopped) return FL_ECLOSED;
    if (ring->posted_count == 0) return FL_EEND;
    *out = pop_ready_locked(ring);
    return *out != NULL ? FL_OK : FL_ETIMEOUT;
}

static inline bool can_fill_locked(const fl_ring *ring)
{
    return ring->work != NULL && (ring->config.consumer_fills || !ring->config.runs_ahead);
}

static int take_entry(fl_ring *ring, int64_t wait_ms, fl_entry **out)
{
    int64_t deadline_ns = wait_ms > 0 ? fl_now_ns() + wait_ms * 1000000 : INT64_MAX;
    int spins = 0, status;
    pthread_mutex_lock(&ring->mutex);
    while ((status = find_ready_locked(ring, out)) == FL_ETIMEOUT) {
        if (can_fill_locked(ring))
            run_part_locked(ring, true);
        else if (wait_ms <= 0)
            break;
        else if (spins++ < MAX_SPINS)
            spin_locked(ring, &ring->finished, CONSUMER_SPIN_NS);
        else
            wait_ready_locked(ring, deadline_ns);
        if (wait_ms > 0 && fl_now_ns() >= deadline_ns) break; /* whoever calls again finds it */
    }
    pthread_mutex_unlock(&ring->mutex);
    return status;
}

int fl_ring_receive(fl_ring *ring, int64_t wait_ms, fl_batch *out, fl_err *err)
{
    if (is_foreign(ring)) return fl_fail(err, FL_EFORK, "this ring belongs to a parent process");
    fl_entry *entry;
    FL_TRY(take_entry(ring, wait_ms, &entry));
    *out = entry->batch;
    int status = entry->status;
    if (status != FL_OK) {
        if (err != NULL) *err = entry->error;
        fl_slot_return(out->slot);
        out->slot = NULL;
    }
    put_free(ring, entry);
    return status;
}

bool fl_ring_is_ready(fl_ring *ring)
{
    if (is_foreign(ring)) return true;
    pthread_mutex_lock(&ring->mutex);
    fl_entry *before;
    bool is_certain =
        ring->is_stopped || ring->posted_count == 0 || look_ready_locked(ring, &before) != NULL;
    pthread_mutex_unlock(&ring->mutex);
    return is_certain;
}

static fl_entry *posted_at(const fl_ring *ring, int64_t place)
{
    /* The consumer alone changes the list. */
    fl_entry *entry = ring->oldest;
    while (entry != NULL && place-- > 0) entry = entry->next;
    return entry;
}

const fl_batch *fl_ring_submitted(const fl_ring *ring, int64_t place)
{
    const fl_entry *entry = is_foreign(ring) ? NULL : posted_at(ring, place);
    return entry != NULL ? &entry->batch : NULL;
}

void fl_ring_add_part(fl_ring *ring, int64_t place)
{
    if (is_foreign(ring)) return;
    fl_entry *entry = posted_at(ring, place);
    pthread_mutex_lock(&ring->mutex);
    assert(!has_unclaimed(entry) && entry->parts == entry->batch.parts);
    entry->front = entry->batch.parts;
    entry->back = entry->parts = entry->batch.parts + 1;
    ring->unfilled++;
    ring->work = find_work(ring->oldest);
    atomic_fetch_add_explicit(&ring->posted, 1, memory_order_relaxed);
    if (ring->idle_threads > 0) pthread_cond_signal(&ring->has_work);
    pthread_mutex_unlock(&ring->mutex);
}

int64_t fl_ring_pending(const fl_ring *ring) { return ring->posted_count; }

/* Empties the posted list once no part is being copied. */
static void drop_posted_locked(fl_ring *ring)
{
    ring->work = NULL;
    ring->unfilled = 0;
    ring->consumer_drains = true;
    while (ring->busy_parts > 0) pthread_cond_wait(&ring->has_ready, &ring->mutex);
    ring->consumer_drains = false;
    while (ring->oldest != NULL) {
        fl_entry *entry = ring->oldest;
        ring->oldest = entry->next;
        fl_slot_return(entry->batch.slot);
        put_free(ring, entry);
    }
    ring->newest = NULL;
    ring->posted_count = 0;
}

void fl_ring_reset(fl_ring *ring)
{
    if (is_foreign(ring)) return;
    pthread_mutex_lock(&ring->mutex);
    drop_posted_locked(ring);
    pthread_mutex_unlock(&ring->mutex);
    ring->next_number = 0;
}

void fl_ring_stop(fl_ring *ring)
{
    if (is_foreign(ring)) return;
    pthread_mutex_lock(&ring->mutex);
    ring->is_stopped = true;
    pthread_cond_signal(&ring->has_ready);
    pthread_mutex_unlock(&ring->mutex);
}

void fl_ring_close(fl_ring *ring)
{
    if (ring == NULL || is_foreign(ring)) return;
    pthread_mutex_lock(&ring->mutex);
    ring->is_closing = true;
    drop_posted_locked(ring);
    atomic_fetch_add_explicit(&ring->posted, 1, memory_order_relaxed);
    pthread_cond_broadcast(&ring->has_work);
    pthread_mutex_unlock(&ring->mutex);
    for (int32_t i = 0; i < ring->thread_count; i++) pthread_join(ring->threads[i], NULL);
    pthread_cond_destroy(&ring->has_ready);
    pthread_cond_destroy(&ring->has_work);
    pthread_mutex_destroy(&ring->mutex);
    free_memory(ring);
}
