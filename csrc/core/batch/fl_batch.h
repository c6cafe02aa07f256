/* fl_batch: a batch on its way through a ring: which rows, and the memory that the rows are copied
 * to.
 *
 * Floor 1. The submitter sets the first group of fields (fl_ring_prepare), the ring sets the
 * second. From fl_ring_submit to fl_ring_receive all fields are read-only. */
#ifndef FL_BATCH_H
#define FL_BATCH_H

#include "fl_layout.h"
#include "fl_plan.h"

#include "fl_gate.h"

typedef struct fl_batch {
    fl_rows rows;       /* owned by the ring */
    fl_layout layout;   /* owned by the ring: for fill, and for the receiver of the batch */
    const void *source; /* borrowed until the batch is received: the input of the ring's fill */
    fl_gate *gate; /* borrowed until the next fl_ring_reset or fl_ring_end: threads that fill are
                      inside this gate; NULL: the source does not move */
    char *data; /* the memory to fill, borrowed until the batch is received; NULL: the ring takes a
                   slot of its pool, and sets data to the slot's memory */
    void *transfer; /* borrowed until the batch is received: the copy of the slot to a device, told
                       of each filled part; NULL: none */
    int64_t bytes;  /* of the memory at data */
    int64_t work_bytes; /* the cost of filling, in bytes that are copied */
    uint32_t epoch;     /* for fill */
    int64_t tag;        /* the submitter's own mark */
    int32_t parts;      /* how often fill is called; 0: a sentinel, which has nothing to fill */

    fl_slot *slot;  /* NULL if data is not a slot's; owned by the ring until fl_ring_receive */
    int64_t number; /* counted from 0 at open and at reset */
} fl_batch;

/* Fills part `part` < batch->parts of batch->data from batch->source. A ring's threads and its
 * consumer call this function for the parts of a batch, in any order and at once. */
typedef int fl_fill(const fl_batch *batch, int32_t part, fl_err *err);

#endif
