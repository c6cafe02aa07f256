/* fl_py_collect: see fl_py_collect.h.
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

int fl_py_grads_take_shards(fl_py_grads *self, PyObject *shard_type, PyObject *shard_layouts)
{
    if (self->name_spec == NULL) self->name_spec = PyUnicode_InternFromString("_spec");
    if (self->name_requires_grad == NULL)
        self->name_requires_grad = PyUnicode_InternFromString("requires_grad");
    if (self->name_spec == NULL || self->name_requires_grad == NULL) return -1;
    PyObject *get_local = PyObject_GetAttrString(shard_type, "_local_tensor");
    PyObject *get_spec = get_local != NULL ? PyObject_GetAttr(shard_type, self->name_spec) : NULL;
    PyObject *specs = get_spec != NULL ? PyList_New(0) : NULL;
    if (specs == NULL) {
        Py_XDECREF(get_local);
        Py_XDECREF(get_spec);
        return -1;
    }
    Py_XSETREF(self->specs, specs);
    Py_XSETREF(self->get_local, get_local);
    Py_XSETREF(self->get_spec, get_spec);
    Py_XSETREF(self->shard_layouts, Py_NewRef(shard_layouts));
    Py_XSETREF(self->shard_type, Py_NewRef(shard_type));
    return 0;
}

int fl_py_grads_traverse(fl_py_grads *self, visitproc visit, void *arg)
{
    Py_VISIT(self->dlpack.tensor_type);
    Py_VISIT(self->tensors);
    Py_VISIT(self->shard_type);
    Py_VISIT(self->shard_layouts);
    Py_VISIT(self->get_local);
    Py_VISIT(self->get_spec);
    Py_VISIT(self->specs);
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
    Py_CLEAR(self->shard_type);
    Py_CLEAR(self->shard_layouts);
    Py_CLEAR(self->get_local);
    Py_CLEAR(self->get_spec);
    Py_CLEAR(self->specs);
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
    Py_CLEAR(self->name_spec);
    Py_CLEAR(self->name_requires_grad);
    for (int32_t type = 0; type < FL_FLOATS; type++) Py_CLEAR(self->dtypes[type]);
    fl_tensor_list_close(&self->list);
    fl_free(self->layouts);
    fl_free(self->kinds);
    fl_free(self->span_kinds);
}

/* Notes the type `type` of a tensor, and the tensor's torch dtype: 0, or -1 and an exception. */
static int add_type(fl_py_grads *self, PyObject *tensor, int32_t type)
{
    self->types |= 1U << type;
    if (self->dtypes[type] == NULL) self->dtypes[type] = PyObject_GetAttr(tensor, self->name_dtype);
    return self->dtypes[type] != NULL ? 0 : -1;
}

static int grow(uint8_t **bytes, int64_t *capacity, int64_t count)
{
    fl_err err;
    return fl_py_check(fl_grow((void **)bytes, capacity, count, sizeof **bytes, &err), &err, NULL);
}

static int add_span(fl_py_grads *self, const fl_py_floats *floats, int32_t kind)
{
    fl_err err;
    int64_t count = self->list.count + 1;
    if (self->shard_type != NULL) {
        if (grow(&self->span_kinds, &self->span_kinds_capacity, count) != 0) return -1;
        self->span_kinds[count - 1] = (uint8_t)kind;
    }
    if (fl_py_check(
            fl_grow((void **)&self->layouts, &self->layouts_capacity, count, sizeof *self->layouts,
                    &err) != FL_OK ||
                fl_tensor_list_add(&self->list, floats->data, floats->count, floats->type, &err),
            &err, NULL) != 0)
        return -1;
    self->layouts[self->list.count - 1] = floats->layout;
    return 0;
}

/* Adds an item to the collection: 0, or -1 and an exception. */
typedef int add_one(fl_py_grads *self, PyObject *item);

/* Adds the elements in this process of a tensor that self->tensors already holds: 0, or -1 and an
 * exception. */
static int add_floats(fl_py_grads *self, PyObject *tensor, int32_t kind)
{
    fl_py_floats floats;
    self->is_plain = fl_py_float_tensor(&self->dlpack, tensor, &floats);
    if (!self->is_plain) return 0;
    if (PyList_GET_SIZE(self->tensors) == 1) self->device = floats.device;
    self->is_plain = floats.device == self->device && fl_py_can_run(&self->launcher, floats.device);
    if (!self->is_plain) return 0;
    self->tensor_kinds |= UINT64_C(1) << kind;
    if (add_type(self, tensor, floats.type) != 0) return -1;
    return floats.count > 0 ? add_span(self, &floats, kind) : 0;
}

