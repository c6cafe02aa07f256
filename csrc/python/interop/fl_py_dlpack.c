/* fl_py_dlpack: see fl_py_dlpack.h. No other file calls torch's exchange table. */
#include "fl_py_dlpack.h"

#include "fl_py_error.h"
#include "fl_py_numpy.h"
#include "fl_tensor_list.h"

int fl_py_dlpack_open(PyObject *tensor_type, fl_py_dlpack *dlpack)
{
    PyObject *capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
    if (capsule == NULL) return -1;
    const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (api == NULL) return -1;
    if (api->header.version.major != DLPACK_MAJOR_VERSION ||
        api->dltensor_from_py_object_no_sync == NULL ||
        api->managed_tensor_to_py_object_no_sync == NULL || api->current_work_stream == NULL) {
        PyErr_Format(PyExc_RuntimeError,
                     "torch's DLPack exchange table has version %u, this build of fastloop "
                     "understands %d; install a newer fastloop",
                     api->header.version.major, DLPACK_MAJOR_VERSION);
        return -1;
    }
    Py_INCREF(tensor_type);
    dlpack->tensor_type = (PyTypeObject *)tensor_type;
    dlpack->api = api;
    return 0;
}

int fl_py_dlpack_open_torch(fl_py_dlpack *dlpack)
{
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *type = torch != NULL ? PyObject_GetAttrString(torch, "Tensor") : NULL;
    int status = type != NULL ? fl_py_dlpack_open(type, dlpack) : -1;
    Py_XDECREF(type);
    Py_XDECREF(torch);
    return status;
}

void fl_py_dlpack_close(fl_py_dlpack *dlpack) { Py_CLEAR(dlpack->tensor_type); }

static int64_t count_elements(int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int32_t d = 0; d < ndim; d++) count *= shape[d];
    return count;
}

/* Borrows the tensor's description from torch. Shape and strides belong to the tensor, and are
 * valid while the tensor is unchanged. SHARED(shape) */
static int borrow_anywhere(const fl_py_dlpack *dlpack, PyObject *object, DLTensor *out)
{
    if (dlpack->api->dltensor_from_py_object_no_sync(object, out) != 0) return -1;
    if (out->ndim > FL_MAX_NDIM)
        return FL_PY_FAIL(PyExc_ValueError, "the tensor must have at most %d dimensions, got %d",
                          FL_MAX_NDIM, out->ndim);
    if (out->data == NULL && count_elements(out->ndim, out->shape) > 0)
        return FL_PY_FAIL(PyExc_ValueError, "the tensor has no memory");
    return 0;
}

static int borrow_tensor(const fl_py_dlpack *dlpack, PyObject *object, DLTensor *out)
{
    if (borrow_anywhere(dlpack, object, out) != 0) return -1;
    if (out->device.device_type == kDLCPU) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "the tensor is not on the CPU");
}

static void describe(const DLTensor *tensor, fl_tensor *out)
{
    out->data = (const char *)tensor->data + tensor->byte_offset;
    out->dtype = (fl_dtype){tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes};
    out->ndim = tensor->ndim;
    int64_t bytes = fl_dtype_bytes(out->dtype);
    for (int32_t d = 0; d < tensor->ndim; d++) {
        out->shape[d] = tensor->shape[d];
        out->stride[d] = tensor->strides[d] * bytes;
    }
}

static int view_tensor(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out)
{
    DLTensor tensor;
    if (borrow_tensor(dlpack, object, &tensor) != 0) return -1;
    describe(&tensor, out);
    return 0;
}

static int
view_anywhere(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out, DLDevice *device)
{
    DLTensor tensor;
    if (!fl_py_is_tensor(dlpack, object))
        return FL_PY_FAIL(PyExc_TypeError, "a tensor must be a torch.Tensor, got %.100s",
                          Py_TYPE(object)->tp_name);
    if (borrow_anywhere(dlpack, object, &tensor) != 0) return -1;
    describe(&tensor, out);
    *device = tensor.device;
    return 0;
}

int fl_py_tensor_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out)
{
    DLDevice device;
    return view_anywhere(dlpack, object, out, &device);
}

int fl_py_cuda_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out, int32_t *device)
{
    DLDevice found;
    if (view_anywhere(dlpack, object, out, &found) != 0) return -1;
    *device = found.device_id;
    if (found.device_type == kDLCUDA) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "the tensor is not on a CUDA device");
}

static bool find_float(DLDataType dtype, int32_t *out)
{
    if (dtype.lanes != 1) return false;
    if (dtype.code == kDLBfloat && dtype.bits == 16) {
        *out = FL_BF16;
        return true;
    }
    *out = dtype.bits == 64 ? FL_F64 : dtype.bits == 32 ? FL_F32 : FL_F16;
    return dtype.code == kDLFloat && (dtype.bits == 64 || dtype.bits == 32 || dtype.bits == 16);
}

/* Returns true if the elements fill their memory without gaps, in some order of the dimensions.
 * *layout is different for different orders; 0 is the contiguous order. */
