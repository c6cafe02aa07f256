/* Tests of graphs that are captured while batches are uploaded: the rules by which the fake runtime
 * keeps captured work apart from other work, and that uploads spoil no capture. */
#include "stream_fixture.h"
#include "transfer_fixture.h"

#include <string.h>

enum { BATCHES = 24 };

typedef enum cudaStreamCaptureMode capture_mode;

static const capture_mode GLOBAL = cudaStreamCaptureModeGlobal,
                          RELAXED = cudaStreamCaptureModeRelaxed;

static cudaStream_t new_stream(void)
{
    cudaStream_t stream;
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t event;
    CHECK_INT(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
}

static void set_mode(capture_mode mode)
{
    CHECK_INT(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
}

static void begin(cudaStream_t stream, capture_mode mode)
{
    CHECK_INT(cudaStreamBeginCapture(stream, mode), cudaSuccess);
}

/* Ends the capture: the graph has this many nodes, or there is this error. */
static void end(cudaStream_t stream, cudaError_t error, int64_t nodes)
{
    cudaGraph_t graph;
    CHECK_INT(cudaStreamEndCapture(stream, &graph), error);
    if (error != cudaSuccess) return;
    CHECK_INT(fake_count_nodes(graph), nodes);
    CHECK_INT(cudaGraphDestroy(graph), cudaSuccess);
}

static void check_status(cudaStream_t stream, enum cudaStreamCaptureStatus expected)
{
    enum cudaStreamCaptureStatus status;
    CHECK_INT(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    CHECK_INT(status, expected);
}

/* ---- rules of the fake: calls that may spoil a capture, by modes and threads */

typedef struct unsafe {
    cudaStream_t other;
    cudaEvent_t event; /* recorded there */
    capture_mode mode;
    cudaError_t expected;
} unsafe;

static void *make_unsafe_calls(void *arg)
{
    const unsafe *u = arg;
    cudaStream_t stream;
    static char memory[4096] __attribute__((aligned(4096)));
    memset(memory, 1, sizeof memory); /* pages that are pinned must be there */
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    set_mode(u->mode);
    CHECK_INT(cudaEventQuery(u->event), u->expected);
    CHECK_INT(cudaStreamSynchronize(u->other), u->expected);
    CHECK_INT(cudaHostRegister(memory, sizeof memory, cudaHostRegisterPortable), u->expected);
    if (u->expected == cudaSuccess) CHECK_INT(cudaHostUnregister(memory), cudaSuccess);
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), u->expected);
    if (u->expected == cudaSuccess) CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaEventRecord(u->event, u->other), cudaSuccess); /* safe, as is waiting */
    CHECK_INT(cudaStreamWaitEvent(u->other, u->event, 0), cudaSuccess);
    set_mode(GLOBAL);
    return NULL;
}

