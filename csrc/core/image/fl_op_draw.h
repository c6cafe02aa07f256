/* fl_op_draw: what operations draw for a sample, and which steps on colours follow.
 *
 * Floor 1. The CPU and kernels call the same functions, with the same bits: their double arithmetic
 * is of operations that IEEE 754 rounds, which no compiler may fuse (-ffp-contract=off,
 * --fmad=false). The draws have the contract of fl_op_type.draw. Each result depends on the
 * arguments only. */
#ifndef FL_OP_DRAW_H
#define FL_OP_DRAW_H

#include "fl_image.h"
#include "fl_philox.h"

#include <math.h>

enum { FL_AREA_TRIES = 10, FL_JITTERED = 4 }; /* brightness, contrast, saturation and hue */
enum { FL_CONTRAST = 1, FL_SATURATION = 2, FL_HUE = 3 };

FL_HOST_DEVICE bool fl_op_is_resize(fl_image_op_kind kind)
{
    return kind == FL_OP_RESIZE || kind == FL_OP_RANDOM_RESIZED_CROP;
}

FL_HOST_DEVICE bool fl_op_pads(fl_image_op_kind kind)
{
    return kind == FL_OP_PAD || kind == FL_OP_RANDOM_CROP || kind == FL_OP_CENTER_CROP;
}

/* Returns how many branches RandomChoice or RandomOrder has. */
FL_HOST_DEVICE int32_t fl_op_count_branches(const fl_image_op *op)
{
    int32_t count = 0;
    for (int32_t i = 1; i <= op->span; i += 1 + op[i].span) count++;
    return count;
}

FL_HOST_DEVICE fl_philox_block fl_op_random(const fl_image_op *op, const fl_sample_key *key,
                                            uint16_t block)
{
    return fl_philox_of_sample(key, (uint8_t)(op->kind << 3 | op->occurrence), block);
}

/* ---- operations with a probability, and their holders */

/* Draws whether the operation is applied: word 0 of block 0 decides. */
FL_HOST_DEVICE void fl_op_draw_applied(const fl_image_op *op, const fl_sample_key *key,
                                       fl_image_size in, fl_image_params *params)
{
    (void)in;
    params->is_applied = fl_philox_unit(fl_op_random(op, key, 0).word[0]) < op->p;
}

/* Draws a number, and chooses the first branch whose upper end is above the number. */
FL_HOST_DEVICE void fl_op_draw_choice(const fl_image_op *op, const fl_sample_key *key,
                                      fl_image_size in, fl_image_params *params)
{
    (void)in;
    double at = fl_philox_unit(fl_op_random(op, key, 0).word[0]);
    int32_t branch = 0, last = fl_op_count_branches(op) - 1;
    for (int32_t i = 1; branch < last && at >= op[i].branch_end; i += 1 + op[i].span) branch++;
    params->order[0] = (int8_t)branch;
}

/* Draws a permutation of 0 to count - 1 into order[0] to order[count - 1], count <= FL_MAX_ORDER;
 * later entries become -1. Fisher-Yates, with the words from block `block` on. */
FL_HOST_DEVICE_ONCE void fl_op_permute(const fl_image_op *op, const fl_sample_key *key,
                                       uint16_t block, int32_t count, int8_t *order)
{
    for (int k = 0; k < FL_MAX_ORDER; k++) order[k] = (int8_t)(k < count ? k : -1);
    for (int k = 0; k + 1 < count; k++) {
        const fl_philox_block words = fl_op_random(op, key, (uint16_t)(block + k / 4));
        /* A kernel has no memory for an array that a variable indexes. */
        const uint32_t low = k % 2 == 0 ? words.word[0] : words.word[1];
        const uint32_t high = k % 2 == 0 ? words.word[2] : words.word[3];
        const uint32_t word = k % 4 < 2 ? low : high;
        const int other = k + (int)fl_philox_below(word, (uint32_t)(count - k));
        const int8_t kept = order[k];
        order[k] = order[other];
        order[other] = kept;
    }
}

