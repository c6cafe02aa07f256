/* fl_cuda_stub: the names of the headers of csrc/cuda in a build without nvcc. Nothing is
 * available, so no stage exists that the rest could be called with. */
#include "fl_cuda.h"
#include "fl_cuda_transfer.h"

const char *const fl_cuda_archs = "";
const int fl_cuda_version = 0;

int fl_cuda_check(int32_t device, fl_err *err)
{
    (void)device;
    return fl_fail(err, FL_EDEVICE,
                   "this fastloop was built without CUDA; install nvcc and build it anew");
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

int fl_cuda_pin(int32_t device, char *data, int64_t bytes, fl_err *err)
{
    (void)data;
    (void)bytes;
    return fl_cuda_check(device, err);
}

void fl_cuda_unpin(int32_t device, char *data)
{
    (void)device;
    (void)data;
}

int fl_cuda_copy_stream_open(int32_t device, fl_cuda_copy_stream **out, fl_err *err)
{
    *out = NULL;
    return fl_cuda_check(device, err);
}

void fl_cuda_copy_stream_await(fl_cuda_copy_stream *stage) { (void)stage; }

void fl_cuda_copy_stream_halt(fl_cuda_copy_stream *stage) { (void)stage; }

void fl_cuda_copy_stream_close(fl_cuda_copy_stream *stage) { (void)stage; }

int fl_cuda_transfer_get(fl_cuda_copy_stream *stage, int32_t parts, fl_cuda_transfer **out,
                         fl_err *err)
{
    (void)stage;
    (void)parts;
    *out = NULL;
    return fl_cuda_check(0, err);
}

int64_t fl_cuda_copy_stream_collect(fl_cuda_copy_stream *stage)
{
    (void)stage;
    return 0;
}

int fl_cuda_transfer_aim(fl_cuda_transfer *upload, void *block, void *stream, bool *is_filled,
                         fl_err *err)
{
    (void)upload;
    (void)block;
    (void)stream;
    *is_filled = false;
    return fl_cuda_check(0, err);
}

bool fl_cuda_transfer_is_aimed(const fl_cuda_transfer *upload)
{
    (void)upload;
    return false;
}

bool fl_cuda_transfer_is_queued(const fl_cuda_transfer *upload)
{
    (void)upload;
    return false;
}

int fl_cuda_transfer_send(void *upload, fl_slot *slot, int64_t bytes, fl_err *err)
{
    (void)upload;
    (void)slot;
    (void)bytes;
    return fl_cuda_check(0, err);
}

void fl_cuda_transfer_part(void *upload, fl_slot *slot, int64_t bytes)
{
    (void)upload;
    (void)slot;
    (void)bytes;
}

int fl_cuda_transfer_take(fl_cuda_transfer *upload, const fl_batch *batch, void *stream,
                          fl_err *err)
{
    (void)upload;
    (void)batch;
    (void)stream;
    return fl_cuda_check(0, err);
}

int fl_cuda_transfer_carry(const fl_dest_buffer *berth, fl_slot *slot, int64_t bytes, fl_err *err)
{
    (void)berth;
    (void)slot;
    (void)bytes;
    return fl_cuda_check(0, err);
}

void fl_cuda_transfer_abandon(fl_cuda_transfer *upload, const fl_batch *batch, void *stream)
{
    (void)upload;
    (void)batch;
    (void)stream;
}

void fl_cuda_transfer_drop(fl_cuda_transfer *upload) { (void)upload; }
