/* fl_py_image_plan: see fl_py_image_plan.h. */
#include "fl_py_image_plan.h"

#include "fl_py.h"
#include "fl_cpu_image.h"
#include "fl_image_host_part.h"
#include "fl_py_error.h"
#include "fl_py_image_cache.h"
#include "fl_py_image_op.h"
#include "fl_py_image_steps.h"
#include "fl_py_jpeg.h"
#include "fl_py_put.h"
#include "fl_py_section.h"

#include <string.h>

/* The users' names of the output types, and the core's dtypes. */
static const struct {
    const char *name;
    fl_dtype dtype;
} types[FL_IMAGE_TYPES] = {[FL_IMAGE_U8] = {"uint8", {kDLUInt, 8, 1}},
                           [FL_IMAGE_F16] = {"float16", {kDLFloat, 16, 1}},
                           [FL_IMAGE_BF16] = {"bfloat16", {kDLBfloat, 16, 1}},
                           [FL_IMAGE_F32] = {"float32", {kDLFloat, 32, 1}}};

static int find_type(const char *name, fl_image_type *out)
{
    for (int t = 0; t < FL_IMAGE_TYPES; t++) {
        *out = (fl_image_type)t;
        if (strcmp(types[t].name, name) == 0) return 0;
    }
    return FL_PY_FAIL(PyExc_ValueError,
                      "ImagePlan: out_dtype must be uint8, float16, bfloat16 or float32, got %s",
                      name);
}

static int find_layout(const char *what, const char *name, fl_image_layout *out)
{
    *out = name[0] == 'C' ? FL_CHW : FL_HWC;
    if (strcmp(name, "CHW") == 0 || strcmp(name, "HWC") == 0) return 0;
    return FL_PY_FAIL(PyExc_ValueError, "ImagePlan: %s must be CHW or HWC, got %s", what, name);
}

static int read_ops(PyObject *tuple, fl_image_op *ops)
{
    if (PyTuple_GET_SIZE(tuple) > FL_MAX_IMAGE_OPS)
        return FL_PY_FAIL(
            PyExc_ValueError,
            "ImagePlan: a plan must have at most %d operations, got %zd (leave some out)",
            FL_MAX_IMAGE_OPS, PyTuple_GET_SIZE(tuple));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (fl_py_image_op_read(PyTuple_GET_ITEM(tuple, i), &ops[i]) != 0) return -1;
    return 0;
}