FL_HOST_DEVICE void fl_op_draw_order(const fl_image_op *op, const fl_sample_key *key,
                                     fl_image_size in, fl_image_params *params)
{
    (void)in;
    fl_op_permute(op, key, 0, fl_op_count_branches(op), params->order);
}

/* ---- paddings and crops */

FL_HOST_DEVICE void fl_op_draw_pad(const fl_image_op *op, const fl_sample_key *key,
                                   fl_image_size in, fl_image_params *params)
{
    (void)key;
    (void)in;
    for (int i = 0; i < 4; i++) params->padding[i] = op->padding[i];
}

/* Pads an axis that is too short; if the padding is odd, the end gets one sample more. Returns the
 * first sample of the crop. */
FL_HOST_DEVICE int32_t fl_op_center_axis(int32_t length, int32_t wanted, int32_t *before,
                                         int32_t *after)
{
    if (wanted > length) {
        *before = (wanted - length) / 2;
        *after = (wanted - length + 1) / 2;
        return 0;
    }
    return (int32_t)rint((length - wanted) / 2.0);
}

FL_HOST_DEVICE void fl_op_draw_center_crop(const fl_image_op *op, const fl_sample_key *key,
                                           fl_image_size in, fl_image_params *params)
{
    (void)key;
    int32_t *padding = params->padding;
    params->top = fl_op_center_axis(in.height, op->size.height, &padding[1], &padding[3]);
    params->left = fl_op_center_axis(in.width, op->size.width, &padding[0], &padding[2]);
    params->size = op->size;
}

/* Like torchvision, pads both sides by the whole length that is missing. */
FL_HOST_DEVICE void
fl_op_pad_axis(int32_t wanted, bool pad_if_needed, int32_t *length, int32_t *before, int32_t *after)
{
    *length += *before + *after;
    if (!pad_if_needed || *length >= wanted) return;
    int32_t missing = wanted - *length;
    *before += missing;
    *after += missing;
    *length += 2 * missing;
}

/* Computes the padding of RandomCrop; returns the size of the padded image. */
FL_HOST_DEVICE fl_image_size fl_op_find_padding(const fl_image_op *op, fl_image_size in,
                                                int32_t padding[4])
{
    for (int i = 0; i < 4; i++) padding[i] = op->padding[i];
    fl_op_pad_axis(op->size.height, op->pad_if_needed, &in.height, &padding[1], &padding[3]);
    fl_op_pad_axis(op->size.width, op->pad_if_needed, &in.width, &padding[0], &padding[2]);
    return in;
}

/* Draws from two words where a rectangle of this size lies in an image of size `in`, and sets top,
 * left and size. */
FL_HOST_DEVICE void fl_op_draw_corner(const uint32_t word[2], fl_image_size in, fl_image_size size,
                                      fl_image_params *params)
{
    params->top = (int32_t)fl_philox_below(word[0], (uint32_t)(in.height - size.height) + 1);
    params->left = (int32_t)fl_philox_below(word[1], (uint32_t)(in.width - size.width) + 1);
    params->size = size;
}

FL_HOST_DEVICE void fl_op_draw_crop(const fl_image_op *op, const fl_sample_key *key,
                                    fl_image_size in, fl_image_params *params)
{
    fl_image_size padded = fl_op_find_padding(op, in, params->padding);
    fl_philox_block block = fl_op_random(op, key, 0);
    fl_op_draw_corner(block.word, padded, op->size, params);
}

/* ---- rectangles of a random share of an area and a random ratio of their edges */

/* Computes exp(x) = 2^n exp(r), |r| <= ln(2) / 2, by the series of exp(r), with the same bits on
 * every machine. */
