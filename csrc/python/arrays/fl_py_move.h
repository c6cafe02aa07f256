/* fl_py_move: runs torch's functions that move the memory of a tensor, while nobody reads the
 * memory. */
#ifndef FL_PY_MOVE_H
#define FL_PY_MOVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_move_doc[];
PyObject *fl_py_move(PyObject *module, PyObject *args);

#endif
