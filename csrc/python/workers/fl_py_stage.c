/* fl_py_stage: see fl_py_stage.h. */
#include "fl_py_stage.h"

#include "fl_py.h"
#include "fl_stage.h"

#include <string.h>

/* Makes (stack, marks, offset) over a slot, in which the caller holds a share. New reference. */
static PyObject *make_tensors(fl_py_parent_end *self, fl_slot *slot, fl_dtype dtype, int32_t ndim,
                              const int64_t *shape)
{
    const fl_dtype int32 = {kDLInt, 32, 1};
    char *data = fl_slot_data(slot);
    const fl_stage stage = {data, shape[0], fl_tensor_bytes(dtype, ndim - 1, shape + 1)};
    char *marks = (char *)fl_stage_marks(&stage);
    fl_stage_open(&stage);
    PyObject *stack = fl_py_tensor_at(&self->dlpack, slot, data, dtype, ndim, shape);
    PyObject *held =
        stack != NULL ? fl_py_tensor_at(&self->dlpack, slot, marks, int32, 1, shape) : NULL;
    if (held == NULL) {
        Py_XDECREF(stack);
        return NULL;
    }
    return Py_BuildValue("NNL", stack, held, (long long)(data - fl_arena_base(self->pool->arena)));
}

PyObject *fl_py_stage_open(fl_py_parent_end *self, PyObject *args)
{
    fl_err err;
    fl_slot *slot;
    fl_tensor view;
    PyObject *like;
    Py_ssize_t count;
    int64_t shape[FL_MAX_NDIM + 1], bytes = -1;
    if (!PyArg_ParseTuple(args, "On:stage", &like, &count)) return NULL;
    if (fl_py_view(&self->dlpack, like, &view) != 0) return NULL;
    shape[0] = count;
    memcpy(shape + 1, view.shape, (size_t)view.ndim * sizeof *shape);
    if (count > 0 && view.ndim < FL_MAX_NDIM && fl_tensor_is_contiguous(&view))
        bytes = fl_stage_bytes(count, fl_tensor_bytes(view.dtype, view.ndim, view.shape));
    if (bytes < 0 || fl_py_reply_destination_is_open(&self->destination) || self->pool->device >= 0)
        return PyErr_Format(PyExc_ValueError,
                            "stage() needs a contiguous tensor with elements, count >= 1, and "
                            "batches without a destination");
    if (fl_pool_get(self->pool->pool, bytes, &slot, &err) != FL_OK) return fl_py_raise(&err, NULL);
    fl_slot_lend(slot, 1);
    PyObject *result = make_tensors(self, slot, view.dtype, view.ndim + 1, shape);
    fl_slot_give(slot);
    return result;
}
