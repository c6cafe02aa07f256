/* Tests of fl_thread_pool: threads lent by somebody else, and the rules for floats that helpers
 * follow. */
#include "thread_pool_fixture.h"

#include <fenv.h>

static void check_rounding(void *context, int64_t first, int64_t end)
{
    gather(context, first, end);
    CHECK_INT(fegetround(), FE_DOWNWARD);
}

static void test_helpers_follow_the_callers_rules_for_floats(void)
{
    fl_thread_pool *pool = open_pool(4);
    gathering before = {.wanted = 4}, g = {.wanted = 4};
    fl_thread_pool_run(pool, gather, &before, 4, 1);
    fesetround(FE_DOWNWARD);
    fl_thread_pool_run(pool, check_rounding, &g, 4, 1);
    fesetround(FE_TONEAREST);
    fl_thread_pool_close(pool);
}

typedef struct loan {
    void (*work)(void *);
    void *arg;
} loan;

static void *work_on_loan(void *arg)
{
    loan *l = arg;
    l->work(l->arg);
    return NULL;
}

static _Atomic int loans;

/* Lends threads like GOMP_parallel. */
static void lend_threads(void (*work)(void *), void *arg, unsigned threads, unsigned flags)
{
    loan l = {work, arg};
    pthread_t ids[8];
    CHECK_INT(flags, 0);
    loans++;
    for (unsigned i = 1; i < threads; i++)
        CHECK_INT(pthread_create(&ids[i], NULL, work_on_loan, &l), 0);
    work(arg);
    for (unsigned i = 1; i < threads; i++) CHECK_INT(pthread_join(ids[i], NULL), 0);
}

static void test_lent_threads(void)
{
    fl_thread_pool *pool;
    CHECK_INT(fl_thread_pool_open(4, lend_threads, &pool, NULL), FL_OK);
    gathering g = {.wanted = 4}, rounding = {.wanted = 4};
    fl_thread_pool_run(pool, gather, &g, 4, 1);
    fesetround(FE_DOWNWARD);
    fl_thread_pool_run(pool, check_rounding, &rounding, 4, 1);
    CHECK_INT(fegetround(), FE_DOWNWARD);
    fesetround(FE_TONEAREST);
    tally t;
    for (int64_t parts = 0; parts < 40; parts++) run_tally(pool, &t, parts, 1 + parts % 3);
    check_alone(pool, 1, 1);
    CHECK_INT(run_child(use_in_child, pool), 0);
    CHECK(loans > 2);
    fl_thread_pool_close(pool);
}

int main(void)
{
    start_tests();
    RUN(test_helpers_follow_the_callers_rules_for_floats);
    RUN(test_lent_threads);
    return 0;
}
