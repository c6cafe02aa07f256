/* fl_py_error: see fl_py_error.h. */
#include "fl_py_error.h"

#include <errno.h>

static PyObject *raise_index(const fl_err *err)
{
    if (err->length == 0)
        return PyErr_Format(
            PyExc_IndexError,
            "index %lld at position %lld of the batch is out of bounds: the dataset "
            "has length 0",
            (long long)err->value, (long long)err->position);
    return PyErr_Format(PyExc_IndexError,
                        "index %lld at position %lld of the batch is out of bounds for a dataset "
                        "of length %lld; samplers and the indices of a Subset must lie between "
                        "%lld and %lld",
                        (long long)err->value, (long long)err->position, (long long)err->length,
                        (long long)-err->length, (long long)err->length - 1);
}

static PyObject *raise_source(const fl_err *err, const fl_py_fields *fields)
{
    PyObject *field = PyTuple_GET_ITEM(fields->all, err->field), *file = PyTuple_GET_ITEM(field, 2);
    bool is_one = PyUnicode_Check(PyTuple_GET_ITEM(file, 0));
    if (!is_one) file = PyTuple_GET_ITEM(file, err->position);
    PyObject *path = file != Py_None ? PyTuple_GET_ITEM(file, 0) : Py_None;
    PyObject *text = PyUnicode_FromFormat(
        "%U, row %lld can no longer be read: the mapped file has become shorter than the array; "
        "restore the file and open the dataset again",
        PyTuple_GET_ITEM(field, 1), (long long)err->value);
    PyObject *error =
        text != NULL ? PyObject_CallFunction(PyExc_OSError, "iOO", EIO, text, path) : NULL;
    if (error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(text);
    return NULL;
}

/* Reports a faulty file of tokens: an OSError carries the file's name and errno, and a ValueError
 * has the name before its text. */
static PyObject *raise_token_file(const fl_err *err, const fl_py_fields *fields)
{
    PyObject *name = PyTuple_GET_ITEM(fields->token_files, err->position);
    if (err->code == FL_ETOKEN) return PyErr_Format(PyExc_ValueError, "%U: %s", name, err->text);
    int number = err->length != 0 ? (int)err->length : EIO;
    PyObject *error = PyObject_CallFunction(PyExc_OSError, "isO", number, err->text, name);
    if (error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

/* Finds torch's exception class of this name. If torch is not loaded or has no such class, returns
 * RuntimeError, the base class. New reference; NULL: an exception is set. */
static PyObject *find_device_error(const char *name)
{
    PyObject *key = PyUnicode_FromString("torch");
    PyObject *torch = key != NULL ? PyImport_GetModule(key) : NULL;
    PyObject *type = torch != NULL ? PyObject_GetAttrString(torch, name) : NULL;
    Py_XDECREF(torch);
    Py_XDECREF(key);
    if (type != NULL) return type;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_AttributeError)) return NULL;
    PyErr_Clear();
    return Py_NewRef(PyExc_RuntimeError);
}

/* Raises an error of the device's runtime as torch raises errors of its own calls. */
static PyObject *raise_device(const fl_err *err)
{
    bool is_memory = err->code == FL_ENOMEM;
    PyObject *type = find_device_error(is_memory ? "OutOfMemoryError" : "AcceleratorError");
    PyObject *error = type != NULL ? PyObject_CallFunction(type, "s", err->text) : NULL;
    PyObject *number = error != NULL ? PyLong_FromLongLong(err->value) : NULL;
    if (number != NULL && (is_memory || PyObject_SetAttrString(error, "error_code", number) == 0))
        PyErr_SetObject(type, error);
    Py_XDECREF(number);
    Py_XDECREF(error);
    Py_XDECREF(type);
    return NULL;
}

PyObject *fl_py_raise(const fl_err *err, const fl_py_fields *fields)
{
    PyObject *type = PyExc_RuntimeError;
    switch (err->code) {
    case FL_EINDEX:
        return raise_index(err);
    case FL_ESOURCE:
        return raise_source(err, fields);
    case FL_EFILE:
    case FL_ETOKEN:
        return raise_token_file(err, fields);
    case FL_EDEVICE:
        if (err->value != 0) return raise_device(err);
        break;
    case FL_ENOMEM:
        if (err->value != 0) return raise_device(err);
        type = PyExc_MemoryError;
        break;
    case FL_EINVAL:
        type = PyExc_ValueError;
        break;
    default:
        break;
    }
    PyErr_SetString(type, err->text);
    return NULL;
}

int fl_py_check(int status, const fl_err *err, const fl_py_fields *fields)
{
    if (status == FL_OK) return 0;
    if (!PyErr_Occurred()) fl_py_raise(err, fields);
    return -1;
}
