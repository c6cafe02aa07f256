/* fl_image_view: see fl_image_view.h. */
#include "fl_image_view.h"

#include <assert.h>

void fl_image_view_start(fl_image_view *view, const fl_image_tools *tools, fl_resample_cache *cache,
                         const fl_image_source *source)
{
    view->tools = *tools;
    view->cache = cache;
    view->source = *source;
    view->is_pending = false;
    view->images = 0;
    view->is_own = view->has_tables = false;
    view->arithmetic = FL_BY_TENSOR_V2;
    view->erased_count = 0;
    fl_image_axis_start(&view->y, source->size.height);
    fl_image_axis_start(&view->x, source->size.width);
}

/* ---- edits */

void fl_image_view_crop(fl_image_view *view, int32_t top, int32_t left, fl_image_size size)
{
    fl_image_axis_crop(&view->y, top, size.height);
    fl_image_axis_crop(&view->x, left, size.width);
    for (int32_t n = 0; n < view->erased_count; n++) {
        fl_erased *e = &view->erased[n];
        e->top -= top;
        e->left -= left;
        fl_image_clip(&e->top, &e->size.height, size.height);
        fl_image_clip(&e->left, &e->size.width, size.width);
    }
}

void fl_image_view_pad(fl_image_view *view, const int32_t padding[4], fl_padding_mode mode,
                       int32_t op)
{
    fl_image_axis_pad(&view->x, padding[0], padding[2], mode, op);
    fl_image_axis_pad(&view->y, padding[1], padding[3], mode, op);
    for (int32_t n = 0; n < view->erased_count; n++) {
        view->erased[n].left += padding[0];
        view->erased[n].top += padding[1];
    }
}

void fl_image_view_flip_x(fl_image_view *view)
{
    fl_image_axis_flip(&view->x);
    for (int32_t n = 0; n < view->erased_count; n++) {
        fl_erased *e = &view->erased[n];
        e->left = view->x.length - e->left - e->size.width;
    }
}

void fl_image_view_flip_y(fl_image_view *view)
{
    fl_image_axis_flip(&view->y);
    for (int32_t n = 0; n < view->erased_count; n++) {
        fl_erased *e = &view->erased[n];
        e->top = view->y.length - e->top - e->size.height;
    }
}

void fl_image_view_erase(fl_image_view *view, int32_t top, int32_t left, fl_image_size size,
                         int32_t op)
{
    view->erased[view->erased_count++] = (fl_erased){top, left, size, op};
}

/* ---- resizing */

static int find_table(fl_image_view *view, fl_interpolation how, int32_t in, int32_t out,
                      fl_resample *own, const fl_resample **table, fl_err *err)
{
    *table = NULL;
    if (in == out) return FL_OK;
    return fl_resample_cache_find(view->cache, how, in, out, own, table, err);
}

/* Pillow 13 begins with columns if the height shrinks by more than twice what the width shrinks
 * by. */
static bool begins_with_columns(fl_interpolation how, fl_image_size in, fl_image_size out)
{
    bool may = how == FL_PILLOW_13_BILINEAR || how == FL_PILLOW_13_BICUBIC;
    int64_t rows = (int64_t)in.height - out.height, columns = (int64_t)in.width - out.width;
    return may && rows > 0 && rows > 2 * columns;
}

int fl_image_view_resize(fl_image_view *view, fl_interpolation how, fl_image_size size, fl_err *err)
{
    assert(view->erased_count == 0);
    FL_TRY(fl_image_view_resolve(view, err));
    bool is_read = view->tools.scratch != NULL; /* without scratch no pixels are read */
    bool is_same = view->y.length == size.height && view->x.length == size.width;
    if (is_read && is_same) return FL_OK;
    fl_resample *own = is_read ? view->tools.scratch->own : NULL;
    if (is_read) {
        FL_TRY(find_table(view, how, view->x.length, size.width, &own[0], &view->resize_x, err));
        FL_TRY(find_table(view, how, view->y.length, size.height, &own[1], &view->resize_y, err));
    }
    view->is_columns_first =
        begins_with_columns(how, (fl_image_size){view->y.length, view->x.length}, size);
    view->from_y = view->y;
    view->from_x = view->x;
    fl_image_axis_start(&view->y, size.height);
    fl_image_axis_start(&view->x, size.width);
    view->is_pending = true;
    return FL_OK;
}

