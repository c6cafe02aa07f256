/* Tests of host memory that kernels read over the link: registered once, until no kernel reads it
 * any more, whatever fails. */
#include "cuda_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 40, BYTES = 12, COUNT = 6 };

static const int64_t picked[COUNT] = {3, 39, 0, 3, 17, 38};

typedef struct rows {
    char *memory; /* owned; begins at any byte */
    char made[COUNT * BYTES], expected[COUNT * BYTES];
    fl_row_column column;
    fl_cuda_host_range *range; /* borrowed */
} rows;

static void open_rows(rows *r)
{
    uint64_t seed = 5;
    r->memory = malloc(ROWS * BYTES);
    CHECK(r->memory != NULL);
    fill_random(&seed, r->memory, ROWS * BYTES);
    memset(r->made, 0, sizeof r->made);
    for (int i = 0; i < COUNT; i++)
        memcpy(r->expected + i * BYTES, r->memory + picked[i] * BYTES, BYTES);
    r->column = (fl_row_column){.from = r->memory,
                                .end = r->memory + ROWS * BYTES,
                                .to = r->made,
                                .bytes = BYTES,
                                .pitch = BYTES};
}

static void close_rows(rows *r)
{
    CHECK(memcmp(r->made, r->expected, sizeof r->made) == 0);
    free(r->memory);
}

static fl_cuda_host_range *open_range(int32_t device, const rows *r)
{
    fl_cuda_host_range *range;
    CHECK_INT(fl_cuda_host_range_open(device, r->memory, ROWS * BYTES, &range, NULL), FL_OK);
    return range;
}

static fl_gather gather_of(const rows *r)
{
    return (fl_gather){.columns = &r->column,
                       .column_count = 1,
                       .rows = picked,
                       .row_count = COUNT,
                       .most_blocks = FL_CUDA_FETCH_BLOCKS};
}

static void queue(const rows *r, fl_cuda_host_range *range, int32_t device, void *stream)
{
    const fl_gather gather = gather_of(r);
    CHECK_INT(fl_cuda_gather(device, stream, &gather, NULL), FL_OK);
    CHECK_INT(fl_cuda_host_range_note(range, device, stream, NULL), FL_OK);
}

static int64_t registered(void)
{
    fake_pin_costs costs = fake_count_pins();
    return costs.registered - costs.unregistered;
}

/* Unregistering runs what is queued on the device of the host range alone, so the reads that are in
 * the queues of the other are those that close has waited for. */
static void test_close_waits_for_reads_on_every_stream(void)
{
    for (int is_pageable = 0; is_pageable < 2; is_pageable++) {
        rows r[3];
        fake_read_pageable(is_pageable != 0);
        cudaStream_t streams[3] = {NULL, open_stream_of_device_1(), open_stream_of_device_1()};
        open_rows(&r[0]);
        fl_cuda_host_range *range = open_range(0, &r[0]);
        CHECK_INT(registered(), !is_pageable);
        CHECK_INT(fl_cuda_host_range_is_registered(range), !is_pageable);
        for (int i = 0; i < 3; i++) {
            if (i > 0) r[i] = r[0], r[i].column.to = r[i].made;
            queue(&r[i], range, i > 0, streams[i]);
            queue(&r[i], range, i > 0, streams[i]);
        }
        fl_cuda_host_range_close(range);
        memset(r[0].memory, 0, ROWS * BYTES);
        CHECK_INT(registered(), 0);
        for (int i = 0; i < 3; i++) fake_synchronize(streams[i]);
        for (int i = 0; i < 3; i++) CHECK(memcmp(r[i].made, r[i].expected, COUNT * BYTES) == 0);
        close_rows(&r[0]);
        for (int i = 1; i < 3; i++) CHECK_INT(cudaStreamDestroy(streams[i]), cudaSuccess);
        CHECK(fake_is_clean());
    }
    fake_read_pageable(false);
}

/* What is written after the fence reaches no batch that was queued before. */
static void test_a_fence_waits_for_reads_on_every_stream(void)
{
    rows r[2];
    cudaStream_t streams[2] = {NULL, open_stream_of_device_1()};
    open_rows(&r[0]);
    r[1] = r[0], r[1].column.to = r[1].made;
    fl_cuda_host_range *range = open_range(0, &r[0]);
    CHECK_INT(fl_cuda_host_range_fence(range, NULL), FL_OK); /* nothing reads */
    for (int i = 0; i < 2; i++) queue(&r[i], range, i, streams[i]);
    CHECK_INT(fl_cuda_host_range_fence(range, NULL), FL_OK);
    memset(r[0].memory, 0, ROWS * BYTES);
    for (int i = 0; i < 2; i++) fake_synchronize(streams[i]);
    for (int i = 0; i < 2; i++) CHECK(memcmp(r[i].made, r[i].expected, COUNT * BYTES) == 0);
    fl_cuda_host_range_close(range);
    close_rows(&r[0]);
    CHECK_INT(cudaStreamDestroy(streams[1]), cudaSuccess);
    CHECK(fake_is_clean());
}

/* One thread queues batches on streams of its own while another fences. */
static void *queue_batches(void *arg)
{
    rows *r = arg;
    for (int i = 0; i < 20; i++) {
        cudaStream_t stream = open_stream_of_device_1();
        queue(r, r->range, 1, stream);
        fake_synchronize(stream);
        CHECK_INT(cudaStreamDestroy(stream), cudaSuccess);
    }
    return NULL;
}

