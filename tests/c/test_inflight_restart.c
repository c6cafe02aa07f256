/* A worker is replaced: what becomes of its requests, in each of their states, at each step that
 * the one before may have died at. The test answers for the workers. */
#define KEEPS_TASKS true
#include "inflight_fixture.h"

/* The worker's next request is for that turn, with its task. */
static fl_request_message expect_turn(inflight_fixture *f, int32_t worker, int64_t turn)
{
    fl_request_message message = next_message(f, worker);
    CHECK(message.repeat_of == -1 && message.bytes == 8);
    CHECK_INT(turn_in(f, &message), turn);
    return message;
}

static void *begun_key(const inflight_fixture *f, int32_t worker, int64_t count)
{
    int64_t begun;
    void *key = fl_inflight_begun_key(f->table, worker, &begun);
    CHECK_INT(begun, count);
    return key;
}

/* Writes over the task, as a worker does that has begun its batch. */
static void write_over(inflight_fixture *f, const fl_request_message *message)
{
    memset(fl_arena_base(f->arena) + message->offset, 0xDD, (size_t)message->limit);
}

static void test_what_it_had_is_sent_again_in_order(void)
{
    inflight_fixture f;
    open_table(&f, 2, BIG);
    task *t[3], *other = submit(&f, 1, 3);
    for (int i = 0; i < 3; i++) t[i] = submit(&f, 0, i);
    answer_next(&f, 0, 8);
    CHECK(receive(&f) == t[0]);
    fl_request_message message = expect_turn(&f, 0, 1);
    write_over(&f, &message);
    CHECK(begun_key(&f, 0, 2) == t[1]);
    fl_inflight_restart(f.table, 0);
    CHECK(begun_key(&f, 0, 0) == NULL && begun_key(&f, 1, 0) == NULL);
    CHECK(t[1]->request->state == FL_DEFERRED && t[2]->request->state == FL_DEFERRED);
    CHECK(t[1]->request->slot == NULL && other->request->state == FL_SENT);
    CHECK_INT(under_way(&f), LEAST + 8);
    CHECK(!take_message(&f, 0, &message) && receive(&f) == NULL);
    for (int i = 1; i < 3; i++) {
        message = expect_turn(&f, 0, i);
        CHECK_INT(message.number, i - 1);
        answer(&f, 0, message.number, 8);
        CHECK(receive(&f) == t[i]);
    }
    (void)expect_turn(&f, 1, 3);
    close_table(&f);
}

static void test_a_batch_that_was_too_large_is_loaded_again(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    task *t = submit(&f, 0, 0);
    refuse_next(&f, 0, 100000);
    CHECK(receive(&f) == NULL && t->request->small_slot != NULL);
    CHECK(next_message(&f, 0).repeat_of == 0);
    CHECK(begun_key(&f, 0, 2) == t);
    fl_inflight_restart(f.table, 0);
    CHECK(t->request->small_slot == NULL && !fl_inflight_owes(f.table, 0));
    CHECK(receive(&f) == NULL);
    (void)expect_turn(&f, 0, 0);
    refuse(&f, 0, 0, 300000);
    CHECK(receive(&f) == NULL);
    answer_next(&f, 0, 300000);
    CHECK(receive(&f) == t);
    close_table(&f);
}

/* One that waits for memory to be repeated, one that is sent, one deferred. */
static void test_each_state_becomes_deferred(void)
{
    inflight_fixture f;
    task *t[4];
    open_table(&f, 2, 3 * LEAST);
    for (int i = 0; i < 4; i++) t[i] = submit(&f, 0, i);
    answer_next(&f, 0, LEAST);
    CHECK(receive(&f) == t[0]);
    refuse_next(&f, 0, 3 * LEAST);
    CHECK(receive(&f) == NULL && t[1]->request->state == FL_TOO_LARGE);
    CHECK(t[2]->request->state == FL_SENT && t[3]->request->state == FL_DEFERRED);
    CHECK(begun_key(&f, 0, 2) == NULL); /* the worker had made that batch */
    fl_inflight_restart(f.table, 0);
    f.largest = 1;
    for (int i = 1; i < 4; i++) CHECK_INT(t[i]->request->state, FL_DEFERRED);
    CHECK_INT(under_way(&f), LEAST); /* of the batch that has come */
    drop(&f, t[0]);
    for (int i = 1; i < 4; i++) {
        CHECK(receive(&f) == NULL);
        fl_request_message message = expect_turn(&f, 0, i);
        answer(&f, 0, message.number, 8);
        CHECK(receive(&f) == t[i]);
    }
    close_table(&f);
}

static void test_of_an_epoch_that_is_over_the_resume_request_remains(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    (void)submit(&f, 0, 0);
    (void)submit(&f, 0, 1);
    fl_inflight_start_epoch(f.table);
    task *resume = submit(&f, 0, -1);
    (void)next_message(&f, 0);
    fl_inflight_restart(f.table, 0);
    CHECK(count_tasks(&f) == 1 && receive(&f) == NULL);
    (void)expect_turn(&f, 0, -1);
    answer(&f, 0, 0, 8);
    CHECK(receive(&f) == resume);
    task *first = submit(&f, 0, 0);
    (void)expect_turn(&f, 0, 0);
    fl_inflight_restart(f.table, 0); /* in the new epoch batches remain */
    CHECK(receive(&f) == NULL && first->request->state == FL_SENT);
    (void)expect_turn(&f, 0, 0);
    close_table(&f);
}

