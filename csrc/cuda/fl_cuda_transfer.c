/* fl_cuda_transfer: see fl_cuda_transfer.h.
 *
 * The ring passes a transfer from the consumer to the filling threads, and back; the ring's mutex
 * orders their writes to the transfer. The mutex of the copy stream keeps halt from interrupting
 * the start of a copy. */
#include "fl_cuda_transfer.h"

#include "fl_cuda.h"
#include "fl_cuda_cast.h"
#include "fl_cuda_gather.h"
#include "fl_cuda_images.h"
#include "fl_cuda_runtime.h"
#include "fl_cuda_widen.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

typedef struct cuda_copy_stream cuda_copy_stream;

typedef struct cuda_transfer {
    cuda_copy_stream *copies;   /* borrowed */
    struct cuda_transfer *next; /* consumer only: in the transfer's list */
    fl_slot *slot;              /* owned, once finished */
    /* Owned; NULL before the first set_buffer. Recorded on the consumer's stream when the buffer
     * may be written, on the copy stream when the buffer is written. */
    cudaEvent_t event;
    const fl_transfer_cast *casts; /* borrowed: [cast_count]; written like buffer */
    int32_t cast_count;
    _Atomic(void *) buffer;    /* borrowed; NULL: not set yet. Stored after its event is recorded */
    fl_transfer_slices slices; /* written like casts */
    _Atomic int32_t unfilled[FL_MOST_SLICES]; /* for each slice: parts yet to fill */
    uint32_t queued;       /* copies.mutex: a bit for each slice whose copy is queued */
    int64_t bytes;         /* consumer only: of the batch, once finished */
    int32_t part_count;    /* of the batch; written like casts */
    _Atomic int32_t parts; /* parts to fill, and one for the buffer: the thread that counts down to
                              0 starts the copy */
    bool is_started;       /* belongs to the starter of the copy, then to the consumer */
} cuda_transfer;

struct cuda_copy_stream {
    int32_t device;      /* set at open, then read-only */
    uint32_t generation; /* set at open, then read-only */
    int32_t processors;  /* of the device; set at open, then read-only */
    cudaStream_t stream; /* owned; set at open, then read-only */
    pthread_mutex_t mutex;
    bool is_halted;      /* mutex, for starters of copies; the consumer writes the flag */
    cuda_transfer *free; /* owned; consumer only */
    cuda_transfer *finished, *last; /* owned; consumer only: oldest and newest */
    int64_t finished_bytes;         /* consumer only: bytes of the finished batches */
};

static inline bool is_foreign(const cuda_copy_stream *self)
{
    return self->generation != fl_fork_generation();
}

static int pin(int32_t device, char *data, int64_t bytes, fl_err *err)
{
    fl_cuda_scope scope;
    FL_TRY(fl_cuda_scope_enter(device, &scope, err));
    int status =
        FL_CUDA_STATUS(cudaHostRegister(data, (size_t)bytes, cudaHostRegisterPortable), err);
    fl_cuda_scope_leave(&scope);
    return status;
}

static void unpin(int32_t device, char *data)
{
    fl_cuda_scope scope;
    fl_cuda_scope_enter_surely(device, &scope);
    (void)FL_CUDA_STATUS(cudaHostUnregister(data), NULL); /* fails only with the device */
    fl_cuda_scope_leave(&scope);
}

/* ---- a copy stream */

/* Loads kernels at once, because a thread of a ring makes their first launch. The stream has the
 * greatest priority; otherwise a cast's blocks would wait for all blocks of the running kernel. */
static int create_stream_inside(cuda_copy_stream *self, fl_err *err)
{
    int least, greatest;
    FL_TRY(fl_cuda_require_primary(self->device, err));
    FL_CUDA_TRY(
        cudaDeviceGetAttribute(&self->processors, cudaDevAttrMultiProcessorCount, self->device),
        err);
    FL_TRY(fl_cuda_load_kernels(err));
    FL_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), err);
    FL_CUDA_TRY(cudaStreamCreateWithPriority(&self->stream, cudaStreamNonBlocking, greatest), err);
    return FL_OK;
}

static int create_stream(cuda_copy_stream *self, fl_err *err)
{
    fl_cuda_scope scope;
    FL_TRY(fl_cuda_scope_enter(self->device, &scope, err));
    int status = create_stream_inside(self, err);
    fl_cuda_scope_leave(&scope);
    return status;
}

