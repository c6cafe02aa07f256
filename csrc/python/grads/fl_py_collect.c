/* fl_py_collect: from torch's objects to a list of tensors; see fl_py_collect.h.
 *
 * A tensor that is not plain does not end the collection: torch's functions then need all tensors,
 * plain or not. */
#include "fl_py_collect.h"

#include "fl_py_section.h"

int fl_py_grads_open(fl_py_grads *self, PyObject *tensor_type, PyObject *written,
                     PyObject *new_number, PyObject *new_scratch)
{
    self->device = self->launcher.usable_device = FL_PY_CPU;
    self->written = Py_NewRef(written);
    self->new_number = Py_NewRef(new_number);
    self->launcher.new_scratch = Py_NewRef(new_scratch);
    bool is_known = tensor_type != Py_None;
    if (is_known && fl_py_dlpack_open(tensor_type, &self->dlpack) != 0) return -1;
    self->is_neg = is_known ? PyObject_GetAttrString(tensor_type, "is_neg") : Py_NewRef(Py_None);
    self->name_grad = PyUnicode_InternFromString("grad");
    self->name_params = PyUnicode_InternFromString("params");
    self->name_dtype = PyUnicode_InternFromString("dtype");
    self->tensors = PyList_New(0);
    bool has_names =
        self->name_grad != NULL && self->name_params != NULL && self->name_dtype != NULL;
    return has_names && self->is_neg != NULL && self->tensors != NULL ? 0 : -1;
}

int fl_py_grads_traverse(fl_py_grads *self, visitproc visit, void *arg)
{
    Py_VISIT(self->dlpack.tensor_type);
    Py_VISIT(self->tensors);
    Py_VISIT(self->is_neg);
    Py_VISIT(self->written);
    Py_VISIT(self->new_number);
    Py_VISIT(self->launcher.new_scratch);
    Py_VISIT(self->launcher.scratch);
    return 0;
}

void fl_py_grads_clear(fl_py_grads *self)
{
    self->is_plain = false;
    fl_py_dlpack_close(&self->dlpack);
    Py_CLEAR(self->tensors);
    Py_CLEAR(self->is_neg);
    Py_CLEAR(self->written);
    Py_CLEAR(self->new_number);
    Py_CLEAR(self->launcher.new_scratch);
    Py_CLEAR(self->launcher.scratch);
}

void fl_py_grads_free(fl_py_grads *self)
{
    Py_CLEAR(self->name_grad);
    Py_CLEAR(self->name_params);
    Py_CLEAR(self->name_dtype);
    for (int32_t type = 0; type < FL_FLOATS; type++) Py_CLEAR(self->dtypes[type]);
    fl_tensor_list_close(&self->list);
    fl_free(self->layouts);
}

/* Notes the type of a tensor, which has it: 0, or -1 and an exception. */
static int add_type(fl_py_grads *self, PyObject *tensor, int32_t type)
{
    self->types |= 1U << type;
    if (self->dtypes[type] == NULL) self->dtypes[type] = PyObject_GetAttr(tensor, self->name_dtype);
    return self->dtypes[type] != NULL ? 0 : -1;
}

static int add_span(fl_py_grads *self, const fl_py_floats *floats)
{
    fl_err err;
    if (fl_grow((void **)&self->layouts, &self->layouts_capacity, self->list.count + 1,
                sizeof *self->layouts, &err) != FL_OK ||
        fl_tensor_list_add(&self->list, floats->data, floats->count, floats->type, &err) != FL_OK) {
        fl_py_raise(&err, NULL);
        return -1;
    }
    self->layouts[self->list.count - 1] = floats->layout;
    return 0;
}

/* Adds ... to what is collected: 0, or -1 and an exception. */
typedef int add_one(fl_py_grads *self, PyObject *item);

static int add_tensor(fl_py_grads *self, PyObject *tensor)
{
    fl_py_floats floats;
    if (PyList_Append(self->tensors, tensor) != 0) return -1;
    if (!self->is_plain) return 0;
    self->is_plain = fl_py_float_tensor(&self->dlpack, tensor, &floats);
    if (!self->is_plain) return 0;
    if (PyList_GET_SIZE(self->tensors) == 1) self->device = floats.device;
    self->is_plain = floats.device == self->device && fl_py_can_run(&self->launcher, floats.device);
    if (!self->is_plain) return 0;
    if (add_type(self, tensor, floats.type) != 0) return -1;
    return floats.count > 0 ? add_span(self, &floats) : 0;
}

