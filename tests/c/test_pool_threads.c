/* Tests of fl_slot: giving back from any thread at any time, and in forked children. */
#include "check.h"

#include "fl_pages.h"
#include "pool_fixture.h"

#include <sched.h>
#include <stdatomic.h>

static void *give_share(void *slot)
{
    fl_slot_give(slot);
    return NULL;
}

static void start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    CHECK_INT(fl_thread_start(thread, run, arg, NULL), FL_OK);
}

static void test_give_from_other_threads(void)
{
    fl_pool *pool = open_pool(1);
    for (int round = 0; round < 50; round++) {
        pthread_t threads[3];
        fl_slot *slot = get_slot(pool, 1000);
        memset(fl_slot_data(slot), round, 1000);
        fl_slot_lend(slot, 3);
        for (int i = 0; i < 3; i++) start(&threads[i], give_share, slot);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        check_counts(pool, 0, 1, 0, 1);
    }
    fl_pool_close(pool);
}

static void test_give_after_close(void)
{
    fl_pool *pool = open_pool(8);
    fl_slot *slots[4];
    for (int i = 0; i < 4; i++) {
        slots[i] = get_slot(pool, i % 2 ? 100 : FL_PAGES_MAPPED_FROM);
        memset(fl_slot_data(slots[i]), 1 + i, 100);
        fl_slot_lend(slots[i], 2);
    }
    fl_slot_return(get_slot(pool, 10));
    fl_slot_give(slots[0]);
    fl_pool_close(pool);
    fl_slot_give(slots[0]);
    for (int i = 1; i < 4; i++) {
        CHECK(fl_slot_data(slots[i])[99] == 1 + i);
        pthread_t thread;
        start(&thread, give_share, slots[i]);
        fl_slot_give(slots[i]);
        pthread_join(thread, NULL);
    }
}

typedef struct slot_list {
    fl_slot *slots[8];
} slot_list;

static void *give_all(void *arg)
{
    slot_list *list = arg;
    for (int i = 0; i < 8; i++) fl_slot_give(list->slots[i]);
    return NULL;
}

/* Whoever is last, the closer or a giver, frees the pool: leaks and double frees show in ASan. */
static void test_give_while_closing(void)
{
    for (int round = 0; round < 100; round++) {
        fl_pool *pool = open_pool(round % 10);
        slot_list list;
        pthread_t threads[2];
        for (int i = 0; i < 8; i++) {
            list.slots[i] = get_slot(pool, 64);
            fl_slot_lend(list.slots[i], 2);
        }
        for (int i = 0; i < 2; i++) start(&threads[i], give_all, &list);
        if (round % 3 == 0) fl_pool_trim(pool);
        fl_pool_close(pool);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    }
}

/* One producer lends numbered slots to givers, who check the number and give their share. */
enum { GIVERS = 3, SLOTS = 3000, WORDS = 32 };

typedef struct exchange {
    fl_slot *handed[SLOTS];
    _Atomic int64_t count; /* release: handed[0..count) may be read */
} exchange;

static void *give_shares(void *arg)
{
    exchange *x = arg;
    for (int64_t n = 0; n < SLOTS; n++) {
        while (atomic_load_explicit(&x->count, memory_order_acquire) <= n) sched_yield();
        const int64_t *words = (const int64_t *)(const void *)fl_slot_data(x->handed[n]);
        for (int w = 0; w < WORDS; w++) CHECK_INT(words[w], n);
        fl_slot_give(x->handed[n]);
    }
    return NULL;
}

static void test_many_threads_give_while_one_gets(void)
{
    static exchange x;
    fl_pool *pool = open_pool(4);
    pthread_t threads[GIVERS];
    for (int i = 0; i < GIVERS; i++) start(&threads[i], give_shares, &x);
    for (int64_t n = 0; n < SLOTS; n++) {
        fl_slot *slot = get_slot(pool, WORDS * 8);
        int64_t *words = (int64_t *)(void *)fl_slot_data(slot);
        for (int w = 0; w < WORDS; w++) words[w] = n;
        fl_slot_lend(slot, GIVERS);
        x.handed[n] = slot;
        atomic_store_explicit(&x.count, n + 1, memory_order_release);
        if (n % 500 == 499) fl_pool_trim(pool);
    }
    for (int i = 0; i < GIVERS; i++) pthread_join(threads[i], NULL);
    fl_pool_stats stats;
    fl_pool_count(pool, &stats);
    CHECK(stats.lent == 0 && stats.empty <= 4 && stats.made <= SLOTS);
    fl_pool_close(pool);
}

