/* fl_py_region: the heap type _core.Region: memory of CPU tensors that kernels read over the link.
 *
 * The object owns the registration with the driver, and references to the tensors. Read-only once
 * made. */
#ifndef FL_PY_REGION_H
#define FL_PY_REGION_H

#include "fl_cuda.h"
#include "fl_py_dlpack.h"

typedef struct fl_py_region {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    PyObject *sources;      /* owned: tuple of tensors */
    fl_cuda_region *region; /* owned */
    const char *data;       /* borrowed from sources: the memory spanned by sources that overlap */
    int64_t bytes;
    PyObject *weakrefs; /* owned */
} fl_py_region;

extern PyType_Spec fl_py_region_spec;

/* Describes a tensor in the region as kernels see the tensor. 0, or -1 and TypeError or
 * ValueError. */
int fl_py_region_view(const fl_py_region *self, PyObject *tensor, fl_tensor *out);

#endif
