/* fl_band_reader: see fl_band_reader.h. */
#include "fl_band_reader.h"

enum { BAND_BYTES = 16 * 1024 };

/* ---- open */

static int32_t last_fill(const fl_image_axis *axis)
{
    int32_t fill = FL_NO_FILL;
    for (int32_t n = 0; n < axis->count; n++)
        fill = axis->segment[n].fill > fill ? axis->segment[n].fill : fill;
    return fill;
}

static fl_band_frame find_frame(const fl_band_form *form, const fl_image_axis *x)
{
    fl_band_frame frame = {.columns = -1, .fill = FL_NO_FILL};
    const fl_band_frame none = frame;
    for (int32_t n = 0; n < x->count; n++) {
        const fl_segment *s = &x->segment[n];
        if (s->fill == FL_NO_FILL) {
            if (frame.columns >= 0) return none;
            frame.columns = n;
            continue;
        }
        bool is_other = frame.fill != FL_NO_FILL && frame.fill != s->fill;
        bool is_typed = form->cast != NULL && (form->typed_fills >> s->fill & 1) != 0;
        if (is_other || is_typed) return none;
        frame.fill = s->fill;
        *(frame.columns < 0 ? &frame.before : &frame.after) += s->length;
    }
    return frame;
}

/* Chooses the columns to split. If rows follow each other in memory and at least half of each row
 * is needed, whole rows are split, because one call then splits several rows. */
static void choose_columns(fl_band_reader *r)
{
    int32_t width = r->source.size.width;
    bool is_dense = r->source.stride_y == (int64_t)width * r->lanes;
    if (!is_dense || 2 * (r->to - r->from) < width) return;
    r->from = 0;
    r->to = width;
}

