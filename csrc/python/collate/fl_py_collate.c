/* fl_py_collate: the heap type _core.Collate, torch's default_collate with the work in C.
 *
 * Plain lists, tuples and dicts are walked here and their leaves stacked here: tensors, ndarrays,
 * numbers. Any other container is walked by torch's own function, which calls back for the leaves;
 * any other leaf is torch's altogether. So what comes out is what torch makes, and what is refused
 * is refused by torch. Batches are built in a worker's slot, or in pools of this process: one for
 * each leaf, so that the user who keeps one tensor keeps no other. */
#include "fl_py.h"

#include "fl_cpu_rows.h"
#include "fl_py_collate.h"
#include "fl_py_thread_pool.h"
#include "fl_thread.h"

#include <string.h>

enum {
    LARGE_BATCH = 1 << 20, /* from here on past the caches */
    LONG_COPY = 256 << 10, /* from here on without the interpreter lock */
    SMALL_LEAF = 4096,     /* up to here not worth a pool */
    KEPT_SLOTS = 16,       /* that a pool keeps for loops that hold some batches, */
    KEPT_BYTES = 128 << 20 /* if these are no more bytes, or there are two */
};

static const char *const reasons[FL_FALLBACK_REASONS] = {
    [FL_PY_NOT_PLAIN] = "not a plain tensor, array or number",
    [FL_PY_MIXED] = "types, dtypes or shapes differ within a batch",
    [FL_PY_STRIDED] = "not contiguous",
    [FL_PY_REGISTRY] = "default_collate_fn_map was changed",
    [FL_PY_MODE] = "a default device or another mode of torch is active",
};

/* `collate` goes before the batch, unless it is NULL. */
static PyObject *call_with_items(PyObject *function, PyObject *collate, const batch_items *batch)
{
    PyObject *items = function != NULL ? fl_py_items_object(batch) : NULL;
    if (function == NULL) PyErr_SetString(PyExc_ReferenceError, "this collate is being destroyed");
    PyObject *args[] = {collate, items};
    PyObject *const *given = collate != NULL ? args : args + 1;
    PyObject *result = NULL;
    if (items != NULL)
        result = PyObject_Vectorcall(function, given, (size_t)(args + 2 - given), NULL);
    Py_XDECREF(items);
    return result;
}

PyObject *fl_py_fall_back(fl_py_collate *self, const batch_items *batch, int reason)
{
    if (self->port != NULL)
        fl_py_worker_end_fell_back((fl_py_worker_end *)self->port, reason);
    else
        self->fallbacks[reason]++;
    return call_with_items(self->fallback, NULL, batch);
}

PyObject *fl_py_items_object(const batch_items *batch)
{
    if (batch->original != NULL) return Py_NewRef(batch->original);
    PyObject *object = batch->is_tuple ? PyTuple_New(batch->count) : PyList_New(batch->count);
    for (Py_ssize_t i = 0; object != NULL && i < batch->count; i++) {
        PyObject *item = Py_NewRef(batch->items[i]);
        if (batch->is_tuple)
            PyTuple_SET_ITEM(object, i, item);
        else
            PyList_SET_ITEM(object, i, item);
    }
    return object;
}

/* ---- memory */

static PyObject *
make_in_pool(fl_py_collate *self, fl_dtype dtype, int32_t ndim, const int64_t *shape, char **data)
{
    int64_t bytes = fl_tensor_bytes(dtype, ndim, shape);
    int32_t leaf = self->leaf++;
    fl_slot *slot = NULL;
    if (bytes > SMALL_LEAF && leaf < FL_PY_POOLS) {
        fl_pool **pool = &self->pools[leaf];
        if (*pool == NULL && fl_pool_open(0, NULL, pool, NULL) == FL_OK)
            fl_pool_reserve(*pool, KEPT_SLOTS);
        if (*pool != NULL && bytes <= INT64_MAX / 2)
            fl_pool_limit(*pool, fl_max(KEPT_BYTES, 2 * bytes));
        /* None without memory or in a forked child: then as for any leaf beyond the pools. */
        if (*pool != NULL) (void)fl_pool_get(*pool, bytes, &slot, NULL);
    }
    if (slot == NULL) return fl_py_tensor_new(&self->door, dtype, ndim, shape, data);
    *data = fl_slot_data(slot);
    fl_slot_lend(slot, 1);
    PyObject *tensor = fl_py_tensor_at(&self->door, slot, *data, dtype, ndim, shape);
    fl_slot_give(slot);
    return tensor;
}

