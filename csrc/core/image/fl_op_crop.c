/* fl_op_crop: CenterCrop and RandomCrop. Both may pad first. */
#include "fl_op.h"

#include <math.h>

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

/* Pads an axis that is too short; if the padding is odd, the end gets one sample more. Returns the
 * first sample of the crop. */
static int32_t center_axis(int32_t length, int32_t wanted, int32_t *before, int32_t *after)
{
    if (wanted > length) {
        *before = (wanted - length) / 2;
        *after = (wanted - length + 1) / 2;
        return 0;
    }
    return (int32_t)rint((length - wanted) / 2.0);
}

static void draw_center(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                        fl_image_params *params)
{
    (void)key;
    int32_t *padding = params->padding;
    params->top = center_axis(in.height, op->size.height, &padding[1], &padding[3]);
    params->left = center_axis(in.width, op->size.width, &padding[0], &padding[2]);
    params->size = op->size;
}

const fl_op_type fl_op_center_crop = {.name = "CenterCrop",
                                      .check = check_center,
                                      .size = to_size,
                                      .draw = draw_center,
                                      .apply = apply};

/* ---- RandomCrop */

static int check_random(const fl_image_op *op, fl_err *err)
{
    FL_TRY(fl_op_check_size(fl_op_random_crop.name, op->size, err));
    return fl_op_check_padding(fl_op_random_crop.name, op, err);
}

/* Like torchvision, pads both sides by the whole length that is missing. */
static void
pad_axis(int32_t wanted, bool pad_if_needed, int32_t *length, int32_t *before, int32_t *after)
{
    *length += *before + *after;
    if (!pad_if_needed || *length >= wanted) return;
    int32_t missing = wanted - *length;
    *before += missing;
    *after += missing;
    *length += 2 * missing;
}

static fl_image_size find_padding(const fl_image_op *op, fl_image_size in, int32_t padding[4])
{
    for (int i = 0; i < 4; i++) padding[i] = op->padding[i];
    pad_axis(op->size.height, op->pad_if_needed, &in.height, &padding[1], &padding[3]);
    pad_axis(op->size.width, op->pad_if_needed, &in.width, &padding[0], &padding[2]);
    return in;
}

static int random_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    *out = op->size;
    if (!fl_size_is_known(in)) return FL_OK;
    int32_t padding[4];
    fl_image_size padded = find_padding(op, in, padding);
    if (padded.height < op->size.height || padded.width < op->size.width)
        return fl_fail(err, FL_EINVAL,
                       "RandomCrop: size must be within the padded image of (%d, %d), got (%d, %d) "
                       "(pass pad_if_needed=True)",
                       padded.height, padded.width, op->size.height, op->size.width);
    return fl_op_check_mirrored(fl_op_random_crop.name, op->padding_mode, padding, in, err);
}

static void draw_random(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                        fl_image_params *params)
{
    fl_image_size padded = find_padding(op, in, params->padding);
    fl_philox_block block = fl_op_random(op, key, 0);
    fl_op_draw_corner(block.word, padded, op->size, params);
}

const fl_op_type fl_op_random_crop = {.name = "RandomCrop",
                                      .is_drawn = true,
                                      .check = check_random,
                                      .size = random_size,
                                      .draw = draw_random,
                                      .apply = apply};
