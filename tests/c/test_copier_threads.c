/* A courier between a consumer and workers at full speed, one that sleeps, and resources that
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
static job *find_answered(yard *y, int64_t tag)
{
    for (job *j = y->jobs; j < y->jobs + MOST_JOBS; j++)
        if (j->slot != NULL && j->is_answered && (tag < 0 || j->tag == tag)) return j;
    return NULL;
}

/* Its batch is where the courier says, or still in its slot; dropped ones are looked at by nobody.
 */
static void take_in(yard *y, job *j, uint64_t *random)
{
    bool is_dropped = j->errand == NULL;
    bool is_carried = !is_dropped && claim(y, j);
    if (!is_carried && !is_dropped) check_words(fl_slot_data(j->slot), j->tag);
    CHECK(!is_carried || j->reply.upload == 8 * count_words(j->tag));
    forget(j);
    if (random_below(random, 8) == 0) (void)take_back_all(y);
    if (random_below(random, 4) != 0) lend_all(y);
    atomic_store(&y->refuses, random_below(random, 6) == 0);
}

static int run_batches(const trial *t, yard *y, int64_t batches)
{
    uint64_t random = t->seed;
    int64_t posted = 0;
    FL_TRY(try_open_yard(y, t->workers, true));
    for (int32_t w = 0; w < t->workers; w++) y->servants[w].is_slow = t->is_slow && w == 0;
    for (int64_t next = 0; next < batches; next++) {
        job *j;
        fl_copier_set_window(y->courier, t->is_in_order ? next : -1);
        for (; posted < batches && posted < next + 3 * t->workers; posted++) {
            int status = try_send(y, posted, &j);
            if (status == FL_ETIMEOUT) break;
            FL_TRY(status);
            if (random_below(&random, 10) == 0) (void)claim(y, j);
        }
        while ((j = find_answered(y, t->is_in_order ? next : -1)) == NULL)
            if (!receive(y)) CHECK(fl_shm_queue_wait(y->ring.shm, fl_now_ns() + LONG_NS));
        take_in(y, j, &random);
    }
    return FL_OK;
}

static void test_batches_arrive_whole(void)
{
    int64_t begun = 0;
    for (int i = 0; i < 12 * WORKERS; i++) {
        yard y;
        trial t = {1 + i % WORKERS, i / WORKERS % 2 == 0, i / WORKERS % 4 >= 2, (uint64_t)i};
        CHECK_INT(run_batches(&t, &y, t.is_slow ? BATCHES / 4 : BATCHES), FL_OK);
        begun += y.begun;
        close_yard(&y);
    }
    CHECK(begun > 0);
}

/* ---- sleeping */

static void test_a_berth_or_a_turn_is_news_if_it_makes_work(void)
{
    yard y;
    open_yard(&y);
    y.is_held = true;
    job *held = send(&y, 0), *other = send(&y, 3);
    serve(&y, held);
    await_begun(&y, 1);
    serve(&y, other);
    receive_all(&y);
    CHECK(has_news(&y) && !has_news(&y));
    fl_copier_set_window(y.courier, 1);
    CHECK(!has_news(&y));
    fl_copier_set_window(y.courier, 2);
    CHECK(has_news(&y));
    CHECK_INT(take_back_all(&y), 1);
    fl_copier_set_window(y.courier, 3);
    CHECK(!has_news(&y));
    lend_all(&y);
    CHECK(has_news(&y));
    release(&y);
    await_ended(&y, 2);
    CHECK(claim(&y, held) && claim(&y, other));
    close_yard(&y);
}

/* Without being told, the thread would look once a second. */
static void test_the_thread_is_told_of_a_berth_and_of_a_turn(void)
{
    for (int by_turn = 0; by_turn < 2; by_turn++) {
        yard y;
        CHECK_INT(try_open_yard(&y, 1, false), FL_OK);
        int64_t deadline_ns = fl_now_ns() + LONG_NS;
        for (int64_t n = 0, count = 0; count < NUDGES; n++) {
            if (sort_of(n) != BATCH) continue;
            job *j = send(&y, n);
            fl_copier_set_window(y.courier, by_turn == 1 ? n + 1 : n);
            if (by_turn == 1) lend_all(&y);
            serve(&y, j);
            receive_all(&y);
            sleep_ms(2); /* it has looked */
            if (by_turn == 1)
                fl_copier_set_window(y.courier, n);
            else
                lend_all(&y);
            await_count(&y.ended, ++count, deadline_ns);
            CHECK(claim(&y, j));
            forget(j);
            if (by_turn == 0) CHECK_INT(take_back_all(&y), FL_COPY_AHEAD - 1);
        }
        close_yard(&y);
    }
}

/* Both sleep until the one reply that is to come. */
static void test_the_consumer_and_the_thread_are_both_woken(void)
{
    yard y;
    CHECK_INT(try_open_yard(&y, 1, true), FL_OK);
    y.servants[0].is_slow = true;
    int64_t deadline_ns = fl_now_ns() + LONG_NS;
    for (int64_t n = 0; n < 3 * NUDGES; n += 3) { /* those that take a while */
        fl_copier_set_window(y.courier, n);
        lend_all(&y);
        job *j = send(&y, n);
        while (!j->is_answered)
            if (!receive(&y)) CHECK(fl_shm_queue_wait(y.ring.shm, deadline_ns));
        (void)claim(&y, j);
        forget(j);
    }
    close_yard(&y);
}

/* ---- what cannot be had */

static int run_without(void *arg)
{
    yard y;
    int status = run_batches(arg, &y, 9);
    if (status == FL_OK || y.courier == NULL) {
        close_yard(&y);
        return status;
    }
    job *j;
    CHECK_INT(y.err.code, status);
    CHECK_INT(try_send(&y, 30, &j), FL_OK); /* nothing was lost by it */
    while (!j->is_answered)
        if (!receive(&y)) CHECK(fl_shm_queue_wait(y.ring.shm, fl_now_ns() + LONG_NS));
    close_yard(&y);
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
    yard y;
    job *jobs[DEPTH + 1];
    CHECK_INT(try_open_yard(&y, 1, false), FL_OK);
    fl_copier_set_window(y.courier, -1);
    lend_all(&y);
    for (int64_t n = 0; n < DEPTH; n++) jobs[n] = send(&y, n);
    for (int i = 0; i < 3; i++) CHECK_INT(try_send(&y, DEPTH, &jobs[DEPTH]), FL_ETIMEOUT);
    serve(&y, jobs[0]);
    await_ended(&y, 1);
    CHECK_INT(try_send(&y, DEPTH, &jobs[DEPTH]), FL_ETIMEOUT); /* seen is not taken */
    CHECK(receive(&y));
    jobs[DEPTH] = send(&y, DEPTH);
    for (int64_t n = 1; n <= DEPTH; n++) serve(&y, jobs[n]);
    CHECK(claim(&y, jobs[0]));
    close_yard(&y);
}

int main(void)
{
    start_tests();
    RUN(test_batches_arrive_whole);
    RUN(test_a_berth_or_a_turn_is_news_if_it_makes_work);
    RUN(test_the_thread_is_told_of_a_berth_and_of_a_turn);
    RUN(test_the_consumer_and_the_thread_are_both_woken);
    RUN(test_every_refused_resource);
    RUN(test_a_full_queue_is_no_failure);
    return 0;
}
