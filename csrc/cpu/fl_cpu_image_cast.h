/* fl_cpu_image_cast: bytes to floats by arithmetic, where it gives the table, else by the table.
 *
 * Included by fl_cpu_image_avx2.c and fl_cpu_image_avx512.c. A lookup takes one load an element;
 * arithmetic does a register at a time and is several times as fast. It depends on the rounding
 * mode and on denormal numbers being kept, which callers may have changed: then the table is read.
 */
#ifndef FL_CPU_IMAGE_CAST_H
#define FL_CPU_IMAGE_CAST_H

#include "fl_cpu_image_vector.h"

enum { FLOATS = VECTOR_BYTES / 4 };

/* Rounding to nearest, denormal numbers kept, no traps; the flags of past exceptions do not count.
 */
FL_INLINE bool is_default_arithmetic(void) { return (_mm_getcsr() & ~0x3FU) == 0x1F80; }

typedef struct line {
    floats scale, mean, std, inverse;
} line;

FL_INLINE line line_of(const fl_image_cast *cast)
{
    return (line){FL_V(set1_ps)(cast->scale), FL_V(set1_ps)(cast->mean), FL_V(set1_ps)(cast->std),
                  FL_V(set1_ps)(cast->inverse)};
}

/* The values of FLOATS bytes. */
FL_INLINE floats values_of(const uint8_t *src, const line *by)
{
#if FL_VECTOR_BYTES == 64
    floats x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_lane(src)));
#else
    floats x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)src)));
#endif
    floats a = FL_V(sub_ps)(FL_V(mul_ps)(x, by->scale), by->mean);
    floats quotient = FL_V(mul_ps)(a, by->inverse);
    floats rest = FL_V(fnmadd_ps)(quotient, by->std, a);
    return FL_V(fmadd_ps)(rest, by->inverse, quotient);
}

/* The highest 16 bits of each, rounded to nearest, ties to even; none is NaN. */
FL_INLINE vector bf16_bits(floats x)
{
#if FL_VECTOR_BYTES == 64
    vector bits = _mm512_castps_si512(x);
#else
    vector bits = _mm256_castps_si256(x);
#endif
    vector odd = FL_V(srli_epi32)(FL_V(slli_epi32)(bits, 15), 31);
    vector more = FL_V(add_epi32)(odd, FL_V(set1_epi32)(0x7FFF));
    return FL_V(srli_epi32)(FL_V(add_epi32)(bits, more), 16);
}

/* FLOATS elements each. */
FL_INLINE void store_f32(void *dst, floats x) { FL_V(storeu_ps)(dst, x); }

FL_INLINE void store_f16(void *dst, floats x)
{
#if FL_VECTOR_BYTES == 64
    _mm256_storeu_si256(dst, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
    _mm_storeu_si128(dst, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#endif
}

FL_INLINE void store_bf16(void *dst, floats x)
{
#if FL_VECTOR_BYTES == 64
    _mm256_storeu_si256(dst, _mm512_cvtepi32_epi16(bf16_bits(x)));
#else
    vector bits = bf16_bits(x);
    _mm_storeu_si128(
        dst, _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
#endif
}

FL_INLINE void
cast_to(fl_image_type type, void *dst, const uint8_t *src, int64_t count, const fl_image_cast *cast)
{
    int64_t bytes = type == FL_IMAGE_F32 ? 4 : 2;
    if (count < FLOATS || !cast->is_linear || !is_default_arithmetic()) {
        fl_cpu_image_plain.cast[type](dst, src, count, cast);
        return;
    }
    const line by = line_of(cast);
    for (int64_t at = 0; at < count; at += FLOATS) {
        int64_t i = at + FLOATS <= count ? at : count - FLOATS;
        floats x = values_of(src + i, &by);
        char *to = (char *)dst + i * bytes;
        if (type == FL_IMAGE_F32)
            store_f32(to, x);
        else if (type == FL_IMAGE_F16)
            store_f16(to, x);
        else
            store_bf16(to, x);
    }
}

static void cast_f16(void *dst, const uint8_t *src, int64_t count, const fl_image_cast *cast)
{
    cast_to(FL_IMAGE_F16, dst, src, count, cast);
}

static void cast_bf16(void *dst, const uint8_t *src, int64_t count, const fl_image_cast *cast)
{
    cast_to(FL_IMAGE_BF16, dst, src, count, cast);
}

static void cast_f32(void *dst, const uint8_t *src, int64_t count, const fl_image_cast *cast)
{
    cast_to(FL_IMAGE_F32, dst, src, count, cast);
}

#endif
