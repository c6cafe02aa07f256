/* fl_cpu_tokens_neon: fl_token_ops for 64-bit Arm.
 *
 * A step takes one register of tokens and fills up to eight registers: tokens become twice as long,
 * and each half of the result is widened further. */
#if defined(__aarch64__)
#define FL_TOKENS fl_cpu_tokens_neon
#define FL_TOKENS_NAME "neon"
#define FL_VECTOR_BYTES 16
#define FL_STEP(token_bytes, out_bytes) FL_VECTOR_BYTES
#define FL_PUT(dst, widen, at) widen(dst, vld1q_u8((const uint8_t *)(at)))

#include "fl_base.h"

#include <arm_neon.h>

static inline void widen_none(char *dst, uint8x16_t x) { vst1q_u8((uint8_t *)dst, x); }

/* op, vector: for the tokens in x. next: takes each half of the tokens, twice as long. half_bytes:
 * the bytes of output from one half. */
#define FL_DEFINE_DOUBLING(name, op, vector, next, half_bytes)                              \
    static inline __attribute__((always_inline)) void widen_##name(char *dst, uint8x16_t x) \
    {                                                                                       \
        next(dst, (uint8x16_t)vmovl_##op(vget_low_##op((vector)x)));                        \
        next(dst + (half_bytes), (uint8x16_t)vmovl_high_##op((vector)x));                   \
    }

FL_DEFINE_DOUBLING(u32_64, u32, uint32x4_t, widen_none, 16)
FL_DEFINE_DOUBLING(u16_32, u16, uint16x8_t, widen_none, 16)
FL_DEFINE_DOUBLING(u16_64, u16, uint16x8_t, widen_u32_64, 32)
FL_DEFINE_DOUBLING(u8_16, u8, uint8x16_t, widen_none, 16)
FL_DEFINE_DOUBLING(u8_32, u8, uint8x16_t, widen_u16_32, 32)
FL_DEFINE_DOUBLING(u8_64, u8, uint8x16_t, widen_u16_64, 64)
FL_DEFINE_DOUBLING(i32_64, s32, int32x4_t, widen_none, 16)
FL_DEFINE_DOUBLING(i16_32, s16, int16x8_t, widen_none, 16)
FL_DEFINE_DOUBLING(i16_64, s16, int16x8_t, widen_i32_64, 32)
FL_DEFINE_DOUBLING(i8_16, s8, int8x16_t, widen_none, 16)
FL_DEFINE_DOUBLING(i8_32, s8, int8x16_t, widen_i16_32, 32)
FL_DEFINE_DOUBLING(i8_64, s8, int8x16_t, widen_i16_64, 64)

#include "fl_cpu_tokens_body.h"
#endif
