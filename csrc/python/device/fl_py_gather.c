/* fl_py_gather: see fl_py_gather.h. */
#include "fl_py_gather.h"

#include "fl_cuda.h"
#include "fl_py.h"
#include "fl_py_image_plan.h"
#include "fl_py_region.h"

#include <string.h>

static int view_there(const fl_py_gather *self, PyObject *tensor, fl_tensor *out)
{
    int32_t device;
    if (fl_py_cuda_view(self->dlpack, tensor, out, &device) != 0) return -1;
    if (self->device == device) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: a tensor is on another device");
    return -1;
}

static int view_source(const fl_py_gather *self, Py_ssize_t i, fl_tensor *out)
{
    PyObject *source = PyTuple_GET_ITEM(self->sources, i);
    if (self->regions == NULL) return view_there(self, source, out);
    return fl_py_region_view((fl_py_region *)PyTuple_GET_ITEM(self->regions, i), source, out);
}

/* Without the interpreter lock; the caller keeps the regions. */
static int note_regions(const fl_py_gather *self, void *stream, fl_err *err)
{
    Py_ssize_t count = self->regions != NULL ? PyTuple_GET_SIZE(self->regions) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        fl_cuda_region *region = ((fl_py_region *)PyTuple_GET_ITEM(self->regions, i))->region;
        FL_TRY(fl_cuda_region_note(region, self->device, stream, err));
    }
    return FL_OK;
}

int fl_py_gather_open(fl_py_gather *self, PyObject *indices, int64_t first, int64_t count)
{
    fl_tensor view;
    if (view_there(self, indices, &view) != 0) return -1;
    bool is_int64 = view.dtype.code == kDLInt && view.dtype.bits == 64;
    if (!is_int64 || view.ndim != 1 || !fl_tensor_is_contiguous(&view)) {
        PyErr_SetString(PyExc_ValueError, "gather: indices must be a contiguous vector of int64");
        return -1;
    }
    if (first < 0 || count < 0 || count > view.shape[0] - first) {
        PyErr_Format(PyExc_IndexError, "gather: there are %lld rows, and none of [%lld, %lld)",
                     (long long)view.shape[0], (long long)first, (long long)(first + count));
        return -1;
    }
    self->rows = (const int64_t *)view.data + first;
    self->row_count = count;
    return 0;
}

/* Whether `to` is a batch of rows of `from`. */
static bool is_batch_of(const fl_tensor *from, const fl_tensor *to, int64_t rows)
{
    bool is_alike = memcmp(&from->dtype, &to->dtype, sizeof to->dtype) == 0;
    if (!is_alike || from->ndim < 1 || from->ndim != to->ndim || to->shape[0] != rows) return false;
    size_t dims = (size_t)(from->ndim - 1) * sizeof *from->shape;
    return memcmp(from->shape + 1, to->shape + 1, dims) == 0 && fl_tensor_is_contiguous(to);
}

PyObject *fl_py_gather_refuse(int64_t before, int64_t now)
{
    return PyErr_Format(PyExc_ValueError, "gather: the data had %lld rows and now have %lld",
                        (long long)before, (long long)now);
}

static int check_length(const fl_py_gather *self, const fl_tensor *source)
{
    if (source->shape[0] >= self->length) return 0;
    (void)fl_py_gather_refuse(self->length, source->shape[0]);
    return -1;
}

static int read_column(fl_py_gather *self, PyObject *outs, Py_ssize_t i, fl_row_column *column)
{
    fl_tensor from, to;
    if (view_source(self, i, &from) != 0 || view_there(self, PyList_GET_ITEM(outs, i), &to) != 0)
        return -1;
    if (!is_batch_of(&from, &to, self->row_count)) {
        PyErr_SetString(PyExc_ValueError, "gather: a batch has another shape or dtype than rows");
        return -1;
    }
    if (check_length(self, &from) != 0) return -1;
    *column = (fl_row_column){from.data, (char *)to.data, 0, from.stride[0]};
    from.shape[0] = 1;
    column->bytes = fl_tensor_bytes(from.dtype, from.ndim, from.shape);
    if (column->bytes == 0 || fl_tensor_is_contiguous(&from)) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: rows must be contiguous");
    return -1;
}

