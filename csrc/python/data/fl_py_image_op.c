/* fl_py_image_op: see fl_py_image_op.h. fastloop/data has checked the values; this file only checks
 * that the values fit their C types. */
#include "fl_py_image_op.h"

#include "fl_blur.h"
#include "fl_op.h"
#include "fl_op_policy.h"
#include "fl_py_error.h"
#include "fl_py_put.h"

#include <string.h>

/* Looks up the value of a key, borrowed; NULL: the key is missing, or an exception is set. */
static PyObject *look_up(PyObject *dict, const char *key)
{
    PyObject *name = PyUnicode_FromString(key);
    if (name == NULL) return NULL;
    PyObject *value = PyDict_GetItemWithError(dict, name);
    Py_DECREF(name);
    return value;
}

static int fail_value(const char *key, PyObject *value)
{
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "ImagePlan: an operation does not take %s=%R", key, value);
    return -1;
}

static int read_int(PyObject *dict, const char *key, int32_t most, int32_t *out)
{
    PyObject *value = look_up(dict, key);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    long long number = PyLong_AsLongLong(value);
    if (number < 0 || number > most) return fail_value(key, value);
    *out = (int32_t)number;
    return 0;
}

/* Reads a tuple of `count` numbers: integers into `ints`, or floats into `floats`. */
static int
read_numbers(PyObject *dict, const char *key, Py_ssize_t count, int32_t *ints, double *floats)
{
    PyObject *value = look_up(dict, key);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != count) return fail_value(key, value);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(value, i);
        long long number = ints != NULL ? PyLong_AsLongLong(item) : 0;
        if (number < INT32_MIN || number > INT32_MAX) return fail_value(key, value);
        if (ints != NULL)
            ints[i] = (int32_t)number;
        else
            floats[i] = PyFloat_AsDouble(item);
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

static int read_bytes(PyObject *dict, const char *key, Py_ssize_t most, uint8_t *out)
{
    PyObject *value = look_up(dict, key);
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    if (!PyBytes_Check(value) || PyBytes_GET_SIZE(value) > most) return fail_value(key, value);
    memcpy(out, PyBytes_AS_STRING(value), (size_t)PyBytes_GET_SIZE(value));
    return 0;
}

static int read_shape(PyObject *dict, fl_image_op *out)
{
    int32_t size[2] = {0, 0}, needed = 0;
    if (read_numbers(dict, "size", 2, size, NULL) != 0 ||
        read_int(dict, "max_size", INT32_MAX, &out->max_size) != 0 ||
        read_numbers(dict, "padding", 4, out->padding, NULL) != 0 ||
        read_int(dict, "pad_if_needed", 1, &needed) != 0)
        return -1;
    out->size = (fl_image_size){size[0], size[1]};
    out->pad_if_needed = needed != 0;
    return 0;
}

/* Reads `number`, the arguments that only this kind of operation has. Missing numbers are 0. */
static int read_own(PyObject *dict, fl_image_op *out)
{
    PyObject *value = look_up(dict, "number");
    if (value == NULL) return PyErr_Occurred() ? -1 : 0;
    Py_ssize_t count = PyTuple_Check(value) ? PyTuple_GET_SIZE(value) : -1;
    if (count > FL_OP_NUMBERS) return fail_value("number", value);
    return read_numbers(dict, "number", count, NULL, out->number);
}

