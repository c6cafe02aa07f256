/* Tests of fl_slot over an arena: slots that worker processes see, and what happens to the memory
 * of a slot that is kept, given away, or outlives pool and arena. */
#include "check.h"

#include "arena_fixture.h"
#include "pool_fixture.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>

static fl_pool *open_shared_pool(fl_arena *arena, int64_t reserve)
{
    fl_pool *pool;
    CHECK_INT(fl_pool_open(sizeof(int64_t), arena, &pool, NULL), FL_OK);
    fl_pool_reserve(pool, reserve);
    return pool;
}

static void fill(fl_slot *slot, char byte, int64_t bytes)
{
    memset(fl_slot_data(slot), byte, (size_t)bytes);
}

static void test_slots_lie_in_the_arena_apart(void)
{
    enum { COUNT = 40 };
    fl_arena *arena = open_arena(64 * MIB);
    fl_pool *pool = open_shared_pool(arena, 4);
    fl_slot *slots[COUNT];
    for (int i = 0; i < COUNT; i++) {
        slots[i] = get_slot(pool, 1 + i * 10 * KIB);
        int64_t offset = fl_slot_data(slots[i]) - fl_arena_base(arena);
        CHECK(offset >= 0 && offset + fl_slot_bytes(slots[i]) <= fl_arena_bytes(arena));
        fill(slots[i], (char)i, fl_slot_bytes(slots[i]));
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(holds_only(fl_slot_data(slots[i]), (char)i, fl_slot_bytes(slots[i])));
        fl_slot_return(slots[i]);
    }
    check_counts(pool, 0, COUNT, COUNT - 4, 4);
    fl_pool_close(pool);
    CHECK_INT(held_bytes(arena), 0);
    fl_arena_close(arena);
}

/* A small batch after a large one takes no more of the arena than it needs. */
static void test_a_fresh_slot_is_as_large_as_asked_for(void)
{
    fl_arena *arena = open_arena(256 * MIB);
    fl_pool *pool = open_shared_pool(arena, 2);
    fl_slot *large = get_slot(pool, 32 * MIB), *small = get_slot(pool, MIB);
    CHECK(fl_slot_bytes(large) >= 32 * MIB);
    CHECK(fl_slot_bytes(small) >= MIB && fl_slot_bytes(small) <= 2 * MIB);
    fl_slot_return(large);
    fl_slot_return(small);
    fl_pool_close(pool);
    fl_arena_close(arena);
}

/* The first limit of a request is a guess, the next a quarter more than the first batch needed. */
static void test_a_slot_serves_batches_that_ask_for_a_quarter_more(void)
{
    fl_arena *arena = open_arena(256 * MIB);
    fl_pool *pool = open_shared_pool(arena, 2);
    fl_slot *slot = get_slot(pool, 8 * MIB);
    const char *data = fl_slot_data(slot);
    fill(slot, 1, 8 * MIB);
    fl_slot_return(slot);
    slot = get_slot(pool, 10 * MIB);
    CHECK(fl_slot_data(slot) == data && data[0] == 1);
    fl_slot_return(slot);
    check_counts(pool, 0, 1, 0, 1);
    fl_pool_close(pool);
    fl_arena_close(arena);
}

static int fill_small_arena(void *unused)
{
    long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    CHECK(unused == NULL && sizes != NULL && fscanf(sizes, "%ld", &pages) == 1);
    fclose(sizes);
    const rlim_t most = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + 400 * MIB);
    CHECK(setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) == 0);
    fl_arena *arena = open_arena(256 * MIB);
    CHECK_INT(fl_arena_bytes(arena), 256 * MIB);
    fl_pool *pool = open_shared_pool(arena, 3);
    fl_slot *slots[3];
    for (int i = 0; i < 3; i++) slots[i] = get_slot(pool, 80 * MIB);
    for (int i = 0; i < 3; i++) fl_slot_return(slots[i]);
    fl_pool_close(pool);
    fl_arena_close(arena);
    return 0;
}

static void test_large_slots_fill_a_small_arena(void)
{
    CHECK_INT(run_child(fill_small_arena, NULL), 0);
}

