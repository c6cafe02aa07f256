/* Tests of fl_thread_pool: every part done once, by whom, when helpers come late or not at all. */
#include "thread_pool_fixture.h"

#include <signal.h>

static void test_every_part_is_done_once(void)
{
    const int64_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 999, 1000};
    const int64_t grains[] = {1, 2, 7, 8, 64, 999, 1000, 100000, INT64_MAX / 2};
    for (int32_t threads = 1; threads <= 8; threads++) {
        fl_thread_pool *pool = open_pool(threads);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                tally t;
                run_tally(pool, &t, sizes[s], grains[g]);
                int64_t shares = sizes[s] / grains[g] + (sizes[s] % grains[g] != 0);
                CHECK(t.calls <= fl_max(1, shares));
                if (threads == 1 || shares <= 1)
                    CHECK(t.calls <= 1 && t.calls_elsewhere == 0);
                else
                    CHECK_INT(t.calls, shares);
            }
        }
        fl_thread_pool_close(pool);
    }
}

static void test_without_a_pool_the_caller_does_all(void)
{
    const int64_t sizes[] = {0, 1, 9, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) check_alone(NULL, sizes[s], 1);
    fl_thread_pool *pool = open_pool(1);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) check_alone(pool, sizes[s], 1);
    fl_thread_pool_close(pool);
}

static void test_helpers_work_beside_the_caller(void)
{
    for (int32_t threads = 2; threads <= 8; threads++) {
        fl_thread_pool *pool = open_pool(threads);
        for (int round = 0; round < 3; round++) check_threads_at_once(pool, threads);
        fl_thread_pool_close(pool);
    }
}

/* The helper's part lasts until long after the caller has none left. */
typedef struct long_part {
    pthread_t caller;
    _Atomic bool has_begun;
    bool is_done; /* the helper, read by the caller when the job is over */
} long_part;

static void do_long_part(void *context, int64_t first, int64_t end)
{
    long_part *p = context;
    (void)first, (void)end;
    if (pthread_equal(pthread_self(), p->caller)) {
        while (!atomic_load(&p->has_begun)) sched_yield();
        return;
    }
    atomic_store(&p->has_begun, true);
    sleep_ms(20);
    p->is_done = true;
}

static void test_run_waits_for_parts_that_helpers_have_begun(void)
{
    fl_thread_pool *pool = open_pool(2);
    for (int round = 0; round < 5; round++) {
        long_part p = {.caller = pthread_self()};
        fl_thread_pool_run(pool, do_long_part, &p, 2, 1);
        CHECK(p.is_done);
    }
    fl_thread_pool_close(pool);
}

/* Most jobs are over before a helper has come; its memory is gone then. */
static void test_many_short_jobs(void)
{
    fl_thread_pool *pool = open_pool(4);
    for (int64_t n = 0; n < 3000; n++) {
        tally *t = malloc(sizeof *t);
        int64_t parts = 2 + n % 5;
        *t = (tally){.parts = parts, .grain = 1, .caller = pthread_self()};
        fl_thread_pool_run(pool, count_parts, t, parts, 1);
        for (int64_t i = 0; i < parts; i++) CHECK_INT(t->done[i], 1);
        CHECK_INT(t->calls, parts);
        memset(t->done, 0x77, sizeof t->done);
        free(t);
    }
    fl_thread_pool_close(pool);
}

static void test_late_helpers_find_nothing_to_do(void)
{
    fl_thread_pool *pool = open_pool(8);
    for (int round = 0; round < 20; round++) {
        tally t;
        run_tally(pool, &t, 2, 1);
        int32_t calls = t.calls;
        t.parts = -1; /* a call from now on would fail its checks */
        if (round % 5 == 0) sleep_ms(2);
        CHECK_INT(t.calls, calls);
    }
    sleep_ms(5);
    check_threads_at_once(pool, 8); /* all threads are there for the next job */
    fl_thread_pool_close(pool);
}

static void *run_jobs(void *arg)
{
    for (int64_t n = 0; n < 300; n++) {
        tally t;
        run_tally(arg, &t, 1 + n % 40, 1 + n % 3);
    }
    return NULL;
}

static void test_several_callers_at_once(void)
{
    fl_thread_pool *pool = open_pool(3);
    pthread_t callers[4];
    for (int i = 0; i < 4; i++)
        CHECK_INT(fl_thread_start(&callers[i], run_jobs, pool, NULL), FL_OK);
    run_jobs(pool);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(callers[i], NULL) == 0);
    check_threads_at_once(pool, 3);
    fl_thread_pool_close(pool);
}

/* A job that goes on until the test tells it to end. */
typedef struct held_job {
    fl_thread_pool *pool;
    _Atomic bool is_going, may_end;
} held_job;

static void hold(void *context, int64_t first, int64_t end)
{
    held_job *job = context;
    (void)first, (void)end;
    atomic_store(&job->is_going, true);
    while (!atomic_load(&job->may_end)) sched_yield();
}

static void *run_held_job(void *arg)
{
    held_job *job = arg;
    fl_thread_pool_run(job->pool, hold, job, 4, 1);
    return NULL;
}

static pthread_t start_held_job(held_job *job)
{
    pthread_t thread;
    CHECK_INT(fl_thread_start(&thread, run_held_job, job, NULL), FL_OK);
    while (!atomic_load(&job->is_going)) sched_yield();
    return thread;
}

