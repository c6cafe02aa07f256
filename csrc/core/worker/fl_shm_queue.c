/* fl_shm_queue: see fl_shm_queue.h.
 *
 * Every word of a worker's queues has one writer. The writer also keeps the value in private
 * memory, and compares: a difference means that the word has been overwritten. A sleeper sets
 * is_asleep and looks at the event count once more; a publisher counts an event and then reads
 * is_asleep. Both sides are sequentially consistent, so one of the two sees the other. If a process
 * dies between publishing and waking, or is_asleep is overwritten, the sleeper finds the message at
 * its next deadline. */
#include "fl_shm_queue.h"

#include "fl_hash.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum { AT_WORK, ENDED, CLOSED }; /* the state that the parent sets for a worker */

/* Shared: the words of one worker's two queues. */
typedef struct worker_words {
    _Alignas(
        64) _Atomic uint32_t events; /* parent writes: counts all it does; the worker's futex */
    _Atomic uint32_t state;          /* parent writes */
    _Atomic int64_t sent;            /* parent writes: requests published */
    _Alignas(64) _Atomic int64_t replied; /* worker writes: replies published */
    _Atomic int64_t begun;                /* worker writes: requests taken */
    _Atomic uint32_t is_asleep;           /* worker writes */
    _Atomic uint32_t is_damaged; /* worker writes: the worker has found an overwritten message */
} worker_words;

/* Shared: the words of all workers. A stray write to the first four words does no harm: tickets
 * only order replies, and a process that waits for events looks again at its deadline. */
typedef struct shared_words {
    _Alignas(64) _Atomic int64_t tickets; /* workers write: replies begun, for their order */
    _Atomic uint32_t events; /* workers and fl_shm_queue_wake write; the parent's futex */
    _Alignas(64) _Atomic uint32_t is_waiting; /* parent writes: in fl_shm_queue_wait */
    _Atomic uint32_t is_watching;             /* parent writes: in fl_shm_queue_watch */
    worker_words workers[];
} shared_words;

/* Private: what this process knows about one worker's queues from its own actions. */
typedef struct worker_state {
    _Alignas(64) int64_t sent;     /* parent: requests */
    int64_t answered;              /* parent: all requests below this number are answered */
    int64_t taken;                 /* parent: replies */
    uint32_t events, state;        /* parent: values written to the shared words */
    _Alignas(64) int64_t received; /* worker: requests */
    int64_t replied;               /* worker */
} worker_state;

struct fl_shm_queue {
    shared_words *shared; /* borrowed; the first three fields are set at open, then read-only */
    int32_t workers, depth;
    worker_state states[];
};

_Static_assert(offsetof(fl_request_message, check) == 6 * 8, "padding would be hashed");
_Static_assert(offsetof(fl_reply_message, check) == 10 * 8 + FL_FALLBACK_REASONS * 4,
               "padding would be hashed");

static inline fl_request_message *request_at(const fl_shm_queue *shm, int32_t worker, int64_t count)
{
    fl_request_message *all = (fl_request_message *)(void *)(shm->shared->workers + shm->workers);
    return all + (int64_t)worker * shm->depth + (count & (shm->depth - 1));
}

static inline fl_reply_message *reply_at(const fl_shm_queue *shm, int32_t worker, int64_t count)
{
    fl_reply_message *all = (fl_reply_message *)(void *)request_at(shm, shm->workers, 0);
    return all + (int64_t)worker * shm->depth + (count & (shm->depth - 1));
}

static inline uint64_t check_request(const fl_request_message *request)
{
    return fl_hash(request, offsetof(fl_request_message, check));
}

static inline uint64_t check_reply(const fl_reply_message *reply)
{
    return fl_hash(reply, offsetof(fl_reply_message, check));
}

/* Copies from shared memory, which may change at any time. Callers only look at the copy. */
static inline void copy_once(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    atomic_signal_fence(memory_order_seq_cst);
}

