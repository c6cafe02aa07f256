/* fake_capture: graphs that are captured from streams, and how CUDA keeps captured work apart from
 * other work. Errors and their causes follow the CUDA programming guide ("Prohibited and Unhandled
 * Operations", "Invalidation") and cudaThreadExchangeStreamCaptureMode. */
#include "fake_call.h"

#include <stdlib.h>

struct CUgraph_st {
    fake_op *first, *last;
    int64_t nodes;
};

/* Kept until the process ends, because events refer to the capture. */
struct fake_capture {
    struct CUstream_st *origin;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    bool is_spoiled, is_over;
    struct CUgraph_st *graph;
    fake_capture *next;
};

static fake_capture *captures; /* under the mutex */
static _Thread_local enum cudaStreamCaptureMode thread_mode;

static cudaError_t spoil(fake_capture *capture, cudaError_t error)
{
    if (capture != NULL) capture->is_spoiled = true;
    return error;
}

/* ---- what a call has to fail with */

cudaError_t fake_be_unsafe(void)
{
    cudaError_t error = cudaSuccess;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return error;
    for (fake_capture *c = captures; c != NULL; c = c->next) {
        bool is_own = pthread_equal(c->thread, pthread_self());
        bool is_global =
            thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal;
        if (c->is_over || !(is_own ? c->mode != cudaStreamCaptureModeRelaxed : is_global)) continue;
        error = spoil(c, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

/* One that the NULL stream of a device would have to wait for. */
static struct CUstream_st *find_blocking_capture(const struct CUstream_st *stream)
{
    if (stream != fake_own_stream(stream->device)) return NULL;
    struct CUstream_st *found;
    for (uint64_t i = 0; (found = fake_stream_at(i)) != NULL; i++)
        if (found->is_blocking && found->capture != NULL && found->device == stream->device)
            return found;
    return NULL;
}

cudaError_t fake_use_stream(struct CUstream_st *stream)
{
    const struct CUstream_st *blocking = find_blocking_capture(stream);
    if (blocking != NULL) return spoil(blocking->capture, cudaErrorStreamCaptureImplicit);
    bool is_spoiled = stream->capture != NULL && stream->capture->is_spoiled;
    return is_spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t fake_query_stream(struct CUstream_st *stream)
{
    cudaError_t error = fake_use_stream(stream);
    if (error != cudaSuccess) return error;
    if (stream->capture != NULL) return spoil(stream->capture, cudaErrorStreamCaptureUnsupported);
    return fake_be_unsafe();
}

cudaError_t fake_query_event(cudaEvent_t event)
{
    if (event->capture == NULL) return fake_be_unsafe();
    return spoil(event->capture, cudaErrorCapturedEvent);
}

/* ---- what is queued, or captured */

void fake_submit(struct CUstream_st *stream, fake_op work)
{
    if (stream->capture == NULL) {
        fake_queue(stream, work);
        return;
    }
    struct CUgraph_st *graph = stream->capture->graph;
    fake_op *op = malloc(sizeof *op);
    if (op == NULL) fake_violation("no memory for work");
    *op = work;
    op->next = NULL;
    if (graph->first == NULL)
        graph->first = op;
    else
        graph->last->next = op;
    graph->last = op;
    graph->nodes++;
    stream->captured++;
    stream->is_unjoined = true;
}

void fake_record(cudaEvent_t event, struct CUstream_st *stream)
{
    event->capture = stream->capture;
    event->place = stream;
    event->captured = stream->captured;
    event->mark = NULL;
    if (stream->capture != NULL) return;
    fake_mark *mark = fake_new_mark(stream);
    fake_queue(stream, (fake_op){.kind = FAKE_REACH, .mark = mark});
    event->mark = mark;
}

/* A wait for captured work: the stream becomes part of that capture. */
static cudaError_t join_capture(struct CUstream_st *stream, cudaEvent_t event)
{
    fake_capture *capture = event->capture;
    if (capture->is_over) return spoil(stream->capture, cudaErrorStreamCaptureIsolation);
    if (capture->is_spoiled) return cudaErrorStreamCaptureInvalidated;
    if (stream == fake_own_stream(stream->device))
        return spoil(capture, cudaErrorStreamCaptureImplicit);
    if (stream->capture != NULL && stream->capture != capture) {
        (void)spoil(stream->capture, cudaSuccess);
        return spoil(capture, cudaErrorStreamCaptureMerge);
    }
    if (event->captured == event->place->captured) event->place->is_unjoined = false;
    stream->capture = capture;
    stream->is_unjoined = true;
    return cudaSuccess;
}

cudaError_t fake_await(struct CUstream_st *stream, cudaEvent_t event)
{
    cudaError_t error = fake_use_stream(stream);
    if (error != cudaSuccess) return error;
    if (event->capture != NULL) return join_capture(stream, event);
    if (event->mark == NULL) return cudaSuccess;
    if (stream->capture != NULL) return spoil(stream->capture, cudaErrorStreamCaptureIsolation);
    fake_queue(stream, (fake_op){.kind = FAKE_WAIT, .mark = event->mark});
    return cudaSuccess;
}

/* ---- graphs */

static void free_graph(struct CUgraph_st *graph)
{
    for (fake_op *op = graph->first, *next; op != NULL; op = next) {
        next = op->next;
        free(op);
    }
    free(graph);
}

/* Ends a capture: its streams leave, and the result is returned. */
static cudaError_t end_capture(fake_capture *capture)
{
    cudaError_t error = capture->is_spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    struct CUstream_st *stream;
    for (uint64_t i = 0; (stream = fake_stream_at(i)) != NULL; i++) {
        if (stream->capture != capture) continue;
        if (stream != capture->origin && stream->is_unjoined && error == cudaSuccess)
            error = cudaErrorStreamCaptureUnjoined;
        stream->capture = NULL;
    }
    capture->is_over = true;
    return error;
}

int64_t fake_count_nodes(cudaGraph_t graph) { return graph->nodes; }

void fake_launch_graph(cudaGraph_t graph, cudaStream_t stream)
{
    pthread_mutex_lock(&fake_mutex);
    if (graph->first == NULL && graph->nodes > 0) fake_violation("a graph is launched twice");
    for (fake_op *op = graph->first, *next; op != NULL; op = next) {
        next = op->next;
        fake_queue(fake_stream_of(stream), *op);
        free(op);
    }
    graph->first = NULL;
    pthread_mutex_unlock(&fake_mutex);
}

/* ---- the runtime's functions */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    if (stream == NULL) error = cudaErrorStreamCaptureUnsupported;
    if (error == cudaSuccess && stream->capture != NULL)
        error = spoil(stream->capture, cudaErrorIllegalState);
    if (error != cudaSuccess) return fake_leave(error);
    fake_capture *made = calloc(1, sizeof *made);
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    if (made == NULL || graph == NULL) fake_violation("no memory for a capture");
    *made = (fake_capture){stream, mode, pthread_self(), false, false, graph, captures};
    captures = made;
    stream->capture = made;
    return fake_leave(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    fake_capture *capture = fake_stream_of(stream)->capture;
    *graph = NULL;
    if (error == cudaSuccess && capture == NULL) error = cudaErrorIllegalState;
    if (error != cudaSuccess) return fake_leave(error);
    if (capture->origin != stream)
        return fake_leave(spoil(capture, cudaErrorStreamCaptureUnmatched));
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        !pthread_equal(capture->thread, pthread_self()))
        return fake_leave(spoil(capture, cudaErrorStreamCaptureWrongThread));
    error = end_capture(capture);
    if (error == cudaSuccess)
        *graph = capture->graph;
    else
        free_graph(capture->graph);
    capture->graph = NULL;
    return fake_leave(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    free_graph(graph);
    return fake_leave(error);
}

/* While a blocking stream is captured, nothing can be said of the NULL stream. */
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    cudaError_t error = FAKE_ENTER(FAKE_CONTEXT);
    const struct CUstream_st *asked = fake_stream_of(stream);
    if (error == cudaSuccess && find_blocking_capture(asked) != NULL)
        error = cudaErrorStreamCaptureImplicit;
    if (error != cudaSuccess) return fake_leave(error);
    *status = asked->capture == NULL       ? cudaStreamCaptureStatusNone
              : asked->capture->is_spoiled ? cudaStreamCaptureStatusInvalidated
                                           : cudaStreamCaptureStatusActive;
    return fake_leave(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    cudaError_t error = FAKE_ENTER(FAKE_EXCHANGE);
    enum cudaStreamCaptureMode before = thread_mode;
    if (error != cudaSuccess) return fake_leave(error);
    thread_mode = *mode;
    *mode = before;
    return fake_leave(cudaSuccess);
}
