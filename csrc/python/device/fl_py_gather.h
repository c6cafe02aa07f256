/* fl_py_gather: batches of rows of tensors that lie on a CUDA device, made there. */
#ifndef FL_PY_GATHER_H
#define FL_PY_GATHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_gather_doc[];
PyObject *fl_py_gather(PyObject *module, PyObject *args);

extern const char fl_py_gather_images_doc[];
PyObject *fl_py_gather_images(PyObject *module, PyObject *args);

extern const char fl_py_gather_windows_doc[];
PyObject *fl_py_gather_windows(PyObject *module, PyObject *args);

#endif
