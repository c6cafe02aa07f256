/* fl_py_gatherer: the heap type _core.Gatherer, which makes batches of data on a CUDA device, or of
 * host memory that the device reads: from the indices to the structure around the batch's tensors.
 *
 * One thread at a time; only the code that runs inside torch's allocations may come in between. */
#ifndef FL_PY_GATHERER_H
#define FL_PY_GATHERER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec fl_py_gatherer_spec;

#endif
