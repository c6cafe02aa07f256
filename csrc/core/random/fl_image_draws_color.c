/* fl_image_draws_color: see fl_image_draws_color.h. */
#include "fl_image_draws_color.h"

#include "fl_blur.h"

#include <math.h>

enum { JITTERED = 4, CONTRAST = 1 }; /* brightness, contrast, saturation and hue */

bool fl_draws_color(fl_image_op_kind kind) { return kind >= FL_OP_INVERT && kind <= FL_OP_BLUR; }

/* Returns true if torch's contrast of such tensors depends on the image alone: the sum of the grey
 * bytes is exact in float32, because threads may add in any order; and with v2, vectors take all
 * bytes, because the loop after them rounds in its own way. */
static bool is_contrast_known(const fl_image_op *op, fl_image_size in)
{
    enum { EXACT_PIXELS = (1 << 24) / 255, VECTOR_BYTES = 16 };
    const int64_t pixels = (int64_t)in.height * in.width;
    if (op->arithmetic == FL_BY_TENSOR_V2 && pixels * op->channels % VECTOR_BYTES != 0)
        return false;
    return pixels <= EXACT_PIXELS;
}

/* torch sums small images of one channel with three taps in an order of its own. */
static int check_blur(const fl_image_op *op, fl_err *err)
{
    const int32_t x = op->size.width, y = op->size.height;
    const bool is_grey_and_short = op->channels == 1 && (x <= 3 || y <= 3);
    const bool is_known = op->arithmetic == FL_BY_PIL && !is_grey_and_short;
    if (is_known && fl_blur_given(x, y) <= FL_GIVEN_WEIGHTS) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "fastloop does not know how torch blurs %d channels with (%d, %d) taps",
                   op->channels, x, y);
}

int fl_check_color(const fl_image_op *op, fl_image_size in, fl_err *err)
{
    if (op->kind == FL_OP_BLUR) return check_blur(op, err);
    const bool mixes = op->kind == FL_OP_AUG_MIX && op->aug_mix.has_all != 0;
    const bool jitters = op->kind == FL_OP_COLOR_JITTER || op->kind == FL_OP_PHOTOMETRIC_DISTORT;
    const bool has_contrast = mixes || (jitters && !isnan(op->jitter[CONTRAST][0]));
    if (!has_contrast || op->arithmetic == FL_BY_PIL || is_contrast_known(op, in)) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "torch changes the contrast of tensors of (%d, %d) in a way that depends on the "
                   "machine",
                   in.height, in.width);
}

/* Draws the new value of change n, if there is one. */
static void
draw_change(fl_image_drawing *with, const fl_image_op *op, int n, fl_image_params *params)
{
    params->change[n] = isnan(op->jitter[n][0]) ? NAN : fl_draw_between(with, op->jitter[n]);
}

static void draw_jitter(fl_image_drawing *with, const fl_image_op *op, fl_image_params *params)
{
    fl_draw_order(with, JITTERED, params);
    for (int n = 0; n < JITTERED; n++) draw_change(with, op, n, params);
}

static void draw_distort(fl_image_drawing *with, const fl_image_op *op, fl_image_params *params)
{
    for (int n = 0; n < JITTERED; n++) {
        params->change[n] = NAN;
        if (fl_draw_applied(with, op->p)) draw_change(with, op, n, params);
    }
    params->is_early = fl_draw_applied(with, 0.5);
    params->order[0] = -1;
    if (fl_draw_applied(with, op->p)) fl_draw_order(with, op->channels, params);
}

/* Draws sigma, and asks for the weights. */
static int
draw_blur(fl_image_drawing *with, const fl_image_op *op, fl_image_params *params, fl_err *err)
{
    const fl_torch_answers *answers = with->answers;
    const int32_t taps[] = {op->size.width, op->size.height};
    float sigma = fl_draw_between(with, op->blur_sigma), *weight = params->blur.weight;
    params->blur.sigma = sigma;
    int status = answers->weigh(answers->context, taps[0], sigma, weight);
    if (status == 0 && taps[1] != taps[0])
        status = answers->weigh(answers->context, taps[1], sigma, weight + taps[0] / 2 + 1);
    return status == 0 ? FL_OK : fl_fail(err, FL_EINVAL, "torch has found no weights of a blur");
}

/* v1 compares a Python float with p, v2 a float32. */
static bool draw_gate(fl_image_drawing *with, double p)
{
    float unit = fl_torch_random_unit(with->random);
    return with->ways->is_v1 ? (double)unit < p : unit < (float)p;
}

int fl_draw_color(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                  fl_image_params *params, fl_err *err)
{
    FL_TRY(fl_check_color(op, in, err));
    switch (op->kind) {
    case FL_OP_BLUR:
        return draw_blur(with, op, params, err);
    case FL_OP_GRAYSCALE:
        break;
    case FL_OP_RANDOM_GRAYSCALE:
        params->is_applied = fl_draw_applied(with, op->p);
        break;
    case FL_OP_CHANNEL_PERMUTATION:
        fl_draw_order(with, op->channels, params);
        break;
    case FL_OP_COLOR_JITTER:
        draw_jitter(with, op, params);
        break;
    case FL_OP_PHOTOMETRIC_DISTORT:
        draw_distort(with, op, params);
        break;
    default:
        params->is_applied = draw_gate(with, op->p);
    }
    return FL_OK;
}
