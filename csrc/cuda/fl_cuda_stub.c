/* fl_cuda_stub: the names of csrc/cuda's headers in a build without nvcc. Nothing is available, and
 * nobody calls the tables, because fl_cuda_check fails for every device. */
#include "fl_cuda.h"
#include "fl_cuda_transfer.h"

const char *const fl_cuda_archs = "";
const int fl_cuda_version = 0;

int fl_cuda_check(int32_t device, fl_err *err)
{
    (void)device;
    return fl_fail(err, FL_EDEVICE,
                   "this fastloop was built without CUDA; install nvcc and build fastloop again");
}

int fl_cuda_stream_open(int32_t device, void **out, fl_err *err)
{
    *out = NULL;
    return fl_cuda_check(device, err);
}

const fl_grad_ops fl_cuda_grad_ops = {0}; /* never called: fl_cuda_check fails */

int64_t fl_cuda_scratch_bytes(const fl_tensor_list *list)
{
    (void)list;
    return 0;
}

int fl_cuda_is_capturing(const fl_cuda_queue *queue, bool *out, fl_err *err)
{
    *out = false;
    return fl_cuda_check(queue->device, err);
}

int fl_cuda_gather(int32_t device, void *stream, const fl_gather *of, fl_err *err)
{
    (void)stream, (void)of;
    return fl_cuda_check(device, err);
}

int fl_cuda_gather_images(int32_t device, void *stream, const fl_image_batch *images,
                          const int64_t *rows, int64_t count, fl_err *err)
{
    (void)stream, (void)images, (void)rows, (void)count;
    return fl_cuda_check(device, err);
}

int fl_cuda_gather_windows(int32_t device, void *stream, const fl_window_batch *windows,
                           const int64_t *starts, int64_t count, fl_err *err)
{
    (void)stream, (void)windows, (void)starts, (void)count;
    return fl_cuda_check(device, err);
}

int fl_cuda_gather_pieces(int32_t device, void *stream, const fl_piece_batch *outputs,
                          int32_t count, fl_err *err)
{
    (void)stream, (void)outputs, (void)count;
    return fl_cuda_check(device, err);
}

int fl_cuda_host_range_open(int32_t device, char *data, int64_t bytes, fl_cuda_host_range **out,
                            fl_err *err)
{
    (void)data, (void)bytes;
    *out = NULL;
    return fl_cuda_check(device, err);
}

void fl_cuda_host_range_close(fl_cuda_host_range *range) { (void)range; }

int64_t fl_cuda_host_range_shift(const fl_cuda_host_range *range)
{
    (void)range;
    return 0;
}

int fl_cuda_host_range_note(fl_cuda_host_range *range, int32_t device, void *stream, fl_err *err)
{
    (void)range, (void)stream;
    return fl_cuda_check(device, err);
}

int fl_cuda_host_range_fence(fl_cuda_host_range *range, fl_err *err)
{
    (void)range, (void)err;
    return FL_OK;
}

bool fl_cuda_host_range_is_registered(const fl_cuda_host_range *range)
{
    (void)range;
    return false;
}

const fl_transfer_ops fl_cuda_transfer_ops = {0};
