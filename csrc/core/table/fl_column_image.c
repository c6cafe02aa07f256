/* fl_column_image: see fl_column_image.h. */
#include "fl_column_image.h"

#include "fl_scratch.h"

#include <string.h>

enum {
    /* a resize takes as long as copying its input and output this many times */
    RESIZE_WORK = 8,
    LINE_BYTES = 64,
    MAP_ALIGNMENT = 16,
    AHEAD_BYTES = 4096, /* bytes of the next image that are prefetched */
    /* Taps of all lengths that have more bytes never travel: the maps travel instead. */
    MOST_SENT_TAPS = 512 << 10,
    MOST_KEY_BYTES = sizeof(int64_t) + 1 /* of a row and a view */
};

typedef struct image_column {
    fl_column base;
    fl_row_runs runs;
    const fl_image_plan *plan;   /* borrowed from the caller of open */
    const fl_image_draws *draws; /* borrowed like plan; NULL: the plan draws */
    int64_t out_bytes;           /* bytes of a filled result */
    int64_t work_bytes;          /* of a row; at most INT64_MAX */
    fl_image_source image;       /* an image in the source, without its address */
    fl_image_source copy;    /* an image that was read from a mapped file, without its address */
    fl_scratch_slots *slots; /* owned: if volatile */
    fl_dtype dtype;
    bool is_contiguous;
    int64_t shape[4], stride[4]; /* of the output; shape[0] is set for each batch */
    fl_transfer_cast cast;       /* for one result; count 0: no cast */

    /* if the destination makes the results: */
    const fl_row_ops *row_ops; /* borrowed, static */
    fl_image_batch made;       /* for any batch whose maps travel */
    int64_t map_bytes;         /* of one image, with its own taps */
    char *all;                 /* owned: all of the plan if it may draw, or its elements */
    int64_t all_bytes, values_bytes;
    int64_t least_drawn;  /* the destination draws the maps of batches of so many rows: */
    fl_image_batch drawn; /* for any such batch */
    fl_map_batch maps;
} image_column;

static inline bool is_made_there(const image_column *self)
{
    return self->cast.kind == FL_CAST_IMAGES;
}

static const image_column *as_images(const fl_column *column)
{
    return (const image_column *)column;
}

/* Notes the parameters of all rows, in order. */
static int note_draws(const image_column *self, const fl_column_batch *batch, fl_err *err)
{
    enum { WORD = sizeof(int64_t) };
    int64_t rows = batch->rows->count, bytes = (int64_t)sizeof(fl_image_params);
    if (!fl_mul(rows, fl_image_draws_count(self->draws), &rows) || !fl_mul(rows, bytes, &bytes))
        return fl_fail_batch_size(err);
    FL_TRY(fl_notes_reserve(batch->notes, bytes / WORD + 1, err));
    return fl_image_draws_copy(self->draws, batch->rows->count, (void *)batch->notes->values, err);
}

static bool align(int64_t bytes, int64_t *out)
{
    if (!fl_add(bytes, MAP_ALIGNMENT - 1, &bytes)) return false;
    *out = bytes / MAP_ALIGNMENT * MAP_ALIGNMENT;
    return true;
}

/* Places what follows the images: maps, or what the destination draws them from; then values. Adds
 * to the bytes; false: they do not fit. */
static bool layout_parts(const image_column *self, const fl_column_batch *batch, int64_t *bytes)
{
    fl_transfer_cast *cast = &batch->outputs->cast;
    const int64_t rows = batch->rows->count, view = batch->rows->has_views ? 1 : 0;
    const bool is_drawn = rows >= self->least_drawn;
    const int64_t each = is_drawn ? (int64_t)sizeof rows + view : self->map_bytes;
    const int64_t values = is_drawn ? self->all_bytes : self->values_bytes;
    int64_t maps;
    cast->images = is_drawn ? &self->drawn : &self->made;
    cast->image_bytes = self->out_bytes;
    cast->image_count = rows;
    if (is_drawn) {
        const int64_t map_bytes = self->drawn.map_numbers * (int64_t)sizeof(int32_t);
        cast->draws = &self->maps;
        cast->epoch = batch->epoch;
        cast->has_views = batch->rows->has_views;
        if (!fl_mul(rows, map_bytes, &cast->drawn_bytes)) return false;
    }
    return align(*bytes, &cast->maps) && fl_mul(rows, each, &maps) &&
           fl_add(cast->maps, maps, &maps) && align(maps, &cast->values) &&
           fl_add(cast->values, values, bytes);
}

