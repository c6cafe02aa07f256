/* fl_py_mapped_file: see fl_py_mapped_file.h. */
#include "fl_py_mapped_file.h"

#include "fl_py_error.h"

int fl_py_mapped_file_check(PyObject *file)
{
    if (file == Py_None) return 0;
    if (!PyTuple_Check(file) || PyTuple_GET_SIZE(file) != 3)
        return FL_PY_FAIL(PyExc_TypeError, "a mapped file must be (path, address, size) or None");
    return PyLong_AsVoidPtr(PyTuple_GET_ITEM(file, 1)) == NULL && PyErr_Occurred() ? -1 : 0;
}

int fl_py_mapped_file_end(PyObject *file, const char **end)
{
    *end = NULL;
    if (file == Py_None || PyTuple_GET_ITEM(file, 2) == Py_None) return 0;
    PyObject *size = PyObject_CallNoArgs(PyTuple_GET_ITEM(file, 2));
    int64_t bytes = size != NULL ? PyLong_AsLongLong(size) : -1;
    Py_XDECREF(size);
    if (bytes == -1 && PyErr_Occurred()) return -1;
    *end = (const char *)PyLong_AsVoidPtr(PyTuple_GET_ITEM(file, 1)) + bytes;
    return 0;
}
