/* fl_warp: where the pixels of a turned, sheared or tilted image come from, as torchvision computes
 * the positions.
 *
 * Floor 1. Each result depends on the arguments only. The caller sets is_bilinear and fill of the
 * results. */
#ifndef FL_WARP_H
#define FL_WARP_H

#include "fl_image.h"

/* Angles are in degrees. */
typedef struct fl_affine {
    double angle, scale;
    double translate[2], shear[2], center[2]; /* x, y */
} fl_affine;

/* Computes the matrix of torchvision's affine(). v1 and v2 multiply in a different order. */
void fl_affine_matrix(double m[6], const fl_affine *affine, bool is_v1);

/* Computes the warp of torchvision's affine() of a tensor. affine->center is relative to the middle
 * of the image. */
void fl_warp_affine(fl_image_warp *out, const fl_affine *affine, fl_image_size size, bool is_v1);

/* Computes the eight coefficients that take the corners `to` of the result to the corners `from` of
 * the image. If there are no such coefficients, computes the coefficients that change nothing. */
void fl_warp_coefficients(double from[4][2], double to[4][2], float *coefficients);
void fl_warp_perspective(fl_image_warp *out, const float *coefficients, fl_image_size size);

#endif
