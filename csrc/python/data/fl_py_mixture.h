/* fl_py_mixture: the heap type _core.Mixture: the rows at the positions of a mixture of data sets
 * (fl_mixed_rows). */
#ifndef FL_PY_MIXTURE_H
#define FL_PY_MIXTURE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_mixed_rows.h"

extern PyType_Spec fl_py_mixture_spec;

/* Returns the rows of an object of the type, which lends them as long as it lives. */
fl_mixed_rows *fl_py_mixture_rows(PyObject *mixture);

#endif
