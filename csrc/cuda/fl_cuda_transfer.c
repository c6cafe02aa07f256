/* fl_cuda_transfer: see fl_cuda_transfer.h.
 *
 * The ring hands an upload from the consumer to the threads that fill, and back; its mutex orders
 * what they write to it. The stage's own mutex lets halt come between two copies, not into one. */
#include "fl_cuda_transfer.h"

#include "fl_cuda_runtime.h"
#include "fl_thread.h"

#include <assert.h>
#include <stdatomic.h>

struct fl_cuda_transfer {
    fl_cuda_copy_stream *stage; /* borrowed */
    fl_cuda_transfer *next;     /* consumer only: in the list it is in */
    fl_slot *slot;              /* owned, once taken */
    cudaEvent_t event; /* owned; NULL before the first aim. Recorded on the consumer's stream when
                          the block may be written, on the stage's when it is. */
    void *block;       /* borrowed; set before the aim is counted */
    int64_t bytes;     /* consumer only: of the batch, once taken */
    _Atomic int32_t parts; /* to be filled, and one for the aim: whoever is last sends the batch */
    bool is_aimed;         /* consumer only */
    bool is_queued;        /* whoever sends, then the consumer */
};

struct fl_cuda_copy_stream {
    int32_t device;      /* set at open, then read-only */
    uint32_t generation; /* likewise */
    cudaStream_t stream; /* owned; likewise */
    pthread_mutex_t mutex;
    bool is_halted;                 /* mutex, for whoever queues; the consumer writes it */
    fl_cuda_transfer *free;         /* owned; consumer only */
    fl_cuda_transfer *taken, *last; /* owned; consumer only: oldest and newest */
    int64_t taken_bytes;            /* consumer only */
};

static inline bool is_foreign(const fl_cuda_copy_stream *stage)
{
    return stage->generation != fl_fork_generation();
}

static int refuse_foreign(fl_err *err)
{
    return fl_fail(err, FL_EFORK, "this upload belongs to a parent process");
}

/* What a call here changes of its thread: the device, and how its calls affect a graph that some
 * other thread is capturing. In the relaxed mode not at all; otherwise registering memory or asking
 * for an event would spoil that graph. */
typedef struct visit {
    bool is_inside;
    int32_t before;
    enum cudaStreamCaptureMode mode;
} visit;

static int change_mode(visit *self, fl_err *err)
{
    return FL_CUDA_STATUS(cudaThreadExchangeStreamCaptureMode(&self->mode), err);
}

/* The device comes first: to exchange the mode makes a context on the thread's device, which is
 * device 0 where it has chosen none. After a failure nothing has changed. */
static int enter(int32_t device, visit *self, fl_err *err)
{
    *self = (visit){.mode = cudaStreamCaptureModeRelaxed};
    FL_TRY(fl_cuda_enter(device, &self->before, err));
    int status = change_mode(self, err);
    self->is_inside = status == FL_OK;
    if (!self->is_inside) fl_cuda_leave(self->before);
    return status;
}

/* For what must not be left out, even if it cannot be entered. That fails twice only where the
 * device has failed: then no call works on it, and none makes a context. */
static void enter_surely(int32_t device, visit *self)
{
    if (enter(device, self, NULL) != FL_OK) (void)enter(device, self, NULL);
}

static void leave(visit *self)
{
    if (!self->is_inside) return;
    (void)change_mode(self, NULL);
    fl_cuda_leave(self->before);
}

int fl_cuda_pin(int32_t device, char *data, int64_t bytes, fl_err *err)
{
    visit here;
    FL_TRY(enter(device, &here, err));
    int status =
        FL_CUDA_STATUS(cudaHostRegister(data, (size_t)bytes, cudaHostRegisterPortable), err);
    leave(&here);
    return status;
}

void fl_cuda_unpin(int32_t device, char *data)
{
    visit here;
    enter_surely(device, &here);
    (void)FL_CUDA_STATUS(cudaHostUnregister(data), NULL); /* fails only with the device */
    leave(&here);
}

/* ---- the stage */

static int open_stream(fl_cuda_copy_stream *stage, fl_err *err)
{
    visit here;
    FL_TRY(enter(stage->device, &here, err));
    int status =
        FL_CUDA_STATUS(cudaStreamCreateWithFlags(&stage->stream, cudaStreamNonBlocking), err);
    leave(&here);
    return status;
}

