/* Tests of bytes that become wider elements on the device: the kernel, compiled as C++, against its
 * table; and launches that are refused. */
#include "cast_fixture.h"

#include "fl_cuda_cast.h"
#include "shim_grid.h"

enum { MOST_TABLE_BYTES = FL_CAST_CHANNELS * 256 * 4 };

static void expect_elements(cast_buffer *b)
{
    const fl_transfer_cast *cast = &b->cast;
    const char *tables = cast->tables;
    int64_t left = cast->plane, channel = 0;
    for (int64_t i = 0; i < cast->count; i++, left--) {
        if (left == 0) {
            left = cast->plane;
            channel = channel + 1 == cast->channels ? 0 : channel + 1;
        }
        uint8_t value = (uint8_t)b->data[cast->from + i];
        memcpy(b->expected + cast->to + i * cast->bytes,
               tables + (channel * 256 + value) * cast->bytes, (size_t)cast->bytes);
    }
}

/* Opens a buffer and fills the tables, which the cast borrows. */
static void open_buffer(cast_buffer *b, fl_transfer_cast cast, char *tables, bool reads_first)
{
    uint64_t seed = (uint64_t)(cast.count * 131 + cast.plane * 7 + cast.channels + cast.bytes);
    cast.tables = tables;
    open_cast_buffer(b, cast, cast.count, reads_first, &seed);
    fill_random(&seed, tables, MOST_TABLE_BYTES);
}

/* Checks that every element is the table's, and nothing else has changed; or that the launch has
 * failed, and nothing has changed. */
static void check_cast(fl_transfer_cast cast, int32_t processors, cudaError_t error)
{
    for (int is_first = 0; is_first < 2; is_first++) {
        cast_buffer b;
        char tables[MOST_TABLE_BYTES];
        open_buffer(&b, cast, tables, is_first == 1);
        if (error == cudaSuccess) expect_elements(&b);
        CHECK_INT(fl_cuda_cast(NULL, processors, b.data, &b.cast), error);
        CHECK_INT(cudaGetLastError(), error);
        memset(tables, 0, sizeof tables); /* they have been read */
        check_and_close(&b);
    }
}

static fl_transfer_cast cast_of(int64_t count, int64_t plane, int32_t channels, int32_t bytes)
{
    return (fl_transfer_cast){.count = count, .plane = plane, .channels = channels, .bytes = bytes};
}

static void check_cast_everywhere(int64_t count, int64_t plane, int32_t processors)
{
    for (int32_t channels = 1; channels <= FL_CAST_CHANNELS; channels++)
        for (int32_t bytes = 2; bytes <= 4; bytes += 2)
            check_cast(cast_of(count, plane, channels, bytes), processors, cudaSuccess);
}

static void test_every_count_and_every_plane(void)
{
    for (int64_t count = 0; count < 40; count += 1 + SAMPLE / 2)
        for (int64_t plane = 1; plane < 12; plane += 1 + SAMPLE / 2)
            check_cast_everywhere(count, plane, 1);
}

/* Threads make many packs, and those at the end fewer. */
static void test_large_batches(void)
{
    static const int64_t planes[] = {1, 3, 1024, 50177, 1 << 20};
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i += ONE_IN)
        for (int64_t count = 16384 - 5; count < (IS_SANITIZED ? 40000 : 120000); count += 16389)
            check_cast_everywhere(count, planes[i], 1 + (int32_t)i % 2);
}

/* One channel has as many elements as an image may have. */
static void test_the_largest_cycle(void)
{
    for (int32_t channels = 1; channels <= FL_CAST_CHANNELS; channels++)
        check_cast(cast_of(5000, FL_CAST_CYCLE / channels, channels, 4), 1, cudaSuccess);
}

static void test_nothing_is_launched_for_no_elements(void)
{
    int64_t before = fake_launches();
    check_cast(cast_of(0, 1, 3, 4), 1, cudaSuccess);
    CHECK_INT(fake_launches(), before);
    check_cast(cast_of(1, 1, 3, 4), 1, cudaSuccess);
    CHECK_INT(fake_launches(), before + 2);
}

static void test_a_launch_that_fails_changes_nothing(void)
{
    for (int32_t bytes = 2; bytes <= 4; bytes += 2) {
        cast_buffer b;
        char tables[MOST_TABLE_BYTES];
        open_buffer(&b, cast_of(100, 10, 3, bytes), tables, true);
        check_failed_launch(&b, fl_cuda_cast);
    }
}

/* A driver from before CUDA 12.1 takes all but four channels of floats. */
static void test_4_kilobytes_of_parameters(void)
{
    shim_limits limits = shim_usual_limits;
    limits.parameter_bytes = 4096;
    shim_set_limits(&limits);
    for (int32_t channels = 1; channels <= FL_CAST_CHANNELS; channels++) {
        check_cast(cast_of(100, 5, channels, 2), 1, cudaSuccess);
        check_cast(cast_of(100, 5, channels, 4), 1,
                   channels == 4 ? cudaErrorLaunchOutOfResources : cudaSuccess);
    }
    shim_set_limits(&shim_usual_limits);
}

int main(void)
{
    start_tests();
    choose_device_0();
    RUN(test_every_count_and_every_plane);
    RUN(test_large_batches);
    RUN(test_the_largest_cycle);
    RUN(test_nothing_is_launched_for_no_elements);
    RUN(test_a_launch_that_fails_changes_nothing);
    RUN(test_4_kilobytes_of_parameters);
    return 0;
}