static int add_gradient(fl_py_grads *self, PyObject *parameter)
{
    if (self->is_plain && !PyObject_TypeCheck(parameter, self->dlpack.tensor_type))
        self->is_plain = false;
    PyObject *gradient = PyObject_GetAttr(parameter, self->name_grad);
    if (gradient == NULL) return -1;
    int status = gradient != Py_None ? add_tensor(self, gradient) : 0;
    Py_DECREF(gradient);
    return status;
}

/* Adds each item. SHARED(items): those of a list may be replaced meanwhile. */
static int add_each(fl_py_grads *self, PyObject *items, add_one *add)
{
    bool is_fast = PyList_Check(items) || PyTuple_Check(items);
    PyObject *fast = is_fast ? Py_NewRef(items) : PySequence_List(items);
    int status = fast != NULL ? 0 : -1;
    PyObject *item;
    for (Py_ssize_t i = 0; status == 0 && (item = fl_py_item(fast, i)) != NULL; i++) {
        status = add(self, item);
        Py_DECREF(item);
    }
    Py_XDECREF(fast);
    return status;
}

static int add_group(fl_py_grads *self, PyObject *group)
{
    PyObject *parameters = PyObject_GetItem(group, self->name_params);
    if (parameters == NULL) return -1;
    int status = add_each(self, parameters, add_gradient);
    Py_DECREF(parameters);
    return status;
}

static int begin(fl_py_grads *self)
{
    fl_tensor_list_begin(&self->list);
    self->device = FL_PY_CPU;
    self->types = 0;
    self->is_plain = self->dlpack.api != NULL;
    return PyList_SetSlice(self->tensors, 0, PY_SSIZE_T_MAX, NULL);
}

int fl_py_grads_collect(fl_py_grads *self, PyObject *items, fl_py_source source)
{
    static add_one *const adds[] = {
        [FL_PY_GROUPS] = add_group,
        [FL_PY_PARAMETERS] = add_gradient,
        [FL_PY_TENSORS] = add_tensor,
    };
    fl_err err;
    int status = begin(self) == 0 ? add_each(self, items, adds[source]) : -1;
    int ended = fl_tensor_list_end(&self->list, &err); /* FL_EINVAL: two tensors share memory */
    if (status == 0 && ended != FL_OK && ended != FL_EINVAL) {
        fl_py_raise(&err, NULL);
        status = -1;
    }
    if (status != 0 || ended != FL_OK) self->is_plain = false;
    if (self->list.is_changed || !self->is_plain) self->launcher.queue.is_listed = false;
    return status;
}

int fl_py_grads_release(fl_py_grads *self)
{
    self->is_plain = false;
    fl_py_launcher_forget_graph(&self->launcher);
    return PyList_SetSlice(self->tensors, 0, PY_SSIZE_T_MAX, NULL);
}

Py_ssize_t fl_py_grads_empty(const fl_py_grads *self)
{
    return PyList_GET_SIZE(self->tensors) - (Py_ssize_t)self->list.count;
}

static int add_dtype(const fl_py_grads *self, PyObject *set, PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, self->name_dtype);
    int status = dtype != NULL ? PySet_Add(set, dtype) : -1;
    Py_XDECREF(dtype);
    return status;
}

PyObject *fl_py_grads_dtypes(const fl_py_grads *self)
{
    PyObject *set = PySet_New(NULL);
    int status = set != NULL ? 0 : -1;
    for (int32_t type = 0; status == 0 && self->is_plain && type < FL_FLOATS; type++)
        if (self->types & 1U << type) status = PySet_Add(set, self->dtypes[type]);
    PyObject *tensor;
    for (Py_ssize_t i = 0; status == 0 && !self->is_plain; i++) {
        if ((tensor = fl_py_item(self->tensors, i)) == NULL) break;
        status = add_dtype(self, set, tensor); /* a subclass's attribute may change the list */
        Py_DECREF(tensor);
    }
    if (status != 0) Py_CLEAR(set);
    return set;
}
