/* fl_cpu_image_ycc: rows of RGB from planes of YCbCr, with the bits of libjpeg.
 *
 * Part of every table of kernels. The loops are plain, and each file's compiler vectorises them
 * with the instructions of its table. */
#ifndef FL_CPU_IMAGE_YCC_H
#define FL_CPU_IMAGE_YCC_H

#include "fl_image_ops.h"

#include <string.h>

/* Columns of a piece of a row, and columns of the chroma under them. */
enum { YCC_PIECE = 512, YCC_HALF = YCC_PIECE / 2 };

static inline uint8_t cut_ycc(int16_t value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* The halves of a product. A register holds twice as many columns if no step needs 32 bits. */
static inline int16_t upper_ycc(int16_t factor, int16_t x) { return (int16_t)(factor * x >> 16); }
static inline uint16_t lower_ycc(int16_t factor, int16_t x) { return (uint16_t)(factor * x); }

/* Returns (factor * x + 32768) >> 16. */
static inline int16_t scale_ycc(int16_t factor, int16_t x)
{
    return (int16_t)(upper_ycc(factor, x) + (lower_ycc(factor, x) >> 15));
}

/* libjpeg's numbers, 1.402, -0.34414, -0.71414 and 1.772, as an integer and 16 bits: 1 + 26345,
 * -22554, -1 + 18734 and 2 - 14942. The two products of green are rounded together. */
static inline void join_ycc(uint8_t *restrict dst, int64_t pitch, const uint8_t *restrict y,
                            const uint8_t *restrict cb, const uint8_t *restrict cr, int32_t count)
{
    uint8_t *restrict green = dst + pitch, *restrict blue = dst + 2 * pitch;
    for (int32_t i = 0; i < count; i++) {
        const int16_t v = y[i], b = (int16_t)(cb[i] - 128), r = (int16_t)(cr[i] - 128);
        const uint16_t low = lower_ycc(-22554, b);
        const uint16_t sum = (uint16_t)(low + lower_ycc(18734, r));
        const int16_t both = (int16_t)(upper_ycc(-22554, b) + upper_ycc(18734, r));
        dst[i] = cut_ycc((int16_t)(v + r + scale_ycc(26345, r)));
        green[i] = cut_ycc((int16_t)(v - r + both + (sum < low) + (sum >> 15)));
        blue[i] = cut_ycc((int16_t)(v + 2 * b + scale_ycc(-14942, b)));
    }
}

/* Upsamples `count` columns of a plane, from column `from` on, to twice as many. Nearer samples
 * weigh 3 of 4 in each direction; beyond the edges the samples at the edges go on. */
static inline void widen_ycc(uint8_t *restrict dst, const uint8_t *near, const uint8_t *far,
                             int32_t from, int32_t count, int32_t width)
{
    uint16_t sums[YCC_HALF + 2];
    near += from;
    far += from;
    for (int32_t i = 0; i < count; i++) sums[i + 1] = (uint16_t)(3 * near[i] + far[i]);
    sums[0] = from > 0 ? (uint16_t)(3 * near[-1] + far[-1]) : sums[1];
    bool has_next = from + count < width;
    sums[count + 1] = has_next ? (uint16_t)(3 * near[count] + far[count]) : sums[count];
    for (int32_t i = 0; i < count; i++) {
        dst[2 * i] = (uint8_t)((3 * sums[i + 1] + sums[i] + 8) >> 4);
        dst[2 * i + 1] = (uint8_t)((3 * sums[i + 1] + sums[i + 2] + 7) >> 4);
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
    uint8_t wide[2][YCC_PIECE + 2];
    while (from < to) {
        const int32_t first = from / 2, skipped = from % 2;
        const int32_t count = to - from < YCC_PIECE - 1 ? to - from : YCC_PIECE - 1;
        const int32_t columns = (skipped + count + 1) / 2;
        widen_ycc(wide[0], cb + near, cb + far, first, columns, width);
        widen_ycc(wide[1], cr + near, cr + far, first, columns, width);
        join_ycc(dst, pitch, y + from, wide[0] + skipped, wide[1] + skipped, count);
        from += count;
        dst += count;
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
