/* fl_cpu_image_cast: casts bytes to floats by arithmetic if arithmetic gives the table, else by the
 * table.
 *
 * Part of fl_cpu_image_body. A lookup takes one load an element; arithmetic does a register at a
 * time and is several times as fast. Arithmetic depends on the rounding mode and on denormal
 * numbers being kept. If a caller has changed either, the table is read. */
#ifndef FL_CPU_IMAGE_CAST_H
#define FL_CPU_IMAGE_CAST_H

#include "fl_cpu_image_rows.h"

/* Blocks of fewer than STREAMED elements are not written past the caches, because the wait for
 * memory would be most of the time. Rows shorter than STREAMED_ROW are not, because a row shares
 * its first and last cache line with its neighbours. */
enum { LINE_BYTES = 64, STREAMED = 1024, STREAMED_ROW = 128, FRAMED_BYTES = 8192 };

/* A step casts FLOATS elements; fl_cpu_image_arm.h has a step for Arm. */
#if FL_VECTOR_BYTES > 16
enum { FLOATS = VECTOR_BYTES / 4 };

/* Returns true with rounding to nearest, denormal numbers kept, and no traps; flags of past
 * exceptions do not count. */
FL_INLINE bool is_default_arithmetic(void) { return (_mm_getcsr() & ~0x3FU) == 0x1F80; }

typedef struct line {
    floats scale, mean, std, inverse, divisor, rescale;
} line;

FL_INLINE line line_of(const fl_image_cast *cast)
{
    return (line){FL_V(set1_ps)(cast->scale),   FL_V(set1_ps)(cast->mean),
                  FL_V(set1_ps)(cast->std),     FL_V(set1_ps)(cast->inverse),
                  FL_V(set1_ps)(cast->divisor), FL_V(set1_ps)(cast->rescale)};
}

FL_INLINE lane load_bytes(const uint8_t *src)
{
    return (int)FLOATS == (int)LANE_BYTES ? load_lane(src) : _mm_loadl_epi64((const void *)src);
}

FL_INLINE lane first_to_low(lane bytes) { return _mm_srli_si128(bytes, LANE_BYTES - FLOATS); }

/* Returns the values of FLOATS bytes. */
FL_INLINE floats values_of(lane bytes, const line *by)
{
#if FL_VECTOR_BYTES == 64
    floats x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
#else
    floats x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
#endif
    floats product = FL_V(mul_ps)(x, by->scale);
    product = FL_V(fmadd_ps)(FL_V(fnmadd_ps)(product, by->divisor, x), by->rescale, product);
    floats a = FL_V(sub_ps)(product, by->mean);
    floats quotient = FL_V(mul_ps)(a, by->inverse);
    floats rest = FL_V(fnmadd_ps)(quotient, by->std, a);
    return FL_V(fmadd_ps)(rest, by->inverse, quotient);
}

/* Returns the highest 16 bits of each value, rounded to nearest, ties to even; no value is NaN. */
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

/* Casts one step. If streams, dst must be at a multiple of the step's size. */
FL_INLINE void cast_bytes(fl_image_type type, bool streams, char *dst, lane bytes, const line *by)
{
    floats x = values_of(bytes, by);
    if (type == FL_IMAGE_F32 && streams)
        FL_V(stream_ps)((void *)dst, x);
    else if (type == FL_IMAGE_F32)
        FL_V(storeu_ps)((void *)dst, x);
    else if (streams)
        stream_halves(dst, type == FL_IMAGE_F16 ? f16_of(x) : bf16_of(x));
    else
        store_halves(dst, type == FL_IMAGE_F16 ? f16_of(x) : bf16_of(x));
}
#endif

/* Loads FLOATS bytes in reverse: *src is the first, and the rest lie before *src. */
FL_INLINE lane load_reversed(const uint8_t *src)
{
    return first_to_low(reverse_lane(load_bytes(src - (FLOATS - 1))));
}

/* The way to cast a row. The fields must be constants at compile time. */
typedef struct way {
    fl_image_type type;
    bool reverses, streams;
} way;

/* Casts elements [i, i + FLOATS) of a row. */
FL_INLINE void
cast_step(way how, bool streams, char *dst, const uint8_t *src, int64_t i, const line *by)
{
    lane bytes = how.reverses ? load_reversed(src - i) : load_bytes(src + i);
    cast_bytes(how.type, streams, dst + i * fl_image_type_bytes(how.type), bytes, by);
}

