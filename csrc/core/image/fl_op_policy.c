/* fl_op_policy: RandAugment, TrivialAugmentWide and AutoAugment. A policy draws operations from a
 * table, and a strength for each operation. */
#include "fl_op_policy.h"

#include "fl_tone.h"

#include <math.h>

/* The largest strength of operations. */
typedef struct space {
    double shear, translate, rotate, enhance;
    double bits, posterized; /* bits: left by the weakest posterization; posterized: how many fewer
                                the strongest leaves */
    double share;            /* translations are relative to an edge, divided by this; 0: pixels */
} space;

static const space narrow = {0.3, 150.0 / 331.0, 30, 0.9, 8, 4, 1};
static const space wide = {0.99, 32, 135, 0.99, 8, 6, 0};
static const space mixed = {0.3, 1, 30, 0.9, 4, 4, 3};

static const space *space_of(const fl_image_op *op)
{
    if (op->kind == FL_OP_TRIVIAL_AUGMENT) return &wide;
    return op->kind == FL_OP_AUG_MIX ? &mixed : &narrow;
}

int32_t fl_policy_bins(const fl_image_op *op)
{
    bool has_bins = op->kind == FL_OP_RAND_AUGMENT || op->kind == FL_OP_TRIVIAL_AUGMENT;
    return has_bins ? (int32_t)op->rand_augment.bins : FL_POLICY_BINS;
}

/* Returns element i of torch.linspace(first, last, bins). */
static float line(double first, double last, int32_t bins, int32_t i)
{
    float step = ((float)last - (float)first) / (float)(bins - 1);
    bool is_lower = i < bins / 2;
    return is_lower ? fmaf(step, (float)i, (float)first)
                    : fmaf(-step, (float)(bins - 1 - i), (float)last);
}

static double move_of(const space *s, int32_t edge)
{
    return s->share > 0 ? s->translate * edge / s->share : s->translate;
}

/* Returns a strength without its sign. */
static float strength_of(const fl_image_op *op, fl_policy_op which, fl_image_size in, int32_t i)
{
    const space *s = space_of(op);
    const int32_t bins = fl_policy_bins(op);
    switch (which) {
    case FL_POLICY_SHEAR_X:
    case FL_POLICY_SHEAR_Y:
        return line(0, s->shear, bins, i);
    case FL_POLICY_TRANSLATE_X:
        return line(0, move_of(s, in.width), bins, i);
    case FL_POLICY_TRANSLATE_Y:
        return line(0, move_of(s, in.height), bins, i);
    case FL_POLICY_ROTATE:
        return line(0, s->rotate, bins, i);
    case FL_POLICY_BRIGHTNESS:
    case FL_POLICY_COLOR:
    case FL_POLICY_CONTRAST:
    case FL_POLICY_SHARPNESS:
        return line(0, s->enhance, bins, i);
    case FL_POLICY_POSTERIZE:
        return rintf((float)s->bits - (float)i / (float)((bins - 1) / s->posterized));
    case FL_POLICY_SOLARIZE:
        return op->is_v1 ? line(255, 0, bins, i) : line(1, 0, bins, i);
    default:
        return 0;
    }
}

float fl_policy_magnitude(const fl_image_op *op, fl_policy_op which, fl_image_size in, int32_t i,
                          bool is_negative)
{
    float strength = strength_of(op, which, in, i);
    return is_negative && fl_policy_is_signed(which) ? -strength : strength;
}

fl_policy_op fl_mix_op(int32_t i)
{
    static const fl_policy_op ops[] = {
        FL_POLICY_SHEAR_X,  FL_POLICY_SHEAR_Y,    FL_POLICY_TRANSLATE_X, FL_POLICY_TRANSLATE_Y,
        FL_POLICY_ROTATE,   FL_POLICY_POSTERIZE,  FL_POLICY_SOLARIZE,    FL_POLICY_AUTOCONTRAST,
        FL_POLICY_EQUALIZE, FL_POLICY_BRIGHTNESS, FL_POLICY_COLOR,       FL_POLICY_CONTRAST,
        FL_POLICY_SHARPNESS};
    return ops[i];
}

