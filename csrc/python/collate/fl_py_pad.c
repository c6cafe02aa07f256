/* fl_py_pad: sequences of different length in one tensor: padded in rows, or packed.
 *
 * The sequences of a field are looked at once (their lengths and dtype), then each is written to
 * its place in the tensor, which Python numbers reach without an object for each sequence. Python
 * code that runs in between may change a list: its length is compared before it is read. Enters
 * with the interpreter lock. */
#include "fl_py_pad.h"

#include "fl_py_numpy.h"

#include <string.h>

enum { LONG_COPY = 256 << 10 }; /* bytes, from here on without the interpreter lock */

/* What a function may find besides 0 and an exception (-1): the sequences are not covered. */
enum { OTHER = 1 };

static const fl_dtype int64_dtype = {kDLInt, 64, 1};

/* The numbers of lists; each can hold those before it. */
typedef enum number_kind { NUMBER_BOOL, NUMBER_INT, NUMBER_FLOAT, NUMBER_OTHER } number_kind;

typedef struct sequence {
    PyObject *list;   /* borrowed from the values: a list or tuple; NULL for elements in memory */
    const char *data; /* borrowed from the values: the first element */
    int64_t stride;   /* bytes */
    int64_t whole;    /* elements of the list, of which `length` are taken */
    int64_t length;
    int64_t start; /* its place in the tensor, in elements; not below the end of the run before */
} sequence;

typedef struct field {
    sequence *runs; /* owned */
    Py_ssize_t count;
    bool has_lists;
    number_kind kind; /* of lists */
    fl_dtype from;    /* of elements in memory */
    fl_dtype to;
} field;

/* ---- looking */

static number_kind kind_of(PyObject *item)
{
    if (PyBool_Check(item)) return NUMBER_BOOL;
    if (PyLong_CheckExact(item)) return NUMBER_INT;
    return PyFloat_CheckExact(item) ? NUMBER_FLOAT : NUMBER_OTHER;
}

static bool is_list(PyObject *value)
{
    return PyList_CheckExact(value) || PyTuple_CheckExact(value);
}

static int look_at_vector(fl_py_stacker *self, PyObject *value, fl_tensor *view)
{
    if (fl_py_is_tensor(&self->dlpack, value)) {
        int look = fl_py_stacker_look(self, value, view);
        if (look != FL_PY_FINE) return look < 0 ? -1 : OTHER;
    } else if (fl_py_is_array(value) || (PyObject *)Py_TYPE(value) == self->memmap_type) {
        if (fl_py_view(&self->dlpack, value, view) != 0) {
            PyErr_Clear();
            return OTHER;
        }
    } else {
        return OTHER;
    }
    return view->ndim == 1 ? 0 : OTHER;
}

static int look_at_run(fl_py_stacker *self, PyObject *value, field *out, sequence *to)
{
    fl_tensor view;
    if (is_list(value)) {
        *to = (sequence){.list = value, .whole = PySequence_Fast_GET_SIZE(value)};
        to->length = to->whole;
        bool is_first = out->kind == NUMBER_OTHER && to->length > 0;
        if (is_first) out->kind = kind_of(PySequence_Fast_GET_ITEM(value, 0));
        return is_first && out->kind == NUMBER_OTHER ? OTHER : 0;
    }
    int look = look_at_vector(self, value, &view);
    if (look != 0) return look;
    *to = (sequence){.data = view.data, .stride = view.stride[0], .length = view.shape[0]};
    if (out->from.lanes == 0) out->from = view.dtype;
    return memcmp(&out->from, &view.dtype, sizeof view.dtype) == 0 ? 0 : OTHER;
}

static int look_at_runs(fl_py_stacker *self, const fl_py_items *values, field *out)
{
    out->kind = NUMBER_OTHER; /* until there is a number */
    out->has_lists = is_list(values->items[0]);
    for (out->count = 0; out->count < values->count; out->count++) {
        PyObject *value = values->items[out->count];
        if (is_list(value) != out->has_lists) return OTHER;
        int look = look_at_run(self, value, out, &out->runs[out->count]);
        if (look != 0) return look;
    }
    if (out->kind == NUMBER_OTHER) out->kind = NUMBER_INT;
    return 0;
}

