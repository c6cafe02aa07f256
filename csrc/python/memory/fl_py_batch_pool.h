/* fl_py_batch_pool: the heap type _core.BatchPool, the memory that the iterators of a loader share,
 * and what they count. */
#ifndef FL_PY_BATCH_POOL_H
#define FL_PY_BATCH_POOL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_pool.h"
#include "fl_py_section.h"

typedef struct fl_py_batch_pool {
    PyObject_HEAD
    /* Set by new, then read-only. */
    fl_pool *pool;       /* owned */
    fl_arena *arena;     /* owned; NULL unless shared with workers */
    fl_slot *probe;      /* owned; NULL unless it is pinned, too */
    uint32_t generation; /* of the process that made it */
    int32_t fields;      /* tensors for which every slot has a header */
    int32_t device;      /* that batches are copied to; -1: they stay on the CPU */
    /* SHARED(counts): all iterators of the loader count here. */
    fl_py_count batches, samples, bytes, waits, wait_ns;
    _Atomic int64_t largest; /* bytes that recent batches of workers needed, also in earlier epochs:
                                their slots serve the next */
} fl_py_batch_pool;

extern PyType_Spec fl_py_batch_pool_spec;

#endif