FL_HOST_DEVICE double fl_op_exp(double x)
{
    static const double over_factorial[] = {1.0 / 87178291200,
                                            1.0 / 6227020800,
                                            1.0 / 479001600,
                                            1.0 / 39916800,
                                            1.0 / 3628800,
                                            1.0 / 362880,
                                            1.0 / 40320,
                                            1.0 / 5040,
                                            1.0 / 720,
                                            1.0 / 120,
                                            1.0 / 24,
                                            1.0 / 6,
                                            1.0 / 2,
                                            1.0,
                                            1.0};
    double n = rint(x * 1.4426950408889634), r = x - n * 0.6931471805599453, sum = 0;
    for (size_t k = 0; k < sizeof over_factorial / sizeof *over_factorial; k++)
        sum = sum * r + over_factorial[k];
    return ldexp(sum, (int)n);
}

/* Draws a number within limits in double; the second function in float32 like torch, so that users
 * can be told the exact number. */
FL_HOST_DEVICE double fl_op_within(uint32_t word, const double limits[2])
{
    return limits[0] + fl_philox_unit(word) * (limits[1] - limits[0]);
}

FL_HOST_DEVICE float fl_op_between(uint32_t word, const double limits[2])
{
    return (float)fl_op_within(word, limits);
}

/* Two edges of a rectangle: sqrt(area * ratio) and sqrt(area / ratio). */
typedef struct fl_op_edges {
    int32_t larger_with_ratio, smaller_with_ratio;
} fl_op_edges;

FL_HOST_DEVICE int32_t fl_op_round_edge(double edge)
{
    edge = rint(edge);
    return edge < INT32_MAX ? (int32_t)edge : INT32_MAX;
}

/* Draws the edges from the block of one try, rounded half to even, at most INT32_MAX. The ratio is
 * spread evenly in its logarithm. */
FL_HOST_DEVICE_ONCE fl_op_edges fl_op_draw_edges(const fl_image_op *op, fl_philox_block block,
                                                 fl_image_size in)
{
    double area = (double)in.height * in.width * fl_op_within(block.word[0], op->scale);
    double ratio = fl_op_exp(fl_op_within(block.word[1], op->log_ratio));
    fl_op_edges edges = {fl_op_round_edge(sqrt(area * ratio)),
                         fl_op_round_edge(sqrt(area / ratio))};
    return edges;
}

/* Sets the crop after ten failed tries: the whole image, or the middle if the image's ratio is out
 * of the range asked for. */
FL_HOST_DEVICE void
fl_op_crop_middle(const fl_image_op *op, fl_image_size in, fl_image_params *params)
{
    double ratio = (double)in.width / in.height;
    fl_image_size size = in;
    if (ratio < op->ratio[0]) size.height = (int32_t)rint(in.width / op->ratio[0]);
    if (ratio > op->ratio[1]) size.width = (int32_t)rint(in.height * op->ratio[1]);
    /* torchvision cannot crop an edge that rounds to 0. */
    if (size.height < 1) size.height = 1;
    if (size.width < 1) size.width = 1;
    params->size = size;
    params->top = (in.height - size.height) / 2;
    params->left = (in.width - size.width) / 2;
}

FL_HOST_DEVICE void fl_op_draw_resized_crop(const fl_image_op *op, const fl_sample_key *key,
                                            fl_image_size in, fl_image_params *params)
{
    for (uint16_t t = 0; t < FL_AREA_TRIES; t++) {
        fl_philox_block block = fl_op_random(op, key, t);
        const fl_op_edges edges = fl_op_draw_edges(op, block, in);
        const fl_image_size size = {edges.smaller_with_ratio, edges.larger_with_ratio};
        if (size.width < 1 || size.width > in.width || size.height < 1 || size.height > in.height)
            continue;
        fl_op_draw_corner(block.word + 2, in, size, params);
        return;
    }
    fl_op_crop_middle(op, in, params);
}

/* Tries ten rectangles. A rectangle as long or as wide as the image does not count; if no try
 * counts, nothing is erased. */
