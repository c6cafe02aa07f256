/* fl_image_draws_policy: the parameters of RandAugment, TrivialAugmentWide, AutoAugment and
 * AugMix as torchvision draws them.
 *
 * Floor 1. Only fl_image_draws calls these functions. One thread; nothing blocks or allocates. */
#ifndef FL_IMAGE_DRAWS_POLICY_H
#define FL_IMAGE_DRAWS_POLICY_H

#include "fl_image_drawing.h"

/* Returns true for operations that fl_draw_policy draws. */
bool fl_draws_policy(fl_image_op_kind kind);

/* Draws the operations of a policy, and their strengths, for an image of size `in`, and checks
 * them with fl_check_color. */
int fl_draw_policy(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                   fl_image_params *params, fl_err *err);

#endif
