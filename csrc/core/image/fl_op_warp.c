/* fl_op_warp: RandomRotation, RandomAffine and RandomPerspective. */
#include "fl_op.h"

#include "fl_tone.h"
#include "fl_warp_pil.h"

#include <math.h>
#include <string.h>

int fl_op_check_sampling(const char *name, const fl_image_op *op, fl_err *err)
{
    if (op->interpolation == FL_NEAREST || op->interpolation == FL_BILINEAR) return FL_OK;
    if (op->arithmetic == FL_BY_PIL && op->interpolation == FL_BICUBIC) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s: interpolation must be nearest or bilinear, got mode %d",
                   name, (int)op->interpolation);
}

/* Positions in a plane are 32 bits, so the image with its border must fit. */
int fl_op_warped_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    (void)op;
    *out = in;
    if (((int64_t)in.height + 4) * ((int64_t)in.width + 4) <= INT32_MAX) return FL_OK;
    return fl_fail(err, FL_EINVAL, "an image of (%d, %d) is too large to rotate", in.height,
                   in.width);
}

static int
warp_view(const fl_image_op *op, int32_t i, fl_image_warp *warp, fl_image_view *view, fl_err *err)
{
    warp->is_bilinear = op->interpolation == FL_BILINEAR;
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++) warp->fill[c] = (float)op->border[c];
    return fl_tone_warp(view, i, warp, err);
}

/* Writes the planes of an image as pixels, or pixels as planes. */
static void
exchange(const fl_image_view *view, const fl_image_planes *planes, uint8_t *pixels, bool joins)
{
    const fl_image_ops *ops = view->tools.image_ops;
    const int32_t channels = view->tools.channels;
    for (int64_t y = 0; y < planes->rows; y++, pixels += planes->columns * channels) {
        uint8_t *row = planes->data + y * planes->pitch;
        if (channels == 1)
            memcpy(joins ? pixels : row, joins ? row : pixels, (size_t)planes->columns);
        else if (joins)
            ops->join(pixels, row, planes->plane, planes->columns, channels, 1);
        else
            ops->split(row, planes->plane, pixels, planes->columns, channels);
    }
}

int fl_op_warp_pil(const fl_image_op *op, fl_warp_pil *warp, fl_image_view *view, fl_err *err)
{
    fl_image_planes image, next;
    int32_t channels = view->tools.channels;
    warp->how = op->interpolation;
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++)
        warp->fill[c] = isnan(op->border[c]) ? 0 : (uint8_t)op->border[c];
    FL_TRY(fl_image_view_own(view, true, &image, err));
    fl_image_view_look_up(view);
    const int32_t width = (int32_t)image.columns, height = (int32_t)image.rows;
    FL_TRY(fl_image_view_next(view, (fl_image_size){height, width}, channels, &next, err));
    const int64_t bytes = image.rows * image.columns * channels + 3;
    uint8_t *pixels = fl_scratch_memory(view->tools.scratch, FL_SCRATCH_ROWS, 2 * bytes);
    if (pixels == NULL) return fl_fail(err, FL_ENOMEM, "out of memory to warp an image");
    exchange(view, &image, pixels, true);
    view->tools.image_ops->tone.warp_pil(pixels + bytes, pixels, width, height, channels, warp);
    exchange(view, &next, pixels + bytes, false);
    fl_image_view_replace(view, &next, channels);
    return FL_OK;
}

/* ---- RandomRotation */

static int check_rotation(const fl_image_op *op, fl_err *err)
{
    const double *degrees = op->affine.degrees;
    if (!(degrees[0] <= degrees[1]))
        return fl_fail(err, FL_EINVAL,
                       "RandomRotation: degrees must be (min, max) with min <= max, got (%g, %g)",
                       degrees[0], degrees[1]);
    return fl_op_check_sampling(fl_op_rotation.name, op, err);
}

static void draw_rotation(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                          fl_image_params *params)
{
    (void)in;
    params->affine.angle = fl_op_between(fl_op_random(op, key, 0).word[0], op->affine.degrees);
}

