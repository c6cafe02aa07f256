/* fl_py_arrow: see fl_py_arrow.h. Offsets come from files, so this file checks the offsets. The
 * interface does not tell the sizes of buffers, so the lengths of arrays are believed. */
#include "fl_py_arrow.h"

#include "fl_py_error.h"
#include "fl_py_numpy.h"

#include "dlpack/dlpack.h"

#include <stdlib.h>
#include <string.h>

/* The two structs of Arrow's C data interface. */
struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* The types of values, by Arrow's format. */
static const struct value_kind {
    const char *format, *name;
    const char *numpy; /* NULL: fastloop does not read this type */
    int64_t bytes;     /* 0: bits */
    bool is_integer;
} kinds[] = {{"c", "int8", "i1", 1, true},      {"C", "uint8", "u1", 1, true},
             {"s", "int16", "i2", 2, true},     {"S", "uint16", "u2", 2, true},
             {"i", "int32", "i4", 4, true},     {"I", "uint32", "u4", 4, true},
             {"l", "int64", "i8", 8, true},     {"f", "float", "f4", 4, false},
             {"g", "double", "f8", 8, false},   {"b", "bool", "?", 0, false},
             {"u", "string", NULL, 0, false},   {"L", "uint64", NULL, 0, false},
             {"e", "halffloat", NULL, 0, false}};
enum { KINDS = sizeof kinds / sizeof *kinds };
typedef struct value_kind value_kind;

/* Elements [begin, begin + length) of an array; begin counts from the start of its buffers. */
typedef struct level {
    const struct ArrowSchema *schema; /* borrowed from the owner of the chunk */
    const struct ArrowArray *array;   /* borrowed from the owner of the chunk */
    int64_t begin, length;
} level;

static int fail(const char *text) { return FL_PY_FAIL(PyExc_ValueError, "%s", text); }

/* ---- levels */

static bool has_nulls(const level *self)
{
    const uint8_t *valid = self->array->n_buffers > 0 ? self->array->buffers[0] : NULL;
    if (valid == NULL || self->array->null_count == 0) return false;
    for (int64_t i = self->begin; i < self->begin + self->length; i++)
        if ((valid[i / 8] >> (i % 8) & 1) == 0) return true;
    return false;
}

/* Opens a chunk of pyarrow. *owner, a new reference, keeps the memory of *out alive. 0, or -1 and
 * an exception. */
static int open_chunk(PyObject *chunk, PyObject **owner, level *out)
{
    PyObject *pair = PyObject_CallMethod(chunk, "__arrow_c_array__", NULL), *schema, *array;
    if (pair != NULL && PyArg_ParseTuple(pair, "OO", &schema, &array)) {
        out->schema = PyCapsule_GetPointer(schema, "arrow_schema");
        out->array = out->schema != NULL ? PyCapsule_GetPointer(array, "arrow_array") : NULL;
        if (out->array != NULL) {
            out->begin = out->array->offset;
            out->length = out->array->length;
            *owner = pair;
            if (!has_nulls(out)) return 0;
            fail("null values");
        }
    }
    Py_XDECREF(pair);
    return -1;
}

static bool is_list(const level *self)
{
    const char *format = self->schema->format;
    return strcmp(format, "+l") == 0 || strcmp(format, "+L") == 0;
}

/* Returns the begin of list i, which is the end of list i - 1, among the elements of the inner
 * level. */
