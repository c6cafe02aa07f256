/* Tests of fl_arena: what regions are, how they come back, and who may hold them. */
#include "check.h"

#include "arena_fixture.h"

#include <sched.h>
#include <stdatomic.h>

/* The largest page that a kernel of Linux has: giving a region back acts on whole pages. */
enum { LARGEST_PAGE = 64 << 10 };

/* ---- sizes and places */

static void check_apart(fl_region **regions, int64_t count)
{
    for (int64_t a = 0; a < count; a++) {
        int64_t begin = fl_region_offset(regions[a]), end = begin + fl_region_bytes(regions[a]);
        for (int64_t b = 0; b < a; b++) {
            int64_t other = fl_region_offset(regions[b]);
            CHECK(other >= end || other + fl_region_bytes(regions[b]) <= begin);
        }
    }
}

static void check_shape(const fl_arena *arena, const fl_region *region, int64_t asked)
{
    int64_t bytes = fl_region_bytes(region), offset = fl_region_offset(region);
    CHECK(bytes >= asked && bytes <= fl_max(4 * LARGEST_PAGE, asked + asked / 4 + 1));
    CHECK_INT(bytes % LARGEST_PAGE, 0);
    CHECK_INT(offset % LARGEST_PAGE, 0);
    CHECK(is_aligned(fl_region_data(region), 4 * KIB));
    CHECK(offset >= 0 && bytes <= fl_arena_bytes(arena) - offset);
}

static void test_regions_are_whole_pages_apart(void)
{
    enum { MOST = 400 };
    static fl_region *regions[MOST];
    bool is_small = address_space_limit() < (int64_t)128 << 30;
    fl_arena *arena = open_arena((int64_t)(is_small ? 2 : 64) << 30);
    const int64_t odd[] = {0, 1, 63, 64, 4095, 4096, 4097, 20000};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        regions[count] = get_region(arena, odd[i]);
        check_shape(arena, regions[count++], odd[i]);
    }
    for (int shift = 13; shift < (is_small ? 26 : 31); shift++)
        for (int64_t quarter = 4; quarter < 8; quarter++)
            for (int64_t more = -1; more <= 1; more++) {
                int64_t bytes = ((int64_t)1 << shift) / 4 * quarter + more;
                regions[count] = get_region(arena, bytes);
                check_shape(arena, regions[count++], bytes);
            }
    check_apart(regions, count);
    for (int64_t i = 0; i < count; i++) { /* the first and the last byte of each is its own */
        fl_region_data(regions[i])[0] = (char)i;
        fl_region_data(regions[i])[fl_region_bytes(regions[i]) - 1] = (char)(i + 1);
    }
    for (int64_t i = 0; i < count; i++) {
        CHECK(fl_region_data(regions[i])[0] == (char)i);
        CHECK(fl_region_data(regions[i])[fl_region_bytes(regions[i]) - 1] == (char)(i + 1));
        fl_region_give(regions[i]);
    }
    CHECK_INT(held_bytes(arena), 0);
    fl_region_give(NULL);
    fl_arena_close(arena);
    fl_arena_close(NULL);
}

static void test_thousands_of_regions_are_one_descriptor(void)
{
    enum { COUNT = 6000 };
    static fl_region *regions[COUNT];
    int64_t before = count_descriptors();
    uint64_t seed = 1;
    fl_arena *arena = open_arena((int64_t)3 << 30);
    for (int64_t i = 0; i < COUNT; i++) {
        regions[i] = get_region(arena, 1 + random_below(&seed, 20 * KIB));
        memcpy(fl_region_data(regions[i]), &i, sizeof i);
    }
    CHECK_INT(count_descriptors(), before + 1);
    int64_t held = held_bytes(arena);
    for (int64_t i = 0; i < COUNT; i += 2) fl_region_give(regions[i]);
    CHECK(held_bytes(arena) <= held / 2 + held / 8);
    for (int64_t i = 0; i < COUNT; i += 2) { /* among those that stay */
        regions[i] = get_region(arena, 1 + random_below(&seed, 20 * KIB));
        CHECK(holds_only(fl_region_data(regions[i]), 0, 4 * KIB));
        memcpy(fl_region_data(regions[i]), &i, sizeof i);
    }
    for (int64_t i = 0; i < COUNT; i++) {
        CHECK(memcmp(fl_region_data(regions[i]), &i, sizeof i) == 0);
        fl_region_give(regions[i]);
    }
    CHECK_INT(count_descriptors(), before + 1);
    fl_arena_close(arena);
    CHECK_INT(count_descriptors(), before);
}

