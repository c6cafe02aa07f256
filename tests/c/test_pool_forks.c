/* Tests of fl_slot and fl_fork together: memory that a worker has inherited stays unchanged while
 * the worker lives, and no longer. */
#include "check.h"

#include "arena_fixture.h"
#include "pool_fixture.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { BYTES = 100 * KIB, RESERVE = 3 };

static fl_arena *arena;
static fl_pool *pool;

static void open_shared_pool(void)
{
    arena = open_arena(64 * MIB);
    CHECK_INT(fl_pool_open(8, arena, &pool, NULL), FL_OK);
    fl_pool_reserve(pool, RESERVE);
}

static void close_all(void)
{
    fl_pool_close(pool);
    fl_arena_close(arena); /* and nothing leaks */
}

static fl_slot *lend_filled(char byte)
{
    fl_slot *slot = get_slot(pool, BYTES);
    memset(fl_slot_data(slot), byte, BYTES);
    fl_slot_lend(slot, 1);
    return slot;
}

/* Takes as many slots as would have cycled: no slot is over `data`. */
static void cycle_without(const char *data)
{
    for (int i = 0; i < 2 * RESERVE; i++) {
        fl_slot *slot = lend_filled(1);
        CHECK(fl_slot_data(slot) != data);
        fl_slot_give(slot);
    }
}

/* Checks that a slot over `data` comes back, at most a few slots later, and is not a new one. */
static void check_comes_back(const char *data)
{
    fl_slot *slots[2 * RESERVE];
    int count = 0;
    do slots[count] = get_slot(pool, BYTES);
    while (fl_slot_data(slots[count++]) != data && count < 2 * RESERVE);
    CHECK(fl_slot_data(slots[count - 1]) == data);
    while (count > 0) fl_slot_return(slots[--count]);
}

/* ---- workers */

typedef struct worker {
    pid_t pid;
    int64_t number;
    int stop; /* the end of a pipe: closed, or written to, it ends the worker */
} worker;

typedef int look(void *arg);

/* Starts a worker that looks when it is told to end, and exits with what it has seen. */
static worker start_worker(look *look_at, void *arg)
{
    worker w;
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK_INT(fl_fork_expect(&w.number, NULL), FL_OK);
    w.pid = fork();
    CHECK(w.pid >= 0);
    if (w.pid == 0) {
        char byte;
        alarm(HANG_SECONDS);
        CHECK(close(ends[1]) == 0);
        while (read(ends[0], &byte, 1) < 0) continue;
        _exit(look_at(arg));
    }
    fl_fork_expected();
    CHECK(close(ends[0]) == 0);
    w.stop = ends[1];
    return w;
}

/* Waits for the worker's end: the worker has seen what it should; nobody is told. */
static void await_end(worker *w)
{
    int status;
    CHECK(write(w->stop, "", 1) == 1 && close(w->stop) == 0);
    CHECK(waitpid(w->pid, &status, 0) == w->pid);
    CHECK_INT(status, 0);
}

static void end_worker(worker *w)
{
    await_end(w);
    fl_fork_end(w->number);
}

static int sees_seven(void *data) { return !holds_only(data, 7, BYTES); }

static int sees_nothing(void *arg)
{
    (void)arg;
    return 0;
}

static void test_what_a_worker_inherits_comes_back_with_its_end(void)
{
    open_shared_pool();
    fl_slot *lent = lend_filled(7);
    char *data = fl_slot_data(lent);
    worker w = start_worker(sees_seven, data);
    fl_slot_give(lent);
    cycle_without(data);
    fl_pool_trim(pool);
    cycle_without(data);
    CHECK(holds_only(data, 7, BYTES));
    await_end(&w);
    cycle_without(data); /* nobody has said so yet */
    fl_fork_end(w.number);
    check_comes_back(data);
    close_all();
}

static void test_the_last_worker_counts(void)
{
    open_shared_pool();
    fl_slot *lent = lend_filled(7);
    char *data = fl_slot_data(lent);
    worker workers[3];
    for (int i = 0; i < 3; i++) workers[i] = start_worker(sees_seven, data);
    fl_slot_give(lent);
    for (int i = 2; i >= 0; i--) {
        cycle_without(data);
        end_worker(&workers[i]);
    }
    check_comes_back(data);
    close_all();
}

