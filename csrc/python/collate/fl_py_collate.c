/* fl_py_collate: see fl_py_collate.h.
 *
 * Collate takes plain lists, tuples and dicts apart, and stacks the values (fl_py_stack). For any
 * other container torch's own function takes the container apart and calls back for the values
 * inside. All remaining values go to torch. So the result is the result of torch, and torch raises
 * the errors. All functions enter with the interpreter lock and in the section of the collate,
 * because iterators without workers share one collate. */
#include "fl_py_collate.h"

#include "fl_py.h"
#include "fl_py_pad.h"
#include "fl_py_pad_sequence.h"
#include "fl_py_put.h"
#include "fl_py_section.h"
#include "fl_py_stack.h"

#include <string.h>

typedef struct fl_py_collate {
    PyObject_HEAD
    fl_py_stacker stacker;
    PyObject *registry; /* owned: torch's dict of collate functions by type */
    PyObject *expected; /* owned: keys and values of the registry in turn, as seen when the collate
                           was made */
    PyObject *others;   /* owned: collates containers that are not plain */
    PyObject *count_modes[2]; /* owned: torch's functions that count active modes, one for each kind
                                 of mode */
} fl_py_collate;

/* ---- containers */

static PyObject *collate_items(fl_py_collate *self, const fl_py_items *batch);

static void drop_items(PyObject **items, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) Py_DECREF(items[i]);
    PyMem_Free(items);
}

/* Raises KeyError as dict does: PyErr_SetObject would take None as no argument, and a tuple as
 * several arguments. */
static void set_key_error(PyObject *key)
{
    PyObject *args = PyTuple_Pack(1, key);
    if (args != NULL) PyErr_SetObject(PyExc_KeyError, args);
    Py_XDECREF(args);
}

/* Sets items to [sample[key] for sample in batch]; false and an exception if a sample fails.
 * SHARED(values): any thread may change a sample. */
static bool pick_key(const fl_py_items *batch, PyObject *key, PyObject **items)
{
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        PyObject *sample = batch->items[i], *item;
        if (PyDict_CheckExact(sample)) {
            item = fl_py_value(sample, key);
            if (item == NULL && !PyErr_Occurred()) set_key_error(key);
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

static PyObject *collate_key(fl_py_collate *self, const fl_py_items *batch, PyObject *key)
{
    PyObject **items = PyMem_New(PyObject *, (size_t)batch->count);
    if (items == NULL) return PyErr_NoMemory();
    if (!pick_key(batch, key, items)) {
        PyMem_Free(items);
        return NULL;
    }
    PyObject *result = collate_items(self, &(fl_py_items){.items = items, .count = batch->count});
    drop_items(items, batch->count);
    return result;
}

static PyObject *collate_dict(fl_py_collate *self, const fl_py_items *batch)
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

static bool are_alike(const fl_py_items *batch, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < batch->count; i++)
        if (!is_sequence(batch->items[i]) || PySequence_Fast_GET_SIZE(batch->items[i]) != size)
            return false;
    return true;
}

static PyObject *fail_sizes(void)
{
    return PyErr_Format(PyExc_RuntimeError,
                        "each element in list of batch should be of equal size");
}

/* Takes the items at one place of the samples. If one sample lacks the place, returns false, and
 * takes no references. SHARED(places): any thread may change the list. */
static bool pick_place(const fl_py_items *batch, Py_ssize_t place, PyObject **items)
{
    for (Py_ssize_t i = 0; i < batch->count; i++) {
        items[i] = fl_py_item(batch->items[i], place);
        if (items[i] != NULL) continue;
        while (i > 0) Py_DECREF(items[--i]);
        return false;
    }
    return true;
}

static PyObject *collate_place(fl_py_collate *self, const fl_py_items *batch, Py_ssize_t place)
{
    PyObject **items = PyMem_New(PyObject *, (size_t)batch->count);
    if (items == NULL) return PyErr_NoMemory();
    if (!pick_place(batch, place, items)) {
        PyMem_Free(items);
        return fail_sizes();
    }
    const fl_py_items part = {.items = items, .count = batch->count, .is_tuple = true};
    PyObject *result = collate_items(self, &part);
    drop_items(items, batch->count);
    return result;
}

static PyObject *collate_sequence(fl_py_collate *self, const fl_py_items *batch)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(batch->items[0]);
    PyObject *result = PyList_New(size);
    for (Py_ssize_t place = 0; result != NULL && place < size; place++) {
        PyObject *value = NULL;
        if (are_alike(batch, size)) /* checked for each place: stacking may run Python code */
            value = collate_place(self, batch, place);
        else
            (void)fail_sizes();
        fl_py_put(&result, place, value);
    }
    return result;
}

