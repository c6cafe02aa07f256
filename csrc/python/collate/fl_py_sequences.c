/* fl_py_sequences: see fl_py_sequences.h.
 *
 * The first step looks once at all sequences (lengths and dtype). The second step writes each
 * sequence to the tensor, and Python numbers need no object for each sequence. Python code may run
 * between the two steps, for example a finalizer, and may change a sequence. So a list's length,
 * and the address and layout of elements in memory, are compared again before they are read. All
 * functions enter with the interpreter lock. */
#include "fl_py_sequences.h"

#include "fl_py_numpy.h"
#include "fl_py_section.h"

#include <string.h>

enum { LONG_COPY = 256 << 10 }; /* bytes; a longer copy runs without the interpreter lock */

static const fl_dtype int64_dtype = {kDLInt, 64, 1};

/* ---- looking */

static fl_py_number_kind kind_of(PyObject *item)
{
    if (PyBool_Check(item)) return FL_PY_NUMBER_BOOL;
    if (PyLong_CheckExact(item)) return FL_PY_NUMBER_INT;
    return PyFloat_CheckExact(item) ? FL_PY_NUMBER_FLOAT : FL_PY_NUMBER_OTHER;
}

static bool is_list(PyObject *value)
{
    return PyList_CheckExact(value) || PyTuple_CheckExact(value);
}

static int look_at_vector(fl_py_stacker *self, PyObject *value, fl_tensor *view)
{
    if (fl_py_is_tensor(&self->dlpack, value)) {
        int look = fl_py_stacker_look(self, value, view);
        if (look != FL_PY_FINE) return look < 0 ? -1 : FL_PY_UNCOVERED;
    } else if (fl_py_is_array(value) || (PyObject *)Py_TYPE(value) == self->memmap_type) {
        if (fl_py_view(&self->dlpack, value, view) != 0) {
            PyErr_Clear();
            return FL_PY_UNCOVERED;
        }
    } else {
        return FL_PY_UNCOVERED;
    }
    return view->ndim == 1 ? 0 : FL_PY_UNCOVERED;
}

static int
look_at_run(fl_py_stacker *self, PyObject *value, fl_py_sequences *out, fl_py_sequence *to)
{
    fl_tensor view;
    if (is_list(value)) {
        *to = (fl_py_sequence){.list = value, .whole = PySequence_Fast_GET_SIZE(value)};
        to->length = to->whole;
        if (out->kind != FL_PY_NUMBER_OTHER || to->length == 0) return 0;
        PyObject *first = fl_py_item(value, 0);
        if (first != NULL) out->kind = kind_of(first);
        Py_XDECREF(first);
        return out->kind == FL_PY_NUMBER_OTHER ? FL_PY_UNCOVERED : 0;
    }
    int look = look_at_vector(self, value, &view);
    if (look != 0) return look;
    *to = (fl_py_sequence){.data = view.data, .stride = view.stride[0], .whole = view.shape[0]};
    to->length = to->whole;
    if (out->from.lanes == 0) out->from = view.dtype;
    return memcmp(&out->from, &view.dtype, sizeof view.dtype) == 0 ? 0 : FL_PY_UNCOVERED;
}

static int look_at_runs(fl_py_stacker *self, fl_py_sequences *out)
{
    out->kind = FL_PY_NUMBER_OTHER; /* until a list with a number is found */
    out->has_lists = is_list(out->values[0]);
    for (Py_ssize_t i = 0; i < out->count; i++) {
        PyObject *value = out->values[i];
        if (is_list(value) != out->has_lists) return FL_PY_UNCOVERED;
        int look = look_at_run(self, value, out, &out->runs[i]);
        if (look != 0) return look;
    }
    if (out->kind == FL_PY_NUMBER_OTHER) out->kind = FL_PY_NUMBER_INT;
    return 0;
}

static inline bool is_integer(fl_dtype dtype)
{
    return dtype.code == kDLInt || dtype.code == kDLUInt;
}

/* Sets the tensor's dtype. Returns false if no dtype fits. */
static bool find_dtype(fl_py_sequences *self, bool is_widened, int float_bits)
{
    if (!self->has_lists)
        self->to = is_widened && is_integer(self->from) ? int64_dtype : self->from;
    else if (self->kind == FL_PY_NUMBER_INT)
        self->to = int64_dtype;
    else if (self->kind == FL_PY_NUMBER_BOOL)
        self->to = (fl_dtype){kDLBool, 8, 1};
    else
        self->to = (fl_dtype){kDLFloat, (uint8_t)float_bits, 1};
    return self->kind != FL_PY_NUMBER_FLOAT || float_bits == 32 || float_bits == 64;
}

/* Returns true if elements in memory have not moved. This function makes no object, so the elements
 * cannot move after the check either. */
static bool
is_unmoved(const fl_py_stacker *self, PyObject *value, fl_dtype dtype, const fl_py_sequence *run)
{
    fl_tensor view;
    if (fl_py_view(&self->dlpack, value, &view) != 0) {
        PyErr_Clear();
        return false;
    }
    return view.ndim == 1 && view.data == run->data && view.shape[0] == run->whole &&
           view.stride[0] == run->stride && memcmp(&view.dtype, &dtype, sizeof dtype) == 0;
}

