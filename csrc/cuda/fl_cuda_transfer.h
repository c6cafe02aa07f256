/* fl_cuda_transfer: batches on their way to a device, copied while their consumer computes.
 *
 * Floor 2. A stage has a stream of its own, on which a batch is copied, whole, from the pinned slot
 * it was filled in to a block of device memory that the caller provides. docs/cuda.md draws the
 * states and who waits for whom.
 *
 * get, aim, take, abandon, drop, collect, halt and close belong to one consumer thread at a time;
 * parts are reported by the threads that fill, or by a courier. In a forked child every call is
 * inert or FL_EFORK. */
#ifndef FL_CUDA_TRANSFER_H
#define FL_CUDA_TRANSFER_H

#include "fl_copier.h"
#include "fl_ring.h"

/* For fl_pool_pin. Memory is pinned for copies to any device, through the context of this one. */
int fl_cuda_pin(int32_t device, char *data, int64_t bytes, fl_err *err);
void fl_cuda_unpin(int32_t device, char *data);

typedef struct fl_cuda_copy_stream fl_cuda_copy_stream;
typedef struct fl_cuda_transfer fl_cuda_transfer;

/* FL_OK, FL_ENOMEM, FL_EDEVICE. The caller closes it. */
int fl_cuda_copy_stream_open(int32_t device, fl_cuda_copy_stream **out, fl_err *err);

/* SYNC. Waits for the copies that are queued. Any thread. */
void fl_cuda_copy_stream_await(fl_cuda_copy_stream *stage);

/* SYNC. Queues no copy until the next fl_cuda_transfer_get, and waits for those that are queued:
 * when it returns every slot and block may go, and the slots of taken uploads have. */
void fl_cuda_copy_stream_halt(fl_cuda_copy_stream *stage);

/* SYNC: halts. Every upload has been taken or dropped. NULL is fine. */
void fl_cuda_copy_stream_close(fl_cuda_copy_stream *stage);

/* Slots of taken uploads whose copies are over go back to their pool. How many bytes the others
 * still read. */
int64_t fl_cuda_copy_stream_collect(fl_cuda_copy_stream *stage);

/* An upload for a batch of `parts` parts, the caller's until it is taken or dropped; FL_ENOMEM.
 * Collects first. */
int fl_cuda_transfer_get(fl_cuda_copy_stream *stage, int32_t parts, fl_cuda_transfer **out,
                         fl_err *err);

/* Where the batch goes: `block`, borrowed until the upload is dropped or `stream` waits for the
 * copy, which begins after what is queued on `stream` now. A device's stream may be NULL.
 * *is_filled: all parts have been reported before, so the caller is to send the batch, or have it
 * sent. FL_ENOMEM, FL_EDEVICE: nothing has changed. */
int fl_cuda_transfer_aim(fl_cuda_transfer *upload, void *block, void *stream, bool *is_filled,
                         fl_err *err);

bool fl_cuda_transfer_is_aimed(const fl_cuda_transfer *upload);

/* Whether its copy is queued; of a batch taken from its ring. */
bool fl_cuda_transfer_is_queued(const fl_cuda_transfer *upload);

/* One more part of the batch is filled. The last one sends the batch if the upload is aimed; what
 * fails is left to fl_cuda_transfer_take. The filling threads. */
void fl_cuda_transfer_part(void *upload, fl_slot *slot, int64_t bytes);

/* Pins the slot of a filled batch, which may take long (fl_slot_pin), and queues the copy. Whoever
 * was last: a filling thread, or the one that aimed. After FL_ENOMEM, FL_EDEVICE, FL_ECLOSED the
 * batch may be sent again. */
int fl_cuda_transfer_send(void *upload, fl_slot *slot, int64_t bytes, fl_err *err);

/* The same for a courier: of a batch of one part, in a slot of an arena, which is pinned first; as
 * fl_slot_pin. The berth's target is an aimed upload. */
int fl_cuda_transfer_carry(const fl_dest_buffer *berth, fl_slot *slot, int64_t bytes, fl_err *err);

/* Makes `stream` wait for the copy of the batch, which is filled and whose upload is aimed; sends
 * it first if its copy is not queued. The upload and the batch's slot are then the stage's. After
 * FL_ENOMEM, FL_EDEVICE, or FL_ECLOSED if it was halted, they are still the caller's, who may try
 * again. */
int fl_cuda_transfer_take(fl_cuda_transfer *upload, const fl_batch *batch, void *stream,
                          fl_err *err);

/* Gives back the upload and the slot of a filled batch that nobody wants: `stream`, which it was
 * aimed on, waits for the copy if one is queued, so that the block may serve there again. SYNC if
 * it cannot, or if queueing the copy has failed. */
void fl_cuda_transfer_abandon(fl_cuda_transfer *upload, const fl_batch *batch, void *stream);

/* Gives back an upload that will not be taken. Before its last part is filled, or halted. */
void fl_cuda_transfer_drop(fl_cuda_transfer *upload);

#endif
