/* fake_api: the streams, events and pinned memory of cuda_runtime_api.h; see fake_cuda.h. */
#define _GNU_SOURCE
#include "fake_call.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SITES = 64, GREATEST_PRIORITY = -5 };

/* Under the mutex. */
static int64_t event_count, stream_count;
static bool refuses_pins;
static int64_t mapped_shift;
static int64_t launches, copies;
static struct {
    const char *name;
    const void *address;
} sites[MOST_SITES];
static int site_count, ignored_site = -1;

/* Returns true if the call comes from the ignored site and is to be left out. */
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

void fake_refuse_pins(bool is_refused)
{
    pthread_mutex_lock(&fake_mutex);
    refuses_pins = is_refused;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_shift_mapped(int64_t bytes)
{
    pthread_mutex_lock(&fake_mutex);
    mapped_shift = bytes;
    pthread_mutex_unlock(&fake_mutex);
}

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

void fake_launch(cudaStream_t stream, void (*kernel)(void *), void *arg)
{
    pthread_mutex_lock(&fake_mutex);
    struct CUstream_st *into = fake_stream_of(stream);
    if (fake_use_stream(into) != cudaSuccess) fake_violation("a launch that a capture forbids");
    if (!fake_has_failed())
        fake_submit(into, (fake_op){.kind = FAKE_CALL, .kernel = kernel, .arg = arg});
    fake_run_some();
    pthread_mutex_unlock(&fake_mutex);
}

cudaError_t
fake_try_launch(cudaStream_t stream, const void *function, void (*kernel)(void *), void *arg)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    struct CUstream_st *into = fake_stream_of(stream);
    if (error == cudaSuccess && into->device != fake_current_device())
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) error = fake_use_stream(into);
    if (error == cudaSuccess) {
        launches++;
        if (fake_load(into->device, function) && fake_has_work_beside(into))
            fake_violation("a kernel is loaded by its launch, beside work of another stream");
        fake_op call = {.kind = FAKE_CALL, .kernel = kernel, .arg = arg, .owns_arg = true};
        if (!IS_IGNORED()) fake_submit(into, call);
        fake_run_some();
    }
    return fake_leave(error);
}

cudaError_t fake_refuse_launch(cudaError_t refusal)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    return fake_leave(error == cudaSuccess ? refusal : error);
}

void fake_synchronize(cudaStream_t stream)
{
    pthread_mutex_lock(&fake_mutex);
    fake_run_stream(fake_stream_of(stream));
    pthread_mutex_unlock(&fake_mutex);
}

/* ---- streams and events */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    *least = 0;
    *greatest = GREATEST_PRIORITY;
    return fake_leave(error);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if (error == cudaSuccess) error = fake_be_unsafe();
    if (flags != cudaStreamNonBlocking) fake_violation("a stream that waits for the NULL stream");
    if (error != cudaSuccess) return fake_leave(error);
    *stream = fake_open_stream(fake_current_device());
    (*stream)->priority = priority;
    stream_count++;
    return fake_leave(cudaSuccess);
}

cudaStream_t fake_open_blocking_stream(void)
{
    pthread_mutex_lock(&fake_mutex);
    struct CUstream_st *stream = fake_open_stream(fake_current_device());
    stream->is_blocking = true;
    stream_count++;
    pthread_mutex_unlock(&fake_mutex);
    return stream;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if (stream->capture != NULL) fake_violation("a stream is destroyed that is being captured");
    fake_close_stream(stream);
    stream_count--;
    return fake_leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    struct CUstream_st *asked = fake_stream_of(stream);
    cudaError_t forbidden = fake_query_stream(asked);
    if (forbidden != cudaSuccess) return fake_leave(forbidden);
    if (!IS_IGNORED()) fake_run_stream(asked);
    return fake_leave(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if (flags != 0) fake_violation("a wait with flags");
    if (error == cudaSuccess && !IS_IGNORED()) error = fake_await(fake_stream_of(stream), event);
    return fake_leave(error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if ((flags & cudaEventDisableTiming) == 0) fake_violation("an event that takes the time");
    if (error != cudaSuccess) return fake_leave(error);
    *event = calloc(1, sizeof **event);
    if (*event == NULL) fake_violation("no memory for an event");
    (*event)->device = fake_current_device();
    event_count++;
    return fake_leave(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    free(event);
    event_count--;
    return fake_leave(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    struct CUstream_st *into = fake_stream_of(stream);
    if (into->device != event->device) return fake_leave(cudaErrorInvalidResourceHandle);
    if (error == cudaSuccess) error = fake_use_stream(into);
    if (error == cudaSuccess && !IS_IGNORED()) fake_record(event, into);
    return fake_leave(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    cudaError_t forbidden = fake_query_event(event);
    if (forbidden != cudaSuccess) return fake_leave(forbidden);
    if (!IS_IGNORED() && event->mark != NULL) fake_run_to(event->mark);
    return fake_leave(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if (error == cudaSuccess) error = fake_query_event(event);
    bool is_over = IS_IGNORED() || event->mark == NULL || event->mark->is_reached;
    return fake_leave(error == cudaSuccess && !is_over ? cudaErrorNotReady : error);
}

/* ---- pinned memory */

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if ((flags & cudaHostRegisterPortable) == 0) fake_violation("pinned for one context alone");
    if (error == cudaSuccess) error = fake_be_unsafe();
    if (error == cudaSuccess && refuses_pins) error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess && (flags & cudaHostRegisterMapped) != 0)
        return fake_leave(fake_map(memory, bytes));
    if ((flags & cudaHostRegisterMapped) == 0) fake_pin(memory, bytes, error == cudaSuccess);
    return fake_leave(error);
}

cudaError_t cudaHostGetDevicePointer(void **there, void *memory, unsigned int flags)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if (flags != 0) fake_violation("flags that mean nothing");
    if (error == cudaSuccess && !fake_is_pinned(memory, 1)) error = cudaErrorInvalidValue;
    if (error == cudaSuccess) *there = (char *)memory + mapped_shift;
    return fake_leave(error);
}

cudaError_t cudaHostUnregister(void *memory)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    cudaError_t forbidden = fake_be_unsafe();
    if (forbidden != cudaSuccess) return fake_leave(forbidden);
    fake_unpin(memory, fake_current_device());
    return fake_leave(error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    struct CUstream_st *into = fake_stream_of(stream);
    if (kind != cudaMemcpyHostToDevice) fake_violation("a copy of another kind");
    if (!fake_is_pinned(from, bytes))
        fake_violation("an asynchronous copy from memory that is not pinned");
    if (into->priority != GREATEST_PRIORITY)
        fake_violation("a copy, and its casts, behind the kernels of streams of its priority");
    fake_op copy = {.kind = FAKE_COPY, .from = from, .bytes = bytes};
    copy.to = fake_find_view(to, bytes, into->device);
    if (error == cudaSuccess) error = fake_use_stream(into);
    copies += error == cudaSuccess;
    if (error == cudaSuccess && !IS_IGNORED()) fake_submit(into, copy);
    return fake_leave(error);
}
