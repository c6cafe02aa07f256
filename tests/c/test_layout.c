/* Tests of fl_layout, and of a table whose columns are of a kind that the tests make: several
 * outputs, one without a dimension for samples, and notes from layout for gather. */
#include "table_fixture.h"

/* ---- positions of outputs */

static void test_outputs_are_contiguous_tensors(void)
{
    fl_output output = {.is_whole = true, .is_cast = true};
    const int64_t shape[] = {3, 0, 5}, large[] = {1 << 20, INT64_MAX >> 20, 2};
    fl_err err = {0};
    CHECK_INT(fl_output_set(&output, (fl_dtype){0, 64, 1}, 1, shape, NULL), FL_OK);
    CHECK(!output.is_whole && !output.is_cast && output.is_contiguous);
    CHECK(output.bytes == 24 && output.ndim == 1 && output.shape[0] == 3 && output.stride[0] == 1);
    CHECK_INT(fl_output_set(&output, (fl_dtype){0, 16, 1}, 3, shape, NULL), FL_OK);
    CHECK(output.bytes == 0 && output.stride[0] == 5 && output.stride[1] == 5);
    CHECK_INT(fl_output_set(&output, (fl_dtype){0, 64, 1}, 3, large, &err), FL_EINVAL);
    CHECK(strcmp(err.text, "a batch of these rows is larger than 2^63 bytes") == 0);
    CHECK_INT(fl_output_set(&output, (fl_dtype){0, 64, 1}, 3, large, NULL), FL_EINVAL);
}

static void set_bytes(fl_layout *layout, int32_t i, int64_t bytes)
{
    CHECK_INT(fl_output_set(&layout->outputs[i], (fl_dtype){1, 8, 1}, 1, &bytes, NULL), FL_OK);
}

static void test_sums_that_do_not_fit_are_refused(void)
{
    fl_layout layout = {0};
    CHECK_INT(fl_layout_reserve(&layout, 1, 2, NULL), FL_OK);
    set_bytes(&layout, 0, 1);
    set_bytes(&layout, 1, INT64_MAX - 127);
    CHECK_INT(fl_layout_set_offsets(&layout, NULL), FL_OK);
    CHECK_INT(layout.bytes, INT64_MAX - 63);
    CHECK_INT(layout.outputs[1].offset, 64);
    const int64_t too_many[] = {INT64_MAX - 126, INT64_MAX - 62, INT64_MAX};
    for (int i = 0; i < 3; i++) {
        fl_err err = {0};
        set_bytes(&layout, 1, too_many[i]);
        CHECK_INT(fl_layout_set_offsets(&layout, &err), FL_EINVAL);
        CHECK_INT(err.code, FL_EINVAL);
    }
    fl_layout_close(&layout);
    CHECK(layout.outputs == NULL && layout.count == 0);
    fl_layout_close(&layout);
}

/* Two outputs are cast of the bytes of the first, the second from its byte 6 on. */
static void test_an_output_may_be_cast_of_another(void)
{
    fl_layout layout = {0};
    CHECK_INT(fl_layout_reserve(&layout, 1, 4, NULL), FL_OK);
    for (int32_t i = 0; i < 4; i++) set_bytes(&layout, i, i == 2 ? 0 : 100);
    for (int32_t i = 1; i < 3; i++) {
        layout.outputs[i].is_cast = true;
        layout.outputs[i].cast_of = i - 1;
        layout.outputs[i].cast = (fl_transfer_cast){.from = 6 * (i - 1), .count = 20, .bytes = 8};
    }
    CHECK_INT(fl_layout_set_offsets(&layout, NULL), FL_OK);
    const fl_output *outputs = layout.outputs;
    CHECK(outputs[1].offset == 128 && outputs[3].offset == 256);
    CHECK(outputs[1].cast.from == 128 && outputs[2].cast.from == 134);
    CHECK(fl_output_at(&outputs[1]) == 384 && fl_output_at(&outputs[2]) == 384 + 192);
    CHECK(layout.bytes == 384 && layout.delivered_bytes == 384 + 2 * 192);
    fl_layout_close(&layout);
}

static int reserve(void *arg)
{
    fl_layout *layout = arg;
    fl_layout_close(layout);
    FL_TRY(fl_layout_reserve(layout, 3, 5, NULL));
    FL_TRY(fl_notes_reserve(&layout->notes[2], 100, NULL));
    CHECK(layout->count == 5 && layout->columns >= 3 && layout->notes[2].capacity >= 100);
    return FL_OK;
}

