/* fl_table: see fl_table.h.
 *
 * A row is reduced once, at open, to `runs`: nested loops over an innermost contiguous run of
 * bytes. Most rows are one run, and then row_ops copies them. An image of a mapped file is read
 * into scratch memory, where its plan then works on it. */
#include "fl_table.h"

#include "fl_image_scratch.h"
#include "fl_safe_read.h"

#include <string.h>

enum {
    ALIGNMENT = 64,             /* of each field in the buffer */
    PART_BYTES = 64 * 1024,     /* a part has at least so many bytes, about 6 us of copying; */
    GUARDED_BYTES = 512 * 1024, /* through fl_safe_read so many, for several rows a call */
    /* a resize takes as long as copying so many times what it reads and writes */
    RESIZE_WORK = 8,
    MAX_PARTS = 4096,
    LINE_BYTES = 64,
    AHEAD_BYTES = 4096 /* of the next image, prefetched */
};

typedef struct fl_field {
    const char *data; /* borrowed from the caller of fl_table_open */
    int64_t row_bytes, row_stride;
    int64_t reach;     /* from the first byte of a row to behind its last one in memory */
    int64_t run_bytes; /* contiguous bytes in the innermost loop */
    int32_t loops;     /* outer loops around a run; 0: a row is one run */
    int64_t loop_count[FL_MAX_NDIM], loop_stride[FL_MAX_NDIM];
    bool is_volatile;
    int64_t out_bytes; /* of a row in a batch */
    /* With a plan: */
    const fl_image_plan
        *plan;               /* borrowed from the caller of fl_table_open; NULL: rows are copied */
    fl_image_source image;   /* an image in the source, without its address; */
    fl_image_source copy;    /* and one that was read from a mapped file */
    fl_scratch_slots *slots; /* owned: where volatile */
} fl_field;

struct fl_table {
    const fl_row_ops *row_ops; /* borrowed from floor 3, static */
    int64_t length;
    bool is_volatile;
    int32_t count;
    fl_field fields[]; /* owned */
};

static inline int64_t align_up(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int fail_size(fl_err *err)
{
    return fl_fail(err, FL_EINVAL, "a batch of these rows is larger than 2^63 bytes");
}

/* Splits a row into loops around a run: from the innermost dimension on, a dimension becomes part
 * of the run while its elements follow each other in memory. */
static int reduce_row(const fl_tensor *view, fl_field *field, fl_err *err)
{
    int64_t bytes = fl_dtype_bytes(view->dtype), total = bytes;
    for (int32_t d = 1; d < view->ndim; d++)
        if (!fl_mul(total, view->shape[d], &total)) return fail_size(err);
    field->row_bytes = total;
    field->run_bytes = bytes;
    if (total == 0) return FL_OK;
    field->reach = bytes;
    for (int32_t d = 1; d < view->ndim; d++)
        field->reach += fl_max(0, (view->shape[d] - 1) * view->stride[d]);
    for (int32_t d = view->ndim - 1; d >= 1; d--) {
        if (view->shape[d] == 1) continue;
        if (field->loops == 0 && view->stride[d] == field->run_bytes) {
            field->run_bytes *= view->shape[d];
            continue;
        }
        field->loop_count[field->loops] = view->shape[d];
        field->loop_stride[field->loops++] = view->stride[d];
    }
    return FL_OK;
}

static int check_columns(const fl_column *columns, int32_t count, fl_err *err)
{
    if (count < 1) return fl_fail(err, FL_EINVAL, "a table needs at least one field");
    for (int32_t f = 0; f < count; f++) {
        const fl_tensor *view = &columns[f].view;
        if (view->ndim < 1) return fl_fail(err, FL_EINVAL, "field %d has no dimension to index", f);
        if (view->shape[0] != columns[0].view.shape[0])
            return fl_fail(err, FL_EINVAL, "field %d has %lld rows, field 0 has %lld", f,
                           (long long)view->shape[0], (long long)columns[0].view.shape[0]);
    }
    return FL_OK;
}

static int check_image(const fl_image_plan *plan, const fl_tensor *view, int32_t f, int64_t height,
                       int64_t width, int64_t channels, fl_err *err)
{
    fl_image_size in = fl_image_plan_in(plan);
    bool is_bytes = view->dtype.code == 1 && view->dtype.bits == 8 && view->dtype.lanes == 1;
    if (view->ndim == 4 && is_bytes && channels == fl_image_plan_channels(plan) &&
        height <= INT32_MAX && width <= INT32_MAX && height > 0 && width > 0 &&
        (in.height == 0 || (in.height == height && in.width == width)))
        return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "field %d does not hold the images of its plan: uint8 with %d channels, %d x %d",
                   f, fl_image_plan_channels(plan), in.height, in.width);
}

