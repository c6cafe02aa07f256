/* fl_op_noise: GaussianNoise. */
#include "fl_op.h"

static int check(const fl_image_op *op, fl_err *err)
{
    double mean = op->noise.mean, sigma = op->noise.sigma;
    if (sigma >= 0 && sigma <= 20 && mean >= -20 && mean <= 20) return FL_OK;
    return fl_fail(
        err, FL_EINVAL,
        "GaussianNoise: mean must be in [-20, 20] and sigma in [0, 20], got mean=%g and sigma=%g",
        mean, sigma);
}

static void
draw(const fl_image_op *op, const fl_sample_key *key, fl_image_size in, fl_image_params *params)
{
    (void)in;
    fl_philox_block block = fl_op_random(op, key, 0);
    params->seed = (uint64_t)block.word[1] << 32 | block.word[0];
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    (void)i;
    const fl_image_noise noise = {.key = params->seed,
                                  .mean = (float)(op->noise.mean * 255),
                                  .scale = (float)(op->noise.sigma * 255),
                                  .clips = op->noise.clips != 0};
    fl_image_planes planes;
    FL_TRY(fl_image_view_own(view, true, &planes, err));
    fl_image_view_look_up(view);
    for (int32_t c = 0; c < view->tools.channels; c++, planes.data += planes.plane)
        view->tools.image_ops->tone.add_noise(&planes, c * planes.rows * planes.columns, &noise);
    return FL_OK;
}

const fl_op_type fl_op_noise = {
    .name = "GaussianNoise", .is_drawn = true, .check = check, .draw = draw, .apply = apply};
