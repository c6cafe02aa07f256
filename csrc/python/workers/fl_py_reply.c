/* fl_py_reply: the heap type _core.Reply, a batch that a worker process has built.
 *
 * Its pickled part is read by Python; tensors in it are asked for here and made over the slot.
 * Until it is opened its memory counts towards the budget of the ring. */
#include "fl_py_parent_end.h"

#include "fl_hash.h"
#include "fl_thread.h"

#include <string.h>

/* A field this small that is a small part of its batch gets memory of its own: a user who keeps
 * the labels of an epoch must not keep its images with them. */
enum { SMALL_FIELD = 64 * 1024, SMALL_PART = 8 };

/* Where batches land slots are not lent: they may be pinned, and what does not land is copied. */
static void open_parcel(fl_py_reply *self)
{
    if (self->is_open) return;
    self->is_open = true;
    self->is_lent = ((fl_py_parent_end *)self->hub)->courier == NULL;
    if (self->is_lent) fl_slot_lend(self->slot, 1);
    fl_py_parent_end_release(self->hub, self->limit);
}

static void give_slot_back(fl_py_reply *self)
{
    if (self->is_lent)
        fl_slot_give(self->slot);
    else if (self->berth.owner != NULL)
        fl_py_reply_destination_abandon((fl_py_parent_end *)self->hub, &self->berth, self->slot);
    else if (!fl_py_reply_destination_end((fl_py_parent_end *)self->hub, self->errand, self->slot))
        fl_slot_return(self->slot);
}

static void parcel_dealloc(fl_py_reply *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    give_slot_back(self);
    if (!self->is_open) fl_py_parent_end_release(self->hub, self->limit);
    Py_XDECREF(self->block);
    fl_free(self->head);
    fl_py_dlpack_close(&self->door);
    Py_XDECREF(self->hub);
    type->tp_free(self);
    Py_DECREF(type);
}

static int parcel_traverse(fl_py_reply *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->hub);
    Py_VISIT(self->block);
    Py_VISIT(self->door.tensor_type);
    return 0;
}

PyDoc_STRVAR(open_doc, "open()\n--\n\n"
                       "Take the batch out of the ring: its pickled part. Tensors that tensor()\n"
                       "makes share its memory, which is free again when the last of them dies.");

/* Copies the pickled part to `to`, because its worker may go on writing. */
static int copy_head(fl_py_reply *self, char *to)
{
    size_t bytes = (size_t)self->reply.head_bytes;
    const char *from = self->head;
    if (from == NULL) from = fl_slot_data(self->slot) + self->reply.head;
    memcpy(to, from, bytes);
    if (fl_hash(to, self->reply.head_bytes) == self->reply.head_check) return 0;
    fl_py_parent_end_blame((fl_py_parent_end *)self->hub, self->reply.worker);
    return -1;
}

/* Has a copy in self->head. */
static int keep_head(fl_py_reply *self)
{
    if (self->head != NULL) return 0;
    char *head = fl_alloc(fl_max(self->reply.head_bytes, 1));
    if (head == NULL) PyErr_NoMemory();
    if (head != NULL && copy_head(self, head) != 0) {
        fl_free(head);
        head = NULL;
    }
    self->head = head;
    return head != NULL ? 0 : -1;
}

static PyObject *parcel_open(fl_py_reply *self, PyObject *Py_UNUSED(ignored))
{
    open_parcel(self);
    PyObject *head = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->reply.head_bytes);
    if (head != NULL && copy_head(self, PyBytes_AS_STRING(head)) != 0) Py_CLEAR(head);
    return head;
}

PyDoc_STRVAR(land_doc,
             "land(new_block, /)\n--\n\n"
             "The block that holds the batch from now on (on a device, for the current stream),\n"
             "made by new_block(bytes) unless the batch was carried already, and whether it is\n"
             "another stream's. Opens the parcel, whose tensors then have places in the block. It\n"
             "may be called again, also if it raised: RuntimeError or MemoryError.");

static PyObject *describe_landing(const fl_py_reply *self)
{
    return Py_BuildValue("ON", self->block, PyBool_FromLong(self->is_elsewhere));
}

