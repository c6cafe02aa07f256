/* fl_py_table: see fl_py_table.h. A table keeps its sources alive while views into them exist. */
#include "fl_py_table.h"

#include "fl_column_image.h"
#include "fl_column_rows.h"
#include "fl_column_segments.h"
#include "fl_cpu_convert.h"
#include "fl_cpu_rows.h"
#include "fl_py.h"
#include "fl_py_image_draws.h"
#include "fl_py_indices.h"
#include "fl_py_mapped_file.h"
#include "fl_py_sequence_column.h"
#include "fl_py_table_arguments.h"
#include "fl_py_windows.h"

#include <stddef.h>
#include <structmember.h>

/* Where the parameters of a field's plan are drawn; NULL: the plan draws them. */
static const fl_py_image_draws *draws_of(const fl_py_table *self, int32_t f)
{
    PyObject *plan = PyTuple_GET_ITEM(self->plans, f);
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    return Py_IS_TYPE(plan, state->image_draws_type) ? (fl_py_image_draws *)plan : NULL;
}

/* The plan of a field; NULL: it has none. */
static const fl_py_image_plan *plan_of(const fl_py_table *self, int32_t f)
{
    if (self->plans == Py_None) return NULL;
    PyObject *plan = PyTuple_GET_ITEM(self->plans, f);
    const fl_py_image_draws *draws = draws_of(self, f);
    if (draws != NULL) return draws->plan;
    return plan != Py_None ? (fl_py_image_plan *)plan : NULL;
}

/* The column that a source is made for; NULL: rows of the source itself. */
static fl_py_sequence_column *sequences_of(const fl_py_table *self, int32_t f)
{
    PyObject *source = PyTuple_GET_ITEM(self->sources, f);
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    bool is_column = Py_IS_TYPE(source, state->sequence_column_type);
    return is_column ? (fl_py_sequence_column *)source : NULL;
}

/* The windows that are source f; NULL: it is an array. */
static fl_py_windows *windows_of(const fl_py_table *self, int32_t f)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *source = PyTuple_GET_ITEM(self->sources, f);
    return Py_IS_TYPE(source, state->windows_type) ? (fl_py_windows *)source : NULL;
}

/* Segments are a tuple: an array and its rows, another array and its rows, ... */
static bool is_segments(const fl_py_table *self, int32_t f)
{
    return PyTuple_CheckExact(PyTuple_GET_ITEM(self->sources, f));
}

/* Of how many objects of source f the table has views. */
static int32_t count_views(const fl_py_table *self, int32_t f)
{
    PyObject *source = PyTuple_GET_ITEM(self->sources, f);
    return is_segments(self, f) ? (int32_t)PyTuple_GET_SIZE(source) : 1;
}

/* How many arrays lie behind source f, each with a file of its own or none. */
static int32_t count_parts(const fl_py_table *self, int32_t f)
{
    return is_segments(self, f) ? count_views(self, f) / 2 : 1;
}

static PyObject *file_of(const fl_py_table *self, int32_t f, int32_t part)
{
    PyObject *file = PyTuple_GET_ITEM(self->fields.files, f);
    return is_segments(self, f) ? PyTuple_GET_ITEM(file, part) : file;
}

static bool is_volatile(const fl_py_table *self, int32_t f)
{
    bool has_file = false;
    for (int32_t part = 0; part < count_parts(self, f); part++)
        has_file |= file_of(self, f, part) != Py_None;
    return has_file;
}

/* Whether all of the field's plan is done where batches go. */
static bool is_made_there(const fl_py_table *self, int32_t f)
{
    const fl_py_image_plan *plan = plan_of(self, f);
    return self->is_whole && plan != NULL && fl_image_plan_map_length(plan->plan) > 0;
}

/* Whether the field is cast where batches go. */
static bool is_cast(const fl_py_table *self, int32_t f)
{
    const fl_py_image_plan *plan = plan_of(self, f);
    const fl_py_windows *windows = windows_of(self, f);
    bool can_cut = (plan != NULL && plan->cut != NULL) ||
                   (windows != NULL && fl_column_window_can_cut(&windows->column));
    return is_made_there(self, f) || (self->is_cut && can_cut);
}

