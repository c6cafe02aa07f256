/* copier_fixture.h: a courier between a consumer and workers, who are threads or the test itself,
 * with a carry that copies memory, is held up at a gate, or refuses. */
#ifndef ERRAND_RIG_H
#define ERRAND_RIG_H

#include "arena_fixture.h"
#include "fake_worker.h"

#include "fl_copier.h"

#include <semaphore.h>
#include <stdatomic.h>

enum {
    WORKERS = 3,
    MOST_JOBS = 16,
    MOST_LOGGED = 64,
    SHELVES = FL_COPY_AHEAD + 1, /* one more: in the consumer's hands */
    SLOT_BYTES = 16 * KIB,
    LEND_BYTES = 64 * KIB,  /* suits every batch */
    SHELF_BYTES = 256 * KIB /* no slot is larger */
};

typedef struct job {
    fl_transfer *errand; /* NULL: claimed */
    fl_slot *slot;       /* NULL: a free place */
    int64_t tag, number;
    int32_t worker;
    bool is_answered;
    fl_reply_message reply; /* once it is */
} job;

typedef struct yard yard;

/* What berths are for. */
typedef struct shelf {
    yard *yard;
    bool is_lent;
    int64_t words[SHELF_BYTES / 8];
} shelf;

struct yard {
    shm_fixture ring;
    fl_arena *arena;
    fl_pool *pool;
    fl_copier *courier;
    int32_t workers;
    servant servants[WORKERS];
    pthread_t threads[WORKERS];
    bool has_threads;
    shelf shelves[SHELVES];
    job jobs[MOST_JOBS];
    /* The carries. */
    _Atomic bool is_held;         /* they wait at the gate */
    _Atomic bool refuses;         /* looked at behind it */
    _Atomic int64_t begun, ended; /* so far */
    int64_t log[MOST_LOGGED];     /* tags of those that have begun */
    uint32_t seen;                /* of the ring's news */
    sem_t gate;                   /* each post lets one through */
    fl_err err;                   /* of the last failure */
};

static inline int
carry_to_shelf(const fl_dest_buffer *berth, fl_slot *slot, int64_t bytes, fl_err *err)
{
    int64_t word;
    shelf *to = berth->target;
    yard *y = to->yard;
    CHECK(bytes > 0 && bytes <= berth->bytes && bytes <= fl_slot_bytes(slot));
    CHECK_INT(berth->carried, bytes);
    memcpy(&word, fl_slot_data(slot), sizeof word);
    y->log[y->begun % MOST_LOGGED] = word / batch_word(0, 0) - 1;
    atomic_fetch_add(&y->begun, 1);
    if (atomic_load(&y->is_held)) CHECK(sem_wait(&y->gate) == 0);
    bool is_refused = atomic_load(&y->refuses);
    if (!is_refused) memcpy(to->words, fl_slot_data(slot), (size_t)bytes);
    atomic_fetch_add(&y->ended, 1);
    return is_refused ? fl_fail(err, FL_ENOMEM, "refused") : FL_OK;
}

/* ---- berths */

static inline fl_dest_buffer make_berth(yard *y, int64_t bytes)
{
    shelf *free = y->shelves;
    while (free->is_lent) CHECK(++free < y->shelves + SHELVES);
    free->is_lent = true;
    return (fl_dest_buffer){.target = free, .owner = free, .stream = y, .bytes = bytes};
}

static inline void drop_berth(yard *y, const fl_dest_buffer *berth)
{
    shelf *used = berth->owner;
    CHECK(berth->target == used && berth->stream == y && used->is_lent);
    used->is_lent = false;
}

static inline void lend(yard *y, int64_t bytes)
{
    fl_dest_buffer berth = make_berth(y, bytes);
    fl_copier_add_buffer(y->courier, &berth);
}

static inline void lend_all(yard *y)
{
    while (fl_copier_buffers_needed(y->courier) > 0) lend(y, LEND_BYTES);
}

/* How many were not in use. */
static inline int take_back_all(yard *y)
{
    fl_dest_buffer berth;
    int count = 0;
    for (; fl_copier_reclaim_buffer(y->courier, INT64_MAX, &berth); count++) drop_berth(y, &berth);
    return count;
}

/* ---- open */

/* What cannot be had leaves the rest NULL. */
static inline int try_open_yard(yard *y, int32_t workers, bool has_threads)
{
    memset(y, 0, sizeof *y);
    CHECK(workers <= WORKERS && sem_init(&y->gate, 0, 0) == 0);
    y->ring = open_shm_fixture(workers, DEPTH);
    for (int i = 0; i < SHELVES; i++) y->shelves[i].yard = y;
    FL_TRY(fl_arena_open(16 * MIB, &y->arena, &y->err));
    FL_TRY(fl_pool_open(0, y->arena, &y->pool, &y->err));
    fl_pool_reserve(y->pool, MOST_JOBS);
    FL_TRY(fl_copier_open(y->ring.shm, workers, DEPTH, carry_to_shelf, &y->courier, &y->err));
    y->workers = workers;
    y->has_threads = has_threads;
    for (int32_t w = 0; w < workers; w++) {
        y->servants[w] = (servant){y->ring.shm, fl_arena_base(y->arena), w, false};
        if (has_threads) /* not one of the resources that are refused */
            CHECK(pthread_create(&y->threads[w], NULL, serve_all, &y->servants[w]) == 0);
    }
    return FL_OK;
}

/* In order, with all the berths it wants and workers that are the test. */
static inline void open_yard(yard *y)
{
    CHECK_INT(try_open_yard(y, WORKERS, false), FL_OK);
    fl_copier_set_window(y->courier, 0);
    lend_all(y);
}

/* ---- requests and replies */

