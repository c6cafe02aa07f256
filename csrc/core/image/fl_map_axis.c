/* fl_map_axis: see fl_map_axis.h. */
#include "fl_map_axis.h"

#include "fl_op.h"

/* Sample v of one image is sample from + v of an earlier image, or from - v if the axis is
 * turned. */
typedef struct line {
    int32_t from;
    bool is_turned;
} line;

static inline int32_t sample_at(line l, int32_t v) { return l.is_turned ? l.from - v : l.from + v; }

static inline bool
is_flip(const fl_image_op *op, const fl_image_params *params, fl_map_direction axis)
{
    return params->is_applied &&
           op->kind == (axis == FL_MAP_ROWS ? FL_OP_VERTICAL_FLIP : FL_OP_HORIZONTAL_FLIP);
}

/* Returns how many samples the operation takes away from the begin of an axis; negative: adds. */
static inline int32_t find_offset(const fl_image_params *params, fl_map_direction axis)
{
    return axis == FL_MAP_ROWS ? params->top - params->padding[1]
                               : params->left - params->padding[0];
}

/* Takes a line that ends at the operation's result; returns the line that ends at its input. */
static line
go_back(line l, const fl_image_op *op, const fl_image_params *params, fl_map_direction axis)
{
    if (is_flip(op, params, axis))
        return (line){fl_map_edge(params->out, axis) - 1 - l.from, !l.is_turned};
    if (fl_op_pads(op->kind) || op->kind == FL_OP_RANDOM_RESIZED_CROP)
        l.from += find_offset(params, axis);
    return l;
}

/* Returns true if samples 0 to `most` of a line lie inside an axis. */
static bool is_inside(line l, int32_t most, int32_t length)
{
    int32_t begin = sample_at(l, 0), end = sample_at(l, most);
    return begin >= 0 && end >= 0 && begin < length && end < length;
}

/* Writes samples 0 to count - 1 of the line; samples outside [0, length) become `fill`. */
static void write_samples(int32_t *map, int32_t count, line l, int32_t length, int32_t fill)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t v = sample_at(l, i);
        map[i] = (uint32_t)v < (uint32_t)length ? v : fill;
    }
}

/* Does the same for the samples that the map has. Negative entries stay: later operations have
 * filled them. */
static void move_samples(int32_t *map, int32_t count, line l, int32_t length, int32_t fill)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t v = sample_at(l, map[i]);
        v = (uint32_t)v < (uint32_t)length ? v : fill;
        map[i] = map[i] < 0 ? map[i] : v;
    }
}

/* Returns the sample that a padding repeats at `v`, which lies outside the axis or inside. */
static int32_t repeat(int32_t v, int32_t length, fl_padding_mode mode)
{
    const int32_t skipped = mode == FL_PAD_REFLECT ? 1 : 0;
    if (v >= 0 && v < length) return v;
    if (mode == FL_PAD_EDGE) return v < 0 ? 0 : length - 1;
    return v < 0 ? skipped - 1 - v : 2 * length - 1 - skipped - v;
}

static void
repeat_samples(int32_t *map, int32_t count, line l, int32_t length, fl_padding_mode mode)
{
    for (int32_t i = 0; i < count; i++)
        if (map[i] >= 0) map[i] = repeat(sample_at(l, map[i]), length, mode);
}

/* The samples of one axis on the way from the result to the image. */
typedef struct samples {
    int32_t *map;
    int32_t count;
    int32_t most; /* the largest sample */
    line line;    /* from the samples to the image that has been reached */
    bool is_written;
} samples;

/* Moves the samples along their line to an axis, and fills or repeats those that lie outside. */
static void fold(samples *s, int32_t length, const fl_image_op *op, int32_t i)
{
    const bool fills = op == NULL || op->padding_mode == FL_PAD_CONSTANT;
    if (!s->is_written && fills)
        write_samples(s->map, s->count, s->line, length, -1 - i);
    else if (!s->is_written)
        write_samples(s->map, s->count, (line){0}, INT32_MAX, 0);
    if (s->is_written && fills) move_samples(s->map, s->count, s->line, length, -1 - i);
    if (!fills) repeat_samples(s->map, s->count, s->line, length, op->padding_mode);
    *s = (samples){s->map, s->count, length - 1, {0}, true};
}

void fl_map_axis(const fl_map_ops *ops, fl_map_direction axis, int32_t length, int32_t *map)
{
    samples s = {.map = map, .count = length, .most = length - 1};
    for (int32_t i = ops->count - 1; i >= ops->first; i--) {
        const fl_image_op *op = &ops->ops[i];
        const int32_t before = fl_map_edge(fl_map_size_before(ops, i), axis);
        s.line = go_back(s.line, op, &ops->params[i], axis);
        if (fl_op_pads(op->kind) && !is_inside(s.line, s.most, before)) fold(&s, before, op, i);
    }
    if (!s.is_written || s.line.from != 0 || s.line.is_turned) fold(&s, INT32_MAX, NULL, 0);
}

void fl_map_run(const fl_map_ops *ops, fl_map_direction axis, int32_t *run)
{
    const int32_t last = ops->count - 1;
    const bool crops = ops->ops[last].kind == FL_OP_RANDOM_RESIZED_CROP;
    line l = {0};
    for (int32_t i = last; i >= ops->first; i--)
        l = go_back(l, &ops->ops[i], &ops->params[i], axis);
    run[0] = fl_map_edge(crops ? ops->params[last].size : fl_map_size_before(ops, last), axis);
    run[1] = l.from;
    run[2] = l.is_turned ? -1 : 1;
}

void fl_map_erased(const fl_map_ops *ops, int32_t i, fl_map_direction axis, int32_t *from,
                   int32_t *length)
{
    while (++i < ops->count) {
        const fl_image_params *params = &ops->params[i];
        if (is_flip(&ops->ops[i], params, axis))
            *from = fl_map_edge(params->out, axis) - *from - *length;
        if (!fl_op_pads(ops->ops[i].kind)) continue;
        *from -= find_offset(params, axis);
        if (ops->ops[i].kind != FL_OP_PAD)
            fl_image_clip(from, length, fl_map_edge(params->size, axis));
    }
}
