/* fl_cuda_lanes: what the threads of a block do to one chunk; included by fl_cuda_kernels.cu alone.
 *
 * A chunk is worked in packs of elements, 16 bytes or the double of that. Pack q is thread
 * q % THREADS's, wherever the tensor lies and however the pack is loaded: so what a thread sums up
 * depends on sizes alone. Nothing here waits for other threads. */
#ifndef FL_CUDA_LANES_CUH
#define FL_CUDA_LANES_CUH

#include "fl_backend.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

static constexpr int THREADS = 256; /* of a block */
static constexpr int PARTS = 4;     /* sums a thread keeps: an addition takes longer than a load */

struct piece { /* a chunk of a span */
    char *data;
    int count, type;
};

struct partial { /* a thread's share of a chunk */
    double sum;
    bool is_finite;
};

/* ---- elements */

static __device__ double real(double x) { return x; }
static __device__ float real(float x) { return x; }
static __device__ float real(__half x) { return __half2float(x); }
static __device__ float real(__nv_bfloat16 x) { return __bfloat162float(x); }

static __device__ void put(double *to, double x) { *to = x; }
static __device__ void put(float *to, float x) { *to = x; }
static __device__ void put(__half *to, float x) { *to = __float2half_rn(x); }
static __device__ void put(__nv_bfloat16 *to, float x) { *to = __float2bfloat16_rn(x); }

/* What an element is computed with. */
template <class T> using real_of = decltype(real(T()));

/* Never fused with the products that it adds. */
static __device__ double add_rounded(double a, double b) { return __dadd_rn(a, b); }
static __device__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }

/* ---- packs */

template <class T, int N> struct alignas(16) pack {
    T at[N];
};

/* Elements that are not there are 0. */
template <class T, int N>
static __device__ pack<T, N> load_pack(const T *from, int left, bool is_whole)
{
    if (is_whole) return *(const pack<T, N> *)from;
    pack<T, N> x = {};
    for (int i = 0; i < N; i++)
        if (i < left) x.at[i] = from[i];
    return x;
}

template <class T, int N>
static __device__ void store_pack(T *to, const pack<T, N> &x, int left, bool is_whole)
{
    if (is_whole) {
        *(pack<T, N> *)to = x;
        return;
    }
    for (int i = 0; i < N; i++)
        if (i < left) to[i] = x.at[i];
}

static __device__ bool is_aligned(const void *data) { return (uintptr_t)data % 16 == 0; }

/* Each of the thread's packs is loaded to a slot of `work` and used from there: AHEAD of them at
 * once where they are whole. */
template <class Work> static __device__ void each_pack(Work &work, int count, bool is_aligned)
{
    constexpr int N = Work::N, AHEAD = Work::AHEAD, STRIDE = THREADS * N;
    int at = (int)threadIdx.x * N;
#pragma unroll 1
    for (; is_aligned && at + (AHEAD - 1) * STRIDE + N <= count; at += AHEAD * STRIDE) {
#pragma unroll
        for (int slot = 0; slot < AHEAD; slot++) work.load(slot, at + slot * STRIDE, N, true);
#pragma unroll
        for (int slot = 0; slot < AHEAD; slot++) work.use(slot, at + slot * STRIDE, N, true);
    }
#pragma unroll 1
    for (; at < count; at += STRIDE) {
        bool is_whole = is_aligned && at + N <= count;
        work.load(0, at, count - at, is_whole);
        work.use(0, at, count - at, is_whole);
    }
}

/* ---- norm_check */

/* A NaN stays: no number is larger. */
template <int NORM> static __device__ double join(double a, double b)
{
    if (NORM != FL_NORM_MAX) return a + b;
    return b > a || isnan(b) ? b : a;
}

template <int NORM> static __device__ double add(double sum, double x)
{
    return NORM == FL_NORM_2 ? fma(x, x, sum) : join<NORM>(sum, fabs(x));
}

template <int NORM, class T> struct norm_work {
    static constexpr int N = 16 / sizeof(T), AHEAD = 4;
    const T *data;
    bool is_bad;
    double sums[PARTS];
    pack<T, N> x[AHEAD];

    __device__ void load(int slot, int at, int left, bool is_whole)
    {
        x[slot] = load_pack<T, N>(data + at, left, is_whole);
    }

    __device__ void use(int slot, int, int, bool)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            double value = real(x[slot].at[i]);
            sums[i % PARTS] = add<NORM>(sums[i % PARTS], value);
            if (sizeof(T) == 8 && !isfinite(value)) is_bad = true;
        }
    }
};

