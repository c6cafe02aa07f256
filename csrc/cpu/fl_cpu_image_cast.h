/* fl_cpu_image_cast: bytes to floats by arithmetic, where it gives the table, else by the table.
 *
 * Included by fl_cpu_image_avx2.c and fl_cpu_image_avx512.c. A lookup takes one load an element;
 * arithmetic does a register at a time and is several times as fast. It depends on the rounding
 * mode and on denormal numbers being kept, which callers may have changed: then the table is read.
 */
#ifndef FL_CPU_IMAGE_CAST_H
#define FL_CPU_IMAGE_CAST_H

#include "fl_cpu_image_vector.h"

/* So few elements are not written past the caches: the wait for memory would be most of the time.
 */
enum { FLOATS = VECTOR_BYTES / 4, STREAMED = 1024 };

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

/* FLOATS elements of 2 bytes. */
#if FL_VECTOR_BYTES == 64
typedef __m256i halves;

FL_INLINE halves f16_of(floats x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
FL_INLINE halves bf16_of(floats x) { return _mm512_cvtepi32_epi16(bf16_bits(x)); }
FL_INLINE void store_halves(void *dst, halves x) { _mm256_storeu_si256(dst, x); }
FL_INLINE void stream_halves(void *dst, halves x) { _mm256_stream_si256(dst, x); }
#else
typedef __m128i halves;

FL_INLINE halves f16_of(floats x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }

FL_INLINE halves bf16_of(floats x)
{
    vector bits = bf16_bits(x);
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

FL_INLINE void store_halves(void *dst, halves x) { store_lane(dst, x); }
FL_INLINE void stream_halves(void *dst, halves x) { _mm_stream_si128(dst, x); }
#endif

/* Casts FLOATS elements. To stream, dst is at a multiple of their size. */
FL_INLINE void
cast_step(fl_image_type type, void *dst, const uint8_t *src, const line *by, bool streams)
{
    floats x = values_of(src, by);
    if (type == FL_IMAGE_F32 && streams)
        FL_V(stream_ps)(dst, x);
    else if (type == FL_IMAGE_F32)
        FL_V(storeu_ps)(dst, x);
    else if (streams)
        stream_halves(dst, type == FL_IMAGE_F16 ? f16_of(x) : bf16_of(x));
    else
        store_halves(dst, type == FL_IMAGE_F16 ? f16_of(x) : bf16_of(x));
}

/* At least STREAMED elements. */
FL_INLINE void
stream_values(fl_image_type type, char *dst, const uint8_t *src, int64_t count, const line *by)
{
    int64_t bytes = fl_image_type_bytes(type);
    int64_t i = (int64_t)(-(uintptr_t)dst % 64) / bytes; /* the first that begins a line */
    for (int64_t head = 0; head < i; head += FLOATS)
        cast_step(type, dst + head * bytes, src + head, by, false);
    for (; i + FLOATS <= count; i += FLOATS) cast_step(type, dst + i * bytes, src + i, by, true);
    i = count - FLOATS;
    cast_step(type, dst + i * bytes, src + i, by, false);
    _mm_sfence();
}

FL_INLINE void
store_values(fl_image_type type, char *dst, const uint8_t *src, int64_t count, const line *by)
{
    int64_t bytes = fl_image_type_bytes(type);
    for (int64_t at = 0; at < count; at += FLOATS) {
        int64_t i = step_from(at, FLOATS, count);
        cast_step(type, dst + i * bytes, src + i, by, false);
    }
}

FL_INLINE void
cast_to(fl_image_type type, void *dst, const uint8_t *src, int64_t count, const fl_image_cast *cast)
{
    if (count < FLOATS || !cast->is_linear || !is_default_arithmetic()) {
        fl_cpu_image_plain.cast[type](dst, src, count, cast);
        return;
    }
    const line by = line_of(cast);
    bool is_aligned = (uintptr_t)dst % (uintptr_t)fl_image_type_bytes(type) == 0;
    if (cast->is_streamed && is_aligned && count >= STREAMED)
        stream_values(type, dst, src, count, &by);
    else
        store_values(type, dst, src, count, &by);
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
