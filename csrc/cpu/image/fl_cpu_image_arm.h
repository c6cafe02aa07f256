/* fl_cpu_image_arm: the machine-specific part of fl_cpu_image_body for 64-bit Arm.
 *
 * Included by fl_cpu_image_vector.h. A register is one lane. Functions with names of x86
 * instructions do the same here; if NEON has a better way, the operation has a separate function
 * below. */
#ifndef FL_CPU_IMAGE_ARM_H
#define FL_CPU_IMAGE_ARM_H

#include "fl_cpu_neon.h"
#include "fl_resample.h"

typedef uint8x16_t lane;
typedef uint8x16_t vector;
#define FL_V(op) neon_##op
#define FL_L(op) neon_##op

FL_INLINE lane load_lane(const void *at) { return vld1q_u8(at); }
FL_INLINE void store_lane(void *at, lane x) { vst1q_u8(at, x); }
FL_INLINE vector load(const void *at) { return vld1q_u8(at); }
FL_INLINE void store(void *at, vector x) { vst1q_u8(at, x); }
FL_INLINE vector same_lanes(lane x) { return x; }
FL_INLINE void end_streaming(void) {}

FL_INLINE vector load_lanes(const void *at, int64_t stride)
{
    (void)stride;
    return vld1q_u8(at);
}

FL_INLINE void store_lanes(void *at, int64_t stride, vector x)
{
    (void)stride;
    vst1q_u8(at, x);
}

/* ---- instructions of x86 */

#define neon_setr_epi8(...) ((lane){__VA_ARGS__})

FL_INLINE vector zeros(void) { return vdupq_n_u8(0); }
FL_INLINE lane neon_setzero_si128(void) { return vdupq_n_u8(0); }
FL_INLINE lane neon_set1_epi8(int x) { return vdupq_n_u8((uint8_t)x); }
FL_INLINE lane neon_set1_epi32(int32_t x) { return (lane)vdupq_n_s32(x); }
FL_INLINE lane neon_or_si128(lane a, lane b) { return a | b; }
FL_INLINE lane neon_and_si128(lane a, lane b) { return a & b; }
FL_INLINE lane neon_add_epi8(lane a, lane b) { return a + b; }
FL_INLINE lane neon_sub_epi8(lane a, lane b) { return a - b; }
FL_INLINE lane neon_cmpgt_epi8(lane a, lane b) { return vcgtq_s8((int8x16_t)a, (int8x16_t)b); }
FL_INLINE lane neon_shuffle_epi8(lane x, lane order) { return vqtbl1q_u8(x, order); }
FL_INLINE lane neon_add_epi32(lane a, lane b) { return (lane)((int32x4_t)a + (int32x4_t)b); }

FL_INLINE lane neon_slli_epi32(lane x, int by) { return (lane)((uint32x4_t)x << by); }

/* Makes the shift count in the form that neon_sra_epi32 takes. */
FL_INLINE lane neon_cvtsi32_si128(int32_t x) { return (lane)vdupq_n_s32(-x); }

FL_INLINE lane neon_sra_epi32(lane x, lane by)
{
    return (lane)vshlq_s32((int32x4_t)x, (int32x4_t)by);
}

FL_INLINE lane neon_packs_epi32(lane a, lane b)
{
    return (lane)vqmovn_high_s32(vqmovn_s32((int32x4_t)a), (int32x4_t)b);
}

FL_INLINE lane neon_packus_epi16(lane a, lane b)
{
    return vqmovun_high_s16(vqmovun_s16((int16x8_t)a), (int16x8_t)b);
}

/* ---- casts: a step takes a register of bytes and fills four of floats */

enum { FLOATS = 16 };

typedef struct line {
    float32x4_t scale, mean, std, inverse, divisor, rescale;
} line;

FL_INLINE line line_of(const fl_image_cast *cast)
{
    return (line){vdupq_n_f32(cast->scale),   vdupq_n_f32(cast->mean),
                  vdupq_n_f32(cast->std),     vdupq_n_f32(cast->inverse),
                  vdupq_n_f32(cast->divisor), vdupq_n_f32(cast->rescale)};
}

/* Returns true with rounding to nearest, denormal numbers kept, and no traps. */
FL_INLINE bool is_default_arithmetic(void)
{
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control == 0;
}

FL_INLINE lane load_bytes(const uint8_t *src) { return load_lane(src); }

FL_INLINE lane first_to_low(lane bytes) { return bytes; }

FL_INLINE float32x4_t values_of(uint32x4_t bytes, const line *by)
{
    float32x4_t x = vcvtq_f32_u32(bytes), product = x * by->scale;
    product = vfmaq_f32(product, vfmsq_f32(x, product, by->divisor), by->rescale);
    float32x4_t a = product - by->mean;
    float32x4_t quotient = a * by->inverse;
    return vfmaq_f32(quotient, vfmsq_f32(a, quotient, by->std), by->inverse);
}

FL_INLINE lane f16_of(float32x4_t a, float32x4_t b)
{
    return (lane)vcvt_high_f16_f32(vcvt_f16_f32(a), b);
}

/* Returns bits whose highest 16 are the rounded bf16: to nearest, ties to even; no value is NaN. */
FL_INLINE uint32x4_t bf16_bits(float32x4_t x)
{
    uint32x4_t bits = (uint32x4_t)x;
    return bits + (bits >> 16 & 1) + 0x7FFF;
}

FL_INLINE lane bf16_of(float32x4_t a, float32x4_t b)
{
    return (lane)vshrn_high_n_u32(vshrn_n_u32(bf16_bits(a), 16), bf16_bits(b), 16);
}