/* ---- parent and workers */

int64_t fl_shm_queue_bytes(int32_t workers, int32_t depth)
{
    int64_t each = (int64_t)sizeof(worker_words) +
                   depth * (int64_t)(sizeof(fl_request_message) + sizeof(fl_reply_message));
    return (int64_t)sizeof(shared_words) + workers * each;
}

int fl_shm_queue_attach(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                        fl_err *err)
{
    assert(workers > 0 && depth > 0 && (depth & (depth - 1)) == 0);
    fl_shm_queue *shm = fl_alloc((int64_t)sizeof *shm + workers * (int64_t)sizeof *shm->states);
    *out = shm;
    if (shm == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for %d workers", (int)workers);
    shm->shared = memory;
    shm->workers = workers;
    shm->depth = depth;
    return FL_OK;
}

int fl_shm_queue_open(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out, fl_err *err)
{
    memset(memory, 0, (size_t)fl_shm_queue_bytes(workers, depth));
    return fl_shm_queue_attach(memory, workers, depth, out, err);
}

void fl_shm_queue_free(fl_shm_queue *shm) { fl_free(shm); }

/* ---- sleeping */

/* Sleeps for a while if *events is still `seen`; returns false after a signal handler. Only the
 * sleeper clears is_asleep: a late publisher, with an event seen long ago, must not clear the flag
 * for this sleep. */
static bool
sleep_on(_Atomic uint32_t *events, uint32_t seen, _Atomic uint32_t *is_asleep, int64_t deadline_ns)
{
    atomic_store(is_asleep, 1);
    bool is_quiet = atomic_load(events) != seen || fl_futex_wait(events, seen, deadline_ns);
    atomic_store(is_asleep, 0);
    return is_quiet;
}

/* Waits until *events differs from `seen`; returns false at the deadline or after a signal
 * handler. */
static bool await_event(_Atomic uint32_t *events, uint32_t seen, _Atomic uint32_t *is_asleep,
                        int64_t deadline_ns)
{
    while (atomic_load_explicit(events, memory_order_acquire) == seen) {
        if (fl_now_ns() >= deadline_ns) return false;
        if (!sleep_on(events, seen, is_asleep, deadline_ns)) return false;
    }
    return true;
}

/* Wakes the parent, after a message for the parent was published. */
static void tell_parent(const fl_shm_queue *shm)
{
    shared_words *shared = shm->shared;
    atomic_fetch_add(&shared->events, 1);
    if (atomic_load(&shared->is_waiting) != 0 || atomic_load(&shared->is_watching) != 0)
        fl_futex_wake(&shared->events);
}

/* Wakes the worker, after a message for the worker was published. */
static void tell_worker(fl_shm_queue *shm, int32_t worker)
{
    worker_words *to = &shm->shared->workers[worker];
    shm->states[worker].events++;
    atomic_fetch_add(&to->events, 1);
    if (atomic_load(&to->is_asleep) != 0) fl_futex_wake(&to->events);
}

/* ---- the parent */

bool fl_shm_queue_send_request(fl_shm_queue *shm, int32_t worker, fl_request_message *request)
{
    worker_state *self = &shm->states[worker];
    if (self->sent - self->answered >= shm->depth) return false;
    request->number = self->sent;
    request->check = check_request(request);
    *request_at(shm, worker, self->sent++) = *request;
    atomic_store_explicit(&shm->shared->workers[worker].sent, self->sent, memory_order_release);
    tell_worker(shm, worker);
    return true;
}

/* Returns how many replies wait; -1: the shared count is impossible. */
static int64_t count_replies(const fl_shm_queue *shm, int32_t worker)
{
    const worker_state *self = &shm->states[worker];
    int64_t replied =
        atomic_load_explicit(&shm->shared->workers[worker].replied, memory_order_acquire);
    if (replied < self->taken || replied - self->taken > self->sent - self->answered) return -1;
    return replied - self->taken;
}

/* Returns true if the words that the parent wrote are unchanged, and the worker has reported no
 * damage. */
static bool is_intact(const fl_shm_queue *shm, int32_t worker)
{
    const worker_state *self = &shm->states[worker];
    worker_words *from = &shm->shared->workers[worker];
    return atomic_load_explicit(&from->events, memory_order_relaxed) == self->events &&
           atomic_load_explicit(&from->state, memory_order_relaxed) == self->state &&
           atomic_load_explicit(&from->sent, memory_order_relaxed) == self->sent &&
           atomic_load_explicit(&from->is_damaged, memory_order_relaxed) == 0;
}

/* Copies one waiting reply; returns false if the reply answers no open request. */
static bool
copy_reply(const fl_shm_queue *shm, int32_t worker, int64_t count, fl_reply_message *out)
{
    const worker_state *self = &shm->states[worker];
    copy_once(out, reply_at(shm, worker, count), sizeof *out);
    return out->check == check_reply(out) && out->worker == worker &&
           out->number >= self->answered && out->number < self->sent;
}

int fl_shm_queue_receive_reply(fl_shm_queue *shm, fl_reply_message *out)
{
    int32_t first = -1;
    int64_t arrival = 0;
    for (int32_t w = 0; w < shm->workers; w++) {
        int64_t waiting = count_replies(shm, w);
        out->worker = w;
        if (waiting < 0 || !is_intact(shm, w)) return FL_EDAMAGE;
        if (waiting == 0) continue;
        int64_t its = reply_at(shm, w, shm->states[w].taken)->arrival;
        if (first >= 0 && its >= arrival) continue;
        first = w;
        arrival = its;
    }
    if (first < 0) return FL_ETIMEOUT;
    worker_state *self = &shm->states[first];
    bool is_good = copy_reply(shm, first, self->taken, out);
    out->worker = first;
    if (!is_good) return FL_EDAMAGE;
    self->taken++;
    self->answered = out->number + 1;
    return FL_OK;
}

bool fl_shm_queue_wait(fl_shm_queue *shm, int64_t deadline_ns)
{
    shared_words *shared = shm->shared;
    uint32_t seen = atomic_load_explicit(&shared->events, memory_order_acquire);
    for (int32_t w = 0; w < shm->workers; w++)
        if (count_replies(shm, w) != 0) return true;
    return await_event(&shared->events, seen, &shared->is_waiting, deadline_ns);
}

bool fl_shm_queue_peek(fl_shm_queue *shm, int32_t worker, int64_t *cursor, fl_reply_message *out)
{
    int64_t taken = shm->states[worker].taken, waiting = count_replies(shm, worker);
    /* If replies were taken unseen, the cursor has fallen back. */
    if (*cursor < taken || *cursor > taken + waiting) *cursor = taken;
    if (waiting <= 0 || *cursor == taken + waiting) return false;
    if (!copy_reply(shm, worker, *cursor, out)) return false;
    ++*cursor;
    return true;
}

bool fl_shm_queue_watch(fl_shm_queue *shm, uint32_t *seen, int64_t deadline_ns)
{
    shared_words *shared = shm->shared;
    bool is_new = await_event(&shared->events, *seen, &shared->is_watching, deadline_ns);
    *seen = atomic_load_explicit(&shared->events, memory_order_acquire);
    return is_new;
}

void fl_shm_queue_wake(fl_shm_queue *shm) { tell_parent(shm); }

static void change_state(fl_shm_queue *shm, int32_t worker, uint32_t state)
{
    shm->states[worker].state = state;
    atomic_store(&shm->shared->workers[worker].state, state);
    tell_worker(shm, worker);
}

void fl_shm_queue_end(fl_shm_queue *shm, int32_t worker)
{
    if (shm->states[worker].state == AT_WORK) change_state(shm, worker, ENDED);
}

void fl_shm_queue_close(fl_shm_queue *shm, int32_t worker) { change_state(shm, worker, CLOSED); }

int64_t fl_shm_queue_begun(const fl_shm_queue *shm, int32_t worker)
{
    return atomic_load_explicit(&shm->shared->workers[worker].begun, memory_order_relaxed);
}

bool fl_shm_queue_has_replies(const fl_shm_queue *shm, int32_t worker)
{
    return count_replies(shm, worker) != 0;
}

void fl_shm_queue_restart(fl_shm_queue *shm, int32_t worker)
{
    worker_words *words = &shm->shared->workers[worker];
    shm->states[worker] = (worker_state){.state = AT_WORK};
    atomic_store(&words->events, 0);
    atomic_store(&words->state, AT_WORK);
    atomic_store(&words->sent, 0);
    atomic_store(&words->replied, 0);
    atomic_store(&words->begun, 0);
    atomic_store(&words->is_asleep, 0);
    atomic_store(&words->is_damaged, 0);
}

/* ---- a worker */

bool fl_shm_queue_is_closed(const fl_shm_queue *shm, int32_t worker)
{
    worker_words *self = &shm->shared->workers[worker];
    return atomic_load_explicit(&self->state, memory_order_relaxed) == CLOSED;
}

void fl_shm_queue_report_damage(fl_shm_queue *shm, int32_t worker)
{
    atomic_store(&shm->shared->workers[worker].is_damaged, 1);
    tell_parent(shm);
}

/* Looks for a request without waiting: FL_ETIMEOUT: there is none. */
static int look(const fl_shm_queue *shm, int32_t worker)
{
    const worker_state *self = &shm->states[worker];
    worker_words *from = &shm->shared->workers[worker];
    /* The state is read before the queue, so that requests sent before the end are seen. */
    uint32_t state = atomic_load_explicit(&from->state, memory_order_acquire);
    if (state == CLOSED) return FL_EEND;
    int64_t sent = atomic_load_explicit(&from->sent, memory_order_acquire);
    bool is_intact = atomic_load_explicit(&from->replied, memory_order_relaxed) == self->replied;
    if (state > CLOSED || !is_intact) return FL_EDAMAGE;
    if (sent > self->received) return FL_OK;
    return state == ENDED ? FL_EEND : FL_ETIMEOUT;
}

int fl_shm_queue_receive_request(fl_shm_queue *shm, int32_t worker, fl_request_message *out,
                                 int64_t deadline_ns)
{
    worker_state *self = &shm->states[worker];
    worker_words *from = &shm->shared->workers[worker];
    uint32_t seen;
    int status;
    do {
        seen = atomic_load_explicit(&from->events, memory_order_acquire);
        status = look(shm, worker);
    } while (status == FL_ETIMEOUT &&
             await_event(&from->events, seen, &from->is_asleep, deadline_ns));
    if (status == FL_OK) {
        copy_once(out, request_at(shm, worker, self->received), sizeof *out);
        if (out->check != check_request(out) || out->number != self->received) status = FL_EDAMAGE;
    }
    if (status == FL_OK)
        atomic_store_explicit(&from->begun, ++self->received, memory_order_relaxed);
    if (status == FL_EDAMAGE) fl_shm_queue_report_damage(shm, worker);
    return status;
}

void fl_shm_queue_send_reply(fl_shm_queue *shm, int32_t worker, fl_reply_message *reply)
{
    worker_state *self = &shm->states[worker];
    reply->worker = worker;
    reply->arrival = atomic_fetch_add_explicit(&shm->shared->tickets, 1, memory_order_relaxed);
    reply->check = check_reply(reply);
    *reply_at(shm, worker, self->replied++) = *reply;
    atomic_store_explicit(&shm->shared->workers[worker].replied, self->replied,
                          memory_order_release);
    tell_parent(shm);
}
