/* fl_py_reply_destination: where the batches of a parent end are copied to: a device, or memory
 * that is pinned for one. All functions need the interpreter lock. */
#ifndef FL_PY_REPLY_DESTINATION_H
#define FL_PY_REPLY_DESTINATION_H

#include "fl_py_reply.h"

int fl_py_reply_destination_open(fl_py_parent_end *self, fl_err *err);

/* No copy begins any more, slots that were copied are given back, and so are buffers. SYNC, without
 * the interpreter lock. */
void fl_py_reply_destination_stop(fl_py_parent_end *self);

/* From now on batches from the `first` on (-1: whichever come first) are copied when they arrive:
 * how many buffers of `expected_bytes` that needs. */
int32_t fl_py_reply_destination_set_window(fl_py_parent_end *self, int64_t first);

/* Bytes of slots that copies still read. */
int64_t fl_py_reply_destination_count(fl_py_parent_end *self);

/* Takes back the buffers that are not in use. */
void fl_py_reply_destination_release_buffers(fl_py_parent_end *self);

/* Lends a buffer, a tensor: 0, or -1 with an exception. */
int fl_py_reply_destination_add_buffer(fl_py_parent_end *self, PyObject *memory, int64_t bytes);

/* Gives back a slot and the buffer that it was copied to: nobody wants the batch. */
void fl_py_reply_destination_abandon(fl_py_parent_end *self, const fl_dest_buffer *buffer,
                                     fl_slot *slot);

/* The batch is in reply->buffer, where the current stream will find it: 1 if that memory is another
 * stream's, 0 if not, and the slot is given back. -1: exception, to be tried again. */
int fl_py_reply_destination_deliver(fl_py_reply *reply, PyObject *allocate);

#endif
