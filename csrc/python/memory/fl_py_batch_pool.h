/* fl_py_batch_pool: the heap type _core.BatchPool, the memory that the iterators of a loader share,
 * and what they count. */
#ifndef FL_PY_BATCH_POOL_H
#define FL_PY_BATCH_POOL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_py_section.h"
#include "fl_ring.h"

typedef struct fl_py_batch_pool {
    PyObject_HEAD
    /* Set by new, then read-only. */
    fl_pool *pool;       /* owned */
    fl_arena *arena;     /* owned; NULL unless shared with workers */
    fl_slot *probe;      /* owned; NULL unless it is pinned, too */
    uint32_t generation; /* of the process that made it */
    int32_t fields;      /* tensors for which every slot has a header */
    int32_t device;      /* that batches are copied to; -1: they stay on the CPU */
    /* SHARED(spares): what an iterator has left to the next one, or NULL; iterators and trim() take
     * and put by exchanging. The ring is empty, the copy stream halted. */
    fl_ring *_Atomic ring; /* owned: its threads wait for work */
    void *_Atomic copies;  /* owned: a copy stream of the device, with its events */
    /* SHARED(counts): all iterators of the loader count here. */
    fl_py_count batches, samples, bytes, waits, wait_ns;
    _Atomic int64_t largest; /* bytes that recent batches of workers needed, also in earlier epochs:
                                their slots serve the next */
} fl_py_batch_pool;

/* Leaves a ring and a copy stream, either of which may be NULL, to the next iterator. SYNC: waits
 * for the threads of those that were there before. Lets go of the interpreter lock. */
void fl_py_batch_pool_leave(fl_py_batch_pool *self, fl_ring *ring, void *copies);

extern PyType_Spec fl_py_batch_pool_spec;

#endif