/* How a field's images lie in its source, and how they lie once they were copied. */
static int describe_images(const fl_column *column, fl_field *field, int32_t f, fl_err *err)
{
    const fl_tensor *view = &column->view;
    bool is_chw = column->layout == FL_CHW;
    int y = is_chw ? 2 : 1, x = is_chw ? 3 : 2, c = is_chw ? 1 : 3;
    int64_t height = view->shape[y], width = view->shape[x], channels = view->shape[c];
    FL_TRY(check_image(column->plan, view, f, height, width, channels, err));
    fl_image_size size = {(int32_t)height, (int32_t)width};
    field->plan = column->plan;
    field->out_bytes = fl_image_plan_out_bytes(column->plan);
    field->image = (fl_image_source){.stride_y = view->stride[y],
                                     .stride_x = view->stride[x],
                                     .stride_c = view->stride[c],
                                     .size = size};
    field->copy = (fl_image_source){.stride_y = is_chw ? width : width * channels,
                                    .stride_x = is_chw ? 1 : channels,
                                    .stride_c = is_chw ? height * width : 1,
                                    .size = size};
    if (!column->is_volatile) return FL_OK;
    field->slots = fl_alloc(sizeof *field->slots);
    return field->slots != NULL ? FL_OK : fl_fail(err, FL_ENOMEM, "out of memory for a table");
}

static int open_field(const fl_column *column, fl_field *field, int32_t f, fl_err *err)
{
    field->data = column->view.data;
    field->row_stride = column->view.stride[0];
    field->is_volatile = column->is_volatile;
    FL_TRY(reduce_row(&column->view, field, err));
    field->out_bytes = field->row_bytes;
    return column->plan != NULL ? describe_images(column, field, f, err) : FL_OK;
}

