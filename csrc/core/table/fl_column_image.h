/* fl_column_image: the kind of column whose rows are images that a plan works on: one output,
 * [rows, and the shape of a result].
 *
 * Floor 1. An image of a mapped file is first read into scratch memory. If the plan is for a
 * device, a gather only fills the packed rows, their numbers and views, and all of the plan; the
 * device draws. If the taps of all lengths are longer than the maps of the batch, or the plan does
 * not draw itself, a map for each row is filled instead of numbers (fl_image_plan_map, with its own
 * taps).
 */
#ifndef FL_COLUMN_IMAGE_H
#define FL_COLUMN_IMAGE_H

#include "fl_column.h"
#include "fl_image_draws.h"
#include "fl_row_ops.h"

typedef struct fl_column_image_config {
    fl_tensor view; /* [rows, height, width, channels] in the order of `layout`; the caller keeps
                       its memory alive until close */
    fl_image_layout layout;    /* of the images in view */
    bool is_volatile;          /* the view is a mapped file */
    const fl_image_plan *plan; /* borrowed until close */
    /* Parameters that were drawn for each batch before its layout, instead of parameters drawn by
     * the plan; for a plan with the same operations. Borrowed until close; NULL: the plan draws. */
    const fl_image_draws *draws;
    /* A delivered result: */
    fl_dtype dtype;
    int64_t shape[3], stride[3]; /* strides in elements */
    /* The cast of one result. If the plan makes bytes that are looked up at the destination: count,
     * plane, channels, bytes, tables. count 0: the plan makes the elements themselves. Kind
     * FL_CAST_IMAGES, without tables: the destination makes the elements; the plan has a map. */
    fl_transfer_cast cast;
    const fl_row_ops *row_ops; /* static; for FL_CAST_IMAGES */
} fl_column_image_config;

/* Opens a column and copies the description; the caller closes *out. FL_EINVAL: the view does not
 * hold uint8 images of the plan's size and channels; FL_ENOMEM. */
int fl_column_image_open(const fl_column_image_config *config, fl_column **out, fl_err *err);

#endif
