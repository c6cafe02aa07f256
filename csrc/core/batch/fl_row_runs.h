/* fl_row_runs: how the rows of an array lie in memory, and how to copy the rows to packed memory.
 *
 * Floor 1. A row is reduced once to nested loops over an innermost contiguous run of bytes. Most
 * rows are one run, and then row_ops copies them. Hides strides of any sign and rows that are not
 * contiguous; rows of a mapped file can be read through fl_safe_read. Plain data, read-only once
 * made; any thread. */
#ifndef FL_ROW_RUNS_H
#define FL_ROW_RUNS_H

#include "fl_plan.h"
#include "fl_row_ops.h"
#include "fl_tensor.h"

typedef struct fl_row_runs {
    const char *data; /* borrowed from the view */
    int64_t row_bytes, row_stride;
    int64_t reach;     /* from the first byte of a row to the end of its last byte in memory */
    int64_t run_bytes; /* contiguous bytes in the innermost loop */
    int32_t loops;     /* outer loops around a run; 0: a row is one run */
    int64_t loop_count[FL_MAX_NDIM], loop_stride[FL_MAX_NDIM];
} fl_row_runs;

/* Describes the rows of a view of ndim >= 1. FL_EINVAL: a row is larger than 2^63 bytes. */
int fl_row_runs_set(fl_row_runs *runs, const fl_tensor *view, fl_err *err);

/* Copies rows from <= i < to of `rows` to dst, packed. is_large means the same as in fl_row_ops. */
void fl_row_runs_copy(const fl_row_runs *runs, const fl_row_ops *row_ops, const fl_rows *rows,
                      int64_t from, int64_t to, char *dst, bool is_large);

/* Copies like fl_row_runs_copy, but from memory that may vanish, through fl_safe_read. Returns the
 * bytes copied before the first byte that cannot be read, or FL_ENOMEM. Waits for the disk. */
int64_t
fl_row_runs_read(const fl_row_runs *runs, const fl_rows *rows, int64_t from, int64_t to, char *dst);

/* Returns the first of `rows` that has a byte at or after `limit`, in an array of `length` rows;
 * -1: no row has. */
int64_t
fl_row_runs_beyond(const fl_row_runs *runs, int64_t length, const fl_rows *rows, const char *limit);

#endif