static PyObject *collate_known(fl_py_collate *self, const fl_py_items *batch)
{
    PyObject *first = batch->items[0];
    if (PyDict_CheckExact(first)) return collate_dict(self, batch);
    if (is_sequence(first) && are_alike(batch, PySequence_Fast_GET_SIZE(first)))
        return collate_sequence(self, batch);
    PyObject *result = fl_py_stack(&self->stacker, batch);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return fl_py_items_call(self->others, (PyObject *)self, batch);
}

static PyObject *collate_items(fl_py_collate *self, const fl_py_items *batch)
{
    if (Py_EnterRecursiveCall(" while collating a batch")) return NULL;
    PyObject *result = collate_known(self, batch);
    Py_LeaveRecursiveCall();
    return result;
}

/* ---- the type */

/* Returns true if a dict has exactly these keys and values, in this order. */
static bool has_items(PyObject *dict, PyObject *expected)
{
    Py_ssize_t at = 0, count = 0;
    PyObject *key, *value;
    if (PyDict_GET_SIZE(dict) * 2 != PyTuple_GET_SIZE(expected)) return false;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (PyTuple_GET_ITEM(expected, count) != key) return false;
        if (PyTuple_GET_ITEM(expected, count + 1) != value) return false;
        count += 2;
    }
    return true;
}

/* SHARED(registry): any thread may change torch's dict. */
static bool is_unchanged(const fl_py_collate *self)
{
    bool has_same;
    FL_PY_BEGIN_SECTION(self->registry);
    has_same = has_items(self->registry, self->expected);
    FL_PY_END_SECTION();
    return has_same;
}

/* Finds out whether a mode is active, for example a default device: 1 yes, 0 no, -1 exception. */
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

/* Calls `work` with an array of references to the samples: user code may change the list
 * meanwhile. */
static PyObject *with_items(fl_py_collate *self, PyObject *samples,
                            PyObject *(*work)(fl_py_collate *, const fl_py_items *))
{
    bool is_list = PyList_CheckExact(samples);
    fl_py_items batch = {.is_tuple = !is_list, .original = samples};
    if (!is_list && !PyTuple_CheckExact(samples))
        return PyObject_CallOneArg(self->stacker.fallback, samples);
    if (fl_py_items_take(samples, &batch.items, &batch.count) != 0) return NULL;
    PyObject *result =
        batch.count > 0 ? work(self, &batch) : PyObject_CallOneArg(self->stacker.fallback, samples);
    drop_items(batch.items, batch.count);
    return result;
}

static PyObject *collate_samples(fl_py_collate *self, PyObject *samples)
{
    const fl_py_items batch = {.original = samples};
    if (!is_unchanged(self)) return fl_py_fall_back(&self->stacker, &batch, FL_PY_REGISTRY);
    int mode = is_mode_active(self);
    if (mode < 0) return NULL;
    if (mode > 0) return fl_py_fall_back(&self->stacker, &batch, FL_PY_MODE);
    return with_items(self, samples, collate_items);
}

static PyObject *collate_call(fl_py_collate *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"batch", NULL};
    PyObject *samples, *result;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Collate", keywords, &samples)) return NULL;
    FL_PY_BEGIN_SECTION((PyObject *)self);
    self->stacker.stacks = 0;
    result = collate_samples(self, samples);
    fl_py_stacker_drop(&self->stacker);
    FL_PY_END_SECTION();
    return result;
}

PyDoc_STRVAR(block_doc,
             "block(like, count, /)\n--\n\n"
             "Return memory for the stack of `count` tensors like `like`, in the next batch. A\n"
             "later stack() of rows of this memory copies nothing.");

static PyObject *collate_block(fl_py_collate *self, PyObject *args)
{
    PyObject *like;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "On:block", &like, &count)) return NULL;
    return fl_py_stacker_block(&self->stacker, like, count);
}

PyDoc_STRVAR(begin_doc,
             "begin()\n--\n\n"
             "Begin a batch that the caller builds with stack(), pad() and pack(). Returns\n"
             "False if torch's own functions must build the batch.");

static PyObject *collate_begin(fl_py_collate *self, PyObject *Py_UNUSED(ignored))
{
    self->stacker.stacks = 0;
    int mode = is_mode_active(self);
    return mode < 0 ? NULL : PyBool_FromLong(mode == 0 && is_unchanged(self));
}

PyDoc_STRVAR(pad_doc,
             "pad(values, fill, is_widened, pad_left, multiple, max_length, has_mask, has_lengths, "
             "float_bits, /)\n--\n\n"
             "Pad a list of sequences. Returns a tuple (padded, mask or None, lengths or\n"
             "None), or NotImplemented if native code does not cover the values. Long copies\n"
             "of arrays release the interpreter lock.\n\n"
             "fill: a function that returns the bytes of the padding for the number of a\n"
             "dtype. is_widened: integers become int64. pad_left: the padding comes before the\n"
             "sequences. max_length: -1 for no limit. float_bits: the width of torch's default\n"
             "dtype, which lists of floats get.");

