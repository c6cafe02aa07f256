/* Tests of fl_shm_queue by threads and by forked processes: no message is torn, no wake-up is lost.
 * Every wait has a deadline that a working wait never comes near: a lost wake-up fails a CHECK
 * after LONG_NS. ThreadSanitizer sees the threads; it cannot look into processes, and only runs
 * them. */
#include "check.h"

#include "shm_queue_fixture.h"

#include <sched.h>
#include <signal.h>

enum { MOST_WORKERS = 4 };

/* Watches the clock, so that the other side is now watching, now about to sleep, now asleep. */
static void pause_up_to(uint64_t *seed, int64_t most_ns)
{
    if (most_ns == 0) return;
    int64_t until_ns = fl_now_ns() + random_below(seed, most_ns);
    while (fl_now_ns() < until_ns) continue;
}

/* ---- the two sides */

typedef struct side {
    fl_shm_queue *shm;
    int32_t worker;
    int64_t pause_ns;
    int64_t served; /* written before the worker ends */
} side;

static void serve_until_the_end(side *s)
{
    uint64_t seed = (uint64_t)s->worker + 77;
    int status;
    do {
        pause_up_to(&seed, s->pause_ns);
        int64_t until_ns = fl_now_ns() + LONG_NS;
        status = serve_one(s->shm, s->worker, &s->served, until_ns);
        CHECK(fl_now_ns() < until_ns);
    } while (status == FL_OK);
    CHECK_INT(status, FL_EEND);
}

static void *run_worker(void *arg)
{
    serve_until_the_end(arg);
    return NULL;
}

/* Sends `count` requests to every worker and takes all replies. */
static void drive(shm_fixture *r, int64_t count, int64_t pause_ns)
{
    progress b[MOST_WORKERS] = {{0}};
    uint64_t seed = 1;
    for (int64_t left = count * r->workers; left > 0;) {
        for (int32_t w = 0; w < r->workers; w++)
            while (b[w].sent < count && send_next(r->shm, w, &b[w])) continue;
        int64_t until_ns = fl_now_ns() + LONG_NS;
        CHECK(fl_shm_queue_wait(r->shm, until_ns));
        CHECK(fl_now_ns() < until_ns); /* true also for a reply at the deadline */
        for (int32_t w; (w = take_next(r->shm, b)) >= 0; left--)
            if (b[w].answered == count) fl_shm_queue_end(r->shm, w);
        pause_up_to(&seed, pause_ns);
    }
    for (int32_t w = 0; w < r->workers; w++) CHECK_INT(b[w].answered, count);
}

static void run_threads(int32_t workers, int32_t depth, int64_t count, int64_t pause_ns)
{
    shm_fixture r = open_shm_fixture(workers, depth);
    pthread_t threads[MOST_WORKERS];
    side sides[MOST_WORKERS];
    for (int32_t w = 0; w < workers; w++) {
        sides[w] = (side){.shm = r.shm, .worker = w, .pause_ns = pause_ns};
        CHECK_INT(fl_thread_start(&threads[w], run_worker, &sides[w], NULL), FL_OK);
    }
    drive(&r, count, pause_ns);
    for (int32_t w = 0; w < workers; w++) {
        pthread_join(threads[w], NULL);
        CHECK_INT(sides[w].served, count);
    }
    close_shm_fixture(&r);
}

static void run_processes(int32_t workers, int32_t depth, int64_t count, int64_t pause_ns)
{
    shm_fixture r = open_shm_fixture(workers, depth);
    pid_t children[MOST_WORKERS];
    for (int32_t w = 0; w < workers; w++) {
        children[w] = fork();
        CHECK(children[w] >= 0);
        if (children[w] > 0) continue;
        alarm(HANG_SECONDS);
        side s = {.shm = r.shm, .worker = w, .pause_ns = pause_ns};
        serve_until_the_end(&s);
        _exit(s.served == count ? 0 : 3);
    }
    drive(&r, count, pause_ns);
    for (int32_t w = 0; w < workers; w++) {
        int status;
        CHECK(waitpid(children[w], &status, 0) == children[w]);
        CHECK_INT(status, 0);
    }
    close_shm_fixture(&r);
}

/* ---- as fast as they can */

static void test_threads_at_full_speed(void)
{
    run_threads(1, 1, 50000 / LANE_SLOWNESS, 0);
    run_threads(1, 64, 400000 / LANE_SLOWNESS, 0);
    run_threads(3, 2, 50000 / LANE_SLOWNESS, 0);
    run_threads(4, 16, 80000 / LANE_SLOWNESS, 0);
}

static void test_processes_at_full_speed(void)
{
    run_processes(1, 1, 100000 / LANE_SLOWNESS, 0);
    run_processes(1, 64, 600000 / LANE_SLOWNESS, 0);
    run_processes(4, 16, 100000 / LANE_SLOWNESS, 0);
}

/* ---- with pauses, so that they sleep */

static void test_threads_that_go_to_sleep(void)
{
    run_threads(1, 1, 6000 / LANE_SLOWNESS, 60000);
    run_threads(2, 2, 2500 / LANE_SLOWNESS, 60000);
    run_threads(4, 1, 1000 / LANE_SLOWNESS, 200000);
}

static void test_processes_that_go_to_sleep(void)
{
    run_processes(1, 1, 6000 / LANE_SLOWNESS, 60000);
    run_processes(2, 2, 2500 / LANE_SLOWNESS, 60000);
    run_processes(4, 1, 1000 / LANE_SLOWNESS, 200000);
}

/* ---- the end */

