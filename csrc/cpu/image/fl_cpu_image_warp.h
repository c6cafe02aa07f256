/* fl_cpu_image_warp: images sampled at computed positions: rotations, shears, perspectives.
 *
 * Each file that fills a table of fl_image_ops includes this file. Positions are computed for a
 * piece of a row at a time, then each channel is read at these positions. */
#ifndef FL_CPU_IMAGE_WARP_H
#define FL_CPU_IMAGE_WARP_H

#include "fl_cpu_image_blur.h"

enum { WARP_PIECE = 128 };

/* The positions and weights for reading the pixels of a piece. */
typedef struct places {
    float x[WARP_PIECE], y[WARP_PIECE]; /* in the image, with pixels at whole numbers */
    int32_t at[WARP_PIECE];             /* offset in a plane, with its border */
    float inside[WARP_PIECE];           /* the share of the pixel that lies in the image */
    float upper_left[WARP_PIECE], upper_right[WARP_PIECE];
    float lower_left[WARP_PIECE], lower_right[WARP_PIECE];
} places;

/* Computes positions by grid_sample's steps with align_corners=False; each product and sum is
 * rounded, but in the last step the two are fused. */
static inline void locate(places *to, const fl_image_warp *w, int64_t row, int64_t first, int count)
{
    const float y = w->origin_y + (float)row, half_x = (float)w->width / 2;
    const float half_y = (float)w->height / 2;
    const float x_of_row = y * w->x[1], y_of_row = y * w->y[1], z_of_row = y * w->z[1];
    for (int i = 0; i < count; i++) {
        float x = w->origin_x + (float)(first + i);
        float to_x = (x * w->x[0] + x_of_row) + w->x[2];
        float to_y = (x * w->y[0] + y_of_row) + w->y[2];
        if (w->is_perspective) {
            float z = (x * w->z[0] + z_of_row) + w->z[2];
            to_x = to_x / z - 1.0f;
            to_y = to_y / z - 1.0f;
        }
        to->x[i] = fmaf(to_x + 1.0f, half_x, -0.5f);
        to->y[i] = fmaf(to_y + 1.0f, half_y, -0.5f);
    }
}

/* Clamps a position to the border, which is 2 wide, because everything beyond is the same. NaN is
 * outside. */
static inline float clamp_place(float x, float most)
{
    x = x > -2 ? x : -2;
    return x < most ? x : most;
}

static inline float floor_of(float x)
{
    float cut = (float)(int32_t)x;
    return cut - (float)(cut > x);
}

static inline float is_within(float x, float most) { return (float)((x >= 0) & (x <= most)); }

/* A perspective divides by 0 at its horizon. torch's weights are NaN there, and the byte is 0 even
 * with a fill. So a position there counts as inside the image, in its border, which is 0. */
static inline float is_nowhere(float x, float y)
{
    float zero = (x - x) + (y - y);
    return (float)!(zero <= 0);
}

static inline void take_nearest(places *p, const fl_image_warp *w, int64_t pitch, int count)
{
    const float last_x = (float)(w->width - 1), last_y = (float)(w->height - 1);
    for (int i = 0; i < count; i++) {
        float x = clamp_place(p->x[i], last_x + 2), y = clamp_place(p->y[i], last_y + 2);
        x = (x + 0x1.8p23f) - 0x1.8p23f;
        y = (y + 0x1.8p23f) - 0x1.8p23f;
        p->inside[i] = is_within(x, last_x) * is_within(y, last_y);
        p->at[i] = ((int32_t)y + 2) * (int32_t)pitch + (int32_t)x + 2;
    }
}

