/* fl_resample: where the samples of a resized axis come from, and their weights.
 *
 * Floor 1. The arithmetic is that of torch's interpolate(antialias=True) over uint8 (bilinear and
 * bicubic) and of its nearest modes: weights in double, rounded to int16 multiples of
 * 2^-precision. Or that of Pillow's resize of 8-bit images: weights of 22 bits, in two halves. */
#ifndef FL_RESAMPLE_H
#define FL_RESAMPLE_H

#include "fl_base.h"

typedef enum fl_interpolation {
    FL_NEAREST,
    FL_NEAREST_EXACT,
    FL_BILINEAR,
    FL_BICUBIC,
    FL_PILLOW_BILINEAR,
    FL_PILLOW_BICUBIC,
    FL_PILLOW_13_BILINEAR, /* the same weights; fl_image_view has another order */
    FL_PILLOW_13_BICUBIC,
    FL_INTERPOLATIONS
} fl_interpolation;

/* Sample i of the result is
 *     clamp((sum over k < taps of weight[i * taps + k] * x[first[i] + k] + half) >> precision,
 *           0, 255), half = 1 << (precision - 1),
 * and x[first[i]] for the nearest modes, whose taps are 1 and weights NULL. Where `low` is not
 * NULL, 256 * weight + low is the weight. count[i] <= taps of the weights are samples; those behind
 * are 0, and first[i] + count[i] <= in. Both first[i] and first[i] + count[i] grow with i or stay.
 *
 * Samples [i, i + n) of the result alone: a copy whose `first`, `count`, `weight` and `low` begin
 * at i, with out = n and in = first[i + n - 1] + count[i + n - 1]. It owns nothing. */
typedef struct fl_resample {
    int32_t in, out;   /* lengths, >= 1 */
    int32_t taps;      /* an even number, or 1 for the nearest modes */
    int32_t precision; /* <= 22 */
    int32_t *first;    /* [out] */
    int32_t *count;    /* [out] */
    int16_t *weight;   /* [out][taps], aligned like any int16_t; 64 bytes longer than that */
    int16_t *low;      /* likewise, 0 to 255; or NULL */
    int64_t capacity;  /* bytes at `memory` */
    void *memory;      /* owned: what the pointers above point into */
} fl_resample;

/* Weight i * taps + k. */
static inline int32_t fl_resample_weight(const fl_resample *axis, int64_t k)
{
    return axis->low != NULL ? axis->weight[k] * 256 + axis->low[k] : axis->weight[k];
}

/* Makes *axis, zeroed or made before, that of these lengths; allocates only if it has never been as
 * large. FL_OK, FL_ENOMEM. */
int fl_resample_make(fl_resample *axis, fl_interpolation how, int32_t in, int32_t out, fl_err *err);
void fl_resample_close(fl_resample *axis);

/* At most how many samples of an axis of `in` or fewer make one of the result. */
int32_t fl_resample_most_taps(fl_interpolation how, int32_t in, int32_t out);

#endif