static inline int try_send(yard *y, int64_t tag, job **out)
{
    job *j = y->jobs;
    while (j->slot != NULL) CHECK(++j < y->jobs + MOST_JOBS);
    *j = (job){.tag = tag, .worker = (int32_t)(tag % 1000 % y->workers)};
    FL_TRY(fl_pool_get(y->pool, SLOT_BYTES, &j->slot, &y->err));
    CHECK(fl_slot_bytes(j->slot) <= SHELF_BYTES);
    memcpy(fl_slot_data(j->slot), &tag, sizeof tag);
    fl_request_message request = {.offset = fl_slot_data(j->slot) - fl_arena_base(y->arena),
                                  .limit = SLOT_BYTES,
                                  .bytes = sizeof tag,
                                  .repeat_of = -1};
    int status = fl_copier_submit(y->courier, j->worker, &request, j->slot, turn_of(tag),
                                  &j->errand, &y->err);
    j->number = request.number;
    if (status == FL_OK) {
        *out = j;
        return FL_OK;
    }
    CHECK(j->errand == NULL && y->err.code == status && y->err.text[0] != '\0');
    fl_slot_return(j->slot);
    j->slot = NULL;
    return status;
}

static inline job *send(yard *y, int64_t tag)
{
    job *j;
    CHECK_INT(try_send(y, tag, &j), FL_OK);
    return j;
}

/* The job's worker answers its first request. */
static inline void serve(yard *y, const job *j)
{
    CHECK_INT(serve_request(&y->servants[j->worker], INT64_MIN), FL_OK);
}

/* Takes a reply if there is one. */
static inline bool receive(yard *y)
{
    fl_reply_message reply;
    int status = fl_copier_receive(y->courier, &reply);
    if (status == FL_ETIMEOUT) return false;
    CHECK_INT(status, FL_OK);
    for (job *j = y->jobs; j < y->jobs + MOST_JOBS; j++) {
        if (j->slot == NULL || j->is_answered) continue;
        if (j->worker != reply.worker || j->number != reply.number) continue;
        j->is_answered = true;
        j->reply = reply;
    }
    return true;
}

static inline void receive_all(yard *y)
{
    while (receive(y)) continue;
}

/* ---- what the courier's thread does */

/* Waits until the atomic *count is that, and not more. */
static inline void await_count(_Atomic int64_t *count, int64_t expected, int64_t deadline_ns)
{
    while (atomic_load(count) < expected && fl_now_ns() < deadline_ns) sleep_ms(1);
    CHECK_INT(atomic_load(count), expected);
}

static inline void await_begun(yard *y, int64_t count)
{
    await_count(&y->begun, count, fl_now_ns() + LONG_NS);
}

static inline void await_ended(yard *y, int64_t count)
{
    await_count(&y->ended, count, fl_now_ns() + LONG_NS);
}

/* Lets one through that is held, and holds no more. */
static inline void release(yard *y)
{
    atomic_store(&y->is_held, false);
    CHECK(sem_post(&y->gate) == 0);
}

/* Whether there was news on the ring since it was asked before: the thread, which is being held,
 * does not ask. */
static inline bool has_news(yard *y)
{
    return fl_shm_queue_watch(y->ring.shm, &y->seen, INT64_MIN);
}

/* ---- the end of a job */

/* True: it has been carried, whole. What the thread chose to do after it is settled then. */
static inline bool claim(yard *y, job *j)
{
    fl_dest_buffer berth = {.bytes = -1};
    bool is_carried = fl_copier_finish(y->courier, j->errand, &berth);
    j->errand = NULL;
    if (!is_carried) {
        CHECK(berth.bytes == -1 && berth.owner == NULL);
        return false;
    }
    CHECK(sort_of(j->tag) == BATCH && berth.bytes > 0);
    CHECK_INT(berth.carried, 8 * count_words(j->tag));
    check_words((const char *)((const shelf *)berth.owner)->words, j->tag);
    drop_berth(y, &berth);
    return true;
}

/* Its worker has answered. */
static inline void forget(job *j)
{
    CHECK(j->errand == NULL && j->is_answered);
    fl_slot_return(j->slot);
    *j = (job){0};
}

/* ---- close */

static inline void drop_jobs(yard *y)
{
    for (job *j = y->jobs; j < y->jobs + MOST_JOBS; j++)
        if (j->errand != NULL) (void)claim(y, j);
    for (int32_t w = 0; w < y->workers && !y->has_threads; w++)
        while (serve_request(&y->servants[w], INT64_MIN) == FL_OK) continue;
    for (job *j = y->jobs; j < y->jobs + MOST_JOBS; j++) {
        if (j->slot == NULL) continue;
        while (!j->is_answered)
            if (!receive(y)) CHECK(fl_shm_queue_wait(y->ring.shm, fl_now_ns() + LONG_NS));
        forget(j);
    }
}

/* All that was opened; nothing is lost. */
static inline void close_yard(yard *y)
{
    if (y->courier != NULL) {
        drop_jobs(y);
        (void)take_back_all(y);
        CHECK_INT(fl_copier_buffers_needed(y->courier), FL_COPY_AHEAD);
        close_all(&y->ring);
        for (int32_t w = 0; w < y->workers && y->has_threads; w++)
            CHECK(pthread_join(y->threads[w], NULL) == 0);
    }
    fl_copier_close(y->courier);
    for (int i = 0; i < SHELVES; i++) CHECK(!y->shelves[i].is_lent);
    CHECK_INT(y->begun, y->ended);
    fl_pool_close(y->pool);
    if (y->arena != NULL) CHECK_INT(held_bytes(y->arena), 0);
    fl_arena_close(y->arena);
    close_shm_fixture(&y->ring);
    CHECK(sem_destroy(&y->gate) == 0);
}

#endif
