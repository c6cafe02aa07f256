/* fl_py_reply_destination: see fl_py_reply_destination.h. */
#include "fl_py_reply_destination.h"

#include "fl_py_error.h"

/* If a buffer could not be allocated, no buffer is allocated ahead for this many batches: before
 * torch's allocators report that memory is used up, they give back all the memory that they
 * keep. */
enum { PAUSE = 32 };

/* Runs on the copier's thread. */
static int copy_batch(const fl_dest_buffer *buffer, fl_slot *slot, int64_t bytes, fl_err *err)
{
    return buffer->ops->copy(buffer->target, slot, bytes, err);
}

int fl_py_reply_destination_open(fl_py_reply_destination *self, PyObject *object,
                                 const fl_py_dlpack *dlpack, int32_t device, fl_inflight *inflight)
{
    fl_err err;
    if (fl_py_destination_open(&self->base, object, dlpack, device, true) != 0) return -1;
    return fl_py_check(fl_copier_open(inflight, copy_batch, &self->copier, &err), &err, NULL);
}

static void reclaim(fl_py_reply_destination *self, int64_t bytes)
{
    fl_dest_buffer buffer;
    while (fl_copier_reclaim_buffer(self->copier, bytes, &buffer))
        fl_py_destination_cancel(&self->base, &buffer);
}

void fl_py_reply_destination_release_buffers(fl_py_reply_destination *self)
{
    reclaim(self, INT64_MAX);
}

void fl_py_reply_destination_stop(fl_py_reply_destination *self)
{
    if (self->copier == NULL) return;
    Py_BEGIN_ALLOW_THREADS
    fl_copier_stop(self->copier);
    self->base.ops->await(self->base.copy_stream);
    Py_END_ALLOW_THREADS
    self->base.ops->halt(self->base.copy_stream); /* copying has ended, so halting does not wait */
    fl_py_reply_destination_release_buffers(self);
}

void fl_py_reply_destination_expect(fl_py_reply_destination *self, int64_t bytes)
{
    self->expected_bytes = fl_max(self->expected_bytes - self->expected_bytes / 8, bytes);
}

/* Returns how many more buffers the copier needs. */
static int32_t count_missing(const fl_py_reply_destination *self)
{
    int32_t lent = FL_COPY_AHEAD - fl_copier_buffers_needed(self->copier);
    return self->expected_bytes > 0 ? fl_copy_ahead(self->expected_bytes) - lent : 0;
}

int fl_py_reply_destination_run_ahead(fl_py_reply_destination *self, int64_t first)
{
    reclaim(self, self->expected_bytes);
    fl_copier_set_window(self->copier, first);
    if (self->pause > 0) {
        self->pause--;
        return 0;
    }
    while (count_missing(self) > 0) {
        fl_dest_buffer buffer;
        if (fl_py_destination_new_buffer(&self->base, self->expected_bytes, &buffer) == 0) {
            /* allocate is Python code; a signal handler inside may itself have called this
             * function. */
            if (count_missing(self) > 0)
                fl_copier_add_buffer(self->copier, &buffer);
            else
                fl_py_destination_cancel(&self->base, &buffer);
            continue;
        }
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
        /* The error is raised when a batch cannot do without the buffer. */
        PyErr_Clear();
        self->pause = PAUSE;
        return 0;
    }
    return 0;
}

int fl_py_reply_destination_copy(fl_py_reply_destination *self, fl_slot *slot, int64_t bytes,
                                 fl_dest_buffer *out)
{
    fl_err err;
    int status;
    fl_dest_buffer buffer;
    if (fl_py_destination_new_buffer(&self->base, bytes, &buffer) != 0) return -1;
    Py_BEGIN_ALLOW_THREADS
    status = copy_batch(&buffer, slot, bytes, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) {
        *out = buffer;
        return 0;
    }
    fl_py_destination_cancel(&self->base, &buffer);
    fl_py_raise(&err, NULL);
    return -1;
}
