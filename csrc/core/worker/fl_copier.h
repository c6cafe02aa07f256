/* fl_copier: copies batches of worker processes to their destination ahead of the consumer.
 *
 * Floor 1. A thread over the requests of an fl_inflight. It looks at replies without taking them,
 * and copies batches from their slots to buffers that the consumer has lent it, in the order in
 * which the consumer is going to take them. A batch that it has not begun when the consumer wants
 * it (fl_inflight_finish) is left to the consumer. docs/internals/cuda.md draws the states.
 *
 * The mutex of the table's fl_sent guards its window and buffers, too. Nothing is copied with it
 * held. Every call belongs to one consumer thread at a time. In a forked child stop, close and
 * reclaim_buffer do nothing, and the others are not to be called. */
#ifndef FL_COPIER_H
#define FL_COPIER_H

#include "fl_inflight.h"

typedef struct fl_copier fl_copier;

/* Copies the first `bytes` of a slot to a buffer of at least as many, or begins to, or leaves to
 * the one that finishes the request what remains to be done. Called by the copier's thread, for as
 * long as it takes. After a failure nothing has begun; the consumer, who tries again, meets the
 * reason.
 */
typedef int fl_copy_fn(const fl_dest_buffer *buffer, fl_slot *slot, int64_t bytes, fl_err *err);

/* Over a table with has_destination, borrowed until close. FL_OK, FL_ENOMEM, FL_ETHREAD. */
int fl_copier_open(fl_inflight *table, fl_copy_fn *copy, fl_copier **out, fl_err *err);

/* Ends the thread, once; waits for the copy that runs. Nothing is copied any more. */
void fl_copier_stop(fl_copier *copier);

/* Stops. Every buffer has been reclaimed or is with a request. NULL is fine. */
void fl_copier_close(fl_copier *copier);

/* From now on batches from the `first` turn to FL_COPY_AHEAD - 1 later are copied when they have
 * arrived; with -1 those that arrived first. */
void fl_copier_set_window(fl_copier *copier, int64_t first);

/* How many buffers are missing for that. */
int32_t fl_copier_buffers_needed(fl_copier *copier);

/* Lends it a buffer, until fl_inflight_finish or reclaim_buffer gives it back; not more than it
 * needs. */
void fl_copier_add_buffer(fl_copier *copier, const fl_dest_buffer *buffer);

/* Takes back a buffer, not in use, that does not suit a batch of `bytes`: it is too small, or more
 * than twice as large and not small at all. False: there is none. */
bool fl_copier_reclaim_buffer(fl_copier *copier, int64_t bytes, fl_dest_buffer *out);

#endif
