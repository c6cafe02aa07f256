/* Tests of fl_arena: what blocks are, how they come back, and who may hold them. */
#include "check.h"

#include "arena_fixture.h"

#include <sched.h>
#include <stdatomic.h>

/* The largest page that a kernel of Linux has: giving a block back acts on whole pages. */
enum { LARGEST_PAGE = 64 << 10 };

/* ---- sizes and places */

static void check_apart(fl_shared_block **blocks, int64_t count)
{
    for (int64_t a = 0; a < count; a++) {
        int64_t begin = fl_shared_block_offset(blocks[a]),
                end = begin + fl_shared_block_bytes(blocks[a]);
        for (int64_t b = 0; b < a; b++) {
            int64_t other = fl_shared_block_offset(blocks[b]);
            CHECK(other >= end || other + fl_shared_block_bytes(blocks[b]) <= begin);
        }
    }
}

static void check_shape(const fl_arena *arena, const fl_shared_block *block, int64_t asked)
{
    int64_t bytes = fl_shared_block_bytes(block), offset = fl_shared_block_offset(block);
    CHECK(bytes >= asked && bytes <= fl_max(4 * LARGEST_PAGE, asked + asked / 4 + 1));
    CHECK_INT(bytes % LARGEST_PAGE, 0);
    CHECK_INT(offset % LARGEST_PAGE, 0);
    CHECK(is_aligned(fl_shared_block_data(block), 4 * KIB));
    CHECK(offset >= 0 && bytes <= fl_arena_bytes(arena) - offset);
}

static void test_blocks_are_whole_pages_apart(void)
{
    enum { MOST = 400 };
    static fl_shared_block *blocks[MOST];
    bool is_small = address_space_limit() < (int64_t)128 << 30;
    fl_arena *arena = open_arena((int64_t)(is_small ? 2 : 64) << 30);
    const int64_t odd[] = {0, 1, 63, 64, 4095, 4096, 4097, 20000};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        blocks[count] = get_block(arena, odd[i]);
        check_shape(arena, blocks[count++], odd[i]);
    }
    for (int shift = 13; shift < (is_small ? 26 : 31); shift++)
        for (int64_t quarter = 4; quarter < 8; quarter++)
            for (int64_t more = -1; more <= 1; more++) {
                int64_t bytes = ((int64_t)1 << shift) / 4 * quarter + more;
                blocks[count] = get_block(arena, bytes);
                check_shape(arena, blocks[count++], bytes);
            }
    check_apart(blocks, count);
    for (int64_t i = 0; i < count; i++) { /* the first and the last byte of each is its own */
        fl_shared_block_data(blocks[i])[0] = (char)i;
        fl_shared_block_data(blocks[i])[fl_shared_block_bytes(blocks[i]) - 1] = (char)(i + 1);
    }
    for (int64_t i = 0; i < count; i++) {
        CHECK(fl_shared_block_data(blocks[i])[0] == (char)i);
        CHECK(fl_shared_block_data(blocks[i])[fl_shared_block_bytes(blocks[i]) - 1] ==
              (char)(i + 1));
        fl_shared_block_give(blocks[i]);
    }
    CHECK_INT(held_bytes(arena), 0);
    fl_shared_block_give(NULL);
    fl_arena_close(arena);
    fl_arena_close(NULL);
}

static void test_thousands_of_blocks_are_one_descriptor(void)
{
    enum { COUNT = 6000 };
    static fl_shared_block *blocks[COUNT];
    int64_t before = count_descriptors();
    uint64_t seed = 1;
    fl_arena *arena = open_arena((int64_t)3 << 30);
    for (int64_t i = 0; i < COUNT; i++) {
        blocks[i] = get_block(arena, 1 + random_below(&seed, 20 * KIB));
        memcpy(fl_shared_block_data(blocks[i]), &i, sizeof i);
    }
    CHECK_INT(count_descriptors(), before + 1);
    int64_t held = held_bytes(arena);
    for (int64_t i = 0; i < COUNT; i += 2) fl_shared_block_give(blocks[i]);
    CHECK(held_bytes(arena) <= held / 2 + held / 8);
    for (int64_t i = 0; i < COUNT; i += 2) { /* among those that stay */
        blocks[i] = get_block(arena, 1 + random_below(&seed, 20 * KIB));
        CHECK(holds_only(fl_shared_block_data(blocks[i]), 0, 4 * KIB));
        memcpy(fl_shared_block_data(blocks[i]), &i, sizeof i);
    }
    for (int64_t i = 0; i < COUNT; i++) {
        CHECK(memcmp(fl_shared_block_data(blocks[i]), &i, sizeof i) == 0);
        fl_shared_block_give(blocks[i]);
    }
    CHECK_INT(count_descriptors(), before + 1);
    fl_arena_close(arena);
    CHECK_INT(count_descriptors(), before);
}

/* ---- coming back */

static void test_a_block_comes_back_zeroed(void)
{
    const int64_t sizes[] = {1, 16 * KIB, 100 * KIB, 300 * KIB, 2 * MIB, 3 * MIB + 5};
    fl_arena *arena = open_arena(256 * MIB);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_shared_block *block = get_block(arena, sizes[i]);
        int64_t offset = fl_shared_block_offset(block), bytes = fl_shared_block_bytes(block);
        for (int round = 0; round < 5; round++) {
            CHECK(holds_only(fl_shared_block_data(block), 0, bytes));
            memset(fl_shared_block_data(block), 0x5A, (size_t)bytes);
            fl_shared_block_give(block);
            block = get_block(arena, fl_max(0, sizes[i] - round)); /* of the same tier */
            CHECK_INT(fl_shared_block_offset(block), offset);
            CHECK_INT(fl_shared_block_bytes(block), bytes);
        }
        fl_shared_block_give(block);
    }
    fl_arena_close(arena);
}

