/* fl_py_region: the heap type _core.Region: memory of a CPU tensor that kernels read over the link.
 *
 * It owns the registration with the driver, and a reference to the tensor. Read-only once made. */
#ifndef FL_PY_REGION_H
#define FL_PY_REGION_H

#include "fl_cuda.h"
#include "fl_py_dlpack.h"

typedef struct fl_py_region {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    PyObject *source;       /* owned */
    fl_cuda_region *region; /* owned */
    const char *data;       /* borrowed from source: `bytes` of it, all that its elements span */
    int64_t bytes;
    PyObject *weakrefs; /* owned */
} fl_py_region;

extern PyType_Spec fl_py_region_spec;

/* Describes a tensor in the region as kernels see it. 0, or -1 and TypeError or ValueError. */
int fl_py_region_view(const fl_py_region *self, PyObject *tensor, fl_tensor *out);

#endif
