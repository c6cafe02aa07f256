/* fl_cuda: devices and errors of the CUDA runtime; see fl_cuda.h and fl_cuda_runtime.h. */
#include "fl_cuda.h"
#include "fl_cuda_kernels.h"
#include "fl_cuda_runtime.h"

#include <string.h>

const char *const fl_cuda_archs = FL_CUDA_ARCHS;
const int fl_cuda_version = CUDART_VERSION;

int fl_cuda_fail(fl_err *err, cudaError_t error, const char *call)
{
    int code = error == cudaErrorMemoryAllocation ? FL_ENOMEM : FL_EDEVICE;
    const char *end = strchr(call, '(');
    int name = end != NULL ? (int)(end - call) : (int)strlen(call);
    (void)cudaGetLastError();
    (void)fl_fail(err, code, "%.*s: %s (CUDA error %d, %s)", name, call, cudaGetErrorString(error),
                  (int)error, cudaGetErrorName(error));
    if (err != NULL) err->value = error;
    return code;
}

int fl_cuda_enter(int32_t device, int32_t *before, fl_err *err)
{
    *before = device;
    FL_CUDA_TRY(cudaGetDevice(before), err);
    if (*before != device) FL_CUDA_TRY(cudaSetDevice(device), err);
    return FL_OK;
}

void fl_cuda_leave(int32_t before)
{
    int now;
    if (cudaGetDevice(&now) == cudaSuccess && now == before) return;
    if (cudaSetDevice(before) != cudaSuccess) (void)cudaGetLastError();
}

/* Of the current device, which is `device`. */
static int check_code(int32_t device, fl_err *err)
{
    int major, minor;
    cudaError_t error = fl_cuda_find_code();
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

int fl_cuda_is_capturing(const fl_cuda_queue *queue, bool *out, fl_err *err)
{
    enum cudaStreamCaptureStatus status;
    FL_CUDA_TRY(cudaStreamIsCapturing(queue->stream, &status), err);
    *out = status != cudaStreamCaptureStatusNone;
    return FL_OK;
}