static int open_copy_stream(int32_t device, void **out, fl_err *err)
{
    *out = NULL;
    cuda_copy_stream *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for uploads");
    self->device = device;
    self->generation = fl_fork_generation();
    int status = fl_mutex_open(&self->mutex, err);
    if (status == FL_OK) {
        status = create_stream(self, err);
        if (status != FL_OK) pthread_mutex_destroy(&self->mutex);
    }
    if (status == FL_OK)
        *out = self;
    else
        fl_free(self);
    return status;
}

/* Sets the flag. Call this only if the flag changes: a thread that starts a copy holds the mutex,
 * and may be blocked until the device has room for the copy. */
static void set_halted(cuda_copy_stream *self, bool is_halted)
{
    pthread_mutex_lock(&self->mutex);
    self->is_halted = is_halted;
    pthread_mutex_unlock(&self->mutex);
}

static void put_free(cuda_transfer *transfer)
{
    transfer->next = transfer->copies->free;
    transfer->copies->free = transfer;
}

/* Returns the slot of the oldest finished transfer, whose copy is over. */
static void return_oldest(cuda_copy_stream *self)
{
    cuda_transfer *oldest = self->finished;
    self->finished = oldest->next;
    self->finished_bytes -= oldest->bytes;
    fl_slot_return(oldest->slot);
    put_free(oldest);
}

static void await_copies(void *copy_stream)
{
    cuda_copy_stream *self = copy_stream;
    if (is_foreign(self)) return;
    fl_cuda_scope scope;
    fl_cuda_scope_enter_surely(self->device, &scope);
    /* Fails only with the device, which then copies no more. */
    (void)FL_CUDA_STATUS(cudaStreamSynchronize(self->stream), NULL);
    fl_cuda_scope_leave(&scope);
}

static void halt(void *copy_stream)
{
    cuda_copy_stream *self = copy_stream;
    if (is_foreign(self)) return;
    set_halted(self, true);
    await_copies(self);
    while (self->finished != NULL) return_oldest(self);
}

static void destroy_handles(cuda_copy_stream *self)
{
    fl_cuda_scope scope;
    fl_cuda_scope_enter_surely(self->device, &scope);
    for (cuda_transfer *transfer = self->free; transfer != NULL; transfer = transfer->next)
        if (transfer->event != NULL) (void)FL_CUDA_STATUS(cudaEventDestroy(transfer->event), NULL);
    (void)FL_CUDA_STATUS(cudaStreamDestroy(self->stream), NULL);
    fl_cuda_scope_leave(&scope);
}

static void close_copy_stream(void *copy_stream)
{
    cuda_copy_stream *self = copy_stream;
    if (self == NULL || is_foreign(self)) return;
    halt(self);
    destroy_handles(self);
    while (self->free != NULL) {
        cuda_transfer *transfer = self->free;
        self->free = transfer->next;
        fl_free(transfer);
    }
    pthread_mutex_destroy(&self->mutex);
    fl_free(self);
}

static inline bool is_copied(const cuda_transfer *transfer)
{
    cudaError_t error = cudaEventQuery(transfer->event);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess;
}

/* Returns the slots of copies that are over. Copies end in the order of their starts, which is
 * almost the order of their finishes. */
static void return_copied(cuda_copy_stream *self)
{
    fl_cuda_scope scope;
    if (self->finished == NULL || fl_cuda_scope_enter(self->device, &scope, NULL) != FL_OK) return;
    while (self->finished != NULL && is_copied(self->finished)) return_oldest(self);
    fl_cuda_scope_leave(&scope);
}

static int64_t collect(void *copy_stream)
{
    cuda_copy_stream *self = copy_stream;
    if (!is_foreign(self)) return_copied(self);
    return self->finished_bytes;
}

/* ---- a transfer */

