/* Rows that are gathered on the device: the kernel, compiled as C++, against copies of single
 * rows; what a launch that fails leaves. */
#include "cuda_fixture.h"

#include "fl_cuda_gather.h"

enum { GUARD = 0x5A, MOST = 40 };

/* A column, and its expected batch. Both memories end at the end of the column. */
typedef struct table {
    fl_row_column column;
    char *memory, *made, *expected; /* owned */
    int64_t made_bytes;
} table;

static char *allocate(int64_t bytes)
{
    void *data;
    CHECK(posix_memalign(&data, 64, (size_t)fl_max(bytes, 1)) == 0);
    return data;
}

/* Rows of `bytes`, `gap` bytes apart, whose batch begins `offset` bytes from a multiple of 64. */
static table open_table(int64_t bytes, int64_t gap, int64_t offset, int64_t rows,
                        const int64_t *picked, int64_t count)
{
    uint64_t seed = (uint64_t)(bytes * 31 + gap * 7 + offset + 1);
    table t = {.made_bytes = offset + bytes * count};
    int64_t pitch = bytes + gap, all = rows > 0 ? (rows - 1) * pitch + bytes : 0;
    t.memory = allocate(all);
    t.made = allocate(t.made_bytes);
    t.expected = allocate(t.made_bytes);
    fill_random(&seed, t.memory, all);
    memset(t.made, GUARD, (size_t)t.made_bytes);
    memset(t.expected, GUARD, (size_t)t.made_bytes);
    for (int64_t i = 0; i < count; i++)
        memcpy(t.expected + offset + i * bytes, t.memory + picked[i] * pitch, (size_t)bytes);
    t.column = (fl_row_column){t.memory, t.made + offset, bytes, pitch};
    return t;
}

static void close_table(table *t, bool is_made)
{
    bool is_equal = memcmp(t->made, t->expected, (size_t)t->made_bytes) == 0;
    CHECK(is_equal == is_made || t->made_bytes == 0);
    free(t->memory);
    free(t->made);
    free(t->expected);
}

static int64_t *pick(int64_t rows, int64_t count)
{
    int64_t *picked = (int64_t *)allocate(count * (int64_t)sizeof *picked);
    uint64_t seed = (uint64_t)(rows + count);
    for (int64_t i = 0; i < count; i++) {
        uint32_t number;
        fill_random(&seed, (char *)&number, sizeof number);
        picked[i] = number % rows;
    }
    if (count > 1) picked[count - 1] = rows - 1, picked[0] = 0;
    return picked;
}

static void check_one(int64_t bytes, int64_t gap, int64_t offset, int64_t rows, int64_t count)
{
    int64_t *picked = pick(rows, count);
    table t = open_table(bytes, gap, offset, rows, picked, count);
    CHECK_INT(fl_cuda_gather(0, NULL, &t.column, 1, picked, count, NULL), FL_OK);
    fake_synchronize(NULL);
    close_table(&t, true);
    free(picked);
}

/* Units are 1 to 16 bytes: by the size of rows, by their distance, by the batch's address. */
static void test_rows_of_every_size_and_place(void)
{
    for (int64_t bytes = 1; bytes <= 48; bytes += bytes < 18 ? 1 : 6)
        for (int64_t gap = 0; gap <= 16; gap += gap < 2 ? 1 : 7)
            for (int64_t offset = 0; offset <= 16; offset += offset < 2 ? 1 : 7)
                check_one(bytes, gap, offset, 5, 7);
}

/* Blocks end in the middle of a row, and the last of a column is not full. */
static void test_batches_of_many_blocks(void)
{
    check_one(16 * 1024, 0, 0, 3, 4);
    check_one(16 * 1024 - 16, 0, 0, 3, 3);
    check_one(1, 0, 0, 9, 1024);
    check_one(1, 0, 0, 9, 1025);
    check_one(4, 0, 0, 100, 5000);
    check_one(1027, 1, 3, 4, 5);
    check_one(400, 0, 0, 300, 200);
}

