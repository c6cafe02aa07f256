/* fl_py_permutation: the heap type _core.Permutation, an order of indices (fl_permutation). */
#ifndef FL_PY_PERMUTATION_H
#define FL_PY_PERMUTATION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec fl_py_permutation_spec;

#endif
