/* fl_column_segments: the kind of column whose rows lie in several arrays, one after another, each
 * whole or as a list of its rows: one output, [rows, row...], of rows that are copied.
 *
 * Floor 1. Hides in which array a row lies. Takes what fl_column_rows takes. */
#ifndef FL_COLUMN_SEGMENTS_H
#define FL_COLUMN_SEGMENTS_H

#include "fl_column.h"
#include "fl_row_ops.h"

/* Its memory is kept alive by the caller until the column is closed. */
typedef struct fl_segment {
    fl_tensor view;
    const int64_t *index; /* row i of the segment is row index[i] of the view; NULL: row i */
    int64_t count;        /* rows of the segment; without index, those of the view */
} fl_segment;

/* Elements of another dtype: dst = src, converted as C does; at any address. Any thread. */
typedef void fl_convert(void *dst, const void *src, int64_t count, fl_dtype from);

typedef struct fl_column_segments_config {
    const fl_segment *segments; /* read by open alone */
    int32_t count;
    bool is_volatile;
    const fl_row_ops *row_ops; /* borrowed, static */
    fl_convert *convert;       /* from the dtype of the arrays to `dtype`; NULL: they are copied */
    fl_dtype dtype;
} fl_column_segments_config;

/* row_behind counts segments as parts. FL_EINVAL: there is no segment, a row lies outside its view,
 * or the rows of two segments differ in dtype, shape or inner strides; FL_ENOMEM. */
int fl_column_segments_open(const fl_column_segments_config *config, fl_column **out, fl_err *err);

#endif
