/* fl_table: see fl_table.h. */
#include "fl_table.h"

enum {
    PART_BYTES = 64 * 1024,       /* least bytes of a part, about 6 us of copying */
    FILE_PART_BYTES = 512 * 1024, /* of a part read by fl_safe_read: one call reads several rows */
    MAX_PARTS = 4096
};

struct fl_table {
    int64_t length;
    bool is_volatile;
    int32_t count;
    int32_t outputs;
    fl_column *columns[]; /* owned */
};

static int check_columns(fl_column *const *columns, int32_t count, fl_err *err)
{
    if (count < 1) return fl_fail(err, FL_EINVAL, "a table needs at least one field");
    for (int32_t f = 0; f < count; f++)
        if (columns[f]->length != columns[0]->length)
            return fl_fail(err, FL_EINVAL, "field %d must have %lld rows, as field 0 has, got %lld",
                           f, (long long)columns[0]->length, (long long)columns[f]->length);
    return FL_OK;
}

int fl_table_open(fl_column *const *columns, int32_t count, fl_table **out, fl_err *err)
{
    *out = NULL;
    FL_TRY(check_columns(columns, count, err));
    fl_table *table = fl_alloc((int64_t)sizeof *table + (int64_t)count * (int64_t)sizeof *columns);
    if (table == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table");
    table->length = columns[0]->length;
    table->count = count;
    for (int32_t f = 0; f < count; f++) {
        table->is_volatile |= columns[f]->is_volatile;
        table->outputs += columns[f]->outputs;
        table->columns[f] = columns[f];
    }
    *out = table;
    return FL_OK;
}

void fl_table_close(fl_table *table)
{
    for (int32_t f = 0; table != NULL && f < table->count; f++) fl_column_close(table->columns[f]);
    fl_free(table);
}

int64_t fl_table_length(const fl_table *table) { return table->length; }

int32_t fl_table_outputs(const fl_table *table) { return table->outputs; }

bool fl_table_is_volatile(const fl_table *table) { return table->is_volatile; }

void fl_table_move(fl_table *table, int32_t f, int32_t part, const char *data)
{
    fl_column *column = table->columns[f];
    if (column->ops->move != NULL) column->ops->move(column, part, data);
}

static int32_t count_parts(const fl_table *table, int64_t rows, int64_t work_bytes)
{
    if (work_bytes < FL_LAYOUT_SMALL_BYTES) return 1;
    int64_t part_bytes = table->is_volatile ? FILE_PART_BYTES : PART_BYTES;
    return (int32_t)fl_max(1, fl_min(fl_min(work_bytes / part_bytes, MAX_PARTS), rows));
}

int fl_table_layout(const fl_table *table, const fl_rows *rows, uint32_t epoch, fl_layout *layout,
                    fl_err *err)
{
    FL_TRY(fl_layout_reserve(layout, table->count, table->outputs, err));
    fl_column_batch batch = {.rows = rows, .epoch = epoch, .outputs = layout->outputs};
    int64_t work = 0;
    layout->may_wait = false;
    for (int32_t f = 0; f < table->count; f++) {
        const fl_column *column = table->columns[f];
        batch.field = f;
        batch.notes = &layout->notes[f];
        batch.may_wait = column->is_volatile;
        FL_TRY(column->ops->layout(column, &batch, err));
        layout->may_wait |= batch.may_wait;
        if (!fl_add(work, batch.work_bytes, &work)) work = INT64_MAX;
        batch.outputs += column->outputs;
    }
    FL_TRY(fl_layout_set_offsets(layout, err));
    layout->work_bytes = work;
    layout->parts = count_parts(table, rows->count, work);
    return FL_OK;
}

int fl_table_gather(const fl_table *table, const fl_rows *rows, uint32_t epoch,
                    const fl_layout *layout, int32_t part, int32_t parts, char *buffer, fl_err *err)
{
    int64_t from = rows->count * part / parts, to = rows->count * (part + 1) / parts;
    if (from == to) return FL_OK;
    fl_column_batch batch = {.rows = rows, .epoch = epoch, .outputs = layout->outputs};
    for (int32_t f = 0; f < table->count; f++) {
        const fl_column *column = table->columns[f];
        batch.field = f;
        batch.notes = &layout->notes[f];
        FL_TRY(column->ops->gather(column, &batch, from, to, buffer, err));
        batch.outputs += column->outputs;
    }
    return FL_OK;
}

int fl_table_fill(const fl_batch *batch, int32_t part, fl_err *err)
{
    return fl_table_gather(batch->source, &batch->rows, batch->epoch, &batch->layout, part,
                           batch->parts, batch->data, err);
}

int64_t fl_table_row_beyond(const fl_table *table, int32_t f, int32_t part, const fl_rows *rows,
                            const char *limit)
{
    const fl_column *column = table->columns[f];
    if (column->ops->row_beyond == NULL) return -1;
    return column->ops->row_beyond(column, part, rows, limit);
}
