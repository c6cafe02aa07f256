/* fl_column_segments: see fl_column_segments.h. Rows are found by address: all arrays count as one
 * array whose rows begin at any address, with a stride of one byte. So one call gathers rows of all
 * segments, whatever their order. */
#include "fl_column_segments.h"

#include "fl_row_runs.h"
#include "fl_scratch.h"

#include <string.h>

enum {
    CHUNK_ROWS = 256,       /* rows whose addresses lie on the stack */
    CHUNK_BYTES = 16 * 1024 /* bytes of rows that are converted in one call, but at least one row */
};

typedef struct part_array {
    const char *data; /* borrowed, like index */
    int64_t row_stride;
    const int64_t *index;
    int64_t begin; /* the part's first row of the column */
    int64_t length;
} part_array;

typedef struct segments_column {
    fl_column base;
    const fl_row_ops *row_ops; /* borrowed, static */
    fl_row_runs runs;          /* row numbers are distances in bytes from runs.data */
    fl_convert *convert;       /* NULL: rows are copied */
    fl_scratch_slots *slots;   /* owned: if rows are converted */
    fl_dtype from, dtype;      /* of the arrays, and of the output */
    int32_t ndim;
    int64_t row_items, out_bytes; /* elements of a row; bytes of a row in the output */
    int64_t shape[FL_MAX_NDIM];   /* of the output; shape[0] is set for each batch */
    int32_t count;
    part_array parts[];
} segments_column;

static const segments_column *as_segments(const fl_column *column)
{
    return (const segments_column *)column;
}

/* Returns the part that has a row: the last part that begins at or before the row, because empty
 * parts have no rows. */
static int32_t find_part(const segments_column *self, int64_t row)
{
    int32_t first = 0, count = self->count;
    while (count > 1) {
        int32_t half = count / 2;
        first = self->parts[first + half].begin <= row ? first + half : first;
        count -= half;
    }
    return first;
}

static const char *find_row(const part_array *array, int64_t row)
{
    int64_t at = row - array->begin;
    if (array->index != NULL) at = array->index[at];
    return array->data + at * array->row_stride;
}

/* Returns the number that a row of the column has in runs. */
static int64_t number_of(const segments_column *self, int64_t row)
{
    const char *data = find_row(&self->parts[find_part(self, row)], row);
    return (intptr_t)data - (intptr_t)self->runs.data;
}

static int layout_segments(const fl_column *column, fl_column_batch *batch, fl_err *err)
{
    const segments_column *self = as_segments(column);
    int64_t shape[FL_MAX_NDIM];
    memcpy(shape, self->shape, (size_t)self->ndim * sizeof *shape);
    shape[0] = batch->rows->count;
    FL_TRY(fl_output_set(batch->outputs, self->dtype, self->ndim, shape, err));
    batch->work_bytes = fl_max(batch->outputs->bytes, shape[0] * self->runs.row_bytes);
    return FL_OK;
}

/* Fails with FL_ESOURCE for the row at this position. */
static int
fail_position(const segments_column *self, const fl_column_batch *batch, int64_t at, fl_err *err)
{
    int64_t row = fl_row_at(batch->rows, at);
    int status = fl_column_fail_row(err, batch, row);
    if (err != NULL) err->position = find_part(self, row);
    return status;
}

/* Copies rows from <= i < from + rows->count of the batch; `rows` has their numbers in runs. */
static int copy_chunk(const segments_column *self, const fl_column_batch *batch, int64_t from,
                      const fl_rows *rows, char *dst, fl_err *err)
{
    const fl_row_runs *runs = &self->runs;
    if (!self->base.is_volatile) {
        bool is_large = batch->outputs->bytes >= FL_LAYOUT_SMALL_BYTES;
        fl_row_runs_copy(runs, self->row_ops, rows, 0, rows->count, dst, is_large);
        return FL_OK;
    }
    int64_t done = fl_row_runs_read(runs, rows, 0, rows->count, dst);
    if (done < 0) return fl_fail(err, FL_ENOMEM, "out of memory for reads of a mapped file");
    if (done == rows->count * runs->row_bytes) return FL_OK;
    return fail_position(self, batch, from + done / runs->row_bytes, err);
}

