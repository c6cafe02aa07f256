/* fl_op_pad: Pad, and the checks of paddings. */
#include "fl_op.h"

int fl_op_check_padding(const char *name, const fl_image_op *op, fl_err *err)
{
    for (int i = 0; i < 4; i++)
        if (op->padding[i] < 0 || op->padding[i] > FL_MAX_EDGE)
            return fl_fail(err, FL_EINVAL,
                           "%s: padding must be in [0, %d], got %d (crop to make an image smaller)",
                           name, FL_MAX_EDGE, op->padding[i]);
    if (op->padding_mode < 0 || op->padding_mode >= FL_PADDING_MODES)
        return fl_fail(err, FL_EINVAL, "%s: padding_mode must be in [0, %d], got %d", name,
                       FL_PADDING_MODES - 1, (int)op->padding_mode);
    return FL_OK;
}

static int check_edge(const char *name, fl_padding_mode mode, const char *edge, int32_t padding,
                      int32_t length, fl_err *err)
{
    bool is_reflect = mode == FL_PAD_REFLECT;
    if (padding <= (is_reflect ? length - 1 : length)) return FL_OK;
    return fl_fail(err, FL_EINVAL,
                   "%s: padding_mode='%s' with a padding of %d needs an image %s than its %s of "
                   "%d; pad less, or with 'edge'",
                   name, is_reflect ? "reflect" : "symmetric", padding,
                   is_reflect ? "longer" : "no shorter", edge, length);
}

int fl_op_check_mirrored(const char *name, fl_padding_mode mode, const int32_t padding[4],
                         fl_image_size in, fl_err *err)
{
    if (mode != FL_PAD_REFLECT && mode != FL_PAD_SYMMETRIC) return FL_OK;
    for (int i = 0; i < 4; i++)
        FL_TRY(check_edge(name, mode, i % 2 ? "height" : "width", padding[i],
                          i % 2 ? in.height : in.width, err));
    return FL_OK;
}

static int check(const fl_image_op *op, fl_err *err)
{
    return fl_op_check_padding(fl_op_pad.name, op, err);
}

static int size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    *out = in;
    if (!fl_size_is_known(in)) return FL_OK;
    FL_TRY(fl_op_check_mirrored(fl_op_pad.name, op->padding_mode, op->padding, in, err));
    out->height += op->padding[1] + op->padding[3];
    out->width += op->padding[0] + op->padding[2];
    return FL_OK;
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    (void)err;
    fl_image_view_pad(view, params->padding, op->padding_mode, i);
    return FL_OK;
}

const fl_op_type fl_op_pad = {
    .name = "Pad", .check = check, .size = size, .draw = fl_op_draw_pad, .apply = apply};
