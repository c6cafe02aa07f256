/* fl_py_table_arguments: see fl_py_table_arguments.h. */
#include "fl_py_table_arguments.h"

#include "fl_py_mapped_file.h"

#include <stdbool.h>

/* The file of a source, or those of its segments, which are so many pairs. */
static int check_file_of(PyObject *source, PyObject *file)
{
    if (!PyTuple_CheckExact(source)) return fl_py_mapped_file_check(file);
    Py_ssize_t count = PyTuple_GET_SIZE(source);
    if (count == 0 || count % 2 != 0 || count > INT32_MAX || !PyTuple_CheckExact(file) ||
        PyTuple_GET_SIZE(file) != count / 2) {
        PyErr_SetString(PyExc_TypeError, "segments are pairs of an array and its rows, and have a "
                                         "file or None for each");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count / 2; i++)
        if (fl_py_mapped_file_check(PyTuple_GET_ITEM(file, i)) != 0) return -1;
    return 0;
}

static int check_files(PyObject *sources, PyObject *files)
{
    for (Py_ssize_t f = 0; f < PyTuple_GET_SIZE(files); f++)
        if (check_file_of(PyTuple_GET_ITEM(sources, f), PyTuple_GET_ITEM(files, f)) != 0) return -1;
    return 0;
}

static int check_plans(const fl_py_state *state, PyObject *plans, Py_ssize_t count)
{
    bool fits = PyTuple_Check(plans) && PyTuple_GET_SIZE(plans) == count;
    for (Py_ssize_t f = 0; fits && f < count; f++) {
        PyObject *plan = PyTuple_GET_ITEM(plans, f);
        fits = plan == Py_None || Py_IS_TYPE(plan, state->image_plan_type) ||
               Py_IS_TYPE(plan, state->image_draws_type);
    }
    if (fits || plans == Py_None) return 0;
    PyErr_Format(PyExc_TypeError,
                 "Table needs an ImagePlan, ImageDraws or None for each of %zd sources", count);
    return -1;
}

static int check_casts(PyObject *sources, PyObject *casts)
{
    bool fits = PyTuple_Check(casts) && PyTuple_GET_SIZE(casts) == PyTuple_GET_SIZE(sources);
    for (Py_ssize_t f = 0; fits && f < PyTuple_GET_SIZE(casts); f++) {
        PyObject *cast = PyTuple_GET_ITEM(casts, f);
        fits = cast == Py_None ||
               (PyTuple_CheckExact(PyTuple_GET_ITEM(sources, f)) && PyUnicode_Check(cast) &&
                (PyUnicode_CompareWithASCIIString(cast, "int64") == 0 ||
                 PyUnicode_CompareWithASCIIString(cast, "float32") == 0));
    }
    if (fits || casts == Py_None) return 0;
    PyErr_SetString(PyExc_TypeError, "casts are None, or for each source None, and for segments "
                                     "\"int64\" or \"float32\" besides");
    return -1;
}

int fl_py_table_check_arguments(const fl_py_state *state, PyObject *sources, PyObject *files,
                                PyObject *plans, PyObject *casts)
{
    if (check_files(sources, files) != 0 ||
        check_plans(state, plans, PyTuple_GET_SIZE(sources)) != 0)
        return -1;
    return check_casts(sources, casts);
}
