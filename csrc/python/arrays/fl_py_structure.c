/* fl_py_structure: see fl_py_structure.h. */
#include "fl_py_structure.h"

#include "fl_py_error.h"
#include "fl_py_put.h"

#include <stdbool.h>

/* Adds the outputs in a structure to *count; -1 and an exception if the object is not a
 * structure. */
static int count_outputs(PyObject *structure, int64_t *count)
{
    if (structure == Py_None) {
        (*count)++;
        return 0;
    }
    PyObject *key, *value;
    Py_ssize_t at = 0;
    int status = 0;
    if (Py_EnterRecursiveCall(" in the structure of a batch") != 0) return -1;
    if (PyTuple_CheckExact(structure)) {
        for (; status == 0 && at < PyTuple_GET_SIZE(structure); at++)
            status = count_outputs(PyTuple_GET_ITEM(structure, at), count);
    } else if (PyDict_CheckExact(structure)) {
        while (status == 0 && PyDict_Next(structure, &at, &key, &value))
            status = count_outputs(value, count);
    } else {
        PyErr_Format(PyExc_ValueError,
                     "a structure must consist of None, tuples and dicts, got %.100s",
                     Py_TYPE(structure)->tp_name);
        status = -1;
    }
    Py_LeaveRecursiveCall();
    return status;
}

int64_t fl_py_structure_count(PyObject *structure)
{
    int64_t count = 0;
    return count_outputs(structure, &count) == 0 ? count : -1;
}

int fl_py_structure_check(PyObject *structure, int32_t outputs)
{
    int64_t count = fl_py_structure_count(structure);
    if (count < 0) return -1;
    if (count == outputs) return 0;
    return FL_PY_FAIL(PyExc_ValueError,
                      "the structure must have %d outputs, as the table makes, got %lld",
                      (int)outputs, (long long)count);
}

/* Returns true if the structure is one list of outputs. */
static bool is_flat(PyObject *structure)
{
    if (!PyTuple_CheckExact(structure)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(structure); i++)
        if (PyTuple_GET_ITEM(structure, i) != Py_None) return false;
    return true;
}

static PyObject *build(PyObject *structure, PyObject *outputs, Py_ssize_t *next);

static PyObject *build_list(PyObject *structure, PyObject *outputs, Py_ssize_t *next)
{
    PyObject *list = PyList_New(PyTuple_GET_SIZE(structure));
    for (Py_ssize_t i = 0; list != NULL && i < PyTuple_GET_SIZE(structure); i++)
        fl_py_put(&list, i, build(PyTuple_GET_ITEM(structure, i), outputs, next));
    return list;
}

static PyObject *build_dict(PyObject *structure, PyObject *outputs, Py_ssize_t *next)
{
    PyObject *key, *inner, *dict = PyDict_New();
    Py_ssize_t at = 0;
    while (dict != NULL && PyDict_Next(structure, &at, &key, &inner)) {
        PyObject *item = build(inner, outputs, next);
        if (item == NULL || PyDict_SetItem(dict, key, item) != 0) Py_CLEAR(dict);
        Py_XDECREF(item);
    }
    return dict;
}

/* Builds a structure from the outputs at *next and later, and moves *next past them. New
 * reference. */
static PyObject *build(PyObject *structure, PyObject *outputs, Py_ssize_t *next)
{
    if (structure == Py_None) return Py_NewRef(PyList_GET_ITEM(outputs, (*next)++));
    if (Py_EnterRecursiveCall(" in the structure of a batch") != 0) return NULL;
    bool is_list = PyTuple_CheckExact(structure);
    PyObject *built =
        is_list ? build_list(structure, outputs, next) : build_dict(structure, outputs, next);
    Py_LeaveRecursiveCall();
    return built;
}

PyObject *fl_py_structure_around(PyObject *structure, PyObject *outputs)
{
    if (is_flat(structure)) return outputs;
    Py_ssize_t next = 0;
    PyObject *batch = build(structure, outputs, &next);
    Py_DECREF(outputs);
    return batch;
}