static void end_held_job(held_job *job, pthread_t thread)
{
    atomic_store(&job->may_end, true);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void test_a_busy_pool_leaves_the_caller_alone(void)
{
    held_job job = {.pool = open_pool(3)};
    pthread_t thread = start_held_job(&job);
    for (int round = 0; round < 10; round++) check_alone(job.pool, 100, 1);
    end_held_job(&job, thread);
    check_threads_at_once(job.pool, 3);
    fl_thread_pool_close(job.pool);
}

static void run_inner(void *context, int64_t first, int64_t end)
{
    (void)first, (void)end;
    check_alone(context, 50, 1);
}

static void test_a_job_within_a_job_is_done_alone(void)
{
    fl_thread_pool *pool = open_pool(4);
    for (int round = 0; round < 20; round++) fl_thread_pool_run(pool, run_inner, pool, 8, 1);
    check_threads_at_once(pool, 4);
    fl_thread_pool_close(pool);
}

static void test_close_at_any_time(void)
{
    fl_thread_pool_close(NULL);
    for (int round = 0; round < 8; round++) {
        for (int32_t threads = 1; threads <= 8; threads++) {
            fl_thread_pool *pool = open_pool(threads);
            tally t;
            for (int jobs = 0; jobs < round % 3; jobs++) run_tally(pool, &t, 2 + round, 1);
            if (round == 7) sleep_ms(1); /* helpers are asleep by now */
            fl_thread_pool_close(pool);
        }
    }
}

static void test_a_forked_child_works_alone(void)
{
    fl_thread_pool *pool = open_pool(3);
    CHECK_INT(run_child(use_in_child, pool), 0); /* before there are helpers */
    check_threads_at_once(pool, 3);
    CHECK_INT(run_child(use_in_child, pool), 0);
    check_threads_at_once(pool, 3);
    fl_thread_pool_close(pool);
}

static void test_a_child_forked_during_a_job_works_alone(void)
{
    held_job job = {.pool = open_pool(3)};
    pthread_t thread = start_held_job(&job);
    CHECK_INT(run_child(use_in_child, job.pool), 0);
    end_held_job(&job, thread);
    check_threads_at_once(job.pool, 3);
    fl_thread_pool_close(job.pool);
}

enum { FAULT_THREADS = 4, OPEN_REQUESTS = 5 };

static int use_with_faults(void *arg)
{
    fl_thread_pool *pool = arg; /* any but NULL */
    fl_err err = {0};
    int status = fl_thread_pool_open(FAULT_THREADS, NULL, &pool, &err);
    if (status != FL_OK) {
        CHECK(status == FL_ENOMEM && pool == NULL);
        CHECK(err.code == FL_ENOMEM && err.text[0] != '\0');
        return status;
    }
    CHECK_INT(fl_fault_asked(), OPEN_REQUESTS); /* threads start when there is work for them */
    tally t;
    run_tally(pool, &t, 100, 3);
    check_threads_at_once(pool, FAULT_THREADS); /* who was missing has been started since */
    fl_thread_pool_close(pool);
    return FL_OK;
}

static void test_refused_resources(void)
{
    int any;
    CHECK_INT(refuse_each(use_with_faults, &any), OPEN_REQUESTS + FAULT_THREADS - 1);
}

static void test_with_fewer_threads_than_wanted(void)
{
    for (int32_t got = 1; got < FAULT_THREADS; got++) {
        fl_thread_pool *pool = open_pool(FAULT_THREADS);
        fl_fault_arm(got); /* that helper is refused, and no more are asked for */
        gathering g = {.wanted = got};
        fl_thread_pool_run(pool, gather, &g, fl_max(got, 2), 1);
        CHECK_INT(fl_fault_asked(), got);
        fl_fault_arm(0);
        check_threads_at_once(pool, FAULT_THREADS);
        fl_thread_pool_close(pool);
    }
}

static _Atomic int32_t signals_here, signals_elsewhere;
static pthread_t main_thread;

static void note_signal(int number)
{
    (void)number;
    if (pthread_equal(pthread_self(), main_thread))
        atomic_fetch_add(&signals_here, 1);
    else
        atomic_fetch_add(&signals_elsewhere, 1);
}

static void check_mask(void *context, int64_t first, int64_t end)
{
    gather(context, first, end);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    bool is_helper = !pthread_equal(pthread_self(), main_thread);
    const int signals[] = {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGHUP, SIGPROF};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        CHECK_INT(sigismember(&mask, signals[i]), is_helper);
}

static void test_signals_stay_with_the_callers_thread(void)
{
    main_thread = pthread_self();
    signal(SIGUSR1, note_signal);
    fl_thread_pool *pool = open_pool(4);
    gathering g = {.wanted = 4};
    fl_thread_pool_run(pool, check_mask, &g, 4, 1);
    for (int n = 1; n <= 20; n++) {
        CHECK(kill(getpid(), SIGUSR1) == 0);
        while (signals_here + signals_elsewhere < n) sched_yield();
    }
    CHECK_INT(signals_elsewhere, 0);
    fl_thread_pool_close(pool);
    signal(SIGUSR1, SIG_DFL);
}

int main(void)
{
    start_tests();
    RUN(test_every_part_is_done_once);
    RUN(test_without_a_pool_the_caller_does_all);
    RUN(test_helpers_work_beside_the_caller);
    RUN(test_run_waits_for_parts_that_helpers_have_begun);
    RUN(test_many_short_jobs);
    RUN(test_late_helpers_find_nothing_to_do);
    RUN(test_several_callers_at_once);
    RUN(test_a_busy_pool_leaves_the_caller_alone);
    RUN(test_a_job_within_a_job_is_done_alone);
    RUN(test_close_at_any_time);
    RUN(test_a_forked_child_works_alone);
    RUN(test_a_child_forked_during_a_job_works_alone);
    RUN(test_refused_resources);
    RUN(test_with_fewer_threads_than_wanted);
    RUN(test_signals_stay_with_the_callers_thread);
    return 0;
}