static int read_op(PyObject *dict, fl_image_op *out)
{
    int32_t kind = 0, occurrence = 0, arithmetic = 0, version = 0, interpolation = 0;
    int32_t mode = 0;
    if (read_int(dict, "kind", FL_OP_KINDS - 1, &kind) != 0 ||
        read_int(dict, "occurrence", UINT8_MAX, &occurrence) != 0 ||
        read_int(dict, "arithmetic", FL_IMAGE_ARITHMETICS - 1, &arithmetic) != 0 ||
        read_int(dict, "span", FL_MAX_IMAGE_OPS, &out->span) != 0 ||
        read_int(dict, "interpolation", FL_INTERPOLATIONS - 1, &interpolation) != 0 ||
        read_int(dict, "padding_mode", FL_PADDING_MODES - 1, &mode) != 0 ||
        read_int(dict, "is_v1", 1, &version) != 0)
        return -1;
    out->is_v1 = version != 0;
    out->kind = (fl_image_op_kind)kind;
    out->occurrence = (uint8_t)occurrence;
    out->arithmetic = (fl_image_arithmetic)arithmetic;
    out->interpolation = (fl_interpolation)interpolation;
    out->padding_mode = (fl_padding_mode)mode;
    if (read_shape(dict, out) != 0) return -1;
    if (read_numbers(dict, "scale", 2, NULL, out->scale) != 0 ||
        read_numbers(dict, "ratio", 2, NULL, out->ratio) != 0 || read_own(dict, out) != 0 ||
        read_numbers(dict, "center", 2, NULL, out->center) != 0 ||
        read_numbers(dict, "border", FL_MAX_CHANNELS, NULL, out->border) != 0 ||
        read_bytes(dict, "fill", FL_MAX_CHANNELS, out->fill) != 0 ||
        read_bytes(dict, "out_fill", FL_MAX_FILL_BYTES, out->out_fill) != 0)
        return -1;
    PyObject *p = look_up(dict, "p");
    if (p != NULL) out->p = PyFloat_AsDouble(p);
    return PyErr_Occurred() ? -1 : 0;
}

int fl_py_image_op_read(PyObject *dict, fl_image_op *out)
{
    *out = (fl_image_op){0};
    if (!PyDict_Check(dict))
        return FL_PY_FAIL(PyExc_TypeError, "ImagePlan: an operation must be a dict, got %.100s",
                          Py_TYPE(dict)->tp_name);
    /* The values are borrowed while conversions run Python code, so the dict must not change. */
    PyObject *own = PyDict_Copy(dict);
    int status = own != NULL ? read_op(own, out) : -1;
    Py_XDECREF(own);
    return status;
}

/* Makes a tuple of integers; if `integers` is NULL, of the floats in `numbers`. New reference. */
static PyObject *tuple_of(const int8_t *integers, const float *numbers, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t k = 0; tuple != NULL && k < count; k++)
        fl_py_put(&tuple, k,
                  integers != NULL ? PyLong_FromLong(integers[k])
                                   : PyFloat_FromDouble((double)numbers[k]));
    return tuple;
}

PyObject *fl_py_image_params(const fl_image_params *params)
{
    const int32_t *padding = params->padding;
    Py_ssize_t count = 0; /* entries after the order are negative */
    while (count < FL_MAX_ORDER && params->order[count] >= 0) count++;
    PyObject *number = tuple_of(NULL, params->number, FL_DRAWN_NUMBERS);
    PyObject *order = number != NULL ? tuple_of(params->order, NULL, count) : NULL;
    if (order == NULL) {
        Py_XDECREF(number);
        return NULL;
    }
    return Py_BuildValue("{s:O,s:i,s:i,s:i,s:i,s:(iiii),s:(ii),s:N,s:N,s:O,s:K}", "applied",
                         params->is_applied ? Py_True : Py_False, "top", params->top, "left",
                         params->left, "height", params->size.height, "width", params->size.width,
                         "padding", padding[0], padding[1], padding[2], padding[3], "out",
                         params->out.height, params->out.width, "number", number, "order", order,
                         "is_early", params->is_early ? Py_True : Py_False, "seed",
                         (unsigned long long)params->seed);
}

const char fl_py_policy_strengths_doc[] =
    PyDoc_STR("policy_strengths(op, height, width)\n--\n\n"
              "Return the strengths of each operation that a policy draws, for an image of this\n"
              "size. The policy is a dict, as ImagePlan takes it.");

