/* fl_py_slices: joins slices of an array in a new array, for batches of graphs. Call it with the
 * interpreter lock. */
#ifndef FL_PY_SLICES_H
#define FL_PY_SLICES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_copy_slices_doc[];

/* The function copy_slices of the module; fl_py_copy_slices_doc describes the function. */
PyObject *fl_py_copy_slices(PyObject *module, PyObject *args);

#endif
