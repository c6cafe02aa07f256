/* fl_cuda_gather: rows of several columns become a batch, by one kernel. The rows lie in a device's
 * memory, or in memory of the host that the device reads over the link.
 *
 * A part of a column is the same number of units for each block; a block takes parts in steps of
 * the grid. A unit is a word of up to 16 bytes that divides the column's rows, and units of a warp
 * lie side by side in the batch, and in a row. If only a short word divides the rows, a unit is 16
 * bytes of the batch all the same: a thread loads the aligned blocks in which they lie, two in a
 * row, and shifts. */
#include "fl_cuda_gather.h"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>

static constexpr int THREADS = 256, AHEAD = 4; /* units that a thread loads before storing one */
static constexpr int MOST_COLUMNS = 32;        /* in one launch */
static constexpr uint32_t BLOCK = 16, ODD_AHEAD = 2, ODD = 5; /* ODD: a shift of no word */

struct column {
    const char *from, *end; /* of all rows */
    char *to;
    int64_t pitch;
    uint32_t row, units; /* units in a row, and in the batch */
    uint32_t last_part;  /* one past the column's last part */
    uint32_t shift;      /* a unit has 1 << shift bytes; ODD: row and units count bytes */
};

struct batch {
    column columns[MOST_COLUMNS];
    const int64_t *rows;
    uint32_t parts;
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

/* ---- rows that only a short word divides */

/* 16 bytes as they lie in memory: in the blocks `low` and `high`, or in `low` alone. */
struct pair {
    uint4 low, high;
};

static __device__ uint32_t find_offset(const char *at) { return (uintptr_t)at % BLOCK; }

static __device__ pair load_pair(const char *at)
{
    const uint32_t offset = find_offset(at);
    const uint4 *block = (const uint4 *)(at - offset);
    return {__ldg(block), __ldg(block + (offset != 0))};
}

/* Returns true if the blocks of 16 bytes at an address lie within the rows. */
static __device__ bool has_blocks(const column &of, const char *at)
{
    const uint32_t before = find_offset(at), after = (BLOCK - before) % BLOCK;
    return at - of.from >= before && of.end - at >= BLOCK + after;
}

/* Returns the bytes from the given byte of `low` on. */
static __device__ uint4 shift_out(const pair &of, uint32_t first)
{
    uint32_t word[] = {of.low.x,  of.low.y,  of.low.z,  of.low.w,
                       of.high.x, of.high.y, of.high.z, of.high.w};
#pragma unroll
    for (uint32_t step = 2; step > 0; step--) /* by whole words: 2, then 1 */
#pragma unroll
        for (uint32_t i = 0; i + step < 8; i++)
            if (first & 4 * step) word[i] = word[i + step];
    const uint32_t bits = first % 4 * 8;
    return {__funnelshift_r(word[0], word[1], bits), __funnelshift_r(word[1], word[2], bits),
            __funnelshift_r(word[2], word[3], bits), __funnelshift_r(word[3], word[4], bits)};
}

static __device__ uint32_t join_word(uint32_t a, uint32_t b, int32_t count)
{
    const uint32_t mask = count <= 0 ? 0 : count >= 4 ? ~0U : (1U << count * 8) - 1;
    return (a & mask) | (b & ~mask);
}

/* Returns a unit whose first `count` bytes are a's; its other bytes are b's. */
static __device__ uint4 join(uint4 a, uint4 b, int32_t count)
{
    return {join_word(a.x, b.x, count), join_word(a.y, b.y, count - 4),
            join_word(a.z, b.z, count - 8), join_word(a.w, b.w, count - 12)};
}

/* The bytes of a unit: the first `left` are at `at` in a row. The others, if `next` is not NULL,
 * are at next + left in the next row. */
struct place {
    const char *at, *next;
    int32_t left;
};

static __device__ place find_place(const column &of, const int64_t *rows, uint32_t byte)
{
    const uint32_t row = byte / of.row, offset = byte % of.row;
    place p = {of.from + rows[row] * of.pitch + offset, NULL, (int32_t)(of.row - offset)};
    if (p.left < (int32_t)BLOCK && byte + (uint32_t)p.left < of.units)
        p.next = of.from + rows[row + 1] * of.pitch - p.left;
    return p;
}

/* Copies a unit byte by byte if it is the end of the batch, or if its blocks do not lie within the
 * rows: nothing else may be read. Returns true if it has. */
static __device__ bool copy_bytes(const column &of, const place &p, uint32_t byte)
{
    if (of.units - byte >= BLOCK && has_blocks(of, p.at) &&
        (p.next == NULL || has_blocks(of, p.next)))
        return false;
#pragma unroll 1
    for (int32_t i = 0; i < (int32_t)BLOCK && byte + (uint32_t)i < of.units; i++)
        of.to[byte + (uint32_t)i] = i < p.left ? p.at[i] : p.next[i];
    return true;
}

static __device__ uint4 make_unit(const place &p, const pair &row, const pair &next)
{
    const uint4 made = shift_out(row, find_offset(p.at));
    return p.next == NULL ? made : join(made, shift_out(next, find_offset(p.next)), p.left);
}

/* Copies a thread's units of 16 bytes; the first begins at byte `first` of the batch. */
static __device__ void copy_odd(const column &of, const int64_t *rows, uint32_t first)
{
    constexpr uint32_t STEP = THREADS * BLOCK;
    place places[ODD_AHEAD] = {};
    pair row[ODD_AHEAD], next[ODD_AHEAD];
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++)
        if (first + i * STEP < of.units) places[i] = find_place(of, rows, first + i * STEP);
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++)
        if (places[i].at != NULL && copy_bytes(of, places[i], first + i * STEP))
            places[i].at = NULL;
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++) {
        if (places[i].at != NULL) row[i] = load_pair(places[i].at);
        if (places[i].at != NULL && places[i].next != NULL) next[i] = load_pair(places[i].next);
    }
