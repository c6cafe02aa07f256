/* fl_op: the type of an operation on images.
 *
 * Floor 1. A type is a row of the table in fl_image_plan.c, defined in a file fl_op_*.c; below are
 * functions that several types share. A size {0, 0} is not known before there is an image. */
#ifndef FL_OP_H
#define FL_OP_H

#include "fl_image_view.h"
#include "fl_op_draw.h"
#include "fl_warp.h"

typedef struct fl_op_type {
    const char *name; /* torchvision's name */
    bool is_drawn; /* draws random numbers, so a plan has room for at most 8 operations of the kind
                    */
    bool has_area; /* draws an area and a ratio */
    bool is_color; /* takes images of 1 or 3 channels */
    bool is_bordered; /* samples the image with a border, so the plan makes its fill bytes 0 */

    /* Fails with FL_EINVAL if the arguments are wrong for every image. NULL: arguments are always
     * right. */
    int (*check)(const fl_image_op *op, fl_err *err);

    /* Computes the size of the result for an image of size `in`. For {0, 0} the size is {0, 0},
     * unless every image gives the same size. NULL: the size stays. FL_EINVAL: the operation cannot
     * take such an image. The result depends on the arguments only. */
    int (*size)(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err);

    /* Draws the parameters for an image whose size `size` has accepted. On entry every field is 0
     * but `out` and is_applied, which is true. NULL: they stay. The result depends on the arguments
     * only. */
    void (*draw)(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                 fl_image_params *params);

    /* Edits the view for operation `i` of the plan. FL_ENOMEM. NULL: the operation holds
     * operations. */
    int (*apply)(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err);
} fl_op_type;

extern const fl_op_type fl_op_pad, fl_op_center_crop, fl_op_random_crop, fl_op_resize,
    fl_op_random_resized_crop, fl_op_horizontal_flip, fl_op_vertical_flip, fl_op_erase,
    fl_op_invert, fl_op_solarize, fl_op_posterize, fl_op_equalize, fl_op_autocontrast,
    fl_op_grayscale, fl_op_random_grayscale, fl_op_color_jitter, fl_op_channel_permutation,
    fl_op_photometric_distort, fl_op_sharpness, fl_op_blur, fl_op_noise, fl_op_aug_mix,
    fl_op_rand_augment, fl_op_trivial_augment, fl_op_auto_augment, fl_op_rotation, fl_op_affine,
    fl_op_perspective, fl_op_gate_apply, fl_op_gate_choice, fl_op_gate_order, fl_op_gate_branch;

/* Upper bound of edges and paddings, so that their sums fit int32_t and areas fit int64_t. */
enum { FL_MAX_EDGE = 1 << 24 };

_Static_assert(FL_OP_KINDS <= 32, "a slot has 5 bits for the kind");

static inline bool fl_size_is_known(fl_image_size size) { return size.height > 0; }

/* Returns true for a RandomApply of flips alone, because such an operation only moves pixels. */
static inline bool fl_op_holds_flips(const fl_image_op *op)
{
    for (int32_t i = 1; i <= op->span; i++)
        if (op[i].kind != FL_OP_HORIZONTAL_FLIP && op[i].kind != FL_OP_VERTICAL_FLIP) return false;
    return op->kind == FL_OP_APPLY;
}

/* Returns true if the operation can pad and its arguments ask for padding. */
static inline bool fl_op_may_pad(const fl_image_op *op)
{
    const int32_t *padding = op->padding;
    bool is_told = (padding[0] | padding[1] | padding[2] | padding[3]) != 0 || op->pad_if_needed;
    return fl_op_pads(op->kind) && (is_told || op->kind == FL_OP_CENTER_CROP);
}

/* Returns how many operations lie between an operation and its branch n, and one. */
static inline int32_t fl_op_branch(const fl_image_op *op, int32_t n)
{
    int32_t i = 1;
    while (n-- > 0) i += 1 + op[i].span;
    return i;
}

/* Checks that several operations share; `name` is the operation's name. FL_EINVAL. */
int fl_op_check_size(const char *name, fl_image_size size, fl_err *err);
int fl_op_check_p(const char *name, double p, fl_err *err);
int fl_op_check_padding(const char *name, const fl_image_op *op, fl_err *err);
/* Checks that an image of this size has enough rows and columns for the mode. */
int fl_op_check_mirrored(const char *name, fl_padding_mode mode, const int32_t padding[4],
                         fl_image_size in, fl_err *err);

/* The `apply` of operations on colours: does the steps of fl_op_find_steps. FL_ENOMEM. */
int fl_op_apply_steps(const fl_image_op *op, int32_t i, const fl_image_params *params,
                      fl_image_view *view, fl_err *err);

/* These serve warps, which sample the image at computed positions. */
int fl_op_check_sampling(const char *name, const fl_image_op *op, fl_err *err);
int fl_op_warped_size(const fl_image_op *op, fl_image_size in, fl_image_size *out, fl_err *err);
/* Turn the view by an angle like torchvision's rotate, or transform it like torchvision's affine.
 * The center of `affine` is counted from the upper left corner. FL_ENOMEM. */
int fl_op_rotate(const fl_image_op *op, int32_t i, double degrees, fl_image_view *view,
                 fl_err *err);
int fl_op_transform(const fl_image_op *op, int32_t i, const fl_affine *affine, fl_image_view *view,
                    fl_err *err);
/* Transforms the view with Pillow's bits; sets how and fill of `warp`. FL_ENOMEM. */
int fl_op_warp_pil(const fl_image_op *op, fl_warp_pil *warp, fl_image_view *view, fl_err *err);

/* log with the same bits on every machine, as fl_op_exp; x > 0. */
double fl_op_log(double x);

/* Rectangles of a random share of an area and a random ratio of their edges. */
int fl_op_check_area(const char *name, const fl_image_op *op, fl_err *err);
void fl_op_set_ratio(fl_image_op *op); /* sets log_ratio, for fl_op_draw_edges */

#endif
