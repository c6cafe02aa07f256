/* fl_cpu_transfer: see fl_cpu_transfer.h.
 *
 * Several threads may copy at a time. The mutex guards their number, so that halt can wait until no
 * thread copies. Helpers share the copy of a large batch, because one thread alone does not fill
 * the memory's bandwidth. */
#include "fl_cpu_transfer.h"

#include "fl_cpu_rows.h"
#include "fl_cpus.h"
#include "fl_thread.h"
#include "fl_thread_pool.h"

#include <assert.h>

enum { PART_BYTES = 1 << 20, MOST_THREADS = 4 }; /* for a copy */

typedef struct cpu_copy_stream cpu_copy_stream;

typedef struct cpu_transfer {
    cpu_copy_stream *copies; /* borrowed */
    char *buffer; /* borrowed; NULL: not set yet. Written before the buffer is counted in parts */
    _Atomic int32_t parts; /* parts to fill, and one for the buffer: the thread that counts down to
                              0 starts the copy */
    bool is_started;       /* belongs to the starter of the copy, then to the consumer */
} cpu_transfer;

struct cpu_copy_stream {
    uint32_t generation;     /* set at open, then read-only */
    fl_thread_pool *threads; /* owned; set at open, then read-only */
    pthread_mutex_t mutex;
    pthread_cond_t is_idle; /* with the mutex: running is 0 */
    int32_t running;        /* mutex: threads that are copying */
    bool is_halted;         /* mutex */
};

static inline bool is_foreign(const cpu_copy_stream *self)
{
    return self->generation != fl_fork_generation();
}

/* ---- a copy stream */

static int open_locks(cpu_copy_stream *self, fl_err *err)
{
    FL_TRY(fl_mutex_open(&self->mutex, err));
    int status = fl_cond_open(&self->is_idle, err);
    if (status != FL_OK) pthread_mutex_destroy(&self->mutex);
    return status;
}

