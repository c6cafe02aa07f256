/* fl_column_rows: the kind of column whose rows are copied: one output, [rows, row...].
 *
 * Floor 1. Takes strides of any sign, and sources that may vanish (mapped files), which are read
 * through fl_safe_read. */
#ifndef FL_COLUMN_ROWS_H
#define FL_COLUMN_ROWS_H

#include "fl_column.h"
#include "fl_row_ops.h"

/* Opens a column over the rows of view; view.shape[0] is the number of rows. The caller closes
 * *out, and keeps the view's memory alive until then. is_volatile: the view is a mapped file.
 * row_ops: borrowed, static. FL_EINVAL, FL_ENOMEM. */
int fl_column_rows_open(const fl_tensor *view, bool is_volatile, const fl_row_ops *row_ops,
                        fl_column **out, fl_err *err);

#endif
