/* fl_warp_pil: turned, sheared and tilted images with the bits of Pillow's Image.transform.
 *
 * Floor 1. Images of 8 bits. Arithmetic is in doubles that are never fused, as in Pillow's wheels
 * for x86-64. Each result depends on the arguments only; any thread. */
#ifndef FL_WARP_PIL_H
#define FL_WARP_PIL_H

#include "fl_warp.h"

/* A pixel of the result at x, y, its middle, is read at m[0] x + m[1] y + m[2] and m[3] x + m[4] y
 * + m[5], divided by m[6] x + m[7] y + 1 if it is a perspective. */
typedef struct fl_warp_pil {
    double m[8];
    bool is_perspective;
    fl_interpolation how;          /* FL_NEAREST, FL_BILINEAR or FL_BICUBIC */
    uint8_t fill[FL_MAX_CHANNELS]; /* the bytes of pixels that are read outside of the image */
} fl_warp_pil;

/* Sets m as torchvision computes the matrix of affine(). v1 and v2 multiply in a different order.
 * Here the center of `affine` is counted from the upper left corner. */
void fl_warp_pil_affine(fl_warp_pil *out, const fl_affine *affine, bool is_v1);

/* Sets m as Image.rotate() does for degrees in [0, 360]. */
void fl_warp_pil_rotate(fl_warp_pil *out, double degrees, const double center[2]);

/* Writes all pixels of `to`, whose planes do not overlap the planes of `from` and have the same
 * size. A plane has less than 2^31 bytes. */
void fl_warp_pil_run(const fl_warp_pil *warp, int32_t channels, const fl_image_planes *from,
                     const fl_image_planes *to);

#endif
