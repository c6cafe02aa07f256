/* fl_py_reply: the heap type _core.Reply, a batch that a worker process has built.
 *
 * Its pickled part is read by Python; tensors in it are made over the slot, or at the destination.
 * All methods need the interpreter lock. */
#include "fl_py_reply.h"

#include "fl_hash.h"
#include "fl_py_batch_codec.h"
#include "fl_py_reply_destination.h"

#include <string.h>

/* A field this small that is a small part of its batch gets memory of its own: a user who keeps
 * the labels of an epoch must not keep its images with them. */
enum { SMALL_FIELD = 64 * 1024, SMALL_PART = 8 };

PyObject *fl_py_reply_new(fl_py_parent_end *parent_end, fl_request *request)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(parent_end));
    fl_py_reply *self = (fl_py_reply *)state->reply_type->tp_alloc(state->reply_type, 0);
    if (self == NULL) {
        fl_inflight_drop(parent_end->inflight, request);
        return NULL;
    }
    self->parent_end = (fl_py_parent_end *)Py_NewRef((PyObject *)parent_end);
    self->request = request;
    return (PyObject *)self;
}

/* Where there is a destination slots are not lent: they may be pinned, and what is not delivered is
 * copied out of them. */
static void open_reply(fl_py_reply *self)
{
    if (self->is_open) return;
    self->is_open = true;
    self->is_lent = self->parent_end->copier == NULL;
    if (self->is_lent) fl_slot_lend(self->request->slot, 1);
    fl_inflight_release(self->parent_end->inflight, self->request);
}

/* Unless the table does it, with the request. */
static void give_slot_back(fl_py_reply *self)
{
    fl_slot *slot = self->request->slot;
    if (self->is_lent)
        fl_slot_give(slot);
    else if (self->buffer.owner != NULL)
        fl_py_reply_destination_abandon(self->parent_end, &self->buffer, slot);
    else
        return;
    self->request->slot = NULL;
}

static void reply_dealloc(fl_py_reply *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    give_slot_back(self);
    fl_inflight_drop(self->parent_end->inflight, self->request);
    Py_XDECREF(self->memory);
    fl_free(self->head);
    Py_DECREF(self->parent_end);
    type->tp_free(self);
    Py_DECREF(type);
}

static int reply_traverse(fl_py_reply *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->parent_end);
    Py_VISIT(self->memory);
    return 0;
}

PyDoc_STRVAR(open_doc,
             "open()\n--\n\n"
             "The pickled part of the batch, which counts no longer. Tensors that tensor()\n"
             "makes share its memory, which is free again when the last of them dies.");

/* Copies the pickled part to `to`: its worker may go on writing to the slot. */
static int copy_head(fl_py_reply *self, char *to)
{
    const fl_reply_message *reply = &self->request->reply;
    const char *from = self->head;
    if (from == NULL) from = fl_slot_data(self->request->slot) + reply->head;
    memcpy(to, from, (size_t)reply->head_bytes);
    if (fl_hash(to, reply->head_bytes) == reply->head_check) return 0;
    fl_py_report_corruption(self->parent_end, reply->worker);
    return -1;
}

/* Has a copy in self->head. */
static int keep_head(fl_py_reply *self)
{
    if (self->head != NULL) return 0;
    char *head = fl_alloc(fl_max(self->request->reply.head_bytes, 1));
    if (head == NULL) PyErr_NoMemory();
    if (head != NULL && copy_head(self, head) != 0) {
        fl_free(head);
        head = NULL;
    }
    self->head = head;
    return head != NULL ? 0 : -1;
}

static PyObject *reply_open(fl_py_reply *self, PyObject *Py_UNUSED(ignored))
{
    open_reply(self);
    PyObject *head = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->request->reply.head_bytes);
    if (head != NULL && copy_head(self, PyBytes_AS_STRING(head)) != 0) Py_CLEAR(head);
    return head;
}

