/* Tests of fl_table's limits: how batches are laid out and cut, and what is refused. */
#include "check.h"

#include "fl_cpu_rows.h"
#include "fl_table.h"

static fl_column bare_column(int item, int64_t rows, int64_t row_items)
{
    return (fl_column){.view = {.dtype = {1, 8, (uint16_t)item},
                                .ndim = 2,
                                .shape = {rows, row_items},
                                .stride = {item * row_items, item}}};
}

static void test_fields_are_aligned(void)
{
    fl_column columns[] = {bare_column(1, 9, 3), bare_column(1, 9, 0), bare_column(8, 9, 8),
                           bare_column(1, 9, 1)};
    int64_t bytes = -1;
    fl_table *table;
    CHECK_INT(fl_table_open(columns, 4, &fl_cpu_row_ops, &table, NULL), FL_OK);
    CHECK_INT(fl_table_field_bytes(table, 0, 22), 128); /* 66 and padding */
    CHECK_INT(fl_table_field_bytes(table, 1, 22), 0);
    CHECK_INT(fl_table_field_bytes(table, 2, 22), 22 * 64);
    CHECK_INT(fl_table_field_bytes(table, 3, 22), 64);
    CHECK_INT(fl_table_bytes(table, 22, &bytes, NULL), FL_OK);
    CHECK_INT(bytes, 128 + 22 * 64 + 64);
    CHECK_INT(fl_table_bytes(table, 0, &bytes, NULL), FL_OK);
    CHECK_INT(bytes, 0);
    CHECK_INT(fl_table_field_bytes(table, 3, 0), 0);
    fl_table_close(table);
}

static void test_a_batch_that_overflows_is_refused(void)
{
    fl_column columns[] = {bare_column(8, 9, 2), bare_column(1, 9, 1)};
    fl_table *table;
    CHECK_INT(fl_table_open(columns, 2, &fl_cpu_row_ops, &table, NULL), FL_OK);
    const int64_t too_many[] = {INT64_MAX, INT64_MAX / 16, INT64_MAX / 16 - 2, INT64_MAX / 17 + 1};
    for (int i = 0; i < 4; i++) {
        int64_t bytes = -1;
        fl_err err = {0};
        CHECK_INT(fl_table_bytes(table, too_many[i], &bytes, &err), FL_EINVAL);
        CHECK(err.code == FL_EINVAL && err.text[0] != '\0' && bytes == -1);
        CHECK_INT(fl_table_bytes(table, too_many[i], &bytes, NULL), FL_EINVAL);
        CHECK(fl_table_parts(table, too_many[i]) >= 1);
    }
    int64_t most = INT64_MAX / 17 - 64, bytes;
    CHECK_INT(fl_table_bytes(table, most, &bytes, NULL), FL_OK);
    CHECK(bytes >= most * 17 && bytes % 64 == 0);
    fl_table_close(table);
    columns[0].view.shape[1] = INT64_MAX / 8 + 1; /* one row overflows */
    CHECK_INT(fl_table_open(columns, 2, &fl_cpu_row_ops, &table, NULL), FL_EINVAL);
    CHECK(table == NULL);
}

static void test_parts_grow_with_the_batch(void)
{
    fl_column column = bare_column(4, 1000, 250000); /* 1 MB rows */
    fl_table *table;
    CHECK_INT(fl_table_open(&column, 1, &fl_cpu_row_ops, &table, NULL), FL_OK);
    CHECK_INT(fl_table_parts(table, 0), 1);
    CHECK_INT(fl_table_parts(table, 1), 1);
    CHECK_INT(fl_table_parts(table, 2), 2);
    for (int64_t rows = 1, before = 1; rows < 1000; rows++) {
        int32_t parts = fl_table_parts(table, rows);
        CHECK(parts >= before && parts <= rows && parts <= 1024);
        before = parts;
    }
    fl_table_close(table);
    column = bare_column(4, 1000, 5);
    CHECK_INT(fl_table_open(&column, 1, &fl_cpu_row_ops, &table, NULL), FL_OK);
    CHECK_INT(fl_table_parts(table, 256), 1); /* 5 KB: no thread wakes up for that */
    fl_table_close(table);
}

static void test_columns_that_do_not_fit_are_refused(void)
{
    fl_column columns[] = {bare_column(4, 9, 2), bare_column(4, 9, 2), bare_column(4, 8, 2)};
    fl_table *table = (fl_table *)columns;
    fl_err err = {0};
    CHECK_INT(fl_table_open(columns, 3, &fl_cpu_row_ops, &table, &err), FL_EINVAL);
    CHECK(table == NULL && err.code == FL_EINVAL);
    CHECK(strstr(err.text, "2") && strstr(err.text, "8") && strstr(err.text, "9"));
    CHECK_INT(fl_table_open(columns, 0, &fl_cpu_row_ops, &table, &err), FL_EINVAL);
    columns[1].view.ndim = 0;
    CHECK_INT(fl_table_open(columns, 2, &fl_cpu_row_ops, &table, &err), FL_EINVAL);
    CHECK(strstr(err.text, "1") != NULL);
    CHECK_INT(fl_table_open(columns, 2, &fl_cpu_row_ops, &table, NULL), FL_EINVAL);
}

static void test_empty_table_and_empty_batch(void)
{
    for (int is_volatile = 0; is_volatile < 2; is_volatile++) {
        fl_column columns[] = {bare_column(4, 0, 3), bare_column(4, 0, 3)};
        columns[1].view.stride[0] = 100; /* no memory at all under either */
        columns[0].is_volatile = is_volatile;
        char block[64];
        fl_table *table;
        fl_rows list = {0}, range = {.is_range = true};
        CHECK_INT(fl_table_open(columns, 2, &fl_cpu_row_ops, &table, NULL), FL_OK);
        CHECK_INT(fl_table_length(table), 0);
        CHECK(fl_table_is_volatile(table) == is_volatile);
        CHECK_INT(fl_table_gather(table, &list, 0, 0, 1, block, NULL), FL_OK);
        CHECK_INT(fl_table_gather(table, &range, 0, 0, 1, block, NULL), FL_OK);
        fl_table_close(table);
    }
    fl_table_close(NULL);
}

int main(void)
{
    start_tests();
    RUN(test_fields_are_aligned);
    RUN(test_a_batch_that_overflows_is_refused);
    RUN(test_parts_grow_with_the_batch);
    RUN(test_columns_that_do_not_fit_are_refused);
    RUN(test_empty_table_and_empty_batch);
    return 0;
}
