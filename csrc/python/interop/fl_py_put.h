/* fl_py_put: fills a new list or tuple.
 *
 * Needs the interpreter lock. */
#ifndef FL_PY_PUT_H
#define FL_PY_PUT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Puts `item` into place i of a new list or tuple, which takes the reference. If item is NULL,
 * frees the list or tuple and sets *sequence to NULL. */
static inline void fl_py_put(PyObject **sequence, Py_ssize_t i, PyObject *item)
{
    if (item == NULL)
        Py_CLEAR(*sequence);
    else if (PyList_CheckExact(*sequence))
        PyList_SET_ITEM(*sequence, i, item);
    else
        PyTuple_SET_ITEM(*sequence, i, item);
}

#endif
