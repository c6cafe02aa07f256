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

cudaError_t fl_cuda_load_images(void) { return cudaSuccess; }

cudaError_t fl_cuda_load_windows(void) { return cudaSuccess; }

cudaError_t fl_cuda_queue_windows(void *stream, const fl_window_batch *windows,
                                  const int64_t *starts, int64_t count)
{
    (void)stream, (void)windows, (void)starts, (void)count;
    abort();
}

cudaError_t
fl_cuda_queue_images(void *stream, const fl_image_batch *images, const int64_t *rows, int64_t count)
{
    (void)stream, (void)images, (void)rows, (void)count;
    abort();
}

cudaError_t fl_cuda_queue_gather(void *stream, const fl_row_column *columns, int32_t column_count,
                                 const int64_t *rows, int64_t row_count, int64_t most_bytes)
{
    (void)stream, (void)columns, (void)column_count, (void)rows, (void)row_count, (void)most_bytes;
    abort();
}
