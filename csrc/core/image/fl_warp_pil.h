/* fl_warp_pil: the matrices of turned and sheared images with the bits of Pillow's Image.transform.
 *
 * Floor 1. Arithmetic is in doubles that are never fused, as in Pillow's wheels for x86-64. Each
 * result depends on the arguments only; any thread. */
#ifndef FL_WARP_PIL_H
#define FL_WARP_PIL_H

#include "fl_warp.h"

/* Sets m as torchvision computes the matrix of affine(). v1 and v2 multiply in a different order.
 * Here the center of `affine` is counted from the upper left corner. */
void fl_warp_pil_affine(fl_warp_pil *out, const fl_affine *affine, bool is_v1);

/* Sets m as Image.rotate() does for degrees in [0, 360]. */
void fl_warp_pil_rotate(fl_warp_pil *out, double degrees, const double center[2]);

#endif
