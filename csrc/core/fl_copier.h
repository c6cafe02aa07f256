/* fl_copier: batches of worker processes, carried to where they are wanted while their consumer
 * computes.
 *
 * Floor 1. Stands between the consumer and the ring of fl_shm_queue: requests are sent and replies
 * taken through it. A thread of its own watches for replies, and has batches carried from their
 * slots to blocks of memory that the consumer has lent it, in the order in which they are going to
 * be taken. What it has not come to is the consumer's to do. docs/cuda.md draws the states and who
 * waits for whom.
 *
 * Every call belongs to one consumer thread at a time. In a forked child stop, close, recall and
 * claim are inert, and the others are not to be called. */
#ifndef FL_COPIER_H
#define FL_COPIER_H

#include "fl_shm_queue.h"
#include "fl_pool.h"

/* Batches that are carried ahead of the consumer, here and where threads fill them: the copy of one
 * runs during the consumer's step, that of the other is queued behind it. No more of them than take
 * so many bytes, but always one. */
enum { FL_COPY_AHEAD = 2, FL_COPY_AHEAD_BYTES = 512 << 20 };

/* How many batches of so many bytes that is. */
static inline int32_t fl_copy_ahead(int64_t bytes)
{
    int64_t fitting = FL_COPY_AHEAD_BYTES / fl_max(bytes, 1);
    return (int32_t)fl_min(FL_COPY_AHEAD, fl_max(fitting, 1));
}

typedef struct fl_copier fl_copier;
typedef struct fl_transfer fl_transfer; /* a request, and then its batch */

/* A block of memory that a batch can be carried to, or has been. */
typedef struct fl_dest_buffer {
    void *target; /* what `carry` takes the block for */
    void *owner;  /* these two are the consumer's own */
    void *stream;
    int64_t bytes;
    int64_t carried; /* of these, once a batch is there */
} fl_dest_buffer;

/* Carries the first `bytes` of a slot to a block of at least as many, or begins to, or leaves to
 * whoever claims the batch what may yet be done. Called by the courier's thread, for as long as it
 * takes. After a failure nothing has begun; the consumer, who tries again, meets the reason. */
typedef int fl_copy_fn(const fl_dest_buffer *berth, fl_slot *slot, int64_t bytes, fl_err *err);

/* Over a ring of so many workers and such depth, borrowed until close, to which nothing has been
 * sent. FL_OK, FL_ENOMEM, FL_ETHREAD. */
int fl_copier_open(fl_shm_queue *shm, int32_t workers, int32_t depth, fl_copy_fn *carry,
                   fl_copier **out, fl_err *err);

/* Ends the thread, once, with what it carries: nothing is carried any more. */
void fl_copier_stop(fl_copier *courier);

/* Stops. Every errand has been claimed, and every berth recalled. NULL is fine. */
void fl_copier_close(fl_copier *courier);

/* As fl_shm_queue_send_request, for a batch that is built in `slot` and is the `turn`-th to be
 * taken; -1: not to be carried. The slot is borrowed until the errand is claimed. FL_OK;
 * FL_ETIMEOUT: no room in the queue now; FL_ENOMEM. */
int fl_copier_submit(fl_copier *courier, int32_t worker, fl_request_message *request, fl_slot *slot,
                     int64_t turn, fl_transfer **out, fl_err *err);

/* As fl_shm_queue_receive_reply. */
int fl_copier_receive(fl_copier *courier, fl_reply_message *out);

/* From now on batches from the `first` turn to FL_COPY_AHEAD - 1 later are carried when they are
 * there; with -1 those that are there first. */
void fl_copier_set_window(fl_copier *courier, int64_t first);

/* How many berths are missing for that. */
int32_t fl_copier_buffers_needed(fl_copier *courier);

/* Lends it a berth, until claim or recall gives it back; not more than it wants. */
void fl_copier_add_buffer(fl_copier *courier, const fl_dest_buffer *berth);

/* Takes back a berth, not in use, that does not suit a batch of `bytes`: it is too small, or more
 * than twice as large and not small at all. False: there is none. */
bool fl_copier_reclaim_buffer(fl_copier *courier, int64_t bytes, fl_dest_buffer *out);

/* Ends the errand, waiting if it is being run: nobody else looks at the slot any more, but for what
 * `carry` has begun. True: out->carried bytes of it have been carried to *out. These were what its
 * reply asked for then: the consumer compares, because a worker may have changed that since. */
bool fl_copier_finish(fl_copier *courier, fl_transfer *errand, fl_dest_buffer *out);

#endif