#pragma unroll
    for (uint32_t i = 0; i < ODD_AHEAD; i++)
        if (places[i].at != NULL)
            *(uint4 *)(of.to + first + i * STEP) = make_unit(places[i], row[i], next[i]);
}

/* ---- the kernel */

static __device__ void copy_part(const column &of, const int64_t *rows, uint32_t part)
{
    const uint32_t unit = part * (THREADS * AHEAD) + threadIdx.x;
    switch (of.shift) {
    case 0:
        return copy_units<uint8_t>(of, rows, unit);
    case 1:
        return copy_units<uint16_t>(of, rows, unit);
    case 2:
        return copy_units<uint32_t>(of, rows, unit);
    case 3:
        return copy_units<uint64_t>(of, rows, unit);
    case 4:
        return copy_units<uint4>(of, rows, unit);
    default:
        return copy_odd(of, rows, (part * (THREADS * ODD_AHEAD) + threadIdx.x) * BLOCK);
    }
}

static __global__ void __launch_bounds__(THREADS, 4) k_gather(const batch __grid_constant__ given)
{
#pragma unroll 1
    for (uint32_t part = blockIdx.x; part < given.parts; part += gridDim.x) {
        uint32_t first = 0;
        int i = 0;
        for (; part >= given.columns[i].last_part; i++) first = given.columns[i].last_part;
        copy_part(given.columns[i], given.rows, part - first);
    }
}

/* Finds the largest unit that divides all addresses and sizes of the column. */
static uint32_t find_shift(const fl_row_column *of, const char *to)
{
    const uint64_t bits =
        (uintptr_t)of->from | (uintptr_t)to | (uint64_t)of->bytes | (uint64_t)of->pitch;
    uint32_t shift = 0;
    while (shift < 4 && (bits >> shift & 1) == 0) shift++;
    return shift;
}

/* Adds a column with rows [first, first + row_count) of the batch. Its parts come after the parts
 * of the columns that were added before. */
static void
add_column(batch *given, column *out, const fl_row_column *of, int64_t first, int64_t row_count)
{
    char *to = of->to + first * of->bytes;
    const uint32_t word = find_shift(of, to);
    const bool is_odd = word < 3 && of->bytes >= BLOCK && (uintptr_t)to % BLOCK == 0;
    const uint32_t shift = is_odd ? 0 : word, row = (uint32_t)(of->bytes >> shift);
    const uint32_t units = row * (uint32_t)row_count;
    const uint32_t each = THREADS * (is_odd ? ODD_AHEAD * BLOCK : AHEAD);
    given->parts += units / each + (units % each != 0);
    *out = {of->from, of->end, to, of->pitch, row, units, given->parts, is_odd ? ODD : word};
}

static cudaError_t launch(void *stream, batch *given, int32_t most_blocks)
{
    if (given->parts == 0) return cudaSuccess;
    void *args[] = {given};
    const unsigned blocks = (unsigned)fl_min(given->parts, most_blocks);
    return cudaLaunchKernel(k_gather, dim3(blocks), dim3(THREADS), args, 0, (cudaStream_t)stream);
}

/* Splits rows into several launches, because units of a launch are counted in 32 bits. */
cudaError_t fl_cuda_queue_gather(void *stream, const fl_row_column *columns, int32_t column_count,
                                 const int64_t *rows, int64_t row_count, fl_gather_limits most)
{
    int64_t longest = 1;
    for (int32_t i = 0; i < column_count; i++) longest = fl_max(longest, columns[i].bytes);
    const int64_t step = most.bytes / longest;
    if (step == 0) return cudaErrorInvalidValue;
    for (int64_t first = 0; first < row_count; first += step)
        for (int32_t i = 0; i < column_count; i += MOST_COLUMNS) {
            batch given = {};
            given.rows = rows + first;
            for (int32_t n = 0; n < MOST_COLUMNS && i + n < column_count; n++)
                add_column(&given, &given.columns[n], &columns[i + n], first,
                           fl_min(row_count - first, step));
            cudaError_t error = launch(stream, &given, most.blocks);
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}

cudaError_t fl_cuda_load_gathers(void)
{
    const void *kernel = (const void *)k_gather;
    return fl_cuda_load(&kernel, 1);
}
