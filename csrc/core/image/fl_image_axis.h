/* fl_image_axis: which samples of a source make up one axis of an image.
 *
 * Floor 1. Paddings, crops and flips do not move pixels: they edit the two lists of segments, one
 * of rows and one of columns, that an image is later read through. A pixel is a filled one where
 * its row or its column is; where both are, the later operation's fill counts. Plain data; pure. */
#ifndef FL_IMAGE_AXIS_H
#define FL_IMAGE_AXIS_H

#include "fl_image.h"

typedef struct fl_segment {
    int32_t from;   /* its first sample in the source */
    int32_t step;   /* to the next one: 1, -1 or 0 */
    int32_t length; /* >= 1 */
    int32_t fill;   /* >= 0: the operation whose fill it holds, and from and step mean nothing;
                       -1: none */
} fl_segment;

enum { FL_MAX_SEGMENTS = 96, FL_NO_FILL = -1 };

typedef struct fl_image_axis {
    int32_t length; /* of all segments together */
    int32_t count;
    fl_segment segment[FL_MAX_SEGMENTS];
} fl_image_axis;

/* Samples 0 to length - 1. */
void fl_image_axis_start(fl_image_axis *axis, int32_t length);

/* Keeps samples [from, from + length). */
void fl_image_axis_crop(fl_image_axis *axis, int32_t from, int32_t length);
void fl_image_axis_flip(fl_image_axis *axis);

/* `op` is the operation whose fill FL_PAD_CONSTANT puts there. Reflection needs paddings shorter
 * than the axis, symmetric ones paddings no longer. */
void fl_image_axis_pad(fl_image_axis *axis, int32_t before, int32_t after, fl_padding_mode mode,
                       int32_t op);

/* At most how many segments an axis of at most `count` has after a padding. */
int64_t fl_image_axis_padded_count(int64_t count, fl_padding_mode mode);

/* The samples of the source that the axis reads are in [*from, *to); false if it is all filled. */
bool fl_image_axis_range(const fl_image_axis *axis, int32_t *from, int32_t *to);

/* As if the source began `by` samples later. */
void fl_image_axis_shift(fl_image_axis *axis, int32_t by);

/* Whether it is one segment of step +1, without fill. */
static inline bool fl_image_axis_is_plain(const fl_image_axis *axis)
{
    return axis->count == 1 && axis->segment[0].step == 1 && axis->segment[0].fill == FL_NO_FILL;
}

#endif