static void check_unsafe(unsafe u, capture_mode capture, bool is_elsewhere)
{
    cudaStream_t stream = new_stream();
    pthread_t thread;
    begin(stream, capture);
    if (is_elsewhere) {
        CHECK(pthread_create(&thread, NULL, make_unsafe_calls, &u) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        (void)make_unsafe_calls(&u);
    }
    bool is_spoiled = u.expected != cudaSuccess;
    check_status(stream,
                 is_spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive);
    end(stream, is_spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess, 0);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
}

static void test_unsafe_calls_spoil_captures_by_mode(void)
{
    unsafe u = {.other = new_stream(), .event = new_event()};
    CHECK_INT(cudaEventRecord(u.event, u.other), cudaSuccess);
    for (u.mode = GLOBAL; u.mode <= RELAXED; u.mode++) {
        for (capture_mode capture = GLOBAL; capture <= RELAXED; capture++) {
            bool is_own = u.mode != RELAXED && capture != RELAXED;
            bool is_other = u.mode == GLOBAL && capture == GLOBAL;
            u.expected = is_own ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
            check_unsafe(u, capture, false);
            u.expected = is_other ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
            check_unsafe(u, capture, true);
        }
    }
    CHECK_INT(cudaEventDestroy(u.event), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(u.other), cudaSuccess);
}

/* ---- rules of the fake: what is captured and what is not may not wait for each other */

static void test_captures_are_isolated(void)
{
    cudaStream_t stream = new_stream(), side = new_stream(), second = new_stream();
    cudaEvent_t event = new_event(), inside = new_event();
    CHECK_INT(cudaEventRecord(event, side), cudaSuccess);
    begin(stream, RELAXED);
    CHECK_INT(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation);
    CHECK_INT(cudaEventRecord(inside, stream), cudaErrorStreamCaptureInvalidated);
    end(stream, cudaErrorStreamCaptureInvalidated, 0);
    /* An event of the capture may not be asked for, not even in the relaxed mode, and no wait may
     * follow. */
    begin(stream, RELAXED);
    set_mode(RELAXED);
    CHECK_INT(cudaEventRecord(inside, stream), cudaSuccess);
    CHECK_INT(cudaEventQuery(inside), cudaErrorCapturedEvent);
    end(stream, cudaErrorStreamCaptureInvalidated, 0);
    CHECK_INT(cudaStreamWaitEvent(side, inside, 0), cudaErrorStreamCaptureIsolation);
    /* Nor may the stream be waited for. */
    begin(stream, RELAXED);
    CHECK_INT(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    end(stream, cudaErrorStreamCaptureInvalidated, 0);
    set_mode(GLOBAL);
    /* Two captures. */
    begin(stream, RELAXED);
    begin(second, RELAXED);
    CHECK_INT(cudaStreamBeginCapture(NULL, RELAXED), cudaErrorStreamCaptureUnsupported);
    CHECK_INT(cudaEventRecord(inside, stream), cudaSuccess);
    CHECK_INT(cudaStreamWaitEvent(second, inside, 0), cudaErrorStreamCaptureMerge);
    end(second, cudaErrorStreamCaptureInvalidated, 0);
    end(stream, cudaErrorStreamCaptureInvalidated, 0);
    CHECK_INT(cudaEventDestroy(event), cudaSuccess);
    CHECK_INT(cudaEventDestroy(inside), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(side), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(second), cudaSuccess);
}

/* A stream that waits for captured work becomes part of the capture, which must then wait for the
 * stream. */
static void test_a_capture_takes_in_who_waits_for_it(void)
{
    cudaStream_t stream = new_stream(), side = new_stream();
    cudaEvent_t event = new_event();
    for (int is_joined = 0; is_joined < 2; is_joined++) {
        begin(stream, GLOBAL);
        CHECK_INT(cudaEventRecord(event, stream), cudaSuccess);
        CHECK_INT(cudaStreamWaitEvent(side, event, 0), cudaSuccess);
        check_status(side, cudaStreamCaptureStatusActive);
        CHECK_INT(cudaEventRecord(event, side), cudaSuccess);
        if (is_joined) CHECK_INT(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
        end(stream, is_joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined, 0);
        check_status(side, cudaStreamCaptureStatusNone);
    }
    CHECK_INT(cudaEventDestroy(event), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(side), cudaSuccess);
}

static void *end_there(void *stream)
{
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    end(stream, cudaErrorStreamCaptureWrongThread, 0);
    return NULL;
}

/* The NULL stream would have to wait for a blocking stream that is being captured. */
static void test_the_null_stream_beside_a_capture(void)
{
    cudaStream_t blocking = fake_open_blocking_stream(), stream = new_stream();
    enum cudaStreamCaptureStatus status;
    cudaEvent_t event = new_event();
    pthread_t thread;
    begin(stream, GLOBAL);
    CHECK_INT(cudaEventRecord(event, NULL), cudaSuccess);
    check_status(NULL, cudaStreamCaptureStatusNone);
    CHECK(pthread_create(&thread, NULL, end_there, stream) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    end(stream, cudaErrorStreamCaptureInvalidated, 0);
    begin(blocking, RELAXED);
    CHECK_INT(cudaStreamIsCapturing(NULL, &status), cudaErrorStreamCaptureImplicit);
    check_status(blocking, cudaStreamCaptureStatusActive);
    CHECK_INT(cudaEventRecord(event, NULL), cudaErrorStreamCaptureImplicit);
    end(blocking, cudaErrorStreamCaptureInvalidated, 0);
    CHECK_INT(cudaEventDestroy(event), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(blocking), cudaSuccess);
}

/* ---- uploads beside a capture */

static void train(loop *l, int64_t from, int64_t to)
{
    for (int64_t tag = from, submitted = from; tag < to; tag++) {
        for (; submitted < to && submitted < tag + 3; submitted++) submit_upload(l, submitted, 3);
        take_tag(l, tag);
    }
}

/* A second thread captures in the mode that forbids the most, from before the first slot is pinned
 * until the last slot goes. */
static void test_no_capture_is_spoiled(void)
{
    fl_ring_config shape;
    cudaStream_t captured = new_stream(), stream = new_stream();
    for (int i = 0; next_shape(i, &shape); i++) {
        loop l;
        fake_set_order(FAKE_RANDOM, (uint64_t)i);
        begin(captured, GLOBAL);
        open_loop(&l, shape, 0);
        l.stream = stream;
        train(&l, 0, BATCHES);
        for (int64_t tag = BATCHES; tag < BATCHES + 3; tag++) submit_upload(&l, tag, 2);
        reset_loop(&l);
        train(&l, 0, 3);
        fake_synchronize(stream);
        close_loop(&l);
        end(captured, cudaSuccess, 0);
    }
    CHECK_INT(cudaStreamDestroy(captured), cudaSuccess);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_is_clean());
}

/* A batch that is dropped while the loop's own stream is captured breaks the capture, and nothing
 * else: the buffer is used again at once. */
static void test_a_batch_that_is_dropped_in_a_capture(void)
{
    loop l;
    fl_batch batch;
    fl_pool_stats stats;
    cudaStream_t stream = new_stream();
    fake_set_order(FAKE_LAZY, 0);
    open_loop(&l, (fl_ring_config){.depth = 3, .is_in_order = true}, 0);
    l.stream = stream;
    submit_upload(&l, 1, 1);
    CHECK_INT(fl_ring_receive(l.r.ring, LONG_MS, &batch, NULL), FL_OK);
    upload_slot *t = slot_of(&l, 1);
    begin(stream, RELAXED);
    ops->abandon(t->transfer, batch.slot, stream);
    end(stream, cudaErrorStreamCaptureInvalidated, 0);
    check_device_words(fake_host_view(t->buffer->memory), 1);
    drop_buffer(t->buffer);
    *t = (upload_slot){0};
    fl_pool_count(l.r.pool, &stats);
    CHECK_INT(stats.empty, 1);
    train(&l, 2, 8);
    fake_synchronize(stream);
    close_loop(&l);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    CHECK(fake_is_clean());
}

/* The loop's stream is captured on device 1, while the thread is on device 0: the buffer is
 * refused, and the copy stream stays out of the graph. The batch comes after the capture. */
static void test_no_buffer_is_set_in_a_capture_on_another_device(void)
{
    loop l;
    cudaStream_t stream = open_stream_of_device_1();
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, (fl_ring_config){.depth = 3, .is_in_order = true}, 1);
    l.stream = stream;
    begin(stream, RELAXED);
    submit_upload(&l, 1, 1);
    CHECK(slot_of(&l, 1)->buffer == NULL);
    CHECK_INT(l.err.code, FL_EDEVICE);
    CHECK(strstr(l.err.text, "while a graph is being captured") != NULL);
    end(stream, cudaSuccess, 0);
    take_tag(&l, 1);
    train(&l, 2, 8);
    fake_synchronize(stream);
    close_loop(&l);
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_is_clean());
}

int main(void)
{
    start_tests();
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    RUN(test_unsafe_calls_spoil_captures_by_mode);
    RUN(test_captures_are_isolated);
    RUN(test_a_capture_takes_in_who_waits_for_it);
    RUN(test_the_null_stream_beside_a_capture);
    (void)cudaGetLastError();
    RUN(test_no_capture_is_spoiled);
    RUN(test_a_batch_that_is_dropped_in_a_capture);
    RUN(test_no_buffer_is_set_in_a_capture_on_another_device);
    return 0;
}
