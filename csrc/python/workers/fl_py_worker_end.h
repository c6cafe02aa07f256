/* fl_py_worker_end: the heap type _core.WorkerEnd, a worker's end of the memory shared with its
 * parent. */
#ifndef FL_PY_WORKER_END_H
#define FL_PY_WORKER_END_H

#include "fl_py.h"
#include "fl_shm_queue.h" /* FL_FALLBACK_REASONS */

typedef struct fl_py_worker_end fl_py_worker_end;

extern PyType_Spec fl_py_worker_end_spec;

/* Makes a tensor in the batch being built; if the slot is full, the tensor gets its own memory. The
 * caller writes the elements to *data. New reference. */
PyObject *fl_py_worker_end_tensor(fl_py_worker_end *self, fl_dtype dtype, int32_t ndim,
                                  const int64_t *shape, char **data);

/* Counts one fallback for `reason` (< FL_FALLBACK_REASONS) in the parent's statistics. */
void fl_py_worker_end_count_fallback(fl_py_worker_end *self, int reason);

#endif
