/* fl_py_sequences: the sequences of one field of a batch, and the tensor of all sequences.
 *
 * The sequences are either all lists and tuples of plain numbers, or all 1-D tensors and ndarrays
 * of one dtype; any other mix is not covered. The caller sets each sequence's start in the tensor,
 * for padding or for packing. All functions need the interpreter lock; long copies of arrays give
 * up the lock. */
#ifndef FL_PY_SEQUENCES_H
#define FL_PY_SEQUENCES_H

#include "fl_py_stack.h"

/* A result of opening, besides 0 and an exception (-1). */
enum { FL_PY_UNCOVERED = 1 };

/* The kinds of numbers in lists; each kind can also hold the kinds before it. */
typedef enum fl_py_number_kind {
    FL_PY_NUMBER_BOOL,
    FL_PY_NUMBER_INT,
    FL_PY_NUMBER_FLOAT,
    FL_PY_NUMBER_OTHER
} fl_py_number_kind;

typedef struct fl_py_sequence {
    PyObject *list; /* borrowed from its value: a list or tuple; NULL: the elements lie in memory */
    const char *data; /* borrowed from its value: the first element */
    int64_t stride;   /* bytes */
    int64_t whole;    /* number of elements in the value */
    int64_t length;   /* number of leading elements taken; all, until the caller takes fewer */
    int64_t start;    /* set by the caller: index in the tensor, in elements; at or after the end of
                         the previous run */
} fl_py_sequence;

typedef struct fl_py_sequences {
    PyObject **values;    /* owned, and so is a reference to each value */
    fl_py_sequence *runs; /* owned */
    Py_ssize_t count;     /* of values, and of runs */
    bool has_lists;
    fl_py_number_kind kind; /* of lists */
    fl_dtype from;          /* of elements in memory */
    fl_dtype to;
} fl_py_sequences;

/* The properties of the tensor that the sequences do not decide. */
typedef struct fl_py_sequences_rule {
    PyObject *fill; /* borrowed: returns the bytes of one padding element for a dtype's number */
    int is_widened; /* integers in memory become int64 */
    int is_label;   /* the first element of each run is padding */
    int float_bits; /* bits of the floats that lists of floats become */
    int64_t shape[2];
} fl_py_sequences_rule;

/* Looks at a list of values once, and takes references to the values: 0, FL_PY_UNCOVERED, or -1 and
 * an exception. The caller closes *out in all three cases. */
int fl_py_sequences_open(fl_py_stacker *stacker, PyObject *values, fl_py_sequences *out);
void fl_py_sequences_close(fl_py_sequences *self);

/* Makes the tensor: each run at its start, and padding in between. New reference. Returns
 * NotImplemented if the runs are not covered; the numbers in a list are read only now. */
PyObject *fl_py_sequences_tensor(fl_py_stacker *stacker, fl_py_sequences *self,
                                 const fl_py_sequences_rule *rule);

/* Gets the bytes of one padding element, at most 8, from a rule's `fill`: 0, or -1 and an
 * exception. */
int fl_py_sequences_find_padding(PyObject *fill, fl_dtype dtype, char *element);

/* Raises MemoryError: no memory can hold that many rows of this width. Returns NULL. */
void *fl_py_sequences_fail_size(int64_t rows);

#endif
