/* fl_py_gather_pieces: kernels that make outputs of sequences, whose values lie on a CUDA device.
 *
 * It hides which tables of pieces (fl_piece) the outputs of a batch need, and how the tables
 * travel. All functions need the interpreter lock; any number of threads may make batches at once.
 */
#ifndef FL_PY_GATHER_PIECES_H
#define FL_PY_GATHER_PIECES_H

#include "fl_py.h"
#include "fl_py_sequence_column.h"
#include "fl_table.h"

typedef struct fl_py_pieces {
    const fl_py_dlpack *dlpack;      /* borrowed */
    fl_py_sequence_column **columns; /* owned: `count` of them, borrowed */
    int32_t count;
    int32_t *leader; /* owned: for each column the first column that has the same pieces */
    fl_table *table; /* owned; NULL: there is no column */
} fl_py_pieces;

/* Opens the SequenceColumns among `sources`, a tuple. 0, or -1 and ValueError unless the columns
 * all pad or all pack values on a device. Close it after failure, as well. */
int fl_py_pieces_open(fl_py_pieces *self, const fl_py_state *state, const fl_py_dlpack *dlpack,
                      PyObject *sources);
void fl_py_pieces_close(fl_py_pieces *self);

/* Makes the outputs of a batch, a list of tensors on the device and of numbers, one for each
 * column, by one kernel for 32 columns on the current stream. rows: an int64 vector on the CPU.
 * send: a function that copies a CPU tensor to the device. empties: by dtype (DLPack's code * 256 +
 * bits) a function that makes a tensor of a shape there. New reference; NULL and an exception. */
PyObject *
fl_py_pieces_make(const fl_py_pieces *self, PyObject *rows, PyObject *send, PyObject *empties);

#endif
