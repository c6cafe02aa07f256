/* fl_cpu_lanes_body: the source of an fl_cpu_lanes table. Each fl_cpu_lanes_*.c includes this file
 * once, after setting the table's name (FL_LANES), the doubles in a register (FL_LANE_DOUBLES) and,
 * if a register holds more floats than doubles, the floats (FL_LANE_FLOATS).
 *
 * A run is worked on in blocks of LANES elements. The last block is filled up with zeros, which
 * change no sum, in a separate buffer. Everything is inlined into the functions of the table. */
#include "fl_cpu_lanes.h"

#include <math.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(FL_LANE_NEON)
#include <arm_neon.h>
#endif

/* If a register of floats fills several registers of doubles, these are its parts. */
#ifdef FL_LANE_FLOATS
#define FL_EACH_PART(parts) _Pragma("GCC unroll 2") for (int part = 0; part < (parts); part++)
#else
#define FL_LANE_FLOATS FL_LANE_DOUBLES
#define FL_EACH_PART(parts) const int part = 0;
#endif

enum { LANES = 32, WIDTH = FL_LANE_DOUBLES, FLOATS = FL_LANE_FLOATS, PIECES = LANES / WIDTH };
enum { LINE_BYTES = 64, AHEAD_BYTES = 2048 };

#define FL_VECTOR(type, count) __attribute__((vector_size((count) * sizeof(type)))) type
typedef FL_VECTOR(double, WIDTH) wide;
typedef FL_VECTOR(float, FLOATS) narrow;
typedef FL_VECTOR(uint64_t, WIDTH) bits64;
typedef FL_VECTOR(uint32_t, FLOATS) bits32;
typedef FL_VECTOR(uint16_t, FLOATS) bits16;

#define FL_INLINE static inline __attribute__((always_inline))
/* The number of elements in a register. */
#define FL_ELEMENTS(vector) ((int)(sizeof(vector) / sizeof((vector){0}[0])))
/* Piece k is one register. */
#define FL_EACH_PIECE(vector) \
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES / FL_ELEMENTS(vector); k++)

/* ---- elements to registers and back */

FL_INLINE wide load_f64(const double *at)
{
    wide x;
    memcpy(&x, at, sizeof x);
    return x;
}

FL_INLINE void store_f64(double *at, wide x) { memcpy(at, &x, sizeof x); }

FL_INLINE narrow load_f32(const float *at)
{
    narrow x;
    memcpy(&x, at, sizeof x);
    return x;
}

FL_INLINE void store_f32(float *at, narrow x) { memcpy(at, &x, sizeof x); }

FL_INLINE narrow load_bf16(const uint16_t *at)
{
    bits16 half;
    memcpy(&half, at, sizeof half);
    return (narrow)(__builtin_convertvector(half, bits32) << 16);
}

FL_INLINE void store_bf16(uint16_t *at, narrow x)
{
    bits32 bits = (bits32)x, is_nan = (bits32)(x != x);
    bits32 rounded = bits + 0x7fff + (bits >> 16 & 1); /* to nearest, ties to even */
    bits32 half = (is_nan & 0x7fc00000) | (~is_nan & rounded);
    bits16 out = __builtin_convertvector(half >> 16, bits16);
    memcpy(at, &out, sizeof out);
}

#ifdef __F16C__
FL_INLINE narrow load_f16(const uint16_t *at)
{
#if FL_LANE_DOUBLES == 8
    return (narrow)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
#else
    return (narrow)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)at));
#endif
}

FL_INLINE void store_f16(uint16_t *at, narrow x)
{
#if FL_LANE_DOUBLES == 8
    _mm_storeu_si128((__m128i *)(void *)at, _mm256_cvtps_ph((__m256)x, 0));
#else
    _mm_storel_epi64((__m128i *)(void *)at, _mm_cvtps_ph((__m128)x, 0));
#endif
}
#elif defined(FL_LANE_NEON)
FL_INLINE narrow load_f16(const uint16_t *at)
{
    return (narrow)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at)));
}

