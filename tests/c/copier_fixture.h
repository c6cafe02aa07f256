/* copier_fixture.h: a table of requests and a copier between a consumer and workers, who are
 * threads or the test itself; copies that copy memory, are held up at a gate, or fail. */
#ifndef COPIER_FIXTURE_H
#define COPIER_FIXTURE_H

#define WORDS_SCALE 1

#include "arena_fixture.h"
#include "fake_worker.h"

#include "fl_copier.h"

#include <semaphore.h>
#include <stdatomic.h>

enum {
    WORKERS = 3,
    MOST_JOBS = 16,
    MOST_LOGGED = 64,
    BUFFERS = FL_COPY_AHEAD + 1, /* one more: in the consumer's hands */
    SLOT_BYTES = 64 * KIB,       /* what every request gets */
    LEND_BYTES = 64 * KIB,       /* suits every batch */
    BUFFER_BYTES = 256 * KIB     /* the largest slot */
};

/* A request as the consumer knows it: the key of the request's entry. */
typedef struct job {
    fl_request *request; /* NULL: a free place */
    int64_t tag;
    int32_t worker;
    bool is_answered;
    bool is_finished; /* its copy is */
} job;

typedef struct copier_fixture copier_fixture;

/* The memory of a buffer. */
typedef struct dest_memory {
    copier_fixture *fixture;
    bool is_lent;
    int64_t words[BUFFER_BYTES / 8];
} dest_memory;

struct copier_fixture {
    shm_fixture queue;
    fl_arena *arena;
    fl_pool *pool;
    fl_inflight *table;
    fl_copier *copier;
    _Atomic int64_t largest;
    int32_t workers;
    fake_worker fakes[WORKERS];
    pthread_t threads[WORKERS];
    bool has_threads;
    dest_memory memory[BUFFERS];
    job jobs[MOST_JOBS];
    int64_t damages; /* replies that could not be believed, so far */
    /* The copies. */
    _Atomic bool is_held;         /* they wait at the gate */
    _Atomic bool fails;           /* looked at after that */
    _Atomic int64_t begun, ended; /* so far */
    int64_t log[MOST_LOGGED];     /* tags of those that have begun */
    uint32_t seen;                /* of the queue's events */
    sem_t gate;                   /* each post lets one through */
    fl_err err;                   /* of the last failure */
};

static inline int
copy_to_memory(const fl_dest_buffer *buffer, fl_slot *slot, int64_t bytes, fl_err *err)
{
    int64_t word;
    dest_memory *to = buffer->target;
    copier_fixture *f = to->fixture;
    CHECK(bytes > 0 && bytes <= buffer->bytes && bytes <= fl_slot_bytes(slot));
    CHECK_INT(buffer->copied, bytes);
    memcpy(&word, fl_slot_data(slot), sizeof word);
    f->log[f->begun % MOST_LOGGED] = word / batch_word(0, 0) - 1;
    atomic_fetch_add(&f->begun, 1);
    if (atomic_load(&f->is_held)) CHECK(sem_wait(&f->gate) == 0);
    bool fails = atomic_load(&f->fails);
    if (!fails) memcpy(to->words, fl_slot_data(slot), (size_t)bytes);
    atomic_fetch_add(&f->ended, 1);
    return fails ? fl_fail(err, FL_ENOMEM, "refused") : FL_OK;
}

/* ---- buffers */

static inline fl_dest_buffer make_buffer(copier_fixture *f, int64_t bytes)
{
    dest_memory *free = f->memory;
    while (free->is_lent) CHECK(++free < f->memory + BUFFERS);
    free->is_lent = true;
    return (fl_dest_buffer){.target = free, .owner = free, .stream = f, .bytes = bytes};
}

static inline void drop_buffer(copier_fixture *f, const fl_dest_buffer *buffer)
{
    dest_memory *used = buffer->owner;
    CHECK(buffer->target == used && buffer->stream == f && used->is_lent);
    used->is_lent = false;
}

static inline void lend(copier_fixture *f, int64_t bytes)
{
    fl_dest_buffer buffer = make_buffer(f, bytes);
    fl_copier_add_buffer(f->copier, &buffer);
}

static inline void lend_all(copier_fixture *f)
{
    while (fl_copier_buffers_needed(f->copier) > 0) lend(f, LEND_BYTES);
}

/* Takes back all unused buffers, and returns how many there were. */
static inline int reclaim_all(copier_fixture *f)
{
    fl_dest_buffer buffer;
    int count = 0;
    for (; fl_copier_reclaim_buffer(f->copier, INT64_MAX, &buffer); count++)
        drop_buffer(f, &buffer);
    return count;
}

