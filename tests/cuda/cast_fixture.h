/* cast_fixture.h: memory that a cast reads and writes, and the memory's expected contents. */
#ifndef CAST_FIXTURE_H
#define CAST_FIXTURE_H

#include "cuda_fixture.h"

#include "fl_transfer_ops.h"

enum { GUARD = 0x5A };

typedef struct cast_buffer {
    char *data, *expected; /* owned: exactly as large as the cast says */
    int64_t bytes;
    fl_transfer_cast cast;
} cast_buffer;

typedef cudaError_t
cast_launcher(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast);

static inline int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }

static inline char *allocate(int64_t bytes)
{
    void *data;
    CHECK(posix_memalign(&data, 16, (size_t)fl_max(bytes, 1)) == 0);
    return data;
}

/* Opens a buffer for a cast that reads this many random bytes, or integers from the second on.
 * Either the input or the output ends at the end of the memory. No change is expected yet. */
static inline void open_cast_buffer(cast_buffer *b, fl_transfer_cast cast, int64_t read,
                                    bool reads_first, uint64_t *seed)
{
    int64_t made = cast.count * cast.bytes;
    cast.to = reads_first ? round_up(cast.from_bytes + read) + 16 : 0;
    cast.from = cast.from_bytes + (reads_first ? 0 : round_up(made) + 16);
    b->cast = cast;
    b->bytes = fl_max(cast.to + made, cast.from + read);
    b->data = allocate(b->bytes);
    b->expected = allocate(b->bytes);
    memset(b->data, GUARD, (size_t)b->bytes);
    fill_random(seed, b->data + cast.from, read);
    memcpy(b->expected, b->data, (size_t)b->bytes);
}

static inline void check_and_close(cast_buffer *b)
{
    fake_synchronize(NULL);
    CHECK(memcmp(b->data, b->expected, (size_t)b->bytes) == 0);
    free(b->data);
    free(b->expected);
}

/* A launch that fails changes nothing. */
static inline void check_failed_launch(cast_buffer *b, cast_launcher *launch)
{
    fake_fail_at(1, cudaErrorLaunchFailure, false);
    CHECK_INT(launch(NULL, 1, b->data, &b->cast), cudaErrorLaunchFailure);
    fake_fail_at(0, cudaSuccess, false);
    CHECK_INT(cudaGetLastError(), cudaErrorLaunchFailure);
    check_and_close(b);
}

#endif
