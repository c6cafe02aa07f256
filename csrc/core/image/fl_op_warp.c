/* fl_op_warp: RandomRotation, RandomAffine and RandomPerspective. */
#include "fl_op.h"

#include "fl_tone.h"
#include "fl_warp.h"

#include <math.h>

/* Places of the numbers of an operation. */
enum { DEGREES = 0, TRANSLATE = 2, DISTORTION = 2, SCALE = 4, SHEAR = 6, CENTER = 10, FILL = 12 };

int fl_op_check_sampling(const char *name, const fl_image_op *op, fl_err *err)
{
    if (op->interpolation == FL_NEAREST || op->interpolation == FL_BILINEAR) return FL_OK;
    return fl_fail(err, FL_EINVAL, "%s(interpolation=%d): it is nearest or bilinear", name,
                   (int)op->interpolation);
}

/* Places in a plane are 32 bits. */
int fl_op_warped_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err)
{
    (void)op;
    *out = in;
    if (((int64_t)in.height + 4) * ((int64_t)in.width + 4) <= INT32_MAX) return FL_OK;
    return fl_fail(err, FL_EINVAL, "an image of (%d, %d) is too large to be turned", in.height,
                   in.width);
}

static int
warp_view(const fl_image_op *op, int32_t i, fl_image_warp *warp, fl_image_view *view, fl_err *err)
{
    warp->is_bilinear = op->interpolation == FL_BILINEAR;
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++) warp->fill[c] = (float)op->number[FILL + c];
    return fl_tone_warp(view, i, warp, err);
}

/* ---- RandomRotation: number[0] is the angle */

static int check_rotation(const fl_image_op *op, fl_err *err)
{
    if (!(op->number[DEGREES] <= op->number[DEGREES + 1]))
        return fl_fail(err, FL_EINVAL, "RandomRotation(degrees=(%g, %g)): the smaller one first",
                       op->number[DEGREES], op->number[DEGREES + 1]);
    return fl_op_check_sampling(fl_op_rotation.name, op, err);
}

static void draw_rotation(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                          fl_image_params *params)
{
    (void)in;
    params->number[0] = fl_op_between(fl_op_random(op, key, 0).word[0], &op->number[DEGREES]);
}

static void center_of(const fl_image_op *op, fl_image_size in, double center[2])
{
    bool is_middle = isnan(op->number[CENTER]);
    center[0] = is_middle ? 0 : op->number[CENTER] - in.width * 0.5;
    center[1] = is_middle ? 0 : op->number[CENTER + 1] - in.height * 0.5;
}

int fl_op_transform(const fl_image_op *op, int32_t i, const fl_affine *affine, fl_image_view *view,
                    fl_err *err)
{
    fl_image_warp warp;
    fl_warp_affine(&warp, affine, (fl_image_size){view->y.length, view->x.length});
    return warp_view(op, i, &warp, view, err);
}

int fl_op_rotate(const fl_image_op *op, int32_t i, double degrees, fl_image_view *view, fl_err *err)
{
    fl_image_size in = {view->y.length, view->x.length};
    double angle = fmod(degrees, 360);
    fl_affine affine = {.scale = 1};
    if (angle < 0) angle += 360;
    if (isnan(op->number[CENTER])) {
        if (angle == 0) return FL_OK;
        if (angle == 90 && in.height == in.width) return fl_tone_quarter(view, false, err);
        if (angle == 270 && in.height == in.width) return fl_tone_quarter(view, true, err);
        if (angle == 180) {
            fl_image_view_flip_x(view);
            fl_image_view_flip_y(view);
            return FL_OK;
        }
    }
    affine.angle = -angle;
    center_of(op, in, affine.center);
    return fl_op_transform(op, i, &affine, view, err);
}

static int apply_rotation(const fl_image_op *op, int32_t i, const fl_image_params *params,
                          fl_image_view *view, fl_err *err)
{
    return fl_op_rotate(op, i, (double)params->number[0], view, err);
}

const fl_op_type fl_op_rotation = {.name = "RandomRotation",
                                   .is_drawn = true,
                                   .is_bordered = true,
                                   .check = check_rotation,
                                   .size = fl_op_warped_size,
                                   .draw = draw_rotation,
                                   .apply = apply_rotation};

