/* fl_row_ops: the table of functions that a device fills for copying rows.
 *
 * Floor 1. csrc/cpu fills fl_cpu_row_ops; csrc/python chooses the table and passes it in. */
#ifndef FL_ROW_OPS_H
#define FL_ROW_OPS_H

#include "fl_base.h"

/* Neither function blocks or fails; any thread. is_large: the rows are part of a batch that is too
 * large for a core's caches. */
typedef struct fl_row_ops {
    /* Copies rows first, ..., first + count - 1 to dst, packed; row r begins at src + r *
     * stride. */
    void (*copy_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes, int64_t first,
                      int64_t count, bool is_large);

    /* Copies rows index[0], ..., index[count - 1] to dst, packed. */
    void (*gather_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes,
                        const int64_t *index, int64_t count, bool is_large);
} fl_row_ops;

/* A column of a batch that a device gathers from an array. */
typedef struct fl_row_column {
    const char *from; /* borrowed: the first row of the array, as the device sees it */
    const char *end;  /* one past the last byte of the last row */
    char *to;         /* borrowed: the first row of the batch; the batch's rows lie side by side */
    int64_t bytes;    /* bytes of a row, without gaps; less than 2 GiB */
    int64_t pitch;    /* bytes from one row of the array to the next */
    /* NULL: whole rows are copied. Else each row is an image with `plane` bytes a channel and
     * `line` bytes a line. Of image i of the batch only the lines spans[i * span_step] to
     * spans[i * span_step + 1] - 1 of each channel have to be copied. Borrowed, on the device. */
    const int32_t *spans;
    int64_t span_step, plane, line;
} fl_row_column;

typedef struct fl_map_batch fl_map_batch; /* see fl_map_axis.h */

/* The most rows that a kernel's own argument holds; they are below 2^31. */
enum { FL_GATHER_OWN_ROWS = 640 };

/* Rows of columns to copy, and maps of images to draw. All memory is borrowed. */
typedef struct fl_gather {
    const fl_row_column *columns;
    const fl_map_batch *maps; /* whose rows may be NULL: `here` */
    int32_t column_count, map_count;
    const int64_t *rows; /* on the device */
    const int64_t *here; /* instead of `rows`: at most FL_GATHER_OWN_ROWS, in host memory, which are
                            read before the call returns */
    int64_t *kept; /* on the device, for kernels to come: gets `here`, with the first maps, which
                      are then of the same rows; or NULL */
    int64_t row_count;
    int32_t most_blocks; /* of a kernel */
} fl_gather;

/* A batch of windows of tokens that a device makes from tokens in its own memory. */
typedef struct fl_window_batch {
    const void *from; /* borrowed: integers side by side */
    void *x, *y;      /* borrowed: rows of `length` integers, side by side. y may be NULL */
    int64_t length;   /* integers in a row of x, in [1, INT32_MAX] */
    int32_t shift; /* the row of y begins this many integers of `from` after the row of x: 0 or 1 */
    int32_t from_bytes; /* bytes of an integer in `from`: 1, 2, 4 or 8 */
    int32_t bytes;      /* bytes of an integer in x and y: 2, 4 or 8, not fewer than from_bytes */
    bool is_signed;     /* the integers are signed */
} fl_window_batch;

#endif