/* ---- coming back */

static void test_a_region_comes_back_zeroed(void)
{
    const int64_t sizes[] = {1, 16 * KIB, 100 * KIB, 300 * KIB, 2 * MIB, 3 * MIB + 5};
    fl_arena *arena = open_arena(256 * MIB);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_region *region = get_region(arena, sizes[i]);
        int64_t offset = fl_region_offset(region), bytes = fl_region_bytes(region);
        for (int round = 0; round < 5; round++) {
            CHECK(holds_only(fl_region_data(region), 0, bytes));
            memset(fl_region_data(region), 0x5A, (size_t)bytes);
            fl_region_give(region);
            region = get_region(arena, fl_max(0, sizes[i] - round)); /* of the same tier */
            CHECK_INT(fl_region_offset(region), offset);
            CHECK_INT(fl_region_bytes(region), bytes);
        }
        fl_region_give(region);
    }
    fl_arena_close(arena);
}

/* A program may have locked its memory, or a part, against being paged out. */
static void test_a_locked_region_comes_back_zeroed(void)
{
    fl_arena *arena = open_arena(16 * MIB);
    fl_region *region = get_region(arena, 16 * KIB);
    int64_t offset = fl_region_offset(region);
    if (mlock(fl_region_data(region), 16 * KIB) != 0) printf(" (may not lock)");
    memset(fl_region_data(region), 1, 16 * KIB);
    fl_region_give(region);
    region = get_region(arena, 16 * KIB);
    CHECK_INT(fl_region_offset(region), offset);
    CHECK(holds_only(fl_region_data(region), 0, fl_region_bytes(region)));
    fl_region_give(region);
    fl_arena_close(arena);
}

static void test_memory_goes_back_to_the_system(void)
{
    fl_arena *arena = open_arena(256 * MIB);
    fl_region *regions[8];
    CHECK_INT(held_bytes(arena), 0);
    for (int i = 0; i < 8; i++) {
        regions[i] = get_region(arena, 2 * MIB);
        CHECK_INT(held_bytes(arena), i * 2 * MIB); /* comes with the first write */
        memset(fl_region_data(regions[i]), 1 + i, 2 * MIB);
    }
    for (int i = 0; i < 8; i += 2) fl_region_give(regions[i]);
    CHECK_INT(held_bytes(arena), 4 * 2 * MIB);
    for (int i = 1; i < 8; i += 2) {
        CHECK(holds_only(fl_region_data(regions[i]), (char)(1 + i), 2 * MIB));
        fl_region_give(regions[i]);
    }
    CHECK_INT(held_bytes(arena), 0);
    fl_arena_close(arena);
}

static void test_address_space_is_used_again(void)
{
    fl_arena *arena = open_arena(64 * MIB);
    int64_t rounds = fl_arena_bytes(arena) / ((int64_t)256 << 20) + 1000, most = 0;
    for (int64_t i = 0; i < fl_min(rounds, 20000); i++) {
        fl_region *region = get_region(arena, 256 * MIB - i % 100), *small = get_region(arena, i);
        most = fl_max(most, fl_region_offset(region) + fl_region_bytes(region));
        fl_region_give(region);
        fl_region_give(small);
    }
    CHECK(most <= (int64_t)512 * MIB);
    fl_arena_close(arena);
}

/* ---- threads */

enum { TRADERS = 4, ROUNDS = 3000, PLACES = 16 };

/* Regions pass from whoever got them to whoever finds them here. */
typedef struct market {
    fl_arena *arena;
    _Atomic(fl_region *) places[PLACES]; /* owned */
    _Atomic int64_t names;
} market;