static void test_surplus_slots_give_their_memory_back(void)
{
    enum { COUNT = 6, RESERVE = 2 };
    fl_arena *arena = open_arena(64 * MIB);
    fl_pool *pool = open_shared_pool(arena, RESERVE);
    fl_slot *slots[COUNT];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            slots[i] = get_slot(pool, 2 * MIB);
            fill(slots[i], 1, 2 * MIB);
            fl_slot_lend(slots[i], 1);
        }
        CHECK_INT(held_bytes(arena), COUNT * 2 * MIB);
        for (int i = 0; i < COUNT; i++) fl_slot_give(slots[i]);
        CHECK_INT(held_bytes(arena), RESERVE * 2 * MIB); /* the pool's, to be built in again */
    }
    fl_slot *larger = get_slot(pool, 4 * MIB); /* takes the place of one that is too small */
    CHECK_INT(held_bytes(arena), 2 * MIB);
    fl_slot_return(larger);
    fl_pool_trim(pool);
    CHECK_INT(held_bytes(arena), 0);
    fl_pool_close(pool);
    fl_arena_close(arena);
}

static void test_kept_slots_keep_their_bytes_while_others_cycle(void)
{
    enum { KEPT = 12, BYTES = 70 * KIB };
    fl_arena *arena = open_arena(64 * MIB);
    fl_pool *pool = open_shared_pool(arena, 2);
    fl_slot *kept[KEPT];
    for (int i = 0; i < KEPT; i++) {
        kept[i] = get_slot(pool, BYTES);
        fill(kept[i], (char)(1 + i), BYTES);
        fl_slot_lend(kept[i], 2);
        for (int other = 0; other < 20; other++) {
            fl_slot *slot = get_slot(pool, BYTES + other % 3 * 10 * KIB);
            fill(slot, 0x7E, BYTES);
            if (other % 2 == 0)
                fl_slot_return(slot);
            else {
                fl_slot_lend(slot, 1);
                fl_slot_give(slot);
            }
            if (other % 7 == 0) fl_pool_trim(pool);
        }
        fl_slot_give(kept[i]); /* one of the two */
    }
    for (int i = 0; i < KEPT; i++) {
        CHECK(holds_only(fl_slot_data(kept[i]), (char)(1 + i), BYTES));
        fl_slot_give(kept[i]);
    }
    fl_pool_trim(pool);
    CHECK_INT(held_bytes(arena), 0);
    fl_pool_close(pool);
    fl_arena_close(arena);
}

/* ---- whoever comes last */

static void *check_and_give(void *arg)
{
    fl_slot *slot = arg;
    CHECK(holds_only(fl_slot_data(slot), 3, 100 * KIB));
    fl_slot_give(slot);
    return NULL;
}

static void test_batches_outlive_pool_and_arena(void)
{
    int64_t descriptors = count_descriptors();
    for (int round = 0; round < 40; round++) {
        fl_arena *arena = open_arena(64 * MIB);
        fl_pool *pool = open_shared_pool(arena, round % 3);
        fl_slot *slots[3];
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) {
            slots[i] = get_slot(pool, 100 * KIB);
            fill(slots[i], 3, 100 * KIB);
            fl_slot_lend(slots[i], 1);
            fl_slot_share(slots[i]);
        }
        fl_slot_return(get_slot(pool, 10));
        for (int i = 0; i < 3 && round % 2 == 0; i++)
            CHECK_INT(fl_thread_start(&threads[i], check_and_give, slots[i], NULL), FL_OK);
        fl_pool_close(pool);
        fl_arena_close(arena);
        for (int i = 0; i < 3 && round % 2 == 1; i++)
            CHECK_INT(fl_thread_start(&threads[i], check_and_give, slots[i], NULL), FL_OK);
        for (int i = 0; i < 3; i++) {
            check_and_give(slots[i]);
            pthread_join(threads[i], NULL);
        }
        CHECK_INT(count_descriptors(), descriptors);
    }
}

/* One producer lends numbered slots, holders share them on, check the number and give. */
enum { HOLDERS = 3, SLOTS = 1500, WORDS = 32, BYTES = 40 * KIB };

typedef struct exchange {
    fl_slot *handed[SLOTS];
    _Atomic int64_t count; /* release: handed[0..count) may be read */
} exchange;

