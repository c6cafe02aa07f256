/* pool_fixture.h: pools and slots as the tests of fl_slot and fl_ring use them. */
#ifndef POOL_FIXTURE_H
#define POOL_FIXTURE_H

#include "check.h"
#include "fl_pool.h"

static inline fl_pool *open_pool(int64_t reserve)
{
    fl_pool *pool;
    CHECK_INT(fl_pool_open(sizeof(int64_t), NULL, &pool, NULL), FL_OK);
    fl_pool_reserve(pool, reserve);
    return pool;
}

static inline fl_slot *get_slot(fl_pool *pool, int64_t bytes)
{
    fl_slot *slot;
    CHECK_INT(fl_pool_get(pool, bytes, &slot, NULL), FL_OK);
    CHECK(slot != NULL && is_aligned(fl_slot_data(slot), 64));
    return slot;
}

static inline void
check_counts(const fl_pool *pool, int64_t lent, int64_t made, int64_t replaced, int64_t empty)
{
    fl_pool_stats stats;
    fl_pool_count(pool, &stats);
    CHECK_INT(stats.lent, lent);
    CHECK_INT(stats.made, made);
    CHECK_INT(stats.replaced, replaced);
    CHECK_INT(stats.empty, empty);
}

#endif
