/* policy_fixture.h: what the operations that a policy drew do to a picture, by their numbers in
 * torchvision's table. */
#ifndef POLICY_FIXTURE_H
#define POLICY_FIXTURE_H

#include "tone_fixture.h"
#include "warp_fixture.h"

static inline bool is_policy(fl_image_op_kind kind)
{
    return kind >= FL_OP_RAND_AUGMENT && kind <= FL_OP_AUTO_AUGMENT;
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
    fl_warp_affine(&warp, &affine, p->size);
    warp_picture(p, channels, op, &warp);
}

static inline void follow_policy(picture *p, const fl_image_op *ops, int32_t i,
                                 const fl_image_params *at, int32_t channels)
{
    static const int jitter[] = {[6] = 0, [7] = 2, [8] = 1};
    for (int k = 0; k < FL_DRAWN_NUMBERS && at->order[k] >= 0; k++) {
        int which = at->order[k];
        double magnitude = (double)at->number[k];
        bool is_small = p->size.height <= 2 || p->size.width <= 2;
        bool stays = which == 0 || (which == 5 && magnitude == 0) || (which == 9 && is_small) ||
                     (which == 7 && channels != 3);
        if (!stays) settle(p, ops);
        if (stays) continue;
        if (which <= 5)
            move_picture(p, &ops[i], channels, which, magnitude);
        else if (which <= 8)
            jitter_by(p, ops, channels, jitter[which], 1 + magnitude);
        else if (which == 9)
            sharpen_picture(p, channels, 1 + magnitude);
        else if (which == 10)
            posterize_picture(p, channels, (int)magnitude);
        else if (which == 11)
            invert_from(p, channels, (float)(255 * magnitude));
        else if (which == 12)
            autocontrast_picture(p, channels);
        else if (which == 13)
            equalize_picture(p, channels);
        else
            invert_from(p, channels, 0);
    }
}

static inline void random_policy(uint64_t *seed, fl_image_op *op)
{
    random_warp(seed, op);
    op->number[10] = op->number[11] = (double)NAN;
    op->number[0] = (double)random_below(seed, op->kind == FL_OP_AUTO_AUGMENT ? 3 : 5);
    op->number[1] = (double)random_below(seed, 12), op->number[2] = 12;
}

#endif