/* Reads scale, mean and std of each channel into `out`. */
static int read_linear(PyObject *linear, int32_t channels, float *out)
{
    if (!PyTuple_Check(linear) || PyTuple_GET_SIZE(linear) != 3 * channels)
        return FL_PY_FAIL(PyExc_ValueError,
                          "ImagePlan: linear must be a tuple of 3 numbers for each of %d channels",
                          channels);
    for (Py_ssize_t i = 0; i < 3 * channels; i++) {
        out[i] = (float)PyFloat_AsDouble(PyTuple_GET_ITEM(linear, i));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

static int check_tables(PyObject *tables, const fl_image_config *config, int32_t channels)
{
    Py_ssize_t bytes = channels * 256 * (types[config->type].dtype.bits / 8);
    bool is_none = tables == Py_None;
    if (config->type == FL_IMAGE_U8 ? is_none
                                    : PyBytes_Check(tables) && PyBytes_GET_SIZE(tables) == bytes)
        return 0;
    return FL_PY_FAIL(PyExc_ValueError,
                      "ImagePlan: tables must be None for uint8, or else %zd bytes", bytes);
}

/* Sets the shape and strides of results. is_permuted: the dimensions are CHW, and the memory is
 * HWC. */
static void set_shape(fl_py_image_plan *self, fl_image_layout memory, bool is_permuted)
{
    fl_image_size out = fl_image_plan_out(self->plan);
    int64_t channels = fl_image_plan_out_channels(self->plan);
    int64_t dims[3] = {out.height, out.width, channels};
    int64_t steps[3] = {out.width * channels, channels, 1};
    if (memory == FL_CHW) {
        steps[0] = out.width;
        steps[1] = 1;
        steps[2] = (int64_t)out.height * out.width;
    }
    bool is_chw = memory == FL_CHW || is_permuted;
    self->form = is_chw ? FL_CHW : FL_HWC;
    for (int d = 0; d < 3; d++) {
        int from = is_chw ? (d + 2) % 3 : d;
        self->shape[d] = dims[from];
        self->stride[d] = steps[from];
    }
}

/* Opens the host's part, or notes why there is none: 0, or -1 and an exception. */
static int open_host_part(fl_py_image_plan *self, const fl_image_config *config)
{
    fl_err err = {0};
    int status = fl_image_host_part_open(config, &self->host_part, &err);
    self->why_whole = PyUnicode_FromString(status == FL_EINVAL ? err.text : "");
    if (status == FL_ENOMEM) fl_py_raise(&err, NULL);
    return status == FL_ENOMEM || self->why_whole == NULL ? -1 : 0;
}

/* Opens the plan of `config`, after adding the operations, tables and numbers of the Python
 * objects. */
static int open_plan(fl_py_image_plan *self, fl_image_config *config, PyObject *ops,
                     PyObject *tables, PyObject *linear)
{
    fl_image_op list[FL_MAX_IMAGE_OPS];
    fl_image_trace trace[FL_MAX_IMAGE_OPS + 1];
    float numbers[3 * FL_MAX_CHANNELS];
    fl_err err = {0};
    if (config->channels < 1 || config->channels > FL_MAX_CHANNELS)
        return FL_PY_FAIL(PyExc_ValueError,
                          "ImagePlan: the channels of images must be 1 to %d, got %d",
                          FL_MAX_CHANNELS, config->channels);
    if (read_ops(ops, list) != 0) return -1;
    config->ops = list;
    config->count = (int32_t)PyTuple_GET_SIZE(ops);
    if (fl_py_check(fl_image_ops_trace(config, trace, &err), &err, NULL) != 0) return -1;
    int32_t channels = trace[config->count].channels; /* channels of results */
    if (check_tables(tables, config, channels) != 0) return -1;
    if (linear != Py_None && read_linear(linear, channels, numbers) != 0) return -1;
    config->tables = tables != Py_None ? PyBytes_AS_STRING(tables) : NULL;
    config->linear = linear != Py_None ? numbers : NULL;
    config->image_ops = fl_cpu_image_ops_find();
    int status = fl_image_plan_open(config, &self->plan, &err);
    return fl_py_check(status, &err, NULL) == 0 ? open_host_part(self, config) : -1;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"ops",        "height", "width",  "channels", "layout", "out_dtype",
                               "out_layout", "tables", "linear", "seed",     NULL};
    PyObject *ops, *tables, *linear, *seed;
    const char *layout, *out_dtype, *out_layout;
    fl_image_config config = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!$iiisssOOO!:ImagePlan", keywords,
                                     &PyTuple_Type, &ops, &config.in.height, &config.in.width,
                                     &config.channels, &layout, &out_dtype, &out_layout, &tables,
                                     &linear, &PyLong_Type, &seed))
        return NULL;
    config.seed = PyLong_AsUnsignedLongLong(seed);
    if (PyErr_Occurred()) return NULL;
    fl_py_image_plan *self = (fl_py_image_plan *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    bool is_permuted = strcmp(out_layout, "channels_last") == 0;
    if (find_type(out_dtype, &config.type) != 0 ||
        find_layout("layout", layout, &self->layout) != 0 ||
        find_layout("out_layout", is_permuted ? "HWC" : out_layout, &config.layout) != 0 ||
        fl_py_dlpack_open_torch(&self->dlpack) != 0 ||
        open_plan(self, &config, ops, tables, linear) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->dtype = types[config.type].dtype;
    self->memory = config.layout;
    self->tables = Py_NewRef(tables);
    set_shape(self, config.layout, is_permuted);
    return (PyObject *)self;
}

static void plan_dealloc(fl_py_image_plan *self)
{
    fl_image_plan_close(self->plan);
    fl_image_plan_close(self->host_part);
    Py_XDECREF(self->why_whole);
    Py_XDECREF(self->tables);
    Py_XDECREF(self->values);
    fl_py_dlpack_close(&self->dlpack);
    fl_py_free(self);
}

/* Makes the key that decides the random numbers; ValueError if a number does not fit the key. */
static int make_key(const fl_py_image_plan *self, PyObject *const *numbers, fl_sample_key *out)
{
    static const struct {
        const char *name;
        long long most;
    } parts[] = {{"index", INT64_MAX}, {"epoch", UINT32_MAX}, {"view", UINT8_MAX}};
    long long values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = PyLong_AsLongLong(numbers[i]);
        if (values[i] >= 0 && values[i] <= parts[i].most) continue;
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%s must be in [0, %lld], got %R", parts[i].name,
                         parts[i].most, numbers[i]);
        return -1;
    }
    *out = (fl_sample_key){.seed = fl_image_plan_seed(self->plan),
                           .index = values[0],
                           .epoch = (uint32_t)values[1],
                           .view = (uint8_t)values[2]};
    return 0;
}

