/* A copier between a consumer and workers at full speed, one that sleeps, and resources that
 * cannot be had. */
#include "copier_fixture.h"

enum { BATCHES = 600, NUDGES = 100 };

/* ---- many batches */

typedef struct trial {
    int32_t workers;
    bool is_in_order, is_slow;
    uint64_t seed;
} trial;

/* The answered job of that tag, of any with -1. */
static job *find_answered(copier_fixture *f, int64_t tag)
{
    for (job *j = f->jobs; j < f->jobs + MOST_JOBS; j++)
        if (j->is_answered && (tag < 0 || j->tag == tag)) return j;
    return NULL;
}

/* Checks a job: its batch lies in the copier's buffer, or still in its slot. Nobody looks at jobs
 * that were finished before. */
static void take_in(copier_fixture *f, job *j, uint64_t *random)
{
    bool is_unwanted = j->is_finished;
    bool is_copied = !is_unwanted && finish(f, j);
    if (!is_copied && !is_unwanted) check_words(fl_slot_data(j->request->slot), j->tag);
    CHECK(!is_copied || j->request->reply.upload == 8 * count_words(j->tag));
    drop(f, j);
    if (random_below(random, 8) == 0) (void)reclaim_all(f);
    if (random_below(random, 4) != 0) lend_all(f);
    atomic_store(&f->fails, random_below(random, 6) == 0);
}

static int run_batches(const trial *t, copier_fixture *f, int64_t batches)
{
    uint64_t random = t->seed;
    int64_t posted = 0;
    FL_TRY(try_open_fixture(f, t->workers, true));
    for (int32_t w = 0; w < t->workers; w++) f->fakes[w].is_slow = t->is_slow && w == 0;
    for (int64_t next = 0; next < batches; next++) {
        job *j;
        fl_copier_set_window(f->copier, t->is_in_order ? next : -1);
        for (; posted < batches && posted < next + 3 * t->workers; posted++) {
            FL_TRY(try_submit(f, posted, &j));
            if (random_below(&random, 10) == 0) (void)finish(f, j);
        }
        while ((j = find_answered(f, t->is_in_order ? next : -1)) == NULL)
            if (!receive(f)) await_reply(f);
        take_in(f, j, &random);
    }
    return FL_OK;
}

static void test_batches_arrive_whole(void)
{
    int64_t begun = 0;
    for (int i = 0; i < 12 * WORKERS; i++) {
        copier_fixture f;
        trial t = {1 + i % WORKERS, i / WORKERS % 2 == 0, i / WORKERS % 4 >= 2, (uint64_t)i};
        CHECK_INT(run_batches(&t, &f, t.is_slow ? BATCHES / 4 : BATCHES), FL_OK);
        begun += f.begun;
        close_fixture(&f);
    }
    CHECK(begun > 0);
}

/* ---- sleeping */

static void test_a_buffer_or_a_turn_is_an_event_if_it_makes_work(void)
{
    copier_fixture f;
    open_fixture(&f);
    f.is_held = true;
    job *held = submit(&f, 0), *other = submit(&f, 3);
    serve(&f, held);
    await_begun(&f, 1);
    serve(&f, other);
    receive_all(&f);
    CHECK(has_event(&f) && !has_event(&f));
    fl_copier_set_window(f.copier, 1);
    CHECK(!has_event(&f));
    fl_copier_set_window(f.copier, 2);
    CHECK(has_event(&f));
    CHECK_INT(reclaim_all(&f), 1);
    fl_copier_set_window(f.copier, 3);
    CHECK(!has_event(&f));
    lend_all(&f);
    CHECK(has_event(&f));
    release(&f);
    await_ended(&f, 2);
    CHECK(finish(&f, held) && finish(&f, other));
    close_fixture(&f);
}

