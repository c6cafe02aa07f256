/* fl_column_rows: see fl_column_rows.h. */
#include "fl_column_rows.h"

#include <string.h>

typedef struct rows_column {
    fl_column base;
    const fl_row_ops *row_ops; /* borrowed from floor 3, static */
    fl_row_runs runs;
    fl_dtype dtype;
    int32_t ndim;
    int64_t shape[FL_MAX_NDIM],
        stride[FL_MAX_NDIM]; /* of the output; shape[0] is set for each batch */
} rows_column;

static const rows_column *as_rows(const fl_column *column) { return (const rows_column *)column; }

static int layout_rows(const fl_column *column, fl_column_batch *batch, fl_err *err)
{
    const rows_column *self = as_rows(column);
    fl_output *output = batch->outputs;
    if (!fl_mul(batch->rows->count, self->runs.row_bytes, &output->bytes))
        return fl_fail_batch_size(err);
    output->dtype = self->dtype;
    output->ndim = self->ndim;
    output->is_whole = output->is_number = output->is_cast = false;
    output->is_contiguous = true;
    memcpy(output->shape, self->shape, (size_t)self->ndim * sizeof *self->shape);
    memcpy(output->stride, self->stride, (size_t)self->ndim * sizeof *self->stride);
    output->shape[0] = batch->rows->count;
    batch->work_bytes = output->bytes;
    return FL_OK;
}

static int gather_rows(const fl_column *column, const fl_column_batch *batch, int64_t from,
                       int64_t to, char *buffer, fl_err *err)
{
    const rows_column *self = as_rows(column);
    char *dst = buffer + batch->outputs->offset;
    return fl_column_copy_rows(column, &self->runs, self->row_ops, batch, from, to, dst, err);
}

static int64_t
find_row_beyond(const fl_column *column, int32_t part, const fl_rows *rows, const char *limit)
{
    (void)part;
    return fl_row_runs_beyond(&as_rows(column)->runs, column->length, rows, limit);
}

static void move_rows(fl_column *column, int32_t part, const char *data)
{
    (void)part;
    ((rows_column *)column)->runs.data = data;
}

static const fl_column_ops rows_ops = {
    .layout = layout_rows, .gather = gather_rows, .row_beyond = find_row_beyond, .move = move_rows};

int fl_column_rows_open(const fl_tensor *view, bool is_volatile, const fl_row_ops *row_ops,
                        fl_column **out, fl_err *err)
{
    *out = NULL;
    if (view->ndim < 1) return fl_fail(err, FL_EINVAL, "has no dimension to index");
    rows_column *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    self->base = (fl_column){
        .ops = &rows_ops, .length = view->shape[0], .outputs = 1, .is_volatile = is_volatile};
    self->row_ops = row_ops;
    int status = fl_row_runs_set(&self->runs, view, err);
    if (status != FL_OK) {
        fl_free(self);
        return status;
    }
    self->dtype = view->dtype;
    self->ndim = view->ndim;
    memcpy(self->shape, view->shape, (size_t)view->ndim * sizeof *view->shape);
    self->shape[0] = 1;
    fl_tensor_strides(view->ndim, self->shape, self->stride);
    *out = &self->base;
    return FL_OK;
}
