/* fl_py_error: the only file that turns a status of the lower floors into an exception. */
#ifndef FL_PY_ERROR_H
#define FL_PY_ERROR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_base.h"

/* The names that errors give to the fields of a table. */
typedef struct fl_py_fields {
    PyObject *all;         /* owned by the table: tuple of (source, name, file) */
    PyObject *token_files; /* borrowed from the Windows that are read: tuple of the file names;
                              NULL: no tokens are read */
} fl_py_fields;

/* Sets the exception for err->code and returns NULL. FL_ESOURCE, FL_EFILE and FL_ETOKEN need
 * `fields`; if neither a table nor tokens are read, `fields` is NULL. */
PyObject *fl_py_raise(const fl_err *err, const fl_py_fields *fields);

/* Returns 0 for FL_OK; otherwise -1 with an exception: the exception that is set already, or as
 * fl_py_raise. */
int fl_py_check(int status, const fl_err *err, const fl_py_fields *fields);

/* Raises an exception as PyErr_Format does. The value is -1. */
#define FL_PY_FAIL(...) ((void)PyErr_Format(__VA_ARGS__), -1)

#endif
