/* thread_pool_fixture.h: shared by the tests of fl_thread_pool: jobs that count their parts, and
 * jobs that gather threads. */
#ifndef THREAD_POOL_FIXTURE_H
#define THREAD_POOL_FIXTURE_H

#include "check.h"

#include "fl_thread_pool.h"

#include <sched.h>

enum { MOST_PARTS = 1000, PATIENCE_MS = 20000 };

/* A job that counts. `done` is plain memory, so that ThreadSanitizer finds parts that two threads
 * do, and reads by a caller that has not waited. */
typedef struct tally {
    int32_t done[MOST_PARTS];
    int64_t parts, grain;
    pthread_t caller;
    _Atomic int32_t calls, calls_elsewhere;
} tally;

static inline void count_parts(void *context, int64_t first, int64_t end)
{
    tally *t = context;
    atomic_fetch_add(&t->calls, 1);
    if (!pthread_equal(pthread_self(), t->caller)) atomic_fetch_add(&t->calls_elsewhere, 1);
    bool is_all = first == 0 && end == t->parts;
    CHECK(is_all || (first % t->grain == 0 && first < end));
    CHECK(is_all || end == fl_min(first + t->grain, t->parts));
    for (int64_t i = first; i < end; i++) t->done[i]++;
}

/* Runs a job and checks that each part was done once. */
static inline void run_tally(fl_thread_pool *pool, tally *t, int64_t parts, int64_t grain)
{
    *t = (tally){.parts = parts, .grain = grain, .caller = pthread_self()};
    fl_thread_pool_run(pool, count_parts, t, parts, grain);
    for (int64_t i = 0; i < MOST_PARTS; i++) CHECK_INT(t->done[i], i < parts);
}

static inline void check_alone(fl_thread_pool *pool, int64_t parts, int64_t grain)
{
    tally t;
    run_tally(pool, &t, parts, grain);
    CHECK(t.calls <= 1 && t.calls_elsewhere == 0);
}

static inline fl_thread_pool *open_pool(int32_t threads)
{
    fl_thread_pool *pool;
    CHECK_INT(fl_thread_pool_open(threads, NULL, &pool, NULL), FL_OK);
    return pool;
}

/* A job of as many parts as threads are wanted: none ends before all have begun. */
typedef struct gathering {
    _Atomic int32_t begun;
    int32_t wanted;
} gathering;

static inline void gather(void *context, int64_t first, int64_t end)
{
    gathering *g = context;
    CHECK_INT(end - first, 1);
    atomic_fetch_add(&g->begun, 1);
    int64_t deadline = fl_now_ns() + (int64_t)PATIENCE_MS * 1000000;
    while (atomic_load(&g->begun) < g->wanted) {
        CHECK(fl_now_ns() < deadline);
        sched_yield();
    }
}

static inline void check_threads_at_once(fl_thread_pool *pool, int32_t threads)
{
    gathering g = {.wanted = threads};
    fl_thread_pool_run(pool, gather, &g, threads, 1);
    CHECK_INT(g.begun, threads);
}

/* Runs in a child, for run_child. */
static inline int use_in_child(void *arg)
{
    fl_thread_pool *pool = arg;
    for (int round = 0; round < 3; round++) check_alone(pool, 200, 1);
    fl_thread_pool_close(pool);
    check_alone(pool, 200, 1); /* nothing was freed, or ASan says so */
    return 0;
}

#endif