static bool is_dense(const DLTensor *tensor, uint64_t *layout)
{
    int64_t step = 1;
    bool is_seen[FL_MAX_NDIM] = {false}, is_contiguous = true;
    uint64_t order = 0;
    for (int32_t left = tensor->ndim; left > 0; left--) {
        int32_t inner = -1; /* the last unseen dimension that continues the seen dimensions */
        for (int32_t d = tensor->ndim - 1; d >= 0 && inner < 0; d--)
            if (!is_seen[d] && (tensor->shape[d] == 1 || tensor->strides[d] == step)) inner = d;
        if (inner < 0) return false;
        is_seen[inner] = true;
        if (tensor->shape[inner] == 1) continue;
        step *= tensor->shape[inner];
        order = order * 31 + (uint64_t)inner + 1;
        for (int32_t d = inner + 1; d < tensor->ndim; d++)
            if (!is_seen[d]) is_contiguous = false;
    }
    *layout = is_contiguous ? 0 : order;
    return true;
}

/* Returns true if passes may run on the device. */
static bool find_device(DLDevice device, int32_t *out)
{
    *out = device.device_type == kDLCPU ? FL_PY_CPU : device.device_id;
    return device.device_type == kDLCPU || device.device_type == kDLCUDA;
}

bool fl_py_float_tensor(const fl_py_dlpack *dlpack, PyObject *object, fl_py_floats *out)
{
    DLTensor tensor;
    if (!fl_py_is_tensor(dlpack, object)) return false;
    if (borrow_anywhere(dlpack, object, &tensor) != 0) {
        PyErr_Clear();
        return false;
    }
    out->count = count_elements(tensor.ndim, tensor.shape);
    out->data = (char *)tensor.data + tensor.byte_offset;
    out->layout = 0;
    return find_device(tensor.device, &out->device) && find_float(tensor.dtype, &out->type) &&
           (out->count == 0 || is_dense(&tensor, &out->layout));
}

void *fl_py_scalar_address(const fl_py_dlpack *dlpack, PyObject *object, uint8_t code, uint8_t bits,
                           int32_t *device)
{
    DLTensor tensor;
    int32_t found;
    if (!fl_py_is_tensor(dlpack, object))
        return PyErr_Format(PyExc_TypeError,
                            "a scalar must be a torch.Tensor of one number, got %.100s",
                            Py_TYPE(object)->tp_name);
    if (borrow_anywhere(dlpack, object, &tensor) != 0) return NULL;
    bool is_there =
        find_device(tensor.device, &found) && (*device == FL_PY_ANYWHERE || *device == found);
    if (!is_there)
        return PyErr_Format(PyExc_ValueError,
                            "the tensor of one number must be on the device of the gradients");
    *device = found;
    if (tensor.dtype.code == code && tensor.dtype.bits == bits &&
        count_elements(tensor.ndim, tensor.shape) == 1)
        return (char *)tensor.data + tensor.byte_offset;
    return PyErr_Format(PyExc_TypeError, "a scalar must be a tensor of one number of %d bits",
                        (int)bits);
}

void *
fl_py_buffer_address(const fl_py_dlpack *dlpack, PyObject *object, int32_t device, int64_t bytes)
{
    DLTensor tensor = {0};
    if (fl_py_is_tensor(dlpack, object) && borrow_anywhere(dlpack, object, &tensor) != 0)
        return NULL;
    DLDevice wanted = {device == FL_PY_CPU ? kDLCPU : kDLCUDA, device == FL_PY_CPU ? 0 : device};
    if (tensor.device.device_type == wanted.device_type &&
        tensor.device.device_id == wanted.device_id && tensor.dtype.bits == 8 && tensor.ndim == 1 &&
        tensor.shape[0] == bytes && (bytes == 1 || tensor.strides[0] == 1))
        return (char *)tensor.data + tensor.byte_offset;
    return PyErr_Format(PyExc_ValueError,
                        "the tensor must have %lld contiguous bytes on %s device %d",
                        (long long)bytes, device == FL_PY_CPU ? "CPU" : "CUDA", wanted.device_id);
}

int fl_py_stream(const fl_py_dlpack *dlpack, int32_t device, void **out)
{
    return dlpack->api->current_work_stream(kDLCUDA, device, out) == 0 ? 0 : -1;
}

int fl_py_view(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out)
{
    if (fl_py_is_tensor(dlpack, object)) return view_tensor(dlpack, object, out);
    int done = fl_py_array_view(object, out);
    if (done != 0) return done > 0 ? 0 : -1;
    return FL_PY_FAIL(PyExc_TypeError,
                      "an array must be a torch.Tensor or numpy.ndarray, got %.100s",
                      Py_TYPE(object)->tp_name);
}

