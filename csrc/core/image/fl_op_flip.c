/* fl_op_flip: RandomHorizontalFlip and RandomVerticalFlip. */
#include "fl_op.h"

int fl_op_check_p(const char *name, double p, fl_err *err)
{
    if (p >= 0 && p <= 1) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s: p must be in [0, 1], got %g", name, p);
}

int fl_op_same_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    (void)op;
    (void)err;
    *out = in;
    return FL_OK;
}

void fl_op_draw_applied(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                        fl_image_params *params)
{
    (void)in;
    params->is_applied = fl_philox_unit(fl_op_random(op, key, 0).word[0]) < op->p;
}

static int check_horizontal(const fl_image_op *op, fl_err *err)
{
    return fl_op_check_p(fl_op_horizontal_flip.name, op->p, err);
}

static int apply_horizontal(const fl_image_op *op, int32_t i, const fl_image_params *params,
                            fl_image_view *view, fl_err *err)
{
    (void)op;
    (void)i;
    (void)err;
    if (params->is_applied) fl_image_view_flip_x(view);
    return FL_OK;
}

const fl_op_type fl_op_horizontal_flip = {.name = "RandomHorizontalFlip",
                                          .is_drawn = true,
                                          .check = check_horizontal,
                                          .size = fl_op_same_size,
                                          .draw = fl_op_draw_applied,
                                          .apply = apply_horizontal};

static int check_vertical(const fl_image_op *op, fl_err *err)
{
    return fl_op_check_p(fl_op_vertical_flip.name, op->p, err);
}

static int apply_vertical(const fl_image_op *op, int32_t i, const fl_image_params *params,
                          fl_image_view *view, fl_err *err)
{
    (void)op;
    (void)i;
    (void)err;
    if (params->is_applied) fl_image_view_flip_y(view);
    return FL_OK;
}

const fl_op_type fl_op_vertical_flip = {.name = "RandomVerticalFlip",
                                        .is_drawn = true,
                                        .check = check_vertical,
                                        .size = fl_op_same_size,
                                        .draw = fl_op_draw_applied,
                                        .apply = apply_vertical};
