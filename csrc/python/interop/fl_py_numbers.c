/* fl_py_numbers: see fl_py_numbers.h. No code of Python runs while a list is read: the items are
 * plain ints and floats, and anything else ends the reading. */
#include "fl_py_numbers.h"

#include "fl_py_dlpack.h"
#include "fl_py_numpy.h"
#include "fl_py_section.h"

#include <string.h>

const char fl_py_read_numbers_doc[] =
    "read_numbers(items, starts, count, out)\n--\n\n"
    "Write items [start, start + count) of a list or tuple into the same rows of an array,\n"
    "for each start. Return True; False if an item is missing or does not fit the array.\n"
    "The array is contiguous: int64 for ints, or float64 for floats. An item is a number,\n"
    "or for an array of two dimensions a list or tuple with a number for each column.\n"
    "starts is a contiguous vector of int64. Raises TypeError for other arguments.";

/* Writes an int or a float to an element of 8 bytes. Returns false for anything else. */
static bool write_number(PyObject *item, bool is_float, char *out)
{
    if (is_float) {
        double value = PyFloat_CheckExact(item) ? PyFloat_AS_DOUBLE(item) : 0;
        memcpy(out, &value, sizeof value);
        return PyFloat_CheckExact(item);
    }
    int overflow = 1;
    int64_t value = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : 0;
    memcpy(out, &value, sizeof value);
    return overflow == 0;
}

static inline bool is_list(PyObject *value)
{
    return PyList_CheckExact(value) || PyTuple_CheckExact(value);
}

/* Returns an item, or NULL if the list has fewer items. let_go() takes the item back.
 *
 * SHARED(numbers): without the interpreter's lock any thread may change the list meanwhile, so the
 * item is a new reference. With the lock the item is borrowed, because counting references would
 * write to the memory of every item. */
static inline PyObject *hold(PyObject *list, int64_t at)
{
#ifdef Py_GIL_DISABLED
    return fl_py_item(list, (Py_ssize_t)at);
#else
    return at < PySequence_Fast_GET_SIZE(list) ? PySequence_Fast_GET_ITEM(list, at) : NULL;
#endif
}

static inline void let_go(PyObject *item)
{
#ifdef Py_GIL_DISABLED
    Py_XDECREF(item);
#else
    (void)item;
#endif
}

static bool write_list(PyObject *list, int64_t width, bool is_float, char *out)
{
    if (!is_list(list) || PySequence_Fast_GET_SIZE(list) != width) return false;
    for (int64_t i = 0; i < width; i++) {
        PyObject *item = hold(list, i);
        bool is_written = item != NULL && write_number(item, is_float, out + 8 * i);
        let_go(item);
        if (!is_written) return false;
    }
    return true;
}

static bool write_row(PyObject *items, int64_t row, const fl_tensor *view)
{
    bool is_float = view->dtype.code == kDLFloat;
    int64_t width = view->ndim == 2 ? view->shape[1] : 1;
    char *out = (char *)(uintptr_t)view->data + row * width * 8;
    PyObject *item = row < view->shape[0] ? hold(items, row) : NULL;
    if (item == NULL) return false;
    bool is_written = view->ndim == 2 ? write_list(item, width, is_float, out)
                                      : write_number(item, is_float, out);
    let_go(item);
    return is_written;
}

static bool is_for_numbers(const fl_tensor *view)
{
    bool has_dtype = view->dtype.code == kDLInt || view->dtype.code == kDLFloat;
    return has_dtype && view->dtype.bits == 64 && (view->ndim == 1 || view->ndim == 2) &&
           fl_tensor_is_contiguous(view);
}

static bool are_starts(const fl_tensor *view)
{
    return view->dtype.code == kDLInt && view->dtype.bits == 64 && view->ndim == 1 &&
           fl_tensor_is_contiguous(view);
}

/* Fetches what the rows after row i need: their items, and what the items point to. Items of a
 * large list lie anywhere in memory, and waiting for them takes most of the time. */
static void prefetch(PyObject *items, const fl_tensor *starts, int64_t i)
{
#ifndef Py_GIL_DISABLED
    enum { ITEMS = 16, NUMBERS = 8, VALUES = 4 }; /* rows ahead */
    const int64_t *start = (const int64_t *)(const void *)starts->data;
    int64_t left = starts->shape[0] - i, count = PySequence_Fast_GET_SIZE(items);
    PyObject **all = PySequence_Fast_ITEMS(items);
    if (left > ITEMS && (uint64_t)start[i + ITEMS] < (uint64_t)count)
        __builtin_prefetch(all[start[i + ITEMS]]);
    if (left > NUMBERS && (uint64_t)start[i + NUMBERS] < (uint64_t)count &&
        is_list(all[start[i + NUMBERS]]))
        __builtin_prefetch(PySequence_Fast_ITEMS(all[start[i + NUMBERS]]));
    if (left > VALUES && (uint64_t)start[i + VALUES] < (uint64_t)count) {
        PyObject *list = all[start[i + VALUES]];
        for (Py_ssize_t k = 0; is_list(list) && k < 4 && k < PySequence_Fast_GET_SIZE(list); k++)
            __builtin_prefetch(PySequence_Fast_GET_ITEM(list, k));
    }
#else
    (void)items, (void)starts, (void)i;
#endif
}

PyObject *fl_py_read_numbers(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *items, *starts, *out;
    long long count;
    fl_tensor from, to;
    if (!PyArg_ParseTuple(args, "OOLO:read_numbers", &items, &starts, &count, &out)) return NULL;
    bool are_arrays = fl_py_array_view(starts, &from) == 1 && fl_py_array_view(out, &to) == 1;
    if (PyErr_Occurred()) return NULL;
    if (!is_list(items) || !are_arrays || !are_starts(&from) || !is_for_numbers(&to))
        return PyErr_Format(PyExc_TypeError, "read_numbers: must have a list, int64 starts and a "
                                             "contiguous array of int64 or float64");
    const int64_t *start = (const int64_t *)(const void *)from.data;
    for (int64_t i = 0; i < from.shape[0]; i++) {
        prefetch(items, &from, i);
        for (int64_t k = 0; k < count; k++)
            if (start[i] < 0 || !write_row(items, start[i] + k, &to)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}