/* Narrows one axis of a resize to samples [from, to) of the result. Crops the source to the samples
 * that these need; *first is the first such sample. */
static fl_resample
narrow(const fl_resample *table, int32_t from, int32_t to, fl_image_axis *source, int32_t *first)
{
    if (table == NULL) {
        *first = 0;
        fl_image_axis_crop(source, from, to - from);
        return (fl_resample){.in = source->length, .out = source->length};
    }
    fl_resample part = *table;
    part.in = table->first[to - 1] + table->count[to - 1];
    part.out = to - from;
    part.first += from;
    part.count += from;
    if (part.weight != NULL) part.weight += (int64_t)from * part.taps;
    if (part.low != NULL) part.low += (int64_t)from * part.taps;
    *first = part.first[0];
    fl_image_axis_crop(source, *first, part.in - *first);
    return part;
}

static int fail_memory(int64_t rows, int64_t width, fl_err *err)
{
    return fl_fail(err, FL_ENOMEM, "out of memory for an image of %lld by %lld on its way",
                   (long long)rows, (long long)width);
}

static fl_scratch_part next_part(fl_image_view *view)
{
    return view->images++ % 2 ? FL_SCRATCH_IMAGE_1 : FL_SCRATCH_IMAGE_0;
}

/* Planes of bytes between two steps of a resize. */
typedef struct planes {
    const uint8_t *data;
    int64_t pitch, plane; /* bytes from one row to the next, one channel to the next */
} planes;

static int make_planes(fl_image_view *view, fl_scratch_part part, int64_t rows, int64_t width,
                       uint8_t **data, planes *out, fl_err *err)
{
    int64_t plane = width * rows;
    *data = fl_scratch_memory(view->tools.scratch, part, plane * view->tools.channels);
    *out = (planes){*data, width, plane};
    if (*data != NULL) return FL_OK;
    return fail_memory(rows, width, err);
}

/* Returns true if the image to resize lies in memory as rows of bytes. */
static bool is_direct(const fl_image_view *view)
{
    return view->source.stride_x == 1 && fl_image_axis_is_plain(&view->from_x) &&
           view->from_y.count == 1 && view->from_y.segment[0].fill == FL_NO_FILL;
}

static planes direct_planes(const fl_image_view *view)
{
    const fl_segment *rows = view->from_y.segment, *columns = view->from_x.segment;
    const fl_image_source *source = &view->source;
    return (planes){source->data + rows->from * source->stride_y + columns->from,
                    rows->step * source->stride_y, source->stride_c};
}

/* Resizes in x, into `part`; if x->first is NULL, copies. */
static int make_rows(fl_image_view *view, fl_scratch_part part, const fl_resample *x, int32_t first,
                     planes *out, fl_err *err)
{
    const fl_image_ops *ops = view->tools.image_ops;
    int32_t rows = view->from_y.length, channels = view->tools.channels;
    uint8_t *data, *band = NULL;
    FL_TRY(make_planes(view, part, rows, x->out, &data, out, err));
    if (x->first != NULL && is_direct(view)) {
        planes from = direct_planes(view);
        for (int32_t c = 0; c < channels; c++)
            ops->resample_x(data + c * out->plane, out->pitch, from.data + c * from.plane - first,
                            from.pitch, rows, x);
        return FL_OK;
    }
    fl_band_reader reader;
    FL_TRY(fl_band_reader_open(&reader, &view->tools, &(fl_band_form){.type = FL_IMAGE_U8},
                               &view->source, &view->from_y, &view->from_x, err));
    planes from = *out;
    if (x->first != NULL)
        FL_TRY(make_planes(view, FL_SCRATCH_BAND, reader.band_rows, view->from_x.length, &band,
                           &from, err));
    for (int32_t i = 0; i < rows; i += reader.band_rows) {
        int32_t count = (int32_t)fl_min(reader.band_rows, rows - i);
        if (x->first == NULL) {
            fl_band_reader_read(&reader, i, count, data + i * out->pitch, out->plane);
            continue;
        }
        fl_band_reader_read(&reader, i, count, band, from.plane);
        for (int32_t c = 0; c < channels; c++)
            ops->resample_x(data + c * out->plane + i * out->pitch, out->pitch,
                            from.data + c * from.plane - first, from.pitch, count, x);
    }
    return FL_OK;
}

