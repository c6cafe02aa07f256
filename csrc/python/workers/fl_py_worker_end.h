/* fl_py_worker_end: the heap type _core.WorkerEnd, a worker's end of the memory that its parent
 * shares with it. */
#ifndef FL_PY_WORKER_END_H
#define FL_PY_WORKER_END_H

#include "fl_py.h"
#include "fl_shm_queue.h" /* FL_FALLBACK_REASONS */

typedef struct fl_py_worker_end fl_py_worker_end;

extern PyType_Spec fl_py_worker_end_spec;

/* Memory for a tensor in the batch being built, or of its own once the slot is full. New
 * reference; *data is where its elements go. */
PyObject *fl_py_worker_end_tensor(fl_py_worker_end *self, fl_dtype dtype, int32_t ndim,
                                  const int64_t *shape, char **data);

/* Counts one fallback of the reason (< FL_FALLBACK_REASONS) for the parent's statistics. */
void fl_py_worker_end_count_fallback(fl_py_worker_end *self, int reason);

#endif
