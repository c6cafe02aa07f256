/* fl_py_batch_pool: the heap type _core.BatchPool, which holds the memory that the iterators of a
 * loader share, and the counts of these iterators. */
#ifndef FL_PY_BATCH_POOL_H
#define FL_PY_BATCH_POOL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl_py_section.h"
#include "fl_ring.h"

typedef struct fl_py_batch_pool {
    PyObject_HEAD
    /* new sets these fields; afterwards they are read-only. */
    fl_pool *pool;       /* owned */
    fl_arena *arena;     /* owned; NULL unless the memory is shared with workers */
    fl_slot *probe;      /* owned; NULL unless the memory is pinned */
    uint32_t generation; /* of the process that made the pool */
    int32_t fields;      /* every slot has a header for this many tensors */
    int32_t device;      /* the device to which batches are copied; -1: batches stay on the CPU */
    /* SHARED(spares): the ring and the copy stream that an iterator has left to the next iterator,
     * or NULL. Iterators and trim() exchange these pointers atomically. The ring is empty, and the
     * copy stream has stopped. */
    fl_ring *_Atomic ring; /* owned: a ring with threads that wait for work */
    void *_Atomic copies;  /* owned: a copy stream of the device, with its events */
    /* SHARED(counts): all iterators of the loader add to these counts. */
    fl_py_count batches, samples, bytes, waits, wait_ns;
    _Atomic int64_t largest; /* bytes that recent batches of workers needed, also in earlier epochs:
                                the next epoch reuses their slots */
} fl_py_batch_pool;

/* Leaves a ring and a copy stream to the next iterator; each may be NULL. Closes the ring and the
 * copy stream that were there before. SYNC: waits for their threads. Releases the interpreter
 * lock. */
void fl_py_batch_pool_leave(fl_py_batch_pool *self, fl_ring *ring, void *copies);

extern PyType_Spec fl_py_batch_pool_spec;

#endif