int32_t fl_mix_choices(const fl_image_op *op) { return op->aug_mix.has_all != 0 ? 13 : 9; }

void fl_policy_add(fl_image_params *params, int32_t *count, fl_policy_op which, float magnitude)
{
    params->order[*count] = (int8_t)which;
    params->number[(*count)++] = magnitude;
}

void fl_policy_end(fl_image_params *params, int32_t count)
{
    for (int32_t k = count; k < FL_MAX_ORDER; k++) params->order[k] = -1;
}

static bool is_negative(uint32_t word) { return fl_philox_unit(word) <= 0.5; }

/* ---- applying */

static int apply_tone(const fl_image_op *op, fl_policy_op which, double magnitude,
                      fl_image_view *view, fl_err *err)
{
    static const fl_tone tones[] = {[FL_POLICY_BRIGHTNESS] = FL_TONE_BRIGHTNESS,
                                    [FL_POLICY_COLOR] = FL_TONE_SATURATION,
                                    [FL_POLICY_CONTRAST] = FL_TONE_CONTRAST,
                                    [FL_POLICY_SHARPNESS] = FL_TONE_SHARPNESS,
                                    [FL_POLICY_POSTERIZE] = FL_TONE_POSTERIZE,
                                    [FL_POLICY_SOLARIZE] = FL_TONE_SOLARIZE,
                                    [FL_POLICY_AUTOCONTRAST] = FL_TONE_AUTOCONTRAST,
                                    [FL_POLICY_EQUALIZE] = FL_TONE_EQUALIZE,
                                    [FL_POLICY_INVERT] = FL_TONE_INVERT};
    if (which == FL_POLICY_SOLARIZE && !op->is_v1) magnitude *= 255;
    if (which >= FL_POLICY_BRIGHTNESS && which <= FL_POLICY_SHARPNESS) magnitude += 1;
    return fl_tone_apply(view, tones[which], magnitude, err);
}

/* Returns true for a shift by whole pixels: bytes are moved, and the sums of torch and Pillow give
 * the same bytes. */
static bool is_shift(const fl_image_op *op, const fl_affine *affine, const fl_image_view *view)
{
    bool is_zero = true;
    for (int c = 0; c < FL_MAX_CHANNELS; c++) is_zero &= isnan(op->border[c]) || op->border[c] == 0;
    return is_zero && affine->shear[0] == 0 && affine->shear[1] == 0 &&
           fabs(affine->translate[0]) < view->x.length &&
           fabs(affine->translate[1]) < view->y.length;
}

int fl_policy_apply(const fl_image_op *op, int32_t i, fl_policy_op which, double magnitude,
                    fl_image_view *view, fl_err *err)
{
    fl_affine affine = {.scale = 1};
    if (which == FL_POLICY_IDENTITY) return FL_OK;
    if (which == FL_POLICY_ROTATE) return fl_op_rotate(op, i, magnitude, view, err);
    if (which >= FL_POLICY_BRIGHTNESS) return apply_tone(op, which, magnitude, view, err);
    if (which <= FL_POLICY_SHEAR_Y) {
        double degrees = atan(magnitude) * (180.0 / 3.14159265358979323846);
        affine.shear[which - FL_POLICY_SHEAR_X] = degrees;
    } else {
        affine.translate[which - FL_POLICY_TRANSLATE_X] = trunc(magnitude);
        affine.center[0] = view->x.length * 0.5;
        affine.center[1] = view->y.length * 0.5;
    }
    if (is_shift(op, &affine, view))
        return fl_tone_shift(view, i, (int32_t)affine.translate[0], (int32_t)affine.translate[1],
                             err);
    return fl_op_transform(op, i, &affine, view, err);
}

static int apply(const fl_image_op *op, int32_t i, const fl_image_params *params,
                 fl_image_view *view, fl_err *err)
{
    for (int32_t k = 0; k < FL_MAX_POLICY_OPS && params->order[k] >= 0; k++)
        FL_TRY(fl_policy_apply(op, i, (fl_policy_op)params->order[k], (double)params->number[k],
                               view, err));
    return FL_OK;
}