/* A program may have locked its memory, or a part, against being paged out. */
static void test_a_locked_block_comes_back_zeroed(void)
{
    fl_arena *arena = open_arena(16 * MIB);
    fl_shared_block *block = get_block(arena, 16 * KIB);
    int64_t offset = fl_shared_block_offset(block);
    if (mlock(fl_shared_block_data(block), 16 * KIB) != 0) printf(" (may not lock)");
    memset(fl_shared_block_data(block), 1, 16 * KIB);
    fl_shared_block_give(block);
    block = get_block(arena, 16 * KIB);
    CHECK_INT(fl_shared_block_offset(block), offset);
    CHECK(holds_only(fl_shared_block_data(block), 0, fl_shared_block_bytes(block)));
    fl_shared_block_give(block);
    fl_arena_close(arena);
}

static void test_memory_goes_back_to_the_system(void)
{
    fl_arena *arena = open_arena(256 * MIB);
    fl_shared_block *blocks[8];
    CHECK_INT(held_bytes(arena), 0);
    for (int i = 0; i < 8; i++) {
        blocks[i] = get_block(arena, 2 * MIB);
        CHECK_INT(held_bytes(arena), i * 2 * MIB); /* comes with the first write */
        memset(fl_shared_block_data(blocks[i]), 1 + i, 2 * MIB);
    }
    for (int i = 0; i < 8; i += 2) fl_shared_block_give(blocks[i]);
    CHECK_INT(held_bytes(arena), 4 * 2 * MIB);
    for (int i = 1; i < 8; i += 2) {
        CHECK(holds_only(fl_shared_block_data(blocks[i]), (char)(1 + i), 2 * MIB));
        fl_shared_block_give(blocks[i]);
    }
    CHECK_INT(held_bytes(arena), 0);
    fl_arena_close(arena);
}

static void test_address_space_is_used_again(void)
{
    fl_arena *arena = open_arena(64 * MIB);
    int64_t rounds = fl_arena_bytes(arena) / ((int64_t)256 << 20) + 1000, most = 0;
    for (int64_t i = 0; i < fl_min(rounds, 20000); i++) {
        fl_shared_block *block = get_block(arena, 256 * MIB - i % 100),
                        *small = get_block(arena, i);
        most = fl_max(most, fl_shared_block_offset(block) + fl_shared_block_bytes(block));
        fl_shared_block_give(block);
        fl_shared_block_give(small);
    }
    CHECK(most <= (int64_t)512 * MIB);
    fl_arena_close(arena);
}

/* ---- threads */

enum { TRADERS = 4, ROUNDS = 3000, PLACES = 16 };

/* Blocks pass from whoever got them to whoever finds them here. */
typedef struct market {
    fl_arena *arena;
    _Atomic(fl_shared_block *) places[PLACES]; /* owned */
    _Atomic int64_t names;
} market;

/* Checks and gives back a block: every page names the owner until then. */
static void check_and_give(fl_shared_block *block)
{
    if (block == NULL) return;
    const char *data = fl_shared_block_data(block);
    int64_t name, other;
    memcpy(&name, data, sizeof name);
    CHECK(name > 0);
    for (int64_t at = 0; at < fl_shared_block_bytes(block); at += 16 * KIB) {
        memcpy(&other, data + at, sizeof other);
        CHECK_INT(other, name);
    }
    fl_shared_block_give(block);
}

static void *trade(void *arg)
{
    market *m = arg;
    uint64_t seed = (uint64_t)atomic_fetch_add(&m->names, 1);
    for (int round = 0; round < ROUNDS; round++) {
        fl_shared_block *block = get_block(m->arena, 1 + random_below(&seed, 200 * KIB));
        int64_t name = atomic_fetch_add(&m->names, 1) + 1, was;
        for (int64_t at = 0; at < fl_shared_block_bytes(block); at += 16 * KIB) {
            memcpy(&was, fl_shared_block_data(block) + at, sizeof was);
            CHECK_INT(was, 0);
            memcpy(fl_shared_block_data(block) + at, &name, sizeof name);
        }
        check_and_give(atomic_exchange_explicit(&m->places[random_below(&seed, PLACES)], block,
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
    fl_shared_block *blocks[32]; /* owned */
} heap;

static void *give_heap(void *arg)
{
    heap *all = arg;
    for (int i = 0; i < 32; i++) check_and_give(all->blocks[i]);
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
            fl_shared_block *block = get_block(arena, 1);
            for (int64_t at = 0; at < fl_shared_block_bytes(block); at += 16 * KIB)
                memcpy(fl_shared_block_data(block) + at, &(int64_t){i + 1}, sizeof i);
            heaps[i % 2].blocks[i / 2] = block;
        }
        fl_shared_block_give(get_block(arena, 4 * MIB)); /* some lie in the arena's own lists */
        fl_shared_block_give(get_block(arena, 1));
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
    RUN(test_blocks_are_whole_pages_apart);
    RUN(test_thousands_of_blocks_are_one_descriptor);
    RUN(test_a_block_comes_back_zeroed);
    RUN(test_a_locked_block_comes_back_zeroed);
    RUN(test_memory_goes_back_to_the_system);
    RUN(test_address_space_is_used_again);
    RUN(test_threads_get_and_give_at_once);
    RUN(test_the_opener_closes_first);
    return 0;
}
