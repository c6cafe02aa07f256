/* fl_py_numpy: NumPy's arrays and scalars as the core sees them.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_NUMPY_H
#define FL_PY_NUMPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_tensor.h"

/* Loads NumPy's C API; before anything else here. 0, or -1 and an exception. */
int fl_py_numpy_import(void);

/* Describes an ndarray; the view borrows its memory. 1 done; 0 not an ndarray; -1 TypeError: torch
 * has no such dtype. */
int fl_py_array_view(PyObject *object, fl_tensor *out);

/* Exactly an ndarray, not a subclass. */
bool fl_py_is_array(PyObject *object);

bool fl_py_is_read_only(PyObject *array);

/* The dtype of a NumPy number or bool; false if torch does not have it. */
bool fl_py_scalar_dtype(PyObject *scalar, fl_dtype *out);

/* Writes the value of such a scalar to `out`, in its dtype. */
void fl_py_scalar_value(PyObject *scalar, char *out);

bool fl_py_is_integer_scalar(PyObject *object);

/* A new int64 ndarray; *data is borrowed from it. */
PyObject *fl_py_int64_vector(Py_ssize_t length, int64_t **data);

/* A new read-only ndarray over contiguous memory, which its base `owner` keeps. dtype: as NumPy
 * abbreviates it, "i8". */
PyObject *fl_py_array_over(PyObject *owner, const char *data, const char *dtype, int32_t ndim,
                           const int64_t *shape);

#endif
