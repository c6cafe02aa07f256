/* fl_py_gather_images: makes the images of fields with a plan. */
#include "fl_py_gather.h"

#include "fl_cuda.h"
#include "fl_py_error.h"

#include <string.h>

/* Finds the address of contiguous elements of this dtype, NULL if `count` is 0; ValueError unless
 * there are exactly `count` elements. */
static int find_elements(const fl_py_gather *self, PyObject *tensor, const char *name,
                         fl_dtype dtype, int64_t count, const void **out)
{
    fl_tensor view;
    if (fl_py_gather_view(self, tensor, &view) != 0) return -1;
    *out = view.data;
    int64_t found = 1;
    for (int d = 0; d < view.ndim; d++) found *= view.shape[d];
    if (memcmp(&view.dtype, &dtype, sizeof dtype) == 0 && found == count &&
        fl_tensor_is_contiguous(&view))
        return 0;
    return FL_PY_FAIL(PyExc_ValueError, "gather: %s must be contiguous, %lld elements", name,
                      (long long)count);
}

/* Reads the steps between images, channels, rows and columns; `layout` is the layout of each
 * image. */
static void read_steps(const fl_tensor *view, fl_image_layout layout, int64_t unit, int64_t *steps)
{
    static const int axis[FL_IMAGE_LAYOUTS][4] = {[FL_CHW] = {0, 1, 2, 3}, [FL_HWC] = {0, 3, 1, 2}};
    for (int d = 0; d < 4; d++) steps[d] = view->stride[axis[layout][d]] / unit;
}

/* A batch, and the images that it is made of: rows of the source, or all that have been staged. */
typedef struct images {
    fl_image_batch batch;
    const int64_t *rows; /* NULL: all */
} images;

/* staging: the tensor of a staged source, or NULL. */
static int read_images(const fl_py_gather *self, const fl_py_gather_source *source,
                       PyObject *staging, fl_image_batch *out)
{
    fl_tensor view;
    const fl_py_image_plan *plan = source->plan;
    if (staging != NULL ? fl_py_gather_view(self, staging, &view) != 0
                        : fl_py_gather_view_source(self, source, &view) != 0)
        return -1;
    bool is_chw = plan->layout == FL_CHW;
    fl_image_size in = fl_image_plan_in(plan->plan);
    int32_t channels = fl_image_plan_channels(plan->plan);
    if (view.ndim == 4 && view.dtype.code == kDLUInt && view.dtype.bits == 8 &&
        view.shape[is_chw ? 1 : 3] == channels && view.shape[is_chw ? 2 : 1] == in.height &&
        view.shape[is_chw ? 3 : 2] == in.width) {
        out->from = (const uint8_t *)view.data;
        read_steps(&view, plan->layout, 1, out->from_steps);
        return 0;
    }
    return FL_PY_FAIL(PyExc_ValueError,
                      "gather: the images must have the dtype and shape of the plan");
}

/* Returns true if the results lie one after the next, each as the plan makes it. */
static bool has_no_gaps(const fl_tensor *view, const fl_py_image_plan *plan)
{
    const int64_t bytes = plan->dtype.bits / 8, each = fl_image_plan_out_bytes(plan->plan);
    bool is_dense = view->shape[0] <= 1 || view->stride[0] == each;
    for (int d = 0; d < 3; d++)
        is_dense &= plan->shape[d] == 1 || view->stride[d + 1] == plan->stride[d] * bytes;
    return is_dense;
}

static int read_result(const fl_py_gather *self, const fl_py_image_plan *plan, PyObject *result,
                       fl_image_batch *out)
{
    fl_tensor view;
    if (fl_py_gather_view(self, result, &view) != 0) return -1;
    int64_t bytes = plan->dtype.bits / 8;
    bool fits = view.ndim == 4 && memcmp(&view.dtype, &plan->dtype, sizeof view.dtype) == 0 &&
                view.shape[0] == self->row_count;
    for (int d = 0; fits && d < 3; d++) fits = view.shape[d + 1] == plan->shape[d];
    if (fits && out->steps > 0) fits = has_no_gaps(&view, plan);
    if (!fits)
        return FL_PY_FAIL(PyExc_ValueError, "gather: out must be a batch of the plan's results");
    out->to = (char *)(uintptr_t)view.data;
    read_steps(&view, plan->form, bytes, out->to_steps);
    return 0;
}

/* Returns the numbers from one map to the next: maps of staged images have spans. */
static int32_t map_step(const fl_py_gather_source *source)
{
    return fl_image_plan_map_length(source->plan->plan) + (fl_py_gather_is_staged(source) ? 2 : 0);
}

