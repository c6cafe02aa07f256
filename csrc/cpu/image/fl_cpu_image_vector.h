/* fl_cpu_image_vector: registers of 16, 32 or 64 bytes, as the kernels for images see them.
 *
 * fl_cpu_image_neon.c, fl_cpu_image_avx2.c and fl_cpu_image_avx512.c include this file, and set the
 * length of a register (FL_VECTOR_BYTES). A register is lanes of 16 bytes; FL_V(op) is the
 * instruction for a whole register that works in each lane alike, FL_L(op) the instruction for one
 * lane. Names are x86's; for NEON, functions take their place (fl_cpu_image_arm.h). */
#ifndef FL_CPU_IMAGE_VECTOR_H
#define FL_CPU_IMAGE_VECTOR_H

#include "fl_cpu_image.h"

#include <string.h>

#define FL_INLINE static inline __attribute__((always_inline))
#define FL_UNROLL _Pragma("GCC unroll 8")

enum { LANE_BYTES = 16, VECTOR_BYTES = FL_VECTOR_BYTES, LANES = VECTOR_BYTES / LANE_BYTES };

/* Returns the begin of the next step: the last step ends at `count` >= step. */
FL_INLINE int64_t step_from(int64_t at, int64_t step, int64_t count)
{
    return at + step <= count ? at : count - step;
}

#if FL_VECTOR_BYTES == 16
#include "fl_cpu_image_arm.h"
#else
#include <immintrin.h>

typedef __m128i lane;
#define FL_L(op) _mm_##op

FL_INLINE lane load_lane(const void *at) { return _mm_loadu_si128(at); }
FL_INLINE void store_lane(void *at, lane x) { _mm_storeu_si128(at, x); }
FL_INLINE void end_streaming(void) { _mm_sfence(); }
#endif

#if FL_VECTOR_BYTES == 64
typedef __m512i vector;
typedef __m512 floats;
#define FL_V(op) _mm512_##op

FL_INLINE vector load(const void *at) { return _mm512_loadu_si512(at); }
FL_INLINE void store(void *at, vector x) { _mm512_storeu_si512(at, x); }
FL_INLINE vector zeros(void) { return _mm512_setzero_si512(); }
FL_INLINE vector same_lanes(lane x) { return _mm512_broadcast_i32x4(x); }

/* Loads lane k from at + k * stride. */
FL_INLINE vector load_lanes(const void *at, int64_t stride)
{
    const char *from = at;
    vector x = _mm512_castsi128_si512(load_lane(from));
    x = _mm512_inserti32x4(x, load_lane(from + stride), 1);
    x = _mm512_inserti32x4(x, load_lane(from + 2 * stride), 2);
    return _mm512_inserti32x4(x, load_lane(from + 3 * stride), 3);
}

FL_INLINE void store_lanes(void *at, int64_t stride, vector x)
{
    char *to = at;
    store_lane(to, _mm512_castsi512_si128(x));
    store_lane(to + stride, _mm512_extracti32x4_epi32(x, 1));
    store_lane(to + 2 * stride, _mm512_extracti32x4_epi32(x, 2));
    store_lane(to + 3 * stride, _mm512_extracti32x4_epi32(x, 3));
}

/* Takes bits of `ones` if the mask has ones, else bits of `others`. */
FL_INLINE vector choose(vector mask, vector ones, vector others)
{
    return _mm512_ternarylogic_epi32(mask, ones, others, 0xCA);
}
#elif FL_VECTOR_BYTES == 32
typedef __m256i vector;
typedef __m256 floats;
#define FL_V(op) _mm256_##op

FL_INLINE vector load(const void *at) { return _mm256_loadu_si256(at); }
FL_INLINE void store(void *at, vector x) { _mm256_storeu_si256(at, x); }
FL_INLINE vector zeros(void) { return _mm256_setzero_si256(); }
FL_INLINE vector same_lanes(lane x) { return _mm256_broadcastsi128_si256(x); }

/* Loads lane k from at + k * stride. */
FL_INLINE vector load_lanes(const void *at, int64_t stride)
{
    const char *from = at;
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_lane(from)),
                                   load_lane(from + stride), 1);
}

FL_INLINE void store_lanes(void *at, int64_t stride, vector x)
{
    char *to = at;
    store_lane(to, _mm256_castsi256_si128(x));
    store_lane(to + stride, _mm256_extracti128_si256(x, 1));
}

/* Takes bytes of `ones` if the mask is 0xFF, bytes of `others` if it is 0. */
FL_INLINE vector choose(vector mask, vector ones, vector others)
{
    return _mm256_blendv_epi8(others, ones, mask);
}
#endif

#endif
