/* fl_py_table: see fl_py_table.h. A table keeps its sources alive while views into them exist. */
#include "fl_py_table.h"

#include "fl_column_image.h"
#include "fl_column_rows.h"
#include "fl_cpu_rows.h"
#include "fl_py.h"
#include "fl_py_image_plan.h"
#include "fl_py_mapped_file.h"
#include "fl_py_sequence_column.h"
#include "fl_py_windows.h"

/* The plan of a field; NULL: it has none. */
static const fl_py_image_plan *plan_of(const fl_py_table *self, int32_t f)
{
    if (self->plans == Py_None) return NULL;
    PyObject *plan = PyTuple_GET_ITEM(self->plans, f);
    return plan != Py_None ? (fl_py_image_plan *)plan : NULL;
}

/* The column that a source is made for; NULL: rows of the source itself. */
static const fl_py_sequence_column *sequences_of(const fl_py_table *self, int32_t f)
{
    PyObject *source = PyTuple_GET_ITEM(self->sources, f);
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    bool is_column = Py_IS_TYPE(source, state->sequence_column_type);
    return is_column ? (fl_py_sequence_column *)source : NULL;
}

/* The windows that are source f; NULL: it is an array. */
static const fl_py_windows *windows_of(const fl_py_table *self, int32_t f)
{
    fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *source = PyTuple_GET_ITEM(self->sources, f);
    return Py_IS_TYPE(source, state->windows_type) ? (fl_py_windows *)source : NULL;
}

/* Whether the field is cast where batches go. */
static bool is_cast(const fl_py_table *self, int32_t f)
{
    const fl_py_image_plan *plan = plan_of(self, f);
    return self->is_cut && plan != NULL && plan->cut != NULL;
}

/* Of one result of a cut plan. */
static fl_transfer_cast cast_of(const fl_py_image_plan *plan)
{
    int64_t elements = fl_image_plan_out_bytes(plan->cut);
    int32_t channels = fl_image_plan_channels(plan->cut);
    return (fl_transfer_cast){.count = elements,
                              .plane = plan->memory == FL_HWC ? 1 : elements / channels,
                              .channels = channels,
                              .bytes = plan->dtype.bits / 8,
                              .tables = PyBytes_AS_STRING(plan->tables)};
}

static int open_images(const fl_py_table *self, int32_t f, const fl_tensor *view, bool is_volatile,
                       fl_column **out, fl_err *err)
{
    const fl_py_image_plan *plan = plan_of(self, f);
    fl_column_image_config config = {.view = *view,
                                     .layout = plan->layout,
                                     .is_volatile = is_volatile,
                                     .plan = is_cast(self, f) ? plan->cut : plan->plan,
                                     .dtype = plan->dtype};
    memcpy(config.shape, plan->shape, sizeof config.shape);
    memcpy(config.stride, plan->stride, sizeof config.stride);
    if (is_cast(self, f)) config.cast = cast_of(plan);
    return fl_column_image_open(&config, out, err);
}

static int
open_column(const fl_py_table *self, int32_t f, const fl_tensor *view, fl_column **out, fl_err *err)
{
    if (windows_of(self, f) != NULL)
        return fl_column_window_open(&windows_of(self, f)->column, out, err);
    bool is_volatile = PyTuple_GET_ITEM(self->fields.files, f) != Py_None;
    const fl_py_sequence_column *sequences = sequences_of(self, f);
    int status;
    if (sequences != NULL)
        status = fl_py_sequence_column_open(sequences, is_volatile, out, err);
    else if (plan_of(self, f) != NULL)
        status = open_images(self, f, view, is_volatile, out, err);
    else
        status = fl_column_rows_open(view, is_volatile, &fl_cpu_row_ops, out, err);
    return fl_column_name_field(err, status, f);
}

/* A table of columns over the views. The caller owns *out. */
static int open_table(const fl_py_table *self, const fl_tensor *views, fl_table **out, fl_err *err)
{
    *out = NULL;
    fl_column **columns = fl_alloc(self->count * (int64_t)sizeof *columns);
    if (columns == NULL) return fl_fail(err, FL_ENOMEM, "out of memory for a table");
    int status = FL_OK;
    for (int32_t f = 0; status == FL_OK && f < self->count; f++)
        status = open_column(self, f, &views[f], &columns[f], err);
    if (status == FL_OK) status = fl_table_open(columns, self->count, out, err);
    for (int32_t f = 0; status != FL_OK && f < self->count; f++) fl_column_close(columns[f]);
    fl_free(columns);
    return status;
}

/* Source f as it is now. Windows and sequences stay as they are, and have no view: its ndim is 0.
 */
static int look_at_source(const fl_py_table *self, int32_t f, fl_tensor *view)
{
    if (windows_of(self, f) == NULL && sequences_of(self, f) == NULL)
        return fl_py_view(&self->dlpack, PyTuple_GET_ITEM(self->sources, f), view);
    *view = (fl_tensor){0};
    return 0;
}

static int look_at_sources(const fl_py_table *self, fl_tensor *views)
{
    for (int32_t f = 0; f < self->count; f++)
        if (look_at_source(self, f, &views[f]) != 0) return -1;
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
    self->table = table;
    self->views = views;
    return 0;
}

