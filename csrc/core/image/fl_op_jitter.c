/* fl_op_jitter: ColorJitter, RandomChannelPermutation and RandomPhotometricDistort. */
#include "fl_op.h"

#include "fl_tone.h"

#include <math.h>

enum { JITTERED = 4, HUE = 3 }; /* brightness, contrast, saturation and hue */

static const fl_tone tones[JITTERED] = {FL_TONE_BRIGHTNESS, FL_TONE_CONTRAST, FL_TONE_SATURATION,
                                        FL_TONE_HUE};

static int check_ranges(const char *name, const fl_image_op *op, fl_err *err)
{
    static const char *const names[JITTERED] = {"brightness", "contrast", "saturation", "hue"};
    for (int n = 0; n < JITTERED; n++) {
        double low = op->jitter[n][0], high = op->jitter[n][1];
        double least = n == HUE ? -0.5 : 0, most = n == HUE ? 0.5 : 1e6;
        if (isnan(low) || (least <= low && low <= high && high <= most)) continue;
        return fl_fail(err, FL_EINVAL,
                       "%s: %s must be (min, max) with %g <= min <= max <= %g, got (%g, %g)", name,
                       names[n], least, most, low, high);
    }
    return FL_OK;
}

float fl_op_between(uint32_t word, const double limits[2])
{
    return (float)(limits[0] + fl_philox_unit(word) * (limits[1] - limits[0]));
}

void fl_op_draw_order(const fl_image_op *op, const fl_sample_key *key, uint16_t block,
                      int32_t count, int8_t *order)
{
    fl_philox_block words = {{0}};
    for (int k = 0; k < FL_MAX_ORDER; k++) order[k] = (int8_t)(k < count ? k : -1);
    for (int k = 0; k + 1 < count; k++) {
        if (k % 4 == 0) words = fl_op_random(op, key, (uint16_t)(block + k / 4));
        int other = k + (int)fl_philox_below(words.word[k % 4], (uint32_t)(count - k));
        int8_t kept = order[k];
        order[k] = order[other];
        order[other] = kept;
    }
}

static int apply_one(const fl_image_params *params, int which, fl_image_view *view, fl_err *err)
{
    float number = params->change[which];
    return isnan(number) ? FL_OK : fl_tone_apply(view, tones[which], (double)number, err);
}

/* ---- ColorJitter */

static int check_jitter(const fl_image_op *op, fl_err *err)
{
    return check_ranges(fl_op_color_jitter.name, op, err);
}

static void draw_jitter(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                        fl_image_params *params)
{
    (void)in;
    fl_philox_block block = fl_op_random(op, key, 0);
    for (int n = 0; n < JITTERED; n++)
        params->change[n] = fl_op_between(block.word[n], op->jitter[n]);
    fl_op_draw_order(op, key, 1, JITTERED, params->order);
}

static int apply_jitter(const fl_image_op *op, int32_t i, const fl_image_params *params,
                        fl_image_view *view, fl_err *err)
{
    (void)op;
    (void)i;
    for (int k = 0; k < JITTERED; k++) FL_TRY(apply_one(params, params->order[k], view, err));
    return FL_OK;
}

const fl_op_type fl_op_color_jitter = {.name = "ColorJitter",
                                       .is_drawn = true,
                                       .is_color = true,
                                       .check = check_jitter,
                                       .draw = draw_jitter,
                                       .apply = apply_jitter};

/* ---- RandomChannelPermutation */

static void draw_permutation(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                             fl_image_params *params)
{
    (void)in;
    fl_op_draw_order(op, key, 0, op->channels, params->order);
}

static int apply_permutation(const fl_image_op *op, int32_t i, const fl_image_params *params,
                             fl_image_view *view, fl_err *err)
{
    (void)op;
    (void)i;
    return fl_tone_permute(view, params->order, err);
}

const fl_op_type fl_op_channel_permutation = {.name = "RandomChannelPermutation",
                                              .is_drawn = true,
                                              .draw = draw_permutation,
                                              .apply = apply_permutation};

/* ---- RandomPhotometricDistort */

enum { CONTRAST = 1, SATURATION = 2 };

static int check_distort(const fl_image_op *op, fl_err *err)
{
    FL_TRY(check_ranges(fl_op_photometric_distort.name, op, err));
    return fl_op_check_p(fl_op_photometric_distort.name, op->p, err);
}

static void draw_distort(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                         fl_image_params *params)
{
    (void)in;
    fl_philox_block gates = fl_op_random(op, key, 0), numbers = fl_op_random(op, key, 1);
    fl_philox_block others = fl_op_random(op, key, 2);
    for (int n = 0; n < JITTERED; n++) {
        bool is_changed = fl_philox_unit(gates.word[n]) < op->p;
        params->change[n] = is_changed ? fl_op_between(numbers.word[n], op->jitter[n]) : NAN;
    }
    fl_op_draw_order(op, key, 3, op->channels, params->order);
    if (fl_philox_unit(others.word[1]) >= op->p) params->order[0] = -1;
    params->is_early = fl_philox_unit(others.word[0]) < 0.5;
}

static int apply_distort(const fl_image_op *op, int32_t i, const fl_image_params *params,
                         fl_image_view *view, fl_err *err)
{
    (void)op;
    (void)i;
    bool is_early = params->is_early;
    FL_TRY(apply_one(params, 0, view, err));
    if (is_early) FL_TRY(apply_one(params, CONTRAST, view, err));
    FL_TRY(apply_one(params, SATURATION, view, err));
    FL_TRY(apply_one(params, HUE, view, err));
    if (!is_early) FL_TRY(apply_one(params, CONTRAST, view, err));
    return params->order[0] < 0 ? FL_OK : fl_tone_permute(view, params->order, err);
}

const fl_op_type fl_op_photometric_distort = {.name = "RandomPhotometricDistort",
                                              .is_drawn = true,
                                              .is_color = true,
                                              .check = check_distort,
                                              .draw = draw_distort,
                                              .apply = apply_distort};
