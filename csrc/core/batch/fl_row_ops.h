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

#endif
