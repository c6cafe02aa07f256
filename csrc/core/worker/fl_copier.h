/* fl_copier: copies batches of worker processes to their destination ahead of the consumer.
 *
 * Floor 1. A copier is a thread that works on the requests of an fl_inflight. The thread looks at
 * replies without taking them, and copies batches from their slots to buffers that the consumer has
 * lent, in the order in which the consumer will take the batches. If the consumer wants a batch
 * that the thread has not begun (fl_inflight_finish), the consumer copies the batch itself.
 * docs/internals/cuda.md draws the states.
 *
 * The mutex of the table's fl_sent also guards the copier's window and buffers. Nothing is copied
 * with the mutex held. Every call belongs to one consumer thread at a time. In a forked child stop,
 * close and reclaim_buffer do nothing, and no further function may be called. */
#ifndef FL_COPIER_H
#define FL_COPIER_H

#include "fl_inflight.h"

typedef struct fl_copier fl_copier;

/* Copies the first `bytes` of a slot to a buffer of at least this size. The function may also only
 * begin the copy, or leave the rest to the caller of fl_inflight_finish. The copier's thread calls
 * this function, and may be kept busy for as long as the copy takes. After a failure nothing has
 * begun; the consumer tries again and gets the error. */
typedef int fl_copy_fn(const fl_dest_buffer *buffer, fl_slot *slot, int64_t bytes, fl_err *err);

/* Opens a copier over a table with has_destination, borrowed until close. The caller closes *out.
 * FL_OK, FL_ENOMEM, FL_ETHREAD. */
int fl_copier_open(fl_inflight *table, fl_copy_fn *copy, fl_copier **out, fl_err *err);

/* Ends the thread, once, and waits for a running copy. Afterwards nothing is copied. */
void fl_copier_stop(fl_copier *copier);

/* Stops and frees the copier. Every buffer has been reclaimed or is with a request. NULL is
 * fine. */
void fl_copier_close(fl_copier *copier);

/* From now on the copier copies arrived batches with the turns `first` to `first` + FL_COPY_AHEAD -
 * 1; with -1 it copies batches in the order of arrival. */
void fl_copier_set_window(fl_copier *copier, int64_t first);

/* Returns how many more buffers the copier needs to copy FL_COPY_AHEAD batches. */
int32_t fl_copier_buffers_needed(fl_copier *copier);

/* Lends the copier a buffer, until fl_inflight_finish or reclaim_buffer gives the buffer back. Lend
 * no more than fl_copier_buffers_needed. */
void fl_copier_add_buffer(fl_copier *copier, const fl_dest_buffer *buffer);

/* Takes back an unused buffer that does not suit a batch of `bytes`: the buffer is too small, or
 * large and more than twice as large as needed. Returns false if there is no such buffer. */
bool fl_copier_reclaim_buffer(fl_copier *copier, int64_t bytes, fl_dest_buffer *out);

#endif
