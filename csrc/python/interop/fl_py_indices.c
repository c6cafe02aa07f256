/* fl_py_indices: see fl_py_indices.h. */
#include "fl_py_indices.h"

#include "fl_py_error.h"
#include "fl_py_numpy.h"
#include "fl_py_section.h"

static inline bool is_index_vector(const fl_tensor *view)
{
    return view->ndim == 1 && view->dtype.code == kDLInt && view->dtype.bits == 64 &&
           (view->shape[0] <= 1 || view->stride[0] == 8) && (uintptr_t)view->data % 8 == 0;
}

int fl_py_index_vector(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out)
{
    if (fl_py_view(dlpack, object, out) != 0) return -1;
    if (is_index_vector(out)) return 0;
    return FL_PY_FAIL(PyExc_TypeError, "indices must be a contiguous vector of int64");
}

static int index_from_scalar(const fl_py_dlpack *dlpack, PyObject *item, int64_t *out)
{
    fl_tensor view;
    if (fl_py_view(dlpack, item, &view) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (view.ndim != 0 || view.dtype.code != kDLInt)
        /* torch takes unsigned bytes as masks, not as indices. */
        return 0;
    PyObject *number = PyNumber_Index(item);
    if (number == NULL) return -1;
    *out = PyLong_AsLongLong(number);
    Py_DECREF(number);
    if (*out != -1 || !PyErr_Occurred()) return 1;
    PyErr_Clear();
    return 0;
}

int fl_py_index(const fl_py_dlpack *dlpack, PyObject *item, int64_t *out)
{
    int overflow = 0;
    if (PyLong_CheckExact(item)) {
        *out = PyLong_AsLongLongAndOverflow(item, &overflow);
        return overflow == 0;
    }
    if (fl_py_is_tensor(dlpack, item)) return index_from_scalar(dlpack, item, out);
    bool is_plain = PyLong_Check(item) || fl_py_is_integer_scalar(item);
    if (!is_plain || PyBool_Check(item)) return 0;
    PyObject *number = PyNumber_Index(item);
    if (number == NULL) return -1;
    *out = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    return overflow == 0;
}

/* Adds all items of a vector at once: 1 added, 0 not a contiguous int64 vector, -1 exception. */
static int add_vector(const fl_py_dlpack *dlpack, PyObject *item, fl_rows *rows)
{
    fl_tensor view;
    bool is_tensor = fl_py_is_tensor(dlpack, item);
    if (is_tensor ? fl_py_view(dlpack, item, &view) != 0 : fl_py_array_view(item, &view) != 1) {
        PyErr_Clear();
        return 0;
    }
    if (!is_index_vector(&view)) return 0;
    fl_err err;
    int status = fl_rows_add(rows, (const int64_t *)(const void *)view.data, view.shape[0], &err);
    return fl_py_check(status, &err, NULL) == 0 ? 1 : -1;
}

/* SHARED(items): here and below any thread may change the user's list, and so may Python code that
 * runs while an item is converted. */
int fl_py_rows_add(const fl_py_dlpack *dlpack, PyObject *items, fl_rows *rows)
{
    int added = add_vector(dlpack, items, rows);
    if (added != 0) return added;
    if (!PyList_CheckExact(items) && !PyTuple_CheckExact(items)) return 0;
    int64_t before = rows->count, buffer[256], count = 256;
    Py_ssize_t next = 0;
    while (count == 256) {
        PyObject *item;
        for (count = 0; count < 256 && (item = fl_py_item(items, next)) != NULL; next++) {
            int done = fl_py_index(dlpack, item, &buffer[count++]);
            Py_DECREF(item);
            if (done == 1) continue;
            rows->count = before;
            return done;
        }
        fl_err err;
        if (fl_py_check(fl_rows_add(rows, buffer, count, &err), &err, NULL) != 0) return -1;
    }
    return 1;
}

/* Reads an index (its view is 0), or a tuple (index, view). 1 done; 0 neither; -1 exception. */
static int read_view(const fl_py_dlpack *dlpack, PyObject *item, int64_t *index, uint8_t *view)
{
    int64_t number = 0;
    *view = 0;
    if (!PyTuple_CheckExact(item)) return fl_py_index(dlpack, item, index);
    if (PyTuple_GET_SIZE(item) != 2) return 0;
    int done = fl_py_index(dlpack, PyTuple_GET_ITEM(item, 0), index);
    if (done == 1) done = fl_py_index(dlpack, PyTuple_GET_ITEM(item, 1), &number);
    if (done != 1) return done;
    *view = (uint8_t)number;
    return number >= 0 && number <= UINT8_MAX;
}

int fl_py_rows_add_views(const fl_py_dlpack *dlpack, PyObject *items, fl_rows *rows)
{
    int done = PyList_CheckExact(items);
    PyObject *item;
    for (Py_ssize_t i = 0; done == 1 && (item = fl_py_item(items, i)) != NULL; i++) {
        int64_t index;
        uint8_t view;
        fl_err err;
        done = read_view(dlpack, item, &index, &view);
        Py_DECREF(item);
        if (done == 1 && fl_rows_add_views(rows, &index, &view, 1, &err) != FL_OK) {
            fl_py_raise(&err, NULL);
            done = -1;
        }
    }
    if (done != 1) fl_rows_clear(rows);
    return done;
}

PyObject *fl_py_int64_array(const fl_py_dlpack *dlpack, PyObject *sequence)
{
    int64_t *out;
    Py_ssize_t length = PySequence_Fast_GET_SIZE(sequence);
    PyObject *array = fl_py_int64_vector(length, &out);
    if (array == NULL) return NULL;
    for (Py_ssize_t i = 0; i < length; i++) {
        /* If the sequence has shrunk meanwhile, the missing item is not plain. */
        PyObject *item = fl_py_item(sequence, i);
        int done = item != NULL ? fl_py_index(dlpack, item, &out[i]) : 0;
        Py_XDECREF(item);
        if (done == 1) continue;
        Py_DECREF(array);
        if (done < 0) return NULL;
        Py_RETURN_NONE;
    }
    return array;
}
