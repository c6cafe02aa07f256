/* fl_op_blur: GaussianBlur. */
#include "fl_op.h"

#include "fl_blur.h"
#include "fl_tone.h"

static int check(const fl_image_op *op, fl_err *err)
{
    const double *sigma = op->blur_sigma;
    const int32_t taps[] = {op->size.width, op->size.height};
    for (int k = 0; k < 2; k++)
        if (taps[k] < 1 || taps[k] > FL_MAX_BLUR || taps[k] % 2 == 0)
            return fl_fail(
                err, FL_EINVAL,
                "GaussianBlur: kernel_size must be two odd numbers in [1, %d], got (%d, %d)",
                FL_MAX_BLUR, taps[0], taps[1]);
    if (sigma[0] > 0 && sigma[0] <= sigma[1] && sigma[1] <= 1e6) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "GaussianBlur: sigma must be (min, max) with 0 < min <= max, got (%g, %g)",
                   sigma[0], sigma[1]);
}

/* Edges are reflected, so an image must be longer than half the taps. A position in a plane
 * has 32 bits. */
static int size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    *out = in;
    int64_t area = ((int64_t)in.height + FL_MAX_BLUR) * ((int64_t)in.width + FL_MAX_BLUR);
    bool fits = op->size.width / 2 < in.width && op->size.height / 2 < in.height;
    if (!fl_size_is_known(in) || (fits && area <= INT32_MAX)) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "GaussianBlur: half of kernel_size must be below the edges of an image of at "
                   "most 2^31 pixels, got (%d, %d) and an image of (%d, %d)",
                   op->size.width, op->size.height, in.height, in.width);
}

static void
draw(const fl_image_op *op, const fl_sample_key *key, fl_image_size in, fl_image_params *params)
{
    (void)in;
    params->blur.sigma = fl_op_between(fl_op_random(op, key, 0).word[0], op->blur_sigma);
    params->blur.weight[0] = 0;
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    (void)i;
    const float *given = params->blur.weight[0] > 0 ? params->blur.weight : NULL;
    return fl_tone_blur(view, op->size, params->blur.sigma, given, err);
}

const fl_op_type fl_op_blur = {.name = "GaussianBlur",
                               .is_drawn = true,
                               .check = check,
                               .size = size,
                               .draw = draw,
                               .apply = apply};
