/* fl_py_reply_destination: when the batches of worker processes need buffers at their destination.
 *
 * The copier copies what arrives, ahead of the consumer, to buffers that it is lent here. What it
 * has not begun is copied when the batch is delivered. All functions need the interpreter lock. */
#ifndef FL_PY_REPLY_DESTINATION_H
#define FL_PY_REPLY_DESTINATION_H

#include "fl_copier.h"
#include "fl_py_destination.h"

typedef struct fl_py_reply_destination {
    fl_py_destination base;
    fl_copier *copier;      /* owned; NULL: there is no destination */
    int64_t expected_bytes; /* of recent batches */
    int32_t pause;          /* so many batches more no buffer is allocated ahead */
} fl_py_reply_destination;

static inline bool fl_py_reply_destination_is_open(const fl_py_reply_destination *self)
{
    return self->copier != NULL;
}

/* `object` is the Python destination; `inflight` is borrowed until fl_copier_close. 0, or -1 and an
 * exception. The owner stops and closes it in either case. */
int fl_py_reply_destination_open(fl_py_reply_destination *self, PyObject *object,
                                 const fl_py_dlpack *dlpack, int32_t device, fl_inflight *inflight);

/* No copy begins any more, slots that were copied are given back, and so are buffers. SYNC, without
 * the interpreter lock. */
void fl_py_reply_destination_stop(fl_py_reply_destination *self);

/* A batch of `bytes` has arrived. */
void fl_py_reply_destination_expect(fl_py_reply_destination *self, int64_t bytes);

/* From now on batches from the `first` on (-1: whichever come first) are copied when they arrive.
 * Lends the copier buffers for them, as far as there is memory. 0, or -1 and an exception: an
 * interrupt has come. */
int fl_py_reply_destination_run_ahead(fl_py_reply_destination *self, int64_t first);

/* Takes back the buffers that are not in use. */
void fl_py_reply_destination_release_buffers(fl_py_reply_destination *self);

/* Copies a batch that the copier has not copied to a new buffer: 0, or -1 and an exception. Lets go
 * of the interpreter lock. */
int fl_py_reply_destination_copy(fl_py_reply_destination *self, fl_slot *slot, int64_t bytes,
                                 fl_dest_buffer *out);

#endif