PyObject *fl_py_collate_tensor(fl_py_collate *self, fl_dtype dtype, int32_t ndim,
                               const int64_t *shape, char **data)
{
    if (self->port == NULL) return make_in_pool(self, dtype, ndim, shape, data);
    return fl_py_worker_end_tensor((fl_py_worker_end *)self->port, dtype, ndim, shape, data);
}

typedef struct copy_job {
    char *to;                /* borrowed for the time of the job, as all here */
    const char *const *from; /* one address for each item */
    int64_t bytes;           /* of one */
    bool is_streamed;
} copy_job;

static void copy_some(void *context, int64_t first, int64_t end)
{
    const copy_job *job = context;
    for (int64_t i = first; i < end; i++)
        fl_cpu_row_ops.copy_rows(job->to + i * job->bytes, job->from[i], job->bytes, job->bytes, 0,
                                 1, job->is_streamed);
}

void fl_py_copy_items(fl_py_collate *self, char *to, const char *const *from, int64_t bytes,
                      Py_ssize_t count)
{
    bool is_large = bytes * count >= LARGE_BATCH;
    if (bytes == 0) return;
    copy_job job = {.to = to, .from = from, .bytes = bytes, .is_streamed = is_large};
    fl_thread_pool *team =
        is_large && self->team != NULL ? ((fl_py_thread_pool *)self->team)->pool : NULL;
    PyThreadState *saved = bytes * count >= LONG_COPY ? PyEval_SaveThread() : NULL;
    fl_thread_pool_run(team, copy_some, &job, count, fl_max(1, LONG_COPY / bytes));
    if (saved != NULL) PyEval_RestoreThread(saved);
}

/* ---- containers */

static PyObject *collate_items(fl_py_collate *self, const batch_items *batch);

static void drop_items(PyObject **items, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) Py_DECREF(items[i]);
    PyMem_Free(items);
}

/* As dict does it: PyErr_SetObject would take None for no argument, and a tuple for several. */
static void set_key_error(PyObject *key)
{
    PyObject *args = PyTuple_Pack(1, key);
    if (args != NULL) PyErr_SetObject(PyExc_KeyError, args);
    Py_XDECREF(args);
}

/* [sample[key] for sample in batch] */
static bool pick_key(const batch_items *batch, PyObject *key, PyObject **items)
{
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        PyObject *sample = batch->items[i], *item;
        if (PyDict_CheckExact(sample)) {
            item = PyDict_GetItemWithError(sample, key);
            if (item == NULL && !PyErr_Occurred()) set_key_error(key);
            Py_XINCREF(item);
        } else {
            item = PyObject_GetItem(sample, key);
        }
        if (item == NULL) {
            for (Py_ssize_t k = 0; k < i; k++) Py_DECREF(items[k]);
            return false;
        }
        items[i] = item;
    }
    return true;
}

static PyObject *collate_key(fl_py_collate *self, const batch_items *batch, PyObject *key)
{
    PyObject **items = PyMem_New(PyObject *, (size_t)batch->count);
    if (items == NULL) return PyErr_NoMemory();
    if (!pick_key(batch, key, items)) {
        PyMem_Free(items);
        return NULL;
    }
    PyObject *result = collate_items(self, &(batch_items){.items = items, .count = batch->count});
    drop_items(items, batch->count);
    return result;
}

static PyObject *collate_dict(fl_py_collate *self, const batch_items *batch)
{
    PyObject *keys = PyDict_Keys(batch->items[0]);
    PyObject *result = keys != NULL ? PyDict_New() : NULL;
    for (Py_ssize_t k = 0; result != NULL && k < PyList_GET_SIZE(keys); k++) {
        PyObject *key = PyList_GET_ITEM(keys, k);
        PyObject *value = collate_key(self, batch, key);
        if (value == NULL || PyDict_SetItem(result, key, value) != 0) Py_CLEAR(result);
        Py_XDECREF(value);
    }
    Py_XDECREF(keys);
    return result;
}

