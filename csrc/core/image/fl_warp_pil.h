/* fl_warp_pil: the matrices of turned images with the bits of Pillow's Image.rotate.
 *
 * Floor 1. Arithmetic is in doubles that are never fused, as in Pillow's wheels for x86-64. Each
 * result depends on the arguments only; any thread. */
#ifndef FL_WARP_PIL_H
#define FL_WARP_PIL_H

#include "fl_warp.h"

/* Sets m as Image.rotate() does for degrees in [0, 360]. */
void fl_warp_pil_rotate(fl_warp_pil *out, double degrees, const double center[2]);

#endif