/* Checks and gives back a region: every page names the owner until then. */
static void check_and_give(fl_region *region)
{
    if (region == NULL) return;
    const char *data = fl_region_data(region);
    int64_t name, other;
    memcpy(&name, data, sizeof name);
    CHECK(name > 0);
    for (int64_t at = 0; at < fl_region_bytes(region); at += 16 * KIB) {
        memcpy(&other, data + at, sizeof other);
        CHECK_INT(other, name);
    }
    fl_region_give(region);
}

static void *trade(void *arg)
{
    market *m = arg;
    uint64_t seed = (uint64_t)atomic_fetch_add(&m->names, 1);
    for (int round = 0; round < ROUNDS; round++) {
        fl_region *region = get_region(m->arena, 1 + random_below(&seed, 200 * KIB));
        int64_t name = atomic_fetch_add(&m->names, 1) + 1, was;
        for (int64_t at = 0; at < fl_region_bytes(region); at += 16 * KIB) {
            memcpy(&was, fl_region_data(region) + at, sizeof was);
            CHECK_INT(was, 0);
            memcpy(fl_region_data(region) + at, &name, sizeof name);
        }
        check_and_give(atomic_exchange_explicit(&m->places[random_below(&seed, PLACES)], region,
                                                memory_order_acq_rel));
    }
    return NULL;
}

static void test_threads_get_and_give_at_once(void)
{
    static market m;
    m.arena = open_arena((int64_t)1 << 30);
    pthread_t threads[TRADERS];
    for (int i = 0; i < TRADERS; i++)
        CHECK_INT(fl_thread_start(&threads[i], trade, &m, NULL), FL_OK);
    for (int i = 0; i < TRADERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < PLACES; i++) check_and_give(atomic_exchange(&m.places[i], NULL));
    CHECK_INT(held_bytes(m.arena), 0);
    fl_arena_close(m.arena);
}

typedef struct heap {
    fl_region *regions[32]; /* owned */
} heap;

static void *give_heap(void *arg)
{
    heap *all = arg;
    for (int i = 0; i < 32; i++) check_and_give(all->regions[i]);
    return NULL;
}

/* Whoever is last frees the arena: leaks and double frees show in ASan, descriptors here. */
static void test_the_opener_closes_first(void)
{
    int64_t descriptors = count_descriptors(), space = 0;
    for (int round = 0; round < 50; round++) {
        fl_arena *arena = open_arena((int64_t)1 << 30);
        heap heaps[2];
        pthread_t threads[2];
        for (int64_t i = 0; i < 64; i++) {
            fl_region *region = get_region(arena, 1);
            for (int64_t at = 0; at < fl_region_bytes(region); at += 16 * KIB)
                memcpy(fl_region_data(region) + at, &(int64_t){i + 1}, sizeof i);
            heaps[i % 2].regions[i / 2] = region;
        }
        fl_region_give(get_region(arena, 4 * MIB)); /* some lie in the arena's own lists */
        fl_region_give(get_region(arena, 1));
        if (round % 2 == 0) fl_arena_close(arena);
        for (int i = 0; i < 2; i++)
            CHECK_INT(fl_thread_start(&threads[i], give_heap, &heaps[i], NULL), FL_OK);
        if (round % 2 == 1) fl_arena_close(arena);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        CHECK_INT(count_descriptors(), descriptors);
        if (round == 5) space = count_address_space();
    }
    CHECK(count_address_space() - space < (int64_t)1 << 30); /* unmapped as well */
}

int main(void)
{
    start_tests();
    RUN(test_regions_are_whole_pages_apart);
    RUN(test_thousands_of_regions_are_one_descriptor);
    RUN(test_a_region_comes_back_zeroed);
    RUN(test_a_locked_region_comes_back_zeroed);
    RUN(test_memory_goes_back_to_the_system);
    RUN(test_address_space_is_used_again);
    RUN(test_threads_get_and_give_at_once);
    RUN(test_the_opener_closes_first);
    return 0;
}
