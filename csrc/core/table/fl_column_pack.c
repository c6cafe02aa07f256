/* fl_column_pack: see fl_column_pack.h. */
#include "fl_column_pack.h"

#include <assert.h>

enum { PIECES = 64 }; /* sequences that are copied in one call */

static const fl_dtype INT32 = {0, 32, 1}, INT64 = {0, 64, 1};

typedef struct pack_column {
    fl_column base;
    fl_column_pack_config config;
    fl_dtype dtype; /* of the output */
} pack_column;

static const pack_column *as_pack(const fl_column *column) { return (const pack_column *)column; }

/* Returns the packing of the batch, in the notes of the column that made the packing. */
static fl_packing *packing_of(const fl_column_pack_config *config, const fl_column_batch *batch)
{
    return fl_packing_of(batch->notes - config->leader);
}

static int make_packing(const fl_column_pack_config *config, fl_column_batch *batch, fl_err *err)
{
    int64_t begin, count = batch->rows->count;
    if (count == 0) return fl_fail(err, FL_EINVAL, "the batch has no samples");
    fl_packing *packing;
    FL_TRY(fl_packing_reserve(batch->notes, count, &packing, err));
    for (int64_t i = 0; i < count; i++) {
        int64_t row = fl_row_at(batch->rows, i);
        int status = fl_ragged_find(&config->main, row, &begin, &packing->sequences[i].length, err);
        if (status != FL_OK) return fl_column_name_row(err, status, batch, row);
    }
    return fl_packing_fit(packing, count, config->max_tokens, err);
}

/* Fails unless every sequence has the length of the main field's sequence, since both are packed
 * side by side. */
static int
check_lengths(const fl_column_pack_config *config, const fl_column_batch *batch, fl_err *err)
{
    const fl_packing *packing = packing_of(config, batch);
    for (int64_t i = 0; i < batch->rows->count; i++) {
        int64_t begin, length, row = fl_row_at(batch->rows, i);
        int status = fl_ragged_find(&config->ragged, row, &begin, &length, err);
        if (status != FL_OK) return fl_column_name_row(err, status, batch, row);
        if (length != packing->sequences[i].length)
            return fl_fail(err, FL_EINVAL,
                           "%s of sample %lld must have %lld elements, as %s has, got %lld",
                           config->name, (long long)i, (long long)packing->sequences[i].length,
                           config->main_name, (long long)length);
    }
    return FL_OK;
}

static int layout_packed(const fl_column *column, fl_column_batch *batch, fl_err *err)
{
    const pack_column *self = as_pack(column);
    const fl_column_pack_config *config = &self->config;
    fl_output *output = batch->outputs;
    assert(config->leader <= batch->field);
    if (config->leader == 0) FL_TRY(make_packing(config, batch, err));
    bool has_offsets = config->ragged.offsets != config->main.offsets;
    if (config->output == FL_PACK_VALUES && has_offsets) FL_TRY(check_lengths(config, batch, err));
    const fl_packing *packing = packing_of(config, batch);
    batch->work_bytes = 0;
    if (config->output == FL_PACK_LONGEST) {
        fl_output_set_number(output, packing->longest);
        return FL_OK;
    }
    bool is_vector = config->output == FL_PACK_BOUNDS;
    int64_t rows[] = {packing->rows, packing->width}, bounds[] = {packing->segments + 1};
    FL_TRY(fl_output_set(output, self->dtype, is_vector ? 1 : 2, is_vector ? bounds : rows, err));
    output->is_whole = true;
    batch->work_bytes = output->bytes;
    return FL_OK;
}

/* Pads the elements after the `count` values of a sequence. */
static void
pad_sequence(const pack_column *self, const fl_packed *sequence, int64_t count, char *dst)
{
    const fl_column_pack_config *config = &self->config;
    int64_t bytes = fl_dtype_bytes(self->dtype), rest = sequence->length - count;
    config->ops->fill(dst + count * bytes, config->padding, bytes, rest + sequence->padding);
    if (config->is_label && sequence->length > 0) config->ops->fill(dst, config->padding, bytes, 1);
}