/* A worker gets nothing of memory that is given back before the fork, or lent after it. */
static void test_a_worker_that_stays_holds_nothing_else_up(void)
{
    open_shared_pool();
    fl_slot *held = lend_filled(7), *before = lend_filled(1);
    fl_slot_give(before);
    worker w = start_worker(sees_seven, fl_slot_data(held));
    for (int epoch = 0; epoch < 20; epoch++) {
        fl_slot *slot = lend_filled(2);
        worker other = start_worker(sees_nothing, NULL);
        fl_slot_give(slot);
        fl_slot *after = lend_filled(3);
        end_worker(&other);
        fl_slot_give(after);
    }
    fl_pool_stats stats;
    fl_pool_count(pool, &stats);
    CHECK(stats.made <= 4);
    fl_slot_give(held);
    end_worker(&w);
    close_all();
}

/* The loop `for batch in loader`, whose last batch is held while the next workers start. */
static void test_memory_stays_bounded_over_many_starts(void)
{
    open_shared_pool();
    fl_slot *last = NULL;
    for (int epoch = 0; epoch < 50; epoch++) {
        worker w = start_worker(sees_nothing, NULL);
        for (int i = 0; i < 3; i++) {
            fl_slot *slot = lend_filled(1);
            if (last != NULL) fl_slot_give(last);
            last = slot;
        }
        end_worker(&w);
    }
    fl_slot_give(last);
    check_counts(pool, 0, 3, 0, 2);
    CHECK(held_bytes(arena) <= 4 * 2 * BYTES);
    close_all();
}

static int sees_sevens_of_pages(void *data) { return !holds_only(data, 7, 2 * MIB); }

/* The child reads what the slot held, and this process writes to new pages, once after each fork.
 */
static void test_private_pages_that_a_worker_has_are_renewed(void)
{
    CHECK_INT(fl_pool_open(8, NULL, &pool, NULL), FL_OK);
    fl_pool_reserve(pool, RESERVE);
    fl_slot *slot = get_slot(pool, 2 * MIB);
    char *data = fl_slot_data(slot);
    for (int round = 0; round < 3; round++) {
        memset(data, 7, 2 * MIB);
        fl_slot_lend(slot, 1);
        fl_slot_give(slot);
        CHECK((slot = get_slot(pool, 2 * MIB)) != NULL && fl_slot_data(slot) == data);
        CHECK(holds_only(data, 7, 2 * MIB)); /* there was no fork since it was lent */
        fl_slot_return(slot);
        worker w = start_worker(sees_sevens_of_pages, data);
        CHECK((slot = get_slot(pool, 2 * MIB)) != NULL && fl_slot_data(slot) == data);
        CHECK(holds_only(data, 0, 2 * MIB));
        end_worker(&w);
    }
    fl_slot_return(slot);
    fl_pool_close(pool);
}

static void test_a_fork_of_the_programs_lasts(void)
{
    open_shared_pool();
    fl_slot *lent = lend_filled(7);
    char *data = fl_slot_data(lent);
    worker w = start_worker(sees_seven, data);
    CHECK_INT(run_child(sees_nothing, NULL), 0);
    fl_slot_give(lent);
    end_worker(&w);
    cycle_without(data);
    CHECK(holds_only(data, 7, BYTES));
    close_all();
}

static int forks_and_leaves(void *arg)
{
    (void)arg;
    return fork() < 0; /* the child's child ends here as well: but who would know? */
}

static void test_children_of_a_worker_last(void)
{
    open_shared_pool();
    fl_slot *lent = lend_filled(7);
    char *data = fl_slot_data(lent);
    worker w = start_worker(forks_and_leaves, NULL);
    fl_slot_give(lent);
    end_worker(&w);
    cycle_without(data);
    CHECK(holds_only(data, 7, BYTES));
    close_all();
}

static int tells_of_itself_and_forks(void *number)
{
    fl_fork_end(*(int64_t *)number);
    return forks_and_leaves(NULL);
}

static void test_an_end_told_in_the_worker_itself_changes_nothing(void)
{
    open_shared_pool();
    fl_slot *lent = lend_filled(7);
    char *data = fl_slot_data(lent);
    int64_t number;
    CHECK_INT(fl_fork_expect(&number, NULL), FL_OK);
    CHECK_INT(run_child(tells_of_itself_and_forks, &number), 0);
    fl_fork_expected();
    fl_slot_give(lent);
    fl_fork_end(number); /* the worker has forked, and that is known */
    cycle_without(data);
    CHECK(holds_only(data, 7, BYTES));
    close_all();
}

