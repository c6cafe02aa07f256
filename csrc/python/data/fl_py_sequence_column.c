/* fl_py_sequence_column: see fl_py_sequence_column.h. */
#include "fl_py_sequence_column.h"

#include "fl_cpu_sequences.h"
#include "fl_py_packing.h"
#include "fl_py_source.h"

#include <string.h>

/* Python's names for the outputs. */
static const struct {
    const char *name;
    bool is_packed, has_values;
    int output;
} outputs[] = {
    {"padded", false, true, FL_PAD_VALUES},        {"mask", false, false, FL_PAD_MASK},
    {"lengths", false, false, FL_PAD_LENGTHS},     {"packed", true, true, FL_PACK_VALUES},
    {"positions", true, false, FL_PACK_POSITIONS}, {"documents", true, false, FL_PACK_DOCUMENTS},
    {"bounds", true, false, FL_PACK_BOUNDS},       {"longest", true, false, FL_PACK_LONGEST}};
enum { OUTPUTS = sizeof outputs / sizeof *outputs, INT = 0, UINT = 1, MOST_BYTES = 16 };

/* The configuration as Python gives it; objects are borrowed. */
typedef struct column_config {
    const char *output;
    PyObject *padding, *ignored, *main, *name, *main_name, *plan, *bos, *eos;
    int is_int64, pad_left, is_label, leader;
    long long multiple, max_length, max_tokens;
} column_config;

/* Reads the configuration from a tuple. 0, or -1 and an exception. */
static int read_config(PyObject *tuple, column_config *out)
{
    return PyArg_ParseTuple(tuple, "sOOppLLpOiLUUOOO:SequenceColumn", &out->output, &out->padding,
                            &out->ignored, &out->is_int64, &out->pad_left, &out->multiple,
                            &out->max_length, &out->is_label, &out->main, &out->leader,
                            &out->max_tokens, &out->name, &out->main_name, &out->plan, &out->bos,
                            &out->eos)
               ? 0
               : -1;
}

static int find_output(const char *name)
{
    for (int i = 0; i < OUTPUTS; i++)
        if (strcmp(outputs[i].name, name) == 0) return i;
    return FL_PY_FAIL(PyExc_ValueError,
                      "SequenceColumn: output must be the name of an output, got %s", name);
}

static int set_values(const fl_py_dlpack *dlpack, PyObject *object, fl_ragged *out, int32_t *device)
{
    fl_tensor view;
    if (fl_py_view_anywhere(dlpack, object, &view, device) != 0) return -1;
    if (view.ndim != 1 || !fl_tensor_is_contiguous(&view))
        return FL_PY_FAIL(PyExc_ValueError, "SequenceColumn: values must be a contiguous vector");
    int64_t bytes = fl_dtype_bytes(view.dtype);
    if (bytes < 1 || bytes > MOST_BYTES || (bytes & (bytes - 1)) != 0)
        return FL_PY_FAIL(PyExc_ValueError,
                          "SequenceColumn: values must have elements of 1, 2, 4, 8 or 16 bytes");
    out->values = view.data;
    out->dtype = view.dtype;
    out->count = view.shape[0];
    return 0;
}

/* Reads the padding element of the output's dtype: from its bytes, or from an int; with an int the
 * output is int64. 0, or -1 and an exception. */
static int set_padding(column_config *given, const fl_ragged *ragged, char *padding)
{
    bool is_integer = ragged->dtype.code == INT || ragged->dtype.code == UINT;
    bool is_number = PyLong_CheckExact(given->padding);
    int64_t number = is_number ? PyLong_AsLongLong(given->padding) : 0;
    if (number == -1 && PyErr_Occurred()) return -1;
    if (is_number) given->is_int64 = ragged->dtype.code != INT || ragged->dtype.bits != 64;
    int64_t bytes = given->is_int64 ? (int64_t)sizeof number : fl_dtype_bytes(ragged->dtype);
    bool fits = PyBytes_Check(given->padding) && PyBytes_GET_SIZE(given->padding) == bytes;
    if (!(is_number || fits) || (given->is_int64 && !is_integer))
        return FL_PY_FAIL(PyExc_ValueError,
                          "SequenceColumn: padding must be an element of the output");
    memcpy(padding, is_number ? (const char *)&number : PyBytes_AS_STRING(given->padding),
           (size_t)bytes);
    return 0;
}

