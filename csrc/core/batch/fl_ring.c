/* fl_ring: see fl_ring.h.
 *
 * One mutex guards the state. The mutex is held for a few list operations, never while a part is
 * filled. Batches live in `depth` entries that move between two lists: free, and submitted in order
 * of number. Threads claim parts from the oldest batch on. */
#include "fl_ring.h"

#include "fl_cpus.h"
#include "fl_pages.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

enum {
    CONSUMER_SPIN_NS = 10000, /* the consumer polls this long before sleeping */
    MAX_SPINS = 2,            /* polls of the consumer in one receive */
    THREAD_SPIN_NS = 30000, /* a thread polls this long for work: waking it costs the waker 10 us */
    WAKES = 2               /* a thread wakes this many, which wake the next */
};

typedef struct fl_entry {
    fl_batch batch;
    /* On a line of its own: threads that fill read the batch while others claim its parts. */
    _Alignas(64) struct fl_entry *next; /* ring.mutex; in the free list: consumer only */
    int32_t front, back;                /* ring.mutex: parts front <= part < back are unclaimed */
    int32_t parts;  /* ring.mutex: parts of the batch, and one more if a part was added */
    int32_t filled; /* ring.mutex: parts done; == parts: the batch is ready */
    int status;     /* ring.mutex: the first failure of a part, or a sentinel's status */
    fl_err error;   /* ring.mutex: goes with status */
} fl_entry;