static void center_of(const fl_image_op *op, fl_image_size in, double center[2])
{
    bool is_middle = isnan(op->center[0]);
    center[0] = is_middle ? in.width * 0.5 : op->center[0];
    center[1] = is_middle ? in.height * 0.5 : op->center[1];
}

int fl_op_transform(const fl_image_op *op, int32_t i, const fl_affine *affine, fl_image_view *view,
                    fl_err *err)
{
    fl_image_size size = {view->y.length, view->x.length};
    if (op->arithmetic == FL_BY_PIL) {
        fl_warp_pil by_pil = {.is_perspective = false};
        fl_affine_matrix(by_pil.m, affine, op->is_v1);
        return fl_op_warp_pil(op, &by_pil, view, err);
    }
    fl_image_warp warp;
    fl_affine from_middle = *affine;
    from_middle.center[0] -= size.width * 0.5;
    from_middle.center[1] -= size.height * 0.5;
    fl_warp_affine(&warp, &from_middle, size, op->is_v1);
    return warp_view(op, i, &warp, view, err);
}

int fl_op_rotate(const fl_image_op *op, int32_t i, double degrees, fl_image_view *view, fl_err *err)
{
    fl_image_size in = {view->y.length, view->x.length};
    double angle = fmod(degrees, 360);
    fl_affine affine = {.scale = 1};
    if (angle < 0) angle += 360;
    if (isnan(op->center[0])) {
        if (angle == 0) return FL_OK;
        if (angle == 90 && in.height == in.width) return fl_tone_quarter(view, false, err);
        if (angle == 270 && in.height == in.width) return fl_tone_quarter(view, true, err);
        if (angle == 180) {
            fl_image_view_flip_x(view);
            fl_image_view_flip_y(view);
            return FL_OK;
        }
    }
    center_of(op, in, affine.center);
    if (op->arithmetic == FL_BY_PIL) {
        fl_warp_pil by_pil = {.is_perspective = false};
        fl_warp_pil_rotate(&by_pil, angle, affine.center);
        return fl_op_warp_pil(op, &by_pil, view, err);
    }
    affine.angle = -angle;
    return fl_op_transform(op, i, &affine, view, err);
}

static int apply_rotation(const fl_image_op *op, int32_t i, const fl_image_params *params,
                          fl_image_view *view, fl_err *err)
{
    return fl_op_rotate(op, i, (double)params->affine.angle, view, err);
}

const fl_op_type fl_op_rotation = {.name = "RandomRotation",
                                   .is_drawn = true,
                                   .is_bordered = true,
                                   .check = check_rotation,
                                   .size = fl_op_warped_size,
                                   .draw = draw_rotation,
                                   .apply = apply_rotation};

/* ---- RandomAffine */

static int check_affine(const fl_image_op *op, fl_err *err)
{
    const double *degrees = op->affine.degrees, *part = op->affine.translate;
    const double *scale = op->affine.scale, *x = op->affine.shear[0], *y = op->affine.shear[1];
    bool is_range = degrees[0] <= degrees[1] && x[0] <= x[1] && y[0] <= y[1];
    bool is_part = part[0] >= 0 && part[0] <= 1 && part[1] >= 0 && part[1] <= 1;
    if (is_range && is_part && scale[0] > 0 && scale[0] <= scale[1])
        return fl_op_check_sampling(fl_op_affine.name, op, err);
    return fl_fail(err, FL_EINVAL,
                   "RandomAffine: degrees, shears and scales > 0 must be (min, max) with min <= "
                   "max, and translations in [0, 1]");
}

static void draw_affine(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                        fl_image_params *params)
{
    fl_philox_block first = fl_op_random(op, key, 0), second = fl_op_random(op, key, 1);
    const double *part = op->affine.translate;
    double x[2] = {-part[0] * in.width, part[0] * in.width};
    double y[2] = {-part[1] * in.height, part[1] * in.height};
    params->affine.angle = fl_op_between(first.word[0], op->affine.degrees);
    params->affine.translate[0] = rintf(fl_op_between(first.word[1], x));
    params->affine.translate[1] = rintf(fl_op_between(first.word[2], y));
    params->affine.scale = fl_op_between(first.word[3], op->affine.scale);
    params->affine.shear[0] = fl_op_between(second.word[0], op->affine.shear[0]);
    params->affine.shear[1] = fl_op_between(second.word[1], op->affine.shear[1]);
}

