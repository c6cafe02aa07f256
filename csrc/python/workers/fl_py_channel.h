/* fl_py_channel: the parent's view of the memory that a parent process shares with its workers; the
 * struct of _core.ParentEnd. The type's methods, replies and the destination of replies use its
 * fields directly. */
#ifndef FL_PY_CHANNEL_H
#define FL_PY_CHANNEL_H

#include "fl_fork.h"
#include "fl_py_batch_pool.h"
#include "fl_py_reply_destination.h"

#include <stdatomic.h>

typedef struct fl_py_parent_end {
    PyObject_HEAD
    fl_py_dlpack dlpack;
    fl_py_batch_pool *pool;   /* owned */
    fl_shared_block *control; /* owned: holds the queues */
    fl_shm_queue *shm;        /* owned, over control */
    fl_inflight *inflight;    /* owned: all unanswered requests */
    uint32_t generation;      /* of the process that made this object */
    int32_t workers, depth;
    /* SHARED(channel): any thread may call close() or drop a reply, also while a different thread
     * is in next(). These fields, and the consumer thread's fields of fl_inflight, fl_shm_queue and
     * the destination's transfers, are only used in the section of this object. */
    bool is_closed; /* workers were told to stop */
    atomic_bool
        is_overwritten; /* fl_py_report_corruption was called; may be read outside the section */
    bool is_released;   /* all workers have ended */
    bool has_waited;    /* receive() has waited since the last reply */
    fl_py_reply_destination destination;
} fl_py_parent_end;

static inline bool fl_py_parent_end_is_foreign(const fl_py_parent_end *self)
{
    return self->generation != fl_fork_generation();
}

/* Raises RuntimeError because shared memory holds an impossible value that `worker` has sent.
 * Returns NULL. */
PyObject *fl_py_report_corruption(fl_py_parent_end *self, int32_t worker);

#endif
