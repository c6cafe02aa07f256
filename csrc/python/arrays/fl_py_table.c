/* fl_py_table: see fl_py_table.h. Keeps sources alive while views into them exist; what each is,
 * its kind knows (fl_py_source). */
#include "fl_py_table.h"

#include "fl_py_mapped_file.h"

#include <stddef.h>
#include <structmember.h>

/* A table of columns over these parts, or -1 and an exception. The caller owns *out. */
static int open_table(const fl_py_table *self, const fl_py_part *parts, fl_table **out)
{
    fl_err err = {.code = FL_ENOMEM, .text = "out of memory for a table"};
    fl_column **columns = fl_alloc(self->count * (int64_t)sizeof *columns);
    int status = columns != NULL ? FL_OK : FL_ENOMEM;
    for (int32_t f = 0; status == FL_OK && f < self->count; f++) {
        const fl_py_source *source = &self->each[f];
        status = fl_column_name_field(&err, source->ops->open(source, parts, &columns[f], &err), f);
        parts += source->count;
    }
    if (status == FL_OK) status = fl_table_open(columns, self->count, out, &err);
    for (int32_t f = 0; columns != NULL && status != FL_OK && f < self->count; f++)
        fl_column_close(columns[f]);
    fl_free(columns);
    if (status == FL_OK) return 0;
    if (!PyErr_Occurred()) fl_py_raise(&err, &self->fields);
    return -1;
}

/* Arrays at their present addresses. */
static int look_at_parts(const fl_py_table *self, fl_py_part *parts)
{
    for (int64_t i = 0; i < self->part_count; i++)
        if (parts[i].array != NULL &&
            fl_py_view(&self->dlpack, parts[i].array, &parts[i].view) != 0)
            return -1;
    return 0;
}

/* Views and table anew; nothing changes on failure. */
static int rebuild(fl_py_table *self)
{
    fl_table *table;
    int64_t bytes = self->part_count * (int64_t)sizeof *self->parts;
    fl_py_part *parts = fl_alloc(bytes);
    if (parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(parts, self->parts, (size_t)bytes);
    if (look_at_parts(self, parts) != 0 || open_table(self, parts, &table) != 0) {
        fl_free(parts);
        return -1;
    }
    fl_table_close(self->table);
    fl_free(self->parts);
    fl_table_guard(table, &self->gate);
    self->table = table;
    self->parts = parts;
    return 0;
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
    for (int64_t i = 0; i < self->part_count; i++) {
        fl_tensor now;
        const fl_py_part *part = &self->parts[i];
        if (part->array == NULL) continue;
        if (fl_py_view(&self->dlpack, part->array, &now) != 0) return -1;
        if (!is_same_view(&now, &part->view)) return rebuild(self);
    }
    return 0;
}

/* An array where it lies now. */
static void look_at_part(fl_py_table *self, fl_py_part *part)
{
    fl_tensor now;
    if (part->array == NULL || !fl_py_is_tensor(&self->dlpack, part->array)) return;
    if (fl_py_view(&self->dlpack, part->array, &now) != 0) {
        PyErr_Clear();
        return;
    }
    const char *data = now.data;
    now.data = part->view.data;
    if (!is_same_view(&now, &part->view)) return; /* refresh will see to it */
    part->view.data = data;
    fl_table_move(self->table, part->field, part->number, data);
}

void fl_py_table_look(fl_py_table *self)
{
    for (int64_t i = 0; i < self->part_count; i++) look_at_part(self, &self->parts[i]);
    for (int32_t f = 0; f < self->count; f++) {
        const fl_py_source *source = &self->each[f];
        if (source->ops->look != NULL) source->ops->look(source, self->table, f);
    }
}

/* Returns -1 and sets OSError if the array's file has become too short for one of the rows. */
static int check_file(const fl_py_table *self, const fl_py_part *part, const fl_rows *rows)
{
    const char *end = NULL;
    if (fl_py_mapped_file_end(part->file, &end) != 0) return -1;
    int32_t f = part->field, number = part->number;
    int64_t row = end != NULL ? fl_table_row_behind(self->table, f, number, rows, end) : -1;
    if (row < 0) return 0;
    fl_err err = {.code = FL_ESOURCE, .field = f, .position = number, .value = row};
    fl_py_raise(&err, &self->fields);
    return -1;
}

int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows)
{
    for (int32_t f = 0; f < self->count; f++) {
        const fl_py_source *source = &self->each[f];
        if (source->ops->check_files != NULL && source->ops->check_files(source) != 0) return -1;
    }
    for (int64_t i = 0; i < self->part_count; i++)
        if (check_file(self, &self->parts[i], rows) != 0) return -1;
    return 0;
}