PyDoc_STRVAR(
    deliver_doc,
    "deliver(allocate, /)\n--\n\n"
    "The memory at the destination that holds the batch from now on (on a device, for the\n"
    "current stream), made by allocate(bytes) unless the batch was copied already, and\n"
    "whether it is another stream's. Opens the reply, whose tensors then have places in\n"
    "that memory. It may be called again, also if it raised: RuntimeError or MemoryError.");

static PyObject *describe_delivery(const fl_py_reply *self)
{
    return Py_BuildValue("ON", self->memory, PyBool_FromLong(self->is_other_stream));
}

static PyObject *reply_deliver(fl_py_reply *self, PyObject *allocate)
{
    if (fl_py_parent_end_is_foreign(self->parent_end))
        return PyErr_Format(PyExc_RuntimeError, "this batch belongs to a parent process");
    if (self->memory != NULL) return describe_delivery(self);
    if (self->is_open || self->is_moving || self->request->reply.upload == 0 ||
        self->parent_end->copier == NULL)
        return PyErr_Format(
            PyExc_ValueError,
            "it cannot be delivered: it is open, on its way, or has no destination");
    /* Before the slot goes. */
    if (keep_head(self) != 0) return NULL;
    self->is_moving = true; /* the interpreter lock is let go of, and Python code is called */
    int is_other_stream = fl_py_reply_destination_deliver(self, allocate);
    self->is_moving = false;
    if (is_other_stream < 0) return NULL;
    self->memory = self->buffer.owner;
    self->is_other_stream = is_other_stream == 1;
    self->buffer.owner = NULL;
    self->request->slot = NULL;
    self->is_open = true;
    fl_inflight_release(self->parent_end->inflight, self->request);
    return describe_delivery(self);
}

static bool parse_shape(PyObject *args, int32_t ndim, int64_t *shape)
{
    for (int32_t d = 0; d < ndim; d++) {
        shape[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(args, 2 + d));
        if (shape[d] < 0) return false;
    }
    return true;
}

/* Strides overflow where a size of 0 hides that the others do. */
static bool is_shape(int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int32_t d = 0; d < ndim; d++)
        if (shape[d] < 0 || !fl_mul(count, fl_max(shape[d], 1), &count)) return false;
    return ndim >= 0;
}

/* A tensor at a place in an opened reply: over its memory, or a copy if it is a small part of it or
 * the slot is not lent. ValueError if it does not lie inside. New reference. */
static PyObject *make_tensor(const fl_py_reply *self, int64_t offset, fl_dtype dtype, int32_t ndim,
                             const int64_t *shape)
{
    const fl_py_dlpack *dlpack = &self->parent_end->dlpack;
    fl_slot *slot = self->request->slot;
    int64_t used = self->request->reply.used;
    int64_t bytes = is_shape(ndim, shape) ? fl_tensor_bytes(dtype, ndim, shape) : -1;
    if (bytes < 0 || offset < 0 || offset > used - bytes || slot == NULL)
        return PyErr_Format(PyExc_ValueError, "no such tensor in a batch of %lld bytes",
                            (long long)used);
    char *data = fl_slot_data(slot) + offset;
    if (self->is_lent && (bytes > SMALL_FIELD || bytes > used / SMALL_PART))
        return fl_py_tensor_at(dlpack, slot, data, dtype, ndim, shape);
    char *copy;
    PyObject *tensor = fl_py_tensor_new(dlpack, dtype, ndim, shape, &copy);
    if (tensor != NULL && bytes > 0) memcpy(copy, data, (size_t)bytes);
    return tensor;
}

PyDoc_STRVAR(tensor_doc,
             "tensor(place, /)\n--\n\n"
             "A tensor at a place in the opened batch: (offset, dtype, *shape), where dtype is\n"
             "DLPack's code * 256 + bits.");

