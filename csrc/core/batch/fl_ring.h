/* fl_ring: batches in order, filled by threads.
 *
 * Floor 1. The consumer submits batches and receives them filled. In between, threads of the ring
 * fill the batches; in a ring that does not run ahead the consumer also fills parts. Hides threads,
 * order, wake-ups, errors and shutdown. docs/internals/threads.md draws the states and who waits
 * for whom.
 *
 * One consumer thread at a time calls prepare, submit, submit_sentinel, take_wakes, wake, receive,
 * submitted, add_part, reset, pending and end. Any thread may call stop until close. In a forked
 * child every call does nothing or fails with FL_EFORK. */
#ifndef FL_RING_H
#define FL_RING_H

#include "fl_batch.h"
#include "fl_transfer_ops.h"

typedef struct fl_ring fl_ring;

typedef struct fl_ring_config {
    fl_fill *fill;
    /* For batches with a transfer, else NULL: the ring calls part_filled after each filled part,
     * and start for the part that fl_ring_add_part adds. A failure of start does not fail the
     * batch: the receiver of the batch tries again. */
    const fl_transfer_ops *transfers;
    fl_pool *pool;   /* borrowed until close */
    int64_t depth;   /* most batches that are submitted and not yet received, >= 1 */
    int32_t threads; /* >= 0 */
    bool runs_ahead; /* true: the threads (>= 1) fill from the submission on. false: threads start
                        at the first batch of several parts, and help the consumer fill it */
    bool consumer_fills; /* in a ring that runs ahead: instead of waiting in receive, the consumer
                            fills parts that do not wait for a disk (layout.may_wait). In a ring
                            that does not run ahead, the consumer always fills */
    int64_t lazy_bytes;  /* for less work a thread is woken only when most of `depth` batches
                            are unfilled: waking a thread costs more than filling one such batch */
    bool is_in_order;    /* false: receive returns any filled batch, the oldest first */
} fl_ring_config;

/* Opens a ring; the caller closes *out. FL_OK, FL_ENOMEM. FL_ETHREAD comes only from a ring that
 * runs ahead, because a ring that does not run ahead works without threads. */
int fl_ring_open(const fl_ring_config *config, fl_ring **out, fl_err *err);

/* Returns true if an unused ring equals what fl_ring_open would make, and may be used again after
 * fl_ring_reset: the ring belongs to this process and is not stopped. */
bool fl_ring_fits(const fl_ring *ring, const fl_ring_config *config);

/* Returns the batch to be submitted next, empty; the caller sets its first group of fields. NULL if
 * `depth` batches are submitted. Borrowed until fl_ring_submit; receiving does not change the
 * batch. */
fl_batch *fl_ring_prepare(fl_ring *ring);

/* Submits the prepared batch: fill will be called `parts` >= 1 times. Fails as fl_pool_get does;
 * the batch then stays prepared, and may be submitted again. Does not block, and wakes nobody: call
 * fl_ring_wake afterwards, or wait in fl_ring_receive. */
int fl_ring_submit(fl_ring *ring, fl_err *err);

/* Submits a batch with nothing to fill. The batch is received in its turn: successfully if status
 * is FL_OK, else as a failed batch with *error. Never fails, does not block. */
void fl_ring_submit_sentinel(fl_ring *ring, int status, const fl_err *error, int64_t tag);

/* Returns how many threads fl_ring_wake should wake for the batches and parts submitted so far, and
 * counts on the caller to do so: at most two, because each wakes the next two. A wake-up is a
 * system call that may take 10 us, so call fl_ring_wake without an interpreter lock. */
int32_t fl_ring_take_wakes(fl_ring *ring);
void fl_ring_wake(fl_ring *ring, int32_t wakes);

/* Receives the next batch: its slot, READY, is then the caller's; its row list and its layout stay
 * valid until the next fl_ring_prepare. If the batch is not ready, the caller fills parts of
 * submitted batches and waits, for wait_ms or one part longer. With wait_ms 0 the caller fills
 * parts that no thread has begun, does not wait, and wakes nobody.
 *
 * FL_OK; FL_EEND: nothing is submitted; FL_ETIMEOUT: not yet; FL_ECLOSED: stopped; FL_EFORK. Any
 * other status is the batch's own error: *out names the batch, which is used up. If the failed
 * batch has a slot, the slot is the caller's: the caller cancels the transfer before returning the
 * slot, because slices may be being copied from the slot. */
int fl_ring_receive(fl_ring *ring, int64_t wait_ms, fl_batch *out, fl_err *err);

/* Returns true if fl_ring_receive would return a batch, or FL_EEND, at once. */
bool fl_ring_is_ready(fl_ring *ring);

/* Returns the submitted batch at this position, in order of number; NULL: fewer batches are
 * submitted. */
const fl_batch *fl_ring_submitted(const fl_ring *ring, int64_t position);

/* Adds a part to the submitted batch at this position. The batch has a transfer, and all its parts
 * have been begun. The added part starts the transfer, and the batch is ready once the transfer has
 * been started. Call this once for a batch. Does not block, and wakes nobody. */
void fl_ring_add_part(fl_ring *ring, int64_t position);

int64_t fl_ring_pending(const fl_ring *ring); /* submitted and not received */

/* Drops every submitted batch, waiting for parts that are being filled; numbers start again at
 * 0. */
void fl_ring_reset(fl_ring *ring);

/* Makes every receive from now on return FL_ECLOSED, also a receive that is waiting. Any thread. */
void fl_ring_stop(fl_ring *ring);

/* Waits for parts that are being filled, drops the submitted batches, returns their slots and joins
 * the threads. Afterwards only stop, end and close may be called; ending twice is fine. */
void fl_ring_end(fl_ring *ring);

/* Ends and frees the ring. NULL is fine. */
void fl_ring_close(fl_ring *ring);

#endif
