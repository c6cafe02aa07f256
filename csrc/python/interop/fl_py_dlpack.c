/* fl_py_dlpack: the doors between NumPy, torch and the core's views; see fl_py.h.
 *
 * The only file that includes NumPy, and the only one that calls torch's exchange table. */
#include "fl_py.h"

#include "fl_tensor_list.h"

#include <numpy/arrayobject.h>

int fl_py_numpy_import(void) { return _import_array(); }

int fl_py_dlpack_open(PyObject *tensor_type, fl_py_dlpack *door)
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
    door->tensor_type = (PyTypeObject *)tensor_type;
    door->api = api;
    return 0;
}

void fl_py_dlpack_close(fl_py_dlpack *door) { Py_CLEAR(door->tensor_type); }

static inline bool is_tensor(const fl_py_dlpack *door, PyObject *object)
{
    return Py_TYPE(object) == door->tensor_type;
}

static int64_t count_elements(int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int32_t d = 0; d < ndim; d++) count *= shape[d];
    return count;
}

/* The table writes shape and strides of the tensor itself, valid while the tensor is unchanged. */
static int borrow_anywhere(const fl_py_dlpack *door, PyObject *object, DLTensor *out)
{
    if (door->api->dltensor_from_py_object_no_sync(object, out) != 0) return -1;
    if (out->ndim > FL_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "the tensor has %d dimensions, more than %d", out->ndim,
                     FL_MAX_NDIM);
        return -1;
    }
    if (out->data == NULL && count_elements(out->ndim, out->shape) > 0) {
        PyErr_SetString(PyExc_ValueError, "the tensor has no memory behind it");
        return -1;
    }
    return 0;
}

static int borrow_tensor(const fl_py_dlpack *door, PyObject *object, DLTensor *out)
{
    if (borrow_anywhere(door, object, out) != 0) return -1;
    if (out->device.device_type == kDLCPU) return 0;
    PyErr_SetString(PyExc_ValueError, "the tensor is not on the CPU");
    return -1;
}

