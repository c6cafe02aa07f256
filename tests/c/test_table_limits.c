/* Tests of fl_table's limits: how batches are laid out and cut, and what is refused. */
#include "table_fixture.h"

static column_spec bare_column(int item, int64_t rows, int64_t row_items)
{
    return (column_spec){.view = {.dtype = {1, 8, (uint16_t)item},
                                  .ndim = 2,
                                  .shape = {rows, row_items},
                                  .stride = {item * row_items, item}}};
}

static void test_fields_are_aligned(void)
{
    column_spec columns[] = {bare_column(1, 9, 3), bare_column(1, 9, 0), bare_column(8, 9, 8),
                             bare_column(1, 9, 1)};
    fl_table *table;
    CHECK_INT(open_specs(columns, 4, &table, NULL), FL_OK);
    fl_rows rows = {.is_range = true, .count = 22};
    fl_layout layout = layout_of(table, &rows);
    const int64_t offsets[] = {0, 128, 128, 128 + 22 * 64}; /* 66 bytes and padding */
    for (int f = 0; f < 4; f++) CHECK_INT(layout.outputs[f].offset, offsets[f]);
    CHECK_INT(layout.bytes, 128 + 22 * 64 + 64);
    rows.count = 0;
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
    CHECK_INT(layout.bytes, 0);
    for (int f = 0; f < 4; f++) CHECK_INT(layout.outputs[f].offset, 0);
    fl_layout_close(&layout);
    fl_table_close(table);
}

static void test_a_batch_that_overflows_is_refused(void)
{
    column_spec columns[] = {bare_column(8, 9, 2), bare_column(1, 9, 1)};
    fl_table *table;
    CHECK_INT(open_specs(columns, 2, &table, NULL), FL_OK);
    const int64_t too_many[] = {INT64_MAX, INT64_MAX / 16, INT64_MAX / 16 - 2, INT64_MAX / 17 + 1};
    fl_layout layout = {0};
    for (int i = 0; i < 4; i++) {
        fl_rows rows = {.is_range = true, .count = too_many[i]};
        fl_err err = {0};
        CHECK_INT(fl_table_layout(table, &rows, 0, &layout, &err), FL_EINVAL);
        CHECK(err.code == FL_EINVAL && err.text[0] != '\0');
        CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_EINVAL);
    }
    fl_rows rows = {.is_range = true, .count = INT64_MAX / 17 - 64};
    CHECK_INT(fl_table_layout(table, &rows, 0, &layout, NULL), FL_OK);
    CHECK(layout.bytes >= rows.count * 17 && layout.bytes % 64 == 0);
    fl_layout_close(&layout);
    fl_table_close(table);
    columns[0].view.shape[1] = INT64_MAX / 8 + 1; /* one row overflows */
    CHECK_INT(open_specs(columns, 2, &table, NULL), FL_EINVAL);
    CHECK(table == NULL);
}

static int32_t count_parts(const fl_table *table, int64_t count)
{
    fl_rows rows = {.is_range = true, .count = count};
    fl_layout layout = layout_of(table, &rows);
    int32_t parts = layout.parts;
    fl_layout_close(&layout);
    return parts;
}

static void test_parts_grow_with_the_batch(void)
{
    column_spec column = bare_column(4, 1000, 250000); /* 1 MB rows */
    fl_table *table;
    CHECK_INT(open_specs(&column, 1, &table, NULL), FL_OK);
    CHECK_INT(count_parts(table, 0), 1);
    CHECK_INT(count_parts(table, 1), 1);
    CHECK_INT(count_parts(table, 2), 2);
    for (int64_t rows = 1, before = 1; rows < 1000; rows++) {
        int32_t parts = count_parts(table, rows);
        CHECK(parts >= before && parts <= rows && parts <= 1024);
        before = parts;
    }
    fl_table_close(table);
    column = bare_column(4, 1000, 5);
    CHECK_INT(open_specs(&column, 1, &table, NULL), FL_OK);
    CHECK_INT(count_parts(table, 256), 1); /* 5 KB: too little to wake a thread */
    fl_table_close(table);
}

static void test_columns_that_do_not_fit_are_refused(void)
{
    column_spec columns[] = {bare_column(4, 9, 2), bare_column(4, 9, 2), bare_column(4, 8, 2)};
    fl_table *table = (fl_table *)columns;
    fl_err err = {0};
    CHECK_INT(open_specs(columns, 3, &table, &err), FL_EINVAL);
    CHECK(table == NULL && err.code == FL_EINVAL);
    CHECK(strstr(err.text, "2") && strstr(err.text, "8") && strstr(err.text, "9"));
    CHECK_INT(open_specs(columns, 0, &table, &err), FL_EINVAL);
    columns[1].view.ndim = 0;
    CHECK_INT(open_specs(columns, 2, &table, &err), FL_EINVAL);
    CHECK(strcmp(err.text, "field 1 has no dimension to index") == 0);
    CHECK_INT(open_specs(columns, 2, &table, NULL), FL_EINVAL);
}

static void test_empty_table_and_empty_batch(void)
{
    for (int is_volatile = 0; is_volatile < 2; is_volatile++) {
        column_spec columns[] = {bare_column(4, 0, 3), bare_column(4, 0, 3)};
        columns[1].view.stride[0] = 100; /* neither view has any memory */
        columns[0].is_volatile = is_volatile;
        char block[64];
        fl_table *table;
        fl_rows list = {0}, range = {.is_range = true};
        CHECK_INT(open_specs(columns, 2, &table, NULL), FL_OK);
        CHECK_INT(fl_table_length(table), 0);
        CHECK(fl_table_is_volatile(table) == is_volatile);
        CHECK_INT(gather_part(table, &list, 0, 0, 1, block, NULL), FL_OK);
        CHECK_INT(gather_part(table, &range, 0, 0, 1, block, NULL), FL_OK);
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