static int queue_columns(fl_py_gather *self, const fl_row_column *columns, int32_t count)
{
    fl_err err;
    void *stream;
    if (fl_py_stream(self->dlpack, self->device, &stream) != 0) return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS /* a full queue of launches blocks; the caller keeps the tensors */
    status =
        fl_cuda_gather(self->device, stream, columns, count, self->rows, self->row_count, &err);
    if (status == FL_OK) status = note_regions(self, stream, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

int fl_py_gather_rows(fl_py_gather *self, PyObject *outs)
{
    Py_ssize_t sources = PyTuple_GET_SIZE(self->sources);
    fl_row_column *columns = fl_alloc(sources * (int64_t)sizeof *columns);
    int32_t count = 0;
    int status = columns != NULL ? 0 : -1;
    if (columns == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; status == 0 && i < sources; i++)
        if (PyTuple_GET_ITEM(self->plans, i) == Py_None)
            status = read_column(self, outs, i, &columns[count++]);
    if (status == 0 && count > 0) status = queue_columns(self, columns, count);
    fl_free(columns);
    return status;
}

/* ---- images */

/* The address of contiguous elements of this dtype, NULL for none; ValueError unless there are
 * `count`. */
static int find_elements(fl_py_gather *self, PyObject *tensor, const char *name, fl_dtype dtype,
                         int64_t count, const void **out)
{
    fl_tensor view;
    if (view_there(self, tensor, &view) != 0) return -1;
    *out = view.data;
    int64_t found = 1;
    for (int d = 0; d < view.ndim; d++) found *= view.shape[d];
    if (memcmp(&view.dtype, &dtype, sizeof dtype) == 0 && found == count &&
        fl_tensor_is_contiguous(&view))
        return 0;
    PyErr_Format(PyExc_ValueError, "gather: %s must be contiguous, %lld elements", name,
                 (long long)count);
    return -1;
}

/* The steps between images, channels, rows and columns; `layout` is that of each image. */
static void read_steps(const fl_tensor *view, fl_image_layout layout, int64_t unit, int64_t *steps)
{
    static const int axis[FL_IMAGE_LAYOUTS][4] = {[FL_CHW] = {0, 1, 2, 3}, [FL_HWC] = {0, 3, 1, 2}};
    for (int d = 0; d < 4; d++) steps[d] = view->stride[axis[layout][d]] / unit;
}

static int
read_images(fl_py_gather *self, const fl_py_image_plan *plan, Py_ssize_t i, fl_image_batch *out)
{
    fl_tensor view;
    if (view_source(self, i, &view) != 0) return -1;
    bool is_chw = plan->layout == FL_CHW;
    fl_image_size in = fl_image_plan_in(plan->plan);
    int32_t channels = fl_image_plan_channels(plan->plan);
    if (view.ndim == 4 && view.dtype.code == kDLUInt && view.dtype.bits == 8 &&
        view.shape[is_chw ? 1 : 3] == channels && view.shape[is_chw ? 2 : 1] == in.height &&
        view.shape[is_chw ? 3 : 2] == in.width) {
        out->from = (const uint8_t *)view.data;
        read_steps(&view, plan->layout, 1, out->from_steps);
        return check_length(self, &view);
    }
    PyErr_SetString(PyExc_ValueError, "gather: the images are not those of the plan");
    return -1;
}

/* Whether the results lie as the plan makes them, one behind the other. */
static bool has_no_gaps(const fl_tensor *view, const fl_py_image_plan *plan)
{
    const int64_t bytes = plan->dtype.bits / 8, each = fl_image_plan_out_bytes(plan->plan);
    bool is_dense = view->shape[0] <= 1 || view->stride[0] == each;
    for (int d = 0; d < 3; d++)
        is_dense &= plan->shape[d] == 1 || view->stride[d + 1] == plan->stride[d] * bytes;
    return is_dense;
}

static int
read_result(fl_py_gather *self, const fl_py_image_plan *plan, PyObject *result, fl_image_batch *out)
{
    fl_tensor view;
    if (view_there(self, result, &view) != 0) return -1;
    int64_t bytes = plan->dtype.bits / 8;
    bool fits = view.ndim == 4 && memcmp(&view.dtype, &plan->dtype, sizeof view.dtype) == 0 &&
                view.shape[0] == self->row_count;
    for (int d = 0; fits && d < 3; d++) fits = view.shape[d + 1] == plan->shape[d];
    if (fits && out->steps > 0) fits = has_no_gaps(&view, plan);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "gather: out is not a batch of the plan's results");
        return -1;
    }
    out->to = (char *)(uintptr_t)view.data;
    read_steps(&view, plan->form, bytes, out->to_steps);
    return 0;
}