static int64_t list_begin(const level *self, int64_t i)
{
    const char *offsets = self->array->buffers[1];
    int64_t wide;
    int32_t narrow;
    if (self->schema->format[1] == 'L') {
        memcpy(&wide, offsets + (self->begin + i) * (int64_t)sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, offsets + (self->begin + i) * (int64_t)sizeof narrow, sizeof narrow);
    return narrow;
}

/* Enters the elements [from, to) inside lists: 0, or -1 and an exception. */
static int enter(const level *self, int64_t from, int64_t to, level *out)
{
    const struct ArrowArray *array = self->array->children[0];
    const level found = {self->schema->children[0], array, array->offset + from, to - from};
    if (from < 0 || to > array->length) return fail("lists beyond its values");
    *out = found;
    return has_nulls(out) ? fail("null values") : 0;
}

/* Returns the type of the values; NULL and an exception if fastloop does not read the type. */
static const value_kind *kind_of(const level *self)
{
    const char *format = self->schema->format, *name = format;
    if (self->schema->dictionary != NULL) format = name = "dictionary";
    for (int i = 0; i < KINDS; i++) {
        if (strcmp(kinds[i].format, format) != 0) continue;
        if (kinds[i].numpy != NULL) return &kinds[i];
        name = kinds[i].name;
    }
    PyErr_Format(PyExc_ValueError, "values of %s", name);
    return NULL;
}

static const char *values_of(const level *self, const value_kind *kind)
{
    return (const char *)self->array->buffers[1] + self->begin * kind->bytes;
}

/* ---- rows */

/* Enters lists of equal length: 1, and the length; 0 the elements are not lists; -1 and an
 * exception. */
static int enter_equal(level *self, int64_t *width)
{
    const char *format = self->schema->format;
    if (strncmp(format, "+w:", 3) == 0) {
        *width = strtoll(format + 3, NULL, 10);
        return enter(self, self->begin * *width, (self->begin + self->length) * *width, self) == 0
                   ? 1
                   : -1;
    }
    if (!is_list(self)) return 0;
    int64_t first = self->length > 0 ? list_begin(self, 0) : 0, end = first;
    *width = self->length > 0 ? list_begin(self, 1) - first : -1;
    for (int64_t i = 0; i < self->length; i++, end += *width)
        if (*width < 0 || list_begin(self, i + 1) - end != *width)
            return fail("lists of different length");
    if (self->length == 0) return fail("lists of different length");
    return enter(self, first, end, self) == 0 ? 1 : -1;
}

/* Returns a new bytes object with one byte for each bit. */
static PyObject *unpack_bits(const level *self)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->length);
    const uint8_t *bits = self->array->buffers[1];
    for (int64_t i = 0, at = self->begin; bytes != NULL && i < self->length; i++, at++)
        PyBytes_AS_STRING(bytes)[i] = bits[at / 8] >> (at % 8) & 1;
    return bytes;
}

const char fl_py_arrow_rows_doc[] =
    PyDoc_STR("arrow_rows(chunk, /)\n--\n\n"
              "Return a pyarrow.Array as an ndarray [rows, *lengths] over Arrow's own memory.\n"
              "The array must hold numbers, or lists of equal length. The ndarray keeps the\n"
              "memory alive; bools are copied. Raises ValueError for any other array.");

PyObject *fl_py_arrow_rows(PyObject *Py_UNUSED(module), PyObject *chunk)
{
    PyObject *owner, *array = NULL;
    level at;
    int64_t shape[FL_MAX_NDIM];
    int32_t ndim = 1;
    int found = 1;
    if (open_chunk(chunk, &owner, &at) != 0) return NULL;
    shape[0] = at.length;
    while (found > 0 && ndim < FL_MAX_NDIM) {
        found = enter_equal(&at, &shape[ndim]);
        ndim += found > 0;
    }
    const value_kind *kind = found == 0 ? kind_of(&at) : NULL;
    if (kind != NULL && kind->bytes > 0) {
        array = fl_py_array_over(owner, values_of(&at, kind), kind->numpy, ndim, shape);
    } else if (kind != NULL) {
        Py_SETREF(owner, unpack_bits(&at));
        if (owner != NULL)
            array = fl_py_array_over(owner, PyBytes_AS_STRING(owner), kind->numpy, ndim, shape);
    } else if (found > 0) {
        fail("too many dimensions");
    }
    Py_XDECREF(owner);
    return array;
}

/* ---- lists */

/* The lists of several chunks; every value lies between `begin` and `end`. */
typedef struct lists {
    PyObject *owners; /* owned: a list */
    level *chunks;    /* owned */
    Py_ssize_t count; /* number of chunks that have rows */
    int64_t rows;
    const value_kind *kind; /* NULL: no chunk has values yet */
    const char *begin, *end;
} lists;

