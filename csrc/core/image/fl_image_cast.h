/* fl_image_cast: the tables of a plan's values, and whether arithmetic gives them.
 *
 * Floor 1. Pure. */
#ifndef FL_IMAGE_CAST_H
#define FL_IMAGE_CAST_H

#include "fl_image_ops.h"

/* What becomes of the elements of one channel. `table` (256 elements of `type`, borrowed) is what
 * they become; `linear` is scale, mean and std, or NULL. They are only used where they give the
 * table, both with a division and in the way that fl_image_cast says. */
fl_image_cast fl_image_cast_make(fl_image_type type, const void *table, const float *linear);

#endif
