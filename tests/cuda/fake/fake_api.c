/* fake_api: the functions of cuda_runtime_api.h; see fake_cuda.h. */
#define _GNU_SOURCE
#include "fake_run.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SITES = 64 };

/* Under the mutex. */
static int64_t event_count, stream_count;
static _Atomic int64_t calls; /* read without it */
static int64_t fail_at;
static cudaError_t fail_error, sticky_error;
static bool fails_for_good, refuses_pins, is_capturing;
static int64_t launches, copies;
static int processors = 2;
static bool has_code = true;
static struct {
    const char *name;
    const void *address;
} sites[MOST_SITES];
static int site_count, ignored_site = -1;

static _Thread_local int current_device;
static _Thread_local enum cudaStreamCaptureMode capture_mode;
static _Thread_local cudaError_t last_error;

/* ---- what every call begins and ends with */

static cudaError_t leave(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    pthread_mutex_unlock(&fake_mutex);
    return error;
}

/* Locks. What the call is to fail with. */
static cudaError_t enter(void)
{
    pthread_mutex_lock(&fake_mutex);
    fake_run_some();
    if (++calls != fail_at) return sticky_error;
    if (fails_for_good) {
        sticky_error = fail_error;
        fake_drop_work();
    }
    return fail_error;
}

/* For calls that spoil a graph which another thread is capturing. */
static void check_capture(void)
{
    if (is_capturing && capture_mode != cudaStreamCaptureModeRelaxed)
        fake_violation("a call that spoils the capture of another thread");
}

/* Whether this call is to be left out: it comes from the site that is ignored. */
static bool is_ignored(const char *name, const void *address)
{
    int at = 0;
    while (at < site_count && (sites[at].address != address || strcmp(sites[at].name, name) != 0))
        at++;
    if (at == MOST_SITES) fake_violation("too many sites");
    if (at == site_count) {
        sites[site_count].name = name;
        sites[site_count++].address = address;
    }
    return at == ignored_site;
}

#define IS_IGNORED() is_ignored(__func__, __builtin_return_address(0))

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

