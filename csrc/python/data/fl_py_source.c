/* fl_py_source: see fl_py_source.h. This file also has the plainest kind: the rows of one array. */
#include "fl_py_source.h"

#include "fl_column_rows.h"
#include "fl_cpu_rows.h"
#include "fl_py_mapped_file.h"

/* Finds the kind of an object. */
static const fl_py_source_ops *find_ops(const fl_py_state *state, PyObject *object)
{
    if (Py_IS_TYPE(object, state->windows_type)) return &fl_py_windows_source_ops;
    if (Py_IS_TYPE(object, state->sequence_column_type)) return &fl_py_sequence_source_ops;
    if (!PyTuple_CheckExact(object)) return &fl_py_array_source_ops;
    bool is_pair = PyTuple_GET_SIZE(object) == 2;
    return is_pair ? &fl_py_images_source_ops : &fl_py_segments_source_ops;
}

int fl_py_source_read(fl_py_source *self, PyObject *field)
{
    PyObject *name;
    if (!PyArg_ParseTuple(field, "OUO:Table", &self->object, &name, &self->file)) return -1;
    self->ops = find_ops(self->state, self->object);
    self->count = self->ops->list(self, NULL);
    return self->count < 0 ? -1 : 0;
}

void fl_py_source_list(fl_py_source *self, int32_t f, fl_py_part *parts)
{
    (void)self->ops->list(self, parts);
    for (int32_t number = 0; number < self->count; number++) {
        self->is_volatile |= parts[number].file != Py_None;
        parts[number].field = f;
        parts[number].number = number;
    }
}

int fl_py_part_check_file(const fl_py_part *part, const fl_table *table, const fl_rows *rows,
                          fl_err *err)
{
    const char *end = NULL;
    if (fl_py_mapped_file_end(part->file, &end) != 0) return -1;
    int32_t f = part->field, number = part->number;
    int64_t row = end != NULL ? fl_table_row_beyond(table, f, number, rows, end) : -1;
    if (row < 0) return FL_OK;
    *err = (fl_err){.code = FL_ESOURCE, .field = f, .position = number, .value = row};
    return FL_ESOURCE;
}

int64_t fl_py_source_list_array(const fl_py_source *self, PyObject *array, fl_py_part *parts)
{
    if (fl_py_mapped_file_check(self->file) != 0) return -1;
    if (parts != NULL) *parts = (fl_py_part){.array = array, .file = self->file};
    return 1;
}

static int64_t list(const fl_py_source *self, fl_py_part *parts)
{
    return fl_py_source_list_array(self, self->object, parts);
}

static int
open_rows(const fl_py_source *self, const fl_py_part *parts, fl_column **out, fl_err *err)
{
    return fl_column_rows_open(&parts->view, self->is_volatile, &fl_cpu_row_ops, out, err);
}

const fl_py_source_ops fl_py_array_source_ops = {.list = list, .open = open_rows};
