/* fl_image_output: see fl_image_output.h. */
#include "fl_image_output.h"

#include "fl_image_cast.h"

#include <assert.h>
#include <string.h>

/* Outputs from this size on are written past the caches: batches of them are larger. */
enum { STREAMED_BYTES = 256 * 1024 };

/* ---- open */

/* Whether the fill of an operation is cast like an element, which bands of bytes can then hold. */
static bool is_fill_cast(const fl_image_output *o, const fl_image_op *op)
{
    int32_t bytes = fl_image_type_bytes(o->type);
    for (int32_t c = 0; c < o->channels; c++) {
        const uint8_t *element = &op->fill[c];
        if (o->tables != NULL) element = (uint8_t *)o->tables + (c * 256 + op->fill[c]) * bytes;
        if (memcmp(element, op->out_fill + c * bytes, (size_t)bytes) != 0) return false;
    }
    return true;
}

int fl_image_output_open(fl_image_output *output, const void *tables, const float *linear,
                         const fl_image_op *ops, int32_t count, fl_err *err)
{
    int64_t bytes = (int64_t)256 * fl_image_type_bytes(output->type);
    if (tables != NULL) {
        output->tables = fl_alloc(output->channels * bytes);
        if (output->tables == NULL)
            return fl_fail(err, FL_ENOMEM, "out of memory for the tables of a plan");
        memcpy(output->tables, tables, (size_t)(output->channels * bytes));
        for (int32_t c = 0; c < output->channels; c++) {
            output->cast[c] = fl_image_cast_make(output->type, (char *)output->tables + c * bytes,
                                                 linear != NULL ? linear + 3 * c : NULL);
            output->cast[c].is_streamed =
                !output->is_joined && fl_image_output_bytes(output) >= STREAMED_BYTES;
        }
    }
    for (int32_t i = 0; i < count; i++)
        if (!is_fill_cast(output, &ops[i])) output->typed_fills |= UINT32_C(1) << i;
    return FL_OK;
}

void fl_image_output_close(fl_image_output *output) { fl_free(output->tables); }

int64_t fl_image_output_bytes(const fl_image_output *output)
{
    return (int64_t)output->size.height * output->size.width * output->channels *
           fl_image_type_bytes(output->type);
}

/* ---- write */

/* Rows of the output as planes: channel c begins at data + c * pitch. */
typedef struct band {
    int32_t first, count;
    char *data;
    int64_t pitch;
} band;

static void
cast_band(const fl_image_output *o, const fl_band_reader *reader, const band *to, uint8_t *bytes)
{
    int64_t count = (int64_t)to->count * o->size.width, pitch = count;
    const uint8_t *src = fl_band_reader_direct(reader);
    if (src != NULL) {
        src += (int64_t)to->first * o->size.width;
        pitch = reader->source.stride_c;
    } else {
        fl_band_reader_read(reader, to->first, to->count, bytes, pitch);
        src = bytes;
    }
    for (int32_t c = 0; c < o->channels; c++)
        reader->tools.image_ops->cast[o->type](to->data + c * to->pitch, src + c * pitch, count,
                                               &o->cast[c]);
}

/* Row i of the band, where padding is not what its bytes are cast to. */
static void
fill_row(const fl_image_output *o, const fl_band_reader *reader, const band *to, int32_t i)
{
    int32_t bytes = fl_image_type_bytes(o->type);
    int32_t row_fill = fl_image_axis_at(reader->y, to->first + i).fill;
    int64_t at = (int64_t)i * o->size.width;
    for (int32_t n = 0; n < reader->x->count; n++) {
        const fl_segment *s = &reader->x->segment[n];
        int32_t fill = row_fill > s->fill ? row_fill : s->fill;
        bool is_typed = fill != FL_NO_FILL && (o->typed_fills >> fill & 1) != 0;
        for (int32_t c = 0; is_typed && c < o->channels; c++)
            reader->tools.image_ops->fill(to->data + c * to->pitch + at * bytes,
                                          reader->tools.ops[fill].out_fill + c * bytes, s->length,
                                          bytes);
        at += s->length;
    }
}

