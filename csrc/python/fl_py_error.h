/* fl_py_error: the one place where a status of the lower floors becomes an exception. */
#ifndef FL_PY_ERROR_H
#define FL_PY_ERROR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_base.h"

/* What errors call the fields of a table. */
typedef struct fl_py_fields {
    PyObject *all;         /* owned by the table: tuple of (source, name, file) */
    PyObject *token_files; /* borrowed from the Windows that are read: tuple of the names of its
                              files; NULL: none is */
} fl_py_fields;

/* Sets the exception for err->code and returns NULL. FL_ESOURCE, FL_EFILE and FL_ETOKEN need
 * `fields`, which is NULL where neither a table nor tokens are read. */
PyObject *fl_py_raise(const fl_err *err, const fl_py_fields *fields);

#endif