FL_INLINE void store_f16(uint16_t *at, narrow x)
{
    vst1_u16(at, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
}
#else
static float float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff, bits;
    if (rest >= 0x7c00)
        bits = 0x7f800000 | rest << 13 | (rest > 0x7c00 ? 0x400000 : 0);
    else if (rest >= 0x400)
        bits = (rest << 13) + 0x38000000;
    else { /* rest * 2^-24: a normal number with the exponent of 1/2^14, minus 1/2^14 */
        float above, base;
        bits = rest << 13 | 0x38800000;
        memcpy(&above, &bits, sizeof above);
        bits = 0x38800000;
        memcpy(&base, &bits, sizeof base);
        above -= base;
        memcpy(&bits, &above, sizeof bits);
    }
    bits |= sign;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t half_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
    if (bits >= 0x47800000) return sign | 0x7c00;
    if (bits < 0x38800000) { /* adding 1/2 leaves the rounded half in the lowest bits */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5F;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    bits += 0xc8000fff + (bits >> 13 & 1);
    return (uint16_t)(sign | bits >> 13);
}

FL_INLINE narrow load_f16(const uint16_t *at)
{
    narrow x = {0};
    for (int i = 0; i < FLOATS; i++) x[i] = float_of_half(at[i]);
    return x;
}

FL_INLINE void store_f16(uint16_t *at, narrow x)
{
    for (int i = 0; i < FLOATS; i++) at[i] = half_of_float(x[i]);
}
#endif

FL_INLINE wide widen_f64(wide x, int part)
{
    (void)part;
    return x;
}

/* Written by hand, because gcc would widen one half at a time. */
FL_INLINE wide widen_f32(narrow x, int part)
{
    (void)part;
#if FL_LANE_DOUBLES == 8
    return (wide)_mm512_cvtps_pd((__m256)x);
#elif FL_LANE_DOUBLES == 4
    return (wide)_mm256_cvtps_pd((__m128)x);
#elif defined(FL_LANE_NEON)
    float32x4_t from = (float32x4_t)x;
    return (wide)(part == 0 ? vcvt_f64_f32(vget_low_f32(from)) : vcvt_high_f64_f32(from));
#else
    return __builtin_convertvector(x, wide);
#endif
}

/* Returns all bits set for elements that are infinite or NaN. */
FL_INLINE bits64 nonfinite_f64(wide x)
{
    const uint64_t exponent = 0x7ff0000000000000;
    return (bits64)(((bits64)x & exponent) == exponent);
}

FL_INLINE bits32 nonfinite_f32(narrow x)
{
    const uint32_t exponent = 0x7f800000;
    return (bits32)(((bits32)x & exponent) == exponent);
}

#define FL_ANY(found, vector, bits)                                               \
    do {                                                                          \
        for (int i = 0; i < FL_ELEMENTS(vector); i++) *(found) |= (bits)[i] != 0; \
    } while (0)

/* ---- steps of a sum, and joining lanes */

FL_INLINE wide magnitude(wide x) { return (wide)((bits64)x & INT64_MAX); }

FL_INLINE wide add_square_f64(wide sum, wide x) { return sum + x * x; }

/* The square of a former float is exact in double: fused or not, the sum is the same. */
FL_INLINE wide add_square_f32(wide sum, wide x)
{
#if FL_LANE_DOUBLES == 8
    return (wide)_mm512_fmadd_pd((__m512d)x, (__m512d)x, (__m512d)sum);
#elif FL_LANE_DOUBLES == 4
    return (wide)_mm256_fmadd_pd((__m256d)x, (__m256d)x, (__m256d)sum);
#elif defined(FL_LANE_NEON)
    return (wide)vfmaq_f64((float64x2_t)sum, (float64x2_t)x, (float64x2_t)x);
#else
    return add_square_f64(sum, x);
#endif
}

FL_INLINE wide add_magnitude(wide sum, wide x) { return sum + magnitude(x); }

/* Keeps a NaN, because no number is larger than NaN. */
FL_INLINE wide keep_larger(wide most, wide x)
{
    wide size = magnitude(x);
    bits64 is_new = (bits64)(size > most) | (bits64)(size != size);
    return (wide)((is_new & (bits64)size) | (~is_new & (bits64)most));
}

static double join_sum(double a, double b) { return a + b; }
static double join_larger(double a, double b) { return b > a || isnan(b) ? b : a; }

FL_INLINE double reduce(const wide *sum, double (*join)(double, double))
{
    double lanes[LANES];
    memcpy(lanes, sum, sizeof lanes);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = join(lanes[i], lanes[i + half]);
    return lanes[0];
}

/* ---- the functions of the table */

/* Prefetches, because the hardware reads ahead only within a page. */
FL_INLINE void read_ahead(const void *block, size_t bytes)
{
    for (size_t line = 0; line < bytes; line += LINE_BYTES)
        __builtin_prefetch((const char *)block + AHEAD_BYTES + line);
}

/* Runs the statements on each block of `count` elements of type T at `data`; `block` is the block's
 * first element. The last block is in a buffer, which is copied back if `is_written`. */
#define FL_EACH_BLOCK(T, data, count, is_written, ...)                  \
    do {                                                                \
        T *block = (T *)(data);                                         \
        int64_t rest = (count);                                         \
        for (; rest >= LANES; rest -= LANES, block += LANES) {          \
            read_ahead(block, LANES * sizeof(T));                       \
            __VA_ARGS__;                                                \
        }                                                               \
        if (rest == 0) break;                                           \
        T filled[LANES] = {0}, *last = block;                           \
        memcpy(filled, last, (size_t)rest * sizeof(T));                 \
        block = filled;                                                 \
        __VA_ARGS__;                                                    \
        if (is_written) memcpy(last, filled, (size_t)rest * sizeof(T)); \
    } while (0)

#define FL_DEFINE_NORM(name, step, join, type, T, real, vector)                   \
    static double name##_##type(const void *data, int64_t count, bool *is_finite) \
    {                                                                             \
        enum { ELEMENTS = FL_ELEMENTS(vector), PARTS = ELEMENTS / WIDTH };        \
        wide sum[PIECES] = {{0}};                                                 \
        bits64 nonfinite = {0};                                                   \
        bool is_bad = false;                                                      \
        FL_EACH_BLOCK(                                                            \
            T, data, count, false, FL_EACH_PIECE(vector) {                        \
                vector from = load_##type(block + k * ELEMENTS);                  \
                FL_EACH_PART(PARTS)                                               \
                {                                                                 \
                    wide x = widen_##real(from, part);                            \
                    sum[k * PARTS + part] = step(sum[k * PARTS + part], x);       \
                    if (sizeof(T) == 8) nonfinite |= nonfinite_f64(x);            \
                }                                                                 \
            });                                                                   \
        double result = reduce(sum, join);                                        \
        FL_ANY(&is_bad, bits64, nonfinite);                                       \
        *is_finite = sizeof(T) == 8 ? !is_bad : isfinite(result);                 \
        return result;                                                            \
    }

/* 0 times an element is 0 unless the element is infinite or NaN. */
#define FL_DEFINE_UNSCALE(type, T, vector, scalar)                                               \
    static void unscale_##type(void *data, int64_t count, double factor, bool *is_finite)        \
    {                                                                                            \
        vector zeros[LANES / FL_ELEMENTS(vector)] = {{0}};                                       \
        const scalar by = (scalar)factor;                                                        \
        bool is_bad = false;                                                                     \
        FL_EACH_BLOCK(                                                                           \
            T, data, count, true, FL_EACH_PIECE(vector) {                                        \
                T *at = block + k * FL_ELEMENTS(vector);                                         \
                vector x = load_##type(at);                                                      \
                store_##type(at, x *by);                                                         \
                zeros[k] += x * 0;                                                               \
            });                                                                                  \
        for (int k = 0; k < LANES / FL_ELEMENTS(vector); k++) FL_ANY(&is_bad, vector, zeros[k]); \
        *is_finite = !is_bad;                                                                    \
    }

#define FL_DEFINE_SCALE(type, T, vector, scalar)                       \
    static void scale_##type(void *data, int64_t count, double factor) \
    {                                                                  \
        const scalar by = (scalar)factor;                              \
        FL_EACH_BLOCK(                                                 \
            T, data, count, true, FL_EACH_PIECE(vector) {              \
                T *at = block + k * FL_ELEMENTS(vector);               \
                store_##type(at, load_##type(at) * by);                \
            });                                                        \
    }

#define FL_DEFINE_PASSES(type, T, real, vector, scalar)                        \
    FL_DEFINE_NORM(square, add_square_##real, join_sum, type, T, real, vector) \
    FL_DEFINE_NORM(sum, add_magnitude, join_sum, type, T, real, vector)        \
    FL_DEFINE_NORM(most, keep_larger, join_larger, type, T, real, vector)      \
    FL_DEFINE_UNSCALE(type, T, vector, scalar)                                 \
    FL_DEFINE_SCALE(type, T, vector, scalar)

FL_DEFINE_PASSES(f64, double, f64, wide, double)
FL_DEFINE_PASSES(f32, float, f32, narrow, float)
FL_DEFINE_PASSES(f16, uint16_t, f32, narrow, float)
FL_DEFINE_PASSES(bf16, uint16_t, f32, narrow, float)

/* One block of dst = beta * dst + alpha * src. */
#define FL_COMBINE_BLOCK(into, from, real, bits, to, of)                \
    FL_EACH_PIECE(bits)                                                 \
    {                                                                   \
        __auto_type x = load_##from((of) + k * FL_ELEMENTS(bits));      \
        nonfinite |= nonfinite_##real(x);                               \
        x *= a;                                                         \
        if (b != 0) x += load_##into((to) + k * FL_ELEMENTS(bits)) * b; \
        store_##into((to) + k * FL_ELEMENTS(bits), x);                  \
    }

#define FL_DEFINE_COMBINE(into, D, from, S, real, scalar, bits)                                  \
    static void combine_##into##_##from(void *dst, const void *src, int64_t count, double alpha, \
                                        double beta, bool *is_finite)                            \
    {                                                                                            \
        const scalar a = (scalar)alpha, b = (scalar)beta;                                        \
        D *to = dst;                                                                             \
        const S *of = src;                                                                       \
        bits nonfinite = {0};                                                                    \
        bool is_bad = false;                                                                     \
        for (; count >= LANES; count -= LANES, to += LANES, of += LANES) {                       \
            read_ahead(to, LANES * sizeof(D));                                                   \
            read_ahead(of, LANES * sizeof(S));                                                   \
            FL_COMBINE_BLOCK(into, from, real, bits, to, of)                                     \
        }                                                                                        \
        if (count > 0) {                                                                         \
            D last_to[LANES] = {0};                                                              \
            S last_of[LANES] = {0};                                                              \
            if (b != 0) memcpy(last_to, to, (size_t)count * sizeof(D));                          \
            memcpy(last_of, of, (size_t)count * sizeof(S));                                      \
            FL_COMBINE_BLOCK(into, from, real, bits, last_to, last_of)                           \
            memcpy(to, last_to, (size_t)count * sizeof(D));                                      \
        }                                                                                        \
        FL_ANY(&is_bad, bits, nonfinite);                                                        \
        *is_finite = !is_bad;                                                                    \
    }

FL_DEFINE_COMBINE(f64, double, f64, double, f64, double, bits64)
FL_DEFINE_COMBINE(f32, float, f32, float, f32, float, bits32)
FL_DEFINE_COMBINE(f32, float, f16, uint16_t, f32, float, bits32)
FL_DEFINE_COMBINE(f32, float, bf16, uint16_t, f32, float, bits32)
FL_DEFINE_COMBINE(f16, uint16_t, f16, uint16_t, f32, float, bits32)
FL_DEFINE_COMBINE(f16, uint16_t, f32, float, f32, float, bits32)
FL_DEFINE_COMBINE(bf16, uint16_t, bf16, uint16_t, f32, float, bits32)
FL_DEFINE_COMBINE(bf16, uint16_t, f32, float, f32, float, bits32)

#define FL_EACH_TYPE(name)                                                   \
    {                                                                        \
        [FL_F64] = name##_f64, [FL_F32] = name##_f32, [FL_F16] = name##_f16, \
        [FL_BF16] = name##_bf16                                              \
    }

const fl_cpu_lanes FL_LANES = {
    .name = FL_LANES_NAME,
    .norm = {[FL_NORM_2] = FL_EACH_TYPE(square),
             [FL_NORM_1] = FL_EACH_TYPE(sum),
             [FL_NORM_MAX] = FL_EACH_TYPE(most)},
    .unscale = FL_EACH_TYPE(unscale),
    .scale = FL_EACH_TYPE(scale),
    .combine = {
        [FL_F64] = {[FL_F64] = combine_f64_f64},
        [FL_F32] =
            {[FL_F32] = combine_f32_f32, [FL_F16] = combine_f32_f16, [FL_BF16] = combine_f32_bf16},
        [FL_F16] = {[FL_F16] = combine_f16_f16, [FL_F32] = combine_f16_f32},
        [FL_BF16] = {[FL_BF16] = combine_bf16_bf16, [FL_F32] = combine_bf16_f32}}};