static int open_copy_stream(int32_t device, void **out, fl_err *err)
{
    (void)device;
    *out = NULL;
    cpu_copy_stream *self = fl_alloc(sizeof *self);
    if (self == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for uploads");
    self->generation = fl_fork_generation();
    int32_t threads = (int32_t)fl_min(fl_cpu_count(), MOST_THREADS);
    int status = fl_thread_pool_open(threads, NULL, &self->threads, err);
    if (status == FL_OK) status = open_locks(self, err);
    if (status == FL_OK) {
        *out = self;
        return FL_OK;
    }
    fl_thread_pool_close(self->threads);
    fl_free(self);
    return status;
}

static void await_idle_locked(cpu_copy_stream *self)
{
    while (self->running > 0) pthread_cond_wait(&self->is_idle, &self->mutex);
}

static void await_copies(void *copy_stream)
{
    cpu_copy_stream *self = copy_stream;
    if (is_foreign(self)) return;
    pthread_mutex_lock(&self->mutex);
    await_idle_locked(self);
    pthread_mutex_unlock(&self->mutex);
}

static void halt(void *copy_stream)
{
    cpu_copy_stream *self = copy_stream;
    if (is_foreign(self)) return;
    pthread_mutex_lock(&self->mutex);
    self->is_halted = true;
    await_idle_locked(self);
    pthread_mutex_unlock(&self->mutex);
}

static void close_copy_stream(void *copy_stream)
{
    cpu_copy_stream *self = copy_stream;
    if (self == NULL || is_foreign(self)) return;
    halt(self);
    fl_thread_pool_close(self->threads);
    pthread_cond_destroy(&self->is_idle);
    pthread_mutex_destroy(&self->mutex);
    fl_free(self);
}

/* ---- a transfer */

static void resume(cpu_copy_stream *self)
{
    pthread_mutex_lock(&self->mutex);
    self->is_halted = false;
    pthread_mutex_unlock(&self->mutex);
}

static int get_transfer(void *copy_stream, int32_t parts, void **out, fl_err *err)
{
    cpu_copy_stream *self = copy_stream;
    *out = NULL;
    if (is_foreign(self)) return fl_transfer_fail_foreign(err);
    cpu_transfer *transfer = fl_alloc(sizeof *transfer);
    if (transfer == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for an upload");
    transfer->copies = self;
    atomic_store_explicit(&transfer->parts, parts + 1, memory_order_relaxed);
    resume(self);
    *out = transfer;
    return FL_OK;
}

/* acq_rel: the thread that starts the copy sees all writes of the threads that filled parts or set
 * the buffer. */
static inline bool is_last(cpu_transfer *transfer)
{
    return atomic_fetch_sub_explicit(&transfer->parts, 1, memory_order_acq_rel) == 1;
}

static int set_buffer(void *self, void *buffer, void *stream, bool *is_filled, fl_err *err)
{
    cpu_transfer *transfer = self;
    (void)stream;
    *is_filled = false;
    if (is_foreign(transfer->copies)) return fl_transfer_fail_foreign(err);
    transfer->buffer = buffer;
    *is_filled = is_last(transfer);
    return FL_OK;
}

static bool is_started(const void *self) { return ((const cpu_transfer *)self)->is_started; }

/* Counts the caller among the copying threads; returns false if the copy stream is halted. */
static bool begin_copy(cpu_copy_stream *self)
{
    pthread_mutex_lock(&self->mutex);
    bool may_copy = !self->is_halted;
    self->running += may_copy;
    pthread_mutex_unlock(&self->mutex);
    return may_copy;
}

static void end_copy(cpu_copy_stream *self)
{
    pthread_mutex_lock(&self->mutex);
    if (--self->running == 0) pthread_cond_broadcast(&self->is_idle);
    pthread_mutex_unlock(&self->mutex);
}

typedef struct copy_job {
    char *to;
    const char *from;
    int64_t bytes;
} copy_job;

static void copy_parts(void *context, int64_t first, int64_t end)
{
    const copy_job *job = context;
    int64_t at = first * PART_BYTES, bytes = fl_min(job->bytes, end * PART_BYTES) - at;
    fl_cpu_row_ops.copy_rows(job->to + at, job->from + at, bytes, bytes, 0, 1, true);
}

static int start(void *self, fl_slot *slot, int64_t bytes, fl_err *err)
{
    cpu_transfer *transfer = self;
    copy_job job = {transfer->buffer, fl_slot_data(slot), bytes};
    if (!begin_copy(transfer->copies)) return fl_fail(err, FL_ECLOSED, "the upload was halted");
    fl_thread_pool_run(transfer->copies->threads, copy_parts, &job, (bytes - 1) / PART_BYTES + 1,
                       1);
    transfer->is_started = true;
    end_copy(transfer->copies);
    return FL_OK;
}

static void part_filled(void *self, int32_t part, fl_slot *slot, int64_t bytes)
{
    (void)part;
    if (is_last(self)) (void)start(self, slot, bytes, NULL);
}

static int copy(void *self, fl_slot *slot, int64_t bytes, fl_err *err)
{
    (void)err;
    part_filled(self, 0, slot, bytes);
    return FL_OK;
}

static int finish(void *self, fl_slot *slot, int64_t bytes, void *stream, fl_err *err)
{
    cpu_transfer *transfer = self;
    (void)stream;
    if (is_foreign(transfer->copies)) return fl_transfer_fail_foreign(err);
    assert(transfer->buffer != NULL && atomic_load(&transfer->parts) == 0);
    if (!transfer->is_started) FL_TRY(start(transfer, slot, bytes, err));
    fl_slot_return(slot);
    fl_free(transfer);
    return FL_OK;
}

static void abandon(void *self, fl_slot *slot, void *stream)
{
    cpu_transfer *transfer = self;
    (void)stream;
    if (is_foreign(transfer->copies)) return;
    fl_slot_return(slot);
    fl_free(transfer);
}

static void cancel(void *self)
{
    if (!is_foreign(((cpu_transfer *)self)->copies)) fl_free(self);
}

const fl_transfer_ops fl_cpu_transfer_ops = {
    .open = open_copy_stream,
    .await = await_copies,
    .halt = halt,
    .close = close_copy_stream,
    .get = get_transfer,
    .set_buffer = set_buffer,
    .is_started = is_started,
    .part_filled = part_filled,
    .start = start,
    .copy = copy,
    .finish = finish,
    .abandon = abandon,
    .cancel = cancel,
};