/* ---- open */

static inline void abandon_buffer(void *context, const fl_dest_buffer *buffer, fl_slot *slot)
{
    drop_buffer(context, buffer);
    fl_slot_return(slot);
}

static inline int64_t count_nothing(void *context)
{
    (void)context;
    return 0;
}

static inline void drop_job(void *key) { *(job *)key = (job){0}; }

static inline int open_table(copier_fixture *f)
{
    f->largest = 1; /* known, so that every request gets the least */
    fl_inflight_config config = {.shm = f->queue.shm,
                                 .workers = f->workers,
                                 .depth = DEPTH,
                                 .pool = f->pool,
                                 .base = fl_arena_base(f->arena),
                                 .largest = &f->largest,
                                 .budget = 1024 * MIB,
                                 .keeps_tasks = true,
                                 .has_destination = true,
                                 .context = f,
                                 .abandon = abandon_buffer,
                                 .count_reading = count_nothing,
                                 .drop_key = drop_job};
    return fl_inflight_open(&config, &f->table, &f->err);
}

/* Opens a fixture. If a part cannot be made, the rest stays NULL. */
static inline int try_open_fixture(copier_fixture *f, int32_t workers, bool has_threads)
{
    memset(f, 0, sizeof *f);
    CHECK(workers <= WORKERS && sem_init(&f->gate, 0, 0) == 0);
    f->queue = open_shm_fixture(workers, DEPTH);
    f->workers = workers;
    for (int i = 0; i < BUFFERS; i++) f->memory[i].fixture = f;
    FL_TRY(fl_arena_open(16 * MIB, &f->arena, &f->err));
    FL_TRY(fl_pool_open(0, f->arena, &f->pool, &f->err));
    fl_pool_reserve(f->pool, MOST_JOBS);
    FL_TRY(open_table(f));
    FL_TRY(fl_copier_open(f->table, copy_to_memory, &f->copier, &f->err));
    f->has_threads = has_threads;
    for (int32_t w = 0; w < workers; w++) {
        f->fakes[w] = (fake_worker){f->queue.shm, fl_arena_base(f->arena), w, false, {0}};
        if (has_threads) /* not one of the resources that are refused */
            CHECK(pthread_create(&f->threads[w], NULL, serve_all, &f->fakes[w]) == 0);
    }
    return FL_OK;
}

/* Opens a fixture that takes batches in order, has all the buffers it needs, and plays the workers
 * itself. */
static inline void open_fixture(copier_fixture *f)
{
    CHECK_INT(try_open_fixture(f, WORKERS, false), FL_OK);
    fl_copier_set_window(f->copier, 0);
    lend_all(f);
}

/* ---- requests and replies */

static inline int try_submit(copier_fixture *f, int64_t tag, job **out)
{
    job *j = f->jobs;
    while (j->request != NULL) CHECK(++j < f->jobs + MOST_JOBS);
    *j = (job){.tag = tag, .worker = (int32_t)(tag % 1000 % f->workers)};
    int status = fl_inflight_submit(f->table, j->worker, (const char *)&tag, sizeof tag, j,
                                    turn_of(tag), &j->request, &f->err);
    if (status == FL_OK) {
        *out = j;
        return FL_OK;
    }
    CHECK(j->request == NULL && f->err.code == status && f->err.text[0] != '\0');
    return status;
}

static inline job *submit(copier_fixture *f, int64_t tag)
{
    job *j = NULL;
    CHECK_INT(try_submit(f, tag, &j), FL_OK);
    CHECK(j->request->state != FL_SENT || fl_slot_bytes(j->request->slot) <= BUFFER_BYTES);
    return j;
}

/* The job's worker answers its first request. */
static inline void serve(copier_fixture *f, const job *j)
{
    CHECK_INT(serve_request(&f->fakes[j->worker], INT64_MIN), FL_OK);
}

/* FL_OK: there was a reply. */
static inline int try_receive(copier_fixture *f)
{
    fl_request *request;
    int status = fl_inflight_receive(f->table, &request, &f->err);
    if (status == FL_EDAMAGE) {
        CHECK(f->err.code == FL_EDAMAGE && f->err.value >= 0 && f->err.value < f->workers);
        f->damages++;
        return FL_OK;
    }
    FL_TRY(status);
    job *j = request->key;
    CHECK(j->request == request && request->state == FL_ANSWERED && !j->is_answered);
    CHECK_INT(request->worker, j->worker);
    j->is_answered = true;
    return FL_OK;
}