/* What the kernel is told of source i. */
static int read_batch(fl_py_gather *self, Py_ssize_t i, PyObject *map_tensor, PyObject *result,
                      fl_image_batch *out)
{
    PyObject *pair = PyTuple_GET_ITEM(self->plans, i);
    const fl_py_image_plan *plan = (const fl_py_image_plan *)PyTuple_GET_ITEM(pair, 0);
    const fl_image_plan *core = plan->plan;
    int64_t taps_at = fl_image_plan_values_bytes(core);
    fl_image_plan_describe(core, out);
    const int64_t length = out->map_numbers;
    if (length == 0) {
        PyErr_SetString(PyExc_ValueError, "gather: the plan computes pixels");
        return -1;
    }
    const void *maps, *table;
    if (read_images(self, plan, i, out) != 0 ||
        find_elements(self, map_tensor, "maps", (fl_dtype){kDLInt, 32, 1}, self->row_count * length,
                      &maps) != 0 ||
        find_elements(self, PyTuple_GET_ITEM(pair, 1), "values", (fl_dtype){kDLUInt, 8, 1},
                      taps_at + fl_image_plan_taps_bytes(core), &table) != 0)
        return -1;
    out->maps = maps;
    out->table = table;
    if (out->resizes) {
        out->row_taps = (const int32_t *)(const void *)(out->table + taps_at);
        out->column_taps = out->row_taps + fl_image_taps_numbers(&out->rows);
    }
    return read_result(self, plan, result, out);
}

static int queue_images(fl_py_gather *self, const fl_image_batch *batch)
{
    fl_err err;
    void *stream;
    if (fl_py_stream(self->dlpack, self->device, &stream) != 0) return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_gather_images(self->device, stream, batch, self->rows, self->row_count, &err);
    if (status == FL_OK) status = note_regions(self, stream, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

int fl_py_gather_images(fl_py_gather *self, PyObject *maps, PyObject *outs)
{
    fl_image_batch batch;
    Py_ssize_t next = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->plans); i++) {
        if (PyTuple_GET_ITEM(self->plans, i) == Py_None) continue;
        if (next == PyTuple_GET_SIZE(maps)) {
            PyErr_SetString(PyExc_ValueError, "gather: maps must be of each plan");
            return -1;
        }
        if (read_batch(self, i, PyTuple_GET_ITEM(maps, next++), PyList_GET_ITEM(outs, i), &batch) !=
                0 ||
            queue_images(self, &batch) != 0)
            return -1;
    }
    return 0;
}

/* ---- windows of tokens */

static bool is_integer(fl_dtype dtype) { return dtype.code == kDLInt || dtype.code == kDLUInt; }

static int read_tokens(fl_py_gather *self, PyObject *tokens, fl_window_batch *out)
{
    fl_tensor view;
    if (view_there(self, tokens, &view) != 0) return -1;
    out->from = view.data;
    out->from_bytes = view.dtype.bits / 8;
    out->is_signed = view.dtype.code == kDLInt;
    if (view.ndim == 1 && is_integer(view.dtype) && fl_tensor_is_contiguous(&view)) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: tokens must be a contiguous vector of ints");
    return -1;
}

/* Row by row; x and y are alike. */
static int read_windows(fl_py_gather *self, PyObject *result, fl_tensor *x, fl_tensor *view)
{
    if (view_there(self, result, view) != 0) return -1;
    if (x->data == NULL) *x = *view;
    if (view->ndim == 2 && view->shape[0] == self->row_count && view->shape[1] >= 1 &&
        view->shape[1] <= INT32_MAX && is_integer(view->dtype) && view->dtype.bits >= 16 &&
        view->shape[1] == x->shape[1] && view->dtype.bits == x->dtype.bits &&
        fl_tensor_is_contiguous(view))
        return 0;
    PyErr_SetString(PyExc_ValueError, "gather: outs are not batches of windows");
    return -1;
}

static int read_window_batch(fl_py_gather *self, PyObject *outs, fl_window_batch *batch)
{
    fl_tensor x = {.data = NULL}, y = {.data = NULL};
    if (read_tokens(self, PyTuple_GET_ITEM(self->sources, 0), batch) != 0 ||
        read_windows(self, PyList_GET_ITEM(outs, 0), &x, &x) != 0)
        return -1;
    if (PyList_GET_SIZE(outs) == 2 && read_windows(self, PyList_GET_ITEM(outs, 1), &x, &y) != 0)
        return -1;
    batch->x = (void *)(uintptr_t)x.data;
    batch->y = (void *)(uintptr_t)y.data;
    batch->length = x.shape[1];
    batch->bytes = x.dtype.bits / 8;
    batch->shift = self->shift;
    if (batch->bytes >= batch->from_bytes) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: tokens are wider than outs");
    return -1;
}

int fl_py_gather_windows(fl_py_gather *self, PyObject *outs)
{
    fl_err err;
    void *stream;
    fl_window_batch batch = {0};
    if (read_window_batch(self, outs, &batch) != 0 ||
        fl_py_stream(self->dlpack, self->device, &stream) != 0)
        return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status =
        fl_cuda_gather_windows(self->device, stream, &batch, self->rows, self->row_count, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}
