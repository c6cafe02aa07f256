/* fl_column_window: see fl_column_window.h. */
#include "fl_column_window.h"

enum { WINDOWS_AT_A_TIME = 64 }; /* windows are found in this number, then read */

typedef struct window_column {
    fl_column base;
    fl_column_window_config config;
    fl_dtype dtypes[FL_WINDOW_OUTPUTS];
} window_column;

static const window_column *as_windows(const fl_column *column)
{
    return (const window_column *)column;
}

static void find_windows(const window_column *self, const fl_column_batch *batch, int64_t from,
                         int64_t to, fl_window *out)
{
    for (int64_t i = from; i < to; i++)
        out[i - from] =
            fl_windows_find(self->config.windows, fl_row_at(batch->rows, i), batch->epoch);
}

static void read_ahead(const window_column *self, const fl_column_batch *batch)
{
    fl_window windows[WINDOWS_AT_A_TIME];
    for (int64_t at = 0, to; at < batch->rows->count; at = to) {
        to = fl_min(at + WINDOWS_AT_A_TIME, batch->rows->count);
        find_windows(self, batch, at, to, windows);
        fl_token_reader_advise(self->config.reader, windows, to - at);
    }
}

/* Describes x (0) or y (1) if the destination widens them: both are made from the tokens of x, from
 * the first token or from the second on. The sums cannot overflow: the narrow tokens take at most
 * the bytes of the delivered x. */
static void narrow_output(const window_column *self, const fl_column_batch *batch, int32_t i)
{
    const fl_column_window_config *config = &self->config;
    fl_output *output = &batch->outputs[i];
    int64_t window = fl_token_reader_window(config->reader), rows = batch->rows->count;
    fl_token_type type = fl_token_reader_narrow_type(config->reader);
    int64_t token = fl_token_bytes(type);
    output->bytes = i == 0 ? rows * window * token : 0;
    output->is_cast = true;
    output->cast_of = i;
    output->cast = (fl_transfer_cast){.kind = FL_CAST_WIDEN,
                                      .bytes = config->tokens.bits / 8,
                                      .from = i * (window - config->length) * token,
                                      .count = rows * config->length,
                                      .from_bytes = (int32_t)token,
                                      .is_signed = fl_token_is_signed(type),
                                      .row = config->length,
                                      .pitch = window};
}

static int layout_windows(const fl_column *column, fl_column_batch *batch, fl_err *err)
{
    const window_column *self = as_windows(column);
    int64_t shape[2] = {batch->rows->count, self->config.length};
    batch->work_bytes = 0;
    for (int32_t i = 0; i < column->outputs; i++) {
        FL_TRY(fl_output_set(&batch->outputs[i], self->dtypes[i], 2, shape, err));
        if (self->config.is_narrow && i < 1 + self->config.has_y) narrow_output(self, batch, i);
        if (!fl_add(batch->work_bytes, batch->outputs[i].bytes, &batch->work_bytes))
            batch->work_bytes = INT64_MAX;
    }
    batch->may_wait = fl_token_reader_is_cold(self->config.reader);
    if (batch->may_wait) read_ahead(self, batch);
    return FL_OK;
}

/* Returns the addresses of the outputs in the buffer. */
static fl_token_rows
find_rows(const window_column *self, const fl_column_batch *batch, char *buffer)
{
    char *at[FL_WINDOW_OUTPUTS] = {NULL};
    for (int32_t i = 0; i < self->base.outputs; i++) at[i] = buffer + batch->outputs[i].offset;
    fl_token_rows rows = fl_token_rows_at(at, self->config.has_y, self->config.has_documents);
    rows.is_narrow = self->config.is_narrow;
    return rows;
}

static int gather_windows(const fl_column *column, const fl_column_batch *batch, int64_t from,
                          int64_t to, char *buffer, fl_err *err)
{
    const window_column *self = as_windows(column);
    fl_token_rows rows = find_rows(self, batch, buffer);
    fl_window windows[WINDOWS_AT_A_TIME];
    for (int64_t at = from, end; at < to; at = end) {
        end = fl_min(at + WINDOWS_AT_A_TIME, to);
        find_windows(self, batch, at, end, windows);
        FL_TRY(fl_token_reader_read(self->config.reader, windows, end - at, &rows, at, err));
    }
    return FL_OK;
}

/* There is no row_beyond: a reader checks the sizes of its files, and floor 3 checks the sizes of
 * files under arrays. */
static const fl_column_ops window_ops = {.layout = layout_windows, .gather = gather_windows};

bool fl_column_window_can_narrow(const fl_column_window_config *config)
{
    int64_t bits = 8 * fl_token_bytes(fl_token_reader_narrow_type(config->reader));
    return config->tokens.bits >= 32 && bits < config->tokens.bits;
}

int fl_column_window_open(const fl_column_window_config *config, fl_column **out, fl_err *err)
{
    *out = NULL;
    window_column *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    self->config = *config;
    self->base = (fl_column){.ops = &window_ops,
                             .length = fl_windows_count(config->windows),
                             .outputs = fl_column_window_dtypes(config, self->dtypes),
                             .is_volatile = fl_token_reader_is_volatile(config->reader)};
    *out = &self->base;
    return FL_OK;
}

int32_t fl_column_window_dtypes(const fl_column_window_config *config, fl_dtype *out)
{
    static const fl_dtype integer = {0, 64, 1}, truth = {6, 8, 1}; /* dtypes of DLPack */
    int32_t count = 0;
    out[count++] = config->tokens;
    if (config->has_y) out[count++] = config->tokens;
    if (!config->has_documents) return count;
    out[count++] = integer;
    out[count++] = integer;
    out[count++] = truth;
    return count;
}
