/* fl_py_windows: the heap type _core.Windows: windows of tokens in files and arrays, as samples and
 * as batches.
 *
 * The object owns the file descriptors, and references to the arrays. */
#ifndef FL_PY_WINDOWS_H
#define FL_PY_WINDOWS_H

#include "fl_column_window.h"
#include "fl_gate.h"
#include "fl_py_dlpack.h"

/* Tokens of an array in a mapped file; the file may become shorter. */
typedef struct fl_py_mapped_tokens {
    int64_t number;  /* number of the source */
    PyObject *file;  /* borrowed from kept: see fl_py_mapped_file */
    const char *end; /* the address after the last token */
} fl_py_mapped_tokens;

typedef struct fl_py_windows {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_windows *windows;     /* owned */
    fl_token_reader *reader; /* owned; borrows from fds and kept */
    PyObject *weakrefs;      /* owned */
    int *fds;                /* owned: `files` descriptors; -1: an array */
    int64_t files;
    PyObject *names;   /* owned: tuple of str, one for each file */
    PyObject *kept;    /* owned: list of the arrays and files that are read */
    PyObject *sources; /* owned: tuple of arrays, one for each file; None: a descriptor */
    fl_gate gate;      /* readers enter the gate, because arrays that are tensors may move */
    fl_py_mapped_tokens *mapped; /* owned: `mappings` entries */
    int64_t mappings;
    fl_column_window_config column; /* the column that tables read */
    int32_t tensors;                /* number of tensors in a sample */
    fl_dtype dtype[FL_WINDOW_OUTPUTS];
} fl_py_windows;

extern PyType_Spec fl_py_windows_spec;

/* Updates the addresses of arrays that have moved. Nobody may read meanwhile, nor through
 * tables, which learn the addresses from here. */
void fl_py_windows_look(fl_py_windows *self);

/* Checks mapped files after tokens have been read: -1 and OSError if the file under an array has
 * become too short for its tokens meanwhile; the kernel may then have read zeros instead of tokens.
 * Else 0. Files with descriptors need no check here, because reading them checks them. */
int fl_py_windows_check_files(const fl_py_windows *self);

#endif