static int
open_images(const fl_py_table *self, int32_t f, const fl_tensor *view, fl_column **out, fl_err *err)
{
    const fl_py_image_plan *plan = plan_of(self, f);
    fl_column_image_config config = {.view = *view,
                                     .layout = plan->layout,
                                     .is_volatile = is_volatile(self, f),
                                     .plan = plan->plan,
                                     .dtype = plan->dtype,
                                     .row_ops = &fl_cpu_row_ops};
    if (is_cast(self, f)) config.cast = fl_py_image_plan_cast(plan, is_made_there(self, f));
    if (config.cast.count > 0 && config.cast.kind == FL_CAST_LOOK_UP) config.plan = plan->cut;
    if (draws_of(self, f) != NULL) config.draws = draws_of(self, f)->draws;
    memcpy(config.shape, plan->shape, sizeof config.shape);
    memcpy(config.stride, plan->stride, sizeof config.stride);
    return fl_column_image_open(&config, out, err);
}

static int open_windows(const fl_py_table *self, int32_t f, fl_column **out, fl_err *err)
{
    fl_column_window_config config = windows_of(self, f)->column;
    config.is_cut = is_cast(self, f);
    return fl_column_window_open(&config, out, err);
}

/* What the rows of field f are converted to, if to anything. */
static int
set_cast(const fl_py_table *self, int32_t f, fl_column_segments_config *config, fl_err *err)
{
    PyObject *cast = self->casts != Py_None ? PyTuple_GET_ITEM(self->casts, f) : Py_None;
    if (cast == Py_None) return FL_OK;
    bool is_float = PyUnicode_CompareWithASCIIString(cast, "float32") == 0;
    config->dtype = is_float ? (fl_dtype){kDLFloat, 32, 1} : (fl_dtype){kDLInt, 64, 1};
    config->convert = fl_cpu_find_convert(config->segments[0].view.dtype, config->dtype);
    if (config->convert != NULL) return FL_OK;
    return fl_fail(err, FL_EINVAL, "has a dtype that is not cast to %s",
                   is_float ? "float32" : "int64");
}

