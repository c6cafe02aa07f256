/* fl_tone: what operations that compute pixels do to a view, as torchvision computes uint8 images.
 *
 * Floor 1. Those that change each byte by itself are tables that the view keeps until somebody
 * reads pixels, so that several of them are one pass. Where a device computes the pixels,
 * fl_tone_apply, fl_tone_grey and fl_tone_permute note a step instead. One thread. */
#ifndef FL_TONE_H
#define FL_TONE_H

#include "fl_image_view.h"

/* Of FL_TONE_INVERT to FL_TONE_SHARPNESS. FL_ENOMEM. */
int fl_tone_apply(fl_image_view *view, fl_tone tone, double number, fl_err *err);

/* A Gaussian blur of `taps`, which are odd and at most FL_MAX_BLUR, in images that are longer than
 * half of them. FL_ENOMEM. */
int fl_tone_blur(fl_image_view *view, fl_image_size taps, float sigma, fl_err *err);

/* The image that is sampled as `warp` says; `op` is the operation, whose fill bytes are 0.
 * FL_ENOMEM. */
int fl_tone_warp(fl_image_view *view, int32_t op, const fl_image_warp *warp, fl_err *err);

/* Moves the image by less than its edges; what is uncovered is 0, as are the fill bytes of `op`.
 * FL_ENOMEM. */
int fl_tone_shift(fl_image_view *view, int32_t op, int32_t x, int32_t y, fl_err *err);

/* A quarter turn against the clock, or with it, of an image with equal edges. FL_ENOMEM. */
int fl_tone_quarter(fl_image_view *view, bool is_clockwise, fl_err *err);

/* An image of `channels` (1 or 3) that are grey, of one of 1 or 3. FL_ENOMEM. */
int fl_tone_grey(fl_image_view *view, int32_t channels, fl_err *err);

/* Channel order[k] becomes channel k. FL_ENOMEM. */
int fl_tone_permute(fl_image_view *view, const int8_t *order, fl_err *err);

#endif
