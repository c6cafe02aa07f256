/* fl_cuda_courier: batches of worker processes on their way to a device, copied while their
 * consumer computes.
 *
 * Floor 2. Stands between the consumer and the ring of fl_shm: requests are sent and replies taken
 * through it. A thread of its own watches for replies, and queues the copy of a batch from its slot
 * to a block that is ready for one, if the batch is soon to be taken. The consumer does what the
 * thread has not come to. docs/cuda.md draws the states and who waits for whom.
 *
 * Every call belongs to one consumer thread at a time. In a forked child stop, close, recall and
 * claim are inert, and the others are not to be called. */
#ifndef FL_CUDA_COURIER_H
#define FL_CUDA_COURIER_H

#include "fl_cuda_upload.h"
#include "fl_shm.h"

/* Batches that are copied ahead of the consumer. */
enum { FL_CUDA_AHEAD = 2 };

typedef struct fl_cuda_courier fl_cuda_courier;
typedef struct fl_cuda_errand fl_cuda_errand; /* a request, and then its batch */

/* A block of device memory that a batch can be copied to, or has been. */
typedef struct fl_cuda_block {
    fl_cuda_upload *upload; /* aimed at it */
    void *owner;            /* the consumer's own name for it */
    void *stream;           /* which the upload was aimed on */
    int64_t bytes;
} fl_cuda_block;

/* Over a ring of so many workers and such depth, borrowed until close, to which nothing has been
 * sent. Slots are those of a pool that pins, over an arena. FL_OK, FL_ENOMEM, FL_ETHREAD. */
int fl_cuda_courier_open(fl_shm *shm, int32_t workers, int32_t depth, fl_cuda_courier **out,
                         fl_err *err);

/* Ends the thread, once; what is left to do then is done by the other calls. */
void fl_cuda_courier_stop(fl_cuda_courier *courier);

/* Stops. Every errand has been claimed, and every block recalled. NULL is fine. */
void fl_cuda_courier_close(fl_cuda_courier *courier);

/* As fl_shm_send, for a batch that is built in `slot` and is the `turn`-th to be taken; -1: not for
 * the device. The slot is borrowed until the errand is claimed. FL_OK; FL_ETIMEOUT: no room in the
 * queue now; FL_ENOMEM. */
int fl_cuda_courier_send(fl_cuda_courier *courier, int32_t worker, fl_shm_request *request,
                         fl_slot *slot, int64_t turn, fl_cuda_errand **out, fl_err *err);

/* As fl_shm_take. */
bool fl_cuda_courier_take(fl_cuda_courier *courier, fl_shm_reply *out);

/* From now on batches from the `first` turn to FL_CUDA_AHEAD - 1 later are copied when they are
 * there; with -1 those that are there first. */
void fl_cuda_courier_expect(fl_cuda_courier *courier, int64_t first);

/* How many blocks are missing for that. */
int32_t fl_cuda_courier_wants(fl_cuda_courier *courier);

/* Lends it a block, until claim or recall gives it back; not more than it wants. */
void fl_cuda_courier_supply(fl_cuda_courier *courier, const fl_cuda_block *block);

/* Takes back a block of less than `bytes` that no copy is queued to; false: there is none. */
bool fl_cuda_courier_recall(fl_cuda_courier *courier, int64_t bytes, fl_cuda_block *out);

/* Ends the errand: nobody else looks at the slot any more, but for a copy if one is queued. True:
 * it is, or could not be, to *out, and fl_cuda_upload_take or _abandon is to follow. */
bool fl_cuda_courier_claim(fl_cuda_courier *courier, fl_cuda_errand *errand, fl_cuda_block *out);

#endif
