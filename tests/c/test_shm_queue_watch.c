/* Tests of the parent's second thread: what it sees of replies that the first thread has not taken,
 * and how both threads are woken. */
#include "shm_queue_fixture.h"

#include "fl_thread.h"

#include <pthread.h>

enum { WORKERS = 3, DEPTH = 4 };

/* Peeks at all there is; each is the next one that was not taken before. */
static void peek_all(fl_shm_queue *shm, int32_t worker, int64_t *cursor, int64_t *seen,
                     const progress *b, int64_t served)
{
    fl_reply_message reply;
    *seen = *seen > b->answered ? *seen : b->answered;
    while (fl_shm_queue_peek(shm, worker, cursor, &reply)) {
        check_reply(&reply);
        CHECK_INT(reply.number, (*seen)++);
    }
    CHECK_INT(*seen, served);
}

static void run_random(uint64_t state, int64_t cursor_start)
{
    shm_fixture r = open_shm_fixture(WORKERS, DEPTH);
    progress b[WORKERS] = {{0}};
    int64_t served[WORKERS] = {0}, seen[WORKERS] = {0};
    int64_t cursors[WORKERS] = {cursor_start};
    for (int i = 0; i < 4000; i++) {
        int32_t w = (int32_t)(next_random(&state) % WORKERS);
        switch (next_random(&state) % 4) {
        case 0:
            (void)send_next(r.shm, w, &b[w]);
            break;
        case 1:
            if (served[w] < b[w].sent) CHECK_INT(serve_one(r.shm, w, &served[w], 0), FL_OK);
            break;
        case 2:
            (void)take_next(r.shm, b);
            break;
        default:
            peek_all(r.shm, w, &cursors[w], &seen[w], &b[w], served[w]);
        }
    }
    close_shm_fixture(&r);
}

static void test_each_reply_is_seen_once_unless_it_was_taken(void)
{
    for (uint64_t seed = 0; seed < 50; seed++) run_random(seed, 0);
}

/* A cursor that stands nowhere is led to the first that was not taken. */
static void test_a_lost_cursor_finds_its_way(void)
{
    for (int64_t away = 1; away < 6; away++) {
        run_random((uint64_t)away, -away);
        run_random((uint64_t)away, INT64_MAX - away);
    }
}

/* ---- sleeping */

typedef struct sleeper {
    fl_shm_queue *shm;
    _Atomic int64_t woken; /* how often there was an event */
    _Atomic bool is_over;
} sleeper;

static void *watch_news(void *arg)
{
    sleeper *s = arg;
    uint32_t seen = 0;
    while (!atomic_load(&s->is_over))
        s->woken += fl_shm_queue_watch(s->shm, &seen, fl_now_ns() + LONG_NS);
    return NULL;
}

static void *serve_slowly(void *arg)
{
    int64_t served = 0;
    for (int i = 0; i < 200; i++) {
        if (i % 3 == 0) sleep_ms(1);
        CHECK_INT(serve_one(arg, 0, &served, fl_now_ns() + LONG_NS), FL_OK);
    }
    return NULL;
}

/* The taker sleeps on the same word, and neither takes the other's place. */
static void test_two_threads_sleep_and_both_are_woken(void)
{
    shm_fixture r = open_shm_fixture(1, DEPTH);
    sleeper s = {.shm = r.shm};
    pthread_t watcher, worker;
    progress b = {0};
    CHECK_INT(fl_thread_start(&watcher, watch_news, &s, NULL), FL_OK);
    CHECK_INT(fl_thread_start(&worker, serve_slowly, r.shm, NULL), FL_OK);
    for (int i = 0; i < 200; i++) {
        int64_t begin_ns = fl_now_ns();
        CHECK(send_next(r.shm, 0, &b));
        while (take_next(r.shm, &b) < 0) CHECK(fl_shm_queue_wait(r.shm, begin_ns + LONG_NS));
        CHECK(fl_now_ns() < begin_ns + LONG_NS / 2); /* woken, not at the deadline */
    }
    pthread_join(worker, NULL);
    int64_t begin_ns = fl_now_ns();
    while (atomic_load(&s.woken) == 0) sleep_ms(1);
    atomic_store(&s.is_over, true);
    fl_shm_queue_wake(r.shm);
    pthread_join(watcher, NULL);
    CHECK(fl_now_ns() < begin_ns + LONG_NS / 2);
    close_shm_fixture(&r);
}

static void test_a_watch_ends_at_its_deadline_and_with_old_news(void)
{
    shm_fixture r = open_shm_fixture(1, DEPTH);
    uint32_t seen = 0;
    CHECK(!fl_shm_queue_watch(r.shm, &seen, fl_now_ns() + 1000000));
    fl_shm_queue_wake(r.shm);
    CHECK(fl_shm_queue_watch(r.shm, &seen, INT64_MIN));
    CHECK(!fl_shm_queue_watch(r.shm, &seen, INT64_MIN));
    close_shm_fixture(&r);
}

int main(void)
{
    start_tests();
    RUN(test_each_reply_is_seen_once_unless_it_was_taken);
    RUN(test_a_lost_cursor_finds_its_way);
    RUN(test_two_threads_sleep_and_both_are_woken);
    RUN(test_a_watch_ends_at_its_deadline_and_with_old_news);
    return 0;
}
