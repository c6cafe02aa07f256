/* fl_py_pad_sequence: tensors of different length in one tensor, as torch's pad_sequence lays them.
 *
 * Covers plain tensors in host memory with steps of one dtype and shape. A step is what one index
 * of the first dimension selects, and must have no gaps. */
#ifndef FL_PY_PAD_SEQUENCE_H
#define FL_PY_PAD_SEQUENCE_H

#include "fl_py_stack.h"

/* pad_sequence(tensors, fill, batch_first, pad_left) of _core.Collate: returns the batch, or
 * NotImplemented if the tensors are not covered. New reference. Needs the interpreter lock; long
 * copies give up the lock. */
PyObject *fl_py_pad_sequence(fl_py_stacker *self, PyObject *args);

#endif
