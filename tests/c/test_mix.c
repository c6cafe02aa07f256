/* Tests of fl_mix: each row mixed with the one before, whatever the parts and their order. */
#include "check.h"
#include "fl_cpu_mix.h"
#include "fl_thread_pool.h"

static void fill(float *values, int64_t count)
{
    uint64_t state = 7;
    for (int64_t i = 0; i < count; i++) values[i] = (float)(next_random(&state) % 1000) / 7.0F;
}

static void check_mixed(int64_t count, int64_t columns, float share, fl_thread_pool *pool)
{
    int64_t all = count * columns;
    float *before = malloc((size_t)(all + 1) * sizeof *before);
    float *rows = malloc((size_t)(all + 1) * sizeof *rows);
    fill(before, all + 1);
    memcpy(rows, before, (size_t)(all + 1) * sizeof *rows);
    fl_mix mix = {
        .rows = rows, .count = count, .columns = columns, .share = share, .rest = 1 - share};
    fl_thread_pool_run(pool, fl_mix_do, &mix, fl_mix_parts(&mix), 1);
    for (int64_t i = 0; i < all; i++) {
        float a = before[i < columns ? i + all - columns : i - columns] * mix.rest;
        float b = before[i] * share;
        float sum = a + b;
        CHECK(rows[i] == sum);
    }
    CHECK(rows[all] == before[all]);
    free(before);
    free(rows);
}

static void test_rows_are_mixed_with_those_before(void)
{
    static const int64_t columns[] = {0, 1, 3, 2047, 2048, 2049, 10000};
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        for (int64_t count = 1; count < 6; count++) check_mixed(count, columns[c], 0.3F, NULL);
}

static void test_threads_share_the_columns(void)
{
    fl_err err;
    fl_thread_pool *pool;
    CHECK(fl_thread_pool_open(4, NULL, &pool, &err) == FL_OK);
    for (int64_t count = 1; count < 40; count += 6) check_mixed(count, 30001, 0.75F, pool);
    fl_thread_pool_close(pool);
}

int main(void)
{
    start_tests();
    RUN(test_rows_are_mixed_with_those_before);
    RUN(test_threads_share_the_columns);
}
