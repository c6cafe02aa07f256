/* fl_py_reply_destination: where the batches of a parent end are copied to: a device, or memory
 * that is pinned for one.
 *
 * The copier copies what arrives. Here its buffers are made of torch tensors, and what it has not
 * begun is copied when the batch is wanted. */
#include "fl_py_reply_destination.h"

#include "fl_cpu_rows.h"
#include "fl_py_error.h"

static int copy_on_host(const fl_dest_buffer *buffer, fl_slot *slot, int64_t bytes, fl_err *err)
{
    (void)err;
    fl_cpu_row_ops.copy_rows(buffer->target, fl_slot_data(slot), bytes, bytes, 0, 1, true);
    return FL_OK;
}

static int copy_to_device(const fl_dest_buffer *buffer, fl_slot *slot, int64_t bytes, fl_err *err)
{
    return fl_cuda_transfer_ops.copy(buffer->target, slot, bytes, err);
}

static inline fl_copy_fn *copy_fn_of(const fl_py_parent_end *self)
{
    return self->copy_stream != NULL ? copy_to_device : copy_on_host;
}

int fl_py_reply_destination_open(fl_py_parent_end *self, fl_err *err)
{
    int32_t device = self->pool->device;
    if (device >= 0) FL_TRY(fl_cuda_transfer_ops.open(device, &self->copy_stream, err));
    return fl_copier_open(self->inflight, copy_fn_of(self), &self->copier, err);
}

static void drop_owner(const fl_dest_buffer *buffer)
{
    PyObject *owner = buffer->owner;
    Py_DECREF(owner);
}

/* One that nothing was copied to. */
static void drop_buffer(fl_py_parent_end *self, const fl_dest_buffer *buffer)
{
    if (self->copy_stream != NULL) fl_cuda_transfer_ops.cancel(buffer->target);
    drop_owner(buffer);
}

void fl_py_reply_destination_abandon(fl_py_parent_end *self, const fl_dest_buffer *buffer,
                                     fl_slot *slot)
{
    if (self->copy_stream != NULL)
        fl_cuda_transfer_ops.abandon(buffer->target, slot, buffer->stream);
    else
        fl_slot_return(slot);
    drop_owner(buffer);
}

static void reclaim(fl_py_parent_end *self, int64_t bytes)
{
    fl_dest_buffer buffer;
    while (fl_copier_reclaim_buffer(self->copier, bytes, &buffer)) drop_buffer(self, &buffer);
}

void fl_py_reply_destination_release_buffers(fl_py_parent_end *self) { reclaim(self, INT64_MAX); }

void fl_py_reply_destination_stop(fl_py_parent_end *self)
{
    if (self->copier == NULL) return;
    Py_BEGIN_ALLOW_THREADS
    fl_copier_stop(self->copier);
    if (self->copy_stream != NULL) fl_cuda_transfer_ops.await(self->copy_stream);
    Py_END_ALLOW_THREADS
    if (self->copy_stream != NULL)
        fl_cuda_transfer_ops.halt(self->copy_stream); /* nothing is left to wait for */
    fl_py_reply_destination_release_buffers(self);
}

