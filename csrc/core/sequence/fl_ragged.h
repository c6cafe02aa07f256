/* fl_ragged: sequences of different length, one after the other in an array of values.
 *
 * Floor 1. Plain data, read-only; any thread. Values of a mapped file are read through
 * fl_safe_read. Every lookup is checked against the number of values, because offsets are the
 * user's memory. */
#ifndef FL_RAGGED_H
#define FL_RAGGED_H

#include "fl_sequence_ops.h"

typedef struct fl_ragged {
    const char *values;  /* borrowed: contiguous */
    fl_dtype dtype;      /* of a value, at most 16 bytes */
    int64_t count;       /* of values */
    const void *offsets; /* borrowed: int64 or int32; length + 1, or 2 * length if is_paired */
    bool is_paired; /* offsets are the begin and the end of each sequence. Otherwise a sequence ends
                       at the next sequence's begin */
    bool is_wide;   /* offsets are int64 */
    bool is_volatile; /* the values lie in a mapped file */
    int64_t length;   /* sequences */
} fl_ragged;

/* Finds the first value of sequence `row`, and the sequence's length. FL_EINVAL: the offsets are
 * impossible. */
int fl_ragged_find(const fl_ragged *ragged, int64_t row, int64_t *begin, int64_t *length,
                   fl_err *err);

/* One sequence, or its beginning, on its way into a batch. */
typedef struct fl_ragged_piece {
    int64_t begin, count; /* values */
    char *dst;
} fl_ragged_piece;

/* Copies the values of `pieces` to each piece's dst; if is_widened (integers only), as int64.
 * Returns the number of pieces copied before the first piece that cannot be read, or FL_ENOMEM. If
 * the values are volatile, waits for the disk. */
int64_t fl_ragged_copy(const fl_ragged *ragged, const fl_sequence_ops *ops, bool is_widened,
                       const fl_ragged_piece *pieces, int64_t count);

/* Returns true if sequence `row` has a byte at or after the address `limit`. */
bool fl_ragged_is_beyond(const fl_ragged *ragged, int64_t row, const char *limit);

#endif
