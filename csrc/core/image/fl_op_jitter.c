/* fl_op_jitter: ColorJitter, RandomChannelPermutation and RandomPhotometricDistort. */
#include "fl_op.h"

#include <math.h>

static int check_ranges(const char *name, const fl_image_op *op, fl_err *err)
{
    static const char *const names[FL_JITTERED] = {"brightness", "contrast", "saturation", "hue"};
    for (int n = 0; n < FL_JITTERED; n++) {
        double low = op->jitter[n][0], high = op->jitter[n][1];
        double least = n == FL_HUE ? -0.5 : 0, most = n == FL_HUE ? 0.5 : 1e6;
        if (isnan(low) || (least <= low && low <= high && high <= most)) continue;
        return fl_fail(err, FL_EINVAL,
                       "%s: %s must be (min, max) with %g <= min <= max <= %g, got (%g, %g)", name,
                       names[n], least, most, low, high);
    }
    return FL_OK;
}

static int check_jitter(const fl_image_op *op, fl_err *err)
{
    return check_ranges(fl_op_color_jitter.name, op, err);
}

const fl_op_type fl_op_color_jitter = {.name = "ColorJitter",
                                       .is_drawn = true,
                                       .is_color = true,
                                       .check = check_jitter,
                                       .draw = fl_op_draw_jitter,
                                       .apply = fl_op_apply_steps};

const fl_op_type fl_op_channel_permutation = {.name = "RandomChannelPermutation",
                                              .is_drawn = true,
                                              .draw = fl_op_draw_permutation,
                                              .apply = fl_op_apply_steps};

static int check_distort(const fl_image_op *op, fl_err *err)
{
    FL_TRY(check_ranges(fl_op_photometric_distort.name, op, err));
    return fl_op_check_p(fl_op_photometric_distort.name, op->p, err);
}

const fl_op_type fl_op_photometric_distort = {.name = "RandomPhotometricDistort",
                                              .is_drawn = true,
                                              .is_color = true,
                                              .check = check_distort,
                                              .draw = fl_op_draw_distort,
                                              .apply = fl_op_apply_steps};
