/* fl_sequence_ops: the table of functions that a device fills for sequences of different length.
 *
 * Floor 1. csrc/cpu fills fl_cpu_sequence_ops; csrc/python passes the table in. No function blocks
 * or fails; any thread. */
#ifndef FL_SEQUENCE_OPS_H
#define FL_SEQUENCE_OPS_H

#include "fl_tensor.h"

typedef struct fl_sequence_ops {
    /* Writes `count` integers of dtype `from` (DLPack's Int or UInt of up to 64 bits) as int64. src
     * may lie at any address. */
    void (*widen)(int64_t *dst, const void *src, int64_t count, fl_dtype from);

    /* Writes `count` elements of `bytes` bytes each: 1, 2, 4, 8 or 16. */
    void (*fill)(void *dst, const void *element, int64_t bytes, int64_t count);

    /* Writes 0, 1, 2, ... */
    void (*count_up)(int64_t *dst, int64_t count);
} fl_sequence_ops;

#endif
