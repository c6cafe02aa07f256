/* stream_fixture.h: streams of the device that threads are not on. */
#ifndef STREAM_FIXTURE_H
#define STREAM_FIXTURE_H

#include "check.h"

#include "fake_cuda.h"

#include <pthread.h>

/* A stream of device 1. Device 0 is current afterwards. */
static inline cudaStream_t open_stream_of_device_1(void)
{
    cudaStream_t stream;
    CHECK_INT(cudaSetDevice(1), cudaSuccess);
    CHECK_INT(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    CHECK_INT(cudaSetDevice(0), cudaSuccess);
    return stream;
}

static inline void *open_stream_there(void *out)
{
    CHECK_INT(cudaSetDevice(1), cudaSuccess);
    CHECK_INT(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking), cudaSuccess);
    return NULL;
}

/* Opens a stream on a second thread, so this thread has chosen no device. */
static inline cudaStream_t open_stream_from_another_thread(void)
{
    cudaStream_t stream;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, open_stream_there, &stream) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return stream;
}

#endif
