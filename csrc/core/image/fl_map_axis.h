/* fl_map_axis: where the samples of one axis of a result come from, for maps of a device.
 *
 * Floor 1. The operations of a plan are followed from the last to the first, each sample by itself,
 * so nothing is copied for an operation; fl_image_axis follows the same operations forward, for
 * pixels of the CPU. Plain data; each function depends on its arguments only. */
#ifndef FL_MAP_AXIS_H
#define FL_MAP_AXIS_H

#include "fl_image.h"

typedef enum fl_map_direction { FL_MAP_ROWS, FL_MAP_COLUMNS } fl_map_direction;

/* Operations [first, count) of a plan for one sample. All memory is borrowed. */
typedef struct fl_map_ops {
    const fl_image_op *ops;        /* of the whole plan */
    const fl_image_params *params; /* of the whole plan */
    int32_t first, count;
    fl_image_size in; /* of the image before operation `first` */
} fl_map_ops;

static inline int32_t fl_map_edge(fl_image_size size, fl_map_direction axis)
{
    return axis == FL_MAP_ROWS ? size.height : size.width;
}

/* Returns the size of the image before operation i. */
static inline fl_image_size fl_map_size_before(const fl_map_ops *ops, int32_t i)
{
    return i > ops->first ? ops->params[i - 1].out : ops->in;
}

/* Writes the `length` rows or columns that a result reads: a row or column of the image before the
 * operations, or -1 - i if operation i fills it. */
void fl_map_axis(const fl_map_ops *ops, fl_map_direction axis, int32_t length, int32_t *map);

/* Writes the run that a resize reads, which is the last of the operations; no operation before it
 * pads: the number of samples, the first one, and the step to the next, 1 or -1. */
void fl_map_run(const fl_map_ops *ops, fl_map_direction axis, int32_t *run);

/* Computes where samples [*from, *from + *length) of the rectangle that operation i erases lie in
 * the result; *length may become 0. */
void fl_map_erased(const fl_map_ops *ops, int32_t i, fl_map_direction axis, int32_t *from,
                   int32_t *length);

#endif
