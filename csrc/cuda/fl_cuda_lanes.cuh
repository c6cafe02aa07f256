/* fl_cuda_lanes: the work of a block's threads on one chunk; only fl_cuda_kernels.cu includes this
 * file.
 *
 * A chunk is worked on in packs of elements, of 16 or 32 bytes. Pack q belongs to thread q %
 * THREADS. If elements are summed, pack q has the same elements wherever the tensor lies, so that
 * sums depend on sizes alone; if the tensor does not begin at a multiple of 16 bytes, packs are
 * loaded element by element. If elements are written and nothing is summed, packs begin at a
 * multiple of 16 bytes of the written tensor. Nothing here waits for other threads. */
#ifndef FL_CUDA_LANES_CUH
#define FL_CUDA_LANES_CUH

#include "fl_grad_ops.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <type_traits>

static constexpr int THREADS = 256; /* of a block */
static constexpr int PARTS = 4; /* sums that a thread keeps: an addition takes longer than a load */

struct piece {  /* a chunk of a span: elements first to end - 1 */
    char *data; /* of element 0 */
    int first;  /* <= 0, and more than -8 */
    int end;    /* may be negative */
    int type;
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

/* The type that an element is computed in. */
template <class T> using real_of = decltype(real(T()));

/* Adds without fusing the addition with a product. */
static __device__ double add_rounded(double a, double b) { return __dadd_rn(a, b); }
static __device__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }

/* ---- packs */

template <class T, int N> struct alignas(16) pack {
    T at[N];
};

/* The way to load a pack and, except for NARROW, to store it. */
enum access {
    WIDE,   /* 16 bytes at a time: the pack is whole, and lies at a multiple of 16 bytes */
    NARROW, /* element by element: the pack is whole */
    PARTIAL /* element by element, from `first` to `end` - 1; the remaining elements are 0 */
};

template <class T, int N>
static __device__ pack<T, N> load_pack(const T *from, int first, int end, access how)
{
    if (how == WIDE) return *(const pack<T, N> *)from;
    pack<T, N> x = {};
#pragma unroll
    for (int i = 0; i < N; i++)
        if (how == NARROW || (i >= first && i < end)) x.at[i] = from[i];
    return x;
}

template <class T, int N>
static __device__ void store_pack(T *to, const pack<T, N> &x, int first, int end, access how)
{
    if (how == WIDE) {
        *(pack<T, N> *)to = x;
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i >= first && i < end) to[i] = x.at[i];
}

static __device__ bool is_aligned(const void *data) { return (uintptr_t)data % 16 == 0; }

/* Loads AHEAD of the thread's packs, each to a slot of `work`, before using the first. Returns the
 * begin of the remaining packs. */
template <int AHEAD, class Work>
static __device__ int take_many(Work &work, int at, int end, access how)
{
    constexpr int N = Work::N, STRIDE = THREADS * N;
#pragma unroll 1
    for (; at + (AHEAD - 1) * STRIDE + N <= end; at += AHEAD * STRIDE) {
#pragma unroll
        for (int slot = 0; slot < AHEAD; slot++) work.load(slot, at + slot * STRIDE, how);
#pragma unroll
        for (int slot = 0; slot < AHEAD; slot++) work.use(slot, at + slot * STRIDE, how);
    }
    return at;
}

template <class Work> static __device__ void take_one(Work &work, int at, access how)
{
    work.load(0, at, how);
    work.use(0, at, how);
}

/* Works on each of the thread's packs in order. is_wide: whole packs may be loaded wide. */
template <class Work> static __device__ void each_pack(Work &work, bool is_wide)
{
    constexpr int N = Work::N, STRIDE = THREADS * N;
    constexpr int AHEAD = Work::AHEAD, MOST = Work::NARROW_LOADS / N;
    const int end = work.of.end;
    int at = (int)threadIdx.x * N;
    if (work.of.first < 0 && threadIdx.x == 0) take_one(work, -N, PARTIAL);
    work.of.first = 0; /* known from here on, which saves registers */
    at = is_wide ? take_many<AHEAD>(work, at, end, WIDE)
                 : take_many<(MOST < AHEAD ? MOST : AHEAD)>(work, at, end, NARROW);
#pragma unroll 1
    for (; at < end; at += STRIDE) take_one(work, at, is_wide && at + N <= end ? WIDE : PARTIAL);
}

/* ---- norm_check */

/* FL_NORM_2 for devices with slow arithmetic in double. */
static constexpr int GROUPED_NORM_2 = FL_NORMS;

/* Keeps a NaN, because no number is larger than NaN. */
template <int NORM, class T> static __device__ T join(T a, T b)
{
    if (NORM != FL_NORM_MAX) return a + b;
    return b > a || isnan(b) ? b : a;
}

template <int NORM, class T> static __device__ T add(T sum, T x)
{
    return NORM == FL_NORM_2 ? fma(x, x, sum) : join<NORM, T>(sum, fabs(x));
}

/* Returns the sum of (x * by)^2 over a pack, in float: each square is rounded at most three
 * times. */
template <class T, int N> static __device__ float add_squares(const pack<T, N> &pack, float by)
{
    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float a = real(pack.at[2 * i]) * by, b = real(pack.at[2 * i + 1]) * by;
        sums[i] = fmaf(b, b, a * a);
    }
#pragma unroll
    for (int half = N / 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0];
}

