/* fl_cuda_runtime: see fl_cuda_runtime.h. */
#include "fl_cuda_runtime.h"

#include <dlfcn.h>
#include <string.h>

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

cudaError_t fl_cuda_load(const void *const *kernels, int count)
{
    struct cudaFuncAttributes attributes;
    for (int i = 0; i < count; i++) {
        cudaError_t error = cudaFuncGetAttributes(&attributes, kernels[i]);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

/* Returns true if the device has a context. A thread that has not chosen a device is on device 0,
 * but choosing device 0 for that thread would make a context of hundreds of megabytes that perhaps
 * nobody wants. torch's own guards also leave such a thread where it is. The driver is asked,
 * because every call of the runtime that could tell would make that context. */
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

/* Returns true if the primary context is current, or if the driver cannot be asked. */
static bool is_primary_current(int32_t device)
{
    int (*get_current)(void **) = NULL, (*retain)(void **, int) = NULL, (*release)(int) = NULL;
    void *current = NULL, *primary = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL) return true;
    *(void **)&get_current = dlsym(driver, "cuCtxGetCurrent");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&release = dlsym(driver, "cuDevicePrimaryCtxRelease_v2");
    if (get_current != NULL && retain != NULL && release != NULL && get_current(&current) == 0 &&
        current != NULL && retain(&primary, device) == 0)
        (void)release(device);
    dlclose(driver);
    return primary == NULL || current == primary;
}

int fl_cuda_require_primary(int32_t device, fl_err *err)
{
    if (is_primary_current(device)) return FL_OK;
    return fl_fail(err, FL_EDEVICE,
                   "the current CUDA context of device %d must be the primary one; iterate over "
                   "the loader outside of it (a green context?), or set FASTLOOP_DISABLE_CUDA=1",
                   (int)device);
}

void fl_cuda_leave(int32_t before)
{
    int now;
    bool has_failed = cudaGetDevice(&now) != cudaSuccess;
    if (!has_failed && now == before) return;
    if (has_context(before)) has_failed |= cudaSetDevice(before) != cudaSuccess;
    if (has_failed) (void)cudaGetLastError();
}

static int change_mode(fl_cuda_scope *scope, fl_err *err)
{
    return FL_CUDA_STATUS(cudaThreadExchangeStreamCaptureMode(&scope->mode), err);
}

int fl_cuda_scope_enter(int32_t device, fl_cuda_scope *scope, fl_err *err)
{
    *scope = (fl_cuda_scope){.mode = cudaStreamCaptureModeRelaxed};
    FL_TRY(fl_cuda_enter(device, &scope->before, err));
    int status = change_mode(scope, err);
    scope->is_inside = status == FL_OK;
    if (!scope->is_inside) fl_cuda_leave(scope->before);
    return status;
}

void fl_cuda_scope_enter_surely(int32_t device, fl_cuda_scope *scope)
{
    if (fl_cuda_scope_enter(device, scope, NULL) != FL_OK)
        (void)fl_cuda_scope_enter(device, scope, NULL);
}

void fl_cuda_scope_leave(fl_cuda_scope *scope)
{
    if (!scope->is_inside) return;
    (void)change_mode(scope, NULL);
    fl_cuda_leave(scope->before);
}
