/* fl_py_gather: see fl_py_gather.h. This file has the functions that all kinds of source share. */
#include "fl_py_gather.h"

#include "fl_cuda.h"
#include "fl_py_error.h"

int fl_py_gather_view(const fl_py_gather *self, PyObject *tensor, fl_tensor *out)
{
    int32_t device;
    if (fl_py_cuda_view(self->dlpack, tensor, out, &device) != 0) return -1;
    if (self->device == device) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: every tensor must be on the gather's device");
}

int fl_py_gather_open(fl_py_gather *self, PyObject *indices, int64_t first, int64_t count)
{
    fl_tensor view;
    if (fl_py_gather_view(self, indices, &view) != 0) return -1;
    bool is_int64 = view.dtype.code == kDLInt && view.dtype.bits == 64;
    if (!is_int64 || view.ndim != 1 || !fl_tensor_is_contiguous(&view))
        return FL_PY_FAIL(PyExc_ValueError, "gather: indices must be a contiguous vector of int64");
    if (first < 0 || count < 0 || count > view.shape[0] - first)
        return FL_PY_FAIL(PyExc_IndexError, "gather: indices must hold [%lld, %lld), got %lld rows",
                          (long long)first, (long long)(first + count), (long long)view.shape[0]);
    self->rows = (const int64_t *)view.data + first;
    self->row_count = count;
    self->first = first;
    self->rest = view.shape[0] - first;
    return fl_py_stream(self->dlpack, self->device, &self->stream);
}

int fl_py_gather_open_here(fl_py_gather *self, PyObject *indices)
{
    fl_tensor view;
    if (fl_py_view(self->dlpack, indices, &view) != 0) return -1;
    bool fits = view.dtype.code == kDLInt && view.dtype.bits == 64 && view.ndim == 1 &&
                fl_tensor_is_contiguous(&view) && view.shape[0] <= FL_GATHER_OWN_ROWS;
    self->here = (const int64_t *)view.data;
    self->row_count = self->rest = fits ? view.shape[0] : 0;
    for (int64_t i = 0; i < self->row_count; i++)
        fits &= self->here[i] >= 0 && self->here[i] < fl_min(self->length, INT32_MAX);
    if (fits) return fl_py_stream(self->dlpack, self->device, &self->stream);
    return FL_PY_FAIL(PyExc_ValueError,
                      "gather: rows must be a contiguous vector of at most %d int64 in [0, %lld)",
                      FL_GATHER_OWN_ROWS, (long long)fl_min(self->length, INT32_MAX));
}

PyObject *fl_py_gather_refuse(int64_t before, int64_t now)
{
    return PyErr_Format(PyExc_ValueError, "gather: the data must keep their %lld rows, got %lld",
                        (long long)before, (long long)now);
}

int fl_py_gather_view_source(const fl_py_gather *self, const fl_py_gather_source *source,
                             fl_tensor *out)
{
    int status = source->range == NULL ? fl_py_gather_view(self, source->tensor, out)
                                       : fl_py_host_range_view(source->range, source->tensor, out);
    if (status != 0 || out->ndim < 1 || out->shape[0] >= self->length) return status;
    (void)fl_py_gather_refuse(self->length, out->shape[0]);
    return -1;
}

/* Runs without the interpreter lock; the caller keeps the ranges alive. */
static int note_ranges(const fl_py_gather *self, fl_err *err)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const fl_py_host_range *range = self->sources[i].range;
        if (range != NULL)
            FL_TRY(fl_cuda_host_range_note(range->range, self->device, self->stream, err));
    }
    return FL_OK;
}

int fl_py_gather_note(const fl_py_gather *self)
{
    fl_err err;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = note_ranges(self, &err);
    Py_END_ALLOW_THREADS
    return PyErr_Occurred() ? -1 : fl_py_check(status, &err, NULL);
}

int fl_py_gather_queue(const fl_py_gather *self, fl_py_gather_launch *launch, const void *what)
{
    fl_err err;
    int status;
    Py_BEGIN_ALLOW_THREADS /* launching blocks while the stream's queue is full; the caller keeps
                              the tensors */
    status = launch(self, self->stream, what, &err);
    Py_END_ALLOW_THREADS
    return fl_py_check(status, &err, NULL);
}
