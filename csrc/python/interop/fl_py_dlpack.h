/* fl_py_dlpack: turns torch's tensors into the core's views, and memory into torch's tensors,
 * through torch's DLPack exchange table.
 *
 * All functions need the interpreter lock. NULL or -1 means that an exception is set. */
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

/* Finds the exchange table of tensor_type, which is torch.Tensor: 0, or -1 and RuntimeError if no
 * fitting table exists. The caller closes *dlpack after success. */
int fl_py_dlpack_open(PyObject *tensor_type, fl_py_dlpack *dlpack);

/* Imports torch, and finds the exchange table of its Tensor. */
int fl_py_dlpack_open_torch(fl_py_dlpack *dlpack);
void fl_py_dlpack_close(fl_py_dlpack *dlpack);

static inline bool fl_py_is_tensor(const fl_py_dlpack *dlpack, PyObject *object)
{
    return Py_TYPE(object) == dlpack->tensor_type;
}

/* Describes a torch tensor of exactly tensor_type, or an ndarray. The view borrows from `object`.
 * 0, or -1 and TypeError or ValueError if the object has no plain CPU memory. */
int fl_py_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out);

/* Describes a tensor in the memory of a CUDA device, and sets *device to the device's index. */
int fl_py_cuda_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out, int32_t *device);

/* Describes an ndarray, or a tensor on the CPU (*device becomes FL_PY_CPU) or on a CUDA device. */
int fl_py_view_anywhere(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out,
                        int32_t *device);

/* Describes a tensor on any device. */
int fl_py_tensor_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out);

/* The elements of a tensor, for a pass to run over. */
typedef struct fl_py_floats {
    char *data; /* borrowed from the tensor */
    int64_t count;
    int32_t type;    /* FL_F64, ... */
    uint64_t layout; /* 0 for contiguous elements; equal for equal orders of dimensions in memory */
    int32_t device;  /* FL_PY_CPU, or the index of a CUDA device */
} fl_py_floats;

enum { FL_PY_CPU = -1, FL_PY_ANYWHERE = -2 };

/* Returns true if `object` is exactly of tensor_type, on the CPU or a CUDA device, real floating
 * and dense. Sets no exception. A lazily negated tensor looks like an ordinary tensor. */
bool fl_py_float_tensor(const fl_py_dlpack *dlpack, PyObject *object, fl_py_floats *out);

/* Returns the address of the one number in a tensor with DLPack's dtype (code, bits). The tensor
 * must be on *device; if *device is FL_PY_ANYWHERE, *device becomes the tensor's device. NULL and
 * TypeError or ValueError. */
void *fl_py_scalar_address(const fl_py_dlpack *dlpack, PyObject *object, uint8_t code, uint8_t bits,
                           int32_t *device);

/* Returns the address of a vector of exactly `bytes` > 0 bytes on a CUDA device, or on the CPU;
 * NULL and ValueError. */
void *
fl_py_buffer_address(const fl_py_dlpack *dlpack, PyObject *object, int32_t device, int64_t bytes);

/* Sets *out to torch's current stream of a CUDA device (cudaStream_t): 0 done, -1 exception. */
int fl_py_stream(const fl_py_dlpack *dlpack, int32_t device, void **out);

/* Makes a tensor over slot memory. The tensor takes one share of the (lent) slot; the tensor's
 * deleter gives the share back from any thread. `managed` lies in the slot's header; shape and
 * stride are copied. On failure the share has been given back, so the caller must hold a second
 * share. New reference. */
PyObject *
fl_py_tensor_over(const fl_py_dlpack *dlpack, fl_slot *slot, char *data, fl_dtype dtype,
                  int32_t ndim, int64_t *shape, int64_t *stride, DLManagedTensorVersioned *managed);

/* Makes a contiguous tensor over memory that outlives the tensor, or over memory of a slot. The
 * tensor takes one more share of the slot; the caller holds a share. New reference. */
PyObject *fl_py_tensor_at(const fl_py_dlpack *dlpack, fl_slot *slot, char *data, fl_dtype dtype,
                          int32_t ndim, const int64_t *shape);

/* Makes a contiguous tensor with its own memory, at *data. New reference. */
PyObject *fl_py_tensor_new(const fl_py_dlpack *dlpack, fl_dtype dtype, int32_t ndim,
                           const int64_t *shape, char **data);

#endif