/* Reads the value that becomes padding, for an output of int64: 0, or -1 and an exception. */
static int set_ignored(const column_config *given, fl_column_pad_config *config)
{
    if (given->ignored == Py_None) return 0;
    config->has_ignored = true;
    config->ignored = PyLong_AsLongLong(given->ignored);
    if (config->ignored == -1 && PyErr_Occurred()) return -1;
    if (given->is_int64 || (config->ragged.dtype.code == INT && config->ragged.dtype.bits == 64))
        return 0;
    return FL_PY_FAIL(PyExc_ValueError,
                      "SequenceColumn: ignored must be None, unless the output is int64");
}

static int
set_pad(fl_py_sequence_column *self, const fl_ragged *ragged, column_config *given, int output)
{
    fl_column_pad_config *config = &self->pad;
    *config = (fl_column_pad_config){.ragged = *ragged,
                                     .output = (fl_pad_output)output,
                                     .pad_left = given->pad_left != 0,
                                     .multiple = given->multiple,
                                     .max_length = given->max_length,
                                     .ops = &fl_cpu_sequence_ops};
    if (given->multiple < 1 || given->max_length < 1)
        return FL_PY_FAIL(PyExc_ValueError,
                          "SequenceColumn: multiple and max_length must be at least 1");
    if (output != FL_PAD_VALUES) return 0;
    if (set_padding(given, ragged, config->padding) != 0) return -1;
    config->is_widened = given->is_int64 != 0;
    return set_ignored(given, config);
}

/* Reads a token that stands before or after each document; None: no token does. 0, or -1 and an
 * exception. */
static int set_edge(PyObject *given, int64_t bytes, bool *has_edge, char *out)
{
    *has_edge = given != Py_None;
    if (!*has_edge) return 0;
    if (!PyBytes_Check(given) || PyBytes_GET_SIZE(given) != bytes)
        return FL_PY_FAIL(PyExc_ValueError,
                          "SequenceColumn: bos and eos must be elements of the output");
    memcpy(out, PyBytes_AS_STRING(given), (size_t)bytes);
    return 0;
}

/* Reads what a column of planned rows has besides. 0, or -1 and an exception. */
static int set_plan(fl_py_sequence_column *self, const column_config *given)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_column_pack_config *config = &self->pack;
    if (!Py_IS_TYPE(given->plan, state->packing_type)) return 0;
    config->plan = fl_py_packing_of(given->plan);
    int64_t bytes =
        given->is_int64 ? (int64_t)sizeof(int64_t) : fl_dtype_bytes(config->ragged.dtype);
    if (set_edge(given->bos, bytes, &config->has_bos, config->bos) != 0) return -1;
    return set_edge(given->eos, bytes, &config->has_eos, config->eos);
}

static int set_pack(fl_py_sequence_column *self, const fl_py_dlpack *dlpack,
                    const fl_ragged *ragged, column_config *given, int output)
{
    fl_column_pack_config *config = &self->pack;
    *config = (fl_column_pack_config){.ragged = *ragged,
                                      .leader = given->leader,
                                      .output = (fl_pack_output)output,
                                      .is_label = given->is_label != 0,
                                      .max_tokens = given->max_tokens,
                                      .name = PyUnicode_AsUTF8(given->name),
                                      .main_name = PyUnicode_AsUTF8(given->main_name),
                                      .ops = &fl_cpu_sequence_ops};
    if (config->name == NULL || config->main_name == NULL) return -1;
    if (fl_py_offsets(dlpack, given->main, &config->main) != 0) return -1;
    if (given->leader < 0 || given->max_tokens < 0 || config->main.length != ragged->length)
        return FL_PY_FAIL(PyExc_ValueError, "SequenceColumn: main must have the length of offsets, "
                                            "and leader and max_tokens must be at least 0");
    if (output == FL_PACK_VALUES && set_padding(given, ragged, config->padding) != 0) return -1;
    config->is_widened = output == FL_PACK_VALUES && given->is_int64 != 0;
    return set_plan(self, given);
}

static int set_config(fl_py_sequence_column *self, PyObject *tensor_type, column_config *given)
{
    fl_py_dlpack dlpack;
    fl_ragged ragged = {0};
    int i = find_output(given->output);
    if (i < 0 || fl_py_dlpack_open(tensor_type, &dlpack) != 0) return -1;
    self->is_packed = outputs[i].is_packed;
    int status = fl_py_offsets(&dlpack, self->offsets, &ragged);
    if (status == 0 && outputs[i].has_values)
        status = set_values(&dlpack, self->values, &ragged, &self->device);
    if (status == 0)
        status = self->is_packed ? set_pack(self, &dlpack, &ragged, given, outputs[i].output)
                                 : set_pad(self, &ragged, given, outputs[i].output);
    fl_py_dlpack_close(&dlpack);
    return status;
}

