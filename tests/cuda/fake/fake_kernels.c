/* fake_kernels: stands in for the kernels, and for fl_cuda_grad.c, in tests that run no pass. */
#include "fake_cuda.h"
#include "fl_cuda.h"
#include "fl_cpu_image.h"
#include "fl_cuda_cast.h"
#include "fl_cuda_gather.h"
#include "fl_cuda_images.h"
#include "fl_cuda_kernels.h"
#include "fl_cuda_ragged.h"
#include "fl_cuda_runtime.h"
#include "fl_cuda_widen.h"
#include "fl_cuda_windows.h"
#include "fl_image_plan.h"
#include "fl_tone.h"

#include <stdlib.h>
#include <string.h>

cudaError_t fl_cuda_load_passes(void) { return cudaSuccess; }

const fl_grad_ops fl_cuda_grad_ops = {0};

int64_t fl_cuda_scratch_bytes(const fl_tensor_list *list)
{
    (void)list;
    return 0;
}

typedef struct fake_cast {
    fl_transfer_cast cast;
    const uint8_t *from;
    char *to;
    char tables[]; /* a copy, as of a kernel's arguments */
} fake_cast;

static void run_look_up(void *arg)
{
    fake_cast *self = arg;
    const fl_transfer_cast *cast = &self->cast;
    for (int64_t i = 0; i < cast->count; i++) {
        int64_t entry = i / cast->plane % cast->channels * 256 + self->from[i];
        memcpy(self->to + i * cast->bytes, self->tables + entry * cast->bytes, (size_t)cast->bytes);
    }
    free(self);
}

static void run_widen(void *arg)
{
    fake_cast *self = arg;
    const fl_transfer_cast *cast = &self->cast;
    for (int64_t i = 0; i < cast->count; i++) {
        int64_t at = i / cast->row * cast->pitch + i % cast->row, value = 0;
        const uint8_t *from = self->from + at * cast->from_bytes;
        bool is_negative = cast->is_signed && from[cast->from_bytes - 1] >= 128;
        memset(&value, is_negative ? 255 : 0, sizeof value);
        memcpy(&value, from, (size_t)cast->from_bytes);
        memcpy(self->to + i * cast->bytes, &value, (size_t)cast->bytes);
    }
    free(self);
}

static cudaError_t queue(void *stream, int32_t processors, void *buffer,
                         const fl_transfer_cast *cast, void (*run)(void *), size_t table_bytes)
{
    if (cast->count == 0) return cudaSuccess;
    if (processors < 1) abort();
    fake_cast *self = malloc(sizeof *self + table_bytes);
    if (self == NULL) abort();
    self->cast = *cast;
    self->from = (const uint8_t *)fake_host_view(buffer) + cast->from;
    self->to = fake_host_view(buffer) + cast->to;
    if (table_bytes > 0) memcpy(self->tables, cast->tables, table_bytes);
    cudaError_t error = fake_try_launch(stream, (const void *)run, run, self);
    if (error != cudaSuccess) free(self);
    return error;
}

cudaError_t
fl_cuda_cast(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast)
{
    size_t table_bytes = 256 * (size_t)cast->channels * (size_t)cast->bytes;
    return queue(stream, processors, buffer, cast, run_look_up, table_bytes);
}

cudaError_t
fl_cuda_widen(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast)
{
    return queue(stream, processors, buffer, cast, run_widen, 0);
}

/* ---- images of a batch that was sent, one element after another */

typedef struct fake_images {
    fl_image_batch of;
    const uint8_t *from;
    char *to;
    const int32_t *maps;
    const char *table;
    int64_t count;
} fake_images;

static int32_t clamp_byte(int64_t sum, int32_t precision)
{
    int64_t value = (sum + (precision > 0 ? 1 << (precision - 1) : 0)) >> precision;
    return value < 0 ? 0 : value > 255 ? 255 : (int32_t)value;
}

/* Computes a byte of a resize, rows first, with the taps of all lengths or the map's own. */
static int32_t resize_one(const fl_image_batch *of, const int32_t *crop, const uint8_t *plane,
                          int32_t row, int32_t column)
{
    const bool is_own = of->row_taps == NULL;
    const int32_t each_y = 3 + of->rows.taps, each_x = 3 + of->columns.taps;
    const int32_t *y = is_own ? crop + FL_CROP_NUMBERS : of->row_taps;
    const int32_t *x = is_own ? y + of->rows.out * each_y : of->column_taps;
    if (!is_own) y += (crop[0] - of->rows.shortest) * of->rows.out * each_y;
    if (!is_own) x += (crop[3] - of->columns.shortest) * of->columns.out * each_x;
    y += row * each_y;
    x += column * each_x;
    int64_t sum = 0;
    for (int32_t j = 0; j < y[1]; j++) {
        int64_t across = 0;
        for (int32_t k = 0; k < x[1]; k++)
            across += x[3 + k] * plane[(crop[1] + crop[2] * (y[0] + j)) * of->from_steps[2] +
                                       (crop[4] + crop[5] * (x[0] + k)) * of->from_steps[3]];
        sum += (int64_t)y[3 + j] * clamp_byte(across, x[2]);
    }
    return clamp_byte(sum, y[2]);
}

