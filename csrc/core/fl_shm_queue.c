/* fl_shm_queue: see fl_shm_queue.h.
 *
 * Every word of a queue has one writer, who keeps its value in an `own` as well: what it reads back
 * can be compared. A sleeper says so and looks once more; who publishes looks at that afterwards:
 * both sides are sequentially consistent, so one of the two sees the other. If a process dies
 * between publishing and waking, or the word that says so is overwritten, the sleeper finds the
 * message at its next deadline. */
#include "fl_shm_queue.h"

#include "fl_hash.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum { AT_WORK, ENDED, CLOSED }; /* states of a link */

/* Shared. */
typedef struct link {
    _Alignas(64) _Atomic uint32_t events; /* parent: counts all it does; the worker's futex */
    _Atomic uint32_t state;               /* parent */
    _Atomic int64_t sent;                 /* parent: requests published */
    _Alignas(64) _Atomic int64_t replied; /* worker: replies published */
    _Atomic uint32_t is_asleep;           /* worker */
    _Atomic uint32_t is_damaged;          /* worker: what it has read cannot be */
} link;

/* Shared. No harm comes of any value here: arrivals are no more than an order, and who waits for
 * events looks again at his deadline. */
typedef struct board {
    _Alignas(64) _Atomic int64_t tickets;     /* workers: replies begun, for their order */
    _Atomic uint32_t events;                  /* workers: replies published; the parent's futex */
    _Alignas(64) _Atomic uint32_t is_waiting; /* parent: in fl_shm_queue_wait */
    _Atomic uint32_t is_watching;             /* parent: in fl_shm_queue_watch */
    link links[];
} board;

/* Private: what a process knows of a link because it has done it. */
typedef struct own {
    _Alignas(64) int64_t sent;     /* parent: requests */
    int64_t answered;              /* parent: all requests below are */
    int64_t taken;                 /* parent: replies */
    uint32_t events, state;        /* parent: as in the link */
    _Alignas(64) int64_t received; /* worker: requests */
    int64_t replied;               /* worker */
} own;

struct fl_shm_queue {
    board *board; /* borrowed; like the next two set at open */
    int32_t workers, depth;
    own own[];
};

_Static_assert(offsetof(fl_request, check) == 6 * 8, "padding would be hashed");
_Static_assert(offsetof(fl_reply, check) == 10 * 8 + FL_FALLBACK_REASONS * 4,
               "padding would be hashed");

static inline fl_request *request_at(const fl_shm_queue *shm, int32_t worker, int64_t count)
{
    fl_request *all = (fl_request *)(void *)(shm->board->links + shm->workers);
    return all + (int64_t)worker * shm->depth + (count & (shm->depth - 1));
}

static inline fl_reply *reply_at(const fl_shm_queue *shm, int32_t worker, int64_t count)
{
    fl_reply *all = (fl_reply *)(void *)request_at(shm, shm->workers, 0);
    return all + (int64_t)worker * shm->depth + (count & (shm->depth - 1));
}

static inline uint64_t check_request(const fl_request *request)
{
    return fl_hash(request, offsetof(fl_request, check));
}

static inline uint64_t check_reply(const fl_reply *reply)
{
    return fl_hash(reply, offsetof(fl_reply, check));
}

/* From shared memory, which is not looked at again for the same: it may change. */
static inline void copy_once(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    atomic_signal_fence(memory_order_seq_cst);
}

/* ---- both ends */

int64_t fl_shm_queue_bytes(int32_t workers, int32_t depth)
{
    int64_t each = (int64_t)sizeof(link) + depth * (int64_t)(sizeof(fl_request) + sizeof(fl_reply));
    return (int64_t)sizeof(board) + workers * each;
}

