/* Tests of pools whose slots are pinned, over a pinner that counts: what is pinned stays the pool's
 * whatever is refused, is pinned once, and is unpinned in the end. */
#include "check.h"

#include "arena_fixture.h"
#include "pool_fixture.h"

enum { BYTES = 300 * KIB, MORE = 2 * BYTES, MOST_PINNED = 16 };

static const char *pinned[MOST_PINNED];
static int64_t pins;

static int64_t find_pinned(const void *memory)
{
    int64_t i = 0;
    while (i < MOST_PINNED && pinned[i] != memory) i++;
    return i;
}

static int pin(int32_t device, char *memory, int64_t bytes, fl_err *err)
{
    CHECK(device == 3 && bytes > 0 && find_pinned(memory) == MOST_PINNED);
    if (fl_fault_hit()) return fl_fail(err, FL_ENOMEM, "refused");
    pinned[find_pinned(NULL)] = memory;
    pins++;
    return FL_OK;
}

static void unpin(int32_t device, char *memory)
{
    CHECK(device == 3 && find_pinned(memory) < MOST_PINNED);
    pinned[find_pinned(memory)] = NULL;
}

static int64_t count_pinned(void)
{
    int64_t count = 0;
    for (int i = 0; i < MOST_PINNED; i++) count += pinned[i] != NULL;
    return count;
}

static fl_pool *open_pinning(fl_arena *arena)
{
    fl_pool *pool;
    CHECK_INT(fl_pool_open(8, arena, &pool, NULL), FL_OK);
    fl_pool_pin(pool, (fl_pinner){pin, unpin, 3});
    pins = 0;
    return pool;
}

static fl_slot *get_pinned(fl_pool *pool, int64_t bytes)
{
    fl_slot *slot = get_slot(pool, bytes);
    CHECK_INT(fl_slot_pin(slot, bytes, NULL), FL_OK);
    return slot;
}

/* Runs a test with an arena and without. */
static void for_each_pool(void (*test)(fl_pool *pool))
{
    for (int i = 0; i < 2; i++) {
        fl_arena *arena = i == 0 ? NULL : open_arena(64 * MIB);
        fl_pool *pool = open_pinning(arena);
        test(pool);
        fl_pool_close(pool);
        CHECK_INT(count_pinned(), 0);
        if (arena != NULL) CHECK_INT(held_bytes(arena), 0);
        fl_arena_close(arena);
    }
}

/* ---- a larger slot takes the place of a pinned one */

static void replace_and_pin(fl_pool *pool)
{
    fl_slot_return(get_pinned(pool, BYTES));
    fl_slot *larger = get_slot(pool, MORE);
    CHECK_INT(count_pinned(), 1);
    CHECK(!fl_slot_is_pinned(larger, MORE));
    CHECK_INT(fl_slot_pin(larger, MORE, NULL), FL_OK);
    CHECK_INT(count_pinned(), 2); /* the smaller one too, because to unpin waits for the device */
    CHECK(fl_slot_is_pinned(larger, MORE));
    fl_slot_return(larger);
    CHECK(get_pinned(pool, MORE) == larger);
    CHECK_INT(pins, 2);
    fl_slot_return(larger);
    fl_pool_trim(pool);
    CHECK_INT(count_pinned(), 0);
}

static void test_what_was_outgrown_is_unpinned_with_the_pool(void)
{
    for_each_pool(replace_and_pin);
}

static void replace_and_never_pin(fl_pool *pool)
{
    fl_slot_return(get_pinned(pool, BYTES));
    fl_slot_return(get_slot(pool, MORE));
}

static void test_what_was_outgrown_goes_though_nothing_larger_is_pinned(void)
{
    for_each_pool(replace_and_never_pin);
}

static void replace_twice(fl_pool *pool)
{
    fl_slot_return(get_pinned(pool, BYTES));
    fl_slot_return(get_slot(pool, MORE));
    fl_slot *largest = get_slot(pool, 8 * MORE);
    CHECK_INT(count_pinned(), 1);
    CHECK_INT(fl_slot_pin(largest, 8 * MORE, NULL), FL_OK);
    CHECK_INT(count_pinned(), 2);
    fl_slot_return(largest);
}

