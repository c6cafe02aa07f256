/* fl_py_items: the values at one position of the samples of a batch, for example all labels. */
#ifndef FL_PY_ITEMS_H
#define FL_PY_ITEMS_H

#include "fl_py.h"

typedef struct fl_py_items {
    PyObject **items; /* borrowed from the caller, who holds references */
    Py_ssize_t count;
    bool is_tuple;      /* torch holds these values in a tuple; false: in a list */
    PyObject *original; /* borrowed: the user's list or tuple of these values; NULL: none exists */
} fl_py_items;

/* Takes references to the present items of a list or tuple: 0, or -1 and MemoryError. The caller
 * drops the references, and frees *items with PyMem_Free. If there are no items, *items is NULL. */
int fl_py_items_take(PyObject *sequence, PyObject ***items, Py_ssize_t *count);

/* Returns the values in the list or tuple that torch's functions get. New reference. */
PyObject *fl_py_items_object(const fl_py_items *batch);

/* Calls function(values), or function(first, values) unless `first` is NULL. New reference. */
PyObject *fl_py_items_call(PyObject *function, PyObject *first, const fl_py_items *batch);

#endif
