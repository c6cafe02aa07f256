/* fl_py_pil_blur: Gaussian blurs of PIL images. Needs the interpreter lock. */
#ifndef FL_PY_PIL_BLUR_H
#define FL_PY_PIL_BLUR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_pil_blur_doc[];

PyObject *fl_py_pil_blur(PyObject *module, PyObject *args);

#endif
