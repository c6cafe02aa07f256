/* fl_py_gather: see fl_py_gather.h. */
#include "fl_py_gather.h"

#include "fl_cuda.h"
#include "fl_py.h"

#include <string.h>

/* Where rows come from and go to; all tensors are on one device. */
typedef struct gather {
    const fl_py_dlpack *dlpack; /* borrowed */
    int32_t device;             /* FL_PY_ANYWHERE before the first tensor */
    const int64_t *rows;        /* borrowed from the tensor of indices */
    int64_t row_count;
    long long length; /* of what the indices point into */
} gather;

static int view_there(gather *self, PyObject *tensor, fl_tensor *out)
{
    int32_t device;
    if (fl_py_cuda_view(self->dlpack, tensor, out, &device) != 0) return -1;
    if (self->device == FL_PY_ANYWHERE) self->device = device;
    if (self->device == device) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: the tensors are on several devices");
    return -1;
}

static int read_rows(gather *self, PyObject *indices)
{
    fl_tensor view;
    if (view_there(self, indices, &view) != 0) return -1;
    self->rows = (const int64_t *)view.data;
    self->row_count = view.ndim == 1 ? view.shape[0] : 0;
    bool is_int64 = view.dtype.code == kDLInt && view.dtype.bits == 64;
    if (is_int64 && view.ndim == 1 && fl_tensor_is_contiguous(&view)) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: indices must be a contiguous vector of int64");
    return -1;
}

/* Whether `to` is a batch of rows of `from`. */
static bool is_batch_of(const fl_tensor *from, const fl_tensor *to, int64_t rows)
{
    bool is_alike = memcmp(&from->dtype, &to->dtype, sizeof to->dtype) == 0;
    if (!is_alike || from->ndim < 1 || from->ndim != to->ndim || to->shape[0] != rows) return false;
    size_t dims = (size_t)(from->ndim - 1) * sizeof *from->shape;
    return memcmp(from->shape + 1, to->shape + 1, dims) == 0 && fl_tensor_is_contiguous(to);
}

static int read_column(gather *self, PyObject *source, PyObject *out, fl_row_column *column)
{
    fl_tensor from, to;
    if (view_there(self, source, &from) != 0 || view_there(self, out, &to) != 0) return -1;
    if (!is_batch_of(&from, &to, self->row_count)) {
        PyErr_SetString(PyExc_ValueError, "gather: a batch has another shape or dtype than rows");
        return -1;
    }
    if (from.shape[0] < self->length) {
        PyErr_Format(PyExc_ValueError, "gather: the data had %lld rows and now have %lld",
                     self->length, (long long)from.shape[0]);
        return -1;
    }
    *column = (fl_row_column){from.data, (char *)to.data, 0, from.stride[0]};
    from.shape[0] = 1;
    column->bytes = fl_tensor_bytes(from.dtype, from.ndim, from.shape);
    if (column->bytes == 0 || fl_tensor_is_contiguous(&from)) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: rows must be contiguous");
    return -1;
}

static int launch(gather *self, PyObject *sources, PyObject *outs, fl_row_column *columns)
{
    fl_err err;
    void *stream;
    Py_ssize_t count = PyTuple_GET_SIZE(sources);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *source = PyTuple_GET_ITEM(sources, i), *out = PyTuple_GET_ITEM(outs, i);
        if (read_column(self, source, out, &columns[i]) != 0) return -1;
    }
    if (fl_py_stream(self->dlpack, self->device, &stream) != 0) return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS /* a full queue of launches blocks; the arguments keep the tensors */
    status = fl_cuda_gather(self->device, stream, columns, (int32_t)count, self->rows,
                            self->row_count, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

const char fl_py_gather_doc[] = PyDoc_STR(
    "gather(tensor_type, sources, indices, outs, length)\n--\n\n"
    "Copy rows of tensors on one CUDA device to tensors there, by one kernel for 32 of them on\n"
    "the current stream. Rows are contiguous, and so are the int64 indices, which must be in\n"
    "[0, length): they are not read here. ValueError for sources with fewer rows.");

PyObject *fl_py_gather(PyObject *Py_UNUSED(module), PyObject *args)
{
    fl_py_dlpack dlpack;
    PyObject *tensor_type, *sources, *indices, *outs;
    gather self = {.dlpack = &dlpack, .device = FL_PY_ANYWHERE};
    if (!PyArg_ParseTuple(args, "OO!OO!L:gather", &tensor_type, &PyTuple_Type, &sources, &indices,
                          &PyTuple_Type, &outs, &self.length))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(sources);
    if (count != PyTuple_GET_SIZE(outs))
        return PyErr_Format(PyExc_ValueError, "gather: sources and outs differ in length");
    if (fl_py_dlpack_open(tensor_type, &dlpack) != 0) return NULL;
    fl_row_column *columns = fl_alloc(count * (int64_t)sizeof *columns);
    bool is_done = columns != NULL && read_rows(&self, indices) == 0 &&
                   launch(&self, sources, outs, columns) == 0;
    if (columns == NULL) PyErr_NoMemory();
    fl_free(columns);
    fl_py_dlpack_close(&dlpack);
    if (!is_done) return NULL;
    Py_RETURN_NONE;
}