static inline bool is_integer(fl_dtype dtype)
{
    return dtype.code == kDLInt || dtype.code == kDLUInt;
}

/* False: there is none. */
static bool find_dtype(field *self, bool is_widened, int float_bits)
{
    if (!self->has_lists)
        self->to = is_widened && is_integer(self->from) ? int64_dtype : self->from;
    else if (self->kind == NUMBER_INT)
        self->to = int64_dtype;
    else if (self->kind == NUMBER_BOOL)
        self->to = (fl_dtype){kDLBool, 8, 1};
    else
        self->to = (fl_dtype){kDLFloat, (uint8_t)float_bits, 1};
    return self->kind != NUMBER_FLOAT || float_bits == 32 || float_bits == 64;
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

/* The kind of number that was met where another was to be written, or `kind`. */
static number_kind put_bools(PyObject *const *items, int64_t count, char *to)
{
    for (int64_t i = 0; i < count; i++) {
        if (!PyBool_Check(items[i])) return kind_of(items[i]);
        to[i] = items[i] == Py_True;
    }
    return NUMBER_BOOL;
}

static number_kind put_ints(PyObject *const *items, int64_t count, int64_t *to)
{
    for (int64_t i = 0; i < count; i++) {
        int overflow;
        if (!PyLong_CheckExact(items[i]) && !PyBool_Check(items[i])) return kind_of(items[i]);
        to[i] = PyLong_AsLongLongAndOverflow(items[i], &overflow);
        if (overflow != 0) return NUMBER_OTHER;
    }
    return NUMBER_INT;
}

static number_kind put_floats(PyObject *const *items, int64_t count, char *to, int bits)
{
    for (int64_t i = 0; i < count; i++) {
        int overflow = 0;
        bool is_float = PyFloat_CheckExact(items[i]);
        if (!is_float && kind_of(items[i]) == NUMBER_OTHER) return NUMBER_OTHER;
        double value = is_float ? PyFloat_AS_DOUBLE(items[i])
                                : (double)PyLong_AsLongLongAndOverflow(items[i], &overflow);
        if (overflow != 0) return NUMBER_OTHER;
        if (bits == 64)
            ((double *)(void *)to)[i] = value;
        else
            ((float *)(void *)to)[i] = (float)value;
    }
    return NUMBER_FLOAT;
}

enum { LARGER_KIND = 2 }; /* self->kind has grown: all is to be written again */

/* 0, OTHER or LARGER_KIND. */
static int put_list(field *self, const sequence *from, char *to)
{
    if (PySequence_Fast_GET_SIZE(from->list) != from->whole) return OTHER;
    PyObject *const *items = PySequence_Fast_ITEMS(from->list);
    number_kind kind = self->kind;
    if (kind == NUMBER_INT)
        kind = put_ints(items, from->length, (int64_t *)(void *)to);
    else if (kind == NUMBER_FLOAT)
        kind = put_floats(items, from->length, to, self->to.bits);
    else
        kind = put_bools(items, from->length, to);
    if (kind == self->kind) return 0;
    self->kind = kind;
    return kind == NUMBER_OTHER ? OTHER : LARGER_KIND;
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

static void widen(const sequence *from, fl_dtype dtype, int64_t *to)
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

static void put_elements(const field *self, const sequence *from, char *to)
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

/* Writes every run and what lies between them: as of put_list. */
static int put_runs(field *self, char *to, int64_t total, const char *element)
{
    int64_t bytes = fl_dtype_bytes(self->to), at = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const sequence *next = &self->runs[i];
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

/* ---- one field */

/* The bytes of the padding, which `fill` gives for the number of a dtype: 0, or -1 and an
 * exception. */
static int find_padding(PyObject *fill, fl_dtype dtype, char *element)
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

typedef struct field_rule {
    PyObject *fill; /* borrowed */
    int is_widened;
    int is_label; /* the first element of each run is padding */
    int float_bits;
    int64_t shape[2];
} field_rule;

static int put_all(field *self, const field_rule *rule, char *to, const char *element)
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

/* The tensor of the runs. New reference; NotImplemented where they are not covered. */
static PyObject *make_field(fl_py_stacker *stacker, field *self, const field_rule *rule)
{
    for (;;) {
        char element[8], *data;
        if (!find_dtype(self, rule->is_widened, rule->float_bits) || self->to.bits > 64)
            return Py_NewRef(Py_NotImplemented);
        if (fl_tensor_bytes(self->to, 2, rule->shape) < 0) return PyErr_NoMemory();
        if (find_padding(rule->fill, self->to, element) != 0) return NULL;
        PyObject *tensor = fl_py_stacker_tensor(stacker, self->to, 2, rule->shape, &data);
        if (tensor == NULL) return NULL;
        int status = put_all(self, rule, data, element);
        if (status == 0) return tensor;
        Py_DECREF(tensor);
        if (status == OTHER) return Py_NewRef(Py_NotImplemented);
    }
}

static PyObject *
make_int64(fl_py_stacker *stacker, int32_t ndim, const int64_t *shape, int64_t **to)
{
    char *data;
    PyObject *tensor = fl_py_stacker_tensor(stacker, int64_dtype, ndim, shape, &data);
    if (tensor != NULL) *to = (int64_t *)(void *)data;
    return tensor;
}

static PyObject *make_mask(fl_py_stacker *stacker, const field *self, const int64_t *shape)
{
    int64_t *to, at = 0;
    PyObject *tensor = make_int64(stacker, 2, shape, &to);
    for (Py_ssize_t i = 0; tensor != NULL && i < self->count; i++) {
        for (; at < self->runs[i].start; at++) to[at] = 0;
        for (; at < self->runs[i].start + self->runs[i].length; at++) to[at] = 1;
    }
    for (; tensor != NULL && at < shape[0] * shape[1]; at++) to[at] = 0;
    return tensor;
}

static PyObject *make_lengths(fl_py_stacker *stacker, const field *self)
{
    int64_t *to, shape = self->count;
    PyObject *tensor = make_int64(stacker, 1, &shape, &to);
    for (Py_ssize_t i = 0; tensor != NULL && i < self->count; i++) to[i] = self->runs[i].length;
    return tensor;
}

/* The field of a list of values, and references to these: 0, OTHER, or -1 and an exception; to be
 * closed after all. */
static int open_field(fl_py_stacker *stacker, PyObject *values, field *out, fl_py_items *items)
{
    *out = (field){0};
    *items = (fl_py_items){.count = PyList_GET_SIZE(values)};
    if (items->count == 0) {
        PyErr_SetString(PyExc_ValueError, "values must not be empty");
        return -1;
    }
    out->runs = PyMem_New(sequence, (size_t)items->count);
    items->items = PyMem_New(PyObject *, (size_t)items->count);
    if (out->runs == NULL || items->items == NULL) {
        PyErr_NoMemory();
        items->count = 0;
        return -1;
    }
    for (Py_ssize_t i = 0; i < items->count; i++)
        items->items[i] = Py_NewRef(PyList_GET_ITEM(values, i));
    return look_at_runs(stacker, items, out);
}

static void close_field(field *self, fl_py_items *items)
{
    for (Py_ssize_t i = 0; i < items->count; i++) Py_DECREF(items->items[i]);
    PyMem_Free(items->items);
    PyMem_Free(self->runs);
}

/* ---- padding */

/* Cuts runs, and gives them their places: 0, or -1 and MemoryError for more elements than any
 * memory has. */
static int
place_rows(field *self, bool is_left, int64_t multiple, int64_t max_length, int64_t *width)
{
    int64_t longest = 0, total;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        if (max_length >= 0) self->runs[i].length = fl_min(self->runs[i].length, max_length);
        longest = fl_max(longest, self->runs[i].length);
    }
    int64_t rest = longest % multiple;
    if (!fl_add(longest, rest > 0 ? multiple - rest : 0, width) ||
        !fl_mul(*width, self->count, &total)) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->count; i++)
        self->runs[i].start = i * *width + (is_left ? *width - self->runs[i].length : 0);
    return 0;
}

static PyObject *make_padded(fl_py_stacker *stacker, field *self, const field_rule *rule,
                             bool has_mask, bool has_lengths)
{
    PyObject *padded = make_field(stacker, self, rule);
    if (padded == NULL || padded == Py_NotImplemented) return padded;
    PyObject *mask = has_mask ? make_mask(stacker, self, rule->shape) : Py_NewRef(Py_None);
    PyObject *lengths = NULL, *result = NULL;
    if (mask != NULL) lengths = has_lengths ? make_lengths(stacker, self) : Py_NewRef(Py_None);
    if (lengths != NULL) result = PyTuple_Pack(3, padded, mask, lengths);
    Py_DECREF(padded);
    Py_XDECREF(mask);
    Py_XDECREF(lengths);
    return result;
}

PyObject *fl_py_pad(fl_py_stacker *self, PyObject *args)
{
    PyObject *values, *result = NULL;
    field_rule rule = {0};
    int is_left, has_mask, has_lengths;
    long long multiple, max_length;
    if (!PyArg_ParseTuple(args, "O!OppLLppi:pad", &PyList_Type, &values, &rule.fill,
                          &rule.is_widened, &is_left, &multiple, &max_length, &has_mask,
                          &has_lengths, &rule.float_bits))
        return NULL;
    if (multiple < 1) return PyErr_Format(PyExc_ValueError, "multiple must be at least 1");
    field all;
    fl_py_items items;
    int status = open_field(self, values, &all, &items);
    if (status == 0) status = place_rows(&all, is_left, multiple, max_length, &rule.shape[1]);
    rule.shape[0] = all.count;
    if (status == 0)
        result = make_padded(self, &all, &rule, has_mask, has_lengths);
    else if (status == OTHER)
        result = Py_NewRef(Py_NotImplemented);
    close_field(&all, &items);
    return result;
}

/* ---- packing */

/* The int64 at `i` of a list of ints, -1 for what is none. */
static int64_t int_at(PyObject *list, Py_ssize_t i)
{
    int overflow;
    PyObject *item = PyList_GET_ITEM(list, i);
    return PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
}

static int fail_places(void)
{
    PyErr_SetString(PyExc_ValueError, "starts and lengths do not fit values, rows and width");
    return -1;
}

/* 0, or -1 and ValueError unless the places are in order, and the lengths those of the runs. */
static int place_packed(field *self, PyObject *starts, PyObject *lengths, int64_t total)
{
    int64_t at = 0;
    if (PyList_GET_SIZE(starts) != self->count || PyList_GET_SIZE(lengths) != self->count)
        return fail_places();
    for (Py_ssize_t i = 0; i < self->count; i++) {
        sequence *run = &self->runs[i];
        run->start = int_at(starts, i);
        if (run->length != int_at(lengths, i) || run->start < at || run->start > total ||
            run->length > total - run->start)
            return fail_places();
        at = run->start + run->length;
    }
    return 0;
}

static bool count_elements(const int64_t *shape, int64_t *total)
{
    if (shape[0] >= 0 && shape[1] >= 0 && fl_mul(shape[0], shape[1], total)) return true;
    PyErr_SetString(PyExc_ValueError, "rows and width are negative, or too large");
    return false;
}

PyObject *fl_py_pack(fl_py_stacker *self, PyObject *args)
{
    PyObject *values, *starts, *lengths, *result = NULL;
    field_rule rule = {0};
    long long rows, width;
    int64_t total;
    if (!PyArg_ParseTuple(args, "O!O!O!LLOppi:pack", &PyList_Type, &values, &PyList_Type, &starts,
                          &PyList_Type, &lengths, &rows, &width, &rule.fill, &rule.is_widened,
                          &rule.is_label, &rule.float_bits))
        return NULL;
    rule.shape[0] = rows;
    rule.shape[1] = width;
    if (!count_elements(rule.shape, &total)) return NULL;
    field all;
    fl_py_items items;
    int status = open_field(self, values, &all, &items);
    if (status == 0) status = place_packed(&all, starts, lengths, total);
    if (status == 0)
        result = make_field(self, &all, &rule);
    else if (status == OTHER)
        result = Py_NewRef(Py_NotImplemented);
    close_field(&all, &items);
    return result;
}

/* ---- segments */

/* 0, or -1 and ValueError unless the bounds rise from 0 to `total`. */
static int check_bounds(PyObject *bounds, int64_t total)
{
    Py_ssize_t count = PyList_GET_SIZE(bounds);
    int64_t before = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t bound = int_at(bounds, i);
        if (bound < before || (i == 0 && bound != 0)) break;
        before = bound;
        if (i == count - 1 && bound == total && total <= INT32_MAX) return 0;
    }
    PyErr_SetString(PyExc_ValueError, "bounds must rise from 0 to rows * width, as int32");
    return -1;
}

