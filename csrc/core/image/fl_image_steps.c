/* fl_image_steps: see fl_image_steps.h. */
#include "fl_image_steps.h"

#include "fl_op.h"
#include "fl_tone.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name; /* as Pillow and policies call it */
    fl_step_kind kind;
    fl_tone tone;
} names[] = {{"AutoContrast", FL_STEP_TONE, FL_TONE_AUTOCONTRAST},
             {"Equalize", FL_STEP_TONE, FL_TONE_EQUALIZE},
             {"Invert", FL_STEP_TONE, FL_TONE_INVERT},
             {"Posterize", FL_STEP_TONE, FL_TONE_POSTERIZE},
             {"Solarize", FL_STEP_TONE, FL_TONE_SOLARIZE},
             {"Color", FL_STEP_TONE, FL_TONE_SATURATION},
             {"Contrast", FL_STEP_TONE, FL_TONE_CONTRAST},
             {"Brightness", FL_STEP_TONE, FL_TONE_BRIGHTNESS},
             {"Sharpness", FL_STEP_TONE, FL_TONE_SHARPNESS},
             {"SolarizeAdd", FL_STEP_ADD, FL_TONE_NONE},
             {"Rotate", FL_STEP_ROTATE, FL_TONE_NONE},
             {"Affine", FL_STEP_AFFINE, FL_TONE_NONE}};

int fl_image_step_find(const char *name, fl_image_step *out, fl_err *err)
{
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        if (strcmp(names[k].name, name) != 0) continue;
        out->kind = names[k].kind;
        out->tone = names[k].tone;
        return FL_OK;
    }
    return fl_fail(err, FL_EINVAL, "there is no step %s", name);
}

static int check(const fl_image_step *step, fl_image_size size, fl_err *err)
{
    const double number = step->number[0];
    bool is_in_range = true;
    for (int k = 0; k < FL_DRAWN_STEP_NUMBERS; k++)
        is_in_range &= step->number[k] > -1e6 && step->number[k] < 1e6;
    if (step->tone == FL_TONE_POSTERIZE) is_in_range &= number >= 0 && number <= 8;
    if (step->tone >= FL_TONE_BRIGHTNESS || step->kind == FL_STEP_ADD) is_in_range &= number >= 0;
    if (step->kind == FL_STEP_ADD) is_in_range &= number <= 255;
    if (!is_in_range)
        return fl_fail(err, FL_EINVAL, "the numbers of a step are out of range, the first is %g",
                       number);
    if (step->kind != FL_STEP_ROTATE && step->kind != FL_STEP_AFFINE) return FL_OK;
    const fl_image_op as = {.arithmetic = FL_BY_PIL, .interpolation = step->how};
    FL_TRY(fl_op_check_sampling("a step", &as, err));
    return fl_op_warped_size(&as, size, &size, err);
}

int fl_image_steps_check(const fl_image_steps *steps, fl_image_size size, fl_err *err)
{
    for (int32_t k = 0; k < steps->count; k++) FL_TRY(check(&steps->step[k], size, err));
    return FL_OK;
}

static int add_below_middle(fl_image_view *view, int32_t number, fl_err *err)
{
    enum { MIDDLE = 128 };
    fl_image_planes planes;
    FL_TRY(fl_image_view_own(view, false, &planes, err));
    fl_byte_table *tables = fl_image_view_tables(view);
    for (int32_t c = 0; c < view->tools.channels; c++)
        for (int v = 0; v < 256; v++) {
            const int32_t byte = tables[c][v];
            if (byte < MIDDLE) tables[c][v] = (uint8_t)fl_min(byte + number, 255);
        }
    return FL_OK;
}

static int apply(const fl_image_step *step, fl_image_op *as, fl_image_view *view, fl_err *err)
{
    fl_warp_pil warp = {.is_perspective = false};
    as->interpolation = step->how;
    switch (step->kind) {
    case FL_STEP_ADD:
        return add_below_middle(view, (int32_t)step->number[0], err);
    case FL_STEP_ROTATE:
        return fl_op_rotate(as, 0, step->number[0], view, err);
    case FL_STEP_AFFINE:
        memcpy(warp.m, step->number, sizeof step->number);
        return fl_op_warp_pil(as, &warp, view, err);
    default:
        return fl_tone_apply(view, step->tone, step->number[0], err);
    }
}

int fl_image_steps_apply(const fl_image_steps *steps, fl_image_view *view, fl_err *err)
{
    const double *border = steps->border;
    fl_image_op as = {.arithmetic = FL_BY_PIL,
                      .center = {NAN, NAN},
                      .border = {border[0], border[1], border[2], NAN}};
    view->arithmetic = FL_BY_PIL;
    for (int32_t k = 0; k < steps->count; k++) FL_TRY(apply(&steps->step[k], &as, view, err));
    return FL_OK;
}
