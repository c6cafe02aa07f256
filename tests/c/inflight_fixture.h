/* inflight_fixture.h: a table of requests without a copier, over queues; the test or threads play
 * the workers. A task is its turn, and the key of a request is the test's own record. */
#ifndef INFLIGHT_FIXTURE_H
#define INFLIGHT_FIXTURE_H

/* Some batches of fake workers are larger than what requests get at first. */
#define WORDS_SCALE 8

#include "arena_fixture.h"
#include "fake_worker.h"

#include "fl_hash.h"
#include "fl_inflight.h"

/* Workers may be replaced if the including file defines KEEPS_TASKS as true. */
#ifndef KEEPS_TASKS
#define KEEPS_TASKS false
#endif

enum {
    WORKERS = 3,
    MOST_TASKS = 64,
    LEAST = 64 * KIB, /* what requests get while batches are small */
    BIG = 1 << 30     /* a budget that is never reached */
};

typedef struct task {
    fl_request *request; /* NULL: a free place */
    int64_t turn;
    int32_t worker;
    bool is_answered;
} task;

typedef struct inflight_fixture {
    shm_fixture queue;
    fl_arena *arena;
    fl_pool *pool;
    fl_inflight *table;
    _Atomic int64_t largest;
    int64_t reading;
    task tasks[MOST_TASKS];
    fl_err err; /* of the last failure */
} inflight_fixture;

static inline void drop_task(void *key) { *(task *)key = (task){0}; }

static inline int64_t count_reading(void *context)
{
    return ((inflight_fixture *)context)->reading;
}

static inline void abandon_nothing(void *context, const fl_dest_buffer *buffer, fl_slot *slot)
{
    CHECK(context == NULL && buffer == NULL && slot == NULL); /* there is no copier */
}

/* Opens a fixture. If a part cannot be made, the rest stays NULL. */
static inline int try_open_table(inflight_fixture *f, int32_t workers, int64_t budget)
{
    memset(f, 0, sizeof *f);
    f->largest = 1; /* known: requests get the least */
    f->queue = open_shm_fixture(workers, DEPTH);
    FL_TRY(fl_arena_open(64 * MIB, &f->arena, &f->err));
    FL_TRY(fl_pool_open(0, f->arena, &f->pool, &f->err));
    fl_inflight_config config = {.shm = f->queue.shm,
                                 .workers = workers,
                                 .depth = DEPTH,
                                 .pool = f->pool,
                                 .base = fl_arena_base(f->arena),
                                 .largest = &f->largest,
                                 .budget = budget,
                                 .keeps_tasks = KEEPS_TASKS,
                                 .has_destination = true,
                                 .context = f,
                                 .abandon = abandon_nothing,
                                 .count_reading = count_reading,
                                 .drop_key = drop_task};
    return fl_inflight_open(&config, &f->table, &f->err);
}

static inline void open_table(inflight_fixture *f, int32_t workers, int64_t budget)
{
    CHECK_INT(try_open_table(f, workers, budget), FL_OK);
}

static inline int64_t under_way(const inflight_fixture *f)
{
    return fl_inflight_count(f->table)->under_way;
}

/* ---- the consumer */

static inline int try_submit(inflight_fixture *f, int32_t worker, int64_t turn, task **out)
{
    task *t = f->tasks;
    while (t->request != NULL) CHECK(++t < f->tasks + MOST_TASKS);
    *t = (task){.turn = turn, .worker = worker};
    int status = fl_inflight_submit(f->table, worker, (const char *)&turn, sizeof turn, t, turn,
                                    &t->request, &f->err);
    CHECK(status == FL_OK || t->request == NULL);
    *out = t;
    return status;
}

static inline task *submit(inflight_fixture *f, int32_t worker, int64_t turn)
{
    task *t = NULL;
    CHECK_INT(try_submit(f, worker, turn, &t), FL_OK);
    return t;
}