/* Finds the addresses of a plan's maps and values. ValueError for a plan without maps. */
static int find_addresses(const fl_py_gather *self, const fl_py_gather_source *source,
                          PyObject *map_tensor, const void **maps, const void **values)
{
    const fl_image_plan *plan = source->plan->plan;
    const int64_t length = fl_image_plan_map_length(plan);
    const int64_t bytes = fl_image_plan_all_bytes(plan);
    if (length == 0 || self->maps.tensors == NULL)
        return FL_PY_FAIL(PyExc_ValueError, "gather: the plan computes pixels");
    return find_elements(self, map_tensor, "maps", (fl_dtype){kDLInt, 32, 1},
                         self->maps.count * map_step(source), maps) == 0
               ? find_elements(self, source->values, "values", (fl_dtype){kDLUInt, 8, 1}, bytes,
                               values)
               : -1;
}

static PyObject *map_tensor_at(const fl_py_gather *self, Py_ssize_t i)
{
    return self->maps.tensors != NULL ? PyList_GET_ITEM(self->maps.tensors, i) : NULL;
}

static int find_maps(const fl_py_gather *self, fl_map_batch *out)
{
    Py_ssize_t next = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const fl_py_gather_source *source = &self->sources[i];
        const void *maps, *values;
        if (source->plan == NULL) continue;
        if (find_addresses(self, source, map_tensor_at(self, next++), &maps, &values) != 0)
            return -1;
        fl_image_plan_describe_maps(source->plan->plan, out);
        out->parts.numbers = map_step(source);
        out->has_spans = fl_py_gather_is_staged(source);
        out->epoch = self->maps.epoch;
        out->ops = values;
        out->rows = self->rows;
        out->images = self->maps.count;
        out->maps = (int32_t *)(uintptr_t)maps;
        out++;
    }
    return 0;
}

/* Fills in the addresses of a plan's elements and taps, and of the batch's maps. */
static int read_values(const fl_py_gather *self, const fl_py_gather_source *source,
                       PyObject *map_tensor, fl_image_batch *out)
{
    const fl_image_plan *plan = source->plan->plan;
    const void *maps, *values;
    if (find_addresses(self, source, map_tensor, &maps, &values) != 0) return -1;
    out->map_numbers = map_step(source);
    out->maps = (int32_t *)(uintptr_t)maps + (self->first - self->maps.first) * out->map_numbers;
    fl_image_batch_set_tables(out, (const char *)values + fl_image_plan_ops_bytes(plan));
    return 0;
}

/* Fills in the arguments of the kernels for a source. */
static int
read_batch(const fl_py_gather *self, const fl_py_gather_source *source, PyObject *map_tensor,
           PyObject *staging, PyObject *result, fl_image_batch *out)
{
    fl_image_plan_describe(source->plan->plan, out);
    if (read_values(self, source, map_tensor, out) != 0 ||
        read_images(self, source, staging, out) != 0)
        return -1;
    return read_result(self, source->plan, result, out);
}

static int launch(const fl_py_gather *self, void *stream, const void *what, fl_err *err)
{
    const images *of = what;
    return fl_cuda_gather_images(self->device, stream, &of->batch, of->rows, self->row_count, err);
}

/* Fills in the arguments of all kernels; returns their number, or -1. */
static Py_ssize_t read_all(const fl_py_gather *self, PyObject *outs, images *out)
{
    Py_ssize_t next = 0, next_staging = self->count;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const fl_py_gather_source *source = &self->sources[i];
        if (source->plan == NULL) continue;
        bool is_staged = fl_py_gather_is_staged(source);
        PyObject *staging = is_staged ? PyList_GET_ITEM(outs, next_staging++) : NULL;
        const int64_t *rows = self->here != NULL ? self->kept : self->rows;
        out[next].rows = is_staged ? NULL : rows;
        if (read_batch(self, source, map_tensor_at(self, next), staging, PyList_GET_ITEM(outs, i),
                       &out[next].batch) != 0)
            return -1;
        next++;
    }
    return next;
}

/* Nothing is queued unless all arguments are right. */
static int run(const fl_py_gather *self, PyObject *outs)
{
    images *each = fl_alloc(self->count * (int64_t)sizeof *each);
    if (each == NULL) PyErr_NoMemory();
    Py_ssize_t count = each != NULL ? read_all(self, outs, each) : -1;
    int status = count >= 0 ? fl_py_gather_rows.run(self, outs) : -1;
    for (Py_ssize_t i = 0; status == 0 && i < count; i++)
        status = fl_py_gather_queue(self, launch, &each[i]);
    fl_free(each);
    return status;
}

const fl_py_gather_ops fl_py_gather_images = {.run = run, .find_maps = find_maps};
