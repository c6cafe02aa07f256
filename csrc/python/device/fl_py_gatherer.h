/* fl_py_gatherer: the heap type _core.Gatherer: the batches of data that lie on a CUDA device, or
 * in host memory that it reads, from the indices to the structure around their tensors.
 *
 * One thread at a time, but for the code that torch's allocation runs. */
#ifndef FL_PY_GATHERER_H
#define FL_PY_GATHERER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyType_Spec fl_py_gatherer_spec;

#endif
