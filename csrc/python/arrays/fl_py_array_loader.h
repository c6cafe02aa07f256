/* fl_py_array_loader: the heap type _core.ArrayLoader, the iterator over batches of array data. */
#ifndef FL_PY_ARRAY_LOADER_H
#define FL_PY_ARRAY_LOADER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec fl_py_array_loader_spec;

#endif
