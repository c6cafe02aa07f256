/* fl_band_reader: see fl_band_reader.h. */
#include "fl_band_reader.h"

#include <string.h>

enum { BAND_BYTES = 16 * 1024, SHORT_RUN = 64 };

/* ---- open */

static int32_t last_fill(const fl_image_axis *axis)
{
    int32_t fill = FL_NO_FILL;
    for (int32_t n = 0; n < axis->count; n++)
        fill = axis->segment[n].fill > fill ? axis->segment[n].fill : fill;
    return fill;
}

/* Rows that follow each other in memory are split whole if at least half of them is needed: in one
 * call then. */
static void choose_columns(fl_band_reader *r)
{
    int32_t width = r->source.size.width;
    bool is_dense = r->source.stride_y == (int64_t)width * r->tools.channels;
    if (!is_dense || 2 * (r->to - r->from) < width) return;
    r->from = 0;
    r->to = width;
}

int fl_band_reader_open(fl_band_reader *reader, const fl_image_tools *tools,
                        const fl_image_source *source, const fl_image_axis *y,
                        const fl_image_axis *x, fl_err *err)
{
    *reader = (fl_band_reader){.tools = *tools, .source = *source, .y = y, .x = x};
    int32_t fill_y = last_fill(y), fill_x = last_fill(x);
    reader->base_fill = fill_y > fill_x ? fill_y : fill_x;
    bool reads = fl_image_axis_range(x, &reader->from, &reader->to);
    reader->is_interleaved = reads && tools->channels > 1 && source->stride_c == 1 &&
                             source->stride_x == tools->channels;
    int64_t width = x->length;
    if (reader->is_interleaved) {
        choose_columns(reader);
        width = fl_max(width, reader->to - reader->from);
    }
    reader->band_rows = (int32_t)fl_min(fl_max(BAND_BYTES / width, 1), y->length);
    if (!reader->is_interleaved) return FL_OK;
    reader->split = fl_scratch_memory(tools->scratch, FL_SCRATCH_SPLIT,
                                      reader->band_rows * width * tools->channels);
    if (reader->split != NULL) return FL_OK;
    return fl_fail(err, FL_ENOMEM, "out of memory for rows of an image");
}

/* ---- runs of bytes, most of them short */

static inline uint64_t load_8(const uint8_t *src)
{
    uint64_t word;
    memcpy(&word, src, sizeof word);
    return word;
}

static inline void copy_run(uint8_t *dst, const uint8_t *src, int32_t length)
{
    if (length < 16 || length > 32) {
        memcpy(dst, src, (size_t)length);
        return;
    }
    char head[16], tail[16]; /* may overlap */
    memcpy(head, src, 16);
    memcpy(tail, src + length - 16, 16);
    memcpy(dst, head, 16);
    memcpy(dst + length - 16, tail, 16);
}

/* dst[i] = src[-i] */
static inline void
reverse_run(const fl_image_ops *ops, uint8_t *dst, const uint8_t *src, int32_t length)
{
    const uint8_t *low = src - (length - 1);
    if (length < 8 || length > SHORT_RUN) {
        ops->reverse(dst, low, length);
        return;
    }
    for (int32_t i = 0; i + 8 < length; i += 8) {
        uint64_t word = __builtin_bswap64(load_8(src - i - 7));
        memcpy(dst + i, &word, sizeof word);
    }
    uint64_t last = __builtin_bswap64(load_8(low));
    memcpy(dst + length - 8, &last, sizeof last);
}

/* ---- blocks: rows of one segment of y, columns of one segment of x */

typedef struct block {
    const uint8_t *src; /* its first element */
    int64_t step_y, step_x;
    int32_t rows, columns;
} block;

static void read_block(const fl_image_ops *ops, const block *b, uint8_t *dst, int64_t dst_pitch)
{
    const uint8_t *src = b->src;
    int32_t columns = b->columns;
    bool is_dense = b->step_x == 1 && b->step_y == columns && dst_pitch == columns;
    if (is_dense) {
        memcpy(dst, src, (size_t)b->rows * (size_t)columns);
        return;
    }
    for (int32_t i = 0; i < b->rows; i++, src += b->step_y, dst += dst_pitch) {
        if (b->step_x == 1)
            copy_run(dst, src, columns);
        else if (b->step_x == -1)
            reverse_run(ops, dst, src, columns);
        else if (b->step_x == 0)
            memset(dst, *src, (size_t)columns);
        else
            for (int32_t k = 0; k < columns; k++) dst[k] = src[k * b->step_x];
    }
}