PyDoc_STRVAR(draw_doc,
             "draw(index, epoch, view, height, width)\n--\n\n"
             "Return the parameters of each operation for an image of this size, as a list of\n"
             "dicts.");

static PyObject *plan_draw(fl_py_image_plan *self, PyObject *args)
{
    PyObject *numbers[3];
    fl_image_size size;
    fl_sample_key key;
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_err err = {0};
    if (!PyArg_ParseTuple(args, "OOOii:draw", &numbers[0], &numbers[1], &numbers[2], &size.height,
                          &size.width) ||
        make_key(self, numbers, &key) != 0)
        return NULL;
    if (fl_image_plan_draw(self->plan, &key, size, params, &err) != FL_OK)
        return fl_py_raise(&err, NULL);
    int32_t count = fl_image_plan_count(self->plan);
    PyObject *list = PyList_New(count);
    for (int32_t i = 0; list != NULL && i < count; i++)
        fl_py_put(&list, i, fl_py_image_params(&params[i]));
    return list;
}

static bool is_dtype(fl_dtype a, fl_dtype b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/* Returns true, and fills *out, for an encoded image that the plan takes. */
static bool read_encoded(const fl_py_image_plan *self, PyObject *image, fl_image_source *out)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)(uintptr_t)self));
    if (self->layout != FL_HWC || fl_image_plan_channels(self->plan) != 3) return false;
    if (Py_IS_TYPE(image, state->ycc_image_type)) {
        const fl_ycc *ycc = &((fl_py_ycc_image *)image)->image;
        *out = (fl_image_source){.size = {ycc->height, ycc->width}, .ycc = ycc};
        return true;
    }
    if (!Py_IS_TYPE(image, state->jpeg_image_type)) return false;
    const fl_jpeg *jpeg = &((fl_py_jpeg_image *)image)->image;
    *out = (fl_image_source){.size = {jpeg->height, jpeg->width}, .jpeg = jpeg};
    return true;
}

bool fl_py_image_plan_is_encoded(const fl_py_image_plan *self, PyObject *image)
{
    fl_image_source source;
    return read_encoded(self, image, &source);
}

int fl_py_image_plan_source(const fl_py_image_plan *self, PyObject *image, fl_image_source *out)
{
    fl_tensor view;
    if (read_encoded(self, image, out)) return 0;
    if (fl_py_view(&self->dlpack, image, &view) != 0) return -1;
    bool is_chw = self->layout == FL_CHW;
    int y = is_chw ? 1 : 0, x = is_chw ? 2 : 1, c = is_chw ? 0 : 2;
    if (view.ndim != 3 || !is_dtype(view.dtype, types[FL_IMAGE_U8].dtype) ||
        view.shape[c] != fl_image_plan_channels(self->plan) || view.shape[y] > INT32_MAX ||
        view.shape[x] > INT32_MAX)
        return FL_PY_FAIL(PyExc_ValueError, "apply: the image must be uint8, %s, with %d channels",
                          is_chw ? "CHW" : "HWC", fl_image_plan_channels(self->plan));
    *out = (fl_image_source){.data = (const uint8_t *)view.data,
                             .stride_y = view.stride[y],
                             .stride_x = view.stride[x],
                             .stride_c = view.stride[c],
                             .size = {(int32_t)view.shape[y], (int32_t)view.shape[x]}};
    return 0;
}

