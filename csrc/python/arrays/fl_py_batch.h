/* fl_py_batch: a filled slot becomes a list or dict of torch tensors over its memory. */
#ifndef FL_PY_BATCH_H
#define FL_PY_BATCH_H

#include "fl_py_table.h"

/* A list of tensors over the slot, or a dict if `keys` is a tuple; is_single: without the batch
 * dimension. Takes the slot, also on failure. New reference. Needs the interpreter lock. */
PyObject *
fl_py_batch(const fl_py_table *table, PyObject *keys, const fl_batch *batch, bool is_single);

#endif
