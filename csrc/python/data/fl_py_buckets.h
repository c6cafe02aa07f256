/* fl_py_buckets: cuts the steps of a LengthBucketBatchSampler. Needs the interpreter lock. */
#ifndef FL_PY_BUCKETS_H
#define FL_PY_BUCKETS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char fl_py_bucket_steps_doc[];

/* bucket_steps(lengths, order, ranks, batch_size, max_tokens, mega_steps, drop_last) */
PyObject *fl_py_bucket_steps(PyObject *module, PyObject *args);

#endif
