/* fl_transfer_ops: the table of functions that a device fills for transfers. A transfer copies one
 * batch from the slot it was filled in to a buffer of device memory.
 *
 * Floor 1. csrc/cuda fills fl_cuda_transfer_ops; csrc/cpu fills fl_cpu_transfer_ops, whose buffers
 * are host memory. csrc/python chooses the table and passes it in. docs/internals/cuda.md draws the
 * states of a transfer and says who waits for whom.
 *
 * Transfers belong to a copy stream, which runs copies one after another. A `stream` is where the
 * consumer's work is queued: of CUDA, a cudaStream_t, which may be NULL; of host memory, NULL.
 *
 * part_filled, start and copy are called by whichever thread fills the batch or copies it; the
 * other functions of a copy stream and of its transfers by one consumer thread at a time. In a
 * forked child every call does nothing or fails with FL_EFORK. */
#ifndef FL_TRANSFER_OPS_H
#define FL_TRANSFER_OPS_H

#include "fl_pool.h"

enum { FL_CAST_CHANNELS = 4, FL_CAST_CYCLE = 1 << 30 };

typedef enum fl_cast_kind {
    FL_CAST_LOOK_UP, /* element i is tables[(i / plane) % channels][byte i] */
    FL_CAST_WIDEN,   /* element i is integer i / row * pitch + i % row, wider */
    FL_CAST_IMAGES   /* elements are what `images` makes of images */
} fl_cast_kind;

typedef struct fl_image_batch fl_image_batch; /* of fl_image_ops.h */

/* Elements of a batch that travel as shorter ones, at `from`, and are made at `to`, at their
 * destination. Both are bytes of the buffer, counted from its beginning; `to` is a multiple of 16,
 * and `from` one of 16 or, of integers, of their size. */
typedef struct fl_transfer_cast {
    fl_cast_kind kind;
    int32_t bytes; /* of an element that is made: 2 or 4 by a table; 4 or 8 of an integer; 1, 2 or 4
                      of an image */
    int64_t from, to;
    int64_t count; /* elements that are made */

    /* FL_CAST_LOOK_UP */
    int64_t plane;      /* so many in a row are of one channel: 1 where channels alternate */
    int32_t channels;   /* 1 to FL_CAST_CHANNELS; channels * plane is at most FL_CAST_CYCLE */
    const void *tables; /* borrowed: [channels][256] elements */

    /* FL_CAST_WIDEN */
    int32_t from_bytes; /* of an integer: 1, 2 or 4, and fewer than `bytes` */
    bool is_signed;
    int64_t row, pitch; /* of so many in a row, at most INT32_MAX, the first `row` are taken */

    /* FL_CAST_IMAGES */
    const fl_image_batch *images; /* borrowed; its addresses are NULL, and lie in the buffer: */
    int64_t maps, values;         /* bytes behind `from`, multiples of 4 */
    int64_t image_bytes;          /* of an image at `from` */
    int64_t image_count;
} fl_transfer_cast;

/* A batch of less is copied as a whole: smaller slices take the link longer. On an H200 those of 4
 * MiB reached 97 % of one copy, those of 1 MiB 88 %. */
enum { FL_SLICE_BYTES = 4 << 20, FL_MOST_SLICES = 16 };

/* Samples of a batch that are copied in slices, each once it is filled. Part p of n fills
 * samples samples * p / n to samples * (p + 1) / n; slice s of `count` is what parts n * s / count
 * to n * (s + 1) / count fill. */
typedef struct fl_transfer_slices {
    int32_t count; /* at most FL_MOST_SLICES and the parts of the batch; 0: none */
    int64_t samples;
    int64_t sample_bytes; /* one behind another */
    int64_t from;         /* from this byte of the batch on */
} fl_transfer_slices;

