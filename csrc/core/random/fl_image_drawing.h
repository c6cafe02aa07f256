/* fl_image_drawing: what the files of fl_image_draws share while they draw for one image.
 *
 * Floor 1. A file draws one family of operations, with the words of torch's generator that
 * torchvision's operations take. One thread; nothing blocks or allocates. */
#ifndef FL_IMAGE_DRAWING_H
#define FL_IMAGE_DRAWING_H

#include "fl_image.h"
#include "fl_torch_random.h"

/* A perspective that takes the corners of an image, clockwise from the upper left one, to
 * `corner`. */
typedef struct fl_torch_tilt {
    fl_image_size size;
    int32_t corner[4][2]; /* x, y */
} fl_torch_tilt;

/* Functions that return torch's results, because the last bit of the C library's results may
 * differ. Each function returns 0, or -1 if the result is not known; the draw then fails. */
typedef struct fl_torch_answers {
    /* Computes torch.exp() of a float32 into *out. Called only if the last bit decides. */
    int (*exp)(void *context, float x, float *out);
    /* Computes the coefficients of a perspective. No later draw depends on them. */
    int (*tilt)(void *context, const fl_torch_tilt *tilt, float out[8]);
    /* Computes the weights of `taps` taps of a blur from the middle one outwards, taps / 2 + 1
     * numbers. No later draw depends on them. */
    int (*weigh)(void *context, int32_t taps, float sigma, float *out);
    void *context; /* borrowed */
} fl_torch_answers;

/* The choices that the versions of torchvision and torch make, beside the plan. */
typedef struct fl_draw_ways {
    bool is_v1; /* true: operations of torchvision.transforms, not of v2. RandomCrop of v1 draws two
                   numbers unless the size fits; v2 draws one number for each axis that is longer.
                   RandomApply of v1 also applies if the number is p itself. Operations on colours
                   of v1 compare p as double, not as float32. v1 draws no RandomChoice and no
                   RandomOrder from this generator */
    bool is_fused;                        /* see fl_torch_random_uniform */
    float log_ratio[FL_MAX_IMAGE_OPS][2]; /* for each operation: torch.log() of its ratio */
} fl_draw_ways;

/* The choices and the generator for drawing one image. */
typedef struct fl_image_drawing {
    const fl_draw_ways *ways; /* borrowed, like all pointers here */
    fl_torch_random *random;
    const fl_torch_answers *answers;
} fl_image_drawing;

/* Draws a float32 from limits. */
static inline float fl_draw_between(fl_image_drawing *with, const double limits[2])
{
    return fl_torch_random_uniform(with->random, (float)limits[0], (float)limits[1],
                                   with->ways->is_fused);
}

/* Draws a unit number. Returns true if it is below p as float32. */
static inline bool fl_draw_applied(fl_image_drawing *with, double p)
{
    return fl_torch_random_unit(with->random) < (float)p;
}

/* Draws a permutation of 0 to count - 1 into params->order, count <= FL_MAX_ORDER; later entries
 * become -1. */
static inline void fl_draw_order(fl_image_drawing *with, int32_t count, fl_image_params *params)
{
    int64_t order[FL_MAX_ORDER];
    fl_torch_random_permutation(with->random, count, order);
    for (int32_t k = 0; k < FL_MAX_ORDER; k++)
        params->order[k] = (int8_t)(k < count ? order[k] : -1);
}

#endif