static PyObject *collate_pad(fl_py_collate *self, PyObject *args)
{
    return fl_py_pad(&self->stacker, args);
}

PyDoc_STRVAR(pad_sequence_doc,
             "pad_sequence(tensors, fill, batch_first, pad_left, /)\n--\n\n"
             "Pad a list or tuple of tensors as torch's function of that name does. Returns\n"
             "NotImplemented if native code does not cover the tensors, or a mode is on. `fill`\n"
             "is that of pad(). Long copies release the interpreter lock.");

static PyObject *collate_pad_sequence(fl_py_collate *self, PyObject *args)
{
    self->stacker.stacks = 0;
    int mode = is_mode_active(self);
    if (mode != 0) return mode < 0 ? NULL : Py_NewRef(Py_NotImplemented);
    return fl_py_pad_sequence(&self->stacker, args);
}

PyDoc_STRVAR(pack_doc,
             "pack(values, starts, lengths, rows, width, fill, is_widened, is_label, float_bits, "
             "/)\n--\n\n"
             "Pack a list of sequences. Returns a tensor [rows, width] with each sequence at\n"
             "its start, or NotImplemented if native code does not cover the values. Long\n"
             "copies of arrays release the interpreter lock. starts: ascending. is_label: the\n"
             "first element of each sequence becomes padding.");

static PyObject *collate_pack(fl_py_collate *self, PyObject *args)
{
    return fl_py_pack(&self->stacker, args);
}

PyDoc_STRVAR(segments_doc,
             "segments(bounds, rows, width, copies, has_positions, /)\n--\n\n"
             "Return a tuple (cu_seqlens, position_ids or None) of the segments between\n"
             "`bounds`; cu_seqlens is a list of `copies` equal tensors.");

static PyObject *collate_segments(fl_py_collate *self, PyObject *args)
{
    return fl_py_segments(&self->stacker, args);
}

PyDoc_STRVAR(stack_doc,
             "stack(batch, /)\n--\n\n"
             "Stack values that are not containers. Returns the result of torch's own function\n"
             "for values that native code does not stack.");

static PyObject *stack_or_torch(fl_py_collate *self, const fl_py_items *batch)
{
    PyObject *result = fl_py_stack(&self->stacker, batch);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return fl_py_fall_back(&self->stacker, batch, FL_PY_NOT_PLAIN);
}

static PyObject *collate_method_stack(fl_py_collate *self, PyObject *samples)
{
    return with_items(self, samples, stack_or_torch);
}

PyDoc_STRVAR(fallbacks_doc,
             "fallbacks()\n--\n\n"
             "Return a dict from each reason to the number of batches or values that torch's\n"
             "own functions collated for that reason.");

static PyObject *collate_fallbacks(fl_py_collate *self, PyObject *Py_UNUSED(ignored))
{
    return fl_py_fallbacks_dict(self->stacker.fallbacks);
}

/* Returns the keys and values of a dict in turn, as a new tuple. */
static PyObject *snapshot(PyObject *registry)
{
    PyObject *key, *value, *copy = PyDict_Copy(registry), *expected = NULL;
    Py_ssize_t at = 0, count = 0;
    if (copy != NULL) expected = PyTuple_New(2 * PyDict_GET_SIZE(copy));
    while (expected != NULL && PyDict_Next(copy, &at, &key, &value)) {
        PyTuple_SET_ITEM(expected, count++, Py_NewRef(key));
        PyTuple_SET_ITEM(expected, count++, Py_NewRef(value));
    }
    Py_XDECREF(copy);
    return expected;
}

static int find_modes(fl_py_collate *self, PyObject *torch)
{
    PyObject *core = PyObject_GetAttrString(torch, "_C");
    if (core == NULL) return -1;
    self->count_modes[0] = PyObject_GetAttrString(core, "_len_torch_function_stack");
    self->count_modes[1] = PyObject_GetAttrString(core, "_len_torch_dispatch_stack");
    Py_DECREF(core);
    return self->count_modes[0] != NULL && self->count_modes[1] != NULL ? 0 : -1;
}

/* Turns None into NULL. Returns false, with TypeError, for an object of a different type. */
static bool parse_optional(PyObject **object, PyTypeObject *type, const char *name)
{
    if (*object == Py_None) *object = NULL;
    if (*object == NULL || Py_IS_TYPE(*object, type)) return true;
    PyErr_Format(PyExc_TypeError, "%s must be a %s or None, got %R", name,
                 strrchr(type->tp_name, '.') + 1, *object);
    return false;
}

