/* Batches of workers on their way to a device, under a runtime that runs work as late and as oddly
 * as CUDA may: every kernel sees its batch, and memory is never used too early. */
#include "transfer_copier_fixture.h"

enum { BATCHES = 24, SEEDS = 5 };

/* Runs `work` for every shape under every order. */
static void each_way(void (*work)(shape))
{
    shape s;
    for (int i = 0; next_shape(i, &s); i++) {
        fake_set_order(FAKE_EAGER, 0);
        work(s);
        fake_set_order(FAKE_LAZY, 0);
        work(s);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            fake_set_order(FAKE_RANDOM, seed);
            work(s);
        }
    }
    CHECK(fake_is_clean());
}

/* ---- every kernel sees its batch */

static void train_once(shape s)
{
    loop l;
    open_loop(&l, s);
    train(&l, 0, BATCHES);
    close_loop(&l);
}

static void test_every_kernel_sees_its_batch(void) { each_way(train_once); }

static void take_elsewhere(shape s)
{
    loop l;
    cudaStream_t streams[3] = {NULL};
    int64_t tag;
    for (int i = 1; i < 3; i++)
        CHECK_INT(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
    open_loop(&l, s);
    for (int64_t n = 0; n < BATCHES; n++) {
        post(&l, n);
        CHECK_INT(submit_missing(&l), FL_OK);
        l.stream = streams[n % 3];
        if (l.pending > 2) CHECK_INT(take_batch(&l, &tag), FL_OK);
    }
    while (l.pending > 0) CHECK_INT(take_batch(&l, &tag), FL_OK);
    close_engine(&l);
    for (int i = 1; i < 3; i++) fake_synchronize(streams[i]);
    fake_synchronize(NULL);
    close_memory(&l);
    for (int i = 1; i < 3; i++) CHECK_INT(cudaStreamDestroy(streams[i]), cudaSuccess);
}

static void test_the_current_stream_may_change(void) { each_way(take_elsewhere); }

/* At first there is no buffer, and later there is one: the batch comes again. */
static void run_short(shape s)
{
    loop l;
    int64_t tag, again;
    open_loop(&l, s);
    train(&l, 0, 3);
    reclaim_buffers(&l, INT64_MAX);
    l.is_short = true;
    post(&l, 3);
    CHECK_INT(take_batch(&l, &tag), FL_ENOMEM);
    CHECK_INT(take_batch(&l, &again), FL_ENOMEM);
    CHECK_INT(again, tag);
    l.is_short = false;
    CHECK_INT(take_batch(&l, &again), FL_OK);
    CHECK_INT(again, tag);
    train(&l, 4, 12);
    close_loop(&l);
}

static void test_a_batch_waits_for_memory(void) { each_way(run_short); }

/* Both threads sleep until the one reply that is to come. */
static void test_a_consumer_that_waits_is_woken(void)
{
    loop l;
    int64_t tag;
    fake_set_order(FAKE_EAGER, 0);
    open_loop(&l, (shape){.workers = 1, .is_in_order = true, .has_threads = true});
    for (int64_t n = 0; n < 60; n += 3) { /* those that take a while */
        int64_t begin_ns = fl_now_ns();
        l.next = n;
        post(&l, n);
        CHECK_INT(take_batch(&l, &tag), FL_OK);
        CHECK(fl_now_ns() < begin_ns + LONG_NS / 2);
    }
    close_loop(&l);
    CHECK(fake_is_clean());
}

static void *train_on_device_1(void *arg)
{
    loop l;
    int device;
    shape s = *(shape *)arg;
    s.device = 1;
    s.stream = open_stream_of_device_1();
    open_loop(&l, s);
    train(&l, 0, BATCHES);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    close_loop(&l);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    CHECK_INT(cudaStreamDestroy(s.stream), cudaSuccess);
    return NULL;
}

/* The second device's own stream is current there, and a second loop runs beside it. */
static void use_two_devices(shape s)
{
    pthread_t thread;
    int device;
    CHECK_INT(fl_thread_start(&thread, train_on_device_1, &s, NULL), FL_OK);
    train_once(s);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void test_two_devices(void) { each_way(use_two_devices); }

static int train_on_device_1_alone(void *arg)
{
    shape s;
    cudaStream_t stream = open_stream_from_another_thread();
    (void)arg;
    for (int i = 0; next_shape(i, &s); i++) {
        s.device = 1;
        s.stream = stream;
        fake_set_order(FAKE_RANDOM, (uint64_t)i);
        train_once(s);
    }
    CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    CHECK(fake_has_context(1) && !fake_has_context(0));
    return 0;
}

/* No thread has chosen device 0, on which every thread begins. */
static void test_no_context_on_a_device_that_nobody_chose(void)
{
    CHECK_INT(run_child(train_on_device_1_alone, NULL), 0);
}

/* ---- batches that are dropped */

/* The consumer leaves while batches are sent, arrived and queued. */
static void leave_early(shape s)
{
    static filling fills[MOST_BUFFERS], checks[MOST_BUFFERS];
    for (int64_t taken = 0; taken < 4; taken++) {
        loop l;
        open_loop(&l, s);
        train(&l, 0, taken);
        for (int64_t n = 0; n < 3 * s.workers; n++) post(&l, taken + n);
        CHECK_INT(submit_missing(&l), FL_OK);
        if (taken % 2 == 1) sleep_ms(1);
        leave_loop(&l);
        reclaim_buffers(&l, INT64_MAX);
        CHECK(use_free_buffers(&l.heap, NULL, fills, false) >= FL_COPY_AHEAD);
        (void)use_free_buffers(&l.heap, NULL, checks, true);
        CHECK_INT(submit_missing(&l), FL_OK);
        lend_buffers(&l);
        train(&l, 20, 28);
        close_loop(&l);
    }
}

static void test_leaving_early(void) { each_way(leave_early); }

int main(void)
{
    start_tests();
    RUN(test_no_context_on_a_device_that_nobody_chose); /* first: contexts stay */
    RUN(test_every_kernel_sees_its_batch);
    RUN(test_the_current_stream_may_change);
    RUN(test_a_batch_waits_for_memory);
    RUN(test_a_consumer_that_waits_is_woken);
    RUN(test_two_devices);
    RUN(test_leaving_early);
    return 0;
}