static int open_segments(const fl_py_table *self, int32_t f, const fl_tensor *views,
                         fl_column **out, fl_err *err)
{
    int32_t count = count_parts(self, f);
    fl_segment *segments = fl_alloc(count * (int64_t)sizeof *segments);
    if (segments == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    for (int32_t i = 0; i < count; i++) {
        const fl_tensor *rows = &views[2 * i + 1];
        segments[i] = (fl_segment){.view = views[2 * i], .count = rows->shape[0]};
        if (rows->ndim > 0) segments[i].index = (const int64_t *)(const void *)rows->data;
    }
    fl_column_segments_config config = {.segments = segments,
                                        .count = count,
                                        .is_volatile = is_volatile(self, f),
                                        .row_ops = &fl_cpu_row_ops};
    int status = set_cast(self, f, &config, err);
    if (status == FL_OK) status = fl_column_segments_open(&config, out, err);
    fl_free(segments);
    return status;
}

/* The column of source f, whose views these are. */
static int open_column(const fl_py_table *self, int32_t f, const fl_tensor *views, fl_column **out,
                       fl_err *err)
{
    if (windows_of(self, f) != NULL) return open_windows(self, f, out, err);
    const fl_py_sequence_column *sequences = sequences_of(self, f);
    int status;
    if (sequences != NULL)
        status = fl_py_sequence_column_open(sequences, is_volatile(self, f), out, err);
    else if (is_segments(self, f))
        status = open_segments(self, f, views, out, err);
    else if (plan_of(self, f) != NULL)
        status = open_images(self, f, views, out, err);
    else
        status = fl_column_rows_open(views, is_volatile(self, f), &fl_cpu_row_ops, out, err);
    return fl_column_name_field(err, status, f);
}

/* A table of columns over the views. The caller owns *out. */
static int open_table(const fl_py_table *self, const fl_tensor *views, fl_table **out, fl_err *err)
{
    *out = NULL;
    fl_column **columns = fl_alloc(self->count * (int64_t)sizeof *columns);
    if (columns == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table");
    int status = FL_OK;
    for (int32_t f = 0; status == FL_OK && f < self->count; f++) {
        status = open_column(self, f, views, &columns[f], err);
        views += count_views(self, f);
    }
    if (status == FL_OK) status = fl_table_open(columns, self->count, out, err);
    for (int32_t f = 0; status != FL_OK && f < self->count; f++) fl_column_close(columns[f]);
    fl_free(columns);
    return status;
}

/* The rows of a segment: an int64 vector, or how many there are, whose view has ndim 0. */
static int look_at_rows(const fl_py_table *self, PyObject *rows, fl_tensor *view)
{
    if (!PyLong_Check(rows)) return fl_py_index_vector(&self->dlpack, rows, view);
    *view = (fl_tensor){.shape = {PyLong_AsLongLong(rows)}};
    return view->shape[0] == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Source f at its present address, in as many views as it has. Windows and sequences stay, and
 * their view says nothing: its ndim is 0. */
static int look_at_source(const fl_py_table *self, int32_t f, fl_tensor *views)
{
    PyObject *source = PyTuple_GET_ITEM(self->sources, f);
    if (windows_of(self, f) != NULL || sequences_of(self, f) != NULL) {
        *views = (fl_tensor){0};
        return 0;
    }
    if (!is_segments(self, f)) return fl_py_view(&self->dlpack, source, views);
    for (int32_t i = 0; i < count_views(self, f); i += 2) {
        if (fl_py_view(&self->dlpack, PyTuple_GET_ITEM(source, i), &views[i]) != 0 ||
            look_at_rows(self, PyTuple_GET_ITEM(source, i + 1), &views[i + 1]) != 0)
            return -1;
    }
    return 0;
}

static int look_at_sources(const fl_py_table *self, fl_tensor *views)
{
    for (int32_t f = 0; f < self->count; f++) {
        if (look_at_source(self, f, views) != 0) return -1;
        views += count_views(self, f);
    }
    return 0;
}

/* Makes new views, which it takes over, the table's; nothing changes on failure. */
static int adopt_views(fl_py_table *self, fl_tensor *views)
{
    fl_err err;
    fl_table *table;
    if (open_table(self, views, &table, &err) != FL_OK) {
        fl_free(views);
        fl_py_raise(&err, &self->fields);
        return -1;
    }
    fl_table_close(self->table);
    fl_free(self->views);
    fl_table_guard(table, &self->gate);
    self->table = table;
    self->views = views;
    return 0;
}

static int rebuild(fl_py_table *self)
{
    int64_t count = 0;
    for (int32_t f = 0; f < self->count; f++) count += count_views(self, f);
    fl_tensor *views = fl_alloc(count * (int64_t)sizeof *views);
    if (views == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (look_at_sources(self, views) != 0) {
        fl_free(views);
        return -1;
    }
    return adopt_views(self, views);
}

static bool is_same_view(const fl_tensor *a, const fl_tensor *b)
{
    if (a->data != b->data || a->ndim != b->ndim || a->dtype.code != b->dtype.code ||
        a->dtype.bits != b->dtype.bits)
        return false;
    for (int32_t d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d] || a->stride[d] != b->stride[d]) return false;
    return true;
}

/* 1 if an array of source f is not what its view says; 0, or -1 and an exception. */
static int has_changed(const fl_py_table *self, int32_t f, const fl_tensor *views)
{
    PyObject *source = PyTuple_GET_ITEM(self->sources, f);
    int32_t step = is_segments(self, f) ? 2 : 1;
    for (int32_t i = 0; i < count_views(self, f); i += step) {
        fl_tensor now;
        if (views[i].ndim == 0) continue;
        PyObject *array = step == 2 ? PyTuple_GET_ITEM(source, i) : source;
        if (fl_py_view(&self->dlpack, array, &now) != 0) return -1;
        if (!is_same_view(&now, &views[i])) return 1;
    }
    return 0;
}

int fl_py_table_refresh(fl_py_table *self)
{
    const fl_tensor *views = self->views;
    for (int32_t f = 0; f < self->count; f++) {
        int status = has_changed(self, f, views);
        if (status != 0) return status > 0 ? rebuild(self) : -1;
        views += count_views(self, f);
    }
    return 0;
}

/* An array, of which the table has a view, where it lies now. */
static void
look_at_array(fl_py_table *self, int32_t f, int32_t part, PyObject *array, fl_tensor *view)
{
    fl_tensor now;
    if (!fl_py_is_tensor(&self->dlpack, array)) return;
    if (fl_py_view(&self->dlpack, array, &now) != 0) {
        PyErr_Clear();
        return;
    }
    const char *data = now.data;
    now.data = view->data;
    if (!is_same_view(&now, view)) return; /* refresh will see to it */
    view->data = data;
    fl_table_move(self->table, f, part, data);
}

void fl_py_table_look(fl_py_table *self)
{
    fl_tensor *views = self->views;
    for (int32_t f = 0; f < self->count; views += count_views(self, f++)) {
        PyObject *source = PyTuple_GET_ITEM(self->sources, f);
        if (windows_of(self, f) != NULL)
            fl_py_windows_look(windows_of(self, f));
        else if (sequences_of(self, f) != NULL)
            fl_table_move(self->table, f, 0,
                          fl_py_sequence_column_look(sequences_of(self, f), &self->dlpack));
        else if (!is_segments(self, f))
            look_at_array(self, f, 0, source, views);
        for (int32_t i = 0; is_segments(self, f) && i < count_parts(self, f); i++)
            look_at_array(self, f, i, PyTuple_GET_ITEM(source, 2 * i), &views[2 * i]);
    }
}

/* -1 and OSError if the file behind an array of source f is too short for one of the rows. */
static int check_file(const fl_py_table *self, int32_t f, int32_t part, const fl_rows *rows)
{
    const char *end = NULL;
    if (fl_py_mapped_file_end(file_of(self, f, part), &end) != 0) return -1;
    int64_t row = end != NULL ? fl_table_row_behind(self->table, f, part, rows, end) : -1;
    if (row < 0) return 0;
    fl_err err = {.code = FL_ESOURCE, .field = f, .position = part, .value = row};
    fl_py_raise(&err, &self->fields);
    return -1;
}

int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows)
{
    for (int32_t f = 0; f < self->count; f++) {
        const fl_py_windows *windows = windows_of(self, f);
        if (windows != NULL && fl_py_windows_check_files(windows) != 0) return -1;
        for (int32_t part = 0; part < count_parts(self, f); part++)
            if (check_file(self, f, part, rows) != 0) return -1;
    }
    return 0;
}

/* The attributes of `like` but for the sources' views, which it makes. */
static PyObject *make_table(PyTypeObject *type, const fl_py_table *like, PyObject *tensor_type)
{
    fl_py_table *self = (fl_py_table *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->sources = Py_NewRef(like->sources);
    self->fields.names = Py_NewRef(like->fields.names);
    self->fields.files = Py_NewRef(like->fields.files);
    self->plans = Py_NewRef(like->plans);
    self->casts = Py_NewRef(like->casts);
    self->count = like->count;
    self->is_cut = like->is_cut;
    self->is_whole = like->is_whole;
    for (int32_t f = 0; f < self->count; f++) {
        self->has_plans |= plan_of(self, f) != NULL;
        if (windows_of(self, f) != NULL) self->fields.token_files = windows_of(self, f)->names;
    }
    fl_err err;
    bool has_gate = fl_gate_init(&self->gate, &err) == FL_OK;
    if (!has_gate) fl_py_raise(&err, NULL);
    if (!has_gate || fl_py_dlpack_open(tensor_type, &self->dlpack) != 0 || rebuild(self) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"sources", "tensor_type", "names", "files", "plans", "casts", NULL};
    PyObject *tensor_type;
    fl_py_table given = {.plans = Py_None, .casts = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!O!|OO:Table", keywords, &PyTuple_Type,
                                     &given.sources, &tensor_type, &PyTuple_Type,
                                     &given.fields.names, &PyTuple_Type, &given.fields.files,
                                     &given.plans, &given.casts))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given.sources);
    if (PyTuple_GET_SIZE(given.fields.names) != count ||
        PyTuple_GET_SIZE(given.fields.files) != count || count > INT32_MAX)
        return PyErr_Format(PyExc_ValueError,
                            "Table needs a name and a file (or None) for each of %zd sources",
                            count);
    const fl_py_state *state = PyType_GetModuleState(type);
    if (fl_py_table_check_arguments(state, given.sources, given.fields.files, given.plans,
                                    given.casts) != 0)
        return NULL;
    given.count = (int32_t)count;
    return make_table(type, &given, tensor_type);
}

static int table_traverse(fl_py_table *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->dlpack.tensor_type);
    Py_VISIT(self->sources);
    Py_VISIT(self->plans);
    Py_VISIT(self->casts);
    Py_VISIT(self->fields.names);
    Py_VISIT(self->fields.files);
    return 0;
}