/* Computes the bytes to fill. */
static int layout_bytes(const image_column *self, const fl_column_batch *batch, fl_err *err)
{
    fl_output *output = batch->outputs;
    bool fits = fl_mul(batch->rows->count, self->out_bytes, &output->bytes);
    output->is_cast = self->cast.count > 0;
    output->cast_of = 0;
    output->cast = self->cast;
    if (fits && is_made_there(self)) fits = layout_parts(self, batch, &output->bytes);
    if (fits && fl_mul(batch->rows->count, self->cast.count, &output->cast.count)) return FL_OK;
    return fl_fail_batch_size(err);
}

static int layout_images(const fl_column *column, fl_column_batch *batch, fl_err *err)
{
    const image_column *self = as_images(column);
    fl_output *output = batch->outputs;
    int64_t rows = batch->rows->count;
    FL_TRY(layout_bytes(self, batch, err));
    if (!fl_mul(rows, self->work_bytes, &batch->work_bytes)) batch->work_bytes = INT64_MAX;
    if (self->draws != NULL) FL_TRY(note_draws(self, batch, err));
    output->dtype = self->dtype;
    output->ndim = 4;
    output->is_whole = output->is_number = false;
    output->is_contiguous = self->is_contiguous;
    for (int d = 0; d < 4; d++) {
        output->shape[d] = self->shape[d];
        output->stride[d] = self->stride[d];
    }
    output->shape[0] = rows;
    return FL_OK;
}

/* Reads one image of a mapped file into the scratch. */
static int read_image(const image_column *self, const fl_column_batch *batch, int64_t row,
                      fl_scratch *scratch, fl_image_source *out, fl_err *err)
{
    fl_rows rows = {.count = 1, .first = row, .is_range = true};
    char *memory = fl_scratch_memory(scratch, FL_SCRATCH_IMAGE_0, self->runs.row_bytes);
    int64_t done = memory != NULL ? fl_row_runs_read(&self->runs, &rows, 0, 1, memory) : FL_ENOMEM;
    if (done < 0) return fl_fail(err, FL_ENOMEM, "out of memory for reads of a mapped file");
    if (done < self->runs.row_bytes) return fl_column_fail_row(err, batch, row);
    *out = self->copy;
    out->data = (const uint8_t *)memory;
    return FL_OK;
}

/* Finds the parameters of row `i` of the batch: *found is either the noted parameters, or `drawn`,
 * drawn here. */
static int find_params(const image_column *self, const fl_column_batch *batch, int64_t i,
                       const fl_sample_key *key, fl_image_params *drawn,
                       const fl_image_params **found, fl_err *err)
{
    *found = drawn;
    if (self->draws == NULL)
        return fl_image_plan_draw(self->plan, key, self->image.size, drawn, err);
    const fl_image_params *noted = (const void *)batch->notes->values;
    *found = noted + i * fl_image_draws_count(self->draws);
    return FL_OK;
}

/* Writes the plan's result for row `i` of the batch to dst. scratch: NULL if the column is not
 * volatile. */
static int gather_image(const image_column *self, const fl_column_batch *batch, int64_t i,
                        const fl_sample_key *key, fl_scratch *scratch, char *dst, fl_err *err)
{
    fl_image_params drawn[FL_MAX_IMAGE_OPS];
    const fl_image_params *params;
    fl_image_source image = self->image;
    image.data = (const uint8_t *)self->runs.data + key->index * self->runs.row_stride;
    if (scratch != NULL) FL_TRY(read_image(self, batch, key->index, scratch, &image, err));
    FL_TRY(find_params(self, batch, i, key, drawn, &params, err));
    return fl_image_plan_apply(self->plan, params, &image, dst, err);
}

