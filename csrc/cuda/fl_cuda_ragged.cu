/* fl_cuda_ragged: sequences of different length in a device's memory become the padded or packed
 * outputs of a batch, by one kernel.
 *
 * Each block makes the same number of elements of one output, wherever sequences end, so stores of
 * a warp lie side by side. A block searches for the pieces of its first and its last element; each
 * thread then searches only between these two. */
#include "fl_cuda_ragged.h"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>

static constexpr int THREADS = 256, ELEMENTS = 4 * THREADS; /* elements that a block makes */
static constexpr int MOST_OUTPUTS = 32;                     /* in one launch */

struct batch {
    fl_piece_batch outputs[MOST_OUTPUTS];
    uint32_t last_block[MOST_OUTPUTS]; /* one past the output's last block */
};

static_assert(sizeof(batch) <= 4096, "no longer a small argument");

/* Returns the last piece in [low, high] that begins at or before an element. */
static __device__ uint32_t find_piece(const fl_piece *pieces, uint32_t low, uint32_t high,
                                      int64_t element)
{
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        if (pieces[middle].start <= element)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The pieces that the elements of a block lie in: `left` elements from `first` on. */
struct range {
    uint32_t low, high;
    uint32_t width; /* of every piece, if all have the same width; 0: pieces differ */

    __device__ range(const fl_piece_batch &of, int64_t first, uint32_t left)
    {
        const uint32_t last = (uint32_t)(of.piece_count - 1);
        width = (uint32_t)of.width;
        if (width > 0) return;
        low = find_piece(of.pieces, 0, last, first);
        high = find_piece(of.pieces, low, last, first + left - 1);
    }

    __device__ uint32_t find(const fl_piece_batch &of, int64_t element) const
    {
        if (width > 0) return (uint32_t)element / width;
        return find_piece(of.pieces, low, high, element);
    }
};

/* Returns the value for an element; -1: padding. If the output is numbers, returns the number. */
static __device__ int64_t find_number(const fl_piece_batch &of, uint32_t i, int64_t element)
{
    const fl_piece piece = of.pieces[i];
    int64_t at = element - piece.start;
    if (of.output == FL_PIECE_STARTS) return piece.start;
    if (of.output == FL_PIECE_LENGTHS) return piece.length;
    if (of.output == FL_PIECE_POSITIONS) return at;
    if (of.pad_left) at -= of.pieces[i + 1].start - piece.start - piece.length;
    const bool is_inside = at >= of.is_label && at < piece.length;
    if (of.output == FL_PIECE_MASK) return is_inside;
    return is_inside ? piece.begin + at : -1;
}

static __device__ uint64_t load(const fl_piece_batch &of, int64_t value)
{
    const uint64_t sign = of.is_signed ? (uint64_t)1 << (8 * of.from_bytes - 1) : 0;
    uint64_t bits;
    if (of.from_bytes == 1)
        bits = ((const uint8_t *)of.from)[value];
    else if (of.from_bytes == 2)
        bits = ((const uint16_t *)of.from)[value];
    else if (of.from_bytes == 4)
        bits = ((const uint32_t *)of.from)[value];
    else
        bits = ((const uint64_t *)of.from)[value];
    return (bits ^ sign) - sign;
}

static __device__ void store(const fl_piece_batch &of, int64_t element, uint64_t bits)
{
    if (of.bytes == 1)
        ((uint8_t *)of.to)[element] = (uint8_t)bits;
    else if (of.bytes == 2)
        ((uint16_t *)of.to)[element] = (uint16_t)bits;
    else if (of.bytes == 4)
        ((uint32_t *)of.to)[element] = (uint32_t)bits;
    else
        ((uint64_t *)of.to)[element] = bits;
}

/* Makes the elements one after the other. There are enough threads to keep loads under way, and
 * unrolled code for every size of an element would be most of the kernel. */
static __device__ void make_elements(const fl_piece_batch &of, int64_t first, uint32_t left)
{
    const bool is_values = of.output == FL_PIECE_VALUES;
    const range pieces(of, first, left);
#pragma unroll 1
    for (uint32_t at = threadIdx.x; at < left; at += THREADS) {
        const int64_t element = first + at;
        const int64_t number = find_number(of, pieces.find(of, element), element);
        uint64_t bits = is_values ? of.padding : (uint64_t)number;
        if (is_values && number >= 0) bits = load(of, number);
        store(of, element, bits);
    }
}

static __global__ void __launch_bounds__(THREADS) k_pieces(const batch __grid_constant__ given)
{
    uint32_t before = 0;
    int i = 0;
    for (; blockIdx.x >= given.last_block[i]; i++) before = given.last_block[i];
    const fl_piece_batch &of = given.outputs[i];
    const int64_t first = (int64_t)(blockIdx.x - before) * ELEMENTS, left = of.count - first;
    make_elements(of, first, (uint32_t)(left < ELEMENTS ? left : ELEMENTS));
}

/* Returns true if each element of the output stands for one piece. */
static bool is_table(const fl_piece_batch &of)
{
    return of.output == FL_PIECE_STARTS || of.output == FL_PIECE_LENGTHS;
}

static cudaError_t launch(void *stream, const fl_piece_batch *outputs, int32_t count)
{
    batch given = {};
    uint32_t blocks = 0;
    for (int32_t i = 0; i < count; i++) {
        given.outputs[i] = outputs[i];
        if (outputs[i].count > UINT32_MAX) given.outputs[i].width = 0; /* bisection has 64 bits */
        if (is_table(outputs[i])) given.outputs[i].width = 1;
        blocks += (uint32_t)((outputs[i].count + ELEMENTS - 1) / ELEMENTS);
        given.last_block[i] = blocks;
    }
    if (blocks == 0) return cudaSuccess;
    void *args[] = {&given};
    return cudaLaunchKernel(k_pieces, dim3(blocks), dim3(THREADS), args, 0, (cudaStream_t)stream);
}

cudaError_t fl_cuda_queue_pieces(void *stream, const fl_piece_batch *outputs, int32_t count)
{
    for (int32_t i = 0; i < count; i += MOST_OUTPUTS) {
        const int32_t some = count - i < MOST_OUTPUTS ? count - i : MOST_OUTPUTS;
        cudaError_t error = launch(stream, outputs + i, some);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t fl_cuda_load_pieces(void)
{
    const void *kernel = (const void *)k_pieces;
    return fl_cuda_load(&kernel, 1);
}
