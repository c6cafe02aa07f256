/* fl_py_gather_pieces: makes outputs of sequences with kernels; the sequences' values lie on a CUDA
 * device.
 *
 * This module hides which tables of pieces (fl_piece) the outputs of a batch need, and how the
 * tables travel. All functions need the interpreter lock; any number of threads may make batches at
 * once. */
#ifndef FL_PY_GATHER_PIECES_H
#define FL_PY_GATHER_PIECES_H

#include "fl_py.h"
#include "fl_py_sequence_column.h"
#include "fl_table.h"

typedef struct fl_py_pieces {
    const fl_py_dlpack *dlpack;      /* borrowed */
    fl_py_sequence_column **columns; /* an owned array of `count` borrowed columns */
    int32_t count;
    int32_t *leader; /* owned: for each column the first column that has the same pieces */
    fl_table *table; /* owned; NULL: there is no column */
} fl_py_pieces;

/* Opens the SequenceColumns among `sources`, a tuple. 0, or -1 and ValueError unless the columns
 * all pad or all pack values on a device. The caller closes *self in both cases. */
int fl_py_pieces_open(fl_py_pieces *self, const fl_py_state *state, const fl_py_dlpack *dlpack,
                      PyObject *sources);
void fl_py_pieces_close(fl_py_pieces *self);

/* Makes the outputs of a batch on the current stream, one kernel for 32 columns: a list with one
 * tensor on the device, or one number, for each column. rows: an int64 vector on the CPU. send: a
 * function that copies a CPU tensor to the device. empties: maps a dtype (DLPack's code * 256 +
 * bits) to a function that makes a tensor of a shape on the device. New reference; NULL and an
 * exception. */
PyObject *
fl_py_pieces_make(const fl_py_pieces *self, PyObject *rows, PyObject *send, PyObject *empties);

#endif
