/* fake_device: devices and their primary contexts, errors, and the part that all calls share; see
 * fake_cuda.h and fake_call.h. The first call that needs a context makes the primary context of the
 * thread's current device, device 0 if the thread has chosen none; cudaSetDevice makes the context
 * of its device (CUDA 12). */
#define FAKE_DEVICE_C
#include "fake_call.h"

#include <dlfcn.h>
#include <string.h>

enum { MOST_KERNELS = 32 };

/* Under the mutex. */
static _Atomic int64_t calls; /* read without the mutex */
static int64_t fail_at, exchanges, fail_exchange_at;
static cudaError_t fail_error, sticky_error;
static bool fails_for_good;
static bool is_default_chosen;
static _Atomic bool is_started; /* read without the mutex */
static bool has_context[FAKE_DEVICES];
static int processors = 2;
static int fp64_ratio = 2;
static bool reads_pageable;
static bool has_code = true;
static const void *loaded[FAKE_DEVICES][MOST_KERNELS]; /* NULL after the last */

static _Thread_local int current_device;
static _Thread_local bool is_chosen[FAKE_DEVICES];
static _Thread_local cudaError_t last_error;
static _Thread_local bool is_green;

/* ---- what every call begins and ends with */

static void make_context(const char *call)
{
    bool is_right = is_chosen[current_device] || (current_device == 0 && is_default_chosen);
    if (!is_right)
        fake_violation("%s makes a context on device %d, which its thread has not chosen", call,
                       current_device);
    has_context[current_device] = true;
}

cudaError_t fake_enter(const char *call, fake_need need)
{
    pthread_mutex_lock(&fake_mutex);
    is_started = true;
    fake_run_some();
    if (sticky_error == cudaSuccess && need != FAKE_NO_CONTEXT) make_context(call);
    if (need == FAKE_EXCHANGE && ++exchanges == fail_exchange_at) return cudaErrorLaunchFailure;
    if (need == FAKE_EXCHANGE || ++calls != fail_at) return sticky_error;
    if (fails_for_good) {
        sticky_error = fail_error;
        fake_drop_work();
    }
    return fail_error;
}

cudaError_t fake_leave(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    pthread_mutex_unlock(&fake_mutex);
    return error;
}

bool fake_has_failed(void) { return sticky_error != cudaSuccess; }

int fake_current_device(void) { return current_device; }

struct CUstream_st *fake_stream_of(cudaStream_t stream)
{
    return stream != NULL ? stream : fake_own_stream(current_device);
}

/* ---- what a test says */

void fake_fail_at(int64_t n, cudaError_t error, bool is_sticky)
{
    pthread_mutex_lock(&fake_mutex);
    calls = 0;
    fail_at = n;
    fail_error = error;
    fails_for_good = is_sticky;
    sticky_error = cudaSuccess;
    pthread_mutex_unlock(&fake_mutex);
}

int64_t fake_calls(void) { return calls; }

void fake_fail_exchange(int64_t n)
{
    pthread_mutex_lock(&fake_mutex);
    exchanges = 0;
    fail_exchange_at = n;
    pthread_mutex_unlock(&fake_mutex);
}

int64_t fake_exchanges(void)
{
    pthread_mutex_lock(&fake_mutex);
    int64_t count = exchanges;
    pthread_mutex_unlock(&fake_mutex);
    return count;
}

