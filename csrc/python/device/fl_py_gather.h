/* fl_py_gather: kernels that make batches out of tensors on a CUDA device, or in a region: their
 * arguments are read and checked, then they are queued on torch's current stream.
 *
 * All functions need the interpreter lock; 0, or -1 and an exception. The caller holds references
 * to all that a fl_py_gather names, and to outs and maps, until they return. */
#ifndef FL_PY_GATHER_H
#define FL_PY_GATHER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_py_dlpack.h"

typedef struct fl_py_gather {
    const fl_py_dlpack *dlpack; /* borrowed, as all objects */
    int32_t device;             /* on which all tensors lie, but sources in a region */
    int32_t shift;              /* of windows: tokens from one of x to that of y, 0 or 1 */
    PyObject *sources;          /* a tuple of tensors: fields, or the tokens alone */
    PyObject *plans;            /* a tuple: None for a field that is copied; for one of images a
                                   tuple of their ImagePlan and its values() on the device */
    PyObject *regions;          /* a tuple of the Region that each source lies in, or NULL */
    int64_t length;             /* fields had so many rows when indices were checked */
    const int64_t *rows;        /* of a batch; set by open, which borrows them from its tensor */
    int64_t row_count;
} fl_py_gather;

/* Takes indices [first, first + count) of a tensor for the batches that follow. They are not read
 * here. ValueError, IndexError. */
int fl_py_gather_open(fl_py_gather *self, PyObject *indices, int64_t first, int64_t count);

/* Queues the copies of all fields without a plan to their places in the list outs: one kernel for
 * 32 of them. ValueError for fields that have lost rows. */
int fl_py_gather_rows(fl_py_gather *self, PyObject *outs);

/* Queues the kernels of all fields with a plan. maps: a tuple of their int32 tensors from
 * plan.map(), in turn. */
int fl_py_gather_images(fl_py_gather *self, PyObject *maps, PyObject *outs);

/* Queues windows of the tokens, which begin at the indices. outs: x, or x and y, [row_count,
 * length], of ints that are not narrower than the tokens. */
int fl_py_gather_windows(fl_py_gather *self, PyObject *outs);

/* ValueError: the data have lost rows since. NULL. */
PyObject *fl_py_gather_refuse(int64_t before, int64_t now);

#endif
