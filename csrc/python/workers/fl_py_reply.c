/* fl_py_reply: the heap type _core.Reply, a batch that a worker process has built.
 *
 * Python unpickles the pickled part. The tensors of a batch are made over the slot, or at the
 * destination. All methods need the interpreter lock and run in the section of the parent end. */
#include "fl_py_reply.h"

#include "fl_py.h"
#include "fl_hash.h"
#include "fl_py_batch_codec.h"
#include "fl_py_put.h"
#include "fl_py_tensor_slot.h"
#include "fl_py_section.h"

#include <string.h>

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

/* If there is a destination, slots are not lent: a slot may be pinned, and batches that are not
 * delivered are copied out of their slots. */
static void open_reply(fl_py_reply *self)
{
    if (self->is_open) return;
    self->is_open = true;
    self->is_lent = !fl_py_reply_destination_is_open(&self->parent_end->destination);
    if (self->is_lent) fl_slot_lend(self->request->slot, 1);
    fl_inflight_release(self->parent_end->inflight, self->request);
}

/* Gives the slot back if the slot is lent or copied to a buffer. Otherwise the table gives the slot
 * back together with the request. */
static void give_slot_back(fl_py_reply *self)
{
    fl_slot *slot = self->request->slot;
    if (self->is_lent)
        fl_slot_give(slot);
    else if (self->buffer.owner != NULL)
        fl_py_destination_abandon(&self->parent_end->destination.base, &self->buffer, slot);
    else
        return;
    self->request->slot = NULL;
}

static void reply_dealloc(fl_py_reply *self)
{
    PyObject_GC_UnTrack(self);
    FL_PY_BEGIN_SECTION((PyObject *)self->parent_end);
    give_slot_back(self);
    fl_inflight_drop(self->parent_end->inflight, self->request);
    FL_PY_END_SECTION();
    Py_XDECREF(self->memory);
    fl_free(self->head);
    Py_DECREF(self->parent_end);
    fl_py_free(self);
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
             "Open the reply, and return the pickled part of the batch. The batch then no\n"
             "longer counts towards the memory budget. Tensors from split() share the batch's\n"
             "memory; the memory is free again after the last of these tensors is gone.");

/* Copies the pickled part to `to` before checking the hash: the worker may go on writing to the
 * slot. */
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

/* Makes sure that self->head holds a copy of the pickled part: 0, or -1 and an exception. */
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

/* Makes sure that self->buffer holds a copy of the batch: 0, or -1 and an exception. Waits for a
 * running copy without the interpreter lock. */
static int copy_batch(fl_py_reply *self)
{
    fl_py_parent_end *parent_end = self->parent_end;
    const fl_reply_message *reply = &self->request->reply;
    Py_BEGIN_ALLOW_THREADS
    /* If a later step fails, the buffer keeps the batch, and the next call skips this step. */
    if (self->buffer.owner == NULL)
        (void)fl_inflight_finish(parent_end->inflight, self->request, &self->buffer);
    Py_END_ALLOW_THREADS
    if (self->buffer.owner == NULL)
        return fl_py_reply_destination_copy(&parent_end->destination, self->request->slot,
                                            reply->upload, &self->buffer);
    if (self->buffer.copied == reply->upload) return 0;
    (void)fl_py_report_corruption(parent_end, reply->worker);
    return -1;
}

/* Moves the batch to self->memory: 0, or -1 and an exception. */
static int move_batch(fl_py_reply *self)
{
    /* The pickled part must be copied before the slot is given back. */
    if (keep_head(self) != 0 || copy_batch(self) != 0) return -1;
    int is_other_stream =
        fl_py_destination_finish(&self->parent_end->destination.base, &self->buffer,
                                 self->request->slot, self->request->reply.upload);
    if (is_other_stream < 0) return -1;
    self->memory = self->buffer.owner;
    self->is_other_stream = is_other_stream == 1;
    self->buffer.owner = NULL;
    self->request->slot = NULL;
    self->is_open = true;
    fl_inflight_release(self->parent_end->inflight, self->request);
    return 0;
}

/* Tells the allocator about the current stream. This must happen before any further step can
 * fail. */
