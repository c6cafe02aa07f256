/* fl_image_draws_color: see fl_image_draws_color.h. */
#include "fl_image_draws_color.h"

#include <math.h>

enum { JITTERED = 4, CONTRAST = 1 }; /* brightness, contrast, saturation and hue */

bool fl_draws_color(fl_image_op_kind kind)
{
    return kind >= FL_OP_INVERT && kind <= FL_OP_SHARPNESS;
}

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

int fl_check_color(const fl_image_op *op, fl_image_size in, fl_err *err)
{
    const bool jitters = op->kind == FL_OP_COLOR_JITTER || op->kind == FL_OP_PHOTOMETRIC_DISTORT;
    if (!jitters || isnan(op->jitter[CONTRAST][0]) || op->arithmetic == FL_BY_PIL) return FL_OK;
    if (is_contrast_known(op, in)) return FL_OK;
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

/* v1 compares a Python float with p, v2 a float32. */
static bool draw_gate(fl_image_drawing *with, double p)
{
    float unit = fl_torch_random_unit(with->random);
    return with->ways->is_v1 ? (double)unit < p : unit < (float)p;
}

int fl_draw_color(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                  fl_image_params *params, fl_err *err)
{
    switch (op->kind) {
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
    return fl_check_color(op, in, err);
}
