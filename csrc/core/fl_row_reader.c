/* fl_row_reader: see fl_row_reader.h. */
#include "fl_row_reader.h"

#include <string.h>

static inline int32_t bytes_of(const fl_row_reader *r)
{
    return r->is_output ? fl_image_type_bytes(r->tools.type) : 1;
}

int fl_row_reader_open(fl_row_reader *reader, const fl_image_tools *tools, bool is_output,
                       const fl_image_source *source, const fl_image_axis *y,
                       const fl_image_axis *x, fl_err *err)
{
    *reader =
        (fl_row_reader){.tools = *tools, .source = *source, .y = y, .x = x, .is_output = is_output};
    if (!is_output) reader->tools.cast = NULL;
    bool reads = fl_image_axis_range(x, &reader->from, &reader->to);
    reader->is_interleaved = reads && tools->channels > 1 && source->stride_c == 1 &&
                             source->stride_x == tools->channels;
    if (reader->is_interleaved) {
        reader->split_pitch = fl_image_pitch(reader->to - reader->from);
        reader->split = fl_scratch_memory(tools->scratch, FL_SCRATCH_SPLIT,
                                          reader->split_pitch * tools->channels);
    }
    reader->line = fl_scratch_memory(tools->scratch, FL_SCRATCH_LINE, x->length);
    if (reader->line == NULL || (reader->is_interleaved && reader->split == NULL))
        return fl_fail(err, FL_ENOMEM, "out of memory for rows of an image");
    return FL_OK;
}

static void fill_run(const fl_row_reader *r, int32_t op, int32_t c, int32_t length, char *dst)
{
    const fl_image_op *of = &r->tools.ops[op];
    int32_t bytes = bytes_of(r);
    const uint8_t *value = r->is_output ? of->out_fill + c * bytes : of->fill + c;
    r->tools.image_ops->fill(dst, value, length, bytes);
}

static void
cast_run(const fl_row_reader *r, const uint8_t *src, int32_t length, int32_t c, char *dst)
{
    if (r->tools.cast != NULL)
        r->tools.image_ops->cast[r->tools.type](dst, src, length, &r->tools.cast[c]);
    else
        memcpy(dst, src, (size_t)length);
}

/* Elements src[0], src[stride], ... of channel c. */
static void read_run(const fl_row_reader *r, const uint8_t *src, int64_t stride, int32_t length,
                     int32_t c, char *dst)
{
    if (stride == 1 || length == 1) {
        cast_run(r, src, length, c, dst);
        return;
    }
    bool is_cast = r->tools.cast != NULL;
    uint8_t *line = is_cast ? r->line : (uint8_t *)dst;
    if (stride == -1)
        r->tools.image_ops->reverse(line, src - (length - 1), length);
    else if (stride == 0)
        memset(line, *src, (size_t)length);
    else
        for (int32_t i = 0; i < length; i++) line[i] = src[i * stride];
    if (is_cast) cast_run(r, line, length, c, dst);
}

static void read_channel(const fl_row_reader *r, int32_t row_fill, const uint8_t *src,
                         int64_t stride, int32_t c, char *dst)
{
    int32_t bytes = bytes_of(r);
    for (int32_t n = 0; n < r->x->count; n++) {
        fl_segment s = r->x->segment[n];
        int32_t fill = row_fill > s.fill ? row_fill : s.fill;
        if (fill != FL_NO_FILL)
            fill_run(r, fill, c, s.length, dst);
        else
            read_run(r, src + s.from * stride, s.step * stride, s.length, c, dst);
        dst += (int64_t)s.length * bytes;
    }
}

void fl_row_reader_read(const fl_row_reader *reader, int32_t i, char *dst, int64_t pitch)
{
    const fl_image_source *source = &reader->source;
    fl_segment row = fl_image_axis_at(reader->y, i);
    const uint8_t *src = source->data + row.from * source->stride_y;
    int64_t stride_x = source->stride_x, stride_c = source->stride_c;
    if (reader->is_interleaved && row.fill == FL_NO_FILL) {
        reader->tools.image_ops->split(reader->split, reader->split_pitch,
                                       src + reader->from * stride_x, reader->to - reader->from,
                                       reader->tools.channels);
        src = reader->split - reader->from;
        stride_x = 1;
        stride_c = reader->split_pitch;
    }
    for (int32_t c = 0; c < reader->tools.channels; c++)
        read_channel(reader, row.fill, src + c * stride_c, stride_x, c, dst + c * pitch);
}