static PyObject *reply_tensor(fl_py_reply *self, PyObject *place)
{
    int64_t shape[FL_MAX_NDIM], offset, code;
    Py_ssize_t size = PyTuple_Check(place) ? PyTuple_GET_SIZE(place) : 0;
    if (size < 2 || size > FL_MAX_NDIM + 2 || !self->is_open)
        return PyErr_Format(PyExc_ValueError, "%R is not a place in an opened batch", place);
    offset = PyLong_AsLongLong(PyTuple_GET_ITEM(place, 0));
    code = PyLong_AsLongLong(PyTuple_GET_ITEM(place, 1));
    int32_t ndim = (int32_t)size - 2;
    bool is_fine = parse_shape(place, ndim, shape);
    if (PyErr_Occurred()) return NULL;
    if (!is_fine) ndim = -1;
    fl_dtype dtype = {(uint8_t)(code >> 8), (uint8_t)code, 1};
    return make_tensor(self, offset, dtype, ndim, shape);
}

PyDoc_STRVAR(load_doc,
             "load(make, /)\n--\n\n"
             "The batch, if WorkerEnd.write() has written it; opens the reply. Tensors are\n"
             "made by make(place), as by tensor() if it is None.");

static PyObject *
make_over_slot(void *context, int64_t offset, fl_dtype dtype, int32_t ndim, const int64_t *shape)
{
    return make_tensor(context, offset, dtype, ndim, shape);
}

/* By a Python function of the place. */
static PyObject *
make_by_call(void *context, int64_t offset, fl_dtype dtype, int32_t ndim, const int64_t *shape)
{
    PyObject *place = fl_py_place(offset, dtype, ndim, shape);
    PyObject *tensor = place != NULL ? PyObject_CallOneArg(context, place) : NULL;
    Py_XDECREF(place);
    return tensor;
}

static PyObject *reply_load(fl_py_reply *self, PyObject *make)
{
    open_reply(self);
    if (keep_head(self) != 0) return NULL;
    fl_py_reader reader = {.data = self->head,
                           .bytes = self->request->reply.head_bytes,
                           .make = make != Py_None ? make_by_call : make_over_slot,
                           .context = make != Py_None ? (void *)make : self};
    PyObject *batch = fl_py_read_batch(&reader);
    if (batch != NULL || PyErr_Occurred()) return batch;
    return fl_py_report_corruption(self->parent_end, self->request->reply.worker);
}

PyDoc_STRVAR(kind_doc, "what its pickled part is, as given to WorkerEnd.answer()");

static PyObject *reply_kind(fl_py_reply *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(self->request->reply.kind);
}

PyDoc_STRVAR(upload_doc, "how many bytes of it may be delivered; 0: it has to stay");

static PyObject *reply_upload(fl_py_reply *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->request->reply.upload);
}

static PyGetSetDef reply_getset[] = {{"kind", (getter)reply_kind, NULL, kind_doc, NULL},
                                     {"upload", (getter)reply_upload, NULL, upload_doc, NULL},
                                     {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef reply_methods[] = {{"open", (PyCFunction)reply_open, METH_NOARGS, open_doc},
                                      {"deliver", (PyCFunction)reply_deliver, METH_O, deliver_doc},
                                      {"load", (PyCFunction)reply_load, METH_O, load_doc},
                                      {"tensor", (PyCFunction)reply_tensor, METH_O, tensor_doc},
                                      {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(reply_doc, "A batch that a worker process has built; made by ParentEnd.receive().");

static PyType_Slot reply_slots[] = {
    {Py_tp_doc, (void *)reply_doc},   {Py_tp_dealloc, reply_dealloc},
    {Py_tp_traverse, reply_traverse}, {Py_tp_methods, reply_methods},
    {Py_tp_getset, reply_getset},     {0, NULL}};

PyType_Spec fl_py_reply_spec = {.name = "fastloop._core.Reply",
                                .basicsize = sizeof(fl_py_reply),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                         Py_TPFLAGS_IMMUTABLETYPE |
                                         Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                .slots = reply_slots};
