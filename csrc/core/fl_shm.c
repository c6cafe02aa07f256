/* fl_shm: see fl_shm.h.
 *
 * Every counter of a queue has one writer. A sleeper counts itself and looks once more; who
 * publishes looks at the count afterwards: both sides are sequentially consistent, so one of the
 * two sees the other. If a process dies between publishing and waking, the sleeper finds the
 * message at its next deadline. */
#include "fl_shm.h"

#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

typedef struct link {
    _Alignas(64) _Atomic uint32_t events;  /* parent: counts all it does; the worker's futex */
    _Atomic uint32_t sent;                 /* parent: requests published */
    _Atomic uint32_t is_ended;             /* parent */
    int64_t next_number;                   /* parent only */
    int64_t answered;                      /* parent only: all requests below are */
    uint32_t taken;                        /* parent only: replies */
    _Alignas(64) _Atomic uint32_t replied; /* worker: replies published */
    _Atomic uint32_t sleepers;             /* worker */
    uint32_t received;                     /* worker only: requests */
} link;

struct fl_shm {
    int32_t workers, depth;                  /* set at init */
    _Alignas(64) _Atomic uint32_t tickets;   /* workers: replies begun, for their order */
    _Atomic uint32_t events;                 /* workers: replies published; the parent's futex */
    _Atomic uint32_t sleepers;               /* parent's threads */
    _Alignas(64) _Atomic uint32_t is_closed; /* parent */
    link links[];
};

static inline fl_shm_request *requests_of(fl_shm *shm, int32_t worker)
{
    fl_shm_request *all = (fl_shm_request *)(void *)(shm->links + shm->workers);
    return all + (int64_t)worker * shm->depth;
}

static inline fl_shm_reply *replies_of(fl_shm *shm, int32_t worker)
{
    fl_shm_reply *all = (fl_shm_reply *)(void *)requests_of(shm, shm->workers);
    return all + (int64_t)worker * shm->depth;
}

static inline uint32_t place(const fl_shm *shm, uint32_t count)
{
    return count & (uint32_t)(shm->depth - 1);
}

int64_t fl_shm_bytes(int32_t workers, int32_t depth)
{
    int64_t each =
        (int64_t)sizeof(link) + depth * (int64_t)(sizeof(fl_shm_request) + sizeof(fl_shm_reply));
    return (int64_t)sizeof(fl_shm) + workers * each;
}

fl_shm *fl_shm_init(void *memory, int32_t workers, int32_t depth)
{
    assert(workers > 0 && depth > 0 && (depth & (depth - 1)) == 0);
    fl_shm *shm = memory;
    memset(memory, 0, (size_t)fl_shm_bytes(workers, depth));
    shm->workers = workers;
    shm->depth = depth;
    return shm;
}

/* After something was published for whoever watches `events`. */
static void tell(_Atomic uint32_t *events, _Atomic uint32_t *sleepers)
{
    atomic_fetch_add(events, 1);
    if (atomic_load(sleepers) != 0) fl_futex_wake(events);
}

/* Sleeps a while if *events is still `seen`; false after a signal handler. Only the sleeper takes
 * itself off the count: someone who is late with the news of an event seen long ago must not make
 * this sleep look like none. */
static bool
sleep_on(_Atomic uint32_t *events, uint32_t seen, _Atomic uint32_t *sleepers, int64_t deadline_ns)
{
    atomic_fetch_add(sleepers, 1);
    bool is_quiet = atomic_load(events) != seen || fl_futex_wait(events, seen, deadline_ns);
    atomic_fetch_sub(sleepers, 1);
    return is_quiet;
}

/* True when *events is no longer `seen`; false at the deadline or after a signal handler. */
static bool await_event(_Atomic uint32_t *events, uint32_t seen, _Atomic uint32_t *sleepers,
                        int64_t deadline_ns)
{
    while (atomic_load_explicit(events, memory_order_acquire) == seen) {
        if (fl_now_ns() >= deadline_ns) return false;
        if (!sleep_on(events, seen, sleepers, deadline_ns)) return false;
    }
    return true;
}

bool fl_shm_send(fl_shm *shm, int32_t worker, fl_shm_request *request)
{
    link *self = &shm->links[worker];
    if (self->next_number - self->answered >= shm->depth) return false;
    uint32_t sent = atomic_load_explicit(&self->sent, memory_order_relaxed);
    request->number = self->next_number++;
    requests_of(shm, worker)[place(shm, sent)] = *request;
    atomic_store_explicit(&self->sent, sent + 1, memory_order_release);
    tell(&self->events, &self->sleepers);
    return true;
}

