/* warp_fixture.h: the effect of turning, shearing and tilting on a picture, pixel by pixel.
 * Matrices are fl_warp's; each tap checks if it lies outside the picture. */
#ifndef WARP_FIXTURE_H
#define WARP_FIXTURE_H

#include "picture_fixture.h"

#include "fl_warp.h"

#include <math.h>

static inline float sample_at(const picture *p, float y, float x, int32_t c, bool is_mask)
{
    if (!(y >= 0 && y < (float)p->size.height && x >= 0 && x < (float)p->size.width)) return 0;
    return is_mask ? 1 : pixel_at(p, (int32_t)y, (int32_t)x)->byte[c];
}

static inline float mix_at(const picture *p, float y, float x, int32_t c, bool is_mask)
{
    float left = floorf(x), top = floorf(y), w = x - left, n = y - top, e = 1 - w, s = 1 - n;
    float sum = sample_at(p, top, left, c, is_mask) * (s * e);
    sum = fmaf(sample_at(p, top, left + 1, c, is_mask), s * w, sum);
    sum = fmaf(sample_at(p, top + 1, left, c, is_mask), n * e, sum);
    return fmaf(sample_at(p, top + 1, left + 1, c, is_mask), n * w, sum);
}

static inline void
warp_picture(picture *p, int32_t channels, const fl_image_op *op, const fl_image_warp *w)
{
    picture new = make_picture(p->size.height, p->size.width);
    for (int32_t row = 0; row < p->size.height; row++)
        for (int32_t column = 0; column < p->size.width; column++) {
            float x = (float)column + w->origin_x, y = (float)row + w->origin_y;
            float to_x = (x * w->x[0] + y * w->x[1]) + w->x[2];
            float to_y = (x * w->y[0] + y * w->y[1]) + w->y[2];
            float z = (x * w->z[0] + y * w->z[1]) + w->z[2];
            if (w->is_perspective) to_x = to_x / z - 1, to_y = to_y / z - 1;
            x = fmaf(to_x + 1, (float)p->size.width / 2, -0.5f);
            y = fmaf(to_y + 1, (float)p->size.height / 2, -0.5f);
            for (int32_t c = 0; c < channels; c++) {
                float fill = (float)op->border[c], v;
                if (op->interpolation == FL_NEAREST) {
                    bool is_in = sample_at(p, rintf(y), rintf(x), c, true) > 0;
                    v = is_in ? sample_at(p, rintf(y), rintf(x), c, false) : isnan(fill) ? 0 : fill;
                } else {
                    v = mix_at(p, y, x, c, false);
                    if (!isnan(fill)) v = (v - fill) * mix_at(p, y, x, c, true) + fill;
                    if (isnan(v)) v = 0; /* beyond the horizon of a perspective */
                }
                pixel_at(&new, row, column)->byte[c] = (uint8_t)rintf(v);
            }
            pixel_at(&new, row, column)->fill = NOT_FILLED;
        }
    replace(p, new);
}

static inline void follow_warp(picture *p, const fl_image_op *ops, int32_t i,
                               const fl_image_params *at, int32_t channels)
{
    const fl_image_op *op = &ops[i];
    fl_image_warp warp;
    if (!at->is_applied) return;
    settle(p, ops);
    if (op->kind == FL_OP_PERSPECTIVE) {
        fl_warp_perspective(&warp, at->coefficients, p->size);
    } else {
        double angle = (double)at->affine.angle;
        fl_affine affine = {.angle = -angle + (angle < 0 ? -360 : 0), .scale = 1};
        if (op->kind == FL_OP_AFFINE)
            affine = (fl_affine){
                .angle = angle,
                .translate = {(double)at->affine.translate[0], (double)at->affine.translate[1]},
                .scale = (double)at->affine.scale,
                .shear = {(double)at->affine.shear[0], (double)at->affine.shear[1]}};
        if (!isnan(op->center[0])) {
            affine.center[0] = op->center[0] - p->size.width * 0.5;
            affine.center[1] = op->center[1] - p->size.height * 0.5;
        }
        fl_warp_affine(&warp, &affine, p->size, false);
    }
    warp_picture(p, channels, op, &warp);
}

static inline bool is_warp(fl_image_op_kind kind)
{
    return kind == FL_OP_ROTATION || kind == FL_OP_AFFINE || kind == FL_OP_PERSPECTIVE;
}

static inline void random_warp(uint64_t *seed, fl_image_op *op)
{
    static const double affine[] = {-170, 175, 0.3, 0.2, 0.4, 1.7, -30, 40, -10, 20};
    bool has_fill = random_below(seed, 3) > 0;
    bool has_center = random_below(seed, 3) == 0;
    memcpy(op->number, affine, sizeof affine);
    if (op->kind == FL_OP_PERSPECTIVE) op->distortion = 0.3;
    op->center[0] = has_center ? 3.5 : (double)NAN;
    op->center[1] = has_center ? 7 : (double)NAN;
    for (int c = 0; c < 4; c++)
        op->border[c] = has_fill ? (double)random_below(seed, 511) / 2 : (double)NAN;
    op->interpolation = random_below(seed, 2) ? FL_NEAREST : FL_BILINEAR;
}

#endif