/* Prefetches the beginning of the next row: rows are in no order, so the hardware does not foresee
 * which row comes. The hardware does foresee the rest of the row. */
static void prefetch_image(const fl_row_runs *runs, int64_t row)
{
    const char *data = runs->data + row * runs->row_stride;
    int64_t bytes = fl_min(runs->reach, AHEAD_BYTES);
    for (int64_t at = 0; at < bytes; at += LINE_BYTES) __builtin_prefetch(data + at);
}

static fl_sample_key key_of(const image_column *self, const fl_column_batch *batch, int64_t i)
{
    const fl_rows *rows = batch->rows;
    return (fl_sample_key){.seed = fl_image_plan_seed(self->plan),
                           .index = fl_row_at(rows, i),
                           .epoch = batch->epoch,
                           .view = rows->has_views ? rows->view[i] : 0};
}

static int map_image(const image_column *self, const fl_column_batch *batch, int64_t i,
                     const fl_sample_key *key, int32_t *map, fl_err *err)
{
    fl_image_params drawn[FL_MAX_IMAGE_OPS];
    const fl_image_params *params;
    FL_TRY(find_params(self, batch, i, key, drawn, &params, err));
    fl_image_plan_map(self->plan, params, map);
    return fl_image_plan_write_own_taps(self->plan, map, err);
}

/* Writes the rows and the views from which the destination draws the maps. */
static void note_keys(const fl_column_batch *batch, int64_t from, int64_t to, char *begin)
{
    int64_t *rows = (int64_t *)(void *)begin;
    uint8_t *views = (uint8_t *)(rows + batch->rows->count);
    for (int64_t i = from; i < to; i++) {
        rows[i] = fl_row_at(batch->rows, i);
        if (batch->rows->has_views) views[i] = batch->rows->view[i];
    }
}

/* Writes the values, or all of the plan if the destination draws. */
static void note_values(const image_column *self, bool is_drawn, char *out)
{
    const bool has_ops = self->least_drawn < INT64_MAX;
    const int64_t at = has_ops && !is_drawn ? fl_image_plan_ops_bytes(self->plan) : 0;
    memcpy(out, self->all + at, (size_t)(is_drawn ? self->all_bytes : self->values_bytes));
}

/* Gathers images, maps or rows, and values, from which the destination makes the results. */
static int gather_parts(const fl_column *column, const fl_column_batch *batch, int64_t from,
                        int64_t to, char *buffer, fl_err *err)
{
    const image_column *self = as_images(column);
    const fl_transfer_cast *cast = &batch->outputs->cast;
    char *begin = buffer + batch->outputs->offset, *map = begin + cast->maps;
    const bool is_drawn = cast->draws != NULL;
    if (from == 0) note_values(self, is_drawn, begin + cast->values);
    FL_TRY(fl_column_copy_rows(column, &self->runs, self->row_ops, batch, from, to, begin, err));
    if (is_drawn) note_keys(batch, from, to, map);
    for (int64_t i = from; i < to && !is_drawn; i++) {
        const fl_sample_key key = key_of(self, batch, i);
        int32_t *numbers = (int32_t *)(void *)(map + i * self->map_bytes);
        int status = map_image(self, batch, i, &key, numbers, err);
        FL_TRY(fl_column_name_row(err, status, batch, key.index));
    }
    return FL_OK;
}

