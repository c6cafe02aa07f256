/* fl_py_collect: from torch's objects to a list that passes can run over; see fl_py_grad_list.h.
 *
 * Anything may run meanwhile that Python runs in an attribute or a method, so items are held while
 * they are looked at. */
#include "fl_py_grad_list.h"

int fl_py_add_tensor(fl_py_grad_list *self, PyObject *tensor)
{
    fl_py_floats floats;
    fl_err err;
    if (PyList_Append(self->tensors, tensor) != 0) return -1;
    if (!fl_py_float_tensor(&self->door, tensor, &floats)) return 0;
    if (PyList_GET_SIZE(self->tensors) == 1) self->device = floats.device;
    if (floats.device != self->device || !fl_py_can_run(self, self->device)) return 0;
    if (floats.count == 0) return 1;
    if (fl_grow((void **)&self->layouts, &self->layouts_capacity, self->list.count + 1,
                sizeof *self->layouts, &err) != FL_OK ||
        fl_tensor_list_add(&self->list, floats.data, floats.count, floats.type, &err) != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    self->layouts[self->list.count - 1] = floats.layout;
    return 1;
}

int fl_py_add_gradient(fl_py_grad_list *self, PyObject *parameter)
{
    if (!PyObject_TypeCheck(parameter, self->door.tensor_type)) return 0;
    PyObject *gradient = PyObject_GetAttr(parameter, self->name_grad);
    if (gradient == NULL) return -1;
    int status = gradient != Py_None ? fl_py_add_tensor(self, gradient) : 1;
    Py_DECREF(gradient);
    return status;
}

/* Calls `add` with each item of a list or tuple; items may be replaced meanwhile. */
static int add_each(fl_py_grad_list *self, PyObject *items, fl_py_add *add)
{
    if (!PyList_Check(items) && !PyTuple_Check(items)) return 0;
    int status = 1;
    for (Py_ssize_t i = 0; status == 1 && i < PySequence_Fast_GET_SIZE(items); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        Py_INCREF(item);
        status = add(self, item);
        Py_DECREF(item);
    }
    return status;
}

int fl_py_add_group(fl_py_grad_list *self, PyObject *group)
{
    if (!PyDict_Check(group)) return 0;
    PyObject *parameters = PyDict_GetItemWithError(group, self->name_params);
    if (parameters == NULL) return PyErr_Occurred() != NULL ? -1 : 0;
    Py_INCREF(parameters);
    int status = add_each(self, parameters, fl_py_add_gradient);
    Py_DECREF(parameters);
    return status;
}

static int forget_tensors(fl_py_grad_list *self)
{
    fl_tensor_list_begin(&self->list);
    self->device = FL_PY_CPU;
    return PyList_SetSlice(self->tensors, 0, PY_SSIZE_T_MAX, NULL);
}

PyObject *fl_py_collect(fl_py_grad_list *self, PyObject *items, fl_py_add *add)
{
    fl_err err;
    if (fl_py_grad_list_enter(self) != 0) return NULL;
    int status = forget_tensors(self) == 0 ? add_each(self, items, add) : -1;
    int ended = fl_tensor_list_end(&self->list, &err);
    if (status == 1 && ended != FL_OK) status = ended == FL_EINVAL ? 0 : -1;
    if (ended != FL_OK && ended != FL_EINVAL) fl_py_raise(&err, NULL);
    self->is_plain = status == 1;
    if (self->list.is_changed || !self->is_plain) self->queue.is_listed = false;
    self->is_busy = false;
    return status >= 0 ? PyBool_FromLong(status) : NULL;
}