static int
resize_columns(fl_image_view *view, fl_scratch_part part, const planes *from, int32_t width,
               const fl_resample *y, int32_t first, planes *out, fl_err *err)
{
    uint8_t *data;
    FL_TRY(make_planes(view, part, y->out, width, &data, out, err));
    for (int32_t c = 0; c < view->tools.channels; c++)
        view->tools.image_ops->resample_y(data + c * out->plane, out->pitch,
                                          from->data + c * from->plane - first * from->pitch,
                                          from->pitch, width, y);
    return FL_OK;
}

/* Resizes both axes, rows first. */
static int resize_rows_first(fl_image_view *view, fl_scratch_part image, const fl_resample *x,
                             const fl_resample *y, int32_t first_column, int32_t first_row,
                             planes *out, fl_err *err)
{
    if (view->resize_x == NULL && is_direct(view))
        *out = direct_planes(view);
    else
        FL_TRY(make_rows(view, view->resize_y != NULL ? FL_SCRATCH_ROWS : image, x, first_column,
                         out, err));
    if (view->resize_y == NULL) return FL_OK;
    planes rows = *out;
    return resize_columns(view, image, &rows, x->out, y, first_row, out, err);
}

static int resize_columns_first(fl_image_view *view, fl_scratch_part image, const fl_resample *x,
                                const fl_resample *y, int32_t first_column, int32_t first_row,
                                planes *out, fl_err *err)
{
    planes source, columns;
    int32_t width = view->from_x.length;
    uint8_t *data;
    if (is_direct(view))
        source = direct_planes(view);
    else
        FL_TRY(make_rows(view, FL_SCRATCH_ROWS, &(fl_resample){.out = width}, 0, &source, err));
    fl_scratch_part part = view->resize_x != NULL ? FL_SCRATCH_BAND : image;
    FL_TRY(resize_columns(view, part, &source, width, y, first_row, &columns, err));
    *out = columns;
    if (view->resize_x == NULL) return FL_OK;
    FL_TRY(make_planes(view, image, y->out, x->out, &data, out, err));
    for (int32_t c = 0; c < view->tools.channels; c++)
        view->tools.image_ops->resample_x(data + c * out->plane, out->pitch,
                                          columns.data + c * columns.plane - first_column,
                                          columns.pitch, y->out, x);
    return FL_OK;
}

static int run_resize(fl_image_view *view, fl_err *err)
{
    int32_t top, bottom, left, right, first_row, first_column;
    if (!view->is_pending) return FL_OK;
    view->is_pending = false;
    /* If every row or every column that remains is filled, no pixel is read. */
    if (!fl_image_axis_range(&view->y, &top, &bottom) ||
        !fl_image_axis_range(&view->x, &left, &right))
        return FL_OK;
    fl_resample y = narrow(view->resize_y, top, bottom, &view->from_y, &first_row);
    fl_resample x = narrow(view->resize_x, left, right, &view->from_x, &first_column);
    planes result;
    FL_TRY((view->is_columns_first ? resize_columns_first : resize_rows_first)(
        view, next_part(view), &x, &y, first_column, first_row, &result, err));
    view->source = (fl_image_source){
        .data = result.data, .stride_y = result.pitch, .stride_x = 1, .stride_c = result.plane};
    view->is_own = true;
    fl_image_axis_shift(&view->y, top);
    fl_image_axis_shift(&view->x, left);
    return FL_OK;
}

int fl_image_view_resolve(fl_image_view *view, fl_err *err)
{
    FL_TRY(run_resize(view, err));
    fl_image_view_look_up(view);
    return FL_OK;
}

/* ---- pixels */

static bool is_block(const fl_image_axis *axis, bool is_upright)
{
    const fl_segment *s = axis->segment;
    return axis->count == 1 && s->fill == FL_NO_FILL &&
           (s->step == 1 || (s->step == -1 && !is_upright));
}