/* Asks Python for the kind of a spec; 0: passes leave the tensor to torch; -1 and an exception. */
static int32_t ask_kind(fl_py_grads *self, PyObject *spec)
{
    PyObject *answer = PyObject_CallOneArg(self->shard_layouts, spec);
    if (answer == NULL) return -1;
    long kind = PyLong_AsLong(answer);
    Py_DECREF(answer);
    if (kind == -1 && PyErr_Occurred()) return -1;
    return kind > 0 && kind <= FL_PY_MAX_KIND ? (int32_t)kind : 0;
}

/* Returns the kind of the spec at a tensor's position, mostly from the last collection. The list
 * keeps the spec alive, so a different spec cannot have its address. 0: passes leave the tensor to
 * torch; -1 and an exception. */
static int32_t shard_layouts(fl_py_grads *self, PyObject *spec, Py_ssize_t at)
{
    if (at < PyList_GET_SIZE(self->specs) && PyList_GET_ITEM(self->specs, at) == spec)
        return self->kinds[at];
    int32_t kind = ask_kind(self, spec);
    if (kind < 0 || grow(&self->kinds, &self->kinds_capacity, at + 1) != 0) return -1;
    while (PyList_GET_SIZE(self->specs) <= at)
        if (PyList_Append(self->specs, Py_None) != 0) return -1;
    self->kinds[at] = (uint8_t)kind;
    return PyList_SetItem(self->specs, at, Py_NewRef(spec)) == 0 ? kind : -1;
}

/* Reads an attribute of a DTensor through its descriptor, without asking the type again. New
 * reference. */
static PyObject *read_slot(PyObject *descriptor, PyObject *tensor)
{
    descrgetfunc get = Py_TYPE(descriptor)->tp_descr_get;
    if (get != NULL) return get(descriptor, tensor, (PyObject *)Py_TYPE(tensor));
    PyErr_SetString(PyExc_TypeError, "DTensor must have slots");
    return NULL;
}

static int add_shard(fl_py_grads *self, PyObject *tensor)
{
    Py_ssize_t at = PyList_GET_SIZE(self->tensors) - 1;
    PyObject *spec = read_slot(self->get_spec, tensor);
    int32_t kind = spec != NULL ? shard_layouts(self, spec, at) : -1;
    Py_XDECREF(spec);
    if (kind <= 0) self->is_plain = false;
    if (kind <= 0) return kind;
    self->has_shards = true;
    PyObject *local = read_slot(self->get_local, tensor);
    int status = local != NULL ? add_floats(self, local, kind) : -1;
    Py_XDECREF(local);
    return status;
}

static bool is_shard(const fl_py_grads *self, PyObject *tensor)
{
    return (PyObject *)Py_TYPE(tensor) == self->shard_type;
}

static int add_tensor(fl_py_grads *self, PyObject *tensor)
{
    if (PyList_Append(self->tensors, tensor) != 0) return -1;
    if (!self->is_plain) return 0;
    return is_shard(self, tensor) ? add_shard(self, tensor) : add_floats(self, tensor, 0);
}

/* Notes the type that a missing gradient would have, so that processes agree on the types of the
 * list. */
static int add_missing_type(fl_py_grads *self, PyObject *parameter)
{
    fl_py_floats floats;
    PyObject *local = read_slot(self->get_local, parameter);
    if (local == NULL) return -1;
    int status = 0;
    if (fl_py_float_tensor(&self->dlpack, local, &floats))
        status = add_type(self, local, floats.type);
    else
        self->is_plain = false;
    Py_DECREF(local);
    return status;
}

/* Notes a parameter that is a DTensor and has no gradient in this process: other processes may have
 * a gradient. */
static int add_missing(fl_py_grads *self, PyObject *parameter)
{
    PyObject *requires_grad = PyObject_GetAttr(parameter, self->name_requires_grad);
    int is_trained = requires_grad != NULL ? PyObject_IsTrue(requires_grad) : -1;
    Py_XDECREF(requires_grad);
    if (is_trained <= 0) return is_trained;
    PyObject *spec = PyObject_GetAttr(parameter, self->name_spec);
    int32_t kind = spec != NULL ? ask_kind(self, spec) : -1;
    Py_XDECREF(spec);
    if (kind == 0) self->is_plain = false;
    if (kind <= 0) return kind;
    self->has_shards = true;
    self->missing_kinds |= UINT64_C(1) << kind;
    return add_missing_type(self, parameter);
}