/* Takes a reply if there is one. */
static inline bool receive(copier_fixture *f)
{
    int status = try_receive(f);
    CHECK(status == FL_OK || status == FL_ETIMEOUT);
    return status == FL_OK;
}

static inline void receive_all(copier_fixture *f)
{
    while (receive(f)) continue;
}

static inline void await_reply(copier_fixture *f)
{
    CHECK(fl_shm_queue_wait(f->queue.shm, fl_now_ns() + LONG_NS));
}

/* ---- what the copier's thread does */

/* Waits until the atomic *count is that, and not more. */
static inline void await_count(_Atomic int64_t *count, int64_t expected, int64_t deadline_ns)
{
    while (atomic_load(count) < expected && fl_now_ns() < deadline_ns) sleep_ms(1);
    CHECK_INT(atomic_load(count), expected);
}

static inline void await_begun(copier_fixture *f, int64_t count)
{
    await_count(&f->begun, count, fl_now_ns() + LONG_NS);
}

static inline void await_ended(copier_fixture *f, int64_t count)
{
    await_count(&f->ended, count, fl_now_ns() + LONG_NS);
}

/* Lets one held copy through, and holds no more. */
static inline void release(copier_fixture *f)
{
    atomic_store(&f->is_held, false);
    CHECK(sem_post(&f->gate) == 0);
}

/* Returns true if an event has come since the last question. The copier's thread is held, so it
 * does not take the event. */
static inline bool has_event(copier_fixture *f)
{
    return fl_shm_queue_watch(f->queue.shm, &f->seen, INT64_MIN);
}

/* ---- the end of a job */

/* Finishes a job; true: the whole batch has been copied. The thread has then settled what to do
 * next. */
static inline bool finish(copier_fixture *f, job *j)
{
    fl_dest_buffer buffer = {.bytes = -1};
    bool is_copied = fl_inflight_finish(f->table, j->request, &buffer);
    j->is_finished = true;
    if (!is_copied) {
        CHECK(buffer.bytes == -1 && buffer.owner == NULL);
        return false;
    }
    CHECK(kind_of(j->tag) == BATCH && buffer.bytes > 0);
    CHECK_INT(buffer.copied, 8 * count_words(j->tag));
    check_words((const char *)((const dest_memory *)buffer.owner)->words, j->tag);
    drop_buffer(f, &buffer);
    return true;
}

/* Drops a job whose worker has answered. */
static inline void drop(copier_fixture *f, job *j)
{
    CHECK(j->is_answered);
    fl_inflight_drop(f->table, j->request);
    CHECK(j->request == NULL);
}

/* ---- close */

static inline void drop_jobs(copier_fixture *f)
{
    for (job *j = f->jobs; j < f->jobs + MOST_JOBS; j++)
        if (j->request != NULL && !j->is_finished) (void)finish(f, j);
    for (;;) {
        for (int32_t w = 0; w < f->workers && !f->has_threads; w++)
            while (serve_request(&f->fakes[w], INT64_MIN) == FL_OK) continue;
        receive_all(f);
        if (fl_inflight_is_idle(f->table)) break;
        if (f->has_threads) await_reply(f);
    }
    for (job *j = f->jobs; j < f->jobs + MOST_JOBS; j++)
        if (j->is_answered) drop(f, j);
    for (int32_t w = 0; w < f->workers; w++) fl_inflight_cancel(f->table, w, true);
    for (job *j = f->jobs; j < f->jobs + MOST_JOBS; j++) CHECK(j->request == NULL);
    CHECK_INT(fl_inflight_count(f->table)->under_way, 0);
}

/* All that was opened; nothing is lost. */
static inline void close_fixture(copier_fixture *f)
{
    if (f->copier != NULL) {
        drop_jobs(f);
        (void)reclaim_all(f);
        CHECK_INT(fl_copier_buffers_needed(f->copier), FL_COPY_AHEAD);
        close_all(&f->queue);
        for (int32_t w = 0; w < f->workers && f->has_threads; w++)
            CHECK(pthread_join(f->threads[w], NULL) == 0);
    }
    fl_copier_close(f->copier);
    fl_inflight_close(f->table);
    for (int i = 0; i < BUFFERS; i++) CHECK(!f->memory[i].is_lent);
    CHECK_INT(f->begun, f->ended);
    fl_pool_close(f->pool);
    if (f->arena != NULL) CHECK_INT(held_bytes(f->arena), 0);
    fl_arena_close(f->arena);
    close_shm_fixture(&f->queue);
    CHECK(sem_destroy(&f->gate) == 0);
}

#endif
