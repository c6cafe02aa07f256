/* fl_image_draws_warp: the parameters of rotations, shears and perspectives as torchvision draws
 * them.
 *
 * Floor 1. Only fl_image_draws calls these functions. One thread; nothing blocks or allocates. */
#ifndef FL_IMAGE_DRAWS_WARP_H
#define FL_IMAGE_DRAWS_WARP_H

#include "fl_image_drawing.h"

/* Returns true for operations that fl_draw_warp draws. */
bool fl_draws_warp(fl_image_op_kind kind);

/* Draws a rotation, a shear or a perspective for an image of size `in`. FL_EINVAL: the coefficients
 * are not known. */
int fl_draw_warp(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                 fl_image_params *params, fl_err *err);

#endif
