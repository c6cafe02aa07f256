/* fl_ring: batches in order, filled by threads.
 *
 * Floor 1. The consumer submits batches and receives them filled. Threads of the ring fill them in
 * between; in a ring that does not run ahead the consumer fills them too. Hides threads, order,
 * wake-ups, errors and shutdown. docs/internals/threads.md draws the states and who waits for whom.
 *
 * One consumer thread at a time calls prepare, submit, submit_sentinel, receive, submitted,
 * add_part, reset, pending and end. Any thread may call stop until close. In a forked child every
 * call does nothing or fails with FL_EFORK. */
#ifndef FL_RING_H
#define FL_RING_H

#include "fl_batch.h"
#include "fl_transfer_ops.h"

typedef struct fl_ring fl_ring;

typedef struct fl_ring_config {
    fl_fill *fill;
    /* Of batches with a transfer, else NULL: the ring calls part_filled after each part that was
     * filled, and start for the part that fl_ring_add_part adds. A failure of start is not the
     * batch's: the receiver of the batch tries again. */
    const fl_transfer_ops *transfers;
    fl_pool *pool;       /* borrowed until close */
    int64_t depth;       /* most batches submitted and not yet received, >= 1 */
    int32_t threads;     /* >= 0 */
    bool runs_ahead;     /* true: the threads (>= 1) fill from the submission on. false: they are
                            started at the first batch of several parts, and help the consumer with
                            those */
    bool consumer_fills; /* of a ring that runs ahead: the consumer fills in receive what does not
                            wait for a disk (layout.may_wait), instead of waiting; in a ring
                            that does not, it always fills */
    int64_t lazy_bytes;  /* for batches of less work a thread is woken only when most of `depth` are
                            unfilled: waking costs more than filling one */
    bool is_in_order;    /* false: receive returns any filled batch, the oldest first */
} fl_ring_config;

/* FL_OK, FL_ENOMEM. FL_ETHREAD only from a ring that runs ahead: the other does without threads. */
int fl_ring_open(const fl_ring_config *config, fl_ring **out, fl_err *err);

/* Whether a ring that nobody uses is what fl_ring_open would make, and may be used again after
 * fl_ring_reset: of this process, and not stopped. */
bool fl_ring_fits(const fl_ring *ring, const fl_ring_config *config);

/* The batch to be submitted next, empty; the caller sets its first group of fields. NULL when
 * `depth` batches are submitted. Borrowed until fl_ring_submit; receiving does not change it. */
fl_batch *fl_ring_prepare(fl_ring *ring);

/* Submits the prepared batch: fill will be called `parts` >= 1 times. On failure (that of
 * fl_pool_get) the batch stays prepared, and may be submitted again. Does not block. */
int fl_ring_submit(fl_ring *ring, fl_err *err);

/* Submits a batch with nothing to fill, which is received in its place: successfully if status is
 * FL_OK, else as a failed batch with *error. Never fails, does not block. */
void fl_ring_submit_sentinel(fl_ring *ring, int status, const fl_err *error, int64_t tag);

/* Receives the next batch: its slot, READY, is then the caller's; its row list and its layout stay
 * valid until the next fl_ring_prepare. If the batch is not ready, the caller fills parts of this
 * or of other batches and waits, for wait_ms or one part longer; with wait_ms 0 it fills what
 * nobody else has begun and does not wait. FL_OK; FL_EEND: nothing is submitted; FL_ETIMEOUT: not
 * yet; FL_ECLOSED: stopped; FL_EFORK; otherwise the batch's own error: *out names the batch, which
 * is used up. Its slot, if it has one, is the caller's, who cancels the transfer before returning
 * the slot: slices may be copied from it. */
int fl_ring_receive(fl_ring *ring, int64_t wait_ms, fl_batch *out, fl_err *err);

/* Whether fl_ring_receive would return a batch, or FL_EEND, at once. */
bool fl_ring_is_ready(fl_ring *ring);

/* The submitted batch at this position, in order of number; NULL: there are not so many. */
const fl_batch *fl_ring_submitted(const fl_ring *ring, int64_t position);

/* Adds a part to that batch, which has a transfer and whose other parts have all been begun: the
 * part starts the transfer, and the batch is ready when that is over, too. Once for a batch. Does
 * not block. */
void fl_ring_add_part(fl_ring *ring, int64_t position);

int64_t fl_ring_pending(const fl_ring *ring); /* submitted and not received */

/* Drops what is submitted, waiting for parts that are being filled; numbers start again at 0. */
void fl_ring_reset(fl_ring *ring);

/* Makes every receive from now on return FL_ECLOSED, also one that waits. Any thread. */
void fl_ring_stop(fl_ring *ring);

/* Stops, waits for parts that are being filled, joins the threads, returns the slots. After it only
 * stop, end and close may be called; twice is fine. */
void fl_ring_end(fl_ring *ring);

/* Ends and frees the ring. NULL is fine. */
void fl_ring_close(fl_ring *ring);

#endif
