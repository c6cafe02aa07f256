/* fl_tone: operations on a view that compute pixels, as torchvision and Pillow compute uint8
 * images: view->arithmetic says which.
 *
 * Floor 1. If an operation changes each byte by itself, the view keeps the change as a table until
 * pixels are read, so that several such operations are one pass. One thread. Every function may
 * fail with FL_ENOMEM. */
#ifndef FL_TONE_H
#define FL_TONE_H

#include "fl_image_view.h"

/* Applies one of FL_TONE_INVERT to FL_TONE_SHARPNESS. */
int fl_tone_apply(fl_image_view *view, fl_tone tone, double number, fl_err *err);

/* Blurs with `taps`, which are odd and at most FL_MAX_BLUR; both edges are longer than half the
 * taps. `given`: see fl_blur_make. */
int fl_tone_blur(fl_image_view *view, fl_image_size taps, float sigma, const float *given,
                 fl_err *err);

/* Samples the image as `warp` says; `op` is the operation, whose fill bytes are 0. */
int fl_tone_warp(fl_image_view *view, int32_t op, const fl_image_warp *warp, fl_err *err);

/* Moves the image by less than its edges. The uncovered part is 0, and so are the fill bytes of
 * `op`. */
int fl_tone_shift(fl_image_view *view, int32_t op, int32_t x, int32_t y, fl_err *err);

/* Turns an image with equal edges by a quarter, against the clock or with it. */
int fl_tone_quarter(fl_image_view *view, bool is_clockwise, fl_err *err);

/* Makes a grey image with `channels` (1 or 3), from an image with 1 or 3. */
int fl_tone_grey(fl_image_view *view, int32_t channels, fl_err *err);

/* Permutes channels: channel order[k] becomes channel k. */
int fl_tone_permute(fl_image_view *view, const int8_t *order, fl_err *err);

#endif
