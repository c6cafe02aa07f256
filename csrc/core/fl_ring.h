/* fl_ring: batches in order, filled by threads.
 *
 * Floor 1. The consumer posts batches and takes them back filled; threads of the ring, and in a
 * ring that does not run ahead the consumer himself, copy their parts in between. Hides threads,
 * order, wake-ups, errors and shutdown. docs/threads.md draws the states and who waits for whom.
 *
 * rows, post, post_mark, take, posted, add_part, reset and pending belong to one consumer thread at
 * a time; stop may come from any thread. In a forked child every call is inert or FL_EFORK. */
#ifndef FL_RING_H
#define FL_RING_H

#include "fl_plan.h"
#include "fl_pool.h"

typedef struct fl_ring fl_ring;

/* A batch on its way. Between post and take its fields are read-only. */
typedef struct fl_batch {
    fl_slot *slot;  /* NULL for a mark; else owned by the ring until fl_ring_receive returns it */
    fl_rows rows;   /* owned by the ring */
    int64_t bytes;  /* how much of the slot is asked for */
    int64_t number; /* counted from 0 at open and at reset */
    int64_t tag;    /* the poster's own */
    int32_t parts;  /* how often fill is called; 0: nothing to fill */
} fl_batch;

/* Fills part `part` of batch->parts into fl_slot_data(batch->slot). Called from ring threads and
 * the consumer, parts in any order and at once; part batch->parts is the one that
 * fl_ring_add_part added. */
typedef int fl_fill(void *context, const fl_batch *batch, int32_t part, fl_err *err);

typedef struct fl_ring_config {
    fl_fill *fill;
    void *context;   /* borrowed until close; fill's first argument */
    fl_pool *pool;   /* borrowed until close */
    int64_t depth;   /* most batches posted and not yet taken, >= 1 */
    int32_t threads; /* >= 0 */
    bool runs_ahead; /* true: the threads (>= 1) fill from the post on. false: they are started at
                        the first batch of several parts and help the consumer with those */
    bool consumer_fills; /* of a ring that runs ahead: the consumer fills in take rather than wait;
                            in the other he always does */
    int64_t lazy_bytes;  /* for batches smaller than this a thread is woken only when most of
                            `depth` are unfilled: waking costs more than filling one */
    bool is_in_order;    /* false: take returns any filled batch, the oldest first */
} fl_ring_config;

/* FL_OK, FL_ENOMEM. FL_ETHREAD only from a ring that runs ahead: the other does without. */
int fl_ring_open(const fl_ring_config *config, fl_ring **out, fl_err *err);

/* The row list of the batch to be posted next, emptied; NULL when `depth` batches are posted.
 * Valid until that post, whatever is taken meanwhile. */
fl_rows *fl_ring_rows(fl_ring *ring);

/* Posts it: fill will be called `parts` >= 1 times with a slot of at least `bytes`. On failure
 * (that of fl_pool_get) nothing is posted. Does not block. */
int fl_ring_submit(fl_ring *ring, int64_t bytes, int32_t parts, int64_t tag, fl_err *err);

/* Posts a batch with nothing to fill, to be met in its place: without a slot if status is FL_OK,
 * else as a failed batch with *error. Never fails, does not block. */
void fl_ring_submit_sentinel(fl_ring *ring, int status, const fl_err *error, int64_t tag);

/* Takes the next batch: its slot, READY, is then the caller's, its row list stands until the next
 * fl_ring_rows. If it is not
 * ready, fills parts of it or others and waits for wait_ms, or one part longer; with 0, fills what
 * nobody else has begun and does not wait. FL_OK; FL_EEND: nothing is posted; FL_ETIMEOUT:
 * not yet; FL_ECLOSED: stopped; FL_EFORK; otherwise the batch's own error, and the batch, which
 * *out names without a slot, is used up. */
int fl_ring_receive(fl_ring *ring, int64_t wait_ms, fl_batch *out, fl_err *err);

bool fl_ring_is_ready(fl_ring *ring); /* take would return a batch, or FL_EEND, at once */

/* The batch in this place of those posted, in order of number; NULL: there are not so many. */
const fl_batch *fl_ring_submitted(const fl_ring *ring, int64_t place);

/* All parts of that batch have been handed out, and begun to be filled: it gets one part more, and
 * is ready when that is filled, too. Once for a batch. Does not block. */
void fl_ring_add_part(fl_ring *ring, int64_t place);

int64_t fl_ring_pending(const fl_ring *ring); /* posted and not taken */

/* Drops what is posted, waiting for parts being copied; numbers start again at 0. */
void fl_ring_reset(fl_ring *ring);

/* Makes every take from now on return FL_ECLOSED, also one that waits. Any thread. */
void fl_ring_stop(fl_ring *ring);

/* Stops, waits for parts being copied, joins the threads, returns the slots. NULL is fine. */
void fl_ring_close(fl_ring *ring);

#endif
