/* fl_py_destination: see fl_py_destination.h. */
#include "fl_py_destination.h"

#include "fl_cpu_transfer.h"
#include "fl_cuda_transfer.h"
#include "fl_py_error.h"

int fl_py_destination_open(fl_py_destination *self, PyObject *object, const fl_py_dlpack *dlpack,
                           int32_t device, bool has_copies)
{
    fl_err err;
    self->dlpack = *dlpack;
    Py_INCREF(dlpack->tensor_type);
    self->device = device;
    self->ops = device >= 0 ? &fl_cuda_transfer_ops : &fl_cpu_transfer_ops;
    self->allocate = PyObject_GetAttrString(object, "allocate");
    if (self->allocate != NULL) self->split = PyObject_GetAttrString(object, "split");
    if (self->split == NULL) return -1;
    if (!has_copies || self->copy_stream != NULL) return 0;
    return fl_py_check(self->ops->open(device, &self->copy_stream, &err), &err, NULL);
}

int fl_py_destination_traverse(const fl_py_destination *self, visitproc visit, void *arg)
{
    Py_VISIT(self->allocate);
    Py_VISIT(self->split);
    return 0;
}

void fl_py_destination_close(fl_py_destination *self)
{
    if (self->copy_stream != NULL) self->ops->close(self->copy_stream);
    self->copy_stream = NULL;
    Py_CLEAR(self->allocate);
    Py_CLEAR(self->split);
    fl_py_dlpack_close(&self->dlpack);
}

/* Finds torch's current stream of the device; NULL for host memory. */
static int find_stream(const fl_py_destination *self, void **out)
{
    *out = NULL;
    return self->device >= 0 ? fl_py_stream(&self->dlpack, self->device, out) : 0;
}

static int
set_buffer(const fl_py_destination *self, void *transfer, fl_dest_buffer *buffer, bool *is_filled)
{
    fl_err err;
    void *data = fl_py_buffer_address(&self->dlpack, buffer->owner, self->device, buffer->bytes);
    if (data == NULL || find_stream(self, &buffer->stream) != 0) return -1;
    buffer->target = transfer != NULL ? transfer : data;
    if (transfer == NULL) return 0;
    return fl_py_check(self->ops->set_buffer(transfer, data, buffer->stream, is_filled, &err), &err,
                       NULL);
}

int fl_py_destination_allocate(const fl_py_destination *self, void *transfer, int64_t bytes,
                               fl_dest_buffer *out, bool *is_filled)
{
    fl_dest_buffer buffer = {.ops = self->ops, .bytes = fl_max(bytes, 1), .copied = bytes};
    PyObject *owner = PyObject_CallFunction(self->allocate, "L", (long long)buffer.bytes);
    if (owner == NULL) return -1;
    buffer.owner = owner;
    *is_filled = false;
    if (set_buffer(self, transfer, &buffer, is_filled) == 0) {
        *out = buffer;
        return 0;
    }
    Py_DECREF(owner);
    return -1;
}

int fl_py_destination_new_buffer(const fl_py_destination *self, int64_t bytes, fl_dest_buffer *out)
{
    fl_err err;
    void *transfer;
    /* A new transfer has no filled parts, so this stays false. */
    bool is_filled;
    if (fl_py_check(self->ops->get(self->copy_stream, 1, &transfer, &err), &err, NULL) != 0)
        return -1;
    if (fl_py_destination_allocate(self, transfer, bytes, out, &is_filled) == 0) return 0;
    self->ops->cancel(transfer);
    return -1;
}

/* Releases the interpreter lock, because pinning the slot may take long. */
static int start_copy(const fl_py_destination *self, void *transfer, fl_slot *slot, int64_t bytes)
{
    fl_err err;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = self->ops->start(transfer, slot, bytes, &err);
    Py_END_ALLOW_THREADS
    return fl_py_check(status, &err, NULL);
}

int fl_py_destination_finish(const fl_py_destination *self, const fl_dest_buffer *buffer,
                             fl_slot *slot, int64_t bytes)
{
    fl_err err;
    void *stream, *transfer = buffer->target;
    if (!self->ops->is_started(transfer) && start_copy(self, transfer, slot, bytes) != 0) return -1;
    if (find_stream(self, &stream) != 0) return -1;
    if (self->ops->finish(transfer, slot, bytes, stream, &err) == FL_OK)
        return stream != buffer->stream;
    fl_py_raise(&err, NULL);
    return -1;
}

static void drop_owner(const fl_dest_buffer *buffer)
{
    PyObject *owner = buffer->owner;
    Py_DECREF(owner);
}

void fl_py_destination_cancel(const fl_py_destination *self, const fl_dest_buffer *buffer)
{
    if (self->copy_stream != NULL) self->ops->cancel(buffer->target);
    drop_owner(buffer);
}

void fl_py_destination_abandon(const fl_py_destination *self, const fl_dest_buffer *buffer,
                               fl_slot *slot)
{
    self->ops->abandon(buffer->target, slot, buffer->stream);
    drop_owner(buffer);
}

PyObject *fl_py_destination_split(const fl_py_destination *self, PyObject *buffer, PyObject *places,
                                  bool is_other_stream)
{
    PyObject *tensors = PyObject_CallFunctionObjArgs(self->split, buffer, places,
                                                     is_other_stream ? Py_True : Py_False, NULL);
    if (tensors == NULL) return NULL;
    if (PyList_CheckExact(tensors) && PyList_GET_SIZE(tensors) == PyList_GET_SIZE(places))
        return tensors;
    Py_DECREF(tensors);
    PyErr_SetString(PyExc_TypeError, "split must return a list of one tensor for each place");
    return NULL;
}