static int gather_images(const fl_column *column, const fl_column_batch *batch, int64_t from,
                         int64_t to, char *buffer, fl_err *err)
{
    const image_column *self = as_images(column);
    const fl_rows *rows = batch->rows;
    fl_scratch *scratch = NULL;
    char *dst = buffer + batch->outputs->offset + from * self->out_bytes;
    fl_sample_key key = key_of(self, batch, from);
    int status = self->slots != NULL ? fl_scratch_take(self->slots, &scratch, err) : FL_OK;
    for (int64_t i = from; status == FL_OK && i < to; i++, dst += self->out_bytes) {
        key = key_of(self, batch, i);
        if (i + 1 < to) prefetch_image(&self->runs, fl_row_at(rows, i + 1));
        status = gather_image(self, batch, i, &key, scratch, dst, err);
    }
    if (scratch != NULL) fl_scratch_give(self->slots, scratch);
    return fl_column_name_row(err, status, batch, key.index);
}

static int64_t
find_row_beyond(const fl_column *column, int32_t part, const fl_rows *rows, const char *limit)
{
    (void)part;
    return fl_row_runs_beyond(&as_images(column)->runs, column->length, rows, limit);
}

static void move_images(fl_column *column, int32_t part, const char *data)
{
    (void)part;
    ((image_column *)column)->runs.data = data;
}

static void close_images(fl_column *column)
{
    image_column *self = (image_column *)column;
    fl_scratch_close(self->slots);
    fl_free(self->all);
    fl_free(self);
}

static const fl_column_ops image_ops = {.layout = layout_images,
                                        .gather = gather_images,
                                        .row_beyond = find_row_beyond,
                                        .move = move_images,
                                        .close = close_images};

static const fl_column_ops part_ops = {.layout = layout_images,
                                       .gather = gather_parts,
                                       .row_beyond = find_row_beyond,
                                       .move = move_images,
                                       .close = close_images};

static int check_image(const fl_column_image_config *config, int64_t height, int64_t width,
                       int64_t channels, fl_err *err)
{
    const fl_image_plan *plan = config->plan;
    const fl_tensor *view = &config->view;
    fl_image_size in = fl_image_plan_in(plan);
    bool is_bytes = view->dtype.code == 1 && view->dtype.bits == 8 && view->dtype.lanes == 1;
    if (view->ndim == 4 && is_bytes && channels == fl_image_plan_channels(plan) &&
        height <= INT32_MAX && width <= INT32_MAX && height > 0 && width > 0 &&
        (in.height == 0 || (in.height == height && in.width == width)))
        return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "must hold the images of its plan: uint8 with %d channels, %d x %d",
                   fl_image_plan_channels(plan), in.height, in.width);
}

/* Describes the layout of images in the source, and their layout once they are copied. */
static int describe_images(image_column *self, const fl_column_image_config *config, fl_err *err)
{
    const fl_tensor *view = &config->view;
    bool is_chw = config->layout == FL_CHW;
    int y = is_chw ? 2 : 1, x = is_chw ? 3 : 2, c = is_chw ? 1 : 3;
    int64_t height = view->shape[y], width = view->shape[x], channels = view->shape[c];
    FL_TRY(check_image(config, height, width, channels, err));
    fl_image_size size = {(int32_t)height, (int32_t)width};
    self->image = (fl_image_source){.stride_y = view->stride[y],
                                    .stride_x = view->stride[x],
                                    .stride_c = view->stride[c],
                                    .size = size};
    self->copy = (fl_image_source){.stride_y = is_chw ? width : width * channels,
                                   .stride_x = is_chw ? 1 : channels,
                                   .stride_c = is_chw ? height * width : 1,
                                   .size = size};
    return fl_row_runs_set(&self->runs, view, err);
}

static void describe_output(image_column *self, const fl_column_image_config *config)
{
    int64_t packed[4], work = fl_image_plan_out_bytes(config->plan);
    self->out_bytes = work;
    self->dtype = config->dtype;
    self->cast = config->cast;
    self->shape[0] = 1;
    for (int d = 0; d < 3; d++) self->shape[d + 1] = config->shape[d];
    fl_tensor_strides(4, self->shape, packed);
    self->stride[0] = packed[0];
    self->is_contiguous = true;
    for (int d = 0; d < 3; d++) {
        self->stride[d + 1] = config->stride[d];
        self->is_contiguous &= packed[d + 1] == config->stride[d];
    }
    int64_t factor = fl_image_plan_resizes(config->plan) ? RESIZE_WORK : 1;
    bool fits = fl_add(work, self->runs.row_bytes, &work) && fl_mul(work, factor, &work);
    self->work_bytes = fits ? work : INT64_MAX;
}