static int get_transfer(void *copy_stream, int32_t parts, void **out, fl_err *err)
{
    cuda_copy_stream *self = copy_stream;
    *out = NULL;
    if (is_foreign(self)) return fl_transfer_fail_foreign(err);
    return_copied(self);
    cuda_transfer *transfer = self->free;
    if (transfer != NULL) {
        self->free = transfer->next;
    } else {
        transfer = fl_alloc(sizeof *transfer);
        if (transfer == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for an upload");
        transfer->copies = self;
    }
    transfer->part_count = parts;
    atomic_store_explicit(&transfer->parts, parts + 1, memory_order_relaxed);
    atomic_store_explicit(&transfer->buffer, NULL, memory_order_relaxed);
    transfer->cast_count = 0;
    transfer->slices.count = 0;
    transfer->queued = 0;
    transfer->is_started = false;
    if (self->is_halted) set_halted(self, false);
    *out = transfer;
    return FL_OK;
}

/* Fails during a capture: the record would become part of the graph, and so would the copy stream,
 * which waits for the record. */
static int refuse_capture(cudaStream_t stream, fl_err *err)
{
    enum cudaStreamCaptureStatus capture;
    FL_CUDA_TRY(cudaStreamIsCapturing(stream, &capture), err);
    if (capture == cudaStreamCaptureStatusNone) return FL_OK;
    return fl_fail(err, FL_EDEVICE,
                   "a batch was asked for while a graph is being captured; take the batch before "
                   "the capture (static_buffers=True keeps addresses for replays)");
}

static int record_begin(cuda_transfer *transfer, cudaStream_t stream, fl_err *err)
{
    FL_TRY(fl_cuda_require_primary(transfer->copies->device, err));
    FL_TRY(refuse_capture(stream, err));
    if (transfer->event == NULL)
        FL_CUDA_TRY(cudaEventCreateWithFlags(&transfer->event, cudaEventDisableTiming), err);
    FL_CUDA_TRY(cudaEventRecord(transfer->event, stream), err);
    return FL_OK;
}

/* acq_rel: the thread that starts the copy sees all writes of the threads that filled parts or set
 * the buffer. */
static inline bool is_last(cuda_transfer *transfer)
{
    return atomic_fetch_sub_explicit(&transfer->parts, 1, memory_order_acq_rel) == 1;
}

static void set_casts(void *self, const fl_transfer_cast *casts, int32_t count)
{
    cuda_transfer *transfer = self;
    transfer->casts = casts;
    transfer->cast_count = count;
}

/* Returns the first part of a slice; for slice + 1, the end of the slice. */
static inline int32_t part_at(const cuda_transfer *transfer, int32_t slice)
{
    return (int32_t)((int64_t)transfer->part_count * slice / transfer->slices.count);
}

static inline int32_t slice_of(const cuda_transfer *transfer, int32_t part)
{
    return (int32_t)(((int64_t)transfer->slices.count * (part + 1) - 1) / transfer->part_count);
}

/* Returns the first byte of a slice in the batch; for slice + 1, the end of the slice. */
static inline int64_t slice_at(const cuda_transfer *transfer, int32_t slice)
{
    const fl_transfer_slices *slices = &transfer->slices;
    int64_t sample = slices->samples * part_at(transfer, slice) / transfer->part_count;
    return slices->from + sample * slices->sample_bytes;
}

static void set_slices(void *self, const fl_transfer_slices *slices)
{
    cuda_transfer *transfer = self;
    assert(slices->count <= fl_min(FL_MOST_SLICES, transfer->part_count));
    transfer->slices = *slices;
    for (int32_t i = 0; i < slices->count; i++)
        atomic_store_explicit(&transfer->unfilled[i],
                              part_at(transfer, i + 1) - part_at(transfer, i),
                              memory_order_relaxed);
}

static int set_buffer(void *self, void *buffer, void *stream, bool *is_filled, fl_err *err)
{
    cuda_transfer *transfer = self;
    fl_cuda_scope scope;
    *is_filled = false;
    if (is_foreign(transfer->copies)) return fl_transfer_fail_foreign(err);
    FL_TRY(fl_cuda_scope_enter(transfer->copies->device, &scope, err));
    int status = record_begin(transfer, stream, err);
    fl_cuda_scope_leave(&scope);
    if (status != FL_OK) return status;
    /* release: a thread that queues a slice finds the event recorded. */
    atomic_store_explicit(&transfer->buffer, buffer, memory_order_release);
    *is_filled = is_last(transfer);
    return FL_OK;
}

static bool is_started(const void *self) { return ((const cuda_transfer *)self)->is_started; }

/* Queues the kernel that draws the maps, and sets what follows from it. */
static cudaError_t
queue_maps(const cuda_transfer *transfer, const fl_transfer_cast *cast, fl_image_batch *images)
{
    char *buffer = transfer->buffer, *from = buffer + cast->from;
    fl_map_batch maps = *cast->draws;
    maps.ops = (const fl_image_op *)(const void *)(from + cast->values);
    maps.epoch = cast->epoch;
    maps.rows = (const int64_t *)(const void *)(from + cast->maps);
    maps.images = cast->image_count;
    if (cast->has_views) maps.views = (const uint8_t *)(maps.rows + maps.images);
    maps.maps = (int32_t *)(void *)(buffer + cast->drawn);
    images->maps = maps.maps;
    fl_image_batch_set_tables(images, images->table + maps.count * (int64_t)sizeof *maps.ops);
    const fl_gather gather = {.maps = &maps, .map_count = 1, .most_blocks = INT32_MAX};
    return fl_cuda_queue_gather(transfer->copies->stream, &gather, INT32_MAX);
}

static cudaError_t queue_images(const cuda_transfer *transfer, const fl_transfer_cast *cast)
{
    char *buffer = transfer->buffer, *from = buffer + cast->from;
    fl_image_batch images = *cast->images;
    images.from = (const uint8_t *)from;
    images.to = buffer + cast->to;
    images.maps = (int32_t *)(void *)(from + cast->maps);
    images.table = from + cast->values;
    cudaError_t error = cudaSuccess;
    if (cast->draws != NULL) error = queue_maps(transfer, cast, &images);
    if (error != cudaSuccess) return error;
    return fl_cuda_queue_images(transfer->copies->stream, &images, NULL, cast->image_count);
}

static cudaError_t queue_cast(const cuda_transfer *transfer, const fl_transfer_cast *cast)
{
    const cuda_copy_stream *copies = transfer->copies;
    if (cast->kind == FL_CAST_IMAGES) return queue_images(transfer, cast);
    if (cast->kind == FL_CAST_WIDEN)
        return fl_cuda_widen(copies->stream, copies->processors, transfer->buffer, cast);
    return fl_cuda_cast(copies->stream, copies->processors, transfer->buffer, cast);
}

static int
queue_bytes(cuda_transfer *transfer, const fl_slot *slot, int64_t from, int64_t to, fl_err *err)
{
    char *buffer = transfer->buffer;
    for (int64_t at = from, end; at < to; at = end) {
        end = fl_min(to, fl_slot_pin_end(slot, at));
        FL_CUDA_TRY(cudaMemcpyAsync(buffer + at, fl_slot_data(slot) + at, (size_t)(end - at),
                                    cudaMemcpyHostToDevice, transfer->copies->stream),
                    err);
    }
    return FL_OK;
}

/* Queues the wait that comes before the first bytes of a batch. */
static int begin_copy_locked(cuda_transfer *transfer, fl_err *err)
{
    if (transfer->copies->is_halted) return fl_fail(err, FL_ECLOSED, "the upload was halted");
    if (transfer->queued != 0) return FL_OK;
    FL_CUDA_TRY(cudaStreamWaitEvent(transfer->copies->stream, transfer->event, 0), err);
    return FL_OK;
}

static int
queue_slice_locked(cuda_transfer *transfer, int32_t slice, const fl_slot *slot, fl_err *err)
{
    FL_TRY(begin_copy_locked(transfer, err));
    int64_t from = slice_at(transfer, slice), to = slice_at(transfer, slice + 1);
    FL_TRY(queue_bytes(transfer, slot, from, to, err));
    transfer->queued |= UINT32_C(1) << slice;
    return FL_OK;
}

/* Queues all bytes except the queued slices. */
static int
queue_rest_locked(cuda_transfer *transfer, const fl_slot *slot, int64_t bytes, fl_err *err)
{
    int64_t from = 0;
    for (int32_t i = 0; i < transfer->slices.count; i++) {
        if ((transfer->queued >> i & 1) == 0) continue;
        FL_TRY(queue_bytes(transfer, slot, from, slice_at(transfer, i), err));
        from = slice_at(transfer, i + 1);
    }
    return queue_bytes(transfer, slot, from, bytes, err);
}

static int
queue_copy_locked(cuda_transfer *transfer, const fl_slot *slot, int64_t bytes, fl_err *err)
{
    cudaStream_t stream = transfer->copies->stream;
    FL_TRY(begin_copy_locked(transfer, err));
    FL_TRY(queue_rest_locked(transfer, slot, bytes, err));
    for (int32_t i = 0; i < transfer->cast_count; i++)
        FL_CUDA_TRY(queue_cast(transfer, &transfer->casts[i]), err);
    FL_CUDA_TRY(cudaEventRecord(transfer->event, stream), err);
    return FL_OK;
}

enum { REST = -1 }; /* instead of a slice: remaining bytes, and what follows */

static int
queue(cuda_transfer *transfer, int32_t slice, const fl_slot *slot, int64_t bytes, fl_err *err)
{
    cuda_copy_stream *copies = transfer->copies;
    fl_cuda_scope scope;
    FL_TRY(fl_cuda_scope_enter(copies->device, &scope, err));
    pthread_mutex_lock(&copies->mutex);
    int status = slice == REST ? queue_copy_locked(transfer, slot, bytes, err)
                               : queue_slice_locked(transfer, slice, slot, err);
    pthread_mutex_unlock(&copies->mutex);
    fl_cuda_scope_leave(&scope);
    return status;
}

static int start(void *self, fl_slot *slot, int64_t bytes, fl_err *err)
{
    cuda_transfer *transfer = self;
    if (bytes > 0) FL_TRY(fl_slot_pin(slot, bytes, err));
    int status = queue(transfer, REST, slot, bytes, err);
    transfer->is_started = status == FL_OK;
    return status;
}

/* Returns true if the part was the last of its slice, and the slice can be copied now. acq_rel: the
 * thread that queues a slice has seen the whole slice filled. */
static bool ends_slice(cuda_transfer *transfer, int32_t slice, const fl_slot *slot, int64_t bytes)
{
    _Atomic int32_t *unfilled = &transfer->unfilled[slice];
    return atomic_fetch_sub_explicit(unfilled, 1, memory_order_acq_rel) == 1 &&
           atomic_load_explicit(&transfer->buffer, memory_order_acquire) != NULL &&
           fl_slot_is_pinned(slot, bytes);
}

static void part_filled(void *self, int32_t part, fl_slot *slot, int64_t bytes)
{
    cuda_transfer *transfer = self;
    if (transfer->slices.count > 0) {
        int32_t slice = slice_of(transfer, part);
        /* If queueing fails, the copy of the rest includes the slice. */
        if (ends_slice(transfer, slice, slot, bytes))
            (void)queue(transfer, slice, slot, bytes, NULL);
    }
    if (is_last(transfer)) (void)start(transfer, slot, bytes, NULL);
}

static int copy(void *self, fl_slot *slot, int64_t bytes, fl_err *err)
{
    FL_TRY(fl_slot_pin(slot, bytes, err));
    part_filled(self, 0, slot, bytes);
    return FL_OK;
}

static int await_copy_on(const cuda_transfer *transfer, cudaStream_t stream, fl_err *err)
{
    fl_cuda_scope scope;
    FL_TRY(fl_cuda_scope_enter(transfer->copies->device, &scope, err));
    int status = FL_CUDA_STATUS(cudaStreamWaitEvent(stream, transfer->event, 0), err);
    fl_cuda_scope_leave(&scope);
    return status;
}

/* Keeps the slot until the copy has read the slot's memory. */
static void keep_slot(cuda_transfer *transfer, fl_slot *slot, int64_t bytes)
{
    cuda_copy_stream *copies = transfer->copies;
    transfer->slot = slot;
    transfer->bytes = bytes;
    copies->finished_bytes += bytes;
    transfer->next = NULL;
    if (copies->finished == NULL)
        copies->finished = transfer;
    else
        copies->last->next = transfer;
    copies->last = transfer;
}

static int finish(void *self, fl_slot *slot, int64_t bytes, void *stream, fl_err *err)
{
    cuda_transfer *transfer = self;
    if (is_foreign(transfer->copies)) return fl_transfer_fail_foreign(err);
    assert(transfer->buffer != NULL && atomic_load(&transfer->parts) == 0);
    if (!transfer->is_started) FL_TRY(start(transfer, slot, bytes, err));
    FL_TRY(await_copy_on(transfer, stream, err));
    keep_slot(transfer, slot, bytes);
    return FL_OK;
}

static void abandon(void *self, fl_slot *slot, void *stream)
{
    cuda_transfer *transfer = self;
    if (is_foreign(transfer->copies)) return;
    if (transfer->is_started && await_copy_on(transfer, stream, NULL) == FL_OK) {
        keep_slot(transfer, slot, 0);
        return;
    }
    /* If the copy could not be started, a part of its commands may be queued. */
    await_copies(transfer->copies);
    fl_slot_return(slot);
    put_free(transfer);
}

static void cancel(void *self)
{
    cuda_transfer *transfer = self;
    if (is_foreign(transfer->copies)) return;
    if (transfer->queued != 0) await_copies(transfer->copies);
    put_free(transfer);
}

const fl_transfer_ops fl_cuda_transfer_ops = {
    .pin = pin,
    .unpin = unpin,
    .open = open_copy_stream,
    .await = await_copies,
    .halt = halt,
    .close = close_copy_stream,
    .collect = collect,
    .get = get_transfer,
    .set_casts = set_casts,
    .set_slices = set_slices,
    .set_buffer = set_buffer,
    .is_started = is_started,
    .part_filled = part_filled,
    .start = start,
    .copy = copy,
    .finish = finish,
    .abandon = abandon,
    .cancel = cancel,
};