/* ---- RandAugment and TrivialAugmentWide */

static int check(const fl_image_op *op, fl_err *err)
{
    double ops = op->rand_augment.ops, magnitude = op->rand_augment.magnitude;
    double bins = op->rand_augment.bins;
    const char *name = op->kind == FL_OP_RAND_AUGMENT ? "RandAugment" : "TrivialAugmentWide";
    if (!(bins >= 2 && bins <= 1 << 20))
        return fl_fail(err, FL_EINVAL, "%s: num_magnitude_bins must be at least 2, got %g", name,
                       bins);
    if (op->kind == FL_OP_RAND_AUGMENT && !(ops >= 0 && ops <= FL_MAX_POLICY_OPS))
        return fl_fail(err, FL_EINVAL, "%s: num_ops must be in [0, %d], got %g", name,
                       FL_MAX_POLICY_OPS, ops);
    if (op->kind == FL_OP_RAND_AUGMENT && !(magnitude >= 0 && magnitude < bins))
        return fl_fail(err, FL_EINVAL, "%s: magnitude must be in [0, num_magnitude_bins), got %g",
                       name, magnitude);
    return fl_op_check_sampling(name, op, err);
}

static void draw_rand(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                      fl_image_params *params)
{
    int32_t count = 0, at = (int32_t)op->rand_augment.magnitude;
    for (uint16_t k = 0; k < (uint16_t)op->rand_augment.ops; k++) {
        fl_philox_block block = fl_op_random(op, key, k);
        fl_policy_op which = (fl_policy_op)fl_philox_below(block.word[0], FL_POLICY_DRAWN);
        fl_policy_add(params, &count, which,
                      fl_policy_magnitude(op, which, in, at, is_negative(block.word[1])));
    }
    fl_policy_end(params, count);
}

const fl_op_type fl_op_rand_augment = {.name = "RandAugment",
                                       .is_drawn = true,
                                       .is_color = true,
                                       .is_bordered = true,
                                       .check = check,
                                       .size = fl_op_warped_size,
                                       .draw = draw_rand,
                                       .apply = apply};

static void draw_trivial(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                         fl_image_params *params)
{
    int32_t count = 0, bins = fl_policy_bins(op);
    fl_philox_block block = fl_op_random(op, key, 0);
    fl_policy_op which = (fl_policy_op)fl_philox_below(block.word[0], FL_POLICY_DRAWN);
    int32_t at = (int32_t)fl_philox_below(block.word[1], (uint32_t)bins);
    fl_policy_add(params, &count, which,
                  fl_policy_magnitude(op, which, in, at, is_negative(block.word[2])));
    fl_policy_end(params, count);
}

const fl_op_type fl_op_trivial_augment = {.name = "TrivialAugmentWide",
                                          .is_drawn = true,
                                          .is_color = true,
                                          .is_bordered = true,
                                          .check = check,
                                          .size = fl_op_warped_size,
                                          .draw = draw_trivial,
                                          .apply = apply};

/* ---- AutoAugment */

enum { POLICIES = 3, PAIRS = FL_POLICY_PAIRS };

/* In torchvision's names of operations. */
enum {
    SHEAR_X = FL_POLICY_SHEAR_X,
    SHEAR_Y = FL_POLICY_SHEAR_Y,
    TRANSLATE_X = FL_POLICY_TRANSLATE_X,
    TRANSLATE_Y = FL_POLICY_TRANSLATE_Y,
    ROTATE = FL_POLICY_ROTATE,
    BRIGHTNESS = FL_POLICY_BRIGHTNESS,
    COLOR = FL_POLICY_COLOR,
    CONTRAST = FL_POLICY_CONTRAST,
    SHARPNESS = FL_POLICY_SHARPNESS,
    POSTERIZE = FL_POLICY_POSTERIZE,
    SOLARIZE = FL_POLICY_SOLARIZE,
    AUTOCONTRAST = FL_POLICY_AUTOCONTRAST,
    EQUALIZE = FL_POLICY_EQUALIZE,
    INVERT = FL_POLICY_INVERT
};

