/* Windows of tokens that are made on the device: the kernel, compiled as C++, against single
 * tokens; what a launch that fails leaves. */
#include "cuda_fixture.h"

#include "fl_cuda_windows.h"

enum { GUARD = 0x5A };

/* Allocates owned memory that ends at the end of its contents. */
static char *allocate(int64_t bytes)
{
    void *data;
    CHECK(posix_memalign(&data, 64, (size_t)fl_max(bytes, 1)) == 0);
    memset(data, GUARD, (size_t)fl_max(bytes, 1));
    return data;
}

/* Tokens, windows over the tokens, and the expected x and y. */
typedef struct windows {
    fl_window_batch batch;
    char *from, *x, *y, *expected_x, *expected_y; /* owned */
    int64_t *starts;                              /* owned */
    int64_t count, bytes;
} windows;

static void expect(const windows *self, char *expected, int64_t shift)
{
    const fl_window_batch *batch = &self->batch;
    for (int64_t i = 0; i < self->count * batch->length; i++) {
        int64_t token = self->starts[i / batch->length] + i % batch->length + shift;
        const char *at = self->from + token * batch->from_bytes;
        int64_t value = batch->is_signed && at[batch->from_bytes - 1] < 0 ? -1 : 0;
        memcpy(&value, at, (size_t)batch->from_bytes);
        memcpy(expected + i * batch->bytes, &value, (size_t)batch->bytes);
    }
}

/* The first window begins at the first token, and the last ends with the last one. */
static windows open_windows(fl_window_batch batch, int64_t tokens, int64_t count)
{
    uint64_t seed = (uint64_t)(tokens * 31 + count * 7 + batch.length + batch.shift);
    windows self = {.batch = batch, .count = count, .bytes = count * batch.length * batch.bytes};
    const int64_t places = tokens - batch.length - batch.shift + 1;
    self.from = allocate(tokens * batch.from_bytes);
    fill_random(&seed, self.from, tokens * batch.from_bytes);
    self.starts = (int64_t *)allocate(count * (int64_t)sizeof *self.starts);
    for (int64_t i = 0; i < count; i++) {
        uint32_t number;
        fill_random(&seed, (char *)&number, sizeof number);
        self.starts[i] = number % places;
    }
    if (count > 1) self.starts[0] = 0, self.starts[count - 1] = places - 1;
    self.x = allocate(self.bytes);
    self.y = allocate(self.bytes);
    self.expected_x = allocate(self.bytes);
    self.expected_y = allocate(self.bytes);
    self.batch.from = self.from;
    self.batch.x = self.x;
    return self;
}

static void close_windows(windows *self)
{
    CHECK(memcmp(self->x, self->expected_x, (size_t)self->bytes) == 0);
    CHECK(memcmp(self->y, self->expected_y, (size_t)self->bytes) == 0);
    char *memory[] = {self->from, self->x, self->y, self->expected_x, self->expected_y};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    free(self->starts);
}

static void check_one(fl_window_batch batch, int64_t tokens, int64_t count)
{
    for (int has_y = 0; has_y < 2; has_y++) {
        windows self = open_windows(batch, tokens, count);
        if (has_y == 1) self.batch.y = self.y;
        expect(&self, self.expected_x, 0);
        if (has_y == 1) expect(&self, self.expected_y, batch.shift);
        const int64_t before = fake_launches();
        CHECK_INT(fl_cuda_gather_windows(0, NULL, &self.batch, self.starts, count, NULL), FL_OK);
        CHECK_INT(fake_launches() - before, count > 0 ? 1 : 0);
        fake_synchronize(NULL);
        close_windows(&self);
    }
}

static void check_every_type(int64_t tokens, int64_t length, int64_t count)
{
    for (int32_t from = 1; from <= 8; from *= 2)
        for (int32_t bytes = from > 2 ? from : 2; bytes <= 8; bytes *= 2)
            for (int is_signed = 0; is_signed < 2; is_signed++)
                for (int32_t shift = 0; shift < 2; shift++)
                    check_one((fl_window_batch){.length = length,
                                                .shift = shift,
                                                .from_bytes = from,
                                                .bytes = bytes,
                                                .is_signed = is_signed == 1},
                              tokens, count);
}

static void test_every_type_and_length(void)
{
    for (int64_t length = 1; length < 9; length++)
        for (int64_t count = 0; count < 4; count++)
            check_every_type(length + 1 + 5 * count, length, count);
}

/* Blocks make 1024 elements, and begin and end anywhere in a row. */
static void test_batches_of_many_blocks(void)
{
    check_every_type(2000, 1024, 3);
    check_every_type(2000, 1023, 4);
    check_every_type(2000, 1025, 4);
    check_every_type(9, 1, 1025);
    check_every_type(40, 7, 500);
    check_every_type(6000, 5000, 2);
}

/* The error names the call, and nothing is written. */
static void test_a_launch_that_fails(void)
{
    fl_err err;
    windows self = open_windows((fl_window_batch){.length = 3, .from_bytes = 2, .bytes = 8}, 9, 2);
    fake_fail_at(1, cudaErrorLaunchFailure, false);
    CHECK_INT(fl_cuda_gather_windows(0, NULL, &self.batch, self.starts, 2, &err), FL_EDEVICE);
    fake_fail_at(0, cudaSuccess, false);
    CHECK(strstr(err.text, "cudaErrorLaunchFailure") != NULL);
    CHECK_INT(cudaGetLastError(), cudaSuccess);
    fake_synchronize(NULL);
    close_windows(&self);
}

int main(void)
{
    start_tests();
    choose_device_0();
    CHECK_INT(fl_cuda_load_kernels(NULL), FL_OK);
    RUN(test_every_type_and_length);
    RUN(test_batches_of_many_blocks);
    RUN(test_a_launch_that_fails);
    return 0;
}
