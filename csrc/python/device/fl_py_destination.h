/* fl_py_destination: the destination of batches that leave their slots: buffers that Python
 * allocates, on a device or in pinned memory, and the tensors in the buffers.
 *
 * A destination is a Python object with two methods (fastloop/device/destinations.py).
 * allocate(bytes) returns a tensor of exactly this many bytes; on a device the tensor belongs to
 * the current stream. split(buffer, places, is_other_stream) returns a list of the tensors at these
 * places. split is called once for a batch. If the current stream is not the stream for which the
 * buffer was allocated, split tells the allocator about the current stream.
 *
 * This module makes buffers, delivers the batches in the buffers, and drops buffers; array loaders
 * (fl_py_array_destination) and worker processes (fl_py_reply_destination) decide when. All
 * functions need the interpreter lock. */
#ifndef FL_PY_DESTINATION_H
#define FL_PY_DESTINATION_H

#include "fl_py_dlpack.h"
#include "fl_transfer_ops.h"

typedef struct fl_py_destination {
    PyObject *allocate, *split; /* owned: bound methods; NULL: the destination is not open */
    fl_py_dlpack dlpack;        /* owned */
    const fl_transfer_ops *ops; /* of the device */
    void *copy_stream; /* owned; NULL: batches are filled in their buffers, or the destination is
                          closed */
    int32_t device;    /* FL_PY_CPU: the destination is pinned memory */
} fl_py_destination;

/* Opens a destination with the methods of `object`. If has_copies is true, batches are copied from
 * slots to their buffers, on the present copy stream or else a new one; otherwise batches are
 * filled in their buffers. 0, or -1 and an exception; the owner closes the destination in both
 * cases. */
int fl_py_destination_open(fl_py_destination *self, PyObject *object, const fl_py_dlpack *dlpack,
                           int32_t device, bool has_copies);

/* Returns the bytes of slots that copies still read, for delivered batches. */
static inline int64_t fl_py_destination_count_reading(const fl_py_destination *self)
{
    bool has_copies = self->copy_stream != NULL && self->ops->collect != NULL;
    return has_copies ? self->ops->collect(self->copy_stream) : 0;
}

int fl_py_destination_traverse(const fl_py_destination *self, visitproc visit, void *arg);

/* Closes the destination. SYNC unless the copy stream is halted. Every buffer must have been
 * delivered or dropped. Closing twice is fine. */
void fl_py_destination_close(fl_py_destination *self);

/* Allocates a buffer of `bytes` for the current stream, and sets the buffer in the transfer; if
 * `bytes` is 0, the buffer has one byte, so that it has an address. *is_filled is the result of
 * fl_transfer_ops.set_buffer. Without a transfer (NULL), out->target is the buffer's address. 0; -1
 * exception, and the transfer is unchanged. */
int fl_py_destination_allocate(const fl_py_destination *self, void *transfer, int64_t bytes,
                               fl_dest_buffer *out, bool *is_filled);

/* Makes a buffer with its own transfer, for a batch that is copied as a whole
 * (fl_transfer_ops.copy): 0, or -1 and an exception. */
int fl_py_destination_new_buffer(const fl_py_destination *self, int64_t bytes, fl_dest_buffer *out);

/* Makes the current stream wait for the batch in the buffer. Takes the slot and the transfer;
 * buffer->owner still belongs to the caller. Returns 1 if the current stream is not the buffer's
 * stream, 0 if it is. -1 exception: nothing is taken, and the caller may try again. If the copy has
 * not been started, releases the interpreter lock. */
int fl_py_destination_finish(const fl_py_destination *self, const fl_dest_buffer *buffer,
                             fl_slot *slot, int64_t bytes);

/* Drop a buffer and its transfer: cancel for a buffer without a batch, abandon for a filled batch
 * that nobody wants. abandon also gives back the slot. */
void fl_py_destination_cancel(const fl_py_destination *self, const fl_dest_buffer *buffer);
void fl_py_destination_abandon(const fl_py_destination *self, const fl_dest_buffer *buffer,
                               fl_slot *slot);

/* Returns the tensors at `places`, a list, in the buffer. New reference to a list of the same
 * length. */
PyObject *fl_py_destination_split(const fl_py_destination *self, PyObject *buffer, PyObject *places,
                                  bool is_other_stream);

#endif
