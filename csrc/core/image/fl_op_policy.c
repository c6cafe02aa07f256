/* fl_op_policy: RandAugment, TrivialAugmentWide, AutoAugment and AugMix. Each of them draws
 * operations from a table, and the strength of every operation. */
#include "fl_op.h"

#include "fl_tone.h"
#include "fl_warp.h"

#include <math.h>
#include <string.h>

/* torchvision's order, because random numbers stand for positions in it. */
typedef enum policy_op {
    IDENTITY,
    SHEAR_X,
    SHEAR_Y,
    TRANSLATE_X,
    TRANSLATE_Y,
    ROTATE,
    BRIGHTNESS,
    COLOR,
    CONTRAST,
    SHARPNESS,
    POSTERIZE,
    SOLARIZE,
    AUTOCONTRAST,
    EQUALIZE,
    DRAWN, /* the operations before this one may be drawn */
    INVERT = DRAWN
} policy_op;

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

/* Returns element i of torch.linspace(0, most, bins). */
static float rise(double most, int32_t bins, int32_t i)
{
    float end = (float)most, step = end / (float)(bins - 1);
    return i < bins / 2 ? step * (float)i : fmaf(-step, (float)(bins - 1 - i), end);
}

/* Returns element i of torch.linspace(1, 0, bins). */
static float fall(int32_t bins, int32_t i)
{
    float step = -1.0f / (float)(bins - 1);
    return i < bins / 2 ? fmaf(step, (float)i, 1.0f) : -step * (float)(bins - 1 - i);
}

static double move_of(const space *s, int32_t edge)
{
    return s->share > 0 ? s->translate * edge / s->share : s->translate;
}

static float magnitude_of(policy_op op, const space *s, fl_image_size in, int32_t bins, int32_t i,
                          bool is_negative)
{
    float sign = is_negative ? -1.0f : 1.0f;
    switch (op) {
    case SHEAR_X:
    case SHEAR_Y:
        return sign * rise(s->shear, bins, i);
    case TRANSLATE_X:
        return sign * rise(move_of(s, in.width), bins, i);
    case TRANSLATE_Y:
        return sign * rise(move_of(s, in.height), bins, i);
    case ROTATE:
        return sign * rise(s->rotate, bins, i);
    case BRIGHTNESS:
    case COLOR:
    case CONTRAST:
    case SHARPNESS:
        return sign * rise(s->enhance, bins, i);
    case POSTERIZE:
        return rintf((float)s->bits - (float)i / (float)((bins - 1) / s->posterized));
    case SOLARIZE:
        return fall(bins, i);
    default:
        return 0;
    }
}

/* Appends an operation to the drawn operations. */
static void add_op(fl_image_params *params, int32_t *count, policy_op op, float magnitude)
{
    params->order[*count] = (int8_t)op;
    params->number[(*count)++] = magnitude;
}

static void end_ops(fl_image_params *params, int32_t count)
{
    for (int32_t k = count; k < FL_MAX_ORDER; k++) params->order[k] = -1;
}

static bool is_negative(uint32_t word) { return fl_philox_unit(word) <= 0.5; }

/* ---- applying */

static int apply_tone(policy_op op, double magnitude, fl_image_view *view, fl_err *err)
{
    static const fl_tone tones[] = {[BRIGHTNESS] = FL_TONE_BRIGHTNESS,
                                    [COLOR] = FL_TONE_SATURATION,
                                    [CONTRAST] = FL_TONE_CONTRAST,
                                    [SHARPNESS] = FL_TONE_SHARPNESS,
                                    [POSTERIZE] = FL_TONE_POSTERIZE,
                                    [SOLARIZE] = FL_TONE_SOLARIZE,
                                    [AUTOCONTRAST] = FL_TONE_AUTOCONTRAST,
                                    [EQUALIZE] = FL_TONE_EQUALIZE,
                                    [INVERT] = FL_TONE_INVERT};
    if (op == SOLARIZE) magnitude *= 255;
    if (op >= BRIGHTNESS && op <= SHARPNESS) magnitude += 1;
    return fl_tone_apply(view, tones[op], magnitude, err);
}

/* Returns true for a shift by whole pixels: bytes are moved, and torch's sums give the same
 * bytes. */
