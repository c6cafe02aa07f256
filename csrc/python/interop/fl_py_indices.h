/* fl_py_indices: what Python has for indices (int, NumPy integers, tensors, arrays, lists of them)
 * as int64.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_INDICES_H
#define FL_PY_INDICES_H

#include "fl_plan.h"
#include "fl_py_dlpack.h"

/* Describes a contiguous int64 vector, as fl_py_view does; TypeError for anything else. */
int fl_py_index_vector(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out);

/* Adds the indices in a tensor, array, list or tuple to `rows`: 1 done; 0 something in it is not a
 * plain integer, nothing was added; -1 exception. */
int fl_py_rows_add(const fl_py_dlpack *dlpack, PyObject *items, fl_rows *rows);

/* Adds the items of a list, each a tuple (index, view), to `rows`, which are empty: as
 * fl_py_rows_add. */
int fl_py_rows_add_views(const fl_py_dlpack *dlpack, PyObject *items, fl_rows *rows);

/* One index: 1 done; -1 exception; 0 it is neither an int, nor a NumPy integer, nor a 0-d tensor of
 * signed integers, or it is too large for int64. */
int fl_py_index(const fl_py_dlpack *dlpack, PyObject *item, int64_t *out);

/* A new int64 ndarray of the plain integers in a list or tuple; None if something else is in it. */
PyObject *fl_py_int64_array(const fl_py_dlpack *dlpack, PyObject *sequence);

#endif
