/* fake_call.h: what every call of the fake runtime begins and ends with: the lock, the errors that
 * a test asks for, and the context that the call makes. For the files of the fake. */
#ifndef FAKE_CALL_H
#define FAKE_CALL_H

#include "fake_run.h"

/* The properties of a call, from CUDA's documentation. */
typedef enum fake_need {
    FAKE_NO_CONTEXT, /* asks about devices and errors alone */
    FAKE_CONTEXT,    /* makes the primary context of the thread's current device */
    FAKE_EXCHANGE    /* does so, and is counted apart */
} fake_need;

/* Locks; what the call is to fail with. A context on a device that the thread has not chosen is a
 * violation. */
cudaError_t fake_enter(const char *call, fake_need need);

/* Unlocks; `error`, which the thread remembers. */
cudaError_t fake_leave(cudaError_t error);

/* Between the two. */
#define FAKE_ENTER(need) fake_enter(__func__, need)
bool fake_has_failed(void); /* for good */
int fake_current_device(void);

/* Loads the kernel on the device; returns true if it was not loaded before. */
bool fake_load(int device, const void *function);

/* ---- captures of graphs, in fake_capture.c: the error of a call, if any. An error spoils the
 * captures concerned, as in CUDA. */

/* Checks a call that CUDA calls potentially unsafe: it may wait for work, or queue work on the NULL
 * stream. */
cudaError_t fake_be_unsafe(void);

/* The first checks a call that uses the stream, the second a call that asks if the stream's work is
 * over. */
cudaError_t fake_use_stream(struct CUstream_st *stream);
cudaError_t fake_query_stream(struct CUstream_st *stream);
cudaError_t fake_query_event(cudaEvent_t event);

/* Queues on the stream, or captures. */
void fake_submit(struct CUstream_st *stream, fake_op work);
void fake_record(cudaEvent_t event, struct CUstream_st *stream);
cudaError_t fake_await(struct CUstream_st *stream, cudaEvent_t event);

/* The stream of a handle: NULL is the current device's own. */
struct CUstream_st *fake_stream_of(cudaStream_t stream);

#endif