struct fl_ring {
    fl_ring_config config; /* set at open, then read-only */
    uint32_t generation;   /* set at open, then read-only */
    bool is_alone;         /* set at open, then read-only: there is one CPU, so polling would keep
                              other threads from working */
    fl_entry *entries;     /* set at open, then read-only; owned: config.depth entries */
    pthread_t *threads;    /* owned; consumer only */
    int32_t thread_count;  /* consumer only: threads started */
    _Alignas(64) fl_entry *free; /* consumer only: the free list */
    int64_t next_number;         /* consumer only */
    _Alignas(64) pthread_mutex_t mutex;
    pthread_cond_t has_work;   /* ring threads wait here for parts to fill */
    pthread_cond_t has_ready;  /* the consumer waits here for parts that threads fill */
    fl_entry *oldest, *newest; /* mutex: the submitted list. The consumer alone changes the list */
    fl_entry *work;            /* mutex: first submitted entry with unclaimed parts, or NULL */
    int64_t unclaimed;         /* mutex: submitted entries with unclaimed parts */
    int64_t pending;           /* entries submitted; the consumer writes it under the mutex */
    int32_t idle_threads;      /* mutex: threads waiting for has_work */
    int32_t wanted;            /* mutex: idle threads that are still to be woken */
    int32_t fillers;           /* mutex: threads that fill parts or are inside a gate */
    bool consumer_waits;       /* mutex: waits for has_ready until a batch is ready */
    bool consumer_drains;      /* mutex: waits for has_ready until fillers is 0 */
    bool is_closing;           /* mutex */
    bool is_stopped;           /* mutex */
    /* Written under the mutex, polled without: relaxed, because a thread that sees a change takes
     * the mutex before it reads anything else. Each is on a line of its own, because a line that
     * is polled would slow down writes of its neighbours. */
    _Alignas(64) _Atomic int64_t finished;  /* batches filled so far */
    _Alignas(64) _Atomic int64_t submitted; /* batches and added parts so far */
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

/* Puts the entry after the first free entry, because the batch of the first may be prepared. */
static void put_free(fl_ring *ring, fl_entry *entry)
{
    fl_entry **place = ring->free != NULL ? &ring->free->next : &ring->free;
    entry->next = *place;
    *place = entry;
}

/* Faults in the pages of this part of a slot in one call, if the pages may be new. */
static void populate_part(const fl_batch *batch, int32_t part)
{
    if (batch->slot == NULL || batch->bytes < FL_PAGES_MAPPED_FROM) return;
    int64_t share = batch->bytes / batch->parts;
    int64_t to = part + 1 == batch->parts ? batch->bytes : share * (part + 1);
    int64_t from = fl_max(share * part, fl_slot_used(batch->slot));
    if (to > from) (void)fl_pages_populate(batch->data + from, to - from);
}

/* The consumer or a thread, while parts are filled. Lies on its stack. */
typedef struct filler {
    bool is_consumer;
    bool is_counted; /* among ring.fillers: fills a part, or is inside the gate */
    fl_gate *inside; /* borrowed: the gate of the last batch; NULL: none */
} filler;

/* Brings the filler inside `gate`, which may be NULL. A filler that is inside already makes way,
 * and waits, if the gate has been closed. */
static void pass_gate(filler *self, fl_gate *gate)
{
    if (self->inside == gate && (gate == NULL || !fl_gate_is_closed(gate))) return;
    if (self->inside != NULL) fl_gate_leave(self->inside);
    if (gate != NULL) fl_gate_enter(gate);
    self->inside = gate;
}

/* Fills one part. Part number batch->parts is the part that fl_ring_add_part adds. */
static int fill_one(const fl_ring_config *config, const fl_batch *batch, int32_t part, fl_err *err)
{
    if (part == batch->parts) {
        (void)config->transfers->start(batch->transfer, batch->slot, batch->bytes, NULL);
        return FL_OK;
    }
    populate_part(batch, part);
    FL_TRY(config->fill(batch, part, err));
    if (batch->transfer != NULL)
        config->transfers->part_filled(batch->transfer, part, batch->slot, batch->bytes);
    return FL_OK;
}

static int fill_some(const fl_ring_config *config, const fl_batch *batch, int32_t first,
                     int32_t count, filler *self, fl_err *err)
{
    for (int32_t part = first; part < first + count; part++) {
        pass_gate(self, batch->gate);
        FL_TRY(fill_one(config, batch, part, err));
    }
    return FL_OK;
}

/* Takes over some of the wake-ups that are due. The caller does them without the mutex. */
static int32_t take_wakes_locked(fl_ring *ring)
{
    int32_t wakes = (int32_t)fl_min(WAKES, fl_min(ring->wanted, ring->idle_threads));
    ring->wanted -= wakes;
    return wakes;
}

/* Returns how many parts a thread claims at once. Early claims are large, so threads seldom meet at
 * the mutex; late claims are small, so threads end together. Parts that may wait for a disk are
 * claimed singly, because close() waits for a claim. */
static int32_t claim_size(const fl_ring *ring, const fl_entry *entry)
{
    if (entry->batch.layout.may_wait) return 1;
    int64_t fillers = ring->config.threads + 1; /* and the consumer */
    return (int32_t)fl_max(1, (entry->back - entry->front) / (4 * fillers));
}

/* Claims and fills parts of ring->work. The mutex is released while parts are filled. The consumer
 * claims parts from the front and the threads from the back, so that each side finds much of a
 * reused slot in its own cache. The consumer claims one part, because signals and timeouts wait. */
static void run_claim_locked(fl_ring *ring, filler *self)
{
    fl_entry *entry = ring->work;
    assert(has_unclaimed(entry));
    int32_t count = self->is_consumer ? 1 : claim_size(ring, entry);
    int32_t first = self->is_consumer ? entry->front++ : (entry->back -= count);
    ring->unclaimed -= !has_unclaimed(entry);
    ring->work = find_work(entry);
    if (ring->work == NULL) ring->wanted = 0;
    int32_t wakes = self->is_consumer ? 0 : take_wakes_locked(ring);
    ring->fillers += !self->is_counted;
    self->is_counted = true;
    bool has_failed = entry->status != FL_OK;
    pthread_mutex_unlock(&ring->mutex);

    fl_ring_wake(ring, wakes);
    fl_err error = {0};
    int status = FL_OK;
    if (!has_failed) status = fill_some(&ring->config, &entry->batch, first, count, self, &error);

    pthread_mutex_lock(&ring->mutex);
    if (status != FL_OK && entry->status == FL_OK) {
        entry->status = status;
        entry->error = error;
    }
    entry->filled += count;
    if (!is_ready(entry)) return;
    atomic_fetch_add_explicit(&ring->finished, 1, memory_order_relaxed);
    bool is_awaited = entry == ring->oldest || !ring->config.is_in_order;
    if (ring->consumer_waits && is_awaited) pthread_cond_signal(&ring->has_ready);
}

/* Leaves the gate, and ends the filling since the first claim. A filler is counted until it has
 * left the gate, because the gate may be freed once nobody is counted. */
static void rest_locked(fl_ring *ring, filler *self)
{
    if (self->inside != NULL) {
        pthread_mutex_unlock(&ring->mutex);
        fl_gate_leave(self->inside);
        self->inside = NULL;
        pthread_mutex_lock(&ring->mutex);
    }
    ring->fillers -= self->is_counted;
    self->is_counted = false;
    if (ring->consumer_drains && ring->fillers == 0) pthread_cond_signal(&ring->has_ready);
}

/* Polls for a change of `events` for spin_ns, with the mutex released. */
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
    filler self = {0};
    bool has_spun = true;
    pthread_mutex_lock(&ring->mutex);
    while (!ring->is_closing) {
        if (ring->work != NULL) {
            run_claim_locked(ring, &self);
            has_spun = false;
        } else if (self.is_counted) {
            rest_locked(ring, &self);
        } else if (!has_spun) {
            spin_locked(ring, &ring->submitted, THREAD_SPIN_NS);
            has_spun = true;
        } else {
            ring->idle_threads++;
            pthread_cond_wait(&ring->has_work, &ring->mutex);
            ring->idle_threads--;
        }
    }
    rest_locked(ring, &self);
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
    for (int64_t i = 0; ring->entries != NULL && i < ring->config.depth; i++) {
        fl_rows_close(&ring->entries[i].batch.rows);
        fl_layout_close(&ring->entries[i].batch.layout);
    }
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

bool fl_ring_fits(const fl_ring *ring, const fl_ring_config *config)
{
    const fl_ring_config *own = &ring->config;
    return !is_foreign(ring) && !ring->is_stopped && own->fill == config->fill &&
           own->transfers == config->transfers && own->pool == config->pool &&
           own->depth == config->depth && own->threads == config->threads &&
           own->runs_ahead == config->runs_ahead && own->consumer_fills == config->consumer_fills &&
           own->lazy_bytes == config->lazy_bytes && own->is_in_order == config->is_in_order;
}

fl_batch *fl_ring_prepare(fl_ring *ring)
{
    if (is_foreign(ring) || ring->free == NULL) return NULL;
    fl_batch *batch = &ring->free->batch;
    *batch = (fl_batch){.rows = batch->rows, .layout = batch->layout};
    fl_rows_clear(&batch->rows);
    return batch;
}

static inline bool is_worth_waking_locked(const fl_ring *ring, const fl_batch *batch)
{
    return batch->work_bytes >= ring->config.lazy_bytes ||
           ring->unclaimed >= ring->config.depth - ring->config.depth / 4;
}

/* Makes wake-ups of idle threads due. */
static void want_threads_locked(fl_ring *ring, int32_t threads)
{
    ring->wanted = (int32_t)fl_min((int64_t)ring->wanted + threads, ring->idle_threads);
}

/* Moves the first free entry, with its batch and status set, to the end of the submitted list. */
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
    ring->pending++;
    atomic_fetch_add_explicit(&ring->submitted, 1, memory_order_relaxed);
    if (ring->work == NULL) ring->work = find_work(entry);
    ring->unclaimed += has_unclaimed(entry);
    if (is_worth_waking_locked(ring, &entry->batch))
        want_threads_locked(ring, entry->batch.parts - !ring->config.runs_ahead);
    pthread_mutex_unlock(&ring->mutex);
}

