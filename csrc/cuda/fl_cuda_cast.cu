/* fl_cuda_cast: FL_CAST_LOOK_UP. Bytes of a batch become elements of a different type, by tables
 * from the CPU: no arithmetic is done here, so the bits equal the CPU's.
 *
 * The tables travel as an argument of the kernel, and each block copies the tables to shared
 * memory. A thread makes packs of 16 bytes, so loads and stores of a warp lie side by side. */
#include "fl_cuda_cast.h"
#include "fl_cuda_runtime.h"

#include <cuda_runtime.h>
#include <string.h>
#include <type_traits>

static constexpr int THREADS = 256, BLOCKS_PER_SM = 4;

/* T: a word as wide as an element. */
template <class T, int CHANNELS> struct alignas(16) tables {
    T at[CHANNELS][256];
};

struct span {
    const uint8_t *from;
    void *to;
    int64_t count;
    uint32_t plane, cycle; /* in elements; cycle: plane times channels */
};

static_assert(sizeof(tables<uint32_t, 3>) + sizeof(span) <= 4096, "no longer a small argument");

/* The number of elements in a pack. */
template <class T> static constexpr int N = sizeof(uint4) / sizeof(T);

/* The source bytes of a pack, as one number. */
template <class T> using bytes_of = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

template <class T, int CHANNELS> struct caster {
    const tables<T, CHANNELS> &table;
    uint32_t plane, cycle;

    /* Returns the element for this value at position `place` of a cycle. */
    __device__ T look_up(uint32_t place, uint32_t value) const
    {
        uint32_t channel = place >= plane;
#pragma unroll
        for (uint32_t next = 2; next < CHANNELS; next++) channel += place >= next * plane;
        return table.at[channel][value];
    }

    __device__ uint32_t next_of(uint32_t place) const { return place + 1 == cycle ? 0 : place + 1; }

    __device__ uint4 make(uint32_t place, bytes_of<T> bytes) const
    {
        uint32_t words[4] = {};
#pragma unroll
        for (int i = 0; i < N<T>; i++, place = next_of(place)) {
            uint32_t element = look_up(place, (uint32_t)(bytes >> 8 * i) & 255);
            words[i * 4 / N<T>] |= element << i * 8 * sizeof(T) % 32;
        }
        return {words[0], words[1], words[2], words[3]};
    }
};

/* Stores a pack in one store, because an assignment may become four. */
template <class T> static __device__ void store(T *to, uint4 pack) { __stwb((uint4 *)to, pack); }

/* Casts a thread's packs, which lie `step` elements apart. */
template <class T, int CHANNELS>
static __device__ void cast_span(const caster<T, CHANNELS> &by, const span &of)
{
    constexpr int AHEAD = 16 / N<T>; /* packs whose bytes are loaded before the first is made */
    const int64_t step = (int64_t)gridDim.x * THREADS * N<T>;
    const uint32_t turn = (uint32_t)(step % of.cycle);
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N<T>;
    uint32_t place = (uint32_t)(at % of.cycle);
    T *to = (T *)of.to;
    const auto advance = [&] {
        at += step;
        place += turn;
        if (place >= of.cycle) place -= of.cycle;
    };
    while (at + (AHEAD - 1) * step + N<T> <= of.count) {
        bytes_of<T> bytes[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) bytes[i] = *(const bytes_of<T> *)(of.from + at + i * step);
#pragma unroll
        for (int i = 0; i < AHEAD; i++, advance()) store(to + at, by.make(place, bytes[i]));
    }
    for (; at + N<T> <= of.count; advance())
        store(to + at, by.make(place, *(const bytes_of<T> *)(of.from + at)));
#pragma unroll 1
    for (; at < of.count; at++, place = by.next_of(place)) to[at] = by.look_up(place, of.from[at]);
}

/* Returns the argument's address, without letting the compiler know that it is an argument's.
 * Otherwise a load would go through the bank of constants, which takes the lanes of a warp one
 * after the other if they read different words. */
static __device__ const uint4 *find_packs(const void *argument)
{
#ifdef __CUDA_ARCH__
    asm("" : "+l"(argument));
#endif
    return (const uint4 *)argument;
}

template <class T, int CHANNELS>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    k_cast(const tables<T, CHANNELS> __grid_constant__ given, span of)
{
    constexpr int PACKS = sizeof given / sizeof(uint4);
    static_assert(PACKS <= THREADS, "a thread copies one");
    __shared__ tables<T, CHANNELS> copied;
    if (threadIdx.x < PACKS) ((uint4 *)&copied)[threadIdx.x] = find_packs(&given)[threadIdx.x];
    __syncthreads();
    cast_span(caster<T, CHANNELS>{copied, of.plane, of.cycle}, of);
}

template <class T, int CHANNELS>
static cudaError_t
launch(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast)
{
    tables<T, CHANNELS> given = {};
    memcpy(given.at, cast->tables, (size_t)cast->channels * sizeof given.at[0]);
    span of = {(const uint8_t *)buffer + cast->from, (char *)buffer + cast->to, cast->count,
               (uint32_t)cast->plane, (uint32_t)(cast->plane * cast->channels)};
    const int64_t packs = (cast->count - 1) / N<T> + 1;
    int64_t blocks = fl_min((packs - 1) / THREADS + 1, (int64_t)processors * BLOCKS_PER_SM);
    const void *args[] = {&given, &of};
    return cudaLaunchKernel(k_cast<T, CHANNELS>, dim3((unsigned)blocks), dim3(THREADS),
                            (void **)args, 0, (cudaStream_t)stream);
}

cudaError_t fl_cuda_load_casts(void)
{
    const void *kernels[] = {(const void *)k_cast<uint16_t, 4>, (const void *)k_cast<uint32_t, 4>,
                             (const void *)k_cast<uint32_t, 3>};
    return fl_cuda_load(kernels, (int)(sizeof kernels / sizeof *kernels));
}

cudaError_t
fl_cuda_cast(void *stream, int32_t processors, void *buffer, const fl_transfer_cast *cast)
{
    if (cast->count == 0) return cudaSuccess;
    if (cast->bytes == 2) return launch<uint16_t, 4>(stream, processors, buffer, cast);
    if (cast->channels == 4) return launch<uint32_t, 4>(stream, processors, buffer, cast);
    return launch<uint32_t, 3>(stream, processors, buffer, cast);
}