static int set_on_device(fl_py_parent_end *self, PyObject *memory, fl_dest_buffer *buffer)
{
    fl_err err;
    void *upload;
    bool is_filled; /* not yet */
    int32_t device = self->pool->device;
    void *data = fl_py_buffer_address(&self->dlpack, memory, device, buffer->bytes);
    if (data == NULL || fl_py_stream(&self->dlpack, device, &buffer->stream) != 0) return -1;
    int status = fl_cuda_transfer_ops.get(self->copy_stream, 1, &upload, &err);
    if (status == FL_OK) {
        status = fl_cuda_transfer_ops.set_buffer(upload, data, buffer->stream, &is_filled, &err);
        if (status != FL_OK) fl_cuda_transfer_ops.cancel(upload);
    }
    buffer->target = upload;
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

static int set_on_host(fl_py_parent_end *self, PyObject *memory, fl_dest_buffer *buffer)
{
    buffer->target = fl_py_buffer_address(&self->dlpack, memory, FL_PY_CPU, buffer->bytes);
    return buffer->target != NULL ? 0 : -1;
}

/* The tensor `memory` of `bytes` as a buffer; on a device, for its current stream. */
static int make_buffer(fl_py_parent_end *self, PyObject *memory, int64_t bytes, fl_dest_buffer *out)
{
    fl_dest_buffer buffer = {.bytes = bytes, .copied = bytes};
    int status = self->copy_stream != NULL ? set_on_device(self, memory, &buffer)
                                           : set_on_host(self, memory, &buffer);
    if (status != 0) return -1;
    *out = buffer;
    out->owner = Py_NewRef(memory);
    return 0;
}

int fl_py_reply_destination_add_buffer(fl_py_parent_end *self, PyObject *memory, int64_t bytes)
{
    fl_dest_buffer buffer;
    if (fl_copier_buffers_needed(self->copier) == 0) {
        PyErr_SetString(PyExc_ValueError, "no block is wanted");
        return -1;
    }
    if (make_buffer(self, memory, bytes, &buffer) != 0) return -1;
    fl_copier_add_buffer(self->copier, &buffer);
    return 0;
}

int32_t fl_py_reply_destination_set_window(fl_py_parent_end *self, int64_t first)
{
    reclaim(self, self->expected_bytes);
    fl_copier_set_window(self->copier, first);
    int32_t lent = FL_COPY_AHEAD - fl_copier_buffers_needed(self->copier);
    return self->expected_bytes > 0 ? (int32_t)fl_max(fl_copy_ahead(self->expected_bytes) - lent, 0)
                                    : 0;
}

int64_t fl_py_reply_destination_count(fl_py_parent_end *self)
{
    return self->copy_stream != NULL ? fl_cuda_transfer_ops.collect(self->copy_stream) : 0;
}

/* What the copier has not begun. */
static int copy_now(fl_py_parent_end *self, PyObject *allocate, fl_slot *slot, int64_t bytes,
                    fl_dest_buffer *out)
{
    fl_err err;
    PyObject *memory = PyObject_CallFunction(allocate, "L", (long long)bytes);
    if (memory == NULL) return -1;
    fl_dest_buffer buffer;
    int status = make_buffer(self, memory, bytes, &buffer);
    Py_DECREF(memory);
    if (status != 0) return -1;
    Py_BEGIN_ALLOW_THREADS
    status = copy_fn_of(self)(&buffer, slot, bytes, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) {
        *out = buffer;
        return 0;
    }
    drop_buffer(self, &buffer);
    fl_py_raise(&err, NULL);
    return -1;
}

/* The current stream waits for the batch: 1 if its block is another stream's. */
static int await_on_device(fl_py_parent_end *self, const fl_py_reply *reply)
{
    fl_err err;
    void *stream;
    const fl_dest_buffer *buffer = &reply->buffer;
    if (fl_py_stream(&self->dlpack, self->pool->device, &stream) != 0) return -1;
    if (fl_cuda_transfer_ops.finish(buffer->target, reply->request->slot,
                                    reply->request->reply.upload, stream, &err) == FL_OK)
        return stream != buffer->stream;
    fl_py_raise(&err, NULL);
    return -1;
}

int fl_py_reply_destination_deliver(fl_py_reply *reply, PyObject *allocate)
{
    fl_py_parent_end *self = reply->parent_end;
    Py_BEGIN_ALLOW_THREADS
    /* Once: what it holds after a failure is kept. */
    if (reply->buffer.owner == NULL)
        (void)fl_inflight_finish(self->inflight, reply->request, &reply->buffer);
    Py_END_ALLOW_THREADS
    if (reply->buffer.owner != NULL && reply->buffer.copied != reply->request->reply.upload) {
        (void)fl_py_report_corruption(self, reply->request->reply.worker);
        return -1;
    }
    if (reply->buffer.owner == NULL && copy_now(self, allocate, reply->request->slot,
                                                reply->request->reply.upload, &reply->buffer) != 0)
        return -1;
    if (self->copy_stream != NULL) return await_on_device(self, reply);
    fl_slot_return(reply->request->slot);
    return 0;
}
