/* fl_row_ops: the table of functions that a device fills for copying rows.
 *
 * Floor 1. csrc/cpu fills fl_cpu_row_ops; csrc/python chooses the table and passes it in. */
#ifndef FL_ROW_OPS_H
#define FL_ROW_OPS_H

#include "fl_base.h"

/* Neither function blocks or fails; any thread. is_large: the rows are part of a batch that is
 * larger than what a core's caches should keep. */
typedef struct fl_row_ops {
    /* Copies rows first, ..., first + count - 1 to dst, packed; row r begins at src + r * stride.
     */
    void (*copy_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes, int64_t first,
                      int64_t count, bool is_large);

    /* Copies rows index[0], ..., index[count - 1] to dst, packed. */
    void (*gather_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes,
                        const int64_t *index, int64_t count, bool is_large);
} fl_row_ops;

/* A column of a batch that a device gathers out of its own memory. */
typedef struct fl_row_column {
    const char *from; /* borrowed: the first row of the array */
    char *to;         /* borrowed: the first row of the batch, whose rows lie side by side */
    int64_t bytes;    /* of a row, which has no gaps; less than 2 GiB */
    int64_t pitch;    /* bytes from a row of the array to the next */
} fl_row_column;

/* A batch of windows of tokens that a device makes of its own memory. */
typedef struct fl_window_batch {
    const void *from;   /* borrowed: integers side by side */
    void *x, *y;        /* borrowed: rows of `length` integers, side by side. y may be NULL */
    int64_t length;     /* of a row, in [1, INT32_MAX] */
    int32_t shift;      /* integers of `from` from one of x to that of y: 0 or 1 */
    int32_t from_bytes; /* of an integer: 1, 2, 4 or 8 */
    int32_t bytes;      /* that it has in x and y: 2, 4 or 8, not less */
    bool is_signed;     /* they keep their sign */
} fl_window_batch;

#endif