/* Slices belong to the output with most bytes a sample; an output without samples has no slices. */
static void test_large_batches_have_slices(void)
{
    enum { ROWS = 100 };
    fl_transfer_slices slices;
    fl_layout layout = {.parts = 50};
    CHECK_INT(fl_layout_reserve(&layout, 1, 4, NULL), FL_OK);
    set_bytes(&layout, 0, 8 * ROWS);
    set_bytes(&layout, 1, INT64_C(3) << 24);
    set_bytes(&layout, 2, INT64_C(400000) * ROWS);
    set_bytes(&layout, 3, INT64_C(200000) * ROWS);
    layout.outputs[1].is_whole = true;
    CHECK_INT(fl_layout_set_offsets(&layout, NULL), FL_OK);
    fl_layout_slice(&layout, ROWS, &slices);
    CHECK(slices.count == 9 && slices.samples == ROWS && slices.sample_bytes == 400000);
    CHECK_INT(slices.from, layout.outputs[2].offset);
    layout.parts = 4;
    fl_layout_slice(&layout, ROWS, &slices);
    CHECK_INT(slices.count, 4);
    layout.parts = 50;
    layout.outputs[2].is_cast = true; /* maps follow these images */
    layout.outputs[2].cast = (fl_transfer_cast){.kind = FL_CAST_IMAGES, .image_bytes = 300000};
    fl_layout_slice(&layout, ROWS, &slices);
    CHECK(slices.count == 7 && slices.sample_bytes == 300000);
    layout.parts = 500;
    layout.outputs[2].cast.image_bytes = 1 << 20;
    fl_layout_slice(&layout, ROWS, &slices);
    CHECK_INT(slices.count, FL_MOST_SLICES);
    fl_layout_slice(&layout, 0, &slices);
    CHECK_INT(slices.count, 0);
    fl_layout_close(&layout);
}

static void test_memory_is_kept_for_the_next_batch(void)
{
    fl_layout layout = {0};
    CHECK_INT(refuse_each(reserve, &layout), 3);
    CHECK_INT(reserve(&layout), FL_OK);
    const fl_output *outputs = layout.outputs;
    layout.notes[2].values[99] = 7;
    fl_fault_arm(1);
    CHECK_INT(fl_layout_reserve(&layout, 2, 4, NULL), FL_OK);
    CHECK_INT(fl_notes_reserve(&layout.notes[2], 100, NULL), FL_OK);
    CHECK_INT(fl_fault_asked(), 0);
    fl_fault_arm(0);
    CHECK(layout.count == 4 && layout.outputs == outputs && layout.notes[2].values[99] == 7);
    fl_layout_close(&layout);
}

/* ---- a kind of column: row r has r + 1 bytes of value r. The first output has the bytes of all
 * rows one after another, the second output the sums, which the column notes at layout. */

static int layout_packed(const fl_column *column, fl_column_batch *batch, fl_err *err)
{
    const fl_rows *rows = batch->rows;
    int64_t total = 0, sums = rows->count + 1;
    CHECK_INT(column->outputs, 2);
    FL_TRY(fl_notes_reserve(batch->notes, sums, err));
    for (int64_t i = 0; i < rows->count; i++) {
        if (fl_row_at(rows, i) == 13)
            return fl_column_name_row(err, fl_fail(err, FL_EINVAL, "is unlucky"), batch, 13);
        batch->notes->values[i] = total;
        total += fl_row_at(rows, i) + 1;
    }
    batch->notes->values[rows->count] = total;
    batch->work_bytes = total;
    FL_TRY(fl_output_set(&batch->outputs[0], (fl_dtype){1, 8, 1}, 1, &total, err));
    FL_TRY(fl_output_set(&batch->outputs[1], (fl_dtype){0, 64, 1}, 1, &sums, err));
    batch->outputs[0].is_whole = batch->outputs[1].is_whole = true;
    return FL_OK;
}

static int gather_packed(const fl_column *column, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *buffer, fl_err *err)
{
    const int64_t *sums = batch->notes->values;
    int64_t *out = (int64_t *)(void *)(buffer + batch->outputs[1].offset);
    CHECK(from < to && column->length == 20);
    if (from == 0) out[0] = 0;
    for (int64_t i = from; i < to; i++) {
        int64_t row = fl_row_at(batch->rows, i);
        if (row == 17) return fl_column_fail_row(err, batch, row);
        memset(buffer + batch->outputs[0].offset + sums[i], (int)row, (size_t)(row + 1));
        out[i + 1] = sums[i + 1];
    }
    return FL_OK;
}

static int64_t
find_packed_beyond(const fl_column *column, int32_t part, const fl_rows *rows, const char *limit)
{
    (void)part;
    return column->length == 20 && limit == NULL ? fl_row_at(rows, 0) : -1;
}

static void close_packed(fl_column *column) { fl_free(column); }