int fl_ring_submit(fl_ring *ring, fl_err *err)
{
    if (is_foreign(ring)) return fl_fail(err, FL_EFORK, "this ring belongs to a parent process");
    assert(ring->free != NULL);
    fl_batch *batch = &ring->free->batch;
    assert(batch->parts >= 1 && (batch->transfer == NULL || batch->data == NULL));
    if (batch->data == NULL) {
        FL_TRY(fl_pool_get(ring->config.pool, batch->bytes, &batch->slot, err));
        batch->data = fl_slot_data(batch->slot);
    }
    ring->free->status = FL_OK;
    /* If helpers cannot be started, the consumer fills more parts. */
    if (!ring->config.runs_ahead && batch->parts > 1) (void)start_threads(ring, NULL);
    append(ring);
    return FL_OK;
}

void fl_ring_submit_sentinel(fl_ring *ring, int status, const fl_err *error, int64_t tag)
{
    if (is_foreign(ring)) return;
    fl_batch *batch = fl_ring_prepare(ring);
    assert(batch != NULL);
    batch->tag = tag;
    ring->free->status = status;
    ring->free->error = error != NULL ? *error : (fl_err){.code = status};
    append(ring);
}

/* Returns the submitted entry that is ready for the consumer, or NULL. *before is the preceding
 * entry. */
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
    ring->pending--;
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
    if (ring->pending == 0) return FL_EEND;
    *out = pop_ready_locked(ring);
    return *out != NULL ? FL_OK : FL_ETIMEOUT;
}

static inline bool can_fill_locked(const fl_ring *ring)
{
    if (ring->work == NULL || !ring->config.runs_ahead) return ring->work != NULL;
    return ring->config.consumer_fills && !ring->work->batch.layout.may_wait;
}

static int receive_entry(fl_ring *ring, int64_t wait_ms, fl_entry **out)
{
    int64_t deadline_ns = wait_ms > 0 ? fl_now_ns() + wait_ms * 1000000 : INT64_MAX;
    int spins = 0, status;
    filler self = {.is_consumer = true};
    if (wait_ms > 0) fl_ring_wake(ring, fl_ring_take_wakes(ring));
    pthread_mutex_lock(&ring->mutex);
    while ((status = find_ready_locked(ring, out)) == FL_ETIMEOUT) {
        if (can_fill_locked(ring))
            run_claim_locked(ring, &self);
        else if (wait_ms <= 0)
            break;
        else if (self.is_counted)
            rest_locked(ring, &self);
        else if (spins++ < MAX_SPINS)
            spin_locked(ring, &ring->finished, CONSUMER_SPIN_NS);
        else
            wait_ready_locked(ring, deadline_ns);
        if (wait_ms > 0 && fl_now_ns() >= deadline_ns) break; /* the next call receives the batch */
    }
    rest_locked(ring, &self);
    pthread_mutex_unlock(&ring->mutex);
    return status;
}