static int apply_affine(const fl_image_op *op, int32_t i, const fl_image_params *params,
                        fl_image_view *view, fl_err *err)
{
    const float *translate = params->affine.translate, *shear = params->affine.shear;
    fl_image_size in = {view->y.length, view->x.length};
    fl_affine affine = {.angle = (double)params->affine.angle,
                        .translate = {(double)translate[0], (double)translate[1]},
                        .scale = (double)params->affine.scale,
                        .shear = {(double)shear[0], (double)shear[1]}};
    center_of(op, in, affine.center);
    return fl_op_transform(op, i, &affine, view, err);
}

const fl_op_type fl_op_affine = {.name = "RandomAffine",
                                 .is_drawn = true,
                                 .is_bordered = true,
                                 .check = check_affine,
                                 .size = fl_op_warped_size,
                                 .draw = draw_affine,
                                 .apply = apply_affine};

/* ---- RandomPerspective */

static int check_perspective(const fl_image_op *op, fl_err *err)
{
    if (!(op->distortion >= 0 && op->distortion <= 1))
        return fl_fail(err, FL_EINVAL,
                       "RandomPerspective: distortion_scale must be in [0, 1], got %g",
                       op->distortion);
    FL_TRY(fl_op_check_p(fl_op_perspective.name, op->p, err));
    return fl_op_check_sampling(fl_op_perspective.name, op, err);
}

static int
size_perspective(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    bool has_area = in.height != 1 && in.width != 1;
    if (has_area || op->arithmetic != FL_BY_PIL) return fl_op_warped_size(op, in, out, err);
    return fl_fail(err, FL_EINVAL,
                   "RandomPerspective: torch has no coefficients for an image of (%d, %d)",
                   in.height, in.width);
}

/* Moves each corner towards the middle by less than half of `distortion` times an edge. */
static void draw_perspective(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                             fl_image_params *params)
{
    params->is_applied = fl_philox_unit(fl_op_random(op, key, 0).word[0]) < op->p;
    if (!params->is_applied) return;
    uint32_t bound[2] = {(uint32_t)(op->distortion * (in.width / 2)) + 1,
                         (uint32_t)(op->distortion * (in.height / 2)) + 1};
    const double edge[2] = {in.width - 1, in.height - 1};
    static const bool is_far[4][2] = {{false, false}, {true, false}, {true, true}, {false, true}};
    double from[4][2], to[4][2];
    for (int corner = 0; corner < 4; corner++) {
        fl_philox_block block = fl_op_random(op, key, (uint16_t)(1 + corner / 2));
        for (int axis = 0; axis < 2; axis++) {
            double inwards =
                (double)fl_philox_below(block.word[corner % 2 * 2 + axis], bound[axis]);
            from[corner][axis] = is_far[corner][axis] ? edge[axis] : 0;
            to[corner][axis] =
                is_far[corner][axis] ? edge[axis] + 1 - bound[axis] + inwards : inwards;
        }
    }
    fl_warp_coefficients(from, to, params->coefficients);
}

static int apply_perspective(const fl_image_op *op, int32_t i, const fl_image_params *params,
                             fl_image_view *view, fl_err *err)
{
    fl_image_warp warp;
    if (!params->is_applied) return FL_OK;
    if (op->arithmetic == FL_BY_PIL) {
        fl_warp_pil by_pil = {.is_perspective = true};
        for (int k = 0; k < 8; k++) by_pil.m[k] = (double)params->coefficients[k];
        return fl_op_warp_pil(op, &by_pil, view, err);
    }
    fl_warp_perspective(&warp, params->coefficients,
                        (fl_image_size){view->y.length, view->x.length});
    return warp_view(op, i, &warp, view, err);
}

const fl_op_type fl_op_perspective = {.name = "RandomPerspective",
                                      .is_drawn = true,
                                      .is_bordered = true,
                                      .check = check_perspective,
                                      .size = size_perspective,
                                      .draw = draw_perspective,
                                      .apply = apply_perspective};
