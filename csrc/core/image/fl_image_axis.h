/* fl_image_axis: which samples of a source make up one axis of an image.
 *
 * Floor 1. Paddings, crops and flips do not move pixels. They edit two lists of segments, one for
 * rows and one for columns, through which the image is later read. A pixel is filled if its row or
 * its column is filled; if both are, the fill of the later operation counts. Plain data; each
 * function depends on its arguments only. */
#ifndef FL_IMAGE_AXIS_H
#define FL_IMAGE_AXIS_H

#include "fl_image.h"

typedef struct fl_segment {
    int32_t from;   /* the segment's first sample in the source */
    int32_t step;   /* from one sample to the next: 1, -1 or 0 */
    int32_t length; /* >= 1 */
    int32_t fill;   /* >= 0: the operation that fills the segment; from and step then mean nothing.
                       -1: not filled */
} fl_segment;

enum { FL_MAX_SEGMENTS = 96, FL_NO_FILL = -1 };

typedef struct fl_image_axis {
    int32_t length; /* of all segments together */
    int32_t count;
    fl_segment segment[FL_MAX_SEGMENTS];
} fl_image_axis;

/* Starts an axis with samples 0 to length - 1. */
void fl_image_axis_start(fl_image_axis *axis, int32_t length);

/* Keeps samples [from, from + length). */
void fl_image_axis_crop(fl_image_axis *axis, int32_t from, int32_t length);
void fl_image_axis_flip(fl_image_axis *axis);

/* Pads both ends. With FL_PAD_CONSTANT, operation `op` fills the padding. A reflected padding must
 * be shorter than the axis; a symmetric padding must not be longer than the axis. */
void fl_image_axis_pad(fl_image_axis *axis, int32_t before, int32_t after, fl_padding_mode mode,
                       int32_t op);

/* Returns the most segments that an axis of at most `count` segments has after a padding. */
int64_t fl_image_axis_padded_count(int64_t count, fl_padding_mode mode);

/* Sets [*from, *to) to the samples of the source that the axis reads; returns false if the whole
 * axis is filled. */
bool fl_image_axis_range(const fl_image_axis *axis, int32_t *from, int32_t *to);

/* Shifts the axis as if the source began `by` samples later. */
void fl_image_axis_shift(fl_image_axis *axis, int32_t by);

/* Returns true if the axis is one segment of step +1, without fill. */
static inline bool fl_image_axis_is_plain(const fl_image_axis *axis)
{
    return axis->count == 1 && axis->segment[0].step == 1 && axis->segment[0].fill == FL_NO_FILL;
}

#endif