static PyObject *make_cu_seqlens(fl_py_stacker *stacker, PyObject *bounds)
{
    char *data;
    int64_t count = PyList_GET_SIZE(bounds);
    PyObject *tensor = fl_py_stacker_tensor(stacker, (fl_dtype){kDLInt, 32, 1}, 1, &count, &data);
    bool is_same = tensor != NULL && PyList_GET_SIZE(bounds) == count;
    for (Py_ssize_t i = 0; is_same && i < count; i++)
        ((int32_t *)(void *)data)[i] = (int32_t)int_at(bounds, i);
    return tensor;
}

static PyObject *make_positions(fl_py_stacker *stacker, PyObject *bounds, const int64_t *shape)
{
    int64_t *to;
    PyObject *tensor = make_int64(stacker, 2, shape, &to);
    int64_t begin = 0, total = shape[0] * shape[1];
    for (Py_ssize_t i = 1; tensor != NULL && i < PyList_GET_SIZE(bounds); i++) {
        int64_t end = fl_min(int_at(bounds, i), total);
        for (int64_t at = begin; at < end; at++) to[at] = at - begin;
        begin = fl_max(begin, end);
    }
    return tensor;
}

PyObject *fl_py_segments(fl_py_stacker *self, PyObject *args)
{
    PyObject *given;
    int copies, has_positions;
    long long rows, width;
    int64_t total;
    if (!PyArg_ParseTuple(args, "O!LLip:segments", &PyList_Type, &given, &rows, &width, &copies,
                          &has_positions))
        return NULL;
    const int64_t shape[] = {rows, width};
    if (!count_elements(shape, &total) || check_bounds(given, total) != 0) return NULL;
    PyObject *bounds = PyList_GetSlice(given, 0, PyList_GET_SIZE(given)); /* nobody else has it */
    PyObject *all = bounds != NULL ? PyList_New(0) : NULL, *result = NULL;
    for (int i = 0; all != NULL && i < copies; i++) {
        PyObject *tensor = make_cu_seqlens(self, bounds);
        if (tensor == NULL || PyList_Append(all, tensor) != 0) Py_CLEAR(all);
        Py_XDECREF(tensor);
    }
    PyObject *positions = NULL;
    if (all != NULL)
        positions = has_positions ? make_positions(self, bounds, shape) : Py_NewRef(Py_None);
    if (positions != NULL) result = PyTuple_Pack(2, all, positions);
    Py_XDECREF(positions);
    Py_XDECREF(all);
    Py_XDECREF(bounds);
    return result;
}