void fake_refuse_pins(bool is_refused)
{
    pthread_mutex_lock(&fake_mutex);
    refuses_pins = is_refused;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_capture(bool is_begun)
{
    pthread_mutex_lock(&fake_mutex);
    is_capturing = is_begun;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_set_devices(int processor_count, bool has_code_for_them)
{
    pthread_mutex_lock(&fake_mutex);
    processors = processor_count;
    has_code = has_code_for_them;
    pthread_mutex_unlock(&fake_mutex);
}

int64_t fake_calls(void) { return calls; }

int64_t fake_launches(void)
{
    pthread_mutex_lock(&fake_mutex);
    int64_t count = launches;
    pthread_mutex_unlock(&fake_mutex);
    return count;
}

int64_t fake_copies(void)
{
    pthread_mutex_lock(&fake_mutex);
    int64_t count = copies;
    pthread_mutex_unlock(&fake_mutex);
    return count;
}

void fake_forget_copies(void)
{
    pthread_mutex_lock(&fake_mutex);
    copies = 0;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_forget_sites(void)
{
    pthread_mutex_lock(&fake_mutex);
    site_count = 0;
    pthread_mutex_unlock(&fake_mutex);
}

const char *fake_site(int number)
{
    pthread_mutex_lock(&fake_mutex);
    const char *name = number < site_count ? sites[number].name : NULL;
    pthread_mutex_unlock(&fake_mutex);
    return name;
}

void fake_ignore_site(int number)
{
    pthread_mutex_lock(&fake_mutex);
    ignored_site = number;
    pthread_mutex_unlock(&fake_mutex);
}

bool fake_is_clean(void)
{
    pthread_mutex_lock(&fake_mutex);
    bool is_clean = event_count == 0 && stream_count == 0 && !fake_has_memory() && !fake_has_pins();
    pthread_mutex_unlock(&fake_mutex);
    return is_clean;
}

static struct CUstream_st *stream_of(cudaStream_t stream)
{
    return stream != NULL ? stream : fake_own_stream(current_device);
}

void fake_launch(cudaStream_t stream, void (*kernel)(void *), void *arg)
{
    pthread_mutex_lock(&fake_mutex);
    if (sticky_error == cudaSuccess)
        fake_queue(stream_of(stream), (fake_op){.kind = FAKE_CALL, .kernel = kernel, .arg = arg});
    fake_run_some();
    pthread_mutex_unlock(&fake_mutex);
}

cudaError_t fake_try_launch(cudaStream_t stream, void (*kernel)(void *), void *arg)
{
    cudaError_t error = enter();
    if (error == cudaSuccess) {
        launches++;
        fake_queue(stream_of(stream), (fake_op){.kind = FAKE_CALL, .kernel = kernel, .arg = arg});
        fake_run_some();
    }
    return leave(error);
}

void fake_synchronize(cudaStream_t stream)
{
    pthread_mutex_lock(&fake_mutex);
    fake_run_stream(stream_of(stream));
    pthread_mutex_unlock(&fake_mutex);
}

/* ---- devices and errors */

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = enter();
    *count = FAKE_DEVICES;
    return leave(error);
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t error = enter();
    if (error == cudaSuccess) *device = current_device;
    return leave(error);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = enter();
    if (device < 0 || device >= FAKE_DEVICES) return leave(cudaErrorInvalidDevice);
    if (error == cudaSuccess) current_device = device;
    return leave(error);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = enter();
    if (device < 0 || device >= FAKE_DEVICES) return leave(cudaErrorInvalidDevice);
    *value = attribute == cudaDevAttrMultiProcessorCount      ? processors
             : attribute == cudaDevAttrComputeCapabilityMajor ? 6
                                                              : 1;
    return leave(error);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    cudaError_t error = enter();
    (void)attributes;
    (void)function;
    return leave(error == cudaSuccess && !has_code ? cudaErrorNoKernelImageForDevice : error);
}

cudaError_t cudaGetLastError(void)
{
    pthread_mutex_lock(&fake_mutex);
    cudaError_t error = last_error;
    last_error = sticky_error;
    pthread_mutex_unlock(&fake_mutex);
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchFailure:
        return "cudaErrorLaunchFailure";
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    default:
        return "unknown error";
    }
}

/* ---- streams and events */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    cudaError_t error = enter();
    check_capture();
    if (flags != cudaStreamNonBlocking) fake_violation("a stream that waits for the NULL stream");
    if (error != cudaSuccess) return leave(error);
    *stream = fake_open_stream(current_device);
    stream_count++;
    return leave(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = enter();
    fake_close_stream(stream);
    stream_count--;
    return leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error = enter();
    check_capture();
    if (!IS_IGNORED()) fake_run_stream(stream_of(stream));
    return leave(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    cudaError_t error = enter();
    if (flags != 0) fake_violation("a wait with flags");
    if (error == cudaSuccess && !IS_IGNORED())
        fake_queue(stream_of(stream), (fake_op){.kind = FAKE_WAIT, .mark = event->mark});
    return leave(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    cudaError_t error = enter();
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return leave(error);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    cudaError_t error = enter();
    if ((flags & cudaEventDisableTiming) == 0) fake_violation("an event that takes the time");
    if (error != cudaSuccess) return leave(error);
    *event = calloc(1, sizeof **event);
    if (*event == NULL) fake_violation("no memory for an event");
    (*event)->device = current_device;
    event_count++;
    return leave(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t error = enter();
    free(event);
    event_count--;
    return leave(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t error = enter();
    struct CUstream_st *into = stream_of(stream);
    if (into->device != event->device) return leave(cudaErrorInvalidResourceHandle);
    if (error == cudaSuccess && !IS_IGNORED()) {
        event->mark = fake_new_mark(into);
        fake_queue(into, (fake_op){.kind = FAKE_REACH, .mark = event->mark});
    }
    return leave(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t error = enter();
    check_capture();
    bool is_over = IS_IGNORED() || event->mark == NULL || event->mark->is_reached;
    return leave(error == cudaSuccess && !is_over ? cudaErrorNotReady : error);
}

/* ---- pinned memory */

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    cudaError_t error = enter();
    if ((flags & cudaHostRegisterPortable) == 0) fake_violation("pinned for one context alone");
    check_capture();
    if (error == cudaSuccess && refuses_pins) error = cudaErrorMemoryAllocation;
    fake_pin(memory, bytes, error == cudaSuccess);
    return leave(error);
}

cudaError_t cudaHostUnregister(void *memory)
{
    cudaError_t error = enter();
    check_capture();
    fake_unpin(memory, current_device);
    return leave(error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t error = enter();
    struct CUstream_st *into = stream_of(stream);
    if (kind != cudaMemcpyHostToDevice) fake_violation("a copy of another kind");
    if (!fake_is_pinned(from, bytes))
        fake_violation("an asynchronous copy from memory that is not pinned");
    fake_op copy = {.kind = FAKE_COPY, .from = from, .bytes = bytes};
    copy.to = fake_find_view(to, bytes, into->device);
    copies += error == cudaSuccess;
    if (error == cudaSuccess && !IS_IGNORED()) fake_queue(into, copy);
    return leave(error);
}