static inline void take_bilinear(places *p, const fl_image_warp *w, int64_t pitch, int count)
{
    const float last_x = (float)(w->width - 1), last_y = (float)(w->height - 1);
    for (int i = 0; i < count; i++) {
        float x = clamp_place(p->x[i], last_x + 1.5f), y = clamp_place(p->y[i], last_y + 1.5f);
        float left = floor_of(x), top = floor_of(y);
        float to_left = x - left, to_top = y - top;
        float to_right = 1.0f - to_left, to_bottom = 1.0f - to_top;
        p->upper_left[i] = to_bottom * to_right;
        p->upper_right[i] = to_bottom * to_left;
        p->lower_left[i] = to_top * to_right;
        p->lower_right[i] = to_top * to_left;
        float has_left = is_within(left, last_x), has_right = is_within(left + 1, last_x);
        float has_top = is_within(top, last_y), has_bottom = is_within(top + 1, last_y);
        float inside = (has_top * has_left) * p->upper_left[i];
        inside = fmaf(has_top * has_right, p->upper_right[i], inside);
        inside = fmaf(has_bottom * has_left, p->lower_left[i], inside);
        inside = fmaf(has_bottom * has_right, p->lower_right[i], inside);
        p->inside[i] = inside + is_nowhere(p->x[i], p->y[i]);
        p->at[i] = ((int32_t)top + 2) * (int32_t)pitch + (int32_t)left + 2;
    }
}

static inline void read_nearest(uint8_t *restrict dst, const uint8_t *restrict plane,
                                const places *p, float fill, int count)
{
    const uint8_t outside = (uint8_t)(int32_t)round_even(isnan(fill) ? 0 : fill);
    for (int i = 0; i < count; i++) dst[i] = plane[p->at[i]];
    for (int i = 0; i < count; i++) dst[i] = p->inside[i] > 0 ? dst[i] : outside;
}

static inline tone_floats floats_at(const float *from)
{
    tone_floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void read_bilinear(uint8_t *dst, const uint8_t *plane, int64_t pitch, const places *p,
                                 float fill, int count)
{
    for (int i = 0; i < count; i += TONE_FLOATS) {
        tone_mask upper = gather_words(plane, p->at + i);
        tone_mask lower = gather_words(plane + pitch, p->at + i);
        tone_floats a = __builtin_convertvector(upper & 255, tone_floats);
        tone_floats b = __builtin_convertvector(upper >> 8 & 255, tone_floats);
        tone_floats c = __builtin_convertvector(lower & 255, tone_floats);
        tone_floats d = __builtin_convertvector(lower >> 8 & 255, tone_floats);
        tone_floats sum = a * floats_at(p->upper_left + i);
        sum = add_product(b, floats_at(p->upper_right + i), sum, true);
        sum = add_product(c, floats_at(p->lower_left + i), sum, true);
        sum = add_product(d, floats_at(p->lower_right + i), sum, true);
        if (!isnan(fill)) sum = (sum - fill) * floats_at(p->inside + i) + fill;
        tone_store(dst + i, (sum + 0x1p23f) - 0x1p23f);
    }
}

static void tone_warp(const fl_image_planes *dst, const fl_image_planes *bordered, int32_t channels,
                      const fl_image_warp *warp)
{
    places p;
    uint8_t bytes[WARP_PIECE];
    for (int64_t row = 0; row < dst->rows; row++)
        for (int64_t first = 0; first < dst->columns; first += WARP_PIECE) {
            int count = (int)fl_min(WARP_PIECE, dst->columns - first);
            int whole = (count + TONE_FLOATS - 1) / TONE_FLOATS * TONE_FLOATS;
            locate(&p, warp, row, first, whole);
            if (warp->is_bilinear)
                take_bilinear(&p, warp, bordered->pitch, whole);
            else
                take_nearest(&p, warp, bordered->pitch, whole);
            for (int32_t c = 0; c < channels; c++) {
                const uint8_t *plane = bordered->data + c * bordered->plane;
                if (warp->is_bilinear)
                    read_bilinear(bytes, plane, bordered->pitch, &p, warp->fill[c], whole);
                else
                    read_nearest(bytes, plane, &p, warp->fill[c], whole);
                memcpy(dst->data + c * dst->plane + row * dst->pitch + first, bytes, (size_t)count);
            }
        }
}

#endif