/* Writes rows of the batch to dst; scratch: NULL if rows are not converted. */
static int gather_rows(const segments_column *self, const fl_column_batch *batch, int64_t from,
                       int64_t to, fl_scratch *scratch, char *dst, fl_err *err)
{
    int64_t numbers[CHUNK_ROWS], row_bytes = self->runs.row_bytes, most = CHUNK_ROWS;
    fl_rows rows = {.index = numbers};
    char *copied = NULL;
    if (scratch != NULL) {
        most = fl_max(1, fl_min(CHUNK_ROWS, CHUNK_BYTES / row_bytes));
        copied = fl_scratch_memory(scratch, FL_SCRATCH_ROWS, most * row_bytes);
        if (copied == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for converted rows");
    }
    for (int64_t at = from; at < to; at += rows.count, dst += rows.count * self->out_bytes) {
        rows.count = fl_min(most, to - at);
        for (int64_t i = 0; i < rows.count; i++)
            numbers[i] = number_of(self, fl_row_at(batch->rows, at + i));
        FL_TRY(copy_chunk(self, batch, at, &rows, copied != NULL ? copied : dst, err));
        if (copied != NULL) self->convert(dst, copied, rows.count * self->row_items, self->from);
    }
    return FL_OK;
}

static int gather_segments(const fl_column *column, const fl_column_batch *batch, int64_t from,
                           int64_t to, char *buffer, fl_err *err)
{
    const segments_column *self = as_segments(column);
    char *dst = buffer + batch->outputs->offset + from * self->out_bytes;
    fl_scratch *scratch = NULL;
    if (self->runs.row_bytes == 0) return FL_OK;
    if (self->slots == NULL) return gather_rows(self, batch, from, to, NULL, dst, err);
    FL_TRY(fl_scratch_take(self->slots, &scratch, err));
    int status = gather_rows(self, batch, from, to, scratch, dst, err);
    fl_scratch_give(self->slots, scratch);
    return status;
}

static int64_t
find_row_beyond(const fl_column *column, int32_t part, const fl_rows *rows, const char *limit)
{
    const segments_column *self = as_segments(column);
    const part_array *array = &self->parts[part];
    int64_t last = fl_max(0, (array->length - 1) * array->row_stride);
    if (self->runs.row_bytes == 0 || array->data + last + self->runs.reach <= limit) return -1;
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t row = fl_row_at(rows, i);
        if (find_part(self, row) != part) continue;
        if (find_row(array, row) + self->runs.reach > limit) return row;
    }
    return -1;
}

/* runs.data stays: distances start from that address, but its memory is not read. */
static void move_segment(fl_column *column, int32_t part, const char *data)
{
    ((segments_column *)column)->parts[part].data = data;
}

static void close_segments(fl_column *column)
{
    segments_column *self = (segments_column *)column;
    fl_scratch_close(self->slots);
    fl_free(self);
}

static const fl_column_ops segments_ops = {.layout = layout_segments,
                                           .gather = gather_segments,
                                           .row_beyond = find_row_beyond,
                                           .move = move_segment,
                                           .close = close_segments};

/* Returns true if the rows of two views have the same dtype and shape. */
static bool has_same_rows(const fl_tensor *a, const fl_tensor *b)
{
    bool is_same = a->ndim == b->ndim && memcmp(&a->dtype, &b->dtype, sizeof a->dtype) == 0;
    for (int32_t d = 1; is_same && d < a->ndim; d++) is_same = a->shape[d] == b->shape[d];
    return is_same;
}

static bool has_same_runs(const fl_row_runs *a, const fl_row_runs *b)
{
    bool is_same = a->run_bytes == b->run_bytes && a->loops == b->loops;
    for (int32_t k = 0; is_same && k < a->loops; k++)
        is_same = a->loop_count[k] == b->loop_count[k] && a->loop_stride[k] == b->loop_stride[k];
    return is_same;
}