static void test_what_was_cancelled_is_dropped(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    (void)submit(&f, 0, 0);
    fl_inflight_cancel(f.table, 0, false);
    CHECK_INT(count_tasks(&f), 1);
    fl_inflight_restart(f.table, 0);
    CHECK(count_tasks(&f) == 0 && fl_inflight_is_idle(f.table));
    close_table(&f);
}

static void test_a_reply_that_was_not_received_is_forgotten(void)
{
    inflight_fixture f;
    open_table(&f, 1, BIG);
    task *t = submit(&f, 0, 0);
    answer_next(&f, 0, 8);
    CHECK(fl_shm_queue_has_replies(f.queue.shm, 0));
    fl_inflight_restart(f.table, 0);
    CHECK(!fl_shm_queue_has_replies(f.queue.shm, 0) && receive(&f) == NULL);
    (void)expect_turn(&f, 0, 0);
    answer(&f, 0, 0, 8);
    CHECK(receive(&f) == t && receive(&f) == NULL);
    close_table(&f);
}

/* ---- at random: every batch comes once, whoever dies when */

enum { BATCHES = 300, AHEAD = 10 };

typedef struct life {
    bool has_request;
    fl_request_message request;
    int64_t tag;            /* of the request */
    int64_t refused[DEPTH]; /* tags of batches that were too large, by request % DEPTH */
} life;

/* Does one step: takes a request, writes over its task, or answers. The worker may die after the
 * step. */
static void step(inflight_fixture *f, int32_t worker, life *l, uint64_t *seed)
{
    if (!l->has_request) {
        l->has_request = take_message(f, worker, &l->request);
        if (!l->has_request) return;
        l->tag = l->request.repeat_of >= 0 ? l->refused[l->request.repeat_of % DEPTH]
                                           : turn_in(f, &l->request);
        return;
    }
    int64_t needed = l->tag % 7 == 3 ? 2 * LEAST : 8;
    if (needed > l->request.limit) {
        l->refused[l->request.number % DEPTH] = l->tag;
        refuse(f, worker, l->request.number, needed);
    } else if (random_below(seed, 2) == 0) {
        write_over(f, &l->request); /* and goes on at the next step */
        return;
    } else {
        memcpy(fl_arena_base(f->arena) + l->request.offset, &l->tag, sizeof l->tag);
        answer(f, worker, l->request.number, needed);
    }
    l->has_request = false;
}

static void run_storm(uint64_t seed, int64_t budget)
{
    inflight_fixture f;
    life lives[WORKERS] = {{0}};
    bool is_taken[BATCHES] = {0};
    int64_t submitted = 0, deaths = 0;
    open_table(&f, WORKERS, budget);
    for (int64_t taken = 0; taken < BATCHES;) {
        for (; submitted < BATCHES && submitted < taken + AHEAD; submitted++)
            (void)submit(&f, (int32_t)(submitted % WORKERS), submitted);
        int32_t w = (int32_t)random_below(&seed, WORKERS);
        step(&f, w, &lives[w], &seed);
        if (random_below(&seed, 12) == 0) {
            fl_inflight_restart(f.table, w);
            lives[w] = (life){0};
            deaths++;
        }
        task *t = receive(&f);
        if (t == NULL) continue;
        int64_t turn;
        memcpy(&turn, fl_slot_data(t->request->slot), sizeof turn);
        CHECK(turn == t->turn && !is_taken[turn]);
        is_taken[turn] = true;
        taken++;
        drop(&f, t);
    }
    CHECK(deaths > BATCHES / 12 && fl_inflight_is_idle(f.table));
    close_table(&f);
}

static void test_every_batch_comes_once_in_a_storm(void)
{
    static const int64_t budgets[] = {1, 3 * LEAST, BIG};
    for (int i = 0; i < 12 / (LANE_SLOWNESS > 1 ? 2 : 1); i++)
        run_storm((uint64_t)i, budgets[i % 3]);
}

static int submit_without(void *arg)
{
    inflight_fixture f;
    task *t;
    (void)arg;
    int status = try_open_table(&f, 1, BIG);
    if (status == FL_OK) status = try_submit(&f, 0, 0, &t);
    if (status != FL_OK) CHECK(f.table == NULL || fl_inflight_is_idle(f.table));
    close_table(&f);
    return status;
}

static void test_every_refused_resource(void) { CHECK(refuse_each(submit_without, NULL) >= 5); }

int main(void)
{
    start_tests();
    RUN(test_what_it_had_is_sent_again_in_order);
    RUN(test_a_batch_that_was_too_large_is_loaded_again);
    RUN(test_each_state_becomes_deferred);
    RUN(test_of_an_epoch_that_is_over_the_resume_request_remains);
    RUN(test_what_was_cancelled_is_dropped);
    RUN(test_a_reply_that_was_not_received_is_forgotten);
    RUN(test_every_batch_comes_once_in_a_storm);
    RUN(test_every_refused_resource);
    return 0;
}