/* Without a wake-up the thread would look once a second. */
static void test_the_thread_is_told_of_a_buffer_and_of_a_turn(void)
{
    for (int by_turn = 0; by_turn < 2; by_turn++) {
        copier_fixture f;
        CHECK_INT(try_open_fixture(&f, 1, false), FL_OK);
        int64_t deadline_ns = fl_now_ns() + LONG_NS;
        for (int64_t n = 0, count = 0; count < NUDGES; n++) {
            if (kind_of(n) != BATCH) continue;
            job *j = submit(&f, n);
            fl_copier_set_window(f.copier, by_turn == 1 ? n + 1 : n);
            if (by_turn == 1) lend_all(&f);
            serve(&f, j);
            receive_all(&f);
            sleep_ms(2); /* the copier has looked */
            if (by_turn == 1)
                fl_copier_set_window(f.copier, n);
            else
                lend_all(&f);
            await_count(&f.ended, ++count, deadline_ns);
            CHECK(finish(&f, j));
            drop(&f, j);
            if (by_turn == 0) CHECK_INT(reclaim_all(&f), FL_COPY_AHEAD - 1);
        }
        close_fixture(&f);
    }
}

/* Both sleep until the one reply that is to come. */
static void test_the_consumer_and_the_thread_are_both_woken(void)
{
    copier_fixture f;
    CHECK_INT(try_open_fixture(&f, 1, true), FL_OK);
    f.fakes[0].is_slow = true;
    int64_t deadline_ns = fl_now_ns() + LONG_NS;
    for (int64_t n = 0; n < 3 * NUDGES; n += 3) { /* those that take a while */
        fl_copier_set_window(f.copier, n);
        lend_all(&f);
        job *j = submit(&f, n);
        while (!j->is_answered)
            if (!receive(&f)) CHECK(fl_shm_queue_wait(f.queue.shm, deadline_ns));
        (void)finish(&f, j);
        drop(&f, j);
    }
    close_fixture(&f);
}

/* ---- what cannot be had */

static int run_without(void *arg)
{
    copier_fixture f;
    int status = run_batches(arg, &f, 9);
    if (status == FL_OK || f.copier == NULL) {
        close_fixture(&f);
        return status;
    }
    job *j = NULL;
    CHECK_INT(f.err.code, status);
    CHECK_INT(try_submit(&f, 30, &j), FL_OK); /* nothing was lost */
    while (!j->is_answered)
        if (!receive(&f)) await_reply(&f);
    close_fixture(&f);
    return status;
}

static void test_every_refused_resource(void)
{
    for (int32_t workers = 1; workers <= WORKERS; workers++) {
        trial t = {workers, workers % 2 == 0, false, 7};
        CHECK(refuse_each(run_without, &t) >= 6 + 9);
    }
}

static void test_a_full_queue_is_no_failure(void)
{
    copier_fixture f;
    job *jobs[DEPTH + 1];
    CHECK_INT(try_open_fixture(&f, 1, false), FL_OK);
    fl_copier_set_window(f.copier, -1);
    lend_all(&f);
    for (int64_t n = 0; n < DEPTH; n++) jobs[n] = submit(&f, n);
    jobs[DEPTH] = submit(&f, DEPTH);
    CHECK(jobs[DEPTH]->request->state == FL_DEFERRED && !receive(&f));
    serve(&f, jobs[0]);
    await_ended(&f, 1); /* seen is not taken */
    CHECK(jobs[DEPTH]->request->state == FL_DEFERRED && receive(&f));
    CHECK(jobs[0]->is_answered && jobs[DEPTH]->request->state == FL_DEFERRED && !receive(&f));
    CHECK_INT(jobs[DEPTH]->request->state, FL_SENT);
    for (int64_t n = 1; n <= DEPTH; n++) serve(&f, jobs[n]);
    CHECK(finish(&f, jobs[0]));
    close_fixture(&f);
}

int main(void)
{
    start_tests();
    RUN(test_batches_arrive_whole);
    RUN(test_a_buffer_or_a_turn_is_an_event_if_it_makes_work);
    RUN(test_the_thread_is_told_of_a_buffer_and_of_a_turn);
    RUN(test_the_consumer_and_the_thread_are_both_woken);
    RUN(test_every_refused_resource);
    RUN(test_a_full_queue_is_no_failure);
    return 0;
}
