/* fl_op_tone: operations on colours that have at most one argument beside their probability. */
#include "fl_op.h"

#include "fl_tone.h"

static const struct {
    const char *name;
    fl_tone tone;
} by_kind[FL_OP_KINDS] = {
    [FL_OP_INVERT] = {"RandomInvert", FL_TONE_INVERT},
    [FL_OP_SOLARIZE] = {"RandomSolarize", FL_TONE_SOLARIZE},
    [FL_OP_POSTERIZE] = {"RandomPosterize", FL_TONE_POSTERIZE},
    [FL_OP_AUTOCONTRAST] = {"RandomAutocontrast", FL_TONE_AUTOCONTRAST},
    [FL_OP_EQUALIZE] = {"RandomEqualize", FL_TONE_EQUALIZE},
    [FL_OP_SHARPNESS] = {"RandomAdjustSharpness", FL_TONE_SHARPNESS},
    [FL_OP_RANDOM_GRAYSCALE] = {.name = "RandomGrayscale"},
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
    return fl_op_check_p(by_kind[op->kind].name, op->p, err);
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    (void)i;
    if (!params->is_applied) return FL_OK;
    return fl_tone_apply(view, by_kind[op->kind].tone, op->tone, err);
}

#define FL_TONE_TYPE(shown, has_color)                                          \
    {                                                                           \
        .name = shown, .is_drawn = true, .is_color = has_color, .check = check, \
        .draw = fl_op_draw_applied, .apply = apply                              \
    }

const fl_op_type fl_op_invert = FL_TONE_TYPE("RandomInvert", false);
const fl_op_type fl_op_solarize = FL_TONE_TYPE("RandomSolarize", false);
const fl_op_type fl_op_posterize = FL_TONE_TYPE("RandomPosterize", false);
const fl_op_type fl_op_equalize = FL_TONE_TYPE("RandomEqualize", false);
const fl_op_type fl_op_autocontrast = FL_TONE_TYPE("RandomAutocontrast", true);
const fl_op_type fl_op_sharpness = FL_TONE_TYPE("RandomAdjustSharpness", true);

/* ---- Grayscale and RandomGrayscale */

static int check_grayscale(const fl_image_op *op, fl_err *err)
{
    if (op->grey_channels == 1 || op->grey_channels == 3) return FL_OK;
    return fl_fail(err, FL_EINVAL, "Grayscale: num_output_channels must be 1 or 3, got %g",
                   op->grey_channels);
}

static int apply_grayscale(const fl_image_op *op, int32_t i, const fl_image_params *params,
                           fl_image_view *view, fl_err *err)
{
    (void)i;
    (void)params;
    return fl_tone_grey(view, (int32_t)op->grey_channels, err);
}

const fl_op_type fl_op_grayscale = {
    .name = "Grayscale", .is_color = true, .check = check_grayscale, .apply = apply_grayscale};

static int apply_random_grayscale(const fl_image_op *op, int32_t i, const fl_image_params *params,
                                  fl_image_view *view, fl_err *err)
{
    (void)op;
    (void)i;
    return params->is_applied ? fl_tone_grey(view, view->tools.channels, err) : FL_OK;
}

const fl_op_type fl_op_random_grayscale = {.name = "RandomGrayscale",
                                           .is_drawn = true,
                                           .is_color = true,
                                           .check = check,
                                           .draw = fl_op_draw_applied,
                                           .apply = apply_random_grayscale};
