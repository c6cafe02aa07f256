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
