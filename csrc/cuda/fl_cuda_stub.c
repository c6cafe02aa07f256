/* fl_cuda_stub: the names of fl_cuda.h in a build without nvcc. Nothing is available. */
#include "fl_cuda.h"

const char *const fl_cuda_archs = "";
const int fl_cuda_version = 0;

int fl_cuda_check(int32_t device, fl_err *err)
{
    (void)device;
    return fl_fail(err, FL_EDEVICE,
                   "this fastloop was built without CUDA; install nvcc and build it anew");
}

const fl_backend fl_cuda_backend = {0};

int64_t fl_cuda_scratch_bytes(const fl_list *list)
{
    (void)list;
    return 0;
}

int fl_cuda_is_capturing(const fl_cuda_queue *queue, bool *out, fl_err *err)
{
    *out = false;
    return fl_cuda_check(queue->device, err);
}
