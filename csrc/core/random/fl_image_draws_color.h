/* fl_image_draws_color: the parameters of operations on colours as torchvision draws them.
 *
 * Floor 1. Only fl_image_draws calls these functions. One thread; nothing blocks or allocates. */
#ifndef FL_IMAGE_DRAWS_COLOR_H
#define FL_IMAGE_DRAWS_COLOR_H

#include "fl_image_drawing.h"

/* Returns true for operations that fl_draw_color draws. */
bool fl_draws_color(fl_image_op_kind kind);

/* Checks that the pixels of an image of size `in` follow from the image and the parameters alone:
 * FL_EINVAL if torch's pixels depend on the machine. */
int fl_check_color(const fl_image_op *op, fl_image_size in, fl_err *err);

/* Draws an operation on colours for an image of size `in`, and checks it. */
int fl_draw_color(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                  fl_image_params *params, fl_err *err);

#endif
