/* fl_py_host_range: see fl_py_host_range.h. */
#include "fl_py_host_range.h"

#include "fl_py.h"

#include <stdatomic.h>
#include <stddef.h>
#include <structmember.h>

/* Returns the bytes from the first element to the end of the last one. torch has no negative
 * strides. */
static int64_t find_span(const fl_tensor *view)
{
    int64_t bytes = fl_dtype_bytes(view->dtype);
    for (int32_t d = 0; d < view->ndim; d++) {
        if (view->shape[d] == 0) return 0;
        bytes += (view->shape[d] - 1) * view->stride[d];
    }
    return bytes;
}

static bool covers(const fl_py_host_range *self, const char *data, int64_t bytes)
{
    return bytes == 0 || (data >= self->data && data + bytes <= self->data + self->bytes);
}

/* Extends the host range by a source that overlaps the host range, as columns of one table do; then
 * sets *is_larger. */
static int add_overlap(fl_py_host_range *self, Py_ssize_t i, bool *is_larger)
{
    fl_tensor view;
    if (fl_py_tensor_view(&self->dlpack, PyTuple_GET_ITEM(self->sources, i), &view) != 0) return -1;
    const char *end = self->data + self->bytes, *data = view.data;
    int64_t bytes = find_span(&view);
    if (covers(self, data, bytes) || data >= end || data + bytes <= self->data) return 0;
    *is_larger = true;
    if (data + bytes > end) end = data + bytes;
    if (data < self->data) self->data = data;
    self->bytes = end - self->data;
    return 0;
}

static int find_bytes(fl_py_host_range *self, Py_ssize_t first)
{
    fl_tensor view;
    bool is_larger = true;
    if (fl_py_tensor_view(&self->dlpack, PyTuple_GET_ITEM(self->sources, first), &view) != 0)
        return -1;
    self->data = view.data;
    self->bytes = find_span(&view);
    while (is_larger) {
        is_larger = false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->sources); i++)
            if (add_overlap(self, i, &is_larger) != 0) return -1;
    }
    return 0;
}

static int open_range(fl_py_host_range *self, int device)
{
    fl_err err;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_host_range_open(device, (char *)(uintptr_t)self->data, self->bytes,
                                     &self->range, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK && fl_cuda_host_range_is_registered(self->range))
        self->locked = self->bytes;
    return fl_py_check(status, &err, NULL);
}

static PyObject *range_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "sources", "first", "device", NULL};
    PyObject *tensor_type, *sources;
    Py_ssize_t first;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!ni:HostRange", keywords, &tensor_type,
                                     &PyTuple_Type, &sources, &first, &device))
        return NULL;
    if (first < 0 || first >= PyTuple_GET_SIZE(sources))
        return PyErr_Format(PyExc_IndexError, "first must be in [0, %zd), got %zd",
                            PyTuple_GET_SIZE(sources), first);
    fl_py_host_range *self = (fl_py_host_range *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->sources = Py_NewRef(sources);
    if (fl_py_dlpack_open(tensor_type, &self->dlpack) == 0 && find_bytes(self, first) == 0 &&
        open_range(self, device) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int range_traverse(fl_py_host_range *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->dlpack.tensor_type);
    Py_VISIT(self->sources);
    return 0;
}

/* There is no tp_clear: the device may still read the sources. The collector breaks a cycle at the
 * attributes of a tensor. */

/* Waits for the device, without the interpreter lock. */
static void range_dealloc(fl_py_host_range *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    Py_BEGIN_ALLOW_THREADS
    fl_cuda_host_range_close(self->range);
    Py_END_ALLOW_THREADS
    Py_XDECREF(self->sources);
    fl_py_dlpack_close(&self->dlpack);
    fl_py_free(self);
}

int fl_py_host_range_view(const fl_py_host_range *self, PyObject *tensor, fl_tensor *out)
{
    if (fl_py_tensor_view(&self->dlpack, tensor, out) != 0) return -1;
    if (!covers(self, out->data, find_span(out))) {
        PyErr_SetString(
            PyExc_ValueError,
            "the data have moved, and the device still reads the old memory; take a new iterator");
        return -1;
    }
    out->data =
        (const char *)((uintptr_t)out->data + (uintptr_t)fl_cuda_host_range_shift(self->range));
    return 0;
}

PyDoc_STRVAR(covers_doc, "covers(tensor, /)\n--\n\n"
                         "Return True if all elements of the tensor lie in the range.");

static PyObject *range_covers(fl_py_host_range *self, PyObject *tensor)
{
    fl_tensor view;
    if (fl_py_tensor_view(&self->dlpack, tensor, &view) != 0) return NULL;
    return PyBool_FromLong(covers(self, view.data, find_span(&view)));
}

PyDoc_STRVAR(fence_doc, "fence()\n--\n\n"
                        "Wait until the devices have read the rows of all batches that were taken\n"
                        "(SYNC). Then the rows may be written. Raises torch.AcceleratorError.");

static PyObject *range_fence(fl_py_host_range *self, PyObject *Py_UNUSED(ignored))
{
    fl_err err;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_host_range_fence(self->range, &err);
    Py_END_ALLOW_THREADS
    if (fl_py_check(status, &err, NULL) != 0) return NULL;
    atomic_fetch_add_explicit(&self->fences, 1, memory_order_relaxed); /* nothing depends on it */
    Py_RETURN_NONE;
}

PyDoc_STRVAR(doc,
             "HostRange(tensor_type, sources, first, device)\n--\n\n"
             "The memory of the CPU tensor sources[first], and of all tensors in `sources`\n"
             "that overlap this memory. The memory is registered with the driver through\n"
             "`device`, so that kernels of CUDA devices read it over the link, until the\n"
             "object is deleted. Deleting waits for the devices (SYNC). Raises MemoryError or\n"
             "torch.AcceleratorError if the memory cannot be registered.");

static PyMethodDef methods[] = {{"covers", (PyCFunction)range_covers, METH_O, covers_doc},
                                {"fence", (PyCFunction)range_fence, METH_NOARGS, fence_doc},
                                {NULL, NULL, 0, NULL}};

static PyMemberDef members[] = {
    {"sources", T_OBJECT_EX, offsetof(fl_py_host_range, sources), READONLY, "the tensors"},
    {"locked", T_LONGLONG, offsetof(fl_py_host_range, locked), READONLY,
     "the bytes that are registered with the driver"},
    {"fences", T_LONGLONG, offsetof(fl_py_host_range, fences), READONLY,
     "the number of calls of fence() so far"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fl_py_host_range, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_doc, (void *)doc},
                              {Py_tp_new, range_new},
                              {Py_tp_traverse, range_traverse},
                              {Py_tp_dealloc, range_dealloc},
                              {Py_tp_methods, methods},
                              {Py_tp_members, members},
                              {0, NULL}};

PyType_Spec fl_py_host_range_spec =
    FL_PY_SPEC("HostRange", fl_py_host_range, Py_TPFLAGS_HAVE_GC, slots);
