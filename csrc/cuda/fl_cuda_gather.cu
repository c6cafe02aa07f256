/* fl_cuda_gather: rows of several columns in a device's memory become a batch, by one kernel.
 *
 * A block copies units of one column, each block the same number of units. A unit is a word of up
 * to 16 bytes that divides the column's rows. Units of a warp lie side by side in the batch, and in
 * a row. */
#include "fl_cuda_gather.h"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>

static constexpr int THREADS = 256, AHEAD = 4; /* units that a thread loads before storing one */
static constexpr int MOST_COLUMNS = 32;        /* in one launch */

struct column {
    const char *from;
    char *to;
    int64_t pitch;
    uint32_t row, units; /* units in a row, and in the batch */
    uint32_t last_block; /* one past the column's last block */
    uint32_t shift;      /* a unit has 1 << shift bytes */
};

struct batch {
    column columns[MOST_COLUMNS];
    const int64_t *rows;
};

static_assert(sizeof(batch) <= 4096, "no longer a small argument");

/* Copies a thread's units. Past the last unit a thread loads the last unit again, so that no load
 * waits for a branch. */
template <class T>
static __device__ void copy_units(const column &of, const int64_t *rows, uint32_t first)
{
    T units[AHEAD];
    uint32_t at[AHEAD];
    int64_t from[AHEAD]; /* row numbers */
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
        const uint32_t unit = first + i * THREADS;
        at[i] = unit < of.units ? unit : of.units - 1;
        from[i] = rows[at[i] / of.row];
    }
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++)
        units[i] = ((const T *)(of.from + from[i] * of.pitch))[at[i] % of.row];
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++)
        if (first + i * THREADS < of.units) ((T *)of.to)[at[i]] = units[i];
}

static __global__ void __launch_bounds__(THREADS) k_gather(const batch __grid_constant__ given)
{
    uint32_t first = 0;
    int i = 0;
    for (; blockIdx.x >= given.columns[i].last_block; i++) first = given.columns[i].last_block;
    const column &of = given.columns[i];
    const uint32_t unit = (blockIdx.x - first) * (THREADS * AHEAD) + threadIdx.x;
    switch (of.shift) {
    case 0:
        return copy_units<uint8_t>(of, given.rows, unit);
    case 1:
        return copy_units<uint16_t>(of, given.rows, unit);
    case 2:
        return copy_units<uint32_t>(of, given.rows, unit);
    case 3:
        return copy_units<uint64_t>(of, given.rows, unit);
    default:
        return copy_units<uint4>(of, given.rows, unit);
    }
}

/* Finds the largest unit that divides all addresses and sizes of the column. */
static uint32_t find_shift(const fl_row_column *of)
{
    const uint64_t bits =
        (uintptr_t)of->from | (uintptr_t)of->to | (uint64_t)of->bytes | (uint64_t)of->pitch;
    uint32_t shift = 0;
    while (shift < 4 && (bits >> shift & 1) == 0) shift++;
    return shift;
}

/* Launches the copy of rows [first, first + row_count) of the batch. */
static cudaError_t launch(void *stream, const fl_row_column *columns, int32_t column_count,
                          const int64_t *rows, int64_t first, int64_t row_count)
{
    batch given = {};
    given.rows = rows + first;
    uint32_t blocks = 0;
    for (int32_t i = 0; i < column_count; i++) {
        const fl_row_column *of = &columns[i];
        const uint32_t shift = find_shift(of), row = (uint32_t)(of->bytes >> shift);
        const uint32_t units = row * (uint32_t)row_count;
        blocks += (units + THREADS * AHEAD - 1) / (THREADS * AHEAD);
        given.columns[i] = {of->from, of->to + first * of->bytes, of->pitch, row, units, blocks,
                            shift};
    }
    if (blocks == 0) return cudaSuccess;
    void *args[] = {&given};
    return cudaLaunchKernel(k_gather, dim3(blocks), dim3(THREADS), args, 0, (cudaStream_t)stream);
}

/* Splits rows into several launches, because units of a launch are counted in 32 bits. */
cudaError_t fl_cuda_queue_gather(void *stream, const fl_row_column *columns, int32_t column_count,
                                 const int64_t *rows, int64_t row_count, int64_t most_bytes)
{
    int64_t longest = 1;
    for (int32_t i = 0; i < column_count; i++) longest = fl_max(longest, columns[i].bytes);
    const int64_t step = most_bytes / longest;
    if (step == 0) return cudaErrorInvalidValue;
    for (int64_t first = 0; first < row_count; first += step)
        for (int32_t i = 0; i < column_count; i += MOST_COLUMNS) {
            const int32_t count = column_count - i < MOST_COLUMNS ? column_count - i : MOST_COLUMNS;
            cudaError_t error =
                launch(stream, columns + i, count, rows, first, fl_min(row_count - first, step));
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}

cudaError_t fl_cuda_load_gathers(void)
{
    const void *kernel = (const void *)k_gather;
    return fl_cuda_load(&kernel, 1);
}
