/* fl_packing: see fl_packing.h. */
#include "fl_packing.h"

/* A row while it is filled. The rows lie after the sequences in memory; there are at most as many
 * rows as sequences. */
typedef struct packed_row {
    int64_t used;  /* elements */
    int64_t count; /* sequences; at the end the number of the row's first segment */
    int64_t last;  /* the row's last sequence */
} packed_row;

enum { WORD = sizeof(int64_t) };

int fl_packing_reserve(fl_notes *notes, int64_t count, fl_packing **out, fl_err *err)
{
    int64_t words = (int64_t)(sizeof(fl_packing) / WORD);
    int64_t each = (int64_t)((sizeof(fl_packed) + sizeof(packed_row)) / WORD), all;
    if (!fl_mul(count, each, &all) || !fl_add(all, words, &all)) return fl_fail_batch_size(err);
    FL_TRY(fl_notes_reserve(notes, all, err));
    *out = fl_packing_of(notes);
    return FL_OK;
}

int fl_packing_check_size(const fl_packing *packing, fl_err *err)
{
    int64_t total;
    if (!fl_mul(packing->rows, packing->width, &total)) total = INT64_MAX;
    if (total <= INT32_MAX) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "a batch must have at most %d tokens, as cu_seqlens counts, got %lld (make "
                   "batches smaller)",
                   INT32_MAX, (long long)total);
}

static int fit_one_row(fl_packing *packing, int64_t count, fl_err *err)
{
    packing->rows = 1;
    packing->width = packing->longest = 0;
    packing->segments = count;
    for (int64_t i = 0; i < count; i++) {
        fl_packed *sequence = &packing->sequences[i];
        sequence->start = packing->width;
        sequence->segment = i;
        sequence->padding = 0;
        packing->longest = fl_max(packing->longest, sequence->length);
        if (!fl_add(packing->width, sequence->length, &packing->width))
            return fl_fail_batch_size(err);
    }
    return fl_packing_check_size(packing, err);
}

/* Appends sequence i to this row; until all sequences are placed, `segment` is the row's number. */
static void put(fl_packing *packing, packed_row *rows, int64_t i, int64_t row)
{
    fl_packed *sequence = &packing->sequences[i];
    if (row == packing->rows) {
        rows[row] = (packed_row){0};
        packing->rows++;
    }
    sequence->start = rows[row].used;
    sequence->segment = row;
    sequence->padding = rows[row].count++;
    rows[row].used += sequence->length;
    rows[row].last = i;
}

/* Numbers the segments of rows; padding at the end of a row counts as a segment. */
static void number_segments(fl_packing *packing, packed_row *rows, int64_t max_tokens)
{
    for (int64_t row = 0; row < packing->rows; row++) {
        int64_t padding = max_tokens - rows[row].used, count = rows[row].count;
        rows[row].count = packing->segments;
        packing->segments += count + (padding > 0);
        packing->longest = fl_max(packing->longest, padding);
    }
}

int fl_packing_fit(fl_packing *packing, int64_t count, int64_t max_tokens, fl_err *err)
{
    if (max_tokens == 0) return fit_one_row(packing, count, err);
    packed_row *rows = (packed_row *)(void *)&packing->sequences[count];
    int64_t open = 0; /* the first row that is not full */
    packing->rows = packing->segments = packing->longest = 0;
    packing->width = max_tokens;
    for (int64_t i = 0; i < count; i++) {
        int64_t length = packing->sequences[i].length, row = length > 0 ? open : 0;
        if (length > max_tokens)
            return fl_fail(err, FL_EINVAL,
                           "sample %lld of the batch must have at most max_tokens=%lld tokens, got "
                           "%lld (cut the sample, or pass a larger max_tokens)",
                           (long long)i, (long long)max_tokens, (long long)length);
        while (row < packing->rows && rows[row].used > max_tokens - length) row++;
        put(packing, rows, i, row);
        while (open < packing->rows && rows[open].used == max_tokens) open++;
        packing->longest = fl_max(packing->longest, length);
    }
    FL_TRY(fl_packing_check_size(packing, err));
    number_segments(packing, rows, max_tokens);
    for (int64_t i = 0; i < count; i++) {
        fl_packed *sequence = &packing->sequences[i];
        const packed_row *row = &rows[sequence->segment];
        sequence->start += sequence->segment * max_tokens;
        sequence->segment = row->count + sequence->padding;
        sequence->padding = row->last == i ? max_tokens - row->used : 0;
    }
    return FL_OK;
}
