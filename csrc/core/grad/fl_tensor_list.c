/* fl_tensor_list: see fl_tensor_list.h. */
#include "fl_tensor_list.h"

#include <assert.h>

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

struct fl_range {
    uintptr_t first, end;
};

void fl_tensor_list_close(fl_tensor_list *list)
{
    fl_free(list->spans);
    fl_free(list->sums);
    fl_free(list->ranges);
    *list = (fl_tensor_list){0};
}

void fl_tensor_list_begin(fl_tensor_list *list)
{
    list->count = 0;
    list->is_changed = false;
}

static int leave_empty(fl_tensor_list *list, int status)
{
    list->count = list->chunks = list->bytes = list->collected = 0;
    return status;
}

int fl_tensor_list_add(fl_tensor_list *list, char *data, int64_t count, int32_t type, fl_err *err)
{
    assert(count >= 0 && type >= 0 && type < FL_FLOATS);
    if (count == 0) return FL_OK;
    int64_t at = list->count;
    int status = fl_grow((void **)&list->spans, &list->capacity, at + 1, sizeof *list->spans, err);
    if (status != FL_OK) return leave_empty(list, status);
    fl_span *span = &list->spans[at];
    list->count++;
    if (at < list->collected && span->data == data && span->count == count && span->type == type)
        return FL_OK;
    *span = (fl_span){.data = data, .count = count, .type = type};
    list->is_changed = true;
    list->collected = 0; /* if this collection fails, the last one is gone */
    return FL_OK;
}

static int count_chunks(fl_tensor_list *list, fl_err *err)
{
    list->chunks = list->bytes = 0;
    for (int64_t i = 0; i < list->count; i++) {
        fl_span *span = &list->spans[i];
        span->chunk = list->chunks;
        list->chunks += (span->count - 1) / FL_CHUNK + 1;
        list->bytes += span->count * fl_float_bytes(span->type);
    }
    return fl_grow((void **)&list->sums, &list->sums_capacity, list->chunks, sizeof *list->sums,
                   err);
}

/* Sorts by one digit of a radix sort, from `in` to `out`. The digit is the bits from `shift` on of
 * the distance from `lowest`. */
static void
sort_digit(const fl_range *in, fl_range *out, int64_t count, uintptr_t lowest, int shift)
{
    int64_t place[DIGITS + 1] = {0};
    for (int64_t i = 0; i < count; i++)
        place[((in[i].first - lowest) >> shift & (DIGITS - 1)) + 1]++;
    for (int d = 0; d < DIGITS; d++) place[d + 1] += place[d];
    for (int64_t i = 0; i < count; i++)
        out[place[(in[i].first - lowest) >> shift & (DIGITS - 1)]++] = in[i];
}

static bool is_apart(const fl_range *ranges, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (ranges[i].first < ranges[i - 1].end) return false;
    return true;
}

static int check_overlap(fl_tensor_list *list, fl_err *err)
{
    int64_t count = list->count;
    FL_TRY(fl_grow((void **)&list->ranges, &list->ranges_capacity, 2 * count, sizeof *list->ranges,
                   err));
    fl_range *in = list->ranges, *out = list->ranges + count;
    uintptr_t lowest = UINTPTR_MAX, highest = 0;
    for (int64_t i = 0; i < count; i++) {
        const fl_span *span = &list->spans[i];
        uintptr_t first = (uintptr_t)span->data;
        in[i] = (fl_range){first, first + (uintptr_t)(span->count * fl_float_bytes(span->type))};
        lowest = first < lowest ? first : lowest;
        highest = first > highest ? first : highest;
    }
    if (is_apart(in, count)) return FL_OK; /* in order already */
    for (int shift = 0; shift < 64 && (highest - lowest) >> shift != 0; shift += DIGIT_BITS) {
        sort_digit(in, out, count, lowest, shift);
        fl_range *sorted = out;
        out = in;
        in = sorted;
    }
    if (is_apart(in, count)) return FL_OK;
    return fl_fail(err, FL_EINVAL, "two of the tensors share memory");
}

int fl_tensor_list_end(fl_tensor_list *list, fl_err *err)
{
    if (list->count != list->collected) list->is_changed = true;
    if (!list->is_changed) return FL_OK;
    int status = count_chunks(list, err);
    if (status == FL_OK) status = check_overlap(list, err);
    if (status != FL_OK) return leave_empty(list, status);
    list->collected = list->count;
    return FL_OK;
}

int64_t fl_tensor_list_find(const fl_tensor_list *list, int64_t chunk)
{
    assert(chunk >= 0 && chunk < list->chunks);
    int64_t low = 0, high = list->count; /* the span begins in [low, high) */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (list->spans[middle].chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}