static void test_what_was_outgrown_twice_stays_pinned(void) { for_each_pool(replace_twice); }

static void choose_large(fl_pool *pool)
{
    fl_slot *smaller = get_pinned(pool, BYTES), *larger = get_pinned(pool, MORE);
    for (int i = 0; i < 2; i++) {
        fl_slot_return(i == 0 ? larger : smaller);
        fl_slot_return(i == 0 ? smaller : larger);
        CHECK(get_pinned(pool, MORE) == larger);
        CHECK(get_pinned(pool, BYTES) == smaller);
    }
    CHECK_INT(pins, 2);
    fl_slot_return(smaller);
    fl_slot_return(larger);
}

static void test_a_pinned_slot_that_is_large_enough_comes_first(void)
{
    for_each_pool(choose_large);
}

/* ---- refused */

static void refuse_the_larger(fl_pool *pool)
{
    fl_slot *smaller = get_pinned(pool, BYTES), *none = smaller;
    fl_slot_return(smaller);
    CHECK_INT(fl_pool_get(pool, (int64_t)1 << 60, &none, NULL), FL_ENOMEM);
    CHECK(none == NULL);
    CHECK_INT(count_pinned(), 1);
    CHECK(get_pinned(pool, BYTES) == smaller);
    CHECK_INT(pins, 1);
    fl_slot_return(smaller);
}

static void test_a_pinned_slot_is_kept_where_no_larger_one_can_be_had(void)
{
    for_each_pool(refuse_the_larger);
}

/* One refusal: twice as much as before cannot be had, then. */
static void refuse_once(fl_pool *pool)
{
    fl_slot_return(get_pinned(pool, BYTES));
    fl_fault_arm(1);
    fl_slot *larger = get_pinned(pool, BYTES + BYTES / 2);
    fl_fault_arm(0);
    CHECK(fl_slot_bytes(larger) < 2 * BYTES + BYTES / 2);
    CHECK_INT(count_pinned(), 2);
    fl_slot_return(larger);
}

static void test_as_much_as_asked_for_where_no_more_can_be_had(void) { for_each_pool(refuse_once); }

static int grow(void *arg)
{
    fl_arena *arena = arg;
    fl_pool *pool;
    fl_err err = {0};
    int status = fl_pool_open(8, arena, &pool, &err);
    if (status != FL_OK) return status;
    fl_pool_pin(pool, (fl_pinner){pin, unpin, 3});
    for (int64_t bytes = BYTES; status == FL_OK && bytes <= 16 * BYTES; bytes *= 3) {
        fl_slot *slot;
        status = fl_pool_get(pool, bytes, &slot, &err);
        if (status != FL_OK) break;
        status = fl_slot_pin(slot, bytes, &err);
        CHECK(fl_slot_is_pinned(slot, bytes) == (status == FL_OK));
        fl_slot_return(slot);
    }
    fl_pool_close(pool);
    CHECK_INT(count_pinned(), 0);
    if (arena != NULL) CHECK_INT(held_bytes(arena), 0);
    return status;
}

static void test_every_refused_resource(void)
{
    fl_arena *arena = open_arena(64 * MIB);
    CHECK(refuse_each(grow, NULL) >= 8);
    CHECK(refuse_each(grow, arena) >= 8);
    fl_arena_close(arena);
}

int main(void)
{
    start_tests();
    RUN(test_what_was_outgrown_is_unpinned_with_the_pool);
    RUN(test_what_was_outgrown_goes_though_nothing_larger_is_pinned);
    RUN(test_what_was_outgrown_twice_stays_pinned);
    RUN(test_a_pinned_slot_that_is_large_enough_comes_first);
    RUN(test_a_pinned_slot_is_kept_where_no_larger_one_can_be_had);
    RUN(test_as_much_as_asked_for_where_no_more_can_be_had);
    RUN(test_every_refused_resource);
    return 0;
}
