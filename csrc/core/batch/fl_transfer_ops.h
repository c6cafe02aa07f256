/* fl_transfer_ops: the table of functions that a device fills for transfers. A transfer copies one
 * batch from the slot that was filled to a buffer of device memory.
 *
 * Floor 1. csrc/cuda fills fl_cuda_transfer_ops; csrc/cpu fills fl_cpu_transfer_ops, whose buffers
 * are host memory. csrc/python chooses the table and passes it in. docs/internals/cuda.md draws the
 * states of a transfer and says who waits for whom.
 *
 * Transfers belong to a copy stream, which runs copies one after another. A `stream` is the queue
 * for the consumer's work: with CUDA a cudaStream_t, which may be NULL; with host memory NULL.
 *
 * Any thread that fills or copies the batch may call part_filled, start and copy; one consumer
 * thread at a time calls the remaining functions of a copy stream and its transfers. In a forked
 * child every call does nothing or fails with FL_EFORK. */
#ifndef FL_TRANSFER_OPS_H
#define FL_TRANSFER_OPS_H

#include "fl_pool.h"

enum { FL_CAST_CHANNELS = 4, FL_CAST_CYCLE = 1 << 30 };

typedef enum fl_cast_kind {
    FL_CAST_LOOK_UP, /* element i is tables[(i / plane) % channels][byte i] */
    FL_CAST_WIDEN,   /* element i is integer i / row * pitch + i % row, in more bytes */
    FL_CAST_IMAGES   /* elements are made from images as `images` says */
} fl_cast_kind;

typedef struct fl_image_batch fl_image_batch; /* see fl_image_ops.h */
typedef struct fl_map_batch fl_map_batch;     /* see fl_map_axis.h */

/* Elements of a batch that travel as shorter elements, at `from`, and are made at `to`, at their
 * destination. Both offsets are bytes from the beginning of the buffer. `to` is a multiple of 16;
 * `from` is a multiple of 16 or, for integers, of their size. */
typedef struct fl_transfer_cast {
    fl_cast_kind kind;
    int32_t bytes; /* of a result: 2 or 4 from a table; 4 or 8 from an integer; 1, 2 or 4 from an
                      image */
    int64_t from, to;
    int64_t count; /* elements to make */

    /* FL_CAST_LOOK_UP */
    int64_t plane; /* this many elements in a row belong to one channel: 1 if channels alternate */
    int32_t channels;   /* 1 to FL_CAST_CHANNELS; channels * plane is at most FL_CAST_CYCLE */
    const void *tables; /* borrowed: [channels][256] elements */

    /* FL_CAST_WIDEN */
    int32_t from_bytes; /* bytes of an integer that travels: 1, 2 or 4, and fewer than `bytes` */
    bool is_signed;
    int64_t row, pitch; /* of every `pitch` <= INT32_MAX integers the first `row` are taken */

    /* FL_CAST_IMAGES */
    const fl_image_batch *images; /* borrowed; addresses are NULL: images lie in the buffer */
    int64_t maps, values;         /* bytes after `from`, multiples of 8 */
    int64_t image_bytes;          /* from one image to the next, at `from` */
    int64_t image_count;
    /* If the destination draws the maps: borrowed, without addresses. At `maps` then lie the row of
     * each image, an int64_t, and its view, a byte, if they have views; at `values` the operations
     * come before the values. NULL: the maps travel. */
    const fl_map_batch *draws;
    uint32_t epoch;
    bool has_views;
    int64_t drawn, drawn_bytes; /* of the maps: bytes from the beginning of the buffer, like `to` */
} fl_transfer_cast;

/* A batch that is smaller than a slice is copied as a whole, because smaller slices take the
 * link longer. On an H200 slices of 4 MiB reached 97 % of the speed of one copy, slices of 1 MiB
 * 88 %. */
enum { FL_SLICE_BYTES = 4 << 20, FL_MOST_SLICES = 16 };

/* Samples of a batch that are copied in slices, each slice once it is filled. Part p of n fills
 * samples samples * p / n to samples * (p + 1) / n; parts n * s / count to n * (s + 1) / count fill
 * slice s of `count`. */
typedef struct fl_transfer_slices {
    int32_t count; /* at most FL_MOST_SLICES and the parts of the batch; 0: no slices */
    int64_t samples;
    int64_t sample_bytes; /* samples lie side by side */
    int64_t from;         /* byte of the batch at which the samples begin */
} fl_transfer_slices;

