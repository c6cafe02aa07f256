/* fl_box_blur: the Gaussian blur of Pillow: three means over a box in x, then three in y.
 *
 * Floor 1. Any thread. */
#ifndef FL_BOX_BLUR_H
#define FL_BOX_BLUR_H

#include "fl_image_ops.h"

/* Pixels of `pixel_bytes` bytes, 1 or 4, without gaps. */
typedef struct fl_box_image {
    uint8_t *data; /* borrowed */
    int64_t rows, columns, pixel_bytes;
} fl_box_image;

enum { FL_MAX_BOX_RADIUS = 1024 }; /* of a Gaussian */

/* Returns the box whose means make a Gaussian with this radius. */
fl_box fl_box_of(float radius);

/* Blurs in place by a Gaussian with this radius in (0, FL_MAX_BOX_RADIUS]; each byte of a pixel is
 * a channel. FL_ENOMEM: nothing has changed. */
int fl_box_blur(const fl_image_ops *ops, const fl_box_image *image, float radius, fl_err *err);

#endif
