/* fl_op_crop: CenterCrop and RandomCrop. Both may pad first. */
#include "fl_op.h"

int fl_op_check_size(const char *name, fl_image_size size, fl_err *err)
{
    if (size.height >= 1 && size.height <= FL_MAX_EDGE && size.width >= 1 &&
        size.width <= FL_MAX_EDGE)
        return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s: size must be two edges in [1, %d], got (%d, %d)", name,
                   FL_MAX_EDGE, size.height, size.width);
}

static int to_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    (void)in;
    (void)err;
    *out = op->size;
    return FL_OK;
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    (void)err;
    fl_image_view_pad(view, params->padding, op->padding_mode, i);
    fl_image_view_crop(view, params->top, params->left, params->size);
    return FL_OK;
}

/* ---- CenterCrop */

static int check_center(const fl_image_op *op, fl_err *err)
{
    return fl_op_check_size(fl_op_center_crop.name, op->size, err);
}

const fl_op_type fl_op_center_crop = {.name = "CenterCrop",
                                      .check = check_center,
                                      .size = to_size,
                                      .draw = fl_op_draw_center_crop,
                                      .apply = apply};

/* ---- RandomCrop */

static int check_random(const fl_image_op *op, fl_err *err)
{
    FL_TRY(fl_op_check_size(fl_op_random_crop.name, op->size, err));
    return fl_op_check_padding(fl_op_random_crop.name, op, err);
}

static int random_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    *out = op->size;
    if (!fl_size_is_known(in)) return FL_OK;
    int32_t padding[4];
    fl_image_size padded = fl_op_find_padding(op, in, padding);
    if (padded.height < op->size.height || padded.width < op->size.width)
        return fl_fail(err, FL_EINVAL,
                       "RandomCrop: size must be within the padded image of (%d, %d), got (%d, %d) "
                       "(pass pad_if_needed=True)",
                       padded.height, padded.width, op->size.height, op->size.width);
    return fl_op_check_mirrored(fl_op_random_crop.name, op->padding_mode, padding, in, err);
}

const fl_op_type fl_op_random_crop = {.name = "RandomCrop",
                                      .is_drawn = true,
                                      .check = check_random,
                                      .size = random_size,
                                      .draw = fl_op_draw_crop,
                                      .apply = apply};