PyObject *fl_py_policy_strengths(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *dict, *list = NULL;
    fl_image_op op;
    fl_image_size in;
    if (!PyArg_ParseTuple(args, "Oii:policy_strengths", &dict, &in.height, &in.width)) return NULL;
    if (fl_py_image_op_read(dict, &op) != 0 || (list = PyList_New(FL_POLICY_OPS)) == NULL)
        return NULL;
    int32_t bins = fl_policy_bins(&op);
    for (int which = 0; which < FL_POLICY_OPS; which++) {
        PyObject *row = PyTuple_New(bins);
        PyList_SET_ITEM(list, which, row);
        for (int32_t i = 0; row != NULL && i < bins; i++) {
            float strength = fl_policy_magnitude(&op, (fl_policy_op)which, in, i, false);
            PyTuple_SET_ITEM(row, i, PyFloat_FromDouble((double)strength));
        }
    }
    if (!PyErr_Occurred()) return list;
    Py_DECREF(list);
    return NULL;
}

/* ---- numbers that Python takes from here */

typedef struct named {
    const char *name; /* NULL ends the list */
    int number;
} named;

static const named arithmetics[] = {
    {"v2", FL_BY_TENSOR_V2}, {"v1", FL_BY_TENSOR_V1}, {"PIL", FL_BY_PIL}, {NULL, 0}};
static const named interpolations[] = {{"nearest", FL_NEAREST},
                                       {"nearest-exact", FL_NEAREST_EXACT},
                                       {"bilinear", FL_BILINEAR},
                                       {"bicubic", FL_BICUBIC},
                                       {NULL, 0}};
static const named padding_modes[] = {{"constant", FL_PAD_CONSTANT},
                                      {"edge", FL_PAD_EDGE},
                                      {"reflect", FL_PAD_REFLECT},
                                      {"symmetric", FL_PAD_SYMMETRIC},
                                      {NULL, 0}};
static const named limits[] = {{"EDGE", FL_MAX_EDGE},         {"CHANNELS", FL_MAX_CHANNELS},
                               {"BLUR", FL_MAX_BLUR},         {"POLICY_OPS", FL_MAX_POLICY_OPS},
                               {"MIX_LEVELS", FL_MIX_LEVELS}, {"CHAINS", FL_MAX_CHAINS},
                               {"MIXED", FL_MAX_MIXED},       {NULL, 0}};

/* Adds a read-only mapping with this name to the module. */
static int add_mapping(PyObject *module, const char *name, const named *items)
{
    PyObject *dict = PyDict_New(), *mapping = NULL;
    int status = dict != NULL ? 0 : -1;
    for (; status == 0 && items->name != NULL; items++) {
        PyObject *number = PyLong_FromLong(items->number);
        status = number != NULL ? PyDict_SetItemString(dict, items->name, number) : -1;
        Py_XDECREF(number);
    }
    if (status == 0) mapping = PyDictProxy_New(dict);
    status = mapping != NULL ? PyModule_AddObjectRef(module, name, mapping) : -1;
    Py_XDECREF(mapping);
    Py_XDECREF(dict);
    return status;
}

int fl_py_image_op_export(PyObject *module)
{
    named kinds[FL_OP_KINDS + 1] = {{NULL, 0}};
    for (int k = 0; k < FL_OP_KINDS; k++)
        kinds[k] = (named){fl_image_op_name((fl_image_op_kind)k), k};
    if (add_mapping(module, "IMAGE_OPS", kinds) != 0 ||
        add_mapping(module, "IMAGE_LIMITS", limits) != 0 ||
        add_mapping(module, "IMAGE_ARITHMETICS", arithmetics) != 0 ||
        add_mapping(module, "INTERPOLATIONS", interpolations) != 0)
        return -1;
    return add_mapping(module, "PADDING_MODES", padding_modes);
}