static int add_gradient(fl_py_grads *self, PyObject *parameter)
{
    if (self->is_plain && !PyObject_TypeCheck(parameter, self->dlpack.tensor_type))
        self->is_plain = false;
    PyObject *gradient = PyObject_GetAttr(parameter, self->name_grad);
    if (gradient == NULL) return -1;
    int status = 0;
    if (gradient != Py_None)
        status = add_tensor(self, gradient);
    else if (is_shard(self, parameter))
        status = add_missing(self, parameter);
    Py_DECREF(gradient);
    return status;
}

/* Adds each item. SHARED(items): a list's items may be replaced meanwhile. */
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
    self->tensor_kinds = self->missing_kinds = 0;
    self->has_shards = false;
    self->is_plain = self->dlpack.api != NULL;
    return PyList_SetSlice(self->tensors, 0, PY_SSIZE_T_MAX, NULL);
}

/* Returns 1 if a tensor was collected twice, 0 if not, -1 and an exception. If such a tensor has
 * elements, its memory shows the duplicate. If the tensor has no elements, only this check finds
 * the duplicate; the list is then not plain either, because processes have to agree. */
static int has_twins(const fl_py_grads *self)
{
    PyObject *seen = PySet_New(NULL);
    int status = seen != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyList_GET_SIZE(self->tensors); i++) {
        PyObject *address = PyLong_FromVoidPtr(PyList_GET_ITEM(self->tensors, i));
        status = address != NULL ? PySet_Add(seen, address) : -1;
        Py_XDECREF(address);
    }
    if (status == 0) status = PySet_GET_SIZE(seen) < PyList_GET_SIZE(self->tensors);
    Py_XDECREF(seen);
    return status;
}

/* Ends a collection that so far has this status: 0, or -1 and an exception. */
static int end(fl_py_grads *self, int status)
{
    fl_err err;
    int ended = fl_tensor_list_end(&self->list, &err); /* FL_EINVAL: two tensors share memory */
    if (status == 0 && ended != FL_OK && ended != FL_EINVAL) {
        fl_py_raise(&err, NULL);
        status = -1;
    }
    if (status != 0 || ended != FL_OK) self->is_plain = false;
    if (self->is_plain && self->has_shards && fl_py_grads_empty(self) > 0) {
        int twins = has_twins(self);
        if (twins != 0) self->is_plain = false;
        if (twins < 0) status = -1;
    }
    if (self->list.is_changed || !self->is_plain) self->launcher.queue.is_listed = false;
    return status;
}

int fl_py_grads_collect(fl_py_grads *self, PyObject *items, fl_py_source source)
{
    static add_one *const adds[] = {
        [FL_PY_GROUPS] = add_group,
        [FL_PY_PARAMETERS] = add_gradient,
        [FL_PY_TENSORS] = add_tensor,
    };
    return end(self, begin(self) == 0 ? add_each(self, items, adds[source]) : -1);
}

static int add_kind(fl_py_grads *self, const fl_py_grads *from, int32_t kind)
{
    for (int64_t i = 0; i < from->list.count; i++) {
        const fl_span *span = &from->list.spans[i];
        fl_py_floats floats = {.data = span->data, .count = span->count, .type = span->type};
        if (from->span_kinds[i] == kind && add_span(self, &floats, kind) != 0) return -1;
    }
    return 0;
}

int fl_py_grads_collect_kind(fl_py_grads *self, const fl_py_grads *from, int32_t kind)
{
    int status = begin(self);
    if (status == 0 && PyList_GET_SIZE(from->tensors) > 0)
        status = PyList_Append(self->tensors, PyList_GET_ITEM(from->tensors, 0));
    self->device = from->device;
    self->is_plain = self->is_plain && fl_py_can_run(&self->launcher, from->device);
    return end(self, status == 0 ? add_kind(self, from, kind) : -1);
}

int fl_py_grads_release(fl_py_grads *self)
{
    self->is_plain = false;
    self->has_shards = false;
    fl_py_launcher_forget_graph(&self->launcher);
    return PyList_SetSlice(self->tensors, 0, PY_SSIZE_T_MAX, NULL);
}

PyObject *fl_py_grads_local(const fl_py_grads *self, PyObject *tensor)
{
    return is_shard(self, tensor) ? read_slot(self->get_local, tensor) : Py_NewRef(tensor);
}

PyObject *fl_py_grads_ordinary(const fl_py_grads *self)
{
    if (!self->has_shards) return Py_NewRef(self->tensors);
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(self->tensors); i++) {
        PyObject *tensor = PyList_GET_ITEM(self->tensors, i);
        if (!is_shard(self, tensor) && PyList_Append(found, tensor) != 0) Py_CLEAR(found);
    }
    return found;
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
        /* Reading a subclass's attribute may change the list. */
        status = add_dtype(self, set, tensor);
        Py_DECREF(tensor);
    }
    if (status != 0) Py_CLEAR(set);
    return set;
}