static void check_number(const fl_slot *slot, int64_t number)
{
    const int64_t *words = (const int64_t *)(const void *)fl_slot_data(slot);
    for (int w = 0; w < WORDS; w++) CHECK_INT(words[w], number);
    CHECK_INT(words[BYTES / 8 - 1], number);
}

static void *hold_for_a_while(void *arg)
{
    exchange *x = arg;
    fl_slot *kept[5] = {NULL}; /* shares of every tenth slot */
    int64_t numbers[5] = {0};
    for (int64_t n = 0; n < SLOTS; n++) {
        while (atomic_load_explicit(&x->count, memory_order_acquire) <= n) sched_yield();
        fl_slot *slot = x->handed[n];
        check_number(slot, n);
        int64_t place = n / 10 % 5;
        if (n % 10 == 0) {
            fl_slot_share(slot);
            if (kept[place] != NULL) check_number(kept[place], numbers[place]);
            if (kept[place] != NULL) fl_slot_give(kept[place]);
            kept[place] = slot;
            numbers[place] = n;
        }
        fl_slot_give(slot);
    }
    for (int i = 0; i < 5; i++) check_number(kept[i], numbers[i]);
    for (int i = 0; i < 5; i++) fl_slot_give(kept[i]);
    return NULL;
}

static void test_many_threads_hold_while_one_gets(void)
{
    static exchange x;
    fl_arena *arena = open_arena(256 * MIB);
    fl_pool *pool = open_shared_pool(arena, 4);
    pthread_t threads[HOLDERS];
    for (int i = 0; i < HOLDERS; i++)
        CHECK_INT(fl_thread_start(&threads[i], hold_for_a_while, &x, NULL), FL_OK);
    for (int64_t n = 0; n < SLOTS; n++) {
        fl_slot *slot = get_slot(pool, BYTES);
        int64_t *words = (int64_t *)(void *)fl_slot_data(slot);
        for (int w = 0; w < WORDS; w++) words[w] = n;
        words[BYTES / 8 - 1] = n;
        fl_slot_lend(slot, HOLDERS);
        x.handed[n] = slot;
        atomic_store_explicit(&x.count, n + 1, memory_order_release);
        if (n % 200 == 199) fl_pool_trim(pool);
    }
    for (int i = 0; i < HOLDERS; i++) pthread_join(threads[i], NULL);
    fl_pool_stats stats;
    fl_pool_count(pool, &stats);
    CHECK(stats.lent == 0 && stats.empty <= 4 && stats.made <= SLOTS);
    CHECK(held_bytes(arena) <= 4 * 64 * KIB);
    fl_pool_close(pool);
    CHECK_INT(held_bytes(arena), 0);
    fl_arena_close(arena);
}

/* ---- refused resources, other processes */

static int open_and_lend(void *arg)
{
    fl_arena *arena = arg;
    fl_pool *pool;
    fl_slot *slot, *other;
    fl_err err = {0};
    int status = fl_pool_open(8, arena, &pool, &err);
    if (status != FL_OK) return status;
    status = fl_pool_get(pool, 100 * KIB, &slot, &err);
    if (status != FL_OK) {
        CHECK(slot == NULL && err.code == status && err.text[0] != '\0');
        check_counts(pool, 0, 0, 0, 0);
        CHECK_INT(fl_pool_get(pool, 100 * KIB, &slot, NULL), FL_OK); /* the next one is there */
    }
    fl_slot_lend(slot, 1);
    if (status == FL_OK) status = fl_pool_get(pool, 300 * KIB, &other, &err);
    if (status == FL_OK) fl_slot_return(other);
    fl_pool_close(pool);
    fl_slot_give(slot);
    CHECK_INT(held_bytes(arena), 0);
    return status;
}

static void test_every_refused_resource(void)
{
    fl_arena *arena = open_arena(64 * MIB); /* a fresh one needs records for its blocks */
    CHECK(refuse_each(open_and_lend, arena) >= 4);
    fl_slot *slot = (fl_slot *)arena;
    fl_pool *pool = open_shared_pool(arena, 1);
    CHECK_INT(fl_pool_get(pool, (int64_t)1 << 50, &slot, NULL), FL_ENOMEM);
    CHECK(slot == NULL);
    check_counts(pool, 0, 0, 0, 0);
    fl_pool_close(pool);
    fl_arena_close(arena);
}

