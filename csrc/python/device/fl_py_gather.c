/* fl_py_gather: see fl_py_gather.h. */
#include "fl_py_gather.h"

#include "fl_cuda.h"
#include "fl_py.h"
#include "fl_py_image_plan.h"
#include "fl_py_region.h"

#include <string.h>

/* Where rows come from and go to; all tensors are on one device. */
typedef struct gather {
    const fl_py_dlpack *dlpack; /* borrowed */
    int32_t device;             /* FL_PY_ANYWHERE before the first tensor */
    const int64_t *rows;        /* borrowed from the tensor of indices */
    int64_t row_count;
    long long length;  /* of what the indices point into */
    PyObject *regions; /* borrowed: tuple of the Region that each source lies in; NULL: the sources
                          are on the device */
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

static int view_source(gather *self, PyObject *source, Py_ssize_t i, fl_tensor *out)
{
    if (self->regions == NULL) return view_there(self, source, out);
    return fl_py_region_view((fl_py_region *)PyTuple_GET_ITEM(self->regions, i), source, out);
}

/* Whether there are as many Regions as sources, or none. */
static int check_regions(PyObject *module, const gather *self, Py_ssize_t sources)
{
    const fl_py_state *state = PyModule_GetState(module);
    Py_ssize_t count = self->regions != NULL ? PyTuple_GET_SIZE(self->regions) : sources;
    bool is_right = count == sources;
    for (Py_ssize_t i = 0; self->regions != NULL && i < count; i++)
        is_right = is_right && Py_IS_TYPE(PyTuple_GET_ITEM(self->regions, i), state->region_type);
    if (is_right) return 0;
    PyErr_SetString(PyExc_ValueError, "gather: regions must be a Region for each source");
    return -1;
}

/* Without the interpreter lock; the arguments keep the regions. */
static int note_regions(const gather *self, void *stream, fl_err *err)
{
    Py_ssize_t count = self->regions != NULL ? PyTuple_GET_SIZE(self->regions) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        fl_cuda_region *region = ((fl_py_region *)PyTuple_GET_ITEM(self->regions, i))->region;
        FL_TRY(fl_cuda_region_note(region, self->device, stream, err));
    }
    return FL_OK;
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

static int check_length(const gather *self, const fl_tensor *source)
{
    if (source->shape[0] >= self->length) return 0;
    PyErr_Format(PyExc_ValueError, "gather: the data had %lld rows and now have %lld", self->length,
                 (long long)source->shape[0]);
    return -1;
}

static int
read_column(gather *self, PyObject *sources, PyObject *outs, Py_ssize_t i, fl_row_column *column)
{
    fl_tensor from, to;
    if (view_source(self, PyTuple_GET_ITEM(sources, i), i, &from) != 0 ||
        view_there(self, PyTuple_GET_ITEM(outs, i), &to) != 0)
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

static int launch(gather *self, PyObject *sources, PyObject *outs, fl_row_column *columns)
{
    fl_err err;
    void *stream;
    Py_ssize_t count = PyTuple_GET_SIZE(sources);
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_column(self, sources, outs, i, &columns[i]) != 0) return -1;
    if (fl_py_stream(self->dlpack, self->device, &stream) != 0) return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS /* a full queue of launches blocks; the arguments keep the tensors */
    status = fl_cuda_gather(self->device, stream, columns, (int32_t)count, self->rows,
                            self->row_count, &err);
    if (status == FL_OK) status = note_regions(self, stream, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

const char fl_py_gather_doc[] = PyDoc_STR(
    "gather(tensor_type, sources, indices, outs, length, regions=None)\n--\n\n"
    "Copy rows of tensors on one CUDA device to tensors there, by one kernel for 32 of them on\n"
    "the current stream. Rows are contiguous, and so are the int64 indices, which must be in\n"
    "[0, length): they are not read here. ValueError for sources with fewer rows. regions: a "
    "tuple\n"
    "of the Region of each source, where the sources lie in host memory.");

PyObject *fl_py_gather(PyObject *module, PyObject *args)
{
    fl_py_dlpack dlpack;
    PyObject *tensor_type, *sources, *indices, *outs;
    gather self = {.dlpack = &dlpack, .device = FL_PY_ANYWHERE};
    if (!PyArg_ParseTuple(args, "OO!OO!L|O!:gather", &tensor_type, &PyTuple_Type, &sources,
                          &indices, &PyTuple_Type, &outs, &self.length, &PyTuple_Type,
                          &self.regions))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(sources);
    if (count != PyTuple_GET_SIZE(outs))
        return PyErr_Format(PyExc_ValueError, "gather: sources and outs differ in length");
    if (check_regions(module, &self, count) != 0 || fl_py_dlpack_open(tensor_type, &dlpack) != 0)
        return NULL;
    fl_row_column *columns = fl_alloc(count * (int64_t)sizeof *columns);
    bool is_done = columns != NULL && read_rows(&self, indices) == 0 &&
                   launch(&self, sources, outs, columns) == 0;
    if (columns == NULL) PyErr_NoMemory();
    fl_free(columns);
    fl_py_dlpack_close(&dlpack);
    if (!is_done) return NULL;
    Py_RETURN_NONE;
}

/* ---- images */

/* The address of contiguous elements of this dtype, NULL for none; ValueError unless there are
 * `count`. */
static int find_elements(gather *self, PyObject *tensor, const char *name, fl_dtype dtype,
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
    PyErr_Format(PyExc_ValueError, "gather_images: %s must be contiguous, %lld elements", name,
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
read_images(gather *self, const fl_py_image_plan *plan, PyObject *source, fl_image_batch *out)
{
    fl_tensor view;
    if (view_source(self, source, 0, &view) != 0) return -1;
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
    PyErr_SetString(PyExc_ValueError, "gather_images: the images are not those of the plan");
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
read_result(gather *self, const fl_py_image_plan *plan, PyObject *result, fl_image_batch *out)
{
    fl_tensor view;
    if (view_there(self, result, &view) != 0) return -1;
    int64_t bytes = plan->dtype.bits / 8;
    bool fits = view.ndim == 4 && memcmp(&view.dtype, &plan->dtype, sizeof view.dtype) == 0 &&
                view.shape[0] == self->row_count;
    for (int d = 0; fits && d < 3; d++) fits = view.shape[d + 1] == plan->shape[d];
    if (fits && out->steps > 0) fits = has_no_gaps(&view, plan);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError,
                        "gather_images: out is not a batch of the plan's results");
        return -1;
    }
    out->to = (char *)(uintptr_t)view.data;
    read_steps(&view, plan->form, bytes, out->to_steps);
    return 0;
}

/* What the kernel is told, of arguments that go together. */
static int
read_batch(gather *self, const fl_py_image_plan *plan, PyObject *const *args, fl_image_batch *out)
{
    const fl_image_plan *core = plan->plan;
    int64_t taps_at = fl_image_plan_values_bytes(core);
    fl_image_plan_describe(core, out);
    const int64_t length = out->map_numbers;
    if (length == 0) {
        PyErr_SetString(PyExc_ValueError, "gather_images: the plan computes pixels");
        return -1;
    }
    const void *maps, *table;
    if (read_rows(self, args[1]) != 0 || read_images(self, plan, args[0], out) != 0 ||
        find_elements(self, args[2], "maps", (fl_dtype){kDLInt, 32, 1}, self->row_count * length,
                      &maps) != 0 ||
        find_elements(self, args[3], "values", (fl_dtype){kDLUInt, 8, 1},
                      taps_at + fl_image_plan_taps_bytes(core), &table) != 0)
        return -1;
    out->maps = maps;
    out->table = table;
    if (out->resizes) {
        out->row_taps = (const int32_t *)(const void *)(out->table + taps_at);
        out->column_taps = out->row_taps + fl_image_taps_numbers(&out->rows);
    }
    return read_result(self, plan, args[4], out);
}

const char fl_py_gather_images_doc[] = PyDoc_STR(
    "gather_images(tensor_type, plan, source, indices, length, maps, values, out, "
    "regions=None)\n--\n\n"
    "Make a batch of uint8 images on one CUDA device, by one kernel on the current stream. "
    "indices,\n"
    "length and regions as for gather(); maps: int32, from plan.map(); values: uint8, "
    "plan.values(). What\n"
    "indices and maps hold is not read here.");

static int queue_images(gather *self, const fl_py_image_plan *plan, PyObject *const *args)
{
    fl_err err;
    void *stream;
    fl_image_batch batch;
    if (read_batch(self, plan, args, &batch) != 0 ||
        fl_py_stream(self->dlpack, self->device, &stream) != 0)
        return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_gather_images(self->device, stream, &batch, self->rows, self->row_count, &err);
    if (status == FL_OK) status = note_regions(self, stream, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

PyObject *fl_py_gather_images(PyObject *module, PyObject *args)
{
    const fl_py_state *state = PyModule_GetState(module);
    PyObject *tensor_type, *plan, *given[5];
    fl_py_dlpack dlpack;
    gather self = {.dlpack = &dlpack, .device = FL_PY_ANYWHERE};
    if (!PyArg_ParseTuple(args, "OO!OOLOOO|O!:gather_images", &tensor_type, state->image_plan_type,
                          &plan, &given[0], &given[1], &self.length, &given[2], &given[3],
                          &given[4], &PyTuple_Type, &self.regions) ||
        check_regions(module, &self, 1) != 0 || fl_py_dlpack_open(tensor_type, &dlpack) != 0)
        return NULL;
    int status = queue_images(&self, (fl_py_image_plan *)plan, given);
    fl_py_dlpack_close(&dlpack);
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- windows of tokens */

static bool is_integer(fl_dtype dtype) { return dtype.code == kDLInt || dtype.code == kDLUInt; }

static int read_tokens(gather *self, PyObject *tokens, fl_window_batch *out)
{
    fl_tensor view;
    if (view_there(self, tokens, &view) != 0) return -1;
    out->from = view.data;
    out->from_bytes = view.dtype.bits / 8;
    out->is_signed = view.dtype.code == kDLInt;
    if (view.ndim == 1 && is_integer(view.dtype) && fl_tensor_is_contiguous(&view)) return 0;
    PyErr_SetString(PyExc_ValueError, "gather_windows: tokens must be a contiguous vector of ints");
    return -1;
}

/* Row by row; x and y are alike. */
static int read_windows(gather *self, PyObject *result, fl_tensor *x, fl_tensor *view)
{
    if (view_there(self, result, view) != 0) return -1;
    if (x->data == NULL) *x = *view;
    if (view->ndim == 2 && view->shape[0] == self->row_count && view->shape[1] >= 1 &&
        view->shape[1] <= INT32_MAX && is_integer(view->dtype) && view->dtype.bits >= 16 &&
        view->shape[1] == x->shape[1] && view->dtype.bits == x->dtype.bits &&
        fl_tensor_is_contiguous(view))
        return 0;
    PyErr_SetString(PyExc_ValueError, "gather_windows: outs are not batches of windows");
    return -1;
}

static int
queue_windows(gather *self, PyObject *const *args, PyObject *outs, fl_window_batch *batch)
{
    fl_err err;
    void *stream;
    fl_tensor x = {.data = NULL}, y = {.data = NULL};
    if (read_tokens(self, args[0], batch) != 0 || read_rows(self, args[1]) != 0 ||
        read_windows(self, PyTuple_GET_ITEM(outs, 0), &x, &x) != 0)
        return -1;
    if (PyTuple_GET_SIZE(outs) == 2 && read_windows(self, PyTuple_GET_ITEM(outs, 1), &x, &y) != 0)
        return -1;
    batch->x = (void *)(uintptr_t)x.data;
    batch->y = (void *)(uintptr_t)y.data;
    batch->length = x.shape[1];
    batch->bytes = x.dtype.bits / 8;
    if (batch->bytes < batch->from_bytes) {
        PyErr_SetString(PyExc_ValueError, "gather_windows: tokens are wider than outs");
        return -1;
    }
    if (fl_py_stream(self->dlpack, self->device, &stream) != 0) return -1;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_cuda_gather_windows(self->device, stream, batch, self->rows, self->row_count, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) return 0;
    fl_py_raise(&err, NULL);
    return -1;
}

const char fl_py_gather_windows_doc[] = PyDoc_STR(
    "gather_windows(tensor_type, tokens, starts, outs, shift)\n--\n\n"
    "Make a batch of windows of tokens on one CUDA device, by one kernel on the current stream.\n"
    "outs: x, or x and y, [n, length], of ints that are not narrower than the tokens. Row i of x\n"
    "begins at token starts[i], and of y at starts[i] + shift, 0 or 1; all of their tokens must\n"
    "be there: starts, an int64 vector, are not read here.");

PyObject *fl_py_gather_windows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor_type, *given[2], *outs;
    fl_py_dlpack dlpack;
    fl_window_batch batch = {0};
    int shift;
    gather self = {.dlpack = &dlpack, .device = FL_PY_ANYWHERE};
    if (!PyArg_ParseTuple(args, "OOOO!i:gather_windows", &tensor_type, &given[0], &given[1],
                          &PyTuple_Type, &outs, &shift))
        return NULL;
    if (PyTuple_GET_SIZE(outs) != 1 && PyTuple_GET_SIZE(outs) != 2)
        return PyErr_Format(PyExc_ValueError, "gather_windows: outs must be x, or x and y");
    if (shift != 0 && shift != 1)
        return PyErr_Format(PyExc_ValueError, "gather_windows: shift must be 0 or 1");
    if (fl_py_dlpack_open(tensor_type, &dlpack) != 0) return NULL;
    batch.shift = shift;
    int status = queue_windows(&self, given, outs, &batch);
    fl_py_dlpack_close(&dlpack);
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}