/* Several kernels run if there are more columns than one kernel takes; columns without bytes need
 * no kernel. */
static void test_columns_of_one_batch(void)
{
    static const int64_t sizes[] = {4, 0, 3072, 1, 8, 24, 2, 0, 17};
    enum { ROWS = 11, COUNT = 6, SIZES = sizeof sizes / sizeof *sizes };
    int64_t *picked = pick(ROWS, COUNT);
    for (int32_t count = 1; count <= MOST; count += count < 31 ? 6 : 1) {
        table tables[MOST];
        fl_row_column columns[MOST];
        for (int32_t i = 0; i < count; i++) {
            tables[i] = open_table(sizes[i % SIZES], i % 3, i % 4, ROWS, picked, COUNT);
            columns[i] = tables[i].column;
        }
        int64_t before = fake_launches();
        CHECK_INT(fl_cuda_gather(0, NULL, columns, count, picked, COUNT, NULL), FL_OK);
        CHECK_INT(fake_launches() - before, count > 32 ? 2 : 1);
        fake_synchronize(NULL);
        for (int32_t i = 0; i < count; i++) close_table(&tables[i], true);
    }
    free(picked);
}

static void test_long_batches_take_several_kernels(void)
{
    int64_t picked[] = {3, 1, 0, 2, 3, 3, 1};
    for (int64_t most = 24; most <= 24 * 8; most += 12) {
        table t = open_table(24, 8, 8, 4, picked, 7);
        int64_t before = fake_launches(), step = most / 24;
        CHECK_INT(fl_cuda_queue_gather(NULL, &t.column, 1, picked, 7, most), cudaSuccess);
        CHECK_INT(fake_launches() - before, (7 + step - 1) / step);
        fake_synchronize(NULL);
        close_table(&t, true);
    }
    table t = open_table(24, 8, 8, 4, picked, 7);
    CHECK_INT(fl_cuda_queue_gather(NULL, &t.column, 1, picked, 7, 23), cudaErrorInvalidValue);
    close_table(&t, false);
}

static void test_nothing_is_launched_for_no_rows(void)
{
    int64_t before = fake_launches();
    check_one(12, 0, 0, 5, 0);
    check_one(0, 0, 0, 5, 3);
    CHECK_INT(fake_launches(), before);
}

/* The error names the call, and leaves nothing with the thread. */
static void test_a_launch_that_fails(void)
{
    fl_err err;
    int64_t picked[] = {2, 0};
    table t = open_table(12, 0, 0, 3, picked, 2);
    for (int32_t device = 0; device < 2; device++)
        for (int64_t n = 1;; n++) {
            fake_fail_at(n, cudaErrorLaunchFailure, false);
            int status = fl_cuda_gather(device, NULL, &t.column, 1, picked, 2, &err);
            bool has_failed = fake_calls() >= n;
            fake_fail_at(0, cudaSuccess, false);
            CHECK_INT(cudaGetLastError(), cudaSuccess);
            choose_device_0(); /* if the device could not be restored */
            if (status == FL_OK && !has_failed) break;
            if (status == FL_OK) continue; /* only putting the device back failed */
            CHECK_INT(status, FL_EDEVICE);
            CHECK(strstr(err.text, "cudaErrorLaunchFailure") != NULL);
            CHECK(n < 10);
        }
    fake_synchronize(NULL);
    close_table(&t, true);
}

int main(void)
{
    start_tests();
    choose_device_0();
    CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    RUN(test_rows_of_every_size_and_place);
    RUN(test_batches_of_many_blocks);
    RUN(test_columns_of_one_batch);
    RUN(test_long_batches_take_several_kernels);
    RUN(test_nothing_is_launched_for_no_rows);
    RUN(test_a_launch_that_fails);
    return 0;
}