/* Returns the part of the view's own planes that the image reads. */
static fl_image_planes own_planes(const fl_image_view *view)
{
    const fl_image_source *source = &view->source;
    int32_t top, bottom, left, right;
    if (!fl_image_axis_range(&view->y, &top, &bottom) ||
        !fl_image_axis_range(&view->x, &left, &right))
        return (fl_image_planes){0};
    const uint8_t *data = source->data + top * source->stride_y + left;
    return (fl_image_planes){.data = (uint8_t *)(uintptr_t)data,
                             .pitch = source->stride_y,
                             .plane = source->stride_c,
                             .rows = bottom - top,
                             .columns = right - left};
}

static void erase_planes(const fl_image_view *view, const fl_image_planes *to)
{
    for (int32_t n = 0; n < view->erased_count; n++) {
        const fl_erased *e = &view->erased[n];
        uint8_t *at = to->data + e->top * to->pitch + e->left;
        for (int32_t c = 0; c < view->tools.channels; c++, at += to->plane)
            view->tools.image_ops->fill(at, to->pitch, e->size.height, e->size.width,
                                        &view->tools.ops[e->op].fill[c], 1);
    }
}

/* Copies the image to planes, with all fills and erased rectangles. */
static int copy_image(fl_image_view *view, fl_err *err)
{
    fl_image_planes to;
    fl_band_reader reader;
    fl_image_view_look_up(view);
    FL_TRY(fl_image_view_next(view, (fl_image_size){view->y.length, view->x.length},
                              view->tools.channels, &to, err));
    FL_TRY(fl_band_reader_open(&reader, &view->tools, &(fl_band_form){.type = FL_IMAGE_U8},
                               &view->source, &view->y, &view->x, err));
    for (int32_t i = 0; i < to.rows; i += reader.band_rows) {
        int32_t count = (int32_t)fl_min(reader.band_rows, to.rows - i);
        fl_band_reader_read(&reader, i, count, to.data + i * to.pitch, to.plane);
    }
    erase_planes(view, &to);
    view->erased_count = 0;
    fl_image_view_replace(view, &to, view->tools.channels);
    return FL_OK;
}

int fl_image_view_own(fl_image_view *view, bool is_upright, fl_image_planes *out, fl_err *err)
{
    FL_TRY(run_resize(view, err));
    if (!view->is_own || view->erased_count > 0 || !is_block(&view->y, is_upright) ||
        !is_block(&view->x, is_upright))
        FL_TRY(copy_image(view, err));
    *out = own_planes(view);
    return FL_OK;
}

int fl_image_view_next(fl_image_view *view, fl_image_size size, int32_t channels,
                       fl_image_planes *out, fl_err *err)
{
    int64_t rows = size.height, columns = size.width, plane = rows * columns;
    uint8_t *data = fl_scratch_memory(view->tools.scratch, next_part(view), plane * channels);
    *out = (fl_image_planes){data, columns, plane, rows, columns};
    return data != NULL ? FL_OK : fail_memory(rows, columns, err);
}

void fl_image_view_replace(fl_image_view *view, const fl_image_planes *to, int32_t channels)
{
    view->source = (fl_image_source){.data = to->data,
                                     .stride_y = to->pitch,
                                     .stride_x = 1,
                                     .stride_c = to->plane,
                                     .size = {(int32_t)to->rows, (int32_t)to->columns}};
    fl_image_axis_start(&view->y, (int32_t)to->rows);
    fl_image_axis_start(&view->x, (int32_t)to->columns);
    view->tools.channels = channels;
    view->is_own = true;
    view->has_tables = false;
}

void fl_image_view_look_up(fl_image_view *view)
{
    if (!view->has_tables) return;
    view->has_tables = false;
    fl_image_planes own = own_planes(view);
    for (int32_t c = 0; c < view->tools.channels; c++, own.data += own.plane)
        view->tools.image_ops->tone.look_up(&own, view->table[c]);
}

fl_byte_table *fl_image_view_tables(fl_image_view *view)
{
    assert(view->is_own && !view->is_pending);
    for (int32_t c = 0; c < view->tools.channels && !view->has_tables; c++)
        for (int v = 0; v < 256; v++) view->table[c][v] = (uint8_t)v;
    view->has_tables = true;
    return view->table;
}
