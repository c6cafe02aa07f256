/* fl_py_mapped_file: a mapped file behind an array, as Python describes it: (path, address at which
 * byte 0 of the file would be mapped, function that returns its size now, or None).
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_MAPPED_FILE_H
#define FL_PY_MAPPED_FILE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* 0; -1 and an exception for what is neither such a tuple nor None. */
int fl_py_mapped_file_check(PyObject *file);

/* 0, and in *end the address behind the file's present last byte; NULL: nobody knows, or
 * it is None. -1 and an exception. Calls Python. */
int fl_py_mapped_file_end(PyObject *file, const char **end);

#endif
