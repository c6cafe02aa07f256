/* fl_map_axis: where the samples of a result come from, for maps of a device.
 *
 * Floor 1. The operations of a plan are followed from the last to the first, each sample by itself,
 * so nothing is copied for an operation; fl_image_axis follows the same operations forward, for
 * pixels of the CPU. The CPU and kernels call the same functions. Plain data; each function depends
 * on its arguments only. */
#ifndef FL_MAP_AXIS_H
#define FL_MAP_AXIS_H

#include "fl_op_draw.h"

typedef enum fl_map_direction { FL_MAP_ROWS, FL_MAP_COLUMNS } fl_map_direction;

/* Operations [first, count) of a plan for one sample. All memory is borrowed. */
typedef struct fl_map_ops {
    const fl_image_op *ops;        /* of the whole plan */
    const fl_image_params *params; /* of the whole plan */
    int32_t first, count;
    fl_image_size in; /* of the image before operation `first` */
} fl_map_ops;

/* The arguments of the kernel that writes the maps of a batch. fl_image_plan_describe_maps sets
 * what the plan knows; the other fields are 0. fl_transfer_ops knows this struct's tag. */
typedef struct fl_map_batch {
    const fl_image_op *ops; /* borrowed, on the device: see fl_image_plan_write_ops */
    int32_t count;          /* of ops */
    fl_image_map parts;
    fl_image_size in, out; /* of each image, and of each result */
    uint64_t seed;
    uint32_t epoch;
    const int64_t *rows;  /* borrowed, on the device: the row of each image */
    const uint8_t *views; /* borrowed, on the device: the view of each image; NULL: 0 */
    int32_t *maps;        /* borrowed, on the device: parts.numbers for each image */
    bool has_spans;       /* the last two numbers of a map are the first row of the image that the
                             result reads, and one past the last; parts.numbers counts them */
    int64_t images;
} fl_map_batch;

FL_HOST_DEVICE int32_t fl_map_edge(fl_image_size size, fl_map_direction axis)
{
    return axis == FL_MAP_ROWS ? size.height : size.width;
}

/* Returns the size of the image before operation i. */
FL_HOST_DEVICE fl_image_size fl_map_size_before(const fl_map_ops *ops, int32_t i)
{
    return i > ops->first ? ops->params[i - 1].out : ops->in;
}

/* ---- lines */

/* Sample v of one image is sample from + v of an earlier image, or from - v if the axis is
 * turned. */
typedef struct fl_map_line {
    int32_t from;
    bool is_turned;
} fl_map_line;

FL_HOST_DEVICE int32_t fl_map_sample(fl_map_line l, int32_t v)
{
    return l.is_turned ? l.from - v : l.from + v;
}

FL_HOST_DEVICE bool
fl_map_is_flip(const fl_image_op *op, const fl_image_params *params, fl_map_direction axis)
{
    return params->is_applied &&
           op->kind == (axis == FL_MAP_ROWS ? FL_OP_VERTICAL_FLIP : FL_OP_HORIZONTAL_FLIP);
}

/* Returns how many samples the operation takes away from the begin of an axis; negative: adds. */
FL_HOST_DEVICE int32_t fl_map_offset(const fl_image_params *params, fl_map_direction axis)
{
    return axis == FL_MAP_ROWS ? params->top - params->padding[1]
                               : params->left - params->padding[0];
}

/* Takes a line that ends at the operation's result; returns the line that ends at its input. */
FL_HOST_DEVICE fl_map_line fl_map_go_back(fl_map_line l, const fl_image_op *op,
                                          const fl_image_params *params, fl_map_direction axis)
{
    if (fl_map_is_flip(op, params, axis)) {
        l.from = fl_map_edge(params->out, axis) - 1 - l.from;
        l.is_turned = !l.is_turned;
    } else if (fl_op_pads(op->kind) || op->kind == FL_OP_RANDOM_RESIZED_CROP) {
        l.from += fl_map_offset(params, axis);
    }
    return l;
}

/* Returns true if samples 0 to `most` of a line lie inside an axis. */
FL_HOST_DEVICE bool fl_map_is_inside(fl_map_line l, int32_t most, int32_t length)
{
    int32_t begin = fl_map_sample(l, 0), end = fl_map_sample(l, most);
    return begin >= 0 && end >= 0 && begin < length && end < length;
}

/* ---- rows and columns */

/* Writes samples 0 to count - 1 of the line; samples outside [0, length) become `fill`. */
FL_HOST_DEVICE void
fl_map_write(int32_t *map, int32_t count, fl_map_line l, int32_t length, int32_t fill)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t v = fl_map_sample(l, i);
        map[i] = (uint32_t)v < (uint32_t)length ? v : fill;
    }
}

/* Does the same for the samples that the map has. Negative entries stay: later operations have
 * filled them. */
FL_HOST_DEVICE void
fl_map_move(int32_t *map, int32_t count, fl_map_line l, int32_t length, int32_t fill)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t v = fl_map_sample(l, map[i]);
        v = (uint32_t)v < (uint32_t)length ? v : fill;
        map[i] = map[i] < 0 ? map[i] : v;
    }
}

/* Returns the sample that a padding repeats at `v`, which lies outside the axis or inside. */
FL_HOST_DEVICE int32_t fl_map_repeated(int32_t v, int32_t length, fl_padding_mode mode)
{
    const int32_t skipped = mode == FL_PAD_REFLECT ? 1 : 0;
    if (v >= 0 && v < length) return v;
    if (mode == FL_PAD_EDGE) return v < 0 ? 0 : length - 1;
    return v < 0 ? skipped - 1 - v : 2 * length - 1 - skipped - v;
}

