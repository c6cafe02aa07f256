/* fl_py_numbers: the numbers of a list, or of a list of lists of one length, written into an
 * ndarray.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_NUMBERS_H
#define FL_PY_NUMBERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_read_numbers_doc[];

/* The function read_numbers of the module; fl_py_read_numbers_doc describes the function. */
PyObject *fl_py_read_numbers(PyObject *module, PyObject *args);

#endif
