/* fl_py_reply_destination: decides when the batches of worker processes get buffers at their
 * destination.
 *
 * The copier copies arriving batches ahead of the consumer, to buffers that this module lends. A
 * batch that the copier has not begun is copied at its delivery. All functions need the interpreter
 * lock. */
#ifndef FL_PY_REPLY_DESTINATION_H
#define FL_PY_REPLY_DESTINATION_H

#include "fl_copier.h"
#include "fl_py_destination.h"

typedef struct fl_py_reply_destination {
    fl_py_destination base;
    fl_copier *copier;      /* owned; NULL: the destination is not open */
    int64_t expected_bytes; /* of recent batches */
    int32_t pause;          /* no buffer is allocated ahead for this many more batches */
} fl_py_reply_destination;

static inline bool fl_py_reply_destination_is_open(const fl_py_reply_destination *self)
{
    return self->copier != NULL;
}

/* Opens a destination; `object` is the Python destination, and `inflight` is borrowed until
 * fl_copier_close. 0, or -1 and an exception. The owner stops and closes the destination in both
 * cases. */
int fl_py_reply_destination_open(fl_py_reply_destination *self, PyObject *object,
                                 const fl_py_dlpack *dlpack, int32_t device, fl_inflight *inflight);

/* Ends copying: no further copy begins, slots of finished copies are given back, and so are
 * buffers. SYNC, without the interpreter lock. */
void fl_py_reply_destination_stop(fl_py_reply_destination *self);

/* Notes that a batch of `bytes` has arrived. */
void fl_py_reply_destination_expect(fl_py_reply_destination *self, int64_t bytes);

/* From now on copies batches on arrival, beginning with the batch `first` (-1: in the order of
 * arrival). Lends the copier buffers for these batches, as long as memory lasts. 0, or -1 and an
 * exception: an interrupt has come. */
int fl_py_reply_destination_run_ahead(fl_py_reply_destination *self, int64_t first);

/* Takes back the unused buffers. */
void fl_py_reply_destination_release_buffers(fl_py_reply_destination *self);

/* Copies a batch to a new buffer, if the copier has not copied the batch: 0, or -1 and an
 * exception. Releases the interpreter lock. */
int fl_py_reply_destination_copy(fl_py_reply_destination *self, fl_slot *slot, int64_t bytes,
                                 fl_dest_buffer *out);

#endif
