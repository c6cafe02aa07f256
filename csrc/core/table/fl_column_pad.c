/* fl_column_pad: see fl_column_pad.h. */
#include "fl_column_pad.h"

#include <assert.h>
#include <string.h>

enum { PIECES = 64 }; /* rows that are copied in one call */

static const fl_dtype INT64 = {0, 64, 1};

typedef struct pad_column {
    fl_column base;
    fl_column_pad_config config;
    fl_dtype dtype; /* of the output */
} pad_column;

static const pad_column *as_pad(const fl_column *column) { return (const pad_column *)column; }

/* Finds a sequence, with its length cut to max_length. */
static int find_row(const fl_column_pad_config *config, int64_t row, int64_t *begin,
                    int64_t *length, fl_err *err)
{
    FL_TRY(fl_ragged_find(&config->ragged, row, begin, length, err));
    *length = fl_min(*length, config->max_length);
    return FL_OK;
}

static int find_width(const fl_column_pad_config *config, const fl_column_batch *batch,
                      int64_t *width, fl_err *err)
{
    int64_t begin, length, longest = 0;
    for (int64_t i = 0; i < batch->rows->count; i++) {
        int64_t row = fl_row_at(batch->rows, i);
        int status = find_row(config, row, &begin, &length, err);
        if (status != FL_OK) return fl_column_name_row(err, status, batch, row);
        longest = fl_max(longest, length);
    }
    if (!fl_add(longest, config->multiple - 1, width)) return fl_fail_batch_size(err);
    *width -= *width % config->multiple;
    return FL_OK;
}

static int layout_padded(const fl_column *column, fl_column_batch *batch, fl_err *err)
{
    const pad_column *self = as_pad(column);
    int64_t shape[2] = {batch->rows->count, 0};
    bool is_vector = self->config.output == FL_PAD_LENGTHS;
    if (shape[0] == 0) return fl_fail(err, FL_EINVAL, "the batch has no samples");
    if (!is_vector) FL_TRY(find_width(&self->config, batch, &shape[1], err));
    FL_TRY(fl_output_set(batch->outputs, self->dtype, is_vector ? 1 : 2, shape, err));
    batch->work_bytes = batch->outputs->bytes;
    return FL_OK;
}

/* Returns the first element of a sequence of this length in its row of `width` elements. */
static int64_t begin_of(const fl_column_pad_config *config, int64_t width, int64_t length)
{
    return config->pad_left ? width - length : 0;
}

/* Pads a row before or after its sequence. */
static void pad_row(const pad_column *self, char *row, int64_t width, int64_t length)
{
    const fl_column_pad_config *config = &self->config;
    int64_t bytes = fl_dtype_bytes(self->dtype);
    char *dst = config->pad_left ? row : row + length * bytes;
    config->ops->fill(dst, config->padding, bytes, width - length);
}

/* Replaces the ignored values of one row by padding. */
static void ignore_values(const fl_column_pad_config *config, const fl_ragged_piece *piece)
{
    int64_t padding, *values = (int64_t *)(void *)piece->dst;
    memcpy(&padding, config->padding, sizeof padding);
    for (int64_t i = 0; i < piece->count; i++)
        values[i] = values[i] == config->ignored ? padding : values[i];
}

/* Gathers up to PIECES rows of values. */
static int gather_values(const pad_column *self, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *dst, fl_err *err)
{
    const fl_column_pad_config *config = &self->config;
    int64_t width = batch->outputs->shape[1], bytes = fl_dtype_bytes(self->dtype);
    fl_ragged_piece pieces[PIECES];
    for (int64_t i = from; i < to; i++, dst += width * bytes) {
        fl_ragged_piece *piece = &pieces[i - from];
        int64_t row = fl_row_at(batch->rows, i);
        int status = find_row(config, row, &piece->begin, &piece->count, err);
        if (status != FL_OK) return fl_column_name_row(err, status, batch, row);
        piece->count = fl_min(piece->count, width);
        piece->dst = dst + begin_of(config, width, piece->count) * bytes;
        pad_row(self, dst, width, piece->count);
    }
    int64_t done =
        fl_ragged_copy(&config->ragged, config->ops, config->is_widened, pieces, to - from);
    if (done < 0) return fl_fail(err, FL_ENOMEM, "out of memory for reads of a mapped file");
    for (int64_t i = 0; config->has_ignored && i < done; i++) ignore_values(config, &pieces[i]);
    if (done == to - from) return FL_OK;
    return fl_column_fail_row(err, batch, fl_row_at(batch->rows, from + done));
}