/* Returns how many elements lie before the first cache line that begins in the row. */
FL_INLINE int64_t elements_to_line(const char *dst, fl_image_type type)
{
    return (int64_t)(-(uintptr_t)dst % LINE_BYTES) / fl_image_type_bytes(type);
}

/* Casts a row of at least FLOATS elements; with streams, at least STREAMED_ROW elements. */
FL_INLINE void cast_row(way how, char *dst, const uint8_t *src, int64_t count, const line *by)
{
    int64_t i = how.streams ? elements_to_line(dst, how.type) : 0;
    for (int64_t at = 0; at < i; at += FLOATS) cast_step(how, false, dst, src, at, by);
    for (; i + FLOATS <= count; i += FLOATS) cast_step(how, how.streams, dst, src, i, by);
    if (i < count) cast_step(how, false, dst, src, count - FLOATS, by);
}

FL_INLINE void
cast_rows(way how, char *dst, int64_t pitch, const fl_image_block *b, const fl_image_cast *cast)
{
    const line by = line_of(cast);
    const uint8_t *src = b->src;
    for (int64_t y = 0; y < b->rows; y++, src += b->pitch, dst += pitch)
        cast_row(how, dst, src, b->columns, &by);
}

/* Joins rows that follow each other in memory into one long row. */
FL_INLINE fl_image_block as_long_rows(const fl_image_block *b, int64_t pitch, int64_t bytes)
{
    fl_image_block rows = *b;
    bool is_dense = b->step == 1 && b->pitch == b->columns && pitch == b->columns * bytes;
    if (is_dense) rows.columns *= b->rows, rows.rows = 1;
    return rows;
}

/* Casts a block without fills. */
FL_INLINE void cast_columns(fl_image_type type, char *dst, int64_t pitch,
                            const fl_image_block *block, const fl_image_cast *cast)
{
    uintptr_t bytes = (uintptr_t)fl_image_type_bytes(type);
    const fl_image_block b = as_long_rows(block, pitch, (int64_t)bytes);
    bool is_aligned = ((uintptr_t)dst | (uintptr_t)pitch) % bytes == 0;
    bool is_streamed = cast->is_streamed && is_aligned && b.columns >= STREAMED_ROW &&
                       b.rows * b.columns >= STREAMED;
    if (b.columns < FLOATS)
        FL_NARROWER.cast[type](dst, pitch, block, cast);
    else if (is_streamed && b.step == 1)
        cast_rows((way){type, false, true}, dst, pitch, &b, cast);
    else if (is_streamed)
        cast_rows((way){type, true, true}, dst, pitch, &b, cast);
    else if (b.step == 1)
        cast_rows((way){type, false, false}, dst, pitch, &b, cast);
    else
        cast_rows((way){type, true, false}, dst, pitch, &b, cast);
    if (is_streamed) end_streaming();
}

/* Casts a block with fills: rows are assembled as bytes in the first cache and then cast in one
 * piece. */
FL_INLINE void
cast_framed(fl_image_type type, char *dst, const fl_image_block *block, const fl_image_cast *cast)
{
    uint8_t bytes[FRAMED_BYTES];
    int64_t width = block->before + block->columns + block->after, left = block->rows;
    fl_image_block some = *block;
    while (left > 0) {
        some.rows = fl_min(left, FRAMED_BYTES / width);
        copy_pieces(bytes, width, &some);
        const fl_image_block dense = {
            .src = bytes, .step = 1, .rows = 1, .columns = some.rows * width};
        cast_columns(type, dst, 0, &dense, cast);
        dst += dense.columns * fl_image_type_bytes(type);
        some.src += some.rows * some.pitch;
        left -= some.rows;
    }
}

/* Returns true if cast_framed can take the block: its rows follow each other in the output. */
FL_INLINE bool is_framed(const fl_image_block *b, int64_t pitch, int64_t bytes)
{
    return is_in_pieces(b) && pitch == (b->before + b->columns + b->after) * bytes;
}

FL_INLINE void cast_to(fl_image_type type, void *dst, int64_t pitch, const fl_image_block *block,
                       const fl_image_cast *cast)
{
    if (!is_line(block) || !cast->is_linear || !is_default_arithmetic())
        fl_cpu_image_plain.cast[type](dst, pitch, block, cast);
    else if (!has_fill(block))
        cast_columns(type, dst, pitch, block, cast);
    else if (is_framed(block, pitch, fl_image_type_bytes(type)))
        cast_framed(type, dst, block, cast);
    else
        cast_apart(&FL_IMAGE_OPS, type, dst, pitch, block, cast);
}

#endif