static void
fill_block(uint8_t value, int32_t rows, int32_t columns, uint8_t *dst, int64_t dst_pitch)
{
    for (int32_t i = 0; i < rows; i++) memset(dst + i * dst_pitch, value, (size_t)columns);
}

/* ---- bands */

/* The rows of `rows` split into planes: as a source of one channel, whose row 0 is the first of
 * them. */
static fl_image_source split_rows(const fl_band_reader *r, const fl_segment *rows)
{
    const fl_image_source *s = &r->source;
    int32_t last = rows->from + (rows->length - 1) * rows->step;
    int32_t low = rows->from < last ? rows->from : last;
    int32_t count = rows->step != 0 ? rows->length : 1;
    int64_t width = r->to - r->from, plane = width * count;
    const uint8_t *src = s->data + low * s->stride_y + r->from * s->stride_x;
    if (s->stride_y == width * r->tools.channels) {
        r->tools.image_ops->split(r->split, plane, src, plane, r->tools.channels);
    } else {
        for (int32_t i = 0; i < count; i++)
            r->tools.image_ops->split(r->split + i * width, plane, src + i * s->stride_y, width,
                                      r->tools.channels);
    }
    return (fl_image_source){.data = r->split + (rows->from - low) * width - r->from,
                             .stride_y = width,
                             .stride_x = 1,
                             .stride_c = plane};
}

static void read_rows(const fl_band_reader *r, const fl_segment *rows, uint8_t *dst, int64_t pitch)
{
    fl_image_source from = {0};
    if (rows->fill == FL_NO_FILL && r->is_interleaved) {
        from = split_rows(r, rows);
    } else if (rows->fill == FL_NO_FILL) {
        from = r->source;
        from.data += rows->from * from.stride_y;
    }
    for (int32_t c = 0; c < r->tools.channels; c++) {
        uint8_t *to = dst + c * pitch;
        for (int32_t n = 0; n < r->x->count; n++) {
            const fl_segment *s = &r->x->segment[n];
            int32_t fill = rows->fill > s->fill ? rows->fill : s->fill;
            block b = {.step_y = rows->step * from.stride_y,
                       .step_x = s->step * from.stride_x,
                       .rows = rows->length,
                       .columns = s->length};
            if (fill == FL_NO_FILL) {
                b.src = from.data + c * from.stride_c + s->from * from.stride_x;
                read_block(r->tools.image_ops, &b, to, r->x->length);
            } else if (fill != r->base_fill) {
                fill_block(r->tools.ops[fill].fill[c], b.rows, b.columns, to, r->x->length);
            }
            to += s->length;
        }
    }
}

void fl_band_reader_read(const fl_band_reader *reader, int32_t first, int32_t count, uint8_t *dst,
                         int64_t pitch)
{
    int64_t width = reader->x->length;
    if (reader->base_fill != FL_NO_FILL)
        for (int32_t c = 0; c < reader->tools.channels; c++)
            memset(dst + c * pitch, reader->tools.ops[reader->base_fill].fill[c],
                   (size_t)(count * width));
    int32_t at = 0;
    for (int32_t n = 0; n < reader->y->count && at < first + count; n++) {
        fl_segment s = reader->y->segment[n];
        int32_t begin = at > first ? at : first;
        int32_t end = (int32_t)fl_min(at + s.length, first + count);
        if (begin < end) {
            fl_segment part = {s.from + (begin - at) * s.step, s.step, end - begin, s.fill};
            read_rows(reader, &part, dst + (begin - first) * width, pitch);
        }
        at += s.length;
    }
}

const uint8_t *fl_band_reader_direct(const fl_band_reader *reader)
{
    const fl_image_source *s = &reader->source;
    bool is_direct = s->stride_x == 1 && s->stride_y == reader->x->length &&
                     fl_image_axis_is_plain(reader->y) && fl_image_axis_is_plain(reader->x);
    if (!is_direct) return NULL;
    return s->data + reader->y->segment[0].from * s->stride_y + reader->x->segment[0].from;
}