static bool has_reply(fl_shm *shm, int32_t worker)
{
    link *self = &shm->links[worker];
    return atomic_load_explicit(&self->replied, memory_order_acquire) != self->taken;
}

static fl_shm_reply *first_reply(fl_shm *shm, int32_t worker)
{
    return replies_of(shm, worker) + place(shm, shm->links[worker].taken);
}

bool fl_shm_take(fl_shm *shm, fl_shm_reply *out)
{
    int32_t first = -1;
    for (int32_t w = 0; w < shm->workers; w++) {
        if (!has_reply(shm, w)) continue;
        /* Arrivals wrap around; two that wait are never 2^31 apart. */
        if (first < 0 ||
            (int32_t)(first_reply(shm, w)->arrival - first_reply(shm, first)->arrival) < 0)
            first = w;
    }
    if (first < 0) return false;
    link *self = &shm->links[first];
    *out = *first_reply(shm, first);
    out->worker = first;
    self->taken++;
    self->answered = out->number + 1;
    return true;
}

bool fl_shm_wait(fl_shm *shm, int64_t deadline_ns)
{
    uint32_t seen = atomic_load_explicit(&shm->events, memory_order_acquire);
    for (int32_t w = 0; w < shm->workers; w++)
        if (has_reply(shm, w)) return true;
    return await_event(&shm->events, seen, &shm->sleepers, deadline_ns);
}

bool fl_shm_peek(fl_shm *shm, int32_t worker, uint32_t *cursor, fl_shm_reply *out)
{
    link *self = &shm->links[worker];
    uint32_t replied = atomic_load_explicit(&self->replied, memory_order_acquire);
    uint32_t waiting = replied - self->taken;
    /* The cursor is behind where replies were taken unseen; a worker may write what it likes. */
    if (replied - *cursor > waiting) *cursor = self->taken;
    if (*cursor == replied || waiting > (uint32_t)shm->depth) return false;
    *out = replies_of(shm, worker)[place(shm, (*cursor)++)];
    out->worker = worker;
    return true;
}

bool fl_shm_watch(fl_shm *shm, uint32_t *seen, int64_t deadline_ns)
{
    bool is_new = await_event(&shm->events, *seen, &shm->sleepers, deadline_ns);
    *seen = atomic_load_explicit(&shm->events, memory_order_acquire);
    return is_new;
}

void fl_shm_nudge(fl_shm *shm) { tell(&shm->events, &shm->sleepers); }

void fl_shm_end(fl_shm *shm, int32_t worker)
{
    atomic_store(&shm->links[worker].is_ended, 1);
    tell(&shm->links[worker].events, &shm->links[worker].sleepers);
}

void fl_shm_close(fl_shm *shm)
{
    atomic_store(&shm->is_closed, 1);
    for (int32_t w = 0; w < shm->workers; w++) tell(&shm->links[w].events, &shm->links[w].sleepers);
}

bool fl_shm_is_closed(const fl_shm *shm)
{
    return atomic_load_explicit(&shm->is_closed, memory_order_relaxed) != 0;
}

int fl_shm_receive(fl_shm *shm, int32_t worker, fl_shm_request *out, int64_t deadline_ns)
{
    link *self = &shm->links[worker];
    for (;;) {
        uint32_t seen = atomic_load_explicit(&self->events, memory_order_acquire);
        if (fl_shm_is_closed(shm)) return FL_EEND;
        /* Looked at before the queue: what was sent before the end is seen with it. */
        bool is_ended = atomic_load_explicit(&self->is_ended, memory_order_acquire) != 0;
        if (atomic_load_explicit(&self->sent, memory_order_acquire) != self->received) break;
        if (is_ended) return FL_EEND;
        if (!await_event(&self->events, seen, &self->sleepers, deadline_ns)) return FL_ETIMEOUT;
    }
    *out = requests_of(shm, worker)[place(shm, self->received++)];
    return FL_OK;
}

void fl_shm_answer(fl_shm *shm, int32_t worker, fl_shm_reply *reply)
{
    link *self = &shm->links[worker];
    uint32_t replied = atomic_load_explicit(&self->replied, memory_order_relaxed);
    reply->worker = worker;
    reply->arrival = atomic_fetch_add_explicit(&shm->tickets, 1, memory_order_relaxed);
    replies_of(shm, worker)[place(shm, replied)] = *reply;
    atomic_store_explicit(&self->replied, replied + 1, memory_order_release);
    tell(&shm->events, &shm->sleepers);
}
