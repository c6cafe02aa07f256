/* fl_py_indices: converts Python's indices to int64: ints, NumPy integers, tensors, arrays and
 * lists.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_INDICES_H
#define FL_PY_INDICES_H

#include "fl_plan.h"
#include "fl_py_dlpack.h"

/* Describes a contiguous int64 vector, as fl_py_view does; TypeError for any other object. */
int fl_py_index_vector(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out);

/* Adds the indices in a tensor, array, list or tuple to `rows`: 1 done; 0 an item is not a plain
 * integer, and nothing was added; -1 exception. */
int fl_py_rows_add(const fl_py_dlpack *dlpack, PyObject *items, fl_rows *rows);

/* Adds the items of a list, each a tuple (index, view), to `rows`. The rows must be empty. Returns
 * the results of fl_py_rows_add. */
int fl_py_rows_add_views(const fl_py_dlpack *dlpack, PyObject *items, fl_rows *rows);

/* Reads one index: 1 done; -1 exception; 0 the item is too large for int64, or is neither an int,
 * nor a NumPy integer, nor a 0-d tensor of signed integers. */
int fl_py_index(const fl_py_dlpack *dlpack, PyObject *item, int64_t *out);

/* Makes an int64 ndarray from the plain integers in a list or tuple; None if an item is not a plain
 * integer. New reference. */
PyObject *fl_py_int64_array(const fl_py_dlpack *dlpack, PyObject *sequence);

#endif
