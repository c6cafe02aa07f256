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

/* Adds a planned row at the end of the packing. */
static int add_row(fl_notes *notes, int64_t width, const fl_packed_row *row, fl_err *err)
{
    fl_packing *packing = fl_packing_of(notes);
    int64_t used = 0, count = packing->count;
    FL_TRY(fl_packing_reserve(notes, count + row->count, &packing, err));
    for (int64_t k = 0; k < row->count; k++) {
        const fl_packed_piece *piece = &row->pieces[k];
        packing->sequences[count + k] = (fl_packed){.length = piece->count,
                                                    .start = packing->rows * width + used,
                                                    .segment = packing->segments++,
                                                    .row = piece->document,
                                                    .first = piece->first};
        packing->longest = fl_max(packing->longest, piece->count);
        used += piece->count;
    }
    packing->count += row->count;
    packing->sequences[packing->count - 1].padding = width - used;
    packing->longest = fl_max(packing->longest, width - used);
    packing->segments += used < width;
    packing->rows++;
    return FL_OK;
}

/* Lays out the rows that the plan has for the batch. */
static int take_rows(const fl_column_pack_config *config, const fl_column_batch *batch, fl_err *err)
{
    fl_packing_reader *reader;
    fl_packing *packing;
    int64_t width = fl_epoch_packing_length(config->plan), count = batch->rows->count;
    FL_TRY(fl_packing_reserve(batch->notes, count, &packing, err));
    *packing = (fl_packing){.width = width};
    FL_TRY(fl_packing_reader_take(config->plan, &reader, err));
    int status = FL_OK;
    for (int64_t i = 0; status == FL_OK && i < count; i++) {
        fl_packed_row row;
        status = fl_packing_reader_find(reader, batch->epoch, fl_row_at(batch->rows, i), &row, err);
        if (status == FL_EINDEX && err != NULL) err->position = i;
        if (status == FL_OK) status = add_row(batch->notes, width, &row, err);
    }
    fl_packing_reader_give(config->plan, reader);
    FL_TRY(status);
    return fl_packing_check_size(fl_packing_of(batch->notes), err);
}

