/* fl_cpu_image_rows: blocks of rows copied, reversed and filled.
 *
 * Part of fl_cpu_image_body. Most rows are short, so the method is chosen once for a block. A row
 * is a number of pieces; the last piece ends at the end of the row, and does some bytes twice. */
#ifndef FL_CPU_IMAGE_ROWS_H
#define FL_CPU_IMAGE_ROWS_H

#include "fl_cpu_image_apart.h"
#include "fl_cpu_image_vector.h"

/* From this length on memcpy is as fast as pieces. */
enum { LONG_ROW = 256 };

/* Reverses 16 bytes. */
FL_INLINE lane reverse_lane(lane x)
{
    return FL_L(shuffle_epi8)(
        x, FL_L(setr_epi8)(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

FL_INLINE uint64_t load_8(const uint8_t *src)
{
    uint64_t word;
    memcpy(&word, src, sizeof word);
    return word;
}

FL_INLINE void store_8(uint8_t *dst, uint64_t word) { memcpy(dst, &word, sizeof word); }

/* ---- rows with fills at their sides
 *
 * A row is pieces of 16 bytes. One shuffle takes bytes of the source, or 0 for fill, and the fill
 * is added. The share of either differs from block to block, but no branch depends on the share. */

enum { MOST_PIECES = 16 };

/* A piece: 16 bytes of every row. */
typedef struct piece {
    int64_t at;   /* its first element in the row */
    int64_t from; /* its lowest byte, counted from block->src */
    lane order, fill;
} piece;

FL_INLINE bool is_line(const fl_image_block *b) { return b->step == 1 || b->step == -1; }

/* Returns true if a block with fills can be copied in pieces. */
FL_INLINE bool is_in_pieces(const fl_image_block *b)
{
    return is_line(b) && b->columns >= LANE_BYTES &&
           b->before + b->columns + b->after <= MOST_PIECES * LANE_BYTES;
}

/* Makes the piece with 16 elements from `at` on. It takes 16 source columns from `first` on, as far
 * as the source has the elements. */
FL_INLINE piece make_piece(const fl_image_block *b, int64_t at)
{
    const lane places = FL_L(setr_epi8)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const lane last = FL_L(set1_epi8)(LANE_BYTES - 1);
    int64_t first = fl_max(0, fl_min(at - b->before, b->columns - LANE_BYTES));
    int64_t shift = fl_max(-LANE_BYTES, fl_min(at - b->before - first, LANE_BYTES));
    lane place = FL_L(add_epi8)(places, FL_L(set1_epi8)((char)shift));
    lane outside = FL_L(or_si128)(FL_L(cmpgt_epi8)(place, last),
                                  FL_L(cmpgt_epi8)(FL_L(setzero_si128)(), place));
    lane order = b->step == 1 ? place : FL_L(sub_epi8)(last, place);
    return (piece){.at = at,
                   .from = b->step == 1 ? first : -first - (LANE_BYTES - 1),
                   .order = FL_L(or_si128)(order, outside), /* from 128 on, a shuffle gives 0 */
                   .fill = FL_L(and_si128)(outside, FL_L(set1_epi8)((char)b->fill))};
}

/* Copies one piece of all rows: its shuffle and fill stay in registers. */
FL_INLINE void copy_piece(uint8_t *dst, int64_t pitch, const fl_image_block *b, piece p)
{
    const uint8_t *src = b->src + p.from;
    int64_t rows = b->rows, src_pitch = b->pitch;
    dst += p.at;
    for (int64_t y = 0; y < rows; y++, src += src_pitch, dst += pitch)
        store_lane(dst, FL_L(or_si128)(FL_L(shuffle_epi8)(load_lane(src), p.order), p.fill));
}

static void copy_pieces(uint8_t *dst, int64_t pitch, const fl_image_block *b)
{
    int64_t width = b->before + b->columns + b->after;
    for (int64_t at = 0; at < width; at += LANE_BYTES) {
        piece p = make_piece(b, step_from(at, LANE_BYTES, width));
        copy_piece(dst, pitch, b, p);
    }
}

/* ---- copies: src is the first element to read, and the next element lies after or before it */

FL_INLINE void copy_lane(uint8_t *dst, const uint8_t *src, int64_t i, bool reverses)
{
    if (reverses)
        store_lane(dst + i, reverse_lane(load_lane(src - i - (LANE_BYTES - 1))));
    else
        store_lane(dst + i, load_lane(src + i));
}

FL_INLINE void copy_word(uint8_t *dst, const uint8_t *src, int64_t i, bool reverses)
{
    store_8(dst + i, reverses ? __builtin_bswap64(load_8(src - i - 7)) : load_8(src + i));
}

FL_INLINE void
copy_row(uint8_t *dst, const uint8_t *src, int64_t count, int64_t length, bool reverses)
{
    if (length == LANE_BYTES)
        for (int64_t at = 0; at < count; at += LANE_BYTES)
            copy_lane(dst, src, step_from(at, LANE_BYTES, count), reverses);
    else if (length == 8)
        for (int64_t at = 0; at < count; at += 8)
            copy_word(dst, src, step_from(at, 8, count), reverses);
    else
        for (int64_t i = 0; i < count; i++) dst[i] = reverses ? src[-i] : src[i];
}

FL_INLINE void
copy_rows(uint8_t *dst, int64_t pitch, const fl_image_block *b, int64_t length, bool reverses)
{
    const uint8_t *src = b->src;
    for (int64_t y = 0; y < b->rows; y++, src += b->pitch, dst += pitch)
        copy_row(dst, src, b->columns, length, reverses);
}

FL_INLINE void copy_short_rows(uint8_t *dst, int64_t pitch, const fl_image_block *b, bool reverses)
{
    if (b->columns >= LANE_BYTES)
        copy_rows(dst, pitch, b, LANE_BYTES, reverses);
    else if (b->columns >= 8)
        copy_rows(dst, pitch, b, 8, reverses);
    else
        copy_rows(dst, pitch, b, 1, reverses);
}

static void
copy_bytes(void *dst, int64_t pitch, const fl_image_block *block, const fl_image_cast *cast)
{
    bool is_dense = block->pitch == block->columns && pitch == block->columns;
    if (has_fill(block) && is_in_pieces(block))
        copy_pieces(dst, pitch, block);
    else if (has_fill(block))
        cast_apart(&FL_IMAGE_OPS, FL_IMAGE_U8, dst, pitch, block, cast);
    else if (block->step == -1)
        copy_short_rows(dst, pitch, block, true);
    else if (block->step == 1 && !is_dense && block->columns < LONG_ROW)
        copy_short_rows(dst, pitch, block, false);
    else
        fl_cpu_image_plain.cast[FL_IMAGE_U8](dst, pitch, block, cast);
}

/* ---- fills: every piece holds a whole number of patterns of 4 bytes */

FL_INLINE void fill_row(char *dst, uint32_t pattern, int64_t count, int64_t length)
{
    uint64_t word = (uint64_t)pattern << 32 | pattern;
    for (int64_t at = 0; at < count; at += length) {
        char *to = dst + step_from(at, length, count);
        if (length == VECTOR_BYTES)
            store(to, FL_V(set1_epi32)((int)pattern));
        else if (length == LANE_BYTES)
            store_lane(to, FL_L(set1_epi32)((int)pattern));
        else
            memcpy(to, &word, (size_t)length);
    }
}

FL_INLINE void
fill_pieces(char *dst, int64_t pitch, int64_t rows, int64_t count, uint32_t pattern, int64_t length)
{
    for (int64_t y = 0; y < rows; y++) fill_row(dst + y * pitch, pattern, count, length);
}

static void
fill_rows(void *dst, int64_t pitch, int64_t rows, int64_t count, const void *value, int32_t bytes)
{
    uint32_t pattern = 0;
    memcpy(&pattern, value, (size_t)bytes);
    if (bytes == 1) pattern *= 0x01010101;
    if (bytes == 2) pattern *= 0x00010001;
    count *= bytes;
    if (pitch == count) count *= rows, rows = 1;
    if (count >= VECTOR_BYTES)
        fill_pieces(dst, pitch, rows, count, pattern, VECTOR_BYTES);
    else if (count >= LANE_BYTES)
        fill_pieces(dst, pitch, rows, count, pattern, LANE_BYTES);
    else if (count >= 8)
        fill_pieces(dst, pitch, rows, count, pattern, 8);
    else if (count >= 4)
        fill_pieces(dst, pitch, rows, count, pattern, 4);
    else if (count >= 2)
        fill_pieces(dst, pitch, rows, count, pattern, 2);
    else
        fill_pieces(dst, pitch, rows, count, pattern, 1);
}

#endif
