/* fake_kernels: stands in for the kernels, and for fl_cuda_grad.c, where no pass is run. */
#include "fake_cuda.h"
#include "fl_cuda.h"
#include "fl_cuda_cast.h"
#include "fl_cuda_gather.h"
#include "fl_cuda_images.h"
#include "fl_cuda_kernels.h"
#include "fl_cuda_runtime.h"
#include "fl_cuda_widen.h"
#include "fl_cuda_windows.h"

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

/* Of the result of a resize: the map's own taps, rows first. */
static int32_t resize_one(const fl_image_batch *of, const int32_t *crop, const uint8_t *plane,
                          int32_t row, int32_t column)
{
    const int32_t *rows = crop + FL_CROP_NUMBERS, *y = rows + row * (3 + of->rows.taps);
    const int32_t *x = rows + of->rows.out * (3 + of->rows.taps) + column * (3 + of->columns.taps);
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

static int32_t
value_at(const fl_image_batch *of, const int32_t *map, const uint8_t *plane, int32_t y, int32_t x)
{
    const int32_t row = map[y], column = map[of->height + x],
                  *behind = map + of->height + of->width;
    int32_t fill = row < column ? row : column;
    for (int32_t i = 0; i < of->erased; i++, behind += FL_ERASED_NUMBERS)
        if (y >= behind[0] && x >= behind[1] && y < behind[2] && x < behind[3]) fill = behind[4];
    if (fill < 0) return 255 - fill;
    if (of->resizes) return resize_one(of, behind, plane, row, column);
    return plane[row * of->from_steps[2] + column * of->from_steps[3]];
}

static void run_images(void *arg)
{
    fake_images *self = arg;
    const fl_image_batch *of = &self->of;
    const int64_t pixels = (int64_t)of->height * of->width, all = self->count * of->channels;
    for (int64_t n = 0; n < all * pixels; n++) {
        const int64_t image = n / pixels / of->channels, c = n / pixels % of->channels;
        const int32_t y = (int32_t)(n % pixels / of->width), x = (int32_t)(n % of->width);
        const uint8_t *plane = self->from + image * of->from_steps[0] + c * of->from_steps[1];
        int64_t value =
            c * of->values + value_at(of, self->maps + image * of->map_numbers, plane, y, x);
        int64_t at = image * of->to_steps[0] + c * of->to_steps[1] + y * of->to_steps[2] +
                     x * of->to_steps[3];
        memcpy(self->to + at * of->element_bytes, self->table + value * of->element_bytes,
               (size_t)of->element_bytes);
    }
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

/* Never queued where no kernel is: its tests run the kernel itself. */
cudaError_t fl_cuda_load_gathers(void) { return cudaSuccess; }

cudaError_t fl_cuda_load_windows(void) { return cudaSuccess; }

cudaError_t fl_cuda_queue_windows(void *stream, const fl_window_batch *windows,
                                  const int64_t *starts, int64_t count)
{
    (void)stream, (void)windows, (void)starts, (void)count;
    abort();
}

cudaError_t fl_cuda_queue_gather(void *stream, const fl_row_column *columns, int32_t column_count,
                                 const int64_t *rows, int64_t row_count, int64_t most_bytes)
{
    (void)stream, (void)columns, (void)column_count, (void)rows, (void)row_count, (void)most_bytes;
    abort();
}
