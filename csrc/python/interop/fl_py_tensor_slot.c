/* fl_py_tensor_slot: see fl_py_tensor_slot.h. */
#include "fl_py_tensor_slot.h"

#include "fl_py_error.h"
#include "fl_py_put.h"

static PyObject *list_sizes(int32_t ndim, const int64_t *shape)
{
    PyObject *sizes = PyTuple_New(ndim);
    for (int32_t d = 0; sizes != NULL && d < ndim; d++)
        fl_py_put(&sizes, d, PyLong_FromLongLong(shape[d]));
    return sizes;
}

PyObject *fl_py_tensor_slot(int64_t offset, fl_dtype dtype, int32_t ndim, const int64_t *shape,
                            const int64_t *stride)
{
    int number = dtype.code * 256 + dtype.bits;
    PyObject *sizes = list_sizes(ndim, shape);
    if (sizes == NULL) return NULL;
    if (stride == NULL) return Py_BuildValue("(LiN)", (long long)offset, number, sizes);
    PyObject *steps = list_sizes(ndim, stride);
    if (steps != NULL) return Py_BuildValue("(LiNN)", (long long)offset, number, sizes, steps);
    Py_DECREF(sizes);
    return NULL;
}

static int parse_sizes(PyObject *sizes, fl_py_parsed_slot *out)
{
    for (int32_t d = 0; d < out->ndim; d++) {
        out->shape[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, d));
        if (out->shape[d] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

int fl_py_tensor_slot_parse(PyObject *slot, fl_py_parsed_slot *out)
{
    PyObject *sizes =
        PyTuple_Check(slot) && PyTuple_GET_SIZE(slot) == 3 ? PyTuple_GET_ITEM(slot, 2) : NULL;
    if (sizes == NULL || !PyTuple_Check(sizes) || PyTuple_GET_SIZE(sizes) > FL_MAX_NDIM)
        return FL_PY_FAIL(PyExc_ValueError, "a slot must be (offset, dtype, shape), got %R", slot);
    out->offset = PyLong_AsLongLong(PyTuple_GET_ITEM(slot, 0));
    int64_t code = PyLong_AsLongLong(PyTuple_GET_ITEM(slot, 1));
    if (PyErr_Occurred()) return -1;
    out->dtype = (fl_dtype){(uint8_t)(code >> 8), (uint8_t)code, 1};
    out->ndim = (int32_t)PyTuple_GET_SIZE(sizes);
    return parse_sizes(sizes, out);
}