/* Gathers the values of up to PIECES sequences. */
static int gather_values(const pack_column *self, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *out, fl_err *err)
{
    const fl_column_pack_config *config = &self->config;
    const fl_packed *sequences = packing_of(config, batch)->sequences;
    int64_t bytes = fl_dtype_bytes(self->dtype);
    fl_ragged_piece pieces[PIECES];
    for (int64_t i = from; i < to; i++) {
        fl_ragged_piece *piece = &pieces[i - from];
        int64_t row = fl_row_at(batch->rows, i);
        int status = fl_ragged_find(&config->ragged, row, &piece->begin, &piece->count, err);
        if (status != FL_OK) return fl_column_name_row(err, status, batch, row);
        piece->count = fl_min(piece->count, sequences[i].length);
        piece->dst = out + sequences[i].start * bytes;
    }
    int64_t done =
        fl_ragged_copy(&config->ragged, config->ops, config->is_widened, pieces, to - from);
    if (done < 0) return fl_fail(err, FL_ENOMEM, "out of memory for reads of a mapped file");
    if (done < to - from)
        return fl_column_fail_row(err, batch, fl_row_at(batch->rows, from + done));
    for (int64_t i = from; i < to; i++)
        pad_sequence(self, &sequences[i], pieces[i - from].count, pieces[i - from].dst);
    return FL_OK;
}

static void
gather_positions(const fl_column_pack_config *config, const fl_packed *sequence, int64_t *out)
{
    config->ops->count_up(out + sequence->start, sequence->length);
    config->ops->count_up(out + sequence->start + sequence->length, sequence->padding);
}

/* Writes where a sequence begins, and where the padding after the sequence begins. */
static void gather_bounds(const fl_packed *sequence, int32_t *out)
{
    out[sequence->segment] = (int32_t)sequence->start;
    if (sequence->padding > 0)
        out[sequence->segment + 1] = (int32_t)(sequence->start + sequence->length);
}

static int gather_packed(const fl_column *column, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *buffer, fl_err *err)
{
    const pack_column *self = as_pack(column);
    const fl_column_pack_config *config = &self->config;
    const fl_packing *packing = packing_of(config, batch);
    char *out = buffer + batch->outputs->offset;
    if (config->output == FL_PACK_VALUES) {
        for (; from < to; from += PIECES)
            FL_TRY(gather_values(self, batch, from, fl_min(to, from + PIECES), out, err));
    } else if (config->output == FL_PACK_POSITIONS) {
        for (int64_t i = from; i < to; i++)
            gather_positions(config, &packing->sequences[i], (int64_t *)(void *)out);
    } else if (config->output == FL_PACK_BOUNDS) {
        int32_t *bounds = (int32_t *)(void *)out;
        if (from == 0) bounds[packing->segments] = (int32_t)(packing->rows * packing->width);
        for (int64_t i = from; i < to; i++) gather_bounds(&packing->sequences[i], bounds);
    }
    return FL_OK;
}

int fl_column_pack_pieces(const fl_column_pack_config *config, const fl_packing *packing,
                          const fl_rows *rows, fl_piece *out, fl_err *err)
{
    for (int64_t i = 0; i < rows->count; i++) {
        const fl_packed *sequence = &packing->sequences[i];
        fl_piece *piece = &out[sequence->segment];
        FL_TRY(fl_ragged_find(&config->ragged, fl_row_at(rows, i), &piece->begin, &piece->length,
                              err));
        piece->start = sequence->start;
        if (sequence->padding > 0)
            piece[1] = (fl_piece){.start = sequence->start + sequence->length};
    }
    out[packing->segments] = (fl_piece){.start = packing->rows * packing->width};
    return FL_OK;
}

static int64_t
find_row_beyond(const fl_column *column, int32_t part, const fl_rows *rows, const char *limit)
{
    (void)part;
    const fl_ragged *ragged = &as_pack(column)->config.ragged;
    for (int64_t i = 0; column->is_volatile && i < rows->count; i++)
        if (fl_ragged_is_beyond(ragged, fl_row_at(rows, i), limit)) return fl_row_at(rows, i);
    return -1;
}

static void move_packed(fl_column *column, int32_t part, const char *data)
{
    (void)part;
    ((pack_column *)column)->config.ragged.values = data;
}

static const fl_column_ops pack_ops = {.layout = layout_packed,
                                       .gather = gather_packed,
                                       .row_beyond = find_row_beyond,
                                       .move = move_packed};

int fl_column_pack_open(const fl_column_pack_config *config, fl_column **out, fl_err *err)
{
    bool has_values = config->output == FL_PACK_VALUES;
    *out = NULL;
    pack_column *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    self->base = (fl_column){.ops = &pack_ops,
                             .length = config->main.length,
                             .outputs = 1,
                             .is_volatile = has_values && config->ragged.is_volatile};
    self->config = *config;
    self->dtype = INT64;
    if (has_values && !config->is_widened) self->dtype = config->ragged.dtype;
    if (config->output == FL_PACK_BOUNDS) self->dtype = INT32;
    *out = &self->base;
    return FL_OK;
}
