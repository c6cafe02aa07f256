/* fl_py_numpy: describes NumPy's arrays and scalars for the core.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_NUMPY_H
#define FL_PY_NUMPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_tensor.h"

/* Loads NumPy's C API; call this before the functions below. 0, or -1 and an exception. */
int fl_py_numpy_import(void);

/* Describes an ndarray; the view borrows the array's memory. 1 done; 0 not an ndarray; -1
 * TypeError: torch has no such dtype. */
int fl_py_array_view(PyObject *object, fl_tensor *out);

/* Returns true for an ndarray, and false for an object of a subclass. */
bool fl_py_is_array(PyObject *object);

bool fl_py_is_read_only(PyObject *array);

/* Finds the dtype of a NumPy number or bool; false if torch does not have the dtype. */
bool fl_py_scalar_dtype(PyObject *scalar, fl_dtype *out);

/* Writes the value of a NumPy number or bool to `out`, in the scalar's dtype. */
void fl_py_scalar_value(PyObject *scalar, char *out);

bool fl_py_is_integer_scalar(PyObject *object);

/* Makes an int64 ndarray; *data is borrowed from the array. New reference. */
PyObject *fl_py_int64_vector(Py_ssize_t length, int64_t **data);

/* Makes a read-only ndarray over contiguous memory; the array's base is `owner`, which keeps the
 * memory alive. dtype: NumPy's abbreviation, for example "i8". New reference. */
PyObject *fl_py_array_over(PyObject *owner, const char *data, const char *dtype, int32_t ndim,
                           const int64_t *shape);

#endif