int fl_table_open(const fl_column *columns, int32_t count, const fl_row_ops *row_ops,
                  fl_table **out, fl_err *err)
{
    *out = NULL;
    FL_TRY(check_columns(columns, count, err));
    fl_table *table = fl_alloc((int64_t)sizeof *table + (int64_t)count * (int64_t)sizeof(fl_field));
    if (table == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table");
    table->row_ops = row_ops;
    table->length = columns[0].view.shape[0];
    table->count = count;
    for (int32_t f = 0; f < count; f++) {
        table->is_volatile |= columns[f].is_volatile;
        int status = open_field(&columns[f], &table->fields[f], f, err);
        if (status != FL_OK) {
            fl_table_close(table);
            return status;
        }
    }
    *out = table;
    return FL_OK;
}

void fl_table_close(fl_table *table)
{
    for (int32_t f = 0; table != NULL && f < table->count; f++)
        fl_scratch_close(table->fields[f].slots);
    fl_free(table);
}

int64_t fl_table_length(const fl_table *table) { return table->length; }

bool fl_table_is_volatile(const fl_table *table) { return table->is_volatile; }

int fl_table_bytes(const fl_table *table, int64_t rows, int64_t *bytes, fl_err *err)
{
    int64_t end = 0;
    for (int32_t f = 0; f < table->count; f++) {
        int64_t size;
        if (!fl_mul(rows, table->fields[f].out_bytes, &size) || size > INT64_MAX - ALIGNMENT ||
            !fl_add(end, align_up(size), &end))
            return fail_size(err);
    }
    *bytes = end;
    return FL_OK;
}

int64_t fl_table_field_bytes(const fl_table *table, int32_t f, int64_t rows)
{
    return align_up(rows * table->fields[f].out_bytes);
}

int64_t fl_table_work(const fl_table *table, int64_t rows)
{
    int64_t work = 0;
    for (int32_t f = 0; f < table->count; f++) {
        const fl_field *field = &table->fields[f];
        int64_t of_row = field->out_bytes, of_field;
        if (field->plan != NULL && !fl_add(of_row, field->row_bytes, &of_row)) return INT64_MAX;
        bool is_resized = field->plan != NULL && fl_image_plan_resizes(field->plan);
        if (is_resized && !fl_mul(of_row, RESIZE_WORK, &of_row)) return INT64_MAX;
        if (!fl_mul(rows, of_row, &of_field) || !fl_add(work, of_field, &work)) return INT64_MAX;
    }
    return work;
}

int32_t fl_table_parts(const fl_table *table, int64_t rows)
{
    int64_t bytes = fl_table_work(table, rows);
    if (bytes < FL_TABLE_SMALL_BYTES) return 1;
    int64_t part_bytes = table->is_volatile ? GUARDED_BYTES : PART_BYTES;
    return (int32_t)fl_max(1, fl_min(fl_min(bytes / part_bytes, MAX_PARTS), rows));
}

/* Iterates over the pieces of a batch in the source: the state of nested loops. The caller runs the
 * loops below `inner`. */
typedef struct fl_piece_iter {
    const fl_field *field;
    const fl_rows *rows;
    int64_t next, end; /* rows of the batch */
    int32_t inner;
    int64_t digit[FL_MAX_NDIM]; /* of each loop in the current row */
} fl_piece_iter;

static inline int64_t row_at(const fl_rows *rows, int64_t i)
{
    return rows->is_range ? rows->first + i : rows->index[i];
}

/* The address of the current piece; moves on to the next. */
static const char *next_piece(fl_piece_iter *iter)
{
    const fl_field *field = iter->field;
    const char *piece = field->data + row_at(iter->rows, iter->next) * field->row_stride;
    for (int32_t k = iter->inner; k < field->loops; k++)
        piece += iter->digit[k] * field->loop_stride[k];
    int32_t k = iter->inner;
    while (k < field->loops && ++iter->digit[k] == field->loop_count[k]) iter->digit[k++] = 0;
    if (k == field->loops) iter->next++;
    return piece;
}

static void copy_strided(const fl_row_ops *row_ops, const fl_field *field, const fl_rows *rows,
                         int64_t from, int64_t to, char *dst)
{
    fl_piece_iter iter = {.field = field, .rows = rows, .next = from, .end = to, .inner = 1};
    while (iter.next < iter.end) {
        row_ops->copy_rows(dst, next_piece(&iter), field->loop_stride[0], field->run_bytes, 0,
                           field->loop_count[0], false);
        dst += field->run_bytes * field->loop_count[0];
    }
}

/* Through fl_safe_read. Bytes copied before the first unreadable one, or FL_ENOMEM. */
static int64_t
copy_guarded(const fl_field *field, const fl_rows *rows, int64_t from, int64_t to, char *dst)
{
    fl_piece_iter iter = {.field = field, .rows = rows, .next = from, .end = to};
    struct iovec pieces[FL_SAFE_READ_MAX];
    int64_t done = 0;
    while (iter.next < iter.end) {
        int count = 0;
        while (count < FL_SAFE_READ_MAX && iter.next < iter.end)
            pieces[count++] = (struct iovec){.iov_base = (void *)(uintptr_t)next_piece(&iter),
                                             .iov_len = (size_t)field->run_bytes};
        int64_t got = fl_safe_read_copy(dst + done, pieces, count);
        if (got < 0) return got;
        done += got;
        if (got < count * field->run_bytes) break;
    }
    return done;
}

static int fail_row(fl_err *err, int32_t f, int64_t row)
{
    if (err != NULL) *err = (fl_err){.code = FL_ESOURCE, .field = f, .value = row};
    return FL_ESOURCE;
}

static int gather_volatile(const fl_table *table, int32_t f, const fl_rows *rows, int64_t from,
                           int64_t to, char *dst, fl_err *err)
{
    const fl_field *field = &table->fields[f];
    int64_t done = copy_guarded(field, rows, from, to, dst);
    if (done < 0) return fl_fail(err, FL_ENOMEM, "no memory to read a mapped file safely");
    if (done == (to - from) * field->row_bytes) return FL_OK;
    return fail_row(err, f, row_at(rows, from + done / field->row_bytes));
}

static void gather_field(const fl_row_ops *row_ops, const fl_field *field, const fl_rows *rows,
                         int64_t from, int64_t to, char *dst)
{
    bool is_large = rows->count * field->row_bytes >= FL_TABLE_SMALL_BYTES;
    if (field->loops > 0)
        copy_strided(row_ops, field, rows, from, to, dst);
    else if (rows->is_range)
        row_ops->copy_rows(dst, field->data, field->row_stride, field->row_bytes,
                           rows->first + from, to - from, is_large);
    else
        row_ops->gather_rows(dst, field->data, field->row_stride, field->row_bytes,
                             rows->index + from, to - from, is_large);
}

/* One image of a mapped file, read into the scratch. */
static int read_image(const fl_table *table, int32_t f, int64_t row, fl_image_scratch *scratch,
                      fl_image_source *out, fl_err *err)
{
    const fl_field *field = &table->fields[f];
    fl_rows rows = {.count = 1, .first = row, .is_range = true};
    char *memory = fl_scratch_memory(scratch, FL_SCRATCH_IMAGE_0, field->row_bytes);
    if (memory == NULL) return fl_fail(err, FL_ENOMEM, "no memory to read a mapped file safely");
    *out = field->copy;
    out->data = (const uint8_t *)memory;
    return gather_volatile(table, f, &rows, 0, 1, memory, err);
}

/* Writes what the plan makes of one row to dst. scratch: NULL where the field is not volatile. */
static int gather_image(const fl_table *table, int32_t f, const fl_sample_key *key,
                        fl_image_scratch *scratch, char *dst, fl_err *err)
{
    const fl_field *field = &table->fields[f];
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_image_source image = field->image;
    image.data = (const uint8_t *)field->data + key->index * field->row_stride;
    if (scratch != NULL) FL_TRY(read_image(table, f, key->index, scratch, &image, err));
    FL_TRY(fl_image_plan_draw(field->plan, key, image.size, params, err));
    return fl_image_plan_apply(field->plan, params, &image, dst, err);
}

/* Errors that have a text say whose they are. */
static int name_row(fl_err *err, int status, int32_t f, int64_t row)
{
    if (err == NULL || status == FL_ESOURCE) return status;
    fl_err cause = *err;
    return fl_fail(err, status, "field %d, row %lld: %s", f, (long long)row, cause.text);
}

/* Asks for the beginning of a row that is worked on next: rows are in no order, so the hardware
 * does not foresee them. What follows it does foresee. */
static void prefetch_image(const fl_field *field, int64_t row)
{
    const char *data = field->data + row * field->row_stride;
    int64_t bytes = fl_min(field->reach, AHEAD_BYTES);
    for (int64_t at = 0; at < bytes; at += LINE_BYTES) __builtin_prefetch(data + at);
}

static int gather_images(const fl_table *table, int32_t f, const fl_rows *rows, uint32_t epoch,
                         int64_t from, int64_t to, char *dst, fl_err *err)
{
    const fl_field *field = &table->fields[f];
    fl_image_scratch *scratch = NULL;
    fl_sample_key key = {.seed = fl_image_plan_seed(field->plan), .epoch = epoch};
    int status = field->slots != NULL ? fl_scratch_take(field->slots, &scratch, err) : FL_OK;
    key.index = row_at(rows, from);
    for (int64_t i = from; status == FL_OK && i < to; i++, dst += field->out_bytes) {
        key.index = row_at(rows, i);
        key.view = rows->has_views ? rows->view[i] : 0;
        if (i + 1 < to) prefetch_image(field, row_at(rows, i + 1));
        status = gather_image(table, f, &key, scratch, dst, err);
    }
    if (scratch != NULL) fl_scratch_give(field->slots, scratch);
    return status == FL_OK ? FL_OK : name_row(err, status, f, key.index);
}

int fl_table_gather(const fl_table *table, const fl_rows *rows, uint32_t epoch, int32_t part,
                    int32_t parts, char *buffer, fl_err *err)
{
    int64_t from = rows->count * part / parts, to = rows->count * (part + 1) / parts;
    if (from == to) return FL_OK;
    for (int32_t f = 0; f < table->count; f++) {
        const fl_field *field = &table->fields[f];
        char *dst = buffer + from * field->out_bytes;
        if (field->plan != NULL)
            FL_TRY(gather_images(table, f, rows, epoch, from, to, dst, err));
        else if (field->row_bytes > 0 && field->is_volatile)
            FL_TRY(gather_volatile(table, f, rows, from, to, dst, err));
        else if (field->row_bytes > 0)
            gather_field(table->row_ops, field, rows, from, to, dst);
        buffer += fl_table_field_bytes(table, f, rows->count);
    }
    return FL_OK;
}

int fl_table_fill(const fl_batch *batch, int32_t part, fl_err *err)
{
    return fl_table_gather(batch->source, &batch->rows, batch->epoch, part, batch->parts,
                           batch->data, err);
}

int64_t
fl_table_row_behind(const fl_table *table, int32_t f, const fl_rows *rows, const char *limit)
{
    const fl_field *field = &table->fields[f];
    int64_t last = fl_max(0, (table->length - 1) * field->row_stride);
    if (field->row_bytes == 0 || field->data + last + field->reach <= limit) return -1;
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t row = row_at(rows, i);
        if (field->data + row * field->row_stride + field->reach > limit) return row;
    }
    return -1;
}
