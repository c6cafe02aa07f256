/* fl_blur: the weights of a Gaussian blur, as torchvision computes them.
 *
 * Floor 1. The functions depend on their arguments only. */
#ifndef FL_BLUR_H
#define FL_BLUR_H

#include "fl_image_ops.h"

enum { FL_MAX_BLUR = 127 }; /* taps in a row */

/* Returns how many floats fl_blur_make writes for width * height taps. */
int64_t fl_blur_floats(int32_t width, int32_t height);

/* Returns how many weights a blur of `width` by `height` taps must be given: see
 * fl_image_params.blur. */
int32_t fl_blur_given(int32_t width, int32_t height);

/* Computes the weights of `width` by `height` taps, both odd, for this sigma > 0; `given`: the
 * weights of one half, as fl_image_params.blur has them, or NULL. The weights are in `memory`,
 * which *out borrows. */
void fl_blur_make(fl_image_blur *out, int32_t width, int32_t height, float sigma,
                  const float *given, float *memory);

#endif
