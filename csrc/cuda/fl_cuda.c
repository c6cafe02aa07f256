/* fl_cuda: see fl_cuda.h. */
#include "fl_cuda.h"
#include "fl_cuda_cast.h"
#include "fl_cuda_gather.h"
#include "fl_cuda_images.h"
#include "fl_cuda_kernels.h"
#include "fl_cuda_ragged.h"
#include "fl_cuda_runtime.h"
#include "fl_cuda_widen.h"
#include "fl_cuda_windows.h"

const char *const fl_cuda_archs = FL_CUDA_ARCHS;
const int fl_cuda_version = CUDART_VERSION;

static cudaError_t load_all(void)
{
    cudaError_t error = fl_cuda_load_passes();
    if (error == cudaSuccess) error = fl_cuda_load_casts();
    if (error == cudaSuccess) error = fl_cuda_load_gathers();
    if (error == cudaSuccess) error = fl_cuda_load_images();
    if (error == cudaSuccess) error = fl_cuda_load_windows();
    if (error == cudaSuccess) error = fl_cuda_load_pieces();
    return error == cudaSuccess ? fl_cuda_load_widens() : error;
}

int fl_cuda_load_kernels(fl_err *err)
{
    return fl_cuda_status(load_all(), "cudaFuncGetAttributes", err);
}

/* Checks for code that runs on `device`, the current device. */
static int check_code(int32_t device, fl_err *err)
{
    int major, minor;
    cudaError_t error = load_all();
    if (error == cudaSuccess) return FL_OK;
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction)
        return fl_cuda_fail(err, error, "cudaFuncGetAttributes");
    (void)cudaGetLastError();
    FL_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), err);
    FL_CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), err);
    return fl_fail(err, FL_EDEVICE,
                   "CUDA device %d has compute capability %d.%d; this fastloop was built for %s",
                   (int)device, major, minor, fl_cuda_archs);
}

int fl_cuda_check(int32_t device, fl_err *err)
{
    int count;
    int32_t before;
    FL_CUDA_TRY(cudaGetDeviceCount(&count), err);
    if (device < 0 || device >= count)
        return fl_fail(err, FL_EDEVICE, "there is no CUDA device %d: this process sees %d",
                       (int)device, count);
    FL_TRY(fl_cuda_enter(device, &before, err));
    int status = check_code(device, err);
    fl_cuda_leave(before);
    return status;
}

static int open_stream_inside(int32_t device, cudaStream_t *out, fl_err *err)
{
    int least, greatest;
    FL_TRY(fl_cuda_require_primary(device, err));
    FL_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), err);
    FL_CUDA_TRY(cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, least), err);
    return FL_OK;
}

int fl_cuda_stream_open(int32_t device, void **out, fl_err *err)
{
    fl_cuda_scope scope;
    cudaStream_t stream = NULL;
    *out = NULL;
    FL_TRY(fl_cuda_scope_enter(device, &scope, err));
    int status = open_stream_inside(device, &stream, err);
    fl_cuda_scope_leave(&scope);
    *out = stream;
    return status;
}

int fl_cuda_is_capturing(const fl_cuda_queue *queue, bool *out, fl_err *err)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int32_t before;
    FL_TRY(fl_cuda_enter(queue->device, &before, err));
    int status = FL_CUDA_STATUS(cudaStreamIsCapturing(queue->stream, &capture), err);
    fl_cuda_leave(before);
    *out = capture != cudaStreamCaptureStatusNone;
    return status;
}

/* Checks the launches of one call; returns the first error. */
static int leave_launched(int32_t before, cudaError_t error, fl_err *err)
{
    int status = fl_cuda_status(error, "cudaLaunchKernel", err);
    fl_cuda_leave(before);
    return status;
}

int fl_cuda_gather(int32_t device, void *stream, const fl_gather *of, fl_err *err)
{
    int32_t before;
    FL_TRY(fl_cuda_enter(device, &before, err));
    cudaError_t error = fl_cuda_queue_gather(stream, of, INT32_MAX);
    return leave_launched(before, error, err);
}

int fl_cuda_gather_images(int32_t device, void *stream, const fl_image_batch *images,
                          const int64_t *rows, int64_t count, fl_err *err)
{
    int32_t before;
    FL_TRY(fl_cuda_enter(device, &before, err));
    cudaError_t error = fl_cuda_queue_images(stream, images, rows, count);
    return leave_launched(before, error, err);
}

int fl_cuda_gather_windows(int32_t device, void *stream, const fl_window_batch *windows,
                           const int64_t *starts, int64_t count, fl_err *err)
{
    int32_t before;
    FL_TRY(fl_cuda_enter(device, &before, err));
    cudaError_t error = fl_cuda_queue_windows(stream, windows, starts, count);
    return leave_launched(before, error, err);
}

int fl_cuda_gather_pieces(int32_t device, void *stream, const fl_piece_batch *outputs,
                          int32_t count, fl_err *err)
{
    int32_t before;
    FL_TRY(fl_cuda_enter(device, &before, err));
    cudaError_t error = fl_cuda_queue_pieces(stream, outputs, count);
    return leave_launched(before, error, err);
}
