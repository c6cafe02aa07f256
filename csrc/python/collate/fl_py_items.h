/* fl_py_items: the values at one place of the samples of a batch. */
#ifndef FL_PY_ITEMS_H
#define FL_PY_ITEMS_H

#include "fl_py.h"

typedef struct fl_py_items {
    PyObject **items; /* borrowed from the caller, who holds references */
    Py_ssize_t count;
    bool is_tuple;      /* torch has them in a tuple here, else in a list */
    PyObject *original; /* borrowed: the very list or tuple, if there is one */
} fl_py_items;

/* References to what is in a list or tuple now, which the caller drops: 0, or -1 and MemoryError.
 * *items, with PyMem_Free, is the caller's; NULL where there is none. */
int fl_py_items_take(PyObject *sequence, PyObject ***items, Py_ssize_t *count);

/* The values as torch has them. New reference. */
PyObject *fl_py_items_object(const fl_py_items *batch);

/* function(values), or function(first, values) unless `first` is NULL. New reference. */
PyObject *fl_py_items_call(PyObject *function, PyObject *first, const fl_py_items *batch);

#endif