int fl_py_view_anywhere(const fl_py_dlpack *dlpack, PyObject *object, fl_tensor *out,
                        int32_t *device)
{
    DLDevice found;
    *device = FL_PY_CPU;
    if (!fl_py_is_tensor(dlpack, object)) return fl_py_view(dlpack, object, out);
    if (view_anywhere(dlpack, object, out, &found) != 0) return -1;
    if (find_device(found, device)) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "the tensor is neither on the CPU nor on a CUDA device");
}

/* Any thread may drop the last reference to a tensor and so run its deleter, without the
 * interpreter lock, possibly after the interpreter is gone. Deleters therefore never call
 * Python. */
static void give_share(DLManagedTensorVersioned *managed)
{
    fl_slot *slot = managed->manager_ctx;
    managed->manager_ctx = NULL;
    if (slot != NULL) fl_slot_give(slot);
}

static PyObject *make_tensor(const fl_py_dlpack *dlpack, char *data, fl_dtype dtype, int32_t ndim,
                             int64_t *shape, int64_t *stride, DLManagedTensorVersioned *managed)
{
    managed->version.major = DLPACK_MAJOR_VERSION;
    managed->version.minor = DLPACK_MINOR_VERSION;
    managed->flags = 0;
    managed->dl_tensor =
        (DLTensor){.data = data,
                   .device = {.device_type = kDLCPU, .device_id = 0},
                   .ndim = ndim,
                   .dtype = {.code = dtype.code, .bits = dtype.bits, .lanes = dtype.lanes},
                   .shape = shape,
                   .strides = stride};
    void *tensor = NULL;
    if (dlpack->api->managed_tensor_to_py_object_no_sync(managed, &tensor) != 0) return NULL;
    /* torch has copied shape and strides. */
    managed->dl_tensor.shape = managed->dl_tensor.strides = NULL;
    return tensor;
}

PyObject *
fl_py_tensor_over(const fl_py_dlpack *dlpack, fl_slot *slot, char *data, fl_dtype dtype,
                  int32_t ndim, int64_t *shape, int64_t *stride, DLManagedTensorVersioned *managed)
{
    managed->manager_ctx = slot;
    managed->deleter = give_share;
    PyObject *tensor = make_tensor(dlpack, data, dtype, ndim, shape, stride, managed);
    /* If torch has not called the deleter, give the share back. If torch has, give_share does
     * nothing: the caller's share keeps the slot. */
    if (tensor == NULL) give_share(managed);
    return tensor;
}

/* The owner of a tensor from fl_py_tensor_at or fl_py_tensor_new; freed with the tensor. */
typedef struct tensor_owner {
    _Alignas(64) DLManagedTensorVersioned managed;
    fl_slot *slot;  /* owns one share of the slot; NULL: no slot */
    bool *is_freed; /* torch sets *is_freed if it frees this owner while the tensor is being made;
                       afterwards NULL */
    _Alignas(64) char memory[];
} tensor_owner;

static void free_owner(DLManagedTensorVersioned *managed)
{
    tensor_owner *self = managed->manager_ctx;
    if (self->is_freed != NULL) *self->is_freed = true;
    if (self->slot != NULL) fl_slot_give(self->slot);
    fl_free(self);
}

static PyObject *make_owned(const fl_py_dlpack *dlpack, tensor_owner *self, char *data,
                            fl_dtype dtype, int32_t ndim, const int64_t *shape)
{
    int64_t dims[FL_MAX_NDIM], stride[FL_MAX_NDIM];
    for (int32_t d = 0; d < ndim; d++) dims[d] = shape[d];
    fl_tensor_strides(ndim, dims, stride);
    self->managed.manager_ctx = self;
    self->managed.deleter = free_owner;
    /* If torch fails late, torch has freed the owner. */
    bool is_freed = false;
    self->is_freed = &is_freed;
    PyObject *tensor = make_tensor(dlpack, data, dtype, ndim, dims, stride, &self->managed);
    if (tensor != NULL)
        self->is_freed = NULL;
    else if (!is_freed)
        free_owner(&self->managed);
    return tensor;
}

PyObject *fl_py_tensor_at(const fl_py_dlpack *dlpack, fl_slot *slot, char *data, fl_dtype dtype,
                          int32_t ndim, const int64_t *shape)
{
    tensor_owner *self = fl_alloc(sizeof *self);
    if (self == NULL) return PyErr_NoMemory();
    if (slot != NULL) fl_slot_share(slot);
    self->slot = slot;
    return make_owned(dlpack, self, data, dtype, ndim, shape);
}

PyObject *fl_py_tensor_new(const fl_py_dlpack *dlpack, fl_dtype dtype, int32_t ndim,
                           const int64_t *shape, char **data)
{
    int64_t bytes = fl_tensor_bytes(dtype, ndim, shape);
    tensor_owner *self = bytes < 0 ? NULL : fl_alloc((int64_t)sizeof *self + bytes);
    if (self == NULL)
        return PyErr_Format(PyExc_MemoryError, "out of memory for a tensor of %lld bytes",
                            (long long)bytes);
    *data = self->memory;
    return make_owned(dlpack, self, self->memory, dtype, ndim, shape);
}
