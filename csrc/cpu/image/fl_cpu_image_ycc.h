/* fl_cpu_image_ycc: rows of RGB from planes of YCbCr, with the bits of libjpeg.
 *
 * Part of every table of kernels. The loops are plain, and each file's compiler vectorises them
 * with the instructions of its table. */
#ifndef FL_CPU_IMAGE_YCC_H
#define FL_CPU_IMAGE_YCC_H

#include "fl_image_ops.h"

#include <string.h>

/* Columns of chroma in a piece of a row, and in a block. Each loop takes whole blocks, whose length
 * is known to the compiler: no column is computed outside of registers. */
enum { YCC_BLOCK = 64, YCC_PIECE = 4 * YCC_BLOCK };

/* Where the first and the second byte of a pair lie in its number. */
enum { YCC_FIRST = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 8 : 0, YCC_SECOND = 8 - YCC_FIRST };

static inline uint16_t pair_ycc(uint8_t first, uint8_t second)
{
    return (uint16_t)(first << YCC_FIRST | second << YCC_SECOND);
}

static inline uint8_t cut_ycc(int16_t value)
{
    value = value > 0 ? value : 0;
    value = value < 255 ? value : 255;
    return (uint8_t)value;
}

/* The halves of a product. A register holds twice as many columns if no step needs 32 bits. */
static inline int16_t upper_ycc(int16_t factor, int16_t x) { return (int16_t)(factor * x >> 16); }
static inline uint16_t lower_ycc(int16_t factor, int16_t x) { return (uint16_t)(factor * x); }

/* Returns (factor * x + 32768) >> 16. */
static inline int16_t scale_ycc(int16_t factor, int16_t x)
{
    return (int16_t)(upper_ycc(factor, x) + (lower_ycc(factor, x) >> 15));
}

/* Each color of a pixel, from its luma and its chroma less 128, by libjpeg's numbers 1.402,
 * -0.34414, -0.71414 and 1.772 as an integer and 16 bits: 1 + 26345, -22554, -1 + 18734 and
 * 2 - 14942. The two products of green are rounded together: both are even, so half of the sum of
 * their lower halves is exact. */
static inline uint8_t red_ycc(int16_t y, int16_t r)
{
    return cut_ycc((int16_t)(y + r + scale_ycc(26345, r)));
}

static inline uint8_t green_ycc(int16_t y, int16_t b, int16_t r)
{
    const uint16_t half = (uint16_t)((lower_ycc(-22554, b) >> 1) + (lower_ycc(18734, r) >> 1));
    const int16_t rounded = (int16_t)(((half >> 14) + 1) >> 1);
    const int16_t upper = (int16_t)(upper_ycc(-22554, b) + upper_ycc(18734, r));
    return cut_ycc((int16_t)(y - r + upper + rounded));
}

static inline uint8_t blue_ycc(int16_t y, int16_t b)
{
    return cut_ycc((int16_t)(y + 2 * b + scale_ycc(-14942, b)));
}

static inline void join_ycc(uint8_t *restrict dst, int64_t pitch, const uint8_t *restrict y,
                            const uint8_t *restrict cb, const uint8_t *restrict cr, int32_t count)
{
    uint8_t *restrict green = dst + pitch, *restrict blue = dst + 2 * pitch;
    for (int32_t i = 0; i < count; i++) {
        const int16_t b = (int16_t)(cb[i] - 128), r = (int16_t)(cr[i] - 128);
        dst[i] = red_ycc(y[i], r);
        green[i] = green_ycc(y[i], b, r);
        blue[i] = blue_ycc(y[i], b);
    }
}

/* Sums of two rows of chroma: 3 times the nearer row and once the farther row. at[1] is the first
 * column of the piece; at[0] and the element after the last column are the columns beside it. */
typedef struct ycc_sums {
    uint16_t at[YCC_PIECE + 2];
} ycc_sums;

static inline void
sum_block(uint16_t *restrict sums, const uint8_t *restrict near, const uint8_t *restrict far)
{
    for (int32_t i = 0; i < YCC_BLOCK; i++) sums[i] = (uint16_t)(3 * near[i] + far[i]);
}

/* Sums the columns [from, from + count) of a plane. Beyond the edges the samples at the edges go
 * on. */