static inline bool is_sequence(PyObject *object)
{
    return PyTuple_CheckExact(object) || PyList_CheckExact(object);
}

static bool are_alike(const batch_items *batch, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (!is_sequence(batch->items[i]) || PySequence_Fast_GET_SIZE(batch->items[i]) != size)
            return false;
    return true;
}

static PyObject *collate_place(fl_py_collate *self, const batch_items *batch, Py_ssize_t place)
{
    PyObject **items = PyMem_New(PyObject *, (size_t)batch->count);
    if (items == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < batch->count; i++)
        items[i] = Py_NewRef(PySequence_Fast_GET_ITEM(batch->items[i], place));
    const batch_items part = {.items = items, .count = batch->count, .is_tuple = true};
    PyObject *result = collate_items(self, &part);
    drop_items(items, batch->count);
    return result;
}

static PyObject *collate_sequence(fl_py_collate *self, const batch_items *batch)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(batch->items[0]);
    PyObject *result = PyList_New(size);
    for (Py_ssize_t place = 0; result != NULL && place < size; place++) {
        PyObject *value = NULL;
        if (are_alike(batch, size)) /* each time: leaves may run Python code */
            value = collate_place(self, batch, place);
        else
            PyErr_SetString(PyExc_RuntimeError,
                            "each element in list of batch should be of equal size");
        if (value == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, place, value);
    }
    return result;
}

static PyObject *collate_known(fl_py_collate *self, const batch_items *batch)
{
    PyObject *first = batch->items[0];
    if (PyDict_CheckExact(first)) return collate_dict(self, batch);
    if (is_sequence(first) && are_alike(batch, PySequence_Fast_GET_SIZE(first)))
        return collate_sequence(self, batch);
    PyObject *result = fl_py_collate_stack(self, batch);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return call_with_items(self->others, (PyObject *)self, batch);
}

static PyObject *collate_items(fl_py_collate *self, const batch_items *batch)
{
    if (Py_EnterRecursiveCall(" while collating a batch")) return NULL;
    PyObject *result = collate_known(self, batch);
    Py_LeaveRecursiveCall();
    return result;
}

/* ---- the type */

static bool is_unchanged(const fl_py_collate *self)
{
    Py_ssize_t at = 0, count = 0;
    PyObject *key, *value;
    if (PyDict_GET_SIZE(self->registry) * 2 != PyTuple_GET_SIZE(self->expected)) return false;
    while (PyDict_Next(self->registry, &at, &key, &value)) {
        if (PyTuple_GET_ITEM(self->expected, count) != key) return false;
        if (PyTuple_GET_ITEM(self->expected, count + 1) != value) return false;
        count += 2;
    }
    return true;
}

/* A default device and whatever else sees torch's calls: 1 yes, 0 no, -1 exception. */
static int is_mode_active(const fl_py_collate *self)
{
    for (int i = 0; i < 2; i++) {
        PyObject *count = PyObject_CallNoArgs(self->count_modes[i]);
        int answer = count != NULL ? PyObject_IsTrue(count) : -1;
        Py_XDECREF(count);
        if (answer != 0) return answer;
    }
    return 0;
}