typedef struct family {
    fl_arena *arena;
    fl_pool *pool;
    fl_slot *lent, *held;
} family;

/* A worker writes into the slot that it was told of, and everything that it inherited is inert. */
static int work_in_child(void *arg)
{
    family *f = arg;
    fl_slot *slot = f->held;
    fill(f->held, 9, 100 * KIB);
    for (int i = 0; i < 3; i++) fl_slot_give(f->lent);
    fl_slot_return(f->held);
    CHECK_INT(fl_pool_get(f->pool, 10, &slot, NULL), FL_EFORK);
    CHECK(slot == NULL);
    fl_pool_trim(f->pool);
    fl_pool_close(f->pool);
    for (int i = 0; i < 9; i++) fl_arena_close(f->arena);
    check_counts(f->pool, 1, 3, 0, 1);
    return 0;
}

static void test_a_child_writes_and_drops_everything(void)
{
    family f = {.arena = open_arena(64 * MIB)};
    f.pool = open_shared_pool(f.arena, 3);
    f.lent = get_slot(f.pool, 100 * KIB);
    f.held = get_slot(f.pool, 100 * KIB);
    fl_slot *empty = get_slot(f.pool, 100 * KIB);
    fill(empty, 1, 100 * KIB);
    fl_slot_return(empty);
    fill(f.lent, 7, 100 * KIB);
    fl_slot_lend(f.lent, 1);
    int64_t worker;
    CHECK_INT(fl_fork_expect(&worker, NULL), FL_OK);
    CHECK_INT(run_child(work_in_child, &f), 0);
    fl_fork_expected();
    fl_fork_end(worker);
    CHECK(holds_only(fl_slot_data(f.lent), 7, 100 * KIB));
    CHECK(holds_only(fl_slot_data(f.held), 9, 100 * KIB));
    CHECK(holds_only(fl_slot_data(empty), 1, 100 * KIB)); /* still the parent's */
    check_counts(f.pool, 1, 3, 0, 1);
    fl_slot_give(f.lent);
    fl_slot_return(f.held);
    fl_pool_close(f.pool);
    CHECK_INT(held_bytes(f.arena), 0);
    fl_arena_close(f.arena);
}

static int do_nothing(void *arg)
{
    (void)arg;
    return 0;
}

/* A child may still look at memory that was lent when the child was forked, and only at that
 * memory. */
static void test_what_is_lent_during_a_fork_is_left_alone(void)
{
    fl_arena *arena = open_arena(64 * MIB);
    fl_pool *pool = open_shared_pool(arena, 3);
    fl_slot *before = get_slot(pool, 100 * KIB), *after;
    char *data = fl_slot_data(before);
    fill(before, 7, 100 * KIB);
    fl_slot_lend(before, 2);
    CHECK_INT(run_child(do_nothing, NULL), 0);
    fl_slot_give(before);
    fl_slot_give(before);
    for (int i = 0; i < 5; i++) { /* as many as would have cycled */
        after = get_slot(pool, 100 * KIB);
        CHECK(fl_slot_data(after) != data);
        fill(after, 1, 100 * KIB);
        fl_slot_lend(after, 1);
        fl_slot_give(after);
    }
    for (int64_t i = 0; i < 100 * KIB; i++) CHECK_INT(data[i], 7);
    fl_pool_close(pool);
    fl_arena_close(arena); /* and nothing leaks */
}

int main(void)
{
    start_tests();
    RUN(test_what_is_lent_during_a_fork_is_left_alone);
    RUN(test_slots_lie_in_the_arena_apart);
    RUN(test_a_fresh_slot_is_as_large_as_asked_for);
    RUN(test_a_slot_serves_batches_that_ask_for_a_quarter_more);
    RUN(test_large_slots_fill_a_small_arena);
    RUN(test_surplus_slots_give_their_memory_back);
    RUN(test_kept_slots_keep_their_bytes_while_others_cycle);
    RUN(test_batches_outlive_pool_and_arena);
    RUN(test_many_threads_hold_while_one_gets);
    RUN(test_every_refused_resource);
    RUN(test_a_child_writes_and_drops_everything);
    return 0;
}
