/* fl_py_windows: the heap type _core.Windows: windows of tokens in files and arrays, as samples and
 * as batches.
 *
 * It owns a duplicate of each file descriptor, and references to the arrays. */
#ifndef FL_PY_WINDOWS_H
#define FL_PY_WINDOWS_H

#include "fl_column_window.h"
#include "fl_py_dlpack.h"

typedef struct fl_py_windows {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_windows *windows;     /* owned */
    fl_token_reader *reader; /* owned; borrows from fds and kept */
    int *fds;                /* owned: `files` of them; -1: an array */
    int64_t files;
    PyObject *names;                /* owned: tuple of str, one for each file */
    PyObject *kept;                 /* owned: list of the arrays that are read from */
    fl_column_window_config column; /* what tables read */
    int32_t tensors;                /* that a sample has */
    fl_dtype dtype[FL_WINDOW_OUTPUTS];
} fl_py_windows;

extern PyType_Spec fl_py_windows_spec;

#endif
