/* fl_py_batch: turns a filled slot into a list of torch tensors over the slot's memory. */
#ifndef FL_PY_BATCH_H
#define FL_PY_BATCH_H

#include "fl_py_table.h"

/* Returns a list of the outputs, with tensors over the slot; is_single: without the batch
 * dimension. Takes the slot, also on failure. New reference. Needs the interpreter lock. */
PyObject *fl_py_batch(const fl_py_table *table, const fl_batch *batch, bool is_single);

#endif
