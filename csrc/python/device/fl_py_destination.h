/* fl_py_destination: where batches go that do not stay in slots: buffers that Python allocates, on
 * a device or in pinned memory, and their tensors.
 *
 * A destination is a Python object with two methods (fastloop/device/destinations.py):
 *   allocate(bytes) returns a tensor of exactly so many bytes; on a device, of its current stream;
 *   split(buffer, places, is_other_stream) returns a list of the tensors at these places. It is
 *   called once for a batch, and notes the current stream with the allocator if that is not the one
 *   that the buffer was allocated for.
 *
 * This module makes buffers, delivers the batches in them, and drops them; array loaders
 * (fl_py_array_destination) and worker processes (fl_py_reply_destination) say when. All functions
 * need the interpreter lock. */
#ifndef FL_PY_DESTINATION_H
#define FL_PY_DESTINATION_H

#include "fl_py_dlpack.h"
#include "fl_transfer_ops.h"

typedef struct fl_py_destination {
    PyObject *allocate, *split; /* owned: bound methods; NULL: there is no destination */
    fl_py_dlpack dlpack;        /* owned */
    const fl_transfer_ops *ops; /* of the device */
    void *copy_stream; /* owned; NULL: batches are filled in their buffers, or it is closed */
    int32_t device;    /* FL_PY_CPU: pinned memory */
} fl_py_destination;

/* Takes the methods of `object`. has_copies: batches are copied from slots to their buffers, on the
 * copy stream that is there or a new one; else they are filled there. 0, or -1 and an exception;
 * the owner closes it in either case. */
int fl_py_destination_open(fl_py_destination *self, PyObject *object, const fl_py_dlpack *dlpack,
                           int32_t device, bool has_copies);

static inline bool fl_py_destination_is_open(const fl_py_destination *self)
{
    return self->allocate != NULL;
}

/* Bytes of slots that copies still read, of batches that were delivered. */
static inline int64_t fl_py_destination_count_reading(const fl_py_destination *self)
{
    return self->copy_stream != NULL ? self->ops->collect(self->copy_stream) : 0;
}

int fl_py_destination_traverse(const fl_py_destination *self, visitproc visit, void *arg);

/* SYNC unless the copy stream is halted. Every buffer has been delivered or dropped. Twice is fine.
 */
void fl_py_destination_close(fl_py_destination *self);

/* Allocates a buffer of `bytes` (of 1 if it is 0, so that it has an address), for the current
 * stream, and sets it as the transfer's; *is_filled as fl_transfer_ops.set_buffer has it. Without a
 * transfer (NULL) out->target is the buffer's address. 0; -1 exception, and the transfer is as it
 * was. */
int fl_py_destination_allocate(const fl_py_destination *self, void *transfer, int64_t bytes,
                               fl_dest_buffer *out, bool *is_filled);

/* A buffer and a transfer of its own, for a batch that is copied as a whole (fl_transfer_ops.copy):
 * 0, or -1 and an exception. */
int fl_py_destination_new_buffer(const fl_py_destination *self, int64_t bytes, fl_dest_buffer *out);

/* Makes the current stream wait for the batch in the buffer. The slot and the transfer are then
 * taken, and buffer->owner is still the caller's: 1 if the current stream is another than the
 * buffer's, 0 if not. -1 exception: nothing is taken, and it may be tried again. Lets go of the
 * interpreter lock where the copy has not been started. */
int fl_py_destination_finish(const fl_py_destination *self, const fl_dest_buffer *buffer,
                             fl_slot *slot, int64_t bytes);

/* Drops a buffer that no batch was copied to, with its transfer; and one of a filled batch that
 * nobody wants, with its slot. */
void fl_py_destination_cancel(const fl_py_destination *self, const fl_dest_buffer *buffer);
void fl_py_destination_abandon(const fl_py_destination *self, const fl_dest_buffer *buffer,
                               fl_slot *slot);

/* The tensors at `places`, a list, in the buffer. New reference to a list of as many. */
PyObject *fl_py_destination_split(const fl_py_destination *self, PyObject *buffer, PyObject *places,
                                  bool is_other_stream);

#endif