static int write_values(image_column *self, fl_err *err)
{
    const fl_image_plan *plan = self->plan;
    const bool may_draw = self->least_drawn < INT64_MAX;
    self->values_bytes = fl_image_plan_values_bytes(plan);
    self->all_bytes = may_draw ? fl_image_plan_all_bytes(plan) : self->values_bytes;
    self->all = fl_alloc(self->all_bytes);
    if (self->all == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    if (may_draw) return fl_image_plan_write_all(plan, self->all, err);
    fl_image_plan_write_values(plan, self->all);
    return FL_OK;
}

/* Returns from how many rows on the destination draws the maps: operations and taps then have fewer
 * bytes than the maps would have. A plan without taps always draws. */
static int64_t find_least_drawn(const image_column *self)
{
    const int64_t taps = fl_image_plan_taps_bytes(self->plan);
    if (self->draws != NULL || taps > MOST_SENT_TAPS) return INT64_MAX;
    if (taps == 0) return 0;
    return (fl_image_plan_ops_bytes(self->plan) + taps) / (self->map_bytes - MOST_KEY_BYTES) + 1;
}

/* For results that the destination makes: out_bytes is then the filled bytes of an image. */
static int describe_parts(image_column *self, const fl_column_image_config *config, fl_err *err)
{
    const fl_image_plan *plan = config->plan;
    const fl_image_size out = fl_image_plan_out(plan);
    const int64_t step = config->cast.plane == 1 ? config->cast.channels : 1;
    fl_image_batch *made = &self->made;
    fl_image_plan_describe(plan, made);
    self->base.ops = &part_ops;
    self->row_ops = config->row_ops;
    self->map_bytes = (made->map_numbers + fl_image_plan_own_taps(plan)) * (int64_t)sizeof(int32_t);
    self->least_drawn = find_least_drawn(self);
    fl_image_plan_describe_maps(plan, &self->maps);
    FL_TRY(write_values(self, err));
    self->out_bytes = self->runs.row_bytes;
    bool fits = fl_add(self->runs.row_bytes, self->map_bytes, &self->work_bytes);
    if (!fits) self->work_bytes = INT64_MAX;
    const fl_image_source *copy = &self->copy;
    const int64_t from[] = {self->runs.row_bytes, copy->stride_c, copy->stride_y, copy->stride_x};
    const int64_t to[] = {config->cast.count, config->cast.plane, out.width * step, step};
    memcpy(made->from_steps, from, sizeof from);
    memcpy(made->to_steps, to, sizeof to);
    self->drawn = *made;
    made->map_numbers += fl_image_plan_own_taps(plan);
    return FL_OK;
}

int fl_column_image_open(const fl_column_image_config *config, fl_column **out, fl_err *err)
{
    *out = NULL;
    image_column *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    self->base = (fl_column){.ops = &image_ops,
                             .length = config->view.shape[0],
                             .outputs = 1,
                             .is_volatile = config->is_volatile};
    self->plan = config->plan;
    self->draws = config->draws;
    int status = describe_images(self, config, err);
    if (status == FL_OK && config->is_volatile && config->cast.kind != FL_CAST_IMAGES) {
        self->slots = fl_alloc(sizeof *self->slots);
        if (self->slots == NULL) status = fl_fail(err, FL_ENOMEM, "has no memory for a column");
    }
    if (status == FL_OK) describe_output(self, config);
    if (status == FL_OK && config->cast.kind == FL_CAST_IMAGES)
        status = describe_parts(self, config, err);
    if (status != FL_OK) {
        close_images(&self->base);
        return status;
    }
    *out = &self->base;
    return FL_OK;
}
