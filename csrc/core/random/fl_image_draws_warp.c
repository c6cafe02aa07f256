/* fl_image_draws_warp: see fl_image_draws_warp.h. */
#include "fl_image_draws_warp.h"

#include <math.h>

bool fl_draws_warp(fl_image_op_kind kind)
{
    return kind >= FL_OP_ROTATION && kind <= FL_OP_PERSPECTIVE;
}

/* Draws whole pixels up to a share of an edge, in both directions. */
static float draw_move(fl_image_drawing *with, double share, int32_t edge)
{
    const double most = share * edge, limits[2] = {-most, most};
    return rintf(fl_draw_between(with, limits));
}

static void draw_affine(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                        fl_image_params *params)
{
    const int drawn = (int)op->affine.drawn;
    params->affine.translate[0] = params->affine.translate[1] = 0;
    params->affine.shear[0] = params->affine.shear[1] = 0;
    params->affine.scale = 1;
    params->affine.angle = fl_draw_between(with, op->affine.degrees);
    if (drawn & FL_DRAWS_MOVE) {
        params->affine.translate[0] = draw_move(with, op->affine.translate[0], in.width);
        params->affine.translate[1] = draw_move(with, op->affine.translate[1], in.height);
    }
    if (drawn & FL_DRAWS_SCALE) params->affine.scale = fl_draw_between(with, op->affine.scale);
    if (drawn & FL_DRAWS_SHEAR_X)
        params->affine.shear[0] = fl_draw_between(with, op->affine.shear[0]);
    if (drawn & FL_DRAWS_SHEAR_Y)
        params->affine.shear[1] = fl_draw_between(with, op->affine.shear[1]);
}

/* Draws how far each corner is from the upper left corner of the image, x before y, and asks for
 * the coefficients. */
static int draw_perspective(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                            fl_image_params *params, fl_err *err)
{
    static const bool is_far[4][2] = {{false, false}, {true, false}, {true, true}, {false, true}};
    const int32_t edge[2] = {in.width, in.height};
    fl_torch_tilt tilt = {.size = in};
    params->is_applied = fl_draw_applied(with, op->p);
    if (!params->is_applied) return FL_OK;
    for (int corner = 0; corner < 4; corner++)
        for (int axis = 0; axis < 2; axis++) {
            int32_t range = (int32_t)(op->distortion * (edge[axis] / 2)) + 1;
            int32_t first = is_far[corner][axis] ? edge[axis] - range : 0;
            tilt.corner[corner][axis] =
                (int32_t)fl_torch_random_int(with->random, first, first + range);
        }
    if (with->answers->tilt(with->answers->context, &tilt, params->coefficients) == 0) return FL_OK;
    return fl_fail(err, FL_EINVAL, "torch has found no coefficients of a perspective");
}

int fl_draw_warp(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                 fl_image_params *params, fl_err *err)
{
    if (op->kind == FL_OP_PERSPECTIVE) return draw_perspective(with, op, in, params, err);
    if (op->kind == FL_OP_AFFINE)
        draw_affine(with, op, in, params);
    else
        params->affine.angle = fl_draw_between(with, op->affine.degrees);
    return FL_OK;
}
