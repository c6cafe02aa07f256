/* fl_py_sequences: the sequences of one field of a batch, and the tensor they are written to.
 *
 * Sequences are all lists and tuples of plain numbers, or all 1-D tensors and ndarrays of one
 * dtype; anything else is not covered. Who opens them gives each its place in the tensor, as fits
 * padding or packing. All functions need the interpreter lock; long copies of arrays give it up. */
#ifndef FL_PY_SEQUENCES_H
#define FL_PY_SEQUENCES_H

#include "fl_py_stack.h"

/* What opening may find besides 0 and an exception (-1). */
enum { FL_PY_UNCOVERED = 1 };

/* The numbers of lists; each can hold those before it. */
typedef enum fl_py_number_kind {
    FL_PY_NUMBER_BOOL,
    FL_PY_NUMBER_INT,
    FL_PY_NUMBER_FLOAT,
    FL_PY_NUMBER_OTHER
} fl_py_number_kind;

typedef struct fl_py_sequence {
    PyObject *list;   /* borrowed from its value: a list or tuple; NULL for elements in memory */
    const char *data; /* borrowed from its value: the first element */
    int64_t stride;   /* bytes */
    int64_t whole;    /* elements there are */
    int64_t length;   /* elements taken, the first of them; all, until the caller takes fewer */
    int64_t start;    /* the caller's: its place in the tensor, in elements; not below the end of
                         the run before */
} fl_py_sequence;

typedef struct fl_py_sequences {
    PyObject **values;    /* owned, with a reference to each */
    fl_py_sequence *runs; /* owned */
    Py_ssize_t count;     /* of values, and of runs */
    bool has_lists;
    fl_py_number_kind kind; /* of lists */
    fl_dtype from;          /* of elements in memory */
    fl_dtype to;
} fl_py_sequences;

/* What the tensor is besides its sequences. */
typedef struct fl_py_sequences_rule {
    PyObject *fill; /* borrowed: gives the bytes of the padding for the number of a dtype */
    int is_widened; /* integers in memory become int64 */
    int is_label;   /* the first element of each run is padding */
    int float_bits; /* of what lists of floats become */
    int64_t shape[2];
} fl_py_sequences_rule;

/* Looks at a list of values once, and takes references to these: 0, FL_PY_UNCOVERED, or -1 and an
 * exception. To be closed after each of them. */
int fl_py_sequences_open(fl_py_stacker *stacker, PyObject *values, fl_py_sequences *out);
void fl_py_sequences_close(fl_py_sequences *self);

/* The tensor of the runs at their places, with padding in between. New reference; NotImplemented
 * where they are not covered, which the numbers of a list show only now. */
PyObject *fl_py_sequences_tensor(fl_py_stacker *stacker, fl_py_sequences *self,
                                 const fl_py_sequences_rule *rule);

/* NULL and MemoryError: no memory has so many rows of this width. */
void *fl_py_sequences_fail_size(int64_t rows);

#endif
