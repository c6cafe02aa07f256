/* fl_backend: the table of functions a device fills.
 *
 * Floor 1 calls through the table; floor 2 fills it; floor 3 chooses one and passes it in. */
#ifndef FL_BACKEND_H
#define FL_BACKEND_H

#include "fl_base.h"

typedef struct fl_backend {
    /* Copies rows first, first + 1, ... to dst, packed; row r begins at src + r * stride.
     * is_large: they are part of a batch larger than a core's caches should keep. Never blocks,
     * any thread. */
    void (*copy_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes, int64_t first,
                      int64_t count, bool is_large);

    /* Copies rows index[0], ..., index[count - 1] likewise. */
    void (*gather_rows)(char *dst, const char *src, int64_t stride, int64_t row_bytes,
                        const int64_t *index, int64_t count, bool is_large);
} fl_backend;

#endif
