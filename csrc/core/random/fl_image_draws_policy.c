/* fl_image_draws_policy: see fl_image_draws_policy.h. */
#include "fl_image_draws_policy.h"

#include "fl_image_draws_color.h"
#include "fl_op_policy.h"

bool fl_draws_policy(fl_image_op_kind kind)
{
    return (kind >= FL_OP_RAND_AUGMENT && kind <= FL_OP_AUTO_AUGMENT) || kind == FL_OP_AUG_MIX;
}

static int32_t draw_below(fl_image_drawing *with, int32_t range)
{
    return (int32_t)fl_torch_random_int(with->random, 0, range);
}

/* Draws whether the strength of an operation is negative. */
static bool draw_sign(fl_image_drawing *with, fl_policy_op which)
{
    if (!fl_policy_is_signed(which)) return false;
    if (with->ways->is_v1) return draw_below(with, 2) == 1;
    return fl_torch_random_unit(with->random) <= 0.5f;
}

/* Draws operations of RandAugment or TrivialAugmentWide. */
static void
draw_table(fl_image_drawing *with, const fl_image_op *op, fl_image_size in, fl_image_params *params)
{
    const bool is_rand = op->kind == FL_OP_RAND_AUGMENT;
    const int32_t ops = is_rand ? (int32_t)op->rand_augment.ops : 1;
    int32_t count = 0;
    while (count < ops) {
        fl_policy_op which = (fl_policy_op)draw_below(with, FL_POLICY_DRAWN);
        int32_t at = (int32_t)op->rand_augment.magnitude;
        if (!is_rand) at = fl_policy_has_strength(which) ? draw_below(with, fl_policy_bins(op)) : 0;
        fl_policy_add(params, &count, which,
                      fl_policy_magnitude(op, which, in, at, draw_sign(with, which)));
    }
    fl_policy_end(params, count);
}

/* Draws a pair of AutoAugment. v1 draws a unit number and a sign for both operations before it
 * looks at them, and then 0 is negative. */
static void
draw_pair(fl_image_drawing *with, const fl_image_op *op, fl_image_size in, fl_image_params *params)
{
    const bool is_v1 = with->ways->is_v1;
    const fl_policy_step *pair = fl_policy_pair(op, draw_below(with, FL_POLICY_PAIRS));
    float unit[2];
    bool is_negative[2];
    int32_t count = 0;
    for (int k = 0; k < 2 && is_v1; k++) unit[k] = fl_torch_random_unit(with->random);
    for (int k = 0; k < 2 && is_v1; k++) is_negative[k] = draw_below(with, 2) == 0;
    for (int k = 0; k < 2; k++) {
        fl_policy_op which = (fl_policy_op)pair[k].op;
        if (!is_v1) unit[k] = fl_torch_random_unit(with->random);
        if (!(unit[k] <= (float)(pair[k].tenths / 10.0))) continue;
        if (!is_v1) is_negative[k] = draw_sign(with, which);
        fl_policy_add(params, &count, which,
                      fl_policy_magnitude(op, which, in, pair[k].magnitude, is_negative[k]));
    }
    fl_policy_end(params, count);
}

/* Draws the weights and the chains of AugMix. */
static void
draw_mix(fl_image_drawing *with, const fl_image_op *op, fl_image_size in, fl_image_params *params)
{
    const int32_t chains = (int32_t)op->aug_mix.width;
    const float alpha = (float)op->aug_mix.alpha;
    int32_t places = 0, count = 1 + chains;
    float part[2], *weight = params->number;
    fl_torch_random_shares(with->random, 2, alpha, part);
    fl_torch_random_shares(with->random, chains, alpha, weight + 1);
    weight[0] = part[0];
    for (int32_t chain = 1; chain <= chains; chain++) {
        int32_t depth = (int32_t)op->aug_mix.depth;
        weight[chain] *= part[1];
        if (depth <= 0) depth = 1 + draw_below(with, FL_MIX_DEPTH);
        for (; depth > 0; depth--) {
            fl_policy_op which = fl_mix_op(draw_below(with, fl_mix_choices(op)));
            int32_t at = 0;
            if (fl_policy_has_strength(which)) at = draw_below(with, (int32_t)op->aug_mix.severity);
            params->order[places++] = (int8_t)which;
            params->number[count++] =
                fl_policy_magnitude(op, which, in, at, draw_sign(with, which));
        }
        params->order[places++] = FL_MIX_END;
    }
    fl_policy_end(params, places);
}

int fl_draw_policy(fl_image_drawing *with, const fl_image_op *op, fl_image_size in,
                   fl_image_params *params, fl_err *err)
{
    FL_TRY(fl_check_color(op, in, err));
    if (op->kind == FL_OP_AUTO_AUGMENT)
        draw_pair(with, op, in, params);
    else if (op->kind == FL_OP_AUG_MIX)
        draw_mix(with, op, in, params);
    else
        draw_table(with, op, in, params);
    return FL_OK;
}
