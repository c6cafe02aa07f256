/* fl_cuda_widen: FL_CAST_WIDEN. Integers of a batch become wider; of each row, the first integers
 * are taken.
 *
 * A thread makes packs of 16 bytes, so stores of a warp lie side by side. Integers are loaded one
 * by one, because a row may begin at any integer; loads of a warp also lie side by side. */
#include "fl_cuda_widen.h"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>

static constexpr int THREADS = 256, BLOCKS_PER_SM = 4;

struct span {
    const void *from;
    void *to;
    int64_t count;
    uint32_t row, gap; /* integers that are taken of a row, and the integers after them */
    uint32_t sign;     /* the bit of the sign; 0: integers without sign */
};

/* The number of elements in a pack. */
template <class To> static constexpr int N = sizeof(uint4) / sizeof(To);

/* A result element, and the integer that it is made from. */
struct cursor {
    int64_t at, from;
    uint32_t place; /* position in its row */

    __device__ void move(const span &of)
    {
        bool is_last = ++place == of.row;
        at++;
        from += is_last ? of.gap + 1 : 1;
        if (is_last) place = 0;
    }

    /* Moves by `step` elements: this many rows and places. */
    __device__ void move(const span &of, int64_t step, int64_t rows, uint32_t places)
    {
        at += step;
        from += step + rows * of.gap;
        place += places;
        if (place < of.row) return;
        place -= of.row;
        from += of.gap;
    }
};

template <class From> static __device__ From load(const span &of, const cursor &here)
{
    return ((const From *)of.from)[here.from];
}

template <class To> static __device__ To widen(const span &of, uint32_t integer)
{
    return (To)(integer ^ of.sign) - of.sign;
}

/* Loads the integers of the pack at a cursor, one after the other. */
template <class From, class To>
static __device__ void load_pack(const span &of, cursor here, From *into)
{
#pragma unroll
    for (int i = 0; i < N<To>; i++, here.move(of)) into[i] = load<From>(of, here);
}

/* Stores a pack in one store, because an assignment may become four. */
template <class From, class To>
static __device__ void store_pack(const span &of, int64_t at, const From *integers)
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < N<To>; i++) {
        const uint64_t element = widen<To>(of, integers[i]);
        words[i * 4 / N<To>] = (uint32_t)element;
        if constexpr (sizeof(To) == 8) words[2 * i + 1] = (uint32_t)(element >> 32);
    }
    __stwb((uint4 *)((To *)of.to + at), uint4{words[0], words[1], words[2], words[3]});
}

/* Widens a thread's packs, which lie `step` elements apart. */
template <class From, class To>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) k_widen(span of)
{
    constexpr int AHEAD = 16 / N<To>; /* packs that are loaded before the first is made */
    const int64_t step = (int64_t)gridDim.x * THREADS * N<To>;
    const int64_t rows = step / of.row;
    const uint32_t places = (uint32_t)(step % of.row);
    const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N<To>;
    cursor here = {first, first + first / of.row * of.gap, (uint32_t)(first % of.row)};
    while (here.at + (AHEAD - 1) * step + N<To> <= of.count) {
        From integers[AHEAD][N<To>];
        const int64_t at = here.at;
#pragma unroll
        for (int i = 0; i < AHEAD; i++, here.move(of, step, rows, places))
            load_pack<From, To>(of, here, integers[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) store_pack<From, To>(of, at + i * step, integers[i]);
    }
    for (; here.at + N<To> <= of.count; here.move(of, step, rows, places)) {
        From integers[N<To>];
        load_pack<From, To>(of, here, integers);
        store_pack<From, To>(of, here.at, integers);
    }
#pragma unroll 1
    for (; here.at < of.count; here.move(of))
        ((To *)of.to)[here.at] = widen<To>(of, load<From>(of, here));
}

template <class From, class To>
static cudaError_t
launch(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast)
{
    span of = {(const char *)buffer + cast->from,
               (char *)buffer + cast->to,
               cast->count,
               (uint32_t)cast->row,
               (uint32_t)(cast->pitch - cast->row),
               cast->is_signed ? 1u << (8 * sizeof(From) - 1) : 0};
    const int64_t packs = (cast->count - 1) / N<To> + 1;
    int64_t blocks = fl_min((packs - 1) / THREADS + 1, (int64_t)processors * BLOCKS_PER_SM);
    void *args[] = {&of};
    return cudaLaunchKernel(k_widen<From, To>, dim3((unsigned)blocks), dim3(THREADS), args, 0,
                            (cudaStream_t)stream);
}

cudaError_t fl_cuda_load_widens(void)
{
    const void *kernels[] = {
        (const void *)k_widen<uint8_t, uint32_t>,  (const void *)k_widen<uint8_t, uint64_t>,
        (const void *)k_widen<uint16_t, uint32_t>, (const void *)k_widen<uint16_t, uint64_t>,
        (const void *)k_widen<uint32_t, uint64_t>,
    };
    return fl_cuda_load(kernels, (int)(sizeof kernels / sizeof *kernels));
}

cudaError_t
fl_cuda_widen(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast)
{
    if (cast->count == 0) return cudaSuccess;
    const bool is_long = cast->bytes == 8;
    if (cast->from_bytes == 4) return launch<uint32_t, uint64_t>(stream, processors, buffer, cast);
    if (cast->from_bytes == 2)
        return is_long ? launch<uint16_t, uint64_t>(stream, processors, buffer, cast)
                       : launch<uint16_t, uint32_t>(stream, processors, buffer, cast);
    return is_long ? launch<uint8_t, uint64_t>(stream, processors, buffer, cast)
                   : launch<uint8_t, uint32_t>(stream, processors, buffer, cast);
}