void fake_set_devices(int processor_count, bool has_code_for_them)
{
    pthread_mutex_lock(&fake_mutex);
    processors = processor_count;
    has_code = has_code_for_them;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_set_fp64_ratio(int ratio)
{
    pthread_mutex_lock(&fake_mutex);
    fp64_ratio = ratio;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_read_pageable(bool is_read)
{
    pthread_mutex_lock(&fake_mutex);
    reads_pageable = is_read;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_choose_default(bool is_right)
{
    pthread_mutex_lock(&fake_mutex);
    is_default_chosen = is_right;
    pthread_mutex_unlock(&fake_mutex);
}

bool fake_has_context(int device)
{
    pthread_mutex_lock(&fake_mutex);
    bool is_there = has_context[device];
    pthread_mutex_unlock(&fake_mutex);
    return is_there;
}

void fake_enter_green(bool enters) { is_green = enters; }

/* ---- the driver, which the runtime has loaded by its first call */

static int get_state(int device, unsigned *flags, int *is_active)
{
    if (device < 0 || device >= FAKE_DEVICES) return cudaErrorInvalidDevice;
    *flags = 0;
    *is_active = fake_has_context(device);
    return cudaSuccess;
}

static int get_current(void **context)
{
    static char green;
    *context = is_green ? &green : (void *)&has_context[current_device];
    return cudaSuccess;
}

static int retain(void **context, int device)
{
    *context = &has_context[device];
    return cudaSuccess;
}

static int release(int device)
{
    (void)device;
    return cudaSuccess;
}

static const struct {
    const char *name;
    int (*function)();
} driver[] = {
    {"cuDevicePrimaryCtxGetState", get_state},
    {"cuCtxGetCurrent", get_current},
    {"cuDevicePrimaryCtxRetain", retain},
    {"cuDevicePrimaryCtxRelease_v2", release},
};

void *fake_dlopen(const char *name, int flags)
{
    if (strcmp(name, "libcuda.so.1") != 0) return dlopen(name, flags);
    return is_started ? &has_context : NULL;
}

void *fake_dlsym(void *library, const char *name)
{
    if (library != &has_context) return dlsym(library, name);
    for (size_t i = 0; i < sizeof driver / sizeof *driver; i++)
        if (strcmp(name, driver[i].name) == 0) return *(void **)&(int (*)()){driver[i].function};
    return NULL;
}

int fake_dlclose(void *library) { return library != &has_context ? dlclose(library) : 0; }

/* ---- devices and errors */

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = FAKE_ENTER(FAKE_NO_CONTEXT);
    *count = FAKE_DEVICES;
    return fake_leave(error);
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t error = FAKE_ENTER(FAKE_NO_CONTEXT);
    if (error == cudaSuccess) *device = current_device;
    return fake_leave(error);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = FAKE_ENTER(FAKE_NO_CONTEXT);
    if (device < 0 || device >= FAKE_DEVICES) return fake_leave(cudaErrorInvalidDevice);
    if (error != cudaSuccess) return fake_leave(error);
    current_device = device;
    is_chosen[device] = has_context[device] = true;
    return fake_leave(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = FAKE_ENTER(FAKE_NO_CONTEXT);
    if (device < 0 || device >= FAKE_DEVICES) return fake_leave(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrMultiProcessorCount                      ? processors
             : attribute == cudaDevAttrPageableMemoryAccessUsesHostPageTables ? reads_pageable
             : attribute == cudaDevAttrSingleToDoublePrecisionPerfRatio       ? fp64_ratio
             : attribute == cudaDevAttrComputeCapabilityMajor                 ? (has_code ? 8 : 6)
                                                                              : (has_code ? 0 : 1);
    return fake_leave(error);
}

bool fake_load(int device, const void *function)
{
    int i = 0;
    while (i < MOST_KERNELS && loaded[device][i] != NULL && loaded[device][i] != function) i++;
    if (i == MOST_KERNELS) fake_violation("too many kernels");
    bool is_new = loaded[device][i] == NULL;
    loaded[device][i] = function;
    return is_new;
}

void fake_unload(void)
{
    pthread_mutex_lock(&fake_mutex);
    memset(loaded, 0, sizeof loaded);
    pthread_mutex_unlock(&fake_mutex);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    (void)attributes;
    if (error == cudaSuccess && !has_code) error = cudaErrorNoKernelImageForDevice;
    if (error == cudaSuccess) (void)fake_load(current_device, function);
    return fake_leave(error);
}

cudaError_t cudaGetLastError(void)
{
    pthread_mutex_lock(&fake_mutex);
    cudaError_t error = last_error;
    last_error = sticky_error;
    pthread_mutex_unlock(&fake_mutex);
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} names[] = {
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return names[i].name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) return names[i].text;
    return "unknown error";
}
