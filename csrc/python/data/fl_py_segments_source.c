/* fl_py_segments_source: a field with rows in several arrays, one after the next: a tuple (cast,
 * array, rows, array, rows, ...). rows is an int64 vector, or the number of rows of an array that
 * gives all its rows. cast is None, "int64" for integers, "float32", "float64", or "number": int64
 * becomes float32 by way of float64. The field has a tuple of files, one for each array. */
#include "fl_py_source.h"

#include "fl_column_segments.h"
#include "fl_cpu_convert.h"
#include "fl_cpu_rows.h"
#include "fl_py_indices.h"
#include "fl_py_mapped_file.h"

#include <string.h>

static int64_t list(const fl_py_source *self, fl_py_part *parts)
{
    Py_ssize_t size = PyTuple_GET_SIZE(self->object), count = size / 2;
    if (count == 0 || size % 2 == 0 || count > INT32_MAX || !PyTuple_CheckExact(self->file) ||
        PyTuple_GET_SIZE(self->file) != count)
        return FL_PY_FAIL(PyExc_TypeError, "segments must be a cast and pairs of an array and its "
                                           "rows, with a file or None for each pair");
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *file = PyTuple_GET_ITEM(self->file, i);
        if (fl_py_mapped_file_check(file) != 0) return -1;
        if (parts == NULL) continue;
        parts[i] = (fl_py_part){.array = PyTuple_GET_ITEM(self->object, 2 * i + 1), .file = file};
    }
    return count;
}

/* Sets the dtype to which the rows are converted. Without a cast the rows keep their dtype. */
static int set_cast(const fl_py_source *self, fl_column_segments_config *config, fl_err *err)
{
    PyObject *cast = PyTuple_GET_ITEM(self->object, 0);
    if (cast == Py_None) return FL_OK;
    const char *name = PyUnicode_Check(cast) ? PyUnicode_AsUTF8(cast) : NULL;
    if (name != NULL && strcmp(name, "int64") == 0)
        config->dtype = (fl_dtype){kDLInt, 64, 1};
    else if (name != NULL && (strcmp(name, "float32") == 0 || strcmp(name, "number") == 0))
        config->dtype = (fl_dtype){kDLFloat, 32, 1};
    else if (name != NULL && strcmp(name, "float64") == 0)
        config->dtype = (fl_dtype){kDLFloat, 64, 1};
    else
        return fl_fail(err, FL_EINVAL, "must have a cast to int64, float32, float64 or number");
    fl_dtype from = config->segments[0].view.dtype;
    bool is_int64 = from.code == kDLInt && from.bits == 64 && from.lanes == 1;
    config->convert = fl_cpu_find_convert(from, config->dtype);
    if (strcmp(name, "number") == 0) config->convert = is_int64 ? fl_cpu_round_twice : NULL;
    if (config->convert != NULL) return FL_OK;
    return fl_fail(err, FL_EINVAL, "must have a dtype that fastloop casts to %s", name);
}

/* Reads the rows of a segment: 0, or -1 and an exception for impossible rows. */
static int set_rows(const fl_py_source *self, PyObject *rows, fl_segment *segment)
{
    fl_tensor view;
    if (PyLong_Check(rows)) {
        segment->count = PyLong_AsLongLong(rows);
        return segment->count == -1 && PyErr_Occurred() ? -1 : 0;
    }
    if (fl_py_index_vector(self->dlpack, rows, &view) != 0) return -1;
    segment->index = (const int64_t *)(const void *)view.data;
    segment->count = view.shape[0];
    return 0;
}

static int
open_segments(const fl_py_source *self, const fl_py_part *parts, fl_column **out, fl_err *err)
{
    fl_segment *segments = fl_alloc(self->count * (int64_t)sizeof *segments);
    if (segments == NULL) return fl_fail(err, FL_ENOMEM, "has no memory for a column");
    int status = FL_OK;
    for (int64_t i = 0; status == FL_OK && i < self->count; i++) {
        segments[i].view = parts[i].view;
        status = set_rows(self, PyTuple_GET_ITEM(self->object, 2 * i + 2), &segments[i]);
    }
    fl_column_segments_config config = {.segments = segments,
                                        .count = (int32_t)self->count,
                                        .is_volatile = self->is_volatile,
                                        .row_ops = &fl_cpu_row_ops};
    if (status == FL_OK) status = set_cast(self, &config, err);
    if (status == FL_OK) status = fl_column_segments_open(&config, out, err);
    fl_free(segments);
    return status;
}

const fl_py_source_ops fl_py_segments_source_ops = {.list = list, .open = open_segments};
