/* fl_py_array_ring: see fl_py_array_ring.h. */
#include "fl_py_array_ring.h"

int fl_py_array_ring_open(fl_py_array_ring *self, int32_t threads, bool is_in_order)
{
    fl_err err;
    fl_ring_config config = {.fill = fl_table_fill,
                             .transfers = self->destination.base.ops,
                             .pool = self->pool->pool,
                             .depth = self->depth,
                             .threads = threads,
                             .runs_ahead = self->runs_ahead,
                             /* A part that was quick to read may be slow the next time. */
                             .consumer_fills = !self->reads_files || self->timeout_ns == 0,
                             .lazy_bytes = self->reads_files ? 0 : FL_LAYOUT_SMALL_BYTES,
                             .is_in_order = is_in_order};
    int status = FL_OK;
    self->opened = atomic_exchange(&self->pool->ring, NULL);
    if (self->opened == NULL || !fl_ring_fits(self->opened, &config)) {
        Py_BEGIN_ALLOW_THREADS
        fl_ring_close(self->opened);
        Py_END_ALLOW_THREADS
        status = fl_ring_open(&config, &self->opened, &err);
    }
    self->ring = self->opened;
    return fl_py_check(status, &err, NULL);
}

/* Drops batches outside of the ring. The ring must be empty, and the copy stream halted. */
static void drop_batches(fl_py_array_ring *self)
{
    if (self->is_undelivered) fl_slot_return(self->undelivered.slot);
    self->is_undelivered = self->is_over = false;
    self->deferred = NULL;
    fl_py_array_destination_cancel_all(&self->destination);
}

/* Halts the copy stream, if there is one. Needs no interpreter lock. */
static void halt_copies(const fl_py_destination *destination)
{
    if (destination->copy_stream != NULL) destination->ops->halt(destination->copy_stream);
}

void fl_py_array_ring_submit_end(fl_py_array_ring *self)
{
    self->epoch = (uint32_t)self->indices.next_epoch;
    self->has_raised = false;
    fl_ring_submit_sentinel(self->ring, FL_OK, NULL, FL_PY_TAG_END);
}

bool fl_py_array_ring_is_at_end(const fl_py_array_ring *self)
{
    if (self->ring == NULL || self->is_over) return self->ring != NULL;
    if (self->is_undelivered || self->pending_result != NULL) return false;
    const fl_batch *first = fl_ring_submitted(self->ring, 0);
    return first != NULL ? first->tag == FL_PY_TAG_END : self->deferred == NULL;
}

bool fl_py_array_ring_enter(fl_py_array_ring *self)
{
    fl_batch end;
    if (!self->is_over && fl_py_array_ring_is_at_end(self))
        self->is_over = fl_ring_receive(self->ring, 0, &end, NULL) == FL_OK;
    if (!self->is_over || self->has_raised || self->indices.is_recut) return false;
    self->is_over = false;
    return true;
}

void fl_py_array_ring_reset(fl_py_array_ring *self)
{
    Py_BEGIN_ALLOW_THREADS
    halt_copies(&self->destination.base);
    fl_ring_reset(self->ring);
    Py_END_ALLOW_THREADS
    drop_batches(self);
}

void fl_py_array_ring_stop(fl_py_array_ring *self)
{
    self->is_closed = true;
    if (self->opened != NULL) fl_ring_stop(self->opened);
}

void fl_py_array_ring_wake(fl_py_array_ring *self)
{
    if (self->ring == NULL) return;
    int32_t wakes = fl_ring_take_wakes(self->ring);
    if (wakes == 0) return;
    Py_BEGIN_ALLOW_THREADS
    fl_ring_wake(self->ring, wakes);
    Py_END_ALLOW_THREADS
}

void fl_py_array_ring_drop_epoch(fl_py_array_ring *self)
{
    fl_py_index_source_drop(&self->indices);
    Py_CLEAR(self->pending_result);
    if (self->sentinels != NULL) PyDict_Clear(self->sentinels);
}

/* Returns true if the next iterator gets the ring and the copy stream. This is only so for a
 * device, because an epoch for a device may be as short as the start of threads. Without a device
 * the threads end with their epoch, as torch's workers do. Without an interpreter lock a different
 * thread may be in stop, so the ring is not passed on. */
static bool passes_ring_on(const fl_py_array_ring *self)
{
#ifdef Py_GIL_DISABLED
    (void)self;
    return false;
#else
    return self->destination.base.copy_stream != NULL && !self->is_closed;
#endif
}

static void pass_ring_on(fl_py_array_ring *self)
{
    fl_ring *ring = self->opened;
    void *copies = self->destination.base.copy_stream;
    self->opened = NULL;
    self->destination.base.copy_stream = NULL;
    fl_py_batch_pool_leave(self->pool, ring, copies);
}

void fl_py_array_ring_close(fl_py_array_ring *self)
{
    fl_ring *ring = self->ring;
    self->ring = NULL;
    if (ring != NULL) {
        bool passes_on = passes_ring_on(self);
        Py_BEGIN_ALLOW_THREADS
        halt_copies(&self->destination.base);
        if (passes_on)
            fl_ring_reset(ring);
        else
            fl_ring_end(ring);
        Py_END_ALLOW_THREADS
        drop_batches(self);
        if (passes_on) pass_ring_on(self);
    }
    fl_py_array_destination_close(&self->destination);
}

void fl_py_array_ring_free(fl_py_array_ring *self)
{
    fl_ring_close(self->opened);
    self->opened = NULL;
}
