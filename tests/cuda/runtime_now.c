/* runtime_now: see runtime_now.h. One thread. */
#include "runtime_now.h"
#include "shim_grid.h"

#include <stdlib.h>
#include <string.h>

runtime_now runtime = {.processors = 2, .has_code = true};

static cudaError_t say(cudaError_t error)
{
    if (error != cudaSuccess) runtime.last = error;
    return error;
}

static bool is_refused(void) { return ++runtime.calls == runtime.refuse; }

cudaError_t shim_queue(cudaStream_t stream, shim_launch launch)
{
    (void)stream;
    if (is_refused()) {
        free(launch.args);
        return say(runtime.error);
    }
    runtime.launches++;
    shim_run(launch);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)attributes;
    (void)function;
    if (is_refused()) return say(runtime.error);
    return say(runtime.has_code ? cudaSuccess : cudaErrorNoKernelImageForDevice);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = runtime.last;
    runtime.last = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaErrorOther";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorLaunchFailure ? "unspecified launch failure" : "another error";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = RUNTIME_DEVICES;
    return is_refused() ? say(runtime.error) : cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    if (is_refused()) return say(runtime.error);
    *device = runtime.device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (is_refused()) return say(runtime.error);
    if (device < 0 || device >= RUNTIME_DEVICES) return say(cudaErrorInvalidDevice);
    runtime.device = device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    if (is_refused()) return say(runtime.error);
    if (device < 0 || device >= RUNTIME_DEVICES) return say(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrMultiProcessorCount      ? runtime.processors
             : attribute == cudaDevAttrComputeCapabilityMajor ? 6
                                                              : 1;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return is_refused() ? say(runtime.error) : cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    *mode = cudaStreamCaptureModeGlobal;
    return cudaSuccess;
}

/* ---- what is queued is over: streams and events need no memory of it */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    (void)flags;
    *stream = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    (void)flags;
    *event = NULL;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    (void)memory;
    (void)bytes;
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    (void)memory;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    (void)stream;
    memcpy(to, from, bytes);
    return cudaSuccess;
}
