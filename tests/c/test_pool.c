/* Tests of fl_slot: reuse, lending, what is kept, sizes, counts. */
#include "check.h"

#include "fl_pages.h"
#include "pool_fixture.h"

static void test_a_slot_comes_back_and_is_used_again(void)
{
    fl_pool *pool = open_pool(1);
    fl_slot *slot = get_slot(pool, 100);
    const char *data = fl_slot_data(slot);
    check_counts(pool, 0, 1, 0, 0);
    fl_slot_lend(slot, 1);
    check_counts(pool, 1, 1, 0, 0);
    fl_slot_give(slot);
    check_counts(pool, 0, 1, 0, 1);
    slot = get_slot(pool, 50);
    CHECK(fl_slot_data(slot) == data);
    check_counts(pool, 0, 1, 0, 0);
    fl_slot_return(slot);
    check_counts(pool, 0, 1, 0, 1);
    fl_slot_return(NULL);
    fl_pool_close(pool);
    fl_pool_close(NULL);
}

static void test_header_is_zeroed_once_and_kept(void)
{
    fl_pool *pool;
    CHECK_INT(fl_pool_open(1000, NULL, &pool, NULL), FL_OK);
    fl_pool_reserve(pool, 1);
    fl_slot *slot = get_slot(pool, 10);
    char *header = fl_slot_header(slot);
    CHECK(is_aligned(header, 64));
    for (int i = 0; i < 1000; i++) CHECK(header[i] == 0);
    memset(header, 5, 1000);
    fl_slot_return(slot);
    slot = get_slot(pool, 10);
    CHECK(fl_slot_header(slot) == header);
    for (int i = 0; i < 1000; i++) CHECK(header[i] == 5);
    fl_slot_return(slot);
    fl_pool_close(pool);

    CHECK_INT(fl_pool_open(0, NULL, &pool, NULL), FL_OK); /* a pool without headers */
    fl_slot_return(get_slot(pool, 0));
    fl_pool_close(pool);
}

static void test_lent_means_lent(void)
{
    enum { COUNT = 12 };
    fl_pool *pool = open_pool(3);
    fl_slot *lent[COUNT];
    for (int i = 0; i < COUNT; i++) {
        lent[i] = get_slot(pool, 5000);
        memset(fl_slot_data(lent[i]), i, 5000);
        fl_slot_lend(lent[i], 1);
        fl_slot *passing = get_slot(pool, 5000); /* used and returned beside the lent ones */
        memset(fl_slot_data(passing), 0xEE, 5000);
        fl_slot_return(passing);
    }
    for (int i = 0; i < COUNT; i++)
        for (int b = 0; b < 5000; b++) CHECK(fl_slot_data(lent[i])[b] == i);
    for (int i = 0; i < COUNT; i++) fl_slot_give(lent[i]);
    check_counts(pool, 0, COUNT + 1, COUNT + 1 - 3, 3);
    fl_pool_close(pool);
}

static void test_only_the_last_share_gives_the_slot_back(void)
{
    fl_pool *pool = open_pool(1);
    fl_slot *slot = get_slot(pool, 64);
    fl_slot_lend(slot, 5);
    for (int share = 0; share < 5; share++) {
        check_counts(pool, 1, 1, 0, 0);
        fl_slot_give(slot);
    }
    check_counts(pool, 0, 1, 0, 1);
    fl_pool_close(pool);
}

static void test_reserve_bounds_what_is_kept(void)
{
    fl_pool *pool = open_pool(2);
    fl_slot *slots[6];
    for (int i = 0; i < 6; i++) slots[i] = get_slot(pool, 64);
    check_counts(pool, 0, 6, 4, 0);
    for (int i = 0; i < 6; i++) fl_slot_return(slots[i]);
    check_counts(pool, 0, 6, 4, 2);
    fl_pool_reserve(pool, 4);
    fl_pool_reserve(pool, 1); /* at least: never less than before */
    for (int i = 0; i < 6; i++) slots[i] = get_slot(pool, 64);
    for (int i = 0; i < 6; i++) fl_slot_lend(slots[i], 1);
    for (int i = 0; i < 6; i++) fl_slot_give(slots[i]);
    check_counts(pool, 0, 10, 4 + 2, 4); /* two more had no place in the reserve of 4 */
    fl_pool_close(pool);

    pool = open_pool(0); /* nothing is kept */
    fl_slot_return(get_slot(pool, 64));
    check_counts(pool, 0, 1, 1, 0);
    fl_pool_close(pool);
}

