/* fl_py_tensor_slot: the slot of a tensor in a buffer, for exchange with Python: a tuple (offset in
 * bytes, dtype, shape); dtype is DLPack's code * 256 + bits. If the tensor is not contiguous, the
 * tuple also has the strides in elements. See fastloop/compat/tensors.py.
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_TENSOR_SLOT_H
#define FL_PY_TENSOR_SLOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_tensor.h"

/* Makes a slot. stride: NULL for a contiguous tensor. New reference. */
PyObject *fl_py_tensor_slot(int64_t offset, fl_dtype dtype, int32_t ndim, const int64_t *shape,
                            const int64_t *stride);

typedef struct fl_py_parsed_slot {
    int64_t offset;
    fl_dtype dtype;
    int32_t ndim;
    int64_t shape[FL_MAX_NDIM];
} fl_py_parsed_slot;

/* Parses a slot without strides: 0, or -1 and ValueError (TypeError for a value that is not an
 * integer). */
int fl_py_tensor_slot_parse(PyObject *slot, fl_py_parsed_slot *out);

/* Returns true if a field is small, and a small part of its batch. Such a field gets its own
 * memory: a user who keeps the labels of an epoch must not keep the epoch's images alive. */
static inline bool fl_py_is_small_part(int64_t bytes, int64_t batch_bytes)
{
    return bytes <= 64 * 1024 && bytes <= batch_bytes / 8;
}

#endif
