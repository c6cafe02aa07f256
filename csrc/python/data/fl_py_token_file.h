/* fl_py_token_file: finds the layout of token files, for the Python code that opens the files.
 *
 * These are functions of the module; all need the interpreter lock. A layout is a tuple (dtype,
 * first byte, tokens). Wrong bytes are a ValueError; its text is a sentence with the file as the
 * subject. */
#ifndef FL_PY_TOKEN_FILE_H
#define FL_PY_TOKEN_FILE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_token_type.h"

extern const char fl_py_token_header_doc[];
extern const char fl_py_token_index_doc[];

/* Finds the type with a dtype's name. 0, or -1 and ValueError. */
int fl_py_token_type(const char *name, fl_token_type *out);

/* token_header(head, file_bytes, format, dtype) */
PyObject *fl_py_token_header(PyObject *module, PyObject *args);

/* token_index(index, file_bytes, format, dtype) */
PyObject *fl_py_token_index(PyObject *module, PyObject *args);

#endif
