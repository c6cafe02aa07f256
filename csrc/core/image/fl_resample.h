/* fl_resample: the source samples of a resized axis, and their weights.
 *
 * Floor 1. The arithmetic is either torch's or Pillow's. torch's interpolate(antialias=True) over
 * uint8 (bilinear and bicubic) has weights in double, rounded to int16 multiples of 2^-precision;
 * the nearest modes are also torch's. Pillow's resize of 8-bit images has weights of 22 bits, in
 * two halves. */
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
    FL_PILLOW_13_BILINEAR, /* the same weights; fl_image_view may begin with columns */
    FL_PILLOW_13_BICUBIC,
    FL_INTERPOLATIONS
} fl_interpolation;

/* Sample i of the result is
 *     clamp((sum over k < taps of weight[i * taps + k] * x[first[i] + k] + half) >> precision,
 *           0, 255), half = 1 << (precision - 1).
 * For the nearest modes sample i is x[first[i]], taps is 1, and weight is NULL. If `low` is not
 * NULL, the whole weight is 256 * weight + low. The first count[i] <= taps weights are for samples,
 * the rest are 0, and first[i] + count[i] <= in. Neither first[i] nor first[i] + count[i] ever
 * falls as i grows.
 *
 * For samples [i, i + n) of the result alone, make a copy whose `first`, `count`, `weight` and
 * `low` begin at i, with out = n and in = first[i + n - 1] + count[i + n - 1]. The copy owns
 * nothing. */
typedef struct fl_resample {
    int32_t in, out;   /* lengths, >= 1 */
    int32_t taps;      /* an even number, or 1 for the nearest modes */
    int32_t precision; /* <= 22 */
    int32_t *first;    /* [out] */
    int32_t *count;    /* [out] */
    int16_t *weight;   /* [out][taps], aligned like any int16_t, with 64 more bytes of memory */
    int16_t *low;      /* the same shape, 0 to 255; or NULL */
    int64_t capacity;  /* bytes at `memory` */
    void *memory;      /* owned: the memory of the four arrays */
} fl_resample;

/* Returns weight i * taps + k, for k of all weights. */
static inline int32_t fl_resample_weight(const fl_resample *axis, int64_t k)
{
    return axis->low != NULL ? axis->weight[k] * 256 + axis->low[k] : axis->weight[k];
}

/* Makes *axis the table for these lengths. *axis is zeroed, or was made before; memory is allocated
 * only if the table is larger than ever. FL_OK, FL_ENOMEM. */
int fl_resample_make(fl_resample *axis, fl_interpolation how, int32_t in, int32_t out, fl_err *err);
void fl_resample_close(fl_resample *axis);

/* Returns the most samples, of an axis of at most `in`, that make one sample of the result. */
int32_t fl_resample_most_taps(fl_interpolation how, int32_t in, int32_t out);

#endif