/* No tp_clear: sources are tensors and arrays, and a reader may still be copying from them; a
 * cycle through a table is broken at the ArrayLoader, which stops its readers first. */

static void table_dealloc(fl_py_table *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    fl_table_close(self->table);
    fl_gate_destroy(&self->gate);
    fl_free(self->views);
    fl_py_dlpack_close(&self->dlpack);
    Py_XDECREF(self->sources);
    Py_XDECREF(self->plans);
    Py_XDECREF(self->casts);
    Py_XDECREF(self->fields.names);
    Py_XDECREF(self->fields.files);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Where row data is written: the tensors in `outs`, contiguous, one for each output. */
static int check_outs(fl_py_table *self, PyObject *outs)
{
    int32_t outputs = fl_table_outputs(self->table);
    if (PyTuple_GET_SIZE(outs) == outputs && !self->is_cut) return 0;
    PyErr_Format(PyExc_ValueError, "read_row needs %d tensors and no cut table, got %zd", outputs,
                 PyTuple_GET_SIZE(outs));
    return -1;
}

static int copy_out(fl_py_table *self, PyObject *out, const fl_output *output, const char *buffer)
{
    fl_tensor view;
    if (fl_py_view(&self->dlpack, out, &view) != 0) return -1;
    int64_t given = fl_dtype_bytes(view.dtype);
    for (int32_t d = 0; d < view.ndim; d++) given *= view.shape[d];
    if (output->bytes != given) {
        PyErr_SetString(PyExc_ValueError, "read_row: a tensor does not have the size of the row");
        return -1;
    }
    if (given > 0) memcpy((char *)(uintptr_t)view.data, buffer + output->offset, (size_t)given);
    return 0;
}

static int copy_outs(fl_py_table *self, PyObject *outs, const fl_layout *layout, const char *buffer)
{
    for (int32_t i = 0; i < layout->count; i++)
        if (copy_out(self, PyTuple_GET_ITEM(outs, i), &layout->outputs[i], buffer) != 0) return -1;
    return 0;
}

/* One row, whose index is in bounds, into a buffer of its own. */
static int read_row(fl_py_table *self, const fl_rows *rows, PyObject *outs, fl_layout *layout)
{
    fl_err err = {0};
    char *buffer = NULL;
    int status = fl_table_layout(self->table, rows, 0, layout, &err);
    if (status == FL_OK) {
        buffer = fl_alloc(layout->bytes);
        if (buffer == NULL) status = fl_fail(&err, FL_ENOMEM, "out of memory for a row");
    }
    if (status == FL_OK) {
        Py_BEGIN_ALLOW_THREADS
        status = fl_table_gather(self->table, rows, 0, layout, 0, 1, buffer, &err);
        Py_END_ALLOW_THREADS
    }
    if (status != FL_OK) fl_py_raise(&err, &self->fields);
    if (status == FL_OK) status = fl_py_table_check_files(self, rows);
    if (status == FL_OK) status = copy_outs(self, outs, layout, buffer);
    fl_free(buffer);
    return status == FL_OK ? 0 : -1;
}

PyDoc_STRVAR(
    read_row_doc,
    "read_row(row, outs)\n--\n\n"
    "Copy one row of every field into the contiguous tensors `outs`, one for each output. Plans\n"
    "take epoch 0.\n\n"
    "Reads mapped files safely: OSError names field and row if the file shrank.");

static PyObject *table_read_row(fl_py_table *self, PyObject *args)
{
    Py_ssize_t row;
    PyObject *outs;
    if (!PyArg_ParseTuple(args, "nO!:read_row", &row, &PyTuple_Type, &outs)) return NULL;
    if (check_outs(self, outs) != 0) return NULL;
    int64_t length = fl_table_length(self->table);
    if (row < 0 || row >= length) {
        fl_err err = {.code = FL_EINDEX, .value = row, .length = length};
        return fl_py_raise(&err, &self->fields);
    }
    int64_t index = row;
    fl_rows rows = {.count = 1, .index = &index};
    fl_layout layout = {0};
    int status = read_row(self, &rows, outs, &layout);
    fl_layout_close(&layout);
    if (status != 0) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(cut_doc,
             "cut(whole=False)\n--\n\n"
             "The same table for batches that go to a device as images of bytes and as narrow\n"
             "tokens, which are cast there; itself, if nothing can be cast. whole: images that\n"
             "have a plan with a map go untouched, and all of the plan is done there.");

static PyObject *table_cut(fl_py_table *self, PyObject *args)
{
    fl_py_table cut = *self;
    bool has_casts = false;
    int is_whole = 0;
    if (!PyArg_ParseTuple(args, "|p:cut", &is_whole)) return NULL;
    cut.is_cut = true;
    cut.is_whole = is_whole != 0;
    for (int32_t f = 0; f < self->count; f++) has_casts |= is_cast(&cut, f);
    if (!has_casts) return Py_NewRef(self);
    return make_table(Py_TYPE(self), &cut, (PyObject *)self->dlpack.tensor_type);
}

static PyObject *table_outputs(fl_py_table *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(fl_table_outputs(self->table));
}

static PyObject *table_sources(fl_py_table *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->sources);
}

static PyMemberDef table_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fl_py_table, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyGetSetDef table_getset[] = {
    {"sources", (getter)table_sources, NULL, "a tuple of what it reads", NULL},
    {"outputs", (getter)table_outputs, NULL, "how many tensors a batch has", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef table_methods[] = {
    {"cut", (PyCFunction)table_cut, METH_VARARGS, cut_doc},
    {"read_row", (PyCFunction)table_read_row, METH_VARARGS, read_row_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    table_doc,
    "Table(sources, tensor_type, names, files, plans=None, casts=None)\n--\n\n"
    "Fields of equal length as the core reads them.\n\n"
    "sources: tuple of CPU tensors (exactly tensor_type) and ndarrays, at least 1-d, of\n"
    "SequenceColumns, of at most one Windows, which gives each batch several tensors, and of\n"
    "tuples (array, rows, array, rows, ...) for a field whose rows lie in several arrays: rows is\n"
    "an int64 vector, or how many rows the array has, which are then all taken.\n"
    "names: how errors call each field. files: None, or for a mapped field, whose memory is\n"
    "then read safely, (path, address at which byte 0 of the file would be mapped,\n"
    "function that returns its size now, or None); for several arrays a tuple of these. plans:\n"
    "for each field an ImagePlan or ImageDraws that makes its rows of a batch, or None. casts:\n"
    "for each field of several arrays \"int64\" for integers, \"float32\" for float64, or None.");

static PyType_Slot table_slots[] = {
    {Py_tp_doc, (void *)table_doc},   {Py_tp_new, table_new},
    {Py_tp_traverse, table_traverse}, {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},   {Py_tp_getset, table_getset},
    {Py_tp_members, table_members},   {0, NULL}};

PyType_Spec fl_py_table_spec = FL_PY_SPEC("Table", fl_py_table, Py_TPFLAGS_HAVE_GC, table_slots);
