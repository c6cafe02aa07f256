/* fl_image_output: see fl_image_output.h. */
#include "fl_image_output.h"

#include "fl_image_cast.h"

#include <assert.h>
#include <string.h>

/* Outputs of at least this size are written past the caches, because their batches are larger than
 * the caches. */
enum { STREAMED_BYTES = 256 * 1024 };

/* ---- open */

/* Returns true if the operation's out_fill is the cast of its fill. */
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

static void
erase_planes(const fl_image_output *o, const fl_image_tools *tools, const fl_erased *e, char *out)
{
    int64_t bytes = fl_image_type_bytes(o->type), width = o->size.width;
    for (int32_t c = 0; c < o->channels; c++) {
        int64_t row = (int64_t)c * o->size.height + e->top;
        tools->image_ops->fill(out + (row * width + e->left) * bytes, width * bytes, e->size.height,
                               e->size.width, tools->ops[e->op].out_fill + c * bytes,
                               (int32_t)bytes);
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

static int write_bands(const fl_image_output *o, const fl_image_view *view, char *out, fl_err *err)
{
    const fl_band_form form = {o->type, o->cast, o->typed_fills};
    fl_band_reader reader;
    FL_TRY(
        fl_band_reader_open(&reader, &view->tools, &form, &view->source, &view->y, &view->x, err));
    int32_t bytes = fl_image_type_bytes(o->type), height = o->size.height, rows = reader.band_rows;
    int64_t width = o->size.width, pitch = height * width * bytes;
    char *joined = NULL;
    if (o->is_joined) {
        pitch = rows * width * bytes;
        joined = fl_scratch_memory(view->tools.scratch, FL_SCRATCH_TYPED, pitch * o->channels);
        if (joined == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for rows of the output");
    }
    for (int32_t first = 0; first < height; first += rows) {
        int32_t count = (int32_t)fl_min(rows, height - first);
        char *planes = o->is_joined ? joined : out + first * width * bytes;
        fl_band_reader_read(&reader, first, count, planes, pitch);
        if (o->is_joined)
            view->tools.image_ops->join(out + first * width * o->channels * bytes, joined, pitch,
                                        count * width, o->channels, bytes);
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