FL_HOST_DEVICE void
fl_map_repeat(int32_t *map, int32_t count, fl_map_line l, int32_t length, fl_padding_mode mode)
{
    for (int32_t i = 0; i < count; i++)
        if (map[i] >= 0) map[i] = fl_map_repeated(fl_map_sample(l, map[i]), length, mode);
}

/* The samples of one axis on the way from the result to the image. */
typedef struct fl_map_samples {
    int32_t *map;
    int32_t count;
    int32_t most;     /* the largest sample */
    fl_map_line line; /* from the samples to the image that has been reached */
    bool is_written;
} fl_map_samples;

/* Moves the samples along their line to an axis, and fills or repeats those that lie outside. */
FL_HOST_DEVICE void
fl_map_fold(fl_map_samples *s, int32_t length, fl_padding_mode mode, int32_t fill)
{
    const fl_map_line straight = {0, false};
    const bool fills = mode == FL_PAD_CONSTANT;
    if (!s->is_written && fills)
        fl_map_write(s->map, s->count, s->line, length, fill);
    else if (!s->is_written)
        fl_map_write(s->map, s->count, straight, INT32_MAX, 0);
    if (s->is_written && fills) fl_map_move(s->map, s->count, s->line, length, fill);
    if (!fills) fl_map_repeat(s->map, s->count, s->line, length, mode);
    s->most = length - 1;
    s->line = straight;
    s->is_written = true;
}

/* Writes rows or columns `at` to at + count - 1 that a result reads: a row or column of the image
 * before the operations, or -1 - i if operation i fills it. */
FL_HOST_DEVICE void
fl_map_axis(const fl_map_ops *ops, fl_map_direction axis, int32_t at, int32_t count, int32_t *map)
{
    fl_map_samples s = {map, count, count - 1, {at, false}, false};
    for (int32_t i = ops->count - 1; i >= ops->first; i--) {
        const fl_image_op *op = &ops->ops[i];
        const int32_t before = fl_map_edge(fl_map_size_before(ops, i), axis);
        s.line = fl_map_go_back(s.line, op, &ops->params[i], axis);
        if (fl_op_pads(op->kind) && !fl_map_is_inside(s.line, s.most, before))
            fl_map_fold(&s, before, op->padding_mode, -1 - i);
    }
    if (!s.is_written || s.line.from != 0 || s.line.is_turned)
        fl_map_fold(&s, INT32_MAX, FL_PAD_CONSTANT, 0);
}

/* ---- resizes and erased rectangles */

/* Writes the run that operation `resize` reads along an axis; no operation before it pads: the
 * number of samples, the first one, and the step to the next, 1 or -1. */
FL_HOST_DEVICE void
fl_map_run(const fl_map_ops *ops, int32_t resize, fl_map_direction axis, int32_t *run)
{
    const bool crops = ops->ops[resize].kind == FL_OP_RANDOM_RESIZED_CROP;
    fl_map_line l = {0, false};
    for (int32_t i = resize; i >= ops->first; i--)
        l = fl_map_go_back(l, &ops->ops[i], &ops->params[i], axis);
    run[0] = fl_map_edge(crops ? ops->params[resize].size : fl_map_size_before(ops, resize), axis);
    run[1] = l.from;
    run[2] = l.is_turned ? -1 : 1;
}

/* Returns the operations after operation i. */
FL_HOST_DEVICE fl_map_ops fl_map_after(fl_map_ops ops, int32_t i)
{
    ops.first = i + 1;
    ops.in = ops.params[i].out;
    return ops;
}

/* Computes where samples [*from, *from + *length) of the rectangle that operation i erases lie in
 * the result; *length may become 0. */
FL_HOST_DEVICE void fl_map_erased(const fl_map_ops *ops, int32_t i, fl_map_direction axis,
                                  int32_t *from, int32_t *length)
{
    while (++i < ops->count) {
        const fl_image_params *params = &ops->params[i];
        if (fl_map_is_flip(&ops->ops[i], params, axis))
            *from = fl_map_edge(params->out, axis) - *from - *length;
        if (!fl_op_pads(ops->ops[i].kind)) continue;
        *from -= fl_map_offset(params, axis);
        if (ops->ops[i].kind != FL_OP_PAD)
            fl_image_clip(from, length, fl_map_edge(params->size, axis));
    }
}

/* Writes the numbers of one axis for each rectangle that was erased; its operation with the rows.
 */
FL_HOST_DEVICE void fl_map_erases(const fl_map_ops *ops, fl_map_direction axis, int32_t *map)
{
    for (int32_t i = ops->first; i < ops->count; i++) {
        const fl_image_params *params = &ops->params[i];
        if (ops->ops[i].kind != FL_OP_ERASE || !params->is_applied) continue;
        int32_t from = axis == FL_MAP_ROWS ? params->top : params->left;
        int32_t length = fl_map_edge(params->size, axis);
        fl_map_erased(ops, i, axis, &from, &length);
        map[axis] = from;
        map[2 + axis] = from + length;
        if (axis == FL_MAP_ROWS) map[4] = -1 - i;
        map += FL_ERASED_NUMBERS;
    }
}

#endif