static bool are_unmoved(const fl_py_stacker *self, const fl_py_sequences *seen)
{
    for (Py_ssize_t i = 0; !seen->has_lists && i < seen->count; i++)
        if (!is_unmoved(self, seen->values[i], seen->from, &seen->runs[i])) return false;
    return true;
}

int fl_py_sequences_open(fl_py_stacker *stacker, PyObject *values, fl_py_sequences *out)
{
    *out = (fl_py_sequences){0};
    if (fl_py_items_take(values, &out->values, &out->count) != 0) return -1;
    if (out->count == 0) return FL_PY_FAIL(PyExc_ValueError, "values must not be empty");
    out->runs = PyMem_New(fl_py_sequence, (size_t)out->count);
    if (out->runs != NULL) return look_at_runs(stacker, out);
    PyErr_NoMemory();
    return -1;
}

void fl_py_sequences_close(fl_py_sequences *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++) Py_DECREF(self->values[i]);
    PyMem_Free(self->values);
    PyMem_Free(self->runs);
}

/* ---- writing */

static void fill_elements(char *to, const char *element, int64_t bytes, int64_t count)
{
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    if (count == 0) return;
    switch (bytes) {
    case 1:
        memset(to, element[0], (size_t)count);
        return;
    case 2:
        memcpy(&two, element, sizeof two);
        for (int64_t i = 0; i < count; i++) ((uint16_t *)(void *)to)[i] = two;
        return;
    case 4:
        memcpy(&four, element, sizeof four);
        for (int64_t i = 0; i < count; i++) ((uint32_t *)(void *)to)[i] = four;
        return;
    default:
        memcpy(&eight, element, sizeof eight);
        for (int64_t i = 0; i < count; i++) ((uint64_t *)(void *)to)[i] = eight;
    }
}

/* Writes bools. Returns FL_PY_NUMBER_BOOL, or the kind of the first number that is not a bool. */
static fl_py_number_kind put_bools(PyObject *const *items, int64_t count, char *to)
{
    for (int64_t i = 0; i < count; i++) {
        if (!PyBool_Check(items[i])) return kind_of(items[i]);
        to[i] = items[i] == Py_True;
    }
    return FL_PY_NUMBER_BOOL;
}

static fl_py_number_kind put_ints(PyObject *const *items, int64_t count, int64_t *to)
{
    for (int64_t i = 0; i < count; i++) {
        int overflow;
        if (!PyLong_CheckExact(items[i]) && !PyBool_Check(items[i])) return kind_of(items[i]);
        to[i] = PyLong_AsLongLongAndOverflow(items[i], &overflow);
        if (overflow != 0) return FL_PY_NUMBER_OTHER;
    }
    return FL_PY_NUMBER_INT;
}

static fl_py_number_kind put_floats(PyObject *const *items, int64_t count, char *to, int bits)
{
    for (int64_t i = 0; i < count; i++) {
        int overflow = 0;
        bool is_float = PyFloat_CheckExact(items[i]);
        if (!is_float && kind_of(items[i]) == FL_PY_NUMBER_OTHER) return FL_PY_NUMBER_OTHER;
        double value = is_float ? PyFloat_AS_DOUBLE(items[i])
                                : (double)PyLong_AsLongLongAndOverflow(items[i], &overflow);
        if (overflow != 0) return FL_PY_NUMBER_OTHER;
        if (bits == 64)
            ((double *)(void *)to)[i] = value;
        else
            ((float *)(void *)to)[i] = (float)value;
    }
    return FL_PY_NUMBER_FLOAT;
}

enum { LARGER_KIND = 2 }; /* self->kind has become larger: write all runs again */

static fl_py_number_kind
put_numbers(const fl_py_sequences *self, const fl_py_sequence *from, char *to)
{
    if (PySequence_Fast_GET_SIZE(from->list) != from->whole) return FL_PY_NUMBER_OTHER;
    PyObject *const *items = PySequence_Fast_ITEMS(from->list);
    if (self->kind == FL_PY_NUMBER_INT) return put_ints(items, from->length, (int64_t *)(void *)to);
    if (self->kind == FL_PY_NUMBER_FLOAT) return put_floats(items, from->length, to, self->to.bits);
    return put_bools(items, from->length, to);
}

/* Writes one list: 0, FL_PY_UNCOVERED or LARGER_KIND. SHARED(numbers): any thread may change the
 * list, but not during the read. */
static int put_list(fl_py_sequences *self, const fl_py_sequence *from, char *to)
{
    fl_py_number_kind kind;
    FL_PY_BEGIN_SECTION(from->list);
    kind = put_numbers(self, from, to);
    FL_PY_END_SECTION();
    if (kind == self->kind) return 0;
    self->kind = kind;
    return kind == FL_PY_NUMBER_OTHER ? FL_PY_UNCOVERED : LARGER_KIND;
}

