/* fl_cpu_image_layout: pixels to planes and back, by shuffles of bytes.
 *
 * Part of fl_cpu_image_body. Each function works in steps of one length; the last step ends at the
 * end of the data, and does some elements twice. Images narrower than a step go to the table for
 * narrower registers, FL_NARROWER. */
#ifndef FL_CPU_IMAGE_LAYOUT_H
#define FL_CPU_IMAGE_LAYOUT_H

#include "fl_cpu_image_vector.h"

/* NEON has loads and stores that split and join (fl_cpu_image_arm.h). */
#if FL_VECTOR_BYTES > 16
/* ---- three channels
 *
 * The same lane of three registers holds 48 bytes of pixels; element i of these belongs to channel
 * i % 3. The elements of one channel have different positions in each register, and together fill a
 * whole lane. So two choices collect a channel, and one shuffle sorts it. */

/* Ones for elements i of a lane with i % 3 == 0, 1, 2; indexed by bytes / 2 of an element. */
static const uint8_t third_masks[3][3][LANE_BYTES] = {
    {{255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 255},
     {0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0},
     {0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 255, 0}},
    {{255, 255, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0, 255, 255, 0, 0},
     {0, 0, 255, 255, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0, 255, 255},
     {0, 0, 0, 0, 255, 255, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0}},
    {{255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255},
     {0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0},
     {0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0}},
};

/* The shuffles from the order after the choices of channel c to the order of pixels. */
static const uint8_t split_orders[3][LANE_BYTES] = {
    {0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13},
    {1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14},
    {2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15},
};

/* The shuffles for the way back; indexed by bytes / 2 of an element. */
static const uint8_t join_orders[3][3][LANE_BYTES] = {
    {{0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10, 5},
     {5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10},
     {10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15}},
    {{0, 1, 6, 7, 12, 13, 2, 3, 8, 9, 14, 15, 4, 5, 10, 11},
     {10, 11, 0, 1, 6, 7, 12, 13, 2, 3, 8, 9, 14, 15, 4, 5},
     {4, 5, 10, 11, 0, 1, 6, 7, 12, 13, 2, 3, 8, 9, 14, 15}},
    {{0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7},
     {4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11},
     {8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15}},
};

FL_INLINE vector table_lane(const uint8_t from[LANE_BYTES]) { return same_lanes(load_lane(from)); }

/* Splits 16 * LANES pixels. */
FL_INLINE void split_3(uint8_t *dst, int64_t pitch, const uint8_t *src)
{
    vector x[3];
    FL_UNROLL for (int k = 0; k < 3; k++) x[k] = load_lanes(src + k * LANE_BYTES, 3 * LANE_BYTES);
    FL_UNROLL for (int c = 0; c < 3; c++)
    {
        /* Byte q of register k belongs to channel (16 * k + q) % 3. */
        vector first = table_lane(third_masks[0][c]),
               second = table_lane(third_masks[0][(c + 2) % 3]);
        vector mixed = choose(first, x[0], choose(second, x[1], x[2]));
        store(dst + c * pitch, FL_V(shuffle_epi8)(mixed, table_lane(split_orders[c])));
    }
}

/* Joins VECTOR_BYTES / bytes pixels. */
FL_INLINE void join_3(char *dst, const char *src, int64_t pitch, int32_t bytes)
{
    int size = bytes / 2, step = LANE_BYTES / bytes % 3;
    vector x[3];
    FL_UNROLL for (int c = 0; c < 3; c++) x[c] =
        FL_V(shuffle_epi8)(load(src + c * pitch), table_lane(join_orders[size][c]));
    FL_UNROLL for (int k = 0; k < 3; k++)
    {
        /* Element q of register k belongs to channel (step * k + q) % 3. */
        int shift = step * k % 3;
        vector first = table_lane(third_masks[size][(3 - shift) % 3]);
        vector second = table_lane(third_masks[size][(4 - shift) % 3]);
        store_lanes(dst + k * LANE_BYTES, 3 * LANE_BYTES,
                    choose(first, x[0], choose(second, x[1], x[2])));
    }
}

/* ---- two and four channels */

