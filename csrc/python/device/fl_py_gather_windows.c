/* fl_py_gather_windows: makes windows of tokens, one kernel for x and y. */
#include "fl_py_gather.h"

#include "fl_cuda.h"
#include "fl_py_error.h"

static bool is_integer(fl_dtype dtype) { return dtype.code == kDLInt || dtype.code == kDLUInt; }

static int read_tokens(const fl_py_gather *self, PyObject *tokens, fl_window_batch *out)
{
    fl_tensor view;
    if (fl_py_gather_view(self, tokens, &view) != 0) return -1;
    out->from = view.data;
    out->from_bytes = view.dtype.bits / 8;
    out->is_signed = view.dtype.code == kDLInt;
    if (view.ndim == 1 && is_integer(view.dtype) && fl_tensor_is_contiguous(&view)) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: tokens must be a contiguous vector of ints");
}

/* Checks a result of windows: contiguous rows; x and y have the same width and size of ints. */
static int read_windows(const fl_py_gather *self, PyObject *result, fl_tensor *x, fl_tensor *view)
{
    if (fl_py_gather_view(self, result, view) != 0) return -1;
    if (x->data == NULL) *x = *view;
    if (view->ndim == 2 && view->shape[0] == self->row_count && view->shape[1] >= 1 &&
        view->shape[1] <= INT32_MAX && is_integer(view->dtype) && view->dtype.bits >= 16 &&
        view->shape[1] == x->shape[1] && view->dtype.bits == x->dtype.bits &&
        fl_tensor_is_contiguous(view))
        return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: outs must be batches of windows");
}

static int read_window_batch(const fl_py_gather *self, PyObject *outs, fl_window_batch *batch)
{
    fl_tensor x = {.data = NULL}, y = {.data = NULL};
    if (read_tokens(self, self->sources[0].tensor, batch) != 0 ||
        read_windows(self, PyList_GET_ITEM(outs, 0), &x, &x) != 0)
        return -1;
    if (PyList_GET_SIZE(outs) == 2 && read_windows(self, PyList_GET_ITEM(outs, 1), &x, &y) != 0)
        return -1;
    batch->x = (void *)(uintptr_t)x.data;
    batch->y = (void *)(uintptr_t)y.data;
    batch->length = x.shape[1];
    batch->bytes = x.dtype.bits / 8;
    batch->shift = self->sources[0].shift;
    if (batch->bytes >= batch->from_bytes) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: outs must be as wide as the tokens, or wider");
}

static int launch(const fl_py_gather *self, void *stream, const void *what, fl_err *err)
{
    return fl_cuda_gather_windows(self->device, stream, what, self->rows, self->row_count, err);
}

static int run(const fl_py_gather *self, PyObject *outs)
{
    fl_window_batch batch = {0};
    if (read_window_batch(self, outs, &batch) != 0) return -1;
    return fl_py_gather_queue(self, launch, &batch);
}

const fl_py_gather_ops fl_py_gather_windows = {.run = run};
