/* fl_op_aug_mix: AugMix.
 *
 * A sum of the image and `width` chains of operations on the image, with random weights. Drawn are:
 * numbers: the weight of the image, the weight of each chain, then magnitudes; order: operations,
 * with FL_MIX_END after each chain. */
#include "fl_op_policy.h"

#include <math.h>
#include <string.h>

enum { FIRST_OP = 8, FIRST_GAMMA = 256, TRIES = 64 }; /* blocks */

static int check_mix(const fl_image_op *op, fl_err *err)
{
    double severity = op->aug_mix.severity, width = op->aug_mix.width;
    double depth = op->aug_mix.depth, alpha = op->aug_mix.alpha;
    double deepest = depth > 0 ? depth : FL_MIX_DEPTH;
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
    uint32_t choices = (uint32_t)fl_mix_choices(op);
    int32_t chains = (int32_t)op->aug_mix.width, places = 0, count = 1 + chains;
    draw_weights(op, key, params->number);
    for (int32_t chain = 0; chain < chains; chain++) {
        uint32_t word = fl_op_random(op, key, (uint16_t)(chain / 4)).word[chain % 4];
        int32_t depth = op->aug_mix.depth > 0 ? (int32_t)op->aug_mix.depth
                                              : 1 + (int32_t)fl_philox_below(word, FL_MIX_DEPTH);
        for (int32_t k = 0; k < depth; k++) {
            fl_philox_block block = fl_op_random(op, key, (uint16_t)(FIRST_OP + 16 * chain + k));
            fl_policy_op which = fl_mix_op((int32_t)fl_philox_below(block.word[0], choices));
            int32_t at = (int32_t)fl_philox_below(block.word[1], (uint32_t)op->aug_mix.severity);
            params->order[places++] = (int8_t)which;
            params->number[count++] =
                fl_policy_magnitude(op, which, in, at, fl_philox_unit(block.word[2]) <= 0.5);
        }
        params->order[places++] = FL_MIX_END;
    }
    fl_policy_end(params, places);
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
        for (; params->order[place] != FL_MIX_END; place++)
            FL_TRY(fl_policy_apply(op, i, (fl_policy_op)params->order[place], (double)*magnitude++,
                                   view, err));
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
