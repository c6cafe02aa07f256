/* policy_fixture.h: what the operations that a policy drew do to a picture, by their numbers in
 * torchvision's table. */
#ifndef POLICY_FIXTURE_H
#define POLICY_FIXTURE_H

#include "tone_fixture.h"
#include "warp_fixture.h"

static inline bool is_policy(fl_image_op_kind kind)
{
    return (kind >= FL_OP_RAND_AUGMENT && kind <= FL_OP_AUTO_AUGMENT) || kind == FL_OP_AUG_MIX;
}

/* 1 to 5: shears, translations, a rotation. */
static inline void
move_picture(picture *p, const fl_image_op *op, int32_t channels, int which, double magnitude)
{
    fl_affine affine = {.scale = 1};
    fl_image_warp warp;
    if (which <= 2) {
        affine.shear[which - 1] = atan(magnitude) * (180 / 3.14159265358979323846);
        affine.center[0] = -p->size.width * 0.5, affine.center[1] = -p->size.height * 0.5;
    } else if (which <= 4) {
        affine.translate[which - 3] = trunc(magnitude);
    } else {
        affine.angle = -(magnitude < 0 ? magnitude + 360 : magnitude);
    }
    if (which == 5 && magnitude == 0) return;
    fl_warp_affine(&warp, &affine, p->size, false);
    warp_picture(p, channels, op, &warp);
}

/* Operations `which` of such magnitudes, up to one that is not there. */
static inline void follow_ops(picture *p, const fl_image_op *ops, int32_t i,
                              const int8_t *which_ops, const float *magnitudes, int32_t channels)
{
    static const int jitter[] = {[6] = 0, [7] = 2, [8] = 1};
    const fl_image_arithmetic how = ops[i].arithmetic;
    for (int k = 0; which_ops[k] >= 0 && which_ops[k] < 100; k++) {
        int which = which_ops[k];
        double magnitude = (double)magnitudes[k];
        bool is_small = p->size.height <= 2 || p->size.width <= 2;
        bool stays = which == 0 || (which == 5 && magnitude == 0) || (which == 9 && is_small) ||
                     (which == 7 && channels != 3);
        if (!stays) settle(p, ops);
        if (stays) continue;
        if (which <= 5)
            move_picture(p, &ops[i], channels, which, magnitude);
        else if (which <= 8)
            jitter_by(p, ops, how, channels, jitter[which], 1 + magnitude);
        else if (which == 9)
            sharpen_picture(p, channels, 1 + magnitude, how);
        else if (which == 10)
            posterize_picture(p, channels, (int)magnitude);
        else if (which == 11)
            invert_from(p, channels, (float)(255 * magnitude));
        else if (which == 12)
            autocontrast_picture(p, channels, how);
        else if (which == 13)
            equalize_picture(p, channels);
        else
            invert_from(p, channels, 0);
    }
}

/* The image times its weight, and each chain's image times its own, in this order. */
static inline void follow_mix(picture *p, const fl_image_op *ops, int32_t i,
                              const fl_image_params *at, int32_t channels)
{
    int64_t count = count_pixels(p);
    int32_t chains = (int32_t)ops[i].number[1], place = 0, used = 1 + chains;
    settle(p, ops);
    picture base = copy_picture(p);
    float *sums = malloc((size_t)(count * channels) * sizeof *sums);
    for (int64_t k = 0; k < count * channels; k++)
        sums[k] = (float)base.pixels[k / channels].byte[k % channels] * at->number[0];
    for (int32_t chain = 0; chain < chains; chain++) {
        replace(p, copy_picture(&base));
        follow_ops(p, ops, i, &at->order[place], &at->number[used], channels);
        settle(p, ops);
        for (; at->order[place] != 100; place++) used++;
        place++;
        for (int64_t k = 0; k < count * channels; k++)
            sums[k] += (float)p->pixels[k / channels].byte[k % channels] * at->number[1 + chain];
    }
    for (int64_t k = 0; k < count * channels; k++)
        p->pixels[k / channels].byte[k % channels] = (uint8_t)sums[k];
    free(sums);
    free(base.pixels);
}

static inline void follow_policy(picture *p, const fl_image_op *ops, int32_t i,
                                 const fl_image_params *at, int32_t channels)
{
    if (ops[i].kind == FL_OP_AUG_MIX)
        follow_mix(p, ops, i, at, channels);
    else
        follow_ops(p, ops, i, at->order, at->number, channels);
}

static inline void random_policy(uint64_t *seed, fl_image_op *op)
{
    random_warp(seed, op);
    op->center[0] = op->center[1] = (double)NAN;
    op->number[0] = (double)random_below(seed, op->kind == FL_OP_AUTO_AUGMENT ? 3 : 5);
    op->number[1] = (double)random_below(seed, 12), op->number[2] = 12;
    if (op->kind != FL_OP_AUG_MIX) return;
    op->number[0] = 1 + (double)random_below(seed, 10),
    op->number[1] = 1 + (double)random_below(seed, 3);
    op->number[2] = (double)random_below(seed, 4), op->number[3] = 1, op->number[4] = 1;
}

#endif
