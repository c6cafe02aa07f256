/* fl_py_table: see fl_py_table.h. Keeps sources alive while views into them exist. Each kind of
 * source knows how to read its objects (fl_py_source). */
#include "fl_py_table.h"

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
    return fl_py_check(status, &err, &self->fields);
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
    self->table = table;
    self->parts = parts;
    return 0;
}

int fl_py_table_refresh(fl_py_table *self)
{
    for (int64_t i = 0; i < self->part_count; i++) {
        fl_tensor now;
        const fl_py_part *part = &self->parts[i];
        if (part->array == NULL) continue;
        if (fl_py_view(&self->dlpack, part->array, &now) != 0) return -1;
        if (!fl_tensor_is_same(&now, &part->view)) return rebuild(self);
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
    if (!fl_tensor_is_same(&now, &part->view)) return; /* the next refresh rebuilds the table */
    part->view.data = data;
    fl_table_move(self->table, part->field, part->number, data);
}

void fl_py_table_look(fl_py_table *self)
{
    for (int64_t i = 0; i < self->part_count; i++) look_at_part(self, &self->parts[i]);
}

int fl_py_table_check_files(fl_py_table *self, const fl_rows *rows)
{
    fl_err err = {0};
    int status = FL_OK;
    for (int32_t f = 0; status == FL_OK && f < self->count; f++) {
        const fl_py_source *source = &self->each[f];
        if (source->ops->check_files != NULL) status = source->ops->check_files(source);
    }
    for (int64_t i = 0; status == FL_OK && i < self->part_count; i++)
        status = fl_py_part_check_file(&self->parts[i], self->table, rows, &err);
    return fl_py_check(status, &err, &self->fields);
}

/* ---- the fields */

/* Opens the sources of the fields, and then the core table: 0, or -1 and an exception. */
static int open_sources(fl_py_table *self)
{
    self->each = fl_alloc(self->count * (int64_t)sizeof *self->each);
    for (int32_t f = 0; self->each != NULL && f < self->count; f++) {
        fl_py_source *source = &self->each[f];
        *source = (fl_py_source){.state = PyType_GetModuleState(Py_TYPE(self)),
                                 .dlpack = &self->dlpack,
                                 .share = self->share};
        if (fl_py_source_read(source, PyTuple_GET_ITEM(self->fields.all, f)) != 0) return -1;
        self->part_count += source->count;
        self->has_views |= source->ops->has_views;
        if (source->ops->token_files != NULL)
            self->fields.token_files = source->ops->token_files(source);
    }
    fl_py_part *part = self->parts = fl_alloc(self->part_count * (int64_t)sizeof *self->parts);
    if (self->each == NULL || part == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int32_t f = 0; f < self->count; part += self->each[f++].count)
        fl_py_source_list(&self->each[f], f, part);
    return rebuild(self);
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
    if (fl_py_check(fl_gate_init(&self->gate, &err), &err, NULL) == 0 &&
        fl_py_dlpack_open(tensor_type, &self->dlpack) == 0 && open_sources(self) == 0)
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
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    fl_table_close(self->table);
    fl_gate_destroy(&self->gate);
    fl_free(self->each);
    fl_free(self->parts);
    fl_py_dlpack_close(&self->dlpack);
    Py_XDECREF(self->fields.all);
    fl_py_free(self);
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
             "source: an object of a kind that fl_py_source.h lists.\n\n"
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