/* ---- RandomAffine: the numbers are angle, x, y, scale, and shears in x and y */

static int check_affine(const fl_image_op *op, fl_err *err)
{
    const double *n = op->number;
    bool is_range =
        n[DEGREES] <= n[DEGREES + 1] && n[SHEAR] <= n[SHEAR + 1] && n[SHEAR + 2] <= n[SHEAR + 3];
    bool is_part =
        n[TRANSLATE] >= 0 && n[TRANSLATE] <= 1 && n[TRANSLATE + 1] >= 0 && n[TRANSLATE + 1] <= 1;
    if (is_range && is_part && n[SCALE] > 0 && n[SCALE] <= n[SCALE + 1])
        return fl_op_check_sampling(fl_op_affine.name, op, err);
    return fl_fail(
        err, FL_EINVAL,
        "RandomAffine: degrees, shears and scales > 0 are ranges, translations between 0 "
        "and 1");
}

static void draw_affine(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                        fl_image_params *params)
{
    fl_philox_block first = fl_op_random(op, key, 0), second = fl_op_random(op, key, 1);
    double x[2] = {-op->number[TRANSLATE] * in.width, op->number[TRANSLATE] * in.width};
    double y[2] = {-op->number[TRANSLATE + 1] * in.height, op->number[TRANSLATE + 1] * in.height};
    params->number[0] = fl_op_between(first.word[0], &op->number[DEGREES]);
    params->number[1] = rintf(fl_op_between(first.word[1], x));
    params->number[2] = rintf(fl_op_between(first.word[2], y));
    params->number[3] = fl_op_between(first.word[3], &op->number[SCALE]);
    params->number[4] = fl_op_between(second.word[0], &op->number[SHEAR]);
    params->number[5] = fl_op_between(second.word[1], &op->number[SHEAR + 2]);
}

static int apply_affine(const fl_image_op *op, int32_t i, const fl_image_params *params,
                        fl_image_view *view, fl_err *err)
{
    const float *n = params->number;
    fl_image_size in = {view->y.length, view->x.length};
    fl_affine affine = {.angle = (double)n[0],
                        .translate = {(double)n[1], (double)n[2]},
                        .scale = (double)n[3],
                        .shear = {(double)n[4], (double)n[5]}};
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

/* ---- RandomPerspective: the numbers are the eight coefficients */

static int check_perspective(const fl_image_op *op, fl_err *err)
{
    if (!(op->number[DISTORTION] >= 0 && op->number[DISTORTION] <= 1))
        return fl_fail(err, FL_EINVAL,
                       "RandomPerspective(distortion_scale=%g): it is between 0 and 1",
                       op->number[DISTORTION]);
    FL_TRY(fl_op_check_p(fl_op_perspective.name, op->p, err));
    return fl_op_check_sampling(fl_op_perspective.name, op, err);
}

/* Each corner goes towards the middle by less than half of `distortion` of an edge. */
static void draw_perspective(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                             fl_image_params *params)
{
    params->is_applied = fl_philox_unit(fl_op_random(op, key, 0).word[0]) < op->p;
    if (!params->is_applied) return;
    uint32_t bound[2] = {(uint32_t)(op->number[DISTORTION] * (in.width / 2)) + 1,
                         (uint32_t)(op->number[DISTORTION] * (in.height / 2)) + 1};
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
    fl_warp_coefficients(from, to, params->number);
}

static int apply_perspective(const fl_image_op *op, int32_t i, const fl_image_params *params,
                             fl_image_view *view, fl_err *err)
{
    fl_image_warp warp;
    if (!params->is_applied) return FL_OK;
    fl_warp_perspective(&warp, params->number, (fl_image_size){view->y.length, view->x.length});
    return warp_view(op, i, &warp, view, err);
}

const fl_op_type fl_op_perspective = {.name = "RandomPerspective",
                                      .is_drawn = true,
                                      .is_bordered = true,
                                      .check = check_perspective,
                                      .size = fl_op_warped_size,
                                      .draw = draw_perspective,
                                      .apply = apply_perspective};
