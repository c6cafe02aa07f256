/* fl_op_erase: RandomErasing. */
#include "fl_op.h"

enum { TRIES = 10 };

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

/* Tries ten rectangles. A rectangle as long or as wide as the image does not count; if no try
 * counts, nothing is erased. */
static void
draw(const fl_image_op *op, const fl_sample_key *key, fl_image_size in, fl_image_params *params)
{
    params->is_applied = false;
    if (fl_philox_unit(fl_op_random(op, key, 0).word[0]) >= op->p) return;
    for (uint16_t t = 0; t < TRIES; t++) {
        fl_philox_block block = fl_op_random(op, key, (uint16_t)(1 + t));
        int64_t height, width;
        fl_op_draw_edges(op, block, in, &height, &width);
        if (height >= in.height || width >= in.width) continue;
        params->is_applied = true;
        fl_image_size size = {(int32_t)height, (int32_t)width};
        fl_op_draw_corner(block.word + 2, in, size, params);
        return;
    }
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
                                .draw = draw,
                                .apply = apply};
