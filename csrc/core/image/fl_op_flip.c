/* fl_op_flip: RandomHorizontalFlip and RandomVerticalFlip. */
#include "fl_op.h"

int fl_op_check_p(const char *name, double p, fl_err *err)
{
    if (p >= 0 && p <= 1) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s: p must be in [0, 1], got %g", name, p);
}

static int check(const fl_image_op *op, fl_err *err)
{
    bool is_horizontal = op->kind == FL_OP_HORIZONTAL_FLIP;
    return fl_op_check_p(is_horizontal ? "RandomHorizontalFlip" : "RandomVerticalFlip", op->p, err);
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    (void)i;
    (void)err;
    if (!params->is_applied) return FL_OK;
    if (op->kind == FL_OP_HORIZONTAL_FLIP)
        fl_image_view_flip_x(view);
    else
        fl_image_view_flip_y(view);
    return FL_OK;
}

const fl_op_type fl_op_horizontal_flip = {.name = "RandomHorizontalFlip",
                                          .is_drawn = true,
                                          .check = check,
                                          .draw = fl_op_draw_applied,
                                          .apply = apply};

const fl_op_type fl_op_vertical_flip = {.name = "RandomVerticalFlip",
                                        .is_drawn = true,
                                        .check = check,
                                        .draw = fl_op_draw_applied,
                                        .apply = apply};
