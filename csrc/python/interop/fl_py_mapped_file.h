/* fl_py_mapped_file: the mapped file under an array, as Python describes the file: (path, address
 * at which byte 0 of the file would be mapped, function that returns the file's present size, or
 * None).
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_MAPPED_FILE_H
#define FL_PY_MAPPED_FILE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* Checks `file`: 0; -1 and an exception if it is neither such a tuple nor None. */
int fl_py_mapped_file_check(PyObject *file);

/* Sets *end to the address after the file's present last byte; NULL if the size is not known or
 * `file` is None. 0, or -1 and an exception. Calls Python. */
int fl_py_mapped_file_end(PyObject *file, const char **end);

#endif
