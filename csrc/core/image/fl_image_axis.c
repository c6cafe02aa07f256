/* fl_image_axis: see fl_image_axis.h. */
#include "fl_image_axis.h"

#include <assert.h>

static inline bool is_filled(const fl_segment *s) { return s->fill != FL_NO_FILL; }

static fl_segment reversed(fl_segment s)
{
    return (fl_segment){s.from + (s.length - 1) * s.step, -s.step, s.length, s.fill};
}

static inline void append(fl_image_axis *axis, fl_segment s)
{
    assert(axis->count < FL_MAX_SEGMENTS);
    axis->segment[axis->count++] = s;
    axis->length += s.length;
}

/* Appends samples [from, to) of `source`; if is_reversed, the last sample comes first. */
static void append_range(fl_image_axis *axis, const fl_image_axis *source, int32_t from, int32_t to,
                         bool is_reversed)
{
    int32_t at = is_reversed ? source->length : 0;
    for (int32_t n = 0; n < source->count; n++) {
        fl_segment s = source->segment[is_reversed ? source->count - 1 - n : n];
        int32_t begin = is_reversed ? at - s.length : at, end = begin + s.length;
        at = is_reversed ? begin : end;
        int32_t first = begin > from ? begin : from, last = end < to ? end : to;
        if (first >= last) continue;
        fl_segment part = {s.from + (first - begin) * s.step, s.step, last - first, s.fill};
        append(axis, is_reversed ? reversed(part) : part);
    }
}

/* Copies an axis without its unused segments: most axes use one to three segments of 96. */
static void copy_used(fl_image_axis *to, const fl_image_axis *from)
{
    to->length = from->length;
    to->count = from->count;
    for (int32_t n = 0; n < from->count; n++) to->segment[n] = from->segment[n];
}

static void clear(fl_image_axis *axis) { axis->length = axis->count = 0; }

void fl_image_axis_start(fl_image_axis *axis, int32_t length)
{
    clear(axis);
    append(axis, (fl_segment){0, 1, length, FL_NO_FILL});
}

void fl_image_axis_crop(fl_image_axis *axis, int32_t from, int32_t length)
{
    if (from == 0 && length == axis->length) return;
    fl_image_axis old;
    copy_used(&old, axis);
    clear(axis);
    append_range(axis, &old, from, from + length, false);
}

void fl_image_axis_flip(fl_image_axis *axis)
{
    fl_image_axis old;
    copy_used(&old, axis);
    clear(axis);
    append_range(axis, &old, 0, old.length, true);
}

/* Returns sample i as a segment of length 1. */
static fl_segment sample_at(const fl_image_axis *axis, int32_t i)
{
    assert(i >= 0 && i < axis->length);
    const fl_segment *s = axis->segment;
    while (i >= s->length) i -= s++->length;
    return (fl_segment){s->from + i * s->step, s->step, 1, s->fill};
}

/* Appends padding before or after the axis. FL_PAD_EDGE repeats the first or the last sample; the
 * mirror modes repeat the samples next to that end, reversed. */
static void append_padding(fl_image_axis *axis, const fl_image_axis *old, int32_t length,
                           bool is_before, fl_padding_mode mode, int32_t op)
{
    if (length == 0) return;
    int32_t skipped = mode == FL_PAD_REFLECT ? 1 : 0;
    if (mode == FL_PAD_CONSTANT) {
        append(axis, (fl_segment){0, 0, length, op});
    } else if (mode == FL_PAD_EDGE) {
        fl_segment edge = sample_at(old, is_before ? 0 : old->length - 1);
        append(axis, (fl_segment){edge.from, 0, length, edge.fill});
    } else if (is_before) {
        append_range(axis, old, skipped, skipped + length, true);
    } else {
        int32_t end = old->length - skipped;
        append_range(axis, old, end - length, end, true);
    }
}

void fl_image_axis_pad(fl_image_axis *axis, int32_t before, int32_t after, fl_padding_mode mode,
                       int32_t op)
{
    if (before == 0 && after == 0) return;
    fl_image_axis old;
    copy_used(&old, axis);
    clear(axis);
    append_padding(axis, &old, before, true, mode, op);
    append_range(axis, &old, 0, old.length, false);
    append_padding(axis, &old, after, false, mode, op);
}

int64_t fl_image_axis_padded_count(int64_t count, fl_padding_mode mode)
{
    return mode == FL_PAD_REFLECT || mode == FL_PAD_SYMMETRIC ? 3 * count : count + 2;
}

bool fl_image_axis_range(const fl_image_axis *axis, int32_t *from, int32_t *to)
{
    *from = INT32_MAX;
    *to = 0;
    for (int32_t n = 0; n < axis->count; n++) {
        const fl_segment *s = &axis->segment[n];
        if (is_filled(s)) continue;
        int32_t first = s->from, last = s->from + (s->length - 1) * s->step;
        int32_t low = first < last ? first : last, high = first < last ? last : first;
        *from = low < *from ? low : *from;
        *to = high + 1 > *to ? high + 1 : *to;
    }
    return *from < *to;
}

void fl_image_axis_shift(fl_image_axis *axis, int32_t by)
{
    for (int32_t n = 0; n < axis->count; n++) axis->segment[n].from -= by;
}