static PyObject *parcel_land(fl_py_reply *self, PyObject *new_block)
{
    fl_py_parent_end *hub = (fl_py_parent_end *)self->hub;
    if (hub->generation != fl_fork_generation())
        return PyErr_Format(PyExc_RuntimeError, "this batch belongs to a parent process");
    if (self->block != NULL) return describe_landing(self);
    if (self->is_open || self->is_landing || self->reply.upload == 0 || hub->courier == NULL)
        return PyErr_Format(PyExc_ValueError, "it cannot land: it is open, landing or to stay");
    /* Before the slot goes. */
    if (keep_head(self) != 0) return NULL;
    self->is_landing = true; /* the interpreter lock is let go of, and Python code is called */
    int is_elsewhere = fl_py_reply_destination_land(self, new_block);
    self->is_landing = false;
    if (is_elsewhere < 0) return NULL;
    self->block = self->berth.owner;
    self->is_elsewhere = is_elsewhere == 1;
    self->berth.owner = NULL;
    self->slot = NULL;
    self->is_open = true;
    fl_py_parent_end_release(self->hub, self->limit);
    return describe_landing(self);
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

PyObject *fl_py_reply_tensor(const fl_py_reply *self, int64_t offset, fl_dtype dtype, int32_t ndim,
                             const int64_t *shape)
{
    int64_t bytes = is_shape(ndim, shape) ? fl_tensor_bytes(dtype, ndim, shape) : -1;
    if (bytes < 0 || offset < 0 || offset > self->reply.used - bytes || self->slot == NULL)
        return PyErr_Format(PyExc_ValueError, "no such tensor in a batch of %lld bytes",
                            (long long)self->reply.used);
    char *data = fl_slot_data(self->slot) + offset;
    if (self->is_lent && (bytes > SMALL_FIELD || bytes > self->reply.used / SMALL_PART))
        return fl_py_tensor_at(&self->door, self->slot, data, dtype, ndim, shape);
    char *copy;
    PyObject *tensor = fl_py_tensor_new(&self->door, dtype, ndim, shape, &copy);
    if (tensor != NULL && bytes > 0) memcpy(copy, data, (size_t)bytes);
    return tensor;
}

PyDoc_STRVAR(tensor_doc,
             "tensor(place, /)\n--\n\n"
             "A tensor at a place in the opened batch: (offset, dtype, *shape), where dtype is\n"
             "DLPack's code * 256 + bits.");

static PyObject *parcel_tensor(fl_py_reply *self, PyObject *place)
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
    return fl_py_reply_tensor(self, offset, dtype, ndim, shape);
}

PyDoc_STRVAR(load_doc,
             "load(make, /)\n--\n\n"
             "The batch, if WorkerEnd.write() has written it; opens the parcel. Tensors are\n"
             "made by make(place), as by tensor() if it is None.");

static PyObject *parcel_load(fl_py_reply *self, PyObject *make)
{
    open_parcel(self);
    if (keep_head(self) != 0) return NULL;
    fl_py_reader reader = {.parcel = self,
                           .make = make != Py_None ? make : NULL,
                           .data = self->head,
                           .bytes = self->reply.head_bytes};
    PyObject *batch = fl_py_read_batch(&reader);
    if (batch != NULL || PyErr_Occurred()) return batch;
    return fl_py_parent_end_blame((fl_py_parent_end *)self->hub, self->reply.worker);
}

PyDoc_STRVAR(kind_doc, "what its pickled part is, as given to WorkerEnd.answer()");

static PyObject *parcel_kind(fl_py_reply *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(self->reply.kind);
}

PyDoc_STRVAR(upload_doc, "how many bytes of it may land; 0: it does not");

static PyObject *parcel_upload(fl_py_reply *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->reply.upload);
}

static PyGetSetDef parcel_getset[] = {{"kind", (getter)parcel_kind, NULL, kind_doc, NULL},
                                      {"upload", (getter)parcel_upload, NULL, upload_doc, NULL},
                                      {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef parcel_methods[] = {{"open", (PyCFunction)parcel_open, METH_NOARGS, open_doc},
                                       {"land", (PyCFunction)parcel_land, METH_O, land_doc},
                                       {"load", (PyCFunction)parcel_load, METH_O, load_doc},
                                       {"tensor", (PyCFunction)parcel_tensor, METH_O, tensor_doc},
                                       {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(parcel_doc, "A batch that a worker process has built; made by ParentEnd.take().");

static PyType_Slot parcel_slots[] = {
    {Py_tp_doc, (void *)parcel_doc},   {Py_tp_dealloc, parcel_dealloc},
    {Py_tp_traverse, parcel_traverse}, {Py_tp_methods, parcel_methods},
    {Py_tp_getset, parcel_getset},     {0, NULL}};

PyType_Spec fl_py_reply_spec = {.name = "fastloop._core.Reply",
                                .basicsize = sizeof(fl_py_reply),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                         Py_TPFLAGS_IMMUTABLETYPE |
                                         Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                .slots = parcel_slots};
