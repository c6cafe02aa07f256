/* fl_op_erase: RandomErasing. */
#include "fl_op.h"

static int check(const fl_image_op *op, fl_err *err)
{
    FL_TRY(fl_op_check_p(fl_op_erase.name, op->p, err));
    if (op->scale[1] > 1)
        return fl_fail(
            err, FL_EINVAL,
            "RandomErasing: scale must be (min, max) with 0 <= min <= max <= 1, got (%g, %g)",
            op->scale[0], op->scale[1]);
    return fl_op_check_area(fl_op_erase.name, op, err);
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    (void)op;
    (void)err;
    if (params->is_applied) fl_image_view_erase(view, params->top, params->left, params->size, i);
    return FL_OK;
}

const fl_op_type fl_op_erase = {.name = "RandomErasing",
                                .is_drawn = true,
                                .has_area = true,
                                .check = check,
                                .draw = fl_op_draw_erase,
                                .apply = apply};