static bool has_typed_fill(const fl_image_output *o, const fl_image_axis *axis)
{
    for (int32_t n = 0; n < axis->count; n++) {
        int32_t fill = axis->segment[n].fill;
        if (fill != FL_NO_FILL && (o->typed_fills >> fill & 1) != 0) return true;
    }
    return false;
}

static void
erase_planes(const fl_image_output *o, const fl_image_tools *tools, const fl_erased *e, char *out)
{
    int32_t bytes = fl_image_type_bytes(o->type);
    for (int32_t c = 0; c < o->channels; c++)
        for (int32_t i = 0; i < e->size.height; i++) {
            int64_t row = (int64_t)c * o->size.height + e->top + i;
            tools->image_ops->fill(out + (row * o->size.width + e->left) * bytes,
                                   tools->ops[e->op].out_fill + c * bytes, e->size.width, bytes);
        }
}

static void
erase_pixels(const fl_image_output *o, const fl_image_tools *tools, const fl_erased *e, char *out)
{
    int64_t bytes = (int64_t)o->channels * fl_image_type_bytes(o->type);
    for (int32_t i = 0; i < e->size.height; i++) {
        char *row = out + ((int64_t)(e->top + i) * o->size.width + e->left) * bytes;
        for (int32_t j = 0; j < e->size.width; j++)
            memcpy(row + j * bytes, tools->ops[e->op].out_fill, (size_t)bytes);
    }
}

/* Memory for bands that do not go to the output as they are. */
static int find_memory(const fl_image_output *o, fl_image_scratch *scratch, int64_t rows,
                       uint8_t **bytes, char **joined, fl_err *err)
{
    int64_t elements = rows * o->size.width * o->channels;
    *bytes = NULL;
    *joined = NULL;
    bool is_out = true;
    if (o->tables != NULL)
        is_out = (*bytes = fl_scratch_memory(scratch, FL_SCRATCH_BYTES, elements)) != NULL;
    if (is_out && o->is_joined)
        is_out = (*joined = fl_scratch_memory(scratch, FL_SCRATCH_TYPED,
                                              elements * fl_image_type_bytes(o->type))) != NULL;
    return is_out ? FL_OK : fl_fail(err, FL_ENOMEM, "out of memory for rows of the output");
}

static int write_bands(const fl_image_output *o, const fl_image_view *view, char *out, fl_err *err)
{
    fl_band_reader reader;
    FL_TRY(fl_band_reader_open(&reader, &view->tools, &view->source, &view->y, &view->x, err));
    int32_t bytes = fl_image_type_bytes(o->type), height = o->size.height, rows = reader.band_rows;
    int64_t width = o->size.width;
    uint8_t *cast_from;
    char *joined;
    FL_TRY(find_memory(o, view->tools.scratch, rows, &cast_from, &joined, err));
    bool has_typed = has_typed_fill(o, &view->y) || has_typed_fill(o, &view->x);
    for (int32_t first = 0; first < height; first += rows) {
        band to = {first, (int32_t)fl_min(rows, height - first), joined, rows * width * bytes};
        if (!o->is_joined) to.data = out + first * width * bytes, to.pitch = height * width * bytes;
        if (o->tables != NULL)
            cast_band(o, &reader, &to, cast_from);
        else
            fl_band_reader_read(&reader, first, to.count, (uint8_t *)to.data, to.pitch);
        for (int32_t i = 0; has_typed && i < to.count; i++) fill_row(o, &reader, &to, i);
        if (o->is_joined)
            view->tools.image_ops->join(out + first * width * o->channels * bytes, joined, to.pitch,
                                        to.count * width, o->channels, bytes);
    }
    return FL_OK;
}

int fl_image_output_write(const fl_image_output *output, const fl_image_view *view, char *out,
                          fl_err *err)
{
    assert(view->y.length == output->size.height && view->x.length == output->size.width);
    FL_TRY(write_bands(output, view, out, err));
    for (int32_t n = 0; n < view->erased_count; n++)
        (output->is_joined ? erase_pixels : erase_planes)(output, &view->tools, &view->erased[n],
                                                          out);
    return FL_OK;
}