/* Returns the value that becomes an element, before erasing. */
static int32_t
value_at(const fl_image_batch *of, const int32_t *map, const uint8_t *plane, int32_t y, int32_t x)
{
    const int32_t row = map[y], column = map[of->height + x];
    const int32_t *crop = map + of->runs_at;
    int32_t fill = row < column ? row : column;
    if (fill < 0) return 255 - fill;
    if (of->resizes) return resize_one(of, crop, plane, row, column);
    return plane[row * of->from_steps[2] + column * of->from_steps[3]];
}

static int32_t
erase_at(const fl_image_batch *of, const int32_t *map, int32_t y, int32_t x, int32_t value)
{
    const int32_t *erased = map + of->height + of->width;
    for (int32_t i = 0; i < of->erased; i++, erased += FL_ERASED_NUMBERS)
        if (y >= erased[0] && x >= erased[1] && y < erased[2] && x < erased[3])
            value = 255 - erased[4];
    return value;
}

/* Does one step as the CPU does. */
static void run_step(fl_image_view *view, const fl_color_step *step)
{
    int status = step->tone == FL_TONE_GREY ? fl_tone_grey(view, 3, NULL)
                 : step->tone == FL_TONE_PERMUTE
                     ? fl_tone_permute(view, step->order, NULL)
                     : fl_tone_apply(view, (fl_tone)step->tone, (double)step->number, NULL);
    if (status != FL_OK) abort();
}

/* Changes the colours of an image's values, which then are bytes. */
static void
run_steps(const fl_image_batch *of, const int32_t *map, const char *as_bytes, int32_t *values)
{
    const int32_t edges = of->height + of->width + FL_ERASED_NUMBERS * of->erased;
    const fl_color_step *step = (const void *)(map + edges);
    const int64_t pixels = (int64_t)of->height * of->width;
    fl_scratch_slots *slots = fl_alloc((int64_t)sizeof *slots);
    fl_image_tools tools = {.image_ops = &fl_cpu_image_plain, .channels = of->channels};
    uint8_t *bytes = malloc((size_t)(pixels * of->channels));
    if (slots == NULL || bytes == NULL || fl_scratch_take(slots, &tools.scratch, NULL) != FL_OK)
        abort();
    for (int64_t n = 0; n < pixels * of->channels; n++)
        bytes[n] = (uint8_t)as_bytes[n / pixels * of->values + values[n]];
    const fl_image_source source = {.data = bytes,
                                    .stride_y = of->width,
                                    .stride_x = 1,
                                    .stride_c = pixels,
                                    .size = {of->height, of->width}};
    fl_image_planes made;
    fl_image_view view;
    fl_image_view_start(&view, &tools, NULL, &source);
    for (int32_t n = 0; n < of->steps && step->tone != FL_TONE_NONE; n++) run_step(&view, step++);
    if (fl_image_view_own(&view, true, &made, NULL) != FL_OK) abort();
    fl_image_view_look_up(&view);
    for (int64_t n = 0; n < pixels * of->channels; n++)
        values[n] = made.data[n / pixels * made.plane + n % pixels];
    free(bytes);
    fl_scratch_give(slots, tools.scratch);
    fl_scratch_close(slots);
}

/* Values of an image, channel by channel, row by row. */
static void find_values(const fake_images *self, int64_t image, int32_t *values)
{
    const fl_image_batch *of = &self->of;
    const int64_t pixels = (int64_t)of->height * of->width, typed = of->channels * of->values;
    const int32_t *map = self->maps + image * of->map_numbers;
    for (int64_t n = 0; n < of->channels * pixels; n++)
        values[n] = value_at(
            of, map, self->from + image * of->from_steps[0] + n / pixels * of->from_steps[1],
            (int32_t)(n % pixels / of->width), (int32_t)(n % of->width));
    if (of->steps > 0) run_steps(of, map, self->table + typed * of->element_bytes, values);
    for (int64_t n = 0; n < of->channels * pixels; n++)
        values[n] = erase_at(of, map, (int32_t)(n % pixels / of->width), (int32_t)(n % of->width),
                             values[n]);
}