static inline int try_receive(inflight_fixture *f, task **out)
{
    fl_request *request;
    *out = NULL;
    int status = fl_inflight_receive(f->table, &request, &f->err);
    CHECK((status == FL_OK) == (request != NULL));
    if (status != FL_OK) return status;
    task *t = request->key;
    CHECK(t->request == request && request->state == FL_ANSWERED && !t->is_answered);
    CHECK(request->worker == t->worker && request->turn == t->turn);
    t->is_answered = true;
    *out = t;
    return FL_OK;
}

/* Receives a reply; NULL: there is none. */
static inline task *receive(inflight_fixture *f)
{
    task *t;
    int status = try_receive(f, &t);
    CHECK(status == FL_OK || status == FL_ETIMEOUT);
    return t;
}

static inline void drop(inflight_fixture *f, task *t)
{
    CHECK(t->is_answered);
    fl_inflight_drop(f->table, t->request);
    CHECK(t->request == NULL);
}

static inline int count_tasks(const inflight_fixture *f)
{
    int count = 0;
    for (const task *t = f->tasks; t < f->tasks + MOST_TASKS; t++) count += t->request != NULL;
    return count;
}

/* ---- a worker that is the test */

/* Takes the worker's next request; returns false if there is none. */
static inline bool take_message(inflight_fixture *f, int32_t worker, fl_request_message *out)
{
    int status = fl_shm_queue_receive_request(f->queue.shm, worker, out, INT64_MIN);
    CHECK(status == FL_OK || status == FL_ETIMEOUT);
    if (status != FL_OK) return false;
    const char *payload = fl_arena_base(f->arena) + out->offset;
    CHECK(fl_hash(payload, out->bytes) == out->task_check && out->bytes <= out->limit);
    return true;
}

static inline fl_request_message next_message(inflight_fixture *f, int32_t worker)
{
    fl_request_message message;
    CHECK(take_message(f, worker, &message));
    return message;
}

static inline int64_t turn_in(const inflight_fixture *f, const fl_request_message *message)
{
    int64_t turn;
    memcpy(&turn, fl_arena_base(f->arena) + message->offset, sizeof turn);
    return turn;
}

/* A batch of `used` bytes. */
static inline void answer(inflight_fixture *f, int32_t worker, int64_t number, int64_t used)
{
    fl_reply_message reply = {.number = number, .kind = 1, .used = used, .head = used};
    fl_shm_queue_send_reply(f->queue.shm, worker, &reply);
}

/* Answers that the batch needs `needed` bytes. */
static inline void refuse(inflight_fixture *f, int32_t worker, int64_t number, int64_t needed)
{
    fl_reply_message reply = {.number = number, .kind = -1, .used = needed};
    fl_shm_queue_send_reply(f->queue.shm, worker, &reply);
}

/* Takes and answers the worker's next request. */
static inline void answer_next(inflight_fixture *f, int32_t worker, int64_t used)
{
    fl_request_message message = next_message(f, worker);
    answer(f, worker, message.number, used);
}

static inline void refuse_next(inflight_fixture *f, int32_t worker, int64_t needed)
{
    fl_request_message message = next_message(f, worker);
    refuse(f, worker, message.number, needed);
}

/* ---- close */

/* Closes the table when no worker writes any more, and checks that nothing is lost. */
static inline void close_table(inflight_fixture *f)
{
    if (f->table != NULL) {
        for (task *t = f->tasks; t < f->tasks + MOST_TASKS; t++)
            if (t->is_answered) drop(f, t);
        for (int32_t w = 0; w < f->queue.workers; w++) fl_inflight_cancel(f->table, w, true);
        CHECK_INT(count_tasks(f), 0);
        CHECK_INT(under_way(f), 0);
        CHECK(fl_inflight_is_idle(f->table));
    }
    fl_inflight_close(f->table);
    fl_pool_close(f->pool);
    if (f->arena != NULL) CHECK_INT(held_bytes(f->arena), 0);
    fl_arena_close(f->arena);
    close_shm_fixture(&f->queue);
}

#endif