FL_INLINE void put_pair(bool streams, char *dst, lane first, lane second)
{
    if (streams) {
        stream_pair(dst, first, second);
    } else {
        store_lane(dst, first);
        store_lane(dst + LANE_BYTES, second);
    }
}

FL_INLINE void cast_bytes(fl_image_type type, bool streams, char *dst, lane bytes, const line *by)
{
    uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    float32x4_t a = values_of(vmovl_u16(vget_low_u16(low)), by);
    float32x4_t b = values_of(vmovl_high_u16(low), by);
    float32x4_t c = values_of(vmovl_u16(vget_low_u16(high)), by);
    float32x4_t d = values_of(vmovl_high_u16(high), by);
    if (type == FL_IMAGE_F32) {
        put_pair(streams, dst, (lane)a, (lane)b);
        put_pair(streams, dst + 2 * LANE_BYTES, (lane)c, (lane)d);
    } else if (type == FL_IMAGE_F16) {
        put_pair(streams, dst, f16_of(a, b), f16_of(c, d));
    } else {
        put_pair(streams, dst, bf16_of(a, b), bf16_of(c, d));
    }
}

/* ---- layouts: loads that split elements, and stores that join them */

#define FL_DEFINE_SPLIT(channels)                                                      \
    FL_INLINE void split_##channels(uint8_t *dst, int64_t pitch, const uint8_t *src)   \
    {                                                                                  \
        uint8x16x##channels##_t x = vld##channels##q_u8(src);                          \
        FL_UNROLL for (int c = 0; c < channels; c++) store(dst + c * pitch, x.val[c]); \
    }

/* Joins a register of elements of each channel. */
#define FL_JOIN(channels, bits, per_register)                       \
    do {                                                            \
        uint##bits##x##per_register##x##channels##_t x;             \
        FL_UNROLL for (int c = 0; c < channels; c++) x.val[c] =     \
            (uint##bits##x##per_register##_t)load(src + c * pitch); \
        vst##channels##q_u##bits((void *)dst, x);                   \
    } while (0)

#define FL_DEFINE_JOIN(channels)                                                             \
    FL_INLINE void join_##channels(char *dst, const char *src, int64_t pitch, int32_t bytes) \
    {                                                                                        \
        if (bytes == 1)                                                                      \
            FL_JOIN(channels, 8, 16);                                                        \
        else if (bytes == 2)                                                                 \
            FL_JOIN(channels, 16, 8);                                                        \
        else                                                                                 \
            FL_JOIN(channels, 32, 4);                                                        \
    }

FL_DEFINE_SPLIT(2)
FL_DEFINE_SPLIT(3)
FL_DEFINE_SPLIT(4)
FL_DEFINE_JOIN(2)
FL_DEFINE_JOIN(3)
FL_DEFINE_JOIN(4)

/* ---- resampling: the samples of a pair for four results lie in the two halves of a register */

FL_INLINE lane order_of(const int32_t *first, int32_t pair, int32_t from)
{
    int32x4_t place = vld1q_s32(first) - (from - 2 * pair);
    uint16x4_t one = vmovn_u32((uint32x4_t)(place & (LANE_BYTES - 1)));
    uint16x4_t next = vmovn_u32((uint32x4_t)((place + 1) & (LANE_BYTES - 1)));
    return (lane)(vcombine_u16(one, next) | 0x8000); /* from 128 on, a shuffle gives 0 */
}

FL_INLINE lane weights_of(const int16_t *weight, int32_t taps)
{
    int16_t pairs[8];
    for (int j = 0; j < 4; j++) {
        pairs[j] = weight[j * taps];
        pairs[4 + j] = weight[j * taps + 1];
    }
    return load_lane(pairs);
}

/* Returns `sum` plus the products of eight samples and weights. */
FL_INLINE int32x4_t add_products(int32x4_t sum, int16x8_t x, int16x8_t weight)
{
    return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(x), vget_low_s16(weight)), x, weight);
}

FL_INLINE vector add_pairs(vector sum, vector x, vector weight)
{
    return (vector)add_products((int32x4_t)sum, (int16x8_t)x, (int16x8_t)weight);
}

typedef int32x4_t dots;

FL_INLINE dots no_dots(void) { return vdupq_n_s32(0); }

FL_INLINE dots dot_16(const uint8_t *x, const int16_t *weight, dots sum)
{
    lane bytes = load_lane(x);
    sum = add_products(sum, (int16x8_t)vmovl_u8(vget_low_u8(bytes)), vld1q_s16(weight));
    return add_products(sum, (int16x8_t)vmovl_high_u8(bytes), vld1q_s16(weight + 8));
}

FL_INLINE lane join_dots(const dots sums[4])
{
    return (lane)vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]));
}

FL_INLINE void add_row(vector sums[4], vector x, int16_t weight)
{
    int16x8_t low = (int16x8_t)vmovl_u8(vget_low_u8(x)), high = (int16x8_t)vmovl_high_u8(x);
    sums[0] = (vector)vmlal_n_s16((int32x4_t)sums[0], vget_low_s16(low), weight);
    sums[1] = (vector)vmlal_high_n_s16((int32x4_t)sums[1], low, weight);
    sums[2] = (vector)vmlal_n_s16((int32x4_t)sums[2], vget_low_s16(high), weight);
    sums[3] = (vector)vmlal_high_n_s16((int32x4_t)sums[3], high, weight);
}

FL_INLINE void add_rows(vector sums[4], vector a, vector b, vector weights)
{
    add_row(sums, a, vgetq_lane_s16((int16x8_t)weights, 0));
    add_row(sums, b, vgetq_lane_s16((int16x8_t)weights, 1));
}

#endif