/* The policies of Cubuk and colleagues, "AutoAugment" (2019), for ImageNet, CIFAR10 and SVHN. */
static const fl_policy_step policies[POLICIES][PAIRS][2] = {
    {{{POSTERIZE, 4, 8}, {ROTATE, 6, 9}},  {{SOLARIZE, 6, 5}, {AUTOCONTRAST, 6, 0}},
     {{EQUALIZE, 8, 0}, {EQUALIZE, 6, 0}}, {{POSTERIZE, 6, 7}, {POSTERIZE, 6, 6}},
     {{EQUALIZE, 4, 0}, {SOLARIZE, 2, 4}}, {{EQUALIZE, 4, 0}, {ROTATE, 8, 8}},
     {{SOLARIZE, 6, 3}, {EQUALIZE, 6, 0}}, {{POSTERIZE, 8, 5}, {EQUALIZE, 10, 0}},
     {{ROTATE, 2, 3}, {SOLARIZE, 6, 8}},   {{EQUALIZE, 6, 0}, {POSTERIZE, 4, 6}},
     {{ROTATE, 8, 8}, {COLOR, 4, 0}},      {{ROTATE, 4, 9}, {EQUALIZE, 6, 0}},
     {{EQUALIZE, 0, 0}, {EQUALIZE, 8, 0}}, {{INVERT, 6, 0}, {EQUALIZE, 10, 0}},
     {{COLOR, 6, 4}, {CONTRAST, 10, 8}},   {{ROTATE, 8, 8}, {COLOR, 10, 2}},
     {{COLOR, 8, 8}, {SOLARIZE, 8, 7}},    {{SHARPNESS, 4, 7}, {INVERT, 6, 0}},
     {{SHEAR_X, 6, 5}, {EQUALIZE, 10, 0}}, {{COLOR, 4, 0}, {EQUALIZE, 6, 0}},
     {{EQUALIZE, 4, 0}, {SOLARIZE, 2, 4}}, {{SOLARIZE, 6, 5}, {AUTOCONTRAST, 6, 0}},
     {{INVERT, 6, 0}, {EQUALIZE, 10, 0}},  {{COLOR, 6, 4}, {CONTRAST, 10, 8}},
     {{EQUALIZE, 8, 0}, {EQUALIZE, 6, 0}}},
    {{{INVERT, 1, 0}, {CONTRAST, 2, 6}},         {{ROTATE, 7, 2}, {TRANSLATE_X, 3, 9}},
     {{SHARPNESS, 8, 1}, {SHARPNESS, 9, 3}},     {{SHEAR_Y, 5, 8}, {TRANSLATE_Y, 7, 9}},
     {{AUTOCONTRAST, 5, 0}, {EQUALIZE, 9, 0}},   {{SHEAR_Y, 2, 7}, {POSTERIZE, 3, 7}},
     {{COLOR, 4, 3}, {BRIGHTNESS, 6, 7}},        {{SHARPNESS, 3, 9}, {BRIGHTNESS, 7, 9}},
     {{EQUALIZE, 6, 0}, {EQUALIZE, 5, 0}},       {{CONTRAST, 6, 7}, {SHARPNESS, 6, 5}},
     {{COLOR, 7, 7}, {TRANSLATE_X, 5, 8}},       {{EQUALIZE, 3, 0}, {AUTOCONTRAST, 4, 0}},
     {{TRANSLATE_Y, 4, 3}, {SHARPNESS, 2, 6}},   {{BRIGHTNESS, 9, 6}, {COLOR, 2, 8}},
     {{SOLARIZE, 5, 2}, {INVERT, 0, 0}},         {{EQUALIZE, 2, 0}, {AUTOCONTRAST, 6, 0}},
     {{EQUALIZE, 2, 0}, {EQUALIZE, 6, 0}},       {{COLOR, 9, 9}, {EQUALIZE, 6, 0}},
     {{AUTOCONTRAST, 8, 0}, {SOLARIZE, 2, 8}},   {{BRIGHTNESS, 1, 3}, {COLOR, 7, 0}},
     {{SOLARIZE, 4, 5}, {AUTOCONTRAST, 9, 0}},   {{TRANSLATE_Y, 9, 9}, {TRANSLATE_Y, 7, 9}},
     {{AUTOCONTRAST, 9, 0}, {SOLARIZE, 8, 3}},   {{EQUALIZE, 8, 0}, {INVERT, 1, 0}},
     {{TRANSLATE_Y, 7, 9}, {AUTOCONTRAST, 9, 0}}},
    {{{SHEAR_X, 9, 4}, {INVERT, 2, 0}},       {{SHEAR_Y, 9, 8}, {INVERT, 7, 0}},
     {{EQUALIZE, 6, 0}, {SOLARIZE, 6, 6}},    {{INVERT, 9, 0}, {EQUALIZE, 6, 0}},
     {{EQUALIZE, 6, 0}, {ROTATE, 9, 3}},      {{SHEAR_X, 9, 4}, {AUTOCONTRAST, 8, 0}},
     {{SHEAR_Y, 9, 8}, {INVERT, 4, 0}},       {{SHEAR_Y, 9, 5}, {SOLARIZE, 2, 6}},
     {{INVERT, 9, 0}, {AUTOCONTRAST, 8, 0}},  {{EQUALIZE, 6, 0}, {ROTATE, 9, 3}},
     {{SHEAR_X, 9, 4}, {SOLARIZE, 3, 3}},     {{SHEAR_Y, 8, 8}, {INVERT, 7, 0}},
     {{EQUALIZE, 9, 0}, {TRANSLATE_Y, 6, 6}}, {{INVERT, 9, 0}, {EQUALIZE, 6, 0}},
     {{CONTRAST, 3, 3}, {ROTATE, 8, 4}},      {{INVERT, 8, 0}, {TRANSLATE_Y, 0, 2}},
     {{SHEAR_Y, 7, 6}, {SOLARIZE, 4, 8}},     {{INVERT, 6, 0}, {ROTATE, 8, 4}},
     {{SHEAR_Y, 3, 7}, {TRANSLATE_X, 9, 3}},  {{SHEAR_X, 1, 6}, {INVERT, 6, 0}},
     {{SOLARIZE, 7, 2}, {TRANSLATE_Y, 6, 7}}, {{SHEAR_Y, 8, 4}, {INVERT, 8, 0}},
     {{SHEAR_X, 7, 9}, {TRANSLATE_Y, 8, 3}},  {{SHEAR_Y, 8, 5}, {AUTOCONTRAST, 7, 0}},
     {{SHEAR_X, 7, 2}, {INVERT, 1, 0}}}};

