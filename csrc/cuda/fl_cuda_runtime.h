/* fl_cuda_runtime: calls of the CUDA runtime for the files of this floor. Not for other floors. */
#ifndef FL_CUDA_RUNTIME_H
#define FL_CUDA_RUNTIME_H

#include "fl_base.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills `err` with the call and the runtime's name and text for `error`, clears the runtime's
 * record of the error and returns FL_EDEVICE; FL_ENOMEM if memory is short. */
int fl_cuda_fail(fl_err *err, cudaError_t error, const char *call);

static inline int fl_cuda_status(cudaError_t error, const char *call, fl_err *err)
{
    return error == cudaSuccess ? FL_OK : fl_cuda_fail(err, error, call);
}

/* The first gives the status of a call; the second returns the status at once unless it is
 * FL_OK. */
#define FL_CUDA_STATUS(call, err) fl_cuda_status((call), #call, err)
#define FL_CUDA_TRY(call, err) FL_TRY(FL_CUDA_STATUS(call, err))

/* Makes `device` this thread's current device, and stores the device before for fl_cuda_leave.
 * After a failure nothing has changed. */
int fl_cuda_enter(int32_t device, int32_t *before, fl_err *err);

/* Restores the device before, unless that device has no context: choosing such a device would make
 * a context. */
void fl_cuda_leave(int32_t before);

/* The changes of a call to its thread: the device, and the effect of calls on a graph that a
 * different thread is capturing. In the relaxed mode calls do not affect the graph; otherwise
 * registering memory or asking for an event would spoil the graph. */
typedef struct fl_cuda_scope {
    bool is_inside;
    int32_t before;
    enum cudaStreamCaptureMode mode;
} fl_cuda_scope;

/* Enters the device before changing the mode: changing the mode makes a context on the thread's
 * device, which is device 0 if the thread has chosen none. After a failure nothing has changed, and
 * leave does nothing. */
int fl_cuda_scope_enter(int32_t device, fl_cuda_scope *scope, fl_err *err);
void fl_cuda_scope_leave(fl_cuda_scope *scope);

/* Enters for calls that must be made even if entering fails. Entering fails twice only if the
 * device has failed: then no call works on the device, and none makes a context. */
void fl_cuda_scope_enter_surely(int32_t device, fl_cuda_scope *scope);

/* Fails with FL_EDEVICE unless the primary context is current; the thread must be on the device.
 * Streams and events of this floor belong to the primary context. */
int fl_cuda_require_primary(int32_t device, fl_err *err);

/* Loads these kernels for the current device. CUDA loads a kernel at its first launch, which may
 * wait for all work of the device. On a thread of a ring, beside a collective that waits for this
 * process, that wait would never end. */
cudaError_t fl_cuda_load(const void *const *kernels, int count);

#ifdef __cplusplus
}
#endif

#endif
