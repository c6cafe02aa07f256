/* fl_cuda: devices and errors of the CUDA runtime; see fl_cuda.h and fl_cuda_runtime.h. */
#include "fl_cuda.h"
#include "fl_cuda_kernels.h"
#include "fl_cuda_runtime.h"

#include <dlfcn.h>
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
    FL_CUDA_TRY(cudaGetDevice(before), err);
    if (*before != device) FL_CUDA_TRY(cudaSetDevice(device), err);
    return FL_OK;
}

/* A thread that has not chosen a device is on device 0, but to put it back there would make a
 * context, of hundreds of megabytes, where nothing may want one. torch's own guards leave such a
 * thread where it is, too. The driver is asked, because every call of the runtime's that could tell
 * would make that context. */
static bool has_context(int32_t device)
{
    int (*get_state)(int, unsigned *, int *) = NULL;
    int is_active = 1;
    unsigned flags;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL) return true;
    *(void **)&get_state = dlsym(driver, "cuDevicePrimaryCtxGetState");
    if (get_state != NULL && get_state(device, &flags, &is_active) != 0) is_active = 1;
    dlclose(driver);
    return is_active != 0;
}

void fl_cuda_leave(int32_t before)
{
    int now;
    bool has_failed = cudaGetDevice(&now) != cudaSuccess;
    if (!has_failed && now == before) return;
    if (has_context(before)) has_failed |= cudaSetDevice(before) != cudaSuccess;
    if (has_failed) (void)cudaGetLastError();
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
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int32_t before;
    FL_TRY(fl_cuda_enter(queue->device, &before, err));
    int status = FL_CUDA_STATUS(cudaStreamIsCapturing(queue->stream, &capture), err);
    fl_cuda_leave(before);
    *out = capture != cudaStreamCaptureStatusNone;
    return status;
}