const fl_policy_step *fl_policy_pair(const fl_image_op *op, int64_t i)
{
    return policies[(int)op->policy][i];
}

static int check_auto(const fl_image_op *op, fl_err *err)
{
    if (!(op->policy >= 0 && op->policy < POLICIES))
        return fl_fail(err, FL_EINVAL, "AutoAugment: policy must be in [0, %d], got %g",
                       POLICIES - 1, op->policy);
    return fl_op_check_sampling(fl_op_auto_augment.name, op, err);
}

static void draw_auto(const fl_image_op *op, const fl_sample_key *key, fl_image_size in,
                      fl_image_params *params)
{
    int32_t count = 0;
    const fl_policy_step *pair =
        fl_policy_pair(op, fl_philox_below(fl_op_random(op, key, 0).word[0], PAIRS));
    for (uint16_t k = 0; k < 2; k++) {
        fl_philox_block block = fl_op_random(op, key, 1 + k);
        const fl_policy_step *step = &pair[k];
        if (!(fl_philox_unit(block.word[0]) <= step->tenths / 10.0)) continue;
        fl_policy_op which = (fl_policy_op)step->op;
        fl_policy_add(
            params, &count, which,
            fl_policy_magnitude(op, which, in, step->magnitude, is_negative(block.word[1])));
    }
    fl_policy_end(params, count);
}

const fl_op_type fl_op_auto_augment = {.name = "AutoAugment",
                                       .is_drawn = true,
                                       .is_color = true,
                                       .is_bordered = true,
                                       .check = check_auto,
                                       .size = fl_op_warped_size,
                                       .draw = draw_auto,
                                       .apply = apply};
