/* fl_image_cast: the table of a channel's values, and whether arithmetic gives the same values.
 *
 * Floor 1. The result depends on the arguments only. */
#ifndef FL_IMAGE_CAST_H
#define FL_IMAGE_CAST_H

#include "fl_image_ops.h"

/* Makes the cast of one channel. `table` (256 elements of `type`, borrowed) has the result for each
 * byte; `linear` is scale, mean and std, or NULL. Bytes are multiplied by scale or
 * divided by the whole number next to 1 / scale. Arithmetic with `linear` is used only if one of
 * both gives the whole table, both with a division by std and with the steps that fl_image_cast
 * describes. */
fl_image_cast fl_image_cast_make(fl_image_type type, const void *table, const float *linear);

#endif