static PyObject *collate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"torch",    "memmap_type", "registry",    "others",
                               "fallback", "worker_end",  "thread_pool", NULL};
    PyObject *torch, *memmap, *registry, *others, *fallback, *end = Py_None, *threads = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OO|OO:Collate", keywords, &torch, &memmap,
                                     &PyDict_Type, &registry, &others, &fallback, &end, &threads))
        return NULL;
    fl_py_state *state = PyType_GetModuleState(type);
    if (!parse_optional(&threads, state->thread_pool_type, "thread_pool") ||
        !parse_optional(&end, state->worker_end_type, "worker_end"))
        return NULL;
    fl_py_collate *self = (fl_py_collate *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->stacker.memmap_type = Py_NewRef(memmap);
    self->stacker.fallback = Py_NewRef(fallback);
    self->stacker.worker_end = (fl_py_worker_end *)Py_XNewRef(end);
    self->stacker.thread_pool = (fl_py_thread_pool *)Py_XNewRef(threads);
    self->registry = Py_NewRef(registry);
    self->others = Py_NewRef(others);
    self->expected = snapshot(registry);
    if (self->expected != NULL && fl_py_stacker_open(&self->stacker, torch) == 0 &&
        find_modes(self, torch) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int collate_traverse(fl_py_collate *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->stacker.dlpack.tensor_type);
    Py_VISIT(self->registry);
    Py_VISIT(self->others);
    Py_VISIT(self->stacker.fallback);
    Py_VISIT((PyObject *)self->stacker.worker_end);
    return 0;
}

/* The user's functions may refer to the collate, and the collector can break such a cycle. Native
 * objects must not refer to the collate: batch memory would wait for a run of Python's collector,
 * and the collector does not know how large the memory is. */
static int collate_clear(fl_py_collate *self)
{
    Py_CLEAR(self->others);
    Py_CLEAR(self->stacker.fallback);
    return 0;
}

static void collate_dealloc(fl_py_collate *self)
{
    PyObject_GC_UnTrack(self);
    (void)collate_clear(self);
    fl_py_stacker_close(&self->stacker);
    Py_XDECREF(self->registry);
    Py_XDECREF(self->expected);
    Py_XDECREF(self->count_modes[0]);
    Py_XDECREF(self->count_modes[1]);
    fl_py_free(self);
}

#define IN_SECTION(name) FL_PY_METHOD_IN_SECTION(name, fl_py_collate, self)
IN_SECTION(collate_begin)
IN_SECTION(collate_method_stack)
IN_SECTION(collate_block)
IN_SECTION(collate_pad)
IN_SECTION(collate_pad_sequence)
IN_SECTION(collate_pack)
IN_SECTION(collate_segments)
IN_SECTION(collate_fallbacks)

static PyMethodDef collate_methods[] = {
    {"begin", (PyCFunction)collate_begin_in_section, METH_NOARGS, begin_doc},
    {"stack", (PyCFunction)collate_method_stack_in_section, METH_O, stack_doc},
    {"block", (PyCFunction)collate_block_in_section, METH_VARARGS, block_doc},
    {"pad", (PyCFunction)collate_pad_in_section, METH_VARARGS, pad_doc},
    {"pad_sequence", (PyCFunction)collate_pad_sequence_in_section, METH_VARARGS, pad_sequence_doc},
    {"pack", (PyCFunction)collate_pack_in_section, METH_VARARGS, pack_doc},
    {"segments", (PyCFunction)collate_segments_in_section, METH_VARARGS, segments_doc},
    {"fallbacks", (PyCFunction)collate_fallbacks_in_section, METH_NOARGS, fallbacks_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(collate_doc,
             "Collate(torch, memmap_type, registry, others, fallback, worker_end=None, "
             "thread_pool=None)\n--\n\n"
             "torch's default_collate in native code. `registry` is torch's\n"
             "default_collate_fn_map. `others` collates containers that are not plain: the\n"
             "function gets this object and a batch, and calls stack() for the values in the\n"
             "containers. `fallback` is torch's own function. With a WorkerEnd batches are\n"
             "built in the worker's shared memory.");

static PyType_Slot collate_slots[] = {
    {Py_tp_doc, (void *)collate_doc}, {Py_tp_new, collate_new},
    {Py_tp_dealloc, collate_dealloc}, {Py_tp_traverse, collate_traverse},
    {Py_tp_clear, collate_clear},     {Py_tp_call, collate_call},
    {Py_tp_methods, collate_methods}, {0, NULL}};

PyType_Spec fl_py_collate_spec =
    FL_PY_SPEC("Collate", fl_py_collate, Py_TPFLAGS_HAVE_GC, collate_slots);