static void run_images(void *arg)
{
    fake_images *self = arg;
    const fl_image_batch *of = &self->of;
    const int64_t pixels = (int64_t)of->height * of->width, all = of->channels * pixels;
    const size_t bytes = (size_t)of->element_bytes;
    int32_t *values = malloc((size_t)all * sizeof *values);
    if (values == NULL) abort();
    for (int64_t image = 0; image < self->count; image++) {
        find_values(self, image, values);
        for (int64_t n = 0; n < all; n++) {
            const int64_t c = n / pixels, y = n % pixels / of->width, x = n % of->width;
            const int64_t at = image * of->to_steps[0] + c * of->to_steps[1] + y * of->to_steps[2] +
                               x * of->to_steps[3];
            memcpy(self->to + at * of->element_bytes,
                   self->table + (c * of->values + values[n]) * of->element_bytes, bytes);
        }
    }
    free(values);
    free(self);
}

cudaError_t
fl_cuda_queue_images(void *stream, const fl_image_batch *images, const int64_t *rows, int64_t count)
{
    if (count == 0) return cudaSuccess;
    fake_images *self = malloc(sizeof *self);
    if (self == NULL || rows != NULL) abort(); /* resident data have tests of their own */
    *self = (fake_images){.of = *images,
                          .from = (const uint8_t *)fake_host_view(images->from),
                          .to = fake_host_view(images->to),
                          .maps = (const int32_t *)(const void *)fake_host_view(images->maps),
                          .table = fake_host_view(images->table),
                          .count = count};
    if (images->row_taps != NULL) {
        self->of.row_taps = (const void *)fake_host_view(images->row_taps);
        self->of.column_taps = (const void *)fake_host_view(images->column_taps);
    }
    cudaError_t error = fake_try_launch(stream, (const void *)run_images, run_images, self);
    if (error != cudaSuccess) free(self);
    return error;
}

cudaError_t fl_cuda_load_images(void)
{
    const void *kernel = (const void *)run_images;
    return fl_cuda_load(&kernel, 1);
}

cudaError_t fl_cuda_load_casts(void)
{
    const void *kernel = (const void *)run_look_up;
    return fl_cuda_load(&kernel, 1);
}

cudaError_t fl_cuda_load_widens(void)
{
    const void *kernel = (const void *)run_widen;
    return fl_cuda_load(&kernel, 1);
}

/* ---- maps, by a plan of the same operations */

static fl_image_plan *open_plan(const fl_map_batch *of)
{
    fl_image_plan *plan;
    const fl_image_config config = {.ops = of->ops,
                                    .count = of->count,
                                    .channels = of->count > 0 ? of->ops->channels : 1,
                                    .in = of->in,
                                    .seed = of->seed,
                                    .image_ops = &fl_cpu_image_plain};
    if (fl_image_plan_open(&config, &plan, NULL) != FL_OK) abort();
    return plan;
}

/* All addresses are the host's. */
static void run_maps(void *arg)
{
    const fl_map_batch *of = arg;
    fl_image_plan *plan = open_plan(of);
    for (int64_t i = 0; i < of->images; i++) {
        fl_image_params params[FL_MAX_IMAGE_OPS];
        const uint8_t view = of->views != NULL ? of->views[i] : 0;
        const fl_sample_key key = {of->seed, of->rows[i], of->epoch, view};
        if (fl_image_plan_draw(plan, &key, of->in, params, NULL) != FL_OK) abort();
        fl_image_plan_map(plan, params, of->maps + i * of->parts.numbers);
    }
    fl_image_plan_close(plan);
    free(arg);
}

/* Uploads gather nothing else. */
cudaError_t fl_cuda_queue_gather(void *stream, const fl_gather *of, int64_t most_bytes)
{
    const fl_map_batch *maps = of->maps;
    if (of->column_count > 0 || of->map_count != 1 || most_bytes != INT32_MAX) abort();
    if (maps->images == 0) return cudaSuccess;
    fl_map_batch *copy = malloc(sizeof *copy);
    if (copy == NULL) abort();
    *copy = *maps;
    copy->ops = (const void *)fake_host_view(maps->ops);
    copy->rows = (const void *)fake_host_view(maps->rows);
    if (maps->views != NULL) copy->views = (const void *)fake_host_view(maps->views);
    copy->maps = (void *)fake_host_view(maps->maps);
    cudaError_t error = fake_try_launch(stream, (const void *)run_maps, run_maps, copy);
    if (error != cudaSuccess) free(copy);
    return error;
}

cudaError_t fl_cuda_load_gathers(void)
{
    const void *kernel = (const void *)run_maps;
    return fl_cuda_load(&kernel, 1);
}

cudaError_t fl_cuda_load_pieces(void) { return cudaSuccess; }

cudaError_t fl_cuda_queue_pieces(void *stream, const fl_piece_batch *outputs, int32_t count)
{
    (void)stream, (void)outputs, (void)count;
    return cudaErrorInvalidDeviceFunction;
}

cudaError_t fl_cuda_load_windows(void) { return cudaSuccess; }

cudaError_t fl_cuda_queue_windows(void *stream, const fl_window_batch *windows,
                                  const int64_t *starts, int64_t count)
{
    (void)stream, (void)windows, (void)starts, (void)count;
    abort();
}
