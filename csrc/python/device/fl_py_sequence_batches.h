/* fl_py_sequence_batches: the heap type _core.SequenceBatches, batches of sequences that a CUDA
 * device makes of values in its memory.
 *
 * It hides which tables of pieces (fl_piece) the outputs of a batch need, and how they travel. All
 * functions need the interpreter lock; any number of threads may make batches at once. */
#ifndef FL_PY_SEQUENCE_BATCHES_H
#define FL_PY_SEQUENCE_BATCHES_H

#include "fl_py.h"

extern PyType_Spec fl_py_sequence_batches_spec;

#endif