/* A batch as its own array of references: user code may change the list meanwhile. */
static PyObject *with_items(fl_py_collate *self, PyObject *samples,
                            PyObject *(*work)(fl_py_collate *, const batch_items *))
{
    bool is_list = PyList_CheckExact(samples);
    if ((!is_list && !PyTuple_CheckExact(samples)) || PySequence_Fast_GET_SIZE(samples) == 0)
        return PyObject_CallOneArg(self->fallback, samples);
    Py_ssize_t count = PySequence_Fast_GET_SIZE(samples);
    PyObject **items = PyMem_New(PyObject *, (size_t)count);
    if (items == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        items[i] = Py_NewRef(PySequence_Fast_GET_ITEM(samples, i));
    const batch_items batch = {
        .items = items, .count = count, .is_tuple = !is_list, .original = samples};
    PyObject *result = work(self, &batch);
    drop_items(items, count);
    return result;
}

static PyObject *collate_call(fl_py_collate *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"batch", NULL};
    PyObject *samples;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Collate", keywords, &samples)) return NULL;
    self->leaf = 0;
    const batch_items batch = {.original = samples};
    if (!is_unchanged(self)) return fl_py_fall_back(self, &batch, FL_PY_REGISTRY);
    int mode = is_mode_active(self);
    if (mode < 0) return NULL;
    if (mode > 0) return fl_py_fall_back(self, &batch, FL_PY_MODE);
    return with_items(self, samples, collate_items);
}

PyDoc_STRVAR(leaf_doc, "leaf(batch, /)\n--\n\nStack values that are no containers.");

static PyObject *leaf_or_torch(fl_py_collate *self, const batch_items *batch)
{
    PyObject *result = fl_py_collate_stack(self, batch);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return fl_py_fall_back(self, batch, FL_PY_NOT_PLAIN);
}

static PyObject *collate_method_leaf(fl_py_collate *self, PyObject *samples)
{
    return with_items(self, samples, leaf_or_torch);
}

PyDoc_STRVAR(fallbacks_doc, "fallbacks()\n--\n\n"
                            "How often torch's own functions collated a leaf, by reason.");

static PyObject *collate_fallbacks(fl_py_collate *self, PyObject *Py_UNUSED(ignored))
{
    return fl_py_count_reasons(self->fallbacks);
}

PyObject *fl_py_count_reasons(const int64_t *counts)
{
    PyObject *result = PyDict_New();
    for (int i = 0; result != NULL && i < FL_FALLBACK_REASONS; i++) {
        if (counts[i] == 0 || reasons[i] == NULL) continue;
        PyObject *count = PyLong_FromLongLong(counts[i]);
        if (count == NULL || PyDict_SetItemString(result, reasons[i], count) != 0) Py_CLEAR(result);
        Py_XDECREF(count);
    }
    return result;
}

static PyObject *snapshot(PyObject *registry)
{
    PyObject *key, *value, *expected = PyTuple_New(2 * PyDict_GET_SIZE(registry));
    Py_ssize_t at = 0, count = 0;
    while (expected != NULL && PyDict_Next(registry, &at, &key, &value)) {
        PyTuple_SET_ITEM(expected, count++, Py_NewRef(key));
        PyTuple_SET_ITEM(expected, count++, Py_NewRef(value));
    }
    return expected;
}

/* -1 with an exception set. */
static int find_in_torch(fl_py_collate *self, PyObject *torch, PyObject *tensor_type)
{
    PyObject *core = PyObject_GetAttrString(torch, "_C");
    if (core == NULL) return -1;
    const struct {
        PyObject **to, *from;
        const char *name;
    } wanted[] = {{&self->is_neg, tensor_type, "is_neg"},
                  {&self->stack, torch, "stack"},
                  {&self->as_tensor, torch, "as_tensor"},
                  {&self->int8, torch, "int8"},
                  {&self->uint8, torch, "uint8"},
                  {&self->count_modes[0], core, "_len_torch_function_stack"},
                  {&self->count_modes[1], core, "_len_torch_dispatch_stack"}};
    int status = 0;
    for (size_t i = 0; status == 0 && i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = PyObject_GetAttrString(wanted[i].from, wanted[i].name);
        status = *wanted[i].to != NULL ? 0 : -1;
    }
    Py_DECREF(core);
    return status;
}

