/* fl_layout: see fl_layout.h. */
#include "fl_layout.h"

#include <string.h>

void fl_layout_close(fl_layout *layout)
{
    for (int32_t c = 0; c < layout->columns; c++) fl_free(layout->notes[c].values);
    fl_free(layout->notes);
    fl_free(layout->outputs);
    *layout = (fl_layout){0};
}

/* Grows *items like fl_grow, with a capacity of 32 bits. */
static int grow(void **items, int32_t *capacity, int32_t count, int64_t item_bytes, fl_err *err)
{
    int64_t room = *capacity;
    if (count <= *capacity) return FL_OK;
    FL_TRY(fl_grow(items, &room, count, item_bytes, err));
    *capacity = (int32_t)fl_min(room, INT32_MAX);
    return FL_OK;
}

int fl_layout_reserve(fl_layout *layout, int32_t columns, int32_t outputs, fl_err *err)
{
    FL_TRY(
        grow((void **)&layout->outputs, &layout->capacity, outputs, sizeof *layout->outputs, err));
    FL_TRY(grow((void **)&layout->notes, &layout->columns, columns, sizeof *layout->notes, err));
    layout->count = outputs;
    return FL_OK;
}

int fl_notes_reserve(fl_notes *notes, int64_t count, fl_err *err)
{
    return fl_grow((void **)&notes->values, &notes->capacity, count, sizeof *notes->values, err);
}

int fl_fail_batch_size(fl_err *err)
{
    return fl_fail(err, FL_EINVAL, "a batch of these rows is larger than 2^63 bytes");
}

int fl_output_set(fl_output *output, fl_dtype dtype, int32_t ndim, const int64_t *shape,
                  fl_err *err)
{
    int64_t bytes = fl_tensor_bytes(dtype, ndim, shape);
    if (bytes < 0) return fl_fail_batch_size(err);
    output->dtype = dtype;
    output->ndim = ndim;
    output->is_whole = output->is_number = output->is_cast = false;
    output->is_contiguous = true;
    output->bytes = bytes;
    memcpy(output->shape, shape, (size_t)ndim * sizeof *shape);
    fl_tensor_strides(ndim, shape, output->stride);
    return FL_OK;
}

void fl_output_set_number(fl_output *output, int64_t number)
{
    output->ndim = 0;
    output->is_whole = output->is_number = output->is_contiguous = true;
    output->is_cast = false;
    output->number = number;
    output->bytes = 0;
}

/* Moves *end past `bytes`, to the next offset at which an output may begin. */
static bool skip(int64_t *end, int64_t bytes)
{
    int64_t behind;
    if (!fl_add(*end, bytes, &behind) || !fl_add(behind, FL_OUTPUT_ALIGNMENT - 1, &behind))
        return false;
    *end = behind / FL_OUTPUT_ALIGNMENT * FL_OUTPUT_ALIGNMENT;
    return true;
}

int fl_layout_set_offsets(fl_layout *layout, fl_err *err)
{
    int64_t end = 0;
    for (int32_t i = 0; i < layout->count; i++) {
        layout->outputs[i].offset = end;
        if (!skip(&end, layout->outputs[i].bytes)) return fl_fail_batch_size(err);
    }
    layout->bytes = end;
    for (int32_t i = 0; i < layout->count; i++) {
        fl_output *output = &layout->outputs[i];
        int64_t made;
        if (!output->is_cast) continue;
        output->cast.from += layout->outputs[i - output->cast_of].offset;
        output->cast.to = end;
        if (!fl_mul(output->cast.count, output->cast.bytes, &made) || !skip(&end, made))
            return fl_fail_batch_size(err);
        output->cast.drawn = end;
        if (!skip(&end, output->cast.drawn_bytes)) return fl_fail_batch_size(err);
    }
    layout->delivered_bytes = end;
    return FL_OK;
}

/* Returns the bytes from one filled sample to the next in an output; 0: the output has no
 * samples. */
static int64_t sample_bytes(const fl_output *output, int64_t rows)
{
    if (output->is_whole || rows == 0) return 0;
    bool has_maps = output->is_cast && output->cast.kind == FL_CAST_IMAGES; /* followed by maps */
    return has_maps ? output->cast.image_bytes : output->bytes / rows;
}

void fl_layout_slice(const fl_layout *layout, int64_t rows, fl_transfer_slices *out)
{
    *out = (fl_transfer_slices){.samples = rows};
    for (int32_t i = 0; i < layout->count; i++) {
        int64_t bytes = sample_bytes(&layout->outputs[i], rows);
        if (bytes <= out->sample_bytes) continue;
        out->sample_bytes = bytes;
        out->from = layout->outputs[i].offset;
    }
    int64_t most = fl_min(FL_MOST_SLICES, layout->parts);
    out->count = (int32_t)fl_min(most, rows * out->sample_bytes / FL_SLICE_BYTES);
}
