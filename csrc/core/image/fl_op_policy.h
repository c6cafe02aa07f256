/* fl_op_policy: the operations that policies draw, their strengths, and the pairs of AutoAugment.
 *
 * Floor 1. Policies are RandAugment, TrivialAugmentWide, AutoAugment and AugMix. Their own
 * operations draw from a key of the sample; fl_image_draws_policy draws words of torch's generator.
 * Each result depends on the arguments only. */
#ifndef FL_OP_POLICY_H
#define FL_OP_POLICY_H

#include "fl_op.h"

/* torchvision's order, because random numbers stand for positions in it. */
typedef enum fl_policy_op {
    FL_POLICY_IDENTITY,
    FL_POLICY_SHEAR_X,
    FL_POLICY_SHEAR_Y,
    FL_POLICY_TRANSLATE_X,
    FL_POLICY_TRANSLATE_Y,
    FL_POLICY_ROTATE,
    FL_POLICY_BRIGHTNESS,
    FL_POLICY_COLOR,
    FL_POLICY_CONTRAST,
    FL_POLICY_SHARPNESS,
    FL_POLICY_POSTERIZE,
    FL_POLICY_SOLARIZE,
    FL_POLICY_AUTOCONTRAST,
    FL_POLICY_EQUALIZE,
    FL_POLICY_DRAWN, /* the operations before this one may be drawn */
    FL_POLICY_INVERT = FL_POLICY_DRAWN,
    FL_POLICY_OPS
} fl_policy_op;

enum { FL_POLICY_BINS = 10, FL_POLICY_PAIRS = 25 }; /* of AutoAugment; AugMix has the same bins */

/* AugMix: a chain has 1 to FL_MIX_DEPTH operations if their number is drawn. FL_MIX_END in
 * fl_image_params.order stands after each chain. */
enum { FL_MIX_DEPTH = 3, FL_MIX_END = 100 };

/* An operation of AutoAugment: its probability in tenths, and one of the magnitudes. */
typedef struct fl_policy_step {
    uint8_t op, tenths, magnitude;
} fl_policy_step;

/* Returns true if the strength of an operation may be negative. */
static inline bool fl_policy_is_signed(fl_policy_op which)
{
    return which >= FL_POLICY_SHEAR_X && which <= FL_POLICY_SHARPNESS;
}

/* Returns true if an operation has a strength. */
static inline bool fl_policy_has_strength(fl_policy_op which)
{
    return which >= FL_POLICY_SHEAR_X && which <= FL_POLICY_SOLARIZE;
}

/* Returns how many strengths the policy has. */
int32_t fl_policy_bins(const fl_image_op *op);

/* Returns strength i < fl_policy_bins of an operation for an image of size `in`; 0 for operations
 * without strengths. */
float fl_policy_magnitude(const fl_image_op *op, fl_policy_op which, fl_image_size in, int32_t i,
                          bool is_negative);

/* Returns the two operations of pair i < FL_POLICY_PAIRS of AutoAugment; static. */
const fl_policy_step *fl_policy_pair(const fl_image_op *op, int64_t i);

/* Returns the number of operations that AugMix chooses from. */
int32_t fl_mix_choices(const fl_image_op *op);
fl_policy_op fl_mix_op(int32_t i); /* i < fl_mix_choices */

/* Append an operation to the drawn operations; end them. */
void fl_policy_add(fl_image_params *params, int32_t *count, fl_policy_op which, float magnitude);
void fl_policy_end(fl_image_params *params, int32_t count);

/* Applies a drawn operation of policy i to the view. FL_ENOMEM. */
int fl_policy_apply(const fl_image_op *op, int32_t i, fl_policy_op which, double magnitude,
                    fl_image_view *view, fl_err *err);

#endif
