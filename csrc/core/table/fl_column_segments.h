/* fl_column_segments: the kind of column whose rows lie in several arrays, one after another:
 * either all rows of an array, or a list of its rows. One output, [rows, row...]; rows are copied
 * or converted.
 *
 * Floor 1. Hides which array a row lies in. Takes the same strides and sources as
 * fl_column_rows. */
#ifndef FL_COLUMN_SEGMENTS_H
#define FL_COLUMN_SEGMENTS_H

#include "fl_column.h"
#include "fl_row_ops.h"

/* A segment. The caller keeps its memory alive until the column is closed. */
typedef struct fl_segment {
    fl_tensor view;
    const int64_t *index; /* row i of the segment is row index[i] of the view; NULL: row i */
    int64_t count;        /* rows of the segment; without index, all rows of the view */
} fl_segment;

/* Converts elements to a different dtype: dst = src, like an assignment in C; at any address. Any
 * thread. */
typedef void fl_convert(void *dst, const void *src, int64_t count, fl_dtype from);

typedef struct fl_column_segments_config {
    const fl_segment *segments; /* only read by open */
    int32_t count;
    bool is_volatile;
    const fl_row_ops *row_ops; /* borrowed, static */
    fl_convert *convert;       /* from the dtype of the arrays to `dtype`; NULL: rows are copied */
    fl_dtype dtype;
} fl_column_segments_config;

/* Opens a column; the caller closes *out. row_beyond counts segments as parts. FL_EINVAL: there is
 * no segment, a row lies outside its view, or the rows of two segments differ in dtype, shape or
 * inner strides; FL_ENOMEM. */
int fl_column_segments_open(const fl_column_segments_config *config, fl_column **out, fl_err *err);

#endif