static int note_stream(const fl_py_reply *self)
{
    if (!self->is_other_stream) return 0;
    PyObject *none = PyList_New(0);
    PyObject *tensors = none != NULL ? fl_py_destination_split(&self->parent_end->destination.base,
                                                               self->memory, none, true)
                                     : NULL;
    Py_XDECREF(none);
    Py_XDECREF(tensors);
    return tensors != NULL ? 0 : -1;
}

PyDoc_STRVAR(deliver_doc,
             "deliver()\n--\n\n"
             "Move the batch to its destination, for the current stream, and open the reply;\n"
             "its tensors then lie at the destination. Releases the interpreter lock. Raises\n"
             "RuntimeError or MemoryError; after an error, and after success, the call may be\n"
             "repeated.");

static PyObject *reply_deliver(fl_py_reply *self, PyObject *Py_UNUSED(ignored))
{
    if (fl_py_parent_end_is_foreign(self->parent_end))
        return PyErr_Format(PyExc_RuntimeError, "this batch belongs to a parent process");
    if (self->memory == NULL) {
        if (self->is_open || self->is_moving || self->request->reply.upload == 0 ||
            !fl_py_reply_destination_is_open(&self->parent_end->destination))
            return PyErr_Format(PyExc_ValueError,
                                "deliver() needs an unopened reply with a destination");
        /* move_batch releases the interpreter lock and calls Python code. */
        self->is_moving = true;
        int status = move_batch(self);
        self->is_moving = false;
        if (status != 0) return NULL;
    }
    if (note_stream(self) != 0) return NULL;
    Py_RETURN_NONE;
}

/* Returns true if these sizes make a shape. A size of 0 makes the tensor empty, but the strides of
 * the other sizes may still overflow; the check counts 0 as 1. */
static bool is_shape(int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int32_t d = 0; d < ndim; d++)
        if (shape[d] < 0 || !fl_mul(count, fl_max(shape[d], 1), &count)) return false;
    return ndim >= 0;
}

/* Makes a tensor at a slot in an opened reply. The tensor lies over the reply's memory; if the
 * slot is not lent, or the tensor is a small part of the batch, the tensor is a copy. ValueError if
 * the slot does not lie inside the batch. New reference. */
static PyObject *make_tensor(const fl_py_reply *self, int64_t offset, fl_dtype dtype, int32_t ndim,
                             const int64_t *shape)
{
    const fl_py_dlpack *dlpack = &self->parent_end->dlpack;
    fl_slot *slot = self->request->slot;
    int64_t used = self->request->reply.used;
    int64_t bytes = is_shape(ndim, shape) ? fl_tensor_bytes(dtype, ndim, shape) : -1;
    if (bytes < 0 || offset < 0 || offset > used - bytes || slot == NULL)
        return PyErr_Format(PyExc_ValueError, "a slot must lie within the batch of %lld bytes",
                            (long long)used);
    char *data = fl_slot_data(slot) + offset;
    if (self->is_lent && !fl_py_is_small_part(bytes, used))
        return fl_py_tensor_at(dlpack, slot, data, dtype, ndim, shape);
    char *copy;
    PyObject *tensor = fl_py_tensor_new(dlpack, dtype, ndim, shape, &copy);
    if (tensor != NULL && bytes > 0) memcpy(copy, data, (size_t)bytes);
    return tensor;
}

static PyObject *
make_over_slot(void *context, int64_t offset, fl_dtype dtype, int32_t ndim, const int64_t *shape)
{
    return make_tensor(context, offset, dtype, ndim, shape);
}

static PyObject *make_at(const fl_py_reply *self, PyObject *slot)
{
    fl_py_parsed_slot at;
    if (fl_py_tensor_slot_parse(slot, &at) != 0) return NULL;
    return make_tensor(self, at.offset, at.dtype, at.ndim, at.shape);
}

PyDoc_STRVAR(split_doc,
             "split(slots, /)\n--\n\n"
             "Return a list with the tensor at each slot in `slots`, a list of slots in the\n"
             "opened batch. After deliver() the tensors lie at the destination, otherwise in\n"
             "the shared memory. Raises ValueError for a slot outside the batch.");

static PyObject *reply_split(fl_py_reply *self, PyObject *slots)
{
    if (!PyList_Check(slots) || !self->is_open)
        return PyErr_Format(PyExc_ValueError, "split() needs a list of slots in an opened batch");
    if (self->memory != NULL)
        return fl_py_destination_split(&self->parent_end->destination.base, self->memory, slots,
                                       false);
    PyObject *tensors = PyList_New(PyList_GET_SIZE(slots));
    for (Py_ssize_t i = 0; tensors != NULL && i < PyList_GET_SIZE(tensors); i++)
        fl_py_put(&tensors, i, make_at(self, PyList_GET_ITEM(slots, i)));
    return tensors;
}