static int rebuild(fl_py_table *self)
{
    fl_tensor *views = fl_alloc(self->count * (int64_t)sizeof *views);
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

int fl_py_table_refresh(fl_py_table *self)
{
    for (int32_t f = 0; f < self->count; f++) {
        fl_tensor now;
        if (self->views[f].ndim == 0) continue;
        if (fl_py_view(&self->dlpack, PyTuple_GET_ITEM(self->sources, f), &now) != 0) return -1;
        if (!is_same_view(&now, &self->views[f])) return rebuild(self);
    }
    return 0;
}

int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows)
{
    for (int32_t f = 0; f < self->count; f++) {
        const fl_py_windows *windows = windows_of(self, f);
        const char *end = NULL;
        if (windows != NULL && fl_py_windows_check_files(windows) != 0) return -1;
        if (fl_py_mapped_file_end(PyTuple_GET_ITEM(self->fields.files, f), &end) != 0) return -1;
        if (end == NULL) continue;
        int64_t row = fl_table_row_behind(self->table, f, rows, end);
        if (row < 0) continue;
        fl_err err = {.code = FL_ESOURCE, .field = f, .value = row};
        fl_py_raise(&err, &self->fields);
        return -1;
    }
    return 0;
}

static int check_files(PyObject *files)
{
    for (Py_ssize_t f = 0; f < PyTuple_GET_SIZE(files); f++)
        if (fl_py_mapped_file_check(PyTuple_GET_ITEM(files, f)) != 0) return -1;
    return 0;
}

static int check_plans(PyTypeObject *type, PyObject *plans, Py_ssize_t count)
{
    fl_py_state *state = PyType_GetModuleState(type);
    bool fits = PyTuple_Check(plans) && PyTuple_GET_SIZE(plans) == count;
    for (Py_ssize_t f = 0; fits && f < count; f++) {
        PyObject *plan = PyTuple_GET_ITEM(plans, f);
        fits = plan == Py_None || Py_IS_TYPE(plan, state->image_plan_type);
    }
    if (fits || plans == Py_None) return 0;
    PyErr_Format(PyExc_TypeError, "Table needs an ImagePlan or None for each of %zd sources",
                 count);
    return -1;
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
    self->count = like->count;
    self->is_cut = like->is_cut;
    for (int32_t f = 0; f < self->count; f++) {
        self->has_plans |= plan_of(self, f) != NULL;
        if (windows_of(self, f) != NULL) self->fields.token_files = windows_of(self, f)->names;
    }
    if (fl_py_dlpack_open(tensor_type, &self->dlpack) != 0 || rebuild(self) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"sources", "tensor_type", "names", "files", "plans", NULL};
    PyObject *tensor_type;
    fl_py_table given = {.plans = Py_None};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!OO!O!|O:Table", keywords, &PyTuple_Type, &given.sources, &tensor_type,
            &PyTuple_Type, &given.fields.names, &PyTuple_Type, &given.fields.files, &given.plans))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given.sources);
    if (PyTuple_GET_SIZE(given.fields.names) != count ||
        PyTuple_GET_SIZE(given.fields.files) != count || count > INT32_MAX)
        return PyErr_Format(PyExc_ValueError,
                            "Table needs a name and a file (or None) for each of %zd sources",
                            count);
    if (check_files(given.fields.files) != 0 || check_plans(type, given.plans, count) != 0)
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
    fl_table_close(self->table);
    fl_free(self->views);
    fl_py_dlpack_close(&self->dlpack);
    Py_XDECREF(self->sources);
    Py_XDECREF(self->plans);
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
             "cut()\n--\n\n"
             "The same table for batches whose images go to a device as bytes and are cast there;\n"
             "itself, if no plan can be cut.");

static PyObject *table_cut(fl_py_table *self, PyObject *Py_UNUSED(ignored))
{
    fl_py_table cut = *self;
    bool has_casts = false;
    cut.is_cut = true;
    for (int32_t f = 0; f < self->count; f++) has_casts |= is_cast(&cut, f);
    if (!has_casts) return Py_NewRef(self);
    return make_table(Py_TYPE(self), &cut, (PyObject *)self->dlpack.tensor_type);
}

static PyObject *table_outputs(fl_py_table *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(fl_table_outputs(self->table));
}

static PyGetSetDef table_getset[] = {
    {"outputs", (getter)table_outputs, NULL, "how many tensors a batch has", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef table_methods[] = {
    {"cut", (PyCFunction)table_cut, METH_NOARGS, cut_doc},
    {"read_row", (PyCFunction)table_read_row, METH_VARARGS, read_row_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(
    table_doc,
    "Table(sources, tensor_type, names, files, plans=None)\n--\n\n"
    "Fields of equal length as the core reads them.\n\n"
    "sources: tuple of CPU tensors (exactly tensor_type) and ndarrays, at least 1-d, of\n"
    "SequenceColumns, and of at most one Windows, which gives each batch several tensors.\n"
    "names: how errors call each field. files: None, or for a mapped field, whose memory is\n"
    "then read safely, (path, address at which byte 0 of the file would be mapped,\n"
    "function that returns its size now, or None). plans: for each field an ImagePlan that makes\n"
    "its rows of a batch, or None.");

static PyType_Slot table_slots[] = {{Py_tp_doc, (void *)table_doc},
                                    {Py_tp_new, table_new},
                                    {Py_tp_traverse, table_traverse},
                                    {Py_tp_dealloc, table_dealloc},
                                    {Py_tp_methods, table_methods},
                                    {Py_tp_getset, table_getset},
                                    {0, NULL}};

PyType_Spec fl_py_table_spec = {.name = "fastloop._core.Table",
                                .basicsize = sizeof(fl_py_table),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                         Py_TPFLAGS_IMMUTABLETYPE,
                                .slots = table_slots};
