/* fl_cuda_runtime: how the files of this floor call the CUDA runtime. Not for other floors. */
#ifndef FL_CUDA_RUNTIME_H
#define FL_CUDA_RUNTIME_H

#include "fl_base.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills `err` with the call and the runtime's name and text for `error`, clears the runtime's
 * record of it and returns FL_EDEVICE; FL_ENOMEM for memory that could not be had. */
int fl_cuda_fail(fl_err *err, cudaError_t error, const char *call);

static inline int fl_cuda_status(cudaError_t error, const char *call, fl_err *err)
{
    return error == cudaSuccess ? FL_OK : fl_cuda_fail(err, error, call);
}

/* The status of a call; and the same, returned at once unless it is FL_OK. */
#define FL_CUDA_STATUS(call, err) fl_cuda_status((call), #call, err)
#define FL_CUDA_TRY(call, err) FL_TRY(FL_CUDA_STATUS(call, err))

/* Makes `device` this thread's current one and tells which was, for fl_cuda_leave. After a failure
 * nothing has changed. */
int fl_cuda_enter(int32_t device, int32_t *before, fl_err *err);

/* Puts it back, unless that device has no context: to choose it would make one there. */
void fl_cuda_leave(int32_t before);

/* What a call changes of its thread: the device, and how its calls affect a graph that some other
 * thread is capturing. In the relaxed mode they do not affect it; otherwise registering memory or
 * asking for an event would spoil that graph. */
typedef struct fl_cuda_scope {
    bool is_inside;
    int32_t before;
    enum cudaStreamCaptureMode mode;
} fl_cuda_scope;

/* The device comes first: to exchange the mode makes a context on the thread's device, which is
 * device 0 where it has chosen none. After a failure nothing has changed, and leave does nothing.
 */
int fl_cuda_scope_enter(int32_t device, fl_cuda_scope *scope, fl_err *err);
void fl_cuda_scope_leave(fl_cuda_scope *scope);

/* For what must not be left out, even if it cannot be entered. That fails twice only where the
 * device has failed: then no call works on it, and none makes a context. */
void fl_cuda_scope_enter_surely(int32_t device, fl_cuda_scope *scope);

/* FL_EDEVICE where the thread, which is on the device, has another context of it current than the
 * primary one, in which streams and events of this floor are. */
int fl_cuda_require_primary(int32_t device, fl_err *err);

/* Loads these kernels for the current device. CUDA loads a kernel when it is first launched, which
 * may wait for all work of the device: on a thread of a ring, beside a collective that waits for
 * this process, for ever. */
cudaError_t fl_cuda_load(const void *const *kernels, int count);

#ifdef __cplusplus
}
#endif

#endif