/* Splits 16 * LANES pixels. */
FL_INLINE void split_2(uint8_t *dst, int64_t pitch, const uint8_t *src)
{
    const vector order =
        same_lanes(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    vector a = FL_V(shuffle_epi8)(load_lanes(src, 2 * LANE_BYTES), order);
    vector b = FL_V(shuffle_epi8)(load_lanes(src + LANE_BYTES, 2 * LANE_BYTES), order);
    store(dst, FL_V(unpacklo_epi64)(a, b));
    store(dst + pitch, FL_V(unpackhi_epi64)(a, b));
}

FL_INLINE void split_4(uint8_t *dst, int64_t pitch, const uint8_t *src)
{
    const vector order =
        same_lanes(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    vector x[4];
    FL_UNROLL for (int k = 0; k < 4; k++) x[k] =
        FL_V(shuffle_epi8)(load_lanes(src + k * LANE_BYTES, 4 * LANE_BYTES), order);
    vector low[2] = {FL_V(unpacklo_epi32)(x[0], x[1]), FL_V(unpacklo_epi32)(x[2], x[3])};
    vector high[2] = {FL_V(unpackhi_epi32)(x[0], x[1]), FL_V(unpackhi_epi32)(x[2], x[3])};
    store(dst, FL_V(unpacklo_epi64)(low[0], low[1]));
    store(dst + pitch, FL_V(unpackhi_epi64)(low[0], low[1]));
    store(dst + 2 * pitch, FL_V(unpacklo_epi64)(high[0], high[1]));
    store(dst + 3 * pitch, FL_V(unpackhi_epi64)(high[0], high[1]));
}

/* Writes elements of a and b in turn: out[0] from the low halves of lanes, out[1] from the high
 * halves. */
FL_INLINE void interleave(vector out[2], vector a, vector b, int32_t bytes)
{
    if (bytes == 1) {
        out[0] = FL_V(unpacklo_epi8)(a, b);
        out[1] = FL_V(unpackhi_epi8)(a, b);
    } else if (bytes == 2) {
        out[0] = FL_V(unpacklo_epi16)(a, b);
        out[1] = FL_V(unpackhi_epi16)(a, b);
    } else if (bytes == 4) {
        out[0] = FL_V(unpacklo_epi32)(a, b);
        out[1] = FL_V(unpackhi_epi32)(a, b);
    } else {
        out[0] = FL_V(unpacklo_epi64)(a, b);
        out[1] = FL_V(unpackhi_epi64)(a, b);
    }
}

/* Joins VECTOR_BYTES / bytes pixels, like join_4 below. */
FL_INLINE void join_2(char *dst, const char *src, int64_t pitch, int32_t bytes)
{
    vector out[2];
    interleave(out, load(src), load(src + pitch), bytes);
    FL_UNROLL for (int k = 0; k < 2; k++) store_lanes(dst + k * LANE_BYTES, 2 * LANE_BYTES, out[k]);
}

FL_INLINE void join_4(char *dst, const char *src, int64_t pitch, int32_t bytes)
{
    vector ab[2], cd[2], out[4];
    interleave(ab, load(src), load(src + pitch), bytes);
    interleave(cd, load(src + 2 * pitch), load(src + 3 * pitch), bytes);
    interleave(out, ab[0], cd[0], 2 * bytes);
    interleave(out + 2, ab[1], cd[1], 2 * bytes);
    FL_UNROLL for (int k = 0; k < 4; k++) store_lanes(dst + k * LANE_BYTES, 4 * LANE_BYTES, out[k]);
}

#endif

/* ---- the functions of the table */

FL_INLINE void
split_all(uint8_t *dst, int64_t pitch, const uint8_t *src, int64_t pixels, int32_t channels)
{
    for (int64_t at = 0; at < pixels; at += VECTOR_BYTES) {
        int64_t i = step_from(at, VECTOR_BYTES, pixels);
        if (channels == 2)
            split_2(dst + i, pitch, src + 2 * i);
        else if (channels == 3)
            split_3(dst + i, pitch, src + 3 * i);
        else
            split_4(dst + i, pitch, src + 4 * i);
    }
}

static void
split_channels(uint8_t *dst, int64_t pitch, const uint8_t *src, int64_t pixels, int32_t channels)
{
    if (pixels < VECTOR_BYTES)
        FL_NARROWER.split(dst, pitch, src, pixels, channels);
    else if (channels == 2)
        split_all(dst, pitch, src, pixels, 2);
    else if (channels == 3)
        split_all(dst, pitch, src, pixels, 3);
    else
        split_all(dst, pitch, src, pixels, 4);
}

FL_INLINE void
join_all(char *dst, const char *src, int64_t pitch, int64_t pixels, int32_t channels, int32_t bytes)
{
    int64_t step = VECTOR_BYTES / bytes;
    for (int64_t at = 0; at < pixels; at += step) {
        int64_t i = step_from(at, step, pixels);
        char *to = dst + i * channels * bytes;
        if (channels == 2)
            join_2(to, src + i * bytes, pitch, bytes);
        else if (channels == 3)
            join_3(to, src + i * bytes, pitch, bytes);
        else
            join_4(to, src + i * bytes, pitch, bytes);
    }
}

FL_INLINE void
join_of(void *dst, const void *src, int64_t pitch, int64_t pixels, int32_t channels, int32_t bytes)
{
    if (channels == 2)
        join_all(dst, src, pitch, pixels, 2, bytes);
    else if (channels == 3)
        join_all(dst, src, pitch, pixels, 3, bytes);
    else
        join_all(dst, src, pitch, pixels, 4, bytes);
}

static void join_channels(void *dst, const void *src, int64_t pitch, int64_t pixels,
                          int32_t channels, int32_t bytes)
{
    if (pixels * bytes < VECTOR_BYTES)
        FL_NARROWER.join(dst, src, pitch, pixels, channels, bytes);
    else if (bytes == 1)
        join_of(dst, src, pitch, pixels, channels, 1);
    else if (bytes == 2)
        join_of(dst, src, pitch, pixels, channels, 2);
    else
        join_of(dst, src, pitch, pixels, channels, 4);
}

#endif
