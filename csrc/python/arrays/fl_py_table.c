/* fl_py_table: see fl_py_table.h. Keeps sources alive while views into them exist. Each kind of
 * source knows how to read its objects (fl_py_source). */
#include "fl_py_table.h"

#include "fl_py_mapped_file.h"

#include <stddef.h>
#include <structmember.h>

/* Opens a table of columns over these parts: 0, or -1 and an exception. The caller owns *out. */
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

/* Looks at the arrays' present addresses: 0, or -1 and an exception. */
static int look_at_parts(const fl_py_table *self, fl_py_part *parts)
{
    for (int64_t i = 0; i < self->part_count; i++)
        if (parts[i].array != NULL &&
            fl_py_view(&self->dlpack, parts[i].array, &parts[i].view) != 0)
            return -1;
    return 0;
}

/* Rebuilds views and table: 0, or -1 and an exception, and then nothing has changed. */
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
    size_t dims = (size_t)a->ndim * sizeof *a->shape;
    return a->data == b->data && a->ndim == b->ndim && a->dtype.code == b->dtype.code &&
           a->dtype.bits == b->dtype.bits && memcmp(a->shape, b->shape, dims) == 0 &&
           memcmp(a->stride, b->stride, dims) == 0;
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

/* Notes an array's present address. An array that has changed in a different way is left alone. */
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
    if (!is_same_view(&now, &part->view)) return; /* the next refresh rebuilds the table */
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

/* ---- the fields */

/* Describes field f. Returns the number of its parts, or -1 and an exception. */
static int64_t describe(fl_py_table *self, int32_t f)
{
    const fl_py_state *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *object, *name, *file;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(self->fields.all, f), "OUO:Table", &object, &name,
                          &file))
        return -1;
    self->each[f] = (fl_py_source){.ops = fl_py_source_find(state, object),
                                   .state = state,
                                   .dlpack = &self->dlpack,
                                   .object = object,
                                   .file = file,
                                   .share = self->share};
    self->has_views |= self->each[f].ops->has_views;
    return self->each[f].ops->list(&self->each[f], NULL);
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

static PyObject *
make_table(PyTypeObject *type, PyObject *tensor_type, PyObject *fields, fl_py_host_share share)
{
    fl_err err;
    fl_py_table *self = (fl_py_table *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->fields.all = Py_NewRef(fields);
    self->count = (int32_t)PyTuple_GET_SIZE(fields);
    self->share = share;
    bool has_gate = fl_gate_init(&self->gate, &err) == FL_OK;
    if (!has_gate) fl_py_raise(&err, NULL);
    if (has_gate && fl_py_dlpack_open(tensor_type, &self->dlpack) == 0 && open_sources(self) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"tensor_type", "fields", NULL};
    PyObject *tensor_type, *fields;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:Table", keywords, &tensor_type,
                                     &PyTuple_Type, &fields))
        return NULL;
    return make_table(type, tensor_type, fields, FL_PY_HOST_ALL);
}

static int table_traverse(fl_py_table *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->dlpack.tensor_type);
    Py_VISIT(self->fields.all);
    return 0;
}

/* There is no tp_clear, because a reader may still be copying from the sources. A cycle through a
 * table is broken at the ArrayLoader, which stops its readers first. */

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
    Py_XDECREF(self->fields.all);
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(for_device_doc,
             "for_device(runs_plans=False)\n--\n\n"
             "Return a table of the same fields for batches that go to a device: images arrive\n"
             "as uint8 and tokens in the file's integer type, and the device casts both.\n"
             "Returns this table if the device has nothing to cast. runs_plans: if an image\n"
             "plan has a map, the device runs the whole plan.");

static PyObject *table_for_device(fl_py_table *self, PyObject *args)
{
    int runs_plans = 0;
    if (!PyArg_ParseTuple(args, "|p:for_device", &runs_plans)) return NULL;
    fl_py_host_share share = runs_plans ? FL_PY_HOST_LEAST : FL_PY_HOST_PART;
    bool has_casts = false;
    for (int32_t f = 0; f < self->count; f++) {
        fl_py_source source = self->each[f];
        source.share = share;
        has_casts |= source.ops->is_cast != NULL && source.ops->is_cast(&source);
    }
    if (!has_casts) return Py_NewRef(self);
    PyObject *tensor_type = (PyObject *)self->dlpack.tensor_type;
    return make_table(Py_TYPE(self), tensor_type, self->fields.all, share);
}

static PyObject *table_outputs(fl_py_table *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(fl_table_outputs(self->table));
}

static PyMemberDef table_members[] = {
    {"fields", T_OBJECT_EX, offsetof(fl_py_table, fields.all), READONLY,
     "the fields that were given to the table"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fl_py_table, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyGetSetDef table_getset[] = {
    {"outputs", (getter)table_outputs, NULL, "the number of tensors in a batch", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef table_methods[] = {
    {"for_device", (PyCFunction)table_for_device, METH_VARARGS, for_device_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(table_doc,
             "Table(tensor_type, fields)\n--\n\n"
             "Fields of equal length that the core reads. `fields` is a tuple with (source,\n"
             "name, file) for each field.\n\n"
             "source: one of the following objects. A CPU tensor (exactly tensor_type) or an\n"
             "ndarray with at least one dimension. (array, plan): an ImagePlan or ImageDraws\n"
             "makes images from the array. (cast, array, rows, array, rows, ...): the field's\n"
             "rows lie in several arrays; `rows` is an int64 vector, or the number of rows if\n"
             "the field takes every row of the array; `cast` is None, \"int64\" for integers or\n"
             "\"float32\" for float64. A SequenceColumn. Windows, for at most one field; the\n"
             "field makes several tensors.\n\n"
             "name: the name of the field in error messages. file: None, or for memory of a\n"
             "mapped file (path, address at which byte 0 of the file would be mapped, function\n"
             "that returns the file's present size, or None); the core then reads the memory\n"
             "safely. A field with several arrays has a tuple with one `file` for each array.");

static PyType_Slot table_slots[] = {
    {Py_tp_doc, (void *)table_doc},   {Py_tp_new, table_new},
    {Py_tp_traverse, table_traverse}, {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},   {Py_tp_getset, table_getset},
    {Py_tp_members, table_members},   {0, NULL}};

PyType_Spec fl_py_table_spec = FL_PY_SPEC("Table", fl_py_table, Py_TPFLAGS_HAVE_GC, table_slots);
