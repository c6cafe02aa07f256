/* fl_py_packing: the heap type _core.Packing, the rows into which documents are packed
 * (fl_epoch_packing).
 *
 * All functions need the interpreter lock. */
#ifndef FL_PY_PACKING_H
#define FL_PY_PACKING_H

#include "fl_epoch_packing.h"
#include "fl_py.h"

extern PyType_Spec fl_py_packing_spec;

/* Reads offsets, a vector or pairs, into `out`, which borrows them: 0, or -1 and an exception. */
int fl_py_offsets(const fl_py_dlpack *dlpack, PyObject *object, fl_ragged *out);

/* Returns the packing of an object of the type, which lends the packing as long as it lives. */
fl_epoch_packing *fl_py_packing_of(PyObject *object);

#endif