FL_HOST_DEVICE void fl_op_draw_erase(const fl_image_op *op, const fl_sample_key *key,
                                     fl_image_size in, fl_image_params *params)
{
    params->is_applied = false;
    if (fl_philox_unit(fl_op_random(op, key, 0).word[0]) >= op->p) return;
    for (uint16_t t = 0; t < FL_AREA_TRIES; t++) {
        fl_philox_block block = fl_op_random(op, key, (uint16_t)(1 + t));
        const fl_op_edges edges = fl_op_draw_edges(op, block, in);
        const fl_image_size size = {edges.larger_with_ratio, edges.smaller_with_ratio};
        if (size.height >= in.height || size.width >= in.width) continue;
        params->is_applied = true;
        fl_op_draw_corner(block.word + 2, in, size, params);
        return;
    }
}

/* ---- colours */

FL_HOST_DEVICE void fl_op_draw_jitter(const fl_image_op *op, const fl_sample_key *key,
                                      fl_image_size in, fl_image_params *params)
{
    (void)in;
    fl_philox_block block = fl_op_random(op, key, 0);
    for (int n = 0; n < FL_JITTERED; n++)
        params->change[n] = fl_op_between(block.word[n], op->jitter[n]);
    fl_op_permute(op, key, 1, FL_JITTERED, params->order);
}

FL_HOST_DEVICE void fl_op_draw_permutation(const fl_image_op *op, const fl_sample_key *key,
                                           fl_image_size in, fl_image_params *params)
{
    (void)in;
    fl_op_permute(op, key, 0, op->channels, params->order);
}

FL_HOST_DEVICE void fl_op_draw_distort(const fl_image_op *op, const fl_sample_key *key,
                                       fl_image_size in, fl_image_params *params)
{
    (void)in;
    fl_philox_block gates = fl_op_random(op, key, 0), numbers = fl_op_random(op, key, 1);
    fl_philox_block others = fl_op_random(op, key, 2);
    for (int n = 0; n < FL_JITTERED; n++) {
        bool is_changed = fl_philox_unit(gates.word[n]) < op->p;
        params->change[n] = is_changed ? fl_op_between(numbers.word[n], op->jitter[n]) : NAN;
    }
    fl_op_permute(op, key, 3, op->channels, params->order);
    if (fl_philox_unit(others.word[1]) >= op->p) params->order[0] = -1;
    params->is_early = fl_philox_unit(others.word[0]) < 0.5;
}

/* ---- steps on colours */

enum { FL_MOST_STEPS = 5 }; /* of one operation */

FL_HOST_DEVICE int32_t fl_op_add_step(fl_color_step *steps, int32_t count, int32_t tone,
                                      float number)
{
    fl_color_step step = {tone, number, {0, 0, 0, 0}};
    steps[count] = step;
    return count + 1;
}

/* Adds one of the changes of ColorJitter and RandomPhotometricDistort. */
FL_HOST_DEVICE int32_t fl_op_add_change(fl_color_step *steps, int32_t count,
                                        const fl_image_params *params, int32_t which)
{
    const float number = params->change[which];
    return isnan(number) ? count : fl_op_add_step(steps, count, FL_TONE_BRIGHTNESS + which, number);
}

FL_HOST_DEVICE int32_t fl_op_add_order(fl_color_step *steps, int32_t count, const int8_t *order)
{
    count = fl_op_add_step(steps, count, FL_TONE_PERMUTE, 0);
    for (int32_t c = 0; c < FL_MAX_CHANNELS; c++) steps[count - 1].order[c] = order[c];
    return count;
}

FL_HOST_DEVICE int32_t fl_op_add_distort(fl_color_step *steps, const fl_image_params *params)
{
    int32_t count = fl_op_add_change(steps, 0, params, 0);
    if (params->is_early) count = fl_op_add_change(steps, count, params, FL_CONTRAST);
    count = fl_op_add_change(steps, count, params, FL_SATURATION);
    count = fl_op_add_change(steps, count, params, FL_HUE);
    if (!params->is_early) count = fl_op_add_change(steps, count, params, FL_CONTRAST);
    return params->order[0] < 0 ? count : fl_op_add_order(steps, count, params->order);
}

