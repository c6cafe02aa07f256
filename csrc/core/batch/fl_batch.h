/* fl_batch: a batch on its way through a ring: which rows, and the memory they are copied to.
 *
 * Floor 1. Whoever submits a batch sets the first group of fields (fl_ring_prepare), the ring sets
 * the second. From fl_ring_submit to fl_ring_receive all fields are read-only. */
#ifndef FL_BATCH_H
#define FL_BATCH_H

#include "fl_layout.h"
#include "fl_plan.h"

typedef struct fl_batch {
    fl_rows rows;       /* owned by the ring */
    fl_layout layout;   /* owned by the ring: for fill, and for the receiver of the batch */
    const void *source; /* borrowed until the batch is received: what the ring's fill reads */
    char *data;         /* where the batch is filled: memory that is borrowed until it is received,
                           or NULL. Then the ring takes a slot of its pool, and this is the slot's */
    void *transfer;     /* borrowed until the batch is received: the copy of the slot to a device
                           that is told of filled parts; NULL: none */
    int64_t bytes;      /* of the memory at data */
    int64_t work_bytes; /* what filling it costs, in bytes that are copied */
    uint32_t epoch;     /* for fill */
    int64_t tag;        /* the submitter's own */
    int32_t parts;      /* how often fill is called; 0: a sentinel, which has nothing to fill */

    fl_slot *slot;  /* NULL where data is not a slot's; owned by the ring until fl_ring_receive */
    int64_t number; /* counted from 0 at open and at reset */
} fl_batch;

/* Fills part `part` < batch->parts of batch->data from batch->source. A ring's threads and its
 * consumer call it, for the parts of a batch in any order and at once. */
typedef int fl_fill(const fl_batch *batch, int32_t part, fl_err *err);

#endif