static inline void sum_chroma(ycc_sums *out, const uint8_t *near, const uint8_t *far, int32_t from,
                              int32_t count, int32_t width)
{
    uint16_t *sums = out->at + 1;
    uint8_t last[2][YCC_BLOCK] = {0};
    near += from;
    far += from;
    int32_t i = 0;
    for (; i + YCC_BLOCK <= count; i += YCC_BLOCK) sum_block(sums + i, near + i, far + i);
    if (i < count) {
        memcpy(last[0], near + i, (size_t)(count - i));
        memcpy(last[1], far + i, (size_t)(count - i));
        sum_block(sums + i, last[0], last[1]);
    }
    bool has_next = from + count < width;
    sums[-1] = from > 0 ? (uint16_t)(3 * near[-1] + far[-1]) : sums[0];
    sums[count] = has_next ? (uint16_t)(3 * near[count] + far[count]) : sums[count - 1];
}

/* Upsample column i of the chroma to two columns, less 128: the nearer column weighs 3 of 4. */
static inline int16_t left_ycc(const uint16_t *sums, int32_t i)
{
    return (int16_t)(((uint16_t)(3 * sums[i] + sums[i - 1] + 8) >> 4) - 128);
}

static inline int16_t right_ycc(const uint16_t *sums, int32_t i)
{
    return (int16_t)(((uint16_t)(3 * sums[i] + sums[i + 1] + 7) >> 4) - 128);
}

/* Makes two pixels for each column of a block of chroma. Pairs of bytes are read and written as one
 * number, so no byte changes its lane. */
static inline void
join_block(uint16_t *restrict red, uint16_t *restrict green, uint16_t *restrict blue,
           const uint16_t *restrict y, const uint16_t *restrict cb, const uint16_t *restrict cr)
{
    for (int32_t i = 0; i < YCC_BLOCK; i++) {
        const int16_t y0 = y[i] >> YCC_FIRST & 255, y1 = y[i] >> YCC_SECOND & 255;
        const int16_t b0 = left_ycc(cb, i), b1 = right_ycc(cb, i);
        const int16_t r0 = left_ycc(cr, i), r1 = right_ycc(cr, i);
        red[i] = pair_ycc(red_ycc(y0, r0), red_ycc(y1, r1));
        green[i] = pair_ycc(green_ycc(y0, b0, r0), green_ycc(y1, b1, r1));
        blue[i] = pair_ycc(blue_ycc(y0, b0), blue_ycc(y1, b1));
    }
}

static void read_half(uint8_t *dst, int64_t pitch, const fl_ycc *image, const uint8_t *y,
                      int32_t row, int32_t from, int32_t to)
{
    const int32_t width = fl_ycc_chroma_width(image), rows = fl_ycc_chroma_height(image);
    const int32_t other = row % 2 == 0 ? row / 2 - 1 : row / 2 + 1;
    const int64_t near = (int64_t)(row / 2) * width, plane = (int64_t)width * rows;
    const int64_t far = other < 0 || other >= rows ? near : (int64_t)other * width;
    const uint8_t *cb = image->data + (int64_t)image->width * image->height, *cr = cb + plane;
    ycc_sums sums[2];
    uint16_t luma[YCC_PIECE], rgb[3][YCC_PIECE];
    while (from < to) {
        const int32_t first = from / 2, skipped = from % 2;
        const int32_t end = to < 2 * (first + YCC_PIECE) ? to : 2 * (first + YCC_PIECE);
        const int32_t columns = (end + 1) / 2 - first;
        sum_chroma(&sums[0], cb + near, cb + far, first, columns, width);
        sum_chroma(&sums[1], cr + near, cr + far, first, columns, width);
        memcpy(luma, y + 2 * first, (size_t)(end - 2 * first));
        for (int32_t i = 0; i < columns; i += YCC_BLOCK)
            join_block(rgb[0] + i, rgb[1] + i, rgb[2] + i, luma + i, sums[0].at + 1 + i,
                       sums[1].at + 1 + i);
        for (int c = 0; c < 3; c++)
            memcpy(dst + c * pitch, (const uint8_t *)rgb[c] + skipped, (size_t)(end - from));
        dst += end - from;
        from = end;
    }
}

static void
read_ycc(uint8_t *dst, int64_t pitch, const fl_ycc *image, int32_t row, int32_t from, int32_t to)
{
    const int64_t at = (int64_t)row * image->width, plane = (int64_t)image->height * image->width;
    const uint8_t *y = image->data + at;
    if (image->chroma == FL_CHROMA_HALF) {
        read_half(dst, pitch, image, y, row, from, to);
    } else if (image->chroma == FL_CHROMA_FULL) {
        join_ycc(dst, pitch, y + from, y + plane + from, y + 2 * plane + from, to - from);
    } else {
        for (int c = 0; c < 3; c++) memcpy(dst + c * pitch, y + from, (size_t)(to - from));
    }
}

#endif