int fl_shm_queue_attach(void *memory, int32_t workers, int32_t depth, fl_shm_queue **out,
                        fl_err *err)
{
    assert(workers > 0 && depth > 0 && (depth & (depth - 1)) == 0);
    fl_shm_queue *shm = fl_alloc((int64_t)sizeof *shm + workers * (int64_t)sizeof *shm->own);
    *out = shm;
    if (shm == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for %d workers", (int)workers);
    shm->board = memory;
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

/* Sleeps a while if *events is still `seen`; false after a signal handler. Only the sleeper takes
 * back that it sleeps: someone who is late with the news of an event seen long ago must not make
 * this sleep look like none. */
static bool
sleep_on(_Atomic uint32_t *events, uint32_t seen, _Atomic uint32_t *is_asleep, int64_t deadline_ns)
{
    atomic_store(is_asleep, 1);
    bool is_quiet = atomic_load(events) != seen || fl_futex_wait(events, seen, deadline_ns);
    atomic_store(is_asleep, 0);
    return is_quiet;
}

/* True when *events is no longer `seen`; false at the deadline or after a signal handler. */
static bool await_event(_Atomic uint32_t *events, uint32_t seen, _Atomic uint32_t *is_asleep,
                        int64_t deadline_ns)
{
    while (atomic_load_explicit(events, memory_order_acquire) == seen) {
        if (fl_now_ns() >= deadline_ns) return false;
        if (!sleep_on(events, seen, is_asleep, deadline_ns)) return false;
    }
    return true;
}

/* After something was published for the parent. */
static void tell_parent(const fl_shm_queue *shm)
{
    board *all = shm->board;
    atomic_fetch_add(&all->events, 1);
    if (atomic_load(&all->is_waiting) != 0 || atomic_load(&all->is_watching) != 0)
        fl_futex_wake(&all->events);
}

/* After something was published for the worker. */
static void tell_worker(fl_shm_queue *shm, int32_t worker)
{
    link *to = &shm->board->links[worker];
    shm->own[worker].events++;
    atomic_fetch_add(&to->events, 1);
    if (atomic_load(&to->is_asleep) != 0) fl_futex_wake(&to->events);
}

/* ---- the parent */

bool fl_shm_queue_send_request(fl_shm_queue *shm, int32_t worker, fl_request *request)
{
    own *self = &shm->own[worker];
    if (self->sent - self->answered >= shm->depth) return false;
    request->number = self->sent;
    request->check = check_request(request);
    *request_at(shm, worker, self->sent++) = *request;
    atomic_store_explicit(&shm->board->links[worker].sent, self->sent, memory_order_release);
    tell_worker(shm, worker);
    return true;
}

/* Replies that wait; -1 where the link says that there are more than there can be, or fewer. */
static int64_t count_replies(const fl_shm_queue *shm, int32_t worker)
{
    const own *self = &shm->own[worker];
    int64_t replied =
        atomic_load_explicit(&shm->board->links[worker].replied, memory_order_acquire);
    if (replied < self->taken || replied - self->taken > self->sent - self->answered) return -1;
    return replied - self->taken;
}

/* Whether the link has what the parent wrote there, and its worker has not complained. */
static bool is_intact(const fl_shm_queue *shm, int32_t worker)
{
    const own *self = &shm->own[worker];
    link *from = &shm->board->links[worker];
    return atomic_load_explicit(&from->events, memory_order_relaxed) == self->events &&
           atomic_load_explicit(&from->state, memory_order_relaxed) == self->state &&
           atomic_load_explicit(&from->sent, memory_order_relaxed) == self->sent &&
           atomic_load_explicit(&from->is_damaged, memory_order_relaxed) == 0;
}

/* Copies one of those that wait; false when it answers nothing that has been asked. */
static bool copy_reply(const fl_shm_queue *shm, int32_t worker, int64_t count, fl_reply *out)
{
    const own *self = &shm->own[worker];
    copy_once(out, reply_at(shm, worker, count), sizeof *out);
    return out->check == check_reply(out) && out->worker == worker &&
           out->number >= self->answered && out->number < self->sent;
}

int fl_shm_queue_receive_reply(fl_shm_queue *shm, fl_reply *out)
{
    int32_t first = -1;
    int64_t arrival = 0;
    for (int32_t w = 0; w < shm->workers; w++) {
        int64_t waiting = count_replies(shm, w);
        out->worker = w;
        if (waiting < 0 || !is_intact(shm, w)) return FL_EDAMAGE;
        if (waiting == 0) continue;
        int64_t its = reply_at(shm, w, shm->own[w].taken)->arrival;
        if (first >= 0 && its >= arrival) continue;
        first = w;
        arrival = its;
    }
    if (first < 0) return FL_ETIMEOUT;
    own *self = &shm->own[first];
    bool is_good = copy_reply(shm, first, self->taken, out);
    out->worker = first;
    if (!is_good) return FL_EDAMAGE;
    self->taken++;
    self->answered = out->number + 1;
    return FL_OK;
}

bool fl_shm_queue_wait(fl_shm_queue *shm, int64_t deadline_ns)
{
    board *all = shm->board;
    uint32_t seen = atomic_load_explicit(&all->events, memory_order_acquire);
    for (int32_t w = 0; w < shm->workers; w++)
        if (count_replies(shm, w) != 0) return true;
    return await_event(&all->events, seen, &all->is_waiting, deadline_ns);
}

bool fl_shm_queue_peek(fl_shm_queue *shm, int32_t worker, int64_t *cursor, fl_reply *out)
{
    int64_t taken = shm->own[worker].taken, waiting = count_replies(shm, worker);
    /* The cursor is behind where replies were taken unseen. */
    if (*cursor < taken || *cursor > taken + waiting) *cursor = taken;
    if (waiting <= 0 || *cursor == taken + waiting) return false;
    if (!copy_reply(shm, worker, *cursor, out)) return false;
    ++*cursor;
    return true;
}

bool fl_shm_queue_watch(fl_shm_queue *shm, uint32_t *seen, int64_t deadline_ns)
{
    board *all = shm->board;
    bool is_new = await_event(&all->events, *seen, &all->is_watching, deadline_ns);
    *seen = atomic_load_explicit(&all->events, memory_order_acquire);
    return is_new;
}

void fl_shm_queue_wake(fl_shm_queue *shm) { tell_parent(shm); }

static void change_state(fl_shm_queue *shm, int32_t worker, uint32_t state)
{
    shm->own[worker].state = state;
    atomic_store(&shm->board->links[worker].state, state);
    tell_worker(shm, worker);
}

void fl_shm_queue_end(fl_shm_queue *shm, int32_t worker)
{
    if (shm->own[worker].state == AT_WORK) change_state(shm, worker, ENDED);
}

void fl_shm_queue_close(fl_shm_queue *shm, int32_t worker) { change_state(shm, worker, CLOSED); }

/* ---- a worker */

bool fl_shm_queue_is_closed(const fl_shm_queue *shm, int32_t worker)
{
    link *self = &shm->board->links[worker];
    return atomic_load_explicit(&self->state, memory_order_relaxed) == CLOSED;
}

void fl_shm_queue_report_damage(fl_shm_queue *shm, int32_t worker)
{
    atomic_store(&shm->board->links[worker].is_damaged, 1);
    tell_parent(shm);
}

/* What fl_shm_queue_receive_request finds without waiting: FL_ETIMEOUT for nothing. */
static int look(const fl_shm_queue *shm, int32_t worker)
{
    const own *self = &shm->own[worker];
    link *from = &shm->board->links[worker];
    /* Looked at before the queue: what was sent before the end is seen with it. */
    uint32_t state = atomic_load_explicit(&from->state, memory_order_acquire);
    if (state == CLOSED) return FL_EEND;
    int64_t sent = atomic_load_explicit(&from->sent, memory_order_acquire);
    bool is_intact = atomic_load_explicit(&from->replied, memory_order_relaxed) == self->replied;
    if (state > CLOSED || !is_intact) return FL_EDAMAGE;
    if (sent > self->received) return FL_OK;
    return state == ENDED ? FL_EEND : FL_ETIMEOUT;
}

int fl_shm_queue_receive_request(fl_shm_queue *shm, int32_t worker, fl_request *out,
                                 int64_t deadline_ns)
{
    own *self = &shm->own[worker];
    link *from = &shm->board->links[worker];
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
    if (status == FL_OK) self->received++;
    if (status == FL_EDAMAGE) fl_shm_queue_report_damage(shm, worker);
    return status;
}

void fl_shm_queue_send_reply(fl_shm_queue *shm, int32_t worker, fl_reply *reply)
{
    own *self = &shm->own[worker];
    reply->worker = worker;
    reply->arrival = atomic_fetch_add_explicit(&shm->board->tickets, 1, memory_order_relaxed);
    reply->check = check_reply(reply);
    *reply_at(shm, worker, self->replied++) = *reply;
    atomic_store_explicit(&shm->board->links[worker].replied, self->replied, memory_order_release);
    tell_parent(shm);
}