typedef struct fl_transfer_ops {
    /* For fl_pool_pin. Memory is pinned for copies to any device. */
    int (*pin)(int32_t device, char *data, int64_t bytes, fl_err *err);
    void (*unpin)(int32_t device, char *data);

    /* ---- a copy stream */

    /* FL_OK, FL_ENOMEM, FL_EDEVICE. The caller closes it. */
    int (*open)(int32_t device, void **out, fl_err *err);

    /* SYNC. Waits for the copies that have been started. Any thread. */
    void (*await)(void *copy_stream);

    /* SYNC. Starts no copy until the next `get`, and waits for those that have been started: when
     * it returns, every slot and buffer may be freed, and the slots of finished transfers have gone
     * back to their pool. */
    void (*halt)(void *copy_stream);

    /* SYNC: halts. Every transfer has been finished, abandoned or cancelled. NULL is fine. */
    void (*close)(void *copy_stream);

    /* Gives the slots of finished transfers whose copies are over back to their pool. Returns the
     * number of bytes that the other copies still read. */
    int64_t (*collect)(void *copy_stream);

    /* ---- a transfer */

    /* A transfer for a batch of `parts` parts, the caller's until it is finished, abandoned or
     * cancelled. FL_ENOMEM. Collects first. */
    int (*get)(void *copy_stream, int32_t parts, void **out, fl_err *err);

    /* Of a transfer whose buffer is not set: what is cast once the batch is copied, before any
     * stream that waits for the copy goes on. `casts` and their tables are borrowed until the
     * transfer is finished, abandoned or cancelled. The buffer is as large as they say. */
    void (*set_casts)(void *transfer, const fl_transfer_cast *casts, int32_t count);

    /* Of a transfer whose batch is not submitted yet: slices that may be copied before the batch is
     * filled. They are, where the buffer is set and the slot pinned by then. */
    void (*set_slices)(void *transfer, const fl_transfer_slices *slices);

    /* Sets where the batch goes. `buffer` is borrowed until `stream` waits for the copy, or until
     * the transfer is cancelled; the copy begins after what is queued on `stream` now. *is_filled:
     * all parts were reported before, so the caller calls start, or has it called. FL_ENOMEM,
     * FL_EDEVICE: nothing has changed. */
    int (*set_buffer)(void *transfer, void *buffer, void *stream, bool *is_filled, fl_err *err);

    /* Whether the copy has been started. Of a batch that the consumer has received. */
    bool (*is_started)(const void *transfer);

    /* This part of the batch in the first `bytes` of the slot is filled. The last part of a slice
     * queues its copy, and the last of all starts the copy of the rest, if the buffer is set.
     * finish meets the reason of a failure. */
    void (*part_filled)(void *transfer, int32_t part, fl_slot *slot, int64_t bytes);

    /* Pins the slot (fl_slot_pin), which may take long, and starts the copy of a filled batch whose
     * buffer is set. After FL_ENOMEM, FL_EDEVICE, FL_ECLOSED (halted) it may be called again. */
    int (*start)(void *transfer, fl_slot *slot, int64_t bytes, fl_err *err);

    /* Copies a batch of one part, whose buffer is set: pins the slot, which may take long, then as
     * part_filled. After a failure (of pinning) nothing has begun. */
    int (*copy)(void *transfer, fl_slot *slot, int64_t bytes, fl_err *err);

    /* Makes `stream` wait for the copy of a filled batch whose buffer is set; starts it first if it
     * has not been. Takes the transfer and the slot. After FL_ENOMEM, FL_EDEVICE, FL_ECLOSED
     * (halted) they are still the caller's, who may try again. */
    int (*finish)(void *transfer, fl_slot *slot, int64_t bytes, void *stream, fl_err *err);

    /* Gives back a transfer and the slot of a filled batch that nobody wants. `stream`, which the
     * buffer was set on, waits for the copy if it has been started, so that the buffer may be used
     * again there. SYNC if it cannot, or if starting the copy has failed. */
    void (*abandon)(void *transfer, fl_slot *slot, void *stream);

    /* Gives back a transfer that will not be finished: while no part is being filled and not all
     * are, or once the copy stream is halted. SYNC where slices have been queued: when it returns,
     * slot and buffer may be used again. */
    void (*cancel)(void *transfer);
} fl_transfer_ops;

/* A destination buffer: memory that a batch can be copied to, or has been. */
typedef struct fl_dest_buffer {
    const fl_transfer_ops *ops; /* of the transfer; borrowed */
    void *target;               /* the transfer whose buffer it is set as */
    void *owner;                /* what keeps the memory alive: the consumer's own, as the stream */
    void *stream;
    int64_t bytes;
    int64_t copied; /* of these, once a batch is there */
} fl_dest_buffer;

/* How many batches are copied before the consumer asks for them: the copy of one runs during the
 * consumer's step, that of the other is queued behind it. No more of them than take so many bytes,
 * but always one. */
enum { FL_COPY_AHEAD = 2, FL_COPY_AHEAD_BYTES = 512 << 20 };

/* How many batches of so many bytes that is. */
static inline int32_t fl_copy_ahead(int64_t bytes)
{
    int64_t fitting = FL_COPY_AHEAD_BYTES / fl_max(bytes, 1);
    return (int32_t)fl_min(FL_COPY_AHEAD, fl_max(fitting, 1));
}

#endif
