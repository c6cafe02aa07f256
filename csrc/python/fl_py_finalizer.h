/* fl_py_finalizer: the heap type _core.FinalizerBase, a base class with a finalizer that Ctrl-C
 * cannot cut short. */
#ifndef FL_PY_FINALIZER_H
#define FL_PY_FINALIZER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec fl_py_finalizer_spec;

#endif