static const fl_column_ops packed_ops = {.layout = layout_packed,
                                         .gather = gather_packed,
                                         .row_beyond = find_packed_beyond,
                                         .close = close_packed};

/* A packed column between two of labels. */
static fl_table *open_packed(int64_t *labels)
{
    column_spec spec = {
        .view = {
            .data = (char *)labels, .dtype = {0, 64, 1}, .ndim = 1, .shape = {20}, .stride = {8}}};
    fl_column *columns[3];
    fl_table *table;
    for (int64_t i = 0; i < 20; i++) labels[i] = 100 + i;
    CHECK_INT(open_column(&spec, &columns[0], NULL), FL_OK);
    CHECK_INT(open_column(&spec, &columns[2], NULL), FL_OK);
    columns[1] = fl_alloc(sizeof *columns[1]);
    *columns[1] = (fl_column){.ops = &packed_ops, .length = 20, .outputs = 2};
    CHECK_INT(fl_table_open(columns, 3, &table, NULL), FL_OK);
    CHECK_INT(fl_table_outputs(table), 4);
    return table;
}

static void
check_packed(const fl_table *table, const fl_rows *rows, fl_layout *layout, int32_t parts)
{
    CHECK_INT(fl_table_layout(table, rows, 0, layout, NULL), FL_OK);
    char *block = malloc((size_t)layout->bytes + 1);
    CHECK(block != NULL);
    for (int32_t part = parts - 1; part >= 0; part--)
        CHECK_INT(fl_table_gather(table, rows, 0, layout, part, parts, block, NULL), FL_OK);
    const fl_output *outputs = layout->outputs;
    CHECK(outputs[1].is_whole && outputs[2].is_whole && !outputs[0].is_whole);
    const int64_t *sums = (int64_t *)(void *)(block + outputs[2].offset);
    const char *values = block + outputs[1].offset;
    int64_t total = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t row = fl_row_at(rows, i);
        CHECK_INT(sums[i], total);
        for (int64_t k = 0; k <= row; k++) CHECK_INT(values[total++], row);
        for (int f = 0; f < 4; f += 3)
            CHECK_INT(((int64_t *)(void *)(block + outputs[f].offset))[i], 100 + row);
    }
    CHECK_INT(sums[rows->count], total);
    CHECK_INT(outputs[1].shape[0], total);
    free(block);
}

static void test_columns_may_give_several_tensors(void)
{
    int64_t labels[20];
    fl_table *table = open_packed(labels);
    fl_layout layout = {0};
    uint64_t seed = 3;
    for (int round = 0; round < 50; round++) {
        fl_rows list = {0};
        for (int64_t i = 1 + random_below(&seed, 30); i > 0; i--) {
            int64_t row = random_below(&seed, 13);
            CHECK_INT(fl_rows_add(&list, &row, 1, NULL), FL_OK);
        }
        check_packed(table, &list, &layout, 1 + round % 5);
        fl_rows_close(&list);
    }
    CHECK_INT(fl_table_row_beyond(table, 1, 0, &(fl_rows){.is_range = true, .first = 4}, NULL), 4);
    fl_layout_close(&layout);
    fl_table_close(table);
}

static void test_errors_name_column_and_row(void)
{
    int64_t labels[20];
    fl_table *table = open_packed(labels);
    fl_rows unlucky = {.is_range = true, .first = 12, .count = 3},
            lost = {.is_range = true, .first = 16, .count = 3};
    fl_layout layout = {0};
    fl_err err = {0};
    char block[4096];
    CHECK_INT(fl_table_layout(table, &unlucky, 0, &layout, &err), FL_EINVAL);
    CHECK(strcmp(err.text, "field 1, row 13: is unlucky") == 0);
    CHECK_INT(fl_table_layout(table, &unlucky, 0, &layout, NULL), FL_EINVAL);
    CHECK_INT(fl_table_layout(table, &lost, 0, &layout, NULL), FL_OK);
    CHECK_INT(fl_table_gather(table, &lost, 0, &layout, 0, 1, block, &err), FL_ESOURCE);
    CHECK(err.code == FL_ESOURCE && err.field == 1 && err.value == 17);
    CHECK_INT(fl_table_gather(table, &lost, 0, &layout, 0, 1, block, NULL), FL_ESOURCE);
    fl_layout_close(&layout);
    fl_table_close(table);
}

int main(void)
{
    start_tests();
    RUN(test_outputs_are_contiguous_tensors);
    RUN(test_sums_that_do_not_fit_are_refused);
    RUN(test_an_output_may_be_cast_of_another);
    RUN(test_large_batches_have_slices);
    RUN(test_memory_is_kept_for_the_next_batch);
    RUN(test_columns_may_give_several_tensors);
    RUN(test_errors_name_column_and_row);
    return 0;
}