int fl_ring_receive(fl_ring *ring, int64_t wait_ms, fl_batch *out, fl_err *err)
{
    if (is_foreign(ring)) return fl_fail(err, FL_EFORK, "this ring belongs to a parent process");
    fl_entry *entry;
    FL_TRY(receive_entry(ring, wait_ms, &entry));
    *out = entry->batch;
    int status = entry->status;
    if (status != FL_OK && err != NULL) *err = entry->error;
    put_free(ring, entry);
    return status;
}

int32_t fl_ring_take_wakes(fl_ring *ring)
{
    if (is_foreign(ring)) return 0;
    pthread_mutex_lock(&ring->mutex);
    int32_t wakes = take_wakes_locked(ring);
    pthread_mutex_unlock(&ring->mutex);
    return wakes;
}

void fl_ring_wake(fl_ring *ring, int32_t wakes)
{
    while (wakes-- > 0) pthread_cond_signal(&ring->has_work);
}

bool fl_ring_is_ready(fl_ring *ring)
{
    if (is_foreign(ring)) return true;
    pthread_mutex_lock(&ring->mutex);
    fl_entry *before;
    bool is_certain =
        ring->is_stopped || ring->pending == 0 || look_ready_locked(ring, &before) != NULL;
    pthread_mutex_unlock(&ring->mutex);
    return is_certain;
}

static fl_entry *submitted_at(const fl_ring *ring, int64_t position)
{
    fl_entry *entry = ring->oldest;
    while (entry != NULL && position-- > 0) entry = entry->next;
    return entry;
}

const fl_batch *fl_ring_submitted(const fl_ring *ring, int64_t position)
{
    const fl_entry *entry = is_foreign(ring) ? NULL : submitted_at(ring, position);
    return entry != NULL ? &entry->batch : NULL;
}

void fl_ring_add_part(fl_ring *ring, int64_t position)
{
    if (is_foreign(ring)) return;
    fl_entry *entry = submitted_at(ring, position);
    pthread_mutex_lock(&ring->mutex);
    assert(!has_unclaimed(entry) && entry->parts == entry->batch.parts);
    assert(entry->batch.transfer != NULL);
    entry->front = entry->batch.parts;
    entry->back = entry->parts = entry->batch.parts + 1;
    ring->unclaimed++;
    ring->work = find_work(ring->oldest);
    atomic_fetch_add_explicit(&ring->submitted, 1, memory_order_relaxed);
    want_threads_locked(ring, 1);
    pthread_mutex_unlock(&ring->mutex);
}

int64_t fl_ring_pending(const fl_ring *ring) { return ring->pending; }

/* Waits until no part is being filled, then empties the list of submitted entries. */
static void drop_submitted_locked(fl_ring *ring)
{
    ring->work = NULL;
    ring->wanted = 0;
    ring->unclaimed = 0;
    ring->consumer_drains = true;
    while (ring->fillers > 0) pthread_cond_wait(&ring->has_ready, &ring->mutex);
    ring->consumer_drains = false;
    while (ring->oldest != NULL) {
        fl_entry *entry = ring->oldest;
        ring->oldest = entry->next;
        fl_slot_return(entry->batch.slot);
        put_free(ring, entry);
    }
    ring->newest = NULL;
    ring->pending = 0;
}

void fl_ring_reset(fl_ring *ring)
{
    if (is_foreign(ring)) return;
    pthread_mutex_lock(&ring->mutex);
    drop_submitted_locked(ring);
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

void fl_ring_end(fl_ring *ring)
{
    if (is_foreign(ring)) return;
    pthread_mutex_lock(&ring->mutex);
    ring->is_closing = true;
    drop_submitted_locked(ring);
    atomic_fetch_add_explicit(&ring->submitted, 1, memory_order_relaxed);
    pthread_cond_broadcast(&ring->has_work);
    pthread_mutex_unlock(&ring->mutex);
    for (int32_t i = 0; i < ring->thread_count; i++) pthread_join(ring->threads[i], NULL);
    ring->thread_count = 0;
}

void fl_ring_close(fl_ring *ring)
{
    if (ring == NULL || is_foreign(ring)) return;
    fl_ring_end(ring);
    pthread_cond_destroy(&ring->has_ready);
    pthread_cond_destroy(&ring->has_work);
    pthread_mutex_destroy(&ring->mutex);
    free_memory(ring);
}