static void test_batches_may_be_queued_during_a_fence(void)
{
    rows r;
    pthread_t thread;
    open_rows(&r);
    r.range = open_range(0, &r);
    CHECK_INT(pthread_create(&thread, NULL, queue_batches, &r), 0);
    for (int i = 0; i < 50; i++) CHECK_INT(fl_cuda_host_range_fence(r.range, NULL), FL_OK);
    CHECK_INT(pthread_join(thread, NULL), 0);
    fl_cuda_host_range_close(r.range);
    close_rows(&r);
    CHECK(fake_is_clean());
}

static void test_kernels_have_addresses_of_their_own(void)
{
    rows r;
    open_rows(&r);
    for (int64_t shift = -4096; shift <= 4096; shift += 4096) {
        fake_shift_mapped(shift);
        fl_cuda_host_range *range = open_range(1, &r);
        CHECK_INT(fl_cuda_host_range_shift(range), shift);
        fl_cuda_host_range_close(range);
    }
    fake_shift_mapped(0);
    free(r.memory);
}

static void test_memory_that_is_registered_is_refused(void)
{
    rows r;
    fl_err err;
    fl_cuda_host_range *again;
    open_rows(&r);
    fl_cuda_host_range *range = open_range(0, &r);
    CHECK_INT(fl_cuda_host_range_open(0, r.memory + 9, 9, &again, &err), FL_EDEVICE);
    CHECK(again == NULL && strstr(err.text, "is already mapped") != NULL);
    CHECK_INT(registered(), 1);
    fl_cuda_host_range_close(range);
    CHECK_INT(fl_cuda_host_range_open(0, r.memory, 0, &again, &err), FL_OK); /* of no bytes */
    CHECK_INT(registered(), 0);
    fl_cuda_host_range_close(again);
    fl_cuda_host_range_close(NULL);
    free(r.memory);
}

/* If nothing is registered, only the events make close wait. */
static void fail_each_call(bool is_pageable)
{
    fl_err err;
    int opened = 0, refused = 0;
    fake_read_pageable(is_pageable);
    for (int64_t n = 1, is_over = false; !is_over; n++) {
        rows r;
        fl_cuda_host_range *range;
        open_rows(&r);
        fake_fail_at(n, cudaErrorLaunchFailure, false);
        int status = fl_cuda_host_range_open(1, r.memory, ROWS * BYTES, &range, &err);
        if (status == FL_OK) {
            cudaStream_t stream = NULL;
            const fl_gather gather = gather_of(&r);
            int gathered = fl_cuda_gather(1, stream, &gather, &err);
            if (gathered == FL_OK) (void)fl_cuda_host_range_note(range, 1, stream, &err);
            int fenced = fl_cuda_host_range_fence(range, &err);
            CHECK(fenced == FL_OK || strstr(err.text, "cudaErrorLaunchFailure") != NULL);
            is_over = fake_calls() < n;
            fl_cuda_host_range_close(range);
            is_over = is_over && fake_calls() < n;
            if (gathered == FL_OK) CHECK(memcmp(r.made, r.expected, COUNT * BYTES) == 0);
            opened++;
        } else {
            CHECK_INT(status, FL_EDEVICE);
            CHECK(range == NULL && strstr(err.text, "cudaErrorLaunchFailure") != NULL);
            refused++;
        }
        fake_fail_at(0, cudaSuccess, false);
        CHECK_INT(cudaGetLastError(), cudaSuccess);
        choose_device_0(); /* if the device could not be restored */
        CHECK_INT(registered(), 0);
        CHECK(fake_is_clean());
        free(r.memory);
    }
    CHECK(refused >= 3 && opened > 5);
    fake_read_pageable(false);
}

/* Whatever fails, nothing stays registered, and reads are over before close returns. */
static void test_each_call_may_fail(void)
{
    fail_each_call(false);
    fail_each_call(true);
}

static void test_a_child_leaves_the_memory_to_its_parent(void)
{
    rows r;
    open_rows(&r);
    fl_cuda_host_range *range = open_range(0, &r);
    pid_t child = fork();
    if (child == 0) {
        CHECK_INT(fl_cuda_host_range_fence(range, NULL), FL_OK);
        fl_cuda_host_range_close(range);
        _exit(registered() == 1 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK_INT(registered(), 1);
    fl_cuda_host_range_close(range);
    CHECK_INT(registered(), 0);
    free(r.memory);
}

int main(void)
{
    start_tests();
    fl_fork_install();
    choose_device_0();
    for (int32_t device = 0; device < 2; device++) {
        CHECK_INT(cudaSetDevice(device), cudaSuccess);
        CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    }
    choose_device_0();
    fake_set_order(FAKE_LAZY, 0);
    RUN(test_close_waits_for_reads_on_every_stream);
    RUN(test_a_fence_waits_for_reads_on_every_stream);
    RUN(test_batches_may_be_queued_during_a_fence);
    RUN(test_kernels_have_addresses_of_their_own);
    RUN(test_memory_that_is_registered_is_refused);
    RUN(test_each_call_may_fail);
    RUN(test_a_child_leaves_the_memory_to_its_parent);
    return 0;
}