static void *get_and_return(void *arg)
{
    fl_pool *pool = arg;
    for (int64_t i = 0; i < 400; i++) {
        fl_slot *slot = get_slot(pool, 64 + i);
        int64_t *mine = fl_slot_header(slot);
        int64_t before = ++*mine;
        memset(fl_slot_data(slot), (int)i, (size_t)(64 + i));
        fl_pool_reserve(pool, 1 + i % 3);
        if (i % 97 == 0) fl_pool_trim(pool);
        CHECK_INT(*mine, before); /* no other thread has the slot */
        fl_slot_return(slot);
    }
    return NULL;
}

static void test_many_threads_get_at_once(void)
{
    fl_pool *pool = open_pool(1);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) start(&threads[i], get_and_return, pool);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    fl_pool_stats stats;
    fl_pool_count(pool, &stats);
    CHECK(stats.lent == 0 && stats.empty <= 3);
    fl_pool_close(pool);
}

/* ---- forks */

typedef struct family {
    fl_pool *pool;
    fl_slot *lent[4], *held;
} family;

/* Runs in a child of a parent with lent slots, and drops everything: no call may have an effect. */
static int drop_everything(void *arg)
{
    family *f = arg;
    fl_slot *slot = f->held;
    fl_err err = {0};
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++) fl_slot_give(f->lent[i]); /* more often than there are shares */
    fl_slot_return(f->held);
    CHECK_INT(fl_pool_get(f->pool, 64, &slot, &err), FL_EFORK);
    CHECK(slot == NULL && err.code == FL_EFORK && err.text[0] != '\0');
    fl_pool_trim(f->pool);
    fl_pool_close(f->pool);
    check_counts(f->pool, 4, 6, 3, 1); /* still there, as it was */
    for (int i = 0; i < 4; i++) CHECK(fl_slot_data(f->lent[i])[63] == 10 + i);
    return 0;
}

static void test_fork_with_lent_slots(void)
{
    family f = {.pool = open_pool(3)};
    for (int i = 0; i < 4; i++) {
        f.lent[i] = get_slot(f.pool, 64);
        memset(fl_slot_data(f.lent[i]), 10 + i, 64);
    }
    fl_slot *empty = get_slot(f.pool, 64);
    f.held = get_slot(f.pool, 64);
    fl_slot_return(empty);
    for (int i = 0; i < 4; i++) fl_slot_lend(f.lent[i], 2);
    CHECK_INT(run_child(drop_everything, &f), 0);

    check_counts(f.pool, 4, 6, 3, 1);
    for (int i = 0; i < 4; i++) CHECK(fl_slot_data(f.lent[i])[63] == 10 + i);
    fl_slot *slot = get_slot(f.pool, 64); /* and the parent goes on */
    CHECK(slot == empty);
    fl_slot_return(slot);
    fl_slot_return(f.held);
    for (int i = 0; i < 4; i++) fl_slot_give(f.lent[i]);
    check_counts(f.pool, 4, 6, 3, 2);
    for (int i = 0; i < 4; i++) fl_slot_give(f.lent[i]);
    check_counts(f.pool, 0, 6, 3, 3);
    fl_pool_close(f.pool);
}

static int use_pool_of_own(void *arg)
{
    (void)arg;
    fl_pool *pool = open_pool(1); /* made in the child: as good as any */
    fl_slot *slot = get_slot(pool, 64);
    fl_slot_lend(slot, 1);
    fl_slot_give(slot);
    check_counts(pool, 0, 1, 0, 1);
    fl_pool_close(pool);
    return 0;
}

static void test_a_child_has_pools_of_its_own(void)
{
    CHECK_INT(run_child(use_pool_of_own, NULL), 0);
}

int main(void)
{
    start_tests();
    RUN(test_give_from_other_threads);
    RUN(test_give_after_close);
    RUN(test_give_while_closing);
    RUN(test_many_threads_give_while_one_gets);
    RUN(test_many_threads_get_at_once);
    RUN(test_fork_with_lent_slots);
    RUN(test_a_child_has_pools_of_its_own);
    return 0;
}