/* Widens a normal number > 0 without the unit that computes in double. */
static __device__ double widen(float x)
{
    uint32_t bits;
    double wide;
    memcpy(&bits, &x, sizeof bits);
    uint64_t wide_bits = ((uint64_t)bits << 29) + ((uint64_t)(1023 - 127) << 52);
    memcpy(&wide, &wide_bits, sizeof wide);
    return wide;
}

/* Returns the sum of the squares of a pack. If the sum is at least LEAST, squares below the
 * least normal float lose nothing that counts. If the sum is less, infinite or NaN, it is
 * computed again from multiples that can neither overflow nor lose anything, unless an element
 * itself is infinite. */
template <class T, int N> static __device__ double group_squares(const pack<T, N> &x)
{
    constexpr float LEAST = 0x1p-100F;
    float sum = add_squares(x, 1);
    if (sum >= LEAST && sum <= FLT_MAX) return widen(sum);
    bool is_small = sum < LEAST;
    return (double)add_squares(x, is_small ? 0x1p100F : 0x1p-70F) * (is_small ? 0x1p-200 : 0x1p140);
}

template <int NORM, class T> struct norm_work {
    static constexpr int N = 16 / sizeof(T), AHEAD = 4;
    static constexpr int NARROW_LOADS = 16; /* at once: each load takes a register */
    static constexpr bool IS_MAX = NORM == FL_NORM_MAX, IS_GROUPED = NORM == GROUPED_NORM_2;
    using scalar = std::conditional_t<IS_MAX, real_of<T>, double>;
    piece of;
    bool is_bad;
    scalar sums[PARTS];
    pack<T, N> x[AHEAD];

    __device__ void load(int slot, int at, access how)
    {
        x[slot] = load_pack<T, N>((const T *)of.data + at, of.first - at, of.end - at, how);
    }

    __device__ void use(int slot, int, access)
    {
        if constexpr (IS_GROUPED) {
            sums[0] += group_squares(x[slot]);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                scalar value = real(x[slot].at[i]);
                sums[i % PARTS] = add<NORM, scalar>(sums[i % PARTS], value);
                if (sizeof(T) == 8 && !isfinite(value)) is_bad = true;
            }
        }
    }
};

/* Sums of former floats or halves do not overflow, so a finite sum means that all elements were
 * finite. */
template <int NORM, class T> static __device__ partial sum_as(piece from)
{
    norm_work<NORM, T> work = {from, false, {}, {}};
    each_pack(work, is_aligned(from.data));
    auto *sums = work.sums;
    double sum = join<NORM>(join<NORM>(sums[0], sums[1]), join<NORM>(sums[2], sums[3]));
    return {sum, sizeof(T) == 8 ? !work.is_bad : (bool)isfinite(sum)};
}

template <int NORM> static __device__ partial sum_piece(piece from)
{
    switch (from.type) {
    case FL_F64:
        return sum_as < NORM == GROUPED_NORM_2 ? FL_NORM_2 : NORM, double > (from);
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
    static constexpr int NARROW_LOADS = N; /* never narrow: `of` lies at a multiple of 16 bytes */
    piece of;
    real_of<T> by;
    bool is_written, is_bad;
    pack<T, N> x[AHEAD];

    __device__ void load(int slot, int at, access how)
    {
        x[slot] = load_pack<T, N>((const T *)of.data + at, of.first - at, of.end - at, how);
    }

    __device__ void use(int slot, int at, access how)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            auto value = real(x[slot].at[i]);
            if (!isfinite(value)) is_bad = true;
            put(&x[slot].at[i], value * by);
        }
        if (is_written) store_pack((T *)of.data + at, x[slot], of.first - at, of.end - at, how);
    }
};

template <class T> static __device__ bool scale_as(piece to, double factor)
{
    scale_work<T> work = {to, (real_of<T>)factor, factor != 1, false, {}};
    each_pack(work, true);
    return !work.is_bad;
}

/* Scales a piece; returns true if all of this thread's elements were finite. */
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
    static constexpr int AHEAD = 2, NARROW_LOADS = 8; /* of `from`, beside the loads of `of` */
    piece of;
    const From *from; /* at any address; `of` lies at a multiple of 16 bytes */
    real_of<Into> alpha, beta;
    bool is_bad;
    pack<Into, N> y[AHEAD];
    pack<From, N> x[AHEAD];

    static __device__ access own(access how) { return how == NARROW ? WIDE : how; }

    __device__ void load(int slot, int at, access how)
    {
        int first = of.first - at, end = of.end - at;
        x[slot] = load_pack<From, N>(from + at, first, end, how);
        if (beta != 0)
            y[slot] = load_pack<Into, N>((const Into *)of.data + at, first, end, own(how));
    }

    __device__ void use(int slot, int at, access how)
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            auto value = real(x[slot].at[i]);
            if (!isfinite(value)) is_bad = true;
            value *= alpha;
            if (beta != 0) value = add_rounded(value, real(y[slot].at[i]) * beta);
            put(&y[slot].at[i], value);
        }
        store_pack((Into *)of.data + at, y[slot], of.first - at, of.end - at, own(how));
    }
};

template <class Into, class From>
static __device__ bool combine_as(piece into, piece from, double alpha, double beta)
{
    using scalar = real_of<Into>;
    const From *data = (const From *)from.data;
    combine_work<Into, From> work = {into, data, (scalar)alpha, (scalar)beta, false, {}, {}};
    each_pack(work, is_aligned(data));
    return !work.is_bad;
}

/* Combines two pieces; returns true if all of this thread's elements of `from` were finite. */
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
