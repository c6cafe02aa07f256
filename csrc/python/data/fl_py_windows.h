/* fl_py_windows: the heap type _core.Windows: windows of tokens in files and arrays, as samples and
 * as batches.
 *
 * It owns the file descriptors, and references to the arrays. */
#ifndef FL_PY_WINDOWS_H
#define FL_PY_WINDOWS_H

#include "fl_column_window.h"
#include "fl_gate.h"
#include "fl_py_dlpack.h"

/* Tokens of an array in a mapped file, which may become shorter. */
typedef struct fl_py_mapped_tokens {
    int64_t number;  /* of the source */
    PyObject *file;  /* borrowed from kept: see fl_py_mapped_file */
    const char *end; /* behind the last token */
} fl_py_mapped_tokens;

typedef struct fl_py_windows {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_windows *windows;     /* owned */
    fl_token_reader *reader; /* owned; borrows from fds and kept */
    PyObject *weakrefs;      /* owned */
    int *fds;                /* owned: `files` of them; -1: an array */
    int64_t files;
    PyObject *names;   /* owned: tuple of str, one for each file */
    PyObject *kept;    /* owned: list of the arrays and files that are read from */
    PyObject *sources; /* owned: tuple of the array of each file; None: it has a descriptor */
    fl_gate gate;      /* around reads: arrays that are tensors may move */
    fl_py_mapped_tokens *mapped; /* owned: `mappings` of them */
    int64_t mappings;
    fl_column_window_config column; /* what tables read */
    int32_t tensors;                /* that a sample has */
    fl_dtype dtype[FL_WINDOW_OUTPUTS];
} fl_py_windows;

extern PyType_Spec fl_py_windows_spec;

/* Where its arrays lie now. While nobody reads, through tables either. */
void fl_py_windows_look(fl_py_windows *self);

/* After tokens have been read: -1 and OSError if the mapped file behind an array has become too
 * short for its tokens meanwhile, in whose place the kernel may have read zeros; else 0. Files that
 * are read by their descriptors are looked at while they are read. */
int fl_py_windows_check_files(const fl_py_windows *self);

#endif