/* ---- what the arguments say */

static bool is_plan(const fl_py_state *state, PyObject *plan)
{
    return plan == Py_None || Py_IS_TYPE(plan, state->image_plan_type) ||
           Py_IS_TYPE(plan, state->image_draws_type);
}

static bool is_cast_of(const fl_py_source *source)
{
    PyObject *cast = source->cast;
    return cast == Py_None || (source->ops->can_convert && PyUnicode_Check(cast) &&
                               (PyUnicode_CompareWithASCIIString(cast, "int64") == 0 ||
                                PyUnicode_CompareWithASCIIString(cast, "float32") == 0));
}

static PyObject *refuse_plans(Py_ssize_t count)
{
    return PyErr_Format(PyExc_TypeError,
                        "Table needs an ImagePlan, ImageDraws or None for each of %zd sources",
                        count);
}

/* Describes source f: how many parts it has, or -1 and TypeError. */
static int64_t describe(fl_py_table *self, int32_t f)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    fl_py_source *source = &self->each[f];
    *source =
        (fl_py_source){.dlpack = &self->dlpack,
                       .object = PyTuple_GET_ITEM(self->sources, f),
                       .file = PyTuple_GET_ITEM(self->fields.files, f),
                       .plan = self->plans != Py_None ? PyTuple_GET_ITEM(self->plans, f) : Py_None,
                       .cast = self->casts != Py_None ? PyTuple_GET_ITEM(self->casts, f) : Py_None,
                       .is_cut = self->is_cut,
                       .is_whole = self->is_whole};
    source->ops = fl_py_source_find(state, source->object, source->plan);
    self->has_plans |= source->plan != Py_None;
    if (!is_plan(state, source->plan))
        (void)refuse_plans(self->count);
    else if (!is_cast_of(source))
        PyErr_SetString(PyExc_TypeError, "casts are None, or for segments \"int64\" or "
                                         "\"float32\" besides");
    else
        return source->ops->list(source, NULL);
    return -1;
}

static void list_parts(fl_py_table *self)
{
    fl_py_part *part = self->parts;
    for (int32_t f = 0; f < self->count; f++) {
        fl_py_source *source = &self->each[f];
        (void)source->ops->list(source, part);
        for (int32_t number = 0; number < source->count; number++, part++) {
            source->is_volatile |= part->file != Py_None;
            part->field = f;
            part->number = number;
        }
        if (source->ops->token_files != NULL)
            self->fields.token_files = source->ops->token_files(source);
    }
}

static int open_sources(fl_py_table *self)
{
    self->each = fl_alloc(self->count * (int64_t)sizeof *self->each);
    for (int32_t f = 0; self->each != NULL && f < self->count; f++) {
        int64_t count = describe(self, f);
        if (count < 0) return -1;
        self->each[f].count = count;
        self->part_count += count;
    }
    self->parts = fl_alloc(self->part_count * (int64_t)sizeof *self->parts);
    if (self->each != NULL && self->parts != NULL) {
        list_parts(self);
        return rebuild(self);
    }
    PyErr_NoMemory();
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
    self->casts = Py_NewRef(like->casts);
    self->count = like->count;
    self->is_cut = like->is_cut;
    self->is_whole = like->is_whole;
    fl_err err;
    bool has_gate = fl_gate_init(&self->gate, &err) == FL_OK;
    if (!has_gate) fl_py_raise(&err, NULL);
    if (!has_gate || fl_py_dlpack_open(tensor_type, &self->dlpack) != 0 ||
        open_sources(self) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static bool is_of_each(PyObject *objects, Py_ssize_t count)
{
    return objects == Py_None || (PyTuple_Check(objects) && PyTuple_GET_SIZE(objects) == count);
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
    if (!is_of_each(given.plans, count)) return refuse_plans(count);
    if (!is_of_each(given.casts, count))
        return PyErr_Format(PyExc_TypeError, "Table needs a cast or None for each of %zd sources",
                            count);
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
    fl_free(self->each);
    fl_free(self->parts);
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
    for (int32_t f = 0; f < self->count; f++) {
        fl_py_source source = self->each[f];
        source.is_cut = true;
        source.is_whole = cut.is_whole;
        has_casts |= source.ops->is_cast != NULL && source.ops->is_cast(&source);
    }
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