int fl_cuda_copy_stream_open(int32_t device, fl_cuda_copy_stream **out, fl_err *err)
{
    *out = NULL;
    fl_cuda_copy_stream *stage = fl_alloc(sizeof *stage);
    if (stage == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for uploads");
    stage->device = device;
    stage->generation = fl_fork_generation();
    int status = fl_mutex_open(&stage->mutex, err);
    if (status == FL_OK) {
        status = open_stream(stage, err);
        if (status != FL_OK) pthread_mutex_destroy(&stage->mutex);
    }
    if (status == FL_OK)
        *out = stage;
    else
        fl_free(stage);
    return status;
}

/* Not where nothing changes: whoever queues a copy, with the mutex, may be blocked until the device
 * has room for it. */
static void set_halted(fl_cuda_copy_stream *stage, bool is_halted)
{
    pthread_mutex_lock(&stage->mutex);
    stage->is_halted = is_halted;
    pthread_mutex_unlock(&stage->mutex);
}

static void put_free(fl_cuda_transfer *upload)
{
    upload->next = upload->stage->free;
    upload->stage->free = upload;
}

/* The copy of the oldest taken upload is over. */
static void return_oldest(fl_cuda_copy_stream *stage)
{
    fl_cuda_transfer *upload = stage->taken;
    stage->taken = upload->next;
    stage->taken_bytes -= upload->bytes;
    fl_slot_return(upload->slot);
    put_free(upload);
}

void fl_cuda_copy_stream_await(fl_cuda_copy_stream *stage)
{
    if (is_foreign(stage)) return;
    visit here;
    enter_surely(stage->device, &here);
    /* Fails with the device, which then copies no more. */
    (void)FL_CUDA_STATUS(cudaStreamSynchronize(stage->stream), NULL);
    leave(&here);
}

void fl_cuda_copy_stream_halt(fl_cuda_copy_stream *stage)
{
    if (is_foreign(stage)) return;
    set_halted(stage, true);
    fl_cuda_copy_stream_await(stage);
    while (stage->taken != NULL) return_oldest(stage);
}

static void destroy_handles(fl_cuda_copy_stream *stage)
{
    visit here;
    enter_surely(stage->device, &here);
    for (fl_cuda_transfer *upload = stage->free; upload != NULL; upload = upload->next)
        if (upload->event != NULL) (void)FL_CUDA_STATUS(cudaEventDestroy(upload->event), NULL);
    (void)FL_CUDA_STATUS(cudaStreamDestroy(stage->stream), NULL);
    leave(&here);
}

void fl_cuda_copy_stream_close(fl_cuda_copy_stream *stage)
{
    if (stage == NULL || is_foreign(stage)) return;
    fl_cuda_copy_stream_halt(stage);
    destroy_handles(stage);
    while (stage->free != NULL) {
        fl_cuda_transfer *upload = stage->free;
        stage->free = upload->next;
        fl_free(upload);
    }
    pthread_mutex_destroy(&stage->mutex);
    fl_free(stage);
}

/* ---- an upload */

static inline bool is_copied(const fl_cuda_transfer *upload)
{
    cudaError_t error = cudaEventQuery(upload->event);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess;
}

/* Copies end in the order in which they were queued, which is about that of the takes. */
static void return_copied(fl_cuda_copy_stream *stage)
{
    visit here;
    if (stage->taken == NULL || enter(stage->device, &here, NULL) != FL_OK) return;
    while (stage->taken != NULL && is_copied(stage->taken)) return_oldest(stage);
    leave(&here);
}

int64_t fl_cuda_copy_stream_collect(fl_cuda_copy_stream *stage)
{
    if (!is_foreign(stage)) return_copied(stage);
    return stage->taken_bytes;
}

int fl_cuda_transfer_get(fl_cuda_copy_stream *stage, int32_t parts, fl_cuda_transfer **out,
                         fl_err *err)
{
    *out = NULL;
    if (is_foreign(stage)) return refuse_foreign(err);
    return_copied(stage);
    fl_cuda_transfer *upload = stage->free;
    if (upload != NULL) {
        stage->free = upload->next;
    } else {
        upload = fl_alloc(sizeof *upload);
        if (upload == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for an upload");
        upload->stage = stage;
    }
    atomic_store_explicit(&upload->parts, parts + 1, memory_order_relaxed);
    upload->is_aimed = upload->is_queued = false;
    if (stage->is_halted) set_halted(stage, false);
    *out = upload;
    return FL_OK;
}

static int record_start(fl_cuda_transfer *upload, cudaStream_t stream, fl_err *err)
{
    if (upload->event == NULL)
        FL_CUDA_TRY(cudaEventCreateWithFlags(&upload->event, cudaEventDisableTiming), err);
    FL_CUDA_TRY(cudaEventRecord(upload->event, stream), err);
    return FL_OK;
}

/* acq_rel: whoever sends the batch reads what all the others have written, the block included. */
static inline bool is_last(fl_cuda_transfer *upload)
{
    return atomic_fetch_sub_explicit(&upload->parts, 1, memory_order_acq_rel) == 1;
}

int fl_cuda_transfer_aim(fl_cuda_transfer *upload, void *block, void *stream, bool *is_filled,
                         fl_err *err)
{
    visit here;
    *is_filled = false;
    if (is_foreign(upload->stage)) return refuse_foreign(err);
    FL_TRY(enter(upload->stage->device, &here, err));
    int status = record_start(upload, stream, err);
    leave(&here);
    if (status != FL_OK) return status;
    upload->block = block;
    upload->is_aimed = true;
    *is_filled = is_last(upload);
    return FL_OK;
}

bool fl_cuda_transfer_is_aimed(const fl_cuda_transfer *upload) { return upload->is_aimed; }

bool fl_cuda_transfer_is_queued(const fl_cuda_transfer *upload) { return upload->is_queued; }

static int queue_copy_locked(fl_cuda_transfer *upload, fl_slot *slot, int64_t bytes, fl_err *err)
{
    cudaStream_t stream = upload->stage->stream;
    const char *data = fl_slot_data(slot);
    if (upload->stage->is_halted) return fl_fail(err, FL_ECLOSED, "the upload was halted");
    FL_CUDA_TRY(cudaStreamWaitEvent(stream, upload->event, 0), err);
    if (bytes > 0)
        FL_CUDA_TRY(
            cudaMemcpyAsync(upload->block, data, (size_t)bytes, cudaMemcpyHostToDevice, stream),
            err);
    FL_CUDA_TRY(cudaEventRecord(upload->event, stream), err);
    return FL_OK;
}

static int queue_copy(fl_cuda_transfer *upload, fl_slot *slot, int64_t bytes, fl_err *err)
{
    fl_cuda_copy_stream *stage = upload->stage;
    visit here;
    FL_TRY(enter(stage->device, &here, err));
    pthread_mutex_lock(&stage->mutex);
    int status = queue_copy_locked(upload, slot, bytes, err);
    pthread_mutex_unlock(&stage->mutex);
    leave(&here);
    upload->is_queued = status == FL_OK;
    return status;
}

int fl_cuda_transfer_send(void *upload, fl_slot *slot, int64_t bytes, fl_err *err)
{
    if (bytes > 0) FL_TRY(fl_slot_pin(slot, bytes, err));
    return queue_copy(upload, slot, bytes, err);
}

void fl_cuda_transfer_part(void *upload, fl_slot *slot, int64_t bytes)
{
    if (is_last(upload)) (void)fl_cuda_transfer_send(upload, slot, bytes, NULL);
}

int fl_cuda_transfer_carry(const fl_dest_buffer *berth, fl_slot *slot, int64_t bytes, fl_err *err)
{
    FL_TRY(fl_slot_pin(slot, bytes, err));
    fl_cuda_transfer_part(berth->target, slot, bytes);
    return FL_OK;
}

int fl_cuda_transfer_take(fl_cuda_transfer *upload, const fl_batch *batch, void *stream,
                          fl_err *err)
{
    fl_cuda_copy_stream *stage = upload->stage;
    visit here;
    if (is_foreign(stage)) return refuse_foreign(err);
    assert(upload->is_aimed && atomic_load(&upload->parts) == 0);
    if (!upload->is_queued) FL_TRY(fl_cuda_transfer_send(upload, batch->slot, batch->bytes, err));
    FL_TRY(enter(stage->device, &here, err));
    int status = FL_CUDA_STATUS(cudaStreamWaitEvent(stream, upload->event, 0), err);
    leave(&here);
    if (status != FL_OK) return status;
    upload->slot = batch->slot;
    upload->bytes = batch->bytes;
    stage->taken_bytes += upload->bytes;
    upload->next = NULL;
    if (stage->taken == NULL)
        stage->taken = upload;
    else
        stage->last->next = upload;
    stage->last = upload;
    return FL_OK;
}

void fl_cuda_transfer_abandon(fl_cuda_transfer *upload, const fl_batch *batch, void *stream)
{
    if (is_foreign(upload->stage)) return;
    if (upload->is_queued && fl_cuda_transfer_take(upload, batch, stream, NULL) == FL_OK) return;
    /* Where it could not be queued whole, a part of it may be. */
    fl_cuda_copy_stream_await(upload->stage);
    fl_slot_return(batch->slot);
    put_free(upload);
}

void fl_cuda_transfer_drop(fl_cuda_transfer *upload)
{
    if (!is_foreign(upload->stage)) put_free(upload);
}