/* Tensors that reply_split has made, one for each slot of the batch. */
typedef struct made_tensors {
    PyObject *list; /* borrowed */
    Py_ssize_t next;
} made_tensors;

static PyObject *
take_next(void *context, int64_t offset, fl_dtype dtype, int32_t ndim, const int64_t *shape)
{
    made_tensors *made = context;
    (void)offset;
    (void)dtype;
    (void)ndim;
    (void)shape;
    return Py_NewRef(PyList_GET_ITEM(made->list, made->next++));
}

/* Reads a delivered batch. New reference; NULL without an exception: the bytes hold no batch. */
static PyObject *read_delivered(fl_py_reply *self)
{
    fl_py_reader reader = {.data = self->head, .bytes = self->request->reply.head_bytes};
    made_tensors made = {0};
    PyObject *slots = fl_py_list_slots(&reader);
    if (slots == NULL) return NULL;
    made.list = reply_split(self, slots);
    Py_DECREF(slots);
    if (made.list == NULL) return NULL;
    reader.at = 0;
    reader.make = take_next;
    reader.context = &made;
    PyObject *batch = fl_py_read_batch(&reader);
    Py_DECREF(made.list);
    return batch;
}

static PyObject *read_in_slot(fl_py_reply *self)
{
    fl_py_reader reader = {.data = self->head,
                           .bytes = self->request->reply.head_bytes,
                           .make = make_over_slot,
                           .context = self};
    return fl_py_read_batch(&reader);
}

PyDoc_STRVAR(load_doc,
             "load()\n--\n\n"
             "Open the reply, and return the batch. WorkerEnd.write() must have written the\n"
             "batch. Raises RuntimeError if the bytes hold no batch.");

static PyObject *reply_load(fl_py_reply *self, PyObject *Py_UNUSED(ignored))
{
    open_reply(self);
    if (keep_head(self) != 0) return NULL;
    PyObject *batch = self->memory != NULL ? read_delivered(self) : read_in_slot(self);
    if (batch != NULL || PyErr_Occurred()) return batch;
    return fl_py_report_corruption(self->parent_end, self->request->reply.worker);
}

PyDoc_STRVAR(kind_doc, "the kind of the pickled part, as given to WorkerEnd.answer()");

static PyObject *reply_kind(fl_py_reply *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(self->request->reply.kind);
}

PyDoc_STRVAR(upload_doc, "the number of bytes that deliver() may move; 0: the batch must stay");

static PyObject *reply_upload(fl_py_reply *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->request->reply.upload);
}

static PyGetSetDef reply_getset[] = {{"kind", (getter)reply_kind, NULL, kind_doc, NULL},
                                     {"upload", (getter)reply_upload, NULL, upload_doc, NULL},
                                     {NULL, NULL, NULL, NULL, NULL}};

#define IN_SECTION(name) FL_PY_METHOD_IN_SECTION(name, fl_py_reply, self->parent_end)
IN_SECTION(reply_open)
IN_SECTION(reply_deliver)
IN_SECTION(reply_load)
IN_SECTION(reply_split)

static PyMethodDef reply_methods[] = {
    {"open", (PyCFunction)reply_open_in_section, METH_NOARGS, open_doc},
    {"deliver", (PyCFunction)reply_deliver_in_section, METH_NOARGS, deliver_doc},
    {"load", (PyCFunction)reply_load_in_section, METH_NOARGS, load_doc},
    {"split", (PyCFunction)reply_split_in_section, METH_O, split_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(reply_doc,
             "A batch that a worker process has built. ParentEnd.receive() makes replies.");

static PyType_Slot reply_slots[] = {
    {Py_tp_doc, (void *)reply_doc},   {Py_tp_dealloc, reply_dealloc},
    {Py_tp_traverse, reply_traverse}, {Py_tp_methods, reply_methods},
    {Py_tp_getset, reply_getset},     {0, NULL}};

PyType_Spec fl_py_reply_spec = FL_PY_SPEC(
    "Reply", fl_py_reply, Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, reply_slots);