static int check_index(const fl_segment *given, fl_err *err)
{
    int64_t length = given->view.shape[0];
    if (given->index == NULL && given->count != length)
        return fl_fail(err, FL_EINVAL, "must have %lld rows in an array, got %lld",
                       (long long)given->count, (long long)length);
    for (int64_t i = 0; given->index != NULL && i < given->count; i++)
        if (given->index[i] < 0 || given->index[i] >= length)
            return fl_fail(err, FL_EINVAL, "has no row %lld in an array of %lld",
                           (long long)given->index[i], (long long)length);
    return FL_OK;
}

/* Appends a segment. The first segment that has rows defines the layout of all rows. */
static int
add_segment(segments_column *self, const fl_segment *given, const fl_tensor *first, fl_err *err)
{
    const fl_tensor *view = &given->view;
    fl_row_runs runs;
    if (view->ndim < 1) return fl_fail(err, FL_EINVAL, "has no dimension to index");
    if (!has_same_rows(view, first))
        return fl_fail(err, FL_EINVAL, "has arrays whose rows differ in dtype or shape");
    FL_TRY(check_index(given, err));
    FL_TRY(fl_row_runs_set(&runs, view, err));
    if (given->count > 0 && self->runs.data == NULL) self->runs = runs;
    if (given->count > 0 && !has_same_runs(&runs, &self->runs))
        return fl_fail(err, FL_EINVAL, "has arrays whose rows differ in strides");
    self->parts[self->count++] = (part_array){.data = view->data,
                                              .row_stride = view->stride[0],
                                              .index = given->index,
                                              .begin = self->base.length,
                                              .length = view->shape[0]};
    if (!fl_add(self->base.length, given->count, &self->base.length))
        return fl_fail(err, FL_EINVAL, "has more than 2^63 rows");
    return FL_OK;
}

static int add_segments(segments_column *self, const fl_column_segments_config *config, fl_err *err)
{
    const fl_tensor *first = &config->segments[0].view;
    for (int32_t i = 0; i < config->count; i++)
        FL_TRY(add_segment(self, &config->segments[i], first, err));
    self->runs.row_stride = 1;
    self->ndim = first->ndim;
    memcpy(self->shape, first->shape, (size_t)first->ndim * sizeof *first->shape);
    self->from = self->dtype = first->dtype;
    self->row_items = self->runs.row_bytes / fl_max(1, fl_dtype_bytes(first->dtype));
    self->out_bytes = self->runs.row_bytes;
    return FL_OK;
}

static int add_convert(segments_column *self, const fl_column_segments_config *config, fl_err *err)
{
    self->convert = config->convert;
    self->dtype = config->dtype;
    if (!fl_mul(self->row_items, fl_dtype_bytes(config->dtype), &self->out_bytes))
        return fl_fail(err, FL_EINVAL, "has rows larger than 2^63 bytes");
    self->slots = fl_alloc(sizeof *self->slots);
    return self->slots != NULL ? FL_OK : fl_fail(err, FL_ENOMEM, "has no memory for a column");
}

int fl_column_segments_open(const fl_column_segments_config *config, fl_column **out, fl_err *err)
{
    *out = NULL;
    if (config->count < 1) return fl_fail(err, FL_EINVAL, "has no segment");
    int64_t parts_bytes = (int64_t)config->count * (int64_t)sizeof(part_array);
    segments_column *self = fl_alloc((int64_t)sizeof *self + parts_bytes);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    self->base =
        (fl_column){.ops = &segments_ops, .outputs = 1, .is_volatile = config->is_volatile};
    self->row_ops = config->row_ops;
    int status = add_segments(self, config, err);
    if (status == FL_OK && config->convert != NULL) status = add_convert(self, config, err);
    if (status != FL_OK) {
        close_segments(&self->base);
        return status;
    }
    *out = &self->base;
    return FL_OK;
}