static void test_end_and_close_wake_who_sleeps(void)
{
    uint64_t seed = 3;
    for (int round = 0; round < 800 / LANE_SLOWNESS; round++) {
        shm_fixture r = open_shm_fixture(3, 2);
        pthread_t threads[3];
        side sides[3];
        for (int32_t w = 0; w < 3; w++) {
            sides[w] = (side){.shm = r.shm, .worker = w};
            CHECK_INT(fl_thread_start(&threads[w], run_worker, &sides[w], NULL), FL_OK);
        }
        pause_up_to(&seed, 150000);
        if (round % 2 == 0) close_all(&r);
        for (int32_t w = 0; w < 3 && round % 2 == 1; w++) fl_shm_queue_end(r.shm, w);
        for (int32_t w = 0; w < 3; w++) pthread_join(threads[w], NULL);
        close_shm_fixture(&r);
    }
}

/* A request is followed at once by the end: the worker must have the request first. */
static void test_end_overtakes_no_request(void)
{
    uint64_t seed = 4;
    for (int round = 0; round < 2000 / LANE_SLOWNESS; round++) {
        shm_fixture r = open_shm_fixture(1, 4);
        progress b = {0};
        side s = {.shm = r.shm};
        pthread_t thread;
        CHECK_INT(fl_thread_start(&thread, run_worker, &s, NULL), FL_OK);
        pause_up_to(&seed, 50000);
        int64_t count = random_below(&seed, 4);
        while (b.sent < count) CHECK(send_next(r.shm, 0, &b));
        fl_shm_queue_end(r.shm, 0);
        pthread_join(thread, NULL);
        CHECK_INT(s.served, count);
        close_shm_fixture(&r);
    }
}

/* ---- signals */

typedef struct pest {
    pthread_t victim;
    _Atomic bool is_over;
} pest;

static void ignore_signal(int number) { (void)number; }

/* Again and again, as a single signal may come before the wait has begun. */
static void *pester(void *arg)
{
    pest *p = arg;
    while (!atomic_load(&p->is_over)) {
        pthread_kill(p->victim, SIGUSR1);
        sched_yield();
        sleep_ms(1);
    }
    return NULL;
}

static void test_a_signal_handler_ends_the_wait(void)
{
    const int flags[] = {0, SA_RESTART};
    for (int i = 0; i < 2; i++) {
        struct sigaction action = {.sa_handler = ignore_signal, .sa_flags = flags[i]};
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        shm_fixture r = open_shm_fixture(1, 2);
        pest p = {.victim = pthread_self()};
        pthread_t thread;
        CHECK_INT(fl_thread_start(&thread, pester, &p, NULL), FL_OK);
        for (int round = 0; round < 20; round++) {
            int64_t until_ns = fl_now_ns() + LONG_NS, served = 0;
            CHECK(!fl_shm_queue_wait(r.shm, until_ns));
            CHECK(fl_now_ns() < until_ns);
            until_ns = fl_now_ns() + LONG_NS;
            CHECK_INT(serve_one(r.shm, 0, &served, until_ns), FL_ETIMEOUT);
            CHECK(fl_now_ns() < until_ns);
        }
        atomic_store(&p.is_over, true);
        pthread_join(thread, NULL);
        close_shm_fixture(&r);
    }
}

/* ---- fl_futex */

static void test_futex_wait_returns(void)
{
    _Atomic uint32_t word = 7;
    int64_t begin_ns = fl_now_ns();
    CHECK(fl_futex_wait(&word, 6, begin_ns + LONG_NS)); /* not what was expected */
    CHECK(fl_now_ns() - begin_ns < LONG_NS);
    CHECK(fl_futex_wait(&word, 7, begin_ns - 1));
    CHECK(fl_futex_wait(&word, 7, begin_ns + 3000000));
    CHECK(fl_now_ns() >= begin_ns + 3000000);
    fl_futex_wake(&word); /* nobody is there */
}

/* Takes turns over a word: even, it is the child's turn. */
static int turn_about(void *arg)
{
    _Atomic uint32_t *word = arg;
    for (uint32_t turn = 0; turn < 2000; turn += 2) {
        int64_t until_ns = fl_now_ns() + LONG_NS;
        while (atomic_load(word) != turn) {
            CHECK(fl_futex_wait(word, turn - 1, until_ns));
            CHECK(fl_now_ns() < until_ns);
        }
        atomic_store(word, turn + 1);
        fl_futex_wake(word);
    }
    return 0;
}

static void test_futex_wakes_another_process(void)
{
    _Atomic uint32_t *word =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(word != MAP_FAILED);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(turn_about((void *)word));
    for (uint32_t turn = 1; turn < 2000; turn += 2) {
        int64_t until_ns = fl_now_ns() + LONG_NS;
        while (atomic_load(word) != turn) {
            CHECK(fl_futex_wait(word, turn - 1, until_ns));
            CHECK(fl_now_ns() < until_ns);
        }
        atomic_store(word, turn + 1);
        fl_futex_wake(word);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    munmap((void *)word, 4096);
}

int main(void)
{
    start_tests();
    RUN(test_futex_wait_returns);
    RUN(test_futex_wakes_another_process);
    RUN(test_a_signal_handler_ends_the_wait);
    RUN(test_end_and_close_wake_who_sleeps);
    RUN(test_end_overtakes_no_request);
    RUN(test_threads_that_go_to_sleep);
    RUN(test_processes_that_go_to_sleep);
    RUN(test_threads_at_full_speed);
    RUN(test_processes_at_full_speed);
    return 0;
}