/* Decodes the part of a JPEG file that the axes read, and makes the part the source. */
static int decode_source(fl_band_reader *r, fl_err *err)
{
    const fl_jpeg *jpeg = r->source.jpeg;
    fl_jpeg_part part = {.left = r->from, .right = r->to};
    if (!fl_image_axis_range(r->y, &part.top, &part.bottom) || r->from >= r->to)
        return fl_fail(err, FL_EINVAL,
                       "no pixel is read, so nobody knows whether the file is whole");
    fl_jpeg_widen(jpeg, &part);
    const int64_t pitch = (int64_t)r->lanes * (part.right - part.left);
    uint8_t *memory =
        fl_scratch_memory(r->tools.scratch, FL_SCRATCH_JPEG, pitch * (part.bottom - part.top));
    if (memory == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a part of an image");
    FL_TRY(fl_jpeg_read(jpeg, &part, memory, err));
    r->source.data = memory;
    r->source.stride_y = pitch;
    r->source.stride_x = r->lanes;
    r->top = part.top;
    r->left = part.left;
    return FL_OK;
}

int fl_band_reader_open(fl_band_reader *reader, const fl_image_tools *tools,
                        const fl_band_form *form, const fl_image_source *source,
                        const fl_image_axis *y, const fl_image_axis *x, fl_err *err)
{
    *reader = (fl_band_reader){.tools = *tools, .form = *form, .source = *source, .y = y, .x = x};
    reader->last_fill = last_fill(x);
    reader->frame = find_frame(form, x);
    bool reads = fl_image_axis_range(x, &reader->from, &reader->to);
    const int32_t lanes = source->is_padded ? FL_MAX_CHANNELS : tools->channels;
    bool is_joined = source->stride_c == 1 && source->stride_x == lanes;
    if (reads && tools->channels > 1 && (is_joined || source->ycc != NULL || source->jpeg != NULL))
        reader->lanes = lanes;
    if (source->jpeg != NULL) FL_TRY(decode_source(reader, err));
    int64_t width = x->length;
    if (reader->lanes > 0) {
        choose_columns(reader);
        width = fl_max(width, reader->to - reader->from);
    }
    reader->band_rows = (int32_t)fl_min(fl_max(BAND_BYTES / width, 1), y->length);
    if (reader->lanes == 0) return FL_OK;
    reader->split = fl_scratch_memory(tools->scratch, FL_SCRATCH_SPLIT,
                                      reader->band_rows * width * reader->lanes);
    if (reader->split != NULL) return FL_OK;
    return fl_fail(err, FL_ENOMEM, "out of memory for rows of an image");
}

/* ---- bands */

/* Splits `rows` into planes, and returns them as a source whose row 0 is the first row of its
 * memory. */
static fl_image_source split_rows(const fl_band_reader *r, const fl_segment *rows, int32_t low)
{
    const fl_image_source *s = &r->source;
    int32_t count = rows->step != 0 ? rows->length : 1;
    int64_t width = r->to - r->from, plane = width * count;
    const uint8_t *src =
        s->ycc != NULL ? NULL
                       : s->data + (low - r->top) * s->stride_y + (r->from - r->left) * s->stride_x;
    if (s->ycc != NULL) {
        for (int32_t i = 0; i < count; i++)
            r->tools.image_ops->read_ycc(r->split + i * width, plane, s->ycc, low + i, r->from,
                                         r->to);
    } else if (s->stride_y == width * r->lanes) {
        r->tools.image_ops->split(r->split, plane, src, plane, r->lanes);
    } else {
        for (int32_t i = 0; i < count; i++)
            r->tools.image_ops->split(r->split + i * width, plane, src + i * s->stride_y, width,
                                      r->lanes);
    }
    return (fl_image_source){.data = r->split, .stride_y = width, .stride_x = 1, .stride_c = plane};
}

/* Rows of one segment of y, or a part of such a segment. */
typedef struct strip {
    fl_image_source from; /* the memory that the rows are read from: */
    int32_t row, column; /* the row and column of the reader's source at which this memory begins */
    fl_segment rows;
} strip;

static strip open_strip(const fl_band_reader *r, fl_segment rows)
{
    strip s = {.from = r->source, .rows = rows};
    if (rows.fill != FL_NO_FILL || r->lanes == 0) return s;
    int32_t last = rows.from + (rows.length - 1) * rows.step;
    s.row = rows.from < last ? rows.from : last;
    s.column = r->from;
    s.from = split_rows(r, &rows, s.row);
    return s;
}

/* Returns the block for the columns of one segment of x in a strip. */
static fl_image_block block_of(const strip *s, const fl_segment *columns, int32_t channel)
{
    const fl_image_source *from = &s->from;
    return (fl_image_block){.src = from->data + channel * from->stride_c +
                                   (s->rows.from - s->row) * from->stride_y +
                                   (columns->from - s->column) * from->stride_x,
                            .pitch = s->rows.step * from->stride_y,
                            .step = columns->step * from->stride_x,
                            .rows = s->rows.length,
                            .columns = columns->length};
}

static void read_block(const fl_band_reader *r, const fl_image_block *block, int32_t channel,
                       char *dst, int64_t pitch)
{
    const fl_image_cast *cast = r->form.cast != NULL ? &r->form.cast[channel] : NULL;
    r->tools.image_ops->cast[r->form.type](dst, pitch, block, cast);
}

static void fill_block(const fl_band_reader *r, int32_t op, int32_t rows, int32_t columns,
                       int32_t channel, char *dst, int64_t pitch)
{
    int32_t bytes = fl_image_type_bytes(r->form.type);
    const fl_image_op *filler = &r->tools.ops[op];
    const uint8_t *value = r->form.cast != NULL ? filler->out_fill : filler->fill;
    r->tools.image_ops->fill(dst, pitch, rows, columns, value + channel * bytes, bytes);
}

static void
read_segments(const fl_band_reader *r, const strip *s, int32_t channel, char *dst, int64_t pitch)
{
    for (int32_t n = 0; n < r->x->count; n++) {
        const fl_segment *columns = &r->x->segment[n];
        int32_t fill = s->rows.fill > columns->fill ? s->rows.fill : columns->fill;
        if (fill == FL_NO_FILL) {
            const fl_image_block block = block_of(s, columns, channel);
            read_block(r, &block, channel, dst, pitch);
        } else {
            fill_block(r, fill, s->rows.length, columns->length, channel, dst, pitch);
        }
        dst += (int64_t)columns->length * fl_image_type_bytes(r->form.type);
    }
}

static void
read_framed(const fl_band_reader *r, const strip *s, int32_t channel, char *dst, int64_t pitch)
{
    const fl_band_frame *frame = &r->frame;
    fl_image_block block = block_of(s, &r->x->segment[frame->columns], channel);
    block.before = frame->before;
    block.after = frame->after;
    if (frame->fill != FL_NO_FILL) block.fill = r->tools.ops[frame->fill].fill[channel];
    read_block(r, &block, channel, dst, pitch);
}

static void read_strip(const fl_band_reader *r, const strip *s, char *dst, int64_t pitch)
{
    int64_t row_bytes = (int64_t)r->x->length * fl_image_type_bytes(r->form.type);
    for (int32_t c = 0; c < r->tools.channels; c++, dst += pitch) {
        if (s->rows.fill == FL_NO_FILL && r->frame.columns >= 0)
            read_framed(r, s, c, dst, row_bytes);
        else if (s->rows.fill != FL_NO_FILL && s->rows.fill >= r->last_fill)
            fill_block(r, s->rows.fill, s->rows.length, r->x->length, c, dst, row_bytes);
        else
            read_segments(r, s, c, dst, row_bytes);
    }
}

void fl_band_reader_read(const fl_band_reader *reader, int32_t first, int32_t count, void *dst,
                         int64_t pitch)
{
    int64_t row_bytes = (int64_t)reader->x->length * fl_image_type_bytes(reader->form.type);
    int32_t at = 0;
    for (int32_t n = 0; n < reader->y->count && at < first + count; n++) {
        fl_segment s = reader->y->segment[n];
        int32_t begin = at > first ? at : first;
        int32_t end = (int32_t)fl_min(at + s.length, first + count);
        if (begin < end) {
            fl_segment part = {s.from + (begin - at) * s.step, s.step, end - begin, s.fill};
            const strip rows = open_strip(reader, part);
            read_strip(reader, &rows, (char *)dst + (begin - first) * row_bytes, pitch);
        }
        at += s.length;
    }
}
