/* Integers that become wider ones on the device: the kernel, compiled as C++, against single
 * integers; what is refused. */
#include "cast_fixture.h"

#include "fl_cuda_widen.h"
#include "shim_grid.h"

static int64_t integer_at(const fl_transfer_cast *cast, const char *at)
{
    bool is_negative = cast->is_signed && at[cast->from_bytes - 1] < 0;
    int64_t value = is_negative ? -1 : 0;
    memcpy(&value, at, (size_t)cast->from_bytes);
    return value;
}

static void expect_elements(cast_buffer *b)
{
    const fl_transfer_cast *cast = &b->cast;
    const char *row = b->data + cast->from;
    for (int64_t i = 0, place = 0; i < cast->count; i++, place++) {
        if (place == cast->row) {
            row += cast->pitch * cast->from_bytes;
            place = 0;
        }
        int64_t value = integer_at(cast, row + place * cast->from_bytes);
        memcpy(b->expected + cast->to + i * cast->bytes, &value, (size_t)cast->bytes);
    }
}

/* Returns how many bytes the cast reads. */
static int64_t read_bytes(const fl_transfer_cast *cast)
{
    int64_t rows = (cast->count + cast->row - 1) / cast->row;
    int64_t last = cast->count - (rows - 1) * cast->row;
    return rows == 0 ? 0 : ((rows - 1) * cast->pitch + last) * cast->from_bytes;
}

static void open_buffer(cast_buffer *b, fl_transfer_cast cast, bool reads_first)
{
    uint64_t seed = (uint64_t)(cast.count * 131 + cast.row * 7 + cast.pitch + cast.bytes);
    open_cast_buffer(b, cast, read_bytes(&cast), reads_first, &seed);
}

/* Every element is its integer, and nothing else has changed. */
static void check_widen(fl_transfer_cast cast, int32_t processors)
{
    for (int is_first = 0; is_first < 2; is_first++) {
        cast_buffer b;
        open_buffer(&b, cast, is_first == 1);
        expect_elements(&b);
        CHECK_INT(fl_cuda_widen(NULL, processors, b.data, &b.cast), cudaSuccess);
        CHECK_INT(cudaGetLastError(), cudaSuccess);
        check_and_close(&b);
    }
}

static fl_transfer_cast
cast_of(int64_t count, int64_t row, int64_t pitch, int32_t from_bytes, int32_t bytes)
{
    return (fl_transfer_cast){.kind = FL_CAST_WIDEN,
                              .count = count,
                              .row = row,
                              .pitch = pitch,
                              .from_bytes = from_bytes,
                              .bytes = bytes};
}

static void check_every_type(int64_t count, int64_t row, int64_t pitch, int32_t processors)
{
    for (int32_t from = 1; from <= 4; from *= 2)
        for (int32_t bytes = 4; bytes <= 8; bytes *= 2)
            for (int is_signed = 0; is_signed < 2 && from < bytes; is_signed++) {
                fl_transfer_cast cast = cast_of(count, row, pitch, from, bytes);
                cast.is_signed = is_signed == 1;
                check_widen(cast, processors);
            }
}

static void test_every_count_and_every_row(void)
{
    for (int64_t count = 0; count < 20; count += 1 + SAMPLE / 2)
        for (int64_t row = 1; row < 10; row += 2)
            for (int64_t gap = 0; gap < 3; gap++) check_every_type(count, row, row + gap, 1);
}

/* Threads make as many packs as they load ahead, or three times as many; of one the last is not
 * whole. Rows end anywhere in them. */
static void test_large_batches(void)
{
    static const int64_t rows[] = {1, 3, 1024, 1025, 50177};
    const int64_t most = IS_SANITIZED ? 20000 : 60000;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int64_t count = 16384 - 5; count < most; count += 32768)
            check_every_type(count, rows[i], rows[i] + (int64_t)i % 2, 1 + (int32_t)i % 2);
}

/* The row is as long as a window may be. */
static void test_the_longest_row(void)
{
    check_every_type(5000, INT32_MAX, INT32_MAX, 1);
    check_every_type(5000, INT32_MAX - 1, INT32_MAX, 1);
}

static void test_nothing_is_launched_for_no_elements(void)
{
    int64_t before = fake_launches();
    check_widen(cast_of(0, 1, 1, 2, 8), 1);
    CHECK_INT(fake_launches(), before);
    check_widen(cast_of(1, 1, 1, 2, 8), 1);
    CHECK_INT(fake_launches(), before + 2);
}

static void test_a_launch_that_fails_changes_nothing(void)
{
    for (int32_t bytes = 4; bytes <= 8; bytes += 4) {
        cast_buffer b;
        open_buffer(&b, cast_of(100, 10, 11, 2, bytes), true);
        check_failed_launch(&b, fl_cuda_widen);
    }
}

int main(void)
{
    start_tests();
    choose_device_0();
    RUN(test_every_count_and_every_row);
    RUN(test_large_batches);
    RUN(test_the_longest_row);
    RUN(test_nothing_is_launched_for_no_elements);
    RUN(test_a_launch_that_fails_changes_nothing);
    return 0;
}
