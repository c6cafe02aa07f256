/* fl_py_host_range: the heap type _core.HostRange: memory of CPU tensors that kernels read over the
 * link.
 *
 * The object owns the registration with the driver, and references to the tensors. Read-only once
 * made, except for the count of fences. */
#ifndef FL_PY_HOST_RANGE_H
#define FL_PY_HOST_RANGE_H

#include "fl_cuda.h"
#include "fl_py_dlpack.h"

typedef struct fl_py_host_range {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    PyObject *sources;         /* owned: tuple of tensors */
    fl_cuda_host_range *range; /* owned */
    const char *data; /* borrowed from sources: the memory spanned by sources that overlap */
    int64_t bytes;
    int64_t locked;         /* bytes that are registered with the driver: all or none */
    _Atomic int64_t fences; /* calls of fence() so far */
    PyObject *weakrefs;     /* owned */
} fl_py_host_range;

extern PyType_Spec fl_py_host_range_spec;

/* Describes a tensor in the host range as kernels see the tensor. 0, or -1 and TypeError or
 * ValueError. */
int fl_py_host_range_view(const fl_py_host_range *self, PyObject *tensor, fl_tensor *out);

#endif