/* Widens begin and end to the values of a chunk: 0, or -1 and an exception. */
static int note_values(lists *self, const level *chunk)
{
    level values;
    int64_t last = list_begin(chunk, 0);
    for (int64_t i = 1; i <= chunk->length; i++) {
        int64_t next = list_begin(chunk, i);
        if (next < last) return fail("offsets that fall");
        last = next;
    }
    if (enter(chunk, list_begin(chunk, 0), last, &values) != 0) return -1;
    const value_kind *kind = kind_of(&values);
    if (kind == NULL) return -1;
    if (!kind->is_integer) return fail("no lists of integers");
    if (values.length == 0) return 0;
    if (self->kind != NULL && self->kind != kind) return fail("lists of several types");
    const char *begin = values_of(&values, kind), *end = begin + values.length * kind->bytes;
    if ((uintptr_t)begin % (uintptr_t)kind->bytes != 0) return fail("lists at unaligned addresses");
    if (self->kind == NULL || begin < self->begin) self->begin = begin;
    if (self->kind == NULL || end > self->end) self->end = end;
    self->kind = kind;
    return 0;
}

static int add_chunk(lists *self, PyObject *chunk)
{
    PyObject *owner;
    level *next = &self->chunks[self->count];
    if (open_chunk(chunk, &owner, next) != 0) return -1;
    int status = PyList_Append(self->owners, owner);
    Py_DECREF(owner);
    if (status != 0 || next->length == 0) return status;
    if (!is_list(next)) return fail("no lists of integers");
    self->count++;
    self->rows += next->length;
    return note_values(self, next);
}

/* Makes a vector with the begin and the end of each list among all values. New reference. */
static PyObject *list_ends(const lists *self)
{
    int64_t *to;
    PyObject *ends = fl_py_int64_vector((Py_ssize_t)(2 * self->rows), &to);
    for (Py_ssize_t c = 0; ends != NULL && c < self->count; c++) {
        const level *chunk = &self->chunks[c];
        int64_t first = list_begin(chunk, 0), moved = -first;
        const level values = {.array = chunk->array->children[0],
                              .begin = chunk->array->children[0]->offset + first};
        if (list_begin(chunk, chunk->length) > first)
            moved += (values_of(&values, self->kind) - self->begin) / self->kind->bytes;
        for (int64_t i = 0; i < chunk->length; i++) {
            *to++ = list_begin(chunk, i) + moved;
            *to++ = list_begin(chunk, i + 1) + moved;
        }
    }
    return ends;
}

const char fl_py_arrow_lists_doc[] =
    PyDoc_STR("arrow_lists(chunks, /)\n--\n\n"
              "Read `chunks`, a sequence of pyarrow.Arrays of lists of integers. Returns\n"
              "(values, ends): `values` is a vector over the memory of all chunks, and keeps\n"
              "the memory alive; `ends` is an int64 vector with the index in `values` at which\n"
              "each list begins and ends. Raises ValueError for chunks of other types, and if\n"
              "all lists are empty.");

PyObject *fl_py_arrow_lists(PyObject *Py_UNUSED(module), PyObject *chunks)
{
    PyObject *values = NULL, *ends = NULL, *pair = NULL;
    PyObject *all = PySequence_Tuple(chunks);
    if (all == NULL) return NULL;
    lists self = {.owners = PyList_New(0),
                  .chunks = PyMem_Calloc((size_t)PyTuple_GET_SIZE(all) + 1, sizeof(level))};
    int status = self.owners != NULL && self.chunks != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(all); i++)
        status = add_chunk(&self, PyTuple_GET_ITEM(all, i));
    if (status != 0 && !PyErr_Occurred()) PyErr_NoMemory();
    if (status == 0 && self.kind == NULL) status = fail("empty lists alone");
    if (status == 0) {
        int64_t count = (self.end - self.begin) / self.kind->bytes;
        /* A user could empty a list, but not a tuple. */
        PyObject *owner = PyList_AsTuple(self.owners);
        if (owner != NULL)
            values = fl_py_array_over(owner, self.begin, self.kind->numpy, 1, &count);
        Py_XDECREF(owner);
        if (values != NULL) ends = list_ends(&self);
    }
    if (ends != NULL) pair = PyTuple_Pack(2, values, ends);
    Py_XDECREF(values);
    Py_XDECREF(ends);
    Py_XDECREF(self.owners);
    PyMem_Free(self.chunks);
    Py_DECREF(all);
    return pair;
}

