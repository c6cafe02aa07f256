/* fl_op_resize: Resize and RandomResizedCrop. */
#include "fl_op.h"

static int check_interpolation(const char *name, const fl_image_op *op, fl_err *err)
{
    if (op->interpolation >= 0 && op->interpolation < FL_INTERPOLATIONS) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s: interpolation must be in [0, %d], got %d", name,
                   FL_INTERPOLATIONS - 1, (int)op->interpolation);
}

/* ---- Resize */

static inline bool has_both_edges(const fl_image_op *op) { return op->size.width != 0; }

static int check_resize(const fl_image_op *op, fl_err *err)
{
    FL_TRY(check_interpolation(fl_op_resize.name, op, err));
    int32_t n = op->size.height;
    if (op->max_size < 0 || op->max_size > FL_MAX_EDGE)
        return fl_fail(err, FL_EINVAL, "Resize: max_size must be in [1, %d], got %d", FL_MAX_EDGE,
                       op->max_size);
    if (has_both_edges(op) && op->max_size > 0)
        return fl_fail(
            err, FL_EINVAL,
            "Resize: size must be one number with max_size, got (%d, %d) and max_size=%d", n,
            op->size.width, op->max_size);
    if (has_both_edges(op)) return fl_op_check_size(fl_op_resize.name, op->size, err);
    if (n == 0 && op->max_size > 0) return FL_OK;
    if (n > 0 && op->max_size > 0 && op->max_size <= n)
        return fl_fail(err, FL_EINVAL, "Resize: max_size must be greater than size=%d, got %d", n,
                       op->max_size);
    return fl_op_check_size(fl_op_resize.name, (fl_image_size){n, n}, err);
}

/* Computes a * b / c as Python does, cut to an integer. */
static int64_t scaled(int32_t a, int32_t b, int32_t c)
{
    return (int64_t)((double)((int64_t)a * b) / c);
}

static int resize_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    *out = has_both_edges(op) ? op->size : in;
    if (has_both_edges(op) || !fl_size_is_known(in)) return FL_OK;
    bool is_upright = in.width <= in.height;
    int32_t n = op->size.height, most = op->max_size;
    int32_t shorter_in = is_upright ? in.width : in.height;
    int32_t longer_in = is_upright ? in.height : in.width;
    int64_t shorter = n, longer = n > 0 ? scaled(n, longer_in, shorter_in) : most;
    if (n == 0) {
        shorter = scaled(most, shorter_in, longer_in);
    } else if (most > 0 && longer > most) {
        shorter = (int64_t)((double)((int64_t)most * n) / (double)longer);
        longer = most;
    }
    if (shorter < 1 || longer > FL_MAX_EDGE)
        return fl_fail(err, FL_EINVAL,
                       "Resize: size=%d with max_size=%d makes an image of (%d, %d) one of %lld by "
                       "%lld; pass size=(height, width)",
                       n, most, in.height, in.width, (long long)(is_upright ? longer : shorter),
                       (long long)(is_upright ? shorter : longer));
    *out = is_upright ? (fl_image_size){(int32_t)longer, (int32_t)shorter}
                      : (fl_image_size){(int32_t)shorter, (int32_t)longer};
    return FL_OK;
}

static int apply_resize(const fl_image_op *op, int32_t i, const fl_image_params *params,
                        fl_image_view *view, fl_err *err)
{
    (void)i;
    return fl_image_view_resize(view, op->interpolation, params->out, err);
}

const fl_op_type fl_op_resize = {
    .name = "Resize", .check = check_resize, .size = resize_size, .apply = apply_resize};

/* ---- RandomResizedCrop */

static int check_crop(const fl_image_op *op, fl_err *err)
{
    FL_TRY(fl_op_check_size(fl_op_random_resized_crop.name, op->size, err));
    FL_TRY(check_interpolation(fl_op_random_resized_crop.name, op, err));
    return fl_op_check_area(fl_op_random_resized_crop.name, op, err);
}

static int crop_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    (void)in;
    (void)err;
    *out = op->size;
    return FL_OK;
}

static int apply_crop(const fl_image_op *op, int32_t i, const fl_image_params *params,
                      fl_image_view *view, fl_err *err)
{
    (void)i;
    fl_image_view_crop(view, params->top, params->left, params->size);
    return fl_image_view_resize(view, op->interpolation, op->size, err);
}

const fl_op_type fl_op_random_resized_crop = {.name = "RandomResizedCrop",
                                              .is_drawn = true,
                                              .has_area = true,
                                              .check = check_crop,
                                              .size = crop_size,
                                              .draw = fl_op_draw_resized_crop,
                                              .apply = apply_crop};