/* The start of one worker may make a second process, which sees memory that was lent since the
 * first fork. */
static void test_all_forks_of_a_worker_count(void)
{
    open_shared_pool();
    int64_t number;
    CHECK_INT(fl_fork_expect(&number, NULL), FL_OK);
    CHECK_INT(run_child(sees_nothing, NULL), 0);
    fl_slot *lent = lend_filled(7);
    char *data = fl_slot_data(lent);
    CHECK_INT(run_child(sees_nothing, NULL), 0);
    fl_fork_expected();
    fl_slot_give(lent);
    cycle_without(data);
    fl_fork_end(number);
    check_comes_back(data);
    close_all();
}

/* ---- the end of the pool */

static void test_what_is_seen_outlives_the_pool(void)
{
    for (int is_before = 0; is_before < 2; is_before++) {
        open_shared_pool();
        fl_slot *lent = lend_filled(7), *kept = lend_filled(6);
        char *data = fl_slot_data(lent);
        worker w = start_worker(sees_seven, data);
        if (is_before) fl_slot_give(lent);
        if (is_before) cycle_without(data); /* the slot was looked at once */
        fl_pool_close(pool);
        if (!is_before) fl_slot_give(lent);
        CHECK(holds_only(data, 7, BYTES));
        end_worker(&w);
        fl_slot_give(kept);
        fl_arena_close(arena);
    }
}

static void test_what_was_seen_is_freed_with_the_pool(void)
{
    open_shared_pool();
    fl_slot *lent = lend_filled(7);
    worker w = start_worker(sees_seven, fl_slot_data(lent));
    fl_slot_give(lent);
    end_worker(&w);
    fl_pool_close(pool);
    CHECK_INT(held_bytes(arena), 0);
    fl_arena_close(arena);
}

static int expect_and_end(void *arg)
{
    int64_t number = -1;
    (void)arg;
    fl_err err = {0};
    int status = fl_fork_expect(&number, &err);
    CHECK(status == FL_OK || (err.code == status && err.text[0] != '\0'));
    fl_fork_expected();
    fl_fork_end(number); /* of none; and of one that was not forked */
    fl_fork_end(number);
    return status;
}

static void test_every_refused_resource(void) { CHECK_INT(refuse_each(expect_and_end, NULL), 2); }

/* A worker has its own pools and workers, even if its parent's lock was held at the fork. */
static int start_another(void *arg)
{
    (void)arg;
    test_what_a_worker_inherits_comes_back_with_its_end();
    return 0;
}

static void test_a_worker_has_workers_of_its_own(void)
{
    int64_t number;
    CHECK_INT(fl_fork_expect(&number, NULL), FL_OK);
    CHECK_INT(run_child(start_another, NULL), 0);
    fl_fork_expected();
    fl_fork_end(number);
}

/* ---- threads give back while workers start and end */

enum { GIVERS = 2, SLOTS = 600, EVERY = 40, WORDS = 64 };

typedef struct exchange {
    fl_slot *handed[SLOTS];
    _Atomic int64_t count;        /* release: handed[0..count) may be read */
    _Atomic int32_t given[SLOTS]; /* set before the share is given */
} exchange;

static exchange x;

static void *give_in_turn(void *arg)
{
    int64_t first = *(int64_t *)arg;
    for (int64_t n = first; n < SLOTS; n += GIVERS) {
        while (atomic_load_explicit(&x.count, memory_order_acquire) <= n) sched_yield();
        if (n % 7 == 0) sched_yield();
        atomic_store(&x.given[n], 1);
        fl_slot_give(x.handed[n]);
    }
    return NULL;
}

static int64_t *words_of(int64_t n) { return (int64_t *)(void *)fl_slot_data(x.handed[n]); }

/* Memory that was lent at the fork holds the worker's number as long as the worker lives. */
static int sees_its_own(void *arg)
{
    (void)arg;
    int64_t count = atomic_load(&x.count);
    for (int64_t n = 0; n < count; n++)
        for (int w = 0; w < WORDS && atomic_load(&x.given[n]) == 0; w++)
            if (words_of(n)[w] != n) return 1;
    return 0;
}

