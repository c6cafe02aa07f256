/* fl_py_dlpack: torch's tensors as the core's views, and memory as torch's tensors, through torch's
 * DLPack exchange table.
 *
 * All functions need the interpreter lock. NULL or -1 means an exception is set. */
#ifndef FL_PY_DLPACK_H
#define FL_PY_DLPACK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dlpack/dlpack.h"
#include "fl_pool.h"
#include "fl_tensor.h"

/* torch's DLPack exchange table, found through the tensor type. */
typedef struct fl_py_dlpack {
    PyTypeObject *tensor_type;    /* owned */
    const DLPackExchangeAPI *api; /* borrowed from torch, lives as long as the process */
} fl_py_dlpack;

/* Finds the exchange table of torch.Tensor, which is given as the type. 0, or -1 and RuntimeError
 * if there is none that fits. */
int fl_py_dlpack_open(PyObject *tensor_type, fl_py_dlpack *dlpack);

/* The same for the torch that is imported here. */
int fl_py_dlpack_open_torch(fl_py_dlpack *dlpack);
void fl_py_dlpack_close(fl_py_dlpack *dlpack);

static inline bool fl_py_is_tensor(const fl_py_dlpack *dlpack, PyObject *object)
{
    return Py_TYPE(object) == dlpack->tensor_type;
}

/* Describes a torch tensor of exactly tensor_type, or an ndarray. The view borrows from `object`.
 * 0, or -1 and TypeError or ValueError for what has no plain CPU memory. */
int fl_py_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out);

/* The same for a tensor in the memory of a CUDA device, and the index of that. */
int fl_py_cuda_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out, int32_t *device);

/* The same for an ndarray too, and for tensors on the CPU, whose device is FL_PY_CPU. */
int fl_py_view_anywhere(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out,
                        int32_t *device);

/* The same for a tensor wherever it lies. */
int fl_py_tensor_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out);

/* Elements that a pass may run over. */
typedef struct fl_py_floats {
    char *data; /* borrowed from the tensor */
    int64_t count;
    int32_t type;    /* FL_F64, ... */
    uint64_t layout; /* 0 for contiguous ones; equal for equal orders of dimensions in memory */
    int32_t device;  /* FL_PY_CPU, or the index of a CUDA device */
} fl_py_floats;

enum { FL_PY_CPU = -1, FL_PY_ANYWHERE = -2 };

/* Whether `object` is exactly of tensor_type, on the CPU or a CUDA device, real floating and
 * dense. No exception is set. A lazily negated tensor looks like any other. */
bool fl_py_float_tensor(const fl_py_dlpack *dlpack, PyObject *object, fl_py_floats *out);

/* The address of the one number in a tensor of DLPack's dtype (code, bits), which must be on
 * *device; *device becomes the tensor's if it is FL_PY_ANYWHERE. TypeError or ValueError. */
void *fl_py_scalar_address(const fl_py_dlpack *dlpack, PyObject *object, uint8_t code, uint8_t bits,
                           int32_t *device);

/* The address of a vector of exactly `bytes` > 0 bytes on a CUDA device, or on the CPU; ValueError.
 */
void *
fl_py_buffer_address(const fl_py_dlpack *dlpack, PyObject *object, int32_t device, int64_t bytes);

/* torch's current stream of a CUDA device (cudaStream_t): 0 done, -1 exception. */
int fl_py_stream(const fl_py_dlpack *dlpack, int32_t device, void **out);

/* A tensor over slot memory: takes one share of the (lent) slot, which the tensor's deleter
 * gives back from whatever thread. `managed` lives in the slot's header; shape and stride are
 * copied. On failure the share has been given back, so the caller must hold another. New
 * reference. */
PyObject *
fl_py_tensor_over(const fl_py_dlpack *dlpack, fl_slot *slot, char *data, fl_dtype dtype,
                  int32_t ndim, int64_t *shape, int64_t *stride, DLManagedTensorVersioned *managed);

/* A contiguous tensor over memory that outlives it, or over memory of a slot of which it takes one
 * more share (the caller holds one). New reference. */
PyObject *fl_py_tensor_at(const fl_py_dlpack *dlpack, fl_slot *slot, char *data, fl_dtype dtype,
                          int32_t ndim, const int64_t *shape);

/* A contiguous tensor with memory of its own, at *data. New reference. */
PyObject *fl_py_tensor_new(const fl_py_dlpack *dlpack, fl_dtype dtype, int32_t ndim,
                           const int64_t *shape, char **data);

#endif
