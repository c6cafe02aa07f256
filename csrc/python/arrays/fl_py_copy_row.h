/* fl_py_copy_row: the function _core.copy_row, which copies one row of a table into tensors. The
 * function needs the interpreter lock. */
#ifndef FL_PY_COPY_ROW_H
#define FL_PY_COPY_ROW_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_copy_row_doc[];
PyObject *fl_py_copy_row(PyObject *module, PyObject *args);

#endif