static void test_threads_give_while_workers_start_and_end(void)
{
    open_shared_pool();
    pthread_t threads[GIVERS];
    int64_t firsts[GIVERS];
    worker w[2] = {{0}};
    for (int i = 0; i < GIVERS; i++) {
        firsts[i] = i;
        CHECK_INT(fl_thread_start(&threads[i], give_in_turn, &firsts[i], NULL), FL_OK);
    }
    for (int64_t n = 0; n < SLOTS; n++) {
        fl_slot *slot = get_slot(pool, BYTES);
        x.handed[n] = slot;
        for (int i = 0; i < WORDS; i++) words_of(n)[i] = n;
        fl_slot_lend(slot, 1);
        atomic_store_explicit(&x.count, n + 1, memory_order_release);
        if (n % EVERY != 0) continue;
        worker *next = &w[n / EVERY % 2];
        if (next->pid != 0) end_worker(next);
        *next = start_worker(sees_its_own, NULL);
    }
    for (int i = 0; i < GIVERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) end_worker(&w[i]);
    fl_slot_return(get_slot(pool, BYTES));
    fl_pool_stats stats;
    fl_pool_count(pool, &stats);
    CHECK(stats.lent == 0 && stats.empty <= RESERVE);
    fl_pool_close(pool);
    CHECK_INT(held_bytes(arena), 0);
    fl_arena_close(arena);
}

/* Threads that start workers at once do not take each other's forks for their own. */
static void *expect_for_a_while(void *arg)
{
    int64_t number;
    _Atomic int32_t *phase = arg;
    CHECK_INT(fl_fork_expect(&number, NULL), FL_OK);
    atomic_store(phase, 1);
    while (atomic_load(phase) == 1) sched_yield();
    fl_fork_expected();
    fl_fork_end(number);
    return NULL;
}

static void test_a_fork_of_another_thread_is_no_workers(void)
{
    open_shared_pool();
    fl_slot *lent = lend_filled(7);
    char *data = fl_slot_data(lent);
    pthread_t thread;
    _Atomic int32_t phase = 0;
    CHECK_INT(fl_thread_start(&thread, expect_for_a_while, &phase, NULL), FL_OK);
    while (atomic_load(&phase) == 0) sched_yield();
    CHECK_INT(run_child(sees_nothing, NULL), 0); /* the program's */
    atomic_store(&phase, 2);
    pthread_join(thread, NULL);
    fl_slot_give(lent);
    cycle_without(data);
    CHECK(holds_only(data, 7, BYTES));
    close_all();
}

#if !defined(__SANITIZE_ADDRESS__) /* its allocator may stay locked in the child of a fork */
static _Atomic bool is_over;

static void *expect_often(void *arg)
{
    while (!atomic_load(&is_over)) (void)expect_and_end(arg);
    return NULL;
}

/* The thread that held the lock in the parent does not exist in the child to give the lock back. */
static void test_a_child_that_was_forked_while_others_expect(void)
{
    pthread_t thread;
    CHECK_INT(fl_thread_start(&thread, expect_often, NULL, NULL), FL_OK);
    for (int i = 0; i < 200; i++) CHECK_INT(run_child(expect_and_end, NULL), FL_OK);
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
}
#endif

int main(void)
{
    start_tests();
    RUN(test_what_a_worker_inherits_comes_back_with_its_end);
    RUN(test_the_last_worker_counts);
    RUN(test_a_worker_that_stays_holds_nothing_else_up);
    RUN(test_memory_stays_bounded_over_many_starts);
    RUN(test_private_pages_that_a_worker_has_are_renewed);
    RUN(test_a_fork_of_the_programs_lasts);
    RUN(test_children_of_a_worker_last);
    RUN(test_an_end_told_in_the_worker_itself_changes_nothing);
    RUN(test_all_forks_of_a_worker_count);
    RUN(test_what_is_seen_outlives_the_pool);
    RUN(test_what_was_seen_is_freed_with_the_pool);
    RUN(test_every_refused_resource);
    RUN(test_a_worker_has_workers_of_its_own);
    RUN(test_threads_give_while_workers_start_and_end);
    RUN(test_a_fork_of_another_thread_is_no_workers);
#if !defined(__SANITIZE_ADDRESS__)
    RUN(test_a_child_that_was_forked_while_others_expect);
#endif
    return 0;
}
