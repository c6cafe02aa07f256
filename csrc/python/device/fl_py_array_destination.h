/* fl_py_array_destination: decides when the batches of an array loader get buffers at their
 * destination.
 *
 * If the destination is pinned memory, the threads that fill a batch copy the rows straight to the
 * batch's buffer. If the destination is a device, the threads fill a slot, and a transfer copies
 * the slot to the buffer; only the next batches have buffers there, and later batches wait in their
 * slots.
 *
 * All functions run on the consumer's thread with the interpreter lock. A step that fails before
 * the delivery of its batch is tried again at the delivery; if the step fails at the delivery, the
 * caller keeps the batch. */
#ifndef FL_PY_ARRAY_DESTINATION_H
#define FL_PY_ARRAY_DESTINATION_H

#include "fl_py_destination.h"
#include "fl_py_table.h"
#include "fl_ring.h"

/* One submitted batch and its buffer. */
typedef struct fl_py_upload_slot {
    bool is_used;
    bool is_filled;        /* every part was filled before the buffer was set */
    int64_t bytes;         /* of the filled batch */
    int64_t buffer_bytes;  /* of the delivered batch */
    void *transfer;        /* owned; NULL: the batch is filled in its buffer */
    fl_dest_buffer buffer; /* owned; buffer.owner is NULL until there is a buffer */
} fl_py_upload_slot;

typedef struct fl_py_array_destination {
    fl_py_destination base;
    int64_t depth;   /* of the ring */
    int32_t outputs; /* of the table */
    int64_t budget;  /* bytes that submitted batches may take; one batch is always allowed */
    fl_py_upload_slot *slots; /* owned: `depth` slots; NULL: batches stay in slots of the pool */
    fl_transfer_cast *casts;  /* owned: room for `outputs` casts of each slot, used until the slot's
                                 transfer ends */
    int64_t most_bytes;       /* size of the largest buffer since cancel_all */
    PyObject *alloc_error; /* owned: the exception of `allocate` for the batch to be submitted next,
                              in pinned memory; or NULL */
} fl_py_array_destination;

static inline bool fl_py_array_destination_is_open(const fl_py_array_destination *self)
{
    return self->slots != NULL;
}

/* Opens a destination for batches of this table; `object` is the Python destination. 0, or -1 and
 * an exception. The owner closes the destination in both cases. */
int fl_py_array_destination_open(fl_py_array_destination *self, PyObject *object,
                                 const fl_py_table *table, int32_t device, int64_t depth,
                                 int64_t budget);

/* Gives the prepared batch its upload slot, with memory or a transfer. FL_ENOMEM: no memory is
 * left, or earlier batches must be delivered first. If an interrupt comes, an exception is set;
 * after FL_OK the caller must still submit the batch. */
int fl_py_array_destination_prepare(fl_py_array_destination *self, const fl_ring *ring,
                                    fl_batch *batch, fl_err *err);

/* Allocates the buffers of the next batches and starts their copies, as long as memory lasts. 0, or
 * -1 and an exception: an interrupt has come. */
int fl_py_array_destination_run_ahead(fl_py_array_destination *self, fl_ring *ring);

/* Returns a list of the outputs of a received batch: tensors over the batch's buffer, for the
 * current stream. is_single: without the batch dimension. Takes the slot. New reference; NULL and
 * an exception. If *is_undelivered is true, the exception comes from the transfer, and the caller
 * still owns the batch and may deliver it later. */
PyObject *
fl_py_array_destination_deliver(fl_py_array_destination *self, fl_py_table *table,
                                const fl_batch *batch, bool is_single, bool *is_undelivered);

/* Gives back the upload slot of a batch that is not delivered and was not filled; does nothing if
 * the batch has no upload slot. If slices of the batch are being copied, waits (SYNC), without the
 * interpreter lock. */
void fl_py_array_destination_cancel(fl_py_array_destination *self, const fl_batch *batch);

/* Gives back all upload slots. The copy stream must be halted, and nothing submitted. */
void fl_py_array_destination_cancel_all(fl_py_array_destination *self);

int fl_py_array_destination_traverse(fl_py_array_destination *self, visitproc visit, void *arg);

/* Closes the destination. SYNC for a device, unless the copy stream is halted. Nothing may be
 * submitted. Closing twice is fine. */
void fl_py_array_destination_close(fl_py_array_destination *self);

#endif