/* Sums of what was a float or a half do not overflow, so they say whether all was finite. */
template <int NORM, class T> static __device__ partial sum_as(piece from)
{
    norm_work<NORM, T> work = {(const T *)from.data, false, {}, {}};
    each_pack(work, from.count, is_aligned(from.data));
    double sum =
        join<NORM>(join<NORM>(work.sums[0], work.sums[1]), join<NORM>(work.sums[2], work.sums[3]));
    return {sum, sizeof(T) == 8 ? !work.is_bad : (bool)isfinite(sum)};
}

template <int NORM> static __device__ partial sum_piece(piece from)
{
    switch (from.type) {
    case FL_F64:
        return sum_as<NORM, double>(from);
    case FL_F32:
        return sum_as<NORM, float>(from);
    case FL_F16:
        return sum_as<NORM, __half>(from);
    default:
        return sum_as<NORM, __nv_bfloat16>(from);
    }
}

/* ---- scale and unscale */

template <class T> struct scale_work {
    static constexpr int N = 16 / sizeof(T), AHEAD = 4;
    T *data;
    real_of<T> by;
    bool is_written, is_bad;
    pack<T, N> x[AHEAD];

    __device__ void load(int slot, int at, int left, bool is_whole)
    {
        x[slot] = load_pack<T, N>(data + at, left, is_whole);
    }

    __device__ void use(int slot, int at, int left, bool is_whole)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            auto value = real(x[slot].at[i]);
            if (!isfinite(value)) is_bad = true;
            put(&x[slot].at[i], value * by);
        }
        if (is_written) store_pack(data + at, x[slot], left, is_whole);
    }
};

template <class T> static __device__ bool scale_as(piece to, double factor)
{
    scale_work<T> work = {(T *)to.data, (real_of<T>)factor, factor != 1, false, {}};
    each_pack(work, to.count, is_aligned(to.data));
    return !work.is_bad;
}

/* Whether the thread's elements were finite. */
static __device__ bool scale_piece(piece to, double factor)
{
    switch (to.type) {
    case FL_F64:
        return scale_as<double>(to, factor);
    case FL_F32:
        return scale_as<float>(to, factor);
    case FL_F16:
        return scale_as<__half>(to, factor);
    default:
        return scale_as<__nv_bfloat16>(to, factor);
    }
}

/* ---- combine */

template <class Into, class From> struct combine_work {
    static constexpr int N = 16 / (sizeof(Into) < sizeof(From) ? sizeof(Into) : sizeof(From));
    static constexpr int AHEAD = 2; /* of both */
    Into *into;
    const From *from;
    real_of<Into> alpha, beta;
    bool is_bad;
    pack<Into, N> y[AHEAD];
    pack<From, N> x[AHEAD];

    __device__ void load(int slot, int at, int left, bool is_whole)
    {
        x[slot] = load_pack<From, N>(from + at, left, is_whole);
        if (beta != 0) y[slot] = load_pack<Into, N>(into + at, left, is_whole);
    }

    __device__ void use(int slot, int at, int left, bool is_whole)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            auto value = real(x[slot].at[i]);
            if (!isfinite(value)) is_bad = true;
            value *= alpha;
            if (beta != 0) value = add_rounded(value, real(y[slot].at[i]) * beta);
            put(&y[slot].at[i], value);
        }
        store_pack(into + at, y[slot], left, is_whole);
    }
};

template <class Into, class From>
static __device__ bool combine_as(piece into, piece from, double alpha, double beta)
{
    using scalar = real_of<Into>;
    Into *to = (Into *)into.data;
    const From *of = (const From *)from.data;
    combine_work<Into, From> work = {to, of, (scalar)alpha, (scalar)beta, false, {}, {}};
    each_pack(work, into.count, is_aligned(to) && is_aligned(of));
    return !work.is_bad;
}

/* Whether the thread's elements of `from` were finite. */
static __device__ bool combine_piece(piece into, piece from, double a, double b)
{
    switch (into.type * FL_FLOATS + from.type) {
    case FL_F64 *FL_FLOATS + FL_F64:
        return combine_as<double, double>(into, from, a, b);
    case FL_F32 *FL_FLOATS + FL_F32:
        return combine_as<float, float>(into, from, a, b);
    case FL_F32 *FL_FLOATS + FL_F16:
        return combine_as<float, __half>(into, from, a, b);
    case FL_F32 *FL_FLOATS + FL_BF16:
        return combine_as<float, __nv_bfloat16>(into, from, a, b);
    case FL_F16 *FL_FLOATS + FL_F32:
        return combine_as<__half, float>(into, from, a, b);
    case FL_F16 *FL_FLOATS + FL_F16:
        return combine_as<__half, __half>(into, from, a, b);
    case FL_BF16 *FL_FLOATS + FL_F32:
        return combine_as<__nv_bfloat16, float>(into, from, a, b);
    default:
        return combine_as<__nv_bfloat16, __nv_bfloat16>(into, from, a, b);
    }
}

#endif