char *fl_py_image_plan_memory(const fl_py_image_plan *self, PyObject *out)
{
    fl_tensor view;
    if (fl_py_view(&self->dlpack, out, &view) != 0) return NULL;
    bool fits = view.ndim == 3 && is_dtype(view.dtype, self->dtype);
    for (int d = 0; fits && d < 3; d++)
        fits = view.shape[d] == self->shape[d] &&
               (view.shape[d] == 1 || view.stride[d] == self->stride[d] * (self->dtype.bits / 8));
    if (fits) return (char *)(uintptr_t)view.data;
    PyErr_SetString(PyExc_ValueError,
                    "apply: out must have the dtype, shape and strides of the plan's results");
    return NULL;
}

fl_transfer_cast fl_py_image_plan_cast(const fl_py_image_plan *self, bool is_whole)
{
    int32_t channels = fl_image_plan_out_channels(self->plan), bytes = self->dtype.bits / 8;
    int64_t elements = fl_image_plan_out_bytes(self->plan) / bytes;
    return (fl_transfer_cast){.kind = is_whole ? FL_CAST_IMAGES : FL_CAST_LOOK_UP,
                              .count = elements,
                              .plane = self->memory == FL_HWC ? 1 : elements / channels,
                              .channels = channels,
                              .bytes = bytes,
                              .tables =
                                  self->tables != Py_None ? PyBytes_AS_STRING(self->tables) : NULL};
}

PyDoc_STRVAR(apply_doc,
             "apply(image, out, index, epoch, view)\n--\n\n"
             "Run the plan on one image, and write the result to `out`. Releases the\n"
             "interpreter lock. Raises TypeError or ValueError if the image or `out` does not\n"
             "fit the plan.");

