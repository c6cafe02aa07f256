/* fl_py_array_destination: when the batches of an array loader need buffers at their destination.
 *
 * In pinned memory the threads that fill a batch copy its rows to its buffer. To a device they fill
 * a slot, and a transfer copies the slot to the buffer; only the next batches have a buffer there,
 * the others wait in their slots.
 *
 * All functions run on the consumer's thread with the interpreter lock. What fails before a batch
 * is delivered is tried again then; what fails then leaves the batch with the caller. */
#ifndef FL_PY_ARRAY_DESTINATION_H
#define FL_PY_ARRAY_DESTINATION_H

#include "fl_py_destination.h"
#include "fl_py_table.h"
#include "fl_ring.h"

/* One submitted batch and its buffer. */
typedef struct fl_py_upload_slot {
    bool is_used;
    bool is_filled;        /* every part was filled before the buffer was set */
    int64_t bytes;         /* of the batch when it is filled */
    int64_t buffer_bytes;  /* and on delivery */
    void *transfer;        /* owned; NULL: the batch is filled in its buffer */
    fl_dest_buffer buffer; /* owned; its owner is NULL where there is none yet */
} fl_py_upload_slot;

typedef struct fl_py_array_destination {
    fl_py_destination base;
    int64_t depth;            /* of the ring */
    int32_t outputs;          /* of the table */
    int64_t budget;           /* bytes that submitted batches may take; one batch always may */
    fl_py_upload_slot *slots; /* owned: `depth` of them; NULL: batches stay in slots of the pool */
    fl_transfer_cast
        *casts;         /* owned: room for `outputs` of each slot, used until its transfer ends */
    int64_t most_bytes; /* of a buffer, of the batches since cancel_all */
    PyObject *alloc_error; /* owned: what `allocate` raised for the batch to be submitted next, in
                              pinned memory; or NULL */
} fl_py_array_destination;

static inline bool fl_py_array_destination_is_open(const fl_py_array_destination *self)
{
    return self->slots != NULL;
}

/* `object` is the Python destination, for batches of this table. 0, or -1 and an exception. The
 * owner closes it in either case. */
int fl_py_array_destination_open(fl_py_array_destination *self, PyObject *object,
                                 const fl_py_table *table, int32_t device, int64_t depth,
                                 int64_t budget);

/* Gives the prepared batch its upload slot, and with it memory or a transfer. FL_ENOMEM: there is
 * none, for want of memory or because others must be delivered first. An interrupt may have come:
 * then an exception is set, and after FL_OK the caller must still submit the batch. */
int fl_py_array_destination_prepare(fl_py_array_destination *self, const fl_ring *ring,
                                    fl_batch *batch, fl_err *err);

/* Allocates the buffers of the next batches and starts their copies, as far as there is memory. 0,
 * or -1 and an exception: an interrupt has come. */
int fl_py_array_destination_run_ahead(fl_py_array_destination *self, fl_ring *ring);

/* A list of the outputs of a received batch, tensors over its buffer, for the current stream;
 * is_single: without the batch dimension. Takes the slot. New reference; NULL and an exception.
 * With *is_undelivered the exception is that of the transfer, and the batch is still the caller's,
 * who may deliver it later. */
PyObject *
fl_py_array_destination_deliver(fl_py_array_destination *self, fl_py_table *table,
                                const fl_batch *batch, bool is_single, bool *is_undelivered);

/* Gives back the upload slot of a batch that is not delivered and was not filled, if it has one.
 * SYNC where slices of it are being copied, without the interpreter lock. */
void fl_py_array_destination_cancel(fl_py_array_destination *self, const fl_batch *batch);

/* Gives back all upload slots. The copy stream is halted and nothing is submitted. */
void fl_py_array_destination_cancel_all(fl_py_array_destination *self);

int fl_py_array_destination_traverse(fl_py_array_destination *self, visitproc visit, void *arg);

/* SYNC for a device, unless the copy stream is halted. Nothing is submitted. Twice is fine. */
void fl_py_array_destination_close(fl_py_array_destination *self);

#endif