#define WIDEN(type)                                                   \
    do {                                                              \
        const int64_t step = (int64_t)sizeof(type);                   \
        type value;                                                   \
        for (int64_t i = 0; from->stride == step && i < count; i++) { \
            memcpy(&value, data + i * step, sizeof value);            \
            to[i] = (int64_t)value;                                   \
        }                                                             \
        for (int64_t i = 0; from->stride != step && i < count; i++) { \
            memcpy(&value, data + i * from->stride, sizeof value);    \
            to[i] = (int64_t)value;                                   \
        }                                                             \
    } while (0)

static void widen(const fl_py_sequence *from, fl_dtype dtype, int64_t *to)
{
    const char *data = from->data;
    int64_t count = from->length;
    bool is_signed = dtype.code == kDLInt;
    if (dtype.bits == 8 && is_signed)
        WIDEN(int8_t);
    else if (dtype.bits == 8)
        WIDEN(uint8_t);
    else if (dtype.bits == 16 && is_signed)
        WIDEN(int16_t);
    else if (dtype.bits == 16)
        WIDEN(uint16_t);
    else if (is_signed)
        WIDEN(int32_t);
    else
        WIDEN(uint32_t);
}

static void put_elements(const fl_py_sequences *self, const fl_py_sequence *from, char *to)
{
    int64_t bytes = fl_dtype_bytes(self->from);
    if (from->length == 0) return;
    if (self->from.bits != self->to.bits)
        widen(from, self->from, (int64_t *)(void *)to);
    else if (from->stride == bytes)
        memcpy(to, from->data, (size_t)(from->length * bytes));
    else
        for (int64_t i = 0; i < from->length; i++)
            memcpy(to + i * bytes, from->data + i * from->stride, (size_t)bytes);
}

/* Writes every run, and padding between the runs. Returns the statuses of put_list. */
static int put_runs(fl_py_sequences *self, char *to, int64_t total, const char *element)
{
    int64_t bytes = fl_dtype_bytes(self->to), at = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const fl_py_sequence *next = &self->runs[i];
        char *place = to + next->start * bytes;
        fill_elements(to + at * bytes, element, bytes, next->start - at);
        at = next->start + next->length;
        if (self->has_lists) {
            int status = put_list(self, next, place);
            if (status != 0) return status;
        } else {
            put_elements(self, next, place);
        }
    }
    fill_elements(to + at * bytes, element, bytes, total - at);
    return 0;
}

/* ---- the tensor */

int fl_py_sequences_find_padding(PyObject *fill, fl_dtype dtype, char *element)
{
    PyObject *bytes = PyObject_CallFunction(fill, "i", dtype.code * 256 + dtype.bits);
    if (bytes == NULL) return -1;
    bool fits = PyBytes_Check(bytes) && PyBytes_GET_SIZE(bytes) == fl_dtype_bytes(dtype);
    if (fits)
        memcpy(element, PyBytes_AS_STRING(bytes), (size_t)PyBytes_GET_SIZE(bytes));
    else
        PyErr_SetString(PyExc_TypeError, "fill must return the bytes of one element");
    Py_DECREF(bytes);
    return fits ? 0 : -1;
}

static int
put_all(fl_py_sequences *self, const fl_py_sequences_rule *rule, char *to, const char *element)
{
    int64_t total = rule->shape[0] * rule->shape[1], bytes = fl_dtype_bytes(self->to);
    bool is_long = !self->has_lists && total * bytes >= LONG_COPY;
    PyThreadState *saved = is_long ? PyEval_SaveThread() : NULL;
    int status = put_runs(self, to, total, element);
    for (Py_ssize_t i = 0; status == 0 && rule->is_label && i < self->count; i++)
        if (self->runs[i].length > 0)
            memcpy(to + self->runs[i].start * bytes, element, (size_t)bytes);
    if (saved != NULL) PyEval_RestoreThread(saved);
    return status;
}

void *fl_py_sequences_fail_size(int64_t rows)
{
    return PyErr_Format(
        PyExc_MemoryError,
        "%lld padded rows must have at most 2^63 bytes; pass a smaller pad_to_multiple_of",
        (long long)rows);
}

PyObject *fl_py_sequences_tensor(fl_py_stacker *stacker, fl_py_sequences *self,
                                 const fl_py_sequences_rule *rule)
{
    for (;;) {
        char element[8], *data;
        if (!find_dtype(self, rule->is_widened, rule->float_bits) || self->to.bits > 64)
            return Py_NewRef(Py_NotImplemented);
        if (fl_tensor_bytes(self->to, 2, rule->shape) < 0)
            return fl_py_sequences_fail_size(rule->shape[0]);
        if (fl_py_sequences_find_padding(rule->fill, self->to, element) != 0) return NULL;
        PyObject *tensor = fl_py_stacker_tensor(stacker, self->to, 2, rule->shape, &data);
        if (tensor == NULL) return NULL;
        int status = FL_PY_UNCOVERED;
        if (are_unmoved(stacker, self)) status = put_all(self, rule, data, element);
        if (status == 0) return tensor;
        Py_DECREF(tensor);
        if (status == FL_PY_UNCOVERED) return Py_NewRef(Py_NotImplemented);
    }
}
