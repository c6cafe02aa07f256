/* fl_py_token_file: the layout of token files, for the Python that opens them.
 *
 * Functions of the module; all need the interpreter lock. A layout is a tuple (dtype, first byte,
 * tokens). Bytes that are not what they should be are a ValueError, a sentence that has the file as
 * its subject. */
#ifndef FL_PY_TOKEN_FILE_H
#define FL_PY_TOKEN_FILE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_token_type.h"

extern const char fl_py_token_header_doc[];
extern const char fl_py_token_index_doc[];

/* The type of a dtype's name. 0, or -1 and ValueError. */
int fl_py_token_type(const char *name, fl_token_type *out);

/* token_header(head, file_bytes, format, dtype) */
PyObject *fl_py_token_header(PyObject *module, PyObject *args);

/* token_index(index, file_bytes, format, dtype) */
PyObject *fl_py_token_index(PyObject *module, PyObject *args);

#endif
