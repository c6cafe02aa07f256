/* fl_op_tone: operations on colours that have at most one argument beside their probability, and
 * how the CPU applies all operations on colours. */
#include "fl_op.h"

#include "fl_tone.h"

static const char *const names[FL_OP_KINDS] = {
    [FL_OP_INVERT] = "RandomInvert",
    [FL_OP_SOLARIZE] = "RandomSolarize",
    [FL_OP_POSTERIZE] = "RandomPosterize",
    [FL_OP_AUTOCONTRAST] = "RandomAutocontrast",
    [FL_OP_EQUALIZE] = "RandomEqualize",
    [FL_OP_SHARPNESS] = "RandomAdjustSharpness",
    [FL_OP_RANDOM_GRAYSCALE] = "RandomGrayscale",
};

static int check(const fl_image_op *op, fl_err *err)
{
    double number = op->tone;
    if (op->kind == FL_OP_SOLARIZE && !(number <= 255))
        return fl_fail(err, FL_EINVAL, "RandomSolarize: threshold must be at most 255, got %g",
                       number);
    if (op->kind == FL_OP_POSTERIZE && !(number >= 0 && number <= 8))
        return fl_fail(err, FL_EINVAL, "RandomPosterize: bits must be in [0, 8], got %g", number);
    if (op->kind == FL_OP_SHARPNESS && !(number >= 0))
        return fl_fail(err, FL_EINVAL,
                       "RandomAdjustSharpness: sharpness_factor must be >= 0, got %g", number);
    return fl_op_check_p(names[op->kind], op->p, err);
}

static int
apply_step(const fl_image_op *op, const fl_color_step *step, fl_image_view *view, fl_err *err)
{
    const bool is_drawn = op->kind == FL_OP_COLOR_JITTER || op->kind == FL_OP_PHOTOMETRIC_DISTORT;
    const int32_t channels =
        op->kind == FL_OP_GRAYSCALE ? (int32_t)op->grey_channels : view->tools.channels;
    if (step->tone == FL_TONE_GREY) return fl_tone_grey(view, channels, err);
    if (step->tone == FL_TONE_PERMUTE) return fl_tone_permute(view, step->order, err);
    /* Pillow takes arguments as Python's numbers, so as doubles. */
    return fl_tone_apply(view, (fl_tone)step->tone, is_drawn ? (double)step->number : op->tone,
                         err);
}

int fl_op_apply_steps(const fl_image_op *op, int32_t i, const fl_image_params *params,
                      fl_image_view *view, fl_err *err)
{
    (void)i;
    fl_color_step steps[FL_MOST_STEPS];
    const int32_t count = fl_op_find_steps(op, params, steps);
    for (int32_t n = 0; n < count; n++) FL_TRY(apply_step(op, &steps[n], view, err));
    return FL_OK;
}

#define FL_TONE_TYPE(shown, has_color)                                          \
    {                                                                           \
        .name = shown, .is_drawn = true, .is_color = has_color, .check = check, \
        .draw = fl_op_draw_applied, .apply = fl_op_apply_steps                  \
    }

const fl_op_type fl_op_invert = FL_TONE_TYPE("RandomInvert", false);
const fl_op_type fl_op_solarize = FL_TONE_TYPE("RandomSolarize", false);
const fl_op_type fl_op_posterize = FL_TONE_TYPE("RandomPosterize", false);
const fl_op_type fl_op_equalize = FL_TONE_TYPE("RandomEqualize", false);
const fl_op_type fl_op_autocontrast = FL_TONE_TYPE("RandomAutocontrast", true);
const fl_op_type fl_op_sharpness = FL_TONE_TYPE("RandomAdjustSharpness", true);
const fl_op_type fl_op_random_grayscale = FL_TONE_TYPE("RandomGrayscale", true);

static int check_grayscale(const fl_image_op *op, fl_err *err)
{
    if (op->grey_channels == 1 || op->grey_channels == 3) return FL_OK;
    return fl_fail(err, FL_EINVAL, "Grayscale: num_output_channels must be 1 or 3, got %g",
                   op->grey_channels);
}

const fl_op_type fl_op_grayscale = {
    .name = "Grayscale", .is_color = true, .check = check_grayscale, .apply = fl_op_apply_steps};