static PyObject *collate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"torch",    "memmap_type", "registry", "others",
                               "fallback", "port",        "team",     NULL};
    PyObject *torch, *memmap, *registry, *others, *fallback, *port = Py_None, *team = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OO|OO:Collate", keywords, &torch, &memmap,
                                     &PyDict_Type, &registry, &others, &fallback, &port, &team))
        return NULL;
    fl_py_state *state = PyType_GetModuleState(type);
    if (team != Py_None && !Py_IS_TYPE(team, state->thread_pool_type))
        return PyErr_Format(PyExc_TypeError, "team must be a ThreadPool or None, got %R", team);
    if (port != Py_None && !Py_IS_TYPE(port, state->worker_end_type))
        return PyErr_Format(PyExc_TypeError, "port must be a WorkerEnd or None, got %R", port);
    fl_py_collate *self = (fl_py_collate *)type->tp_alloc(type, 0);
    PyObject *tensor_type = self != NULL ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    if (tensor_type == NULL || fl_py_dlpack_open(tensor_type, &self->door) != 0) goto fail;
    self->memmap_type = Py_NewRef(memmap);
    self->registry = Py_NewRef(registry);
    self->others = Py_NewRef(others);
    self->fallback = Py_NewRef(fallback);
    self->port = port != Py_None ? Py_NewRef(port) : NULL;
    self->team = team != Py_None ? Py_NewRef(team) : NULL;
    self->expected = snapshot(registry);
    self->zero = PyLong_FromLong(0);
    self->out_name = Py_BuildValue("(s)", "out");
    if (self->expected == NULL || self->zero == NULL || self->out_name == NULL) goto fail;
    if (find_in_torch(self, torch, tensor_type) != 0) goto fail;
    Py_DECREF(tensor_type);
    return (PyObject *)self;
fail:
    Py_XDECREF(tensor_type);
    Py_XDECREF(self);
    return NULL;
}

static int collate_traverse(fl_py_collate *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->door.tensor_type);
    Py_VISIT(self->registry);
    Py_VISIT(self->others);
    Py_VISIT(self->fallback);
    Py_VISIT(self->port);
    return 0;
}

/* Those of the user may refer to the collate. Ours must not: batch memory would wait for a run of
 * Python's collector, which does not know how large it is. */
static int collate_clear(fl_py_collate *self)
{
    Py_CLEAR(self->others);
    Py_CLEAR(self->fallback);
    return 0;
}

static void collate_dealloc(fl_py_collate *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)collate_clear(self);
    Py_XDECREF(self->registry);
    Py_XDECREF(self->port);
    Py_XDECREF(self->team);
    for (int i = 0; i < FL_PY_POOLS; i++) fl_pool_close(self->pools[i]);
    Py_XDECREF(self->memmap_type);
    Py_XDECREF(self->expected);
    Py_XDECREF(self->is_neg);
    Py_XDECREF(self->stack);
    Py_XDECREF(self->as_tensor);
    Py_XDECREF(self->zero);
    Py_XDECREF(self->out_name);
    Py_XDECREF(self->int8);
    Py_XDECREF(self->uint8);
    Py_XDECREF(self->count_modes[0]);
    Py_XDECREF(self->count_modes[1]);
    fl_py_dlpack_close(&self->door);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef collate_methods[] = {
    {"leaf", (PyCFunction)collate_method_leaf, METH_O, leaf_doc},
    {"fallbacks", (PyCFunction)collate_fallbacks, METH_NOARGS, fallbacks_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    collate_doc,
    "Collate(torch, memmap_type, registry, others, fallback, port=None, team=None)\n--\n\n"
    "torch's default_collate in C. `registry` is default_collate_fn_map, `others` collates\n"
    "containers that are not plain, given this and a batch, and calls leaf() for what is in\n"
    "them, `fallback` is torch's own function. With a WorkerEnd batches are built in a worker's "
    "slot.");

static PyType_Slot collate_slots[] = {
    {Py_tp_doc, (void *)collate_doc}, {Py_tp_new, collate_new},
    {Py_tp_dealloc, collate_dealloc}, {Py_tp_traverse, collate_traverse},
    {Py_tp_clear, collate_clear},     {Py_tp_call, collate_call},
    {Py_tp_methods, collate_methods}, {0, NULL}};

PyType_Spec fl_py_collate_spec = {.name = "fastloop._core.Collate",
                                  .basicsize = sizeof(fl_py_collate),
                                  .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                           Py_TPFLAGS_IMMUTABLETYPE,
                                  .slots = collate_slots};