static int make_packing(const fl_column_pack_config *config, fl_column_batch *batch, fl_err *err)
{
    int64_t begin, count = batch->rows->count;
    if (count == 0) return fl_fail(err, FL_EINVAL, "the batch has no samples");
    if (config->plan != NULL) return take_rows(config, batch, err);
    fl_packing *packing;
    FL_TRY(fl_packing_reserve(batch->notes, count, &packing, err));
    for (int64_t i = 0; i < count; i++) {
        int64_t row = packing->sequences[i].row = fl_row_at(batch->rows, i);
        int status = fl_ragged_find(&config->main, row, &begin, &packing->sequences[i].length, err);
        packing->sequences[i].first = 0;
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
    bool has_offsets = config->plan == NULL && config->ragged.offsets != config->main.offsets;
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
    output->is_whole = is_vector || config->plan == NULL;
    batch->work_bytes = output->bytes;
    return FL_OK;
}

/* Returns 1 if a sequence begins with the token before a document, else 0. */
static int64_t lead_of(const fl_column_pack_config *config, const fl_packed *sequence)
{
    return config->has_bos && sequence->first == 0 ? 1 : 0;
}

/* Finds the values of a sequence, and where they go. */
static int find_piece(const pack_column *self, const fl_packed *sequence, char *out,
                      fl_ragged_piece *piece, fl_err *err)
{
    const fl_column_pack_config *config = &self->config;
    int64_t lead = lead_of(config, sequence), begin, length;
    FL_TRY(fl_ragged_find(&config->ragged, sequence->row, &begin, &length, err));
    int64_t passed = fl_min(sequence->first + lead - config->has_bos, length);
    piece->begin = begin + passed;
    piece->count = fl_min(length - passed, sequence->length - lead);
    piece->dst = out + (sequence->start + lead) * fl_dtype_bytes(self->dtype);
    return FL_OK;
}

/* Writes the elements of a sequence around its values, and the padding after the sequence. */
static void
pad_sequence(const pack_column *self, const fl_packed *sequence, const fl_ragged_piece *piece)
{
    const fl_column_pack_config *config = &self->config;
    int64_t bytes = fl_dtype_bytes(self->dtype), lead = lead_of(config, sequence);
    int64_t rest = sequence->length - lead - piece->count;
    char *begin = piece->dst - lead * bytes, *end = piece->dst + piece->count * bytes;
    config->ops->fill(end, config->padding, bytes, rest + sequence->padding);
    if (config->has_eos && rest == 1) config->ops->fill(end, config->eos, bytes, 1);
    if (lead > 0) config->ops->fill(begin, config->bos, bytes, 1);
    if (config->is_label && sequence->length > 0)
        config->ops->fill(begin, config->padding, bytes, 1);
}

/* Gathers the values of at least one sequence, and of up to PIECES. */
static int gather_values(const pack_column *self, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *out, fl_err *err)
{
    const fl_column_pack_config *config = &self->config;
    const fl_packed *sequences = packing_of(config, batch)->sequences;
    fl_ragged_piece pieces[PIECES];
    int64_t found = from;
    do {
        int status = find_piece(self, &sequences[found], out, &pieces[found - from], err);
        if (status != FL_OK) return fl_column_name_row(err, status, batch, sequences[found].row);
    } while (++found < to);
    int64_t done =
        fl_ragged_copy(&config->ragged, config->ops, config->is_widened, pieces, to - from);
    if (done < 0) return fl_fail(err, FL_ENOMEM, "out of memory for reads of a mapped file");
    if (done < to - from) return fl_column_fail_row(err, batch, sequences[from + done].row);
    for (int64_t i = from; i < to; i++) pad_sequence(self, &sequences[i], &pieces[i - from]);
    return FL_OK;
}

static void
gather_positions(const fl_column_pack_config *config, const fl_packed *sequence, int64_t *out)
{
    config->ops->count_up(out + sequence->start, sequence->length);
    config->ops->count_up(out + sequence->start + sequence->length, sequence->padding);
}

/* Writes the number of a sequence in its row, and the next number over the padding. */
static void gather_documents(const fl_column_pack_config *config, const fl_packed *sequence,
                             int64_t number, int64_t *out)
{
    int64_t next = number + 1, *end = out + sequence->start + sequence->length;
    config->ops->fill(out + sequence->start, &number, sizeof number, sequence->length);
    config->ops->fill(end, &next, sizeof next, sequence->padding);
}

/* Writes where a sequence begins, and where the padding after the sequence begins. */
static void gather_bounds(const fl_packed *sequence, int32_t *out)
{
    out[sequence->segment] = (int32_t)sequence->start;
    if (sequence->padding > 0)
        out[sequence->segment + 1] = (int32_t)(sequence->start + sequence->length);
}

/* Returns the first sequence of a planned row; for the number of rows: the number of sequences. */
static int64_t find_first(const fl_packing *packing, int64_t row)
{
    int64_t first = 0, count = packing->count;
    while (count > 0) {
        int64_t half = count / 2;
        bool is_before = packing->sequences[first + half].start < row * packing->width;
        first = is_before ? first + half + 1 : first;
        count = is_before ? count - half - 1 : half;
    }
    return first;
}

static int gather_packed(const fl_column *column, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *buffer, fl_err *err)
{
    const pack_column *self = as_pack(column);
    const fl_column_pack_config *config = &self->config;
    const fl_packing *packing = packing_of(config, batch);
    char *out = buffer + batch->outputs->offset;
    if (config->plan != NULL) { /* parts divide the rows */
        from = find_first(packing, from);
        to = find_first(packing, to);
    }
    if (config->output == FL_PACK_VALUES) {
        for (; from < to; from += PIECES)
            FL_TRY(gather_values(self, batch, from, fl_min(to, from + PIECES), out, err));
    } else if (config->output == FL_PACK_POSITIONS) {
        for (int64_t i = from; i < to; i++)
            gather_positions(config, &packing->sequences[i], (int64_t *)(void *)out);
    } else if (config->output == FL_PACK_DOCUMENTS) {
        for (int64_t i = from, number = 0; i < to; i++, number++) {
            if (packing->sequences[i].start % packing->width == 0) number = 0;
            gather_documents(config, &packing->sequences[i], number, (int64_t *)(void *)out);
        }
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
    if (column->is_volatile && as_pack(column)->config.plan != NULL) { /* any document may be cut */
        const char *end = ragged->values + ragged->count * fl_dtype_bytes(ragged->dtype);
        return end > limit ? fl_row_at(rows, 0) : -1;
    }
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
    self->base =
        (fl_column){.ops = &pack_ops,
                    .length = config->plan != NULL ? FL_EPOCH_PACKING_ROWS : config->main.length,
                    .outputs = 1,
                    .is_volatile = has_values && config->ragged.is_volatile};
    self->config = *config;
    self->dtype = INT64;
    if (has_values && !config->is_widened) self->dtype = config->ragged.dtype;
    if (config->output == FL_PACK_BOUNDS) self->dtype = INT32;
    *out = &self->base;
    return FL_OK;
}