/* Writes one row of the mask, or one length. */
static void
put_length(const fl_column_pad_config *config, int64_t width, int64_t length, int64_t *dst)
{
    static const int64_t zero = 0, one = 1;
    if (config->output == FL_PAD_LENGTHS) {
        *dst = length;
        return;
    }
    length = fl_min(length, width);
    int64_t begin = begin_of(config, width, length);
    config->ops->fill(dst, &zero, sizeof zero, begin);
    config->ops->fill(dst + begin, &one, sizeof one, length);
    config->ops->fill(dst + begin + length, &zero, sizeof zero, width - length - begin);
}

static int gather_lengths(const pad_column *self, const fl_column_batch *batch, int64_t from,
                          int64_t to, char *dst, fl_err *err)
{
    const fl_column_pad_config *config = &self->config;
    int64_t width = config->output == FL_PAD_LENGTHS ? 1 : batch->outputs->shape[1];
    for (int64_t i = from; i < to; i++, dst += width * (int64_t)sizeof(int64_t)) {
        int64_t begin, length, row = fl_row_at(batch->rows, i);
        int status = find_row(config, row, &begin, &length, err);
        if (status != FL_OK) return fl_column_name_row(err, status, batch, row);
        put_length(config, width, length, (int64_t *)(void *)dst);
    }
    return FL_OK;
}

static int gather_padded(const fl_column *column, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *buffer, fl_err *err)
{
    const pad_column *self = as_pad(column);
    int64_t row_bytes = batch->outputs->bytes / batch->rows->count;
    char *dst = buffer + batch->outputs->offset + from * row_bytes;
    if (self->config.output != FL_PAD_VALUES)
        return gather_lengths(self, batch, from, to, dst, err);
    for (; from < to; from += PIECES, dst += PIECES * row_bytes)
        FL_TRY(gather_values(self, batch, from, fl_min(to, from + PIECES), dst, err));
    return FL_OK;
}

int fl_column_pad_pieces(const fl_column_pad_config *config, const fl_rows *rows, int64_t width,
                         fl_piece *out, fl_err *err)
{
    for (int64_t i = 0; i < rows->count; i++) {
        out[i].start = i * width;
        FL_TRY(find_row(config, fl_row_at(rows, i), &out[i].begin, &out[i].length, err));
    }
    out[rows->count] = (fl_piece){.start = rows->count * width};
    return FL_OK;
}

static int64_t
find_row_beyond(const fl_column *column, int32_t part, const fl_rows *rows, const char *limit)
{
    (void)part;
    const fl_ragged *ragged = &as_pad(column)->config.ragged;
    for (int64_t i = 0; column->is_volatile && i < rows->count; i++)
        if (fl_ragged_is_beyond(ragged, fl_row_at(rows, i), limit)) return fl_row_at(rows, i);
    return -1;
}

static void move_padded(fl_column *column, int32_t part, const char *data)
{
    (void)part;
    ((pad_column *)column)->config.ragged.values = data;
}

static const fl_column_ops pad_ops = {.layout = layout_padded,
                                      .gather = gather_padded,
                                      .row_beyond = find_row_beyond,
                                      .move = move_padded};

int fl_column_pad_open(const fl_column_pad_config *config, fl_column **out, fl_err *err)
{
    bool has_values = config->output == FL_PAD_VALUES;
    *out = NULL;
    pad_column *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    self->base = (fl_column){.ops = &pad_ops,
                             .length = config->ragged.length,
                             .outputs = 1,
                             .is_volatile = has_values && config->ragged.is_volatile};
    self->config = *config;
    self->dtype = has_values && !config->is_widened ? config->ragged.dtype : INT64;
    assert(!config->has_ignored || fl_dtype_bytes(self->dtype) == (int64_t)sizeof(int64_t));
    *out = &self->base;
    return FL_OK;
}