static bool is_shift(const fl_image_op *op, const fl_affine *affine, const fl_image_view *view)
{
    bool is_zero = true;
    for (int c = 0; c < FL_MAX_CHANNELS; c++) is_zero &= isnan(op->border[c]) || op->border[c] == 0;
    return is_zero && affine->shear[0] == 0 && affine->shear[1] == 0 &&
           fabs(affine->translate[0]) < view->x.length &&
           fabs(affine->translate[1]) < view->y.length;
}

static int apply_one(const fl_image_op *op, int32_t i, policy_op which, double magnitude,
                     fl_image_view *view, fl_err *err)
{
    double shear = atan(magnitude) * (180.0 / 3.14159265358979323846), moved = trunc(magnitude);
    fl_affine affine = {.scale = 1};
    if (which == IDENTITY) return FL_OK;
    if (which == ROTATE) return fl_op_rotate(op, i, magnitude, view, err);
    if (which >= BRIGHTNESS) return apply_tone(which, magnitude, view, err);
    if (which == SHEAR_X || which == SHEAR_Y) {
        affine.shear[which - SHEAR_X] = shear;
        affine.center[0] = 0 - view->x.length * 0.5;
        affine.center[1] = 0 - view->y.length * 0.5;
    } else {
        affine.translate[which - TRANSLATE_X] = moved;
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
        FL_TRY(apply_one(op, i, (policy_op)params->order[k], (double)params->number[k], view, err));
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
    int32_t count = 0, bins = (int32_t)op->rand_augment.bins;
    int32_t at = (int32_t)op->rand_augment.magnitude;
    for (uint16_t k = 0; k < (uint16_t)op->rand_augment.ops; k++) {
        fl_philox_block block = fl_op_random(op, key, k);
        policy_op which = (policy_op)fl_philox_below(block.word[0], DRAWN);
        add_op(params, &count, which,
               magnitude_of(which, &narrow, in, bins, at, is_negative(block.word[1])));
    }
    end_ops(params, count);
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
    int32_t count = 0, bins = (int32_t)op->rand_augment.bins;
    fl_philox_block block = fl_op_random(op, key, 0);
    policy_op which = (policy_op)fl_philox_below(block.word[0], DRAWN);
    int32_t at = (int32_t)fl_philox_below(block.word[1], (uint32_t)bins);
    add_op(params, &count, which,
           magnitude_of(which, &wide, in, bins, at, is_negative(block.word[2])));
    end_ops(params, count);
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

/* An operation of a policy: its probability in tenths, and one of ten magnitudes. */
typedef struct policy_step {
    uint8_t op, tenths, magnitude;
} policy_step;

enum { POLICIES = 3, PAIRS = 25, BINS = 10 };

/* The policies of Cubuk and colleagues, "AutoAugment" (2019), for ImageNet, CIFAR10 and SVHN. */
static const policy_step policies[POLICIES][PAIRS][2] = {
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
    int64_t pair = fl_philox_below(fl_op_random(op, key, 0).word[0], PAIRS);
    for (uint16_t k = 0; k < 2; k++) {
        fl_philox_block block = fl_op_random(op, key, 1 + k);
        const policy_step *step = &policies[(int)op->policy][pair][k];
        if (!(fl_philox_unit(block.word[0]) <= step->tenths / 10.0)) continue;
        policy_op which = (policy_op)step->op;
        add_op(params, &count, which,
               magnitude_of(which, &narrow, in, BINS, step->magnitude, is_negative(block.word[1])));
    }
    end_ops(params, count);
}

const fl_op_type fl_op_auto_augment = {.name = "AutoAugment",
                                       .is_drawn = true,
                                       .is_color = true,
                                       .is_bordered = true,
                                       .check = check_auto,
                                       .size = fl_op_warped_size,
                                       .draw = draw_auto,
                                       .apply = apply};

/* ---- AugMix
 *
 * A sum of the image and `width` chains of operations on the image, with random weights. Drawn are:
 * numbers: the weight of the image, the weight of each chain, then magnitudes; order: operations,
 * with END after each chain. */

enum { DRAWN_DEPTH = 3, END = 100 };
enum { FIRST_OP = 8, FIRST_GAMMA = 256, TRIES = 64 }; /* blocks */

static int check_mix(const fl_image_op *op, fl_err *err)
{
    double severity = op->aug_mix.severity, width = op->aug_mix.width;
    double depth = op->aug_mix.depth, alpha = op->aug_mix.alpha;
    double deepest = depth > 0 ? depth : DRAWN_DEPTH;
    if (!(severity >= 1 && severity <= FL_MIX_LEVELS))
        return fl_fail(err, FL_EINVAL, "AugMix: severity must be in [1, %d], got %g", FL_MIX_LEVELS,
                       severity);
    if (!(width >= 1 && width <= FL_MAX_CHAINS && width * deepest <= FL_MAX_MIXED))
        return fl_fail(
            err, FL_EINVAL,
            "AugMix: mixture_width must be at most %d and chain_depth at most %d, got %g and %g",
            FL_MAX_CHAINS, FL_MAX_MIXED, width, depth);
    if (!(alpha > 0 && alpha <= 1e6))
        return fl_fail(err, FL_EINVAL, "AugMix: alpha must be > 0, got %g", alpha);
    return fl_op_check_sampling(fl_op_aug_mix.name, op, err);
}

/* Returns a number in (0, 1). */
static double inner_unit(uint32_t word) { return ((word >> 8) + 0.5) * 0x1p-24; }

/* Draws a number of the gamma distribution, by the method of Marsaglia and Tsang (2000). */
static double
draw_gamma(const fl_image_op *op, const fl_sample_key *key, double alpha, uint16_t first)
{
    fl_philox_block block = fl_op_random(op, key, first);
    double factor = 1;
    if (alpha < 1) {
        factor = fl_op_exp(fl_op_log(inner_unit(block.word[0])) / alpha);
        alpha += 1;
    }
    double d = alpha - 1 / 3.0, c = 1 / sqrt(9 * d);
    for (uint16_t t = 1; t < TRIES; t++) {
        block = fl_op_random(op, key, (uint16_t)(first + t));
        double x = 2 * inner_unit(block.word[0]) - 1, y = 2 * inner_unit(block.word[1]) - 1;
        double square = x * x + y * y;
        if (square >= 1 || square == 0) continue;
        double normal = x * sqrt(-2 * fl_op_log(square) / square), root = 1 + c * normal;
        if (root <= 0) continue;
        double v = root * root * root, limit = normal * normal / 2 + d - d * v + d * fl_op_log(v);
        if (fl_op_log(inner_unit(block.word[2])) < limit) return factor * d * v;
    }
    return factor * d;
}

/* Draws the weights of the image and its chains: two numbers of a Dirichlet distribution, for the
 * image and for all chains; a second draw spreads the number for the chains over them. */
static void draw_weights(const fl_image_op *op, const fl_sample_key *key, float *weights)
{
    double number[2 + FL_MAX_CHAINS] = {0}, sum = 0;
    int32_t chains = (int32_t)op->aug_mix.width;
    for (int32_t g = 0; g < 2 + chains; g++)
        number[g] = draw_gamma(op, key, op->aug_mix.alpha, (uint16_t)(FIRST_GAMMA + TRIES * g));
    for (int32_t g = 2; g < 2 + chains; g++) sum += number[g];
    float rest = (float)(number[1] / (number[0] + number[1]));
    weights[0] = (float)(number[0] / (number[0] + number[1]));
    for (int32_t g = 0; g < chains; g++) weights[1 + g] = (float)(number[2 + g] / sum) * rest;
}

static void
draw_mix(const fl_image_op *op, const fl_sample_key *key, fl_image_size in, fl_image_params *params)
{
    static const policy_op ops[] = {SHEAR_X,   SHEAR_Y,  TRANSLATE_X,  TRANSLATE_Y, ROTATE,
                                    POSTERIZE, SOLARIZE, AUTOCONTRAST, EQUALIZE,    BRIGHTNESS,
                                    COLOR,     CONTRAST, SHARPNESS};
    enum { ALL = sizeof ops / sizeof *ops, FEWER = 9 };
    uint32_t choices = op->aug_mix.has_all != 0 ? ALL : FEWER;
    int32_t chains = (int32_t)op->aug_mix.width, places = 0, count = 1 + chains;
    draw_weights(op, key, params->number);
    for (int32_t chain = 0; chain < chains; chain++) {
        uint32_t word = fl_op_random(op, key, (uint16_t)(chain / 4)).word[chain % 4];
        int32_t depth = op->aug_mix.depth > 0 ? (int32_t)op->aug_mix.depth
                                              : 1 + (int32_t)fl_philox_below(word, DRAWN_DEPTH);
        for (int32_t k = 0; k < depth; k++) {
            fl_philox_block block = fl_op_random(op, key, (uint16_t)(FIRST_OP + 16 * chain + k));
            policy_op which = ops[fl_philox_below(block.word[0], choices)];
            int32_t at = (int32_t)fl_philox_below(block.word[1], (uint32_t)op->aug_mix.severity);
            params->order[places++] = (int8_t)which;
            params->number[count++] =
                magnitude_of(which, &mixed, in, BINS, at, is_negative(block.word[2]));
        }
        params->order[places++] = END;
    }
    end_ops(params, places);
}

/* The memory of a mixture: the image as planes, and the sums. */
typedef struct mixture {
    fl_image_planes image; /* lent by the scratch */
    float *sums;           /* lent by the scratch: [channels][rows * columns] */
} mixture;

static void copy_planes(const fl_image_planes *to, const fl_image_planes *from, int32_t channels)
{
    for (int32_t c = 0; c < channels; c++)
        for (int64_t y = 0; y < from->rows; y++)
            memcpy(to->data + c * to->plane + y * to->pitch,
                   from->data + c * from->plane + y * from->pitch, (size_t)from->columns);
}

static void add_planes(const mixture *m, const fl_image_view *view, const fl_image_planes *planes,
                       float weight, bool is_first)
{
    int64_t plane = planes->rows * planes->columns;
    for (int32_t c = 0; c < view->tools.channels; c++) {
        fl_image_planes one = *planes;
        one.data += c * planes->plane;
        view->tools.image_ops->tone.add_weighted(m->sums + c * plane, &one, weight, is_first);
    }
}

static int open_mixture(fl_image_view *view, mixture *m, fl_err *err)
{
    fl_image_planes own;
    FL_TRY(fl_image_view_own(view, true, &own, err));
    fl_image_view_look_up(view);
    int64_t plane = own.rows * own.columns, all = plane * view->tools.channels;
    uint8_t *data = fl_scratch_memory(view->tools.scratch, FL_SCRATCH_KEPT, all);
    m->sums =
        fl_scratch_memory(view->tools.scratch, FL_SCRATCH_SUMS, all * (int64_t)sizeof *m->sums);
    if (data == NULL || m->sums == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for a mixture of images");
    m->image = (fl_image_planes){data, own.columns, plane, own.rows, own.columns};
    copy_planes(&m->image, &own, view->tools.channels);
    return FL_OK;
}

/* Puts the kept image back into the view. */
static int restore_image(fl_image_view *view, const mixture *m, fl_err *err)
{
    fl_image_size size = {(int32_t)m->image.rows, (int32_t)m->image.columns};
    fl_image_planes next;
    FL_TRY(fl_image_view_next(view, size, view->tools.channels, &next, err));
    copy_planes(&next, &m->image, view->tools.channels);
    fl_image_view_replace(view, &next, view->tools.channels);
    return FL_OK;
}

static int close_mixture(fl_image_view *view, const mixture *m, fl_err *err)
{
    fl_image_size size = {(int32_t)m->image.rows, (int32_t)m->image.columns};
    fl_image_planes next;
    FL_TRY(fl_image_view_next(view, size, view->tools.channels, &next, err));
    view->tools.image_ops->tone.cut_sums(next.data, m->sums, next.plane * view->tools.channels);
    fl_image_view_replace(view, &next, view->tools.channels);
    return FL_OK;
}

static int apply_mix(const fl_image_op *op, int32_t i, const fl_image_params *params,
                     fl_image_view *view, fl_err *err)
{
    int32_t chains = (int32_t)op->aug_mix.width, place = 0;
    const float *weight = params->number, *magnitude = weight + 1 + chains;
    mixture m;
    FL_TRY(open_mixture(view, &m, err));
    add_planes(&m, view, &m.image, weight[0], true);
    for (int32_t chain = 0; chain < chains; chain++, place++) {
        fl_image_planes own;
        if (chain > 0) FL_TRY(restore_image(view, &m, err));
        for (; params->order[place] != END; place++)
            FL_TRY(
                apply_one(op, i, (policy_op)params->order[place], (double)*magnitude++, view, err));
        FL_TRY(fl_image_view_own(view, true, &own, err));
        fl_image_view_look_up(view);
        add_planes(&m, view, &own, weight[1 + chain], false);
    }
    return close_mixture(view, &m, err);
}

const fl_op_type fl_op_aug_mix = {.name = "AugMix",
                                  .is_drawn = true,
                                  .is_color = true,
                                  .is_bordered = true,
                                  .check = check_mix,
                                  .size = fl_op_warped_size,
                                  .draw = draw_mix,
                                  .apply = apply_mix};