typedef struct fl_transfer_ops {
    /* The pinner for fl_pool_pin. Memory is pinned for copies to any device. NULL if buffers are
     * host memory. */
    int (*pin)(int32_t device, char *data, int64_t bytes, fl_err *err);
    void (*unpin)(int32_t device, char *data);

    /* ---- a copy stream */

    /* Opens a copy stream; the caller closes *out. FL_OK, FL_ENOMEM, FL_EDEVICE. */
    int (*open)(int32_t device, void **out, fl_err *err);

    /* SYNC. Waits for the copies that have been started. Any thread. */
    void (*await)(void *copy_stream);

    /* SYNC. Starts no copy until the next `get`, and waits for copies that have been started: on
     * return every slot and buffer may be freed, and the slots of finished transfers have gone back
     * to their pool. */
    void (*halt)(void *copy_stream);

    /* SYNC. Halts, and frees the copy stream. Every transfer must have been finished, abandoned or
     * cancelled. NULL is fine. */
    void (*close)(void *copy_stream);

    /* Gives the slots of finished transfers back to their pool, if their copies are over. Returns
     * the number of bytes that the remaining copies still read. NULL: the copy of a finished
     * transfer is over. */
    int64_t (*collect)(void *copy_stream);

    /* ---- a transfer */

    /* Gets a transfer for a batch of `parts` parts. The transfer is the caller's until it is
     * finished, abandoned or cancelled. Collects first. FL_ENOMEM. */
    int (*get)(void *copy_stream, int32_t parts, void **out, fl_err *err);

    /* Sets the casts to make once the batch is copied, before any stream that waits for the copy
     * goes on. Call this before set_buffer. `casts` and their tables are borrowed until the
     * transfer is finished, abandoned or cancelled. The buffer has room for all results. NULL if
     * buffers are host memory, whose batches the host casts. */
    void (*set_casts)(void *transfer, const fl_transfer_cast *casts, int32_t count);

    /* Sets slices that may be copied before the batch is filled. Call this before the batch is
     * submitted. A slice is copied early only if the buffer is set and the slot pinned by then.
     * NULL: a batch is copied as a whole. */
    void (*set_slices)(void *transfer, const fl_transfer_slices *slices);

    /* Sets the buffer that the batch goes to. `buffer` is borrowed until `stream` waits for the
     * copy, or until the transfer is cancelled; the copy begins after the work that is queued on
     * `stream` now. *is_filled: all parts were reported before this call, so the caller calls
     * start, or has start called. FL_ENOMEM, FL_EDEVICE: nothing has changed. */
    int (*set_buffer)(void *transfer, void *buffer, void *stream, bool *is_filled, fl_err *err);

    /* Returns true if the copy has been started. The consumer must have received the batch. */
    bool (*is_started)(const void *transfer);

    /* Reports that this part of the batch, in the first `bytes` of the slot, is filled. If the
     * buffer is set, the last part of a slice queues the slice's copy, and the last part of the
     * batch starts the copy of the rest. If starting fails here, finish tries again and returns the
     * error. */
    void (*part_filled)(void *transfer, int32_t part, fl_slot *slot, int64_t bytes);

    /* Pins the slot (fl_slot_pin), which may take long, and starts the copy of a filled batch whose
     * buffer is set. After FL_ENOMEM, FL_EDEVICE, FL_ECLOSED (halted) start may be called again. */
    int (*start)(void *transfer, fl_slot *slot, int64_t bytes, fl_err *err);

    /* Copies a batch of one part, whose buffer is set: pins the slot, which may take long, then
     * does the same as part_filled. Only pinning can fail, and then nothing has begun. */
    int (*copy)(void *transfer, fl_slot *slot, int64_t bytes, fl_err *err);

    /* Makes `stream` wait for the copy of a filled batch whose buffer is set. If the copy has not
     * been started, starts it first. Takes the transfer and the slot. After FL_ENOMEM, FL_EDEVICE,
     * FL_ECLOSED (halted) both are still the caller's, and the caller may try again. */
    int (*finish)(void *transfer, fl_slot *slot, int64_t bytes, void *stream, fl_err *err);

    /* Gives back a transfer and the slot of a filled batch that nobody wants. If the copy has been
     * started, `stream`, on which the buffer was set, waits for the copy, so that the buffer may be
     * used again on that stream. SYNC if the stream cannot wait, or if starting the copy has
     * failed. */
    void (*abandon)(void *transfer, fl_slot *slot, void *stream);

    /* Gives back a transfer that will not be finished. Call this while no part is being filled and
     * some part is still unfilled, or once the copy stream is halted. SYNC if slices have been
     * queued: on return slot and buffer may be used again. */
    void (*cancel)(void *transfer);
} fl_transfer_ops;

/* Fails with FL_EFORK: a copy stream or a transfer is used in a forked child. */
static inline int fl_transfer_fail_foreign(fl_err *err)
{
    return fl_fail(err, FL_EFORK, "this upload belongs to a parent process");
}

/* A destination buffer: memory that a batch can be copied to, or has been copied to. */
typedef struct fl_dest_buffer {
    const fl_transfer_ops *ops; /* borrowed: the functions of the transfer */
    void *target;               /* the transfer that the buffer is set on */
    void *owner;                /* keeps the memory alive: the consumer's own, like the stream */
    void *stream;
    int64_t bytes;
    int64_t copied; /* bytes copied, once a batch is there */
} fl_dest_buffer;

/* Limits on batches that are copied before the consumer asks for them: the first batch is copied
 * during the consumer's step, the copy of the second is queued. The copies together take no more
 * than FL_COPY_AHEAD_BYTES, but one batch is always copied. */
enum { FL_COPY_AHEAD = 2, FL_COPY_AHEAD_BYTES = 512 << 20 };

/* Returns how many batches of `bytes` to copy ahead. */
static inline int32_t fl_copy_ahead(int64_t bytes)
{
    int64_t fitting = FL_COPY_AHEAD_BYTES / fl_max(bytes, 1);
    return (int32_t)fl_min(FL_COPY_AHEAD, fl_max(fitting, 1));
}

#endif