static void test_trim_gives_every_empty_slot_back(void)
{
    fl_pool *pool = open_pool(4);
    fl_slot *slots[4];
    for (int i = 0; i < 4; i++) slots[i] = get_slot(pool, 64);
    fl_slot_lend(slots[3], 1);
    for (int i = 0; i < 3; i++) fl_slot_return(slots[i]);
    slots[0] = get_slot(pool, 64); /* two of the three now lie in the pool's own list */
    check_counts(pool, 1, 4, 0, 2);
    fl_pool_trim(pool);
    check_counts(pool, 1, 4, 0, 0);
    fl_slot_return(slots[0]);
    fl_slot_give(slots[3]);
    check_counts(pool, 0, 4, 0, 2);
    fl_pool_trim(pool);
    fl_pool_trim(pool);
    check_counts(pool, 0, 4, 0, 0);
    fl_slot_return(get_slot(pool, 64));
    check_counts(pool, 0, 5, 0, 1); /* made again, but not because slots were lent */
    fl_pool_close(pool);
}

static void test_sizes_may_grow_and_shrink(void)
{
    const int64_t sizes[] = {0,       1, 100,  5000,    64,  FL_PAGES_MAPPED_FROM,
                             3 << 20, 7, 4096, 2 << 20, 100, 5 << 20};
    fl_pool *pool = open_pool(2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_slot *a = get_slot(pool, sizes[i]), *b = get_slot(pool, sizes[i] / 2);
        memset(fl_slot_data(a), 1, (size_t)sizes[i]);
        memset(fl_slot_data(b), 2, (size_t)(sizes[i] / 2));
        if (sizes[i] > 0) CHECK(fl_slot_data(a)[sizes[i] - 1] == 1);
        fl_slot_return(b);
        fl_slot_return(a);
    }
    fl_pool_close(pool);
}

static void test_used_is_what_was_handed_out_before(void)
{
    const int64_t asked[] = {100, 90, 120, 110, 5000, 10};
    fl_pool *pool = open_pool(1);
    for (int i = 0; i < 6; i++) {
        fl_slot *slot = get_slot(pool, asked[i]);
        int64_t *most = fl_slot_header(slot); /* 0 in a fresh slot */
        CHECK_INT(fl_slot_used(slot), *most);
        if (i % 2 == 1) CHECK(*most > asked[i]); /* these fit into the slot before */
        *most = fl_max(*most, asked[i]);
        fl_slot_return(slot);
    }
    fl_pool_close(pool);
}

static void test_an_impossible_size_does_no_harm(void)
{
    const int64_t impossible[] = {(int64_t)1 << 60, INT64_MAX - 64, INT64_MAX};
    fl_pool *pool = open_pool(1);
    for (int i = 0; i < 3; i++) {
        fl_slot *slot = (fl_slot *)&pool;
        fl_err err = {0};
        CHECK(fl_pool_get(pool, impossible[i], &slot, &err) < 0);
        CHECK(slot == NULL && err.code < 0 && err.text[0] != '\0');
        fl_slot *one = get_slot(pool, 100), *two = get_slot(pool, 100);
        fl_slot_return(one);
        fl_slot_return(two);
    }
    fl_pool_close(pool);
}

/* ---- refused resources */

static int open_and_lend(void *arg)
{
    const int64_t *bytes = arg;
    fl_pool *pool = (fl_pool *)arg;
    fl_slot *slot = (fl_slot *)arg, *other;
    fl_err err = {0};
    int status = fl_pool_open(8, NULL, &pool, &err);
    if (status != FL_OK) {
        CHECK(pool == NULL && err.code == status);
        return status;
    }
    status = fl_pool_get(pool, *bytes, &slot, &err);
    if (status != FL_OK) {
        CHECK(slot == NULL && err.code == status);
        check_counts(pool, 0, 0, 0, 0);
        CHECK_INT(fl_pool_get(pool, *bytes, &slot, NULL), FL_OK); /* the next one is there */
    }
    fl_slot_lend(slot, 1);
    if (status == FL_OK) status = fl_pool_get(pool, *bytes, &other, &err);
    if (status == FL_OK) fl_slot_return(other);
    fl_pool_close(pool);
    fl_slot_give(slot);
    return status;
}

static void test_every_refused_resource(void)
{
    int64_t small = 100, large = 3 << 20;
    CHECK(refuse_each(open_and_lend, &small) >= 6);
    CHECK(refuse_each(open_and_lend, &large) >= 6);
}

int main(void)
{
    start_tests();
    RUN(test_a_slot_comes_back_and_is_used_again);
    RUN(test_header_is_zeroed_once_and_kept);
    RUN(test_lent_means_lent);
    RUN(test_only_the_last_share_gives_the_slot_back);
    RUN(test_reserve_bounds_what_is_kept);
    RUN(test_trim_gives_every_empty_slot_back);
    RUN(test_sizes_may_grow_and_shrink);
    RUN(test_used_is_what_was_handed_out_before);
    RUN(test_an_impossible_size_does_no_harm);
    RUN(test_every_refused_resource);
    return 0;
}