/* ---- Python lists */

#define FILL(type)                                                      \
    for (int64_t i = 0; i < count; i++) {                               \
        type value;                                                     \
        memcpy(&value, data + i * (int64_t)sizeof value, sizeof value); \
        PyObject *item = PyLong_FromLongLong((long long)value);         \
        if (item == NULL) break;                                        \
        PyList_SET_ITEM(list, (Py_ssize_t)i, item);                     \
    }

/* Makes a list of ints of contiguous elements. New reference. */
static PyObject *list_ints(const char *data, fl_dtype dtype, int64_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    if (list == NULL) return NULL;
    bool is_signed = dtype.code == kDLInt;
    if (dtype.bits == 8 && is_signed)
        FILL(int8_t)
    else if (dtype.bits == 8)
        FILL(uint8_t)
    else if (dtype.bits == 16 && is_signed)
        FILL(int16_t)
    else if (dtype.bits == 16)
        FILL(uint16_t)
    else if (dtype.bits == 32 && is_signed)
        FILL(int32_t)
    else if (dtype.bits == 32)
        FILL(uint32_t)
    else
        FILL(int64_t)
    if (PyErr_Occurred()) Py_CLEAR(list);
    return list;
}

const char fl_py_int_lists_doc[] =
    PyDoc_STR("int_lists(values, ends, /)\n--\n\n"
              "Return a list of lists of ints: one list for each row of `ends`, an int64 array\n"
              "[rows, 2], which says where the list begins and ends in `values`. `values` is a\n"
              "vector that arrow_lists() has returned. Raises ValueError for any other arrays.");

PyObject *fl_py_int_lists(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *first, *second;
    fl_tensor values, ends;
    if (!PyArg_ParseTuple(args, "OO:int_lists", &first, &second)) return NULL;
    int found = fl_py_array_view(first, &values);
    if (found == 1) found = fl_py_array_view(second, &ends);
    if (found < 0) return NULL;
    bool fits = found == 1 && values.ndim == 1 && ends.ndim == 2 && ends.shape[1] == 2 &&
                (values.dtype.code == kDLInt || values.dtype.code == kDLUInt) &&
                (values.dtype.code == kDLInt || values.dtype.bits < 64) &&
                values.dtype.lanes == 1 && ends.dtype.code == kDLInt && ends.dtype.bits == 64 &&
                fl_tensor_is_contiguous(&values) && fl_tensor_is_contiguous(&ends);
    PyObject *all = fits ? PyList_New((Py_ssize_t)ends.shape[0]) : NULL;
    for (int64_t i = 0; all != NULL && i < ends.shape[0]; i++) {
        int64_t range[2];
        memcpy(range, ends.data + i * (int64_t)sizeof range, sizeof range);
        fits = 0 <= range[0] && range[0] <= range[1] && range[1] <= values.shape[0];
        PyObject *list = NULL;
        if (fits)
            list = list_ints(values.data + range[0] * fl_dtype_bytes(values.dtype), values.dtype,
                             range[1] - range[0]);
        if (list == NULL)
            Py_CLEAR(all);
        else
            PyList_SET_ITEM(all, (Py_ssize_t)i, list);
    }
    if (!fits) fail("values and ends must be those of arrow_lists()");
    return all;
}

/* ---- bytes */

PyObject *fl_py_arrow_bytes(PyObject *object, int64_t count, int64_t lanes, const uint8_t **out)
{
    PyObject *capsule = PyObject_CallMethod(object, "__arrow_c_array__", NULL);
    const struct ArrowArray *array =
        capsule != NULL ? PyCapsule_GetPointer(capsule, "arrow_array") : NULL;
    if (array != NULL && lanes > 1)
        array = array->n_children == 1 && array->length == count ? array->children[0] : NULL;
    if (array != NULL && array->n_children == 0 && array->n_buffers == 2 && array->offset == 0 &&
        array->length == count * lanes && array->buffers[1] != NULL) {
        *out = array->buffers[1];
        return capsule;
    }
    Py_XDECREF(capsule);
    PyErr_Clear();
    return NULL;
}