static PyObject *column_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "offsets", "values", "config", NULL};
    PyObject *tensor_type, *offsets, *values, *tuple;
    column_config given;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO!:SequenceColumn", keywords, &tensor_type,
                                     &offsets, &values, &PyTuple_Type, &tuple) ||
        read_config(tuple, &given) != 0)
        return NULL;
    fl_py_sequence_column *self = (fl_py_sequence_column *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->device = FL_PY_CPU;
    self->values = Py_NewRef(values);
    self->offsets = Py_NewRef(offsets);
    self->config = Py_NewRef(tuple);
    if (set_config(self, tensor_type, &given) == 0) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* ---- as a source of a table */

static fl_py_sequence_column *column_of(const fl_py_source *source)
{
    return (fl_py_sequence_column *)source->object;
}

static int64_t list(const fl_py_source *source, fl_py_part *parts)
{
    const fl_py_sequence_column *self = column_of(source);
    bool has_view = self->values != Py_None && self->device == FL_PY_CPU;
    return fl_py_source_list_array(source, has_view ? self->values : NULL, parts);
}

/* Takes the present address of the values, which must be as before otherwise. */
static int
set_part(const fl_py_source *source, const fl_py_part *part, fl_ragged *ragged, fl_err *err)
{
    ragged->is_volatile = source->is_volatile;
    if (ragged->values == NULL) return FL_OK;
    const fl_tensor *view = &part->view;
    ragged->values = view->data;
    if (view->ndim == 1 && view->shape[0] == ragged->count && fl_tensor_is_contiguous(view) &&
        memcmp(&view->dtype, &ragged->dtype, sizeof view->dtype) == 0)
        return FL_OK;
    return fl_fail(err, FL_EINVAL, "must keep its %lld values", (long long)ragged->count);
}

static int
open_column(const fl_py_source *source, const fl_py_part *parts, fl_column **out, fl_err *err)
{
    const fl_py_sequence_column *self = column_of(source);
    if (self->device != FL_PY_CPU) return fl_fail(err, FL_EINVAL, "must have values on the CPU");
    if (self->is_packed) {
        fl_column_pack_config config = self->pack;
        FL_TRY(set_part(source, parts, &config.ragged, err));
        return fl_column_pack_open(&config, out, err);
    }
    fl_column_pad_config config = self->pad;
    FL_TRY(set_part(source, parts, &config.ragged, err));
    return fl_column_pad_open(&config, out, err);
}

const fl_py_source_ops fl_py_sequence_source_ops = {.list = list, .open = open_column};

static Py_ssize_t column_length(fl_py_sequence_column *self)
{
    return (Py_ssize_t)fl_py_sequence_column_ragged(self)->length;
}

static PyObject *column_sources(fl_py_sequence_column *self, void *Py_UNUSED(closure))
{
    return PyTuple_Pack(1, self->values);
}

static PyGetSetDef column_getset[] = {{"sources", (getter)column_sources, NULL,
                                       "the tensors and ndarrays that the column reads, as a tuple",
                                       NULL},
                                      {NULL, NULL, NULL, NULL, NULL}};

static int column_traverse(fl_py_sequence_column *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->values);
    Py_VISIT(self->offsets);
    Py_VISIT(self->config);
    return 0;
}

/* There is no tp_clear: a table may still read the arrays. */

static void column_dealloc(fl_py_sequence_column *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->values);
    Py_XDECREF(self->offsets);
    Py_XDECREF(self->config);
    fl_py_free(self);
}

PyDoc_STRVAR(column_doc,
             "SequenceColumn(tensor_type, offsets, values, config)\n--\n\n"
             "One output of a batch of sequences, as a source of a Table.\n\n"
             "offsets: an int32 or int64 vector, or an array [n, 2] with the begin and the end\n"
             "of each sequence. values: a contiguous vector on the CPU or, for a Gatherer, on\n"
             "a CUDA device; None for an output without values. config: a SequenceOutput of\n"
             "fastloop/data/sequences, or a tuple with the same items.");

static PyType_Slot column_slots[] = {{Py_tp_doc, (void *)column_doc},
                                     {Py_tp_new, column_new},
                                     {Py_tp_traverse, column_traverse},
                                     {Py_tp_dealloc, column_dealloc},
                                     {Py_tp_getset, column_getset},
                                     {Py_sq_length, column_length},
                                     {0, NULL}};

PyType_Spec fl_py_sequence_column_spec =
    FL_PY_SPEC("SequenceColumn", fl_py_sequence_column, Py_TPFLAGS_HAVE_GC, column_slots);