static PyObject *plan_apply(fl_py_image_plan *self, PyObject *args)
{
    PyObject *image, *out, *numbers[3];
    fl_image_source source;
    fl_sample_key key;
    fl_err err = {0};
    if (!PyArg_ParseTuple(args, "OOOOO:apply", &image, &out, &numbers[0], &numbers[1],
                          &numbers[2]) ||
        make_key(self, numbers, &key) != 0 || fl_py_image_plan_source(self, image, &source) != 0)
        return NULL;
    char *data = fl_py_image_plan_memory(self, out);
    if (data == NULL) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    fl_image_params params[FL_MAX_IMAGE_OPS];
    status = fl_image_plan_draw(self->plan, &key, source.size, params, &err);
    if (status == FL_OK) status = fl_image_plan_apply(self->plan, params, &source, data, &err);
    Py_END_ALLOW_THREADS
    if (status != FL_OK) return fl_py_raise(&err, NULL);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(apply_drawn_doc,
             "apply_drawn(image, out, drawn, steps, border)\n--\n\n"
             "Run the plan on one image with what the caller has drawn, then the steps, and\n"
             "write the result to `out`. drawn: for each operation (top, left, height, width)\n"
             "of a RandomResizedCrop, or whether a flip is applied. steps: a tuple of (name,\n"
             "interpolation, numbers...) with the bits of PIL images. border: three numbers\n"
             "outside of images. Releases the interpreter lock. Raises TypeError or ValueError.");

static PyObject *plan_apply_drawn(fl_py_image_plan *self, PyObject *args)
{
    PyObject *image, *out, *drawn, *list, *border;
    fl_image_source source;
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_image_steps steps;
    fl_err err = {0};
    int status;
    if (!PyArg_ParseTuple(args, "OOOOO:apply_drawn", &image, &out, &drawn, &list, &border) ||
        fl_py_image_plan_source(self, image, &source) != 0 ||
        fl_py_image_drawn_read(self->plan, drawn, source.size, params) != 0 ||
        fl_py_image_steps_read(list, border, fl_image_plan_out(self->plan), &steps) != 0)
        return NULL;
    char *data = fl_py_image_plan_memory(self, out);
    if (data == NULL) return NULL;
    if (steps.count > 0 && fl_image_plan_out_channels(self->plan) != 3)
        return PyErr_Format(PyExc_ValueError, "apply_drawn: steps take images of 3 channels");
    Py_BEGIN_ALLOW_THREADS
    status = fl_image_plan_apply_steps(self->plan, params, &steps, &source, data, &err);
    Py_END_ALLOW_THREADS
    if (status != FL_OK) return fl_py_raise(&err, NULL);
    Py_RETURN_NONE;
}

/* Describes a contiguous CPU tensor of integers with this many bits and dimensions; ValueError if
 * the tensor is different. */
static int view_integers(const fl_py_image_plan *self, PyObject *tensor, uint8_t bits, int32_t ndim,
                         fl_tensor *out)
{
    if (fl_py_view(&self->dlpack, tensor, out) != 0) return -1;
    if (is_dtype(out->dtype, (fl_dtype){kDLInt, bits, 1}) && out->ndim == ndim &&
        fl_tensor_is_contiguous(out))
        return 0;
    return FL_PY_FAIL(
        PyExc_ValueError,
        "map: rows must be contiguous int64, and out contiguous int32 [rows, map_length]");
}

PyDoc_STRVAR(map_doc,
             "map(rows, out, epoch)\n--\n\n"
             "Write the maps that a kernel of _core.Gatherer makes to `out`, int32 [rows,\n"
             "map_length]: for each result, the positions of its pixels in the source image.\n"
             "rows: int64, not negative. Releases the interpreter lock.");

static PyObject *plan_map(fl_py_image_plan *self, PyObject *args)
{
    PyObject *rows, *out;
    unsigned long epoch;
    fl_tensor numbers, maps;
    fl_err err = {0};
    int32_t length = fl_image_plan_map_length(self->plan);
    if (!PyArg_ParseTuple(args, "OOk:map", &rows, &out, &epoch)) return NULL;
    if (length == 0) return PyErr_Format(PyExc_ValueError, "map: the plan computes pixels");
    if (view_integers(self, rows, 64, 1, &numbers) != 0 ||
        view_integers(self, out, 32, 2, &maps) != 0)
        return NULL;
    if (maps.shape[0] != numbers.shape[0] || maps.shape[1] != length)
        return PyErr_Format(PyExc_ValueError, "map: out must have the shape (%lld, %d)",
                            (long long)numbers.shape[0], (int)length);
    const int64_t *row = (const int64_t *)numbers.data;
    int32_t *map = (int32_t *)(uintptr_t)maps.data;
    int status = FL_OK;
    Py_BEGIN_ALLOW_THREADS
    fl_image_params params[FL_MAX_IMAGE_OPS];
    fl_sample_key key = {.seed = fl_image_plan_seed(self->plan), .epoch = (uint32_t)epoch};
    for (int64_t i = 0; status == FL_OK && i < numbers.shape[0]; i++, map += length) {
        key.index = row[i];
        status = fl_image_plan_draw(self->plan, &key, fl_image_plan_in(self->plan), params, &err);
        if (status == FL_OK) fl_image_plan_map(self->plan, params, map);
    }
    Py_END_ALLOW_THREADS
    if (status != FL_OK) return fl_py_raise(&err, NULL);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(values_doc,
             "values()\n--\n\n"
             "Return the operations, the elements that results consist of, and the weights of a\n"
             "resize, for _core.Gatherer: a bytearray, the same object for all calls.");

static PyObject *plan_values(fl_py_image_plan *self, PyObject *Py_UNUSED(ignored))
{
    fl_err err;
    if (self->values != NULL) return Py_NewRef(self->values);
    if (fl_image_plan_map_length(self->plan) == 0)
        return PyErr_Format(PyExc_ValueError, "values: the plan computes pixels");
    PyObject *made = PyByteArray_FromStringAndSize(NULL, fl_image_plan_all_bytes(self->plan));
    if (made == NULL) return NULL;
    char *at = PyByteArray_AS_STRING(made);
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = fl_image_plan_write_all(self->plan, at, &err);
    Py_END_ALLOW_THREADS
    if (status == FL_OK) {
        /* A different thread may also have made the values. */
        Py_XSETREF(self->values, Py_NewRef(made));
        return made;
    }
    Py_DECREF(made);
    return fl_py_raise(&err, NULL);
}

FL_PY_METHOD_IN_SECTION(plan_values, fl_py_image_plan, self)

static PyObject *plan_map_length(fl_py_image_plan *self, void *Py_UNUSED(ignored))
{
    return PyLong_FromLong(fl_image_plan_map_length(self->plan));
}

static PyObject *plan_out_dtype(fl_py_image_plan *self, void *Py_UNUSED(ignored))
{
    int t = 0;
    while (!is_dtype(types[t].dtype, self->dtype)) t++;
    return PyUnicode_FromString(types[t].name);
}

static PyObject *plan_out_strides(fl_py_image_plan *self, void *Py_UNUSED(ignored))
{
    return Py_BuildValue("(LLL)", (long long)self->stride[0], (long long)self->stride[1],
                         (long long)self->stride[2]);
}

static PyObject *plan_out_shape(fl_py_image_plan *self, void *Py_UNUSED(ignored))
{
    return Py_BuildValue("(LLL)", (long long)self->shape[0], (long long)self->shape[1],
                         (long long)self->shape[2]);
}

static PyObject *plan_why_whole(fl_py_image_plan *self, void *Py_UNUSED(ignored))
{
    return Py_NewRef(self->why_whole);
}

static PyGetSetDef plan_getset[] = {
    {"why_whole", (getter)plan_why_whole, NULL,
     "why a device cannot do the last step, the lookup in tables; '': it can", NULL},
    {"map_length", (getter)plan_map_length, NULL,
     "the count of numbers that map() writes for a row; 0: the plan has no map and\n"
     "computes pixels",
     NULL},
    {"out_dtype", (getter)plan_out_dtype, NULL, "the dtype of a result", NULL},
    {"out_shape", (getter)plan_out_shape, NULL, "the shape of a result", NULL},
    {"out_strides", (getter)plan_out_strides, NULL, "the strides of a result, in elements", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef plan_methods[] = {
    {"draw", (PyCFunction)plan_draw, METH_VARARGS, draw_doc},
    {"apply", (PyCFunction)plan_apply, METH_VARARGS, apply_doc},
    {"apply_drawn", (PyCFunction)plan_apply_drawn, METH_VARARGS, apply_drawn_doc},
    {"map", (PyCFunction)plan_map, METH_VARARGS, map_doc},
    {"values", (PyCFunction)plan_values_in_section, METH_NOARGS, values_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    plan_doc,
    "ImagePlan(ops, *, height, width, channels, layout, out_dtype, out_layout, tables, linear,\n"
    "          seed)\n--\n\n"
    "Operations on uint8 images, compiled to one pass.\n\n"
    "ops: dicts with the fields of fl_image_op. height, width: the size of every\n"
    "image, or 0 if sizes differ. layout: CHW or HWC. out_layout: CHW, HWC or\n"
    "channels_last. tables: the result for each value, [channels][256] elements of\n"
    "out_dtype; None for uint8. linear: the scale, mean and std of each channel in\n"
    "turn, if the tables follow from these numbers; otherwise None.");

static PyType_Slot plan_slots[] = {{Py_tp_doc, (void *)plan_doc}, {Py_tp_new, plan_new},
                                   {Py_tp_dealloc, plan_dealloc}, {Py_tp_methods, plan_methods},
                                   {Py_tp_getset, plan_getset},   {0, NULL}};

PyType_Spec fl_py_image_plan_spec = FL_PY_SPEC("ImagePlan", fl_py_image_plan, 0, plan_slots);