/* Writes the steps on colours of an operation, at most FL_MOST_STEPS; returns their number. */
FL_HOST_DEVICE int32_t fl_op_find_steps(const fl_image_op *op, const fl_image_params *params,
                                        fl_color_step *steps)
{
    int32_t count = 0;
    if (!params->is_applied) return 0;
    switch (op->kind) {
    case FL_OP_INVERT:
    case FL_OP_SOLARIZE:
    case FL_OP_POSTERIZE:
    case FL_OP_AUTOCONTRAST:
    case FL_OP_EQUALIZE: /* tones have the same order */
        return fl_op_add_step(steps, 0, FL_TONE_INVERT + (int32_t)op->kind - FL_OP_INVERT,
                              (float)op->tone);
    case FL_OP_SHARPNESS:
        return fl_op_add_step(steps, 0, FL_TONE_SHARPNESS, (float)op->tone);
    case FL_OP_GRAYSCALE:
        if (op->channels == 1 && op->grey_channels <= 1) return 0;
        return fl_op_add_step(steps, 0, FL_TONE_GREY, 0);
    case FL_OP_RANDOM_GRAYSCALE:
        return op->channels == 1 ? 0 : fl_op_add_step(steps, 0, FL_TONE_GREY, 0);
    case FL_OP_COLOR_JITTER:
        for (int k = 0; k < FL_JITTERED; k++)
            count = fl_op_add_change(steps, count, params, params->order[k]);
        return count;
    case FL_OP_CHANNEL_PERMUTATION:
        return fl_op_add_order(steps, 0, params->order);
    case FL_OP_PHOTOMETRIC_DISTORT:
        return fl_op_add_distort(steps, params);
    default:
        return 0;
    }
}

/* ---- operations that are held */

/* Returns the branch of operation i in which operation k lies. */
FL_HOST_DEVICE int32_t fl_op_branch_of(const fl_image_op *ops, int32_t i, int32_t k)
{
    int32_t n = 0;
    for (int32_t at = i + 1; at + ops[at].span < k; at += 1 + ops[at].span) n++;
    return n;
}

/* Returns true if all holders of operation k apply it; reads the parameters of the holders only. */
FL_HOST_DEVICE bool
fl_op_is_reached(const fl_image_op *ops, const fl_image_params *params, int32_t k)
{
    for (int32_t i = 0; i < k; i++) {
        if (i + ops[i].span < k) continue;
        if (ops[i].kind == FL_OP_APPLY && !params[i].is_applied) return false;
        if (ops[i].kind == FL_OP_CHOICE && fl_op_branch_of(ops, i, k) != params[i].order[0])
            return false;
    }
    return true;
}

/* Returns true if operation j is applied before operation k, which is a different one; neither
 * holds operations. */
FL_HOST_DEVICE bool
fl_op_is_before(const fl_image_op *ops, const fl_image_params *params, int32_t j, int32_t k)
{
    const int32_t first = j < k ? j : k, last = j < k ? k : j;
    for (int32_t i = 0; i < first; i++) {
        if (ops[i].kind != FL_OP_ORDER || i + ops[i].span < last) continue;
        const int32_t a = fl_op_branch_of(ops, i, j), b = fl_op_branch_of(ops, i, k);
        for (int n = 0; a != b && n < FL_MAX_ORDER; n++)
            if (params[i].order[n] == a || params[i].order[n] == b) return params[i].order[n] == a;
    }
    return j < k;
}

/* Returns how many steps are done before the steps of operation k; counts[j]: of operation j. */
FL_HOST_DEVICE int32_t fl_op_find_place(const fl_image_op *ops, const fl_image_params *params,
                                        const int32_t *counts, int32_t count, int32_t k)
{
    int32_t place = 0;
    for (int32_t j = 0; j < count; j++)
        if (counts[j] > 0 && j != k && fl_op_is_before(ops, params, j, k)) place += counts[j];
    return place;
}

#endif