static int view_tensor(const fl_py_dlpack *door, PyObject *object, fl_tensor *out)
{
    DLTensor tensor;
    if (borrow_tensor(door, object, &tensor) != 0) return -1;
    out->data = (const char *)tensor.data + tensor.byte_offset;
    out->dtype = (fl_dtype){tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes};
    out->ndim = tensor.ndim;
    int64_t bytes = fl_dtype_bytes(out->dtype);
    for (int32_t d = 0; d < tensor.ndim; d++) {
        out->shape[d] = tensor.shape[d];
        out->stride[d] = tensor.strides[d] * bytes;
    }
    return 0;
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

/* Whether the elements fill their memory without gaps, in some order of the dimensions; *layout
 * tells orders apart, 0 is the contiguous one. */
static bool is_dense(const DLTensor *tensor, uint64_t *layout)
{
    int64_t step = 1;
    bool is_seen[FL_MAX_NDIM] = {false}, is_contiguous = true;
    uint64_t order = 0;
    for (int32_t left = tensor->ndim; left > 0; left--) {
        int32_t inner = -1; /* the last dimension not seen that continues what was seen */
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

/* Whether passes may run there. */
static bool find_device(DLDevice device, int32_t *out)
{
    *out = device.device_type == kDLCPU ? FL_PY_CPU : device.device_id;
    return device.device_type == kDLCPU || device.device_type == kDLCUDA;
}

bool fl_py_float_tensor(const fl_py_dlpack *door, PyObject *object, fl_py_floats *out)
{
    DLTensor tensor;
    if (!is_tensor(door, object)) return false;
    if (borrow_anywhere(door, object, &tensor) != 0) {
        PyErr_Clear();
        return false;
    }
    out->count = count_elements(tensor.ndim, tensor.shape);
    out->data = (char *)tensor.data + tensor.byte_offset;
    out->layout = 0;
    return find_device(tensor.device, &out->device) && find_float(tensor.dtype, &out->type) &&
           (out->count == 0 || is_dense(&tensor, &out->layout));
}

void *fl_py_scalar_address(const fl_py_dlpack *door, PyObject *object, uint8_t code, uint8_t bits,
                           int32_t *device)
{
    DLTensor tensor;
    int32_t found;
    if (!is_tensor(door, object))
        return PyErr_Format(PyExc_TypeError, "expected a torch.Tensor of one number, got %.100s",
                            Py_TYPE(object)->tp_name);
    if (borrow_anywhere(door, object, &tensor) != 0) return NULL;
    bool is_there =
        find_device(tensor.device, &found) && (*device == FL_PY_ANYWHERE || *device == found);
    if (!is_there)
        return PyErr_Format(PyExc_ValueError,
                            "the tensor of one number is on another device than the gradients");
    *device = found;
    if (tensor.dtype.code == code && tensor.dtype.bits == bits &&
        count_elements(tensor.ndim, tensor.shape) == 1)
        return (char *)tensor.data + tensor.byte_offset;
    return PyErr_Format(PyExc_TypeError, "expected a tensor of one number of %d bits", (int)bits);
}

void *
fl_py_buffer_address(const fl_py_dlpack *door, PyObject *object, int32_t device, int64_t bytes)
{
    DLTensor tensor = {0};
    if (is_tensor(door, object) && borrow_anywhere(door, object, &tensor) != 0) return NULL;
    DLDevice wanted = {device == FL_PY_CPU ? kDLCPU : kDLCUDA, device == FL_PY_CPU ? 0 : device};
    if (tensor.device.device_type == wanted.device_type &&
        tensor.device.device_id == wanted.device_id && tensor.dtype.bits == 8 && tensor.ndim == 1 &&
        tensor.shape[0] == bytes && (bytes == 1 || tensor.strides[0] == 1))
        return (char *)tensor.data + tensor.byte_offset;
    return PyErr_Format(PyExc_ValueError, "expected %lld contiguous bytes on %s device %d",
                        (long long)bytes, device == FL_PY_CPU ? "CPU" : "CUDA", wanted.device_id);
}

int fl_py_stream(const fl_py_dlpack *door, int32_t device, void **out)
{
    return door->api->current_work_stream(kDLCUDA, device, out) == 0 ? 0 : -1;
}

static bool find_dtype(PyArray_Descr *descr, fl_dtype *out)
{
    static const struct {
        char kind;
        uint8_t code;
    } codes[] = {{'i', kDLInt}, {'u', kDLUInt}, {'f', kDLFloat}, {'c', kDLComplex}, {'b', kDLBool}};
    int64_t bytes = PyDataType_ELSIZE(descr);
    if (!PyArray_ISNBO(descr->byteorder) || bytes > 16) return false;
    if (bytes == 16 && descr->kind != 'c') return false; /* long double */
    if (descr->type_num == NPY_ULONGLONG && NPY_ULONGLONG != NPY_UINT64) return false; /* torch's */
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (codes[i].kind != descr->kind) continue;
        *out = (fl_dtype){codes[i].code, (uint8_t)(bytes * 8), 1};
        return true;
    }
    return false;
}

static int view_array(PyArrayObject *array, fl_tensor *out)
{
    if (!find_dtype(PyArray_DESCR(array), &out->dtype)) {
        PyErr_Format(PyExc_TypeError, "torch has no dtype for %R", PyArray_DESCR(array));
        return -1;
    }
    out->data = PyArray_BYTES(array);
    out->ndim = PyArray_NDIM(array); /* at most 64 in every NumPy */
    for (int32_t d = 0; d < out->ndim; d++) {
        out->shape[d] = PyArray_DIM(array, d);
        out->stride[d] = PyArray_STRIDE(array, d);
    }
    return 0;
}

int fl_py_view(const fl_py_dlpack *door, PyObject *object, fl_tensor *out)
{
    if (is_tensor(door, object)) return view_tensor(door, object, out);
    if (PyArray_Check(object)) return view_array((PyArrayObject *)object, out);
    PyErr_Format(PyExc_TypeError, "expected a torch.Tensor or numpy.ndarray, got %.100s",
                 Py_TYPE(object)->tp_name);
    return -1;
}

static inline bool is_index_vector(const fl_tensor *view)
{
    return view->ndim == 1 && view->dtype.code == kDLInt && view->dtype.bits == 64 &&
           (view->shape[0] <= 1 || view->stride[0] == 8) && (uintptr_t)view->data % 8 == 0;
}

int fl_py_index_vector(const fl_py_dlpack *door, PyObject *object, fl_tensor *out)
{
    if (fl_py_view(door, object, out) != 0) return -1;
    if (is_index_vector(out)) return 0;
    PyErr_SetString(PyExc_TypeError, "expected a contiguous int64 vector of indices");
    return -1;
}

/* Deleters run on whatever thread drops the last reference to a tensor, without the interpreter
 * lock, possibly after the interpreter is gone: C only. */
static void give_share(DLManagedTensorVersioned *managed)
{
    fl_slot *slot = managed->manager_ctx;
    managed->manager_ctx = NULL;
    if (slot != NULL) fl_slot_give(slot);
}

static PyObject *make_tensor(const fl_py_dlpack *door, char *data, fl_dtype dtype, int32_t ndim,
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
    if (door->api->managed_tensor_to_py_object_no_sync(managed, &tensor) != 0) return NULL;
    managed->dl_tensor.shape = managed->dl_tensor.strides = NULL; /* torch has copied them */
    return tensor;
}

PyObject *
fl_py_tensor_over(const fl_py_dlpack *door, fl_slot *slot, char *data, fl_dtype dtype, int32_t ndim,
                  int64_t *shape, int64_t *stride, DLManagedTensorVersioned *managed)
{
    managed->manager_ctx = slot;
    managed->deleter = give_share;
    PyObject *tensor = make_tensor(door, data, dtype, ndim, shape, stride, managed);
    /* Unless torch has called the deleter already; the caller holds one more share. */
    if (tensor == NULL) give_share(managed);
    return tensor;
}

/* What a tensor of fl_py_tensor_at or fl_py_tensor_new keeps: freed with the tensor. */
typedef struct keeper {
    _Alignas(64) DLManagedTensorVersioned managed;
    fl_slot *slot;  /* lent, may be NULL */
    bool *is_freed; /* the maker's, while the tensor is being made */
    _Alignas(64) char memory[];
} keeper;

static void free_keeper(DLManagedTensorVersioned *managed)
{
    keeper *self = managed->manager_ctx;
    if (self->is_freed != NULL) *self->is_freed = true;
    if (self->slot != NULL) fl_slot_give(self->slot);
    fl_free(self);
}

static PyObject *make_kept(const fl_py_dlpack *door, keeper *self, char *data, fl_dtype dtype,
                           int32_t ndim, const int64_t *shape)
{
    int64_t dims[FL_MAX_NDIM], stride[FL_MAX_NDIM];
    for (int32_t d = 0; d < ndim; d++) dims[d] = shape[d];
    fl_tensor_strides(ndim, dims, stride);
    self->managed.manager_ctx = self;
    self->managed.deleter = free_keeper;
    bool is_freed = false; /* by torch, if it fails late */
    self->is_freed = &is_freed;
    PyObject *tensor = make_tensor(door, data, dtype, ndim, dims, stride, &self->managed);
    if (tensor != NULL)
        self->is_freed = NULL;
    else if (!is_freed)
        free_keeper(&self->managed);
    return tensor;
}

PyObject *fl_py_tensor_at(const fl_py_dlpack *door, fl_slot *slot, char *data, fl_dtype dtype,
                          int32_t ndim, const int64_t *shape)
{
    keeper *self = fl_alloc(sizeof *self);
    if (self == NULL) return PyErr_NoMemory();
    if (slot != NULL) fl_slot_share(slot);
    self->slot = slot;
    return make_kept(door, self, data, dtype, ndim, shape);
}

PyObject *fl_py_tensor_new(const fl_py_dlpack *door, fl_dtype dtype, int32_t ndim,
                           const int64_t *shape, char **data)
{
    int64_t bytes = fl_tensor_bytes(dtype, ndim, shape);
    keeper *self = bytes < 0 ? NULL : fl_alloc((int64_t)sizeof *self + bytes);
    if (self == NULL) return PyErr_NoMemory();
    *data = self->memory;
    return make_kept(door, self, self->memory, dtype, ndim, shape);
}

static int index_from_scalar(const fl_py_dlpack *door, PyObject *item, int64_t *out)
{
    DLTensor tensor;
    if (borrow_tensor(door, item, &tensor) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (tensor.ndim != 0 || tensor.dtype.code != kDLInt) return 0; /* bytes are masks to torch */
    PyObject *number = PyNumber_Index(item);
    if (number == NULL) return -1;
    *out = PyLong_AsLongLong(number);
    Py_DECREF(number);
    if (*out != -1 || !PyErr_Occurred()) return 1;
    PyErr_Clear();
    return 0;
}

int fl_py_index(const fl_py_dlpack *door, PyObject *item, int64_t *out)
{
    int overflow = 0;
    if (PyLong_CheckExact(item)) {
        *out = PyLong_AsLongLongAndOverflow(item, &overflow);
        return overflow == 0;
    }
    if (is_tensor(door, item)) return index_from_scalar(door, item, out);
    bool is_plain = PyLong_Check(item) || PyArray_IsScalar(item, Integer);
    if (!is_plain || PyBool_Check(item)) return 0;
    PyObject *number = PyNumber_Index(item);
    if (number == NULL) return -1;
    *out = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    return overflow == 0;
}

/* A whole block at once: 1 added, 0 not a contiguous int64 vector, -1 exception. */
static int add_vector(const fl_py_dlpack *door, PyObject *item, fl_rows *rows)
{
    fl_tensor view;
    bool is_array = PyArray_Check(item);
    if (!is_array && !is_tensor(door, item)) return 0;
    if (fl_py_view(door, item, &view) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (!is_index_vector(&view)) return 0;
    fl_err err;
    if (fl_rows_add(rows, (const int64_t *)(const void *)view.data, view.shape[0], &err) == FL_OK)
        return 1;
    fl_py_raise(&err, NULL);
    return -1;
}

int fl_py_rows_add(const fl_py_dlpack *door, PyObject *items, fl_rows *rows)
{
    int added = add_vector(door, items, rows);
    if (added != 0) return added;
    if (!PyList_CheckExact(items) && !PyTuple_CheckExact(items)) return 0;
    int64_t before = rows->count, buffer[256];
    Py_ssize_t next = 0;
    while (next < PySequence_Fast_GET_SIZE(items)) {
        int64_t count = 0;
        for (; count < 256 && next < PySequence_Fast_GET_SIZE(items); next++) {
            /* Converting may run Python code that changes the list. */
            PyObject *item = PySequence_Fast_GET_ITEM(items, next);
            Py_INCREF(item);
            int done = fl_py_index(door, item, &buffer[count++]);
            Py_DECREF(item);
            if (done == 1) continue;
            rows->count = before;
            return done;
        }
        fl_err err;
        if (fl_rows_add(rows, buffer, count, &err) != FL_OK) {
            fl_py_raise(&err, NULL);
            return -1;
        }
    }
    return 1;
}

PyObject *fl_py_int64_array(const fl_py_dlpack *door, PyObject *sequence)
{
    npy_intp length = PySequence_Fast_GET_SIZE(sequence);
    PyObject *array = PyArray_SimpleNew(1, &length, NPY_INT64);
    if (array == NULL) return NULL;
    int64_t *out = PyArray_DATA((PyArrayObject *)array);
    for (Py_ssize_t i = 0; i < length; i++) {
        int done = 0; /* a list that shrank meanwhile is not plain */
        if (i < PySequence_Fast_GET_SIZE(sequence)) {
            PyObject *item = PySequence_Fast_GET_ITEM(sequence, i);
            Py_INCREF(item);
            done = fl_py_index(door, item, &out[i]);
            Py_DECREF(item);
        }
        if (done == 1) continue;
        Py_DECREF(array);
        if (done < 0) return NULL;
        Py_RETURN_NONE;
    }
    return array;
}

bool fl_py_is_array(PyObject *object) { return PyArray_CheckExact(object); }

bool fl_py_is_read_only(PyObject *array) { return !PyArray_ISWRITEABLE((PyArrayObject *)array); }

bool fl_py_scalar_dtype(PyObject *scalar, fl_dtype *out)
{
    if (!PyArray_IsScalar(scalar, Number) && !PyArray_IsScalar(scalar, Bool)) return false;
    PyArray_Descr *descr = PyArray_DescrFromScalar(scalar);
    if (descr == NULL) {
        PyErr_Clear();
        return false;
    }
    bool is_found = find_dtype(descr, out);
    Py_DECREF(descr);
    return is_found && !(out->code == kDLUInt && out->bits == 64); /* torch refuses them */
}

void fl_py_scalar_value(PyObject *scalar, char *out) { PyArray_ScalarAsCtype(scalar, out); }
